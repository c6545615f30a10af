//! The PIO B-tree (Roh, Park, Kim, Shin and Lee, VLDB 5(4), 2011; MPSearch, IEEE Data Engineering Bulletin 2014).
//!
//! ```text
//! insert, update, delete ─▶ OPQ ──full──▶ bupdate ─▶ inner nodes in place, append-only leaves
//!                            │                         ▲ one psync per group and level
//! search: OPQ, else one read a level ──────────────────┤
//! search_many: MPSearch ────────────────────────────────┤
//! range: prange ───────────────────────────────────────┘
//! ```
//!
//! Invariants:
//! 1. What a key stands for: the newest operation on it in the OPQ, else the last in its leaf.
//! 2. No page is dirty: bupdate writes through.
//! 3. What an open transaction has done is in the queue and nowhere else: see [`transaction`].
//! 4. With a log, what was committed survives, and a batch that a power loss cut off is undone: see [`recovery`].

mod check;
pub(crate) mod concurrent;
mod flush_log;
mod options;
mod prange;
mod recovery;
mod search;
pub(crate) mod transaction;
mod undo;

use crate::buffer::frames::Eviction;
use crate::buffer::write_through::WriteThrough;
use crate::index::{Checked, Contract, Index};
use crate::model::device_times::DeviceTimes;
use crate::model::level_table::Load;
use crate::page::NodeId;
use crate::page::leaf_segments::{Entry, Op, Segment};
use crate::page::node::{Inner, Node};
use crate::queue::opq::{COMMITTED, Opq, Queued};
use crate::store::Root;
use crate::store::in_place::InPlaceStore;
use crate::store::last_segments::LastSegments;
use crate::store::leaf_extents::LeafExtents;
use crate::update::bulk_load::for_each_chunk;
use crate::update::bupdate::Bupdate;
use crate::update::in_order::{InOrder, check_fill};
use crate::update::single::Events;
use crate::{Counters, Error, Key, Result, Value};
use flush_log::{FlushLog, Written};
pub use options::{LogMode, PioOptions};
use parking_lot::{Mutex, RwLock};
use psync::Volume;
use std::ops::Range;
use std::sync::Arc;
use transaction::OpenTransactions;

const INNER: &str = "pio-inner";
const LEAVES: &str = "pio-leaves";
/// Bytes of device that a record takes, for the file in which [`PioTree::create_tuned`] measures: 16, in leaves filled to about
/// half.
const RECORD_SPACE: u64 = 32;
/// Bytes of that file, at most: large beside the caches of drives, and written within seconds.
const MEASURED_MAX: u64 = 1 << 30;

/// Where a tree stands, as the superblock and the log's flush records say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Standing {
    root: u64,
    level: u8,
    inner_next: u64,
    leaf_next: u64,
}

/// See the module.
pub struct PioTree {
    volume: Arc<dyn Volume>,
    options: PioOptions,
    pages: WriteThrough,
    last: LastSegments,
    /// Taken after `log`.
    queue: RwLock<Opq>,
    log: Mutex<Log>,
    root: Root,
    /// Of the newest batch update. Leaves written as a whole carry it as their version.
    flush: u32,
    segment_sequence: u64,
    events: Events,
    flushes: u64,
    brought: Brought,
    /// The error after which nothing can be said of the pages.
    failed: Mutex<Option<String>>,
}

/// What batch updates have brought from a PIO B-tree's queue to its pages so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brought {
    /// Operations.
    pub operations: u64,
    /// Times that a batch update began at the lowest key: batches go round the keys, and a queue that is larger than a batch
    /// is in the same state only where it was a whole way round before.
    pub rounds: u64,
}

/// The log, and the order of arrivals.
struct Log {
    records: FlushLog,
    /// Of the newest operation.
    sequence: u64,
    open: OpenTransactions,
}

impl Log {
    fn new(records: FlushLog) -> Self {
        Self { records, sequence: 0, open: OpenTransactions::default() }
    }
}

impl PioTree {
    fn empty(volume: Arc<dyn Volume>, options: &PioOptions) -> Result<Self> {
        options.validate()?;
        let inner = InPlaceStore::create(Arc::clone(&volume), INNER, options.page_len)?;
        let leaves =
            LeafExtents::open(Arc::clone(&volume), LEAVES, options.page_len, options.segments, true)?;
        let log = FlushLog::create(&volume, options.log, 1)?;
        Ok(Self {
            pages: WriteThrough::new(inner, leaves, options.frames, options.eviction),
            last: options.last_segments(),
            queue: RwLock::new(options.queue()),
            log: Mutex::new(Log::new(log)),
            root: Root { id: NodeId(0), level: 0 },
            flush: 1,
            segment_sequence: 0,
            events: Events::default(),
            flushes: 0,
            brought: Brought::default(),
            failed: Mutex::new(None),
            options: options.clone(),
            volume,
        })
    }

    /// Makes an empty tree that is tuned for a load on this device (VLDB 2011, section 3.6): measures the device by the wall
    /// clock, and asks the cost model. Takes seconds. For a device with a clock of its own see [`DeviceTimes::measure`] and
    /// [`PioOptions::tuned`].
    ///
    /// ```
    /// use trees::{Index, Load, PioTree};
    /// let dir = tempfile::tempdir()?;
    /// let volume = std::sync::Arc::new(psync::Disk::open(dir.path(), psync::DiskOptions::default())?);
    /// let load = Load { records: 1e5, memory: 1e5, updates: 0.5, ..Load::default() };
    /// let mut tree = PioTree::create_tuned(volume, &load)?;
    /// tree.insert(7, 49)?;
    /// assert_eq!(tree.search(7)?, Some(49));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`DeviceTimes::measure`], [`PioOptions::tuned`] and [`Index::create`].
    pub fn create_tuned(volume: Arc<dyn Volume>, load: &Load) -> Result<Self> {
        load.validate()?;
        let len = (load.records as u64).saturating_mul(RECORD_SPACE).clamp(1, MEASURED_MAX);
        let times = DeviceTimes::measure(&*volume, len, load.pio_max as usize, &mut |work| {
            let began = std::time::Instant::now();
            work()?;
            Ok(began.elapsed().as_secs_f64() * 1e6)
        })?;
        Self::create(volume, &PioOptions::tuned(&times, load)?)
    }

    /// What it was built with.
    pub fn options(&self) -> &PioOptions {
        &self.options
    }

    /// Writes the leaf of an empty tree.
    fn plant(&mut self) -> Result<()> {
        let leaf = self.pages.leaves.allocate();
        let segment = Segment { leaf, number: 0, version: self.flush, sequence: 0, entries: Vec::new() };
        self.pages.write_segments(&[segment])?;
        self.root = Root { id: leaf, level: 0 };
        Ok(())
    }

    /// Divides the memory anew between queue and buffer, which begins empty. What waits in the queue goes to the tree first.
    ///
    /// # Errors
    /// Those of [`Index::flush`]; [`Error::Invalid`] for a queue of no pages.
    pub fn divide_memory(&mut self, queue_pages: usize, frames: usize, eviction: Eviction) -> Result<()> {
        let options = PioOptions { queue_pages, frames, eviction, ..self.options.clone() };
        options.validate()?;
        self.flush()?;
        if !self.queue.get_mut().is_empty() {
            return Err(Error::Invalid(
                "transactions are open: end them before memory is divided anew".into(),
            ));
        }
        *self.queue.get_mut() = options.queue();
        self.pages.hold(frames, eviction);
        self.options = options;
        Ok(())
    }

    /// What batch updates have brought to the pages since the tree was created or recovered.
    pub fn brought(&self) -> Brought {
        self.brought
    }

    /// Operations that wait in the queue.
    pub fn waiting(&self) -> usize {
        self.queue.read().len()
    }

    fn standing(&self) -> Standing {
        Standing {
            root: self.root.id.0,
            level: self.root.level,
            inner_next: self.pages.inner.next(),
            leaf_next: self.pages.leaves.next(),
        }
    }

    fn usable(&self) -> Result<()> {
        match &*self.failed.lock() {
            Some(cause) => Err(Error::Invalid(format!(
                "an earlier update failed ({cause}): recover the tree before it is used"
            ))),
            None => Ok(()),
        }
    }

    /// Notes an error that leaves the tree in an unknown state.
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.failed.lock().get_or_insert_with(|| error.to_string());
        }
        result
    }

    /// Logs and queues an operation, of a transaction or by itself. Whether a batch update is due.
    fn queue_up(&self, transaction: u64, key: Key, value: Value, op: Op) -> Result<bool> {
        self.usable()?;
        let entry = Entry { key, value, op };
        let mut log = self.log.lock();
        log.open.may_write(transaction, key)?;
        log.sequence += 1;
        let queued = Queued { entry, sequence: log.sequence, transaction };
        // Searches go on while the log is synced.
        self.noted(log.records.redo(&queued))?;
        log.open.wrote(transaction, key);
        let mut queue = self.queue.write();
        queue.append_of(transaction, entry, queued.sequence);
        Ok(queue.is_full())
    }

    fn change(&mut self, key: Key, value: Value, op: Op) -> Result<()> {
        if self.queue_up(COMMITTED, key, value, op)? {
            let result = self.bupdate();
            self.noted(result)?;
        }
        Ok(())
    }

    /// Takes one group of the queue to the tree.
    fn bupdate(&mut self) -> Result<()> {
        let Some(group) = self.queue.get_mut().group(self.options.bcnt) else { return Ok(()) };
        self.flush += 1;
        let before = self.standing();
        let log = &mut self.log.get_mut().records;
        log.flush_start(self.flush, &group, before)?;
        let mut batch = Bupdate {
            pages: &mut self.pages,
            last: &mut self.last,
            undo: log,
            entries: &group.entries,
            pio_max: self.options.pio_max,
            fanout: self.options.fanout(),
            version: self.flush,
            events: &mut self.events,
            freed_inner: Vec::new(),
            freed_leaves: Vec::new(),
            sequence: &mut self.segment_sequence,
            lone: Default::default(),
        };
        self.root = batch.run(self.root)?;
        let (freed_inner, freed_leaves) = (batch.freed_inner, batch.freed_leaves);
        if self.options.log != LogMode::Off {
            self.pages.inner.sync_pages()?;
            self.pages.leaves.sync()?;
            let after = self.standing();
            self.log.get_mut().records.flush_end(self.flush, after)?;
        }
        freed_inner.into_iter().for_each(|id| self.pages.inner.free(id));
        freed_leaves.into_iter().for_each(|id| self.pages.leaves.free(id));
        self.queue.get_mut().remove(&group);
        self.flushes += 1;
        self.brought.operations += group.entries.len() as u64;
        self.brought.rounds += u64::from(group.begins_anew);
        if self.log.get_mut().records.len() > LOG_MAX {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Takes everything that waits to the tree.
    fn bring_all(&mut self) -> Result<()> {
        while self.queue.get_mut().has_committed() {
            self.bupdate()?;
        }
        self.checkpoint()
    }

    /// Makes the pages and the superblock durable, and begins a log that holds no more than what still waits.
    fn checkpoint(&mut self) -> Result<()> {
        self.pages.leaves.sync()?;
        let old = self.log.get_mut().records.generation();
        let mut log = FlushLog::create(&self.volume, self.options.log, old + 1)?;
        // In order of arrival, as a queue wants them back.
        let mut waiting: Vec<&Queued> = self.queue.get_mut().iter().collect();
        waiting.sort_by_key(|queued| queued.sequence);
        waiting.into_iter().for_each(|queued| log.redo_later(queued));
        log.sync()?;
        let flush = Written::encode(self.options.log, self.flush);
        let words = [log.generation(), self.pages.leaves.next(), flush];
        self.pages.inner.sync_with(self.root, words)?;
        self.log.get_mut().records = log;
        FlushLog::remove(&self.volume, old)
    }
}

/// Bytes of the log after which a checkpoint is taken.
const LOG_MAX: u64 = 64 << 20;

#[cfg(feature = "crash-matrix")]
impl PioTree {
    /// As [`Index::recover`], with the published redo rule (VLDB 2011, section 3.4), which loses operations: to show that.
    ///
    /// # Errors
    /// As [`Index::recover`].
    pub fn recover_as_published(volume: Arc<dyn Volume>, options: &PioOptions) -> Result<Self> {
        recovery::recover(volume, options, recovery::Taken::AsPublished)
    }
}

impl Index for PioTree {
    type Options = PioOptions;
    type Ground = Arc<dyn Volume>;

    fn create(volume: Arc<dyn Volume>, options: &PioOptions) -> Result<Self> {
        let mut tree = Self::empty(volume, options)?;
        tree.plant()?;
        tree.checkpoint()?;
        Ok(tree)
    }

    fn recover(volume: Arc<dyn Volume>, options: &PioOptions) -> Result<Self> {
        recovery::recover(volume, options, recovery::Taken::NoYounger)
    }

    fn bulk_load(
        volume: Arc<dyn Volume>,
        options: &PioOptions,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Self> {
        let mut tree = Self::empty(volume, options)?;
        tree.load(fill, records)?;
        tree.checkpoint()?;
        Ok(tree)
    }

    fn name(&self) -> &'static str {
        "PIO B-tree"
    }

    fn contract(&self) -> Contract {
        match self.options.log {
            LogMode::Off => Contract::Never,
            LogMode::Buffered => Contract::Flush,
            LogMode::Each => Contract::EachOperation,
        }
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<()> {
        self.change(key, value, Op::Insert)
    }

    fn update(&mut self, key: Key, value: Value) -> Result<()> {
        self.change(key, value, Op::Update)
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        self.change(key, 0, Op::Delete)
    }

    fn search(&self, key: Key) -> Result<Option<Value>> {
        self.usable()?;
        self.search_one(key, COMMITTED)
    }

    fn search_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.usable()?;
        self.mpsearch(keys)
    }

    fn range(&self, range: Range<Key>) -> Result<Vec<(Key, Value)>> {
        self.usable()?;
        self.prange(range)
    }

    fn flush(&mut self) -> Result<()> {
        self.usable()?;
        let result = self.bring_all();
        self.noted(result)?;
        let is_kept = |queued: &Queued| queued.transaction == COMMITTED;
        if self.options.log == LogMode::Off && self.queue.get_mut().iter().any(is_kept) {
            return Err(Error::Invalid(
                "an open transaction keeps earlier changes of the keys that it has written from the tree, and there is no log: end it first".into(),
            ));
        }
        Ok(())
    }

    fn check(&self) -> Result<Checked> {
        self.usable()?;
        self.check_all()
    }

    fn stats(&self) -> Counters {
        let (inner, leaves) = (self.pages.inner.counters(), self.pages.leaves.counters());
        let queue = self.queue.read().len() * size_of::<Queued>();
        Counters {
            pages_read: inner.pages_read + leaves.pages_read,
            pages_written: inner.pages_written + leaves.pages_written,
            hits: self.pages.hits(),
            splits: self.events.splits,
            merges: self.events.merges,
            redistributions: self.events.redistributions,
            flushes: self.flushes,
            height: u32::from(self.root.level) + 1,
            memory: (self.pages.pages() * self.options.page_len + queue + self.last.memory()) as u64,
            space: inner.space + leaves.space,
        }
    }
}

impl PioTree {
    /// Fills an empty tree: leaves from left to right, then level upon level.
    fn load(&mut self, fill: f64, records: &mut dyn Iterator<Item = (Key, Value)>) -> Result<()> {
        check_fill(fill)?;
        let per_segment = self.pages.leaves.per_segment();
        let capacity = per_segment * self.options.segments;
        let mut records = InOrder::new(records);
        let mut entries = records.by_ref().map(|(key, value)| Entry { key, value, op: Op::Insert });
        let mut level: Vec<(Key, NodeId)> = Vec::new();
        let mut group = Vec::new();
        let per_leaf = ((capacity as f64 * fill) as usize).clamp(1, capacity);
        for_each_chunk(&mut entries, per_leaf, capacity, &mut |entries, is_last| {
            let leaf = self.pages.leaves.allocate();
            level.push((entries[0].key, leaf));
            for (number, entries) in entries.chunks(per_segment).enumerate() {
                let (version, sequence) = (self.flush, 0);
                group.push(Segment { leaf, number, version, sequence, entries: entries.to_vec() });
                self.last.set(leaf.0, Some(number));
            }
            if group.len() >= self.options.pio_max.max(64) || is_last {
                self.pages.write_segments(&std::mem::take(&mut group))?;
            }
            Ok(())
        })?;
        records.finish()?;
        if level.is_empty() {
            return self.plant();
        }
        let fanout = self.options.fanout();
        let per_inner = ((fanout as f64 * fill) as usize).clamp(fanout.div_ceil(2).max(2), fanout);
        let mut height = 0;
        while level.len() > 1 {
            height += 1;
            let mut above = Vec::new();
            let mut group = Vec::new();
            let mut below = std::mem::take(&mut level).into_iter();
            for_each_chunk(&mut below, per_inner, fanout, &mut |children, is_last| {
                let id = self.pages.inner.allocate();
                above.push((children[0].0, id));
                let fences = children[1..].iter().map(|child| child.0).collect();
                let children = children.into_iter().map(|child| child.1).collect();
                group.push((id, Node::Inner(Inner { level: height, fences, children })));
                if group.len() >= self.options.pio_max.max(64) || is_last {
                    self.pages.write_inner(std::mem::take(&mut group))?;
                }
                Ok(())
            })?;
            level = above;
        }
        self.root = Root { id: level[0].1, level: height };
        Ok(())
    }
}
