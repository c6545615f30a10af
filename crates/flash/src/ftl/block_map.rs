//! Block mapping: a table of blocks only; a page's place in its block is fixed.
//!
//! Source: Ban, "Flash file system", US patent 5,404,485 (1995), in the form in which it is the textbook's plain block
//! mapping (Chung, Park, Park, Lee, Lee and Song, "A survey of flash translation layer", Journal of Systems Architecture 55,
//! 2009, section 3.2). The flash is programmed in ascending order, so that a page can be written in place only while its
//! block is not used beyond it. Any other write takes a fresh block, copies all other pages and the new one there, in order,
//! and erases the old block.
//!
//! Cost: a page behind all others of its block costs 1 program (and 1 for each page left out before it); any other one as
//! many programs as the block holds pages, and 1 erase. A block of 4 full pages: 3 reads, 4 programs, 1 erase.
//!
//! In spare areas (all records: `spare`):
//!
//! ```text
//! physical block   page 0            page 1            page 2            page 3
//!                  | L*4   v17 DATA | L*4+1 v0 FILLER | L*4+2 v18 DATA | (erased)      |
//!                    ^ its place      ^ never written   ^ copies keep their version
//! ```
//!
//! Recovery: the logical block of each physical block stands in its pages. Where the power went during a rewrite, both blocks
//! are found, and are united.
//!
//! Invariants: those of `block_mapped`, and
//! 1. a logical block has one physical block at most;
//! 2. three blocks are free before each rewrite: one to write to, one if a program fails there, one for recovery.

use super::block_mapped::{BlockMapped, Placed, RESERVE, Remains, Source};
use super::{Ftl, FtlOptions, LogicalPage};
use crate::{Flash, PageId, Result};

/// How often what was done.
#[derive(Clone, Copy, Debug, Default)]
struct Events {
    /// Pages written in place.
    appends: u64,
    /// Blocks rewritten because a page was overwritten.
    rewrites: u64,
    /// Blocks erased because all their pages were trimmed.
    drops: u64,
    /// Logical blocks of which recovery found two.
    unites: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct BlockMap {
    base: BlockMapped,
    /// By logical block.
    table: Vec<Option<Placed>>,
    events: Events,
}

impl BlockMap {
    /// On erased flash. Blocks that are bad already are left alone.
    ///
    /// # Errors
    /// [`Error::Geometry`](crate::Error::Geometry) if the options cannot be, or there are fewer than three blocks besides those
    /// that hold the logical pages.
    pub fn new(flash: &Flash, options: FtlOptions) -> Result<Self> {
        let base = BlockMapped::new(flash, options, 0)?;
        Ok(Self { table: vec![None; base.logical_blocks() as usize], base, events: Events::default() })
    }

    /// Where a page stands, if its logical block has a physical one.
    fn place(&self, logical: u32, offset: u32) -> Option<PageId> {
        let placed = self.table[logical as usize]?;
        Some(self.base.geometry.page(placed.block, offset))
    }

    /// Writes a page behind all others of its block. `false` if that cannot be.
    fn append(&mut self, flash: &mut Flash, logical: u32, offset: u32, data: &[u8]) -> Result<bool> {
        let Some(mut placed) = self.table[logical as usize] else { return Ok(false) };
        if placed.closed || offset < placed.end {
            return Ok(false);
        }
        let mut done = true;
        while done && placed.end <= offset {
            let source = if placed.end < offset { Source::Filler } else { Source::Host(data) };
            done = self.base.append(flash, &mut placed, logical, source)?;
            self.table[logical as usize] = Some(placed);
        }
        Ok(done)
    }

    /// Writes all pages of a logical block to a fresh one, and a page of the host among them.
    fn rewrite(&mut self, flash: &mut Flash, logical: u32, offset: u32, data: &[u8]) -> Result<()> {
        let old = self.table[logical as usize];
        // The first block that a logical one gets is gone for good.
        if self.base.free.len() < RESERVE + u32::from(old.is_none()) {
            return Err(self.base.free.exhausted());
        }
        let end = self.base.live_end(logical, self.base.geometry.pages_per_block).max(offset + 1);
        let fresh = self.base.rewrite(flash, logical, end, |base, at| match old {
            _ if at == offset => Source::Host(data),
            Some(old) => base.keep(base.page(logical, at), base.geometry.page(old.block, at)),
            None => Source::Filler,
        })?;
        self.table[logical as usize] = Some(fresh);
        if let Some(old) = old {
            self.events.rewrites += 1;
            self.base.free.release(flash, old.block)?;
        }
        Ok(())
    }
}

impl Ftl for BlockMap {
    fn name(&self) -> &'static str {
        "block_map"
    }

    fn logical_pages(&self) -> u32 {
        self.base.pages
    }

    fn read(&mut self, flash: &mut Flash, page: LogicalPage, offset: usize, buffer: &mut [u8]) -> Result<()> {
        let (logical, index) = self.base.split(page)?;
        match self.place(logical, index) {
            Some(at) => self.base.read(flash, page, at, offset, buffer),
            None => {
                buffer.fill(0);
                Ok(())
            }
        }
    }

    fn write(&mut self, flash: &mut Flash, page: LogicalPage, data: &[u8]) -> Result<()> {
        let (logical, offset) = self.base.split(page)?;
        if self.append(flash, logical, offset, data)? {
            self.events.appends += 1;
        } else {
            self.rewrite(flash, logical, offset, data)?;
        }
        self.base.written(page.0);
        Ok(())
    }

    fn trim(&mut self, flash: &mut Flash, page: LogicalPage) -> Result<()> {
        let (logical, _) = self.base.split(page)?;
        if self.base.clear(page)
            && let Some(placed) = self.table[logical as usize].take()
        {
            self.events.drops += 1;
            flash.answered();
            self.base.free.release(flash, placed.block)?;
        }
        Ok(())
    }

    fn recovered(&self, flash: &mut Flash) -> Result<Box<dyn Ftl>> {
        // No other blocks are of its making; what is not is left alone.
        let (base, Remains { placed, at, .. }) = self.base.recovered(flash)?;
        let mut found = Self { table: vec![None; self.table.len()], base, events: Events::default() };
        for (logical, blocks) in placed {
            found.table[logical as usize] = Some(match &blocks[..] {
                [one] => found.base.closed(one),
                several => {
                    found.events.unites += 1;
                    found.base.unite(flash, logical, several, &at)?
                }
            });
        }
        Ok(Box::new(found))
    }

    fn mapping_bytes(&self) -> usize {
        self.base.mapping_bytes()
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        let Events { appends, rewrites, drops, unites } = self.events;
        vec![
            ("appends", appends),
            ("rewrites", rewrites),
            ("drops", drops),
            ("unites", unites),
            ("fillers", self.base.fillers),
        ]
    }
}
