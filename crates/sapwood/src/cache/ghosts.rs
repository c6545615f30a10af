//! Ghosts of nodes: remembers which nodes the cache evicted, or did not take, a short while ago. A ghost
//! tells two things: whether a node that has to be read is worth its memory (it comes again), and what more
//! memory for nodes would have been good for.
//!
//! A lock-free table in which a hash of the node's position chooses its slot; a new ghost overwrites the old
//! one there. Time is counted in bytes of nodes that became ghosts: a node that comes back after `n` bytes
//! would still be cached if the cache had `n` bytes more.

use crate::storage::mapping_table::Position;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Unit of time, in bytes evicted: so coarse that 32 bits of it count to a terabyte.
const TICK: u64 = 256;

/// See the module.
#[derive(Debug)]
pub(crate) struct Ghosts {
    /// 32 bits of the position's hash, and 32 bits of the time (in ticks) when it became a ghost; 0: empty.
    slots: Box<[AtomicU64]>,
    /// The current time, in bytes.
    now: AtomicU64,
}

impl Ghosts {
    /// Room for `count` ghosts.
    pub fn new(count: usize) -> Self {
        let slots = (0..count.next_power_of_two()).map(|_| AtomicU64::new(0)).collect();
        Self { slots, now: AtomicU64::new(TICK) }
    }

    fn place(&self, position: Position) -> (&AtomicU64, u64) {
        // Fibonacci hashing: positions differ in all of their bits.
        let hash = position.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = hash ^ (hash >> 29);
        let slot = &self.slots[(hash >> 32) as usize & (self.slots.len() - 1)];
        (slot, hash << 32)
    }

    /// Makes a ghost of a node of so many bytes.
    pub fn add(&self, position: Position, bytes: u64) {
        let now = self.now.fetch_add(bytes, Relaxed) + bytes;
        let (slot, tag) = self.place(position);
        slot.store(tag | (now / TICK) & u64::from(u32::MAX), Relaxed);
    }

    /// Removes a ghost, and returns how many bytes of others came after it; `None` if there is none.
    pub fn take(&self, position: Position) -> Option<u64> {
        let (slot, tag) = self.place(position);
        let found = slot.load(Relaxed);
        if found == 0 || found & !u64::from(u32::MAX) != tag {
            return None;
        }
        slot.store(0, Relaxed);
        let ticks = ((self.now.load(Relaxed) / TICK) as u32).wrapping_sub(found as u32);
        Some(u64::from(ticks) * TICK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_is_as_old_as_what_came_after_it_and_is_seen_once() {
        let ghosts = Ghosts::new(1 << 12);
        ghosts.add(Position(4096), 4096);
        for n in 2..=100 {
            ghosts.add(Position(n * 4096), 1024);
        }
        assert_eq!(ghosts.take(Position(4096)), Some(99 * 1024));
        assert_eq!(ghosts.take(Position(4096)), None);
        assert_eq!(ghosts.take(Position(100 * 4096)), Some(0));
        assert_eq!(ghosts.take(Position(101 * 4096)), None);
        let found = (2..100).filter(|n| ghosts.take(Position(n * 4096)).is_some()).count();
        assert!(found > 90, "{found} of 98: few take each other's place");
    }
}
