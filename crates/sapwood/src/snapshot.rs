//! Snapshots: a database as it was at one moment. Readers take no lock and never wait.
//!
//! A snapshot is a state (the two operation queues and the version of its time) and a sequence number. The state is
//! taken first: whatever it holds was visible before the number was read, and what came into a later queue is not seen.

use crate::batch::check_key;
use crate::database::Handle;
use crate::engine::State;
use crate::error::{Error, Result};
use crate::iter::Range;
use crate::keyspace::Keyspace;
use crate::operation::SeqNo;
use crate::tree::{search, view::TreeView};
use crate::value::Value;
use bytes::Bytes;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// A consistent view of all keyspaces. Made by [`Database::snapshot`](crate::Database::snapshot).
///
/// It keeps alive what it can see: memory of operation queues (which the cache and the next queues have less), and space on disk of nodes that were replaced since.
/// Drop it when it is no longer needed.
#[derive(Clone)]
pub struct Snapshot {
    handle: Arc<Handle>,
    state: Arc<State>,
    seq: SeqNo,
}

impl Snapshot {
    pub(crate) fn new(handle: Arc<Handle>) -> Self {
        let (state, seq) = handle.engine.view();
        Self { handle, state, seq }
    }

    fn check(&self, keyspace: &Keyspace) -> Result<()> {
        if Arc::ptr_eq(keyspace.handle(), &self.handle) {
            Ok(())
        } else {
            Err(Error::Foreign { what: "keyspace" })
        }
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.check(keyspace)?;
        check_key(key.as_ref())?;
        self.state.get(&self.handle.engine.pager, keyspace.id(), key.as_ref(), self.seq)
    }

    /// The values of many keys, in the order asked. See [`Keyspace::multi_get`].
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        self.check(keyspace)?;
        let keys: Vec<K> = keys.into_iter().collect();
        keys.iter().try_for_each(|key| check_key(key.as_ref()))?;
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by(|a, b| keys[*a].as_ref().cmp(keys[*b].as_ref()));
        let mut values: Vec<Option<Value>> = vec![None; keys.len()];
        let pager = &self.handle.engine.pager;
        // What neither the queues nor the cached records know goes to the tree: each key once, with all places that asked for it.
        let mut sorted: Vec<&[u8]> = Vec::with_capacity(keys.len());
        let mut askers: Vec<usize> = Vec::with_capacity(keys.len());
        for same in order.chunk_by(|a, b| keys[*a].as_ref() == keys[*b].as_ref()) {
            let key = keys[same[0]].as_ref();
            let queued = self.state.queued(keyspace.id(), key, self.seq);
            match queued.or_else(|| pager.record(self.state.number, keyspace.id(), key).map(Some)) {
                Some(change) => {
                    let value = change.map(Value);
                    same.iter().for_each(|index| values[*index] = value.clone());
                }
                None => {
                    sorted.push(key);
                    askers.push(same[0]);
                }
            }
        }
        let view = TreeView { pager, version: &self.state.version, keyspace: keyspace.id() };
        search::multi_get(view, Some(self.state.number), &sorted, &mut |index, value| {
            values[askers[index]] = Some(Value(value))
        })?;
        for same in order.chunk_by(|a, b| keys[*a].as_ref() == keys[*b].as_ref()) {
            for index in &same[1..] {
                values[*index] = values[same[0]].clone();
            }
        }
        Ok(values)
    }

    /// The records with keys within `bounds`. See [`Keyspace::range`].
    pub fn range<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, bounds: impl RangeBounds<K>) -> Range {
        let own = |bound: Bound<&K>| bound.map(|key| Bytes::copy_from_slice(key.as_ref()));
        self.between(keyspace, own(bounds.start_bound()), own(bounds.end_bound()))
    }

    /// The records whose keys begin with `prefix`.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        let prefix = prefix.as_ref();
        let low = if prefix.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Included(Bytes::copy_from_slice(prefix))
        };
        self.between(keyspace, low, end_of_prefix(prefix))
    }

    /// All records.
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        self.between(keyspace, Bound::Unbounded, Bound::Unbounded)
    }

    fn between(&self, keyspace: &Keyspace, low: Bound<Bytes>, high: Bound<Bytes>) -> Range {
        let refused = self.check(keyspace).err();
        Range::new(
            Arc::clone(&self.handle),
            Arc::clone(&self.state),
            self.seq,
            keyspace.id(),
            (low, high),
            refused,
        )
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot(after operation {})", self.seq)
    }
}

/// The smallest key above all that begin with `prefix`.
fn end_of_prefix(prefix: &[u8]) -> Bound<Bytes> {
    match prefix.iter().rposition(|byte| *byte != 0xff) {
        None => Bound::Unbounded,
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            Bound::Excluded(end.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_the_next_begins() {
        assert_eq!(end_of_prefix(b"ab"), Bound::Excluded(Bytes::from("ac")));
        assert_eq!(end_of_prefix(b"a\xff\xff"), Bound::Excluded(Bytes::from("b")));
        assert_eq!(end_of_prefix(b"\xff"), Bound::Unbounded);
        assert_eq!(end_of_prefix(b""), Bound::Unbounded);
    }
}
