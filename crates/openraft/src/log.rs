//! The log of a group, and its vote.
//!
//! ```text
//! append ──▶ commit_visible: readable ──▶ returns
//!                 └──▶ one sync for whatever waits in the database ──▶ callback
//! ```
//! Invariants:
//! 1. The callback of an append comes after a sync that covers its entries.
//! 2. Votes, truncations and purges are durable when they return, and so is what is committed (unless that was chosen otherwise).
//!    A purge beyond the state is durable once the state has come to it.
//! 3. Indexes are consecutive, from the one after the last purged entry. A batch has entries in order and the database's
//!    log loses only its end, so a crash within a long append leaves a beginning of it.
//! 4. A log that was opened has no entries behind the state that are of an earlier leader, and none before it that are of a later one: they conflict with it.
//! 5. What is purged is durable in the state: in one database because the log of the database has it in that order, in two because
//!    a purge syncs the state first. openraft purges also while the snapshot that has the entries is being installed: see [`purge`].

mod purge;

use crate::error::{Error, Result, blocking};
use crate::record::{self, Kind};
use crate::store::Lease;
use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{
    CommittedLeaderId, Entry, EntryPayload, ErrorSubject, ErrorVerb, LogId, Membership, OptionalSend,
    RaftLogId, RaftLogReader, RaftTypeConfig, StorageError, StoredMembership, Vote,
};
use parking_lot::Mutex;
use purge::Waiting;
use sapwood::{Batch, Durability, Pending};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};

/// An append is committed in batches of so many bytes at most: half of the least limit of a batch, which is 1 MiB. A longer entry is a
/// batch of its own.
const BATCH: usize = 512 << 10;
/// Entries are read in answers of so many bytes at most, or of one entry, where openraft permits less than it asked for. openraft gives a message of
/// entries one heartbeat of time (100 ms, say), and sends the same one again otherwise, without end. A network and then a disk of 10 MiB a second
/// take half of that for this one.
const READ: usize = 256 << 10;

/// The log of a group, its vote, and what is committed: openraft's [`RaftLogStorage`]. Made by [`Store::group`](crate::Store::group).
///
/// `append` returns once its entries can be read, and calls its callback once they are durable: the sync is shared with all groups
/// whose databases are the same.
///
/// An entry must fit into a value of the database (16 MiB with 256 MiB of memory or more, 960,000 bytes with 16 MiB or less, see `sapwood`'s
/// limits): a longer one stops the node, so whatever takes commands from clients must refuse them before. The node with the least memory decides.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
/// use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, RaftLogReader};
/// use sapwood_openraft::{KvCommand, KvConfig, KvMachine, Store};
///
/// let db = sapwood::Database::open(dir.path().join("node.db"))?;
/// let store = Store::open(&db, dir.path().join("snapshots"))?;
/// let (mut log, _machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let log_id = LogId::new(CommittedLeaderId::new(1, 1), 1);
/// let put = KvCommand::put("fram", "1892");
/// log.blocking_append([Entry { log_id, payload: EntryPayload::Normal(put) }]).await?;
/// assert_eq!(log.get_log_state().await?.last_log_id, Some(log_id));
/// assert_eq!(log.try_get_log_entries(..).await?.len(), 1);
/// # Ok::<_, openraft::StorageError<u64>>(()) })?;
/// # Ok(()) }
/// ```
pub struct LogStore<C: RaftTypeConfig> {
    log: Arc<Log<C>>,
    committed: Durability,
}

/// Reads a group's log while it is written. Made by openraft.
///
/// ```
/// fn is_a_reader<C: openraft::RaftTypeConfig>(_: impl openraft::RaftLogReader<C>) {}
/// fn of<C>(reader: sapwood_openraft::LogReader<C>)
/// where
///     C: openraft::RaftTypeConfig<Entry = openraft::Entry<C>>,
///     C::D: serde::Serialize + serde::de::DeserializeOwned,
/// {
///     is_a_reader(reader)
/// }
/// ```
pub struct LogReader<C: RaftTypeConfig> {
    log: Arc<Log<C>>,
}

pub(crate) struct Log<C: RaftTypeConfig> {
    pub lease: Arc<Lease>,
    ends: Mutex<Ends<C>>,
    /// A purge waits no longer, or will for ever.
    waited: Notify,
}

/// The ends of the log.
struct Ends<C: RaftTypeConfig> {
    purged: Option<LogId<C::NodeId>>,
    /// The last entry, or the last that was purged.
    last: Option<LogId<C::NodeId>>,
    /// A purge that is not on the disk yet.
    waiting: Option<Waiting<C>>,
    /// The state comes to nothing more.
    is_state_gone: bool,
}

impl<C: RaftTypeConfig> Ends<C> {
    /// Whether an entry may be the next one. An empty log begins anywhere.
    fn check(&self, group: u64, index: u64) -> Result<()> {
        let last = self.last.as_ref().map(|last| last.index);
        if last.is_some_and(|last| index != last + 1) {
            return Err(Error::Hole { group, last, index });
        }
        Ok(())
    }
}

impl<C> LogStore<C>
where
    C: RaftTypeConfig<Entry = Entry<C>>,
    C::D: Serialize + DeserializeOwned,
{
    pub(crate) fn open(lease: Arc<Lease>) -> Result<Self> {
        let purged: Option<LogId<C::NodeId>> = lease.read(&lease.shared.log_meta, Kind::Purged)?;
        let applied: Option<LogId<C::NodeId>> = lease.read(&lease.shared.meta, Kind::Applied)?;
        if let Some(purged) = purged.as_ref().filter(|purged| Some(*purged) > applied.as_ref()) {
            let (group, purged, applied) = (lease.group, purged.index, applied.map(|applied| applied.index));
            return Err(Error::StateBehindLog { group, purged, applied });
        }
        let ends = Ends { purged: purged.clone(), last: None, waiting: None, is_state_gone: false };
        let log = Log::<C> { lease, ends: Mutex::new(ends), waited: Notify::new() };
        let entries = log.lease.entry_key(0)..=log.lease.entry_key(u64::MAX);
        let last = log.lease.shared.log.range(entries).next_back().transpose()?;
        let last = last.map(|(_, value)| log.decode(&value)).transpose()?.map(|entry| entry.log_id);
        let last = last.max(purged);
        let index = |id: &Option<LogId<C::NodeId>>| id.as_ref().map(|id| id.index);
        let (last_index, applied_index) = (index(&last), index(&applied));
        let conflicts =
            last < applied && last_index > applied_index || last > applied && last_index <= applied_index;
        log.ends.lock().last = last;
        if let Some(applied) = applied.filter(|_| conflicts) {
            // A crash came between the state that a snapshot has brought, and the purge. openraft purges when it starts, and has read memberships from the entries by then.
            log.purge(applied)?;
        }
        Ok(Self { log: Arc::new(log), committed: Durability::Immediate })
    }

    pub(crate) fn log(&self) -> &Arc<Log<C>> {
        &self.log
    }

    /// Appends a membership of one node, durably, in a term that no leader has had, as [`Store::restart_group`](crate::Store::restart_group) says. `also`
    /// comes with it, or neither does.
    pub(crate) fn force_membership(
        &self,
        applied: Option<LogId<C::NodeId>>,
        id: C::NodeId,
        node: C::Node,
        also: impl FnOnce(&mut Batch),
    ) -> Result<()> {
        let (log, group) = (&self.log, self.log.lease.group);
        let last = log.ends.lock().last.clone().max(applied.clone());
        let last = last.ok_or(Error::NeverStarted { group })?;
        if let Some(applied) = applied
            && log.ends.lock().last.as_ref().is_none_or(|last| *last < applied)
        {
            // As openraft does when it starts.
            log.purge(applied)?;
        }
        let vote: Option<Vote<C::NodeId>> = log.lease.read(&log.lease.shared.log_meta, Kind::Vote)?;
        let term = vote.map_or(0, |vote| vote.leader_id().get_term()).max(last.leader_id.get_term()) + 1;
        let nodes = BTreeMap::from([(id.clone(), node)]);
        let membership = Membership::new(vec![BTreeSet::from([id.clone()])], nodes);
        let log_id = LogId::new(CommittedLeaderId::new(term, id.clone()), last.index + 1);
        let entry = C::Entry { log_id: log_id.clone(), payload: EntryPayload::Membership(membership) };
        let value = record::encode("an entry of the log", &entry)?;
        log.commit(Durability::Immediate, |batch| {
            log.put(batch, Kind::Node, &id)?;
            log.put(batch, Kind::Vote, &Vote::new(term, id))?;
            batch.insert(&log.lease.shared.log, log.lease.entry_key(log_id.index), value);
            also(batch);
            Ok(())
        })
    }

    /// Does not wait for a sync when it saves what is committed.
    ///
    /// By default it does, so that the state of a node never goes back, also if its power fails: what was committed is applied again
    /// when it opens. That costs each commit a sync after the one that the entry itself needs. Without it the state of a
    /// node, after a power failure, may be that of some commits ago until the leader tells it what is committed; reads by the read index
    /// wait for that and are right, reads of a follower's own state are older. No acknowledged write is lost either way. A leader that starts
    /// again has to be elected again, since it may not know what it has acknowledged.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # use sapwood_openraft::{KvConfig, KvMachine, Store};
    /// # let db = sapwood::Database::open(dir.path().join("node.db"))?;
    /// # let store = Store::open(&db, dir.path().join("snapshots"))?;
    /// let (log, machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
    /// let log = log.committed_without_sync();
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn committed_without_sync(mut self) -> Self {
        self.committed = Durability::Buffered;
        self
    }

    /// Says which node this log is of: the id for `openraft::Raft::new`. The first time it is recorded, durably, beside the vote; from then on another
    /// one is refused. A node that started with the vote and the log of another would vote for two candidates of one
    /// term, once under each id, and two leaders could follow. [`Store::restart_group`](crate::Store::restart_group) records its id as well.
    /// Of a log from before that was recorded, the first call decides: there an id is refused that is of no member by anything that state and log say.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # use sapwood_openraft::{Error, KvConfig, KvMachine, Store};
    /// # let db = sapwood::Database::open(dir.path().join("node.db"))?;
    /// # let store = Store::open(&db, dir.path().join("snapshots"))?;
    /// let (log, machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
    /// let log = log.of_node(3)?;
    /// # drop((log, machine));
    /// // The next time, by mistake:
    /// let (log, machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
    /// assert!(matches!(log.of_node(2), Err(Error::OtherNode { .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::OtherNode`]; [`Error::NoMember`]; [`Error::Record`]; [`Error::Database`].
    pub fn of_node(self, id: C::NodeId) -> Result<Self> {
        let Log { lease, .. } = &*self.log;
        match lease.read::<C::NodeId>(&lease.shared.log_meta, Kind::Node)? {
            Some(recorded) if recorded == id => {}
            Some(recorded) => {
                let (recorded, given) = (recorded.to_string(), id.to_string());
                return Err(Error::OtherNode { group: lease.group, recorded, given });
            }
            None => {
                self.log.check_member(&id)?;
                self.log.commit(Durability::Immediate, |batch| self.log.put(batch, Kind::Node, &id))?;
            }
        }
        Ok(self)
    }
}

impl<C> Log<C>
where
    C: RaftTypeConfig<Entry = Entry<C>>,
    C::D: Serialize + DeserializeOwned,
{
    fn decode(&self, value: &[u8]) -> Result<C::Entry> {
        record::decode(self.lease.group, "an entry of the log", value)
    }

    /// Whether a node is one of those that the state or the log have as members, or they have none.
    fn check_member(&self, id: &C::NodeId) -> Result<()> {
        let Lease { shared, group } = &*self.lease;
        let state: Option<StoredMembership<C::NodeId, C::Node>> =
            self.lease.read(&shared.meta, Kind::Membership)?;
        let mut members: BTreeSet<C::NodeId> =
            state.iter().flat_map(|state| state.nodes()).map(|(id, _)| id.clone()).collect();
        let mut entries = shared.log.range(self.lease.entry_key(0)..=self.lease.entry_key(u64::MAX));
        while !members.contains(id) {
            let Some(entry) = entries.next_ref() else { break };
            if let EntryPayload::Membership(membership) = self.decode(entry?.1)?.payload {
                members.extend(membership.nodes().map(|(id, _)| id.clone()));
            }
        }
        if members.is_empty() || members.contains(id) {
            return Ok(());
        }
        let members = members.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Err(Error::NoMember { group: *group, given: id.to_string(), members })
    }

    /// Makes entries readable. What is returned tells when all of them are durable.
    fn append(&self, entries: Vec<(LogId<C::NodeId>, Vec<u8>)>) -> Result<Option<Pending>> {
        let shared = &self.lease.shared;
        let mut batch = shared.log_db.batch();
        let mut last = None;
        for (log_id, value) in entries {
            if !batch.is_empty() && batch.byte_len() + value.len() > BATCH {
                // The sync of the last one covers it.
                _ = batch.commit_visible()?;
                self.ends.lock().last = last;
            }
            batch.insert(&shared.log, self.lease.entry_key(log_id.index), value);
            last = Some(log_id);
        }
        // Not whether the batch is empty: it is without an entry that does not fit, and says so only when it is committed.
        if last.is_none() {
            return Ok(None);
        }
        let pending = batch.commit_visible()?;
        self.ends.lock().last = last;
        Ok(Some(pending))
    }

    fn truncate(&self, index: u64) -> Result<()> {
        let group = self.lease.group;
        let purged = self.ends.lock().purged.clone();
        if let Some(purged) = purged.as_ref().map(|purged| purged.index).filter(|purged| index <= *purged) {
            return Err(Error::TruncatesPurged { group, purged, index });
        }
        let before = index.checked_sub(1).map(|before| self.lease.entry_key(before));
        let before = before.map(|key| self.lease.shared.log.get(key)).transpose()?.flatten();
        let before = before.map(|value| self.decode(&value)).transpose()?.map(|entry| entry.log_id);
        self.commit(Durability::Immediate, |batch| {
            let rest = self.lease.entry_key(index)..=self.lease.entry_key(u64::MAX);
            batch.remove_range(&self.lease.shared.log, rest);
            Ok(())
        })?;
        let mut ends = self.ends.lock();
        if ends.last.as_ref().is_some_and(|last| last.index >= index) {
            ends.last = before.max(purged);
        }
        Ok(())
    }

    /// The entries of a range that there are, as of one moment, as many as have `bytes` together, or the first.
    fn entries(&self, from: u64, to: Bound<u64>, bytes: usize) -> Result<Vec<C::Entry>> {
        let to = match to {
            Bound::Included(index) => Some(index),
            Bound::Excluded(index) => index.checked_sub(1),
            Bound::Unbounded => Some(u64::MAX),
        };
        // What was purged and is still on the disk is there no more.
        let Some(from) = self.first_there().map(|first| first.max(from)) else { return Ok(Vec::new()) };
        let Some(to) = to.filter(|to| from <= *to) else { return Ok(Vec::new()) };
        let (group, mut entries, mut read) = (self.lease.group, Vec::new(), 0);
        let mut range = self.lease.shared.log.range(self.lease.entry_key(from)..=self.lease.entry_key(to));
        let mut next = None;
        while let Some(item) = range.next_ref() {
            let (key, value) = item?;
            read += value.len();
            if read > bytes && !entries.is_empty() {
                break;
            }
            let (index, entry) = (record::index_of(group, key)?, self.decode(value)?);
            if next.is_some_and(|next| next != index) || entry.log_id.index != index {
                let reason = format!("it has index {}, and {next:?} was expected", entry.log_id.index);
                return Err(Error::Record { group, what: "an entry of the log", reason });
            }
            next = index.checked_add(1);
            entries.push(entry);
        }
        Ok(entries)
    }
}

async fn read<C>(
    log: &Arc<Log<C>>,
    range: impl RangeBounds<u64>,
    bytes: usize,
) -> std::result::Result<Vec<C::Entry>, StorageError<C::NodeId>>
where
    C: RaftTypeConfig<Entry = Entry<C>>,
    C::D: Serialize + DeserializeOwned,
{
    let from = match range.start_bound() {
        Bound::Included(index) => Some(*index),
        Bound::Excluded(index) => index.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let (Some(from), to) = (from, range.end_bound().cloned()) else { return Ok(Vec::new()) };
    let log = Arc::clone(log);
    let entries = blocking(move || log.entries(from, to, bytes)).await;
    entries.map_err(|error| error.of(ErrorSubject::Logs, ErrorVerb::Read))
}

macro_rules! reads_the_log {
    ($reader:ident) => {
        impl<C> RaftLogReader<C> for $reader<C>
        where
            C: RaftTypeConfig<Entry = Entry<C>>,
            C::D: Serialize + DeserializeOwned,
        {
            async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
                &mut self,
                range: RB,
            ) -> std::result::Result<Vec<C::Entry>, StorageError<C::NodeId>> {
                read(&self.log, range, usize::MAX).await
            }

            async fn limited_get_log_entries(
                &mut self,
                start: u64,
                end: u64,
            ) -> std::result::Result<Vec<C::Entry>, StorageError<C::NodeId>> {
                read(&self.log, start..end, READ).await
            }
        }
    };
}

reads_the_log!(LogStore);
reads_the_log!(LogReader);

impl<C> RaftLogStorage<C> for LogStore<C>
where
    C: RaftTypeConfig<Entry = Entry<C>>,
    C::D: Serialize + DeserializeOwned,
{
    type LogReader = LogReader<C>;

    async fn get_log_state(&mut self) -> std::result::Result<LogState<C>, StorageError<C::NodeId>> {
        let ends = self.log.ends.lock();
        Ok(LogState { last_purged_log_id: ends.purged.clone(), last_log_id: ends.last.clone() })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        LogReader { log: Arc::clone(&self.log) }
    }

    async fn save_vote(
        &mut self,
        vote: &Vote<C::NodeId>,
    ) -> std::result::Result<(), StorageError<C::NodeId>> {
        let (log, vote) = (Arc::clone(&self.log), vote.clone());
        let saved =
            blocking(move || log.commit(Durability::Immediate, |batch| log.put(batch, Kind::Vote, &vote)));
        saved.await.map_err(|error| error.of(ErrorSubject::Vote, ErrorVerb::Write))
    }

    async fn read_vote(&mut self) -> std::result::Result<Option<Vote<C::NodeId>>, StorageError<C::NodeId>> {
        let log = Arc::clone(&self.log);
        let vote = blocking(move || log.lease.read(&log.lease.shared.log_meta, Kind::Vote)).await;
        let vote: Option<Vote<C::NodeId>> =
            vote.map_err(|error| error.of(ErrorSubject::Vote, ErrorVerb::Read))?;
        if self.committed >= Durability::Immediate {
            return Ok(vote);
        }
        // A leader that starts again would go on as one and answer reads, without knowing what it has acknowledged. As one that was never
        // confirmed it has to be elected, and to commit an entry first.
        Ok(vote.map(|vote| Vote { committed: false, ..vote }))
    }

    async fn save_committed(
        &mut self,
        committed: Option<LogId<C::NodeId>>,
    ) -> std::result::Result<(), StorageError<C::NodeId>> {
        let (log, durability) = (Arc::clone(&self.log), self.committed);
        let saved =
            blocking(move || log.commit(durability, |batch| log.put(batch, Kind::Committed, &committed)));
        saved.await.map_err(|error| error.of(ErrorSubject::Logs, ErrorVerb::Write))
    }

    async fn read_committed(
        &mut self,
    ) -> std::result::Result<Option<LogId<C::NodeId>>, StorageError<C::NodeId>> {
        let log = Arc::clone(&self.log);
        let committed = blocking(move || log.lease.read(&log.lease.shared.log_meta, Kind::Committed)).await;
        committed.map(Option::flatten).map_err(|error| error.of(ErrorSubject::Logs, ErrorVerb::Read))
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<C>,
    ) -> std::result::Result<(), StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let log = Arc::clone(&self.log);
        let appended = async {
            log.wait_to_append().await?;
            let mut encoded = Vec::new();
            let (mut last, group) = (None, log.lease.group);
            let purged = log.ends.lock().purged.as_ref().map(|purged| purged.index);
            for entry in entries {
                let index = entry.get_log_id().index;
                // The state has them, and there is nothing before them that they could follow.
                if Some(index) <= purged {
                    continue;
                }
                match last {
                    None => log.ends.lock().check(group, index)?,
                    Some(last) if index == last + 1 => {}
                    Some(_) => return Err(Error::Hole { group, last, index }),
                }
                last = Some(index);
                let value = record::encode("an entry of the log", &entry)?;
                encoded.push((entry.log_id, value));
            }
            // Where no background thread is free, registering the callback syncs: the entries are readable, and this returns, before that.
            let (readable, is_readable) = oneshot::channel();
            tokio::task::spawn_blocking(move || {
                let appended = log.append(encoded);
                // Whoever has the answer may open the group again.
                drop(log);
                match appended {
                    Ok(pending) => {
                        _ = readable.send(Ok(()));
                        let Some(pending) = pending else { return callback.log_io_completed(Ok(())) };
                        pending.on_durable(|result| {
                            callback.log_io_completed(result.map_err(std::io::Error::other));
                        });
                    }
                    Err(error) => _ = readable.send(Err(error)),
                }
            });
            is_readable.await.unwrap_or_else(|_| Err(Error::Task("the thread that appends panicked".into())))
        };
        appended.await.map_err(|error| error.of(ErrorSubject::Logs, ErrorVerb::Write))
    }

    async fn truncate(
        &mut self,
        log_id: LogId<C::NodeId>,
    ) -> std::result::Result<(), StorageError<C::NodeId>> {
        let (log, index) = (Arc::clone(&self.log), log_id.index);
        let truncated = blocking(move || log.truncate(index)).await;
        truncated.map_err(|error| error.of(ErrorSubject::Log(log_id), ErrorVerb::Delete))
    }

    async fn purge(&mut self, log_id: LogId<C::NodeId>) -> std::result::Result<(), StorageError<C::NodeId>> {
        let (log, purged) = (Arc::clone(&self.log), log_id.clone());
        let purged = blocking(move || log.purge(purged)).await;
        purged.map_err(|error| error.of(ErrorSubject::Log(log_id), ErrorVerb::Delete))
    }
}

impl<C: RaftTypeConfig> Debug for LogStore<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.log.fmt(f)
    }
}

impl<C: RaftTypeConfig> Debug for LogReader<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.log.fmt(f)
    }
}

impl<C: RaftTypeConfig> Debug for Log<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ends = self.ends.lock();
        write!(f, "the log of group {}: purged {:?}, last {:?}", self.lease.group, ends.purged, ends.last)
    }
}
