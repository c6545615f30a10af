//! OPQ share: how much of the memory budget an operation queue may have. (The PIO B-tree chooses the OPQ's size
//! with its cost model: VLDB 2011, section 4. Ours is in docs/cost-model.md.)
//!
//! A long queue saves runs: each flush appends one to every block that it has changes for, and each is read
//! with a request of its own when its block is cleansed. It saves flushes, too. A short queue saves reads: the
//! cache has its memory. Let a flush of a queue of `q₀` bytes have written `L` runs; and let `V` reads since
//! the flush before have been for records that the cache would still have had with `w` bytes more. Then, per
//! flush of `q₀`,
//!
//! ```text
//! cost(q)  =  (flush + run × L) × q₀ / q  +  read × V × taken × q / w        least at  q = √((flush + run L) q₀ w / (read taken V))
//! ```
//! where `taken` are the bytes that the cache gives up for each byte of a queue. Where nobody misses records a
//! queue is as long as it may be. Only short records that are asked for singly count as missed, and what a
//! longer queue saves where the same keys change again and again does not count at all.
//!
//! Invariant: a queue's share is between the limits of [`Shares`], and changes only after a flush of a queue
//! that was full: what others tell is not what their length costs.

use crate::cache::A_WINDOW;
use crate::flow::shares::Shares;
use crate::log_area::read_cost::{BYTES_A_PIECE, BYTES_A_REQUEST};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Cost of a run, in bytes that a device could have moved in that time: its request, and as much again for
/// the processor, which appends, publishes and merges it.
const BYTES_A_RUN: u64 = 2 * BYTES_A_REQUEST;
/// Cost of a flush, whatever it writes, in the same unit: its syncs.
const BYTES_A_FLUSH: u64 = 4 << 20;
/// Cost of reading a leaf for one record, in the same unit.
const BYTES_A_READ: u64 = BYTES_A_PIECE;
/// Bytes that the cache gives up for each byte that a queue may have: there are two, and about as much again for
/// their log.
const TAKEN: u64 = 4;

/// Follows the workload from flush to flush.
#[derive(Debug, Default)]
pub(crate) struct OpqTuning {
    /// Bytes that a queue may have; 0: nothing is known yet.
    share: AtomicUsize,
    before: Mutex<WorkloadCounts>,
}

/// Counters since the database was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkloadCounts {
    /// Runs that flushes have appended.
    pub runs: u64,
    /// See [`missed_records`](crate::cache::Cache::missed_records).
    pub missed: u64,
}

impl OpqTuning {
    /// The most bytes that a queue may have, whatever else needs memory.
    pub fn most(&self, shares: &Shares) -> usize {
        match self.share.load(Relaxed) {
            0 => shares.queue,
            share => share,
        }
    }

    /// A queue is in the trees. `full`: its bytes, if it was full.
    pub fn flushed(&self, full: Option<usize>, now: WorkloadCounts, shares: &Shares) {
        let mut before = self.before.lock();
        let seen = std::mem::replace(&mut *before, now);
        let Some(queue) = full else { return };
        let share = self.most(shares);
        let runs = now.runs.saturating_sub(seen.runs);
        let missed = now.missed.saturating_sub(seen.missed);
        let best = best(runs, queue, missed).clamp(shares.queue_min as u64, shares.queue as u64);
        // Half of the way, because one flush says little.
        self.share.store(share.midpoint(best as usize), Relaxed);
    }
}

/// The length of a queue that would have cost least.
fn best(runs: u64, queue: usize, missed: u64) -> u64 {
    let flush = u128::from(BYTES_A_FLUSH + BYTES_A_RUN * runs) * queue as u128;
    let square =
        (flush * u128::from(A_WINDOW)).checked_div(u128::from(BYTES_A_READ * TAKEN) * u128::from(missed));
    square.map_or(u64::MAX, |square| u64::try_from(square.isqrt()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;
    use proptest::prelude::*;

    fn shares() -> Shares {
        Database::builder().memory(120 << 20).shares(64 << 20)
    }

    proptest! {
        #[test]
        fn no_other_length_costs_less(
            runs in 1u64..100_000,
            queue in 1usize << 20..1 << 30,
            reads in 1u64..1_000_000,
            window in 1u64 << 16..1 << 30,
        ) {
            let missed = reads * (A_WINDOW / window);
            let cost = |length: f64| {
                let runs = (BYTES_A_FLUSH + BYTES_A_RUN * runs) as f64 * queue as f64 / length;
                runs + (BYTES_A_READ * reads * TAKEN) as f64 * length / window as f64
            };
            let chosen = best(runs, queue, missed) as f64;
            for other in [0.5, 0.9, 1.1, 2.0] {
                prop_assert!(cost(chosen) <= 1.002 * cost(chosen * other), "{chosen}, and not {other} of it");
            }
        }
    }

    #[test]
    fn it_follows_a_workload_that_changes() {
        let (shares, share) = (shares(), OpqTuning::default());
        let mut all = WorkloadCounts::default();
        let mut after = |times, reads, is_full: bool| {
            for _ in 0..times {
                let missed = reads * (A_WINDOW / (4 << 20));
                all = WorkloadCounts { runs: all.runs + 2_000, missed: all.missed + missed };
                share.flushed(is_full.then(|| share.most(&shares)), all, &shares);
            }
            share.most(&shares)
        };
        assert_eq!(after(20, 0, true), shares.queue, "nobody reads records");
        assert_eq!(
            after(20, 1_000_000, false),
            shares.queue,
            "queues that were flushed before they were full"
        );
        let first = after(1, 1_000_000, true);
        assert!(first > shares.queue / 2 && first < shares.queue, "half of the way: {first}");
        let few = after(20, 1_000_000, true);
        assert!(few <= shares.queue_min + 100, "everybody does: {few} and {}", shares.queue_min);
        let some = after(40, 300, true);
        assert!(some > shares.queue_min / 2 * 3 && some < shares.queue, "some do: {some}");
        assert_eq!(after(1, 300, true).abs_diff(some) / 100, 0, "and that is where it stays");
        assert!(after(30, 0, true) >= shares.queue - 100, "nobody does any more");
    }
}
