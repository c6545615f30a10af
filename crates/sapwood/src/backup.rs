//! Backups: copies of a database as of one moment, taken while others write, and restored into an empty directory.
//!
//! ```text
//! moment ──▶ log ──▶ version ──▶ segments that the target does not have ──▶ manifest       (`Backup::run`, one blob after the other)
//!                                                                             │
//! empty directory ◀── data, log, manifest, CURRENT last ◀── every byte checked ◀─┘          (`Restore`)
//! ```
//! The moment is that of a snapshot: a version of the trees, and what the log has that is not in them. The version is held as a
//! snapshot holds it, so nothing that it can reach is overwritten; the files of the log are kept until they are copied, which is
//! done first. Segments are written once, from the beginning to the end, and their numbers are not used again: what an
//! earlier backup has of a segment is the beginning of what this one needs, and is neither read nor written again (`reuse`). A backup
//! that was interrupted leaves blobs that no manifest names, and the next one finds them in the same way.
//!
//! Invariants:
//! 1. A backup exists when its manifest does, which is written last. What it names is whole and durable by then.
//! 2. A part of a segment is taken over only if every live node in it is the one that the target's version tells of.
//! 3. Every live node is checked when it is copied, and every byte when it is read back.
//! 4. No directory has a `CURRENT` before all that was restored is durable in it.
//! 5. Memory: `copy::BUFFERS` buffers, one chunk of a blob, lists of segments, and of some nodes at a time; of a follower the log, up to
//!    a third of the memory budget. Restoring: the version besides, as when the database is open.

mod archive;
pub(crate) mod assembly;
mod blob;
mod copy;
mod directory;
mod input;
mod listing;
mod log_source;
mod manifest;
mod name;
mod nodes;
mod output;
mod point;
mod restore;
mod retain;
mod reuse;
mod stream;
mod target;
mod throttle;

pub(crate) use assembly::RESTORING;
pub use copy::Backup;
pub(crate) use copy::{BackupSource, Refresh, Reword};
pub use directory::Directory;
pub use manifest::ArchiveGap;
pub use point::Point;
pub use restore::Restore;
pub use retain::{Archived, BackupInfo, Removed, list, list_each, remove};
pub use stream::StreamWriter;
pub use target::{Content, Target};

use crate::error::{Error, Result};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

/// How far a backup, a restore or a verification is.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let target = sapwood::backup::Directory::open(dir.path().join("backups"))?;
/// use std::ops::ControlFlow;
///
/// let backup = db.backup().on_progress(|progress| {
///     println!("{} of {} bytes, {} more are there already", progress.done, progress.total, progress.reused);
///     ControlFlow::Continue(()) // Break ends it with Error::Stopped
/// });
/// backup.run(&target)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of segments copied or read; of a repair, bytes read of nodes, or of the data file where nodes are searched.
    pub done: u64,
    /// Bytes of segments to be copied or read in all; 0 while that is unknown. Of a repair that searches nodes, those of two passes, of which
    /// there may be more.
    pub total: u64,
    /// Bytes of segments that the target has already, from earlier backups.
    pub reused: u64,
}

/// Is told of progress, and says whether to go on.
type OnProgress<'p> = Box<dyn FnMut(&Progress) -> ControlFlow<()> + 'p>;

/// The progress of work, and the function that is told of it.
#[derive(Default)]
pub(crate) struct Reporter<'p> {
    pub progress: Progress,
    pub tell: Option<OnProgress<'p>>,
}

impl Reporter<'_> {
    pub fn advance(&mut self, bytes: u64) -> Result<()> {
        self.progress.done += bytes;
        let goes_on = self.tell.as_mut().is_none_or(|tell| tell(&self.progress).is_continue());
        if goes_on { Ok(()) } else { Err(Error::Stopped) }
    }
}

/// A backup whose blobs have pieces of `bytes` as their content, each behind its kind and length, for fuzzing: a version, a log, segments,
/// a manifest, with all that could be right about their headers. Frames have no lengths in `bytes`: a piece is one.
#[cfg(any(fuzzing, test))]
pub(crate) fn seal(database: crate::database_id::DatabaseId, bytes: &[u8]) -> Vec<u8> {
    use blob::{BlobWriter, Header, Kind};
    let mut stream = Vec::new();
    let mut rest = bytes;
    while let [kind, a, b, len, after @ ..] = rest {
        let (content, later) = after.split_at(after.len().min(usize::from(*len)));
        rest = later;
        let (a, b) = (u64::from(*a), u64::from(*b));
        let (kind, a) = match kind % 5 {
            0 => (Kind::Segment, a),
            1 => (Kind::Log, a),
            2 => (Kind::Version, 1 << (a % 41)),
            3 => (Kind::Archive, a),
            _ => (Kind::Manifest, a),
        };
        let header = Header { is_encrypted: false, has_archive: b & 1 > 0, kind, database, backup: 1, a, b };
        let write = |out: &mut Vec<u8>| {
            let mut blob = BlobWriter::begin(out, &header, &crate::encryption::Encryption::NONE)?;
            if kind == Kind::Version {
                blob.put(&8u32.to_le_bytes())?;
                blob.put(&(1u64 << 28).to_le_bytes())?;
            }
            if matches!(kind, Kind::Version | Kind::Log | Kind::Archive) {
                blob.put(&(content.len() as u32).to_le_bytes())?;
            }
            blob.put(content)?;
            blob.end()
        };
        // A vector takes all.
        let _ = write(&mut stream);
    }
    stream
}

/// An error that reports damage in a blob.
fn damage(
    target: &str,
    blob: &str,
    offset: u64,
    what: &str,
    expected: impl ToString,
    found: impl ToString,
) -> Error {
    Error::BackupDamaged {
        blob: if target == blob { blob.to_owned() } else { format!("{blob} in {target}") },
        offset,
        what: what.to_owned(),
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

/// Whether a blob cannot be read, however often that is tried: it is damaged, or of a newer Sapwood.
fn is_unreadable(error: &Error) -> bool {
    error.is_damage() || matches!(error, Error::NewerFormat { .. })
}

/// Whether a blob was to be read that is not there.
fn is_missing(error: &Error) -> bool {
    let Error::BackupTarget { operation: "read", source, .. } = error else { return false };
    source.kind() == io::ErrorKind::NotFound
}

/// The result of a call of a target.
fn called<T>(target: &dyn Target, operation: &'static str, name: &str, result: io::Result<T>) -> Result<T> {
    result.map_err(|error| Error::BackupTarget {
        target: target.describe(),
        operation,
        name: name.to_owned(),
        source: Arc::new(error),
    })
}
