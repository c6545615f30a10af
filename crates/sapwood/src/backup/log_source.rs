//! The log of a backup: the commits that are not in the trees of its version, as frames.
//!
//! A process that writes keeps the files of its log until they are copied. What a follower reads can be removed by the writer's next flush at any
//! moment; then the backup begins anew with a newer version. A stream cannot take back what it was given, so a follower gathers the log
//! before any of it is written. A log that is too long for that is written as it is read, and the backup fails if it goes meanwhile.
//!
//! Invariant: what is read is whole: each operation behind the trees, up to the last of the view.

use super::output::Failure;
use crate::commit::queue_log::KeptFiles;
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::operation::SeqNo;
use crate::version::Version;
use crate::wal::{self, Generations, LogCursor, LogFiles, Record};
use std::io;

/// See the module.
pub(super) struct LogSource<'a> {
    pub files: LogFiles<'a>,
    pub encryption: &'a Encryption,
    pub version: &'a Version,
    /// The last operation of the view.
    pub seq: SeqNo,
    /// The files, if this process writes.
    pub kept: Option<&'a KeptFiles<'a>>,
    /// Whether another process may write.
    pub follows: bool,
}

impl LogSource<'_> {
    /// All frames, unless they have more than `most` bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn gather(&self, most: u64) -> Result<Option<Vec<u8>>> {
        let mut frames = Vec::new();
        let read = self.read(&mut |bytes| {
            if (frames.len() + bytes.len()) as u64 > most {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            frames.extend_from_slice(bytes);
            Ok(())
        });
        match read {
            Ok(()) => Ok(Some(frames)),
            Err(Failure::Target(_)) => Ok(None),
            Err(Failure::Source(error)) => Err(error),
        }
    }

    /// Passes the frames to `put`, piece by piece.
    ///
    /// # Errors
    /// Those of `put`; [`Error::SnapshotTooOld`] if a writer has removed what is needed; damage.
    pub fn read(&self, put: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> std::result::Result<(), Failure> {
        let Self { files, encryption, version, seq, .. } = *self;
        let mut next = version.flushed_seq + 1;
        let mut refused = None;
        let mut each = |record: &Record| {
            let end = record.first_seq + u64::from(record.count);
            if end <= version.flushed_seq + 1 || refused.is_some() {
                return Ok(());
            }
            if record.first_seq != next {
                return Err(not_continued(record.generation, next, record.first_seq));
            }
            next = end;
            refused = put_commit(record, put).err();
            // The rest need not be read.
            if self.follows && refused.is_some() { Err(Error::Stopped) } else { Ok(()) }
        };
        match self.kept {
            Some(kept) => kept.log.verify(&mut each)?,
            None if self.follows => {
                let mut cursor = LogCursor::new(version.wal_low, version.flushed_seq);
                match cursor.read_until(files, encryption, seq, &mut each) {
                    Ok(true) | Err(Error::Stopped) => {}
                    Err(error) if !error.is_damage() => return Err(error.into()),
                    // The writer has removed it, or is about to.
                    _ => return Err(Error::SnapshotTooOld { path: files.describe() }.into()),
                }
            }
            None => {
                let generations = Generations { low: version.wal_low, high: version.wal_high };
                files.direct().replay(encryption, generations, &mut |record| each(&record))?;
            }
        }
        if let Some(error) = refused {
            return Err(error.into());
        }
        if next != seq + 1 {
            return Err(not_continued(version.wal_high, seq + 1, next).into());
        }
        Ok(())
    }
}

fn put_commit(record: &Record, put: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let len = (8 + 4 + record.body.len()) as u32;
    put(&len.to_le_bytes())?;
    put(&record.first_seq.to_le_bytes())?;
    put(&record.count.to_le_bytes())?;
    put(&record.body)
}

fn not_continued(generation: u64, expected: u64, found: u64) -> Error {
    let expected = format!("sequence number {expected}");
    Error::corrupt(wal::file_name(generation), 0, "what is not in the trees", expected, found)
}
