//! Generations that the trees no longer need and that are kept for the change feed: oldest first, up to a number of bytes and of files.
//!
//! Invariants:
//! 1. What is kept are the newest ones without a gap: whatever goes, the oldest goes first.
//! 2. No promise but the feed's rests on them, so a full disk has their space; at opening, once the manifest is this session's.
//! 3. A kept file is not written or copied again: it stays where the log has left it.

use super::file_name;
use crate::lock_order::{RankedMutex, rank};
use crate::wal::generation_of;
use psync::{Entry, Volume};
use std::collections::BTreeMap;

/// What a file takes at least: one with nothing but a header is not free. A block of the usual file systems, in bytes.
const FILE_MIN: u64 = 4096;
/// Files that are kept at most (count), however short they are: each edit of the manifest reads the names in the directory, and each flush
/// the lengths. Of 4,096 files 1 GiB takes in a flush of 256 KiB each.
const FILES_MAX: usize = if cfg!(test) { 64 } else { 4096 };

/// See the module.
#[derive(Default)]
pub(crate) struct KeptGenerations(RankedMutex<rank::KeptGenerations, BTreeMap<u64, u64>>);

impl KeptGenerations {
    /// Keeps those of these files that are generations `is_old` is true of, and removes the oldest as long as all together have
    /// more than `bytes_max` bytes, or they are too many.
    pub fn keep(&self, volume: &dyn Volume, files: &[Entry], is_old: impl Fn(u64) -> bool, bytes_max: u64) {
        let mut kept = self.0.lock();
        kept.extend(old(files, is_old));
        while (kept.len() > FILES_MAX || kept.values().sum::<u64>() > bytes_max)
            && remove_oldest(volume, &mut kept)
        {}
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

/// How many bytes those of these files take that are generations `is_old` is true of.
pub(crate) fn bytes_of(files: &[Entry], is_old: impl Fn(u64) -> bool) -> u64 {
    old(files, is_old).map(|(_, bytes)| bytes).sum()
}

fn old(files: &[Entry], is_old: impl Fn(u64) -> bool) -> impl Iterator<Item = (u64, u64)> {
    let generations = files.iter().filter_map(|entry| Some((generation_of(&entry.name)?, entry.len)));
    generations.filter(move |(number, _)| is_old(*number)).map(|(number, len)| (number, len.max(FILE_MIN)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use psync::{Access, Simulated};

    /// Each flush leaves a file, however short: a directory of a hundred thousand is read with every edit.
    #[test]
    fn short_files_are_bounded_in_number() {
        let (volume, kept) = (Simulated::new(1), KeptGenerations::default());
        for number in 1..=3 * FILES_MAX as u64 {
            let access = Access { write: true, create: true, ..Access::default() };
            volume.open(&file_name(number), access).and_then(|file| volume.close(file)).unwrap();
            kept.keep(&volume, &volume.list().unwrap(), |it| it <= number, 1 << 30);
        }
        let left: Vec<_> =
            volume.list().unwrap().iter().filter_map(|entry| generation_of(&entry.name)).collect();
        let (first, last) = (2 * FILES_MAX as u64 + 1, 3 * FILES_MAX as u64);
        assert_eq!(left, (first..=last).collect::<Vec<_>>());
        assert_eq!(kept.bytes(), FILES_MAX as u64 * FILE_MIN);
        assert_eq!(bytes_of(&volume.list().unwrap(), |it| it > last - 2), 2 * FILE_MIN);
    }
}
