//! The engine: the parts of an open database, and how they work together.
//!
//! ```text
//!            commit ──▶ wal ──▶ active OPQ ──freeze──▶ frozen OPQ ──bupdate──▶ trees
//!                                   │                     │                         │ publish
//!   readers ◀── State { active, frozen, version } ◀───────┴─────────────────────────┘
//! ```
//!
//! Locks, in the order in which they may be taken: `writer` (one flush at a time), `log` (one group of commits
//! at a time), `manifest` (one edit at a time), `memory` (one change of the cache's capacity at a time),
//! `spare` (memory of freed queues). Readers take none of these: they load the state. One exception: the thread
//! that drops the last reference to a queue briefly takes `spare`. The caches, the frames and the pools of
//! buffers and rings have locks of their own, the innermost ones, which readers take for moments. So have the ranges
//! known to be empty.
//!
//! The parts that have their own state and locks are [`publish`], [`reserve`], [`log`] with its [`commit_queue`],
//! [`flush_control`] with [`low_space`], and, of other folders, [`CurrentState`], [`MemoryBudget`] and [`Health`]. What
//! commits do with them lies in [`crate::commit`], what the flush thread does in [`crate::background`].
//!
//! Invariant: a change is made in the order log, queue, visible; or data, manifest, state.

pub(crate) mod commit_queue;
pub(crate) mod flush_control;
pub(crate) mod log;
pub(crate) mod low_space;
pub(crate) mod publish;
pub(crate) mod reserve;

use crate::cache::pager::Pager;
use crate::current_state::CurrentState;
use crate::engine::flush_control::FlushControl;
use crate::engine::log::{Commits, Log};
use crate::engine::publish::Publisher;
use crate::engine::reserve::Reserve;
use crate::error::{Error, Result};
use crate::flow::flush_progress::FlushProgress;
use crate::flow::memory::{MemoryBudget, Need, Reservation};
use crate::flow::shares::Shares;
use crate::health::Health;
use crate::operation::SeqNo;
use crate::opq::Opq;
use crate::storage::data_file::DataFile;
use crate::storage::segment::Slots;
use crate::storage::writer::Writer;
use crate::version::Version;
use crate::version::manifest::Manifest;
use parking_lot::{Mutex, MutexGuard};
use psync::{FileId, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// See the module documentation.
pub(crate) struct Engine {
    pub health: Arc<Health>,
    pub volume: Arc<dyn Volume>,
    pub data: FileId,
    pub shares: Shares,
    pub slots: Arc<Slots>,
    pub pager: Arc<Pager>,
    pub state: Arc<CurrentState>,
    pub commits: Commits,
    pub flush: Arc<FlushControl>,
    pub progress: FlushProgress,
    /// `None` if the database is read-only or closed.
    writer: Mutex<Option<Writer>>,
    /// Shared by `writer` and other writers that run beside it. `None` if the database is read-only.
    data_file: Option<Arc<DataFile>>,
    pub log: Mutex<Option<Log>>,
    pub publisher: Publisher,
    pub memory: MemoryBudget,
    /// Segments that the collector leaves alone, because a node in them could not be read, and since when.
    pub unreadable: Mutex<BTreeMap<u64, Instant>>,
    pub reserve: Arc<Reserve>,
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

impl Engine {
    pub fn new(parts: EngineInit) -> Self {
        let flush = Arc::new(FlushControl::new(parts.in_background));
        let spare = Arc::default();
        let reserve = Arc::new(Reserve::new(Arc::clone(&parts.volume)));
        let active = Arc::new(Opq::new(&spare));
        let state = CurrentState::new(Arc::clone(&parts.pager), active, parts.version, parts.visible);
        let state = Arc::new(state);
        let memory = MemoryBudget::new(parts.shares, Arc::clone(&state), spare, parts.in_background);
        let wake = Arc::clone(&flush);
        let health = Arc::new(Health::new(parts.path, parts.read_only, move || wake.notify()));
        let publisher = Publisher::new(
            (Arc::clone(&parts.volume), parts.data),
            Arc::clone(&state),
            (Arc::clone(&health), Arc::clone(&reserve)),
            parts.manifest,
            parts.in_background,
        );
        Self {
            health,
            volume: parts.volume,
            data: parts.data,
            shares: parts.shares,
            slots: parts.slots,
            pager: parts.pager,
            state,
            commits: Commits::default(),
            flush,
            progress: FlushProgress::default(),
            data_file: parts.writer.as_ref().map(|writer| Arc::clone(writer.file())),
            writer: Mutex::new(parts.writer),
            log: Mutex::new(None),
            publisher,
            memory,
            unreadable: Mutex::default(),
            reserve,
        }
    }

    /// Locks the writer for exclusive work, and reserves the memory `need` for it, taken from the cache.
    pub fn writer(&self, need: Need) -> Result<WriterAtWork<'_>> {
        let waits = self.flush.waits();
        let writer = self.writer.lock();
        drop(waits);
        if writer.is_none() {
            return Err(Error::Closed);
        }
        Ok(WriterAtWork { writer, work: self.memory.work(need) })
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

    /// Whether the database was closed. Other handles may still be there.
    pub fn is_closed(&self) -> bool {
        self.health.is_closed() || (!self.health.is_read_only() && self.log.lock().is_none())
    }
}
