//! A directory of files on a device: what a store needs besides moving bytes.
//!
//! Contract:
//! 1. Creating, renaming and removing a file survive power loss only after [`Volume::sync_directory`];
//!    until then each of them may be lost, in any combination, though a rename is never half done.
//! 2. Names are plain file names: no separators, never empty, not `.` or `..`.

use crate::{Device, FileId, Result, Window};
use std::ops::Range;

/// A [`Device`] whose files have names.
pub trait Volume: Device {
    /// Opens the file `name` as `access` says.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound), [`Error::Exists`](crate::Error::Exists) (with
    /// [`Access::create_new`]), or the system's error.
    fn open(&self, name: &str, access: Access) -> Result<FileId>;

    /// Closes the file. What it held unsynced stays written but not durable.
    fn close(&self, file: FileId) -> Result<()>;

    /// Removes the file `name`.
    fn remove(&self, name: &str) -> Result<()>;

    /// Gives `from` the name `to`, replacing a file of that name in one step.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// All files in the directory, in order of name.
    fn list(&self) -> Result<Vec<Entry>>;

    /// Makes the directory itself (names created, changed, removed) survive power loss.
    fn sync_directory(&self) -> Result<()>;

    /// Takes the volume's lock, without waiting, until the answer is dropped. `holder` is what another process is
    /// told that finds it taken.
    ///
    /// # Errors
    /// [`Error::Locked`](crate::Error::Locked) names the holder.
    fn lock(&self, kind: LockKind, holder: &str) -> Result<Lock>;

    /// A part of a file that was written before, to be stored to in memory. `None`: that is not to be had here, which is what a volume
    /// says that does not know of it. Then one writes.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a range that is not wholly in the file, a file that is open for reading only,
    /// and while there is another window of it.
    fn window(&self, file: FileId, range: Range<u64>) -> Result<Option<Box<dyn Window>>> {
        let _ = (file, range);
        Ok(None)
    }

    /// Where this is, for messages: a path, or what a simulated volume calls itself.
    fn describe(&self) -> String;
}

/// How to open a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Permit writing.
    pub write: bool,
    /// Create the file if it is missing.
    pub create: bool,
    /// Create the file, and fail if it is there already.
    pub create_new: bool,
    /// Bypass the page cache (O_DIRECT) where the file system can. Requests must then be aligned.
    pub direct: bool,
}

/// One file in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name, without the directory.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
}

/// Who else may hold the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Nobody: for the one writer.
    Exclusive,
    /// Other sharers: for readers.
    Shared,
}

/// Holds a volume's lock until dropped.
pub struct Lock(#[expect(dead_code, reason = "held for its drop")] Box<dyn Send + Sync>);

impl Lock {
    /// Wraps whatever releases the lock when it is dropped.
    pub fn new(guard: impl Send + Sync + 'static) -> Self {
        Self(Box::new(guard))
    }
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lock")
    }
}
