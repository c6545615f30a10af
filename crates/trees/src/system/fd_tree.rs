//! The FD-tree (Li, He, Yang, Luo and Yi, "Tree Indexing on Solid State Drives", VLDB 2010; a comparator of the PIO and AS
//! B-trees): a small head tree in memory above sorted runs on the device, each k times as large as the one above, with
//! fences from each to the next. Updates go to the head tree; what grows too large is merged into the run below.
//!
//! ```text
//! page/run_page, buffer/frames (optional, a pool for pages of runs), store/extents (fresh space, one anchor for all runs), log/unit_log (optional, for the head tree)
//! fd_tree/{run, merge, find, check}
//! ```
//!
//! Where it differs from the published one: updates are blind, so a filter does not vanish when it meets a record of its
//! key, since there may be older ones further down; it goes on to the lowest run. A lowest run that has grown too large
//! becomes the next level without being copied.

mod check;
mod find;
mod merge;
mod run;

use crate::buffer::frames::{Eviction, Frames};
use crate::index::{Checked, Contract, Index};
use crate::log::unit_log::UnitLog;
use crate::page::run_page::{Entry, RunPage, entries_max};
use crate::page::{Change, Key, Value};
use crate::sound::Sound;
use crate::store::anchor::{Owner, words_max};
use crate::store::extents::{ExtentFile, NUMBER_MAX};
use crate::update::in_order::{InOrder, check_fill};
use crate::{Counters, Error, PageUse, Result};
use parking_lot::Mutex;
use psync::Volume;
use run::{Run, RunReader, RunWriter};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const FILE: &str = "fdtree";
const LOG_FILE: &str = "fdtree-log";
/// Pages that a merge reads from each run and writes at a time, unless [`FdTree::merge_by`] says otherwise.
const MERGE_PAGES: usize = 64;
/// Words of the anchor before those of the runs, and words of a run.
const WORDS: usize = 3;
const WORDS_PER_RUN: usize = 4;

/// Whether the head tree is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadLog {
    /// No: [`Index::flush`] merges it into the first run.
    #[default]
    Off,
    /// Yes; the log becomes durable with [`Index::flush`].
    AtFlush,
    /// Yes; the log becomes durable with each operation, in a block of its own.
    EachOperation,
}

/// What an FD-tree is built with.
#[derive(Clone, Debug)]
pub struct FdTreeOptions {
    /// Bytes of a page, a power of two from 512 on.
    pub page_len: usize,
    /// |L0|: the head tree holds as many entries as so many pages would.
    pub head_pages: usize,
    /// k: how many times larger each run is than the one above; 2 to half of the entries of a page.
    pub ratio: usize,
    /// f: most entries of a page, 4 or more, if less than it holds: for tests.
    pub entries_max: Option<usize>,
    /// Pages of runs that an LRU pool in memory holds for single searches and range searches; 0 for none. Merges and
    /// [`Index::search_many`] pass it by.
    pub frames: usize,
    /// PioMax for [`Index::search_many`], and pages that a range search reads ahead; 1 for neither, as the published one.
    pub pio_max: usize,
    /// Whether the head tree is logged.
    pub log: HeadLog,
}

impl Default for FdTreeOptions {
    fn default() -> Self {
        Self {
            page_len: 4096,
            head_pages: 64,
            ratio: 125,
            entries_max: None,
            frames: 0,
            pio_max: 1,
            log: HeadLog::Off,
        }
    }
}

/// A run of an [`FdTree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdTreeLevel {
    /// Pages.
    pub pages: u64,
    /// Records, filters and fences.
    pub entries: u64,
    /// Entries that it may have before it is merged into the next.
    pub entries_max: u64,
}

/// What an [`FdTree`] has done and what it looks like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FdTreeDetails {
    /// The runs, from the first on.
    pub levels: Vec<FdTreeLevel>,
    /// Records and filters in the head tree.
    pub head_entries: u64,
    /// Times that the head tree was brought to the device.
    pub cascades: u64,
    /// Merges of two neighbours.
    pub merges: u64,
    /// Of them, those into the lowest run: the runs above it hold nothing but fences then.
    pub lowest_merges: u64,
    /// Times that the lowest run became the next level.
    pub levels_added: u64,
    /// Pages that cascades have read.
    pub merge_pages_read: u64,
    /// Pages that cascades have written, anchors included.
    pub merge_pages_written: u64,
    /// Filters that have reached the lowest run.
    pub filters_dropped: u64,
    /// Entries that a newer one of the same key has replaced.
    pub superseded: u64,
    /// Blocks of the log that were written.
    pub log_blocks: u64,
}

/// Pages of runs in memory, by the run's number and the page in it.
struct Pool {
    frames: Frames<(u64, u64), Arc<RunPage>>,
    hits: u64,
}

/// See the module.
pub struct FdTree {
    file: ExtentFile,
    log: Option<UnitLog>,
    log_each: bool,
    per_page: usize,
    head_max: usize,
    ratio: u64,
    pio_max: usize,
    merge_pages: usize,
    pool: Mutex<Pool>,
    head: BTreeMap<Key, Change>,
    /// First keys of the pages of the first run; the first is 0.
    fences: Vec<Key>,
    runs: Vec<Run>,
    next_number: u64,
    details: FdTreeDetails,
    sound: Sound,
}

impl FdTree {
    /// What it has done besides [`Index::stats`].
    pub fn details(&self) -> FdTreeDetails {
        let level = |(index, run): (usize, &Run)| FdTreeLevel {
            pages: run.pages,
            entries: run.entries,
            entries_max: self.entries_max(index),
        };
        FdTreeDetails {
            levels: self.runs.iter().enumerate().map(level).collect(),
            head_entries: self.head.len() as u64,
            log_blocks: self.log.as_ref().map_or(0, UnitLog::blocks_written),
            ..self.details.clone()
        }
    }

    /// Merges read from each run, and write, so many pages at a time from now on (1 or more). The paper does not tell how many.
    pub fn merge_by(&mut self, pages: usize) {
        self.merge_pages = pages.max(1);
    }

    /// |Li|, `level` 0 being the first run.
    fn entries_max(&self, level: usize) -> u64 {
        (self.head_max as u64).saturating_mul(self.ratio.saturating_pow(level as u32 + 1))
    }

    /// The anchor has no room for more.
    fn levels_max(&self) -> usize {
        (words_max(self.file.page_len()) - WORDS) / WORDS_PER_RUN
    }

    fn over(file: ExtentFile, options: &FdTreeOptions) -> Result<Self> {
        let fits = entries_max(options.page_len);
        let per_page = options.entries_max.unwrap_or(fits);
        if !(4..=fits).contains(&per_page) {
            return Err(Error::Invalid(format!("{per_page} entries on a page: 4 to {fits}")));
        }
        if !(2..=per_page / 2).contains(&options.ratio) {
            let max = per_page / 2;
            return Err(Error::Invalid(format!("runs that grow by {}: by 2 to {max}", options.ratio)));
        }
        if !(1..=1 << 20).contains(&options.head_pages) {
            return Err(Error::Invalid(format!("a head tree of {} pages: 1 to 1048576", options.head_pages)));
        }
        Ok(Self {
            file,
            log: None,
            log_each: options.log == HeadLog::EachOperation,
            per_page,
            head_max: options.head_pages * per_page,
            ratio: options.ratio as u64,
            pio_max: options.pio_max.max(1),
            merge_pages: MERGE_PAGES,
            pool: Mutex::new(Pool { frames: Frames::new(Eviction::Lru, options.frames), hits: 0 }),
            head: BTreeMap::new(),
            fences: Vec::new(),
            runs: Vec::new(),
            next_number: 0,
            details: FdTreeDetails::default(),
            sound: Sound::default(),
        })
    }

    fn new(volume: Arc<dyn Volume>, options: &FdTreeOptions) -> Result<Self> {
        let file = ExtentFile::create(Arc::clone(&volume), FILE, Owner::FdTree, options.page_len)?;
        let mut tree = Self::over(file, options)?;
        if options.log != HeadLog::Off {
            tree.log = Some(UnitLog::create(volume, LOG_FILE, 0)?);
        }
        Ok(tree)
    }

    /// Makes the runs as they are now what [`Index::recover`] finds. The log holds nothing that is not in them.
    fn save(&mut self) -> Result<()> {
        debug_assert!(self.head.is_empty());
        let mut words = vec![u64::from(self.log.is_some()), self.next_number, self.runs.len() as u64];
        for run in &self.runs {
            words.extend([run.first, run.pages, run.entries, run.number]);
        }
        self.file.commit(words)?;
        if let Some(log) = &mut self.log {
            log.restart(self.file.anchor().version);
        }
        Ok(())
    }

    /// Takes the runs from the anchor.
    fn load(&mut self) -> Result<()> {
        let anchor = self.file.anchor().clone();
        let wrong = || {
            let found = format!("{:?}", anchor.words);
            Error::corrupt(FILE, 0, "words of the anchor", "a table of runs", found)
        };
        let (head, table) = anchor.words.split_at_checked(WORDS).ok_or_else(wrong)?;
        let runs = (table.len() / WORDS_PER_RUN) as u64;
        if !table.len().is_multiple_of(WORDS_PER_RUN) || head[2] != runs || head[1] > NUMBER_MAX {
            return Err(wrong());
        }
        self.next_number = head[1];
        for words in table.chunks_exact(WORDS_PER_RUN) {
            let run = Run { first: words[0], pages: words[1], entries: words[2], number: words[3] };
            let entries_max = run.pages.saturating_mul(entries_max(self.file.page_len()) as u64);
            let sound = run.pages > 0 && run.entries <= entries_max;
            let end = run.first.checked_add(run.pages).filter(|_| sound).ok_or_else(wrong)?;
            self.file.occupy(run.first..end)?;
            self.runs.push(run);
        }
        if let Some(first) = self.runs.first() {
            let mut reader = RunReader::new(&self.file, *first, 0, self.merge_pages);
            self.fences = reader.first_keys()?;
        }
        Ok(())
    }

    fn change(&mut self, key: Key, change: Change) -> Result<()> {
        self.sound.check()?;
        if let Some(log) = &mut self.log {
            log.append(key, change);
            if self.log_each {
                self.sound.after(log.commit())?;
            }
        }
        self.head.insert(key, change);
        // Fences take room too, but never so much that the head tree would be merged for a few entries.
        let full = self.head.len() + self.fences.len() >= self.head_max;
        if full && self.head.len() >= self.head_max / 4 { self.cascade() } else { Ok(()) }
    }
}

impl Index for FdTree {
    type Options = FdTreeOptions;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &FdTreeOptions) -> Result<Self> {
        let mut tree = Self::new(volume, options)?;
        tree.save()?;
        Ok(tree)
    }

    fn recover(volume: Arc<dyn Volume>, options: &FdTreeOptions) -> Result<Self> {
        let file = ExtentFile::open(Arc::clone(&volume), FILE, Owner::FdTree, options.page_len)?;
        let mut tree = Self::over(file, options)?;
        let logged = tree.file.anchor().words.first() == Some(&1);
        if logged != (options.log != HeadLog::Off) {
            let (is, asked) = if logged { ("a", "none") } else { ("no", "one") };
            return Err(Error::Invalid(format!(
                "{FILE} was created with {is} log, but {asked} is asked for"
            )));
        }
        tree.load()?;
        if logged {
            let log = UnitLog::open(volume, LOG_FILE, tree.file.anchor().version)?;
            tree.head.extend(log.replay()?);
            tree.log = Some(log);
            // What is left of a torn batch must not be taken for a part of a later one: a new generation begins.
            if tree.head.is_empty() { tree.save()? } else { tree.cascade()? }
        }
        Ok(tree)
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &FdTreeOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        check_fill(fill)?;
        let mut tree = Self::new(volume, options)?;
        let mut shape = tree.next_run(false);
        shape.per_page = ((tree.per_page as f64 * fill) as usize).max(1);
        let mut writer = RunWriter::new(&mut tree.file, shape, None);
        let mut records = InOrder::new(records);
        for (key, value) in records.by_ref() {
            writer.push(&tree.file, Entry::of(key, Change::Put(value)))?;
        }
        records.finish()?;
        let (run, firsts) = writer.finish(&mut tree.file)?;
        if run.pages > 0 {
            let fits = |level: &usize| tree.entries_max(*level) >= run.entries;
            let lowest = (0..tree.levels_max()).find(fits).unwrap_or(tree.levels_max() - 1);
            tree.runs = vec![Run::default(); lowest + 1];
            tree.runs[lowest] = run;
            tree.fence_above(lowest, firsts)?;
        }
        tree.save()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        "FD-tree"
    }

    fn contract(&self) -> Contract {
        if self.log_each { Contract::EachOperation } else { Contract::Flush }
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        self.change(key, Change::Put(value))
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        self.change(key, Change::Remove)
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        self.sound.check()?;
        self.find(key)
    }

    fn search_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.sound.check()?;
        if self.pio_max > 1 { self.find_many(keys) } else { keys.iter().map(|key| self.find(*key)).collect() }
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.sound.check()?;
        self.merged(range)
    }

    fn flush(&mut self) -> Result<()> {
        self.sound.check()?;
        match &mut self.log {
            Some(log) => self.sound.after(log.commit()),
            None if self.head.is_empty() => Ok(()),
            None => self.cascade(),
        }
    }

    fn check(&self) -> Result<Checked> {
        self.sound.check()?;
        self.verify()
    }

    fn stats(&self) -> Counters {
        let (log_bytes, log_waits) = self.log.as_ref().map_or((0, 0), UnitLog::bytes);
        let pages = self.file.counters();
        let pool = self.pool.lock();
        let pooled = (pool.frames.len() * self.file.page_len()) as u64;
        Counters {
            hits: pool.hits,
            merges: self.details.merges,
            flushes: self.details.cascades,
            height: self.runs.len() as u32 + 1,
            memory: (self.head.len() * size_of::<(Key, Change)>() + 8 * self.fences.len()) as u64
                + log_waits
                + pooled,
            space: pages.space + log_bytes,
            ..pages
        }
    }

    fn page_use(&self) -> PageUse {
        PageUse::Unused(self.file.unused())
    }
}
