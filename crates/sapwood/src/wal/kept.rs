//! Generations that the trees no longer need and that are kept for the change feed: oldest first, up to a number of bytes.
//!
//! Invariants:
//! 1. What is kept are the newest ones without a gap: whatever goes, the oldest goes first.
//! 2. No promise but the feed's rests on them, so a full disk has their space.
//! 3. A kept file is not written or copied again: it stays where the log has left it.

use super::file_name;
use crate::lock_order::{RankedMutex, rank};
use psync::{Entry, Volume};
use std::collections::BTreeMap;

/// What a file takes at least: one with nothing but a header is not free. A block of the usual file systems, in bytes.
const FILE_MIN: u64 = 4096;

/// See the module.
#[derive(Default)]
pub(crate) struct KeptGenerations(RankedMutex<rank::KeptGenerations, BTreeMap<u64, u64>>);

impl KeptGenerations {
    /// Keeps those of these files that are generations `is_old` is true of, and removes the oldest as long as all together have
    /// more than `bytes_max` bytes.
    pub fn keep(&self, volume: &dyn Volume, files: &[Entry], is_old: impl Fn(u64) -> bool, bytes_max: u64) {
        let mut kept = self.0.lock();
        let old = files.iter().filter_map(|entry| Some((super::generation_of(&entry.name)?, entry.len)));
        kept.extend(
            old.filter(|(number, _)| is_old(*number)).map(|(number, len)| (number, len.max(FILE_MIN))),
        );
        while kept.values().sum::<u64>() > bytes_max && remove_oldest(volume, &mut kept) {}
    }

    /// Removes the oldest file, for its space. Returns whether there was one and it is gone.
    pub fn give_up_oldest(&self, volume: &dyn Volume) -> bool {
        remove_oldest(volume, &mut self.0.lock())
    }

    /// How many bytes the files take.
    pub fn bytes(&self) -> u64 {
        self.0.lock().values().sum()
    }
}

fn remove_oldest(volume: &dyn Volume, kept: &mut BTreeMap<u64, u64>) -> bool {
    let Some(oldest) = kept.first_entry() else { return false };
    let name = file_name(*oldest.key());
    match volume.remove(&name) {
        Ok(()) | Err(psync::Error::NotFound { .. }) => {
            oldest.remove();
            true
        }
        Err(error) => {
            tracing::warn!(%error, file = name, "a kept part of the log was not removed; the next flush tries again");
            false
        }
    }
}
