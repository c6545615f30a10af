//! Ghosts of nodes: which nodes the cache let go, or was not given, a short while ago. They tell two things: whether a node that
//! has to be read is worth its memory (it comes again), and what more memory for nodes would have been good for.
//!
//! A table without locks in which a node's place is chosen by its position; who comes later takes the place of who was there.
//! Time is counted in bytes of nodes that became ghosts: a node that comes back after `n` bytes would still be there if the
//! cache had `n` bytes more.

use crate::store::mapping_table::Position;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What time is counted in: bytes.
const TICK: u64 = 256;

/// See the module.
#[derive(Debug)]
pub(crate) struct Ghosts {
    /// 32 bits of the position's hash, 32 bits of the time (in ticks) when it became a ghost; 0: nobody.
    slots: Box<[AtomicU64]>,
    /// In bytes.
    now: AtomicU64,
}

impl Ghosts {
    /// Room for so many.
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

    /// A node of so many bytes becomes a ghost.
    pub fn add(&self, position: Position, bytes: u64) {
        let now = self.now.fetch_add(bytes, Relaxed) + bytes;
        let (slot, tag) = self.place(position);
        slot.store(tag | (now / TICK) & u64::from(u32::MAX), Relaxed);
    }

    /// Takes a ghost away, and says how many bytes of others came after it; `None` if it is not there.
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
