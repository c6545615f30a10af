//! The memory budget, and how it follows the work: what queues, tables and work do not take at the moment is the cache's.
//!
//! ```text
//! budget = queues + tables + buffers and frames that are always kept + an eighth for what is not counted + cache ╪ work
//!                                                                                                                │
//!        flush, cleansing or ingestion begins, and needs so much: the cache gives it up ◀────────────────────────┤
//!                                             and ends: the cache has it again ──────────────────────────────────▶
//! ```
//! What work needs is of two kinds. Nodes it takes and gives back again and again, and so does the cache: they lie in the same frames, and what
//! the cache has given up, the work reads into. All else (buffers, and lists of what goes to the leaves) has memory of its own: frames that
//! stayed idle for that would be there a second time.
//!
//! Invariants:
//! 1. The cache has at least an eighth of the budget: a database without any would read every inner node again and again.
//! 2. Frames, in use and idle, are allowed what the cache's nodes and the nodes of work may take, and nothing for the rest of it.
//! 3. All work together takes from the cache what one may need at most.

use crate::engine::Engine;
use crate::options::Shares;
use crate::store::version::Version;
use crate::store::write_behind::BUFFERS;
use std::cell::Cell;

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

    /// What is left for the cache beside the tables of a version, queues that take so many bytes now, and work that takes so many.
    pub fn cache(&self, version: &Version, queues: usize, work: u64) -> u64 {
        let tables = version.table.memory() + version.logs.memory();
        let kept = self.read_buffers + self.spare_frames();
        // The eighth is for what is not counted one by one: nodes in the hands of readers, batches, log buffers, the tables of the next version,
        // and what an allocator keeps.
        let others = (queues + tables + kept) as u64 + self.memory / 8;
        self.memory.saturating_sub(others + work).max(self.memory / 8)
    }
}

/// All [`Work`]s together.
#[derive(Default)]
pub(crate) struct Works {
    count: usize,
    need: Need,
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
            let mut works = self.engine.works.lock();
            works.need = works.need.each(grown, |all, grown| all + grown).each(has, |all, had| all - had);
            self.need.set(grown);
            self.engine.balance(&works);
        }
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        let mut works = self.engine.works.lock();
        works.count -= 1;
        works.need = works.need.each(self.need.get(), |all, had| all - had);
        if self.need.get() != Need::default() {
            self.engine.balance(&works);
        }
    }
}

impl Engine {
    /// Gives the cache what queues, tables and work leave of the budget now. Called whenever a queue has taken memory or has given
    /// it back; and see [`Engine::work`].
    pub fn balance_memory(&self) {
        self.balance(&self.works.lock());
    }

    /// The same, if nobody else is at it: whoever is may be at it for long.
    pub fn try_balance_memory(&self) {
        if let Some(works) = self.works.try_lock() {
            self.balance(&works);
        }
    }

    fn balance(&self, works: &Works) {
        let state = self.state.load();
        let queues = state.queues().map(|queue| queue.memory()).sum();
        let work = works.need.each(self.shares.work_max(), u64::min);
        self.pager.cache.set_capacity(self.shares.cache(&state.version, queues, work.bytes()), work.nodes);
    }

    /// Takes so much from the cache, and what else will be needed, until the answer is dropped.
    pub fn work(&self, need: Need) -> Work<'_> {
        self.works.lock().count += 1;
        let work = Work { engine: self, need: Cell::default() };
        work.needs(need);
        work
    }

    /// Whether a flush, a cleansing or an ingestion is at work.
    pub fn works(&self) -> bool {
        self.works.lock().count > 0
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
    use crate::node::{self, Name, Node, NodeId};
    use crate::operation::KeyspaceId;
    use crate::store::mapping_table::Position;
    use psync::{Simulated, Volume};
    use std::sync::Arc;

    const PAGE: u64 = 4096;

    /// Fills the cache with leaves.
    fn fill(engine: &Engine) {
        for id in 0..3000 {
            let mut entries = Entries::default();
            entries.push(b"key", &[&[7; 4000]]);
            let name = Name { id: NodeId(id), level: 0, epoch: 1, keyspace: KeyspaceId(1) };
            let mut bytes = Vec::new();
            node::encode(&mut bytes, name, &entries, 1);
            let node = Node::decode(engine.pager.copy(&bytes)).unwrap();
            engine.pager.admit(Position(id * PAGE), node);
        }
    }

    #[test]
    fn work_takes_from_the_cache_what_it_needs_and_keeps_as_frames_what_is_nodes() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder().memory(8 << 20).background_threads(0).open_on(volume).unwrap();
        let engine = &db.handle.engine;
        let cache = || engine.pager.cache.bytes();
        fill(engine);
        let ((before, _), (nodes_before, records_before)) = (engine.pager.frame_pages(), cache());
        let need = engine.shares.work_max();
        let work = engine.work(Need { rest: 0, ..need });
        let others = engine.work(Need { nodes: 0, ..need });
        work.needs(Need { nodes: 0, ..need });
        let (nodes, records) = cache();
        // Never more than one needs, and each has its part.
        let given = nodes_before + records_before - nodes - records;
        assert!(given.abs_diff(need.bytes()) < 64 << 10, "{given} of {need:?}");
        let (used, idle) = engine.pager.frame_pages();
        let evicted = (before - used) as u64 * PAGE;
        let idle = idle as u64 * PAGE;
        let most = need.nodes + engine.shares.spare_frames() as u64;
        // A node in the cache takes some bytes besides its frame.
        assert!(evicted > most + nodes / 25, "{evicted} of nodes");
        assert!((need.nodes..=most + nodes / 25).contains(&idle), "{idle} of {need:?}");
        drop(work);
        assert_eq!(engine.works.lock().need, Need { nodes: 0, ..need });
        drop(others);
        assert_eq!(engine.works.lock().need, Need::default());
        fill(engine);
        assert!(cache().0.abs_diff(nodes_before) < 8 << 10 && cache().1 == records_before);
    }
}
