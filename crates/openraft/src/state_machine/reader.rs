//! Reading a state beside openraft.

use super::State;
use crate::error::Result;
use crate::record::Kind;
use openraft::{LogId, RaftTypeConfig, StoredMembership};
use sapwood::{Keyspace, Snapshot};
use std::sync::Arc;

/// Reads the state of a group. Made by [`StateMachine::reader`](crate::StateMachine::reader).
///
/// What it reads is the state of this node, which may be behind. For a linearizable read ask openraft first:
/// `raft.ensure_linearizable().await?` on the leader confirms that it is the leader and waits until the node has applied what was
/// committed by then.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # use sapwood_openraft::{KvConfig, KvMachine, Store};
/// # let db = sapwood::Database::open(dir.path().join("node.db"))?;
/// # let store = Store::open(&db, dir.path().join("snapshots"))?;
/// let (log, machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
/// let reader = machine.reader();
/// let view = reader.view()?;
/// assert_eq!(view.applied(), None);
/// assert_eq!(view.snapshot().iter(&view.keyspaces()[0]).count(), 0);
/// # Ok(()) }
/// ```
pub struct StateReader<C: RaftTypeConfig> {
    state: Arc<State<C>>,
}

impl<C: RaftTypeConfig> Clone for StateReader<C> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state) }
    }
}

impl<C: RaftTypeConfig> StateReader<C> {
    pub(super) fn new(state: Arc<State<C>>) -> Self {
        Self { state }
    }

    /// Calls `f` with the group's keyspaces, in the order in which the machine has them. They are current until `f` returns: the
    /// installation of a snapshot waits for it, so `f` should be short.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # use sapwood_openraft::{KvConfig, KvMachine, Store};
    /// # let db = sapwood::Database::open(dir.path().join("node.db"))?;
    /// # let store = Store::open(&db, dir.path().join("snapshots"))?;
    /// # let (log, machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
    /// let found = machine.reader().read(|keyspaces| keyspaces[0].get("fram"))?;
    /// # Ok(()) }
    /// ```
    pub fn read<R>(&self, f: impl FnOnce(&[Keyspace]) -> R) -> R {
        f(&self.state.current.read().keyspaces)
    }

    /// The state as of now, however long it is read. It holds what a [`Snapshot`] of the database holds.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # use sapwood_openraft::{KvConfig, KvMachine, Store};
    /// # let db = sapwood::Database::open(dir.path().join("node.db"))?;
    /// # let store = Store::open(&db, dir.path().join("snapshots"))?;
    /// # let (log, machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
    /// let view = machine.reader().view()?;
    /// for item in view.snapshot().range(&view.keyspaces()[0], "a".."z") {
    ///     let (key, value) = item?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Database`](crate::Error::Database); [`Error::Record`](crate::Error::Record).
    pub fn view(&self) -> Result<View<C>> {
        View::of(&self.state)
    }
}

impl<C: RaftTypeConfig> std::fmt::Debug for StateReader<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StateReader of {:?}", self.state)
    }
}

/// The state of a group as of one moment. Made by [`StateReader::view`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # use sapwood_openraft::{KvConfig, KvMachine, Store};
/// # let db = sapwood::Database::open(dir.path().join("node.db"))?;
/// # let store = Store::open(&db, dir.path().join("snapshots"))?;
/// # let (log, machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
/// let view = machine.reader().view()?;
/// println!("{} records after {:?}", view.snapshot().iter(&view.keyspaces()[0]).count(), view.applied());
/// # Ok(()) }
/// ```
pub struct View<C: RaftTypeConfig> {
    snapshot: Snapshot,
    keyspaces: Arc<[Keyspace]>,
    applied: Option<LogId<C::NodeId>>,
    membership: StoredMembership<C::NodeId, C::Node>,
}

impl<C: RaftTypeConfig> View<C> {
    pub(super) fn of(state: &State<C>) -> Result<Self> {
        let (shared, group) = (&state.lease.shared, state.lease.group);
        let current = state.current.read();
        let (snapshot, keyspaces) = (shared.db.snapshot(), Arc::clone(&current.keyspaces));
        drop(current);
        let record = |kind: Kind| snapshot.get(&shared.meta, kind.key(group));
        let applied = record(Kind::Applied)?.map(|value| Kind::Applied.decode(group, &value)).transpose()?;
        let membership = record(Kind::Membership)?;
        let membership = membership.map(|value| Kind::Membership.decode(group, &value)).transpose()?;
        Ok(Self { snapshot, keyspaces, applied, membership: membership.unwrap_or_default() })
    }

    /// The snapshot of the database.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The group's keyspaces, in the order in which the machine has them; to be read by the snapshot.
    pub fn keyspaces(&self) -> &[Keyspace] {
        &self.keyspaces
    }

    /// The last entry that this state has.
    pub fn applied(&self) -> Option<&LogId<C::NodeId>> {
        self.applied.as_ref()
    }

    /// The membership of this state.
    pub fn membership(&self) -> &StoredMembership<C::NodeId, C::Node> {
        &self.membership
    }
}

impl<C: RaftTypeConfig> std::fmt::Debug for View<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "View(applied {:?})", self.applied)
    }
}
