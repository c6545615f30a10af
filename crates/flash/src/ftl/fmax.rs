//! FMAX: block mapping with replacement blocks, in the form for flash that is programmed in ascending order.
//!
//! Source: Ban, "Flash file system optimized for page-mode flash technologies", US patent 5,937,425 (1999); described beside
//! its relatives ANAND and NFTL in Gal and Toledo, "Algorithms and data structures for flash memories", ACM Computing
//! Surveys 37 (2), 2005, section 2.3. A logical block has a primary block, where pages stand in their places, and up to `r`
//! replacement blocks, where they stand in the order in which they were written. A page is written
//!
//! 1. to its place in the primary block, if that is the next free one;
//! 2. or else to the next page of the last replacement block;
//! 3. or else to a replacement block that is added to the chain;
//! 4. or else, where the chain has `r` already, the chain is folded: the newest version of every page goes to a fresh
//!    primary block, the page of the host among them, and all others are erased.
//!
//! A replacement block that came to hold all pages, in their places, becomes the primary block (`switch`): nothing is
//! copied. When blocks run short, the chain is folded that got its first replacement block longest ago. Two deviations: the
//! map of the chains is cached (the patent reads spare areas along the chain), and a logical block that is not first written
//! at its first page begins with a replacement block, since places cannot be skipped.
//!
//! In spare areas (all records: `spare`):
//!
//! ```text
//! primary block      | L*4   v17 DATA | L*4+1 v18 DATA | L*4+2 v0 FILLER | L*4+3 v19 DATA |
//! replacement block  | L*4+3 v30 DATA | L*4+1 v31 DATA | L*4+3 v32 DATA  | (erased)       |
//!                      any order, the highest version counts
//! ```
//!
//! Invariants: those of `block_mapped`, and
//! 1. all pages of a physical block are of one logical block;
//! 2. `moved` holds exactly the pages whose newest version is in a replacement block;
//! 3. three blocks are free before each fold that the host's page goes along with: one to write to, one if a program fails
//!    there, one for recovery.

use super::block_mapped::{BlockMapped, Placed, RESERVE, Remains, Source};
use super::scan::FoundBlock;
use super::{Ftl, FtlOptions, LogicalPage};
use crate::{BlockId, Error, Flash, PageId, Result};
use std::collections::{HashMap, VecDeque};

/// Replacement blocks of a logical block at most.
const REPLACEMENTS_MAX: u32 = 16;

/// A block in which pages stand as they came.
#[derive(Clone, Copy, Debug)]
struct Replacement {
    block: BlockId,
    /// Pages used; all, once nothing more is to be written.
    next: u32,
    /// So far each page stands in its place.
    in_place: bool,
}

#[derive(Clone, Debug, Default)]
struct Chain {
    primary: Option<Placed>,
    replacements: Vec<Replacement>,
}

impl Chain {
    fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.primary.iter().map(|placed| placed.block).chain(self.replacements.iter().map(|one| one.block))
    }

    /// Blocks that become free when it is folded, less the one that is taken.
    fn gain(&self) -> usize {
        (usize::from(self.primary.is_some()) + self.replacements.len()).saturating_sub(1)
    }
}

/// How often what was done.
#[derive(Clone, Copy, Debug, Default)]
struct Events {
    appends: u64,
    replaced: u64,
    folds: u64,
    /// Folds, among them, because blocks ran short.
    folds_short: u64,
    switches: u64,
    drops: u64,
    unites: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Fmax {
    base: BlockMapped,
    chain_max: usize,
    chains: Vec<Chain>,
    /// By logical page: where its newest version is, if that is in a replacement block.
    moved: HashMap<u32, PageId>,
    /// Logical blocks with replacement blocks, in the order in which they got the first.
    queue: VecDeque<u32>,
    events: Events,
}

impl Fmax {
    /// On erased flash, with at most `replacements` replacement blocks for each logical block: 1 to 16, 1 by default of the
    /// sources. Blocks that are bad already are left alone.
    ///
    /// # Errors
    /// [`Error::Geometry`] if the options cannot be, or there are fewer than five blocks besides those that hold the logical
    /// pages.
    pub fn new(flash: &Flash, options: FtlOptions, replacements: u32) -> Result<Self> {
        if !(1..=REPLACEMENTS_MAX).contains(&replacements) {
            return Err(Error::Geometry(format!(
                "{replacements} replacement blocks of a logical block; 1 to {REPLACEMENTS_MAX}"
            )));
        }
        // One replacement block, and one that may be taken while another chain is being folded for it.
        let base = BlockMapped::new(flash, options, 2)?;
        let chains = vec![Chain::default(); base.logical_blocks() as usize];
        Ok(Self::with(base, replacements as usize, chains))
    }

    fn with(base: BlockMapped, chain_max: usize, chains: Vec<Chain>) -> Self {
        let (moved, queue) = (HashMap::new(), VecDeque::new());
        Self { base, chain_max, chains, moved, queue, events: Events::default() }
    }

    /// Where the newest version of a page is, if it is anywhere.
    fn place(&self, page: u32, logical: u32, offset: u32) -> Option<PageId> {
        let primary = || {
            let placed = self.chains[logical as usize].primary.filter(|placed| offset < placed.end)?;
            Some(self.base.geometry.page(placed.block, offset))
        };
        self.moved.get(&page).copied().or_else(primary)
    }

    /// Folds a chain because blocks have run short. Takes one block at a time, and if the power goes, that one holds nothing
    /// but copies, and recovery takes it for free.
    fn make_room(&mut self, flash: &mut Flash) -> Result<()> {
        let gains = |logical: &u32| self.chains[*logical as usize].gain() > 0;
        let Some(victim) = self.queue.iter().copied().find(gains) else {
            return Err(self.base.free.exhausted());
        };
        self.events.folds_short += 1;
        self.fold(flash, victim, None)
    }

    /// The newest version of every page to a fresh primary block, and a page of the host among them.
    fn fold(&mut self, flash: &mut Flash, logical: u32, host: Option<(u32, &[u8])>) -> Result<()> {
        let mut end = self.base.live_end(logical, self.base.geometry.pages_per_block);
        if let Some((offset, _)) = host {
            end = end.max(offset + 1);
        }
        let places: Vec<_> =
            (0..end).map(|offset| self.place(self.base.page(logical, offset), logical, offset)).collect();
        let fresh =
            self.base.rewrite(flash, logical, end, |base, offset| match (host, places[offset as usize]) {
                (Some((at, data)), _) if at == offset => Source::Host(data),
                (_, Some(at)) => base.keep(base.page(logical, offset), at),
                (_, None) => Source::Filler,
            })?;
        self.events.folds += 1;
        self.replace(flash, logical, Some(fresh))
    }

    /// A chain is replaced by one block, or none, and all its other blocks are released.
    fn replace(&mut self, flash: &mut Flash, logical: u32, by: Option<Placed>) -> Result<()> {
        let old = std::mem::take(&mut self.chains[logical as usize]);
        self.chains[logical as usize].primary = by;
        self.queue.retain(|queued| *queued != logical);
        for offset in 0..self.base.geometry.pages_per_block {
            self.moved.remove(&self.base.page(logical, offset));
        }
        for block in old.blocks().filter(|block| by.is_none_or(|by| by.block != *block)) {
            self.base.free.release(flash, block)?;
        }
        Ok(())
    }

    /// Writes a page to its place. `false` if that cannot be.
    fn append(&mut self, flash: &mut Flash, logical: u32, offset: u32, data: &[u8]) -> Result<bool> {
        let Some(mut placed) = self.chains[logical as usize].primary else { return Ok(false) };
        if placed.closed || offset != placed.end {
            return Ok(false);
        }
        let done = self.base.append(flash, &mut placed, logical, Source::Host(data))?;
        self.chains[logical as usize].primary = Some(placed);
        if done {
            self.moved.remove(&self.base.page(logical, offset));
        }
        Ok(done)
    }

    /// Writes a page to the last replacement block. `false` if that cannot be.
    fn push(&mut self, flash: &mut Flash, logical: u32, offset: u32, data: &[u8]) -> Result<bool> {
        let pages_per_block = self.base.geometry.pages_per_block;
        let chain = &mut self.chains[logical as usize];
        let Some(last) = chain.replacements.last_mut().filter(|last| last.next < pages_per_block) else {
            return Ok(false);
        };
        let at = self.base.geometry.page(last.block, last.next);
        let page = self.base.page(logical, offset);
        match self.base.put(flash, at, page, Source::Host(data)) {
            Ok(()) => {}
            Err(Error::ProgramFailed { .. }) => {
                self.base.free.note_failure(last.block);
                *last = Replacement { next: pages_per_block, in_place: false, ..*last };
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        last.in_place &= last.next == offset;
        last.next += 1;
        let full = last.in_place && last.next == pages_per_block;
        let by = Placed { block: last.block, end: pages_per_block, closed: false };
        self.moved.insert(page, at);
        if full {
            self.events.switches += 1;
            // What the host has written is in it already, and counts from here on.
            self.base.written(page);
            self.replace(flash, logical, Some(by))?;
        }
        Ok(true)
    }

    /// Adds a block to a chain: a primary one if it is to hold the first page and nothing is there yet.
    fn extend(&mut self, flash: &mut Flash, logical: u32, offset: u32) -> Result<()> {
        let block = self.base.free.take(flash)?;
        let chain = &mut self.chains[logical as usize];
        if offset == 0 && chain.primary.is_none() && chain.replacements.is_empty() {
            chain.primary = Some(Placed::open(block));
            return Ok(());
        }
        if chain.replacements.is_empty() {
            self.queue.push_back(logical);
        }
        chain.replacements.push(Replacement { block, next: 0, in_place: true });
        Ok(())
    }
}

impl Ftl for Fmax {
    fn name(&self) -> &'static str {
        "fmax"
    }

    fn logical_pages(&self) -> u32 {
        self.base.pages
    }

    fn read(&mut self, flash: &mut Flash, page: LogicalPage, offset: usize, buffer: &mut [u8]) -> Result<()> {
        let (logical, index) = self.base.split(page)?;
        match self.place(page.0, logical, index) {
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
                self.events.appends += 1;
                break;
            }
            if self.push(flash, logical, offset, data)? {
                self.events.replaced += 1;
                break;
            }
            let extend = self.chains[logical as usize].replacements.len() < self.chain_max;
            // A fold gives its block back; a longer chain does not.
            if self.base.free.len() < RESERVE + u32::from(extend) {
                self.make_room(flash)?;
            } else if extend {
                self.extend(flash, logical, offset)?;
            } else {
                self.fold(flash, logical, Some((offset, data)))?;
                break;
            }
        }
        self.base.written(page.0);
        Ok(())
    }

    fn trim(&mut self, flash: &mut Flash, page: LogicalPage) -> Result<()> {
        let (logical, _) = self.base.split(page)?;
        self.moved.remove(&page.0);
        if self.base.clear(page) && self.chains[logical as usize].blocks().next().is_some() {
            self.events.drops += 1;
            flash.answered();
            self.replace(flash, logical, None)?;
        }
        Ok(())
    }

    fn recovered(&self, flash: &mut Flash) -> Result<Box<dyn Ftl>> {
        let (base, Remains { mut placed, others, at }) = self.base.recovered(flash)?;
        let pages_per_block = base.geometry.pages_per_block;
        for found in others {
            let logical = found.pages.first().map_or(0, |page| page.spare.number / pages_per_block);
            placed.entry(logical).or_default().push(found);
        }
        let chains = vec![Chain::default(); self.chains.len()];
        let mut layer = Self::with(base, self.chain_max, chains);
        for (logical, found) in placed {
            if logical as usize >= layer.chains.len() {
                continue;
            }
            layer.link(logical, &found, &at);
            let chain = &layer.chains[logical as usize];
            if chain.replacements.len() > layer.chain_max {
                layer.events.unites += 1;
                match layer.fold(flash, logical, None) {
                    // A drive at its end can still be read, from a longer chain.
                    Ok(()) | Err(Error::NoBlocks { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(Box::new(layer))
    }

    /// A table of primary blocks and, for as many replacement blocks as there can be, their numbers and which page each of
    /// their pages holds.
    fn mapping_bytes(&self) -> usize {
        let geometry = &self.base.geometry;
        let replacements = (geometry.blocks() - self.base.logical_blocks() - RESERVE) as usize;
        self.base.mapping_bytes()
            + replacements * (size_of::<u32>() + geometry.pages_per_block as usize * size_of::<u16>())
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        let Events { appends, replaced, folds, folds_short, switches, drops, unites } = self.events;
        vec![
            ("appends", appends),
            ("replaced", replaced),
            ("folds", folds),
            ("folds_short", folds_short),
            ("switches", switches),
            ("drops", drops),
            ("unites", unites),
            ("fillers", self.base.fillers),
        ]
    }
}

impl Fmax {
    /// Makes a chain of the blocks of a logical block that recovery found. The one that is placed comes first; nothing is
    /// written to any.
    fn link(&mut self, logical: u32, found: &[FoundBlock], at: &[u32]) {
        let next = self.base.geometry.pages_per_block;
        let in_place = |found: &FoundBlock| {
            let offset = |page: u32| page - self.base.page(logical, 0);
            found.pages.iter().all(|page| {
                page.spare.number >= self.base.page(logical, 0)
                    && offset(page.spare.number) == self.base.geometry.index_in_block(page.at)
            })
        };
        let primary = found.iter().position(in_place);
        let mut chain = Chain::default();
        for (number, found) in found.iter().enumerate() {
            if primary == Some(number) {
                chain.primary = Some(self.base.closed(found));
            } else {
                chain.replacements.push(Replacement { block: found.block, next, in_place: false });
            }
            for page in &found.pages {
                let number = page.spare.number;
                if at.get(number as usize) == Some(&page.at.0)
                    && chain.primary.is_none_or(|one| one.block != found.block)
                {
                    self.moved.insert(number, page.at);
                }
            }
        }
        if !chain.replacements.is_empty() {
            self.queue.push_back(logical);
        }
        self.chains[logical as usize] = chain;
    }
}
