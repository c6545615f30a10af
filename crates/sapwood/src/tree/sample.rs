//! A sample of a queue's changes: how many of them are records that the trees do not have. Where most are new, a database grows, and what
//! its log areas hold takes the place of nothing.
//!
//! Invariant: at most [`SIZE`] keys, copied, so that they keep nothing else in memory.

use crate::error::Result;
use crate::operation::{KeyspaceId, OperationRef};
use crate::store::pager::Pager;
use crate::store::version::Version;
use crate::tree::search::multi_get;
use crate::tree::view::TreeView;
use bytes::Bytes;

/// Keys of a sample (count): as many reads, which go to the device together.
const SIZE: u64 = 64;
/// Fewer say nothing.
const ENOUGH: u64 = SIZE / 4;

/// See the module.
pub(crate) struct Sample {
    every: u64,
    seen: u64,
    removals: u64,
    keys: Vec<(KeyspaceId, Bytes)>,
}

impl Sample {
    /// Of a queue with so many changes.
    pub fn of(count: u64) -> Self {
        Self { every: count.div_ceil(SIZE).max(1), seen: 0, removals: 0, keys: Vec::new() }
    }

    /// Looks at a change, the next in key order.
    pub fn see(&mut self, change: &OperationRef<'_>) {
        self.seen += 1;
        if !self.seen.is_multiple_of(self.every) {
            return;
        }
        match change.value {
            Some(_) => self.keys.push((change.keyspace, Bytes::copy_from_slice(change.key))),
            None => self.removals += 1,
        }
    }

    /// Whether so many were seen that they say something.
    pub fn is_enough(&self) -> bool {
        self.removals + self.keys.len() as u64 >= ENOUGH
    }

    /// Forgets what was seen, and looks at more of what comes: what was seen went with a portion that was too small.
    pub fn begin_anew(&mut self) {
        *self = Self::of(self.every * ENOUGH);
    }

    /// Percent of the changes that insert what `version` does not have. `None` if too few were seen.
    pub fn new_percent(&self, pager: &Pager, version: &Version) -> Result<Option<u64>> {
        let mut old = self.removals;
        for keys in self.keys.chunk_by(|a, b| a.0 == b.0) {
            let Some((keyspace, _)) = keys.first() else { continue };
            let view = TreeView { pager, version, keyspace: *keyspace };
            let keys: Vec<_> = keys.iter().map(|(_, key)| key).collect();
            multi_get(view, None, &keys, &mut |_, _| old += 1)?;
        }
        let all = self.removals + self.keys.len() as u64;
        Ok(self.is_enough().then(|| (all - old.min(all)) * 100 / all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_at_more_when_a_portion_had_too_few() {
        let change = |value| OperationRef { keyspace: KeyspaceId(1), key: b"a", value };
        let mut sample = Sample::of(64_000);
        let see = |sample: &mut Sample, count: u64| {
            (0..count).for_each(|number| sample.see(&change((number % 2 == 0).then_some(&b"b"[..]))));
        };
        see(&mut sample, 15_999);
        assert!(!sample.is_enough(), "15 of what is in a quarter");
        sample.begin_anew();
        see(&mut sample, 3_999);
        assert!(!sample.is_enough(), "one in 250 now");
        see(&mut sample, 1);
        assert!(sample.is_enough());
    }
}
