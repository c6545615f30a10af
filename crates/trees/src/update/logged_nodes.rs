//! Nodes in flash blocks that are changed by logging: what IPL and d-IPL have in common. How a block is divided, where a new
//! node goes and what happens when a log is full, the [`Scheme`] says.
//!
//! Invariants:
//! 1. A node is what its block says (data area, then log), with its log sector in memory applied.
//! 2. Records of a node reach its block in the order in which it changed. A node that was split, merged or made is on flash
//!    when the call returns, before its parent knows of it.
//! 3. What replaces blocks is written whole before these are erased, and they are erased before the next group is written.

use crate::buffer::log_frames::LogFrames;
use crate::page::flash_node::FlashShape;
use crate::page::log_unit::{self, Record};
use crate::page::node::Node;
use crate::page::node_change::Change;
use crate::page::{Key, NodeId};
use crate::store::Root;
use crate::store::block_directory::{Directory, LogicalBlock, Member};
use crate::store::erased_blocks::ErasedBlocks;
use crate::store::flash_block::{FlashBlocks, Layout, NONE, SlotHeader};
use crate::store::log_area::LogArea;
use crate::update::ghost::{Nodes, replay};
use crate::{Error, PageUse, Result};
use flash::{BlockId, RawFlash};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// Most slots of a block, nodes that are gone included: slots are numbered by a byte.
const SLOTS_MAX: usize = 250;

/// What a system does its own way.
pub(crate) trait Scheme: Sized {
    /// Marks its blocks on flash.
    const TAG: u8;

    /// As the papers call it.
    const NAME: &'static str;

    /// Whether recovery may find in a node what another one has taken from it.
    const TRIMS: bool;

    /// Whether a block holds consecutive nodes of one level, and the root is alone in its block.
    const SIBLINGS: bool;

    /// The page that the log of a block with `regular` nodes in its data area begins at.
    fn log_begins(layout: &Layout, regular: usize) -> u32;

    /// Most nodes of a block.
    fn members_max(layout: &Layout) -> usize;

    /// A block's log is full: writes its nodes anew, here or there.
    fn make_room(nodes: &mut LoggedNodes<Self>, block: u32) -> Result<()>;

    /// Divides a full node, durably. The fence, and the new node to the right of it.
    fn split(nodes: &mut LoggedNodes<Self>, id: NodeId) -> Result<(Key, NodeId)>;

    /// Whether two neighbours can become one.
    fn may_merge(nodes: &LoggedNodes<Self>, left: NodeId, right: NodeId) -> Result<bool>;

    /// Makes them one, durably: `joined`, which has the left one's id.
    fn merge(
        nodes: &mut LoggedNodes<Self>,
        left: NodeId,
        fence: Key,
        right: NodeId,
        joined: Node,
    ) -> Result<()>;

    /// Makes a node that is no part of another, durably: the first leaf, or a root.
    fn plant(nodes: &mut LoggedNodes<Self>, id: NodeId, low: Key, node: Node) -> Result<()>;

    /// The root has given way to its only child, which is the root now.
    fn uproot(nodes: &mut LoggedNodes<Self>, old: NodeId) -> Result<()>;
}

/// How often what happened, in the words of the d-IPL paper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogDetails {
    /// Log units written.
    pub units: u64,
    /// Those that were written because a node was split: what moves to the new one, and what takes it off the old one.
    pub split_units: u64,
    /// Those that were written because a log sector in memory was full (rule 2).
    pub full_sectors: u64,
    /// Those that were written because a frame was evicted (rule 1).
    pub evictions: u64,
    /// Groups of units of one split or merge that had to be written together (rule 3).
    pub groups: u64,
    /// Blocks whose log was merged with their data.
    pub cleansings: u64,
    /// Blocks that were divided.
    pub block_splits: u64,
    /// Pairs of blocks that became one.
    pub block_merges: u64,
    /// Ghosts made.
    pub ghosts: u64,
    /// Of these, from nodes that were ghosts themselves.
    pub ghosts_of_ghosts: u64,
    /// Node splits that made their parent split, too.
    pub double_splits: u64,
    /// Roots that gave way to their only child.
    pub roots_dropped: u64,
    /// Free pages below programmed ones when their block was erased: evaporated.
    pub evaporated: u64,
    /// Pages of nodes written while blocks were written anew.
    pub moved_pages: u64,
}

/// What is read of a block's log with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogReads {
    /// All pages that hold anything, as the d-IPL paper implies.
    All,
    /// Those that speak of the node or of its sources: memory knows which they are.
    Relevant,
    /// As IPL reads: of the log, which is counted in pages as long as a node, each whole page that has a record of the node or of
    /// its sources.
    LogPages,
}

/// What a system is built with, as this module needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedOptions {
    pub node_len: usize,
    pub fanout: usize,
    pub records: usize,
    pub frames: usize,
    pub parts: u32,
    pub log_reads: LogReads,
}

/// See the module.
pub(crate) struct LoggedNodes<S> {
    pub blocks: FlashBlocks,
    pub directory: Directory,
    pub erased: ErasedBlocks,
    pub frames: LogFrames,
    pub shape: FlashShape,
    pub root: Root,
    pub details: LogDetails,
    pub next_id: u64,
    /// Of the next unit or block.
    pub sequence: u64,
    /// Of the last group of blocks.
    pub epoch: u64,
    pub hits: u64,
    log_reads: LogReads,
    scheme: PhantomData<fn() -> S>,
}

impl<S: Scheme> LoggedNodes<S> {
    /// Over flash of which nothing is known yet.
    pub fn new(flash: Arc<RawFlash>, options: &LoggedOptions) -> Result<Self> {
        let layout = Layout::new(&flash, S::TAG, options.node_len, options.parts)?;
        let sector_len = log_unit::capacity(layout.unit_len());
        Ok(Self {
            blocks: FlashBlocks { flash, layout },
            directory: Directory::default(),
            erased: ErasedBlocks::default(),
            frames: LogFrames::new(options.frames, sector_len),
            shape: FlashShape::new(options.node_len, options.fanout, options.records)?,
            root: Root { id: NodeId(0), level: 0 },
            details: LogDetails::default(),
            next_id: 1,
            sequence: 1,
            epoch: 0,
            hits: 0,
            log_reads: options.log_reads,
            scheme: PhantomData,
        })
    }

    /// Erases everything, for a new tree.
    pub fn format(&mut self) -> Result<()> {
        for block in 0..self.blocks.flash.geometry().blocks() {
            self.erased.erase(&self.blocks.flash, BlockId(block))?;
        }
        Ok(())
    }

    pub fn allocate(&mut self) -> Result<NodeId> {
        self.next_id += 1;
        if self.next_id > u64::from(u32::MAX) {
            return Err(Error::Invalid("all 2^32 names of nodes were used; build the tree anew".to_owned()));
        }
        Ok(NodeId(self.next_id - 1))
    }

    /// A node as it is.
    pub fn node(&mut self, id: NodeId) -> Result<Arc<Node>> {
        if let Some(node) = self.frames.get(id) {
            self.hits += 1;
            return Ok(node);
        }
        let node = Arc::new(self.load(id)?);
        self.frames.put(id, Arc::clone(&node));
        self.evict()?;
        Ok(node)
    }

    /// A node as it is, without touching any frame.
    pub fn peek(&self, id: NodeId) -> Result<Arc<Node>> {
        self.frames.peek(id).map_or_else(|| self.load(id).map(Arc::new), Ok)
    }

    /// A node as it is on flash.
    fn load(&self, id: NodeId) -> Result<Node> {
        let Member { block, slot, .. } = self.directory.member(id)?;
        let mut found = self.load_slots(block, &[slot])?;
        found.remove(&slot).ok_or_else(|| Error::broken(format!("{id} is not in its block's log")))
    }

    /// Nodes of one block as they are on flash.
    fn load_slots(&self, number: u32, slots: &[u8]) -> Result<Nodes> {
        let block = self.directory.block(number)?;
        let needed = block.log.needed(slots);
        let units = match self.log_reads {
            LogReads::All => block.log.relevant(None),
            LogReads::Relevant => block.log.relevant(Some(&needed)),
            LogReads::LogPages => {
                block.log.beside(&block.log.relevant(Some(&needed)), self.blocks.layout.node_pages)
            }
        };
        let mut pages: Vec<u32> = units.iter().map(|unit| block.log.place(*unit).0).collect();
        pages.dedup();
        let ids: Vec<(u8, NodeId)> =
            needed.keys().filter_map(|slot| Some((*slot, *block.regular.get(usize::from(*slot))?))).collect();
        let (bases, bytes) = self.blocks.read_block(block.physical, &ids, &pages)?;
        let bases = ids.iter().map(|(slot, _)| *slot).zip(bases).collect();
        let mut log = Vec::with_capacity(units.len());
        for unit in units {
            let at = block.log.place(unit);
            let page = pages.binary_search(&at.0).map_err(|_| Error::broken("a log page was not read"))?;
            log.push((unit, self.blocks.unit(block.physical, number, at, &bytes[page])?));
        }
        let records =
            log.iter().flat_map(|(number, unit)| unit.records.iter().map(|record| (*number, record)));
        replay(bases, records, &needed)
    }

    /// Changes a node; its log sector is written if it is full then (rule 2).
    pub fn change(&mut self, id: NodeId, change: Change) -> Result<()> {
        let mut node = self.node(id)?;
        change.apply(Arc::make_mut(&mut node))?;
        if self.frames.put_changed(id, node, change) {
            self.details.full_sectors += 1;
            self.write_sector(id)?;
        }
        self.evict()
    }

    /// Evicts frames that are too many; of those that changed, the log sector is written (rule 1).
    pub fn evict(&mut self) -> Result<()> {
        while let Some(id) = self.frames.too_many() {
            if !self.frames.sector(id).is_empty() {
                self.details.evictions += 1;
                self.write_sector(id)?;
            }
            self.frames.remove(id);
        }
        Ok(())
    }

    /// What a node's log sector holds, as records.
    pub fn sector(&self, id: NodeId) -> Result<Vec<Record>> {
        let slot = self.directory.member(id)?.slot;
        Ok(self.frames.sector(id).iter().map(|change| change.record(slot)).collect())
    }

    /// Writes a node's log sector to its block, making room there if need be.
    pub fn write_sector(&mut self, id: NodeId) -> Result<()> {
        let (block, records) = self.with_room(id, &|nodes| nodes.sector(id))?;
        // Making room may have written the node itself.
        if !records.is_empty() {
            self.append(block, &records)?;
            self.frames.written(id);
        }
        Ok(())
    }

    /// Makes room for a group of records about a node, and says in which block. Making room may write sectors, so that there is
    /// less to be written: `records` is asked again then.
    pub fn with_room(
        &mut self,
        id: NodeId,
        records: &dyn Fn(&Self) -> Result<Vec<Record>>,
    ) -> Result<(u32, Vec<Record>)> {
        for _ in 0..2 {
            let (block, records) = (self.directory.member(id)?.block, records(self)?);
            if self.fits(block, &records)? {
                return Ok((block, records));
            }
            S::make_room(self, block)?;
        }
        Err(Error::broken(format!("a block that was just written anew has no room for a change of {id}")))
    }

    /// A node that was not there, and is about to be written.
    pub fn found(&mut self, id: NodeId, level: u8, low: Key, node: Arc<Node>) -> Result<()> {
        self.directory.set_member(id, Member { level, low, block: NONE, slot: 0 })?;
        self.frames.put(id, node);
        Ok(())
    }

    /// Whether a block's log has room for these records, as one group.
    pub fn fits(&self, block: u32, records: &[Record]) -> Result<bool> {
        let units = log_unit::pack(records, self.blocks.layout.unit_len()).len();
        let block = self.directory.block(block)?;
        Ok(units <= block.log.room() && block.slots.len() < SLOTS_MAX)
    }

    /// Writes records to a block's log, which has room for them, as one group. How many units they took.
    pub fn append(&mut self, number: u32, records: &[Record]) -> Result<u64> {
        let unit_len = self.blocks.layout.unit_len();
        let units = log_unit::pack(records, unit_len);
        let members = units.len() as u8;
        let mut bytes = Vec::with_capacity(units.len());
        for (member, records) in (0..).zip(&units) {
            let mut unit = vec![0; unit_len];
            log_unit::encode(records, number, self.sequence, (member, members), &mut unit);
            self.sequence += 1;
            bytes.push(unit);
        }
        let block = self.directory.block_mut(number)?;
        self.blocks.write_units(block.physical, block.log.next(), &bytes)?;
        units.iter().for_each(|records| block.log.wrote(records));
        self.details.units += u64::from(members);
        Ok(u64::from(members))
    }

    /// Writes all nodes of the blocks `new` as they are into fresh blocks, and erases the blocks `old`. Between the two, the
    /// new ones take effect all at once.
    pub fn rewrite(&mut self, new: &[(u32, Vec<NodeId>)], old: &[u32]) -> Result<()> {
        let replaced_blocks: Vec<_> =
            old.iter().map(|block| Ok(self.directory.block(*block)?.physical)).collect::<Result<_>>()?;
        let mut replaced = [NONE; 2];
        for (to, block) in replaced.iter_mut().zip(&replaced_blocks) {
            *to = block.0;
        }
        if self.erased.len() < new.len() {
            let (wanted, free) = (new.len(), self.erased.len());
            let what =
                format!("the flash is full: {free} blocks are free and {wanted} are needed; take more flash");
            return Err(Error::Invalid(what));
        }
        let images = self.images(new)?;
        self.epoch += 1;
        let mut placed = Vec::with_capacity(new.len());
        for (member, (logical, ids)) in (0..).zip(new) {
            let physical = self.erased.take(&self.blocks.flash)?;
            let header = SlotHeader {
                level: 0,
                logical: *logical,
                epoch: self.epoch,
                member,
                members: new.len() as u32,
                slot: 0,
                slots: 0,
                id: NodeId(0),
                low: 0,
                replaced,
            };
            let nodes = ids
                .iter()
                .map(|id| {
                    let image = images.get(id).ok_or_else(|| Error::broken(format!("no image of {id}")))?;
                    Ok((*id, self.directory.member(*id)?.low, Arc::clone(image)))
                })
                .collect::<Result<Vec<_>>>()?;
            self.blocks.write_block(physical, header, &nodes, self.sequence)?;
            self.sequence += 1;
            self.details.moved_pages += (nodes.len() as u64) * u64::from(self.blocks.layout.node_pages);
            placed.push(physical);
        }
        for block in old {
            if let Some(block) = self.directory.remove_block(*block) {
                self.details.evaporated += self.evaporated(&block);
            }
        }
        for ((logical, ids), physical) in new.iter().zip(placed) {
            self.settle_block(*logical, ids, physical)?;
        }
        for block in replaced_blocks {
            self.erased.erase(&self.blocks.flash, block)?;
        }
        Ok(())
    }

    /// Notes a block that was just written.
    fn settle_block(&mut self, logical: u32, ids: &[NodeId], physical: BlockId) -> Result<()> {
        let layout = self.blocks.layout;
        let begins = S::log_begins(&layout, ids.len());
        let log = LogArea::new(begins, layout.pages_per_block, layout.parts);
        let slots = ids.iter().copied().map(Some).collect();
        let block = LogicalBlock { physical, regular: ids.to_vec(), slots, log };
        self.directory.set_block(logical, block);
        for (slot, id) in (0..).zip(ids) {
            let member = self.directory.member(*id)?;
            self.directory.set_member(*id, Member { block: logical, slot, ..member })?;
            self.frames.written(*id);
        }
        Ok(())
    }

    /// All nodes of these blocks as they are: from frames, or from flash.
    fn images(&self, new: &[(u32, Vec<NodeId>)]) -> Result<HashMap<NodeId, Arc<Node>>> {
        let mut images = HashMap::new();
        let mut missing: HashMap<u32, Vec<(u8, NodeId)>> = HashMap::new();
        for id in new.iter().flat_map(|(_, ids)| ids) {
            if let Some(node) = self.frames.peek(*id) {
                images.insert(*id, node);
            } else {
                let member = self.directory.member(*id)?;
                missing.entry(member.block).or_default().push((member.slot, *id));
            }
        }
        for (block, members) in missing {
            let slots: Vec<u8> = members.iter().map(|(slot, _)| *slot).collect();
            let mut found = self.load_slots(block, &slots)?;
            for (slot, id) in members {
                let node = found.remove(&slot);
                let node = node.ok_or_else(|| Error::broken(format!("{id} is not in its block's log")))?;
                images.insert(id, Arc::new(node));
            }
        }
        Ok(images)
    }

    /// Free pages of a block that cannot be programmed any more, since the log behind them has begun.
    pub fn evaporated(&self, block: &LogicalBlock) -> u64 {
        // Of a block without data, page 0 has the header.
        let written = (block.regular.len() as u32 * self.blocks.layout.node_pages).max(1);
        if block.log.is_empty() { 0 } else { u64::from(block.log.first_page().saturating_sub(written)) }
    }

    /// Which pages are needed: what blocks that count have written, but for nodes that are gone and are no ghost's source.
    pub fn page_use(&self) -> PageUse {
        let geometry = self.blocks.flash.geometry();
        let mut needed = vec![0; geometry.pages() as usize];
        for block in self.directory.blocks().values() {
            let first = geometry.page(block.physical, 0).0;
            let mut need = |pages: Range<u32>| {
                pages.for_each(|page| needed[(first + page) as usize] = 1);
            };
            let node =
                |slot: u32| slot * self.blocks.layout.node_pages..(slot + 1) * self.blocks.layout.node_pages;
            for slot in 0..block.regular.len() as u32 {
                let is_source = || block.log.sources().any(|(_, source)| u32::from(source) == slot);
                if block.slots.get(slot as usize).is_some_and(Option::is_some) || is_source() {
                    need(node(slot));
                }
            }
            if block.regular.is_empty() {
                // The header alone.
                need(0..1);
            }
            let (page, part) = block.log.next();
            need(block.log.first_page()..page + u32::from(part > 0));
        }
        PageUse::Needed(needed)
    }

    /// Writes all log sectors.
    pub fn flush(&mut self) -> Result<()> {
        for id in self.frames.dirty() {
            self.write_sector(id)?;
        }
        for number in self.directory.blocks().keys().copied().collect::<Vec<_>>() {
            self.directory.block_mut(number)?.log.close_page();
        }
        Ok(())
    }

    /// Bytes of memory: frames, directory, and what is known of logs.
    pub fn memory(&self) -> u64 {
        self.frames.memory(self.blocks.layout.node_len()) + self.directory.memory() + self.erased.memory()
    }
}
