//! Makes what recovery found in the log durable, before anything builds on it.
//!
//! A sync is not enough. If an earlier process got an error from its sync, the kernel treats the pages as clean
//! although they never reached the medium; it shows them to every reader, and no later sync writes them. Writing
//! the same bytes again in place is not enough either: ext4 with its default options (delayed allocation,
//! `dioread_nolock`) has left an unwritten extent, takes the write, lets the sync succeed, and reads zeros there
//! once the page cache is gone. So each file with something that nothing testifies to be durable is replaced by a
//! copy: a new file, synced, and renamed.
//!
//! Invariants:
//! 1. Nothing that may have failed to reach the medium is made durable in place.
//! 2. The copy is checked before it replaces the file: between replay and copy the kernel may have dropped pages
//!    that only it had.
//! 3. Until the rename the file is as it was. What a kill leaves of a copy counts for nothing, and is removed.

use super::file_name;
use super::log_files::LogFiles;
use super::reader::{Span, Tail};
use super::record::Flaw;
use super::walker::{Found, Link, Stop, Walker};
use crate::database_id::DatabaseId;
use crate::error::{Error, Result};
use crate::source::{FileSource, Source};
use psync::{Access, AlignedBuffer, FileId, Volume, Write};

/// Bytes copied at a time: enough for a device's full speed, and little memory.
const WINDOW_LEN: u64 = 1 << 20;
/// What follows a log file's name in the name of its copy.
const COPY: &str = ".tmp";

/// Whether a file with this name is a copy that was not finished.
pub(crate) fn is_copy(name: &str) -> bool {
    name.strip_suffix(COPY).and_then(super::generation_of).is_some()
}

/// Replaces each file with something at or above `tail.durable` by a durable copy of its valid part, and records
/// that the whole log is durable. Returns the number of syncs. A second call does nothing.
///
/// # Errors
/// [`Error::DiskFull`]: the log is as it was, and this can be tried again. [`Error::Poisoned`]: it is unknown what
/// is durable. [`Error::Corrupt`]: a file is not any more what replay has found.
pub(crate) fn rewrite_unsynced(volume: &dyn Volume, database: DatabaseId, tail: &mut Tail) -> Result<u64> {
    let mut syncs = 0;
    for span in &tail.spans {
        if span.base.plus(span.len) > tail.durable {
            replace_by_copy(volume, database, span)?;
            syncs += 1;
        }
    }
    if syncs > 0 {
        volume.sync_directory().map_err(Error::undecided)?;
        syncs += 1;
    }
    tail.durable = tail.end;
    Ok(syncs)
}

fn replace_by_copy(volume: &dyn Volume, database: DatabaseId, span: &Span) -> Result<()> {
    let name = file_name(span.generation);
    let copy_name = format!("{name}{COPY}");
    match volume.remove(&copy_name) {
        Ok(()) | Err(psync::Error::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let access = Access { write: true, create_new: true, ..Access::default() };
    let copy = volume.open(&copy_name, access)?;
    let copied = copy_to(volume, database, span, copy, &copy_name);
    let _ = volume.close(copy);
    let replaced = copied.and_then(|()| Ok(volume.rename(&copy_name, &name)?));
    if replaced.is_err() {
        // Its space may be needed. If it stays, the next opening removes it.
        let _ = volume.remove(&copy_name);
    }
    replaced
}

fn copy_to(volume: &dyn Volume, database: DatabaseId, span: &Span, copy: FileId, name: &str) -> Result<()> {
    let files = LogFiles::new(volume, database);
    let original = files.open(span.generation)?;
    let mut bytes = AlignedBuffer::new(span.len.min(WINDOW_LEN) as usize);
    let mut at = 0;
    while at < span.len {
        bytes.set_len((span.len - at).min(WINDOW_LEN) as usize);
        original.read_at(at, &mut bytes)?;
        volume.write(&[Write { file: copy, offset: at, data: &bytes }])?;
        at += bytes.len() as u64;
    }
    volume.sync(copy).map_err(Error::undecided)?;
    check(FileSource::open(volume, name)?, files, span)
}

/// Checks that the copy holds what replay has found.
fn check(copy: FileSource<'_>, files: LogFiles<'_>, span: &Span) -> Result<()> {
    let name = file_name(span.generation);
    let header = files.header(&copy, span.generation)?.map_err(|flaw| flaw.at(&name, 0))?;
    if header.base != span.base {
        return Err(Flaw::new("the log file's base", span.base, header.base).at(name, 0));
    }
    let link = Link { header, stop: Stop::At(span.len) };
    let mut walker = Walker::new(copy, &link, link.follow(None)?);
    loop {
        match walker.next()? {
            Found::Record(..) => {}
            Found::End => return Ok(()),
            Found::Bad(flaw) => return Err(flaw.at(name, walker.at)),
        }
    }
}
