//! Pages that hold a path each: an update writes one page, with the leaf and all nodes above it. (µ-tree and µ*-tree; see
//! `page/path_page.rs`.)
//!
//! Invariants:
//! 1. The pages of an update are appended one after the other. The last one has the root, and alone is marked so: the newest
//!    page with that mark begins a whole tree, whatever was appended after it.
//! 2. A node lives if the newest root leads to it; a page lives as long as one of its nodes does.
//! 3. Pages that an operation has read are kept for as long as it lasts, so that none is read twice for several of its levels.

use crate::page::NodeId;
use crate::page::node::Node;
use crate::page::path_page::{HALF, LEVELS_MAX, Partition, PathPage, id_of, place_of};
use crate::store::Root;
use crate::store::flash_log::{FlashLog, NewPage};
use crate::store::flash_tag::Tag;
use crate::store::nodes::{Limits, Nodes};
use crate::store::path_copy::{Plan, Planning, resolved};
use crate::{Counters, Error, Result};
use flash::RawFlash;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Most pages that are kept during an operation.
const READ_MAX: usize = 64;
/// Pages that an update may write, for each level.
const PAGES_A_LEVEL: usize = 4;

/// Which nodes share a page: by level, a number in the plan; and how the page is divided.
type Packed = (Vec<Option<usize>>, u8);

/// See the module.
pub(crate) struct PathPageStore {
    log: FlashLog,
    partition: Partition,
    /// Eighths of a page that a leaf may have, most first.
    choices: &'static [u8],
    root: Root,
    read: Mutex<HashMap<u64, Arc<PathPage>>>,
    /// Pages written with the leaf having more than half.
    enlarged: u64,
}

impl PathPageStore {
    /// On erased flash; there is no root yet.
    pub fn create(
        flash: Arc<RawFlash>,
        page_len: usize,
        slots_max: Option<usize>,
        choices: &'static [u8],
    ) -> Result<Self> {
        let log = FlashLog::create(flash, page_len)?;
        Self::over(log, slots_max, choices)
    }

    fn over(log: FlashLog, slots_max: Option<usize>, choices: &'static [u8]) -> Result<Self> {
        let partition = Partition::of_page(log.page_len(), slots_max);
        let slots = partition.slots();
        if slots < 16 {
            return Err(Error::Invalid(format!(
                "{slots} entries on a page: 16 at least, so that a leaf, a node and a root have room; take larger pages"
            )));
        }
        let root = Root { id: NodeId(0), level: 0 };
        Ok(Self { log, partition, choices, root, read: Mutex::default(), enlarged: 0 })
    }

    /// The tree of the newest root.
    pub fn open(
        flash: Arc<RawFlash>,
        page_len: usize,
        slots_max: Option<usize>,
        choices: &'static [u8],
    ) -> Result<Self> {
        let (log, found) = FlashLog::open(flash, page_len)?;
        let mut store = Self::over(log, slots_max, choices)?;
        let newest = found.iter().filter(|found| found.tag.last).max_by_key(|found| found.tag.sequence);
        let newest = newest.ok_or_else(|| {
            Error::corrupt("flash", 0, "root of a µ-tree", "one", "none on all of the flash")
        })?;
        store.root = Root { id: id_of(newest.page, newest.tag.root_level), level: newest.tag.root_level };
        let mut next = vec![store.root.id];
        while let Some(id) = next.pop() {
            let node = store.read(id)?;
            let (page, level) = place_of(id);
            if store.log.parts(page) & (1 << level) != 0 {
                return Err(Error::broken(format!("{id} has two parents")));
            }
            store.log.mark(page, 1 << level);
            if let Node::Inner(inner) = &*node {
                next.extend(&inner.children);
            }
        }
        store.log.settle();
        Ok(store)
    }

    pub fn log(&self) -> &FlashLog {
        &self.log
    }

    /// An operation begins: what the one before has read is forgotten.
    pub fn begin(&self) {
        self.read.lock().clear();
    }

    fn page(&self, page: u64) -> Result<Arc<PathPage>> {
        if let Some(found) = self.read.lock().get(&page) {
            return Ok(Arc::clone(found));
        }
        let bytes = self.log.read(page)?;
        let found = Arc::new(PathPage::decode(&bytes, &self.partition, self.log.offset(page), page)?);
        let mut read = self.read.lock();
        if read.len() >= READ_MAX {
            read.clear();
        }
        read.insert(page, Arc::clone(&found));
        Ok(found)
    }

    /// Limits of an update for which the leaf has so many eighths. Inner nodes may grow until the leaf has half.
    fn limits_with(&self, eighths: u8, level: u8, height: u8) -> Limits {
        let least = Limits::of(self.partition.capacity(level, height, HALF));
        if level == 0 { Limits { max: self.partition.capacity(0, height, eighths), ..least } } else { least }
    }

    /// Plans an update, with the leaf as large as what is above it allows, and writes it. `events` counts what happened in the plan
    /// that was taken.
    pub fn change<E: Copy>(
        &mut self,
        events: &mut E,
        update: &dyn Fn(&mut Planning<'_, Self>, &mut E) -> Result<()>,
    ) -> Result<()> {
        self.make_room()?;
        self.begin();
        for eighths in self.choices {
            let mut counted = *events;
            let limits = |level, height| self.limits_with(*eighths, level, height);
            let mut planning = Planning::new(self, &limits);
            update(&mut planning, &mut counted)?;
            let Some(plan) = planning.finish() else {
                *events = counted;
                return Ok(());
            };
            let packed = self.pack(&plan)?;
            let pages_min = plan.levels.iter().map(Vec::len).max().unwrap_or(0);
            if packed.len() <= pages_min || *eighths == HALF {
                *events = counted;
                return self.write(&plan, &packed);
            }
        }
        Err(Error::broken("a layout without a leaf of half a page"))
    }

    /// Fills the store, with leaves of half a page, which fit whatever comes above them.
    pub fn load(&mut self, load: &mut dyn FnMut(&mut Planning<'_, Self>) -> Result<()>) -> Result<()> {
        let limits = |level, height| self.limits_with(HALF, level, height);
        let mut planning = Planning::new(self, &limits);
        load(&mut planning)?;
        if let Some(plan) = planning.finish() {
            let packed = self.pack(&plan)?;
            self.write(&plan, &packed)?;
        }
        Ok(())
    }

    /// Which nodes share a page: of each level one. The root's page is the last.
    fn pack(&self, plan: &Plan) -> Result<Vec<Packed>> {
        let height = plan.height();
        if usize::from(height) > LEVELS_MAX {
            return Err(Error::broken(format!("a tree of {height} levels")));
        }
        let mut left: Vec<usize> = plan.levels.iter().map(Vec::len).collect();
        let mut pages = Vec::new();
        while left.iter().any(|count| *count > 0) {
            let mut nodes = vec![None; usize::from(height)];
            let mut counts = nodes.clone();
            let mut eighths = HALF;
            for level in (0..usize::from(height)).rev() {
                let Some(number) = left[level].checked_sub(1) else { continue };
                counts[level] = Some(plan.levels[level][number].count());
                match self.partition.eighths_for(&counts, height, self.choices) {
                    Some(found) => {
                        (nodes[level], eighths) = (Some(number), found);
                        left[level] -= 1;
                    }
                    None => counts[level] = None,
                }
            }
            if counts.iter().all(Option::is_none) {
                return Err(Error::broken("a node for which no page has room"));
            }
            pages.push((nodes, eighths));
        }
        pages.reverse();
        Ok(pages)
    }

    fn write(&mut self, plan: &Plan, packed: &[Packed]) -> Result<()> {
        let Self { log, partition, root, enlarged, .. } = self;
        let (page_len, height) = (log.page_len(), plan.height());
        let pages = log.append(packed.len(), &mut |addresses, first| {
            let mut ids: Vec<Vec<NodeId>> =
                plan.levels.iter().map(|nodes| vec![NodeId(0); nodes.len()]).collect();
            for ((nodes, _), page) in packed.iter().zip(addresses) {
                for (level, number) in (0..).zip(nodes) {
                    number.iter().for_each(|number| ids[usize::from(level)][*number] = id_of(*page, level));
                }
            }
            let encode = |(((nodes, eighths), page), sequence): ((&Packed, &u64), u64)| {
                let node = |(level, number): (usize, &Option<usize>)| {
                    let below: &[NodeId] = level.checked_sub(1).map_or(&[], |below| &ids[below]);
                    number.map(|number| Arc::new(resolved(&plan.levels[level][number], below)))
                };
                let nodes: Vec<_> = nodes.iter().enumerate().map(node).collect();
                let live = (0..)
                    .zip(&nodes)
                    .fold(0, |live, (level, node)| live | u16::from(node.is_some()) << level);
                let mut data = vec![0; page_len];
                PathPage { height, eighths: *eighths, nodes }.encode(partition, *page, sequence, &mut data);
                let last = Some(page) == addresses.last();
                NewPage { data, tag: Tag { last, root_level: height - 1, ..Tag::node(*page) }, live }
            };
            packed.iter().zip(addresses).zip(first..).map(encode).collect()
        })?;
        *enlarged += packed.iter().filter(|(_, eighths)| *eighths > HALF).count() as u64;
        let last = pages.last().copied().unwrap_or_default();
        *root = Root { id: id_of(last, height - 1), level: height - 1 };
        for dead in &plan.dead {
            let (page, level) = place_of(*dead);
            log.kill(page, 1 << level);
        }
        Ok(())
    }

    /// Empties blocks until the next update surely has room.
    fn make_room(&mut self) -> Result<()> {
        let operation = PAGES_A_LEVEL * (usize::from(self.root.level) + 2);
        let mut left = 4 * self.log.memory();
        while self.log.room() < self.log.reserve(operation) {
            self.begin();
            let pages = self.log.victim()?;
            left = left.checked_sub(1).ok_or_else(|| self.log.full(operation))?;
            let mut targets = Vec::with_capacity(pages.len());
            for page in pages {
                let (path, parts) = (self.page(page)?, self.log.parts(page));
                for (level, node) in (0..).zip(&path.nodes).filter(|(level, _)| parts & (1 << level) != 0) {
                    // An empty leaf is the root, and every way leads through the root.
                    let key = match node.as_deref() {
                        Some(Node::Leaf(leaf)) => leaf.entries.first().map_or(0, |entry| entry.0),
                        Some(Node::Inner(inner)) => inner.fences.first().copied().unwrap_or_default(),
                        None => {
                            return Err(Error::broken(format!("level {level} of page {page} lives nowhere")));
                        }
                    };
                    targets.push((key, level));
                }
            }
            targets.sort_unstable();
            let limits = |level, height| self.limits(level, height);
            let mut planning = Planning::new(self, &limits);
            planning.copy(&targets)?;
            if let Some(plan) = planning.finish() {
                let packed = self.pack(&plan)?;
                self.write(&plan, &packed)?;
            }
        }
        Ok(())
    }

    /// Verifies that just these nodes live.
    pub fn check(&self, nodes: &HashSet<NodeId>) -> Result<()> {
        self.log.check()?;
        let mut parts: HashMap<u64, u16> = HashMap::new();
        for id in nodes {
            let (page, level) = place_of(*id);
            *parts.entry(page).or_default() |= 1 << level;
        }
        if let Some((page, parts)) = parts.iter().find(|(page, parts)| self.log.parts(**page) != **parts) {
            let found = self.log.parts(*page);
            return Err(Error::broken(format!(
                "levels {parts:b} of page {page} are of the tree, {found:b} live"
            )));
        }
        let live = self.log.live_pages();
        if live != parts.len() as u64 {
            return Err(Error::broken(format!("{live} pages live, of a tree on {}", parts.len())));
        }
        Ok(())
    }

    /// Pages written with the leaf having more than half.
    pub fn enlarged(&self) -> u64 {
        self.enlarged
    }

    pub fn counters(&self) -> Counters {
        let counts = self.log.counts();
        Counters {
            pages_read: counts.reads,
            pages_written: counts.programs,
            memory: self.log.memory(),
            space: self.log.space(),
            ..Counters::default()
        }
    }
}

impl Nodes for PathPageStore {
    fn root(&self) -> Root {
        self.root
    }

    fn read(&self, id: NodeId) -> Result<Arc<Node>> {
        let (page, level) = place_of(id);
        let node = self.page(page)?.nodes.get(usize::from(level)).cloned().flatten();
        node.ok_or_else(|| {
            Error::corrupt(
                "flash",
                self.log.offset(page),
                "levels of a page",
                format!("{level} too"),
                "none such",
            )
        })
    }

    /// With the leaf as large as it may be.
    fn limits(&self, level: u8, height: u8) -> Limits {
        self.limits_with(self.choices[0], level, height)
    }
}
