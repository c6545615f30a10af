//! One file of the log as its writer holds it: how it begins, how far it is written and durable, and how it goes.
//!
//! Invariants:
//! 1. A generation that is begun has a durable header under a durable name. One that could not be begun for want of space never was.
//! 2. `synced` is at most `len`; the file may be longer ([`Reservation`]).

use super::chain::holds_no_record;
use super::file_name;
use super::record::{Flaw, HEADER_LEN, Header, Lsn};
use super::reservation::Reservation;
use crate::error::{Error, Result};
use psync::{Access, FileId, Volume, Write};
use std::collections::BTreeSet;

pub(super) struct Generation {
    pub number: u64,
    pub file: FileId,
    /// LSN of the file's first byte.
    pub base: Lsn,
    /// Valid bytes, with the header.
    pub len: u64,
    /// How many of them are durable.
    pub synced: u64,
    /// What is reserved behind them.
    pub reserved: Reservation,
}

impl Generation {
    /// One that has a durable header and nothing else.
    pub fn begun(number: u64, file: FileId, base: Lsn) -> Self {
        let empty = HEADER_LEN as u64;
        Self { number, file, base, len: empty, synced: empty, reserved: Reservation::none() }
    }

    pub fn is_synced(&self) -> bool {
        self.synced == self.len
    }

    pub fn end(&self) -> Lsn {
        self.base.plus(self.len)
    }
}

pub(super) fn next_generation(generation: u64) -> Result<u64> {
    generation.checked_add(1).ok_or_else(|| {
        Flaw::new("the log file's generation", "less than 2^64 - 1", generation).at(file_name(generation), 0)
    })
}

/// Creates a generation's file with its header, durably. For want of space it is as if it had never been tried: a
/// header that survived would declare void what is written to the current generation from now on.
pub(super) fn create_file(volume: &dyn Volume, header: &Header, syncs: &mut u64) -> Result<FileId> {
    let name = file_name(header.generation);
    let access = Access { write: true, create_new: true, ..Access::default() };
    let opened = match volume.open(&name, access) {
        Err(psync::Error::Exists { .. }) => {
            if !holds_no_record(volume, header.database, header.generation)? {
                let flaw =
                    Flaw::new("the log file exists already", "no file, or one without records", "records");
                return Err(flaw.at(name, 0));
            }
            // A power loss came in between when it was created.
            volume.remove(&name)?;
            volume.open(&name, access)
        }
        opened => opened,
    };
    let file = opened?;
    let bytes = header.encode();
    let result = match volume.write(&[Write { file, offset: 0, data: &bytes }]) {
        Ok(()) => volume.sync(file).and_then(|()| volume.sync_directory()).map_err(Error::undecided),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(()) => {
            *syncs += 2;
            Ok(file)
        }
        Err(error) => {
            let _ = volume.close(file);
            if error.is_disk_full() {
                volume.remove(&name).and_then(|()| volume.sync_directory()).map_err(Error::undecided)?;
                *syncs += 1;
            }
            Err(error)
        }
    }
}

/// Generations that are not needed any more.
#[must_use]
pub(crate) struct Old {
    pub(super) open: Vec<FileId>,
    pub(super) generations: BTreeSet<u64>,
}

impl Old {
    /// Removes their files. Says which are left, and the first error; nothing depends on them.
    pub fn remove(self, volume: &dyn Volume) -> (Vec<u64>, Result<()>) {
        for file in self.open {
            let _ = volume.close(file);
        }
        let (mut left, mut result) = (Vec::new(), Ok(()));
        for generation in self.generations {
            match volume.remove(&file_name(generation)) {
                Ok(()) | Err(psync::Error::NotFound { .. }) => {}
                Err(error) => {
                    left.push(generation);
                    result = result.and(Err(error.into()));
                }
            }
        }
        (left, result)
    }
}
