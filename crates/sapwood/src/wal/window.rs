//! Opens log files, and searches for records in parts that do not follow on.
//!
//! Invariants:
//! 1. Memory: one window ([`crate::source`]).
//! 2. A failed read is an error, never the end of the log.

use super::file_name;
use super::record::{Flaw, HEAD_LEN, Header, Lsn, RECORD_MAGIC, RecordHeader, RecordPosition};
use crate::database_id::DatabaseId;
use crate::error::{Error, Result};
use crate::source::{FileSource, Source, Window};
use memchr::memmem::Finder;
use psync::Volume;

/// How the log of a generation is opened: [`open`] or [`open_direct`].
pub(crate) type OpenLog = for<'v> fn(&'v dyn Volume, u64) -> Result<FileSource<'v>>;

/// Opens the log of a generation.
pub(super) fn open(volume: &dyn Volume, generation: u64) -> Result<FileSource<'_>> {
    found(generation, FileSource::open(volume, &file_name(generation)))
}

/// Opens the log of a generation, to read what the device has of it.
pub(super) fn open_direct(volume: &dyn Volume, generation: u64) -> Result<FileSource<'_>> {
    found(generation, FileSource::open_direct(volume, &file_name(generation)))
}

/// The same; `None` if there is no such file.
pub(super) fn open_if_there(volume: &dyn Volume, generation: u64) -> Result<Option<FileSource<'_>>> {
    match FileSource::open(volume, &file_name(generation)) {
        Err(psync::Error::NotFound { .. }) => Ok(None),
        other => Ok(Some(other?)),
    }
}

fn found(generation: u64, opened: psync::Result<FileSource<'_>>) -> Result<FileSource<'_>> {
    match opened {
        Err(psync::Error::NotFound { .. }) => Err(missing_file(generation)),
        other => Ok(other?),
    }
}

pub(super) fn missing_file(generation: u64) -> Error {
    Flaw::new("the log file is missing", "a log file", "none").at(file_name(generation), 0)
}

/// A valid head that testifies to durability.
pub(super) struct Witness {
    pub generation: u64,
    pub offset: u64,
    pub durable: Lsn,
}

/// Looks for a valid head from `from` on that testifies that more than the part below `above` was durable.
pub(super) fn witness(
    window: &mut Window<impl Source>,
    header: &Header,
    from: u64,
    above: Lsn,
) -> Result<Option<Witness>> {
    let generation = header.generation;
    let of = (header.database, generation);
    let found = scan(window, of, from, |head, offset| {
        head.durable > above && head.durable <= header.base.plus(offset)
    })?;
    Ok(found.map(|(offset, head)| Witness { generation, offset, durable: head.durable }))
}

/// The first valid head at any offset from `from` on that satisfies `wanted`.
pub(super) fn scan(
    window: &mut Window<impl Source>,
    (database, generation): (DatabaseId, u64),
    from: u64,
    wanted: impl Fn(&RecordHeader, u64) -> bool,
) -> Result<Option<(u64, RecordHeader)>> {
    let magic = Finder::new(&RECORD_MAGIC);
    window.search((from, HEAD_LEN), |bytes, at| {
        magic.find_iter(bytes).find_map(|index| {
            let offset = at + index as u64;
            let position = RecordPosition { database, generation, offset };
            let head = RecordHeader::decode(bytes.get(index..index + HEAD_LEN)?, &position).ok()?;
            wanted(&head, offset).then_some((offset, head))
        })
    })
}
