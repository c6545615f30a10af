//! Divides the cache's memory between nodes and records. The partition between the two follows the workload.
//!
//! ```text
//! capacity ═ nodes ╪ records        a ghost of a node comes back ──▶ │ ◀── a ghost of a record comes back
//! ```
//! Each side remembers what it evicted last as ghosts: as much of it as fits into the same number of bytes.
//! When a ghost comes back, these bytes would have saved a read. So the partition then moves a little towards
//! the other side, and rests where both sides would gain the same. (The idea is ARC's: Megiddo and Modha,
//! FAST 2003; there for recency against frequency.) As long as no records are requested, or only for records
//! that are too long for the records' side, nodes take its memory however old the ghosts are that come back:
//! flushes visit all blocks in turn, and a cyclic access pattern gains nothing from a little more memory, and
//! everything from enough.
//!
//! What is learned this way is how much each side wants. It outlives capacities that are too small for both.
//! Both sides keep what they want as long as there is enough. If there is less, nodes give first, down to
//! their part: a few reads bring back what they lose, leaf by leaf, whereas records come back one by one.
//!
//! Records have their share only of the capacity that lasts ([`WindowedMin`]); nodes have the rest. Each flush
//! takes a quarter of the capacity and returns it. If records gave and were given their part of that each time,
//! that many of them would be lost with each flush, hot ones too, and be read again one by one.
//!
//! Invariants:
//! 1. Both sides together have the capacity; nodes have no less than their least share of it, and records no
//!    less than theirs of what lasts.
//! 2. A change of the capacity does not change what records want: they have the same on its way down and up
//!    again.
//! 3. Divisions are made one after the other, in the order in which the partition moves.
//! 4. The capacity is divided anew when it or what lasts of it changes, and when votes move the partition. Votes for
//!    memory that does not exist do nothing.

use crate::cache::windowed_min::WindowedMin;
use crate::lock_order::{RankedMutex, rank};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes by which one vote moves the partition: a few nodes, since the vote is evidence for one.
const LEAN: i64 = 16 << 10;
/// Bytes that are moved at a time: to move it with each vote would lock the cache too often.
const STEP: i64 = 64 << 10;
/// Neither side goes below this part (1/16) of the capacity: a side without memory would have no ghosts, and could
/// never ask for more.
pub(crate) const LEAST: u64 = 16;
/// When the capacity is too small for both sides, nodes give memory to records down to this share, if they
/// want as much. Inner nodes need it.
const NODES: u64 = 4;
/// Ghosts count that fit into this share of the records' memory; a bucket's ghosts, into this share of the
/// bucket.
pub(crate) const WINDOW: u64 = 8;

/// The records' memory of this capacity if they want `records` bytes.
fn within(capacity: u64, records: u64) -> u64 {
    records.clamp(capacity / LEAST, capacity - capacity / LEAST)
}

/// A division of the capacity, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    pub nodes: u64,
    pub records: u64,
    /// The records' memory until now.
    pub records_before: u64,
}

/// A reason for more memory on one side.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Vote {
    /// A node had to be read that would still be cached with `age` bytes more.
    NodeCameBack { age: u64 },
    /// A node had to be read for a record that would still be cached with a little more memory.
    RecordCameBack,
    /// Records have memory, but none are requested, or only for records that do not fit.
    RecordsUnused,
}

/// The memory that each side would have if there were enough for both, in bytes.
#[derive(Debug, Default)]
struct Demand {
    nodes: u64,
    records: u64,
}

impl Demand {
    /// The records' memory of this windowed minimum of the capacity: the same on its way down and up again.
    fn records_of(&mut self, capacity: u64) -> u64 {
        if self.nodes + self.records == 0 {
            self.records = capacity / 2;
        }
        // What neither side wants goes to nodes.
        self.nodes = self.nodes.max(capacity.saturating_sub(self.records));
        self.records.min(capacity - self.nodes.min(capacity / NODES))
    }

    /// Moves `by` bytes from nodes to records.
    fn moved(&mut self, by: i64) {
        self.records = self.records.saturating_add_signed(by);
        self.nodes = self.nodes.saturating_add_signed(-by);
    }
}

/// What the thread has that divides.
#[derive(Debug, Default)]
struct Divider {
    wanted: Demand,
    least: WindowedMin,
    /// The windowed minimum of the capacity at the last division.
    divided: u64,
}

impl Divider {
    /// Notes what lasts now. Returns whether that is another capacity than the one divided last.
    fn note(&mut self, capacity: u64, at: Duration) -> bool {
        let least = self.least.of(capacity, at);
        std::mem::replace(&mut self.divided, least) != least
    }

    /// The records' memory of what lasts, as it is wanted.
    fn records(&mut self) -> u64 {
        within(self.divided, self.wanted.records_of(self.divided))
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct CachePartition {
    divider: RankedMutex<rank::CachePartition, Divider>,
    /// What times are counted from.
    epoch: Instant,
    capacity: AtomicU64,
    /// The records' memory; changed by the thread that divides.
    records: AtomicU64,
    /// Bytes that records should get from nodes; negative: nodes from records.
    lean: AtomicI64,
}

impl Default for CachePartition {
    fn default() -> Self {
        Self {
            divider: RankedMutex::default(),
            epoch: Instant::now(),
            capacity: AtomicU64::default(),
            records: AtomicU64::default(),
            lean: AtomicI64::default(),
        }
    }
}

impl CachePartition {
    /// Memory of both sides, in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity.load(Relaxed)
    }

    /// Changes the capacity.
    pub fn set_capacity(&self, capacity: u64, divide: impl FnOnce(Division)) {
        self.set_capacity_at(capacity, self.epoch.elapsed(), divide);
    }

    fn set_capacity_at(&self, capacity: u64, at: Duration, divide: impl FnOnce(Division)) {
        let mut divider = self.divider.lock();
        self.capacity.store(capacity, Relaxed);
        divider.note(capacity, at);
        divide(self.division(capacity, divider.records()));
    }

    /// Divides anew what has lasted for long enough by now. Called now and then when the capacity does not change.
    pub fn look_again(&self, divide: impl FnOnce(Division)) {
        self.look_again_at(self.epoch.elapsed(), divide);
    }

    fn look_again_at(&self, at: Duration, divide: impl FnOnce(Division)) {
        let mut divider = self.divider.lock();
        let capacity = self.capacity();
        if divider.note(capacity, at) {
            divide(self.division(capacity, divider.records()));
        }
    }

    /// Counts a vote. Enough votes move the partition.
    pub fn vote(&self, vote: Vote, divide: impl FnOnce(Division)) {
        self.vote_at(vote, || self.epoch.elapsed(), divide);
    }

    fn vote_at(&self, vote: Vote, at: impl FnOnce() -> Duration, divide: impl FnOnce(Division)) {
        let by = match vote {
            Vote::NodeCameBack { age } if age > self.records.load(Relaxed) / WINDOW => return,
            Vote::NodeCameBack { .. } | Vote::RecordsUnused => -LEAN,
            Vote::RecordCameBack => LEAN,
        };
        let lean = self.lean.fetch_add(by, Relaxed) + by;
        // If another thread is dividing, the next vote does it.
        if lean.abs() >= STEP
            && let Some(mut divider) = self.divider.try_lock()
        {
            let lean = self.lean.swap(0, Relaxed);
            let capacity = self.capacity();
            // What lasts now was not wanted by a vote.
            let before =
                if divider.note(capacity, at()) { divider.records() } else { self.records.load(Relaxed) };
            let records = within(divider.divided, before.saturating_add_signed(lean));
            // If one side has all that it may have, votes go on but do nothing.
            if records != before {
                divider.wanted.moved(records as i64 - before as i64);
            }
            if records != self.records.load(Relaxed) {
                divide(self.division(capacity, records));
            }
        }
    }

    /// Sets the records' memory; called by the thread that divides.
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

    fn partition() -> CachePartition {
        let partition = CachePartition::default();
        partition.set_capacity(CAPACITY, |_| {});
        partition
    }

    /// Says how often that many votes have moved the partition.
    fn vote(partition: &CachePartition, vote: Vote, count: usize) -> usize {
        let mut moved = 0;
        (0..count).for_each(|_| partition.vote(vote, |_| moved += 1));
        moved
    }

    /// What records have of a capacity that lasts.
    fn records(partition: &CachePartition, capacity: u64) -> u64 {
        let mut found = None;
        partition.divider.lock().least = WindowedMin::default();
        partition.set_capacity(capacity, |division| found = Some(division));
        let Division { nodes, records, .. } = found.expect("a division");
        assert_eq!(nodes + records, capacity);
        assert!(nodes.min(records) >= capacity / LEAST, "{nodes} and {records}");
        records
    }

    #[test]
    fn nodes_give_and_are_given_when_the_capacity_changes() {
        let partition = partition();
        let records = |capacity| records(&partition, capacity);
        let half = CAPACITY / 2;
        assert_eq!(records(CAPACITY * 3 / 4), half, "nodes have a third");
        assert_eq!(records(CAPACITY * 5 / 8), CAPACITY / 32 * 15, "and here no more than their quarter");
        assert_eq!(records(CAPACITY / 2), CAPACITY / 8 * 3);
        assert_eq!(records(CAPACITY), half, "as it was");
        vote(&partition, Vote::RecordCameBack, 10_000);
        assert_eq!(records(CAPACITY), CAPACITY / 16 * 15);
        assert_eq!(
            records(CAPACITY / 2),
            CAPACITY / 2 - CAPACITY / 16,
            "they have no more than a sixteenth of the whole"
        );
        // What is learned while there is little is no more than what was learned.
        vote(&partition, FOR_NODES, 4);
        assert_eq!(records(CAPACITY), CAPACITY / 16 * 15 - 4 * LEAN as u64);
        vote(&partition, Vote::RecordCameBack, 4);
        for capacity in [CAPACITY / 8, CAPACITY / 4, CAPACITY / 2] {
            assert!(records(capacity) + CAPACITY / 16 >= capacity, "the same on the way up");
        }
        assert_eq!(records(CAPACITY), CAPACITY / 16 * 15);
    }

    #[test]
    fn what_comes_and_goes_is_for_nodes() {
        let partition = partition();
        vote(&partition, Vote::RecordCameBack, 10_000);
        let at_work = CAPACITY / 4 * 3;
        let records = |capacity, seconds| {
            let mut found = None;
            partition
                .set_capacity_at(capacity, Duration::from_secs(seconds), |division| found = Some(division));
            let Division { nodes, records, .. } = found.expect("a division");
            assert_eq!(nodes + records, capacity);
            records
        };
        let few = records(at_work, 0);
        for flush in 1..20 {
            assert_eq!((records(CAPACITY, 2 * flush), records(at_work, 2 * flush + 1)), (few, few));
        }
        vote(&partition, FOR_NODES, 4);
        assert_eq!(records(CAPACITY, 40), few - 4 * LEAN as u64, "votes count as ever");
        assert_eq!(records(CAPACITY, 60), CAPACITY / 16 * 15 - 4 * LEAN as u64, "no flush has come");
    }

    /// After the last flush of a burst the capacity did not change, and votes had to bring back what was theirs; they were counted
    /// as if more was wanted than before.
    #[test]
    fn records_get_back_what_lasts_again_without_a_vote_or_a_change() {
        for votes in [false, true] {
            let partition = partition();
            vote(&partition, Vote::RecordCameBack, 10_000);
            vote(&partition, FOR_NODES, 64);
            let before = partition.records.load(Relaxed);
            let at = Duration::from_secs;
            partition.set_capacity_at(CAPACITY / 4 * 3, at(100), |_| {});
            partition.set_capacity_at(CAPACITY, at(101), |_| {});
            let few = partition.records.load(Relaxed);
            assert!(few < before - (1 << 20));
            partition.look_again_at(at(102), |_| panic!("it is too early"));
            if votes {
                for vote in [Vote::RecordCameBack; 4].into_iter().chain([FOR_NODES; 4]) {
                    partition.vote_at(vote, || at(120), |_| {});
                }
            } else {
                let mut divided = None;
                partition.look_again_at(at(120), |division| divided = Some(division));
                let Division { nodes, records, records_before } = divided.unwrap();
                assert_eq!((nodes + records, records_before), (CAPACITY, few));
            }
            assert_eq!(partition.records.load(Relaxed), before, "votes: {votes}");
            partition.look_again_at(at(121), |_| panic!("it is done"));
            assert_eq!(records(&partition, CAPACITY), before, "what is wanted is what was wanted");
        }
    }

    /// With every change of its capacity the nodes' map forgets some of those whom it let go.
    #[test]
    fn a_side_that_has_all_it_may_have_asks_in_vain() {
        let partition = partition();
        for side in [Vote::RecordCameBack, FOR_NODES, Vote::RecordCameBack, Vote::RecordsUnused] {
            assert!(vote(&partition, side, 10_000) > 10);
            assert_eq!(vote(&partition, side, 10_000), 0);
        }
    }

    #[test]
    fn a_node_that_went_long_ago_tells_nothing() {
        let partition = partition();
        let window = records(&partition, CAPACITY) / WINDOW;
        assert_eq!(vote(&partition, Vote::NodeCameBack { age: window + 1 }, 10_000), 0);
        assert_eq!(vote(&partition, Vote::NodeCameBack { age: window }, STEP as usize / LEAN as usize), 1);
    }

    #[test]
    fn votes_against_one_another_move_nothing() {
        let partition = partition();
        let moved = |_| vote(&partition, FOR_NODES, 3) + vote(&partition, Vote::RecordCameBack, 3);
        assert_eq!((0..1000).map(moved).sum::<usize>(), 0);
    }
}
