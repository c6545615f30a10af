//! The engine: the parts of an open database, and how they work together.
//!
//! ```text
//!            commit ──▶ wal ──▶ active OPQ ──freeze──▶ frozen OPQ ──bupdate──▶ trees in the store
//!                                   │                     │                         │ publish
//!   readers ◀── State { active, frozen, version } ◀───────┴─────────────────────────┘
//! ```
//!
//! Locks, in the order in which they may be taken: `writer` (one flush at a time), `log` (one group of commits
//! at a time), `manifest` (one edit at a time), `budget` (one change of the cache's capacity at a time),
//! `spare` (memory of freed queues). Readers take none of these: they load the state. One exception: the thread
//! that drops the last reference to a queue briefly takes `spare`. The caches, the frames and the pools of
//! buffers and rings have locks of their own, the innermost ones, which readers take for moments. So have the ranges
//! known to be empty.
//!
//! Invariants:
//! 1. Newest wins: active OPQ, then frozen OPQ, then tree.
//! 2. A state is immutable, except that its active queue grows.
//! 3. `visible` never exceeds what the queues and trees of the current state contain.

use crate::background::flush::FlushControl;
use crate::cache::pager::Pager;
use crate::commit::{Commits, Log};
use crate::db::len_estimate::len_estimate;
use crate::db::reserve::Reserve;
use crate::error::{Error, Result};
use crate::flow::flush_progress::FlushProgress;
use crate::flow::memory::{MemoryBudget, Need, Reservation};
use crate::flow::opq_tuning::OpqTuning;
use crate::operation::{KeyspaceId, SeqNo};
use crate::opq::empty_ranges::{EmptyRanges, Keys};
use crate::opq::map::FreeList;
use crate::opq::{Change, Opq};
use crate::options::Shares;
use crate::storage::data_file::DataFile;
use crate::storage::segment::Slots;
use crate::storage::writer::Writer;
use crate::tree::cleansing_cursor::Lengths;
use crate::tree::lookup;
use crate::tree::view::TreeView;
use crate::value::Value;
use crate::version::Version;
use crate::version::build_thread::VersionThread;
use crate::version::manifest::Manifest;
use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use psync::{FileId, Process, Volume};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// What readers see. Loaded as a whole.
#[derive(Clone)]
pub(crate) struct State {
    /// Incremented when a queue is frozen, when it is in the trees, and when records are ingested. All states
    /// with the same number give a reader that has already searched the queues the same answers from the trees
    /// ([`crate::cache::records`]).
    pub number: u64,
    /// Incremented when records are ingested.
    pub ingested: u64,
    pub active: Arc<Opq>,
    pub frozen: Option<Arc<Frozen>>,
    pub version: Arc<Version>,
}

/// A frozen queue, which a flush applies to the trees.
pub(crate) struct Frozen {
    pub queue: Arc<Opq>,
    /// The oldest log generation that is still needed once the queue is in the trees.
    pub wal_low: u64,
    /// The sequence number of the newest operation in the queue.
    pub last_seq: SeqNo,
    /// Whether it was frozen because it was full.
    pub is_full: bool,
    /// Where an interrupted flush resumes: everything below is already in the trees.
    pub resume: Mutex<Option<(KeyspaceId, Bytes)>>,
    /// The target lengths of log areas, as the first attempt to flush it has found them: another attempt is no
    /// other flush.
    pub lengths: OnceLock<Lengths>,
}

impl State {
    /// The queues, newest first.
    pub fn queues(&self) -> impl Iterator<Item = &Arc<Opq>> {
        std::iter::once(&self.active).chain(self.frozen.iter().map(|frozen| &frozen.queue))
    }

    /// What the queues know about a key.
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
        Ok(lookup::get(view, Some(self.number), key)?.map(Value))
    }
}

/// See the module documentation.
pub(crate) struct Engine {
    /// The database's location, for messages.
    pub path: String,
    /// The process that opened it, whose threads these are.
    pub process: Process,
    pub volume: Arc<dyn Volume>,
    pub data: FileId,
    pub shares: Shares,
    pub slots: Arc<Slots>,
    pub pager: Arc<Pager>,
    pub state: ArcSwap<State>,
    /// Where scans need not look.
    pub empty_ranges: EmptyRanges,
    /// Memory of freed queues, for the next queue.
    pub spare: Arc<FreeList>,
    visible: AtomicU64,
    pub commits: Commits,
    pub flush: FlushControl,
    pub progress: FlushProgress,
    /// `None` if the database is read-only or closed.
    writer: Mutex<Option<Writer>>,
    /// Shared by `writer` and other writers that run beside it. `None` if the database is read-only.
    data_file: Option<Arc<DataFile>>,
    pub log: Mutex<Option<Log>>,
    pub manifest: Mutex<Option<Manifest>>,
    pub version_thread: VersionThread,
    pub read_only: bool,
    pub budget: MemoryBudget,
    /// Segments that the collector leaves alone, because a node in them could not be read, and since when.
    pub unreadable: Mutex<BTreeMap<u64, Instant>>,
    pub opq_tuning: OpqTuning,
    pub reserve: Reserve,
    /// Why writes are refused, if they are.
    poison: Mutex<Option<Error>>,
    /// Whether `poison` is set. Each commit checks this twice.
    is_poisoned: AtomicBool,
}

/// The writer while a thread works with it: the lock, and the memory reserved for the work.
pub(crate) struct WriterAtWork<'a> {
    writer: MutexGuard<'a, Option<Writer>>,
    // Dropped last, after `drop` has released the writer's buffers.
    work: Reservation<'a>,
}

impl WriterAtWork<'_> {
    pub fn get(&mut self) -> Result<&mut Writer> {
        self.writer.as_mut().ok_or(Error::Closed)
    }

    /// The writer and its memory reservation.
    pub fn parts(&mut self) -> Result<(&mut Writer, &Reservation<'_>)> {
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

/// The parts from which an engine is built at open.
pub(crate) struct EngineInit {
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

/// Poisons the engine if the current thread panics while this guard exists. The thread's work is half done in
/// an unknown state, and other threads would wait forever for the rest.
pub(crate) struct Panicked<'e> {
    engine: &'e Engine,
    who: &'static str,
    /// Whether the thread was already panicking when the guard was created, that is, it runs a destructor.
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
    pub fn new(parts: EngineInit) -> Self {
        let spare = Arc::default();
        let reserve = Reserve::new(Arc::clone(&parts.volume));
        let active = Arc::new(Opq::new(&spare));
        let state = State { number: 0, ingested: 0, active, frozen: None, version: parts.version };
        Self {
            path: parts.path,
            process: Process::this(),
            volume: parts.volume,
            data: parts.data,
            shares: parts.shares,
            slots: parts.slots,
            pager: parts.pager,
            state: ArcSwap::from_pointee(state),
            empty_ranges: EmptyRanges::default(),
            spare,
            visible: AtomicU64::new(parts.visible),
            commits: Commits::default(),
            flush: FlushControl::new(parts.in_background),
            progress: FlushProgress::default(),
            data_file: parts.writer.as_ref().map(|writer| Arc::clone(writer.file())),
            writer: Mutex::new(parts.writer),
            log: Mutex::new(None),
            manifest: Mutex::new(parts.manifest),
            version_thread: VersionThread::default(),
            read_only: parts.read_only,
            budget: MemoryBudget::default(),
            unreadable: Mutex::default(),
            opq_tuning: OpqTuning::default(),
            reserve,
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

    /// The view of a reader that begins now. The order of the two loads matters: see [`crate::db::snapshot`].
    pub fn view(&self) -> (Arc<State>, SeqNo) {
        let state = self.state.load_full();
        let seq = self.visible();
        (state, seq)
    }

    pub fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Value>> {
        self.process.check()?;
        let state = self.state.load();
        let seq = self.visible();
        state.get(&self.pager, keyspace, key, seq)
    }

    /// Notes that a reader of this state found no record between these keys.
    pub fn note_empty(&self, keyspace: KeyspaceId, keys: Keys<'_>, state: &State, seq: SeqNo) {
        self.empty_ranges.note(keyspace, keys, seq, || {
            let now = self.state.load();
            let may_have_newer = |queue: &Opq| queue.may_have_newer(keyspace, keys, seq);
            // What has come since is in the queue that was active, and in the one that is. If that queue is in the trees
            // already, this cannot be told any more.
            let is_there = now.queues().any(|queue| Arc::ptr_eq(queue, &state.active));
            let is_one = Arc::ptr_eq(&now.active, &state.active);
            now.ingested == state.ingested
                && is_there
                && !may_have_newer(&state.active)
                && (is_one || !may_have_newer(&now.active))
        });
    }

    pub fn len_estimate(&self, keyspace: KeyspaceId) -> u64 {
        let state = self.state.load();
        len_estimate(&self.pager, &state, keyspace).unwrap_or_else(|error| {
            tracing::warn!(%error, path = %self.path, "records were counted without changes on their way to the leaves");
            state.version.trees.get(&keyspace).map_or(0, |tree| tree.len)
        })
    }

    /// Locks the writer for exclusive work, and reserves the memory `need` for it, taken from the cache.
    pub fn writer(&self, need: Need) -> Result<WriterAtWork<'_>> {
        let waits = self.flush.waits();
        let writer = self.writer.lock();
        drop(waits);
        if writer.is_none() {
            return Err(Error::Closed);
        }
        Ok(WriterAtWork { writer, work: self.work(need) })
    }

    /// Gives a newly opened engine its writer.
    pub fn set_writer(&mut self, writer: Writer) {
        self.data_file = Some(Arc::clone(writer.file()));
        *self.writer.get_mut() = Some(writer);
    }

    /// Bytes written to the data file since it was opened.
    pub fn data_bytes_written(&self) -> u64 {
        self.data_file.as_ref().map_or(0, |file| file.bytes_written())
    }

    /// Drops the writer. Nothing is written from now on.
    pub fn close_writer(&self) {
        *self.writer.lock() = None;
    }

    /// Refuses all writes from now on, since it is unknown what the failed one left behind.
    pub fn poison(&self, cause: &Error) {
        let mut poison = self.poison.lock();
        if poison.is_none() {
            tracing::error!(%cause, path = %self.path, "writes are refused from now on");
            *poison = Some(match cause {
                Error::Poisoned { .. } | Error::Closed | Error::Gone { .. } | Error::Forked { .. } => {
                    cause.clone()
                }
                other => Error::Poisoned { cause: other.to_string() },
            });
            self.is_poisoned.store(true, Ordering::Release);
        }
        drop(poison);
        self.flush.notify();
    }

    /// Whether the database was closed. Other handles may still be there.
    pub fn is_closed(&self) -> bool {
        matches!(*self.poison.lock(), Some(Error::Closed)) || (!self.read_only && self.log.lock().is_none())
    }

    /// Returns an error if writes are refused.
    pub fn check_writable(&self) -> Result<()> {
        self.process.check()?;
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
