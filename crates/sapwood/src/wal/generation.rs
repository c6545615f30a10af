//! One file of the log as its writer holds it: how it begins, how far it is written and durable, and how it goes.
//!
//! Invariants:
//! 1. A generation that is begun has a durable header under a durable name. One that could not be begun for want of space never was. Only the
//!    newest may be one that is not begun yet: its header is written.
//! 2. `synced` is at most `len`; the file may be longer ([`Reservation`]).

use super::chain::{holds_no_record, read_header};
use super::file_name;
use super::record::{Flaw, HEADER_LEN, Header, Lsn};
use super::reservation::Reservation;
use super::window;
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
    /// The header, as long as it is written and nothing more; `None`: it is durable, and the file's name.
    pub unbegun: Option<[u8; HEADER_LEN]>,
    /// What is reserved behind them.
    pub reserved: Reservation,
}

impl Generation {
    /// One that has a durable header and nothing else.
    pub fn begun(number: u64, file: FileId, base: Lsn) -> Self {
        let empty = HEADER_LEN as u64;
        Self { number, file, base, len: empty, synced: empty, unbegun: None, reserved: Reservation::none() }
    }

    /// One that has a written header and nothing else.
    pub fn written(header: &Header, file: FileId) -> Self {
        let unbegun = Some(header.encode());
        Self { synced: 0, unbegun, ..Self::begun(header.generation, file, header.base) }
    }

    /// Header and name are durable now.
    pub fn has_begun(&mut self) {
        self.unbegun = None;
        self.synced = self.synced.max(HEADER_LEN as u64);
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

/// Creates a generation's file with its header, durably. For want of space it is as if it had never been tried.
pub(super) fn create_file(volume: &dyn Volume, header: &Header, syncs: &mut u64) -> Result<FileId> {
    let file = write_file(volume, header, syncs)?;
    match volume.sync(file).and_then(|()| volume.sync_directory()) {
        Ok(()) => {
            *syncs += 2;
            Ok(file)
        }
        Err(error) => {
            let _ = volume.close(file);
            Err(Error::undecided(error))
        }
    }
}

/// Creates a generation's file with its header. For want of space it is as if it had never been tried: a header that survived would
/// declare void what is written to the current generation from now on.
pub(super) fn write_file(volume: &dyn Volume, header: &Header, syncs: &mut u64) -> Result<FileId> {
    let name = file_name(header.generation);
    let access = Access { write: true, create_new: true, ..Access::default() };
    let opened = match volume.open(&name, access) {
        Err(psync::Error::Exists { .. }) => {
            if !is_unfinished(volume, header)? {
                let flaw =
                    Flaw::new("the log file exists already", "no file, or one without records", "records");
                return Err(flaw.at(name, 0));
            }
            // A power loss came before it had begun.
            volume.remove(&name)?;
            volume.open(&name, access)
        }
        opened => opened,
    };
    let file = opened?;
    let bytes = header.encode();
    let Err(error) = volume.write(&[Write { file, offset: 0, data: &bytes }]) else { return Ok(file) };
    let error = Error::from(error);
    let _ = volume.close(file);
    if error.is_disk_full() {
        volume.remove(&name).and_then(|()| volume.sync_directory()).map_err(Error::undecided)?;
        *syncs += 1;
    }
    Err(error)
}

/// Whether the file that is there already in the place of this header's was never begun, as recovery has seen: its header is broken; or nothing
/// is lost with it.
fn is_unfinished(volume: &dyn Volume, header: &Header) -> Result<bool> {
    let source = window::open(volume, header.generation)?;
    let found = read_header(&source, header.database, header.generation, &volume.describe())?;
    drop(source);
    Ok(found.is_err() || holds_no_record(volume, header.database, header.generation)?)
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
