//! Memory for the samples that dictionaries are trained of, of all keyspaces together.
//!
//! A keyspace that is hardly written to would keep its samples as long as the database is open. So those of the keyspace that has been
//! without a new one for longest go when another one finds no room, once much has been sampled since.
//!
//! Invariant: all samples have at most `most` bytes together.

use crate::lock_order::{RankedMutex, rank};
use crate::storage::dictionary::Training;
use std::sync::{Arc, Weak};

/// The samples of a keyspace are old when so many times the room (count) was to be sampled since the last one.
const OLD: u64 = 4;

pub(crate) type SharedTraining = RankedMutex<rank::Training, Training>;

/// See the module documentation.
pub(crate) struct SampleRoom {
    most: usize,
    holders: RankedMutex<rank::SampleHolders, Holders>,
}

#[derive(Default)]
struct Holders {
    all: Vec<Holder>,
    /// Bytes of samples so far, also of those that found no room.
    offered: u64,
}

struct Holder {
    training: Weak<SharedTraining>,
    bytes: usize,
    /// What `offered` was at its last sample.
    last: u64,
}

impl Holders {
    fn bytes(&self) -> usize {
        self.all.iter().map(|holder| holder.bytes).sum()
    }

    fn of(&mut self, training: &Arc<SharedTraining>) -> Option<&mut Holder> {
        self.all.iter_mut().find(|holder| std::ptr::eq(holder.training.as_ptr(), Arc::as_ptr(training)))
    }
}

impl SampleRoom {
    pub fn new(most: usize) -> Self {
        Self { most, holders: RankedMutex::default() }
    }

    /// Bytes of all samples, at most.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether there is room for a sample of this keyspace, whose training the caller has locked: it counts from now on.
    pub fn take(&self, training: &Arc<SharedTraining>, bytes: usize) -> bool {
        let mut holders = self.holders.lock();
        holders.offered += bytes as u64;
        if holders.bytes() + bytes > self.most {
            holders.all.retain(|holder| holder.training.strong_count() > 0);
        }
        if holders.bytes() + bytes > self.most {
            let old_before = holders.offered.saturating_sub(OLD * self.most as u64);
            // Not this keyspace itself, whose lock this thread has, and which would stay the oldest.
            let is_own = |holder: &Holder| std::ptr::eq(holder.training.as_ptr(), Arc::as_ptr(training));
            let others = holders.all.iter().enumerate().filter(|(_, holder)| !is_own(holder));
            let oldest = others.min_by_key(|(_, holder)| holder.last);
            let Some((index, oldest)) = oldest.filter(|(_, holder)| holder.last < old_before) else {
                return false;
            };
            let oldest = oldest.training.upgrade();
            let Some(mut forgotten) = oldest.as_ref().map(|training| training.try_lock()).unwrap_or_default()
            else {
                return false;
            };
            forgotten.forget_samples();
            holders.all.swap_remove(index);
            if holders.bytes() + bytes > self.most {
                return false;
            }
        }
        let last = holders.offered;
        match holders.of(training) {
            Some(holder) => (holder.bytes, holder.last) = (holder.bytes + bytes, last),
            None => holders.all.push(Holder { training: Arc::downgrade(training), bytes, last }),
        }
        true
    }

    /// The samples of this keyspace are gone.
    pub fn give_back(&self, training: &Arc<SharedTraining>) {
        let gone = Arc::as_ptr(training);
        self.holders.lock().all.retain(|holder| !std::ptr::eq(holder.training.as_ptr(), gone));
    }

    /// Bytes that samples take.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.holders.lock().bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(number: u32) -> Vec<u8> {
        format!("{number} events of user {} were seen by {}, ", number % 97, number.wrapping_mul(7))
            .repeat(20)
            .into_bytes()
    }

    /// One that was full when others came is the oldest of them.
    #[cfg(feature = "zstd")]
    #[test]
    fn the_oldest_gets_room_from_the_others_once_it_is_busy() {
        let room = SampleRoom::new(256 << 10);
        let [one, other]: [Arc<SharedTraining>; 2] = Default::default();
        let mut number = 0;
        for (keyspace, share) in [(&one, 2), (&other, 1)] {
            let before = room.taken();
            while room.taken() < before + (room.most() - before) / share && number < 100_000 {
                let taken = room.taken();
                Training::see(keyspace, &leaf(number), &room, 3);
                number += 1;
                if share == 1 && room.taken() > room.most() - 8192 && room.taken() == taken {
                    break;
                }
            }
        }
        assert!(one.lock().sampled() > 0 && other.lock().sampled() > 0);
        (number..number + 20_000).for_each(|number| Training::see(&one, &leaf(number), &room, 3));
        assert!(one.lock().dictionary().is_some(), "{} of {} bytes", room.taken(), room.most());
    }

    /// Keyspaces that are written to once must not keep others from their dictionaries, nor take memory each.
    #[test]
    fn idle_keyspaces_give_way_to_busy_ones() {
        let room = SampleRoom::new(256 << 10);
        let keyspaces: Vec<Arc<SharedTraining>> = (0..400).map(|_| Arc::default()).collect();
        for (number, keyspace) in keyspaces.iter().enumerate() {
            (0..8).for_each(|leaf_of| Training::see(keyspace, &leaf(number as u32 * 8 + leaf_of), &room, 3));
            assert!(room.taken() <= room.most());
        }
        let held: usize = keyspaces.iter().map(|keyspace| keyspace.lock().sampled()).sum();
        assert!(held <= room.most() && held == room.taken(), "{held} bytes");
        let busy = Arc::default();
        for number in 0..20_000 {
            Training::see(&busy, &leaf(number), &room, 3);
            assert!(room.taken() <= room.most());
        }
        #[cfg(feature = "zstd")]
        assert!(busy.lock().dictionary().is_some(), "the busy one has found room");
        drop(keyspaces);
        assert!(room.take(&busy, room.most()), "what was dropped takes none");
    }
}
