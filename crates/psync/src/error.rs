//! What can go wrong between a request and the device. Every error says what was asked, where, and of whom.

use std::io;

/// The answer of every psync call.
pub type Result<T> = std::result::Result<T, Error>;

/// A request, or the call around it, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused or failed an operation.
    #[error("{operation} of {file}{} failed: {source}", at(*.offset))]
    Io {
        /// read, write, sync, open, …
        operation: &'static str,
        /// Name of the file.
        file: String,
        /// Byte offset, for operations that have one.
        offset: Option<u64>,
        /// What the system said.
        source: io::Error,
    },
    /// The file ends, or the device stopped, before the request was full.
    #[error("{operation} of {file} at byte {offset}: wanted {expected} bytes, got {found}")]
    Short {
        /// read or write.
        operation: &'static str,
        /// Name of the file.
        file: String,
        /// Byte offset of the request.
        offset: u64,
        /// Bytes asked for.
        expected: usize,
        /// Bytes moved.
        found: usize,
    },
    /// No space left, or a quota is used up. Nothing of the file's earlier content is harmed.
    #[error("no space left for {operation} of {file}: {source}; free some space and try again")]
    Full {
        /// write, resize, open, …
        operation: &'static str,
        /// Name of the file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file does not exist.
    #[error("{file} does not exist")]
    NotFound {
        /// Its name.
        file: String,
    },
    /// The file exists already.
    #[error("{file} exists already")]
    Exists {
        /// Its name.
        file: String,
    },
    /// Another process (or another part of this one) holds the lock.
    #[error("{volume} is in use by {holder}")]
    Locked {
        /// The locked volume.
        volume: String,
        /// What the holder said of itself.
        holder: String,
    },
    /// The caller broke the contract: unaligned, overlapping, closed file. A bug, not bad luck.
    #[error("invalid request: {0}")]
    Invalid(String),
}

fn at(offset: Option<u64>) -> String {
    offset.map(|o| format!(" at byte {o}")).unwrap_or_default()
}

impl Error {
    /// Wraps what the system said, telling a full disk and missing or existing files from the rest.
    pub fn from_io(operation: &'static str, file: &str, offset: Option<u64>, source: io::Error) -> Self {
        let file = file.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Full { operation, file, source }
            }
            io::ErrorKind::NotFound => Self::NotFound { file },
            io::ErrorKind::AlreadyExists => Self::Exists { file },
            _ => Self::Io { operation, file, offset, source },
        }
    }

    /// Whether space is all that was missing, so that the same call can succeed later.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}
