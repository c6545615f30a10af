//! A generation as the writer holds it: how its file is created, how far it is written and durable, and how it
//! is removed.
//!
//! Invariants:
//! 1. A generation that is begun has a durable header under a durable name. One that could not be begun for
//!    lack of space is as if it had never existed. Only the newest may be written but not begun yet.
//! 2. `synced` is at most `len`. The file may be longer ([`ZeroedSpace`]).

use super::file_name;
use super::log_files::LogFiles;
use super::record::{Flaw, HEADER_LEN, Header, Lsn};
use super::zeroing::ZeroedSpace;
use crate::error::{Error, Result};
use crate::operation::NUMBER_MAX;
use psync::{Access, FileId, Volume, Write};
use std::collections::BTreeSet;

pub(super) struct Generation {
    pub number: u64,
    pub file: FileId,
    /// The LSN of the file's first byte.
    pub base: Lsn,
    /// Valid bytes, including the header.
    pub len: u64,
    /// How many of the valid bytes are durable.
    pub synced: u64,
    /// The header, while it is written but not yet durable. `None`: the header and the file's name are durable.
    pub unsynced_header: Option<[u8; HEADER_LEN]>,
    /// The reservation behind the valid bytes.
    pub reserved: ZeroedSpace,
}

impl Generation {
    /// A generation with a durable header and nothing else.
    pub fn begun(number: u64, file: FileId, base: Lsn) -> Self {
        let empty = HEADER_LEN as u64;
        Self {
            number,
            file,
            base,
            len: empty,
            synced: empty,
            unsynced_header: None,
            reserved: ZeroedSpace::none(),
        }
    }

    /// A generation with a written header and nothing else.
    pub fn written(header: &Header, file: FileId) -> Self {
        let unsynced_header = Some(header.encode());
        Self { synced: 0, unsynced_header, ..Self::begun(header.generation, file, header.base) }
    }

    /// Header and name are durable now.
    pub fn has_begun(&mut self) {
        self.unsynced_header = None;
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
    let next = generation.checked_add(1).filter(|next| *next < NUMBER_MAX);
    next.ok_or_else(|| {
        Flaw::new("the log file's generation", "less than 2^62 - 1", generation).at(file_name(generation), 0)
    })
}

/// Creates a generation's file with its header, durably. If there is no space, nothing is left of it.
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

/// Creates a generation's file with its header. If there is no space, nothing may be left of it: a header that
/// survived would void everything that is written to the current generation from now on.
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
            // A power loss came before the generation had begun.
            volume.remove(&name)?;
            volume.open(&name, access)
        }
        opened => opened,
    };
    let file = opened?;
    let bytes = header.encode();
    let Err(error) = volume.write(&[Write { file, offset: 0, data: &bytes }]) else { return Ok(file) };
    let error = Error::from(error);
    let is_empty = volume.len(file).is_ok_and(|len| len == 0);
    let _ = volume.close(file);
    if error.is_disk_full() && is_empty {
        // A full disk may refuse that as well. It would be as after a power loss, and the next attempt removes it.
        let _ = volume.remove(&name);
    } else if error.is_disk_full() {
        volume.remove(&name).and_then(|()| volume.sync_directory()).map_err(Error::undecided)?;
        *syncs += 1;
    }
    Err(error)
}

/// Whether the file that already exists under this header's name was never begun, as recovery has found: its
/// header is broken, or it holds no record.
fn is_unfinished(volume: &dyn Volume, header: &Header) -> Result<bool> {
    let files = LogFiles::new(volume, header.database);
    let found = files.header(&files.open(header.generation)?, header.generation)?;
    Ok(found.is_err() || files.holds_no_record(header.generation)?)
}

/// Generations that are no longer needed.
#[must_use]
pub(crate) struct Old {
    pub(super) open: Vec<FileId>,
    pub(super) generations: BTreeSet<u64>,
}

impl Old {
    /// Closes their files, and leaves them where they are. Returns which they are.
    pub fn close(self, volume: &dyn Volume) -> BTreeSet<u64> {
        for file in self.open {
            let _ = volume.close(file);
        }
        self.generations
    }

    /// Removes their files. Returns those that are left, and the first error. Nothing depends on the removal.
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
