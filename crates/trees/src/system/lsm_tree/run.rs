//! A run: sorted blocks, divided into parts; behind the blocks of each part its filter page.
//!
//! Invariants:
//! 1. All parts but the last have the same number of blocks; the last has one at least.
//! 2. The n-th top is the first key of the n-th part.

use crate::page::filter_page::{Filter, FilterPage};
use crate::page::run_page::{Entry, RunPage};
use crate::page::{Change, Key};
use crate::store::extents::{ExtentFile, id_of};
use crate::{Error, Result};
use mpsearch::ReadAhead;
use std::ops::Range;

/// Pages that a merge reads of a run, and writes, at a time: 256 KiB of pages of 4 KiB, where bandwidth no longer depends on
/// the size of a request (E8).
pub(super) const MERGE_PAGES: usize = 64;

/// Where a run lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    pub first: u64,
    /// Filter pages included.
    pub pages: u64,
    /// Tombstones included.
    pub entries: u64,
    /// Grows with every run; every page carries it.
    pub number: u64,
    /// Of each part but the last.
    pub blocks: u64,
}

/// A run, and what is known of it in memory. The default has none.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    pub run: Run,
    /// First key of each part.
    pub tops: Vec<Key>,
}

impl Level {
    /// The part where a key would be; none if it is below all.
    pub fn part_of(&self, key: Key) -> Option<u64> {
        self.tops.partition_point(|top| *top <= key).checked_sub(1).map(|part| part as u64)
    }
}

impl Run {
    pub fn extent(&self) -> Range<u64> {
        self.first..self.first + self.pages
    }

    pub fn parts(&self) -> u64 {
        self.pages.div_ceil(self.blocks + 1)
    }

    /// Where the blocks of a part are.
    pub fn blocks_of(&self, part: u64) -> Range<u64> {
        let first = self.first + part * (self.blocks + 1);
        first..self.filter_of(part)
    }

    /// Where the filter page of a part is.
    pub fn filter_of(&self, part: u64) -> u64 {
        (self.first + part * (self.blocks + 1) + self.blocks).min(self.first + self.pages - 1)
    }

    fn is_filter(&self, page: u64) -> bool {
        self.filter_of((page - self.first) / (self.blocks + 1)) == page
    }

    pub fn block(&self, file: &ExtentFile, page: u64, bytes: &[u8]) -> Result<RunPage> {
        RunPage::decode(bytes, file.name(), file.offset(page), id_of(page), self.number)
    }

    pub fn filter(&self, file: &ExtentFile, part: u64, bytes: &[u8]) -> Result<FilterPage> {
        let page = self.filter_of(part);
        let filter = FilterPage::decode(bytes, file.name(), file.offset(page), id_of(page), self.number)?;
        let blocks = self.blocks_of(part);
        let count = blocks.end - blocks.start;
        if filter.firsts.len() as u64 != count {
            let what = format!("blocks of part {part} of run {}", self.number);
            let found = filter.firsts.len();
            return Err(Error::corrupt(file.name(), file.offset(page), what, count, found));
        }
        Ok(filter)
    }

    /// The first key of each part, from the filter pages.
    pub fn read_tops(&self, file: &ExtentFile, pio_max: usize) -> Result<Vec<Key>> {
        let parts: Vec<u64> = (0..if self.pages == 0 { 0 } else { self.parts() }).collect();
        let mut tops = Vec::with_capacity(parts.len());
        for parts in parts.chunks(pio_max) {
            let pages: Vec<u64> = parts.iter().map(|part| self.filter_of(*part)).collect();
            file.read_each(&pages, &mut |index, bytes| {
                tops.extend(self.filter(file, parts[index], bytes)?.firsts.first());
                Ok(())
            })?;
        }
        if !tops.is_sorted_by(|one, two| one < two) {
            let what = format!("first keys of the parts of run {}", self.number);
            return Err(Error::corrupt(
                file.name(),
                file.offset(self.first),
                what,
                "ascending keys",
                "others",
            ));
        }
        Ok(tops)
    }
}

/// Reads a run from a block on, in order.
pub(super) struct RunReader<'a> {
    file: &'a ExtentFile,
    run: Run,
    page: u64,
    ahead: ReadAhead,
    entries: std::vec::IntoIter<Entry>,
}

impl<'a> RunReader<'a> {
    /// From a page on, which is a block's.
    pub fn from_page(file: &'a ExtentFile, run: Run, page: u64, ahead: ReadAhead) -> Self {
        Self { file, run, page, ahead, entries: Vec::new().into_iter() }
    }

    /// All of it, for a merge.
    pub fn of(file: &'a ExtentFile, run: Run) -> Self {
        Self::from_page(file, run, run.first, ReadAhead::beginning_with(MERGE_PAGES, MERGE_PAGES))
    }

    pub fn next(&mut self) -> Result<Option<(Key, Change)>> {
        loop {
            if let Some(entry) = self.entries.next() {
                if let Some(change) = entry.change() {
                    return Ok(Some((entry.key, change)));
                }
                continue;
            }
            let left = self.run.extent().end - self.page;
            if left == 0 {
                return Ok(None);
            }
            let count = (self.ahead.grow() as u64).min(left);
            let pages = self.page..self.page + count;
            let bytes = self.file.read(pages.clone())?;
            let mut entries = Vec::new();
            for (page, bytes) in pages.zip(bytes.chunks(self.file.page_len())) {
                if !self.run.is_filter(page) {
                    entries.extend(self.run.block(self.file, page, bytes)?.entries);
                }
            }
            self.page += count;
            self.entries = entries.into_iter();
        }
    }
}

/// What a run is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunShape {
    pub number: u64,
    /// Entries of a block.
    pub per_block: usize,
    /// Blocks of a part.
    pub blocks: usize,
    pub bits_per_key: usize,
}

enum Page {
    Block(Vec<Entry>),
    Filter(FilterPage),
}

/// Writes a run.
pub(super) struct RunWriter {
    shape: RunShape,
    extent: Range<u64>,
    /// Whether the extent can grow.
    grows: bool,
    block: Vec<Entry>,
    /// Keys of the part so far, and first keys of its blocks.
    keys: Vec<Key>,
    firsts: Vec<Key>,
    full: Vec<Page>,
    level: Level,
}

impl RunWriter {
    /// Writes a run of at most `entries_max` entries, or of any number at the end of the file.
    pub fn new(file: &mut ExtentFile, shape: RunShape, entries_max: Option<u64>) -> Self {
        let extent = match entries_max {
            Some(entries) => {
                let blocks = entries.div_ceil(shape.per_block as u64).max(1);
                file.allocate(blocks + blocks.div_ceil(shape.blocks as u64))
            }
            None => file.allocate_last(),
        };
        let (first, number, blocks) = (extent.start, shape.number, shape.blocks as u64);
        let run = Run { first, number, blocks, ..Run::default() };
        Self {
            shape,
            grows: entries_max.is_none(),
            extent,
            block: Vec::new(),
            keys: Vec::new(),
            firsts: Vec::new(),
            full: Vec::new(),
            level: Level { run, tops: Vec::new() },
        }
    }

    /// Appends an entry, which follows all before it.
    pub fn push(&mut self, file: &ExtentFile, key: Key, change: Change) -> Result<()> {
        if self.block.is_empty() {
            if self.firsts.is_empty() {
                self.level.tops.push(key);
            }
            self.firsts.push(key);
        }
        self.keys.push(key);
        self.block.push(Entry::of(key, change));
        self.level.run.entries += 1;
        if self.block.len() == self.shape.per_block {
            self.end_block();
        }
        if self.full.len() >= MERGE_PAGES { self.write(file) } else { Ok(()) }
    }

    fn end_block(&mut self) {
        self.full.push(Page::Block(std::mem::take(&mut self.block)));
        if self.firsts.len() == self.shape.blocks {
            self.end_part();
        }
    }

    fn end_part(&mut self) {
        let filter = Filter::of(&self.keys, self.shape.bits_per_key);
        self.keys.clear();
        self.full.push(Page::Filter(FilterPage { firsts: std::mem::take(&mut self.firsts), filter }));
    }

    fn write(&mut self, file: &ExtentFile) -> Result<()> {
        let (at, count) = (self.level.run.first + self.level.run.pages, self.full.len() as u64);
        let (page_len, number) = (file.page_len(), self.shape.number);
        let mut bytes = file.buffer(self.full.len());
        for ((at, page), bytes) in (at..).zip(&self.full).zip(bytes.chunks_mut(page_len)) {
            match page {
                Page::Block(entries) => RunPage::encode(entries, id_of(at), number, bytes),
                Page::Filter(filter) => filter.encode(id_of(at), number, bytes),
            }
        }
        file.write(at, &bytes)?;
        self.level.run.pages += count;
        self.full.clear();
        Ok(())
    }

    /// The run; what it did not take of its extent is free.
    pub fn finish(mut self, file: &mut ExtentFile) -> Result<Level> {
        if !self.block.is_empty() {
            self.end_block();
        }
        if !self.firsts.is_empty() {
            self.end_part();
        }
        if !self.full.is_empty() {
            self.write(file)?;
        }
        if self.grows {
            file.extend(&mut self.extent, self.level.run.pages);
        }
        file.give(self.level.run.extent().end..self.extent.end);
        Ok(self.level)
    }
}
