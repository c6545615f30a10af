//! The cache: nodes under their positions, and single records ([`RecordCache`]). Both share one capacity,
//! which is divided as the workload needs it ([`partition`](crate::cache::partition)): a side that has to read
//! again what it evicted gets more.
//!
//! ```text
//! capacity ═ nodes: inner nodes, leaves that come again, nodes of short scans ╪ records: those that were requested singly
//! ```
//! Every record that is requested singly is kept, so that its leaf can go. Once the nodes' side is full, a
//! leaf or log piece that had to be read for such a record is not cached, unless it is read again before as
//! many bytes of other nodes have become ghosts as the whole cache could hold: then it is no worse than the
//! nodes in the cache.
//!
//! Invariants:
//! 1. Nodes are stored under positions, which are not reused while their node is here (an aborted attempt
//!    removes its own): nothing is stale. (For records see [`RecordCache`].)
//! 2. Both sides together stay within the capacity.
//! 3. The nodes' memory ([`Frames`]) is limited to what the nodes' side and the work in progress may have,
//!    and this limit changes with the partition: only this module knows where that is. The limit is set after
//!    the nodes' side has made room, so that surplus memory is given back at once.

pub(crate) mod bucket;
mod buckets;
pub(crate) mod ghosts;
pub(crate) mod pager;
pub(crate) mod partition;
pub(crate) mod prefetch_buffer;
pub(crate) mod records;
pub(crate) mod scan_lengths;
pub(crate) mod windowed_min;

use crate::cache::ghosts::Ghosts;
use crate::cache::partition::{CachePartition, Division, LEAST, Vote};
use crate::cache::records::{KeepOutcome, RecordCache};
use crate::operation::KeyspaceId;
use crate::storage::frames;
use crate::storage::frames::Frames;
use crate::storage::mapping_table::Position;
use crate::storage::node::Node;
use crate::storage::reader::Keep;
use bytes::Bytes;
use quick_cache::sync::Cache as NodeCache;
use quick_cache::{Lifecycle, OptionsBuilder};
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;

/// A long node, in bytes: [`shards`].
const LONG_NODE: u64 = 64 << 10;

/// Memory of a cached node besides its bytes: the cache's entry and the allocation.
const OVERHEAD: usize = 160;

fn memory_of(node: &Node) -> u64 {
    (frames::memory_of(node.bytes().len()) + OVERHEAD) as u64
}

/// Number of parts of the nodes' side, each with a lock of its own. A part keeps no node that is longer than
/// itself, so it must have room for a long one even when nodes have their least share.
fn shards(capacity: u64) -> usize {
    // Asked once, by the first cache: the answer takes the system longer than the rest of making one.
    static PROCESSORS: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, NonZero::get));
    let most = capacity / LEAST / LONG_NODE;
    (most as usize).clamp(1, 4 * *PROCESSORS)
}

#[derive(Clone)]
struct ByMemory;

impl quick_cache::Weighter<Position, Node> for ByMemory {
    fn weight(&self, _: &Position, node: &Node) -> u64 {
        memory_of(node)
    }
}

/// Turns evicted nodes into ghosts, and notes that the nodes' side is full.
#[derive(Clone)]
struct EvictionListener {
    ghosts: Arc<Ghosts>,
    /// Whether the nodes' side has evicted a node since it last had room.
    is_full: Arc<AtomicBool>,
}

impl Lifecycle<Position, Node> for EvictionListener {
    /// Nodes that had to go for another, dropped after their part of the cache is unlocked. (Those that a smaller
    /// capacity lets go are dropped before.)
    type RequestState = Vec<(Position, Node)>;

    fn begin_request(&self) -> Self::RequestState {
        Vec::new()
    }

    fn on_evict(&self, state: &mut Self::RequestState, position: Position, node: Node) {
        state.push((position, node));
    }

    fn end_request(&self, evicted: Self::RequestState) {
        for (position, node) in evicted {
            self.ghosts.add(position, memory_of(&node));
            self.is_full.store(true, Relaxed);
        }
    }
}

type Nodes = NodeCache<Position, Node, ByMemory, quick_cache::DefaultHashBuilder, EvictionListener>;

/// See the module.
pub(crate) struct Cache {
    nodes: Nodes,
    evictions: EvictionListener,
    frames: Arc<Frames>,
    records: RecordCache,
    partition: CachePartition,
    /// Bytes of nodes that work in progress may have in addition; changed by the thread that divides.
    at_work: AtomicU64,
}

impl Cache {
    /// Nodes that are put here should have their memory from `frames`.
    pub fn new(capacity: u64, frames: Arc<Frames>) -> Self {
        let entries = (capacity / 8192).clamp(64, 1 << 24) as usize;
        let evictions =
            EvictionListener { ghosts: Arc::new(Ghosts::new(entries * 4)), is_full: Arc::default() };
        let options = OptionsBuilder::new()
            .estimated_items_capacity(entries)
            .weight_capacity(capacity)
            .shards(shards(capacity))
            .build()
            .unwrap_or_else(|_| unreachable!("both capacities are given"));
        let cache = Self {
            nodes: NodeCache::with_options(options, ByMemory, Default::default(), evictions.clone()),
            evictions,
            frames,
            records: RecordCache::default(),
            partition: CachePartition::default(),
            at_work: AtomicU64::new(0),
        };
        cache.set_capacity(capacity, 0);
        cache
    }

    /// Bytes of cached nodes, and bytes reserved for records.
    pub fn bytes(&self) -> (u64, u64) {
        (self.nodes.weight(), self.records.capacity())
    }

    /// Bytes that both sides may hold.
    #[cfg(test)]
    pub fn capacity(&self) -> u64 {
        self.partition.capacity()
    }

    /// Changes the capacity, and how many bytes of nodes work in progress may have in addition.
    pub fn set_capacity(&self, bytes: u64, at_work: u64) {
        self.partition.set_capacity(bytes, |division| {
            self.at_work.store(at_work, Relaxed);
            self.divide(division);
        });
    }

    /// Gives records their share of what has lasted for long enough by now. Called now and then.
    pub fn look_again(&self) {
        self.partition.look_again(|division| self.divide(division));
    }

    /// The side that shrinks is changed first.
    fn divide(&self, Division { nodes, records, records_before }: Division) {
        if records < records_before {
            self.records.set_capacity(records);
        }
        if nodes > self.nodes.capacity() {
            self.evictions.is_full.store(false, Relaxed);
        }
        self.nodes.set_capacity(nodes);
        self.frames.allow(nodes + self.at_work.load(Relaxed));
        if records > records_before {
            self.records.set_capacity(records);
        }
    }

    /// Counts a vote for more memory on one side.
    fn vote(&self, vote: Vote) {
        self.partition.vote(vote, |division| self.divide(division));
    }

    /// The node, if it is cached.
    pub fn get(&self, position: Position) -> Option<Node> {
        self.nodes.get(&position)
    }

    /// Whether the node is cached. Does not count as a use.
    fn holds(&self, position: Position) -> bool {
        self.nodes.contains_key(&position)
    }

    /// Caches a node.
    pub fn insert(&self, position: Position, node: Node) {
        let mut evicted = self.nodes.insert_with_lifecycle(position, node);
        // A node that two readers have read at the same time, or that is too long for the cache.
        evicted.retain(|(evicted, _)| *evicted != position);
        self.evictions.end_request(evicted);
    }

    /// Caches a node that was read to be kept for so long; a copy, if it lies in a read buffer.
    fn insert_read(&self, position: Position, node: &Node, keep: Keep) {
        let kept = match keep.is_copied(node.bytes().len()) {
            true => node.clone(),
            false => node.moved_to(self.frames.copy(node.bytes())),
        };
        self.insert(position, kept);
    }

    /// Removes a node. Returns whether it was cached.
    pub fn remove(&self, position: Position) -> bool {
        let was_here = self.nodes.remove(&position).is_some();
        if was_here {
            self.evictions.is_full.store(false, Relaxed);
        }
        was_here
    }

    /// Notes that a reader had to read a node. Returns whether it is read again soon enough to be cached.
    pub fn missed(&self, position: Position) -> bool {
        let Some(age) = self.evictions.ghosts.take(position) else { return false };
        self.vote(if self.records.is_idle() { Vote::RecordsUnused } else { Vote::NodeCameBack { age } });
        age <= self.partition.capacity()
    }

    /// Offers a node that a reader had to read for something in it, to keep it for so long.
    pub fn offer(&self, position: Position, node: &Node, keep: Keep) {
        if self.missed(position) {
            self.insert_read(position, node, keep);
            // So that it is spared when it is the oldest of the nodes used once. The map's own memory of
            // evicted nodes shrinks with every change of its capacity, and ours are frequent.
            let _ = self.nodes.get(&position);
        } else if node.name().is_inner() || !self.evictions.is_full.load(Relaxed) {
            self.insert_read(position, node, keep);
        } else {
            self.evictions.ghosts.add(position, memory_of(node));
        }
    }

    /// The tree's record, for a reader of the state with this number.
    pub fn record(&self, number: u64, keyspace: KeyspaceId, key: &[u8]) -> Option<Bytes> {
        self.records.get(number, keyspace, key)
    }

    /// Keeps a record that a reader of the state with this number has found in a leaf or log piece; the whole
    /// node, if the record is too long.
    pub fn remember(&self, number: u64, key: &[u8], value: &[u8], (position, node): (Position, &Node)) {
        match self.records.put(number, node.name().keyspace, key, value) {
            // If the node had to be read, more memory for records would have saved that.
            KeepOutcome::Again if !self.holds(position) => self.vote(Vote::RecordCameBack),
            KeepOutcome::TooLong if !self.holds(position) => {
                self.insert_read(position, node, Keep::Briefly);
                // Records have memory that is not used.
                if self.evictions.is_full.load(Relaxed) && self.records.is_idle() {
                    self.vote(Vote::RecordsUnused);
                }
            }
            _ => {}
        }
    }

    /// The record cache.
    pub fn records(&self) -> &RecordCache {
        &self.records
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::entries::Entries;
    use crate::storage::node;
    use crate::storage::node::{Name, NodeId};
    use std::time::Duration;

    fn leaf(id: u64) -> Node {
        let mut entries = Entries::default();
        entries.push(&id.to_be_bytes(), &[&[7; 4000]]);
        let name = Name { id: NodeId(id), level: 0, epoch: 1, keyspace: KeyspaceId(1) };
        let mut bytes = Vec::new();
        node::encode(&mut bytes, name, &entries, 1);
        Node::decode(bytes.into()).expect("a node")
    }

    /// Reads one of `leaves` leaves with 35 records each.
    fn read(cache: &Cache, leaf_of: u64, record: u64) {
        let key = record.to_be_bytes();
        if cache.record(0, KeyspaceId(1), &key).is_some() {
            return;
        }
        let position = Position(leaf_of * 4096);
        let node = cache.get(position).unwrap_or_else(|| {
            let node = leaf(leaf_of);
            cache.offer(position, &node, Keep::Briefly);
            node
        });
        cache.remember(0, &key, &[1; 100], (position, &node));
    }

    #[test]
    fn two_readers_of_one_node_do_not_fill_the_cache() {
        let cache = Cache::new(CAPACITY, Frames::new(0));
        let (node, other) = (leaf(1), Position(8192));
        (0..2).for_each(|_| cache.insert(Position(4096), node.clone()));
        cache.offer(other, &leaf(2), Keep::Briefly);
        assert!(cache.holds(other), "there is room for it");
        assert!(!cache.missed(Position(4096)), "it has not gone");
    }

    /// However many processors there are.
    #[test]
    fn a_long_node_fits_into_a_part_of_the_least_share() {
        assert_eq!(shards(1 << 20), 1);
        for capacity in [4 << 20, 64 << 20, 1 << 30, 1 << 40] {
            let parts = shards(capacity) as u64;
            assert!(parts == 1 || capacity / LEAST / parts >= LONG_NODE, "{parts} of {capacity}");
        }
    }

    const CAPACITY: u64 = 8 << 20;

    const FOR_NODES: Vote = Vote::NodeCameBack { age: 0 };

    #[test]
    fn records_get_the_memory_when_they_are_requested_again_and_their_neighbours_are_not() {
        let cache = Cache::new(CAPACITY, Frames::new(0));
        for turn in 0..400_000u64 {
            // 60,000 records, each in a leaf of its own.
            let record = turn * 2_654_435_761 % 60_000;
            read(&cache, record, record);
        }
        let (_, records) = cache.bytes();
        assert!(records > CAPACITY * 3 / 4, "{records} of {CAPACITY}");
    }

    #[test]
    fn leaves_get_it_when_all_of_their_records_are_requested() {
        let cache = Cache::new(CAPACITY, Frames::new(0));
        for turn in 0..400_000u64 {
            // 2,300 leaves are walked through, all records of one after the other.
            let record = turn % (2_300 * 35);
            read(&cache, record / 35, record);
        }
        let (nodes, records) = cache.bytes();
        assert!(records < CAPACITY / 4 && nodes > CAPACITY / 2, "{records} and {nodes} of {CAPACITY}");
    }

    #[test]
    fn nodes_get_it_when_all_records_are_too_long_for_records() {
        let cache = Cache::new(CAPACITY, Frames::new(0));
        // Hardly any comes twice.
        for leaf_of in 0..3000 {
            let (position, node) = (Position(leaf_of * 8192), leaf(leaf_of));
            cache.offer(position, &node, Keep::Briefly);
            cache.remember(0, &leaf_of.to_be_bytes(), &[1; 4000], (position, &node));
        }
        let (nodes, records) = cache.bytes();
        assert!(records < CAPACITY / 8 && nodes > CAPACITY * 3 / 4, "{records} and {nodes} of {CAPACITY}");
    }

    /// Flushes visit all blocks in turn: in such a cyclic pattern no node comes back soon.
    #[test]
    fn nodes_get_it_when_flushes_need_them_and_no_records_are_requested() {
        for is_read in [true, false] {
            let cache = Cache::new(CAPACITY, Frames::new(0));
            if is_read {
                cache.remember(0, &7u64.to_be_bytes(), &[1; 100], (Position(1 << 40), &leaf(7)));
            }
            (0..20).for_each(|_| cache.records().note_flush());
            for id in (0..1500).cycle().take(1500 * 3) {
                let position = Position(id * 8192);
                if cache.get(position).is_none() {
                    cache.offer(position, &leaf(id), Keep::Briefly);
                }
            }
            let (nodes, records) = cache.bytes();
            assert_eq!(nodes < CAPACITY * 2 / 3, is_read, "{nodes} and {records} of {CAPACITY}");
        }
    }

    #[test]
    fn records_are_idle_when_flushes_go_on_for_long_without_requests() {
        let cache = Cache::new(CAPACITY, Frames::new(0));
        let (records, key, hour) = (cache.records(), 7u64.to_be_bytes(), Duration::from_secs(3600));
        assert!(records.is_idle(), "none was ever requested");
        cache.remember(0, &key, &[1; 100], (Position(0), &leaf(7)));
        assert!(!records.is_idle_at(hour), "there was no flush since");
        records.note_flush();
        assert!(!records.is_idle() && records.is_idle_at(hour));
        assert!(cache.record(0, KeyspaceId(1), &key).is_some());
        assert!(!records.is_idle_at(hour), "a reader came");
        records.note_flush();
        records.renew(KeyspaceId(1), &key, Some(&[2; 100]), false);
        assert!(records.is_idle_at(hour), "a writer is no reader");
        records.renew(KeyspaceId(1), &key, Some(&[2; 100]), true);
        assert!(!records.is_idle_at(hour), "but one asked for it in the queue");
    }

    #[test]
    fn a_node_that_comes_back_outlives_those_that_come_once() {
        let cache = Cache::new(CAPACITY, Frames::new(0));
        // As a queue that grows and goes, a thousand times.
        for turn in 0..1000 {
            cache.set_capacity(if turn % 2 == 0 { CAPACITY * 3 / 4 } else { CAPACITY }, 0);
        }
        let insert = |ids: std::ops::Range<u64>| {
            ids.for_each(|id| cache.insert(Position(id * 4096), leaf(id)));
        };
        insert(0..2000);
        let again: Vec<_> = (0..2000).filter(|id| !cache.holds(Position(id * 4096))).take(50).collect();
        again.iter().for_each(|id| cache.offer(Position(id * 4096), &leaf(*id), Keep::Briefly));
        insert(10_000..14_000);
        let here = again.iter().filter(|id| cache.holds(Position(**id * 4096))).count();
        // The ghosts of some are overwritten; without the memory of the others none would be here.
        assert!(here > 25, "{here} of {}", again.len());
    }

    #[test]
    fn bounds_are_kept_when_the_capacity_changes() {
        let cache = Cache::new(CAPACITY, Frames::new(0));
        let fill = |from: u64| {
            (from..from + 4000).for_each(|id| cache.insert(Position(id * 4096), leaf(id)));
            cache.bytes()
        };
        for capacity in [CAPACITY, CAPACITY / 4, CAPACITY, 1 << 20] {
            cache.set_capacity(capacity, 0);
            let (nodes, records) = fill(capacity);
            assert!(nodes + records <= capacity, "{nodes} + {records} of {capacity}");
            assert!(records <= capacity / 4 * 3, "{records} of {capacity}");
        }
        (0..10_000).for_each(|_| cache.vote(Vote::RecordCameBack));
        let (nodes, records) = fill(0);
        assert!(nodes + records <= 1 << 20 && nodes > 0);
    }

    const SPARE: usize = 64;

    /// A cache that is full of nodes, whose frames are pages, and these.
    fn full_of_nodes() -> (Cache, Arc<Frames>) {
        let frames = Frames::new(SPARE * 4096);
        let cache = Cache::new(CAPACITY, Arc::clone(&frames));
        (0..10_000).for_each(|_| cache.vote(FOR_NODES));
        for id in 0..4000 {
            let node = Node::decode(frames.copy(leaf(id).bytes())).expect("a node");
            cache.insert(Position(id * 4096), node);
        }
        (cache, frames)
    }

    /// Pages that frames may have for the nodes of this cache.
    fn pages_of(cache: &Cache) -> usize {
        (cache.nodes.capacity() / 4096) as usize
    }

    #[test]
    fn what_nodes_give_up_for_work_stays_for_the_nodes_of_that_work_and_the_rest_goes() {
        let (cache, frames) = full_of_nodes();
        let (before, _) = frames.pages();
        assert!(before > pages_of(&cache) * 9 / 10);
        let at_work = 200;
        cache.set_capacity(CAPACITY / 2, at_work * 4096);
        let (used, idle) = frames.pages();
        assert!(before - used > 900, "{used} of {before} are left");
        assert!(used + idle <= pages_of(&cache) + at_work as usize + SPARE, "{used} and {idle}");
        assert!(idle >= at_work as usize, "{idle} are there for the work");
        // Work takes them, and gives them back.
        for _ in 0..3 {
            let nodes: Vec<_> = (0..at_work).map(|_| frames.copy(&[7; 4096])).collect();
            assert!(frames.pages().0 + frames.pages().1 <= used + idle);
            drop(nodes);
            assert_eq!(frames.pages(), (used, idle));
        }
        cache.set_capacity(CAPACITY / 2, 0);
        let (used, idle) = frames.pages();
        assert!(used + idle <= pages_of(&cache) + SPARE, "{used} and {idle} when it is over");
    }

    #[test]
    fn what_nodes_give_up_for_records_goes() {
        let (cache, frames) = full_of_nodes();
        let before = pages_of(&cache);
        (0..10_000).for_each(|_| cache.vote(Vote::RecordCameBack));
        let (used, idle) = frames.pages();
        assert!(pages_of(&cache) < before / 4);
        assert!(used + idle <= pages_of(&cache) + SPARE, "{used} and {idle} for {}", pages_of(&cache));
        // And what records give up for nodes stays, when these let it go.
        (0..10_000).for_each(|_| cache.vote(FOR_NODES));
        drop((0..before / 2).map(|_| frames.copy(&[7; 4096])).collect::<Vec<_>>());
        assert!(frames.pages().1 >= before / 2);
    }
}
