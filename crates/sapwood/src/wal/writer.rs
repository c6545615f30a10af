//! Writing the log: records gather in memory, go to the page cache in one write, and are durable after a sync.
//!
//! Invariants (with those of [`super`]):
//! 1. Between calls the file of the current generation is valid up to `current.len`, and the next write begins there.
//! 2. What is claimed to be durable was covered by a sync that succeeded, in older generations as well; or the generation was removed,
//!    since the manifest says durably that it is not needed.
//! 3. `write` is all or nothing: for want of space everything stays pending and the file is as it was.
//! 4. What lies behind `current.len` in its file is reserved (see [`reservation`](super::reservation)): zeros that nobody
//!    misses. A generation that is closed is cut back to its length.
//! 5. What is synced is only believed if the sync succeeded: a sync that failed for want of space is a failed sync,
//!    not [`Error::DiskFull`], since its pages may be lost.

use super::chain::holds_no_record;
use super::old_syncs::{OldSyncs, Unsynced};
use super::reader::list;
use super::record::{BODY_LEN_MAX, Flaw, HEAD_LEN, HEADER_LEN, Head, Header, Lsn, Place};
use super::reservation::{Reservation, Steps};
use super::settle::settle;
use super::verify::verify;
use super::{Tail, file_name};
use crate::database_id::DatabaseId;
use crate::error::{Error, Result};
use crate::operation::SeqNo;
use bytes::Bytes;
use psync::{Access, AlignedBuffer, FileId, Volume, Write};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A longer write is cut into pieces of about this many bytes.
const WRITE_LEN: usize = 4 << 20;

/// How far the log is written, for [`verify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// The current generation.
    pub generation: u64,
    /// Valid bytes of its file, with the header.
    pub len: u64,
}

/// Writes the log. Used by one thread at a time.
pub(crate) struct WalWriter {
    volume: Arc<dyn Volume>,
    database: DatabaseId,
    current: Generation,
    /// Older generations of this writer that are still needed, oldest first. They stay open, since whoever was told
    /// of one by [`WalWriter::unsynced`] may be syncing it.
    older: Vec<Generation>,
    /// Generations whose files exist.
    on_disk: BTreeSet<u64>,
    pending: Vec<Pending>,
    pending_len: usize,
    /// What the next record's first sequence number must be.
    next_seq: SeqNo,
    epoch: u32,
    scratch: Vec<u8>,
    steps: Steps,
    bytes_written: u64,
    syncs: u64,
    old_syncs: Arc<OldSyncs>,
    /// The first failure: nobody knows what reached the disk.
    failure: Option<String>,
}

struct Generation {
    number: u64,
    file: FileId,
    /// LSN of the file's first byte.
    base: Lsn,
    /// Valid bytes, with the header.
    len: u64,
    /// How many of them are durable.
    synced: u64,
    /// What is reserved behind them.
    reserved: Reservation,
}

impl Generation {
    /// One that has a durable header and nothing else.
    fn begun(number: u64, file: FileId, base: Lsn) -> Self {
        let empty = HEADER_LEN as u64;
        Self { number, file, base, len: empty, synced: empty, reserved: Reservation::none() }
    }

    fn is_synced(&self) -> bool {
        self.synced == self.len
    }

    fn end(&self) -> Lsn {
        self.base.plus(self.len)
    }
}

struct Pending {
    first_seq: SeqNo,
    count: u32,
    body: Bytes,
}

impl Pending {
    fn len(&self) -> usize {
        HEAD_LEN + self.body.len()
    }
}

/// Generations that are not needed any more.
#[must_use]
pub(crate) struct Old {
    open: Vec<FileId>,
    generations: BTreeSet<u64>,
}

impl Old {
    /// Removes their files. Says which are left, and the first error; nothing depends on them.
    pub fn remove(self, volume: &dyn Volume) -> (Vec<u64>, Result<()>) {
        for file in self.open {
            let _ = volume.close(file);
        }
        let (mut left, mut result) = (Vec::new(), Ok(()));
        for generation in self.generations {
            match volume.remove(&file_name(generation)) {
                Ok(()) | Err(psync::Error::NotFound { .. }) => {}
                Err(error) => {
                    left.push(generation);
                    result = result.and(Err(error.into()));
                }
            }
        }
        (left, result)
    }
}

impl WalWriter {
    /// Starts the first generation of a new database, or the next one after recovery. What `after` tells of is made
    /// durable first.
    pub fn create(volume: Arc<dyn Volume>, database: DatabaseId, after: &Tail) -> Result<Self> {
        let mut syncs = settle(&*volume, &mut after.clone())?;
        let header = Header {
            database,
            generation: next_generation(after.generation)?,
            base: after.end,
            previous_generation: after.ends_in,
            previous_len: after.len,
            durable: after.end,
            first_seq: after.next_seq,
        };
        let file = create_file(&*volume, &header, &mut syncs)?;
        if let Some(truncated) = &after.truncated {
            tracing::warn!(
                file = truncated.file,
                offset = truncated.offset,
                dropped = truncated.dropped,
                why = truncated.why,
                records = after.records,
                "the log ended in what a crash cut off"
            );
        }
        let current = Generation::begun(header.generation, file, header.base);
        let mut writer = Self::new(volume, database, current, after)?;
        writer.syncs = syncs;
        writer.bytes_written = HEADER_LEN as u64;
        Ok(writer)
    }

    /// Goes on with the last generation after recovery, if there is nothing in its file but the header, and room that
    /// was reserved; else `None`.
    pub fn resume(volume: Arc<dyn Volume>, database: DatabaseId, tail: &Tail) -> Result<Option<Self>> {
        let empty = HEADER_LEN as u64;
        if tail.generation == 0 || tail.ends_in != tail.generation || tail.len != empty {
            return Ok(None);
        }
        let file = volume.open(&file_name(tail.generation), Access { write: true, ..Access::default() })?;
        let opened = volume.len(file).map_err(Error::from).and_then(|len| {
            if len > empty && tail.truncated.is_some() {
                return Ok(None);
            }
            // What follows is zeros as far as one can read, and nothing else that is on the medium in their place is to
            // come back. Also if there is nothing: the sync of an earlier attempt may have failed.
            volume.resize(file, empty)?;
            let syncs = settle(&*volume, &mut tail.clone())?;
            Ok(Some(syncs))
        });
        let Ok(Some(syncs)) = opened else {
            let _ = volume.close(file);
            return opened.map(|_| None);
        };
        let base = Lsn(tail.end.0.saturating_sub(empty));
        let current = Generation::begun(tail.generation, file, base);
        let mut writer = Self::new(volume, database, current, tail)?;
        writer.syncs = syncs;
        Ok(Some(writer))
    }

    fn new(volume: Arc<dyn Volume>, database: DatabaseId, current: Generation, after: &Tail) -> Result<Self> {
        let on_disk = match list(&*volume) {
            Ok(generations) => generations.into_iter().collect(),
            Err(error) => {
                let _ = volume.close(current.file);
                return Err(error);
            }
        };
        Ok(Self {
            volume,
            database,
            current,
            older: Vec::new(),
            on_disk,
            pending: Vec::new(),
            pending_len: 0,
            next_seq: after.next_seq,
            epoch: after.epoch,
            scratch: Vec::new(),
            steps: Steps::USUAL,
            bytes_written: 0,
            syncs: 0,
            old_syncs: Arc::default(),
            failure: None,
        })
    }

    /// The current generation.
    pub fn generation(&self) -> u64 {
        self.current.number
    }

    /// Whether the current generation holds nothing, and nothing is to be written to it.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.current.len == HEADER_LEN as u64
    }

    /// LSN below which everything is durable.
    fn durable(&self) -> Lsn {
        let oldest = self.older.iter().find(|old| !old.is_synced()).unwrap_or(&self.current);
        oldest.base.plus(oldest.synced)
    }

    /// Adds a record to what is to be written. It takes `count` sequence numbers (at least 1) from `first_seq` on.
    ///
    /// # Panics
    /// If the sequence numbers do not follow on those of the record before, or the body is longer than
    /// [`BODY_LEN_MAX`]: recovery would take everything from here on for torn.
    pub fn append(&mut self, first_seq: SeqNo, count: u32, body: Bytes) {
        assert!(body.len() <= BODY_LEN_MAX, "a record's body of {} bytes", body.len());
        assert!(count > 0, "a record has at least one operation");
        assert_eq!(first_seq, self.next_seq, "sequence numbers follow on");
        let record = Pending { first_seq, count, body };
        self.next_seq = first_seq + SeqNo::from(count);
        self.pending_len += record.len();
        self.pending.push(record);
    }

    /// Bytes waiting in memory.
    pub fn pending(&self) -> usize {
        self.pending_len
    }

    /// Drops the last `n` appended records (all of them, if there are fewer) of those that are still pending: their
    /// commits were refused. Their sequence numbers come next again.
    pub fn retract(&mut self, n: usize) {
        let keep = self.pending.len().saturating_sub(n);
        for record in self.pending.drain(keep..).rev() {
            self.pending_len -= record.len();
            self.next_seq = record.first_seq;
        }
    }

    /// Makes room for what is pending, and for more, if it is to be synced: see [`reservation`](super::reservation).
    /// Where there is no space for it the log does without.
    ///
    /// # Errors
    /// As [`WalWriter::write`], but never [`Error::DiskFull`].
    pub fn reserve(&mut self) -> Result<()> {
        self.usable()?;
        let adds = self.pending_len as u64;
        let end = self.current.len.saturating_add(adds);
        let Some(range) = self.current.reserved.wanted(&self.steps, end, adds) else { return Ok(()) };
        // From the system, which backs what is never written to with one page of zeros.
        let zeros = AlignedBuffer::new((range.end - range.start) as usize);
        let Generation { file, len, .. } = self.current;
        match self.volume.write(&[Write { file, offset: range.start, data: &zeros }]) {
            Ok(()) => {
                self.bytes_written += zeros.len() as u64;
                self.current.reserved.grew(range.end);
                Ok(())
            }
            Err(full) if full.is_full() => {
                self.current.reserved.refuse();
                // Others need the space more. Without space even for this the zeros stay, which does no harm.
                self.cut(file, len)
            }
            Err(other) => Err(self.fail(other.into())),
        }
    }

    /// Cuts off what is behind the end of the log, if the file system has the space to do so.
    fn cut(&mut self, file: FileId, len: u64) -> Result<()> {
        match self.volume.resize(file, len) {
            Err(error) if !error.is_full() => Err(self.fail(error.into())),
            _ => Ok(()),
        }
    }

    /// Writes what is pending to the page cache.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: all of it stays pending, and nothing of it is in the log, not even after a crash. Other
    /// errors: nobody knows what reached the log; every later call answers [`Error::Poisoned`].
    pub fn write(&mut self) -> Result<()> {
        self.usable()?;
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = self.write_pending(&mut scratch);
        scratch.clear();
        scratch.shrink_to(2 * WRITE_LEN);
        self.scratch = scratch;
        match result {
            Ok(end) => {
                self.bytes_written += end - self.current.len;
                self.current.len = end;
                self.pending.clear();
                self.pending_len = 0;
                Ok(())
            }
            Err(full) if full.is_full() => {
                self.rewind()?;
                Err(full.into())
            }
            Err(other) => Err(self.fail(other.into())),
        }
    }

    /// Writes what is pending behind what is written, and tells where it ends.
    fn write_pending(&self, scratch: &mut Vec<u8>) -> psync::Result<u64> {
        let mut at = self.current.len;
        let put = |at: &mut u64, scratch: &mut Vec<u8>| {
            self.volume.write(&[Write { file: self.current.file, offset: *at, data: scratch }])?;
            *at += scratch.len() as u64;
            scratch.clear();
            psync::Result::Ok(())
        };
        scratch.clear();
        let durable = self.durable();
        for record in &self.pending {
            let head = Head {
                len: record.body.len() as u32,
                body_crc: crc32c::crc32c(&record.body),
                count: record.count,
                epoch: self.epoch,
                first_seq: record.first_seq,
                durable,
            };
            let offset = at + scratch.len() as u64;
            let place = Place { database: self.database, generation: self.current.number, offset };
            scratch.extend_from_slice(&head.encode(&place));
            scratch.extend_from_slice(&record.body);
            if scratch.len() >= WRITE_LEN {
                put(&mut at, scratch)?;
            }
        }
        if !scratch.is_empty() {
            put(&mut at, scratch)?;
        }
        Ok(at)
    }

    /// Undoes a write that failed for want of space: cuts it off, durably, so that no crash brings it back. If the
    /// file system has not even the space for that, the new epoch still keeps its remains from following on anything
    /// that is written later.
    fn rewind(&mut self) -> Result<()> {
        let Some(epoch) = self.epoch.checked_add(1) else {
            let flaw = Flaw::new("the writer's epoch", "less than 2^32 - 1", self.epoch);
            return Err(self.fail(flaw.at(file_name(self.current.number), self.current.len)));
        };
        self.epoch = epoch;
        let (file, len) = (self.current.file, self.current.len);
        self.current.reserved.cut();
        if self.volume.resize(file, len).is_err() {
            // Its first head gone, the rest is unreachable as well.
            let blank = [0; HEAD_LEN];
            if let Err(error) = self.volume.write(&[Write { file, offset: len, data: &blank }])
                && !error.is_full()
            {
                return Err(self.fail(error.into()));
            }
        }
        match self.volume.sync(file) {
            Ok(()) => {
                self.syncs += 1;
                self.current.synced = self.current.len;
                Ok(())
            }
            Err(error) => Err(self.fail(Error::undecided(error))),
        }
    }

    /// Writes what is pending and makes everything durable.
    ///
    /// # Errors
    /// As [`WalWriter::write`].
    pub fn sync(&mut self) -> Result<()> {
        self.write()?;
        // Oldest first, so that a power loss in between has the least to drop.
        let mut result = Ok(());
        for old in self.older.iter_mut().filter(|old| !old.is_synced()) {
            result = result.and_then(|()| self.old_syncs.sync(&*self.volume, old.number, old.file));
            if result.is_ok() {
                old.synced = old.len;
            }
        }
        if result.is_ok() && !self.current.is_synced() {
            result = self.volume.sync(self.current.file).map_err(Error::undecided);
            if result.is_ok() {
                self.syncs += 1;
                self.current.synced = self.current.len;
            }
        }
        result.map_err(|error| self.fail(error))
    }

    /// Older generations that are not durable yet, oldest first, for a caller that syncs them itself, without keeping commits
    /// waiting, and then calls [`WalWriter::mark_synced`]. Their files stay open until [`WalWriter::remove_below`].
    pub fn unsynced(&self) -> Vec<Unsynced> {
        let unsynced = self.older.iter().filter(|old| !old.is_synced());
        let syncs = |old: &Generation| Unsynced {
            generation: old.number,
            file: old.file,
            syncs: Arc::clone(&self.old_syncs),
            volume: Arc::clone(&self.volume),
        };
        unsynced.map(syncs).collect()
    }

    /// Whether a generation below `low` was synced while it grew: commits in it were to be durable at once.
    pub fn has_synced_below(&self, low: u64) -> bool {
        self.older.iter().any(|old| old.number < low && old.synced > HEADER_LEN as u64)
    }

    /// Notes that an older generation was synced by somebody else.
    pub fn mark_synced(&mut self, generation: u64) {
        if let Some(old) = self.older.iter_mut().find(|old| old.number == generation) {
            old.synced = old.len;
        }
    }

    /// Writes what is pending and starts the next generation. The old one is synced
    /// with the next [`WalWriter::sync`], unless it is removed before.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: the current generation goes on. Others as [`WalWriter::write`].
    pub fn rotate(&mut self) -> Result<()> {
        self.write()?;
        if self.current.reserved.is_beyond(self.current.len) {
            self.current.reserved.cut();
            self.cut(self.current.file, self.current.len)?;
        }
        let header = Header {
            database: self.database,
            generation: next_generation(self.current.number)?,
            base: self.current.end(),
            previous_generation: self.current.number,
            previous_len: self.current.len,
            durable: self.durable(),
            first_seq: self.next_seq,
        };
        let file = match create_file(&*self.volume, &header, &mut self.syncs) {
            Ok(file) => file,
            Err(full) if full.is_disk_full() => return Err(full),
            Err(other) => return Err(self.fail(other)),
        };
        self.bytes_written += HEADER_LEN as u64;
        self.on_disk.insert(header.generation);
        let next = Generation::begun(header.generation, file, header.base);
        self.older.push(std::mem::replace(&mut self.current, next));
        Ok(())
    }

    /// Removes the generations below `low`, but never the current one: what they hold is in the tree, and the
    /// manifest says so durably.
    ///
    /// # Errors
    /// The first file that could not be removed. It will be tried again with the next call; nothing depends on it.
    #[cfg(test)]
    pub fn remove_below(&mut self, low: u64) -> Result<()> {
        let (left, result) = self.take_below(low).remove(&*self.volume);
        self.put_back(left);
        result
    }

    /// Lets go of all generations below `low`, which the manifest does not need any more; see [`Old::remove`].
    pub fn take_below(&mut self, low: u64) -> Old {
        let low = low.min(self.current.number);
        let open = self.older.extract_if(.., |old| old.number < low).map(|old| old.file).collect();
        let kept = self.on_disk.split_off(&low);
        let generations = std::mem::replace(&mut self.on_disk, kept);
        Old { open, generations }
    }

    /// Takes generations back that could not be removed, for another time.
    pub fn put_back(&mut self, left: Vec<u64>) {
        self.on_disk.extend(left);
    }

    /// Bytes written to log files by this writer, without attempts that failed.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// Syncs of log files and, for new ones, of the directory.
    pub fn syncs(&self) -> u64 {
        self.syncs + self.old_syncs.made()
    }

    /// Reads back and checks everything that was written from generation `low` on, and tells how many records that is.
    ///
    /// # Errors
    /// The damage ([`Error::Damaged`] if there is more than one), or the device's.
    pub fn verify(&self, low: u64) -> Result<u64> {
        let until = Written { generation: self.current.number, len: self.current.len };
        let mut found = verify(&*self.volume, self.database, low, until)?;
        match found.damage.len() {
            0 => Ok(found.records),
            1 => Err(found.damage.remove(0)),
            _ => Err(Error::Damaged { damage: found.damage }),
        }
    }

    #[cfg(test)]
    pub fn set_steps_for_test(&mut self, steps: Steps) {
        self.steps = steps;
    }

    fn usable(&self) -> Result<()> {
        match &self.failure {
            Some(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    fn fail(&mut self, error: Error) -> Error {
        self.failure.get_or_insert_with(|| error.to_string());
        error
    }
}

impl Drop for WalWriter {
    fn drop(&mut self) {
        for old in self.older.iter().chain([&self.current]) {
            let _ = self.volume.close(old.file);
        }
    }
}

fn next_generation(generation: u64) -> Result<u64> {
    generation.checked_add(1).ok_or_else(|| {
        Flaw::new("the log file's generation", "less than 2^64 - 1", generation).at(file_name(generation), 0)
    })
}

/// Creates a generation's file with its header, durably. For want of space it is as if it had never been tried: a
/// header that survived would declare void what is written to the current generation from now on.
fn create_file(volume: &dyn Volume, header: &Header, syncs: &mut u64) -> Result<FileId> {
    let name = file_name(header.generation);
    let access = Access { write: true, create_new: true, ..Access::default() };
    let opened = match volume.open(&name, access) {
        Err(psync::Error::Exists { .. }) => {
            if !holds_no_record(volume, header.database, header.generation)? {
                let flaw =
                    Flaw::new("the log file exists already", "no file, or one without records", "records");
                return Err(flaw.at(name, 0));
            }
            // A power loss came in between when it was created.
            volume.remove(&name)?;
            volume.open(&name, access)
        }
        opened => opened,
    };
    let file = opened?;
    let bytes = header.encode();
    let result = match volume.write(&[Write { file, offset: 0, data: &bytes }]) {
        Ok(()) => volume.sync(file).and_then(|()| volume.sync_directory()).map_err(Error::undecided),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(()) => {
            *syncs += 2;
            Ok(file)
        }
        Err(error) => {
            let _ = volume.close(file);
            if error.is_disk_full() {
                volume.remove(&name).and_then(|()| volume.sync_directory()).map_err(Error::undecided)?;
                *syncs += 1;
            }
            Err(error)
        }
    }
}
