//! Errors, and what the user can do about them. Every message says what failed and where. Messages about damage
//! also say what was expected and what was found.

mod conflict_reason;
mod findings;
mod key_problem;
mod kind;
mod predicates;
mod refusal;
pub(crate) mod unsupported;
pub(crate) mod words;

pub use conflict_reason::ConflictReason;
pub use key_problem::KeyProblem;
pub use refusal::Refusal;

pub(crate) use findings::Findings;

use crate::value::Key;
use std::sync::Arc;

/// The result of every call that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// The name of the data file, by which errors in reading nodes are told from others.
pub(crate) const DATA: &str = "data";

/// Why a call failed.
///
/// Cloning an error is cheap: one failed write is reported to a whole group of commits.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// use sapwood::Error;
///
/// match ships.insert("fram", "1892") {
///     Ok(()) => {}
///     Err(full @ Error::DiskFull(_)) => eprintln!("{full}: nothing happened, try again later"),
///     Err(poisoned @ Error::Poisoned { .. }) => eprintln!("{poisoned}: close the database and open it again"),
///     Err(other) => return Err(other),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device or the file system failed.
    #[error(transparent)]
    Io(Arc<psync::Error>),
    /// The disk is full. The refused write had no effect. Reads still work, and writes succeed again once there
    /// is space.
    #[error(transparent)]
    DiskFull(Refusal),
    /// The system has no file descriptor or memory left for it. Nothing has happened. Reads still work, and writes
    /// succeed again once there are some.
    #[error(transparent)]
    Exhausted(Refusal),
    /// The database's directory was removed, emptied, or filled with something else while it was open. Commits
    /// since then are not safe.
    #[error(
        "the database that was opened at {path} is gone: {what}. Commits since then are lost; what is at {path} now \
         was left alone. Close the database, and restore it from a backup, or save what can be read with `sapwood repair`"
    )]
    Gone {
        /// Where the directory was when it was opened.
        path: String,
        /// What was found.
        what: String,
    },
    /// This user may not write to the directory.
    #[error(
        "{path} cannot be opened for writing ({cause}): make it writable for this user, or, if there is a database, open it \
         read-only (`Builder::read_only`)"
    )]
    NotWritable {
        /// The directory.
        path: String,
        /// The system's refusal.
        cause: String,
    },
    /// The file system has no locks, so another process could write at the same time.
    #[error(
        "{path} cannot be locked ({cause}), so it is not known that no other process has it open: use another file system, \
         or take care of that yourself and open it without a lock (`Builder::require_lock`)"
    )]
    NoLocks {
        /// The directory.
        path: String,
        /// The system's refusal.
        cause: String,
    },
    /// This process was forked from the one that opened the database, which has it alone.
    #[error(
        "the database was opened by process {opener}, from which this one was forked: only that one may use it"
    )]
    Forked {
        /// The process that opened it.
        opener: u32,
    },
    /// A file does not contain what was written to it.
    #[error(
        "{file} is damaged at byte {offset}: {what}; expected {expected}, found {found}. \
         Run `sapwood check` for all damage; then restore the database from a backup, or save what can be read with `sapwood repair`"
    )]
    Corrupt {
        /// Name of the file in the database's directory.
        file: String,
        /// Where in the file, in bytes.
        offset: u64,
        /// What is wrong.
        what: String,
        /// The expected content.
        expected: String,
        /// The content found.
        found: String,
    },
    /// A check of the whole database found damage.
    #[error(
        "{} damaged place(s): {}",
        .damage.len() as u64 + .left_out,
        .damage.first().map(ToString::to_string).unwrap_or_default()
    )]
    Damaged {
        /// The damage found, and what could not be read beside it: up to 1000 places of the trees, and as many of each other kind of file and of large values.
        damage: Vec<Error>,
        /// Places that were found and are not listed (count).
        left_out: u64,
    },
    /// The directory holds something other than a Sapwood database.
    #[error("{path} is not a Sapwood database: {reason}")]
    NotADatabase {
        /// The directory.
        path: String,
        /// The evidence.
        reason: String,
    },
    /// There is no database in the directory, and the options do not allow creating one.
    #[error("there is no database in {path}; `sapwood load` or `sapwood put` create one")]
    Missing {
        /// The directory.
        path: String,
    },
    /// The database, or the backup, was written by a newer Sapwood.
    #[error("{path} has format {found}, this program reads up to format {supported}: use a newer Sapwood")]
    NewerFormat {
        /// The directory, or the backup and where it is.
        path: String,
        /// The database's format version, or the backup's.
        found: u32,
        /// The newest format version that this program supports.
        supported: u32,
    },
    /// The database was written by an older Sapwood, in a format that is no longer supported.
    #[error(
        "{path} has format {found}, this program reads format {supported}: export the database with the Sapwood that \
         wrote it (`sapwood dump`), and load it here (`sapwood load`)"
    )]
    OlderFormat {
        /// The directory.
        path: String,
        /// The database's format version.
        found: u32,
        /// The format version that this program supports.
        supported: u32,
    },
    /// Another process has the database open.
    #[error(
        "{path} is in use by {holder}; a process that writes to a database has it alone: wait until it is closed"
    )]
    Locked {
        /// The directory.
        path: String,
        /// The process that has it open.
        holder: String,
    },
    /// The database was opened read-only.
    #[error("the database was opened read-only")]
    ReadOnly,
    /// A write or sync of the log failed, this call's own or an earlier one, so it is unknown what reached the disk: whether a commit that
    /// was under way took effect shows when the database is opened again. Reads still work. Reopen the database to write again.
    #[error("writes are refused since one failed ({cause}); reopen the database to recover")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// The key is empty. Keys have at least one byte.
    #[error("the key is empty; keys have 1 to {} bytes", crate::KEY_LEN_MAX)]
    KeyEmpty,
    /// The key is too long.
    #[error("the key has {len} bytes; keys have 1 to {max} bytes")]
    KeyTooLong {
        /// The key's length in bytes.
        len: usize,
        /// The maximum length in bytes.
        max: usize,
    },
    /// The value is too long.
    #[error("the value has {len} bytes; values have {} in this database", words::at_most(*max, *most))]
    ValueTooLong {
        /// The value's length in bytes.
        len: usize,
        /// The maximum length in bytes.
        max: usize,
        /// The maximum with the largest memory budget.
        most: usize,
    },
    /// The batch is too large for one log record, or an ingestion is too large for one call.
    #[error(
        "the batch has {len} bytes; with as many changes at most {max} bytes can be committed as one: split it"
    )]
    BatchTooLarge {
        /// The batch's size in bytes.
        len: usize,
        /// The maximum size in bytes.
        max: usize,
    },
    /// A transaction was not committed, since another commit has changed what it read. Nothing of it has happened. Begin it
    /// again, or use [`Database::transact`](crate::Database::transact), which does.
    #[error(
        "the transaction was not committed: {reason} (keyspace {keyspace:?}, key {key:?}); begin it again, as `transact` does"
    )]
    Conflict {
        /// The name of the keyspace.
        keyspace: String,
        /// The key that was read and has changed. If `reason` is not [`ConflictReason::Changed`], one that was read; it is empty
        /// where a range from the beginning was.
        key: Key,
        /// What has happened.
        reason: ConflictReason,
    },
    /// The savepoint belongs to another transaction, or was made after one to which the transaction was rolled back, or was
    /// released.
    #[error("the transaction does not have this savepoint, or not any more")]
    NoSavepoint,
    /// Keys of the records to be ingested do not ascend, or the first is not greater than all keys in the
    /// keyspace.
    #[error(
        "record {record} (counted from 0) is not above the one before it, or not above all that the keyspace holds; nothing was ingested"
    )]
    NotSorted {
        /// The number of the first record out of order, counted from 0.
        record: u64,
    },
    /// The keyspace does not exist, and a read-only database cannot create it.
    #[error("there is no keyspace {name:?}; there are: {existing}")]
    NoKeyspace {
        /// The requested name.
        name: String,
        /// The existing names, some twenty of them at most.
        existing: String,
    },
    /// The database keeps no changes to be read.
    #[error(
        "{path} keeps no changes: open it with `Builder::keep_changes`, or use `sapwood changes --keep`; what is committed from then on is kept"
    )]
    NoChanges {
        /// The directory.
        path: String,
    },
    /// Changes that were to be read are not kept any more.
    #[error(
        "changes after sequence number {since} are not kept any more, those after {from} are: begin with a new copy (`Database::snapshot_for_changes`), and keep more (`Builder::keep_changes`) or read sooner"
    )]
    ChangesGone {
        /// Behind which they were to be read.
        since: u64,
        /// Behind which they are there, unless they are given up meanwhile.
        from: u64,
    },
    /// The position in the change feed is not one of this database: it was made by another, or by the one of which this is a
    /// restored backup.
    #[error(
        "the position is not one of this database's history: {what}; begin with a new copy (`Database::snapshot_for_changes`)"
    )]
    OtherHistory {
        /// How that is known.
        what: String,
    },
    /// The text is not a position in the change feed.
    #[error(
        "{text:?} is not a position: one is 32 hexadecimal digits, a sequence number and the number of an event, with `-` between"
    )]
    BadPosition {
        /// The text, or its beginning.
        text: String,
    },
    /// The keyspace was dropped. What a handle of it was to do has not happened.
    #[error("keyspace {name:?} was dropped")]
    KeyspaceDropped {
        /// The name that the handle had; its number if only that is known.
        name: String,
    },
    /// Records of this keyspace have no times at which they expire: it was created without that.
    #[error(
        "records of keyspace {keyspace:?} cannot expire, since it was created without that: create another one with \
         `Database::keyspace_with` and `KeyspaceOptions::expiring`, and copy the records"
    )]
    NoExpiry {
        /// The keyspace.
        keyspace: String,
    },
    /// Nothing can be merged in this keyspace: it was created without a merge operator.
    #[error(
        "keyspace {keyspace:?} has no merge operator, since it was created without one: create another keyspace with \
         `Database::keyspace_with` and `KeyspaceOptions::merge`, and copy the records"
    )]
    NoMergeOperator {
        /// The keyspace.
        keyspace: String,
    },
    /// The keyspace was created with another merge operator than the one asked for.
    #[error("values of keyspace {keyspace:?} merge by {stored:?}, not by {asked:?}")]
    OtherMergeOperator {
        /// The keyspace.
        keyspace: String,
        /// The operator that it was created with.
        stored: String,
        /// The operator asked for.
        asked: String,
    },
    /// The database has a keyspace whose merge operator this program did not name.
    #[error(
        "values of keyspace {keyspace:?} merge by {operator:?}, which is none of Sapwood's own operators: tell it with \
         `Builder::merge_operator` before the database is opened, or open it with `Builder::read_only`, where only operands that \
         wait for their values are errors"
    )]
    UnknownMergeOperator {
        /// The keyspace.
        keyspace: String,
        /// The name of the operator that it was created with.
        operator: String,
    },
    /// These bytes cannot be merged.
    #[error("merge operator {operator:?} refuses the operand: {reason}")]
    BadOperand {
        /// The operator.
        operator: String,
        /// What it says of the operand.
        reason: String,
    },
    /// What was merged into a record made no value. The record has none until it is inserted anew, or removed. A range tells it in the
    /// record's place, and goes on behind it.
    #[error(
        "key {key:?}: what was merged into the record could not be, by merge operator {operator:?}: {reason}. Insert the record anew, or remove it"
    )]
    MergeFailed {
        /// The record's key.
        key: Key,
        /// The operator.
        operator: String,
        /// Why.
        reason: String,
    },
    /// The keyspace name is invalid.
    #[error("{name:?} cannot be a keyspace's name: {reason}")]
    BadName {
        /// The requested name.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// An option is out of range.
    #[error("{option} = {value} is out of range: {range}")]
    BadOption {
        /// The option.
        option: &'static str,
        /// The requested value.
        value: u64,
        /// The allowed range.
        range: String,
    },
    /// A typed keyspace (crate `sapwood-typed`) was written with other types, or another version of them. Nothing was read or
    /// changed.
    #[error(
        "keyspace {keyspace:?} has {found}, and was opened as {expected}: open it with what wrote it, or say how to migrate it \
         (`Schema::migrate_from` of sapwood-typed)"
    )]
    Schema {
        /// The keyspace.
        keyspace: String,
        /// Version and types that are stored with it.
        found: String,
        /// Version and types with which it was opened.
        expected: String,
    },
    /// A key or value of a typed keyspace (crate `sapwood-typed`) is not what such a keyspace holds. Something else has written it,
    /// or the type has changed under the same name and version.
    #[error(
        "keyspace {keyspace:?}, key {key:?}: there is no {expected}: {reason}; read it as bytes, and correct or remove it"
    )]
    Decode {
        /// The keyspace.
        keyspace: String,
        /// The record's key, as it is stored.
        key: Key,
        /// What should be there: key or value, and its type.
        expected: String,
        /// What is wrong with the bytes.
        reason: String,
    },
    /// A value cannot be stored in a typed keyspace (crate `sapwood-typed`): its `Serialize` refused. Nothing has happened.
    #[error("keyspace {keyspace:?}: a value cannot be stored as {expected}: {reason}")]
    Encode {
        /// The keyspace.
        keyspace: String,
        /// The type.
        expected: String,
        /// Why not.
        reason: String,
    },
    /// A target of backups refused something, or failed ([`backup::Target`](crate::backup::Target)). A backup can be repeated, and
    /// goes on where it was, unless it is a stream; a restore begins anew.
    #[error("{operation} of {name} in {target} failed: {source}; {}", words::repeated(operation, target))]
    BackupTarget {
        /// Where the target is.
        target: String,
        /// The operation: lock, list, write, read, remove.
        operation: &'static str,
        /// The blob.
        name: String,
        /// The target's error.
        source: Arc<std::io::Error>,
    },
    /// A blob of a backup does not contain what was written to it. Nothing was restored from it.
    #[error(
        "{blob} is damaged at byte {offset}: {what}; expected {expected}, found {found}. \
         `sapwood verify` tells which backups are whole"
    )]
    BackupDamaged {
        /// The blob, and where it is.
        blob: String,
        /// Where in the blob, in bytes.
        offset: u64,
        /// What is wrong.
        what: String,
        /// The expected content.
        expected: String,
        /// The content found.
        found: String,
    },
    /// The target has no backup, or not the one asked for.
    #[error("{target} has no {wanted}; it has: {existing}")]
    NoBackup {
        /// Where the target is.
        target: String,
        /// What was asked for.
        wanted: String,
        /// The numbers of those that are there.
        existing: String,
    },
    /// The moment to which a backup was to be restored is in no [archive of the log](crate::backup::Backup::archive_log).
    #[error("{target} cannot bring back {wanted}; it can bring back: {existing}")]
    NotArchived {
        /// Where the target is.
        target: String,
        /// The moment that was asked for.
        wanted: String,
        /// The moments that can be restored, the newest first, and what lies between.
        existing: String,
    },
    /// A database is restored into an empty directory only. Nothing was changed.
    #[error("{path} is not empty: it has {found}; restore into a new directory")]
    NotEmpty {
        /// The directory.
        path: String,
        /// Something that it has.
        found: String,
    },
    /// The function that is told of progress has ended the work ([`ControlFlow::Break`](std::ops::ControlFlow::Break)).
    #[error(
        "stopped, as asked for; a backup that is repeated goes on from there, a restore or a repair begins anew"
    )]
    Stopped,
    /// The keyspace has large values.
    #[error("keyspace {keyspace:?} has large values: open it with `Database::large_values`")]
    LargeValues {
        /// The keyspace.
        keyspace: String,
    },
    /// The keyspace has no large values.
    #[error(
        "keyspace {keyspace:?} was not created for large values: open it with `Database::keyspace`, or choose another name"
    )]
    NoLargeValues {
        /// The keyspace.
        keyspace: String,
    },
    /// A staged value was inserted by a transaction that was committed already, or by this one, which has replaced or removed it since.
    #[error("the staged value was inserted before: stage it again")]
    StagedTwice,
    /// A database, a backup or a key file cannot be opened with what was given as key.
    #[error("{path} cannot be opened: {problem}")]
    EncryptionKey {
        /// The database's directory, the backup's target, or the key file.
        path: String,
        /// What is wrong.
        problem: KeyProblem,
    },
    /// What a value was to be read from has failed. Nothing was changed.
    #[error("the source of a large value failed: {cause}")]
    Source {
        /// The error.
        #[source]
        cause: Arc<std::io::Error>,
    },
    /// An object that belongs to another database was used with this one.
    #[error("the {what} belongs to another database")]
    Foreign {
        /// The kind of object.
        what: &'static str,
    },
    /// The database is closed.
    #[error("the database is closed")]
    Closed,
    /// A follower read what its writer has not kept for it: the follower had not been heard of for the time of the lease, the disk was
    /// full, or the follower could not write to the directory to say what it needs.
    #[error(
        "{path} has gone on without this follower, and what it was about to read is gone: call `Database::refresh`, and take \
         snapshots and iterators anew"
    )]
    SnapshotTooOld {
        /// The directory.
        path: String,
    },
    /// Nothing says how far the database is durable, so it cannot be followed.
    #[error(
        "no program that can be followed has had {path} open for writing yet: open it for writing once, or read-only"
    )]
    NotFollowable {
        /// The directory.
        path: String,
    },
}

impl Error {
    /// An error that reports damage in a file.
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

    /// The error for threads that wait for one that panicked.
    pub(crate) fn panicked(thread: &str) -> Self {
        Self::Poisoned { cause: format!("the thread {thread} panicked") }
    }

    /// A sync failed, or a refused write could not be undone: it is unknown what the next open will find. This
    /// applies to a full disk too: a failed sync is never a mere refusal.
    pub(crate) fn undecided(error: psync::Error) -> Self {
        match error {
            psync::Error::Gone { .. } | psync::Error::Forked { .. } => error.into(),
            other => Self::Poisoned { cause: other.to_string() },
        }
    }

    /// The error of a thread that opened the database at `path`.
    pub(crate) fn of_opening(error: psync::Error, path: &str) -> Self {
        match &error {
            psync::Error::Io { operation: "create" | "lock", source, .. }
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Self::NotWritable { path: path.into(), cause: source.to_string() }
            }
            _ => error.into(),
        }
    }

    /// The same where there is no database yet: a full disk has nothing set aside, and no records that could be removed.
    pub(crate) fn of_none(self) -> Self {
        match self {
            Self::DiskFull(refusal) => Self::DiskFull(refusal.of_none()),
            other => other,
        }
    }
}

impl From<psync::Error> for Error {
    fn from(error: psync::Error) -> Self {
        match error {
            psync::Error::Locked { volume, holder } => Self::Locked { path: volume, holder },
            psync::Error::Gone { volume, what } => Self::Gone { path: volume, what },
            psync::Error::Forked { opener } => Self::Forked { opener },
            psync::Error::NotADirectory { path, what } => Self::NotADatabase { path, reason: what.into() },
            psync::Error::NoLocks { volume, source } => {
                Self::NoLocks { path: volume, cause: source.to_string() }
            }
            exhausted @ psync::Error::Exhausted { .. } => {
                let hint = "nothing was changed, and the database is sound: try again";
                Self::Exhausted(Refusal { error: Arc::new(exhausted), hint })
            }
            full if full.is_full() => {
                let hint = "the database is sound and reads go on; removing records and compacting has space set aside, \
                            and frees some; other writes go on when there is space";
                Self::DiskFull(Refusal { error: Arc::new(full), hint })
            }
            other => Self::Io(Arc::new(other)),
        }
    }
}
