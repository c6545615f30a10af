//! The parts of an open database, and how they work together.
//!
//! ```text
//!            commit ──▶ wal ──▶ active OPQ ──freeze──▶ frozen OPQ ──bupdate──▶ trees
//!                                   │                     │                         │ publish
//!   readers ◀── State { active, frozen, version } ◀───────┴─────────────────────────┘
//! ```
//! Each part has its own state, locks and code, and gets the parts below it when it is made:
//!
//! ```text
//! Background ─▶ IdleWork ─▶ Flusher ─▶ Cleanser ─▶ Collector ─▶ WorkContext
//!      └────────────▶ CommitPipeline ─▶ Space ─▶ Publisher ─▶ Reserve, CurrentState, Health
//!                          └──────────▶ FlushControl, FlushProgress, MemoryBudget
//! ```
//! Commits, background work and the engine have the same [`Parts`]. Commits know of flushes only what [`FlushControl`] tells, so the arrows go one way.
//!
//! Locks are taken in the order of [`Rank`](crate::lock_order::Rank). Readers load the state and take only inner ones, for
//! moments: those of the cache, of the frames, of the ranges known to be empty, and of free lists when they drop the last
//! reference to a queue or a segment.
//!
//! Invariant: a change is made in the order log, queue, visible; or data, manifest, state.

use crate::background::Background;
use crate::background::context::WorkContext;
use crate::background::unreadable::Unreadable;
use crate::cache::pager::Pager;
use crate::clock::Clock;
use crate::commit::CommitPipeline;
use crate::commit::log::{CommitQueues, SharedLog};
use crate::conflict::history::History;
use crate::current_state::CurrentState;
use crate::encryption::Encryption;
use crate::flow::flush_control::FlushControl;
use crate::flow::flush_progress::FlushProgress;
use crate::flow::memory::MemoryBudget;
use crate::flow::shares::Shares;
use crate::followers::Followers;
use crate::health::Health;
use crate::operation::SeqNo;
use crate::opq::Opq;
use crate::parts::Parts;
use crate::pool::Pool;
use crate::publish::Publisher;
use crate::reserve::Reserve;
use crate::space::Space;
use crate::storage::slots::Slots;
use crate::tree_writer::TreeWriter;
use crate::version::Version;
use psync::{FileId, Volume};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// An open database. See the module documentation.
pub(crate) struct Engine {
    parts: Parts,
    pub data: FileId,
    pub commits: Arc<CommitPipeline>,
    pub background: Background,
    pub encryption: Encryption,
    #[cfg(feature = "async")]
    pub tasks: crate::db::asynchronous::Tasks,
}

impl Deref for Engine {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

/// From what the parts are built when a database is opened.
pub(crate) struct EngineInit {
    pub path: String,
    pub volume: Arc<dyn Volume>,
    pub data: FileId,
    pub shares: Shares,
    pub slots: Arc<Slots>,
    pub pager: Arc<Pager>,
    pub version: Arc<Version>,
    pub visible: SeqNo,
    pub read_only: bool,
    pub threads: usize,
    pub lease: Duration,
    pub clock: Arc<Clock>,
    pub encryption: Encryption,
}

impl Engine {
    /// Whether the thread that calls is one of those that the database has started.
    pub fn is_own_thread(&self) -> bool {
        #[cfg(feature = "async")]
        if self.tasks.is_own_thread() {
            return true;
        }
        self.pool.is_own_thread()
    }

    pub fn new(init: EngineInit) -> Self {
        let EngineInit { volume, data, shares, slots, pager, version, clock, .. } = init;
        let pool = Arc::new(Pool::new(init.threads));
        let flush = Arc::new(FlushControl::default());
        let free_list = Arc::default();
        let reserve = Arc::new(Reserve::new(Arc::clone(&volume)));
        let active = Arc::new(Opq::new(&free_list, &version.begun_flushes));
        let state = Arc::new(CurrentState::new(Arc::clone(&pager), active, version, init.visible));
        let history = Arc::new(History::new(shares.history));
        let memory = Arc::new(MemoryBudget::new(
            shares,
            Arc::clone(&state),
            (free_list, Arc::clone(&history)),
            pool.has_threads(),
        ));
        let wake = Arc::clone(&flush);
        let health = Arc::new(Health::new(init.path, init.read_only, move || wake.notify()));
        let followers = Arc::new(Followers::new(Arc::clone(&volume), Arc::clone(&slots), init.lease));
        let publisher = Arc::new(Publisher::new(
            (Arc::clone(&volume), data),
            Arc::clone(&state),
            (Arc::clone(&health), Arc::clone(&reserve), Arc::clone(&followers)),
            Arc::clone(&pool),
            Arc::clone(&clock),
        ));
        let space = Arc::new(Space {
            volume: Arc::clone(&volume),
            data,
            slots,
            reserve,
            followers: Arc::clone(&followers),
            health: Arc::clone(&health),
            state: Arc::clone(&state),
            publisher: Arc::clone(&publisher),
            pool: Arc::clone(&pool),
            kept_log: Default::default(),
        });
        let parts = Parts {
            health,
            volume,
            shares,
            pager,
            state,
            memory,
            publisher,
            space,
            followers,
            flush,
            progress: Arc::new(FlushProgress::default()),
            pool,
            clock,
        };
        let commits = Arc::new(CommitPipeline {
            log: SharedLog::default(),
            queues: CommitQueues::default(),
            durable_waits: Default::default(),
            history,
            parts: parts.clone(),
        });
        let ctx = WorkContext {
            writer: TreeWriter::new(Arc::clone(&parts.flush), Arc::clone(&parts.memory)),
            unreadable_trees: Unreadable::default(),
            parts: parts.clone(),
        };
        Self {
            data,
            background: Background::new(ctx, &commits),
            commits,
            encryption: init.encryption,
            #[cfg(feature = "async")]
            tasks: crate::db::asynchronous::Tasks::new(Arc::clone(&parts.state), parts.pool.has_threads()),
            parts,
        }
    }

    /// The writer of nodes.
    pub fn writer(&self) -> &TreeWriter {
        &self.background.ctx.writer
    }

    /// Whether the database was closed. Other handles may still be there.
    pub fn is_closed(&self) -> bool {
        self.health.is_closed() || (!self.health.is_read_only() && !self.commits.has_log())
    }
}

/// After an opening that failed: nobody has closed the database, and its caller may open the volume again.
impl Drop for Engine {
    fn drop(&mut self) {
        // In a child, files and locks are the parent's.
        if !self.health.is_forked() {
            self.close_files();
        }
    }
}
