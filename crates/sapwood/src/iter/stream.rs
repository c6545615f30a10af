//! Ranges as streams, for tasks.
//!
//! ```text
//! polled ─▶ a record is here: ready
//!        └▶ none: a thread takes a portion from the range ─▶ the task is woken
//! ```
//! Invariants:
//! 1. Records and errors come as from the range. After an error, or the last record, there is nothing.
//! 2. Dropping a stream waits for the portion that is being read: afterwards nothing holds the database any more. In a forked child it waits
//!    for nothing: the thread that reads is the parent's.
//! 3. What is read ahead holds no leaves but those of long records.

use crate::answer::Answer;
use crate::error::{Error, Result};
use crate::iter::{Host, Range};
use crate::pool::{Behind, Task, caught};
use crate::value::{Key, Value, unpinned};
use futures_core::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Records of the first portion, and of the largest (count): each is twice as long as the one before, so short scans read no more than they
/// return, and long ones are woken rarely.
const PORTION_MIN: usize = 16;
const PORTION_MAX: usize = 1024;
/// A portion ends with the record that makes it so long, in bytes: as much as a task may hold without asking.
const PORTION_BYTES: usize = 64 << 10;

/// A stream of records in key order, for a task: waits without holding a thread. Made by [`Range::into_stream`] and
/// [`TransactionRange::into_stream`](crate::TransactionRange::into_stream). Needs the feature `async`.
///
/// It holds up to 64 KiB of records, and one record more, beside what the range holds.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// use futures_util::TryStreamExt;
///
/// ships.insert("beagle", "1820")?;
/// ships.insert("fram", "1892")?;
/// futures_executor::block_on(async {
///     let mut stream = ships.range("c"..).into_stream();
///     while let Some((name, year)) = stream.try_next().await? {
///         assert!(name == "fram" && year == "1892");
///     }
///     sapwood::Result::Ok(())
/// })?;
/// # Ok(()) }
/// ```
#[must_use = "streams do nothing until they are polled"]
pub struct RangeStream<I = Range> {
    state: State<I>,
    records: std::vec::IntoIter<(Key, Value)>,
    /// Comes after the records.
    error: Option<Error>,
    portion: usize,
    /// Keeps the database open, and is dropped last.
    host: Arc<dyn Host>,
}

enum State<I> {
    Idle(Box<I>),
    /// The task's drop waits; so the range is dropped by the stream.
    Reading(Task<Behind>, Answer<Portion<I>>),
    Over,
}

struct Portion<I> {
    records: Vec<(Key, Value)>,
    error: Option<Error>,
    is_last: bool,
    range: Box<I>,
}

/// Takes up to so many records.
fn take<I: Iterator<Item = Result<(Key, Value)>>>(mut range: Box<I>, count: usize) -> Portion<I> {
    let (mut records, mut bytes) = (Vec::new(), 0);
    while records.len() < count && bytes < PORTION_BYTES {
        match range.next() {
            Some(Ok((key, value))) => {
                bytes += key.len() + value.len();
                // Each may be the only one of its leaf that has not expired.
                records.push(unpinned((key, value)));
            }
            last => {
                let error = last.and_then(Result::err);
                // A record that could not be merged is told in its place.
                let is_last = !matches!(error, Some(Error::MergeFailed { .. }));
                return Portion { records, error, is_last, range };
            }
        }
    }
    Portion { records, error: None, is_last: false, range }
}

impl<I> RangeStream<I> {
    pub(crate) fn new(range: I, host: Arc<dyn Host>) -> Self {
        let state = State::Idle(Box::new(range));
        Self { state, records: Vec::new().into_iter(), error: None, portion: PORTION_MIN, host }
    }

    /// Leaves what is of the parent alone, in a forked child.
    fn leave(&mut self) {
        std::mem::forget(std::mem::replace(&mut self.state, State::Over));
    }
}

impl<I> Drop for RangeStream<I> {
    fn drop(&mut self) {
        if self.host.readers().is_err() {
            self.leave();
        }
    }
}

impl Range {
    /// The rest of the range as a stream, in ascending order. Needs the feature `async`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// use futures_util::TryStreamExt;
    ///
    /// ships.insert("fram", "1892")?;
    /// let all: Vec<_> = futures_executor::block_on(ships.iter().into_stream().try_collect())?;
    /// assert_eq!(all.len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn into_stream(self) -> RangeStream {
        let host = Arc::clone(&self.host);
        RangeStream::new(self, host)
    }

    /// What it belongs to.
    pub(crate) fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }
}

impl<I: Iterator<Item = Result<(Key, Value)>> + Send + 'static> Stream for RangeStream<I> {
    type Item = Result<(Key, Value)>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(record) = this.records.next() {
                return Poll::Ready(Some(Ok(record)));
            }
            if let Some(error) = this.error.take() {
                return Poll::Ready(Some(Err(error)));
            }
            if matches!(this.state, State::Over) {
                return Poll::Ready(None);
            }
            let readers = match this.host.readers() {
                Ok(readers) => readers,
                Err(error) => {
                    this.leave();
                    return Poll::Ready(Some(Err(error)));
                }
            };
            match std::mem::replace(&mut this.state, State::Over) {
                State::Over => {}
                State::Idle(range) => {
                    let (answer, giver) = Answer::new();
                    let count = this.portion;
                    this.portion = (2 * count).min(PORTION_MAX);
                    let name = "a range of a task";
                    let task = readers.submit_polled(name, move || {
                        let wake = giver.put(caught(name, || Ok(take(range, count))));
                        Box::new(|| wake.wake())
                    });
                    this.state = State::Reading(task, answer);
                }
                State::Reading(task, answer) => {
                    let polled = answer.poll(context);
                    if polled.is_pending() {
                        this.state = State::Reading(task, answer);
                    }
                    let Portion { records, error, is_last, range } = ready!(polled)?;
                    this.records = records.into_iter();
                    this.error = error;
                    if !is_last {
                        this.state = State::Idle(range);
                    }
                }
            }
        }
    }
}

impl<I> std::fmt::Debug for RangeStream<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.state {
            State::Over => "RangeStream(all read)",
            State::Idle(_) | State::Reading(..) => "RangeStream",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    /// Of each leaf one record, where the others had expired, say: a thousand leaves were held for a portion of some KiB.
    #[test]
    fn a_portion_does_not_hold_the_leaves_of_its_records() {
        let leaves: Vec<_> = (0..1000).map(|_| Bytes::from(vec![7; 4096])).collect();
        for (value, is_shared) in [(40, false), (3000, true)] {
            let records = leaves.iter().map(|leaf| (Value(leaf.slice(..8)), Value(leaf.slice(8..8 + value))));
            let records: Vec<_> = records.map(Ok).collect();
            let portion = take(Box::new(records.into_iter()), PORTION_MAX);
            let bytes = portion.records.len() * (8 + value);
            assert!(
                portion.records.len() == 1000 || (PORTION_BYTES..PORTION_BYTES + 8 + value).contains(&bytes)
            );
            for (leaf, (key, found)) in leaves.iter().zip(portion.records) {
                assert_eq!((key.len(), found.len()), (8, value));
                assert_eq!(leaf.as_ptr_range().contains(&found.as_ptr()), is_shared);
                assert_eq!(leaf.as_ptr_range().contains(&key.as_ptr()), is_shared);
            }
        }
    }
}
