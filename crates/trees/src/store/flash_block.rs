//! Blocks of raw flash that hold nodes, and behind these a log.
//!
//! ```text
//! page    0 … n-1   n … 2n-1   …          log area, up to the last page
//!        | slot 0 | slot 1 | … slot k-1 |        units        |  free  |
//!
//! spare area of the first page of every slot (of page 0 alone if k is 0):
//! offset size
//!      0    2  magic "Bk"
//!      2    1  whose: 1 IPL, 2 d-IPL
//!      3    1  level of the node: 0 for leaves
//!      4    4  logical block
//!      8    8  epoch: grows with every group of blocks that is written
//!     16    4  which block of its group
//!     20    4  blocks of the group
//!     24    1  slot
//!     25    1  k: slots written
//!     26    1  n: pages of a slot
//!     27    1  units of a page of the log
//!     28    4  id of the node
//!     32    8  lowest key that the node is for
//!     40    8  two physical blocks that the group replaces, or 2^32 - 1
//!     48    4  CRC-32C of all before
//! ```
//! Little-endian. Nodes are as `page/flash_node.rs` has them, units as `page/log_unit.rs`.
//!
//! Invariants:
//! 1. Pages of a block are programmed upwards, each once (a log page once for each of its units). With the log right behind the
//!    data, none is left out.
//! 2. A group of blocks counts once all of its blocks are written whole. What it replaces is erased after that and before the
//!    next group: so at most the newest group is incomplete, and only what the newest replaces can be there still.
//! 3. Nothing that was read is believed before its magic, kind, id and checksum were seen.

use crate::page::header::bytes_at;
use crate::page::node::Node;
use crate::page::{Key, NodeId, flash_node, log_unit};
use crate::{Error, Result};
use flash::{BlockId, Geometry, PageId, PageProgram, PageRead, RawFlash};
use std::sync::Arc;

/// Bytes of the spare area that are used.
pub(crate) const SPARE: usize = 52;
const MAGIC: &[u8; 2] = b"Bk";
/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// How a system divides its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Whose blocks they are.
    pub tag: u8,
    /// Pages of a node.
    pub node_pages: u32,
    /// Units that a page of the log is divided into.
    pub parts: u32,
    pub pages_per_block: u32,
    pub page_len: usize,
}

impl Layout {
    /// Refuses what the flash cannot do.
    pub fn new(flash: &RawFlash, tag: u8, node_len: usize, parts: u32) -> Result<Self> {
        let Geometry { pages_per_block, page_bytes, spare_bytes, .. } = flash.geometry();
        let page_len = page_bytes as usize;
        let nodes_max = pages_per_block as usize * page_len / node_len.max(1);
        if !node_len.is_multiple_of(page_len) || !(4..=64).contains(&nodes_max) || node_len / page_len > 255 {
            return Err(Error::Invalid(format!(
                "nodes of {node_len} bytes: whole pages of {page_len}, and 4 to 64 of them in a block of {pages_per_block} pages"
            )));
        }
        if (spare_bytes as usize) < SPARE {
            return Err(Error::Invalid(format!("spare areas of {spare_bytes} bytes: at least {SPARE}")));
        }
        let (rules, unit_len) = (flash.rules(), page_len / parts.max(1) as usize);
        if !parts.is_power_of_two() || parts > u32::from(rules.programs_max) || unit_len < 128 {
            return Err(Error::Invalid(format!(
                "{parts} log units in a page of {page_len} bytes: a power of two, at most {} (programs of a page), and 128 bytes each",
                rules.programs_max
            )));
        }
        if rules.content != flash::Content::Full {
            return Err(Error::Invalid("flash that forgets what is written to it".to_owned()));
        }
        Ok(Self { tag, node_pages: (node_len / page_len) as u32, parts, pages_per_block, page_len })
    }

    /// Nodes that fill a block.
    pub fn slots(&self) -> usize {
        (self.pages_per_block / self.node_pages) as usize
    }

    pub fn node_len(&self) -> usize {
        self.node_pages as usize * self.page_len
    }

    pub fn unit_len(&self) -> usize {
        self.page_len / self.parts as usize
    }
}

/// What the spare area of a slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotHeader {
    pub level: u8,
    pub logical: u32,
    pub epoch: u64,
    pub member: u32,
    pub members: u32,
    pub slot: u8,
    pub slots: u8,
    pub id: NodeId,
    pub low: Key,
    pub replaced: [u32; 2],
}

impl SlotHeader {
    fn encode(&self, layout: &Layout) -> [u8; SPARE] {
        let mut spare = [0; SPARE];
        let mut put = |at: usize, bytes: &[u8]| spare[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(2, &[layout.tag, self.level]);
        put(4, &self.logical.to_le_bytes());
        put(8, &self.epoch.to_le_bytes());
        put(16, &self.member.to_le_bytes());
        put(20, &self.members.to_le_bytes());
        put(24, &[self.slot, self.slots, layout.node_pages as u8, layout.parts as u8]);
        put(28, &(self.id.0 as u32).to_le_bytes());
        put(32, &self.low.to_le_bytes());
        put(40, &self.replaced[0].to_le_bytes());
        put(44, &self.replaced[1].to_le_bytes());
        let crc = crc32c::crc32c(&spare[..48]);
        spare[48..].copy_from_slice(&crc.to_le_bytes());
        spare
    }

    /// None if it is not one of these.
    fn decode(spare: &[u8; SPARE], layout: &Layout) -> Option<Self> {
        let half = |at: usize| u32::from_le_bytes(bytes_at(spare, at));
        let word = |at: usize| u64::from_le_bytes(bytes_at(spare, at));
        let ours = &spare[..2] == MAGIC
            && spare[2] == layout.tag
            && u32::from(spare[26]) == layout.node_pages
            && u32::from(spare[27]) == layout.parts;
        let header = Self {
            level: spare[3],
            logical: half(4),
            epoch: word(8),
            member: half(16),
            members: half(20),
            slot: spare[24],
            slots: spare[25],
            id: NodeId(u64::from(half(28))),
            low: word(32),
            replaced: [half(40), half(44)],
        };
        let sound = half(48) == crc32c::crc32c(&spare[..48])
            && header.member < header.members
            && usize::from(header.slots) <= layout.slots()
            && (header.slot < header.slots || header.slots == 0);
        (ours && sound).then_some(header)
    }
}

/// What the first page of a slot looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spare {
    Header(SlotHeader),
    /// Nothing was ever written there since the block was erased.
    Free,
    /// Torn, half erased, or somebody else's.
    Damaged,
}

/// A page of a log area as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogPage {
    Free,
    Unreadable,
    /// Units, and whether some part of the page behind them is free.
    Units(Vec<log_unit::LogUnit>),
}

/// See the module.
pub(crate) struct FlashBlocks {
    pub flash: Arc<RawFlash>,
    pub layout: Layout,
}

impl FlashBlocks {
    fn page(&self, block: BlockId, index: u32) -> PageId {
        PageId(block.0 * self.layout.pages_per_block + index)
    }

    /// Where a page is, for those who have to repair it.
    fn place(block: BlockId) -> String {
        format!("flash block {}", block.0)
    }

    fn offset(&self, page: u32) -> u64 {
        u64::from(page) * self.layout.page_len as u64
    }

    /// Writes the nodes of a fresh block, slot by slot. `header` has what all slots share.
    pub fn write_block(
        &self,
        block: BlockId,
        header: SlotHeader,
        nodes: &[(NodeId, Key, Arc<Node>)],
        sequence: u64,
    ) -> Result<()> {
        let header = SlotHeader { slots: nodes.len() as u8, ..header };
        if nodes.is_empty() {
            let spare = header.encode(&self.layout);
            let page = self.page(block, 0);
            let only = PageProgram { page, offset: 0, data: &[], spare: &spare, spare_offset: 0 };
            return Ok(self.flash.program(&[only])?);
        }
        let Layout { node_pages, page_len, .. } = self.layout;
        let mut bytes = vec![0; nodes.len() * self.layout.node_len()];
        let mut spares = Vec::with_capacity(nodes.len());
        for ((slot, (id, low, node)), bytes) in
            (0..).zip(nodes).zip(bytes.chunks_exact_mut(self.layout.node_len()))
        {
            flash_node::encode(node, *id, sequence, bytes);
            let header = SlotHeader { slot, level: node.level(), id: *id, low: *low, ..header };
            spares.push(header.encode(&self.layout));
        }
        let programs: Vec<_> = (0..)
            .zip(bytes.chunks_exact(page_len))
            .map(|(index, data)| {
                let spare: &[u8] =
                    if index % node_pages == 0 { &spares[(index / node_pages) as usize] } else { &[] };
                PageProgram { page: self.page(block, index), offset: 0, data, spare, spare_offset: 0 }
            })
            .collect();
        Ok(self.flash.program(&programs)?)
    }

    /// Writes units one after the other, the first to part `at.1` of page `at.0` of the block.
    pub fn write_units(&self, block: BlockId, at: (u32, u32), units: &[Vec<u8>]) -> Result<()> {
        let Layout { parts, .. } = self.layout;
        let first = at.0 * parts + at.1;
        let programs: Vec<_> = (first..)
            .zip(units)
            .map(|(at, data)| PageProgram {
                page: self.page(block, at / parts),
                offset: (at % parts) as usize * self.layout.unit_len(),
                data,
                spare: &[],
                spare_offset: 0,
            })
            .collect();
        Ok(self.flash.program(&programs)?)
    }

    /// Reads slots and log pages of a block as one set: the nodes, and the bytes of the log pages.
    pub fn read_block(
        &self,
        block: BlockId,
        slots: &[(u8, NodeId)],
        log_pages: &[u32],
    ) -> Result<(Vec<Node>, Vec<Vec<u8>>)> {
        let Layout { node_pages, page_len, .. } = self.layout;
        let mut nodes = vec![0; slots.len() * self.layout.node_len()];
        let mut pages = vec![vec![0; page_len]; log_pages.len()];
        let slot_pages = slots
            .iter()
            .flat_map(|(slot, _)| (0..node_pages).map(move |page| u32::from(*slot) * node_pages + page));
        let buffers = nodes.chunks_exact_mut(page_len).chain(pages.iter_mut().map(Vec::as_mut_slice));
        let mut reads: Vec<_> = slot_pages
            .chain(log_pages.iter().copied())
            .zip(buffers)
            .map(|(page, buffer)| PageRead {
                page: self.page(block, page),
                offset: 0,
                buffer,
                spare: &mut [],
            })
            .collect();
        self.flash.read(&mut reads)?;
        drop(reads);
        let decode = |((slot, id), bytes): (&(u8, NodeId), &[u8])| {
            let offset = self.offset(u32::from(*slot) * node_pages);
            flash_node::decode(bytes, &Self::place(block), offset, *id)
        };
        let nodes = slots
            .iter()
            .zip(nodes.chunks_exact(self.layout.node_len()))
            .map(decode)
            .collect::<Result<_>>()?;
        Ok((nodes, pages))
    }

    /// A unit that was read with the log page `page`.
    pub fn unit(
        &self,
        block: BlockId,
        logical: u32,
        (page, part): (u32, u32),
        bytes: &[u8],
    ) -> Result<log_unit::LogUnit> {
        let unit_len = self.layout.unit_len();
        let at = part as usize * unit_len;
        log_unit::decode(
            &bytes[at..at + unit_len],
            &Self::place(block),
            self.offset(page) + at as u64,
            logical,
        )
    }

    /// What the first page of a slot says of it: one read.
    pub fn spare(&self, block: BlockId, slot: u8) -> Result<Spare> {
        let mut spare = [0; SPARE];
        let page = self.page(block, u32::from(slot) * self.layout.node_pages);
        match self.flash.read(&mut [PageRead { page, offset: 0, buffer: &mut [], spare: &mut spare }]) {
            Ok(()) if spare == [0xff; SPARE] => Ok(Spare::Free),
            Ok(()) => Ok(SlotHeader::decode(&spare, &self.layout).map_or(Spare::Damaged, Spare::Header)),
            Err(flash::Error::Unreadable { .. }) => Ok(Spare::Damaged),
            Err(other) => Err(other.into()),
        }
    }

    /// What stands on a page of the log area.
    pub fn log_page(&self, block: BlockId, logical: u32, page: u32) -> Result<LogPage> {
        let mut bytes = vec![0; self.layout.page_len];
        let read = PageRead { page: self.page(block, page), offset: 0, buffer: &mut bytes, spare: &mut [] };
        match self.flash.read(&mut [read]) {
            Ok(()) => {}
            Err(flash::Error::Unreadable { .. }) => return Ok(LogPage::Unreadable),
            Err(other) => return Err(other.into()),
        }
        let mut units = Vec::new();
        for (part, unit) in (0..).zip(bytes.chunks_exact(self.layout.unit_len())) {
            if unit.iter().all(|byte| *byte == 0xff) {
                break;
            }
            units.push(self.unit(block, logical, (page, part), &bytes)?);
        }
        Ok(if units.is_empty() { LogPage::Free } else { LogPage::Units(units) })
    }

    /// The error of a block that is not as it must be.
    pub fn corrupt(block: BlockId, what: &str, expected: impl ToString, found: impl ToString) -> Error {
        Error::corrupt(&Self::place(block), 0, what, expected, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_slots_header_is_noticed() {
        let layout = Layout { tag: 2, node_pages: 4, parts: 1, pages_per_block: 64, page_len: 2048 };
        let header = SlotHeader {
            level: 1,
            logical: 7,
            epoch: 99,
            member: 1,
            members: 2,
            slot: 3,
            slots: 8,
            id: NodeId(1234),
            low: u64::MAX,
            replaced: [5, NONE],
        };
        let mut spare = header.encode(&layout);
        assert_eq!(SlotHeader::decode(&spare, &layout), Some(header));
        assert_eq!(SlotHeader::decode(&spare, &Layout { tag: 1, ..layout }), None, "somebody else's");
        for bit in 0..8 * SPARE {
            spare[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SlotHeader::decode(&spare, &layout), None, "bit {bit}");
            spare[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
