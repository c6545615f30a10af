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

    fn bytes(self) -> u64 {
        self.nodes + self.rest
    }
}

impl Shares {
    /// What a flush takes, or whoever else writes nodes, that holds back so many bytes for the leaves, has so many read ahead, and writes
    /// so many, but never more than each of that has as its share. Nodes are the log pieces that what it holds back comes from, and what is read
    /// ahead; the rest is what it holds back, the buffers that the pieces were read into, the lists of what goes to the leaves, and the writer's buffers.
    pub fn work(&self, held: u64, ahead: u64, written: u64) -> Need {
        let held = held.min(self.hold);
        let written = written.min((BUFFERS * self.writer) as u64);
        Need { nodes: held + ahead.min(self.stage), rest: 3 * held + written }
    }

    /// What it takes at most.
    pub fn work_max(&self) -> Need {
        self.work(u64::MAX, u64::MAX, u64::MAX)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;
    use crate::entries::Entries;
    use crate::idle::STILL;
    use crate::node::{self, Name, Node, NodeId};
    use crate::operation::{KeyspaceId, OperationRef};
    use crate::store::log_area::{Fences, Layer, Size};
    use crate::store::maplet::KeyHash;
    use crate::store::mapping_table::Position;
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
    use std::sync::Arc;
    use std::time::Instant;

    const PAGE: u64 = 4096;

    /// Fills the cache with leaves.
    fn fill(engine: &Engine) {
        for id in 0..3000 {
            let mut entries = Entries::default();
            entries.push(b"key", &[&[7; 4000]]);
            let name = Name { id: NodeId(id), level: 0, epoch: 1, keyspace: KeyspaceId(1) };
            let mut bytes = Vec::new();
            node::encode(&mut bytes, name, &entries, 1);
            let node = Node::decode(engine.pager.reader.frames().copy(&bytes)).unwrap();
            engine.pager.admit(Position(id * PAGE), node);
        }
    }

    #[test]
    fn large_tables_leave_less_for_queues_and_the_least_for_the_cache() {
        let shares = Database::builder().memory(64 << 20).shares(64 << 20);
        let mut version = Version::empty(64 << 20);
        assert_eq!(shares.queue_beside(&version), shares.queue);
        let hashes: Vec<_> = (0..60u64).map(|key| KeyHash::of(&key.to_be_bytes())).collect();
        let (mut last, mut least) = (usize::MAX, 0);
        for number in 0..200_000 {
            let pieces = [NodeId(number + 10_000)];
            let layer = Layer { pieces: &pieces, fences: Fences::default(), removals: 0 };
            version.logs.push(NodeId(number % 8000), layer, Size { bytes: 4096, fresh: 0 }, &hashes);
            let queue = shares.queue_beside(&version);
            // It leaps where layers that the next one makes another bundle of become such that it does not.
            assert!(queue <= last.saturating_add(1 << 20) && queue >= shares.queue / 4);
            last = queue;
            let logs = version.logs.memory() + version.logs.unshared();
            let taken = (logs + 2 * queue) as u64 + shares.cache(&version, 2 * queue, 1);
            if queue > shares.queue / 4 {
                assert!(taken < shares.memory, "{taken}");
                least += 1;
            }
        }
        assert!(least > 20_000 && last == shares.queue / 4, "{least}, {last}");
    }

    #[test]
    fn work_takes_from_the_cache_what_it_needs_and_keeps_as_frames_what_is_nodes() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(8 << 20).background_threads(0).open_on(volume).unwrap();
        let engine = &db.handle.engine;
        let cache = || engine.pager.cache.bytes();
        fill(engine);
        let ((before, _), (nodes_before, records_before)) = (engine.pager.reader.frames().pages(), cache());
        let need = engine.shares.work_max();
        let work = engine.work(Need { rest: 0, ..need });
        let others = engine.work(Need { nodes: 0, ..need });
        work.needs(Need { nodes: 0, ..need });
        let (nodes, records) = cache();
        // Never more than one needs, and each has its part.
        let given = nodes_before + records_before - nodes - records;
        assert!(given.abs_diff(need.bytes()) < 64 << 10, "{given} of {need:?}");
        let (used, idle) = engine.pager.reader.frames().pages();
        let evicted = (before - used) as u64 * PAGE;
        let idle = idle as u64 * PAGE;
        let most = need.nodes + engine.shares.spare_frames() as u64;
        // A node in the cache takes some bytes besides its frame.
        assert!(evicted > most + nodes / 25, "{evicted} of nodes");
        assert!((need.nodes..=most + nodes / 25).contains(&idle), "{idle} of {need:?}");
        drop(work);
        assert_eq!(engine.budget.taken.lock().need, Need { nodes: 0, ..need });
        drop(others);
        assert_eq!(engine.budget.taken.lock().need, Need::default());
        fill(engine);
        assert!(cache().0.abs_diff(nodes_before) < 8 << 10 && cache().1 == records_before);
    }

    #[test]
    fn who_held_a_queue_for_a_moment_leaves_the_next_one_its_share() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(32 << 20).background_threads(0).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        let mut number = 0u64;
        let mut write = || {
            let mut batch = db.batch();
            for _ in 0..1000 {
                batch.insert(&keyspace, (number * 7919).to_be_bytes(), [1; 200]);
                number += 1;
            }
            batch.commit().unwrap();
        };
        let held_while_it_comes_to_the_trees = |write: &mut dyn FnMut()| {
            (0..12).for_each(|_| write());
            let reader = engine.state.load_full();
            db.flush().unwrap();
            assert!(engine.old_queues() > 2 << 20);
            reader
        };
        // As it is at the end of a flush beside which the next queue has become nearly full.
        let reader = held_while_it_comes_to_the_trees(&mut write);
        engine.budget.taken.lock().old.clear();
        let (share, flushes) = (engine.shares.queue, db.stats().writes.flushes);
        while engine.state.load().active.fill() < share - (768 << 10) {
            write();
        }
        engine.balance_without(Arc::downgrade(&reader.active));
        let state = engine.state.load_full();
        assert!(
            state.active.fill() > engine.queue_max(&state),
            "it is full as long as somebody holds the other"
        );
        drop((reader, state));
        keyspace.insert("one", "more").unwrap();
        assert_eq!(db.stats().writes.flushes, flushes, "it was frozen for the sake of nobody");
        // Without work, too: who looks, and the thread that has nothing to do.
        drop(held_while_it_comes_to_the_trees(&mut write));
        let queues = engine.state.load().queues().map(|queue| queue.memory() as u64).sum::<u64>();
        assert_eq!(db.stats().memory.queues, queues);
        drop(held_while_it_comes_to_the_trees(&mut write));
        engine.idle(&mut crate::idle::Idle::default());
        assert_eq!(engine.old_queues(), 0);
    }

    #[test]
    fn the_log_counts_until_it_is_synced_or_not_needed() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(32 << 20).background_threads(0).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        // Half of it is set aside for records, as long as nobody reads.
        let capacity = || 2 * engine.pager.cache.records().capacity();
        let queues = || engine.state.load().queues().map(|queue| queue.memory() as u64).sum::<u64>();
        let whole = capacity() + queues();
        let write = |first: u64| {
            let mut batch = db.batch();
            for number in first..first + 1000 {
                batch.insert(&keyspace, number.to_be_bytes(), [1; 200]);
            }
            batch.durability(crate::Durability::Buffered).commit().unwrap();
        };
        (0..12).for_each(|round| write(1000 * round));
        let log = 12_000 * 208;
        let counted = whole - capacity() - queues();
        // It is counted when the queue takes memory, not with each commit.
        assert!((log - (512 << 10)..log + (512 << 10)).contains(&counted), "{counted} of {log}");
        db.sync().unwrap();
        assert!(capacity() + queues() + (16 << 10) > whole, "it is synced");
        (12..16).for_each(|round| write(1000 * round));
        assert!(capacity() + queues() + (512 << 10) < whole);
        db.flush().unwrap();
        assert!(
            capacity() + queues() + (64 << 10) > whole,
            "{} {} {whole}: nobody needs it",
            capacity(),
            queues()
        );
    }

    #[test]
    fn queues_that_somebody_holds_count_and_leave_less_to_the_next() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(32 << 20).background_threads(0).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        let share = engine.shares.queue;
        let queue_max = || engine.queue_max(&engine.state.load());
        // Half of it is set aside for records, as long as nobody reads.
        let capacity = || 2 * engine.pager.cache.records().capacity() as usize;
        let (whole, mut number) = (capacity(), 0u64);
        let mut write = |records: usize| {
            let mut batch = db.batch();
            for _ in 0..records {
                batch.insert(&keyspace, (number * 7919).to_be_bytes(), [1; 200]);
                number += 1;
            }
            batch.commit().unwrap();
        };
        (0..20).for_each(|_| write(1000));
        let snapshot = db.snapshot();
        let held = engine.state.load().active.memory();
        assert!(held > 4 << 20, "{held}");
        db.flush().unwrap();
        assert!(capacity() + held <= whole + 8192, "{} of {whole}, {held} are held", capacity());
        assert_eq!(queue_max(), (2 * share - held) / 2);
        assert_eq!(db.stats().memory.queues, held as u64);
        for _ in 0..80 {
            write(1000);
            let memory: usize = engine.state.load().queues().map(|queue| queue.memory()).sum();
            assert!(memory + held <= 2 * share, "{memory} and {held} of {share}");
        }
        // Queues of short ones, and as many of them as may be: never none.
        let mut snapshots = vec![snapshot];
        for _ in 0..40 {
            write(1000);
            snapshots.push(db.snapshot());
        }
        assert_eq!(queue_max(), share / 4);
        drop(snapshots);
        // Something to flush.
        write(1);
        db.flush().unwrap();
        assert_eq!(queue_max(), share);
        assert!(capacity() + (256 << 10) > whole, "{} of {whole}", capacity());
    }

    /// A database with a budget of 32 MiB, and what writes so many records of 200 bytes to it.
    fn writing(threads: usize) -> (Database, impl FnMut(usize, usize)) {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(32 << 20).background_threads(threads).open_on(volume).unwrap();
        let (keyspace, shared, mut number) = (db.keyspace("main").unwrap(), db.clone(), 0u64);
        let write = move |records: usize, len: usize| {
            let mut batch = shared.batch();
            for _ in 0..records {
                batch.insert(&keyspace, (number * 7919).to_be_bytes(), vec![1; len]);
                number += 1;
            }
            batch.commit().unwrap();
        };
        (db, write)
    }

    fn queues(engine: &Engine) -> usize {
        engine.state.load().queues().map(|queue| queue.memory()).sum()
    }

    #[test]
    fn what_a_queue_has_left_counts_until_the_next_has_taken_it_or_it_is_given_back() {
        let (db, mut write) = writing(0);
        let engine = &db.handle.engine;
        // Half of it is set aside for records, as long as nobody reads.
        let capacity = || 2 * engine.pager.cache.records().capacity() as usize;
        let whole = capacity();
        let is_counted = || {
            let taken = capacity() + queues(engine) + engine.spare.bytes();
            assert!(taken.abs_diff(whole) < 64 << 10, "{taken} of {whole}");
        };
        (0..16).for_each(|_| write(1000, 200));
        let memory = queues(engine);
        db.flush().unwrap();
        assert_eq!(engine.spare.bytes(), 0, "without a background thread nobody would give it back");
        (0..16).for_each(|_| write(1000, 200));
        engine.spare.open(engine.shares.queue);
        db.flush().unwrap();
        assert_eq!(engine.spare.bytes(), memory);
        assert_eq!(db.stats().memory.spare, memory as u64);
        is_counted();
        assert!(engine.keeps_something());
        for _ in 0..8 {
            write(1000, 200);
            assert_eq!(queues(engine) + engine.spare.bytes(), memory);
            is_counted();
        }
        engine.give_back_spare(Duration::from_secs(3600));
        assert!(engine.spare.is_open(), "it may still be taken");
        engine.give_back_spare(Duration::ZERO);
        assert_eq!((engine.spare.bytes(), engine.spare.is_open()), (0, false));
        is_counted();
        // A flush may be at work for long when its queue is in the trees, and then nobody is idle.
        db.flush().unwrap();
        engine.spare.open(engine.shares.queue);
        engine.rest_beside_readers(2 * STILL);
        assert!(!engine.spare.is_open());
    }

    #[test]
    fn queues_and_what_they_have_left_never_take_more_than_two() {
        let (db, mut write) = writing(0);
        let engine = &db.handle.engine;
        let most = 2 * engine.shares.queue.next_multiple_of(256 << 10) + (512 << 10);
        engine.spare.open(engine.shares.queue);
        let mut kept = 0;
        for round in 0..6 {
            // Such as go into chunks, and such as stand alone.
            let (records, len) = [(200, 200), (2, 100 << 10)][round % 2];
            let flushes = db.stats().writes.flushes;
            while db.stats().writes.flushes < flushes + 2 {
                write(records, len);
                let all = queues(engine) + engine.spare.bytes();
                assert!(all <= most, "{all} of {most}");
                kept = kept.max(engine.spare.bytes());
            }
        }
        assert!(kept > engine.shares.queue / 2, "{kept}");
        // And what it may be follows what a queue may take.
        engine.spare.open(1 << 40);
        engine.balance_memory();
        let other = Opq::new(&engine.spare);
        let value = vec![1; 50 << 10];
        let change = |_| OperationRef { keyspace: KeyspaceId(1), key: b"key", value: Some(&value) };
        other.insert_all((0..200).map(change), 1);
        assert!(other.memory() > 8 << 20);
        drop(other);
        assert_eq!(engine.spare.bytes(), engine.shares.queue.next_multiple_of(256 << 10));
        engine.give_back_spare(Duration::ZERO);
        // A queue that somebody holds comes there when he lets go.
        write(1000, 200);
        let (snapshot, memory) = (db.snapshot(), queues(engine));
        db.flush().unwrap();
        engine.spare.open(engine.shares.queue);
        assert_eq!(db.stats().memory.queues, memory as u64);
        drop(snapshot);
        assert_eq!((db.stats().memory.queues, engine.spare.bytes()), (0, memory));
        let state = engine.state.load_full();
        assert_eq!(engine.queue_max(&state), engine.shares.queue);
    }

    /// While it flushes, one queue's memory is the next one's; and a quarter of a second later nobody's.
    #[test]
    fn a_database_at_rest_keeps_nothing_of_a_queue() {
        let (db, mut write) = writing(1);
        let engine = &db.handle.engine;
        let until = |what: &str, is_so: &mut dyn FnMut() -> bool| {
            let began = Instant::now();
            while !is_so() {
                assert!(began.elapsed() < Duration::from_secs(120), "{what}");
            }
        };
        let capacity = || 2 * engine.pager.cache.records().capacity() as usize;
        let whole = capacity();
        let mut before = 0;
        until("some of a queue is left", &mut || {
            write(200, 200);
            before = engine.spare.bytes();
            before > 1 << 20
        });
        until("the next takes it", &mut || {
            write(200, 200);
            engine.spare.bytes() < before && engine.spare.bytes() > 0
        });
        db.flush().unwrap();
        until("it is given back", &mut || {
            std::thread::sleep(Duration::from_millis(10));
            !engine.spare.is_open()
        });
        assert_eq!(db.stats().memory.spare, 0);
        until("the cache has it", &mut || capacity() + queues(engine) + (512 << 10) > whole);
        write(1, 200);
        let handle = Arc::clone(&db.handle);
        db.flush().unwrap();
        db.close().unwrap();
        assert!(!handle.engine.spare.is_open());
    }

    #[test]
    fn while_the_disk_is_full_nothing_is_kept_for_a_next_queue() {
        let simulated = Simulated::new(1);
        let volume: Arc<dyn Volume> = Arc::new(simulated.clone());
        let db = Database::builder().memory(32 << 20).open_on(volume).unwrap();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        keyspace.insert("key", "value").unwrap();
        let writes = Filter::kinds([OperationKind::Write]).file("data");
        simulated.fail_nth(writes, 1, Fault::NoSpace, Repeat::Sticky);
        assert!(db.flush().is_err_and(|error| error.is_disk_full()));
        let began = Instant::now();
        while engine.spare.is_open() {
            assert!(began.elapsed() < Duration::from_secs(60));
        }
        assert!(engine.state.load().frozen.is_some());
        simulated.clear_faults();
        db.flush().unwrap();
    }
}
