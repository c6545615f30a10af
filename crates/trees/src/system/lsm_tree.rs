//! The LSM-tree (O'Neil, Cheng, Gawlick and O'Neil, "The Log-Structured Merge-Tree", Acta Informatica 33(4), 1996), with
//! what its users have added since: first keys of blocks, and Bloom filters. The MPSearch paper names it as a tree to search
//! many keys in (IEEE Data Engineering Bulletin 2014, sections 3 and 5).
//!
//! ```text
//! page/{run_page, filter_page}, buffer/frames (a pool of filter pages), store/extents (fresh space, one anchor for all runs)
//! lsm_tree/{run, merge, find, check}
//!
//! memtable ─full─▶ run of level 1 ─too large─▶ run of level 2 ─▶ ...     each level has one run ("leveling")
//! run: [block ... block, filter page] [block ... block, filter page] ...  a part is what one filter page is for
//! memory: memtable, first key of each part, some filter pages
//! ```
//!
//! Invariants:
//! 1. Of one key the newer entry wins: the memtable's, else that of the first run that has one.
//! 2. A tombstone lives until it reaches the last run.
//! 3. What the durable anchor names is not overwritten: a merge writes a new run, and one anchor replaces all that changed.

mod check;
mod find;
mod merge;
mod run;

use crate::buffer::frames::{Eviction, Frames};
use crate::index::{Checked, Contract, Index};
use crate::page::filter_page::{FilterPage, blocks_max};
use crate::page::run_page::entries_max;
use crate::page::{Change, Key, Value};
use crate::sound::Sound;
use crate::store::anchor::{Owner, words_max};
use crate::store::extents::{ExtentFile, NUMBER_MAX};
use crate::update::in_order::{InOrder, check_fill};
use crate::{Counters, Error, PageUse, Result};
use parking_lot::Mutex;
use psync::Volume;
use run::{Level, Run, RunWriter};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const FILE: &str = "lsmtree";
/// Words of the anchor before those of the runs, and words of a run.
const WORDS: usize = 1;
const WORDS_PER_RUN: usize = 5;

/// What an [`LsmTree`] is built with.
#[derive(Clone, Debug)]
pub struct LsmTreeOptions {
    /// Bytes of a page, which is a block or a filter page: a power of two from 512 on.
    pub page_len: usize,
    /// The memtable holds as many entries as so many blocks would.
    pub memtable_pages: usize,
    /// How many times larger each run may be than the one above; the first, than the memtable. 2 or more.
    pub ratio: usize,
    /// Bits of the filters for each key; 0 for no filters.
    pub bits_per_key: usize,
    /// Most entries of a block, if fewer than it holds: for tests.
    pub entries_max: Option<usize>,
    /// Filter pages that a pool in memory holds, those of the upper levels first.
    pub frames: usize,
    /// PioMax for [`Index::search_many`], and pages that a range search reads ahead.
    pub pio_max: usize,
}

impl Default for LsmTreeOptions {
    fn default() -> Self {
        Self {
            page_len: 4096,
            memtable_pages: 64,
            ratio: 10,
            bits_per_key: 10,
            entries_max: None,
            frames: 0,
            pio_max: 64,
        }
    }
}

/// What an [`LsmTree`] has done and what it looks like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LsmTreeDetails {
    /// Entries of each run, from the first on, tombstones included.
    pub runs: Vec<u64>,
    /// Entries of the memtable.
    pub memtable: u64,
    /// Blocks that a filter kept from being read.
    pub denied: u64,
    /// Blocks that were read for a key in vain.
    pub false_positives: u64,
}

/// Filter pages in memory, by the run's number and the part.
struct Pool {
    frames: Frames<(u64, u64), Arc<FilterPage>>,
    hits: u64,
}

/// See the module.
pub struct LsmTree {
    file: ExtentFile,
    /// Entries of a block.
    per_block: usize,
    bits_per_key: usize,
    memtable_max: usize,
    ratio: u64,
    pio_max: usize,
    memtable: BTreeMap<Key, Change>,
    levels: Vec<Level>,
    next_number: u64,
    pool: Mutex<Pool>,
    flushes: u64,
    merges: u64,
    denied: AtomicU64,
    false_positives: AtomicU64,
    sound: Sound,
}

impl LsmTree {
    /// What it has done besides [`Index::stats`].
    pub fn details(&self) -> LsmTreeDetails {
        LsmTreeDetails {
            runs: self.levels.iter().map(|level| level.run.entries).collect(),
            memtable: self.memtable.len() as u64,
            denied: self.denied.load(Relaxed),
            false_positives: self.false_positives.load(Relaxed),
        }
    }

    fn over(file: ExtentFile, options: &LsmTreeOptions) -> Result<Self> {
        let wrong = |what: String| Err(Error::Invalid(what));
        let fits = entries_max(options.page_len);
        let per_block = options.entries_max.unwrap_or(fits);
        if !(1..=fits).contains(&per_block) {
            return wrong(format!("{per_block} entries of a block: 1 to {fits}"));
        }
        if options.ratio < 2 {
            return wrong(format!("runs that grow by {}: by 2 or more", options.ratio));
        }
        if !(1..=1 << 20).contains(&options.memtable_pages) {
            return wrong(format!("a memtable of {} pages: 1 to 1048576", options.memtable_pages));
        }
        if options.bits_per_key > 64 || blocks_max(options.page_len, per_block, options.bits_per_key) == 0 {
            return wrong(format!("{} bits a key: a filter page is for no block", options.bits_per_key));
        }
        Ok(Self {
            file,
            per_block,
            bits_per_key: options.bits_per_key,
            memtable_max: options.memtable_pages * per_block,
            ratio: options.ratio as u64,
            pio_max: options.pio_max.max(1),
            memtable: BTreeMap::new(),
            levels: Vec::new(),
            next_number: 0,
            pool: Mutex::new(Pool { frames: Frames::new(Eviction::LowestLevel, options.frames), hits: 0 }),
            flushes: 0,
            merges: 0,
            denied: AtomicU64::new(0),
            false_positives: AtomicU64::new(0),
            sound: Sound::default(),
        })
    }

    fn new(volume: Arc<dyn Volume>, options: &LsmTreeOptions) -> Result<Self> {
        Self::over(ExtentFile::create(volume, FILE, Owner::LsmTree, options.page_len)?, options)
    }

    /// Entries that the run of a level may have; the first level is 0.
    fn entries_max(&self, level: usize) -> u64 {
        (self.memtable_max as u64).saturating_mul(self.ratio.saturating_pow(level as u32 + 1))
    }

    /// The anchor has no room for more.
    fn levels_max(&self) -> usize {
        (words_max(self.file.page_len()) - WORDS) / WORDS_PER_RUN
    }

    /// Makes the runs as they are now what [`Index::recover`] finds.
    fn save(&mut self) -> Result<()> {
        let mut words = vec![self.next_number];
        for level in &self.levels {
            let Run { first, pages, entries, number, blocks } = level.run;
            words.extend([first, pages, entries, number, blocks]);
        }
        self.file.commit(words)
    }

    /// Takes the runs from the anchor.
    fn load(&mut self) -> Result<()> {
        let words = self.file.anchor().words.clone();
        let wrong =
            || Error::corrupt(FILE, 0, "words of the anchor", "a table of runs", format!("{words:?}"));
        let (head, table) = words.split_at_checked(WORDS).ok_or_else(wrong)?;
        if !table.len().is_multiple_of(WORDS_PER_RUN) || head[0] > NUMBER_MAX {
            return Err(wrong());
        }
        self.next_number = head[0];
        for words in table.chunks_exact(WORDS_PER_RUN) {
            let [first, pages, entries, number, blocks] = [0, 1, 2, 3, 4].map(|word| words[word]);
            let run = Run { first, pages, entries, number, blocks };
            let fits = pages.saturating_mul(entries_max(self.file.page_len()) as u64);
            let sound = entries <= fits && blocks < 1 << 16 && (pages == 0) == (entries == 0);
            // A part has a block and a filter page at least.
            let whole = pages == 0 || blocks > 0 && pages % (blocks + 1) != 1;
            let end = first.checked_add(pages).filter(|_| sound && whole).ok_or_else(wrong)?;
            if pages > 0 {
                self.file.occupy(first..end)?;
            }
            let tops = run.read_tops(&self.file, self.pio_max)?;
            self.levels.push(Level { run, tops });
        }
        Ok(())
    }

    fn change(&mut self, key: Key, change: Change) -> Result<()> {
        self.sound.check()?;
        self.memtable.insert(key, change);
        if self.memtable.len() >= self.memtable_max { self.spill() } else { Ok(()) }
    }
}

impl Index for LsmTree {
    type Options = LsmTreeOptions;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &LsmTreeOptions) -> Result<Self> {
        let mut tree = Self::new(volume, options)?;
        tree.save()?;
        Ok(tree)
    }

    fn recover(volume: Arc<dyn Volume>, options: &LsmTreeOptions) -> Result<Self> {
        let file = ExtentFile::open(volume, FILE, Owner::LsmTree, options.page_len)?;
        let mut tree = Self::over(file, options)?;
        tree.load()?;
        Ok(tree)
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &LsmTreeOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        check_fill(fill)?;
        let mut tree = Self::new(volume, options)?;
        let mut shape = tree.next_run();
        shape.per_block = ((tree.per_block as f64 * fill) as usize).max(1);
        let mut writer = RunWriter::new(&mut tree.file, shape, None);
        let mut records = InOrder::new(records);
        for (key, value) in records.by_ref() {
            writer.push(&tree.file, key, Change::Put(value))?;
        }
        records.finish()?;
        let level = writer.finish(&mut tree.file)?;
        if level.run.pages > 0 {
            let fits = |at: &usize| tree.entries_max(*at) >= level.run.entries;
            let lowest = (0..tree.levels_max()).find(fits).unwrap_or(tree.levels_max() - 1);
            tree.levels.resize_with(lowest, Level::default);
            tree.levels.push(level);
        }
        tree.save()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        "LSM-tree"
    }

    fn contract(&self) -> Contract {
        Contract::Flush
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
        self.find_many(keys)
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.sound.check()?;
        self.merged(range)
    }

    fn flush(&mut self) -> Result<()> {
        self.sound.check()?;
        if self.memtable.is_empty() { Ok(()) } else { self.spill() }
    }

    fn check(&self) -> Result<Checked> {
        self.sound.check()?;
        self.verify()
    }

    fn stats(&self) -> Counters {
        let pool = self.pool.lock();
        let tops: usize = self.levels.iter().map(|level| level.tops.len()).sum();
        let pooled = pool.frames.len() * self.file.page_len();
        Counters {
            hits: pool.hits,
            merges: self.merges,
            flushes: self.flushes,
            height: self.levels.len() as u32 + 1,
            memory: (self.memtable.len() * size_of::<(Key, Change)>() + tops * size_of::<Key>() + pooled)
                as u64,
            ..self.file.counters()
        }
    }

    fn page_use(&self) -> PageUse {
        PageUse::Unused(self.file.unused())
    }
}
