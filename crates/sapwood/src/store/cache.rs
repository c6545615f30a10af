//! What is kept in memory of what was read: whole nodes, under their positions, and single records ([`RecordCache`]). Both live on
//! one capacity, and how it is divided follows the workload.
//!
//! ```text
//! capacity ═ nodes: inner nodes, leaves that come again, what scans come to ╪ records: what was asked for singly
//!                        a ghost of a node comes back ──▶ │ ◀── a ghost of a record comes back
//! ```
//! Each side remembers as ghosts what it let go last, and as much of it as fits into the same number of bytes. When one comes
//! back, these bytes would have saved a read; so the border moves a little towards the other side, and rests where both would gain
//! the same. (The idea is ARC's: Megiddo and Modha, FAST 2003; there for recency against frequency.) As long as all records that were asked for were too long
//! for the records' side, nodes take its memory without ghosts.
//!
//! Every record that is asked for singly is kept, so that the leaf where it was found can go. A leaf or log piece that had to be
//! read for it is not cached once the nodes' side is full, unless it comes again before as many bytes of others have as all of
//! the cache could hold: then it is not worse than what is there.
//!
//! Invariants:
//! 1. Nodes are under positions, which are never used twice: nothing is stale. (For records see [`RecordCache`].)
//! 2. Both together stay within the capacity.
//! 3. The nodes' memory ([`Frames`]) is allowed what the nodes' side and work may have, from the moment on when that changes: nobody else knows where the border is. It is told
//!    when the nodes' side has made room, so that what has to go goes at once.

use crate::node::Node;
use crate::operation::KeyspaceId;
use crate::store::frames::{self, Frames};
use crate::store::ghosts::Ghosts;
use crate::store::mapping_table::Position;
use crate::store::record_cache::{Kept, RecordCache};
use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::Lifecycle;
use quick_cache::sync::Cache as NodeCache;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

/// Memory that a cached node takes besides its bytes: the cache's entry and the allocation.
const OVERHEAD: usize = 160;

/// How far the border moves for one ghost, in bytes, and how much is moved at a time.
const LEAN: i64 = 16 << 10;
const STEP: i64 = 64 << 10;
/// Neither side goes below this share of the capacity.
const LEAST: u64 = 16;
/// Down to this share of a capacity that is too small for both nodes give of theirs, if they want as much. Inner nodes need it.
const NODES: u64 = 4;
/// Ghosts count that fit into this share of what records may take.
const WINDOW: u64 = 8;

/// What records may have of a capacity who want so much.
fn within(capacity: u64, records: u64) -> u64 {
    records.clamp(capacity / LEAST, capacity - capacity / LEAST)
}

fn memory_of(node: &Node) -> u64 {
    (frames::memory_of(node.bytes().len()) + OVERHEAD) as u64
}

#[derive(Clone)]
struct ByMemory;

impl quick_cache::Weighter<Position, Node> for ByMemory {
    fn weight(&self, _: &Position, node: &Node) -> u64 {
        memory_of(node)
    }
}

/// Makes ghosts of what is evicted, and notes that something was.
#[derive(Clone)]
struct Haunting {
    ghosts: Arc<Ghosts>,
    is_full: Arc<AtomicBool>,
}

impl Lifecycle<Position, Node> for Haunting {
    /// One that is dropped when the cache is no longer locked.
    type RequestState = Option<Node>;

    fn begin_request(&self) -> Self::RequestState {
        None
    }

    fn on_evict(&self, state: &mut Self::RequestState, position: Position, node: Node) {
        self.ghosts.add(position, memory_of(&node));
        self.is_full.store(true, Relaxed);
        *state = Some(node);
    }
}

/// What each side would have if there were enough for both, in bytes.
#[derive(Debug, Default)]
struct Border {
    nodes: u64,
    records: u64,
}

impl Border {
    /// What records are to have of a capacity: the same on its way down and up again.
    fn records_of(&mut self, capacity: u64) -> u64 {
        if self.nodes + self.records == 0 {
            self.records = capacity / 2;
        }
        // More than both want is the nodes'.
        self.nodes = self.nodes.max(capacity.saturating_sub(self.records));
        self.records.min(capacity - self.nodes.min(capacity / NODES))
    }

    /// Records have got so much from nodes.
    fn moved(&mut self, by: i64) {
        self.records = self.records.saturating_add_signed(by);
        self.nodes = self.nodes.saturating_add_signed(-by);
    }
}

type Nodes = NodeCache<Position, Node, ByMemory, quick_cache::DefaultHashBuilder, Haunting>;

/// See the module.
pub(crate) struct Cache {
    nodes: Nodes,
    frames: Arc<Frames>,
    ghosts: Arc<Ghosts>,
    /// Whether the nodes' side has had to let one go since it had room.
    is_full: Arc<AtomicBool>,
    records: RecordCache,
    /// What records may take of `capacity`, in bytes; changed by whoever holds `border`.
    records_bytes: AtomicU64,
    capacity: AtomicU64,
    /// Bytes of nodes that work may have besides; changed likewise.
    at_work: AtomicU64,
    border: Mutex<Border>,
    /// Bytes that records (below zero: nodes) should have more.
    lean: AtomicI64,
}

impl Cache {
    /// Nodes that come here have their memory from `frames`.
    pub fn new(capacity: u64, frames: Arc<Frames>) -> Self {
        let entries = (capacity / 8192).clamp(64, 1 << 24) as usize;
        let ghosts = Arc::new(Ghosts::new(entries * 4));
        let is_full = Arc::new(AtomicBool::new(false));
        let haunting = Haunting { ghosts: Arc::clone(&ghosts), is_full: Arc::clone(&is_full) };
        let cache = Self {
            nodes: NodeCache::with(entries, capacity, ByMemory, Default::default(), haunting),
            frames,
            ghosts,
            is_full,
            records: RecordCache::default(),
            records_bytes: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
            at_work: AtomicU64::new(0),
            border: Mutex::default(),
            lean: AtomicI64::new(0),
        };
        cache.set_capacity(capacity, 0);
        cache
    }

    /// Bytes that are held: of nodes, and set aside for records.
    pub fn bytes(&self) -> (u64, u64) {
        (self.nodes.weight(), self.records.capacity())
    }

    /// Bytes that may be held.
    #[cfg(test)]
    pub fn capacity(&self) -> u64 {
        self.capacity.load(Relaxed)
    }

    /// Changes how much may be held, and how many bytes of nodes work may have besides. Both sides keep what they want as long as there is enough. Of less, nodes give first, down to
    /// their part: what they lose a few reads bring again, leaf by leaf, where records come one by one. So a queue that grows and goes does not empty the records' side each time.
    pub fn set_capacity(&self, bytes: u64, at_work: u64) {
        let mut border = self.border.lock();
        self.at_work.store(at_work, Relaxed);
        self.capacity.store(bytes, Relaxed);
        self.divide(bytes, border.records_of(bytes));
    }

    /// Gives records so much of the capacity. The side that shrinks goes first.
    fn divide(&self, capacity: u64, records: u64) {
        #[cfg(test)]
        tests::divided();
        let records = within(capacity, records);
        let before = self.records_bytes.swap(records, Relaxed);
        if records < before {
            self.records.set_capacity(records);
        }
        let nodes = capacity - records;
        if nodes > self.nodes.capacity() {
            self.is_full.store(false, Relaxed);
        }
        self.nodes.set_capacity(nodes);
        self.frames.allow(nodes + self.at_work.load(Relaxed));
        if records > before {
            self.records.set_capacity(records);
        }
    }

    /// One ghost more that speaks for records, or for nodes.
    fn lean(&self, by: i64) {
        let lean = self.lean.fetch_add(by, Relaxed) + by;
        if lean.abs() >= STEP
            && let Some(mut border) = self.border.try_lock()
        {
            let lean = self.lean.swap(0, Relaxed);
            let (capacity, records) = (self.capacity.load(Relaxed), self.records_bytes.load(Relaxed));
            let wanted = within(capacity, records.saturating_add_signed(lean));
            // Where one side has all that it may have, it goes on to be asked for.
            if wanted != records {
                border.moved(wanted as i64 - records as i64);
                self.divide(capacity, wanted);
            }
        }
    }

    /// The node, if it is here.
    pub fn get(&self, position: Position) -> Option<Node> {
        self.nodes.get(&position)
    }

    /// Whether the node is here. Does not count as a use.
    fn holds(&self, position: Position) -> bool {
        self.nodes.contains_key(&position)
    }

    /// Puts a node here.
    pub fn insert(&self, position: Position, node: Node) {
        self.nodes.insert(position, node);
    }

    /// Takes a node away. Says whether it was here.
    pub fn remove(&self, position: Position) -> bool {
        let was_here = self.nodes.remove(&position).is_some();
        if was_here {
            self.is_full.store(false, Relaxed);
        }
        was_here
    }

    /// A reader had to read a node. Says whether it comes again soon.
    pub fn missed(&self, position: Position) -> bool {
        let Some(age) = self.ghosts.take(position) else { return false };
        if age <= self.records_bytes.load(Relaxed) / WINDOW {
            self.lean(-LEAN);
        }
        age <= self.capacity.load(Relaxed)
    }

    /// A reader had to read this node for something in it.
    pub fn offer(&self, position: Position, node: &Node) {
        if self.missed(position) {
            self.insert(position, node.clone());
            // So that it is spared when it is the oldest of those that came once. The map's own memory of whom it let go
            // shrinks with every change of its capacity, and ours are frequent.
            let _ = self.nodes.get(&position);
        } else if node.name().is_inner() || !self.is_full.load(Relaxed) {
            self.insert(position, node.clone());
        } else {
            self.ghosts.add(position, memory_of(node));
        }
    }

    /// The tree's record, for a reader of a state with this number.
    pub fn record(&self, number: u64, keyspace: KeyspaceId, key: &[u8]) -> Option<Bytes> {
        self.records.get(number, keyspace, key)
    }

    /// Keeps a record that a reader of a state with this number has found in a leaf or log piece; if it is too long, the node.
    pub fn remember(&self, number: u64, key: &[u8], value: &[u8], (position, node): (Position, &Node)) {
        match self.records.put(number, node.name().keyspace, key, value) {
            // With more memory for records the node would not have been read, if it was.
            Kept::Again if !self.holds(position) => self.lean(LEAN),
            Kept::TooLong if !self.holds(position) => {
                self.insert(position, node.clone());
                // Memory for records that nobody has.
                if self.is_full.load(Relaxed) && !self.records.is_used() {
                    self.lean(-LEAN);
                }
            }
            _ => {}
        }
    }

    /// The records.
    pub fn records(&self) -> &RecordCache {
        &self.records
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::Entries;
    use crate::node::{self, Name, NodeId};
    use std::cell::Cell;

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
            cache.offer(position, &node);
            node
        });
        cache.remember(0, &key, &[1; 100], (position, &node));
    }

    const CAPACITY: u64 = 8 << 20;

    thread_local! {
        static DIVIDED: Cell<u64> = const { Cell::new(0) };
    }

    /// A cache is divided anew.
    pub(super) fn divided() {
        DIVIDED.set(DIVIDED.get() + 1);
    }

    #[test]
    fn records_get_the_memory_when_they_are_asked_for_again_and_their_neighbours_are_not() {
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
    fn leaves_get_it_when_all_of_their_records_are_asked_for() {
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
            cache.offer(position, &node);
            cache.remember(0, &leaf_of.to_be_bytes(), &[1; 4000], (position, &node));
        }
        let (nodes, records) = cache.bytes();
        assert!(records < CAPACITY / 8 && nodes > CAPACITY * 3 / 4, "{records} and {nodes} of {CAPACITY}");
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
        again.iter().for_each(|id| cache.offer(Position(id * 4096), &leaf(*id)));
        insert(10_000..14_000);
        let here = again.iter().filter(|id| cache.holds(Position(**id * 4096))).count();
        // Of some nobody knows any more that they went; without the memory of the others it is none.
        assert!(here > 25, "{here} of {}", again.len());
    }

    #[test]
    fn nodes_give_and_are_given_when_the_capacity_changes() {
        let cache = Cache::new(CAPACITY, Frames::new(0));
        let records = |capacity| {
            cache.set_capacity(capacity, 0);
            cache.bytes().1
        };
        let half = CAPACITY / 2;
        assert_eq!(records(CAPACITY * 3 / 4), half, "nodes have a third");
        assert_eq!(
            records(CAPACITY * 5 / 8),
            CAPACITY / 32 * 15,
            "and here no more than their quarter, with a tick for rounding"
        );
        assert_eq!(records(CAPACITY / 2), CAPACITY / 8 * 3);
        assert_eq!(records(CAPACITY), half, "as it was");
        (0..10_000).for_each(|_| cache.lean(LEAN));
        assert_eq!(records(CAPACITY), CAPACITY / 16 * 15);
        assert_eq!(
            records(CAPACITY / 2),
            CAPACITY / 2 - CAPACITY / 16,
            "they have no more than a sixteenth of the whole"
        );
        // What is learned while there is little is no more than what was learned.
        (0..4).for_each(|_| cache.lean(-LEAN));
        assert_eq!(records(CAPACITY), CAPACITY / 16 * 15 - 4 * LEAN as u64);
        (0..4).for_each(|_| cache.lean(LEAN));
        for capacity in [CAPACITY / 8, CAPACITY / 4, CAPACITY / 2] {
            assert!(records(capacity) + CAPACITY / 16 >= capacity, "the same on the way up");
        }
        assert_eq!(records(CAPACITY), CAPACITY / 16 * 15);
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
        (0..10_000).for_each(|_| cache.lean(LEAN));
        let (nodes, records) = fill(0);
        assert!(nodes + records <= 1 << 20 && nodes > 0);
    }

    const SPARE: usize = 64;

    /// A cache that is full of nodes, whose frames are pages, and these.
    fn full_of_nodes() -> (Cache, Arc<Frames>) {
        let frames = Frames::new(SPARE * 4096);
        let cache = Cache::new(CAPACITY, Arc::clone(&frames));
        (0..10_000).for_each(|_| cache.lean(-LEAN));
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
        (0..10_000).for_each(|_| cache.lean(LEAN));
        let (used, idle) = frames.pages();
        assert!(pages_of(&cache) < before / 4);
        assert!(used + idle <= pages_of(&cache) + SPARE, "{used} and {idle} for {}", pages_of(&cache));
        // And what records give up for nodes stays, when these let it go.
        (0..10_000).for_each(|_| cache.lean(-LEAN));
        drop((0..before / 2).map(|_| frames.copy(&[7; 4096])).collect::<Vec<_>>());
        assert!(frames.pages().1 >= before / 2);
    }

    /// With every change of its capacity the nodes' map forgets some of those whom it let go.
    #[test]
    fn a_side_that_has_all_it_may_have_asks_in_vain() {
        let cache = Cache::new(CAPACITY, Frames::new(0));
        let divided_by = |by: i64| {
            let before = DIVIDED.get();
            (0..10_000).for_each(|_| cache.lean(by));
            DIVIDED.get() - before
        };
        for by in [LEAN, -LEAN] {
            assert!(divided_by(by) > 10);
            assert_eq!(divided_by(by), 0);
        }
    }
}
