//! Nodes that are only ever written in batches, at the end: write buffer, mapping table, sequential writer, node validation
//! manager and an optional cache of nodes. (AS B-tree, JISE 2014, section 3.)
//!
//! Invariants:
//! 1. A batch is written when an operation has ended, never in the middle of one; so between operations the write buffer
//!    holds less than MS nodes, and at the end of one at most MS + 2H: each level may have been split.
//! 2. A sub-file is removed only when all nodes in it have newer copies, or were freed, in batches that are durable; and,
//!    where checkpoints are made, when none of its batches is younger than the last checkpoint, so that no batch that a
//!    recovery needs is ever missing.
//! 3. Between operations, the last batch names the root that the tree has once the write buffer is written.

use crate::buffer::buffered_nodes::{Asked, BufferedNodes};
use crate::page::NodeId;
use crate::page::node::{Node, Shape};
use crate::store::batch::TAIL;
use crate::store::garbage_collection::{NodeValidation, Share};
use crate::store::log_recovery::{Rule, recover};
use crate::store::map_checkpoint::MapCheckpoints;
use crate::store::mapping_table::{Checkpoint, MappingTable};
use crate::store::sequential::SequentialStore;
use crate::store::sub_files::Address;
use crate::store::{NodeStore, Root};
use crate::{Counters, Error, PageUse, Result};
use psync::Volume;
use std::collections::HashSet;
use std::sync::Arc;

/// Sizes and rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub page_len: usize,
    pub shape: Shape,
    /// MS.
    pub slots: usize,
    /// Nodes that the cache holds.
    pub cached: usize,
    /// Pages of a sub-file.
    pub pages_max: u32,
    /// T.
    pub threshold: f64,
    /// K: batches between two checkpoints of the table; 0 for none.
    pub checkpoint_every: u64,
}

impl Setup {
    /// With `node_len` bytes and at most `keys_max` keys a node, `slots` nodes in the write buffer and `cached` in the cache,
    /// sub-files of `sub_file_len` bytes, recycled below the share `threshold`, and a checkpoint every so many batches.
    pub fn new(
        node_len: usize,
        keys_max: Option<usize>,
        slots: usize,
        cached: usize,
        sub_file_len: u64,
        threshold: f64,
        checkpoint_every: u64,
    ) -> Result<Self> {
        let invalid = |what: String| Err(Error::Invalid(what));
        if !node_len.is_power_of_two() || !(256..=1 << 20).contains(&node_len) {
            return invalid(format!("nodes of {node_len} bytes: a power of two from 256 to 2^20"));
        }
        if !(1..=1 << 14).contains(&slots) {
            return invalid(format!("a write buffer of {slots} nodes: 1 to 16384"));
        }
        if !(0.0..=0.8).contains(&threshold) {
            return invalid(format!("a recycling threshold of {threshold}: 0 to 0.8"));
        }
        let pages_max = u32::try_from(sub_file_len / node_len as u64).unwrap_or(0);
        if !(slots as u64..=1 << 31).contains(&u64::from(pages_max)) {
            let what = format!("sub-files of {sub_file_len} bytes: room for one to 2^31 / {slots} batches");
            return invalid(what);
        }
        let shape = Shape::of_page(node_len - TAIL).limited(keys_max);
        Ok(Self { page_len: node_len, shape, slots, cached, pages_max, threshold, checkpoint_every })
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Happened {
    pub batches: u64,
    pub copies: u64,
    pub recycled: u64,
    pub checkpoints: u64,
    pub freed: u64,
    pub slots_max: u64,
    pub recovery_reads: u64,
}

/// See the module.
pub(crate) struct AlwaysSequential {
    log: SequentialStore,
    table: MappingTable,
    validation: NodeValidation,
    checkpoints: MapCheckpoints,
    nodes: BufferedNodes,
    root: Option<Root>,
    /// The root that the last batch names.
    named: Option<Root>,
    /// The last batch that the newest checkpoint knows.
    covered: u64,
    setup: Setup,
    happened: Happened,
}

impl AlwaysSequential {
    /// An empty one, in files whose names begin with `name`.
    pub fn create(volume: &Arc<dyn Volume>, name: &str, setup: Setup) -> Result<Self> {
        let log = SequentialStore::create(volume, name, setup.page_len, setup.pages_max)?;
        let checkpoints = MapCheckpoints::new(Arc::clone(volume), name, setup.page_len);
        Ok(Self::over(log, checkpoints, setup))
    }

    /// What is there, from the last checkpoint on if `rule` is to use one.
    pub fn open(
        volume: &Arc<dyn Volume>,
        name: &str,
        setup: Setup,
        use_checkpoint: bool,
        rule: Rule,
    ) -> Result<Self> {
        let log = SequentialStore::open(volume, name, setup.page_len, setup.pages_max)?;
        let mut checkpoints = MapCheckpoints::new(Arc::clone(volume), name, setup.page_len);
        let from = if use_checkpoint {
            checkpoints.load()?
        } else {
            checkpoints.clear()?;
            None
        };
        let mut nodes = Self::over(log, checkpoints, setup);
        nodes.covered = from.as_ref().map_or(0, |checkpoint| checkpoint.batch);
        let has_checkpoint = from.is_some();
        let found = match recover(&mut nodes.log.files, from, rule) {
            // Not a checkpoint of what is there: files that it needs may have been recycled by a tree without checkpoints.
            Err(Error::Corrupt { .. }) if has_checkpoint => {
                nodes.checkpoints.clear()?;
                nodes.covered = 0;
                recover(&mut nodes.log.files, None, rule)?
            }
            found => found?,
        };
        nodes.log.go_on_after(found.batch, found.pages_read);
        for (file, pages) in nodes.log.files.list() {
            nodes.validation.found(file, pages, found.last_of.get(&file).copied().unwrap_or(found.batch));
        }
        found.table.iter().for_each(|(_, place)| nodes.validation.gain(place));
        nodes.table = found.table;
        (nodes.root, nodes.named) = (Some(found.root), Some(found.root));
        nodes.happened.recovery_reads = found.pages_read;
        Ok(nodes)
    }

    fn over(log: SequentialStore, checkpoints: MapCheckpoints, setup: Setup) -> Self {
        Self {
            log,
            table: MappingTable::new(),
            validation: NodeValidation::new(setup.threshold),
            checkpoints,
            nodes: BufferedNodes::new(setup.cached),
            root: None,
            named: None,
            covered: 0,
            setup,
            happened: Happened::default(),
        }
    }

    fn place_of(&self, id: NodeId) -> Result<Address> {
        let place = self.table.get(id);
        place.ok_or_else(|| Error::broken(format!("{id} is neither in the write buffer nor on the device")))
    }

    /// Writes one batch, and tells the table and the validation manager.
    fn append(&mut self, nodes: &[(NodeId, Arc<Node>)], freed: &[NodeId]) -> Result<()> {
        let first = self.log.place(nodes.len())?;
        let places = nodes.iter().zip(first.page..).map(|((id, _), page)| (*id, Address { page, ..first }));
        let digest = self.table.digest_after(places.clone(), freed.iter().copied());
        self.log.append(nodes, freed, self.root, digest)?;
        for (id, place) in places {
            self.validation.written(place.file, self.log.batch);
            self.validation.gain(place);
            if let Some(old) = self.table.set(id, place) {
                self.validation.lose(old);
            }
        }
        for id in freed {
            if let Some(old) = self.table.remove(*id) {
                self.validation.lose(old);
            }
        }
        self.named = self.root;
        self.happened.batches += 1;
        self.happened.freed += freed.len() as u64;
        Ok(())
    }

    /// Writes the write buffer, then recycles sub-files and saves the table if it is time to.
    fn flush(&mut self) -> Result<()> {
        self.happened.slots_max = self.happened.slots_max.max(self.nodes.slots().len() as u64);
        let (nodes, freed) = self.nodes.take();
        self.append(&nodes, &freed)?;
        self.nodes.written(nodes);
        self.recycle()?;
        let every = self.setup.checkpoint_every;
        if every > 0 && self.log.batch >= self.covered + every {
            self.save_table()?;
        }
        Ok(())
    }

    fn save_table(&mut self) -> Result<()> {
        let (Some(root), Some((file, page))) = (self.root, self.log.files.newest()) else { return Ok(()) };
        self.log.sync()?;
        let table = self.table.clone();
        let batch = self.log.batch;
        self.checkpoints.save(&Checkpoint { table, batch, end: Address { file, page }, root })?;
        self.covered = batch;
        self.happened.checkpoints += 1;
        Ok(())
    }

    /// The node validation manager's work. The write buffer is empty.
    fn recycle(&mut self) -> Result<()> {
        loop {
            let newest = self.log.files.newest().map_or(0, |(file, _)| file);
            let covered = if self.setup.checkpoint_every > 0 { self.covered } else { u64::MAX };
            let Some(victim) = self.validation.victim(newest, covered) else { return Ok(()) };
            for part in self.table.in_file(victim).chunks(self.setup.slots) {
                let nodes = self.log.read(part)?.into_iter().map(Arc::new);
                let nodes: Vec<_> = part.iter().map(|(id, _)| *id).zip(nodes).collect();
                self.append(&nodes, &[])?;
                self.happened.copies += nodes.len() as u64;
            }
            // Neither the copies nor what made the other nodes old may be lost once the file is gone.
            self.log.sync()?;
            self.log.files.remove(victim)?;
            self.validation.remove(victim);
            self.happened.recycled += 1;
        }
    }

    /// Writes what waits as one batch, without making it durable.
    pub fn write_batch(&mut self) -> Result<()> {
        if self.nodes.slots().len() > 0 { self.flush() } else { Ok(()) }
    }

    /// Verifies what is not a matter of the tree's shape. `nodes`: how many the tree has.
    pub fn check(&self, nodes: u64) -> Result<()> {
        let mut seen = std::collections::HashSet::new();
        let mut valid = std::collections::HashMap::<u32, u32>::new();
        let all: Vec<_> = self.table.iter().collect();
        for (id, place) in &all {
            if !seen.insert(*place) {
                return Err(Error::broken(format!("{id} has the address of another node, {place:?}")));
            }
            *valid.entry(place.file).or_default() += 1;
        }
        // Whether each page is that of its node: reading says so.
        for part in all.chunks(256) {
            self.log.read(part)?;
        }
        let files: Vec<_> = self.log.files.list().collect();
        for (file, share) in self.validation.list() {
            let counted = valid.remove(&file).unwrap_or_default();
            if counted != share.valid || !files.contains(&(file, share.pages)) {
                return Err(Error::broken(format!(
                    "sub-file {file}: {counted} nodes are valid, not as in {share:?}"
                )));
            }
        }
        if !valid.is_empty() {
            return Err(Error::broken(format!("nodes in sub-files that are not there: {valid:?}")));
        }
        let slots = all.iter().filter(|(id, _)| self.nodes.slots().get(*id).is_some()).count();
        let known = all.len() + self.nodes.slots().len() - slots - self.nodes.slots().freed();
        if known as u64 != nodes {
            return Err(Error::broken(format!("{known} nodes are known, {nodes} are in the tree")));
        }
        let most = self.setup.slots;
        if self.nodes.slots().len() >= most {
            return Err(Error::broken(format!(
                "{} nodes wait, {most} are a batch",
                self.nodes.slots().len()
            )));
        }
        Ok(())
    }

    pub fn happened(&self) -> Happened {
        self.happened
    }

    /// What was asked of the write buffer and the cache.
    pub fn asked(&self) -> Asked {
        self.nodes.asked()
    }

    /// Sub-files, oldest first.
    pub fn shares(&self) -> impl Iterator<Item = (u32, Share)> {
        self.validation.list()
    }

    /// Which pages of the sub-files hold older versions of nodes.
    pub fn page_use(&self) -> PageUse {
        let valid: HashSet<Address> = self.table.iter().map(|(_, place)| place).collect();
        let files = &self.log.files;
        let pages = files.list().flat_map(|(file, pages)| (0..pages).map(move |page| Address { file, page }));
        let stale = pages.filter(|place| !valid.contains(place));
        PageUse::Unused(stale.map(|place| (files.name(place.file), files.offset(place.page))).collect())
    }

    /// Bytes of the mapping table in memory.
    pub fn table_memory(&self) -> u64 {
        self.table.memory()
    }
}

impl AlwaysSequential {
    /// See [`SequentialStore::write_singly`].
    pub fn write_singly(&mut self) {
        self.log.write_singly();
    }
}

impl NodeStore for AlwaysSequential {
    fn shape(&self) -> Shape {
        self.setup.shape
    }

    fn root(&self) -> Root {
        self.root.unwrap_or(Root { id: NodeId(0), level: 0 })
    }

    fn set_root(&mut self, root: Root) {
        self.root = Some(root);
    }

    fn read(&self, id: NodeId) -> Result<Arc<Node>> {
        Ok(self.read_many(&[id])?.remove(0))
    }

    fn read_many(&self, ids: &[NodeId]) -> Result<Vec<Arc<Node>>> {
        self.nodes.read_many(ids, |missing| {
            let places = missing.iter().map(|id| Ok((*id, self.place_of(*id)?)));
            self.log.read(&places.collect::<Result<Vec<_>>>()?)
        })
    }

    fn write(&mut self, id: NodeId, node: Node) -> Result<()> {
        self.nodes.write(id, node);
        Ok(())
    }

    /// Batches of their own, which name no root: a tree that is being loaded has none yet.
    fn write_many(&mut self, nodes: Vec<(NodeId, Node)>) -> Result<()> {
        let nodes: Vec<_> = nodes.into_iter().map(|(id, node)| (id, Arc::new(node))).collect();
        nodes.chunks(self.setup.pages_max as usize).try_for_each(|part| self.append(part, &[]))
    }

    fn allocate(&mut self) -> NodeId {
        self.table.allocate()
    }

    fn free(&mut self, id: NodeId) -> Result<()> {
        self.nodes.free(id, self.table.get(id).is_some());
        self.table.free(id);
        Ok(())
    }

    /// Writes the batch if it is full. Freed ids are kept to the number of nodes, so that the tails have room for them: one
    /// operation frees at most twice as many nodes as it leaves changed ones.
    fn settle(&mut self) -> Result<()> {
        if self.nodes.slots().len() >= self.setup.slots
            || self.nodes.slots().freed() > self.nodes.slots().len()
        {
            self.flush()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        if self.nodes.slots().len() == 0 && self.named != self.root {
            let root = self.root();
            let node = self.read(root.id)?.as_ref().clone();
            self.write(root.id, node)?;
        }
        if self.nodes.slots().len() > 0 {
            self.flush()?;
        }
        self.log.sync()
    }

    fn counters(&self) -> Counters {
        let (pages_read, pages_written) = self.log.moved();
        let asked = self.asked();
        let nodes = self.nodes.held() as u64 * self.log.page_len() as u64;
        Counters {
            pages_read,
            pages_written,
            hits: asked.read_hits + asked.cache_hits,
            flushes: self.happened.batches,
            memory: nodes + self.table.memory(),
            space: self.log.files.space() + self.checkpoints.space(),
            ..Counters::default()
        }
    }
}
