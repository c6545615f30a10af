//! Sorted runs: how they are written in one stroke and read in order.
//!
//! Invariants of a run:
//! 1. Its entries ascend over all its pages; of one key there is one record or filter at most.
//! 2. If there is a run below, every page begins with a fence: an external one, or an internal copy of the last external
//!    one; there is one external fence for every page of the run below, in order, with the first key of that page as its
//!    key, though the first has key 0. The lowest run has neither fences nor filters.

use crate::page::run_page::{Entry, EntryKind, RunPage};
use crate::page::{Change, Key};
use crate::store::extents::{ExtentFile, id_of};
use crate::{Error, Result};
use mpsearch::ReadAhead;
use std::ops::Range;

/// Where a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    pub first: u64,
    pub pages: u64,
    /// Fences included.
    pub entries: u64,
    /// No other run of the file ever had this number; every page carries it.
    pub number: u64,
}

impl Run {
    pub fn extent(&self) -> Range<u64> {
        self.first..self.first + self.pages
    }

    /// Reads one page as it lies in `bytes`.
    pub fn decode(&self, file: &ExtentFile, page: u64, bytes: &[u8]) -> Result<RunPage> {
        let at = self.first + page;
        RunPage::decode(bytes, file.name(), file.offset(at), id_of(at), self.number)
    }

    /// Where the page is that a fence above names.
    pub fn expect_page(&self, file: &ExtentFile, page: u64) -> Result<u64> {
        if page < self.pages {
            return Ok(self.first + page);
        }
        let expected = format!("a page below {}", self.pages);
        Err(Error::corrupt(file.name(), file.offset(self.first), "fence into a run", expected, page))
    }
}

/// Reads a run from a page on, in order.
pub(super) struct RunReader<'a> {
    file: &'a ExtentFile,
    run: Run,
    page: u64,
    ahead: ReadAhead,
    entries: std::vec::IntoIter<Entry>,
}

impl<'a> RunReader<'a> {
    /// From page `page` on. Reads up to `pages_max` pages at a time.
    pub fn new(file: &'a ExtentFile, run: Run, page: u64, pages_max: usize) -> Self {
        Self { file, run, page, ahead: ReadAhead::new(pages_max), entries: Vec::new().into_iter() }
    }

    /// Goes on after page `page`, which has been read already.
    pub fn behind(file: &'a ExtentFile, run: Run, page: u64, read: RunPage, pages_max: usize) -> Self {
        Self { entries: read.entries.into_iter(), ..Self::new(file, run, page + 1, pages_max) }
    }

    pub fn next(&mut self) -> Result<Option<Entry>> {
        if let Some(entry) = self.entries.next() {
            return Ok(Some(entry));
        }
        if self.page >= self.run.pages {
            return Ok(None);
        }
        let count = (self.ahead.grow() as u64).min(self.run.pages - self.page);
        let first = self.run.first + self.page;
        let bytes = self.file.read(first..first + count)?;
        let mut entries = Vec::new();
        for page in bytes.chunks(self.file.page_len()) {
            entries.extend(self.run.decode(self.file, self.page, page)?.entries);
            self.page += 1;
        }
        self.entries = entries.into_iter();
        Ok(self.entries.next())
    }

    /// First keys of all pages from here on, as the fences above have them: the first is 0.
    pub fn first_keys(&mut self) -> Result<Vec<Key>> {
        let mut firsts = Vec::new();
        while self.page < self.run.pages {
            let first = self.run.first + self.page;
            let bytes =
                self.file.read(first..first + (self.ahead.grow() as u64).min(self.run.pages - self.page))?;
            for page in bytes.chunks(self.file.page_len()) {
                let page = self.run.decode(self.file, self.page, page)?;
                firsts.push(if self.page == 0 { 0 } else { page.entries[0].key });
                self.page += 1;
            }
        }
        Ok(firsts)
    }

    /// The next entry that does something to its key.
    pub fn next_change(&mut self) -> Result<Option<(Key, Change)>> {
        while let Some(entry) = self.next()? {
            if let Some(change) = entry.change() {
                return Ok(Some((entry.key, change)));
            }
        }
        Ok(None)
    }
}

/// Writes a run.
pub(super) struct RunWriter {
    extent: Range<u64>,
    /// Whether the extent can grow.
    grows: bool,
    per_page: usize,
    /// Whether every page begins with a fence.
    fenced: bool,
    /// Pages that are written at a time.
    pages_max: usize,
    last_fence: u64,
    page: Vec<Entry>,
    full: Vec<Vec<Entry>>,
    run: Run,
    /// First keys of the pages, which become the external fences above.
    firsts: Vec<Key>,
}

/// What a run is like: its number, entries per page, whether there is a run below, and how many pages are written at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunShape {
    pub number: u64,
    pub per_page: usize,
    pub fenced: bool,
    pub pages_max: usize,
}

impl RunWriter {
    /// Writes a run of at most `entries_max` entries (internal fences aside), or of any number at the end of the file.
    pub fn new(file: &mut ExtentFile, shape: RunShape, entries_max: Option<u64>) -> Self {
        let RunShape { number, per_page, fenced, pages_max } = shape;
        let extent = match entries_max {
            Some(entries) => {
                let per_page = per_page as u64 - u64::from(fenced);
                file.allocate(entries.div_ceil(per_page).max(1))
            }
            None => file.allocate_last(),
        };
        let run = Run { first: extent.start, number, ..Run::default() };
        Self {
            grows: entries_max.is_none(),
            extent,
            per_page,
            fenced,
            pages_max,
            last_fence: 0,
            page: Vec::with_capacity(per_page),
            full: Vec::new(),
            run,
            firsts: Vec::new(),
        }
    }

    /// Appends an entry, which follows all before it.
    pub fn push(&mut self, file: &ExtentFile, entry: Entry) -> Result<()> {
        if self.page.is_empty() {
            self.firsts.push(if self.firsts.is_empty() { 0 } else { entry.key });
            if self.fenced && entry.kind != EntryKind::External {
                self.run.entries += 1;
                self.page.push(Entry { key: entry.key, kind: EntryKind::Internal, word: self.last_fence });
            }
        }
        if entry.kind == EntryKind::External {
            self.last_fence = entry.word;
        }
        self.run.entries += 1;
        self.page.push(entry);
        if self.page.len() == self.per_page {
            self.end_page(file)?;
        }
        Ok(())
    }

    fn end_page(&mut self, file: &ExtentFile) -> Result<()> {
        self.full.push(std::mem::replace(&mut self.page, Vec::with_capacity(self.per_page)));
        if self.full.len() >= self.pages_max { self.write(file) } else { Ok(()) }
    }

    fn write(&mut self, file: &ExtentFile) -> Result<()> {
        let count = self.full.len() as u64;
        let at = self.run.first + self.run.pages;
        let page_len = file.page_len();
        let mut bytes = file.buffer(self.full.len());
        for ((number, entries), page) in (at..).zip(&self.full).zip(bytes.chunks_mut(page_len)) {
            RunPage::encode(entries, id_of(number), self.run.number, page);
        }
        file.write(at, &bytes)?;
        self.run.pages += count;
        self.full.clear();
        Ok(())
    }

    /// The run and the first keys of its pages; what it did not take of its extent is free.
    pub fn finish(mut self, file: &mut ExtentFile) -> Result<(Run, Vec<Key>)> {
        if !self.page.is_empty() {
            self.full.push(std::mem::take(&mut self.page));
        }
        if !self.full.is_empty() {
            self.write(file)?;
        }
        if self.grows {
            file.extend(&mut self.extent, self.run.pages);
        }
        file.give(self.run.extent().end..self.extent.end);
        Ok((self.run, self.firsts))
    }
}
