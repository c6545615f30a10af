//! Finds out what flash holds: which blocks count, which nodes are in them, and what their logs say of nodes made and gone.
//!
//! Invariants:
//! 1. The newest group of blocks counts if all of its blocks are whole; what it replaces does not count then. All older groups
//!    are whole (see `store/flash_block.rs`).
//! 2. Only the end of a log can be torn: an unreadable page with a readable one behind it is damage, not power loss. So is a
//!    group of units that ends before others begin.
//! 3. A block whose first page is lost is let go only if it cannot have counted.

use crate::Result;
use crate::page::log_unit::{LogUnit, Record};
use crate::page::{Key, NodeId};
use crate::store::block_directory::{Directory, LogicalBlock, Member};
use crate::store::flash_block::{FlashBlocks, Layout, LogPage, NONE, SlotHeader, Spare};
use crate::store::log_area::LogArea;
use flash::BlockId;
use std::collections::{BTreeMap, BTreeSet};

/// What flash holds.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub directory: Directory,
    /// Logical blocks whose log ends in a torn page or an incomplete group. To be written anew before they are written to.
    pub torn: Vec<u32>,
    /// Blocks that hold something and do not count. To be erased before any block is written.
    pub garbage: Vec<BlockId>,
    /// Blocks whose first page is free: perhaps half erased.
    pub free: Vec<BlockId>,
    /// The newest epoch, unit and id that were seen.
    pub epoch: u64,
    pub sequence: u64,
    pub id: u64,
}

/// Reads the headers of all blocks, and the logs of those that count. `begins` says where the log of a block with so many
/// nodes begins.
pub(crate) fn scan(blocks: &FlashBlocks, begins: fn(&Layout, usize) -> u32) -> Result<Found> {
    let mut found = Found::default();
    let mut heads: BTreeMap<BlockId, SlotHeader> = BTreeMap::new();
    let mut headless = Vec::new();
    for block in (0..blocks.flash.geometry().blocks()).map(BlockId) {
        if blocks.flash.is_bad(block) {
            continue;
        }
        match blocks.spare(block, 0)? {
            Spare::Free => found.free.push(block),
            Spare::Damaged => headless.push(block),
            Spare::Header(header) => drop(heads.insert(block, header)),
        }
    }
    found.epoch = heads.values().map(|header| header.epoch).max().unwrap_or(0);
    let newest: BTreeMap<BlockId, SlotHeader> = heads
        .iter()
        .filter(|(_, header)| header.epoch == found.epoch)
        .map(|(at, head)| (*at, *head))
        .collect();
    let mut counts_up_to = found.epoch;
    let mut replaced = BTreeSet::new();
    if group_is_whole(blocks, &newest)? {
        replaced.extend(newest.values().flat_map(|header| header.replaced).map(BlockId));
        replaced.retain(|block| !newest.contains_key(block));
    } else {
        counts_up_to = found.epoch.saturating_sub(1);
        refuse_if_it_was_whole(&newest, &heads)?;
        replaced.extend(newest.keys());
    }
    for block in headless {
        if !replaced.contains(&block) {
            refuse_if_it_counted(blocks, block, counts_up_to)?;
        }
        found.garbage.push(block);
    }
    for (block, header) in heads {
        if replaced.contains(&block) {
            found.garbage.push(block);
        } else {
            open_block(blocks, block, header, begins, &mut found)?;
        }
    }
    Ok(found)
}

/// Whether all blocks of a group are there, and all nodes in them.
fn group_is_whole(blocks: &FlashBlocks, group: &BTreeMap<BlockId, SlotHeader>) -> Result<bool> {
    let members: BTreeSet<u32> = group.values().map(|header| header.member).collect();
    let Some(any) = group.values().next() else { return Ok(true) };
    if members.len() != any.members as usize || members.len() != group.len() {
        return Ok(false);
    }
    for (block, header) in group {
        let mut slots = Vec::new();
        for slot in 0..header.slots {
            match blocks.spare(*block, slot)? {
                Spare::Header(header) => slots.push((slot, header.id)),
                Spare::Free | Spare::Damaged => return Ok(false),
            }
        }
        match blocks.read_block(*block, &slots, &[]) {
            Ok(_) => {}
            Err(crate::Error::Flash(flash::Error::Unreadable { .. }) | crate::Error::Corrupt { .. }) => {
                return Ok(false);
            }
            Err(other) => return Err(other),
        }
    }
    Ok(true)
}

/// If what an incomplete group was to replace is not there any more, the group was whole once.
fn refuse_if_it_was_whole(
    group: &BTreeMap<BlockId, SlotHeader>,
    heads: &BTreeMap<BlockId, SlotHeader>,
) -> Result<()> {
    for (block, header) in group {
        for old in header.replaced.into_iter().filter(|old| *old != NONE) {
            if heads.get(&BlockId(old)).is_none_or(|old| old.epoch >= header.epoch) {
                let found = format!("some pages are damaged, and block {old}, which it replaces, is gone");
                return Err(FlashBlocks::corrupt(*block, "nodes of a block", "all", found));
            }
        }
    }
    Ok(())
}

/// A block has lost its first page. If others show that it counted, something is wrong with the flash.
fn refuse_if_it_counted(blocks: &FlashBlocks, block: BlockId, counts_up_to: u64) -> Result<()> {
    for slot in 1..blocks.layout.slots() as u8 {
        if let Spare::Header(header) = blocks.spare(block, slot)?
            && header.epoch <= counts_up_to
        {
            let found = format!("none, but slot {slot} is of logical block {}", header.logical);
            return Err(FlashBlocks::corrupt(block, "header of a block", "a whole one", found));
        }
    }
    Ok(())
}

/// Reads a block that counts.
fn open_block(
    blocks: &FlashBlocks,
    physical: BlockId,
    head: SlotHeader,
    begins: fn(&Layout, usize) -> u32,
    found: &mut Found,
) -> Result<()> {
    let mut members: Vec<(NodeId, u8, Key)> = Vec::new();
    for slot in 0..head.slots {
        match blocks.spare(physical, slot)? {
            Spare::Header(header)
                if (header.slot, header.epoch, header.logical, header.slots)
                    == (slot, head.epoch, head.logical, head.slots) =>
            {
                members.push((header.id, header.level, header.low));
            }
            other => {
                let what = format!("header of slot {slot}");
                return Err(FlashBlocks::corrupt(physical, &what, "one like slot 0's", format!("{other:?}")));
            }
        }
    }
    let layout = &blocks.layout;
    let regular: Vec<NodeId> = members.iter().map(|(id, ..)| *id).collect();
    let log = LogArea::new(begins(layout, members.len()), layout.pages_per_block, layout.parts);
    let mut open = Open { physical, live: vec![true; members.len()], members, log, torn: false };
    open.read_log(blocks, head.logical, found)?;
    if open.torn {
        found.torn.push(head.logical);
    }
    let slots = open.members.iter().zip(&open.live).map(|((id, ..), live)| live.then_some(*id)).collect();
    let block = LogicalBlock { physical, regular, slots, log: open.log };
    if let Some(other) = found.directory.set_block(head.logical, block) {
        let expected = format!("another than block {}'s", other.physical.0);
        return Err(FlashBlocks::corrupt(physical, "logical block", expected, head.logical));
    }
    for (slot, ((id, level, low), live)) in (0..).zip(open.members.into_iter().zip(open.live)) {
        found.id = found.id.max(id.0);
        if live {
            let twice = found.directory.contains(id);
            let member = Member { level, low, block: head.logical, slot };
            if twice || found.directory.set_member(id, member).is_err() {
                let what = format!("{id}, from key {low} on, of level {level}");
                return Err(FlashBlocks::corrupt(physical, &what, "once", "twice"));
            }
        }
    }
    Ok(())
}

/// A block whose log is being read.
struct Open {
    physical: BlockId,
    /// By slot.
    members: Vec<(NodeId, u8, Key)>,
    live: Vec<bool>,
    log: LogArea,
    torn: bool,
}

impl Open {
    fn read_log(&mut self, blocks: &FlashBlocks, logical: u32, found: &mut Found) -> Result<()> {
        let mut group: Vec<(u32, LogUnit)> = Vec::new();
        let mut last = 0;
        for page in self.log.first_page()..blocks.layout.pages_per_block {
            let units = match blocks.log_page(self.physical, logical, page)? {
                LogPage::Free => break,
                LogPage::Unreadable if !self.torn => {
                    self.torn = true;
                    continue;
                }
                LogPage::Unreadable => return Err(self.corrupt("a log page", "readable", "not")),
                LogPage::Units(_) if self.torn => {
                    return Err(self.corrupt("an unreadable log page", "the last one", "others behind it"));
                }
                LogPage::Units(units) => units,
            };
            for unit in units {
                let expected = (group.len() as u8, unit.sequence > last);
                let members = group.first().map_or(unit.members, |(_, first)| first.members);
                if (unit.member, true) != expected || unit.members != members {
                    let found = format!("{} of {}, number {}", unit.member, unit.members, unit.sequence);
                    return Err(self.corrupt("order of log units", format!("member {}", expected.0), found));
                }
                last = unit.sequence;
                found.sequence = found.sequence.max(last);
                group.push((page, unit));
                if group.len() == usize::from(members) {
                    for (page, unit) in group.drain(..) {
                        self.log.reach(page);
                        self.log.wrote(&unit.records);
                        unit.records.iter().try_for_each(|record| self.note(record))?;
                    }
                }
            }
        }
        self.torn |= !group.is_empty();
        Ok(())
    }

    /// What a record says of nodes made and gone.
    fn note(&mut self, record: &Record) -> Result<()> {
        let (slot, other) = record.slots();
        let at = usize::from(slot);
        let live = |open: &Self, slot: u8| open.live.get(usize::from(slot)).copied().unwrap_or(false);
        match *record {
            Record::Create { id, level, low, .. } if at == self.members.len() => {
                self.members.push((id, level, low));
                self.live.push(true);
            }
            Record::Split { key, id, new, .. }
                if live(self, slot) && usize::from(new) == self.members.len() =>
            {
                self.members.push((id, self.members[at].1, key));
                self.live.push(true);
            }
            Record::Merge { taken, .. } if live(self, slot) && live(self, taken) && slot != taken => {
                self.live[usize::from(taken)] = false;
            }
            Record::Drop { .. } if live(self, slot) => self.live[at] = false,
            Record::Put { .. } | Record::Remove { .. } | Record::Cut { .. } if live(self, slot) => {}
            _ => {
                let found = format!("{slot} and {other:?} of {}", self.members.len());
                return Err(self.corrupt("slots of a log record", "some that hold nodes", found));
            }
        }
        Ok(())
    }

    fn corrupt(&self, what: &str, expected: impl ToString, found: impl ToString) -> crate::Error {
        FlashBlocks::corrupt(self.physical, what, expected, found)
    }
}
