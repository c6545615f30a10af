//! Samples the changes that a flush routes to blocks, to find how many of them insert records that the trees
//! do not have. If most do, the database grows, and its log areas do not hide older records. Changes behind a
//! tree's last key say nothing about log areas and are not sampled. One keyspace may grow while records of
//! another are overwritten, so each is counted by itself.
//!
//! Invariant: at most [`SIZE`] changes, spread evenly over those that were seen; keys are copied, so that
//! they keep nothing else in memory.

use crate::error::Result;
use crate::operation::{KeyspaceId, OperationRef};
use crate::store::pager::Pager;
use crate::store::version::Version;
use crate::tree::search::multi_get;
use crate::tree::view::TreeView;
use bytes::Bytes;

/// Keys of a sample (count): as many reads, which go to the device together.
const SIZE: usize = 64;
/// A smaller sample says nothing.
const ENOUGH: usize = SIZE / 4;

/// Fraction of the changes that insert new records.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fresh {
    /// In percent of all changes.
    pub all: u64,
    /// Of each sampled keyspace.
    pub each: Vec<(KeyspaceId, Seen)>,
}

/// Sampled changes of a keyspace: those that insert new records, and all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub new: u64,
    pub of: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Sample {
    /// One of every `skipped + 1` changes is kept.
    skipped: u64,
    seen: u64,
    /// Sampled changes: their keyspace and key; no key for a removal.
    kept: Vec<(KeyspaceId, Option<Bytes>)>,
}

impl Sample {
    /// Sees a change, and may keep it.
    pub fn see(&mut self, change: &OperationRef<'_>) {
        let every = self.skipped + 1;
        self.seen += 1;
        if !self.seen.is_multiple_of(every) {
            return;
        }
        if self.kept.len() == SIZE {
            let mut number = 0;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            self.skipped += every;
            if !self.seen.is_multiple_of(2 * every) {
                return;
            }
        }
        let key = change.value.map(|_| Bytes::copy_from_slice(change.key));
        self.kept.push((change.keyspace, key));
    }

    /// Whether the sample is large enough.
    pub fn is_enough(&self) -> bool {
        self.kept.len() >= ENOUGH
    }

    /// Counts the sampled changes that insert keys that `version` does not have. `None` if the sample is
    /// empty.
    pub fn fresh(&self, pager: &Pager, version: &Version) -> Result<Option<Fresh>> {
        let (mut all, mut each) = (0, Vec::new());
        // Changes that went ahead of the flush were not seen in key order with the rest.
        let mut sorted: Vec<_> = self.kept.iter().collect();
        sorted.sort_unstable();
        for kept in sorted.chunk_by(|a, b| a.0 == b.0) {
            let Some((keyspace, _)) = kept.first() else { continue };
            let view = TreeView { pager, version, keyspace: *keyspace };
            let keys: Vec<_> = kept.iter().filter_map(|(_, key)| key.as_ref()).collect();
            let mut new = keys.len();
            multi_get(view, None, &keys, &mut |_, _| new = new.saturating_sub(1))?;
            all += new;
            each.push((*keyspace, Seen { new: new as u64, of: kept.len() as u64 }));
        }
        Ok((all * 100).checked_div(self.kept.len()).map(|all| Fresh { all: all as u64, each }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_spread_over_all_that_was_seen_and_stays_small() {
        for count in [1u32, 15, 16, 64, 65, 127, 128, 129, 1000, 100_000] {
            let mut sample = Sample::default();
            for number in 0..count {
                let (keyspace, key) = (KeyspaceId(1), &number.to_be_bytes()[..]);
                sample.see(&OperationRef { keyspace, key, value: Some(&[]) });
            }
            let kept: Vec<_> = sample.kept.iter().flat_map(|(_, key)| key.clone()).collect();
            let kept: Vec<_> =
                kept.iter().map(|key| u32::from_be_bytes(key[..].try_into().unwrap())).collect();
            let every = sample.skipped as u32 + 1;
            assert!(kept.windows(2).all(|pair| pair[1] - pair[0] == every), "{count}: {kept:?}");
            assert!(
                kept.first() == Some(&(every - 1)) && kept.last().unwrap() + every >= count,
                "{count}: {kept:?}"
            );
            assert!(
                (SIZE / 2..=SIZE).contains(&kept.len()) || kept.len() == count as usize,
                "{count}: {kept:?}"
            );
            assert_eq!(sample.is_enough(), count >= 16);
        }
    }
}
