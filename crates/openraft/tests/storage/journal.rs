//! A log store and a state machine that note what they did, and what of it must survive a power cut.
//!
//! All changes are in one database, whose log loses only its end. So what is found after a cut must be, as a whole, the contents after
//! one of the calls, and not an earlier one than the last that had to be durable when it returned.

use crate::ground::{Log, Machine, Result};
use openraft::storage::{LogFlushed, LogState, RaftLogStorage, RaftStateMachine};
use openraft::{
    Entry, EntryPayload, LogId, OptionalSend, RaftLogReader, RaftSnapshotBuilder, Snapshot, SnapshotMeta,
    StoredMembership, Vote,
};
use sapwood_openraft::{KvAnswer, KvCommand, KvConfig, KvWrite, LogReader, SnapshotBuilder, SnapshotFile};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex};

/// All that a group has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    pub vote: Option<Vote<u64>>,
    pub committed: Option<LogId<u64>>,
    pub purged: Option<LogId<u64>>,
    /// Entries as text.
    pub entries: BTreeMap<u64, (LogId<u64>, String)>,
    pub applied: Option<LogId<u64>>,
    pub membership: StoredMembership<u64, openraft::BasicNode>,
    /// Keys, and the versions and values that they have.
    pub records: BTreeMap<Vec<u8>, (u64, Vec<u8>)>,
}

impl Contents {
    /// What a group has of them that was opened: no entries behind the state that are of an earlier leader, and none before it of a later one.
    fn as_opened(&self) -> Self {
        let mut opened = self.clone();
        let last = self.entries.values().map(|(id, _)| *id).max();
        if let (Some(last), Some(applied)) = (last, self.applied)
            && (last < applied && last.index > applied.index || last > applied && last.index <= applied.index)
        {
            opened.entries.clear();
            opened.purged = self.applied;
        }
        opened
    }

    /// What is there.
    pub async fn read(log: &mut Log, machine: &mut Machine) -> Result<Self> {
        let LogState { last_purged_log_id: purged, last_log_id } = log.get_log_state().await?;
        let entries = log.try_get_log_entries(..).await?;
        let entries: BTreeMap<_, _> = entries.iter().map(described).collect();
        let last = entries.values().next_back().map(|(log_id, _)| *log_id);
        assert_eq!(last_log_id, last.or(purged), "the last log id");
        let (applied, membership) = machine.applied_state().await?;
        let (vote, committed) = (log.read_vote().await?, log.read_committed().await?);
        let records = machine.reader().scan([], None::<&[u8]>, usize::MAX).expect("reads");
        let records =
            records.into_iter().map(|(key, found)| (key.to_vec(), (found.version, found.value.to_vec())));
        Ok(Self { vote, committed, purged, entries, applied, membership, records: records.collect() })
    }

    fn purge(&mut self, upto: LogId<u64>, is_all: bool) {
        self.entries.retain(|index, _| *index > upto.index && !is_all);
        self.purged = self.purged.max(Some(upto));
    }

    fn apply(&mut self, entry: &Entry<KvConfig>) {
        self.applied = Some(entry.log_id);
        match &entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(entry.log_id), membership.clone());
            }
            EntryPayload::Normal(KvCommand { conditions, writes }) => {
                assert!(conditions.is_empty(), "the model of another test has them");
                for write in writes {
                    match write.clone() {
                        KvWrite::Put { key, value } => {
                            self.records.insert(key.to_vec(), (entry.log_id.index, value.to_vec()));
                        }
                        KvWrite::Delete { key } => _ = self.records.remove(&key[..]),
                        KvWrite::DeleteRange { from, to } => self.records.retain(|key, _| {
                            key[..] < from[..] || to.as_ref().is_some_and(|to| key[..] >= to[..])
                        }),
                    }
                }
            }
        }
    }
}

fn described(entry: &Entry<KvConfig>) -> (u64, (LogId<u64>, String)) {
    (entry.log_id.index, (entry.log_id, format!("{:?}", entry.payload)))
}

/// The contents after each call, from the beginning on.
#[derive(Debug)]
pub struct Journal {
    pub contents: Vec<Contents>,
    /// The contents with this number, or later ones, must be there.
    pub durable: usize,
    /// An append whose callback has come once the caller goes on.
    appended: Option<usize>,
    /// A purge beyond the state, which happens with the installation that brings the state there: up to where, and whether of all.
    waiting: Option<(LogId<u64>, bool)>,
    /// The contents of snapshots, by their ids.
    snapshots: BTreeMap<String, Contents>,
}

impl Journal {
    pub fn new() -> Arc<Mutex<Self>> {
        let contents = vec![Contents::default()];
        Arc::new(Mutex::new(Self {
            contents,
            durable: 0,
            appended: None,
            waiting: None,
            snapshots: BTreeMap::new(),
        }))
    }

    fn last(&self) -> usize {
        self.contents.len() - 1
    }

    /// Before a call: it may happen from now on. Whoever calls has waited for the append before it.
    fn begin(&mut self, change: impl FnOnce(&mut Contents)) -> usize {
        self.go_on();
        let mut next = self.contents[self.last()].clone();
        change(&mut next);
        self.contents.push(next);
        self.last()
    }

    /// The caller goes on after an append.
    fn go_on(&mut self) {
        self.durable = self.durable.max(self.appended.take().unwrap_or(0));
    }

    fn end(&mut self, number: usize) {
        self.durable = self.durable.max(number);
    }

    /// Checks what is there after a power cut.
    pub fn check(&self, found: &Contents, story: &str) {
        if self.contents[self.durable..].iter().any(|contents| contents.as_opened() == *found) {
            return;
        }
        let when = self.contents.iter().rposition(|contents| contents == found);
        panic!(
            "{story}: {:?} had to be there, or what came later; found is that after call {when:?}, of {}: {found:?}",
            (self.durable, &self.contents[self.durable]),
            self.last(),
        );
    }
}

pub type Shared = Arc<Mutex<Journal>>;

pub struct NotedLog {
    pub log: Log,
    pub journal: Shared,
}

pub struct NotedMachine {
    pub machine: Machine,
    pub journal: Shared,
}

pub struct NotedBuilder {
    builder: SnapshotBuilder<KvConfig>,
    journal: Shared,
    /// The contents that it builds from.
    number: usize,
}

fn begin(journal: &Shared, change: impl FnOnce(&mut Contents)) -> usize {
    journal.lock().expect("not poisoned").begin(change)
}

fn end(journal: &Shared, number: usize) {
    journal.lock().expect("not poisoned").end(number);
}

impl RaftLogReader<KvConfig> for NotedLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry<KvConfig>>> {
        self.journal.lock().expect("not poisoned").go_on();
        self.log.try_get_log_entries(range).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry<KvConfig>>> {
        self.log.limited_get_log_entries(start, end).await
    }
}

impl RaftLogStorage<KvConfig> for NotedLog {
    type LogReader = LogReader<KvConfig>;

    async fn get_log_state(&mut self) -> Result<LogState<KvConfig>> {
        self.log.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.log.get_log_reader().await
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<()> {
        let number = begin(&self.journal, |contents| contents.vote = Some(*vote));
        self.log.save_vote(vote).await?;
        end(&self.journal, number);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>> {
        self.log.read_vote().await
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Result<()> {
        let number = begin(&self.journal, |contents| contents.committed = committed);
        self.log.save_committed(committed).await?;
        end(&self.journal, number);
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<u64>>> {
        self.log.read_committed().await
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<KvConfig>) -> Result<()>
    where
        I: IntoIterator<Item = Entry<KvConfig>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().collect();
        let waiting = self.journal.lock().expect("not poisoned").waiting.map(|(upto, _)| upto);
        let number = begin(&self.journal, |contents| {
            let purged = contents.purged.max(waiting).map(|purged| purged.index);
            let new = entries.iter().filter(|entry| Some(entry.log_id.index) > purged);
            contents.entries.extend(new.map(described));
        });
        self.log.append(entries, callback).await?;
        self.journal.lock().expect("not poisoned").appended = Some(number);
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Result<()> {
        let number = begin(&self.journal, |contents| _ = contents.entries.split_off(&log_id.index));
        self.log.truncate(log_id).await?;
        end(&self.journal, number);
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId<u64>) -> Result<()> {
        let mut number = None;
        {
            let mut journal = self.journal.lock().expect("not poisoned");
            let now = &journal.contents[journal.last()];
            let last = now.entries.values().next_back().map(|(last, _)| *last);
            let is_behind = last.is_some_and(|last| last.index <= log_id.index && last != log_id);
            let is_all =
                last < Some(log_id) || is_behind || journal.waiting.is_some_and(|(_, is_all)| is_all);
            if now.applied < Some(log_id) {
                journal.waiting = journal.waiting.max(Some((log_id, is_all)));
            } else {
                number = Some(journal.begin(|contents| contents.purge(log_id, is_all)));
            }
        }
        self.log.purge(log_id).await?;
        number.into_iter().for_each(|number| end(&self.journal, number));
        Ok(())
    }
}

impl RaftStateMachine<KvConfig> for NotedMachine {
    type SnapshotBuilder = NotedBuilder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, StoredMembership<u64, openraft::BasicNode>)> {
        self.machine.applied_state().await
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<KvAnswer>>
    where
        I: IntoIterator<Item = Entry<KvConfig>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().collect();
        // Each of them may be the last of a batch.
        for entry in &entries {
            begin(&self.journal, |contents| contents.apply(entry));
        }
        self.machine.apply(entries).await
    }

    async fn get_snapshot_builder(&mut self) -> NotedBuilder {
        let number = self.journal.lock().expect("not poisoned").last();
        let builder = self.machine.get_snapshot_builder().await;
        NotedBuilder { builder, journal: Arc::clone(&self.journal), number }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<SnapshotFile>> {
        self.machine.begin_receiving_snapshot().await
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, openraft::BasicNode>,
        snapshot: Box<SnapshotFile>,
    ) -> Result<()> {
        let mut number = begin(&self.journal, |contents| {
            contents.applied = meta.last_log_id;
            contents.membership = meta.last_membership.clone();
        });
        {
            let mut journal = self.journal.lock().expect("not poisoned");
            let records = journal.snapshots.get(&meta.snapshot_id).map(|from| from.records.clone());
            journal.contents[number].records = records.unwrap_or_default();
            if let Some((upto, is_all)) = journal.waiting.filter(|(upto, _)| Some(*upto) <= meta.last_log_id)
            {
                number = journal.begin(|contents| contents.purge(upto, is_all));
                journal.waiting = None;
            }
        }
        self.machine.install_snapshot(meta, snapshot).await?;
        end(&self.journal, number);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<KvConfig>>> {
        self.machine.get_current_snapshot().await
    }
}

impl RaftSnapshotBuilder<KvConfig> for NotedBuilder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<KvConfig>> {
        let snapshot = self.builder.build_snapshot().await?;
        let mut journal = self.journal.lock().expect("not poisoned");
        journal.end(self.number);
        let contents = journal.contents[self.number].clone();
        journal.snapshots.insert(snapshot.meta.snapshot_id.clone(), contents);
        Ok(snapshot)
    }
}

/// That snapshots of one journal may be installed in the store of another.
pub fn exchange(from: &Shared, to: &Shared) {
    let snapshots = from.lock().expect("not poisoned").snapshots.clone();
    to.lock().expect("not poisoned").snapshots.extend(snapshots);
}
