//! Iteration in a transaction: its snapshot, with what it has written laid over it, from either end. What was observed goes to the
//! transaction's read set.
//!
//! Invariants:
//! 1. What the transaction has written for a key comes in place of what the snapshot has. In a range that it has removed the
//!    snapshot has nothing.
//! 2. A record is returned from one end only.
//! 3. Whatever was returned, and that nothing lies between, is in the read set before the caller has it.

use crate::bounds::is_empty;
use crate::conflict::read_set::{End, OpenRangeId, ReadSet};
use crate::db::keyspace::Keyspace;
use crate::db::merging::{has_operands, lay_written};
use crate::db::snapshot::Snapshot;
use crate::db::transaction::writes::Written;
use crate::error::{Error, Result};
use crate::expiry::StoredValues;
use crate::iter::Range;
use crate::lock_order::{RankedMutex, rank};
use crate::operation::KeyspaceId;
use crate::tree::range::Direction;
use crate::value::{Key, Value, unpinned};
use bytes::Bytes;
use std::ops::Bound;
use std::sync::Arc;

/// An iterator over records in key order, as a transaction sees them. Made by
/// [`Transaction::range`](crate::Transaction::range) and similar methods.
///
/// It has what the transaction had written when it was made; what is written later is not in it. So the transaction can write
/// while it iterates; the first write beside it copies what the transaction has written in the keyspace. What it returns counts as read, also that there is nothing between; what it does not come to does not
/// count.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// ships.insert("beagle", "1820")?;
/// let mut tx = db.transaction()?;
/// tx.insert(&ships, "fram", "1892")?;
/// for item in tx.iter(&ships) {
///     let (name, year) = item?;
///     tx.insert(&ships, name, [&year[..], b", afloat"].concat())?;
/// }
/// tx.commit()?;
/// assert!(ships.get("fram")?.is_some_and(|year| year == "1892, afloat"));
/// # Ok(()) }
/// ```
#[must_use = "iterators do nothing until they are used"]
pub struct TransactionRange {
    /// Of values as they are stored: what the transaction has written counts before they are looked at.
    snapshot: Range,
    written: Arc<Written>,
    /// What is left of `written`.
    low: Bound<Bytes>,
    high: Bound<Bytes>,
    /// Taken from the snapshot and not returned yet, as stored.
    front: Option<(Key, Value)>,
    back: Option<(Key, Value)>,
    reads: Arc<RankedMutex<rank::ReadSet, ReadSet>>,
    id: OpenRangeId,
    is_over: bool,
    values: StoredValues,
}

/// A keyspace as a transaction saw it at one moment, with its writes until then.
pub(crate) struct TransactionView {
    pub(super) snapshot: Snapshot,
    pub(super) written: Arc<Written>,
    pub(super) reads: Arc<RankedMutex<rank::ReadSet, ReadSet>>,
}

impl TransactionView {
    /// The records within bounds. What is returned counts as read.
    pub fn between(&self, keyspace: &Keyspace, bounds: (Bound<Bytes>, Bound<Bytes>)) -> TransactionRange {
        let snapshot = self.snapshot.range(keyspace, bounds.clone());
        let (id, values) = (keyspace.id(), keyspace.values().clone());
        TransactionRange::new(snapshot, Arc::clone(&self.written), &self.reads, (id, values), bounds)
    }
}

impl TransactionRange {
    pub(super) fn new(
        snapshot: Range,
        written: Arc<Written>,
        reads: &Arc<RankedMutex<rank::ReadSet, ReadSet>>,
        (keyspace, values): (KeyspaceId, StoredValues),
        (low, high): (Bound<Bytes>, Bound<Bytes>),
    ) -> Self {
        let id = reads.lock().open_range(keyspace, &low, &high);
        let (front, back, is_over) = (None, None, false);
        Self {
            snapshot: snapshot.with_stored_values(),
            written,
            low,
            high,
            front,
            back,
            reads: Arc::clone(reads),
            id,
            is_over,
            values,
        }
    }

    /// The rest of the range as a stream, in ascending order. Needs the feature `async`. It takes portions of 16 to 1,024 records ahead, which
    /// count as read, whether the task comes to them or not.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// use futures_util::TryStreamExt;
    ///
    /// let mut tx = db.transaction()?;
    /// tx.insert(&ships, "fram", "1892")?;
    /// let all: Vec<_> = futures_executor::block_on(tx.iter(&ships).into_stream().try_collect())?;
    /// assert_eq!(all.len(), 1);
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "async")]
    pub fn into_stream(self) -> crate::RangeStream<Self> {
        let host = Arc::clone(self.snapshot.host());
        crate::RangeStream::new(self, host)
    }

    /// The next record that has not expired.
    fn step(&mut self, end: End) -> Result<Option<(Key, Value)>> {
        loop {
            let Some((key, stored)) = self.step_stored(end)? else { return Ok(None) };
            if let Some(value) = self.values.read(&key, stored)? {
                return Ok(Some((key, value)));
            }
        }
    }

    fn step_stored(&mut self, end: End) -> Result<Option<(Key, Value)>> {
        loop {
            let (own, other) = match end {
                End::Front => (&mut self.front, &mut self.back),
                End::Back => (&mut self.back, &mut self.front),
            };
            let is_new = own.is_none();
            if is_new {
                let next = match end {
                    End::Front => self.snapshot.next(),
                    End::Back => self.snapshot.next_back(),
                };
                let next = next.transpose()?;
                if let Some((key, _)) = &next
                    && let Some((start, to)) = self.written.removed.range_of(&key.0)
                {
                    match end {
                        End::Front => self.snapshot.go_on_at(Direction::Up, to.cloned().map(Bound::Included)),
                        End::Back => {
                            self.snapshot.go_on_at(Direction::Down, Some(Bound::Excluded(start.clone())));
                        }
                    }
                    continue;
                }
                // What the other end has taken is the last one left.
                *own = next.or_else(|| other.take());
            }
            let (low, high) = (self.low.as_ref(), self.high.as_ref());
            let mut left =
                (!is_empty(low, high)).then(|| self.written.changes.range::<Bytes, _>((low, high)));
            let written = left.as_mut().and_then(|left| match end {
                End::Front => left.next(),
                End::Back => left.next_back(),
            });
            let Some((key, change)) = written else { return Ok(own.take()) };
            let mut beneath = None;
            if let Some((stored, _)) = own {
                match (stored.0.cmp(key), end) {
                    (std::cmp::Ordering::Less, End::Front) | (std::cmp::Ordering::Greater, End::Back) => {
                        return Ok(own.take());
                    }
                    (std::cmp::Ordering::Equal, _) => beneath = own.take().map(|(_, value)| value),
                    _ => {}
                }
            }
            if is_new {
                // It stays until the caller comes to it.
                *own = own.take().map(unpinned);
            }
            let (key, change) = (key.clone(), change.clone());
            match end {
                End::Front => self.low = Bound::Excluded(key.clone()),
                End::Back => self.high = Bound::Excluded(key.clone()),
            }
            let change = match (change, self.values.merging()) {
                (Some(written), Some(merging)) if has_operands(&written) => {
                    Some(lay_written(merging, &written, || Ok(beneath))?.into())
                }
                (change, _) => change,
            };
            if let Some(stored) = change {
                return Ok(Some((Value(key), Value(stored))));
            }
        }
    }

    fn advance(&mut self, end: End) -> Option<Result<(Key, Value)>> {
        if self.is_over {
            return None;
        }
        let next = self.step(end);
        match &next {
            Ok(Some((key, _))) | Err(Error::MergeFailed { key, .. }) => {
                self.reads.lock().advance(self.id, end, &key.0);
            }
            Ok(None) => self.reads.lock().exhaust(self.id),
            Err(_) => {}
        }
        self.is_over = !matches!(next, Ok(Some(_)) | Err(Error::MergeFailed { .. }));
        next.transpose()
    }
}

impl Iterator for TransactionRange {
    type Item = Result<(Key, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(End::Front)
    }
}

impl DoubleEndedIterator for TransactionRange {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.advance(End::Back)
    }
}

impl std::iter::FusedIterator for TransactionRange {}

impl Drop for TransactionRange {
    fn drop(&mut self) {
        self.reads.lock().close_range(self.id);
    }
}

impl std::fmt::Debug for TransactionRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionRange").field("snapshot", &self.snapshot).finish_non_exhaustive()
    }
}
