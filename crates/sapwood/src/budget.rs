//! The memory budget, and how it follows the work: what queues, tables and work do not take at the moment is the cache's.
//!
//! ```text
//! budget = queues and their log + spare + tables + buffers and frames that are always kept + what is not counted + cache ╪ work
//!             ▲    the next queue  │                                                                                     │
//!             └────────────────────┘                                                                                     │
//!        flush, cleansing or ingestion begins, and needs so much: the cache gives it up ◀────────────────────────────────┤
//!                                             and ends: the cache has it again ──────────────────────────────────────────▶
//! ```
//! Queues are two, of at most a sixth of the budget each, and besides those that are in the trees and that somebody still holds: a snapshot, or a reader whom nobody
//! lets run. While there are such, the active queue is full earlier, so that all of them have a third of the budget. And where the data is so much larger than memory that
//! its tables leave less than that, queues are shorter.
//!
//! What a queue that is gone has left for the next one ([`Spare`](crate::queue::map::Spare)) is at most what one takes, and active, frozen and old queues and it together are
//! never more than two. The cache has it when the next queue has not taken it for a quarter of a second.
//!
//! A buffered commit's log lies in the page cache until the system writes it, which it need not do at all if the queue comes to the trees before: then the
//! log is removed, and was never written. But where memory is limited as a whole, as in a container, and there is too little of it, the system
//! writes the log to have its pages. So they count: a fifth of all that updates wrote was that log. (docs/design.md)
//!
//! What work needs is of two kinds. Nodes it takes and gives back again and again, and so does the cache: they lie in the same frames, and what
//! the cache has given up, the work reads into. All else (buffers, and lists of what goes to the leaves) has memory of its own: frames that
//! stayed idle for that would be there a second time.
//!
//! Invariants:
//! 1. The cache has at least an eighth of the budget: a database without any would read every inner node again and again.
//! 2. Frames, in use and idle, are allowed what the cache's nodes and the nodes of work may take, and nothing for the rest of it.
//! 3. All work together takes from the cache what one may need at most.
//! 4. A queue counts as long as it has memory, whoever holds it, and so does what it has left.

#[cfg(test)]
mod tests;

use crate::commit::Log;
use crate::engine::{Engine, State};
use crate::options::Shares;
use crate::queue::opq::Opq;
use crate::store::version::Version;
use crate::store::write_behind::BUFFERS;
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Memory that work needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Of nodes.
    nodes: u64,
    /// Of everything else.
    rest: u64,
}

impl Need {
    fn each(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self { nodes: of(self.nodes, other.nodes), rest: of(self.rest, other.rest) }
    }

    pub fn bytes(self) -> u64 {
        self.nodes + self.rest
    }
}

impl Shares {
    /// What a flush takes, or whoever else writes nodes, that holds back so many bytes for the leaves, and writes
    /// so many, but never more than each of that has as its share. Nodes are the log pieces that what it holds back comes from;
    /// the rest is what it holds back, the buffers that the pieces were read into, the lists of what goes to the leaves, and the writer's buffers.
    pub fn work(&self, held: u64, written: u64) -> Need {
        let held = held.min(self.hold);
        let written = written.min((BUFFERS * self.writer) as u64);
        Need { nodes: held, rest: 3 * held + written }
    }

    /// What is read ahead takes, of so many bytes of nodes. It lies in the buffers that it was read into, or beside them in frames; there is as much of it as may be staged or coming, and half as much
    /// in buffers of which a part was let go ([`crate::store::stage`]).
    pub fn read_ahead(&self, nodes: u64) -> Need {
        Need { nodes: 0, rest: nodes.min(self.stage + self.stage / 2) }
    }

    /// What both take at most.
    pub fn work_max(&self) -> Need {
        self.work(u64::MAX, u64::MAX).each(self.read_ahead(u64::MAX), |work, ahead| work + ahead)
    }

    /// Frames that are kept idle, whatever is in use: what a few readers have in their hands, one after the other.
    pub fn spare_frames(&self) -> usize {
        2 * self.read_buffers
    }

    /// What is not counted one by one: nodes in the hands of readers, batches, log buffers, the tables of the next version. And what an allocator keeps for threads, which does not grow
    /// with the budget: glibc's had 4 to 5 MiB of free blocks at 32.
    fn uncounted(&self) -> u64 {
        self.memory / 8 + (self.memory / 32).min(1 << 20)
    }

    /// All but queues, cache and work beside a version; while there is work, with what the log areas of the next version do not share with
    /// this one, for as long as both are there.
    fn others(&self, version: &Version, is_at_work: bool) -> u64 {
        let logs = version.logs.memory() + if is_at_work { version.logs.unshared() } else { 0 };
        let kept = self.read_buffers + self.spare_frames();
        (version.table.memory() + logs + kept) as u64 + self.uncounted()
    }

    /// What is left for the cache beside the tables of a version, queues that take so many bytes now, and work that takes so many.
    pub fn cache(&self, version: &Version, queues: usize, work: u64) -> u64 {
        let others = self.others(version, work > 0) + queues as u64;
        self.memory.saturating_sub(others + work).max(self.memory / 8)
    }

    /// Bytes of a queue beside a version: half of what tables and the least cache leave, a quarter of its share at least.
    fn queue_beside(&self, version: &Version) -> usize {
        let left = self.memory.saturating_sub(self.others(version, true) + self.memory / 8);
        ((left / 2) as usize).max(self.queue / 4).max(QUEUE_MIN).min(self.queue)
    }
}

/// Who takes of the budget beside the queues and the version of the state.
#[derive(Default)]
pub(crate) struct Budget {
    taken: Mutex<Taken>,
    /// Bytes of old queues, when they were counted last.
    old: AtomicUsize,
    /// Bytes of the log that are in the page cache and cannot leave it before they are written, when they were counted last.
    log: AtomicU64,
}

#[derive(Default)]
struct Taken {
    /// [`Work`]s, and what they need together.
    works: usize,
    need: Need,
    /// Queues that are in the trees, as far as somebody holds them.
    old: Vec<Weak<Opq>>,
}

/// The memory of flush, cleansing or ingestion.
pub(crate) struct Work<'a> {
    engine: &'a Engine,
    need: Cell<Need>,
}

impl Work<'_> {
    /// Bytes that it has got.
    pub fn bytes(&self) -> u64 {
        self.need.get().bytes()
    }

    /// Takes so much from the cache, as far as it has not got as much: what is small does not empty it.
    pub fn needs(&self, need: Need) {
        let has = self.need.get();
        let grown = has.each(need, u64::max);
        if grown != has {
            let mut taken = self.engine.budget.taken.lock();
            taken.need = taken.need.each(grown, |all, grown| all + grown).each(has, |all, had| all - had);
            self.need.set(grown);
            self.engine.balance(&mut taken);
        }
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        let mut taken = self.engine.budget.taken.lock();
        taken.works -= 1;
        taken.need = taken.need.each(self.need.get(), |all, had| all - had);
        if self.need.get() != Need::default() {
            self.engine.balance(&mut taken);
        }
    }
}

/// Bytes of log that are worth a balance.
const MUCH: u64 = 256 << 10;

/// Bytes that a queue may have at least. It takes its memory by quarters of a mebibyte, and would be full with the first commit if it could have no more than one.
const QUEUE_MIN: usize = 512 << 10;

impl Engine {
    /// Gives the cache what queues, tables and work leave of the budget now. Called whenever a queue has taken memory or has given
    /// it back; and see [`Engine::work`].
    pub fn balance_memory(&self) {
        self.balance(&mut self.budget.taken.lock());
    }

    /// The same, if nobody else is at it: whoever is may be at it for long.
    pub fn try_balance_memory(&self) {
        if let Some(mut taken) = self.budget.taken.try_lock() {
            self.balance(&mut taken);
        }
    }

    /// Notes how much of the log is in memory. What it takes the cache gives up with the next balance; what it took, if that was much, it has again at once.
    pub fn note_log(&self, log: &Log) {
        let now = log.wal.unsynced_bytes();
        if self.budget.log.swap(now, Relaxed) > now + MUCH {
            self.try_balance_memory();
        }
    }

    /// As [`Engine::balance_memory`], when a queue has come to the trees: others may hold it for longer.
    pub fn balance_without(&self, queue: Weak<Opq>) {
        let mut taken = self.budget.taken.lock();
        taken.old.push(queue);
        self.balance(&mut taken);
    }

    fn balance(&self, taken: &mut Taken) {
        let state = self.state.load();
        taken.old.retain(|queue| queue.strong_count() > 0);
        let old = taken.old.iter().filter_map(Weak::upgrade).map(|queue| queue.memory()).sum();
        self.budget.old.store(old, Relaxed);
        let log = self.budget.log.load(Relaxed) as usize;
        let now = state.queues().map(|queue| queue.memory()).sum::<usize>();
        self.spare.limit(self.shares.queue_beside(&state.version));
        // Last: a queue that goes meanwhile is rather counted twice than not at all.
        let queues = old + log + now + self.spare.bytes();
        let work = taken.need.each(self.shares.work_max(), u64::min);
        self.pager.cache.set_capacity(self.shares.cache(&state.version, queues, work.bytes()), work.nodes);
    }

    /// A queue is frozen: what is left of it is for the next. Not without somebody who gives it back if there is none.
    pub fn keep_spare(&self) {
        if self.flush.in_background() {
            self.spare.open(self.shares.queue_beside(&self.state.load().version));
        }
    }

    /// Gives the cache what was left for the next queue, if nothing was for so long.
    pub fn give_back_spare(&self, time: Duration) {
        if self.spare.close_after(time) > 0 {
            self.balance_memory();
        }
    }

    /// If old queues were counted: whether somebody still holds them. Nobody tells when he lets go.
    pub fn recount_old_queues(&self) {
        if self.old_queues() > 0 {
            self.try_balance_memory();
        }
    }

    /// Bytes of queues that are in the trees and that somebody held when they were counted last.
    pub fn old_queues(&self) -> usize {
        self.budget.old.load(Relaxed)
    }

    /// Bytes at which the active queue of a state is full: its share, or less as long as old queues have memory. Half of what these leave, and no more than they and the frozen one leave.
    pub fn queue_max(&self, state: &State) -> usize {
        let (share, old) = (self.shares.queue_beside(&state.version), self.old_queues());
        if old == 0 {
            return share;
        }
        let left = (2 * share).saturating_sub(old);
        let frozen = state.frozen.as_ref().map_or(0, |frozen| frozen.queue.memory());
        (left / 2).min(left.saturating_sub(frozen)).max(share / 4).max(QUEUE_MIN).min(share)
    }

    /// Bytes in the active queue of a state, and at how many it is full. One that is full only because of old queues is
    /// so only if somebody holds these now: a reader that was just not done when they came to the trees is so for a moment.
    pub fn fill(&self, state: &State) -> (usize, usize) {
        let (fill, most) = (state.active.fill(), self.queue_max(state));
        if !(most..self.shares.queue_beside(&state.version)).contains(&fill) {
            return (fill, most);
        }
        self.recount_old_queues();
        (fill, self.queue_max(state))
    }

    /// Takes so much from the cache, and what else will be needed, until the answer is dropped.
    pub fn work(&self, need: Need) -> Work<'_> {
        self.budget.taken.lock().works += 1;
        let work = Work { engine: self, need: Cell::default() };
        work.needs(need);
        work
    }

    /// Whether a flush, a cleansing or an ingestion is at work.
    pub fn works(&self) -> bool {
        self.budget.taken.lock().works > 0
    }

    /// Bytes of the writer's buffers now, at most.
    pub fn write_buffers(&self) -> usize {
        if self.works() { BUFFERS * self.shares.writer } else { 0 }
    }
}
