//! Errors of the store, and how openraft is told of them.
//!
//! openraft stops a node whose storage fails, and says so in `RaftMetrics::running_state`. The text of the error below is in it.

use openraft::{AnyError, ErrorSubject, ErrorVerb, NodeId, StorageError, StorageIOError};
use std::path::PathBuf;
use std::sync::Arc;

/// The result of every call that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call of the store failed.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use sapwood_openraft::{Error, KvConfig, KvMachine, Store};
///
/// let db = sapwood::Database::open(dir.path().join("node.db"))?;
/// let store = Store::open(&db, dir.path().join("snapshots"))?;
/// let group = store.group::<KvConfig, _>(1, KvMachine::new())?;
/// assert!(matches!(store.group::<KvConfig, _>(1, KvMachine::new()), Err(Error::GroupInUse { group: 1 })));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database failed.
    #[error(transparent)]
    Database(#[from] sapwood::Error),
    /// A record of the store is not what the store writes.
    #[error(
        "a record of Raft group {group} is damaged or of a newer version: {what}: {reason}. Check the database; let the \
         node join again with an empty one if it is damaged"
    )]
    Record {
        /// The number of the group.
        group: u64,
        /// Which record.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Something could not be encoded.
    #[error(
        "{what} cannot be encoded: {reason}. Its serde implementation must not need a format that describes itself"
    )]
    Encode {
        /// What.
        what: &'static str,
        /// The encoder's reason.
        reason: String,
    },
    /// The log would have a hole. Nothing was appended.
    #[error(
        "the log of Raft group {group} ends with {last:?}, and entry {index} was to be appended: it would leave a hole"
    )]
    Hole {
        /// The number of the group.
        group: u64,
        /// The index of the last entry, or of the last that was purged.
        last: Option<u64>,
        /// The index of the entry.
        index: u64,
    },
    /// Entries were to be truncated that are purged, so applied. Nothing was truncated.
    #[error(
        "the log of Raft group {group} is purged up to {purged}, and was to be truncated from {index} on: entries that were \
         applied cannot be taken back"
    )]
    TruncatesPurged {
        /// The number of the group.
        group: u64,
        /// The index of the last purged entry.
        purged: u64,
        /// The index of the first entry that was to be removed.
        index: u64,
    },
    /// The log lacks entries that the state has not: nothing can be done with either.
    #[error(
        "the log of Raft group {group} is purged up to {purged}, and its state ends with {applied:?}: a snapshot was being installed when the node \
         ended or its backup was made. Let the node join again with an empty directory and a new number; restore another backup"
    )]
    StateBehindLog {
        /// The number of the group.
        group: u64,
        /// The index of the last purged entry.
        purged: u64,
        /// The index of the last entry that was applied.
        applied: Option<u64>,
    },
    /// Entries follow a snapshot that was not installed: its installation failed, or the state machine was dropped before. Nothing was appended.
    #[error(
        "the state of Raft group {group} has not come to {index}, which a snapshot was to bring it to, and does not any more: entries cannot follow it"
    )]
    NotInstalled {
        /// The number of the group.
        group: u64,
        /// The index of the last entry that the snapshot has.
        index: u64,
    },
    /// The vote and the log are those of another node. As this one it would vote a second time.
    #[error(
        "Raft group {group} is that of node {recorded}, and was opened as node {given}: start it as node {recorded}, or let node {given} join \
         with an empty directory"
    )]
    OtherNode {
        /// The number of the group.
        group: u64,
        /// The id of the node that it is of.
        recorded: String,
        /// The id that was given.
        given: String,
    },
    /// The group has the vote or the log of a member, and the id that was given is of none.
    #[error(
        "Raft group {group} has members {members}, and was opened as node {given}: start it with the number that it had, or let node {given} join with \
         an empty directory"
    )]
    NoMember {
        /// The number of the group.
        group: u64,
        /// The id that was given.
        given: String,
        /// The ids of those that its state and its log have.
        members: String,
    },
    /// A command was answered, though the database refused a write of it for a limit that follows from the memory budget. Nothing of it has happened.
    #[error(
        "command {index} of Raft group {group} was answered, and a write of it was refused here: {refusal}. A node with more memory may not refuse it, so \
         none may act on that: let `Machine::apply` return such errors, and refuse a command that is too long before it is proposed, by a limit \
         that all nodes have. This one is committed: start the node with more memory, as much as the largest node has, until it is applied"
    )]
    AnsweredRefusal {
        /// The number of the group.
        group: u64,
        /// The index of the entry.
        index: u64,
        /// What the database has said.
        refusal: Arc<sapwood::Error>,
    },
    /// The group is open already, in this process.
    #[error("Raft group {group} is in use: drop its log store, its state machine and their readers first")]
    GroupInUse {
        /// The number of the group.
        group: u64,
    },
    /// A database is that of a store which is open, under another directory of snapshots.
    #[error(
        "the database is in use by a store that is open, with another directory of snapshots: use that store, or drop it with its groups and \
         their readers first"
    )]
    DatabaseInUse,
    /// The directory of snapshots is that of a store which is open, in this process or another one.
    #[error(
        "{} is in use by a store that is open, here or in another process: use that one, or drop it with its groups and their readers first",
        path.display()
    )]
    DirectoryInUse {
        /// The directory.
        path: PathBuf,
    },
    /// The group was never part of a cluster, so there is nothing to go on with.
    #[error(
        "Raft group {group} was never started here: there is no state to begin a cluster with. Use `Raft::initialize`"
    )]
    NeverStarted {
        /// The number of the group.
        group: u64,
    },
    /// The machine asks for a keyspace that cannot be replicated.
    #[error("keyspace {keyspace:?} cannot be replicated: {reason}")]
    BadKeyspace {
        /// Its name, as the machine has it.
        keyspace: String,
        /// Why.
        reason: &'static str,
    },
    /// Reading or writing a snapshot file failed.
    #[error("{operation} {}: {source}", path.display())]
    File {
        /// What was done.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
    /// A snapshot file has damage. The state is as it was.
    #[error(
        "snapshot {} is damaged at byte {offset}: {what}: expected {expected}, found {found}. Start the node again: the leader sends it again. \
         If it is damaged again, it is so on the leader: let that make another one first (`Raft::trigger().snapshot()`; `POST /snapshot` of sapwood-node)",
        path.display()
    )]
    Snapshot {
        /// The file.
        path: PathBuf,
        /// Where, in bytes from its beginning.
        offset: u64,
        /// What was read there.
        what: &'static str,
        /// What should be there.
        expected: String,
        /// What is.
        found: String,
    },
    /// A task of the runtime was cancelled or panicked.
    #[error("a blocking task of the runtime did not end: {0}")]
    Task(Arc<str>),
}

impl Error {
    pub(crate) fn file(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { operation, path, source: Arc::new(source) }
    }

    /// The error as openraft has it.
    pub(crate) fn of<N: NodeId>(self, subject: ErrorSubject<N>, verb: ErrorVerb) -> StorageError<N> {
        StorageIOError::new(subject, verb, AnyError::new(&self)).into()
    }
}

/// Runs `f`, which waits for the device, on a thread for such work.
pub(crate) async fn blocking<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(f).await {
        Ok(result) => result,
        Err(error) => Err(Error::Task(error.to_string().into())),
    }
}
