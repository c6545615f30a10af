//! The engine: what an open database is made of, and how its parts hang together.
//!
//! ```text
//!            commit ──▶ wal ──▶ active OPQ ──freeze──▶ frozen OPQ ──bupdate──▶ trees in the store
//!                                   │                     │                         │ publish
//!   readers ◀── State { active, frozen, version } ◀───────┴─────────────────────────┘
//! ```
//!
//! Locks, in the order in which they may be taken: `writer` (one flush at a time), `log` (one group of commits at a time),
//! `manifest` (one edit at a time), `budget` (one change of the cache's capacity at a time), `spare` (the memory of queues that are gone). Readers take none of them: they load
//! the state; but whoever is the last to let go of a queue takes the last one of them for a moment.
//!
//! Invariants:
//! 1. Newest wins: active OPQ, then frozen OPQ, then tree.
//! 2. A state is immutable but for the active queue, which only grows.
//! 3. `visible` never goes beyond what is in the queues and trees of the current state.

use crate::backpressure::Pace;
use crate::budget::{Budget, Need, Work};
use crate::commit::{CommitQueue, Log};
use crate::error::{Error, Result};
use crate::flush::FlushControl;
use crate::operation::{KeyspaceId, SeqNo};
use crate::options::Shares;
use crate::queue::map::Spare;
use crate::queue::opq::{Change, Opq};
use crate::store::data_file::DataFile;
use crate::store::manifest::Manifest;
use crate::store::pager::Pager;
use crate::store::segment::Slots;
use crate::store::version::Version;
use crate::store::writer::Writer;
use crate::tree::{search, view::TreeView};
use crate::value::Value;
use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use psync::{FileId, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What readers look at.
#[derive(Clone)]
pub(crate) struct State {
    /// Grows when a queue is frozen, when it is in the trees, and when records were ingested: what trees say to those who have asked the queues is the same in
    /// all states with a number ([`crate::store::record_cache`]).
    pub number: u64,
    pub active: Arc<Opq>,
    pub frozen: Option<Arc<Frozen>>,
    pub version: Arc<Version>,
}

/// A queue that a flush takes to the trees.
pub(crate) struct Frozen {
    pub queue: Arc<Opq>,
    /// The oldest generation of the log that is needed when the queue is in the trees.
    pub wal_low: u64,
    /// The newest operation in the queue.
    pub last_seq: SeqNo,
    /// Where a flush that was interrupted goes on: what is below is in the trees.
    pub resume: Mutex<Option<(KeyspaceId, Bytes)>>,
}

impl State {
    /// The queues, newest first.
    pub fn queues(&self) -> impl Iterator<Item = &Arc<Opq>> {
        std::iter::once(&self.active).chain(self.frozen.iter().map(|frozen| &frozen.queue))
    }

    /// What the queues say about a key.
    pub fn queued(&self, keyspace: KeyspaceId, key: &[u8], seq: SeqNo) -> Option<Change> {
        self.queues().find_map(|queue| queue.get(keyspace, key, seq))
    }

    pub fn get(&self, pager: &Pager, keyspace: KeyspaceId, key: &[u8], seq: SeqNo) -> Result<Option<Value>> {
        if let Some(change) = self.queued(keyspace, key, seq) {
            return Ok(change.map(Value));
        }
        if let Some(value) = pager.record(self.number, keyspace, key) {
            return Ok(Some(Value(value)));
        }
        let view = TreeView { pager, version: &self.version, keyspace };
        Ok(search::get(view, Some(self.number), key)?.map(Value))
    }
}

/// See the module.
pub(crate) struct Engine {
    /// Where the database is, for messages.
    pub path: String,
    pub volume: Arc<dyn Volume>,
    pub data: FileId,
    pub shares: Shares,
    pub slots: Arc<Slots>,
    pub pager: Arc<Pager>,
    pub state: ArcSwap<State>,
    /// What queues that are gone have left for the next.
    pub spare: Arc<Spare>,
    visible: AtomicU64,
    pub commits: CommitQueue,
    pub flush: FlushControl,
    pub pace: Pace,
    /// `None` in a database that was opened for reading only, or is closed.
    writer: Mutex<Option<Writer>>,
    /// What it and those beside it share; `None` in a database that was opened for reading only.
    data_file: Option<Arc<DataFile>>,
    pub log: Mutex<Option<Log>>,
    pub manifest: Mutex<Option<Manifest>>,
    pub read_only: bool,
    pub budget: Budget,
    /// Why writes are refused, if they are.
    poison: Mutex<Option<Error>>,
    /// Whether they are: what each commit asks for, twice.
    is_poisoned: AtomicBool,
}

/// The writer in the hands of who works with it.
pub(crate) struct WriterAtWork<'a> {
    writer: MutexGuard<'a, Option<Writer>>,
    // Given back after the buffers.
    work: Work<'a>,
}

impl WriterAtWork<'_> {
    pub fn get(&mut self) -> Result<&mut Writer> {
        self.writer.as_mut().ok_or(Error::Closed)
    }

    /// The writer, and its memory.
    pub fn parts(&mut self) -> Result<(&mut Writer, &Work<'_>)> {
        Ok((self.writer.as_mut().ok_or(Error::Closed)?, &self.work))
    }
}

impl Drop for WriterAtWork<'_> {
    fn drop(&mut self) {
        if let Some(writer) = &mut *self.writer {
            writer.rest();
        }
    }
}

/// What an engine is made of when it is opened.
pub(crate) struct Parts {
    pub path: String,
    pub volume: Arc<dyn Volume>,
    pub data: FileId,
    pub shares: Shares,
    pub slots: Arc<Slots>,
    pub pager: Arc<Pager>,
    pub version: Arc<Version>,
    pub visible: SeqNo,
    pub writer: Option<Writer>,
    pub manifest: Option<Manifest>,
    pub read_only: bool,
    pub in_background: bool,
}

/// Has writes refused when whoever holds it panics: what was half done nobody knows, and what only he would have done others would wait for for ever.
pub(crate) struct Panicked<'e> {
    engine: &'e Engine,
    who: &'static str,
    /// Whether the thread did so before, and this is the work of a destructor.
    before: bool,
}

impl<'e> Panicked<'e> {
    pub fn watch(engine: &'e Engine, who: &'static str) -> Self {
        Self { engine, who, before: std::thread::panicking() }
    }
}

impl Drop for Panicked<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.before {
            self.engine.poison(&Error::Poisoned { cause: format!("{} panicked", self.who) });
        }
    }
}

impl Engine {
    pub fn new(parts: Parts) -> Self {
        let spare = Arc::default();
        let active = Arc::new(Opq::new(&spare));
        let state = State { number: 0, active, frozen: None, version: parts.version };
        Self {
            path: parts.path,
            volume: parts.volume,
            data: parts.data,
            shares: parts.shares,
            slots: parts.slots,
            pager: parts.pager,
            state: ArcSwap::from_pointee(state),
            spare,
            visible: AtomicU64::new(parts.visible),
            commits: CommitQueue::default(),
            flush: FlushControl::new(parts.in_background),
            pace: Pace::default(),
            data_file: parts.writer.as_ref().map(|writer| Arc::clone(writer.file())),
            writer: Mutex::new(parts.writer),
            log: Mutex::new(None),
            manifest: Mutex::new(parts.manifest),
            read_only: parts.read_only,
            budget: Budget::default(),
            poison: Mutex::new(None),
            is_poisoned: AtomicBool::new(false),
        }
    }

    /// The newest operation that readers may see.
    pub fn visible(&self) -> SeqNo {
        self.visible.load(Ordering::Acquire)
    }

    pub fn set_visible(&self, seq: SeqNo) {
        self.visible.store(seq, Ordering::Release);
    }

    /// What a reader that begins now sees. The order matters: see [`crate::snapshot`].
    pub fn view(&self) -> (Arc<State>, SeqNo) {
        let state = self.state.load_full();
        let seq = self.visible();
        (state, seq)
    }

    pub fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Value>> {
        let state = self.state.load();
        let seq = self.visible();
        state.get(&self.pager, keyspace, key, seq)
    }

    pub fn len_estimate(&self, keyspace: KeyspaceId) -> u64 {
        let state = self.state.load();
        let queued: u64 = state.queues().map(|queue| queue.count()).sum();
        // What waits is taken for new records: true while loading, which is when one looks.
        let waiting = queued + state.version.logs.totals().changes;
        let in_leaves = state.version.trees.get(&keyspace).map_or(0, |tree| tree.len);
        if state.version.trees.len() == 1 { in_leaves + waiting } else { in_leaves }
    }

    /// The writer, for work that nobody else does meanwhile, which takes so much from the cache, and what else it needs.
    pub fn writer(&self, need: Need) -> Result<WriterAtWork<'_>> {
        let waits = self.flush.waits();
        let writer = self.writer.lock();
        drop(waits);
        if writer.is_none() {
            return Err(Error::Closed);
        }
        Ok(WriterAtWork { writer, work: self.work(need) })
    }

    /// Makes the engine one that writes.
    pub fn set_writer(&mut self, writer: Writer) {
        self.data_file = Some(Arc::clone(writer.file()));
        *self.writer.get_mut() = Some(writer);
    }

    /// Bytes of the data file that were written since it was opened.
    pub fn data_bytes_written(&self) -> u64 {
        self.data_file.as_ref().map_or(0, |file| file.bytes_written())
    }

    /// Takes the writer away: nothing is written any more.
    pub fn close_writer(&self) {
        *self.writer.lock() = None;
    }

    /// Refuses all writes from now on, since nobody knows what the failed one left behind.
    pub fn poison(&self, cause: &Error) {
        let mut poison = self.poison.lock();
        if poison.is_none() {
            tracing::error!(%cause, path = %self.path, "writes are refused from now on");
            *poison = Some(match cause {
                Error::Poisoned { .. } | Error::Closed => cause.clone(),
                other => Error::Poisoned { cause: other.to_string() },
            });
            self.is_poisoned.store(true, Ordering::Release);
        }
        drop(poison);
        self.flush.notify();
    }

    /// An error if writes are refused.
    pub fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        if !self.is_poisoned.load(Ordering::Acquire) {
            return Ok(());
        }
        self.poison.lock().clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;
    use psync::Simulated;

    #[test]
    fn when_the_flushing_thread_panics_writes_are_refused() {
        let options = Database::builder().memory(4 << 20).background_threads(0);
        let db = options.open_on(Arc::new(Simulated::new(1))).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        let engine = &db.handle.engine;
        drop(Panicked::watch(engine, "nobody"));
        keyspace.insert("a", "1").unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _panicked = Panicked::watch(engine, "somebody");
                panic!("for this test");
            });
            thread.join().unwrap_err();
        });
        assert!(matches!(keyspace.insert("b", "2"), Err(Error::Poisoned { .. })));
        assert!(keyspace.get("a").unwrap().is_some());
    }
}
