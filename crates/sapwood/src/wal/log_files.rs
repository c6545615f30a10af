//! The files of a database's log, for those that read them: which of a volume's files, and from where.
//!
//! Invariant: reading changes nothing. A file that is missing is [damage](missing_file) where a caller knows that it must be there.

use super::record::Flaw;
use super::{file_name, generation_of};
use crate::database_id::DatabaseId;
use crate::error::{Error, Result};
use crate::source::FileSource;
use psync::Volume;

/// The generations with which reading begins and ends; (1, 0) if there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generations {
    pub low: u64,
    pub high: u64,
}

/// See the module documentation.
#[derive(Clone, Copy)]
pub(crate) struct LogFiles<'v> {
    pub(super) volume: &'v dyn Volume,
    /// The database that headers and records must name.
    pub(super) database: DatabaseId,
    is_direct: bool,
}

impl<'v> LogFiles<'v> {
    pub fn new(volume: &'v dyn Volume, database: DatabaseId) -> Self {
        Self { volume, database, is_direct: false }
    }

    /// The same as the device has them, where direct I/O is available: after a failed sync the page cache shows more.
    pub fn direct(self) -> Self {
        Self { is_direct: true, ..self }
    }

    /// The directory that has them.
    pub fn describe(self) -> String {
        self.volume.describe()
    }

    /// Opens the file of a generation.
    pub(super) fn open(self, generation: u64) -> Result<FileSource<'v>> {
        self.open_if_there(generation)?.ok_or_else(|| missing_file(generation))
    }

    /// The same; `None` if there is no such file.
    pub(super) fn open_if_there(self, generation: u64) -> Result<Option<FileSource<'v>>> {
        let name = file_name(generation);
        let opened = match self.is_direct {
            true => FileSource::open_direct(self.volume, &name),
            false => FileSource::open(self.volume, &name),
        };
        match opened {
            Err(psync::Error::NotFound { .. }) => Ok(None),
            other => Ok(Some(other?)),
        }
    }
}

/// The generations on disk, oldest first.
pub(super) fn list(volume: &dyn Volume) -> Result<Vec<u64>> {
    let mut generations: Vec<u64> =
        volume.list()?.iter().filter_map(|entry| generation_of(&entry.name)).collect();
    generations.sort_unstable();
    Ok(generations)
}

pub(super) fn missing_file(generation: u64) -> Error {
    Flaw::new("the log file is missing", "a log file", "none").at(file_name(generation), 0)
}
