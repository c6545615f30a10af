//! A sample of the changes that a queue got, to estimate from.
//!
//! Invariant: the same share of all changes, and of all removals, is kept; of few all are.

use crate::even_sample::EvenSample;
use crate::operation::{KeyspaceId, SeqNo};
use crate::opq::map::Key;
use bytes::Bytes;

/// Changes in the sample of a queue (count): enough for an estimate within some six percent.
const CHANGES: usize = 256;

/// Removals of single keys in a sample of their own (count): they may be few among many changes, and stand for much space.
const REMOVALS: usize = 128;

/// A removal of a single key: keyspace, key, and sequence number.
type Removal = (KeyspaceId, Bytes, SeqNo);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// With whether they are no removals.
    changes: EvenSample<(KeyspaceId, Bytes, SeqNo, bool), CHANGES>,
    removals: EvenSample<Removal, REMOVALS>,
}

/// A change in the sample of a queue.
#[derive(Clone, Debug)]
pub(crate) struct Sampled {
    pub key: Bytes,
    pub seq: SeqNo,
    /// Whether it is no removal.
    pub is_value: bool,
    /// How many changes it stands for.
    pub weight: f64,
}

impl Samples {
    #[inline]
    pub fn see(&mut self, (keyspace, key, seq): Key<'_>, is_value: bool) {
        self.changes.see(|| (keyspace, Bytes::copy_from_slice(key), seq, is_value));
        if !is_value {
            self.removals.see(|| (keyspace, Bytes::copy_from_slice(key), seq));
        }
    }

    /// The changes of a keyspace.
    pub fn of(&self, keyspace: KeyspaceId) -> Vec<Sampled> {
        let weight = self.changes.weight();
        let of_it = self.changes.kept().iter().filter(|(of, ..)| *of == keyspace).cloned();
        of_it.map(|(_, key, seq, is_value)| Sampled { key, seq, is_value, weight }).collect()
    }

    /// The removals of single keys, and how many each of them stands for.
    pub fn removals(&self) -> (Vec<Removal>, f64) {
        (self.removals.kept().to_vec(), self.removals.weight())
    }
}
