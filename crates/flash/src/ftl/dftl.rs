//! DFTL: page mapping whose table is on flash, with a part of it in memory.
//!
//! Source: Gupta, Kim and Urgaonkar, "DFTL: A Flash Translation Layer Employing Demand-based Selective Caching of Page-level
//! Address Mappings", ASPLOS 2009, section 3. The table stands in translation pages; a directory of these is in memory, and
//! a cache of single entries (`mapping_cache`).
//!
//! Cost of a read or write of the host, besides its own page:
//! - entry not cached: 1 read of a translation page, if there is one;
//! - its place in the cache was a dirty entry's: 1 read and 1 program of a translation page, by which all dirty entries of that
//!   page become clean;
//! - collection of a data block: a copy for each valid page; entries that are cached become dirty and wait (lazy update), the
//!   others take 1 read and 1 program for each translation page that they stand in, together;
//! - collection of a translation block: a copy for each valid page.
//!
//! In spare areas (all records: `spare`); data and translation pages never share a block:
//!
//! ```text
//! data block         | 812 v90 DATA  | 17 v91 DATA   | 44 v80 DATA (a copy) | (erased) |
//! translation block  | 0   v60 TABLE | 5  v77 TABLE  | 0  v95 TABLE         | (erased) |
//!   its bytes:  for each of page_bytes/4 logical pages in order, its physical page (u32, little-endian; 0xFFFFFFFF: none)
//! ```
//!
//! Recovery reads all spare areas and believes nothing else: what translation pages say is compared with it, and those that
//! are behind are written anew.
//!
//! A translation page that cannot be read any more is put together again from the spare areas of all valid data pages. If one of
//! these cannot be read either, the page whose it was reads as zeros.
//!
//! Invariants:
//! 1. what a logical page's entry says, in the cache or else in its translation page, is where its newest version is;
//! 2. each page whose entry says so, and no other, is owned (see `page_blocks`);
//! 3. when a request begins, five blocks are free (`RESERVE`): two for what it writes itself, two for the collection that
//!    follows, or recovery, and one in case a program fails;
//! 4. no block that was begun before a power loss is gone on with.

use super::free_blocks::FreeBlocks;
use super::mapping_cache::MappingCache;
use super::page_blocks::{PageBlocks, Stream};
use super::scan::{Scan, kind};
use super::spare::{Found, SPARE, Spare};
use super::{Ftl, FtlOptions, LogicalPage, check_page};
use crate::{BlockId, Content, Done, Error, Flash, Geometry, Origin, PageId, Result};
use std::collections::BTreeMap;

const NONE: u32 = u32::MAX;

/// The share of all entries that is cached, by default.
pub const CACHED: f64 = 0.05;

/// See invariant 3.
const RESERVE: u32 = 5;

/// The host's writes stop here, so that its reads can go on.
const LAST_BLOCKS: u32 = 3;

/// Bytes of an entry in memory: logical and physical page.
const ENTRY: usize = 8;

/// How often what was done.
#[derive(Clone, Copy, Debug, Default)]
struct Events {
    hits: u64,
    misses: u64,
    /// Translation pages read, for whatever reason.
    table_reads: u64,
    /// Translation pages programmed, but for copies.
    table_writes: u64,
    dirty_evictions: u64,
    /// Dirty entries that were written along with an evicted one.
    batched: u64,
    data_collections: u64,
    table_collections: u64,
    /// Translation pages updated because data pages were moved.
    collection_updates: u64,
    /// Entries that waited in the cache when their pages were moved.
    lazy_updates: u64,
    /// Translation pages that recovery found to be behind.
    recovered_tables: u64,
    /// Translation pages that could not be read.
    rebuilt_tables: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Dftl {
    options: FtlOptions,
    geometry: Geometry,
    pages: u32,
    /// Entries of a translation page.
    entries: u32,
    /// By translation page: where it is.
    directory: Vec<u32>,
    cache: MappingCache,
    blocks: PageBlocks,
    free_target: u32,
    turn: usize,
    /// Goes on only between requests and between collections, each of which is to open one block for translation pages at most.
    table_turn: usize,
    events: Events,
}

impl Dftl {
    /// On erased flash, with the share `cached` (above 0, at most 1; the default is [`CACHED`]) of all entries in memory. Blocks
    /// that are bad already are left alone.
    ///
    /// # Errors
    /// [`Error::Geometry`] if the options cannot be, over-provision comes to too few blocks, or the flash does not keep the
    /// whole content of pages (the table stands there).
    pub fn new(flash: &Flash, options: FtlOptions, cached: f64) -> Result<Self> {
        if flash.nand().rules().content != Content::Full {
            let what =
                "flash that keeps only tags of pages; DFTL keeps its table in pages: take Content::Full";
            return Err(Error::Geometry(what.to_owned()));
        }
        if !(cached > 0.0 && cached <= 1.0) {
            return Err(Error::Geometry(format!("{cached} of the entries cached; above 0, at most 1")));
        }
        let pages = options.logical_pages(&flash.geometry());
        let capacity = ((f64::from(pages) * cached) as usize).max(2);
        Self::with(flash.geometry(), options, capacity, FreeBlocks::all(flash))
    }

    fn with(geometry: Geometry, options: FtlOptions, capacity: usize, free: FreeBlocks) -> Result<Self> {
        options.check()?;
        let pages = options.logical_pages(&geometry);
        let entries = geometry.page_bytes / 4;
        let tables = pages.div_ceil(entries);
        let spare = geometry.blocks() - (pages + tables).div_ceil(geometry.pages_per_block);
        // Open blocks are not to eat up the over-provision.
        let slots = |share: u32| (spare / share).clamp(1, geometry.units());
        // By stream: the host's pages, copies, translation pages.
        let slots = [slots(4), slots(8), slots(16)];
        let needed = slots.iter().sum::<u32>() + RESERVE + 1;
        if spare < needed {
            return Err(Error::Geometry(format!(
                "over-provision of {spare} blocks of {}, mapping table not counted; at least {needed}: take more blocks or a \
                 larger share",
                geometry.blocks()
            )));
        }
        Ok(Self {
            options,
            geometry,
            pages,
            entries,
            directory: vec![NONE; tables as usize],
            cache: MappingCache::new(capacity),
            blocks: PageBlocks::new(geometry, options.victims, free, slots),
            free_target: options.free_blocks(&geometry).max(RESERVE),
            turn: 0,
            table_turn: 0,
            events: Events::default(),
        })
    }

    /// The logical pages whose entries stand in a translation page.
    fn range(&self, table: u32) -> std::ops::Range<u32> {
        table * self.entries..(table + 1) * self.entries
    }

    /// Reads a translation page; one that was never written says that nothing is anywhere.
    fn read_table(&mut self, flash: &mut Flash, table: u32, bytes: &mut [u8]) -> Result<Done> {
        match self.directory[table as usize] {
            NONE => {
                bytes.fill(0xff);
                Ok(Done::NOTHING)
            }
            at => {
                self.events.table_reads += 1;
                match flash.read(Origin::Internal, PageId(at), 0, bytes) {
                    Err(Error::Unreadable { .. }) => self.rebuild_table(flash, table, bytes),
                    result => result,
                }
            }
        }
    }

    /// Puts a translation page that cannot be read together again, from the spare areas of all valid data pages.
    fn rebuild_table(&mut self, flash: &mut Flash, table: u32, bytes: &mut [u8]) -> Result<Done> {
        let range = self.range(table);
        bytes.fill(0xff);
        for block in (0..self.geometry.blocks()).map(BlockId).filter(|block| !self.blocks.is_table(*block)) {
            for (at, _) in self.blocks.owned(block) {
                let mut spare = [0; SPARE];
                match flash.read_spare(at, &mut spare).map(|_| Spare::decode(&spare)) {
                    Ok(Found::Valid(spare)) if range.contains(&spare.number) => {
                        let offset = (spare.number - range.start) as usize * 4;
                        bytes[offset..offset + 4].copy_from_slice(&at.0.to_le_bytes());
                    }
                    Ok(_) | Err(Error::Unreadable { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.events.rebuilt_tables += 1;
        self.write_table(flash, table, bytes, Done::NOTHING)?;
        Ok(Done::NOTHING)
    }

    /// Writes a translation page anew, when `after` has ended.
    fn write_table(&mut self, flash: &mut Flash, table: u32, bytes: &[u8], after: Done) -> Result<()> {
        let spare = Spare { number: table, version: self.blocks.version, kind: kind::TABLE }.encode();
        let at = self.blocks.place(flash, Stream::Tables, self.table_turn, |flash, at| {
            flash.program(Origin::Internal, at, bytes, &spare, after)
        })?;
        self.blocks.version += 1;
        self.events.table_writes += 1;
        let old = std::mem::replace(&mut self.directory[table as usize], at.0);
        self.blocks.disown(old);
        self.blocks.own(at, table);
        Ok(())
    }

    /// Brings a translation page up to date with all dirty entries of the cache, and with `moved`. How many entries of the cache
    /// were dirty.
    fn write_back(&mut self, flash: &mut Flash, table: u32, moved: &[(u32, u32)]) -> Result<usize> {
        let mut bytes = vec![0; self.geometry.page_bytes as usize];
        let read = self.read_table(flash, table, &mut bytes)?;
        let range = self.range(table);
        let mut dirty = 0;
        for (page, at) in moved.iter().copied().chain(self.cache.dirty(range.clone()).inspect(|_| dirty += 1))
        {
            let offset = (page - range.start) as usize * 4;
            bytes[offset..offset + 4].copy_from_slice(&at.to_le_bytes());
        }
        self.write_table(flash, table, &bytes, read)?;
        self.cache.clean(range);
        Ok(dirty)
    }

    /// What the table on flash says of a logical page.
    fn load(&mut self, flash: &mut Flash, page: u32) -> Result<u32> {
        let offset = (page % self.entries) as usize * 4;
        // All of the flash page crosses the bus.
        let mut bytes = vec![0; self.geometry.page_bytes as usize];
        self.read_table(flash, page / self.entries, &mut bytes)?;
        // What follows needs what it says.
        flash.wait();
        let mut entry = [0; 4];
        entry.copy_from_slice(&bytes[offset..offset + 4]);
        Ok(u32::from_le_bytes(entry))
    }

    /// Makes room for an entry.
    fn evict(&mut self, flash: &mut Flash) -> Result<()> {
        while self.cache.is_full() {
            let Some((page, entry)) = self.cache.victim() else { return Ok(()) };
            if entry.dirty {
                let dirty = self.write_back(flash, page / self.entries, &[])?;
                self.events.dirty_evictions += 1;
                self.events.batched += dirty as u64 - 1;
            }
            self.cache.remove(page);
        }
        Ok(())
    }

    /// Where a logical page is; its entry is cached from now on.
    fn look_up(&mut self, flash: &mut Flash, page: u32) -> Result<u32> {
        if let Some(at) = self.cache.get(page) {
            self.events.hits += 1;
            return Ok(at);
        }
        self.events.misses += 1;
        self.table_turn += 1;
        self.evict(flash)?;
        let at = self.load(flash, page)?;
        self.cache.put(page, at, false);
        Ok(at)
    }

    /// How many translation pages would have to be written if the block's pages were moved.
    fn tables_behind(cache: &MappingCache, entries: u32, blocks: &PageBlocks, block: BlockId) -> u32 {
        let pages = blocks.owned(block).map(|(_, page)| page).filter(|page| !cache.holds(*page));
        let mut tables: Vec<u32> = pages.map(|page| page / entries).collect();
        tables.sort_unstable();
        tables.dedup();
        tables.len() as u32
    }

    /// Collects until enough blocks are free. In twice as many steps as there are blocks they are, or nothing can be gained.
    fn collect(&mut self, flash: &mut Flash, target: u32) -> Result<()> {
        for _ in 0..2 * self.geometry.blocks() {
            if self.blocks.free.len() >= target {
                return Ok(());
            }
            let (cache, entries) = (&self.cache, self.entries);
            let victim =
                self.blocks.choose(|blocks, block| Self::tables_behind(cache, entries, blocks, block));
            let Some(victim) = victim else { return Err(self.blocks.free.exhausted()) };
            self.empty(flash, victim)?;
        }
        Err(self.blocks.free.exhausted())
    }

    /// Moves all valid pages of a block elsewhere, and erases it.
    fn empty(&mut self, flash: &mut Flash, victim: BlockId) -> Result<()> {
        let mut moved = Vec::new();
        let table = self.blocks.is_table(victim);
        self.table_turn += 1;
        let result = self.move_pages(flash, victim, table, &mut moved);
        let updated = self.update_tables(flash, &moved);
        if let Err(error) = result.and(updated) {
            self.blocks.offer_again(victim);
            return Err(error);
        }
        if table {
            self.events.table_collections += 1;
        } else {
            self.events.data_collections += 1;
        }
        if self.blocks.valid(victim) > 0 {
            self.blocks.keep_stuck(victim);
            return Ok(());
        }
        self.blocks.free.release(flash, victim)
    }

    fn move_pages(
        &mut self,
        flash: &mut Flash,
        victim: BlockId,
        table: bool,
        moved: &mut Vec<(u32, u32)>,
    ) -> Result<()> {
        let to = if table { Stream::Tables } else { Stream::Copies };
        // One open block for all, so that one new one is enough.
        let slot = self.geometry.unit_of(victim) as usize;
        let owned: Vec<_> = self.blocks.owned(victim).collect();
        for (from, number) in owned {
            let at = match self.blocks.place(flash, to, slot, |flash, at| flash.copy(from, at)) {
                // Nobody can move it. It stays where it is, so that the loss is told to whoever reads it.
                Err(Error::Unreadable { .. }) => continue,
                result => result?,
            };
            self.blocks.disown(from.0);
            self.blocks.own(at, number);
            if table {
                self.directory[number as usize] = at.0;
            } else if self.cache.change(number, at.0) {
                self.events.lazy_updates += 1;
            } else {
                moved.push((number, at.0));
            }
        }
        Ok(())
    }

    /// Tells translation pages where data pages were moved to. If one cannot be written, the cache keeps it, whatever its size.
    fn update_tables(&mut self, flash: &mut Flash, moved: &[(u32, u32)]) -> Result<()> {
        let mut by_table: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
        for entry in moved {
            by_table.entry(entry.0 / self.entries).or_default().push(*entry);
        }
        let mut result = Ok(());
        for (table, entries) in by_table {
            match self.write_back(flash, table, &entries) {
                Ok(_) => self.events.collection_updates += 1,
                Err(error) => {
                    entries.iter().for_each(|(page, at)| self.cache.put(*page, *at, true));
                    result = Err(error);
                }
            }
        }
        result
    }

    /// What the host need not wait for. That nothing can be gained is for the next write to say.
    fn tidy_up(&mut self, flash: &mut Flash) -> Result<()> {
        flash.answered();
        match self.collect(flash, self.free_target) {
            Err(Error::NoBlocks { .. }) => Ok(()),
            result => result,
        }
    }
}

impl Ftl for Dftl {
    fn name(&self) -> &'static str {
        "dftl"
    }

    fn logical_pages(&self) -> u32 {
        self.pages
    }

    fn read(&mut self, flash: &mut Flash, page: LogicalPage, offset: usize, buffer: &mut [u8]) -> Result<()> {
        check_page(page, self.pages)?;
        let free = self.blocks.free.len();
        let at = match self.look_up(flash, page.0) {
            // A drive at its end can still be read: without a place in the cache.
            Err(Error::NoBlocks { .. }) => self.load(flash, page.0)?,
            result => result?,
        };
        match at {
            NONE => buffer.fill(0),
            at => {
                flash.read(Origin::Host, PageId(at), offset, buffer)?;
            }
        }
        if self.blocks.free.len() < free { self.tidy_up(flash) } else { Ok(()) }
    }

    fn write(&mut self, flash: &mut Flash, page: LogicalPage, data: &[u8]) -> Result<()> {
        check_page(page, self.pages)?;
        if self.blocks.free.len() < LAST_BLOCKS {
            self.collect(flash, RESERVE)?;
        }
        let old = self.look_up(flash, page.0)?;
        let spare = Spare { number: page.0, version: self.blocks.version, kind: kind::DATA }.encode();
        self.turn += 1;
        let at = self.blocks.place(flash, Stream::Host, self.turn, |flash, at| {
            flash.program(Origin::Host, at, data, &spare, Done::NOTHING)
        })?;
        self.blocks.version += 1;
        self.blocks.disown(old);
        self.blocks.own(at, page.0);
        self.cache.put(page.0, at.0, true);
        self.tidy_up(flash)
    }

    fn trim(&mut self, flash: &mut Flash, page: LogicalPage) -> Result<()> {
        check_page(page, self.pages)?;
        let old = self.look_up(flash, page.0)?;
        if old != NONE {
            self.blocks.disown(old);
            self.cache.put(page.0, NONE, true);
        }
        self.tidy_up(flash)
    }

    fn recovered(&self, flash: &mut Flash) -> Result<Box<dyn Ftl>> {
        let Scan { blocks, free, version } = Scan::of(flash)?;
        let mut found = Self::with(self.geometry, self.options, self.cache.capacity(), free)?;
        found.blocks.version = version;
        let mut truth = vec![NONE; found.pages as usize];
        for one in &blocks {
            let table = one.pages.iter().any(|page| page.spare.kind == kind::TABLE);
            found.blocks.add_found(one.block, table);
            for page in one.pages.iter().filter(|page| page.newest) {
                let places = if table { &mut found.directory } else { &mut truth };
                let place = places.get_mut(page.spare.number as usize);
                if let Some(place) = place.filter(|place| **place == NONE) {
                    *place = page.at.0;
                    found.blocks.own(page.at, page.spare.number);
                }
            }
        }
        flash.begin_task();
        found.correct_tables(flash, &truth)?;
        match found.collect(flash, RESERVE) {
            Ok(()) | Err(Error::NoBlocks { .. }) => Ok(Box::new(found)),
            Err(error) => Err(error),
        }
    }

    /// The directory, the cache, and a bit for each physical page, whether it is valid. Whose it is stands in the spare area, which
    /// comes with each copy; that the simulation keeps it in memory saves it reading that once more.
    fn mapping_bytes(&self) -> usize {
        let directory = self.directory.len() * size_of::<u32>();
        directory + self.cache.capacity() * ENTRY + (self.geometry.pages() as usize).div_ceil(8)
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        let events = &self.events;
        vec![
            ("hits", events.hits),
            ("misses", events.misses),
            ("table_reads", events.table_reads),
            ("table_writes", events.table_writes),
            ("dirty_evictions", events.dirty_evictions),
            ("batched", events.batched),
            ("data_collections", events.data_collections),
            ("table_collections", events.table_collections),
            ("collection_updates", events.collection_updates),
            ("lazy_updates", events.lazy_updates),
            ("recovered_tables", events.recovered_tables),
            ("rebuilt_tables", events.rebuilt_tables),
        ]
    }
}

impl Dftl {
    /// Writes anew the translation pages that do not say what is true. Needs no more than one block at a time, since each of them
    /// leaves an outdated one behind.
    fn correct_tables(&mut self, flash: &mut Flash, truth: &[u32]) -> Result<()> {
        let page_bytes = self.geometry.page_bytes as usize;
        for (table, entries) in (0..).zip(truth.chunks(self.entries as usize)) {
            let mut says = vec![0; page_bytes];
            let read = self.read_table(flash, table, &mut says)?;
            let mut right: Vec<u8> = entries.iter().flat_map(|at| at.to_le_bytes()).collect();
            right.resize(page_bytes, 0xff);
            if says == right {
                continue;
            }
            self.events.recovered_tables += 1;
            while self.blocks.free.len() < 2
                && let Some(victim) = self.blocks.choose_table()
            {
                match self.empty(flash, victim) {
                    Err(Error::NoBlocks { .. }) => break,
                    result => result?,
                }
            }
            match self.write_table(flash, table, &right, read) {
                Err(Error::NoBlocks { .. }) => {
                    // At its end the drive can still be read: the cache keeps them, whatever its size.
                    let pages = self.range(table).zip(entries).zip(says.chunks(4));
                    for ((page, at), _) in pages.filter(|((_, at), says)| at.to_le_bytes() != **says) {
                        self.cache.put(page, *at, true);
                    }
                }
                result => result?,
            }
        }
        Ok(())
    }
}
