//! The log of a PIO B-tree (VLDB 2011, section 3.4): redo records of operations; commit and abort records; flush start, undo and flush end records of batch
//! updates.
//!
//! A record's payload is the [postcard](https://docs.rs/postcard) form of a [`LogRecord`]; its kind is always 1.
//!
//! Rules (W1 to W4 of a batch update):
//! 1. In mode `Each`, an operation's redo record is durable before the operation returns; of a transaction, all redo records
//!    and the commit record are before the commit returns.
//! 2. All redo records of the operations that a batch takes are durable before its start record is.
//! 3. The start record, and the undo record of a page, are durable before the page is overwritten.
//! 4. All pages are durable before the end record is.

use super::{INNER, LogMode, Standing};
use crate::log::wal::{self, Wal};
use crate::page::NodeId;
use crate::page::leaf_segments::{Entry, Op, Segment};
use crate::page::node::Node;
use crate::queue::opq::{COMMITTED, Group, Queued};
use crate::update::bupdate::Undo;
use crate::{Error, Key, Result};
use psync::Volume;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const NAME: &str = "pio-wal";
const KIND: u8 = 1;

/// What stands in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum LogRecord {
    /// An operation, which counts at once (transaction 0), or when its transaction has committed.
    Redo { transaction: u64, sequence: u64, key: Key, value: u64, op: u8 },
    /// A batch update of all that waited for some ranges of keys (first and last of each), up to a sequence number; where
    /// the tree stood before it.
    FlushStart { flush: u32, ranges: Vec<(Key, Key)>, sequence_max: u64, before: Standing },
    /// An inner node as it stood.
    UndoInner { id: u64, level: u8, fences: Vec<Key>, children: Vec<u64> },
    /// A segment that is appended to: its first `count` entries stay where they are, so they need no copy. What it added up
    /// to then.
    UndoAppend { leaf: u64, number: usize, version: u32, sequence: u64, count: usize, crc: u32 },
    /// A segment as it stood.
    UndoSegment { leaf: u64, number: usize, version: u32, sequence: u64, entries: Vec<(Key, u64, u8)> },
    /// A segment that did not count.
    UndoUnused { leaf: u64, number: usize },
    /// The batch update is done.
    FlushEnd { flush: u32, after: Standing },
    /// All operations of a transaction count.
    Commit { transaction: u64 },
    /// None does.
    Abort { transaction: u64 },
}

/// Whether a tree was written with a log: bits of the superblock's word above those of the last batch update's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// By an older version: then a log that is not there is an empty one.
    NotTold = 0,
    WithoutLog = 1,
    WithLog = 2,
}

impl Written {
    /// The word of a tree whose last batch update has this number.
    pub fn encode(mode: LogMode, flush: u32) -> u64 {
        let written = if mode == LogMode::Off { Self::WithoutLog } else { Self::WithLog };
        (written as u64) << u32::BITS | u64::from(flush)
    }

    /// The number, and how the tree was written.
    pub fn decode(word: u64) -> Result<(u32, Self)> {
        let written = match word >> u32::BITS {
            0 => Self::NotTold,
            1 => Self::WithoutLog,
            2 => Self::WithLog,
            _ => {
                let expected = "less than 3 * 2^32";
                return Err(Error::corrupt(INNER, 0, "number of the last batch update", expected, word));
            }
        };
        Ok((word as u32, written))
    }
}

/// See the module. In mode `Off` it does nothing.
pub(super) struct FlushLog {
    wal: Option<Wal>,
    mode: LogMode,
    generation: u64,
}

/// Takes an entry for the log.
fn plain(entry: &Entry) -> (Key, u64, u8) {
    (entry.key, entry.value, entry.op as u8)
}

/// Takes an entry from the log.
pub(super) fn entry(key: Key, value: u64, op: u8) -> Result<Entry> {
    let op = Op::of(op).ok_or_else(|| Error::corrupt(NAME, 0, "operation in the log", "i, d or u", op))?;
    Ok(Entry { key, value, op })
}

impl FlushLog {
    pub fn create(volume: &Arc<dyn Volume>, mode: LogMode, generation: u64) -> Result<Self> {
        let wal = match mode {
            LogMode::Off => None,
            _ => Some(Wal::create(Arc::clone(volume), NAME, generation)?),
        };
        Ok(Self { wal, mode, generation })
    }

    /// Logs nothing: for the time of recovery, which ends with a checkpoint.
    pub fn none(generation: u64) -> Self {
        Self { wal: None, mode: LogMode::Off, generation }
    }

    /// Removes a generation. That it is still there is no error.
    pub fn remove(volume: &Arc<dyn Volume>, generation: u64) -> Result<()> {
        match volume.remove(&wal::file_name(NAME, generation)) {
            Ok(()) | Err(psync::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// All that is in a generation. The tree need not go on with the log that it was written with.
    pub fn read(volume: &dyn Volume, written: Written, generation: u64) -> Result<Vec<LogRecord>> {
        let records = match (written, wal::read(volume, NAME, generation)) {
            // A file of this name was begun by a checkpoint that power loss cut off.
            (Written::WithoutLog, _) => Vec::new(),
            (Written::NotTold, Err(Error::Device(psync::Error::NotFound { .. }))) => Vec::new(),
            (_, records) => records?,
        };
        let decode = |record: wal::Record| {
            postcard::from_bytes(&record.payload)
                .map_err(|error| Error::corrupt(NAME, 0, "a record of the log", "a whole record", error))
        };
        records.into_iter().map(decode).collect()
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn len(&self) -> u64 {
        self.wal.as_ref().map_or(0, Wal::len)
    }

    fn add(&mut self, record: &LogRecord) {
        if let Some(wal) = &mut self.wal {
            // Nothing in a record can fail to be encoded; a record that is missing would be an invariant broken.
            match postcard::to_allocvec(record) {
                Ok(bytes) => wal.append(KIND, &bytes),
                Err(error) => debug_assert!(false, "{record:?}: {error}"),
            }
        }
    }

    pub fn sync(&mut self) -> Result<()> {
        self.wal.as_mut().map_or(Ok(()), Wal::sync)
    }

    /// Logs an operation, as durably as the mode says: one of a transaction is synced with its commit.
    pub fn redo(&mut self, queued: &Queued) -> Result<()> {
        self.redo_later(queued);
        if queued.transaction == COMMITTED { self.settle() } else { Ok(()) }
    }

    /// Logs an operation that will be synced with others.
    pub fn redo_later(&mut self, queued: &Queued) {
        let (key, value, op) = plain(&queued.entry);
        let (transaction, sequence) = (queued.transaction, queued.sequence);
        self.add(&LogRecord::Redo { transaction, sequence, key, value, op });
    }

    /// Logs that a transaction has committed, as durably as the mode says.
    pub fn commit(&mut self, transaction: u64) -> Result<()> {
        self.add(&LogRecord::Commit { transaction });
        self.settle()
    }

    /// Logs that a transaction was aborted. One without any such record did not commit either.
    pub fn abort(&mut self, transaction: u64) {
        self.add(&LogRecord::Abort { transaction });
    }

    fn settle(&mut self) -> Result<()> {
        if self.mode == LogMode::Each { self.sync() } else { Ok(()) }
    }

    pub fn flush_start(&mut self, flush: u32, group: &Group, before: Standing) -> Result<()> {
        let ranges = group.ranges.iter().map(|range| (*range.start(), *range.end())).collect();
        let sequence_max = group.sequence_max;
        self.add(&LogRecord::FlushStart { flush, ranges, sequence_max, before });
        self.sync()
    }

    pub fn flush_end(&mut self, flush: u32, after: Standing) -> Result<()> {
        self.add(&LogRecord::FlushEnd { flush, after });
        self.sync()
    }
}

/// The checksum of a segment's page.
pub(super) fn page_crc(segment: &Segment, page_len: usize) -> u32 {
    let mut page = vec![0; page_len];
    segment.encode(&mut page);
    u32::from_le_bytes([page[28], page[29], page[30], page[31]])
}

impl Undo for FlushLog {
    fn inner(&mut self, id: NodeId, old: &Node) {
        if let Node::Inner(inner) = old {
            self.add(&LogRecord::UndoInner {
                id: id.0,
                level: inner.level,
                fences: inner.fences.clone(),
                children: inner.children.iter().map(|child| child.0).collect(),
            });
        }
    }

    fn append(&mut self, old: &Segment, page_len: usize) {
        if self.wal.is_some() {
            self.add(&LogRecord::UndoAppend {
                leaf: old.leaf.0,
                number: old.number,
                version: old.version,
                sequence: old.sequence,
                count: old.entries.len(),
                crc: page_crc(old, page_len),
            });
        }
    }

    fn segment(&mut self, old: &Segment) {
        self.add(&LogRecord::UndoSegment {
            leaf: old.leaf.0,
            number: old.number,
            version: old.version,
            sequence: old.sequence,
            entries: old.entries.iter().map(plain).collect(),
        });
    }

    fn unused(&mut self, leaf: NodeId, number: usize) {
        self.add(&LogRecord::UndoUnused { leaf: leaf.0, number });
    }

    fn barrier(&mut self) -> Result<()> {
        self.sync()
    }
}
