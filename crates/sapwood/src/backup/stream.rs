//! A backup as one stream: its blobs one behind the other, the manifest last.

use super::blob::{Input, Place};
use super::target::{Content, Target};
use crate::backup::damage;
use crate::error::words::THE_STREAM;
use crate::error::{Error, Result};
use crate::lock_order::{RankedMutex, rank};
use std::io;
use std::sync::Arc;

/// The target of a backup that goes through a pipe: every byte in one stream, which says itself what it has and whether it is whole.
/// Read by [`Restore::from_stream`](crate::backup::Restore::from_stream).
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # db.keyspace("ships")?.insert("fram", "1892")?;
/// use sapwood::backup::{Restore, StreamWriter};
///
/// let stream = StreamWriter::new(Vec::new());
/// db.backup().run(&stream)?;
/// Restore::from_stream(&stream.into_inner()[..]).into_directory(dir.path().join("copy.db"))?;
/// assert!(sapwood::Database::open(dir.path().join("copy.db"))?.keyspace("ships")?.contains("fram")?);
/// # Ok(()) }
/// ```
pub struct StreamWriter<W> {
    out: RankedMutex<rank::BackupStream, W>,
}

impl<W: io::Write + Send> StreamWriter<W> {
    /// A target that writes to `out`, in pieces of up to 1 MiB. Of several backups that are run with it, each is a stream of its own, to be kept
    /// apart: what reads one reads to the end.
    ///
    /// ```no_run
    /// # fn main() -> sapwood::Result<()> {
    /// # let db = sapwood::Database::open("ships.db")?;
    /// db.backup().run(&sapwood::backup::StreamWriter::new(std::io::stdout()))?;
    /// # Ok(()) }
    /// ```
    pub fn new(out: W) -> Self {
        Self { out: RankedMutex::new(out) }
    }

    /// Gives the writer back.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let stream = sapwood::backup::StreamWriter::new(Vec::new());
    /// db.backup().run(&stream)?;
    /// assert!(stream.into_inner().starts_with(b"SapBLOB\n"));
    /// # Ok(()) }
    /// ```
    pub fn into_inner(self) -> W {
        self.out.into_inner()
    }
}

impl<W: io::Write + Send> Target for StreamWriter<W> {
    fn put(&self, _: &str, content: &mut Content<'_>) -> io::Result<()> {
        let mut out = self.out.lock();
        content(&mut *out)?;
        out.flush()
    }

    fn get(&self, _: &str, _: u64, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a stream is only written"))
    }

    /// It has nothing that a backup could build on.
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        Ok(Vec::new())
    }

    fn delete(&self, _: &[String]) -> io::Result<()> {
        Ok(())
    }

    fn describe(&self) -> String {
        THE_STREAM.to_owned()
    }
}

impl<W> std::fmt::Debug for StreamWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamWriter")
    }
}

/// A stream that is read.
pub(super) struct StreamInput<R> {
    input: R,
    at: u64,
}

const NAME: &str = "stream";

impl<R: io::Read> StreamInput<R> {
    pub fn new(input: R) -> Self {
        Self { input, at: 0 }
    }

    /// Bytes that were read.
    pub fn at(&self) -> u64 {
        self.at
    }
}

impl<R: io::Read> Input for StreamInput<R> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.input.read(&mut buffer[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => {
                    let (expected, at) = (format!("{} bytes", buffer.len()), self.at);
                    return Err(damage(NAME, NAME, at, "the stream is cut off", expected, filled));
                }
                Ok(count) => {
                    filled += count;
                    self.at += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let (target, name) = (NAME.to_owned(), format!("byte {}", self.at));
                    return Err(Error::BackupTarget {
                        target,
                        operation: "read",
                        name,
                        source: Arc::new(error),
                    });
                }
            }
        }
        Ok(true)
    }

    fn place(&self) -> Place<'_> {
        Place { target: NAME, name: NAME }
    }
}
