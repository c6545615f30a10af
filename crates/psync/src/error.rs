//! Errors between a request and the device. Each states the operation, the file and, if there is one, the
//! offset.

use std::io;
use std::time::Duration;

/// The result of every psync call.
pub type Result<T> = std::result::Result<T, Error>;

/// A request, or the call around it, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused the operation, or it failed.
    #[error("{operation} of {file}{} failed: {source}", at(*.offset))]
    Io {
        /// The operation: read, write, sync, open, …
        operation: &'static str,
        /// The name of the file.
        file: String,
        /// The byte offset, for operations that have one.
        offset: Option<u64>,
        /// The system's error.
        source: io::Error,
    },
    /// The file ended, or the device stopped, before the request was complete.
    #[error("{operation} of {file} at byte {offset}: wanted {expected} bytes, got {found}")]
    Short {
        /// The operation: read or write.
        operation: &'static str,
        /// The name of the file.
        file: String,
        /// The byte offset of the request.
        offset: u64,
        /// The number of bytes requested.
        expected: usize,
        /// The number of bytes moved.
        found: usize,
    },
    /// The disk is full, or a quota is used up. The file's earlier content is unharmed.
    #[error("no space left for {operation} of {file}: {source}; free some space and try again")]
    Full {
        /// The operation: write, resize, open, …
        operation: &'static str,
        /// The name of the file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file system is mounted read-only, perhaps by the system after an error of its own.
    #[error(
        "{operation} of {file} failed, since the file system is read-only: {source}; mount it for writing (the system's \
         log tells why it is read-only), or only read"
    )]
    ReadOnlyFileSystem {
        /// The operation: open, create, lock, write, …
        operation: &'static str,
        /// The name of the file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel did not complete a read within [`DiskOptions::io_timeout`](crate::DiskOptions::io_timeout), and did not cancel
    /// it either. Its buffer is not used again until the kernel lets go of it. The device or its driver hangs.
    #[error(
        "{operation} of {file}{} was not completed by the kernel for {:.1} s, and could not be cancelled; \
         the device may hang: see the kernel's log (dmesg), and try again",
        at(*.offset),
        .waited.as_secs_f64()
    )]
    Stalled {
        /// The operation: read.
        operation: &'static str,
        /// The name of the file.
        file: String,
        /// The byte offset of the request.
        offset: Option<u64>,
        /// How long the set was waited for without progress.
        waited: Duration,
    },
    /// The file does not exist.
    #[error("{file} does not exist")]
    NotFound {
        /// The file's name.
        file: String,
    },
    /// The file exists already.
    #[error("{file} exists already")]
    Exists {
        /// The file's name.
        file: String,
    },
    /// Another process, or another part of this one, holds the lock.
    #[error("{volume} is in use by {holder}")]
    Locked {
        /// The locked volume.
        volume: String,
        /// The holder's description of itself.
        holder: String,
    },
    /// The directory that was opened was removed, emptied, or filled with something else meanwhile. What was
    /// written since nobody will find.
    #[error("{volume} is not there any more: {what} while it was open")]
    Gone {
        /// Where the volume was when it was opened.
        volume: String,
        /// What was found.
        what: String,
    },
    /// There is no file descriptor or memory left for it. Nothing has happened; the same call can succeed later.
    #[error("{operation} of {file} needs what the system has no more of at the moment: {source}")]
    Exhausted {
        /// The operation: open, list, …
        operation: &'static str,
        /// The name of the file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// A volume is a directory, and this is none.
    #[error("{path:?} is no directory: {what}")]
    NotADirectory {
        /// The path.
        path: String,
        /// What it is instead.
        what: &'static str,
    },
    /// A file of the volume is a symbolic link. It is not followed: what is elsewhere is neither synced nor locked
    /// with the directory.
    #[error(
        "{file} is a symbolic link, which is not followed: move the file itself here, or the whole directory to where \
         it is, and make the directory the link"
    )]
    SymbolicLink {
        /// The file's name.
        file: String,
    },
    /// The file system cannot lock files.
    #[error("{volume} cannot be locked, so it cannot be known that nobody else writes to it: {source}")]
    NoLocks {
        /// The volume.
        volume: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file system cannot make names durable.
    #[error(
        "this file system refuses to sync the directory {directory} ({source}), so new files could be lost with the \
         power: use one that does, such as ext4, XFS or btrfs, or another mount (CIFS: NFS instead)"
    )]
    NotSynced {
        /// The directory.
        directory: String,
        /// The system's error.
        source: io::Error,
    },
    /// This process is a child that was forked from the one that opened the volume, and has no part in it.
    #[error("this was opened by process {opener}, from which this one was forked: open it anew here")]
    Forked {
        /// The process that opened it.
        opener: u32,
    },
    /// The caller broke the contract: an unaligned or overlapping request, or a closed file. This is a bug in
    /// the caller.
    #[error("invalid request: {0}")]
    Invalid(String),
}

fn at(offset: Option<u64>) -> String {
    offset.map(|o| format!(" at byte {o}")).unwrap_or_default()
}

impl Error {
    /// Wraps a system error. Tells a full disk, a read-only file system, a missing file, an existing file, a symbolic
    /// link, and what has not happened for lack of descriptors or memory apart from other errors.
    pub fn from_io(operation: &'static str, file: &str, offset: Option<u64>, source: io::Error) -> Self {
        let file = file.to_owned();
        let inner = source.get_ref().and_then(|inner| inner.downcast_ref());
        if let Some(Unreturned { waited }) = inner {
            return Self::Stalled { operation, file, offset, waited: *waited };
        }
        match source.kind() {
            // A file at its largest is a disk that is full for this file.
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::Full { operation, file, source }
            }
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnlyFileSystem { operation, file, source },
            io::ErrorKind::NotFound => Self::NotFound { file },
            io::ErrorKind::AlreadyExists => Self::Exists { file },
            _ if offset.is_none() && is_exhaustion(operation, &source) => {
                Self::Exhausted { operation, file, source }
            }
            _ if operation == "open" && is_link(&source) => Self::SymbolicLink { file },
            _ => Self::Io { operation, file, offset, source },
        }
    }

    /// Whether the only problem was missing disk space. The same call can succeed later.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }

    /// The system's error, if this is one.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Self::Io { source, .. }
            | Self::Full { source, .. }
            | Self::ReadOnlyFileSystem { source, .. }
            | Self::Exhausted { source, .. }
            | Self::NoLocks { source, .. }
            | Self::NotSynced { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Whether nothing has happened since there was no descriptor or memory: these calls need one of them before they
/// change anything. (A file may have been created nevertheless if memory was short; it is empty then.)
#[cfg(unix)]
fn is_exhaustion(operation: &str, error: &io::Error) -> bool {
    let needs_one = matches!(operation, "open" | "list" | "lock");
    needs_one && matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

#[cfg(not(unix))]
fn is_exhaustion(_: &str, error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::OutOfMemory
}

#[cfg(unix)]
fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ELOOP)
}

#[cfg(not(unix))]
fn is_link(_: &io::Error) -> bool {
    false
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn of(operation: &'static str, number: i32) -> Error {
        Error::from_io(operation, "a file", None, io::Error::from_raw_os_error(number))
    }

    /// What these do not say has happened is tried again; anything else is undecided.
    #[test]
    fn a_refusal_is_told_from_a_failure() {
        for number in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
            assert!(of("write", number).is_full(), "{number}");
        }
        for number in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            assert!(matches!(of("open", number), Error::Exhausted { .. }), "{number}");
            assert!(
                matches!(of("sync", number), Error::Io { .. }),
                "a sync is never a mere refusal: {number}"
            );
            assert!(matches!(of("write", number), Error::Io { .. }), "{number}");
        }
        assert!(matches!(of("open", libc::ELOOP), Error::SymbolicLink { .. }));
        assert!(matches!(of("open", libc::EIO), Error::Io { .. }));
    }
}

/// A request was not completed in time, and the kernel does not let go of its buffer. The inner error of an
/// [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "no other backend can be cancelled"))]
#[error("the kernel has not completed it for {waited:?}, and does not cancel it")]
pub(crate) struct Unreturned {
    pub waited: Duration,
}
