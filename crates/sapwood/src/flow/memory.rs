//! The memory budget, and how it follows the work: the cache gets whatever queues, tables and work do not use
//! at the moment.
//!
//! ```text
//! budget = queues and their log + free list + tables + buffers and frames that are always kept + what is not counted + cache ╪ work
//!             ▲    the next queue      │                                                                                     │
//!             └────────────────────────┘                                                                                     │
//!        flush, cleansing or ingestion begins, and needs so much: the cache gives it up ◀────────────────────────────────────┤
//!                                             and ends: the cache has it again ──────────────────────────────────────────────▶
//! ```
//! There are two queues, each of at most a sixth of the budget. On top come queues that are already in the
//! trees but still held, by a snapshot or by a reader that is not scheduled. While there are such queues, the
//! active queue counts as full earlier, so that all queues together stay within a third of the budget. If the
//! data is so much larger than memory that its tables leave less than that, queues are shorter.
//!
//! A freed queue leaves its memory to the next one ([`FreeList`](crate::opq::map::FreeList)), at most as much as
//! one queue takes. Active, frozen and old queues and the free list together exceed two queues only if
//! snapshots hold several: the active one may always have a quarter of its share. The free list goes to the cache when the next queue
//! has taken nothing of it for a quarter of a second.
//!
//! The log of buffered commits lies in the page cache until the operating system writes it. If the queue comes
//! to the trees first, the log is removed and never written at all. But where total memory is limited, as in a
//! container, and short, the system writes the log to reclaim its pages. So these pages count towards the
//! budget: they had been a fifth of all that updates wrote. (docs/adr/0018-memory-budget.md)
//!
//! Work needs three kinds of memory. It takes and returns nodes again and again, as the cache does, and both use
//! the same frames: work reads into the frames that the cache has given up. What is read ahead stays in the read buffers
//! that it came in: the reader keeps as many bytes of them as are reserved, in use or idle, from one portion to the next.
//! Everything else (the writer's buffers, and lists of changes for the leaves) has memory of its own; keeping frames idle for
//! it would count that memory twice.
//!
//! Invariants:
//! 1. The cache has at least an eighth of the budget: without a cache, every inner node would be read again and
//!    again.
//! 2. The limit for frames, in use and idle, covers the nodes of the cache and of work, and nothing else.
//! 3. All work together takes from the cache at most what a single work may need.
//! 4. Read buffers beyond those that are always kept are reserved before they are allowed, and go before the cache gets
//!    their memory. (A read into a larger idle buffer counts with that buffer's size.)
//! 5. A queue counts as long as it has memory, whatever holds it. So does the free list that it leaves.

#[cfg(test)]
mod tests;

use crate::conflict::history::History;
use crate::current_state::{CurrentState, State};
use crate::flow::shares::Shares;
use crate::lock_order::{RankedMutex, rank};
use crate::opq::Opq;
use crate::opq::map::FreeList;
use crate::storage::write_behind::BUFFERS;
use crate::version::Version;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Memory that work needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// For nodes.
    nodes: u64,
    /// For read buffers of what is read ahead.
    buffers: u64,
    /// For everything else.
    rest: u64,
}

impl Need {
    /// Memory for neither nodes nor read buffers.
    pub fn rest(rest: u64) -> Self {
        Self { rest, ..Self::default() }
    }

    fn each(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            nodes: of(self.nodes, other.nodes),
            buffers: of(self.buffers, other.buffers),
            rest: of(self.rest, other.rest),
        }
    }

    pub fn bytes(self) -> u64 {
        self.nodes + self.buffers + self.rest
    }
}

impl Shares {
    /// The memory of a flush, or other work that writes nodes, which defers `deferred` bytes for the leaves and
    /// writes `written` bytes; each is limited to its share. Nodes: the log pieces that the deferred changes come
    /// from. The rest: the deferred changes, the buffers that the pieces were read into, the lists of what goes to
    /// the leaves, and the writer's buffers.
    pub fn work(&self, deferred: u64, written: u64) -> Need {
        let deferred = deferred.min(self.hold);
        let written = written.min((BUFFERS * self.writer) as u64);
        Need { nodes: deferred, buffers: 0, rest: 3 * deferred + written }
    }

    /// The memory for reading ahead `nodes` bytes of nodes. They lie in the buffers that they were read into. At most the prefetch buffer's limit is staged or on its way, and half as much more is held by
    /// buffers that are partly released ([`crate::cache::prefetch_buffer`]).
    pub fn read_ahead(&self, nodes: u64) -> Need {
        Need { nodes: 0, buffers: nodes.min(self.prefetch + self.prefetch / 2), rest: 0 }
    }

    /// The maximum of both together.
    pub fn work_max(&self) -> Need {
        self.work(u64::MAX, u64::MAX).each(self.read_ahead(u64::MAX), |work, ahead| work + ahead)
    }

    /// Frames that are always kept idle: enough for what a few readers hold, one after the other.
    pub fn spare_frames(&self) -> usize {
        2 * self.read_buffers
    }

    /// Memory that is not counted item by item: nodes held by readers, batches, log buffers, the tables of the
    /// next version. Also what the allocator keeps for threads, which does not grow with the budget: glibc had
    /// 4 to 5 MiB of free blocks at 32.
    fn uncounted(&self) -> u64 {
        self.memory / 8 + (self.memory / 32).min(1 << 20)
    }

    /// Everything except queues, cache and work. During work, this includes the part of the next version's log
    /// areas that it does not share with this one, since both exist for a while.
    fn others(&self, version: &Version, is_at_work: bool) -> u64 {
        let logs = version.logs.memory() + if is_at_work { version.logs.unshared() } else { 0 };
        let kept = self.read_buffers + self.spare_frames();
        (version.table.memory() + version.keyspaces_memory() + logs + kept) as u64 + self.uncounted()
    }

    /// The cache's capacity, given a version's tables, `queues` bytes of queues, and `work` bytes of work.
    pub fn cache(&self, version: &Version, queues: usize, work: u64) -> u64 {
        let others = self.others(version, work > 0) + queues as u64;
        self.memory.saturating_sub(others + work).max(self.memory / 8)
    }

    /// The size of a queue for this version: half of what tables and the smallest cache leave, but at least a
    /// quarter of its share.
    fn queue_beside(&self, version: &Version) -> usize {
        let left = self.memory.saturating_sub(self.others(version, true) + self.memory / 8);
        ((left / 2) as usize).max(self.queue_min).max(QUEUE_MIN).min(self.queue)
    }
}

/// The budget of an open database, and what uses it other than the current state's queues and version.
pub(crate) struct MemoryBudget {
    pub shares: Shares,
    state: Arc<CurrentState>,
    /// Memory of freed queues, for the next queue.
    pub free_list: Arc<FreeList>,
    history: Arc<History>,
    keeps_free_list: bool,
    taken: RankedMutex<rank::Memory, Taken>,
    /// Bytes of old queues, as of the last count.
    old: AtomicUsize,
    /// Bytes of log that are in the page cache and must be written before they can leave it, as of the last
    /// count.
    log: AtomicU64,
    /// Bytes that iterators held at the last count.
    iterators: AtomicUsize,
}

#[derive(Default)]
struct Taken {
    /// Number of [`Reservation`]s, and their total need.
    works: usize,
    need: Need,
    /// Bytes of read buffers that the reader may keep beyond those that are always kept.
    buffers: u64,
    /// Queues that are in the trees but may still be held.
    old: Vec<Weak<Opq>>,
}

/// The memory of a flush, a cleansing or an ingestion. Returned on drop.
pub(crate) struct Reservation {
    budget: Arc<MemoryBudget>,
    need: Cell<Need>,
}

impl Reservation {
    /// Bytes reserved so far.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.need.get().bytes()
    }

    /// Raises the reservation to `need`, taking the difference from the cache. So small work does not empty the
    /// cache.
    pub fn needs(&self, need: Need) {
        let has = self.need.get();
        let grown = has.each(need, u64::max);
        if grown != has {
            let mut taken = self.budget.taken.lock();
            taken.need = taken.need.each(grown, |all, grown| all + grown).each(has, |all, had| all - had);
            self.need.set(grown);
            self.budget.balance(&mut taken);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut taken = self.budget.taken.lock();
        taken.works -= 1;
        taken.need = taken.need.each(self.need.get(), |all, had| all - had);
        if self.need.get() != Need::default() {
            self.budget.balance(&mut taken);
        }
    }
}

/// A drop of this many bytes of log is worth a rebalance.
const MUCH: u64 = 256 << 10;

/// What iterators hold up to this fraction (1/64) of the budget is part of what is not counted.
const ITERATORS_UNCOUNTED: usize = 64;

/// The minimum bytes of a queue. A queue takes memory in steps of a quarter of a mebibyte, and would be full
/// after the first commit if it could have no more than one.
const QUEUE_MIN: usize = 512 << 10;

impl MemoryBudget {
    /// The budget of a database that is being opened. `keeps_free_list`: whether a freed queue leaves its memory to the next.
    pub fn new(
        shares: Shares,
        state: Arc<CurrentState>,
        (free_list, history): (Arc<FreeList>, Arc<History>),
        keeps_free_list: bool,
    ) -> Self {
        Self {
            shares,
            state,
            free_list,
            history,
            keeps_free_list,
            taken: RankedMutex::default(),
            old: AtomicUsize::new(0),
            log: AtomicU64::new(0),
            iterators: AtomicUsize::new(0),
        }
    }

    /// Gives the cache what queues, tables and work currently leave of the budget. Called whenever a queue has
    /// taken or returned memory; see also [`MemoryBudget::work`].
    pub fn balance_memory(&self) {
        self.balance(&mut self.taken.lock());
    }

    /// Like `balance_memory`, but skips if another thread is rebalancing, which may take long.
    pub fn try_balance_memory(&self) {
        if let Some(mut taken) = self.taken.try_lock() {
            self.balance(&mut taken);
        }
    }

    /// Records that `now` bytes of the log are in memory. The cache gives up what it grew with the next rebalance; if it
    /// shrank by much, the cache gets that back at once.
    pub fn note_log(&self, now: u64) {
        if self.log.swap(now, Relaxed) > now + MUCH {
            self.try_balance_memory();
        }
    }

    /// Iterators hold another number of bytes. The cache gives up what is more than is held uncounted.
    pub fn note_iterators(&self) {
        let (now, before) = (self.state.pager.iterator_bytes(), self.iterators.load(Relaxed));
        if now.abs_diff(before) as u64 > MUCH.max(self.shares.memory / 64) {
            self.try_balance_memory();
        }
    }

    /// Like [`MemoryBudget::balance_memory`], for a queue that has just come to the trees and may still be held by
    /// others.
    pub fn balance_without(&self, queue: Weak<Opq>) {
        let mut taken = self.taken.lock();
        taken.old.push(queue);
        self.balance(&mut taken);
    }

    fn balance(&self, taken: &mut Taken) {
        let state = self.state.load();
        taken.old.retain(|queue| queue.strong_count() > 0);
        let old = taken.old.iter().filter_map(Weak::upgrade).map(|queue| queue.memory()).sum();
        self.old.store(old, Relaxed);
        let log = self.log.load(Relaxed) as usize;
        let now = state.queues().map(|queue| queue.memory()).sum::<usize>();
        let iterators = self.state.pager.iterator_bytes();
        self.iterators.store(iterators, Relaxed);
        let iterators = iterators.saturating_sub(self.shares.memory as usize / ITERATORS_UNCOUNTED);
        self.free_list.limit(self.queue_share(&state.version));
        // Read last: a queue freed meanwhile is then counted twice rather than not at all.
        let queues = old + log + now + self.free_list.bytes() + self.history.memory() + iterators;
        let work = taken.need.each(self.shares.work_max(), u64::min);
        let pager = &self.state.pager;
        // What shrinks comes first.
        if work.buffers < taken.buffers {
            pager.reader.buffers().allow(work.buffers as usize);
        }
        pager.cache.set_capacity(self.shares.cache(&state.version, queues, work.bytes()), work.nodes);
        if work.buffers > taken.buffers {
            pager.reader.buffers().allow(work.buffers as usize);
        }
        taken.buffers = work.buffers;
    }

    /// Called when a queue is frozen: its memory will be left to the next queue. Not without a flush thread,
    /// which gives the memory back if there is no next queue.
    pub fn keep_free_list(&self) {
        if self.keeps_free_list {
            self.free_list.open(self.queue_share(&self.state.load().version));
        }
    }

    /// Gives the free list to the cache if no queue has used it for `time`.
    pub fn give_back_free_list(&self, time: Duration) {
        if self.free_list.close_after(time) > 0 {
            self.balance_memory();
        }
    }

    /// If old queues were counted, counts again. No event tells when a queue is let go.
    pub fn recount_old_queues(&self) {
        if self.old_queues() > 0 {
            self.try_balance_memory();
        }
    }

    /// Bytes of queues that are in the trees but were still held at the last count.
    pub fn old_queues(&self) -> usize {
        self.old.load(Relaxed)
    }

    /// The size at which a queue is full, for this version, if there are no old queues.
    fn queue_share(&self, version: &Version) -> usize {
        self.shares.queue_beside(version).max(QUEUE_MIN)
    }

    /// The size at which a state's active queue is full: its share, or less while old queues have memory. Then
    /// it is half of what these leave, and no more than they and the frozen queue leave.
    pub fn queue_max(&self, state: &State) -> usize {
        let (share, old) = (self.queue_share(&state.version), self.old_queues());
        if old == 0 {
            return share;
        }
        // Queues have the same memory in all, however long one of them should be.
        let longest = self.shares.queue_beside(&state.version);
        let left = (2 * longest).saturating_sub(old);
        let frozen = state.frozen.as_ref().map_or(0, |frozen| frozen.queue.memory());
        (left / 2).min(left.saturating_sub(frozen)).max(longest / 4).max(QUEUE_MIN).min(share)
    }

    /// Bytes in the state's active queue, and the size at which it is full. If the queue is full only because
    /// of old queues, recounts them first: a reader that had almost finished when the queue came to the trees
    /// holds it only for a moment.
    pub fn fill(&self, state: &State) -> (usize, usize) {
        let (fill, most) = (state.active.fill(), self.queue_max(state));
        if fill < most || fill >= self.queue_share(&state.version) {
            return (fill, most);
        }
        self.recount_old_queues();
        (fill, self.queue_max(state))
    }

    /// Reserves memory from the cache until the result is dropped.
    pub fn work(self: &Arc<Self>, need: Need) -> Reservation {
        self.taken.lock().works += 1;
        let work = Reservation { budget: Arc::clone(self), need: Cell::default() };
        work.needs(need);
        work
    }

    /// Whether a flush, a cleansing, an ingestion or the commit of a large batch is running.
    pub fn works(&self) -> bool {
        self.taken.lock().works > 0
    }

    /// The current maximum size of the writer's buffers in bytes.
    pub fn write_buffers(&self) -> usize {
        if self.works() { BUFFERS * self.shares.writer } else { 0 }
    }
}
