//! The B-link tree (Lehman and Yao, TODS 6(4), 1981), the concurrent B-tree that the PIO B-tree is measured against: readers take no
//! locks and move right where a split has overtaken them; writers lock one node, and while a split goes up, its parent too.
//! Deletions do not join nodes, as published.
//!
//! Invariants:
//! 1. Locks are taken from below to above and from left to right, that of the root's place last, so no two threads wait for each
//!    other.
//! 2. A new right half is written before the left one points at it, and that before the parent does: whoever reads in between
//!    finds every key.
//! 3. While the root is split, nobody learns where the tree begins: whoever has come to its right half by the old root waits for
//!    the new one before it splits that half.

mod load;
#[cfg(test)]
mod tests;

use crate::buffer::latched_pool::LatchedPool;
use crate::index::{Checked, Contract, Index};
use crate::page::NodeId;
use crate::page::blink_node::{BlinkNode, capacity};
use crate::page::node::{Inner, Leaf, Node, Shape};
use crate::sound::Sound;
use crate::store::Root;
use crate::store::in_place::InPlaceStore;
use crate::update::in_order::{InOrder, check_fill};
use crate::update::split_merge::{Pair, split};
use crate::{Counters, Error, Key, Result, Value};
use parking_lot::{Mutex, RwLock};
use psync::Volume;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const FILE: &str = "blink";

/// What a B-link tree is built with.
#[derive(Clone, Debug)]
pub struct BlinkOptions {
    /// Bytes of a node, a power of two from 128 on.
    pub page_len: usize,
    /// Nodes that the buffer pool holds, at least 1.
    pub frames: usize,
    /// Most keys in a node, if less than a page holds.
    pub keys_max: Option<usize>,
}

impl Default for BlinkOptions {
    fn default() -> Self {
        Self { page_len: 4096, frames: 4096, keys_max: None }
    }
}

/// Locks that are kept although nobody uses them.
const LOCKS_MAX: usize = 4096;

/// See the module. All its operations but [`Index::flush`] take `&self`, from many threads.
pub struct BlinkTree {
    nodes: LatchedPool<BlinkNode>,
    shape: Shape,
    root: RwLock<Root>,
    /// Next page, and free ones.
    fresh: Mutex<(u64, Vec<u64>)>,
    locks: Mutex<HashMap<NodeId, Arc<Mutex<()>>>>,
    splits: AtomicU64,
    /// How often a reader or writer had to move right.
    moves: AtomicU64,
    sound: Sound,
}

impl BlinkTree {
    fn over(store: InPlaceStore<BlinkNode>, options: &BlinkOptions) -> Self {
        let (records, fanout) = capacity(options.page_len);
        let (root, next) = (store.durable_root(), store.next());
        let nodes = LatchedPool::new(store, options.frames);
        let sound = nodes.sound();
        Self {
            nodes,
            shape: Shape { fanout, records }.limited(options.keys_max),
            root: RwLock::new(root),
            fresh: Mutex::new((next, Vec::new())),
            locks: Mutex::default(),
            splits: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            sound,
        }
    }

    /// The root of an empty tree.
    fn plant(&self) -> Result<Root> {
        let id = self.allocate();
        self.nodes.write(id, BlinkNode { right: None, node: Node::Leaf(Leaf::default()) })?;
        Ok(Root { id, level: 0 })
    }

    fn allocate(&self) -> NodeId {
        let (next, free) = &mut *self.fresh.lock();
        let id = free.pop().unwrap_or_else(|| {
            *next += 1;
            *next - 1
        });
        self.nodes.store().reach(*next);
        NodeId(id)
    }

    /// The lock that keeps other writers from a node.
    fn lock(&self, id: NodeId) -> Arc<Mutex<()>> {
        let mut locks = self.locks.lock();
        if locks.len() > LOCKS_MAX {
            // Nobody else can get hold of one meanwhile.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        Arc::clone(locks.entry(id).or_default())
    }

    /// The node of a level that holds a key, from `id` on rightwards.
    fn move_right(&self, mut id: NodeId, key: Key) -> Result<(NodeId, Arc<BlinkNode>)> {
        let mut node = self.nodes.read(id)?;
        while let Some(right) = node.beyond(key) {
            self.moves.fetch_add(1, Relaxed);
            id = right;
            node = self.nodes.read(id)?;
        }
        Ok((id, node))
    }

    /// The node of `level` that holds a key now, and the way to it: where it went down on each level above, root first.
    fn descend(&self, key: Key, level: u8) -> Result<(NodeId, Arc<BlinkNode>, Vec<NodeId>)> {
        let root = *self.root.read();
        let (mut id, mut node) = self.move_right(root.id, key)?;
        let mut way = Vec::new();
        while node.node.level() > level {
            let inner = node.node.as_inner()?;
            way.push(id);
            let child = inner.children[inner.child_of(key)];
            (id, node) = self.move_right(child, key)?;
        }
        Ok((id, node, way))
    }

    /// Changes the leaf that holds a key; whatever becomes too full is split, upwards.
    fn change(&self, key: Key, change: impl Fn(&mut Leaf)) -> Result<()> {
        self.sound.check()?;
        let (id, _, way) = self.descend(key, 0)?;
        // Somebody may have split it before it is locked.
        let holder = self.lock_holder(id, key)?;
        self.sound.after(self.change_leaf(holder, way, change))
    }

    fn change_leaf(
        &self,
        (mut guard, mut id, node): (Latch, NodeId, Arc<BlinkNode>),
        mut way: Vec<NodeId>,
        change: impl Fn(&mut Leaf),
    ) -> Result<()> {
        let mut grown = node.as_ref().clone();
        match &mut grown.node {
            Node::Leaf(leaf) => change(leaf),
            Node::Inner(_) => return Err(Error::broken(format!("{id}: an inner node for a leaf"))),
        }
        while self.shape.overflows(&grown.node) {
            self.splits.fetch_add(1, Relaxed);
            let Pair { left, fence, right } = split(grown.node);
            let level = left.level();
            let right_id = self.allocate();
            // If no way led here, this is the root, or was it on the way down.
            let root = if way.is_empty() { Some(self.root.write()) } else { None };
            self.nodes.write(right_id, BlinkNode { right: grown.right, node: right })?;
            self.nodes.write(id, BlinkNode { right: Some((fence, right_id)), node: left })?;
            if let Some(mut root) = root.filter(|root| root.id == id) {
                *root = self.raise(level, fence, [id, right_id])?;
                drop(guard);
                return Ok(());
            }
            let above = self.parent(&mut way, fence, level)?;
            // The parent is locked before the child is let go.
            let (parent_guard, parent_id, parent) = self.lock_holder(above, fence)?;
            let mut parent = parent.as_ref().clone();
            let Node::Inner(inner) = &mut parent.node else {
                return Err(Error::broken(format!("{parent_id}: a leaf for an inner node")));
            };
            let child = inner.child_of(fence);
            inner.fences.insert(child, fence);
            inner.children.insert(child + 1, right_id);
            guard = parent_guard;
            id = parent_id;
            grown = parent;
        }
        self.nodes.write(id, grown)?;
        drop(guard);
        Ok(())
    }

    /// A root above two nodes.
    fn raise(&self, level: u8, fence: Key, children: [NodeId; 2]) -> Result<Root> {
        let root = Root { id: self.allocate(), level: level + 1 };
        let node = Inner { level: root.level, fences: vec![fence], children: children.into() };
        self.nodes.write(root.id, BlinkNode { right: None, node: Node::Inner(node) })?;
        Ok(root)
    }

    /// Where the new neighbour of a node of `level` is to be made known: a node on the level above, at or left of the right one.
    fn parent(&self, way: &mut Vec<NodeId>, fence: Key, level: u8) -> Result<NodeId> {
        if let Some(above) = way.pop() {
            return Ok(above);
        }
        // The node was the root on the way down, and is no longer.
        let (above, node, between) = self.descend(fence, level + 1)?;
        if node.node.level() != level + 1 {
            return Err(Error::broken(format!(
                "{above} is where the tree begins, and not above level {level}"
            )));
        }
        *way = between;
        Ok(above)
    }

    /// Locks the node that holds a key, from `id` on rightwards.
    fn lock_holder(&self, mut id: NodeId, key: Key) -> Result<(Latch, NodeId, Arc<BlinkNode>)> {
        loop {
            let guard = self.lock(id).lock_arc();
            let node = self.nodes.read(id)?;
            match node.beyond(key) {
                None => return Ok((guard, id, node)),
                Some(right) => {
                    self.moves.fetch_add(1, Relaxed);
                    id = right;
                }
            }
        }
    }

    /// Sets the value of a key.
    pub fn insert(&self, key: Key, value: Value) -> Result<()> {
        self.change(key, |leaf| {
            leaf.insert(key, value);
        })
    }

    /// Removes a key.
    pub fn delete(&self, key: Key) -> Result<()> {
        self.change(key, |leaf| {
            leaf.remove(key);
        })
    }

    /// How often a search or an update had to move right, since a split had overtaken it.
    pub fn moves_right(&self) -> u64 {
        self.moves.load(Relaxed)
    }
}

type Latch = parking_lot::ArcMutexGuard<parking_lot::RawMutex, ()>;

impl Index for BlinkTree {
    type Options = BlinkOptions;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &BlinkOptions) -> Result<Self> {
        let mut tree = Self::over(InPlaceStore::create(volume, FILE, options.page_len)?, options);
        *tree.root.get_mut() = tree.plant()?;
        tree.flush()?;
        Ok(tree)
    }

    fn recover(volume: Arc<dyn Volume>, options: &BlinkOptions) -> Result<Self> {
        let mut tree = Self::over(InPlaceStore::open(volume, FILE, options.page_len)?, options);
        let mut walk = Walk { tree: &tree, checked: Checked::default(), used: HashSet::new() };
        walk.levels()?;
        let used = walk.used;
        let next = tree.nodes.store().next();
        let free = (crate::store::superblock::PAGES..next).filter(|page| !used.contains(&NodeId(*page)));
        *tree.fresh.get_mut() = (next, free.rev().collect());
        Ok(tree)
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &BlinkOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        check_fill(fill)?;
        let mut tree = Self::over(InPlaceStore::create(volume, FILE, options.page_len)?, options);
        let mut records = InOrder::new(records);
        let loaded = tree.load(fill, &mut records)?;
        records.finish()?;
        let root = match loaded {
            Some(root) => root,
            None => tree.plant()?,
        };
        *tree.root.get_mut() = root;
        tree.flush()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        "B-link tree"
    }

    fn contract(&self) -> Contract {
        Contract::Never
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        BlinkTree::insert(self, key, value)
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        BlinkTree::delete(self, key)
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        self.sound.check()?;
        let (_, node, _) = self.descend(key, 0)?;
        Ok(node.node.as_leaf()?.get(key))
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.sound.check()?;
        let mut found = Vec::new();
        if range.is_empty() {
            return Ok(found);
        }
        let (_, mut node, _) = self.descend(range.start, 0)?;
        loop {
            let inside = node.node.as_leaf()?.entries.iter().filter(|entry| range.contains(&entry.0));
            found.extend(inside);
            match node.right {
                Some((high, right)) if high < range.end => node = self.nodes.read(right)?,
                _ => return Ok(found),
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        let root = *self.root.get_mut();
        self.sound.work(|| {
            self.nodes.write_all()?;
            self.nodes.store_mut().sync(root)
        })
    }

    fn check(&self) -> Result<Checked> {
        self.sound.check()?;
        let mut walk = Walk { tree: self, checked: Checked::default(), used: HashSet::new() };
        walk.levels()?;
        Ok(walk.checked)
    }

    fn stats(&self) -> Counters {
        Counters {
            splits: self.splits.load(Relaxed),
            height: u32::from(self.root.read().level) + 1,
            ..self.nodes.counters()
        }
    }
}

/// Verifies level by level: what the parents say, and what the links say, is the same.
struct Walk<'a> {
    tree: &'a BlinkTree,
    checked: Checked,
    used: HashSet<NodeId>,
}

impl Walk<'_> {
    fn levels(&mut self) -> Result<()> {
        let root = *self.tree.root.read();
        self.checked.height = u32::from(root.level) + 1;
        // The nodes of a level, each with the key that it begins with.
        let mut level = vec![(None, root.id)];
        for number in (0..=root.level).rev() {
            let mut below = Vec::new();
            for (index, (low, id)) in level.iter().enumerate() {
                let broken = |what: String| Err(Error::broken(format!("{id} of level {number}: {what}")));
                if !self.used.insert(*id) {
                    return broken("it has two parents".into());
                }
                let node = self.tree.nodes.read(*id)?;
                let next = level.get(index + 1).map(|(low, id)| (low.unwrap_or(0), *id));
                if node.right != next {
                    return broken(format!(
                        "its right neighbour is {:?}, by the level above {next:?}",
                        node.right
                    ));
                }
                if node.node.level() != number || self.tree.shape.overflows(&node.node) {
                    return broken(format!("level {}, {} entries", node.node.level(), node.node.count()));
                }
                let inside =
                    |key: Key| low.is_none_or(|low| low <= key) && next.is_none_or(|(high, _)| key < high);
                match &node.node {
                    Node::Leaf(leaf) => {
                        if !leaf.entries.iter().all(|(key, _)| inside(*key)) {
                            return broken("keys outside of its range".into());
                        }
                        self.checked.leaves += 1;
                        self.checked.records += leaf.entries.len() as u64;
                    }
                    Node::Inner(inner) => {
                        if !inner.fences.iter().all(|fence| inside(*fence)) {
                            return broken("fences outside of its range".into());
                        }
                        self.checked.inner += 1;
                        let lows = [*low].into_iter().chain(inner.fences.iter().copied().map(Some));
                        below.extend(lows.zip(inner.children.iter().copied()));
                    }
                }
            }
            level = below;
        }
        Ok(())
    }
}
