//! What the layers share that keep a logical block's pages in their places in one physical block.
//!
//! Invariants:
//! 1. the page at index `i` of a placed block is the logical block's `i`-th page, or a filler;
//! 2. a block is rewritten into a fresh one, and is released when the fresh one holds all that is needed of it. If the power
//!    goes meanwhile, recovery finds both, and each page in at least one;
//! 3. after power loss no block is appended to;
//! 4. recovery needs one free block at most at a time: [`BlockMapped::rewrite`] gives back more than it takes there.

use super::free_blocks::FreeBlocks;
use super::scan::{FoundBlock, Scan, kind};
use super::spare::Spare;
use super::{FtlOptions, LogicalPage, check_page};
use crate::{BlockId, Done, Error, Flash, Geometry, Origin, PageId, Result};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const NONE: u32 = u32::MAX;

/// Free blocks that stay when one is taken for good: one to rewrite into, one if a program fails there, and one for recovery if
/// the power goes meanwhile.
pub(super) const RESERVE: u32 = 3;

/// A block whose pages are in their places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub block: BlockId,
    /// Pages used.
    pub end: u32,
    /// Nothing is appended any more.
    pub closed: bool,
}

impl Placed {
    pub(super) fn open(block: BlockId) -> Self {
        Self { block, end: 0, closed: false }
    }
}

/// What goes into a page.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    /// What the host writes.
    Host(&'a [u8]),
    /// What stands there.
    Copy(PageId),
    /// Nothing, but the page behind is needed.
    Filler,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct BlockMapped {
    pub geometry: Geometry,
    /// How many logical pages there are.
    pub pages: u32,
    pub free: FreeBlocks,
    /// By logical page: whether it holds something.
    live: Vec<bool>,
    /// Pages that could not be read when they were to be copied.
    lost: BTreeSet<u32>,
    pub version: u64,
    /// Pages programmed with nothing.
    pub fillers: u64,
    /// Pages copied.
    pub copies: u64,
}

/// What recovery found: survivors by the logical block that they belong to as far as one can say, and where the newest version
/// of each page is.
pub(super) struct Remains {
    pub placed: BTreeMap<u32, Vec<FoundBlock>>,
    pub others: Vec<FoundBlock>,
    pub at: Vec<u32>,
}

impl BlockMapped {
    /// On erased flash. `more` physical blocks are needed besides one for each logical block and the reserve.
    pub(super) fn new(flash: &Flash, options: FtlOptions, more: u32) -> Result<Self> {
        options.check()?;
        let geometry = flash.geometry();
        let pages = options.logical_pages(&geometry);
        let needed = pages.div_ceil(geometry.pages_per_block) + more + RESERVE;
        if geometry.blocks() < needed {
            return Err(Error::Geometry(format!(
                "{} blocks for {pages} logical pages; at least {needed}: take more blocks or a larger over-provision",
                geometry.blocks()
            )));
        }
        let live = vec![false; pages as usize];
        let (free, lost) = (FreeBlocks::all(flash), BTreeSet::new());
        Ok(Self { geometry, pages, free, live, lost, version: 1, fillers: 0, copies: 0 })
    }

    pub(super) fn logical_blocks(&self) -> u32 {
        self.pages.div_ceil(self.geometry.pages_per_block)
    }

    /// The logical block of a page, and where in it.
    pub(super) fn split(&self, page: LogicalPage) -> Result<(u32, u32)> {
        check_page(page, self.pages)?;
        Ok((page.0 / self.geometry.pages_per_block, page.0 % self.geometry.pages_per_block))
    }

    /// The page at a place of a logical block.
    pub(super) fn page(&self, logical: u32, offset: u32) -> u32 {
        logical * self.geometry.pages_per_block + offset
    }

    pub(super) fn is_live(&self, page: u32) -> bool {
        self.live.get(page as usize).is_some_and(|live| *live)
    }

    /// One more than the last page of a logical block that holds something, among its first `limit` pages.
    pub(super) fn live_end(&self, logical: u32, limit: u32) -> u32 {
        (0..limit).rev().find(|offset| self.is_live(self.page(logical, *offset))).map_or(0, |last| last + 1)
    }

    /// The page holds nothing. Whether its whole logical block does not.
    pub(super) fn clear(&mut self, page: LogicalPage) -> bool {
        self.live[page.0 as usize] = false;
        self.lost.remove(&page.0);
        self.live_end(page.0 / self.geometry.pages_per_block, self.geometry.pages_per_block) == 0
    }

    /// The page holds what the host wrote.
    pub(super) fn written(&mut self, page: u32) {
        self.live[page as usize] = true;
        self.lost.remove(&page);
    }

    /// Reads a page that stands `at`, if it holds anything.
    pub(super) fn read(
        &self,
        flash: &mut Flash,
        page: LogicalPage,
        at: PageId,
        offset: usize,
        buffer: &mut [u8],
    ) -> Result<()> {
        if !self.is_live(page.0) {
            buffer.fill(0);
            return Ok(());
        }
        if self.lost.contains(&page.0) {
            let (block, index) = (self.geometry.block_of(at), self.geometry.index_in_block(at));
            return Err(Error::Unreadable { block, index });
        }
        flash.read(Origin::Host, at, offset, buffer).map(|_| ())
    }

    /// Puts something into a page. After the host's page, the host has its answer.
    pub(super) fn put(&mut self, flash: &mut Flash, to: PageId, page: u32, source: Source<'_>) -> Result<()> {
        match source {
            Source::Host(data) => {
                let spare = Spare { number: page, version: self.version, kind: kind::DATA };
                flash.program(Origin::Host, to, data, &spare.encode(), Done::NOTHING)?;
                self.version += 1;
                flash.answered();
                Ok(())
            }
            Source::Copy(from) => match flash.copy(from, to) {
                Err(Error::Unreadable { .. }) => {
                    // Nobody can copy it. The loss is told to whoever reads it.
                    let spare = Spare { number: page, version: self.version, kind: kind::LOST };
                    self.put_nothing(flash, to, spare)?;
                    self.version += 1;
                    self.lost.insert(page);
                    Ok(())
                }
                result => {
                    result?;
                    self.copies += 1;
                    Ok(())
                }
            },
            Source::Filler => {
                self.put_nothing(flash, to, Spare { number: page, version: 0, kind: kind::FILLER })?;
                self.fillers += 1;
                Ok(())
            }
        }
    }

    fn put_nothing(&self, flash: &mut Flash, to: PageId, spare: Spare) -> Result<()> {
        let nothing = vec![0; self.geometry.page_bytes as usize];
        flash.program(Origin::Internal, to, &nothing, &spare.encode(), Done::NOTHING).map(|_| ())
    }

    /// Puts something into the next page of a placed block. `false` if the program failed: then the block is closed.
    pub(super) fn append(
        &mut self,
        flash: &mut Flash,
        placed: &mut Placed,
        logical: u32,
        source: Source<'_>,
    ) -> Result<bool> {
        let to = self.geometry.page(placed.block, placed.end);
        match self.put(flash, to, self.page(logical, placed.end), source) {
            Ok(()) => {
                placed.end += 1;
                Ok(true)
            }
            Err(Error::ProgramFailed { .. }) => {
                self.free.note_failure(placed.block);
                placed.closed = true;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes a logical block's first `end` pages to a fresh block, each from where `source` says; if a program fails, to
    /// another.
    pub(super) fn rewrite<'a>(
        &mut self,
        flash: &mut Flash,
        logical: u32,
        end: u32,
        source: impl Fn(&Self, u32) -> Source<'a>,
    ) -> Result<Placed> {
        'fresh: loop {
            let mut placed = Placed::open(self.free.take(flash)?);
            for offset in 0..end {
                let source = source(self, offset);
                if !self.append(flash, &mut placed, logical, source)? {
                    // All that it holds stands elsewhere too, or has not been promised to anybody yet.
                    self.free.release(flash, placed.block)?;
                    continue 'fresh;
                }
            }
            return Ok(placed);
        }
    }

    /// What to copy to the place of a page: what stands `at`, if it holds anything.
    pub(super) fn keep<'a>(&self, page: u32, at: PageId) -> Source<'a> {
        if self.is_live(page) { Source::Copy(at) } else { Source::Filler }
    }

    /// Finds everything again. A block counts as placed if all that it holds is in the places of one logical block.
    pub(super) fn recovered(&self, flash: &mut Flash) -> Result<(Self, Remains)> {
        let Scan { blocks, free, version } = Scan::of(flash)?;
        let mut base = Self {
            free,
            version,
            live: vec![false; self.pages as usize],
            lost: BTreeSet::new(),
            fillers: 0,
            copies: 0,
            ..*self
        };
        let mut remains =
            Remains { placed: BTreeMap::new(), others: Vec::new(), at: vec![NONE; self.pages as usize] };
        // Placed blocks last, so that of two equal pages theirs counts.
        let logical_of = |found: &FoundBlock| base.placed_as(found);
        let (placed, others): (Vec<_>, Vec<_>) =
            blocks.into_iter().partition(|found| logical_of(found).is_some());
        for found in others.iter().chain(&placed) {
            for page in found.pages.iter().filter(|page| page.newest) {
                let number = page.spare.number;
                let Some(at) = remains.at.get_mut(number as usize) else { continue };
                *at = page.at.0;
                base.live[number as usize] = true;
                if page.spare.kind == kind::LOST {
                    base.lost.insert(number);
                }
            }
        }
        for found in placed {
            if let Some(logical) = base.placed_as(&found) {
                remains.placed.entry(logical).or_default().push(found);
            }
        }
        remains.others = others;
        Ok((base, remains))
    }

    /// The logical block whose pages are all in their places in this block.
    fn placed_as(&self, found: &FoundBlock) -> Option<u32> {
        let first = found.pages.first()?.spare.number / self.geometry.pages_per_block;
        let in_place = |number: u32, at: PageId| {
            number < self.pages && number == self.page(first, self.geometry.index_in_block(at))
        };
        found.pages.iter().all(|page| in_place(page.spare.number, page.at)).then_some(first)
    }

    /// One block out of all those that hold pages of a logical block.
    pub(super) fn unite(
        &mut self,
        flash: &mut Flash,
        logical: u32,
        found: &[FoundBlock],
        at: &[u32],
    ) -> Result<Placed> {
        let end = self.live_end(logical, self.geometry.pages_per_block);
        let united = self.rewrite(flash, logical, end, |base, offset| {
            let page = base.page(logical, offset);
            base.keep(page, PageId(at[page as usize]))
        })?;
        for found in found {
            self.free.release(flash, found.block)?;
        }
        Ok(united)
    }

    /// A block found by recovery: closed, and used up to its last page that says what it is.
    pub(super) fn closed(&self, found: &FoundBlock) -> Placed {
        let end = found.pages.last().map_or(0, |page| self.geometry.index_in_block(page.at) + 1);
        Placed { block: found.block, end, closed: true }
    }

    /// Bytes for which pages hold anything, and for a table of physical blocks.
    pub(super) fn mapping_bytes(&self) -> usize {
        (self.pages as usize).div_ceil(8) + self.logical_blocks() as usize * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Faults, Rules};

    const GEOMETRY: Geometry = Geometry {
        channels: 1,
        dies_per_channel: 1,
        planes: 1,
        blocks_per_plane: 16,
        pages_per_block: 4,
        page_bytes: 512,
        spare_bytes: 16,
    };

    #[test]
    fn a_page_that_cannot_be_copied_stays_lost_until_it_is_written_again() {
        let mut flash = Flash::new(GEOMETRY, Rules::default(), 0).unwrap();
        let options = FtlOptions { over_provision: 0.28, ..FtlOptions::default() };
        let mut base = BlockMapped::new(&flash, options, 0).unwrap();
        // The first page of a block is spoilt, where one thinks that page 4 stands.
        let mut old = Placed::open(base.free.take(&mut flash).unwrap());
        flash.nand_mut().set_faults(Faults { program: 1.0, ..Faults::default() });
        assert!(!base.append(&mut flash, &mut old, 1, Source::Host(&[7; 512])).unwrap() && old.closed);
        flash.nand_mut().set_faults(Faults::default());
        base.written(4);
        let spoilt = GEOMETRY.page(old.block, 0);
        let fresh = base
            .rewrite(&mut flash, 1, 2, |base, offset| match offset {
                0 => base.keep(4, spoilt),
                _ => Source::Host(&[8; 512]),
            })
            .unwrap();
        base.written(5);
        base.free.release(&mut flash, old.block).unwrap();
        assert!(flash.nand().is_bad(old.block), "a program failed in it");
        let [lost, kept] = [0, 1].map(|index| GEOMETRY.page(fresh.block, index));
        let unreadable = Err(Error::Unreadable { block: fresh.block, index: 0 });
        let mut found = [0; 512];
        assert_eq!(base.read(&mut flash, LogicalPage(4), lost, 0, &mut found), unreadable);
        assert_eq!(base.read(&mut flash, LogicalPage(5), kept, 0, &mut found), Ok(()));
        assert_eq!(found, [8; 512]);
        // It stays so when the power has gone, and when it is copied again.
        flash.settle();
        flash.nand_mut().power_loss(1);
        let (mut base, remains) = base.recovered(&mut flash).unwrap();
        assert_eq!((remains.placed.len(), remains.others.len()), (1, 0));
        assert_eq!(remains.at[4..6], [lost.0, kept.0]);
        assert_eq!(base.read(&mut flash, LogicalPage(4), lost, 0, &mut found), unreadable);
        let again = base
            .rewrite(&mut flash, 1, 2, |base, offset| base.keep(4 + offset, [lost, kept][offset as usize]));
        let [lost, kept] = [0, 1].map(|index| GEOMETRY.page(again.as_ref().unwrap().block, index));
        assert!(base.read(&mut flash, LogicalPage(4), lost, 0, &mut found).is_err());
        base.written(4);
        assert_eq!(base.read(&mut flash, LogicalPage(5), kept, 0, &mut found), Ok(()));
        assert_eq!(found, [8; 512]);
    }
}
