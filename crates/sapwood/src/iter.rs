//! Iteration: merges the operation queues with the tree, from either end.
//!
//! Invariants:
//! 1. Each key is returned at most once, with the newest change that the snapshot sees. Removed keys are not
//!    returned.
//! 2. Front and back never cross: a record returned from one end is not returned from the other.
//! 3. After an error the iterator is exhausted, unless the error is of one record, which could not be merged.
//! 4. Iterators that are not at work hold little ([`ITERATORS_SHARE`]): if all together hold too much, one keeps its place
//!    and its bounds only, and its next step begins with a search for that place.
//! 5. What is passed over without a look holds no record for this snapshot.

mod expired;
mod merge;
mod queued;
#[cfg(feature = "async")]
pub(crate) mod stream;
#[cfg(test)]
mod tests;

use crate::bounds::is_empty;
use crate::cache::pager::IteratorMemory;
use crate::current_state::{CurrentState, State};
use crate::error::{Error, Result};
use crate::expiry::StoredValues;
use crate::latency::Timed;
use crate::operation::{KeyspaceId, SeqNo};
use crate::tree::range::{Direction, Leaves};
use crate::value::{Key, Value, unpinned};
use bytes::Bytes;
use expired::ExpiredRun;
use merge::{Merge, MergeSpec};
use std::ops::Bound;
use std::sync::Arc;

/// All iterators together hold at most this fraction (1/32) of the budget between two steps, with [`BARE`] bytes each: where
/// these alone are more, each step begins with a search.
/// Those that have had to leave what they held so many times ([`LEFT_MAX`]), or were begun together, are at work, and may hold more (1/8).
const ITERATORS_SHARE: usize = 32;
const ITERATORS_AT_WORK: usize = 8;
const LEFT_MAX: u8 = 3;

/// Bytes of an iterator that holds nothing, but for the longest keys of its bounds: its own fields and what it always
/// allocates.
const BARE: usize = size_of::<Range>() + 512;

/// The open database that iterators belong to. It stays open as long as one of them is there.
pub(crate) trait Host: Send + Sync {
    /// The memory budget in bytes.
    fn memory(&self) -> u64;

    /// What iterators hold has changed.
    fn note_iterators(&self);

    /// The threads that read for tasks. Another process than the one that opened the database has none, but an error.
    #[cfg(feature = "async")]
    fn readers(&self) -> Result<&crate::pool::Pool>;
}

/// An iterator over records in key order, all as of the same moment. Made by
/// [`Keyspace::range`](crate::Keyspace::range) and similar methods.
///
/// There may be many. Each takes about a kilobyte, and what it holds of the tree for its next steps counts in the memory
/// budget. If all together hold more than a 32nd of the budget, one that has hardly been used keeps only its place, and
/// its next step begins with a search; beyond an eighth all do. The two ends of an iterator that is used from both
/// are excepted.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// for number in 0..10u8 {
///     ships.insert([number], "afloat")?;
/// }
/// let mut range = ships.range([2]..[8]);
/// let (first, last) = (range.next().expect("there are some")?, range.next_back().expect("there are some")?);
/// assert_eq!((&first.0[..], &last.0[..]), (&[2][..], &[7][..])); // both ends of one range
/// assert_eq!(range.count(), 4);
/// # Ok(()) }
/// ```
#[must_use = "iterators do nothing until they are used"]
pub struct Range {
    /// Of the host, which a record's way should not lead through.
    current: Arc<CurrentState>,
    state: Arc<State>,
    seq: SeqNo,
    keyspace: KeyspaceId,
    low: Bound<Bytes>,
    high: Bound<Bytes>,
    front: Option<Box<Merge>>,
    back: Option<Box<Merge>>,
    refused: Option<Error>,
    over: bool,
    /// How many times it left what it held.
    left: u8,
    /// It was begun with others: they are at work.
    is_begun: bool,
    /// Counts the iterator itself.
    _bare: IteratorMemory,
    /// The record lent last, if the tree walk does not hold it.
    lent: (Bytes, Bytes),
    values: StoredValues,
    /// Dropped last: closing gives back the space of what no state has any more.
    host: Arc<dyn Host>,
}

impl Range {
    pub(crate) fn new(
        host: Arc<dyn Host>,
        current: Arc<CurrentState>,
        state: Arc<State>,
        seq: SeqNo,
        (keyspace, values): (KeyspaceId, StoredValues),
        (low, high): (Bound<Bytes>, Bound<Bytes>),
        refused: Option<Error>,
    ) -> Self {
        let over = refused.is_none() && is_empty(low.as_ref(), high.as_ref());
        let lent = Default::default();
        let mut bare = IteratorMemory::new(Arc::clone(&current.pager));
        bare.set(BARE);
        let (front, back, left, is_begun) = (None, None, 0, false);
        Self {
            host,
            current,
            state,
            seq,
            keyspace,
            low,
            high,
            front,
            back,
            refused,
            over,
            left,
            is_begun,
            _bare: bare,
            lent,
            values,
        }
    }

    /// Keys only. Values are not kept, so that keys may be for as long as one likes.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("beagle", "1820")?;
    /// ships.insert("fram", "1892")?;
    /// let names = ships.iter().keys().rev().collect::<sapwood::Result<Vec<_>>>()?;
    /// assert_eq!(names, ["fram", "beagle"]);
    /// # Ok(()) }
    /// ```
    pub fn keys(self) -> impl DoubleEndedIterator<Item = Result<Key>> + Send + Sync {
        Keys(self.of_keys())
    }

    /// The same for one who looks at keys alone.
    pub(crate) fn of_keys(mut self) -> Self {
        self.values = self.values.of_keys();
        self
    }

    /// The same with values as they are stored.
    pub(crate) fn with_stored_values(mut self) -> Self {
        self.values = self.values.as_stored();
        self
    }

    fn end(&mut self, direction: Direction) -> &mut Option<Box<Merge>> {
        if direction == Direction::Up { &mut self.front } else { &mut self.back }
    }

    /// Makes the merge of one end, unless it is there, or there is nothing to merge.
    fn open_end(&mut self, direction: Direction) {
        if self.end(direction).is_none() {
            let (state, bounds) = (Arc::clone(&self.state), (self.low.clone(), self.high.clone()));
            let spec = MergeSpec { state, seq: self.seq, keyspace: self.keyspace, bounds, direction };
            *self.end(direction) = Merge::new(&self.current, spec).map(Box::new);
        }
    }

    /// Reads together what these ranges, of one keyspace and moment, need first if they are used from their beginning; as far as iterators at
    /// work may hold that beside what others hold.
    pub(crate) fn begin_together(ranges: &mut [Self]) {
        let Some(Self { host, current, .. }) = ranges.first() else { return };
        let (host, current) = (Arc::clone(host), Arc::clone(current));
        // With what each of these has besides, or they would leave what was read at their first step.
        let held = current.pager.iterator_bytes() + ranges.len() * size_of::<Merge>();
        let room = (host.memory() as usize / ITERATORS_AT_WORK).saturating_sub(held);
        let begun = ranges.iter_mut().filter(|range| !range.over && range.refused.is_none());
        begun.for_each(|range| {
            range.is_begun = true;
            range.open_end(Direction::Up);
        });
        let merges = ranges.iter_mut().filter_map(|range| range.front.as_deref_mut());
        Leaves::begin_together(merges.map(Merge::leaves), room);
        for range in ranges {
            // Those that came too late have read nothing.
            range.front.take_if(|front| front.leaves().memory() == 0);
            if let Some(front) = &mut range.front {
                front.note_memory();
            }
        }
        host.note_iterators();
    }

    fn step(&mut self, direction: Direction) -> Result<Option<(Bytes, Bytes)>> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        if self.is_begun && direction == Direction::Down {
            // What was read for its beginning stands in the way of leaving its end, and it is none of those that are used as they were begun.
            self.front.take_if(|front| front.last_key().is_none());
            self.is_begun = self.left > 0 || self.front.is_some();
        }
        self.open_end(direction);
        let end = if direction == Direction::Up { &mut self.front } else { &mut self.back };
        let Some(merge) = end else { return Ok(None) };
        let Some((key, value)) = merge.next(&self.current)? else { return Ok(None) };
        let has_changed = merge.note_memory();
        let met = match direction {
            Direction::Up => {
                self.back.as_deref().and_then(Merge::last_key).is_some_and(|last| key[..] >= *last)
            }
            Direction::Down => {
                self.front.as_deref().and_then(Merge::last_key).is_some_and(|last| key[..] <= *last)
            }
        };
        if has_changed {
            self.host.note_iterators();
        }
        self.leave_if_too_much(direction, &key);
        Ok((!met).then_some((key, value)))
    }

    /// Keeps no more than the place behind `key`, the last one returned, if iterators hold too much.
    #[inline]
    fn leave_if_too_much(&mut self, direction: Direction, key: &Bytes) {
        let end = if direction == Direction::Up { &self.front } else { &self.back };
        let own = end.as_ref().map_or(0, |merge| merge.memory());
        // One alone may hold what it likes: it reads groups that fit the memory.
        let others = self.current.pager.iterator_bytes().saturating_sub(own);
        let is_at_work = self.is_begun || self.left >= LEFT_MAX;
        let share = if is_at_work { ITERATORS_AT_WORK } else { ITERATORS_SHARE };
        if others <= self.host.memory() as usize / share {
            return;
        }
        let place = Bound::Excluded(Bytes::copy_from_slice(key));
        // The other end, if there is one, has its own idea of the bounds.
        match direction {
            Direction::Up if self.back.is_none() => (self.front, self.low) = (None, place),
            Direction::Down if self.front.is_none() => (self.back, self.high) = (None, place),
            _ => return,
        }
        self.left = self.left.saturating_add(1);
    }

    /// Passes over what comes before this bound, or over everything, if the other end was not used yet; else nothing
    /// happens.
    pub(crate) fn go_on_at(&mut self, direction: Direction, bound: Option<Bound<Bytes>>) {
        let Some(bound) = bound else {
            self.over = true;
            return;
        };
        match direction {
            Direction::Up if self.back.is_none() => (self.front, self.low) = (None, bound),
            Direction::Down if self.front.is_none() => (self.back, self.high) = (None, bound),
            _ => return,
        }
        self.over |= is_empty(self.low.as_ref(), self.high.as_ref());
    }

    // Always: a call for each record of a scan would cost some 20 instructions more.
    #[inline(always)]
    fn advance(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        let (end, other) = match direction {
            Direction::Up => (&mut self.front, &self.back),
            Direction::Down => (&mut self.back, &self.front),
        };
        // The common case, short enough to be inlined into the caller's loop.
        if let (Some(merge), None, true) = (end, other, self.values.are_plain())
            && let Some((key, value)) = merge.next_free()
        {
            return Some(Ok((Value(key), Value(value))));
        }
        self.advance_far(direction)
    }

    /// The next record that needs no comparison and has not expired, in a keyspace whose records may.
    #[inline(never)]
    fn next_alive(&mut self, direction: Direction, run: &mut ExpiredRun) -> Option<Result<(Key, Value)>> {
        loop {
            let (end, other) = match direction {
                Direction::Up => (&mut self.front, &self.back),
                Direction::Down => (&mut self.back, &self.front),
            };
            let (Some(merge), None) = (end, other) else { return None };
            let (key, stored) = merge.next_free()?;
            match self.values.read(&key, Value(stored)) {
                Ok(Some(value)) => {
                    self.end_expired(direction, run);
                    return Some(Ok((Value(key), value)));
                }
                Ok(None) => self.pass_expired(direction, run, key),
                Err(error @ Error::MergeFailed { .. }) => return Some(Err(error)),
                Err(error) => return Some(Err(self.close(error))),
            }
        }
    }

    /// Like [`Iterator::next`], but lends the record until the next call instead of sharing its ownership.
    ///
    /// Use it for long scans: the reference counting for each key and value would cost as much as everything
    /// else.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let db = sapwood::Database::open(directory.path())?;
    /// # let numbers = db.keyspace("numbers")?;
    /// # numbers.insert("one", "1")?;
    /// let mut range = numbers.range("a"..);
    /// let mut bytes = 0;
    /// while let Some(record) = range.next_ref() {
    ///     let (key, value) = record?;
    ///     bytes += key.len() + value.len();
    /// }
    /// assert_eq!(bytes, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn next_ref(&mut self) -> Option<Result<(&[u8], &[u8])>> {
        self.lend(Direction::Up)
    }

    /// Like [`DoubleEndedIterator::next_back`], but lends the record until the next call.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let mut range = ships.iter();
    /// while let Some(record) = range.next_back_ref() {
    ///     let (name, year) = record?;
    ///     assert_eq!((name, year), (&b"fram"[..], &b"1892"[..]));
    /// }
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn next_back_ref(&mut self) -> Option<Result<(&[u8], &[u8])>> {
        self.lend(Direction::Down)
    }

    #[inline]
    fn lend(&mut self, direction: Direction) -> Option<Result<(&[u8], &[u8])>> {
        let (end, other) = match direction {
            Direction::Up => (&mut self.front, &self.back),
            Direction::Down => (&mut self.back, &self.front),
        };
        if let (Some(merge), None, true) = (end, other, self.values.are_plain())
            && merge.step_free()
        {
            let end = if direction == Direction::Up { &self.front } else { &self.back };
            return end.as_ref()?.record().map(Ok);
        }
        match self.advance_far(direction)? {
            Ok(record) => {
                // Else the walk holds its leaf.
                let (Value(key), Value(value)) = if self.left > 0 { unpinned(record) } else { record };
                self.lent = (key, value);
                Some(Ok((&self.lent.0, &self.lent.1)))
            }
            Err(error) => Some(Err(error)),
        }
    }

    #[inline(never)]
    fn advance_far(&mut self, direction: Direction) -> Option<Result<(Key, Value)>> {
        if self.over {
            return None;
        }
        if self.values.are_plain() {
            return match self.timed_step(direction) {
                Ok(Some((key, value))) => Some(Ok((Value(key), Value(value)))),
                Ok(None) => self.close(None),
                Err(error) => self.close(Some(Err(error))),
            };
        }
        let mut run = self.expired_run(direction);
        if let Some(alive) = self.next_alive(direction, &mut run) {
            return Some(alive);
        }
        let end = loop {
            if self.over {
                break None;
            }
            let (key, stored) = match self.timed_step(direction) {
                Ok(Some(record)) => record,
                Ok(None) => break None,
                Err(error) => break Some(Err(error)),
            };
            match self.values.read(&key, Value(stored)) {
                Ok(Some(value)) => {
                    self.end_expired(direction, &mut run);
                    return Some(Ok((Value(key), value)));
                }
                Ok(None) => self.pass_expired(direction, &mut run, key),
                Err(error @ Error::MergeFailed { .. }) => return Some(Err(error)),
                Err(error) => break Some(Err(error)),
            }
        };
        self.end_expired(direction, &mut run);
        self.close(end)
    }

    #[inline]
    fn timed_step(&mut self, direction: Direction) -> Result<Option<(Bytes, Bytes)>> {
        let began = self.current.pager.latencies.begin(Timed::ScanStep);
        let step = self.step(direction);
        self.current.pager.latencies.end(Timed::ScanStep, began);
        step
    }

    /// Nothing comes after this.
    fn close<T>(&mut self, last: T) -> T {
        (self.over, self.front, self.back) = (true, None, None);
        self.lent = Default::default();
        last
    }
}

impl Iterator for Range {
    type Item = Result<(Key, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Up)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.advance(Direction::Down)
    }
}

impl std::iter::FusedIterator for Range {}

/// The keys of a range, copied.
struct Keys(Range);

fn key_of(record: Result<(&[u8], &[u8])>) -> Result<Key> {
    record.map(|(key, _)| Key::from(key))
}

impl Iterator for Keys {
    type Item = Result<Key>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_ref().map(key_of)
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back_ref().map(key_of)
    }
}

/// A clone goes on where the iterator stands, as of the same moment, and finds its place by a search.
impl Clone for Range {
    fn clone(&self) -> Self {
        let place = |end: &Option<Box<Merge>>, bound: &Bound<Bytes>| {
            let last = end.as_deref().and_then(Merge::last_key);
            last.map_or_else(|| bound.clone(), |last| Bound::Excluded(Bytes::copy_from_slice(last)))
        };
        let bounds = (place(&self.front, &self.low), place(&self.back, &self.high));
        let (host, current) = (Arc::clone(&self.host), Arc::clone(&self.current));
        let (state, refused) = (Arc::clone(&self.state), self.refused.clone());
        let of = (self.keyspace, self.values.clone());
        let mut clone = Self::new(host, current, state, self.seq, of, bounds, refused);
        clone.over |= self.over;
        clone
    }
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Range({:?}, {:?})", self.low, self.high)
    }
}
