//! Nodes as lists of scattered sectors: what changes of a node waits as index units in the reservation buffer; when that is
//! full, units of many nodes share the sectors that are appended, and the node translation table knows which sectors hold
//! parts of a node. (Wu, Kuo and Chang, "An Efficient B-Tree Layer Implementation for Flash-Memory Storage Systems", ACM
//! TECS 2007.)
//!
//! Invariants:
//! 1. A node is what its sectors' units, in the order of its list, and then its reserved units make of nothing. The first
//!    of them is `Begin`.
//! 2. No list is longer than C after a commit.
//! 3. A sector is live as long as a list names it. With reclaim, dead ones are used again, but not before the next anchor
//!    is durable, so all that an anchor needs stays.
//! 4. The anchor holds the last sequence number that counts and a sum over all live sectors, by which a missing one is
//!    noticed. Sectors beyond that number are wiped before anything new is written.

use crate::page::NodeId;
use crate::page::node::{Node, Shape};
use crate::page::unit_page::{self, Unit};
use crate::store::anchor::Owner;
use crate::store::extents::{ExtentFile, NUMBER_MAX, id_of};
use crate::store::node_units::{apply, image, image_max, units_between};
use crate::store::unit_packing::pack;
use crate::store::{NodeStore, Root};
use crate::{Counters, Error, Result};
use lru::LruCache;
use parking_lot::Mutex;
use psync::Volume;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Sectors that are read at a time when the table is built.
const SCAN: u64 = 64;
/// Dead sectors that wait for an anchor, besides as many as half of the live ones, before one is written for their sake.
const RETIRED_MAX: u64 = 64;

/// How nodes are scattered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scatter {
    pub sector_len: usize,
    /// Units that the reservation buffer holds.
    pub units: usize,
    /// C.
    pub chain_max: usize,
    pub keys_max: Option<usize>,
    pub reclaim: bool,
    /// Read all sectors of a node with one psync.
    pub parallel: bool,
    /// Sectors that are kept in memory.
    pub frames: usize,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scattered {
    pub nodes_read: u64,
    pub sectors_visited: u64,
    pub commits: u64,
    pub units_committed: u64,
    pub sectors_committed: u64,
    pub compactions: u64,
    pub compaction_reads: u64,
}

/// See the module.
pub(crate) struct UnitStore {
    file: ExtentFile,
    how: Scatter,
    per_sector: usize,
    shape: Shape,
    root: Root,
    next_id: u64,
    sequence: u64,
    /// The node translation table.
    table: HashMap<NodeId, Vec<u64>>,
    live: HashMap<u64, Live>,
    live_sum: u64,
    reserved: BTreeMap<NodeId, Vec<Unit>>,
    reserved_units: usize,
    memory: Mutex<Memory>,
    done: Scattered,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    lists: u32,
    sequence: u64,
}

struct Memory {
    /// Nodes that the running operation has seen: their old state is compared with the new one.
    recent: HashMap<NodeId, Arc<Node>>,
    sectors: LruCache<u64, Arc<Vec<Unit>>>,
    hits: u64,
    nodes_read: u64,
    sectors_visited: u64,
}

/// A number that tells a live sector from all others.
fn witness(sector: u64, sequence: u64) -> u64 {
    let mut word = sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ sequence.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    word = (word ^ word >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word ^ word >> 29
}

impl UnitStore {
    pub fn create(volume: Arc<dyn Volume>, name: &str, how: Scatter) -> Result<Self> {
        Self::over(ExtentFile::create(volume, name, Owner::Bftl, how.sector_len)?, how)
    }

    fn over(file: ExtentFile, how: Scatter) -> Result<Self> {
        let per_sector = unit_page::units_max(how.sector_len);
        if how.chain_max < 2 || how.units == 0 {
            return Err(Error::Invalid(format!(
                "a buffer of {} units, lists of {} sectors: 1 and 2 at least",
                how.units, how.chain_max
            )));
        }
        let keys = how.keys_max.unwrap_or(per_sector - 2);
        if keys < 4 || image_max(keys) > (how.chain_max - 1) * per_sector {
            return Err(Error::Invalid(format!(
                "nodes of {keys} keys: 4 to {}, so that a node fits {} sectors",
                (how.chain_max - 1) * per_sector - 2,
                how.chain_max - 1
            )));
        }
        Ok(Self {
            file,
            how,
            per_sector,
            shape: Shape { fanout: keys, records: keys },
            root: Root { id: NodeId(0), level: 0 },
            next_id: 1,
            sequence: 0,
            table: HashMap::new(),
            live: HashMap::new(),
            live_sum: 0,
            reserved: BTreeMap::new(),
            reserved_units: 0,
            memory: Mutex::new(Memory {
                recent: HashMap::new(),
                sectors: LruCache::unbounded(),
                hits: 0,
                nodes_read: 0,
                sectors_visited: 0,
            }),
            done: Scattered::default(),
        })
    }

    /// Opens the file and builds the table by reading all sectors. Then [`Self::keep_only`] must be told what is in use.
    pub fn open(volume: Arc<dyn Volume>, name: &str, how: Scatter) -> Result<Self> {
        let mut this = Self::over(ExtentFile::open(volume, name, Owner::Bftl, how.sector_len)?, how)?;
        let words = this.file.anchor().words.clone();
        let sound = |words: &[u64]| words.len() == 6 && words[2].max(words[3]) <= NUMBER_MAX;
        let (true, Ok(level)) = (sound(&words), u8::try_from(words.get(1).copied().unwrap_or(u64::MAX)))
        else {
            let found = format!("{words:?}");
            return Err(Error::corrupt(name, 0, "words of the anchor", "those of a node table", found));
        };
        let (root, next_id, sequence) = (words[0], words[2], words[3]);
        this.root = Root { id: NodeId(root), level };
        this.next_id = next_id;
        this.sequence = sequence;
        let (mut found, mut stale) = (Vec::new(), Vec::new());
        let all = this.file.all();
        for first in all.clone().step_by(SCAN as usize) {
            let pages = first..all.end.min(first + SCAN);
            let bytes = this.file.read(pages.clone())?;
            for (sector, page) in pages.zip(bytes.chunks(how.sector_len)) {
                // What does not decode was torn, wiped, or is missed below.
                let decoded = unit_page::decode(page, name, this.file.offset(sector), id_of(sector));
                let Ok((units, written)) = decoded else { continue };
                if written <= sequence {
                    found.push((written, sector, units));
                } else {
                    stale.push(sector);
                }
            }
        }
        if !stale.is_empty() {
            let mut zeros = this.file.buffer(stale.len());
            zeros.fill(0);
            this.file.write_each(&stale, &zeros)?;
            this.file.sync()?;
        }
        found.sort_unstable_by_key(|(written, ..)| *written);
        for (written, sector, units) in found {
            let mut nodes: Vec<(NodeId, bool)> = Vec::new();
            for unit in units {
                let begins = matches!(unit.what, unit_page::What::Begin(_));
                match nodes.iter_mut().find(|(node, _)| *node == unit.node) {
                    Some((_, has_begin)) => *has_begin |= begins,
                    None => nodes.push((unit.node, begins)),
                }
            }
            for (node, begins) in nodes {
                if begins {
                    this.drop_list(node);
                }
                this.list(node, sector, written);
            }
        }
        Ok(this)
    }

    /// After opening: only these nodes are in use. Verifies that no sector is missing.
    pub fn keep_only(&mut self, used: &HashSet<NodeId>) -> Result<()> {
        let ghosts: Vec<_> = self.table.keys().filter(|id| !used.contains(id)).copied().collect();
        ghosts.into_iter().for_each(|ghost| self.drop_list(ghost));
        let expected = &self.file.anchor().words[4..];
        if expected != [self.live.len() as u64, self.live_sum] {
            let expected = format!("{expected:x?}");
            let found = format!("{:x?}", [self.live.len() as u64, self.live_sum]);
            return Err(Error::corrupt(
                self.file.name(),
                0,
                "number and sum of live sectors",
                expected,
                found,
            ));
        }
        let live: Vec<_> = self.live.keys().copied().collect();
        // Those that died while the table was built are free, not retired.
        live.into_iter().try_for_each(|sector| self.file.occupy(sector..sector + 1))
    }

    /// Appends a sector to a node's list.
    fn list(&mut self, node: NodeId, sector: u64, sequence: u64) {
        self.table.entry(node).or_default().push(sector);
        let live = self.live.entry(sector).or_insert_with(|| {
            self.live_sum ^= witness(sector, sequence);
            Live { lists: 0, sequence }
        });
        live.lists += 1;
    }

    /// Forgets a node's sectors. Returns those that are dead now.
    fn take_list(&mut self, node: NodeId) -> Vec<u64> {
        let mut dead = Vec::new();
        for sector in self.table.remove(&node).unwrap_or_default() {
            if let Some(live) = self.live.get_mut(&sector) {
                live.lists -= 1;
                if live.lists == 0 {
                    self.live_sum ^= witness(sector, live.sequence);
                    self.live.remove(&sector);
                    dead.push(sector);
                }
            }
        }
        dead
    }

    fn drop_list(&mut self, node: NodeId) {
        self.take_list(node);
    }

    /// Forgets a node's sectors, and retires those that are dead now.
    fn retire_list(&mut self, node: NodeId) {
        for sector in self.take_list(node) {
            if self.how.reclaim {
                self.file.retire(sector..sector + 1);
            }
        }
    }

    /// A new operation begins: what the one before has seen is forgotten.
    pub fn begin(&self) {
        self.memory.lock().recent.clear();
    }

    /// Reads sectors, those in memory aside. The published one reads them one after the other.
    fn sectors(&self, wanted: &[u64], at_once: bool) -> Result<HashMap<u64, Arc<Vec<Unit>>>> {
        let mut memory = self.memory.lock();
        let mut found = HashMap::with_capacity(wanted.len());
        let mut missing = Vec::new();
        for sector in wanted {
            match memory.sectors.get(sector).map(Arc::clone) {
                Some(units) => {
                    memory.hits += 1;
                    found.insert(*sector, units);
                }
                None if !missing.contains(sector) => missing.push(*sector),
                None => {}
            }
        }
        for set in missing.chunks(if at_once { missing.len().max(1) } else { 1 }) {
            self.file.read_each(set, &mut |index, page| {
                let sector = set[index];
                let offset = self.file.offset(sector);
                let (units, written) = unit_page::decode(page, self.file.name(), offset, id_of(sector))?;
                if let Some(live) = self.live.get(&sector)
                    && live.sequence != written
                {
                    let what = "sequence of a sector";
                    return Err(Error::corrupt(self.file.name(), offset, what, live.sequence, written));
                }
                let units = Arc::new(units);
                found.insert(sector, Arc::clone(&units));
                if self.how.frames > 0 {
                    memory.sectors.put(sector, units);
                    while memory.sectors.len() > self.how.frames {
                        memory.sectors.pop_lru();
                    }
                }
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// What the sectors that were read, and then `reserved`, make of a node.
    fn assemble(
        &self,
        id: NodeId,
        read: &HashMap<u64, Arc<Vec<Unit>>>,
        reserved: &[Unit],
    ) -> Result<Option<Node>> {
        let mut node = None;
        let list = self.table.get(&id).map_or(&[][..], Vec::as_slice);
        for sector in list {
            for unit in read.get(sector).into_iter().flat_map(|units| units.iter()) {
                if unit.node == id && !apply(&mut node, unit) {
                    let offset = self.file.offset(*sector);
                    let found = format!("{unit:?}");
                    return Err(Error::corrupt(
                        self.file.name(),
                        offset,
                        "unit",
                        format!("one of {id}"),
                        found,
                    ));
                }
            }
        }
        if !reserved.iter().all(|unit| apply(&mut node, unit)) {
            return Err(Error::broken(format!("{id}: the reserved units make no node")));
        }
        Ok(node)
    }

    /// A node as it is now, if there is one.
    fn find(&self, ids: &[NodeId], at_once: bool) -> Result<Vec<Option<Arc<Node>>>> {
        let known: Vec<_> = {
            let memory = self.memory.lock();
            ids.iter().map(|id| memory.recent.get(id).cloned()).collect()
        };
        let lists = ids.iter().zip(&known).filter(|(_, known)| known.is_none());
        let wanted: Vec<u64> =
            lists.flat_map(|(id, _)| self.table.get(id).into_iter().flatten().copied()).collect();
        let read = self.sectors(&wanted, at_once)?;
        let mut found = Vec::with_capacity(ids.len());
        for (id, known) in ids.iter().zip(known) {
            if known.is_some() {
                found.push(known);
                continue;
            }
            let reserved = self.reserved.get(id).map_or(&[][..], Vec::as_slice);
            let node = self.assemble(*id, &read, reserved)?.map(Arc::new);
            let mut memory = self.memory.lock();
            if let Some(node) = &node {
                memory.nodes_read += 1;
                memory.sectors_visited += self.table.get(id).map_or(0, Vec::len) as u64;
                memory.recent.insert(*id, Arc::clone(node));
            }
            found.push(node);
        }
        Ok(found)
    }

    /// Brings the reservation buffer to the device.
    fn commit(&mut self) -> Result<()> {
        let mut groups = Vec::with_capacity(self.reserved.len());
        for (id, units) in std::mem::take(&mut self.reserved) {
            let sectors = self.table.get(&id).map_or(0, Vec::len);
            if sectors + units.len().div_ceil(self.per_sector) <= self.how.chain_max {
                groups.push((id, units));
                continue;
            }
            // The list would become too long: the whole node is written anew.
            let list = self.table.get(&id).cloned().unwrap_or_default();
            let read = self.sectors(&list, self.how.parallel)?;
            let node = self
                .assemble(id, &read, &units)?
                .ok_or_else(|| Error::broken(format!("{id} has units but never began")))?;
            self.done.compactions += 1;
            self.done.compaction_reads += list.len() as u64;
            self.retire_list(id);
            groups.push((id, image(id, &node)));
        }
        self.reserved_units = 0;
        let sectors = pack(&groups, self.per_sector);
        if sectors.is_empty() {
            return Ok(());
        }
        let count = sectors.len() as u64;
        let places: Vec<u64> = if self.how.reclaim {
            sectors.iter().map(|_| self.file.allocate(1).start).collect()
        } else {
            let mut extent = self.file.allocate_last();
            self.file.extend(&mut extent, count);
            extent.collect()
        };
        let mut bytes = self.file.buffer(sectors.len());
        for ((sector, pieces), page) in places.iter().zip(&sectors).zip(bytes.chunks_mut(self.how.sector_len))
        {
            self.sequence += 1;
            self.memory.get_mut().sectors.pop(sector);
            let units: Vec<Unit> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
            self.done.units_committed += units.len() as u64;
            unit_page::encode(&units, id_of(*sector), self.sequence, page);
            for piece in pieces {
                self.list(piece[0].node, *sector, self.sequence);
            }
        }
        if places.windows(2).all(|pair| pair[0] + 1 == pair[1]) {
            self.file.write(places[0], &bytes)?;
        } else {
            self.file.write_each(&places, &bytes)?;
        }
        self.done.commits += 1;
        self.done.sectors_committed += count;
        Ok(())
    }

    fn save(&mut self) -> Result<()> {
        self.file.commit(vec![
            self.root.id.0,
            u64::from(self.root.level),
            self.next_id,
            self.sequence,
            self.live.len() as u64,
            self.live_sum,
        ])
    }

    /// Pages that nothing stands on: file and offset.
    pub fn unused(&self) -> Vec<(String, u64)> {
        self.file.unused()
    }

    /// Verifies the table: no list too long, every sector counted as often as it is listed.
    pub fn check(&self) -> Result<()> {
        let mut lists: HashMap<u64, u32> = HashMap::new();
        for (id, list) in &self.table {
            if list.len() > self.how.chain_max {
                return Err(Error::broken(format!("{id} is in {} sectors", list.len())));
            }
            list.iter().for_each(|sector| *lists.entry(*sector).or_default() += 1);
        }
        let counted: HashMap<u64, u32> =
            self.live.iter().map(|(sector, live)| (*sector, live.lists)).collect();
        let sum = self.live.iter().fold(0, |sum, (sector, live)| sum ^ witness(*sector, live.sequence));
        let reserved: usize = self.reserved.values().map(Vec::len).sum();
        if lists != counted || sum != self.live_sum || reserved != self.reserved_units {
            return Err(Error::broken("the table does not add up"));
        }
        Ok(())
    }

    /// What has happened.
    pub fn done(&self) -> Scattered {
        let memory = self.memory.lock();
        Scattered { nodes_read: memory.nodes_read, sectors_visited: memory.sectors_visited, ..self.done }
    }

    /// Nodes, entries of all lists, and live sectors.
    pub fn table_size(&self) -> (u64, u64, u64) {
        let listed = self.table.values().map(|list| list.len() as u64).sum();
        (self.table.len() as u64, listed, self.live.len() as u64)
    }
}

impl NodeStore for UnitStore {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn root(&self) -> Root {
        self.root
    }

    fn set_root(&mut self, root: Root) {
        self.root = root;
    }

    fn read(&self, id: NodeId) -> Result<Arc<Node>> {
        let found = self.find(&[id], self.how.parallel)?.pop().flatten();
        found.ok_or_else(|| Error::corrupt(self.file.name(), 0, "node translation table", id, "nothing"))
    }

    fn read_many(&self, ids: &[NodeId]) -> Result<Vec<Arc<Node>>> {
        let found = self.find(ids, true)?;
        let nowhere = |id| Error::corrupt(self.file.name(), 0, "node translation table", id, "nothing");
        found.into_iter().zip(ids).map(|(node, id)| node.ok_or_else(|| nowhere(id))).collect()
    }

    fn write(&mut self, id: NodeId, node: Node) -> Result<()> {
        let units = match self.find(&[id], self.how.parallel)?.pop().flatten() {
            Some(old) => units_between(id, &old, &node),
            None => image(id, &node),
        };
        self.reserved_units += units.len();
        if !units.is_empty() {
            self.reserved.entry(id).or_default().extend(units);
        }
        self.memory.get_mut().recent.insert(id, Arc::new(node));
        Ok(())
    }

    fn write_many(&mut self, nodes: Vec<(NodeId, Node)>) -> Result<()> {
        for (id, node) in nodes {
            self.write(id, node)?;
        }
        self.begin();
        self.commit()
    }

    fn allocate(&mut self) -> NodeId {
        self.next_id += 1;
        NodeId(self.next_id - 1)
    }

    fn free(&mut self, id: NodeId) -> Result<()> {
        self.reserved_units -= self.reserved.remove(&id).map_or(0, |units| units.len());
        self.memory.get_mut().recent.remove(&id);
        self.retire_list(id);
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.begin();
        if self.reserved_units >= self.how.units {
            self.commit()?;
            if self.file.retired() > RETIRED_MAX + self.live.len() as u64 / 2 {
                self.save()?;
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.commit()?;
        self.save()
    }

    fn counters(&self) -> Counters {
        let memory = self.memory.lock();
        let (nodes, listed, live) = self.table_size();
        let cached: usize = memory.sectors.len() * self.per_sector * size_of::<Unit>();
        Counters {
            hits: memory.hits,
            flushes: self.done.commits,
            memory: nodes * 16
                + listed * 8
                + live * 24
                + (self.reserved_units * size_of::<Unit>() + cached) as u64,
            ..self.file.counters()
        }
    }
}
