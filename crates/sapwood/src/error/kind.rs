//! Which kind of I/O error an error is, for programs that treat all errors by kind.

use crate::error::Error;

impl Error {
    /// The same of something that has happened, and that readers have seen: no refusal.
    #[cfg(feature = "async")]
    pub(crate) fn of_visible(self) -> Self {
        match self {
            Error::DiskFull(refusal) | Error::Exhausted(refusal) => Error::Io(refusal.error),
            other => other,
        }
    }

    /// The kind of I/O error that comes nearest, for programs that treat all errors by kind.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// let opened = sapwood::Database::builder().create(false).open(dir.path().join("ships.db"));
    /// assert!(opened.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound));
    /// # Ok(()) }
    /// ```
    pub fn kind(&self) -> std::io::ErrorKind {
        use std::io::ErrorKind;
        match self {
            Error::DiskFull(_) => ErrorKind::StorageFull,
            Error::Exhausted(_) => ErrorKind::OutOfMemory,
            Error::Corrupt { .. }
            | Error::Damaged { .. }
            | Error::BackupDamaged { .. }
            | Error::Schema { .. }
            | Error::Decode { .. } => ErrorKind::InvalidData,
            Error::BackupTarget { source, .. } => source.kind(),
            Error::Source { cause } => cause.kind(),
            Error::NotEmpty { .. } => ErrorKind::DirectoryNotEmpty,
            Error::NoKeyspace { .. }
            | Error::NoBackup { .. }
            | Error::NotArchived { .. }
            | Error::Missing { .. }
            | Error::KeyspaceDropped { .. }
            | Error::NoChanges { .. }
            | Error::ChangesGone { .. }
            | Error::Gone { .. } => ErrorKind::NotFound,
            Error::NotWritable { .. } | Error::EncryptionKey { .. } => ErrorKind::PermissionDenied,
            Error::ReadOnly => ErrorKind::ReadOnlyFilesystem,
            // Not `Interrupted`: loops of the standard library would repeat a part of the transaction.
            Error::Locked { .. } | Error::Conflict { .. } => ErrorKind::ResourceBusy,
            Error::KeyEmpty
            | Error::KeyTooLong { .. }
            | Error::ValueTooLong { .. }
            | Error::BatchTooLarge { .. }
            | Error::NotSorted { .. }
            | Error::BadName { .. }
            | Error::OtherHistory { .. }
            | Error::BadPosition { .. }
            | Error::NoExpiry { .. }
            | Error::Encode { .. }
            | Error::NoMergeOperator { .. }
            | Error::OtherMergeOperator { .. }
            | Error::UnknownMergeOperator { .. }
            | Error::BadOperand { .. }
            | Error::BadOption { .. }
            | Error::NotFollowable { .. }
            | Error::NoSavepoint
            | Error::LargeValues { .. }
            | Error::NoLargeValues { .. }
            | Error::StagedTwice
            | Error::Foreign { .. } => ErrorKind::InvalidInput,
            _ => ErrorKind::Other,
        }
    }
}

/// For programs whose errors are those of I/O. The [`Error`] is the source, and tells more than the kind.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// let db = sapwood::Database::open(dir.path().join("ships.db"))?; // in a function that returns std::io::Result
/// # Ok(()) }
/// ```
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}
