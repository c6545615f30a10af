//! Page mapping (also called sector mapping): every logical page anywhere, one table of all of them in memory.
//!
//! Host pages go to the units in turn, one open block in each, so that a set of writes keeps all of them busy. When few
//! blocks are free, every host page takes some pages of a victim along: so many that one victim is empty when the host has
//! written what emptying it gains. The copies stay in their unit.
//!
//! Invariants:
//! 1. `map` and `owner` are inverse to each other, and a block's count of valid pages is that of its owned pages;
//! 2. a page is overwritten on flash only by an erase, and a block is erased only when none of its pages is owned;
//! 3. every page says in its spare area whose it is and which version, so that recovery needs nothing else; a copy keeps
//!    the version;
//! 4. when the host has opened a block, others stay free, so that collection can always begin, also after power loss: a
//!    block that was begun for copies holds either nothing but copies of pages that are still there, and recovery
//!    takes it for empty, or something of a victim that has become free since;
//! 5. after power loss no block that was begun is gone on with, and none that looks erased is trusted: it is erased again
//!    before use, since an interrupted erase can look like a finished one.

use super::garbage_collection::Candidates;
use super::spare::{Found, SPARE, Spare};
use super::{Ftl, FtlOptions, LogicalPage, check_page};
use crate::{BlockId, Done, Error, Flash, Geometry, Origin, PageId, Result};
use std::collections::VecDeque;

const NONE: u32 = u32::MAX;

/// Over-provision in blocks: the reserve, an open block each for the host and for copies, and one to gain from.
const SPARE_BLOCKS_MIN: u32 = RESERVE + 3;

/// The only kind of page that this layer writes.
const DATA: u8 = 1;

/// Free blocks at least when the host opens one: that one, one for copies, and one in case a program fails.
const RESERVE: u32 = 3;

/// A block that is being written to.
#[derive(Clone, Copy, Debug)]
struct Open {
    block: u32,
    next: u32,
}

const CLOSED: Open = Open { block: NONE, next: 0 };

/// A block that is being emptied.
#[derive(Clone, Copy, Debug)]
struct Victim {
    block: BlockId,
    /// The next page to look at.
    next: u32,
    /// Pages to take along with each page of the host.
    pace: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct PageMap {
    options: FtlOptions,
    geometry: Geometry,
    /// By logical page: where it is.
    map: Vec<u32>,
    /// By physical page: whose it is.
    owner: Vec<u32>,
    candidates: Candidates,
    /// By unit, used first in, first out, which spreads the wear.
    free: Vec<VecDeque<BlockId>>,
    free_count: u32,
    free_target: u32,
    /// Free blocks that may be half erased.
    suspect: Vec<bool>,
    /// Blocks in which a program failed: bad as soon as they are empty.
    failing: Vec<bool>,
    /// Blocks with a page that can be neither read nor moved, until it is overwritten.
    stuck: Vec<BlockId>,
    bad: u32,
    /// Blocks that take host pages in turn, and those that take copies.
    host: Vec<Open>,
    copies: Vec<Open>,
    turn: usize,
    /// The unit that opens a block next, where there are fewer slots than units.
    unit_turn: u32,
    victim: Option<Victim>,
    version: u64,
}

impl PageMap {
    /// On erased flash. Blocks that are bad already are left alone.
    ///
    /// # Errors
    /// [`Error::Geometry`] if the options cannot be, or over-provision comes to fewer than six blocks.
    pub fn new(flash: &Flash, options: FtlOptions) -> Result<Self> {
        let mut layer = Self::empty(flash.geometry(), options)?;
        for block in (0..layer.geometry.blocks()).map(BlockId) {
            if flash.nand().is_bad(block) {
                layer.bad += 1;
            } else {
                layer.add_free(block);
            }
        }
        Ok(layer)
    }

    /// Knows of no block yet.
    fn empty(geometry: Geometry, options: FtlOptions) -> Result<Self> {
        options.check()?;
        let logical_pages = options.logical_pages(&geometry);
        let spare = geometry.blocks() - logical_pages.div_ceil(geometry.pages_per_block);
        if spare < SPARE_BLOCKS_MIN {
            return Err(Error::Geometry(format!(
                "over-provision of {spare} blocks of {}; at least {SPARE_BLOCKS_MIN}: take more blocks or a larger share",
                geometry.blocks()
            )));
        }
        let units = geometry.units();
        // Open blocks are not to eat up the over-provision.
        let slots = |share: u32| vec![CLOSED; (spare / share).clamp(1, units) as usize];
        Ok(Self {
            options,
            geometry,
            map: vec![NONE; logical_pages as usize],
            owner: vec![NONE; geometry.pages() as usize],
            candidates: Candidates::new(geometry.blocks(), geometry.pages_per_block),
            free: vec![VecDeque::new(); units as usize],
            free_count: 0,
            free_target: options.free_blocks(&geometry),
            suspect: vec![false; geometry.blocks() as usize],
            failing: vec![false; geometry.blocks() as usize],
            stuck: Vec::new(),
            bad: 0,
            host: slots(4),
            copies: slots(8),
            turn: 0,
            unit_turn: 0,
            victim: None,
            version: 1,
        })
    }

    fn add_free(&mut self, block: BlockId) {
        self.free[self.geometry.unit_of(block) as usize].push_back(block);
        self.free_count += 1;
    }

    fn no_blocks(&self) -> Error {
        Error::NoBlocks { bad: self.bad, blocks: self.geometry.blocks() }
    }

    /// A free block, of this unit if it has one.
    fn take_free(&mut self, flash: &mut Flash, unit: u32) -> Result<BlockId> {
        loop {
            let queue = match self.free[unit as usize].is_empty() {
                false => Some(&mut self.free[unit as usize]),
                true => self.free.iter_mut().max_by_key(|queue| queue.len()),
            };
            let Some(block) = queue.and_then(VecDeque::pop_front) else { return Err(self.no_blocks()) };
            self.free_count -= 1;
            if !std::mem::take(&mut self.suspect[block.0 as usize]) {
                return Ok(block);
            }
            match flash.erase(block) {
                Ok(_) => return Ok(block),
                Err(Error::PowerOff) => return Err(Error::PowerOff),
                Err(_) => self.bad += 1,
            }
        }
    }

    /// Whether nothing of an open block is left to write to; a full one may be emptied from now on.
    fn close_if_full(&mut self, open: Open) -> bool {
        if open.block == NONE {
            return true;
        }
        let full = open.next == self.geometry.pages_per_block;
        if full {
            self.candidates.offer(BlockId(open.block), self.version);
        }
        full
    }

    /// Where the next host page goes.
    fn host_page(&mut self, flash: &mut Flash) -> Result<PageId> {
        let slot = self.turn;
        self.turn = (slot + 1) % self.host.len();
        let open = self.host[slot];
        if open.block == NONE || open.next == self.geometry.pages_per_block {
            self.close_if_full(open);
            self.host[slot] = CLOSED;
            while self.free_count < RESERVE {
                self.finish_victim(flash)?;
            }
            let unit = if self.host.len() == self.free.len() { slot as u32 } else { self.next_unit() };
            self.host[slot] = Open { block: self.take_free(flash, unit)?.0, next: 0 };
        }
        let open = &mut self.host[slot];
        open.next += 1;
        Ok(self.geometry.page(BlockId(open.block), open.next - 1))
    }

    fn next_unit(&mut self) -> u32 {
        self.unit_turn = (self.unit_turn + 1) % self.geometry.units();
        self.unit_turn
    }

    /// Where the next copy from a block of this unit goes.
    fn copy_page(&mut self, flash: &mut Flash, unit: u32) -> Result<PageId> {
        let slot = unit as usize % self.copies.len();
        let open = self.copies[slot];
        if self.close_if_full(open) {
            self.copies[slot] = CLOSED;
            self.copies[slot] = Open { block: self.take_free(flash, unit)?.0, next: 0 };
        }
        let open = &mut self.copies[slot];
        open.next += 1;
        Ok(self.geometry.page(BlockId(open.block), open.next - 1))
    }

    /// Nothing was written to the page that was taken last.
    fn give_back(&mut self, page: PageId) {
        let block = self.geometry.block_of(page).0;
        if let Some(open) = self.copies.iter_mut().find(|open| open.block == block) {
            open.next -= 1;
        }
    }

    /// A program failed: the block is written to no more, and is bad once it is empty.
    fn retire(&mut self, page: PageId) {
        let block = self.geometry.block_of(page);
        self.failing[block.0 as usize] = true;
        let slots = self.host.iter_mut().chain(&mut self.copies);
        for slot in slots.filter(|slot| slot.block == block.0) {
            *slot = CLOSED;
        }
        self.candidates.offer(block, self.version);
    }

    fn disown(&mut self, page: LogicalPage) {
        let old = std::mem::replace(&mut self.map[page.0 as usize], NONE);
        if old != NONE {
            self.owner[old as usize] = NONE;
            self.candidates.lose(self.geometry.block_of(PageId(old)));
        }
    }

    fn own(&mut self, page: LogicalPage, at: PageId) {
        self.map[page.0 as usize] = at.0;
        self.owner[at.0 as usize] = page.0;
        self.candidates.gain(self.geometry.block_of(at));
    }

    /// Chooses a block to empty, unless one is being emptied already.
    fn begin_victim(&mut self) -> Result<Victim> {
        if let Some(victim) = self.victim {
            return Ok(victim);
        }
        let freed = self.stuck.iter().position(|block| self.candidates.valid(*block) == 0);
        let block = match freed {
            Some(at) => self.stuck.swap_remove(at),
            None => match self.candidates.take(self.options.victims, self.version) {
                Some(block) => block,
                None => return Err(self.no_blocks()),
            },
        };
        let valid = self.candidates.valid(block);
        let gain = self.geometry.pages_per_block - valid;
        let victim = Victim { block, next: 0, pace: valid.div_ceil(gain) + 1 };
        self.victim = Some(victim);
        Ok(victim)
    }

    /// Moves at most `count` pages of the victim, and frees it when it is empty. Whether it is.
    fn empty_victim(&mut self, flash: &mut Flash, mut count: u32) -> Result<bool> {
        let Victim { block, mut next, pace } = self.begin_victim()?;
        let unit = self.geometry.unit_of(block);
        while next < self.geometry.pages_per_block && self.candidates.valid(block) > 0 {
            let from = self.geometry.page(block, next);
            let owner = self.owner[from.0 as usize];
            if owner != NONE {
                if count == 0 {
                    self.victim = Some(Victim { block, next, pace });
                    return Ok(false);
                }
                count -= 1;
                let to = self.copy_page(flash, unit)?;
                match flash.copy(from, to) {
                    Ok(_) => {
                        self.disown(LogicalPage(owner));
                        self.own(LogicalPage(owner), to);
                    }
                    Err(Error::ProgramFailed { .. }) => {
                        self.retire(to);
                        continue;
                    }
                    // Nobody can move it. It stays where it is, so that the loss is told to whoever reads it.
                    Err(Error::Unreadable { .. }) => self.give_back(to),
                    Err(error) => return Err(error),
                }
            }
            next += 1;
        }
        self.victim = None;
        if self.candidates.valid(block) > 0 {
            self.stuck.push(block);
            return Ok(true);
        }
        if std::mem::take(&mut self.failing[block.0 as usize]) {
            self.bad += 1;
            // Recovery does not look into bad blocks: the copies must be there first.
            flash.fence();
            flash.nand_mut().mark_bad(block)?;
            return Ok(true);
        }
        match flash.erase(block) {
            Ok(_) => self.add_free(block),
            Err(Error::PowerOff) => return Err(Error::PowerOff),
            Err(_) => self.bad += 1,
        }
        Ok(true)
    }

    fn finish_victim(&mut self, flash: &mut Flash) -> Result<()> {
        self.empty_victim(flash, self.geometry.pages_per_block).map(|_| ())
    }

    /// The share of collection that comes with one page of the host.
    fn collect(&mut self, flash: &mut Flash) -> Result<()> {
        if self.victim.is_none() && self.free_count >= self.free_target {
            return Ok(());
        }
        let Ok(victim) = self.begin_victim() else { return Ok(()) };
        self.empty_victim(flash, victim.pace).map(|_| ())
    }
}

impl Ftl for PageMap {
    fn name(&self) -> &'static str {
        "page_map"
    }

    fn logical_pages(&self) -> u32 {
        self.map.len() as u32
    }

    fn read(&mut self, flash: &mut Flash, page: LogicalPage, offset: usize, buffer: &mut [u8]) -> Result<()> {
        check_page(page, self.logical_pages())?;
        match self.map[page.0 as usize] {
            NONE => buffer.fill(0),
            at => {
                flash.read(Origin::Host, PageId(at), offset, buffer)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, flash: &mut Flash, page: LogicalPage, data: &[u8]) -> Result<()> {
        check_page(page, self.logical_pages())?;
        let spare = Spare { number: page.0, version: self.version, kind: DATA }.encode();
        let at = loop {
            let at = self.host_page(flash)?;
            match flash.program(Origin::Host, at, data, &spare, Done::NOTHING) {
                Ok(_) => break at,
                Err(Error::ProgramFailed { .. }) => self.retire(at),
                Err(error) => return Err(error),
            }
        };
        self.version += 1;
        self.disown(page);
        self.own(page, at);
        flash.answered();
        self.collect(flash)
    }

    fn trim(&mut self, _: &mut Flash, page: LogicalPage) -> Result<()> {
        check_page(page, self.logical_pages())?;
        self.disown(page);
        Ok(())
    }

    fn recovered(&self, flash: &mut Flash) -> Result<Box<dyn Ftl>> {
        let mut found = Self::empty(self.geometry, self.options)?;
        let mut scan = Scan { versions: vec![0; found.map.len()], copies: Vec::new() };
        for block in (0..self.geometry.blocks()).map(BlockId) {
            if flash.nand().is_bad(block) {
                found.bad += 1;
            } else {
                flash.begin_task();
                found.look_into(flash, block, &mut scan)?;
            }
        }
        found.version = scan.versions.iter().max().map_or(1, |version| version + 1);
        found.forget_copies(&scan);
        Ok(Box::new(found))
    }

    fn owner(&self, page: PageId) -> Option<LogicalPage> {
        let owner = *self.owner.get(page.0 as usize)?;
        (owner != NONE).then_some(LogicalPage(owner))
    }

    fn live_pages(&self, block: BlockId) -> Option<u32> {
        (block.0 < self.geometry.blocks()).then(|| self.candidates.valid(block))
    }

    fn mapping_bytes(&self) -> usize {
        self.map.len() * size_of::<u32>()
    }
}

/// What recovery has seen so far.
struct Scan {
    /// By logical page: the newest version, 0 for none.
    versions: Vec<u64>,
    /// Pages that hold a version of a logical page that another one holds too.
    copies: Vec<(LogicalPage, u64, PageId)>,
}

impl PageMap {
    /// Where all that a block holds is elsewhere too, that counts, and the block is empty.
    fn forget_copies(&mut self, scan: &Scan) {
        let newest =
            |(page, version, _): &&(LogicalPage, u64, PageId)| scan.versions[page.0 as usize] == *version;
        let of_block = |(page, _, copy): &(LogicalPage, u64, PageId)| {
            (self.geometry.block_of(PageId(self.map[page.0 as usize])), *page, *copy)
        };
        let mut twice: Vec<_> = scan.copies.iter().filter(newest).map(of_block).collect();
        twice.sort_unstable();
        twice.dedup_by_key(|(block, page, _)| (*block, *page));
        for pages in twice.chunk_by(|(one, ..), (other, ..)| one == other) {
            if self.candidates.valid(pages[0].0) as usize == pages.len() {
                for (_, page, copy) in pages {
                    self.disown(*page);
                    self.own(*page, *copy);
                }
            }
        }
    }

    /// Takes from a block what is newer than what was found elsewhere.
    fn look_into(&mut self, flash: &mut Flash, block: BlockId, scan: &mut Scan) -> Result<()> {
        for index in 0..self.geometry.pages_per_block {
            let at = self.geometry.page(block, index);
            let mut bytes = [0; SPARE];
            match flash.read_spare(at, &mut bytes).map(|_| Spare::decode(&bytes)) {
                Ok(Found::Erased) if index == 0 => {
                    self.suspect[block.0 as usize] = true;
                    self.add_free(block);
                    return Ok(());
                }
                // Pages are programmed one after the other. Behind this, a half-erased block may hold pages, but copies of
                // them were made before the erase began.
                Ok(Found::Erased) => break,
                Ok(Found::Valid(spare)) if spare.kind == DATA => {
                    let page = LogicalPage(spare.number);
                    let Some(known) = scan.versions.get_mut(spare.number as usize) else { continue };
                    if *known < spare.version {
                        *known = spare.version;
                        self.disown(page);
                        self.own(page, at);
                    } else if *known == spare.version {
                        scan.copies.push((page, spare.version, at));
                    }
                }
                Ok(Found::Valid(_) | Found::Damaged) | Err(Error::Unreadable { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.candidates.offer(block, 0);
        Ok(())
    }
}
