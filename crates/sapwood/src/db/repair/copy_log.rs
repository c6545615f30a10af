//! Copies the log up to its first damage, and counts what lies behind that.
//!
//! A log is a history: each commit builds on those before it. So what follows damage is not taken, although most of it can often be
//! read: a database without one commit in the middle is one that never was.
//!
//! Invariants:
//! 1. The new log begins behind what is in the trees, and has no gap.
//! 2. What was merged into a value that is lost, or may be an older one, is not merged into nothing: the record is left out.
//! 3. Memory: one record, and the keys that are left out.

use crate::db::repair::output::New;
use crate::db::repair::plan::recover;
use crate::db::repair::report::{Covered, RepairedLog};
use crate::db::replay::check_record;
use crate::error::{Error, Result};
use crate::operation::{
    KeyRange, KeyspaceId, Operation, Operations, SeqNo, put_insert, put_remove, put_remove_range,
};
use crate::version::Version;
use crate::wal::{self, Generations, Record, Salvage, Tail, WalWriter};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes that are written together, and of a record that is made (1 MiB): enough for a device's full speed, and little memory.
const STEP: usize = 1 << 20;

/// What a repair adds at the end of the log: removals, and records of chunks that no record names.
#[derive(Default)]
pub(super) struct Removals {
    body: Vec<u8>,
    count: u32,
}

/// See the module.
pub(super) struct CopyLog<'a> {
    new: &'a New,
    pub version: &'a mut Version,
    /// Whether the version is the newest one; else the log begins where it begins.
    is_known: bool,
    writer: Option<WalWriter>,
    next: SeqNo,
    pub report: RepairedLog,
    /// Why nothing is taken any more.
    pub damage: Option<Error>,
    /// The last operation that was seen.
    last: SeqNo,
    /// Records that have operands without what they belong to.
    pub without_base: BTreeSet<(KeyspaceId, Vec<u8>)>,
}

impl<'a> CopyLog<'a> {
    pub fn new(new: &'a New, version: &'a mut Version, is_known: bool) -> Self {
        let flushed = version.flushed_seq;
        Self {
            new,
            version,
            is_known,
            writer: None,
            next: flushed + 1,
            report: RepairedLog::default(),
            damage: None,
            last: flushed,
            without_base: BTreeSet::new(),
        }
    }

    /// Takes what was read of the old log.
    pub fn take(&mut self, found: Salvage<'_>, losses: &Covered) -> Result<()> {
        let (Salvage::Next(record) | Salvage::Behind(record)) = found;
        let behind = record.first_seq + u64::from(record.count);
        if behind <= self.next {
            return Ok(());
        }
        self.last = self.last.max(behind - 1);
        if matches!(found, Salvage::Behind(_)) || self.damage.is_some() {
            self.report.left_out += 1;
            self.report.operations_left_out += u64::from(record.count);
            return Ok(());
        }
        if !self.is_known {
            self.learn(record);
        }
        let gap = (record.first_seq != self.next).then(|| {
            let what = "a record of the log does not continue what is before it";
            let expected = format!("sequence number {}", self.next);
            Error::corrupt(wal::file_name(record.generation), 0, what, expected, record.first_seq)
        });
        if let Some(error) = gap.or_else(|| check_record(self.version, record).err()) {
            self.damage = Some(error);
            self.report.left_out += 1;
            self.report.operations_left_out += u64::from(record.count);
            return Ok(());
        }
        self.note_operands(&record.body, losses);
        self.append(record.count, &record.body)?;
        self.report.records += 1;
        self.report.operations += u64::from(record.count);
        Ok(())
    }

    /// The log begins with this record, and knows keyspaces that no manifest tells.
    fn learn(&mut self, record: &Record) {
        if self.writer.is_none() {
            self.next = record.first_seq;
            self.version.flushed_seq = record.first_seq - 1;
        }
        for operation in Operations::new(&record.body).flatten() {
            let id = operation.keyspace();
            if !self.version.trees.contains(&id) && (1..=KeyspaceId::LAST.0).contains(&id.0) {
                recover(self.version, id, None);
            }
        }
    }

    fn note_operands(&mut self, body: &[u8], losses: &Covered) {
        for operation in Operations::new(body).flatten() {
            match operation {
                Operation::Merge(change) if losses.contains(change.keyspace, change.key) => {
                    self.without_base.insert((change.keyspace, change.key.to_vec()));
                }
                Operation::Change(change) if !self.without_base.is_empty() => {
                    self.without_base.remove(&(change.keyspace, change.key.to_vec()));
                }
                _ => {}
            }
        }
    }

    fn append(&mut self, count: u32, body: &[u8]) -> Result<()> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => {
                let begin = Tail { next_seq: self.next, ..Tail::none() };
                let made = WalWriter::create(Arc::clone(&self.new.volume), self.new.database, &begin)?
                    .encrypted(&self.new.encryption);
                self.writer.insert(made)
            }
        };
        writer.append(self.next, count, body);
        self.next += u64::from(count);
        if writer.pending() > STEP { writer.write() } else { Ok(()) }
    }

    /// The old log ends here, perhaps with damage. What it lacks is counted.
    pub fn end(&mut self, damage: Option<Error>) -> Result<()> {
        self.damage = self.damage.take().or(damage);
        let lacking = (self.last + 1).saturating_sub(self.next);
        self.report.operations_unreadable = lacking.saturating_sub(self.report.operations_left_out);
        // Numbers that values in the trees have taken in are not given to other operations.
        let begun = self.version.begun_flushes.last().copied().unwrap_or(0);
        if begun >= self.next {
            let nowhere = KeyspaceId(self.version.last_keyspace.saturating_add(1).min(KeyspaceId::LAST.0));
            self.version.last_keyspace = nowhere.0;
            while self.next <= begun {
                let count = (begun + 1 - self.next).min(STEP as u64 / 16) as u32;
                let mut body = Vec::new();
                (0..count).for_each(|_| put_remove(&mut body, nowhere, &[0]));
                self.append(count, &body)?;
            }
        }
        if self.writer.is_none() {
            let begin = Tail { next_seq: self.next, ..Tail::none() };
            self.writer = Some(
                WalWriter::create(Arc::clone(&self.new.volume), self.new.database, &begin)?
                    .encrypted(&self.new.encryption),
            );
        }
        self.write()
    }

    pub fn write(&mut self) -> Result<()> {
        self.writer.as_mut().map_or(Ok(()), WalWriter::write)
    }

    /// Generations of the new log.
    pub fn generations(&self) -> Generations {
        Generations { low: 1, high: self.writer.as_ref().map_or(0, WalWriter::generation) }
    }

    /// Removes a record at the end of the log.
    pub fn remove(&mut self, removals: &mut Removals, id: KeyspaceId, key: &[u8]) -> Result<()> {
        put_remove(&mut removals.body, id, key);
        removals.count += 1;
        self.flush(removals, STEP)
    }

    /// Removes a range of records at the end of the log.
    pub fn remove_range(&mut self, removals: &mut Removals, range: KeyRange<'_>) -> Result<()> {
        put_remove_range(&mut removals.body, range);
        removals.count += 1;
        self.flush(removals, STEP)
    }

    /// Inserts a record without value at the end of the log.
    pub fn insert(&mut self, removals: &mut Removals, id: KeyspaceId, key: &[u8]) -> Result<()> {
        put_insert(&mut removals.body, id, key, &[]);
        removals.count += 1;
        self.flush(removals, STEP)
    }

    /// Appends removals if they have so many bytes.
    pub fn flush(&mut self, removals: &mut Removals, least: usize) -> Result<()> {
        if removals.count > 0 && removals.body.len() >= least {
            self.append(removals.count, &removals.body)?;
            *removals = Removals::default();
        }
        Ok(())
    }

    /// Makes the log durable. Returns it, and the last operation.
    pub fn finish(mut self) -> Result<(WalWriter, SeqNo)> {
        let last = self.next - 1;
        let Some(mut writer) = self.writer.take() else { return Err(Error::Closed) };
        writer.sync()?;
        if !writer.is_empty() {
            // The next file's header says how far this one reaches.
            writer.rotate()?;
            writer.begin()?;
        }
        Ok((writer, last))
    }
}
