//! FAST: block mapping with a few log blocks that all logical blocks share.
//!
//! Source: Lee, Park, Chung, Lee, Park and Song, "A Log Buffer-Based Flash Translation Layer Using Fully-Associative Sector
//! Translation", ACM Transactions on Embedded Computing Systems 6 (3), article 18, 2007, section 4. A page is written
//!
//! 1. to the sequential log block, if it is the next one of the logical block that this belongs to;
//! 2. or to its place in its data block, if that is the next free one;
//! 3. or, if it is the first of its logical block, to a new sequential log block, after the old one was merged;
//! 4. or else to the next page of the random log blocks, which are filled in turn, and of which the oldest one is merged
//!    when a new one is needed.
//!
//! ```text
//!                 what                                                  copies                   erases
//! switch merge    the sequential log block is full: it becomes          0                        1
//!                 the data block
//! partial merge   the rest is copied behind what the sequential log     the rest                 1
//!                 block holds, and it becomes the data block
//! full merge      for each logical block with newest pages in the       a data block             1 for each
//!                 oldest random log block: the newest version of                                 logical block,
//!                 each page goes to a fresh data block                                           and 1 for the log block
//! ```
//!
//! A full merge of the logical block that the sequential log block belongs to takes that one along, at one erase more.
//! Where the flash lets no place be skipped, the paper's "the place in the data block is free" is "is the next one".
//!
//! In spare areas (all records: `spare`):
//!
//! ```text
//! data block        | L*4   v17 DATA | L*4+1 v18 DATA | L*4+2 v0 FILLER | L*4+3 v19 DATA |
//! sequential log    | L*4   v40 DATA | L*4+1 v41 DATA | (erased)                         |
//! random log        | M*4+1 v30 DATA | L*4+3 v31 DATA | K*4+2 v32 DATA  | (erased)       |
//!                     never a first page: by this recovery knows random log blocks
//! ```
//!
//! Invariants: those of `block_mapped`, and
//! 1. `log` holds exactly the pages whose newest version is in a random log block;
//! 2. of other pages, the sequential log block's version is newer than the data block's;
//! 3. no first page of a logical block is ever in a random log block;
//! 4. a merge copies only what stands elsewhere until it has ended, so that recovery takes for free what it had begun.

use super::block_mapped::{BlockMapped, NONE, Placed, RESERVE, Remains, Source};
use super::scan::FoundBlock;
use super::{Ftl, FtlOptions, LogicalPage};
use crate::{BlockId, Error, Flash, PageId, Result};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// The share of all blocks that are log blocks, by default.
pub const LOG_BLOCKS: f64 = 0.03;

/// A log block that holds pages of any logical block.
#[derive(Clone, Debug)]
struct RandomLog {
    block: BlockId,
    /// By page: which logical page it holds.
    numbers: Vec<u32>,
    /// Nothing more is written to it.
    closed: bool,
}

/// The log block that holds the first pages of a logical block in order.
#[derive(Clone, Copy, Debug)]
struct Sequential {
    logical: u32,
    placed: Placed,
}

/// How often what was done.
#[derive(Clone, Copy, Debug, Default)]
struct Events {
    appends: u64,
    sequential: u64,
    random: u64,
    switch_merges: u64,
    partial_merges: u64,
    /// Logical blocks merged in full.
    full_merges: u64,
    /// Random log blocks merged, which are as many runs of full merges.
    log_merges: u64,
    /// Sequential log blocks that were taken along by full merges.
    taken_along: u64,
    drops: u64,
    unites: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Fast {
    base: BlockMapped,
    /// By logical block.
    table: Vec<Option<Placed>>,
    sequential: Option<Sequential>,
    /// The oldest first.
    random: VecDeque<RandomLog>,
    random_max: usize,
    /// By logical page: where its newest version is, if that is in a random log block.
    log: HashMap<u32, PageId>,
    events: Events,
}

impl Fast {
    /// On erased flash, of which the share `log_blocks` (0 to 0.25; the default is [`LOG_BLOCKS`]) is for log blocks, at least
    /// two: one sequential, the others random. Blocks that are bad already are left alone.
    ///
    /// # Errors
    /// [`Error::Geometry`] if the options cannot be, or there are too few blocks besides those that hold the logical pages.
    pub fn new(flash: &Flash, options: FtlOptions, log_blocks: f64) -> Result<Self> {
        if !(0.0..=0.25).contains(&log_blocks) {
            return Err(Error::Geometry(format!("{log_blocks} of the blocks for the log; 0 to 0.25")));
        }
        let log = ((f64::from(flash.geometry().blocks()) * log_blocks).round() as u32).max(2);
        let base = BlockMapped::new(flash, options, log)?;
        Ok(Self {
            table: vec![None; base.logical_blocks() as usize],
            base,
            sequential: None,
            random: VecDeque::new(),
            random_max: log as usize - 1,
            log: HashMap::new(),
            events: Events::default(),
        })
    }

    /// How many random log blocks there are at most.
    pub fn random_log_blocks(&self) -> usize {
        self.random_max
    }

    /// The sequential log block, if it belongs to this logical block.
    fn sequential_of(&self, logical: u32) -> Option<Placed> {
        self.sequential.filter(|one| one.logical == logical).map(|one| one.placed)
    }

    /// Where the newest version of a page is, if it is anywhere.
    fn place(&self, logical: u32, offset: u32) -> Option<PageId> {
        let logged = self.log.get(&self.base.page(logical, offset)).copied();
        let in_block = |placed: Option<Placed>| {
            let placed = placed.filter(|placed| offset < placed.end)?;
            Some(self.base.geometry.page(placed.block, offset))
        };
        logged
            .or_else(|| in_block(self.sequential_of(logical)))
            .or_else(|| in_block(self.table[logical as usize]))
    }

    /// A block for good: one stays for merges and recovery.
    fn take(&mut self, flash: &mut Flash) -> Result<Placed> {
        if self.base.free.len() < RESERVE {
            return Err(self.base.free.exhausted());
        }
        Ok(Placed::open(self.base.free.take(flash)?))
    }

    /// Writes a page to the sequential log block or its data block, if it is the next one of either. Whether it was.
    fn append(&mut self, flash: &mut Flash, logical: u32, offset: u32, data: &[u8]) -> Result<bool> {
        if let Some(mut placed) = self.sequential_of(logical) {
            if !placed.closed && offset == placed.end {
                let done = self.base.append(flash, &mut placed, logical, Source::Host(data))?;
                self.sequential = Some(Sequential { logical, placed });
                self.events.sequential += u64::from(done);
                return Ok(done);
            }
            if offset < placed.end {
                return Ok(false);
            }
        }
        let Some(mut placed) = self.table[logical as usize] else { return Ok(false) };
        if placed.closed || offset != placed.end {
            return Ok(false);
        }
        let done = self.base.append(flash, &mut placed, logical, Source::Host(data))?;
        self.table[logical as usize] = Some(placed);
        self.events.appends += u64::from(done);
        Ok(done)
    }

    /// Writes a page to the random log blocks. `false` if the program failed.
    fn push(&mut self, flash: &mut Flash, page: u32, data: &[u8]) -> Result<bool> {
        let pages_per_block = self.base.geometry.pages_per_block as usize;
        let has_room = |log: &RandomLog| !log.closed && log.numbers.len() < pages_per_block;
        if !self.random.back().is_some_and(has_room) {
            if self.random.len() >= self.random_max {
                self.merge_oldest(flash)?;
            }
            let block = self.take(flash)?.block;
            self.random.push_back(RandomLog { block, numbers: Vec::new(), closed: false });
        }
        let Some(log) = self.random.back_mut() else { return Ok(false) };
        let at = self.base.geometry.page(log.block, log.numbers.len() as u32);
        match self.base.put(flash, at, page, Source::Host(data)) {
            Ok(()) => {
                log.numbers.push(page);
                self.log.insert(page, at);
                self.events.random += 1;
                Ok(true)
            }
            Err(Error::ProgramFailed { .. }) => {
                log.closed = true;
                self.base.free.note_failure(log.block);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Full merges of all logical blocks that have newest pages in the oldest random log block, which is released.
    fn merge_oldest(&mut self, flash: &mut Flash) -> Result<()> {
        let Some(oldest) = self.random.front() else { return Ok(()) };
        let block = oldest.block;
        let pages = oldest.numbers.iter().zip(0..);
        let newest =
            pages.filter(|(page, index)| self.log.get(page) == Some(&self.base.geometry.page(block, *index)));
        let pages_per_block = self.base.geometry.pages_per_block;
        let logical: BTreeSet<u32> = newest.map(|(page, _)| page / pages_per_block).collect();
        for logical in logical {
            self.full_merge(flash, logical)?;
        }
        self.random.pop_front();
        self.events.log_merges += 1;
        self.base.free.release(flash, block)
    }

    /// The newest version of every page of a logical block to a fresh data block.
    fn full_merge(&mut self, flash: &mut Flash, logical: u32) -> Result<()> {
        let end = self.base.live_end(logical, self.base.geometry.pages_per_block);
        let places: Vec<_> = (0..end).map(|offset| self.place(logical, offset)).collect();
        let fresh = self.base.rewrite(flash, logical, end, |base, offset| match places[offset as usize] {
            Some(at) => base.keep(base.page(logical, offset), at),
            None => Source::Filler,
        })?;
        self.events.full_merges += 1;
        for offset in 0..end {
            self.log.remove(&self.base.page(logical, offset));
        }
        let old = self.table[logical as usize].replace(fresh);
        let along = self.sequential.take_if(|one| one.logical == logical);
        if let Some(old) = old {
            self.base.free.release(flash, old.block)?;
        }
        if let Some(along) = along {
            self.events.taken_along += 1;
            self.base.free.release(flash, along.placed.block)?;
        }
        Ok(())
    }

    /// Makes the sequential log block a data block, if there is one.
    fn merge_sequential(&mut self, flash: &mut Flash) -> Result<()> {
        let Some(Sequential { logical, mut placed }) = self.sequential else { return Ok(()) };
        let begun = placed.end;
        let rest = self.table[logical as usize].map_or(0, |old| self.base.live_end(logical, old.end));
        while !placed.closed && placed.end < rest {
            let page = self.base.page(logical, placed.end);
            let source = match self.place(logical, placed.end) {
                Some(at) => self.base.keep(page, at),
                None => Source::Filler,
            };
            self.base.append(flash, &mut placed, logical, source)?;
        }
        if placed.closed {
            // A program failed in it.
            self.sequential = Some(Sequential { logical, placed: Placed { end: begun, ..placed } });
            return self.full_merge(flash, logical);
        }
        if begun == self.base.geometry.pages_per_block {
            self.events.switch_merges += 1;
        } else {
            self.events.partial_merges += 1;
        }
        for offset in begun..placed.end {
            self.log.remove(&self.base.page(logical, offset));
        }
        self.sequential = None;
        match self.table[logical as usize].replace(placed) {
            Some(old) => self.base.free.release(flash, old.block),
            None => Ok(()),
        }
    }
}

impl Ftl for Fast {
    fn name(&self) -> &'static str {
        "fast"
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
        loop {
            if self.append(flash, logical, offset, data)? {
                // What is in a log block is older now.
                self.log.remove(&page.0);
                break;
            }
            if offset > 0 {
                if self.push(flash, page.0, data)? {
                    break;
                }
            } else if self.table[logical as usize].is_none() {
                self.table[logical as usize] = Some(self.take(flash)?);
            } else {
                self.merge_sequential(flash)?;
                self.sequential = Some(Sequential { logical, placed: self.take(flash)? });
            }
        }
        self.base.written(page.0);
        let full = |one: Sequential| one.placed.end == self.base.geometry.pages_per_block;
        if self.sequential.is_some_and(full) {
            self.merge_sequential(flash)?;
        }
        Ok(())
    }

    fn trim(&mut self, flash: &mut Flash, page: LogicalPage) -> Result<()> {
        let (logical, _) = self.base.split(page)?;
        self.log.remove(&page.0);
        if self.base.clear(page) {
            let data = self.table[logical as usize].take();
            let sequential = self.sequential.take_if(|one| one.logical == logical).map(|one| one.placed);
            flash.answered();
            for placed in data.into_iter().chain(sequential) {
                self.events.drops += 1;
                self.base.free.release(flash, placed.block)?;
            }
        }
        Ok(())
    }

    fn recovered(&self, flash: &mut Flash) -> Result<Box<dyn Ftl>> {
        let (base, Remains { placed, others, at }) = self.base.recovered(flash)?;
        let mut layer = Self {
            table: vec![None; self.table.len()],
            base,
            sequential: None,
            random: VecDeque::new(),
            random_max: self.random_max,
            log: HashMap::new(),
            events: Events::default(),
        };
        layer.link_logs(others, &at);
        for (logical, mut found) in placed {
            if found.len() > 1 {
                match layer.unite(flash, logical, &found, &at) {
                    Ok(()) => continue,
                    // A drive at its end can still be read: all but one become log blocks.
                    Err(Error::NoBlocks { .. }) => layer.link_logs(found.split_off(1), &at),
                    Err(error) => return Err(error),
                }
            }
            layer.table[logical as usize] = found.first().map(|one| layer.base.closed(one));
        }
        while layer.random.len() > layer.random_max {
            match layer.merge_oldest(flash) {
                Ok(()) => {}
                Err(Error::NoBlocks { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Box::new(layer))
    }

    /// A table of data blocks, the sequential log block, and for each page of the random log blocks its number and what finds it
    /// by that.
    fn mapping_bytes(&self) -> usize {
        let log_pages = self.random_max * self.base.geometry.pages_per_block as usize;
        self.base.mapping_bytes() + size_of::<Sequential>() + log_pages * 2 * size_of::<u32>()
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        let events = &self.events;
        vec![
            ("appends", events.appends),
            ("sequential", events.sequential),
            ("random", events.random),
            ("switch_merges", events.switch_merges),
            ("partial_merges", events.partial_merges),
            ("full_merges", events.full_merges),
            ("log_merges", events.log_merges),
            ("taken_along", events.taken_along),
            ("drops", events.drops),
            ("unites", events.unites),
            ("fillers", self.base.fillers),
            ("copies", self.base.copies),
        ]
    }
}

impl Fast {
    /// Makes one data block of those that recovery found of a logical block.
    fn unite(&mut self, flash: &mut Flash, logical: u32, found: &[FoundBlock], at: &[u32]) -> Result<()> {
        let united = self.base.unite(flash, logical, found, at)?;
        self.events.unites += 1;
        self.table[logical as usize] = Some(united);
        for offset in 0..self.base.geometry.pages_per_block {
            self.log.remove(&self.base.page(logical, offset));
        }
        Ok(())
    }

    /// Makes random log blocks of the blocks that recovery found with pages out of their places, the oldest first. Nothing is
    /// written to any.
    fn link_logs(&mut self, mut found: Vec<FoundBlock>, at: &[u32]) {
        found.sort_by_key(|found| found.pages.first().map(|page| page.spare.version));
        let geometry = self.base.geometry;
        for FoundBlock { block, pages } in found {
            let mut numbers = vec![NONE; geometry.pages_per_block as usize];
            for page in pages {
                let number = page.spare.number;
                numbers[geometry.index_in_block(page.at) as usize] = number;
                if at.get(number as usize) == Some(&page.at.0) {
                    self.log.insert(number, page.at);
                }
            }
            self.random.push_back(RandomLog { block, numbers, closed: true });
        }
    }
}
