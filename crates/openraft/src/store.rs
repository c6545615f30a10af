//! What all Raft groups of a process share: the databases, the keyspaces of logs, the directory of snapshots.
//!
//! ```text
//! raft.log    group, index → entry          all groups in one tree: entries live short, most never leave the queue
//! raft.meta   group, kind → vote, committed, purged, applied, membership, number of the current set
//! raft.<group>.<set>.<name>                 the keyspaces of a group's machine: a set of them is replaced as a whole
//! ```
//! Groups are prefixes of one log keyspace: a thousand logs cost one tree, and one flush writes all of them in one order. Their
//! machines have keyspaces of their own, because an installed snapshot is ingested, which needs an empty tree, and because
//! a keyspace is dropped with one edit.
//!
//! Invariants:
//! 1. A group is open once: it is so in a store, and a database, which one process has open, and a directory of snapshots are of one store at a time.
//! 2. Snapshot files that are in the directory when it is opened are whole, or removed then.

use crate::error::{Error, Result};
use crate::log::LogStore;
use crate::machine::Machine;
use crate::record::{Kind, entry_key};
use crate::snapshot_file::{SnapshotFile, make_directory};
use crate::state_machine::StateMachine;
use openraft::{Entry, RaftTypeConfig};
use parking_lot::Mutex;
use sapwood::{Batch, Database, Durability, Keyspace};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// The stores of this process, by their directories.
static STORES: Mutex<BTreeMap<PathBuf, Weak<Shared>>> = Mutex::new(BTreeMap::new());

/// The Raft groups of a process, in one database or two.
///
/// One sync makes the appended entries, votes and commits of all groups durable that wait for it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use sapwood_openraft::{KvConfig, KvMachine, Store};
///
/// let db = sapwood::Database::open(dir.path().join("node.db"))?;
/// let store = Store::open(&db, dir.path().join("snapshots"))?;
/// let (log, machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
/// // openraft::Raft::new(id, config, network, log, machine).await?
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    /// Whoever opens the directory in another process is refused as long as this is open. It is closed before the databases are, which may take a while.
    _lock: Option<File>,
    /// Of logs, votes and what is committed.
    pub log_db: Database,
    pub log: Keyspace,
    pub log_meta: Keyspace,
    /// Of machines.
    pub db: Database,
    pub meta: Keyspace,
    /// Whether these are two databases, whose syncs do not imply one another.
    pub two: bool,
    pub directory: PathBuf,
    open: Mutex<BTreeSet<u64>>,
}

/// Keeps a group open in this process.
pub(crate) struct Lease {
    pub shared: Arc<Shared>,
    pub group: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.open.lock().remove(&self.group);
    }
}

impl Shared {
    /// Whether a database is one of those.
    fn has(&self, db: &Database) -> bool {
        let snapshot = db.snapshot();
        // Nobody but a database itself knows which one it is: it refuses what belongs to another.
        let is_own = |keyspace| !matches!(snapshot.get(keyspace, [0]), Err(sapwood::Error::Foreign { .. }));
        is_own(&self.log_meta) || is_own(&self.meta)
    }
}

/// Keeps other processes from a directory of snapshots: they would remove what this one is writing, and take its files for theirs.
fn lock(directory: &Path) -> Result<Option<File>> {
    // The directory itself: nothing is in it but snapshots.
    let opened = File::open(directory);
    match opened.map_err(TryLockError::Error).and_then(|file| file.try_lock().map(|()| file)) {
        Ok(file) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(Error::DirectoryInUse { path: directory.to_owned() }),
        // There are file systems without locks. The database has a lock of its own.
        Err(TryLockError::Error(error)) => {
            tracing::warn!("{} cannot be locked: {error}", directory.display());
            Ok(None)
        }
    }
}

impl Store {
    /// Logs and machines in one database. Snapshots are files in `directory`, which is created if it is not there; it needs space for
    /// one snapshot of each group, another one while it is built, another one while it is received, and one for each older one that is still sent. Snapshot files
    /// are encrypted if the database of the machines is, with a key that it has. What is sent to other nodes is not: that is for TLS.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let db = sapwood::Database::open(dir.path().join("node.db"))?;
    /// let store = sapwood_openraft::Store::open(&db, dir.path().join("snapshots"))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Database`]; [`Error::File`] if the directory cannot be used; [`Error::DirectoryInUse`]; [`Error::DatabaseInUse`] if another
    /// store has one of the databases, be it for logs or for machines.
    pub fn open(db: &Database, directory: impl AsRef<Path>) -> Result<Self> {
        Self::open_in(db, db, false, directory.as_ref())
    }

    /// Logs in one database, machines in another: on two devices, for instance. Costs a sync of its own for each purge and snapshot,
    /// since a sync of one says nothing of the other.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let logs = sapwood::Database::open(dir.path().join("logs.db"))?;
    /// let states = sapwood::Database::open(dir.path().join("states.db"))?;
    /// let store = sapwood_openraft::Store::open_two(&logs, &states, dir.path().join("snapshots"))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_two(logs: &Database, states: &Database, directory: impl AsRef<Path>) -> Result<Self> {
        Self::open_in(logs, states, true, directory.as_ref())
    }

    fn open_in(logs: &Database, states: &Database, two: bool, directory: &Path) -> Result<Self> {
        make_directory(directory)?;
        // The program may go to another working directory.
        let directory = std::fs::canonicalize(directory).map_err(Error::file("finding", directory))?;
        let mut stores = STORES.lock();
        stores.retain(|_, store| store.strong_count() > 0);
        if stores.contains_key(&directory) {
            return Err(Error::DirectoryInUse { path: directory });
        }
        if stores.values().filter_map(Weak::upgrade).any(|other| other.has(logs) || other.has(states)) {
            return Err(Error::DatabaseInUse);
        }
        let lock = lock(&directory)?;
        SnapshotFile::remove_unfinished(&directory)?;
        let shared = Shared {
            log: logs.keyspace("raft.log")?,
            log_meta: logs.keyspace("raft.meta")?,
            log_db: logs.clone(),
            meta: states.keyspace("raft.meta")?,
            db: states.clone(),
            two,
            directory: directory.clone(),
            _lock: lock,
            open: Mutex::default(),
        };
        let shared = Arc::new(shared);
        stores.insert(directory, Arc::downgrade(&shared));
        Ok(Self { shared })
    }

    /// Opens a group, which is created if it is not there: its log and its state, for `openraft::Raft::new`. [`LogStore::of_node`] keeps
    /// them those of one node. The number names the group
    /// in this store; it is for the operator to choose, and must be the same on all nodes only if one finds that easier.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # use sapwood_openraft::{KvConfig, KvMachine, Store};
    /// # let db = sapwood::Database::open(dir.path().join("node.db"))?;
    /// let store = Store::open(&db, dir.path().join("snapshots"))?;
    /// let orders = store.group::<KvConfig, _>(1, KvMachine::new())?;
    /// let customers = store.group::<KvConfig, _>(2, KvMachine::new())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::GroupInUse`]; [`Error::Record`] if its records are damaged; [`Error::StateBehindLog`]; [`Error::BadKeyspace`]; [`Error::Database`]; [`Error::File`].
    pub fn group<C, M>(&self, group: u64, machine: M) -> Result<(LogStore<C>, StateMachine<C, M>)>
    where
        C: RaftTypeConfig<D = M::Command, R = M::Answer, Entry = Entry<C>, SnapshotData = SnapshotFile>,
        C::D: Serialize + DeserializeOwned,
        M: Machine,
    {
        let log = LogStore::open(Arc::new(self.lease(group)?))?;
        let machine = StateMachine::open(Arc::clone(log.log()), machine)?;
        Ok((log, machine))
    }

    /// Removes what the store has of a group: log, vote, state, snapshots. Returns once that is durable. The group must not be a member
    /// of anything any more: a node that forgets its vote can elect two leaders. After a crash, repeat it.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # use sapwood_openraft::{KvConfig, KvMachine, Store};
    /// # let db = sapwood::Database::open(dir.path().join("node.db"))?;
    /// let store = Store::open(&db, dir.path().join("snapshots"))?;
    /// drop(store.group::<KvConfig, _>(1, KvMachine::new())?);
    /// assert_eq!(db.keyspaces().len(), 3);
    /// store.remove_group(1)?;
    /// assert_eq!(db.keyspaces(), ["raft.log", "raft.meta"]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::GroupInUse`]; [`Error::Database`]; [`Error::File`].
    pub fn remove_group(&self, group: u64) -> Result<()> {
        let lease = self.lease(group)?;
        let shared = &lease.shared;
        if shared.two {
            let mut batch = shared.db.batch();
            batch.remove_prefix(&shared.meta, group.to_be_bytes());
            batch.durability(Durability::Immediate).commit()?;
        }
        let mut batch = shared.log_db.batch();
        batch.remove_prefix(&shared.log, group.to_be_bytes());
        batch.remove_prefix(&shared.log_meta, group.to_be_bytes());
        batch.durability(Durability::Immediate).commit()?;
        lease.drop_sets(|_| true)?;
        SnapshotFile::remove_all(&shared.directory, group)
    }

    /// Makes the group a cluster of one node, this one, with the state and the log that it has here; to be done before the group is opened.
    /// For a restored backup, and for the last resort when most nodes are lost for good: of those that are left on the one whose log is the newest. That is the one
    /// whose last entry's `LogId` is the greatest, as openraft compares them: by the term, then by the `node_id` of its leader, since a term may have two, then by the index. A longer log may lack what was acknowledged.
    ///
    /// It appends a membership as if a leader had, in a new term. All entries of the log are kept and will be committed, also those of which
    /// it is not known whether they were: a majority that is lost may have acknowledged them. What only the lost nodes had is lost. No node of the
    /// old cluster may run again: it could elect another leader.
    /// Versions that clients have of the old cluster must not be conditions in the new one: it gives those that are lost to other writes.
    ///
    /// After an error of the database, or a crash, the group is what it was, or that cluster.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// use openraft::BasicNode;
    /// use sapwood_openraft::{Error, KvConfig, Store};
    ///
    /// let db = sapwood::Database::open(dir.path().join("restored.db"))?;
    /// let store = Store::open(&db, dir.path().join("snapshots"))?;
    /// let restarted = store.restart_group::<KvConfig>(1, 17, BasicNode::new("10.0.0.4:7000"));
    /// assert!(matches!(restarted, Err(Error::NeverStarted { group: 1 }))); // this one is empty
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NeverStarted`]; [`Error::StateBehindLog`]; [`Error::GroupInUse`]; [`Error::Record`]; [`Error::Database`].
    pub fn restart_group<C>(&self, group: u64, id: C::NodeId, node: C::Node) -> Result<()>
    where
        C: RaftTypeConfig<Entry = Entry<C>>,
        C::D: Serialize + DeserializeOwned,
    {
        self.restart_group_with::<C>(group, id, node, |_| ())
    }

    /// As [`restart_group`](Self::restart_group), with changes of its caller in the same commit: whatever fails, both are there afterwards or neither is.
    /// They are changes to the database of the logs. It is how a node keeps what it knows of its cluster, such as a name by which it refuses the nodes of
    /// others: with a new name and the old members it would be refused by those, and with the old name it would take part in the old cluster.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// use openraft::storage::RaftLogStorageExt;
    /// use openraft::{BasicNode, CommittedLeaderId, Entry, EntryPayload, LogId};
    /// use sapwood_openraft::{Error, KvConfig, KvMachine, Store};
    ///
    /// let db = sapwood::Database::open(dir.path().join("restored.db"))?;
    /// let names = db.keyspace("names")?;
    /// names.insert("cluster", "old")?;
    /// let store = Store::open(&db, dir.path().join("snapshots"))?;
    /// let restart = || {
    ///     let node = BasicNode::new("10.0.0.4:7000");
    ///     store.restart_group_with::<KvConfig>(1, 17, node, |batch| {
    ///         batch.insert(&names, "cluster", "new");
    ///     })
    /// };
    /// assert!(matches!(restart(), Err(Error::NeverStarted { group: 1 })));
    /// assert!(names.get("cluster")?.is_some_and(|name| name == "old"));
    ///
    /// let (mut log, machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
    /// let entry = Entry { log_id: LogId::new(CommittedLeaderId::new(1, 1), 0), payload: EntryPayload::Blank };
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// log.blocking_append([entry]).await?;
    /// # Ok::<_, openraft::StorageError<u64>>(()) })?;
    /// drop((log, machine));
    /// restart()?;
    /// assert!(names.get("cluster")?.is_some_and(|name| name == "new"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`restart_group`](Self::restart_group); [`Error::Database`] also if a change cannot be made, of a keyspace of another database for instance.
    pub fn restart_group_with<C>(
        &self,
        group: u64,
        id: C::NodeId,
        node: C::Node,
        also: impl FnOnce(&mut Batch),
    ) -> Result<()>
    where
        C: RaftTypeConfig<Entry = Entry<C>>,
        C::D: Serialize + DeserializeOwned,
    {
        let lease = Arc::new(self.lease(group)?);
        let applied = lease.read(&lease.shared.meta, Kind::Applied)?;
        LogStore::<C>::open(lease)?.force_membership(applied, id, node, also)
    }

    fn lease(&self, group: u64) -> Result<Lease> {
        if !self.shared.open.lock().insert(group) {
            return Err(Error::GroupInUse { group });
        }
        Ok(Lease { shared: Arc::clone(&self.shared), group })
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let open = self.shared.open.lock();
        write!(f, "Store(snapshots in {}, open groups {:?})", self.shared.directory.display(), open)
    }
}

impl Lease {
    pub fn entry_key(&self, index: u64) -> [u8; 16] {
        entry_key(self.group, index)
    }

    pub fn read<T: DeserializeOwned>(&self, keyspace: &Keyspace, kind: Kind) -> Result<Option<T>> {
        let value = keyspace.get(kind.key(self.group))?;
        value.map(|value| kind.decode(self.group, &value)).transpose()
    }

    /// The name of a keyspace of a set.
    pub fn keyspace_name(&self, set: u64, name: &str) -> String {
        format!("raft.{:016x}.{set}.{name}", self.group)
    }

    /// Drops the sets of keyspaces for which `is_dropped` says so.
    pub fn drop_sets(&self, is_dropped: impl Fn(u64) -> bool) -> Result<()> {
        let prefix = format!("raft.{:016x}.", self.group);
        for name in self.shared.db.keyspaces() {
            let set = name.strip_prefix(&prefix).and_then(|rest| rest.split('.').next()?.parse().ok());
            if set.is_some_and(&is_dropped) {
                self.shared.db.drop_keyspace(&name)?;
            }
        }
        Ok(())
    }
}
