//! The LA-tree (Agrawal, Ganesan, Sitaraman, Diao and Singh, "Lazy-Adaptive Tree: An Optimized Index Structure for Flash
//! Devices", VLDB 2009; a comparator of the AS B-tree): a B+-tree in place whose subtrees of K levels have buffers on the
//! device at their roots. Updates are appended to the buffer of the root; a buffer is emptied into those of the subtrees
//! below, at last into the leaves, when it is full or when lookups have paid as much for scanning it as emptying costs.
//!
//! ```text
//! store/flash_buffers, store/in_place, buffer/lru_pool
//! update/batch, read/{reach, scan, walk}
//! ```
//!
//! Invariants:
//! 1. What waits higher up is newer than what waits below it, and that is newer than the leaf.
//! 2. Nodes of the levels K - 1, 2 K - 1, ... and the root take updates. Others may still have a buffer, of the time when
//!    they were the root: it is emptied before anything passes it.

use crate::buffer::lru_pool::LruPool;
use crate::index::{Checked, Contract, Index};
use crate::page::node::{Node, Shape};
use crate::page::{Change, Key, KeyRange, NodeId, Value};
use crate::read::reach::reach;
use crate::read::scan;
use crate::read::walk::{Allow, walk};
use crate::sound::Sound;
use crate::store::NodeStore;
use crate::store::flash_buffers::FlashBuffers;
use crate::store::in_place::InPlaceStore;
use crate::update::batch::{Follow, merged, update_leaf};
use crate::update::bulk_load::bulk_load;
use crate::update::single::{self, Events};
use crate::{Counters, Error, PageUse, Result};
use parking_lot::Mutex;
use psync::Volume;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

const FILE: &str = "latree";
const BUFFER_FILE: &str = "latree-buffers";

/// What an LA-tree is built with.
#[derive(Clone, Debug)]
pub struct LaTreeOptions {
    /// Bytes of a node and of a page of a buffer, a power of two from 512 on.
    pub page_len: usize,
    /// K: levels of a subtree, 1 or more.
    pub subtree_levels: u8,
    /// Pages of a buffer that is full, 1 or more. The authors have 64 to 256 KiB.
    pub buffer_pages: u64,
    /// Updates that are staged in memory, of all buffers together. More than a page's worth of units (25 bytes each), or
    /// every update would be a write.
    pub staged: usize,
    /// Whether lookups empty buffers; otherwise only full ones are.
    pub adaptive: bool,
    /// What writing a page costs, in reads.
    pub write_cost: u64,
    /// Nodes that the buffer pool holds; 0 for none.
    pub frames: usize,
    /// Most keys in a node, if less than a page holds: for tests, and for the papers' node sizes.
    pub keys_max: Option<usize>,
}

impl Default for LaTreeOptions {
    fn default() -> Self {
        Self {
            page_len: 4096,
            subtree_levels: 2,
            buffer_pages: 32,
            staged: 8192,
            adaptive: true,
            write_cost: 2,
            frames: 1024,
            keys_max: None,
        }
    }
}

/// What an [`LaTree`] has done besides [`Index::stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaTreeDetails {
    /// Buffers that were emptied because they were full.
    pub emptied_full: u64,
    /// Buffers that were emptied because lookups had paid for it.
    pub emptied_adaptive: u64,
    /// Buffers of former roots that were emptied to let something pass.
    pub emptied_former: u64,
    /// Updates that waited at a root when it gave way to its only child.
    pub adopted: u64,
    /// Updates that went from one buffer to another.
    pub passed_on: u64,
    /// Updates that reached a leaf.
    pub applied: u64,
    /// Leaves that they reached. Divide `applied` by it: updates per leaf write.
    pub leaves: u64,
    /// Pages of buffers that were read.
    pub buffer_pages_read: u64,
    /// Pages of buffers and of their table that were written.
    pub buffer_pages_written: u64,
    /// Times that a buffer was rewritten because its node was divided or joined.
    pub buffers_rewritten: u64,
    /// Nodes that have something buffered.
    pub buffers: u64,
}

struct State {
    nodes: LruPool,
    buffers: Buffers,
    options: LaTreeOptions,
    events: Events,
    details: LaTreeDetails,
    sound: Sound,
}

/// The buffers, and what was in those of roots that are gone: newer than all else, until it is buffered again.
struct Buffers {
    flash: FlashBuffers,
    orphans: BTreeMap<Key, Change>,
}

impl Follow for Buffers {
    fn divided(&mut self, left: NodeId, fence: Key, right: NodeId) -> Result<()> {
        self.flash.divide(left, fence, right)
    }

    fn joined(&mut self, left: NodeId, right: NodeId) -> Result<()> {
        self.flash.join(left, right)
    }

    fn replaced(&mut self, from: NodeId, _: NodeId) -> Result<()> {
        for (key, change) in self.flash.take(from)? {
            // The root above, if it went too, had the newer one.
            self.orphans.entry(key).or_insert(change);
        }
        Ok(())
    }
}

impl State {
    fn new(nodes: InPlaceStore, flash: FlashBuffers, options: &LaTreeOptions) -> Self {
        let shape = Shape::of_page(options.page_len).limited(options.keys_max);
        let nodes = LruPool::new(nodes, shape, options.frames);
        let sound = nodes.sound();
        Self {
            nodes,
            buffers: Buffers { flash, orphans: BTreeMap::new() },
            options: options.clone(),
            events: Events::default(),
            details: LaTreeDetails::default(),
            sound,
        }
    }

    fn create(volume: Arc<dyn Volume>, options: &LaTreeOptions) -> Result<Self> {
        check_options(options)?;
        let nodes = InPlaceStore::create(Arc::clone(&volume), FILE, options.page_len)?;
        let LaTreeOptions { page_len, buffer_pages, staged, .. } = *options;
        let flash = FlashBuffers::create(volume, BUFFER_FILE, page_len, buffer_pages, staged)?;
        Ok(Self::new(nodes, flash, options))
    }

    fn recover(volume: Arc<dyn Volume>, options: &LaTreeOptions) -> Result<Self> {
        check_options(options)?;
        let nodes = InPlaceStore::open(Arc::clone(&volume), FILE, options.page_len)?;
        let LaTreeOptions { page_len, buffer_pages, staged, .. } = *options;
        let flash = FlashBuffers::open(volume, BUFFER_FILE, page_len, buffer_pages, staged)?;
        let mut state = Self::new(nodes, flash, options);
        let (mut used, mut inner) = (HashSet::new(), HashSet::new());
        walk(&state.nodes, Allow::default(), &mut |id, node: &Node| {
            used.insert(id);
            if node.level() > 0 {
                inner.insert(id);
            }
        })?;
        if let Some(lost) = state.buffers.flash.nodes().find(|id| !inner.contains(id)) {
            return Err(Error::broken(format!("a buffer of {lost}, which is no inner node of the tree")));
        }
        state.nodes.store_mut().keep_only(&used);
        Ok(state)
    }

    /// The level below `level` whose nodes take updates; 0 for the leaves. A root takes them whatever its level.
    fn next_below(&self, level: u8) -> u8 {
        let root = self.nodes.root().level;
        if level > root {
            return root;
        }
        let aligned =
            |level: &u8| (u16::from(*level) + 1).is_multiple_of(u16::from(self.options.subtree_levels));
        (1..level).rev().find(aligned).unwrap_or(0)
    }

    fn change(&mut self, key: Key, change: Change) -> Result<()> {
        self.sound.check()?;
        let level = self.nodes.root().level + 1;
        let done = self.deliver(vec![(key, change)], level).and_then(|()| self.adopt());
        self.sound.after(done)
    }

    /// Brings updates from above level `from` to where they belong next.
    fn deliver(&mut self, changes: Vec<(Key, Change)>, from: u8) -> Result<()> {
        let mut rest = &changes[..];
        let mut full = Vec::new();
        while let Some((key, _)) = rest.first().copied() {
            let to = self.next_below(from);
            let reach = reach(&self.nodes, key, to)?;
            let former = reach.path.iter().find(|step| {
                let level = step.node.level();
                level > to && level < from && self.buffers.flash.has(step.id)
            });
            if let Some(former) = former {
                self.details.emptied_former += 1;
                let level = former.node.level();
                self.empty(key, level)?;
                continue;
            }
            let count = rest.partition_point(|(key, _)| reach.range.contains(*key));
            let (now, later) = rest.split_at(count);
            rest = later;
            if to == 0 {
                self.details.applied += now.len() as u64;
                self.details.leaves += 1;
                let leaf = self.nodes.read(reach.id)?;
                update_leaf(&mut self.nodes, reach, &leaf, now, &mut self.buffers, &mut self.events)?;
            } else {
                self.details.passed_on += now.len() as u64;
                self.buffers.flash.put(reach.id, now)?;
                if self.buffers.flash.pages(reach.id) > self.options.buffer_pages {
                    full.push((key, to));
                }
            }
        }
        for (key, level) in full {
            // The one before may have emptied it, joined it with another, or lowered the tree.
            let level = level.min(self.nodes.root().level);
            let id = reach(&self.nodes, key, level)?.id;
            if self.buffers.flash.pages(id) > self.options.buffer_pages {
                self.details.emptied_full += 1;
                self.empty(key, level)?;
            }
        }
        Ok(())
    }

    /// Empties the buffer of the node of a level that a key belongs to.
    fn empty(&mut self, key: Key, level: u8) -> Result<()> {
        let id = reach(&self.nodes, key, level)?.id;
        let changes = self.buffers.flash.take(id)?;
        self.deliver(changes.into_iter().collect(), level)
    }

    /// Gives what roots that are gone had buffered to the root that there is now.
    fn adopt(&mut self) -> Result<()> {
        while !self.buffers.orphans.is_empty() {
            let orphans = std::mem::take(&mut self.buffers.orphans);
            self.details.adopted += orphans.len() as u64;
            let level = self.nodes.root().level + 1;
            self.deliver(orphans.into_iter().collect(), level)?;
        }
        Ok(())
    }

    /// What emptying a node's buffer costs, in reads: its pages, and a write for each buffer that takes a part, or a read
    /// and a write for each leaf.
    fn cost_of_emptying(&self, id: NodeId, level: u8) -> u64 {
        let to = self.next_below(level);
        let fanout = self.nodes.shape().fanout as u64;
        let targets = fanout.saturating_pow(u32::from(level - to)).min(self.buffers.flash.units_at_most(id));
        let each = self.options.write_cost + u64::from(to == 0);
        self.buffers.flash.pages(id) + targets * each
    }

    fn search(&mut self, key: Key) -> Result<Option<Value>> {
        self.sound.check()?;
        let root = self.nodes.root();
        let (mut id, mut found) = (root.id, None);
        let mut scanned = Vec::new();
        for level in (1..=root.level).rev() {
            if self.buffers.flash.has(id) {
                scanned.push((id, level));
                found = self.buffers.flash.find(id, key)?;
                if found.is_some() {
                    break;
                }
            }
            let node = self.nodes.read(id)?;
            let inner = node.as_inner()?;
            id = inner.children[inner.child_of(key)];
        }
        let value = match found {
            Some(change) => change.value(),
            None => self.nodes.read(id)?.as_leaf()?.get(key),
        };
        if self.options.adaptive {
            let done = self.empty_paid(&scanned);
            self.sound.after(done)?;
        }
        Ok(value)
    }

    /// Empties the first of these buffers, each of a node and its level, that lookups have paid for.
    fn empty_paid(&mut self, scanned: &[(NodeId, u8)]) -> Result<()> {
        for (id, level) in scanned.iter().copied() {
            let paid = self.buffers.flash.paid(id);
            if paid > 0 && paid >= self.cost_of_emptying(id, level) {
                self.details.emptied_adaptive += 1;
                let changes = self.buffers.flash.take(id)?;
                self.deliver(changes.into_iter().collect(), level)?;
                // Emptying may have changed the nodes on the way: the others have their turn with the next lookup.
                break;
            }
        }
        self.adopt()
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.sound.check()?;
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let mut waiting = BTreeMap::new();
        let root = self.nodes.root();
        self.gather(root.id, root.level, &range, &mut waiting)?;
        let stored = scan::scan(&self.nodes, range)?;
        let waiting: Vec<_> = waiting.into_iter().collect();
        Ok(if waiting.is_empty() { stored } else { merged(&stored, &waiting) })
    }

    /// All that waits for keys of a range in the buffers of a node and of those below it.
    fn gather(
        &self,
        id: NodeId,
        level: u8,
        range: &Range<Key>,
        waiting: &mut BTreeMap<Key, Change>,
    ) -> Result<()> {
        for (key, change) in self.buffers.flash.peek(id, range.clone())? {
            waiting.entry(key).or_insert(change);
        }
        // Leaves have no buffers.
        if level < 2 {
            return Ok(());
        }
        let node = self.nodes.read(id)?;
        let inner = node.as_inner()?;
        let (first, last) = (inner.child_of(range.start), inner.child_of(range.end - 1));
        inner.children[first..=last]
            .iter()
            .try_for_each(|child| self.gather(*child, level - 1, range, waiting))
    }

    fn flush(&mut self) -> Result<()> {
        // The table of buffers and the tree belong together, but nothing is promised for a loss of power in between.
        self.sound.work(|| {
            self.buffers.flash.save()?;
            self.nodes.sync()
        })
    }

    fn check(&self) -> Result<Checked> {
        self.sound.check()?;
        self.buffers.flash.check()?;
        if !self.buffers.orphans.is_empty() {
            return Err(Error::broken("updates of a root that is gone"));
        }
        let mut nodes = HashMap::new();
        let checked = walk(&self.nodes, Allow::default(), &mut |id, node: &Node| {
            if let Node::Inner(inner) = node {
                nodes.insert(id, inner.clone());
            }
        })?;
        let mut buffered = self.buffers.flash.nodes().count();
        let mut waiting = vec![(self.nodes.root().id, KeyRange::ALL)];
        while let Some((id, range)) = waiting.pop() {
            let Some(inner) = nodes.get(&id) else { continue };
            if self.buffers.flash.has(id) {
                buffered -= 1;
                if !self.buffers.flash.is_within(id, range)? {
                    return Err(Error::broken(format!("the buffer of {id} has keys outside {range:?}")));
                }
            }
            for (index, child) in inner.children.iter().enumerate() {
                let low = index.checked_sub(1).map_or(range.low, |before| inner.fences[before]);
                let high = inner.fence_above(index).or(range.high);
                waiting.push((*child, KeyRange { low, high }));
            }
        }
        if buffered > 0 {
            return Err(Error::broken(format!("{buffered} buffers of nodes that are not in the tree")));
        }
        let last = self.count_of_last()?;
        Ok(Checked { records: self.range(0..Key::MAX)?.len() as u64 + last, ..checked })
    }

    /// Whether the largest key there can be has a record: no range includes it.
    fn count_of_last(&self) -> Result<u64> {
        let reach = reach(&self.nodes, Key::MAX, 0)?;
        for step in &reach.path {
            if let Some(change) = self.buffers.flash.newest(step.id, Key::MAX)? {
                return Ok(u64::from(change.value().is_some()));
            }
        }
        Ok(u64::from(self.nodes.read(reach.id)?.as_leaf()?.get(Key::MAX).is_some()))
    }
}

fn check_options(options: &LaTreeOptions) -> Result<()> {
    let LaTreeOptions { subtree_levels, buffer_pages, staged, .. } = *options;
    if subtree_levels == 0 || !(1..=1 << 20).contains(&buffer_pages) || staged == 0 {
        return Err(Error::Invalid(format!(
            "subtrees of {subtree_levels} levels, buffers of {buffer_pages} pages, {staged} updates staged: 1 of each at least, and 1048576 pages at most"
        )));
    }
    Ok(())
}

/// See the module.
pub struct LaTree {
    /// Lookups empty buffers, so they change the tree too.
    state: Mutex<State>,
}

impl LaTree {
    fn of(state: State) -> Self {
        Self { state: Mutex::new(state) }
    }

    /// What it has done besides [`Index::stats`].
    pub fn details(&self) -> LaTreeDetails {
        let state = self.state.lock();
        let flash = &state.buffers.flash;
        let pages = flash.counters();
        LaTreeDetails {
            buffer_pages_read: pages.pages_read,
            buffer_pages_written: pages.pages_written,
            buffers_rewritten: flash.rewritten,
            buffers: flash.nodes().count() as u64,
            ..state.details
        }
    }
}

impl Index for LaTree {
    type Options = LaTreeOptions;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &LaTreeOptions) -> Result<Self> {
        let mut state = State::create(volume, options)?;
        single::plant(&mut state.nodes)?;
        state.flush()?;
        Ok(Self::of(state))
    }

    fn recover(volume: Arc<dyn Volume>, options: &LaTreeOptions) -> Result<Self> {
        State::recover(volume, options).map(Self::of)
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &LaTreeOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let mut state = State::create(volume, options)?;
        bulk_load(&mut state.nodes, fill, records)?;
        state.flush()?;
        Ok(Self::of(state))
    }

    fn name(&self) -> &'static str {
        "LA-tree"
    }

    fn contract(&self) -> Contract {
        Contract::Never
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        self.state.get_mut().change(key, Change::Put(value))
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        self.state.get_mut().change(key, Change::Remove)
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        self.state.lock().search(key)
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.state.lock().range(range)
    }

    fn flush(&mut self) -> Result<()> {
        self.state.get_mut().flush()
    }

    fn check(&self) -> Result<Checked> {
        self.state.lock().check()
    }

    fn stats(&self) -> Counters {
        let state = self.state.lock();
        let (nodes, buffers, details) =
            (state.nodes.counters(), state.buffers.flash.counters(), &state.details);
        Counters {
            pages_read: nodes.pages_read + buffers.pages_read,
            pages_written: nodes.pages_written + buffers.pages_written,
            splits: state.events.splits,
            merges: state.events.merges,
            redistributions: state.events.redistributions,
            flushes: details.emptied_full + details.emptied_adaptive + details.emptied_former,
            height: u32::from(state.nodes.root().level) + 1,
            memory: nodes.memory + buffers.memory,
            space: nodes.space + buffers.space,
            ..nodes
        }
    }

    fn page_use(&self) -> PageUse {
        PageUse::Unused(self.state.lock().buffers.flash.unused())
    }
}
