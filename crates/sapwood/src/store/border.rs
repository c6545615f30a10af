//! The border between nodes and records in the cache's memory: how much of it each side may have. It follows the workload.
//!
//! ```text
//! capacity ═ nodes ╪ records        a ghost of a node comes back ──▶ │ ◀── a ghost of a record comes back
//! ```
//! Each side remembers as ghosts what it let go last, and as much of it as fits into the same number of bytes. When one comes
//! back, these bytes would have saved a read; so the border moves a little towards the other side, and rests where both would gain
//! the same. (The idea is ARC's: Megiddo and Modha, FAST 2003; there for recency against frequency.) As long as nobody asks for records, or for none that is not too long
//! for the records' side, nodes take its memory, however old the ghosts are that come back: flushes come to all blocks in turn, and who goes round in a circle
//! gains nothing from a little more memory, and everything from enough.
//!
//! What is learned so is what each side wants, and it outlives capacities that are too small for both. Both sides keep what they want as long as there is enough. Of less, nodes give
//! first, down to their part: what they lose a few reads bring again, leaf by leaf, where records come one by one. So a queue that grows and goes does not empty the records' side each time.
//!
//! Invariants:
//! 1. Both sides together have the capacity, and neither has less than its least share of it.
//! 2. A capacity that changes leaves alone what records want: they have the same on its way down and up again.
//! 3. Divisions are made one after the other, in the order in which the border moves.
//! 4. It is divided anew when the capacity changes, and when votes move the border; those that ask for what there is not do nothing.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// How far the border moves for one ghost, in bytes, and how much is moved at a time.
const LEAN: i64 = 16 << 10;
const STEP: i64 = 64 << 10;
/// Neither side goes below this share of the capacity.
const LEAST: u64 = 16;
/// Down to this share of a capacity that is too small for both nodes give of theirs, if they want as much. Inner nodes need it.
const NODES: u64 = 4;
/// Ghosts count that fit into this share of what records may take; those of a bucket into this share of the bucket.
pub(crate) const WINDOW: u64 = 8;

/// What records may have of a capacity who want so much.
fn within(capacity: u64, records: u64) -> u64 {
    records.clamp(capacity / LEAST, capacity - capacity / LEAST)
}

/// How a capacity is divided from now on, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    pub nodes: u64,
    pub records: u64,
    /// What records could have until now.
    pub records_before: u64,
}

/// What speaks for more memory on one side.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Vote {
    /// A node had to be read that would still be here with so many bytes more.
    NodeCameBack { age: u64 },
    /// A node had to be read for a record that would still be here with a little more.
    RecordCameBack,
    /// Records have memory, and nobody asks for any, or none came that fits there.
    RecordsUnused,
}

/// What each side would have if there were enough for both, in bytes.
#[derive(Debug, Default)]
struct Wanted {
    nodes: u64,
    records: u64,
}

impl Wanted {
    /// What records are to have of a capacity: the same on its way down and up again.
    fn records_of(&mut self, capacity: u64) -> u64 {
        if self.nodes + self.records == 0 {
            self.records = capacity / 2;
        }
        // More than both want is the nodes'.
        self.nodes = self.nodes.max(capacity.saturating_sub(self.records));
        self.records.min(capacity - self.nodes.min(capacity / NODES))
    }

    /// Records have got so much from nodes.
    fn moved(&mut self, by: i64) {
        self.records = self.records.saturating_add_signed(by);
        self.nodes = self.nodes.saturating_add_signed(-by);
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Border {
    /// Whoever holds it divides.
    wanted: Mutex<Wanted>,
    capacity: AtomicU64,
    /// What records may take of that; changed by whoever divides.
    records: AtomicU64,
    /// Bytes that records (below zero: nodes) should have more.
    lean: AtomicI64,
}

impl Border {
    /// Bytes that both sides may have.
    pub fn capacity(&self) -> u64 {
        self.capacity.load(Relaxed)
    }

    /// Changes the capacity.
    pub fn set_capacity(&self, capacity: u64, divide: impl FnOnce(Division)) {
        let mut wanted = self.wanted.lock();
        self.capacity.store(capacity, Relaxed);
        let records = within(capacity, wanted.records_of(capacity));
        divide(self.division(capacity, records));
    }

    /// One vote more. When there are enough of them, the border moves.
    pub fn vote(&self, vote: Vote, divide: impl FnOnce(Division)) {
        let by = match vote {
            Vote::NodeCameBack { age } if age > self.records.load(Relaxed) / WINDOW => return,
            Vote::NodeCameBack { .. } | Vote::RecordsUnused => -LEAN,
            Vote::RecordCameBack => LEAN,
        };
        let lean = self.lean.fetch_add(by, Relaxed) + by;
        // Who finds another one at it leaves it to the next.
        if lean.abs() >= STEP
            && let Some(mut wanted) = self.wanted.try_lock()
        {
            let lean = self.lean.swap(0, Relaxed);
            let (capacity, before) = (self.capacity(), self.records.load(Relaxed));
            let records = within(capacity, before.saturating_add_signed(lean));
            // Where one side has all that it may have, it goes on to be asked for.
            if records != before {
                wanted.moved(records as i64 - before as i64);
                divide(self.division(capacity, records));
            }
        }
    }

    /// Gives records so much; called by whoever divides.
    fn division(&self, capacity: u64, records: u64) -> Division {
        let records_before = self.records.swap(records, Relaxed);
        Division { nodes: capacity - records, records, records_before }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 8 << 20;
    const FOR_NODES: Vote = Vote::NodeCameBack { age: 0 };

    fn border() -> Border {
        let border = Border::default();
        border.set_capacity(CAPACITY, |_| {});
        border
    }

    /// Says how often that many votes have moved the border.
    fn vote(border: &Border, vote: Vote, count: usize) -> usize {
        let mut moved = 0;
        (0..count).for_each(|_| border.vote(vote, |_| moved += 1));
        moved
    }

    /// What records have of a capacity.
    fn records(border: &Border, capacity: u64) -> u64 {
        let mut found = None;
        border.set_capacity(capacity, |division| found = Some(division));
        let Division { nodes, records, .. } = found.expect("a division");
        assert_eq!(nodes + records, capacity);
        assert!(nodes.min(records) >= capacity / LEAST, "{nodes} and {records}");
        records
    }

    #[test]
    fn nodes_give_and_are_given_when_the_capacity_changes() {
        let border = border();
        let records = |capacity| records(&border, capacity);
        let half = CAPACITY / 2;
        assert_eq!(records(CAPACITY * 3 / 4), half, "nodes have a third");
        assert_eq!(records(CAPACITY * 5 / 8), CAPACITY / 32 * 15, "and here no more than their quarter");
        assert_eq!(records(CAPACITY / 2), CAPACITY / 8 * 3);
        assert_eq!(records(CAPACITY), half, "as it was");
        vote(&border, Vote::RecordCameBack, 10_000);
        assert_eq!(records(CAPACITY), CAPACITY / 16 * 15);
        assert_eq!(
            records(CAPACITY / 2),
            CAPACITY / 2 - CAPACITY / 16,
            "they have no more than a sixteenth of the whole"
        );
        // What is learned while there is little is no more than what was learned.
        vote(&border, FOR_NODES, 4);
        assert_eq!(records(CAPACITY), CAPACITY / 16 * 15 - 4 * LEAN as u64);
        vote(&border, Vote::RecordCameBack, 4);
        for capacity in [CAPACITY / 8, CAPACITY / 4, CAPACITY / 2] {
            assert!(records(capacity) + CAPACITY / 16 >= capacity, "the same on the way up");
        }
        assert_eq!(records(CAPACITY), CAPACITY / 16 * 15);
    }

    /// With every change of its capacity the nodes' map forgets some of those whom it let go.
    #[test]
    fn a_side_that_has_all_it_may_have_asks_in_vain() {
        let border = border();
        for side in [Vote::RecordCameBack, FOR_NODES, Vote::RecordCameBack, Vote::RecordsUnused] {
            assert!(vote(&border, side, 10_000) > 10);
            assert_eq!(vote(&border, side, 10_000), 0);
        }
    }

    #[test]
    fn a_node_that_went_long_ago_tells_nothing() {
        let border = border();
        let window = records(&border, CAPACITY) / WINDOW;
        assert_eq!(vote(&border, Vote::NodeCameBack { age: window + 1 }, 10_000), 0);
        assert_eq!(vote(&border, Vote::NodeCameBack { age: window }, STEP as usize / LEAN as usize), 1);
    }

    #[test]
    fn votes_against_one_another_move_nothing() {
        let border = border();
        let moved = |_| vote(&border, FOR_NODES, 3) + vote(&border, Vote::RecordCameBack, 3);
        assert_eq!((0..1000).map(moved).sum::<usize>(), 0);
    }
}
