//! A directory of backups. A blob is a file.
//!
//! ```text
//! put: NAME.tmp written ─▶ synced ─▶ renamed to NAME ─▶ directory synced
//! ```
//! Invariant: a file without `.tmp` at the end of its name is whole and durable.

use super::target::{Content, Target};
use crate::error::{Error, Result};
use psync::{Access, Disk, DiskOptions, FileId, LockKind, Read, Volume, Write};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// What an unfinished file's name ends with.
const UNFINISHED: &str = ".tmp";

/// A directory that holds backups, on another disk than the database if it is to survive that one.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// use sapwood::backup::{self, Directory};
///
/// let target = Directory::open(dir.path().join("backups"))?;
/// let taken = db.backup().run(&target)?;
/// assert_eq!(backup::list(&target)?, [taken]);
/// # Ok(()) }
/// ```
pub struct Directory {
    volume: Arc<dyn Volume>,
}

impl Directory {
    /// Opens the directory, and creates it if there is none.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let target = sapwood::backup::Directory::open(dir.path().join("backups"))?;
    /// assert!(sapwood::backup::list(&target)?.is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// I/O errors.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let options = DiskOptions { direct: false, ..DiskOptions::default() };
        Ok(Self::on(Arc::new(Disk::open(path, options)?)))
    }

    /// A target on any [`Volume`], for example a simulated one.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::psync::Simulated;
    ///
    /// let target = sapwood::backup::Directory::on(std::sync::Arc::new(Simulated::new(1)));
    /// db.backup().run(&target)?;
    /// # Ok(()) }
    /// ```
    pub fn on(volume: Arc<dyn Volume>) -> Self {
        Self { volume }
    }

    fn write(&self, file: FileId, content: &mut Content<'_>) -> io::Result<()> {
        self.volume.resize(file, 0).map_err(io_error)?;
        let out = FileWriter { volume: &*self.volume, file, at: 0 };
        // Heads of chunks are gathered; chunks are longer, and go by.
        let mut out = io::BufWriter::with_capacity(4096, out);
        content(&mut out)?;
        io::Write::flush(&mut out)?;
        self.volume.sync(file).map_err(io_error)
    }
}

/// An error of a volume, as that of a target.
fn io_error(error: psync::Error) -> io::Error {
    Error::from(error).into()
}

/// Appends to a file.
struct FileWriter<'v> {
    volume: &'v dyn Volume,
    file: FileId,
    at: u64,
}

impl io::Write for FileWriter<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if !data.is_empty() {
            self.volume.write(&[Write { file: self.file, offset: self.at, data }]).map_err(io_error)?;
            self.at += data.len() as u64;
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Target for Directory {
    fn put(&self, name: &str, content: &mut Content<'_>) -> io::Result<()> {
        let unfinished = format!("{name}{UNFINISHED}");
        let access = Access { write: true, create: true, ..Access::default() };
        let file = self.volume.open(&unfinished, access).map_err(io_error)?;
        let written = self.write(file, content);
        let closed = self.volume.close(file).map_err(io_error);
        let renamed =
            written.and(closed).and_then(|()| self.volume.rename(&unfinished, name).map_err(io_error));
        if let Err(error) = renamed {
            // Its space may be needed; the next backup removes what is left.
            let _ = self.volume.remove(&unfinished);
            return Err(error);
        }
        self.volume.sync_directory().map_err(io_error)
    }

    fn get(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let volume = &*self.volume;
        let file = volume.open(name, Access::default()).map_err(|error| match error {
            psync::Error::NotFound { .. } => io::Error::new(io::ErrorKind::NotFound, error),
            other => io_error(other),
        })?;
        let read = volume.len(file).and_then(|len| {
            let count = len.saturating_sub(offset).min(buffer.len() as u64) as usize;
            if count > 0 {
                volume.read(&mut [Read { file, offset, buffer: &mut buffer[..count] }])?;
            }
            Ok(count)
        });
        let _ = volume.close(file);
        read.map_err(io_error)
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let entries = self.volume.list().map_err(io_error)?;
        Ok(entries.into_iter().map(|entry| (entry.name, entry.len)).collect())
    }

    fn delete(&self, names: &[String]) -> io::Result<()> {
        for name in names {
            match self.volume.remove(name) {
                Ok(()) | Err(psync::Error::NotFound { .. }) => {}
                Err(error) => return Err(io_error(error)),
            }
        }
        self.volume.sync_directory().map_err(io_error)
    }

    fn describe(&self) -> String {
        self.volume.describe()
    }

    fn lock(&self) -> io::Result<Box<dyn Send>> {
        let holder = format!("a backup of process {}", std::process::id());
        match self.volume.lock(LockKind::Exclusive, &holder) {
            Ok(lock) => {
                let names = self.list()?.into_iter().map(|(name, _)| name);
                let unfinished: Vec<_> = names.filter(|name| name.ends_with(UNFINISHED)).collect();
                if !unfinished.is_empty() {
                    self.delete(&unfinished)?;
                }
                Ok(Box::new(lock))
            }
            // As with any target that cannot be locked.
            Err(psync::Error::NoLocks { .. }) => Ok(Box::new(())),
            Err(error) => Err(io_error(error)),
        }
    }
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Directory({})", self.describe())
    }
}
