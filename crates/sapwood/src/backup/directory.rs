//! A directory of backups. A blob is a file.
//!
//! ```text
//! put: NAME.tmp written, past the page cache ──▶ with those before it: each synced and renamed to NAME ─▶ directory synced
//! ```
//! Many blobs are short, and a sync costs as much as writing some megabytes. Files that are on the device when the first of them is
//! synced share the commit of the file system's journal, and the sync of the directory.
//!
//! Invariant: a file with the name of a blob is whole and durable. One that has `.tmp` behind such a name is removed when the directory is
//! next locked; files of other names are strangers'.

use super::name::{BlobName, marked};
use super::target::{Content, Target};
use crate::error::{Error, Result};
use crate::lock_order::{RankedMutex, rank};
use psync::{Access, AlignedBuffer, Disk, DiskOptions, FileId, LockKind, Read, Volume, Write};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    waiting: RankedMutex<rank::BackupFiles, Waiting>,
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
    /// I/O errors; [`Error::BackupTarget`] if there is no space for a directory.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let disk = Disk::open(path, DiskOptions::default()).map_err(|error| not_opened(error, path))?;
        Ok(Self::on(Arc::new(disk)))
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
        Self { volume, waiting: RankedMutex::default() }
    }

    /// Makes the files durable that wait for it, and gives them their names.
    fn settle(&self) -> io::Result<()> {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        if waiting.files.is_empty() {
            return Ok(());
        }
        let mut result = Ok(());
        let mut named = Vec::new();
        for Unfinished { file, name } in waiting.files {
            if result.is_ok() {
                result = self.volume.sync(file);
            }
            result = result.and(self.volume.close(file));
            let unfinished = unfinished(&name);
            if result.is_ok() {
                result = self.volume.rename(&unfinished, &name);
            }
            if result.is_err() {
                // Its space may be needed; the next backup removes what is left.
                let _ = self.volume.remove(&unfinished);
            } else {
                named.push(name);
            }
        }
        result.and_then(|()| self.volume.sync_directory()).map_err(|error| {
            // A name may be lost although it is seen: the system tells of a failed sync once, and the next process, whose sync of
            // the directory succeeds, would take the blob for durable.
            for name in named {
                let _ = self.volume.remove(&name);
            }
            io_error(error)
        })
    }
}

/// Files that have no name of their own yet.
#[derive(Default)]
struct Waiting {
    files: Vec<Unfinished>,
    bytes: u64,
    since: Option<Instant>,
}

impl Waiting {
    /// Whether what waits is worth a sync: more would be copied again after a kill.
    fn is_much(&self) -> bool {
        let is_old = self.since.is_some_and(|since| since.elapsed() >= WAITS);
        self.files.len() >= FILES || self.bytes >= BYTES || is_old
    }
}

/// A file that was written.
struct Unfinished {
    file: FileId,
    name: String,
}

/// Files (count) and their bytes that are made durable together, and how long they wait at most: so many that a sync costs little
/// beside them, and so few that little is lost.
const FILES: usize = 64;
const BYTES: u64 = 64 << 20;
const WAITS: Duration = Duration::from_secs(1);
/// Bytes that are written at a time: enough for a device's full speed, and little memory.
const WRITE: usize = 1 << 20;

fn unfinished(name: &str) -> String {
    format!("{name}{UNFINISHED}")
}

fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(UNFINISHED)
        .is_some_and(|name| BlobName::parse(name).is_some() || marked(name).is_some())
}

/// The error of a target that could not be opened.
fn not_opened(error: psync::Error, path: &Path) -> Error {
    if !error.is_full() {
        return error.into();
    }
    let (target, name) = (path.display().to_string(), "the directory".to_owned());
    Error::BackupTarget { target, operation: "creation", name, source: Arc::new(io_error(error)) }
}

/// An error of a volume, as that of a target. A full one has no database, and nothing that was set aside.
fn io_error(error: psync::Error) -> io::Error {
    if error.is_full() {
        return io::Error::new(io::ErrorKind::StorageFull, error);
    }
    Error::from(error).into()
}

/// Writes a file from front to back, past the page cache where that is possible.
struct FileWriter<'v> {
    volume: &'v dyn Volume,
    file: FileId,
    at: u64,
    buffer: AlignedBuffer,
    filled: usize,
}

impl<'v> FileWriter<'v> {
    fn new(volume: &'v dyn Volume, file: FileId) -> Self {
        let buffer = AlignedBuffer::new(WRITE.next_multiple_of(volume.limits().alignment));
        Self { volume, file, at: 0, buffer, filled: 0 }
    }

    fn put(&mut self, len: usize) -> io::Result<()> {
        let data = &self.buffer[..len];
        self.volume.write(&[Write { file: self.file, offset: self.at, data }]).map_err(io_error)?;
        self.at += len as u64;
        self.filled = 0;
        Ok(())
    }

    /// Writes what is left, and returns the length of the file.
    fn finish(mut self) -> io::Result<u64> {
        let len = self.at + self.filled as u64;
        let padded = self.filled.next_multiple_of(self.volume.limits().alignment);
        if padded > 0 {
            self.buffer[self.filled..padded].fill(0);
            self.put(padded)?;
        }
        if self.at > len {
            self.volume.resize(self.file, len).map_err(io_error)?;
        }
        Ok(len)
    }
}

impl io::Write for FileWriter<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let taken = data.len().min(self.buffer.len() - self.filled);
        self.buffer[self.filled..self.filled + taken].copy_from_slice(&data[..taken]);
        self.filled += taken;
        if self.filled == self.buffer.len() {
            self.put(self.filled)?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Target for Directory {
    fn put(&self, name: &str, content: &mut Content<'_>) -> io::Result<()> {
        let unfinished = unfinished(name);
        let access = Access { write: true, create: true, direct: true, ..Access::default() };
        let file = self.volume.open(&unfinished, access).map_err(io_error)?;
        let written = self.volume.resize(file, 0).map_err(io_error).and_then(|()| {
            let mut out = FileWriter::new(&*self.volume, file);
            content(&mut out)?;
            out.finish()
        });
        let bytes = match written {
            Ok(bytes) => bytes,
            Err(error) => {
                let _ = self.volume.close(file);
                let _ = self.volume.remove(&unfinished);
                return Err(error);
            }
        };
        let mut waiting = self.waiting.lock();
        waiting.files.push(Unfinished { file, name: name.to_owned() });
        waiting.bytes += bytes;
        waiting.since.get_or_insert_with(Instant::now);
        let is_much = waiting.is_much();
        drop(waiting);
        if is_much { self.settle() } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        self.settle()
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
                let unfinished: Vec<_> = names.filter(|name| is_unfinished(name)).collect();
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

impl Drop for Directory {
    fn drop(&mut self) {
        // What was not synced was not promised.
        for Unfinished { file, .. } in std::mem::take(&mut *self.waiting.lock()).files {
            let _ = self.volume.close(file);
        }
    }
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Directory({})", self.describe())
    }
}
