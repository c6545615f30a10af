//! Samples the changes that a flush routes to blocks, to find how many of them insert records that the trees
//! do not have. If most do, the database grows, and its log areas do not hide older records. Changes behind a
//! tree's last key say nothing about log areas and are not sampled. One keyspace may grow while records of
//! another are overwritten, so each is counted by itself.
//!
//! Invariant: keys are copied, so that they keep nothing else in memory.

use crate::cache::pager::Pager;
use crate::error::Result;
use crate::even_sample::EvenSample;
use crate::log_area::{NewShare, SampledChanges};
use crate::operation::{KeyspaceId, OperationRef};
use crate::tree::lookup::multi_get;
use crate::tree::view::TreeView;
use crate::version::Version;
use bytes::Bytes;

/// Keys of a sample (count): as many reads, which go to the device together.
const SIZE: usize = 64;
/// Number of keys below which a sample says nothing: its error would be over a quarter.
const ENOUGH: usize = SIZE / 4;

/// See the module.
#[derive(Default)]
pub(crate) struct Sample {
    /// Sampled changes: their keyspace and key; no key for a removal.
    changes: EvenSample<(KeyspaceId, Option<Bytes>), SIZE>,
}

impl Sample {
    /// Sees a change, and may keep it.
    pub fn see(&mut self, change: &OperationRef<'_>) {
        let key = change.value.map(|_| change.key);
        self.changes.see(|| (change.keyspace, key.map(Bytes::copy_from_slice)));
    }

    /// Whether the sample is large enough.
    pub fn is_enough(&self) -> bool {
        self.changes.kept().len() >= ENOUGH
    }

    /// Counts the sampled changes that insert keys that `version` does not have. `None` if the sample is
    /// empty.
    pub fn fresh(&self, pager: &Pager, version: &Version) -> Result<Option<NewShare>> {
        let (mut all, mut each) = (0, Vec::new());
        // Changes that went ahead of the flush were not seen in key order with the rest.
        let mut sorted: Vec<_> = self.changes.kept().iter().collect();
        sorted.sort_unstable();
        for kept in sorted.chunk_by(|a, b| a.0 == b.0) {
            let Some((keyspace, _)) = kept.first() else { continue };
            let view = TreeView { pager, version, keyspace: *keyspace };
            let keys: Vec<_> = kept.iter().filter_map(|(_, key)| key.as_ref()).collect();
            let mut new = keys.len();
            multi_get(view, None, &keys, &mut |_, _| new = new.saturating_sub(1))?;
            all += new;
            each.push((*keyspace, SampledChanges { new: new as u64, of: kept.len() as u64 }));
        }
        Ok((all * 100).checked_div(self.changes.kept().len()).map(|all| NewShare { all: all as u64, each }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_sample_says_nothing() {
        let mut sample = Sample::default();
        for number in 0..100u32 {
            assert_eq!(sample.is_enough(), number >= 16);
            let (keyspace, key) = (KeyspaceId(1), &number.to_be_bytes()[..]);
            sample.see(&OperationRef { keyspace, key, value: Some(&[]) });
        }
    }
}
