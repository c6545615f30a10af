//! OPQ share: how much of the memory budget an operation queue may have. (The PIO B-tree chooses the OPQ's size
//! with its cost model: VLDB 2011, section 4. Ours is in docs/cost-model.md.)
//!
//! A long queue saves layers: each flush appends one to every block that it has changes for, and each is read
//! with a request of its own when its block is cleansed. A short queue saves reads: the cache has its memory.
//! Let a flush of a queue of `q₀` bytes have written `L` layers; and let `V` reads since the flush before have
//! been for records that the cache would still have had with `w` bytes more. Then, per flush of `q₀`,
//!
//! ```text
//! cost(q)  =  layer × L × q₀ / q  +  read × V × taken × q / w            least at  q = √(layer L q₀ w / (read taken V))
//! ```
//! where `taken` are the bytes that the cache gives up for each byte of a queue. Where nobody misses records a
//! queue is as long as it may be.
//!
//! Invariant: a queue's share is between the limits of [`Shares`], and changes only after a flush of a queue
//! that was full: what others tell is not what their length costs.

use crate::options::Shares;
use crate::store::rent::{BYTES_A_PIECE, BYTES_A_REQUEST};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Cost of a layer, in bytes that a device could have moved in that time: its request, and as much again for
/// the processor, which appends, publishes and merges it.
const BYTES_A_LAYER: u64 = 2 * BYTES_A_REQUEST;
/// Cost of reading a leaf for one record, in the same unit.
const BYTES_A_READ: u64 = BYTES_A_PIECE;
/// Bytes that the cache gives up for each byte that a queue may have: there are two, and about as much again for
/// their log.
const TAKEN: u64 = 4;

/// Follows the workload from flush to flush.
#[derive(Debug, Default)]
pub(crate) struct OpqShare {
    /// Bytes that a queue may have; 0: nothing is known yet.
    share: AtomicUsize,
    before: Mutex<Seen>,
}

/// Counters since the database was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Layers that flushes have appended.
    pub layers: u64,
    /// Records that had to be read again soon after the cache had let go of them.
    pub came_back: u64,
}

impl OpqShare {
    /// The most bytes that a queue may have, whatever else needs memory.
    pub fn most(&self, shares: &Shares) -> usize {
        match self.share.load(Relaxed) {
            0 => shares.queue,
            share => share,
        }
    }

    /// A queue of `queue` bytes is in the trees. A record counts as come back if the cache would have had it
    /// with `window` bytes more.
    pub fn flushed(&self, queue: usize, now: Seen, window: u64, shares: &Shares) {
        let mut before = self.before.lock();
        let seen = std::mem::replace(&mut *before, now);
        let share = self.most(shares);
        if queue < share / 4 * 3 {
            return;
        }
        let layers = now.layers.saturating_sub(seen.layers);
        let came_back = now.came_back.saturating_sub(seen.came_back);
        let best = best(layers, queue, came_back, window).clamp(shares.queue_min, shares.queue);
        // Half of the way, because one flush says little.
        self.share.store(share.midpoint(best), Relaxed);
    }
}

/// The length of a queue that would have cost least.
fn best(layers: u64, queue: usize, came_back: u64, window: u64) -> usize {
    let [layers, queue, came_back, window] = [layers, queue as u64, came_back, window].map(u128::from);
    let saved = u128::from(BYTES_A_LAYER) * layers * queue * window;
    let square = saved.checked_div(u128::from(BYTES_A_READ * TAKEN) * came_back);
    square.map_or(usize::MAX, |square| square.isqrt() as usize)
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
            layers in 1u64..100_000,
            queue in 1usize << 20..1 << 30,
            came_back in 1u64..1_000_000,
            window in 1u64 << 16..1 << 30,
        ) {
            let cost = |length: f64| {
                let layers = (BYTES_A_LAYER * layers) as f64 * queue as f64 / length;
                layers + (BYTES_A_READ * came_back * TAKEN) as f64 * length / window as f64
            };
            let chosen = best(layers, queue, came_back, window) as f64;
            for other in [0.5, 0.9, 1.1, 2.0] {
                prop_assert!(cost(chosen) <= 1.001 * cost(chosen * other), "{chosen}, and not {other} of it");
            }
        }
    }

    #[test]
    fn it_follows_a_workload_that_changes() {
        let (shares, share) = (shares(), OpqShare::default());
        let mut all = Seen::default();
        let mut after = |times, came_back, filled: usize| {
            for _ in 0..times {
                all = Seen { layers: all.layers + 2_000, came_back: all.came_back + came_back };
                share.flushed(share.most(&shares) / 100 * filled, all, 4 << 20, &shares);
            }
            share.most(&shares)
        };
        assert_eq!(after(20, 0, 100), shares.queue, "nobody reads records");
        assert_eq!(after(20, 1_000_000, 70), shares.queue, "queues that were flushed before they were full");
        let first = after(1, 1_000_000, 100);
        assert!(first > shares.queue / 2 && first < shares.queue, "half of the way: {first}");
        let few = after(20, 1_000_000, 100);
        assert!(few <= shares.queue_min + 100, "everybody does: {few} and {}", shares.queue_min);
        let some = after(40, 300, 100);
        assert!(some > shares.queue_min / 2 * 3 && some < shares.queue, "some do: {some}");
        assert_eq!(after(1, 300, 100).abs_diff(some) / 100, 0, "and that is where it stays");
        assert!(after(30, 0, 100) >= shares.queue - 100, "nobody does any more");
    }
}
