//! A volume: a directory of files on a device.
//!
//! Contract:
//! 1. Creating, renaming and removing a file survive a power failure only after [`Volume::sync_directory`].
//!    Until then each of them may be lost, in any combination, but a rename is never half done.
//! 2. Names are plain file names: no separators, never empty, not `.` or `..`. They are names in the directory
//!    that was opened, wherever it is moved, and never in another one that has its path later.

use crate::{Device, FileId, Result, Window};
use std::ops::Range;

/// A [`Device`] whose files have names.
pub trait Volume: Device {
    /// Opens the file `name` with `access`.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound), [`Error::Exists`](crate::Error::Exists) (with
    /// [`Access::create_new`]), or the system's error.
    fn open(&self, name: &str, access: Access) -> Result<FileId>;

    /// Closes the file. Unsynced data stays written, but is not durable.
    fn close(&self, file: FileId) -> Result<()>;

    /// Removes the file `name`.
    fn remove(&self, name: &str) -> Result<()>;

    /// Renames `from` to `to`, and atomically replaces a file of that name.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Lists all files and symbolic links in the directory, sorted by name.
    fn list(&self) -> Result<Vec<Entry>>;

    /// The names of [`list`](Volume::list), in any order: where a directory has many files, they cost far less than their lengths.
    fn names(&self) -> Result<Vec<String>> {
        Ok(self.list()?.into_iter().map(|entry| entry.name).collect())
    }

    /// Makes the directory itself (created, changed and removed names) survive a power failure. When it has failed once it fails from
    /// then on, whichever thread asks: the operating system reports a failure once, names may be lost with it, and no later sync
    /// brings them back or tells.
    fn sync_directory(&self) -> Result<()>;

    /// Takes the volume's lock without waiting. The lock is held until the result is dropped. `holder` is shown
    /// to another process that finds the lock taken.
    ///
    /// # Errors
    /// [`Error::Locked`](crate::Error::Locked) names the holder. [`Error::NoLocks`](crate::Error::NoLocks): there
    /// are no locks here.
    fn lock(&self, kind: LockKind, holder: &str) -> Result<Lock>;

    /// Opens a window: a part of the file, already written, to which bytes can be stored in memory. Returns
    /// `None` if this is not available here, as in the default implementation; the caller then writes instead.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the range is not wholly in the file, if the file is open
    /// read-only, or if there is already a window of it.
    fn window(&self, file: FileId, range: Range<u64>) -> Result<Option<Box<dyn Window>>> {
        let _ = (file, range);
        Ok(None)
    }

    /// From now on the volume is known by this open file, until it is closed: once the file's name does not lead
    /// to it any more, the directory was removed, emptied, or filled with something else. Then nothing is
    /// created, renamed or removed there, and no sync succeeds ([`Error::Gone`](crate::Error::Gone)). If the
    /// volume's lock is held, the file is locked with it.
    ///
    /// The default does nothing: there are volumes that nobody else can reach.
    ///
    /// # Errors
    /// [`Error::Locked`](crate::Error::Locked) if another process has locked the file.
    fn identify_by(&self, file: FileId) -> Result<()> {
        let _ = file;
        Ok(())
    }

    /// Checks that the volume is still the one that was opened: see [`Volume::identify_by`].
    ///
    /// # Errors
    /// [`Error::Gone`](crate::Error::Gone).
    fn verify(&self) -> Result<()> {
        Ok(())
    }

    /// Identifies the time since the machine was started: another one after each start. What was written before it and can be read
    /// is durable. Zeros, as in the default implementation, if nothing tells; then this cannot be known.
    fn boot_id(&self) -> [u8; 16] {
        [0; 16]
    }

    /// The volume's location when it was opened, for messages: a path, or the name of a simulated volume.
    fn describe(&self) -> String;
}

/// How to open a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Allow writing.
    pub write: bool,
    /// Create the file if it is missing. Takes effect only with `write`.
    pub create: bool,
    /// Create the file, and fail if it already exists. Takes effect only with `write`.
    pub create_new: bool,
    /// Bypass the page cache (O_DIRECT) if the file system can. Requests must then be aligned.
    pub direct: bool,
}

/// A file in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file's name, without the directory.
    pub name: String,
    /// The file's length in bytes.
    pub len: u64,
}

/// Whether the lock can be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Held by one process alone: for the writer.
    Exclusive,
    /// Shared with other `Shared` holders: for readers.
    Shared,
}

/// A volume's lock, held until dropped.
pub struct Lock(#[expect(dead_code, reason = "held for its drop")] Box<dyn Send + Sync>);

impl Lock {
    /// Wraps a guard that releases the lock when it is dropped.
    pub fn new(guard: impl Send + Sync + 'static) -> Self {
        Self(Box::new(guard))
    }
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lock")
    }
}
