//! The log writer. Records gather in memory ([`pending`](super::pending)), reach the page cache by one write or
//! through a window ([`mmap_appender`](super::mmap_appender)), and are durable after a sync. [`tail_space`](super::tail_space) makes
//! room for them beforehand; [`rotation`](super::rotation) decides which file they go to.
//!
//! Invariants (with those of [`super`]):
//! 1. Between calls, the current generation's file is valid up to `current.len`, and the next write begins
//!    there.
//! 2. Everything claimed to be durable was covered by a successful sync, in older generations as well; or its
//!    generation was removed, since the manifest durably says that it is not needed.
//! 3. `write` and `store` are all or nothing: if there is no space, everything stays pending and the file is as
//!    it was.
//! 4. Whatever lies behind `current.len` in its file is reserved (see [`zeroing`](super::zeroing)):
//!    zeros that are not needed.
//! 5. A sync is trusted only if it succeeded. A sync that failed for lack of space is a failed sync, not
//!    [`Error::DiskFull`], since its pages may be lost.

use super::closed_syncs::ClosedSyncs;
use super::generation::{Generation, create_file, next_generation};
use super::log_files::list;
use super::mmap_appender::{MmapAppender, Sizes};
use super::pending::{Heading, Pending};
use super::record::{BODY_LEN_MAX, Flaw, HEAD_LEN, HEADER_LEN, Header, Lsn, TIME_LEN};
use super::rewrite::rewrite_unsynced;
use super::times::Times;
use super::zeroing::Steps;
use super::{Tail, file_name};
use crate::clock::Clock;
use crate::database_id::DatabaseId;
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::operation::SeqNo;
use psync::{Access, AlignedBuffer, Read, Volume, Write};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The LSN below which everything is durable.
pub(super) fn durable(older: &[Generation], current: &Generation) -> Lsn {
    let oldest = older.iter().find(|old| !old.is_synced()).unwrap_or(current);
    oldest.base.plus(oldest.synced)
}

/// Writes the log. Used by one thread at a time.
pub(crate) struct WalWriter {
    pub(super) volume: Arc<dyn Volume>,
    pub(super) database: DatabaseId,
    pub(super) current: Generation,
    /// Older generations of this writer that are still needed, oldest first. They stay open, since a thread
    /// that got one from [`WalWriter::unsynced`] may be syncing it.
    pub(super) older: Vec<Generation>,
    /// Generations whose files exist.
    pub(super) on_disk: BTreeSet<u64>,
    /// Number of threads that read files back without holding the log, so that none may be removed.
    pub(super) readers: usize,
    pub(super) pending: Pending,
    /// Set if records are to have times.
    times: Option<Times>,
    pub(super) epoch: u32,
    pub(super) steps: Steps,
    /// The window at the end of the current generation.
    pub(super) stored: MmapAppender,
    /// Never modified, so the operating system backs it with a single page.
    pub(super) zeros: AlignedBuffer,
    pub(super) bytes_written: u64,
    pub(super) syncs: u64,
    pub(super) old_syncs: Arc<ClosedSyncs>,
    /// The first failure. After it, it is unknown what reached the disk.
    pub(super) failure: Option<String>,
}

impl WalWriter {
    /// Starts the first generation of a new database, or the next one after recovery. First makes durable what
    /// `after` describes.
    pub fn create(volume: Arc<dyn Volume>, database: DatabaseId, after: &Tail) -> Result<Self> {
        let mut syncs = rewrite_unsynced(&*volume, database, &mut after.clone())?;
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

    /// Continues the last generation after recovery, if its file holds only the header and reserved space;
    /// otherwise `None`.
    pub fn resume(volume: Arc<dyn Volume>, database: DatabaseId, tail: &Tail) -> Result<Option<Self>> {
        let empty = HEADER_LEN as u64;
        let is_empty = tail.ends_in == tail.generation && tail.len == empty && tail.truncated.is_none();
        if tail.generation == 0 || !is_empty {
            return Ok(None);
        }
        // The copy ends with the header. Nothing that the medium may hold behind it comes back.
        let syncs = rewrite_unsynced(&*volume, database, &mut tail.clone())?;
        let file = volume.open(&file_name(tail.generation), Access { write: true, ..Access::default() })?;
        let found = volume.len(file);
        if !found.as_ref().is_ok_and(|len| *len == empty) {
            let _ = volume.close(file);
            return Ok(found.map(|_| None)?);
        }
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
            readers: 0,
            pending: Pending::none(after.next_seq),
            times: None,
            epoch: after.epoch,
            steps: Steps::USUAL,
            stored: MmapAppender::none(Sizes::USUAL),
            zeros: AlignedBuffer::new(0),
            bytes_written: 0,
            syncs: 0,
            old_syncs: Arc::default(),
            failure: None,
        })
    }

    /// From now on records are encrypted.
    pub fn encrypted(mut self, encryption: &Encryption) -> Self {
        self.pending.encrypt(encryption.clone());
        self
    }

    /// The current generation.
    pub fn generation(&self) -> u64 {
        self.current.number
    }

    /// Whether the current generation has no records, and none are pending.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.current.len == HEADER_LEN as u64
    }

    /// Appends a record to the pending ones. It takes `count` sequence numbers (at least 1) from `first_seq`
    /// on.
    ///
    /// # Panics
    /// If the sequence numbers do not continue those of the previous record, or if the body is longer than
    /// [`BODY_LEN_MAX`](super::record::BODY_LEN_MAX): recovery would treat everything from here on as torn.
    pub fn append(&mut self, first_seq: SeqNo, count: u32, body: &[u8]) {
        let time = match &mut self.times {
            // The longest batch has no room for it.
            Some(times) if body.len() <= BODY_LEN_MAX - TIME_LEN => times.next(),
            _ => None,
        };
        self.pending.append(first_seq, count, time, body);
    }

    /// From now on a record has the time every second.
    pub fn tell_times(&mut self, clock: Arc<Clock>) {
        self.times = Some(Times::of(clock));
    }

    /// Bytes pending in memory.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Drops the last `n` pending records (all of them, if there are fewer), because their commits were
    /// refused. Their sequence numbers are reused.
    pub fn retract(&mut self, n: usize) {
        self.pending.retract(n);
        if let Some(times) = &mut self.times {
            times.forget();
        }
    }

    /// Brings the pending records to the page cache: through a window ([`mmap_appender`](super::mmap_appender)) if they are
    /// small and there is one, otherwise by a write.
    ///
    /// # Errors
    /// As [`WalWriter::write`].
    pub fn store(&mut self) -> Result<()> {
        self.usable()?;
        if !self.pending.is_empty() {
            self.make_window()?;
        }
        self.put(true)
    }

    /// Writes the pending records to the page cache.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: everything stays pending, and nothing of it is in the log, not even after a crash.
    /// Other errors: it is unknown what reached the log, and every later call returns [`Error::Poisoned`].
    pub fn write(&mut self) -> Result<()> {
        self.put(false)
    }

    fn put(&mut self, may_store: bool) -> Result<()> {
        self.usable()?;
        if self.pending.is_empty() {
            return Ok(());
        }
        let Self { volume, stored, bytes_written, .. } = self;
        let file = self.current.file;
        let heading = Heading {
            database: self.database,
            generation: self.current.number,
            epoch: self.epoch,
            durable: durable(&self.older, &self.current),
        };
        let mut written = 0;
        let result = self.pending.encode(&heading, self.current.len, |offset, data| {
            // Stored bytes were counted when the zeros were written.
            if !(may_store && stored.store(offset, data)?) {
                volume.write(&[Write { file, offset, data }])?;
                written += data.len() as u64;
            }
            psync::Result::Ok(())
        });
        match result {
            Ok(end) => {
                *bytes_written += written;
                self.current.len = end;
                self.pending.clear();
                Ok(())
            }
            Err(full) if full.is_full() => {
                self.rewind()?;
                Err(full.into())
            }
            Err(other) => Err(self.fail(other.into())),
        }
    }

    /// Undoes a write that failed for lack of space: cuts it off durably, so that no crash brings it back. The
    /// new epoch prevents what is left of it from connecting to anything written later. If the file system has
    /// the space neither for cutting nor for blanking (as a full one that copies on write), nothing is to be undone if the
    /// first head was not written; otherwise it is undecided whether the write comes back: a failure.
    fn rewind(&mut self) -> Result<()> {
        let Some(epoch) = self.epoch.checked_add(1) else {
            let flaw = Flaw::new("the writer's epoch", "less than 2^32 - 1", self.epoch);
            return Err(self.fail(flaw.at(file_name(self.current.number), self.current.len)));
        };
        self.epoch = epoch;
        let (file, len) = (self.current.file, self.current.len);
        self.stored.close();
        if self.volume.len(file).is_ok_and(|found| found <= len) {
            self.current.reserved.cut();
            return Ok(());
        }
        if self.volume.resize(file, len).is_ok() {
            self.current.reserved.cut();
        } else {
            // Without its first head the rest is unreachable as well.
            if !self.may_have_head() {
                return Ok(());
            }
            self.current.reserved.cut();
            let blank = [0; HEAD_LEN];
            if let Err(error) = self.volume.write(&[Write { file, offset: len, data: &blank }]) {
                return Err(self.fail(Error::undecided(error)));
            }
        }
        self.sync_current()
    }

    /// Whether a record may begin behind the end of the log.
    fn may_have_head(&self) -> bool {
        let (file, offset) = (self.current.file, self.current.len);
        let found = self.volume.len(file).map(|len| len.saturating_sub(offset).min(HEAD_LEN as u64));
        let Ok(found) = found else { return true };
        let mut head = [0; HEAD_LEN];
        let buffer = &mut head[..found as usize];
        let is_read = self.volume.read(&mut [Read { file, offset, buffer }]).is_ok();
        !is_read || head != [0; HEAD_LEN]
    }

    /// Makes the current generation durable.
    pub(super) fn sync_current(&mut self) -> Result<()> {
        let begins = self.current.unsynced_header.is_some();
        let result = self.old_syncs.sync_newest(&*self.volume, self.current.file, begins);
        result.map_err(|error| self.fail(error))?;
        self.current.has_begun();
        self.current.synced = self.current.len;
        self.stored.synced();
        Ok(())
    }

    /// Writes what is pending, and makes everything durable.
    ///
    /// # Errors
    /// As [`WalWriter::write`].
    pub fn sync(&mut self) -> Result<()> {
        self.write()?;
        // Oldest first, so that a power loss in between drops the least.
        let mut result = Ok(());
        for old in self.older.iter_mut().filter(|old| !old.is_synced()) {
            result = result.and_then(|()| self.old_syncs.sync(&*self.volume, old.number, old.file));
            if result.is_ok() {
                old.synced = old.len;
            }
        }
        result.map_err(|error| self.fail(error))?;
        if self.current.is_synced() { Ok(()) } else { self.sync_current() }
    }

    /// Like [`WalWriter::sync`], and cuts off the zeros behind the records, so that a database at rest is small.
    ///
    /// # Errors
    /// As [`WalWriter::write`].
    pub fn sync_for_rest(&mut self) -> Result<()> {
        self.write()?;
        if !self.current.reserved.is_beyond(self.current.len) {
            return self.sync();
        }
        self.current.reserved.cut();
        self.cut(self.current.file, self.current.len)?;
        let was_synced = self.current.is_synced();
        self.sync()?;
        if was_synced { self.sync_current() } else { Ok(()) }
    }

    /// Bytes written to log files by this writer, not counting failed attempts.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// Number of syncs of log files and, for new ones, of the directory.
    pub fn syncs(&self) -> u64 {
        self.syncs + self.old_syncs.made()
    }

    #[cfg(test)]
    pub fn set_steps_for_test(&mut self, steps: Steps) {
        self.steps = steps;
    }

    #[cfg(test)]
    pub fn set_windows_for_test(&mut self, sizes: Sizes) {
        self.stored = MmapAppender::none(sizes);
    }

    /// Stores so far.
    #[cfg(test)]
    pub fn stores(&self) -> u64 {
        self.stored.stores
    }

    pub(super) fn usable(&self) -> Result<()> {
        match &self.failure {
            Some(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    pub(super) fn fail(&mut self, error: Error) -> Error {
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
