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
    /// The caller broke the contract: an unaligned or overlapping request, or a closed file. This is a bug in
    /// the caller.
    #[error("invalid request: {0}")]
    Invalid(String),
}

fn at(offset: Option<u64>) -> String {
    offset.map(|o| format!(" at byte {o}")).unwrap_or_default()
}

impl Error {
    /// Wraps a system error. Tells a full disk, a read-only file system, a missing file and an existing file apart from other errors.
    pub fn from_io(operation: &'static str, file: &str, offset: Option<u64>, source: io::Error) -> Self {
        let file = file.to_owned();
        let inner = source.get_ref().and_then(|inner| inner.downcast_ref());
        if let Some(Unreturned { waited }) = inner {
            return Self::Stalled { operation, file, offset, waited: *waited };
        }
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Full { operation, file, source }
            }
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnlyFileSystem { operation, file, source },
            io::ErrorKind::NotFound => Self::NotFound { file },
            io::ErrorKind::AlreadyExists => Self::Exists { file },
            _ => Self::Io { operation, file, offset, source },
        }
    }

    /// Whether the only problem was missing disk space. The same call can succeed later.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
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
