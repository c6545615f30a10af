//! What can go wrong, and what the user can do about it. Every message says what and where; damage also says what was
//! expected and what was found.

use std::sync::Arc;

/// The answer of every call that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
///
/// Errors are cheap to clone, since one failed write answers a whole group of commits.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device or the file system failed.
    #[error("{0}")]
    Io(Arc<psync::Error>),
    /// The disk is full. Nothing of the refused write is in the database; reads go on, and writes succeed again when
    /// there is space.
    #[error("{0} (the database is sound, reads go on; writes go on when there is space)")]
    DiskFull(Arc<psync::Error>),
    /// A file does not hold what was written to it.
    #[error(
        "{file} is damaged at byte {offset}: {what}; expected {expected}, found {found}. \
         Run `sapwood check` for all damage, and restore the database from a backup"
    )]
    Corrupt {
        /// Name of the file in the database's directory.
        file: String,
        /// Where in the file, in bytes.
        offset: u64,
        /// What is wrong.
        what: String,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// What a check of the whole database found.
    #[error("{} damaged place(s): {}", .damage.len(), .damage.first().map(ToString::to_string).unwrap_or_default())]
    Damaged {
        /// Every damage found, in order of discovery.
        damage: Vec<Error>,
    },
    /// The directory holds something else.
    #[error("{path} is not a Sapwood database: {reason}")]
    NotADatabase {
        /// The directory.
        path: String,
        /// How one can tell.
        reason: String,
    },
    /// There is no database here, and none was to be created.
    #[error("there is no database in {path}; `sapwood load` or `sapwood put` create one")]
    Missing {
        /// The directory.
        path: String,
    },
    /// The database was written by a newer Sapwood.
    #[error("{path} has format {found}, this program reads up to format {supported}: use a newer Sapwood")]
    NewerFormat {
        /// The directory.
        path: String,
        /// Its format.
        found: u32,
        /// The newest format that is understood here.
        supported: u32,
    },
    /// The database was written by an older Sapwood, in a format that is not read any more.
    #[error(
        "{path} has format {found}, this program reads format {supported}: export the database with the Sapwood that \
         wrote it (`sapwood dump`), and load it here (`sapwood load`)"
    )]
    OlderFormat {
        /// The directory.
        path: String,
        /// Its format.
        found: u32,
        /// The format that is understood here.
        supported: u32,
    },
    /// Another process has the database open.
    #[error("{path} is in use by {holder}; who writes to a database has it alone: wait until it is closed")]
    Locked {
        /// The directory.
        path: String,
        /// Who holds it.
        holder: String,
    },
    /// The database was opened for reading only.
    #[error("the database was opened read-only")]
    ReadOnly,
    /// A write or sync of the log failed earlier, and nobody can know what reached the disk. Reads go on; reopen the
    /// database to write again.
    #[error("writes are refused since an earlier write failed ({cause}); reopen the database to recover")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// Keys have at least one byte.
    #[error("the key is empty; keys have 1 to {} bytes", crate::KEY_LEN_MAX)]
    KeyEmpty,
    /// The key is too long.
    #[error("the key has {len} bytes; keys have 1 to {max} bytes")]
    KeyTooLong {
        /// Its length in bytes.
        len: usize,
        /// The longest that is possible.
        max: usize,
    },
    /// The value is too long.
    #[error("the value has {len} bytes; values have at most {max} bytes in this database")]
    ValueTooLong {
        /// Its length in bytes.
        len: usize,
        /// The longest that is possible.
        max: usize,
    },
    /// The batch is too large to be logged as one.
    #[error("the batch has {len} bytes; at most {max} bytes can be committed as one: split it")]
    BatchTooLarge {
        /// Its length in bytes.
        len: usize,
        /// The largest that is possible.
        max: usize,
    },
    /// Records to be ingested do not ascend, or not from above the keyspace's last key.
    #[error(
        "record {record} (counted from 0) is not above the one before it, or not above all that the keyspace holds; nothing was ingested"
    )]
    NotSorted {
        /// How many records were in order before it.
        record: u64,
    },
    /// The keyspace does not exist, and a read-only database cannot create it.
    #[error("there is no keyspace {name:?}; there are: {existing}")]
    NoKeyspace {
        /// The name asked for.
        name: String,
        /// The names that exist.
        existing: String,
    },
    /// The name cannot be that of a keyspace.
    #[error("{name:?} cannot be a keyspace's name: {reason}")]
    BadName {
        /// The name asked for.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// An option is out of range.
    #[error("{option} = {value} is out of range: {range}")]
    BadOption {
        /// Which option.
        option: &'static str,
        /// What was asked for.
        value: u64,
        /// What is possible.
        range: String,
    },
    /// Something of another database was handed to this one.
    #[error("the {what} belongs to another database")]
    Foreign {
        /// What it was.
        what: &'static str,
    },
    /// The database is being closed.
    #[error("the database is closed")]
    Closed,
}

impl Error {
    /// Damage in a file.
    pub(crate) fn corrupt(
        file: impl Into<String>,
        offset: u64,
        what: impl Into<String>,
        expected: impl ToString,
        found: impl ToString,
    ) -> Self {
        Self::Corrupt {
            file: file.into(),
            offset,
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// A sync failed, or a refused write could not be taken back: nobody knows what a reopening will find. Also for want
    /// of space: a failed sync is never a mere refusal.
    pub(crate) fn undecided(error: psync::Error) -> Self {
        Self::Poisoned { cause: error.to_string() }
    }

    /// Whether space is all that was missing, so that the same call can succeed later.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::DiskFull(_))
    }

    /// Whether the database is damaged (as against busy, full or misused).
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Damaged { .. })
    }
}

impl From<psync::Error> for Error {
    fn from(error: psync::Error) -> Self {
        match error {
            psync::Error::Locked { volume, holder } => Self::Locked { path: volume, holder },
            full if full.is_full() => Self::DiskFull(Arc::new(full)),
            other => Self::Io(Arc::new(other)),
        }
    }
}
