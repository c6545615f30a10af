//! Blocks whose pages stand anywhere, of two kinds, data and translation pages: where the next page goes, whose each page is,
//! and which block to empty next.
//!
//! Invariants:
//! 1. data and translation pages never share a block;
//! 2. a block's count of valid pages is that of its owned pages;
//! 3. a block is a candidate for being emptied from when it is full (or a program failed in it, or recovery found it) until it
//!    is chosen;
//! 4. in a row of pages for the same stream and slot, a block is taken only where one is full.

use super::free_blocks::FreeBlocks;
use super::garbage_collection::{Candidates, Victims};
use crate::{BlockId, Done, Error, Flash, Geometry, PageId, Result};

const NONE: u32 = u32::MAX;

/// A block that is being written to.
#[derive(Clone, Copy, Debug)]
struct Open {
    block: u32,
    next: u32,
}

const CLOSED: Open = Open { block: NONE, next: 0 };

/// Which blocks a page goes to. Each stream is spread over some slots, an open block in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Host,
    Copies,
    Tables,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct PageBlocks {
    geometry: Geometry,
    victims: Victims,
    pub free: FreeBlocks,
    /// Grows with everything that is written.
    pub version: u64,
    /// By physical page: whose it is.
    owner: Vec<u32>,
    /// By block: whether it holds translation pages.
    is_table: Vec<bool>,
    /// By block: the version when it was closed.
    closed: Vec<u64>,
    /// Blocks with a page that can be neither read nor moved, until it is overwritten.
    stuck: Vec<BlockId>,
    data: Candidates,
    tables: Candidates,
    /// By stream.
    slots: [Vec<Open>; 3],
}

impl PageBlocks {
    /// With so many slots for each stream.
    pub(super) fn new(geometry: Geometry, victims: Victims, free: FreeBlocks, slots: [u32; 3]) -> Self {
        let blocks = geometry.blocks();
        Self {
            geometry,
            victims,
            free,
            version: 1,
            owner: vec![NONE; geometry.pages() as usize],
            is_table: vec![false; blocks as usize],
            closed: vec![0; blocks as usize],
            stuck: Vec::new(),
            data: Candidates::new(blocks, geometry.pages_per_block),
            tables: Candidates::new(blocks, geometry.pages_per_block),
            slots: slots.map(|count| vec![CLOSED; count as usize]),
        }
    }

    pub(super) fn is_table(&self, block: BlockId) -> bool {
        self.is_table[block.0 as usize]
    }

    fn candidates(&mut self, block: BlockId) -> &mut Candidates {
        if self.is_table(block) { &mut self.tables } else { &mut self.data }
    }

    /// Pages of the block that are owned.
    pub(super) fn valid(&self, block: BlockId) -> u32 {
        if self.is_table(block) { self.tables.valid(block) } else { self.data.valid(block) }
    }

    /// The owned pages of a block, and whose they are.
    pub(super) fn owned(&self, block: BlockId) -> impl Iterator<Item = (PageId, u32)> {
        let pages = (0..self.geometry.pages_per_block).map(move |index| self.geometry.page(block, index));
        pages.map(|page| (page, self.owner[page.0 as usize])).filter(|(_, owner)| *owner != NONE)
    }

    pub(super) fn own(&mut self, at: PageId, number: u32) {
        self.owner[at.0 as usize] = number;
        let block = self.geometry.block_of(at);
        self.candidates(block).gain(block);
    }

    /// Nobody's from now on. `u32::MAX` is no page.
    pub(super) fn disown(&mut self, at: u32) {
        if at != NONE {
            self.owner[at as usize] = NONE;
            let block = self.geometry.block_of(PageId(at));
            self.candidates(block).lose(block);
        }
    }

    fn close(&mut self, block: BlockId) {
        self.closed[block.0 as usize] = self.version;
        self.offer_again(block);
    }

    /// A block that was chosen is a candidate again.
    pub(super) fn offer_again(&mut self, block: BlockId) {
        let since = self.closed[block.0 as usize];
        self.candidates(block).offer(block, since);
    }

    /// A block that was chosen cannot be emptied; it is chosen again when nobody owns a page of it any more.
    pub(super) fn keep_stuck(&mut self, block: BlockId) {
        self.stuck.push(block);
    }

    /// Recovery found a block, of one of the two kinds. Nothing more is written to it.
    pub(super) fn add_found(&mut self, block: BlockId, is_table: bool) {
        self.is_table[block.0 as usize] = is_table;
        self.offer_again(block);
    }

    fn next_page(&mut self, flash: &mut Flash, stream: Stream, slot: usize) -> Result<PageId> {
        let slots = &mut self.slots[stream as usize];
        let slot = slot % slots.len();
        let open = slots[slot];
        if open.block == NONE || open.next == self.geometry.pages_per_block {
            slots[slot] = CLOSED;
            if open.block != NONE {
                self.close(BlockId(open.block));
            }
            let block = self.free.take(flash)?;
            self.is_table[block.0 as usize] = stream == Stream::Tables;
            self.slots[stream as usize][slot] = Open { block: block.0, next: 0 };
        }
        let open = &mut self.slots[stream as usize][slot];
        open.next += 1;
        Ok(self.geometry.page(BlockId(open.block), open.next - 1))
    }

    /// Programs or copies something to the next page of a stream's `slot`-th open block; if that fails, to another. A block in
    /// which a program failed is written to no more, and is bad once it is empty.
    pub(super) fn place(
        &mut self,
        flash: &mut Flash,
        stream: Stream,
        slot: usize,
        mut put: impl FnMut(&mut Flash, PageId) -> Result<Done>,
    ) -> Result<PageId> {
        loop {
            let at = self.next_page(flash, stream, slot)?;
            let block = self.geometry.block_of(at);
            let open = self.slots[stream as usize].iter_mut().find(|open| open.block == block.0);
            match (put(flash, at), open) {
                (Ok(_), _) => return Ok(at),
                (Err(Error::ProgramFailed { .. }), Some(open)) => {
                    *open = CLOSED;
                    self.free.note_failure(block);
                    self.close(block);
                }
                // What was to be copied is unreadable: nothing was programmed.
                (Err(Error::Unreadable { block, index }), Some(open)) => {
                    open.next -= 1;
                    return Err(Error::Unreadable { block, index });
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// Chooses the block that costs least to empty: a page for each valid one, and for a data block as many as `tables` says.
    pub(super) fn choose(&mut self, tables: impl Fn(&Self, BlockId) -> u32) -> Option<BlockId> {
        if let Some(freed) = self.stuck.iter().position(|block| self.valid(*block) == 0) {
            return Some(self.stuck.swap_remove(freed));
        }
        let data = self.data.take(self.victims, self.version);
        let table = self.choose_table();
        let (Some(data), Some(table)) = (data, table) else { return data.or(table) };
        let data_first = self.valid(data) + tables(self, data) < self.valid(table);
        let (chosen, other) = if data_first { (data, table) } else { (table, data) };
        self.offer_again(other);
        Some(chosen)
    }

    /// Chooses a block of translation pages.
    pub(super) fn choose_table(&mut self) -> Option<BlockId> {
        self.tables.take(self.victims, self.version)
    }
}
