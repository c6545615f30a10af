//! How to open a database: few knobs, each with its unit, range and effect. What can be measured is not a knob.

use crate::database::Database;
use crate::error::{Error, Result};
use crate::tree::bupdate::NodeLen;
use psync::{Disk, DiskOptions, Volume};
use std::path::Path;
use std::sync::Arc;

/// Opens databases. Made by [`Database::builder`].
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// let db = sapwood::Database::builder().memory(64 << 20).open(dir.path().join("ships.db"))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    memory: u64,
    create: bool,
    read_only: bool,
    pio_max: usize,
    busy_wait: bool,
    background_threads: usize,
    leaf_len: usize,
    segment_span: u64,
    holder: Option<String>,
}

const MEMORY_MIN: u64 = 4 << 20;
/// Bytes at which a queue is full, at most. If all its entries just stand alone (`queue/map/memory.rs`, 64 KiB), that is a quarter of what its places
/// can tell of. No group of batches is added to a queue of twice as many bytes, a half of them.
const QUEUE_MAX: u64 = 2 << 30;
/// The most that a log that is replayed for reading only, which is never flushed, takes in memory, its last record aside; few in tests.
pub(crate) const REPLAYED_MAX: u64 = if cfg!(test) { 64 << 20 } else { 2 * QUEUE_MAX };
const LEAF_LEN: std::ops::RangeInclusive<usize> = 256..=(1 << 20);
const SPAN: std::ops::RangeInclusive<u64> = (1 << 20)..=(1 << 30);

impl Default for Builder {
    fn default() -> Self {
        Self {
            memory: 256 << 20,
            create: true,
            read_only: false,
            pio_max: 64,
            busy_wait: true,
            background_threads: 1,
            leaf_len: 4 << 10,
            segment_span: 64 << 20,
            holder: None,
        }
    }
}

impl Builder {
    /// Memory budget in bytes, 4 MiB and more; 256 MiB unless told. Covers what was written and not yet flushed
    /// (up to a third, and its log in the page cache about as much), the cache of nodes, the mapping table and all buffers.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Whether to create the database if there is none (yes unless told). If not: [`Error::Missing`].
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Opens for reading only: nothing in the directory is written, and any number of processes can do so at the
    /// same time. What the log holds is replayed into memory.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// PioMax: the most requests that go to the device at once, 1 to 1024; 64 unless told. 1 turns parallel I/O off,
    /// which is good for comparisons only.
    pub fn pio_max(mut self, requests: usize) -> Self {
        self.pio_max = requests;
        self
    }

    /// Whether threads that wait for a few reads may look for them without sleeping (yes unless told): for 0.2 ms at most, no more of them than half of the
    /// processors, and not while others seem to want those. Where few threads read, reads take a third less time and half as much again of the processor. Say no where that is dear.
    pub fn busy_wait(mut self, busy_wait: bool) -> Self {
        self.busy_wait = busy_wait;
        self
    }

    /// Threads that flush in the background: 1 (unless told), or 0 for a flush within the commit that makes it due,
    /// which makes tests deterministic.
    pub fn background_threads(mut self, threads: usize) -> Self {
        self.background_threads = threads;
        self
    }

    /// Length of a leaf in bytes, 256 to 1 MiB; 4 KiB unless told. Applies to leaves written from now on.
    pub fn leaf_len(mut self, bytes: usize) -> Self {
        self.leaf_len = bytes;
        self
    }

    /// Length of a segment of the data file in bytes, a power of two from 1 MiB to 1 GiB; 64 MiB unless told. Only
    /// when the database is created.
    pub fn segment_span(mut self, bytes: u64) -> Self {
        self.segment_span = bytes;
        self
    }

    /// What another process is told that finds the database in use ("process 4711, /usr/bin/shipyard" unless told).
    pub fn holder(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// Opens the database in the directory `path`, or creates it.
    ///
    /// # Errors
    /// [`Error::Locked`] if somebody else has it open, [`Error::NotADatabase`], [`Error::NewerFormat`],
    /// [`Error::Missing`], [`Error::Corrupt`], [`Error::BadOption`], and I/O errors.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Database> {
        let path = path.as_ref();
        self.check()?;
        if !path.exists() && (!self.create || self.read_only) {
            return Err(Error::Missing { path: path.display().to_string() });
        }
        let create = self.create && !self.read_only;
        let Self { pio_max, busy_wait, .. } = self;
        let disk = Disk::open(path, DiskOptions { pio_max, create, busy_wait, ..DiskOptions::default() })?;
        self.open_on(Arc::new(disk))
    }

    /// Opens the database on a volume, for instance a simulated one.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open_on(self, volume: Arc<dyn Volume>) -> Result<Database> {
        self.check()?;
        Database::open_with(volume, &self)
    }

    fn check(&self) -> Result<()> {
        let refuse =
            |option, value, range: &str| Err(Error::BadOption { option, value, range: range.into() });
        if self.memory < MEMORY_MIN {
            return refuse("memory", self.memory, "at least 4194304 bytes (4 MiB)");
        }
        if !(1..=1024).contains(&self.pio_max) {
            return refuse("pio_max", self.pio_max as u64, "1 to 1024 requests");
        }
        if self.background_threads > 1 {
            return refuse("background_threads", self.background_threads as u64, "0 or 1");
        }
        if !LEAF_LEN.contains(&self.leaf_len) {
            return refuse("leaf_len", self.leaf_len as u64, "256 to 1048576 bytes");
        }
        if !self.segment_span.is_power_of_two() || !SPAN.contains(&self.segment_span) {
            return refuse("segment_span", self.segment_span, "a power of two from 1 MiB to 1 GiB");
        }
        Ok(())
    }

    pub(crate) fn may_create(&self) -> bool {
        self.create && !self.read_only
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(crate) fn span(&self) -> u64 {
        self.segment_span
    }

    pub(crate) fn has_background_thread(&self) -> bool {
        self.background_threads > 0
    }

    pub(crate) fn holder_text(&self) -> String {
        self.holder.clone().unwrap_or_else(|| {
            let program = std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default();
            format!("process {}, {program}", std::process::id())
        })
    }

    pub(crate) fn shares(&self, span: u64) -> Shares {
        let memory = self.memory;
        let queue = (memory / 6).min(QUEUE_MAX);
        let batch = (memory / 16).clamp(1 << 20, 60 << 20) as usize;
        let entry = crate::KEY_LEN_MAX + 64;
        Shares {
            memory,
            queue: queue as usize,
            writer: (memory / 128).clamp(256 << 10, 2 << 20) as usize,
            read_buffers: (memory / 64).clamp(128 << 10, 16 << 20) as usize,
            hold: (memory / 32).clamp(256 << 10, 16 << 20),
            stage: (memory / 32).clamp(256 << 10, 16 << 20),
            batch,
            value: (16 << 20).min(span as usize / 4).min(batch - entry),
            node_len: NodeLen {
                leaf: self.leaf_len,
                block: (2 << 10).min(4 * self.leaf_len),
                inner: (8 << 10).min(4 * self.leaf_len),
            },
        }
    }
}

/// How the memory budget is shared, in bytes, and the limits that follow from it. What is shared anew as the work goes on is in [`crate::budget`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    pub memory: u64,
    /// The most that each of the two operation queues takes. What they do not take the cache has.
    pub queue: usize,
    /// The sequential writer's buffer.
    pub writer: usize,
    /// Idle read buffers that are kept, in bytes, besides those of what is read ahead as long as there is such a stage.
    pub read_buffers: usize,
    /// Keys and values that a flush holds back for the leaves, in the middle of its work, or lists of them where they stay in the queue.
    pub hold: u64,
    /// Nodes that are read ahead of it.
    pub stage: u64,
    /// The largest batch.
    pub batch: usize,
    /// The largest value.
    pub value: usize,
    pub node_len: NodeLen,
}
