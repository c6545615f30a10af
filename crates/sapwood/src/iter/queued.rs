//! One operation queue on its way into the merge: read in growing chunks, so that a short scan costs little; and how
//! long runs of tombstones are passed over.
//!
//! Invariants:
//! 1. What is listed comes in order, each key once, with the change that the reader sees.
//! 2. What is not listed, up to where tombstones are passed over, is not there or removed.

use crate::merging::Merging;
use crate::operation::{KeyspaceId, SeqNo};
use crate::opq::{Change, EmptyUntil, Opq};
use crate::tree::range::Direction;
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

/// One operation queue, read in growing chunks so that a short scan costs little.
pub(super) struct Queued {
    queue: Arc<Opq>,
    keyspace: KeyspaceId,
    merging: Option<Merging>,
    seq: SeqNo,
    from: Bound<Bytes>,
    to: Bound<Bytes>,
    direction: Direction,
    chunk: VecDeque<(Bytes, Change)>,
    chunk_len: usize,
    /// Bytes of the chunk.
    memory: usize,
    more: bool,
    /// Tombstones up to here were passed over without a look.
    hidden_to: Hidden,
}

/// Up to where tombstones are passed over.
enum Hidden {
    Nowhere,
    To(Bytes),
    End,
}

/// Entries that are copied from a queue at a time (count): few at first, since a scan may end soon, and four times as
/// many each time.
const CHUNK: std::ops::RangeInclusive<usize> = 8..=512;

impl Queued {
    pub fn new(
        queue: Arc<Opq>,
        (keyspace, merging): (KeyspaceId, Option<Merging>),
        seq: SeqNo,
        (low, high): (Bound<Bytes>, Bound<Bytes>),
        direction: Direction,
    ) -> Self {
        let (from, to) = if direction == Direction::Up { (low, high) } else { (high, low) };
        let more = !queue.is_empty();
        Self {
            queue,
            keyspace,
            merging,
            seq,
            from,
            to,
            direction,
            chunk: VecDeque::new(),
            chunk_len: *CHUNK.start(),
            memory: 0,
            more,
            hidden_to: Hidden::Nowhere,
        }
    }

    /// Bytes that it has copied out of the queue.
    pub fn memory(&self) -> usize {
        self.memory
    }

    pub fn peek(&mut self) -> Option<&(Bytes, Change)> {
        if self.chunk.is_empty() && self.more {
            self.fill();
        }
        self.chunk.front()
    }

    pub fn pop(&mut self) -> Option<(Bytes, Change)> {
        self.chunk.pop_front()
    }

    /// Passes over tombstones, if there are many, without a look. Returns whether it did.
    pub fn pass_tombstones(&mut self) -> bool {
        if self.chunk.is_empty() && !self.more {
            return false;
        }
        let from = match self.chunk.front() {
            Some((_, Some(_))) => return false,
            Some((key, None)) => Bound::Included(&key[..]),
            None => borrowed(&self.from),
        };
        let onward = match self.direction {
            Direction::Up => self.queue.past_tombstones(self.keyspace, from, self.seq),
            Direction::Down => self.queue.past_tombstones_back(self.keyspace, from, self.seq),
        };
        match onward {
            EmptyUntil::Nowhere => return false,
            EmptyUntil::To(to) => {
                let passed = self.chunk.partition_point(|(key, _)| comes_before(key, &to, self.direction));
                self.chunk.drain(..passed);
                if self.chunk.is_empty() && self.more {
                    let is_before = match &self.from {
                        Bound::Included(from) | Bound::Excluded(from) => {
                            comes_before(from, &to, self.direction)
                        }
                        Bound::Unbounded => true,
                    };
                    if is_before {
                        self.from = Bound::Included(to.clone());
                    }
                }
                self.hidden_to = Hidden::To(to);
            }
            EmptyUntil::End => {
                self.chunk.clear();
                self.more = false;
                self.hidden_to = Hidden::End;
            }
        }
        true
    }

    /// Whether it has tombstones that were passed over, perhaps one of this key.
    pub fn may_hide(&self, key: &[u8]) -> bool {
        match &self.hidden_to {
            Hidden::Nowhere => false,
            Hidden::To(to) => comes_before(key, to, self.direction),
            Hidden::End => true,
        }
    }

    /// Whether it hides a record of this key, though nothing of it was listed.
    pub fn hides(&self, key: &[u8]) -> bool {
        self.may_hide(key) && matches!(self.queue.get(self.keyspace, key, self.seq, None), Some(None))
    }

    /// Looks at all that comes behind this key.
    pub fn look_again(&mut self, key: &Bytes) {
        if self.may_hide(key) {
            self.chunk.clear();
            (self.from, self.more) = (Bound::Excluded(key.clone()), true);
            self.chunk_len = *CHUNK.start();
        }
        self.hidden_to = Hidden::Nowhere;
    }

    fn fill(&mut self) {
        let mut chunk = Vec::new();
        let (from, merging) = (borrowed(&self.from), self.merging.as_ref());
        self.more = match self.direction {
            Direction::Up => {
                self.queue.chunk(self.keyspace, from, self.seq, self.chunk_len, &mut chunk, merging)
            }
            Direction::Down => {
                self.queue.chunk_back(self.keyspace, from, self.seq, self.chunk_len, &mut chunk, merging)
            }
        };
        self.chunk_len = (self.chunk_len * 4).min(*CHUNK.end());
        if let Some((last, _)) = chunk.last() {
            self.from = Bound::Excluded(last.clone());
        }
        let within = chunk.partition_point(|(key, _)| match (&self.to, self.direction) {
            (Bound::Unbounded, _) => true,
            (Bound::Included(to), Direction::Up) => key <= to,
            (Bound::Excluded(to), Direction::Up) => key < to,
            (Bound::Included(to), Direction::Down) => key >= to,
            (Bound::Excluded(to), Direction::Down) => key > to,
        });
        if within < chunk.len() {
            chunk.truncate(within);
            self.more = false;
        }
        let len = |(key, change): &(Bytes, Change)| key.len() + change.as_ref().map_or(0, Bytes::len);
        self.memory = chunk.iter().map(len).sum::<usize>() + size_of_val(&chunk[..]);
        self.chunk = chunk.into();
    }
}

fn borrowed(bound: &Bound<Bytes>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &key[..])
}

/// Whether a walk comes to the first key before it comes to the second one.
fn comes_before(first: &[u8], second: &[u8], direction: Direction) -> bool {
    if direction == Direction::Up { first < second } else { first > second }
}
