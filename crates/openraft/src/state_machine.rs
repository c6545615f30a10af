//! The state of a group: openraft's state machine over a set of keyspaces.
//!
//! ```text
//! apply     commands ──▶ transaction: what they write, last applied id, membership ──▶ one batch of the database's log
//! build     live snapshot of the database ──▶ file ──sync of the state──▶ renamed ──▶ openraft purges the log
//! install   file ──ingest──▶ set n + 1 ──one durable record──▶ the current set ──▶ set n is dropped
//! ```
//! Invariants:
//! 1. What a command writes and that it was applied are in one batch.
//! 2. The state is not synced for each command: what a power failure takes of it is applied again from the log, which is
//!    purged only up to a snapshot, and a snapshot has its name only after the state was synced.
//! 3. The record [`Kind::Set`] says which set is current. Others are of installations that did not end, or ended: they are dropped.
//! 4. A snapshot file gets its name, and is removed, by whoever holds [`State::snapshot`].
//! 5. Readers hold the current set while they read, and an installation waits for them before it drops it.

mod build;
mod install;
mod reader;

pub use build::SnapshotBuilder;
pub use reader::{StateReader, View};

use crate::error::{Error, Result, blocking};
use crate::log::Log;
use crate::machine::{Apply, Machine};
use crate::record::Kind;
use crate::snapshot_file::{Reader, SnapshotFile, SnapshotKey};
use crate::store::Lease;
use openraft::storage::RaftStateMachine;
use openraft::{
    Entry, EntryPayload, ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftTypeConfig, Snapshot,
    SnapshotMeta, StorageError, StoredMembership,
};
use parking_lot::{Mutex, RwLock};
use sapwood::{Durability, Keyspace, KeyspaceOptions, Transaction};
use std::path::PathBuf;
use std::sync::Arc;

/// So many commands at most become visible together.
const TOGETHER: usize = 256;

/// The state of a group: openraft's [`RaftStateMachine`]. Made by [`Store::group`](crate::Store::group).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use openraft::storage::RaftStateMachine;
/// use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId};
/// use sapwood_openraft::{KvAnswer, KvCommand, KvConfig, KvMachine, Store};
///
/// let db = sapwood::Database::open(dir.path().join("node.db"))?;
/// let store = Store::open(&db, dir.path().join("snapshots"))?;
/// let (_log, mut machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let log_id = LogId::new(CommittedLeaderId::new(1, 1), 1);
/// let put = EntryPayload::Normal(KvCommand::put("fram", "1892"));
/// assert_eq!(machine.apply([Entry { log_id, payload: put }]).await?, [KvAnswer::Done { version: 1 }]);
/// assert_eq!(machine.applied_state().await?.0, Some(log_id));
/// # Ok::<_, openraft::StorageError<u64>>(()) })?;
/// # Ok(()) }
/// ```
pub struct StateMachine<C: RaftTypeConfig, M> {
    state: Arc<State<C>>,
    machine: Arc<M>,
}

/// What is known of a state, beside its records.
pub(crate) struct State<C: RaftTypeConfig> {
    lease: Arc<Lease>,
    /// Waits for the state where it was purged beyond it.
    log: Arc<Log<C>>,
    /// What snapshot files are encrypted with.
    key: Option<SnapshotKey>,
    /// The keyspaces that the machine has asked for.
    keyspaces: Vec<(String, KeyspaceOptions)>,
    current: RwLock<Current>,
    applied: Mutex<Applied<C>>,
    /// What is shown to openraft. Locked by a builder from the name of its file on, by an installation as long as it runs.
    snapshot: Mutex<Option<Finished<C>>>,
}

/// The current set.
struct Current {
    set: u64,
    keyspaces: Arc<[Keyspace]>,
}

/// What was applied last, and the membership then.
pub(crate) struct Applied<C: RaftTypeConfig> {
    last: Option<LogId<C::NodeId>>,
    membership: StoredMembership<C::NodeId, C::Node>,
}

impl<C: RaftTypeConfig> Clone for Applied<C> {
    fn clone(&self) -> Self {
        Self { last: self.last.clone(), membership: self.membership.clone() }
    }
}

/// A snapshot and its file.
type Finished<C> = (SnapshotMeta<<C as RaftTypeConfig>::NodeId, <C as RaftTypeConfig>::Node>, PathBuf);

/// The header of a snapshot file: openraft's meta, and the names of the keyspaces, in the order of their numbers.
type Header<C> = (SnapshotMeta<<C as RaftTypeConfig>::NodeId, <C as RaftTypeConfig>::Node>, Vec<String>);

impl<C, M> StateMachine<C, M>
where
    C: RaftTypeConfig<D = M::Command, R = M::Answer, Entry = Entry<C>, SnapshotData = SnapshotFile>,
    M: Machine,
{
    pub(crate) fn open(log: Arc<Log<C>>, machine: M) -> Result<Self> {
        let state = Arc::new(State::open(log, machine.keyspaces())?);
        Ok(Self { state, machine: Arc::new(machine) })
    }

    /// Reads the state while it changes, from any number of threads.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # use sapwood_openraft::{KvConfig, KvMachine, Store};
    /// # let db = sapwood::Database::open(dir.path().join("node.db"))?;
    /// # let store = Store::open(&db, dir.path().join("snapshots"))?;
    /// let (log, machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
    /// let reader = machine.reader();
    /// // let raft = openraft::Raft::new(id, config, network, log, machine).await?;
    /// assert!(reader.read(|keyspaces| keyspaces[0].get("fram"))?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn reader(&self) -> StateReader<C> {
        StateReader::new(Arc::clone(&self.state))
    }
}

impl<C: RaftTypeConfig> State<C> {
    fn open(log: Arc<Log<C>>, keyspaces: Vec<(String, KeyspaceOptions)>) -> Result<Self> {
        let lease = Arc::clone(&log.lease);
        for (name, options) in &keyspaces {
            let bad = |reason| Error::BadKeyspace { keyspace: name.clone(), reason };
            if options.is_expiring() {
                return Err(bad("its records expire, which each node would see at another time"));
            }
            if keyspaces.iter().filter(|(other, _)| other == name).count() > 1 {
                return Err(bad("the machine asks for it twice"));
            }
        }
        let meta = &lease.shared.meta;
        let set: Option<u64> = lease.read(meta, Kind::Set)?;
        lease.drop_sets(|found| Some(found) != set)?;
        let set = match set {
            Some(set) => set,
            None => {
                let mut batch = lease.shared.db.batch();
                batch.insert(meta, Kind::Set.key(lease.group), Kind::Set.encode(&0u64)?);
                batch.durability(Durability::Immediate).commit()?;
                0
            }
        };
        let last = lease.read(meta, Kind::Applied)?;
        let membership = lease.read(meta, Kind::Membership)?.unwrap_or_default();
        let current = Current { set, keyspaces: create(&lease, &keyspaces, set)? };
        let key = snapshot_key(&lease)?;
        let snapshot = newest_snapshot::<C>(&lease, key.as_ref(), &last)?;
        Ok(Self {
            lease,
            log,
            key,
            keyspaces,
            current: RwLock::new(current),
            applied: Mutex::new(Applied { last, membership }),
            snapshot: Mutex::new(snapshot),
        })
    }

    /// The current snapshot becomes `path`, unless there is a newer one. Returns whether it did.
    fn show_snapshot(
        &self,
        snapshot: &mut Option<Finished<C>>,
        meta: SnapshotMeta<C::NodeId, C::Node>,
        path: PathBuf,
    ) -> Result<bool> {
        let Lease { shared, group } = &*self.lease;
        if snapshot.as_ref().is_some_and(|(shown, _)| shown.last_log_id > meta.last_log_id) {
            return Ok(false);
        }
        // Handles that are being sent stay readable: they are open.
        SnapshotFile::remove_others(&shared.directory, *group, &path)?;
        *snapshot = Some((meta, path));
        Ok(true)
    }
}

/// Finds or creates the keyspaces of a set.
fn create(lease: &Lease, keyspaces: &[(String, KeyspaceOptions)], set: u64) -> Result<Arc<[Keyspace]>> {
    let create = |(name, options): &(String, KeyspaceOptions)| {
        Ok(lease.shared.db.keyspace_with(&lease.keyspace_name(set, name), options.clone())?)
    };
    keyspaces.iter().map(create).collect()
}

/// The key of a group's snapshot files, if its database is encrypted. It is there before anything is encrypted with it.
fn snapshot_key(lease: &Lease) -> Result<Option<SnapshotKey>> {
    let Lease { shared, group } = lease;
    if !shared.db.is_encrypted() {
        return Ok(None);
    }
    if let Some(bytes) = lease.read(&shared.meta, Kind::SnapshotKey)? {
        return Ok(Some(SnapshotKey::new(bytes)));
    }
    let key = SnapshotKey::random()?;
    let mut batch = shared.db.batch();
    batch.insert(&shared.meta, Kind::SnapshotKey.key(*group), Kind::SnapshotKey.encode(key.bytes())?);
    batch.durability(Durability::Immediate).commit()?;
    Ok(Some(key))
}

/// The newest snapshot that the state has come to, and removes the others. One that ends before what was purged is of no use: what
/// comes after it is gone. Without one openraft builds one.
fn newest_snapshot<C: RaftTypeConfig>(
    lease: &Lease,
    key: Option<&SnapshotKey>,
    applied: &Option<LogId<C::NodeId>>,
) -> Result<Option<Finished<C>>> {
    let Lease { shared, group } = lease;
    let purged: Option<LogId<C::NodeId>> = lease.read(&shared.log_meta, Kind::Purged)?;
    let mut newest: Option<Finished<C>> = None;
    for path in SnapshotFile::finished(&shared.directory, *group)? {
        match Reader::open::<Header<C>>(&path, key, *group) {
            Ok((_, (meta, _))) if meta.last_log_id <= *applied && meta.last_log_id >= purged => {
                if newest.as_ref().is_none_or(|(newest, _)| newest.last_log_id < meta.last_log_id) {
                    newest = Some((meta, path));
                }
            }
            Ok((_, (meta, _))) if meta.last_log_id < purged => {
                tracing::warn!("{} ends before what was purged of the log, and is removed", path.display())
            }
            Ok(_) => {
                tracing::warn!("{} is of a later state than the database, and is removed", path.display())
            }
            Err(error) => tracing::warn!("{error}; it is removed"),
        }
    }
    let kept = newest.as_ref().map(|(_, path)| path.clone()).unwrap_or_default();
    SnapshotFile::remove_others(&shared.directory, *group, &kept)?;
    Ok(newest)
}

impl<C, M> StateMachine<C, M>
where
    C: RaftTypeConfig<D = M::Command, R = M::Answer, Entry = Entry<C>, SnapshotData = SnapshotFile>,
    M: Machine,
{
    /// Applies entries in as few batches as their size allows.
    fn apply_all(state: &State<C>, machine: &M, entries: Vec<C::Entry>) -> Result<Vec<C::R>> {
        let keyspaces = Arc::clone(&state.current.read().keyspaces);
        let mut answers = Vec::with_capacity(entries.len());
        let steps = entries.into_iter().map(Step::new).collect::<Result<Vec<Step<C>>>>()?;
        let mut left = steps.as_slice();
        while !left.is_empty() {
            let mut answered = None;
            // Nobody else writes what it reads. But one that takes long conflicts if others have written more than the history of commits
            // keeps, in whatever keyspace. Then the same entries are applied again, after some tries while others wait.
            let done = state.lease.shared.db.transact(|transaction| {
                transaction.durability(Durability::Buffered);
                let applied = state.applied.lock().clone();
                let mut together = Together { state, keyspaces: &keyspaces, applied, answered: None };
                let answers = together.apply(machine, transaction, left);
                answered = together.answered;
                Ok((together.applied, answers?))
            });
            let (applied, more) = done.map_err(|refusal| match answered {
                Some(index) => {
                    let refusal = Arc::new(refusal);
                    Error::AnsweredRefusal { group: state.lease.group, index, refusal }
                }
                None => refusal.into(),
            })?;
            left = &left[more.len()..];
            answers.extend(more);
            *state.applied.lock() = applied;
        }
        Ok(answers)
    }
}

type Members<C> = StoredMembership<<C as RaftTypeConfig>::NodeId, <C as RaftTypeConfig>::Node>;

/// An entry, and what the records are that say that it was applied.
struct Step<C: RaftTypeConfig> {
    entry: Entry<C>,
    applied: Vec<u8>,
    membership: Option<(Members<C>, Vec<u8>)>,
}

impl<C: RaftTypeConfig> Step<C> {
    fn new(entry: Entry<C>) -> Result<Self> {
        let applied = Kind::Applied.encode(&entry.log_id)?;
        let membership = match &entry.payload {
            EntryPayload::Membership(membership) => {
                let membership = StoredMembership::new(Some(entry.log_id.clone()), membership.clone());
                let value = Kind::Membership.encode(&membership)?;
                Some((membership, value))
            }
            EntryPayload::Blank | EntryPayload::Normal(_) => None,
        };
        Ok(Self { entry, applied, membership })
    }
}

/// Commands that become visible together.
struct Together<'s, C: RaftTypeConfig> {
    state: &'s State<C>,
    keyspaces: &'s [Keyspace],
    applied: Applied<C>,
    /// The index of the command whose machine has answered it though a write was refused.
    answered: Option<u64>,
}

impl<C: RaftTypeConfig<Entry = Entry<C>>> Together<'_, C> {
    /// Applies as many entries as a transaction takes, or one. Returns their answers. Which entries share a transaction differs from node to node, so nothing may
    /// follow from it: whatever error one has beside others, it is applied alone then, and has there what it has on every node.
    fn apply<M>(
        &mut self,
        machine: &M,
        transaction: &mut Transaction,
        steps: &[Step<C>],
    ) -> sapwood::Result<Vec<M::Answer>>
    where
        M: Machine,
        C: RaftTypeConfig<D = M::Command>,
    {
        let mut answers = Vec::new();
        for step in steps.iter().take(TOGETHER) {
            // If this one fails beside those before it, it is for the next transaction. Alone it needs no savepoint, whose memory counts.
            let mark = (!answers.is_empty()).then(|| transaction.savepoint());
            match (self.apply_one(machine, transaction, step), mark) {
                (Err(_), Some(mark)) => {
                    self.answered = None;
                    transaction.roll_back_to(mark)?;
                    break;
                }
                (answer, mark) => {
                    answers.push(answer?);
                    mark.map(|mark| transaction.release(mark)).transpose()?;
                }
            }
        }
        Ok(answers)
    }

    fn apply_one<M>(
        &mut self,
        machine: &M,
        transaction: &mut Transaction,
        step: &Step<C>,
    ) -> sapwood::Result<M::Answer>
    where
        M: Machine,
        C: RaftTypeConfig<D = M::Command>,
    {
        let Lease { shared, group } = &*self.state.lease;
        let answer = match &step.entry.payload {
            EntryPayload::Normal(command) => {
                let index = step.entry.log_id.index;
                let mut at = Apply { transaction: &mut *transaction, keyspaces: self.keyspaces, index };
                _ = at.transaction.take_refused();
                let answer = machine.apply(&mut at, command.clone())?;
                // By the limits of this node, beside what happens to share the transaction.
                if let Some(refusal) = at.transaction.take_refused() {
                    self.answered = Some(index);
                    return Err(refusal);
                }
                answer
            }
            EntryPayload::Blank | EntryPayload::Membership(_) => machine.without_command(),
        };
        if let Some((_, value)) = &step.membership {
            transaction.insert(&shared.meta, Kind::Membership.key(*group), value)?;
        }
        transaction.insert(&shared.meta, Kind::Applied.key(*group), &step.applied)?;
        if let Some((membership, _)) = &step.membership {
            self.applied.membership = membership.clone();
        }
        self.applied.last = Some(step.entry.log_id.clone());
        Ok(answer)
    }
}

impl<C, M> RaftStateMachine<C> for StateMachine<C, M>
where
    C: RaftTypeConfig<D = M::Command, R = M::Answer, Entry = Entry<C>, SnapshotData = SnapshotFile>,
    M: Machine,
{
    type SnapshotBuilder = SnapshotBuilder<C>;

    async fn applied_state(
        &mut self,
    ) -> std::result::Result<
        (Option<LogId<C::NodeId>>, StoredMembership<C::NodeId, C::Node>),
        StorageError<C::NodeId>,
    > {
        let Applied { last, membership } = self.state.applied.lock().clone();
        Ok((last, membership))
    }

    async fn apply<I>(&mut self, entries: I) -> std::result::Result<Vec<C::R>, StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().collect();
        let Some(last) = entries.last().map(|entry| entry.log_id.clone()) else { return Ok(Vec::new()) };
        let (state, machine) = (Arc::clone(&self.state), Arc::clone(&self.machine));
        let applied = blocking(move || Self::apply_all(&state, &machine, entries)).await;
        applied.map_err(|error| error.of(ErrorSubject::Apply(last), ErrorVerb::Write))
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        SnapshotBuilder::new(Arc::clone(&self.state))
    }

    async fn begin_receiving_snapshot(
        &mut self,
    ) -> std::result::Result<Box<SnapshotFile>, StorageError<C::NodeId>> {
        let state = Arc::clone(&self.state);
        let file = blocking(move || {
            let Lease { shared, group } = &*state.lease;
            SnapshotFile::receive(&shared.directory, *group, state.key.as_ref())
        });
        let file = file.await;
        file.map(Box::new).map_err(|error| error.of(ErrorSubject::Snapshot(None), ErrorVerb::Write))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<C::NodeId, C::Node>,
        mut snapshot: Box<SnapshotFile>,
    ) -> std::result::Result<(), StorageError<C::NodeId>> {
        let (state, received) = (Arc::clone(&self.state), meta.clone());
        let installed = async {
            snapshot.flush().await?;
            blocking(move || state.install(received, *snapshot)).await
        };
        let subject = || ErrorSubject::Snapshot(Some(meta.signature()));
        installed.await.map_err(|error| error.of(subject(), ErrorVerb::Write))
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> std::result::Result<Option<Snapshot<C>>, StorageError<C::NodeId>> {
        let state = Arc::clone(&self.state);
        let snapshot = blocking(move || {
            let snapshot = state.snapshot.lock();
            let Some((meta, path)) = &*snapshot else { return Ok(None) };
            let snapshot = Box::new(SnapshotFile::open(path, state.key.as_ref())?);
            Ok(Some(Snapshot { meta: meta.clone(), snapshot }))
        });
        snapshot.await.map_err(|error| error.of(ErrorSubject::Snapshot(None), ErrorVerb::Read))
    }
}

impl<C: RaftTypeConfig, M> Drop for StateMachine<C, M> {
    fn drop(&mut self) {
        // openraft drops it when it has failed; what waits for its state would wait for ever.
        self.state.log.state_is_gone();
    }
}

impl<C: RaftTypeConfig, M> std::fmt::Debug for StateMachine<C, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.fmt(f)
    }
}

impl<C: RaftTypeConfig> std::fmt::Debug for State<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (set, applied) = (self.current.read().set, self.applied.lock().last.clone());
        write!(f, "the state of group {}: set {set}, applied {applied:?}", self.lease.group)
    }
}
