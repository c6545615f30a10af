//! The succession of generations: one ends, the next is written and begun, and each is removed when it is no
//! longer needed.
//!
//! Invariants:
//! 1. Only the current generation may not have begun yet ([`Generation`]).
//! 2. A closed generation keeps the zeros behind its length: cutting them off without a sync is what a file system
//!    without a journal answers, after a power loss, by taking the whole file.
//! 3. Files that other threads sync or remove without holding the log stay open until they are taken from here.

use super::WalWriter;
use super::closed_syncs::{Unsynced, What};
use super::generation::{Generation, Old, next_generation, write_file};
use super::record::{HEADER_LEN, Header};
use super::writer::durable;
use crate::error::Result;
use std::sync::Arc;

impl WalWriter {
    /// Ensures that the current generation is begun: that its header and name are durable.
    ///
    /// # Errors
    /// As [`WalWriter::sync`].
    pub fn begin(&mut self) -> Result<()> {
        self.usable()?;
        if self.current.unsynced_header.is_none() { Ok(()) } else { self.sync_current() }
    }

    /// Like `begin`, but leaves the records behind the header as they are: they were not promised.
    fn begin_header(&mut self) -> Result<()> {
        let Some(header) = self.current.unsynced_header else { return Ok(()) };
        let begun = self.old_syncs.begin_newest(&*self.volume, self.current.file, &header);
        begun.map_err(|error| self.fail(error))?;
        self.current.has_begun();
        Ok(())
    }

    /// Older generations that are not durable yet, oldest first, for a caller that syncs them without blocking
    /// commits, and then calls [`WalWriter::mark_synced`]. Their files stay open until
    /// [`WalWriter::take_below`].
    pub fn unsynced(&self) -> Vec<Unsynced> {
        let unsynced = self.older.iter().filter(|old| !old.is_synced());
        unsynced.map(|old| self.to_be_synced(old, What::All)).collect()
    }

    fn to_be_synced(&self, generation: &Generation, what: What) -> Unsynced {
        Unsynced {
            generation: generation.number,
            file: generation.file,
            what,
            syncs: Arc::clone(&self.old_syncs),
            volume: Arc::clone(&self.volume),
        }
    }

    /// What is written of the current generation, if nothing else is to be synced, for a caller that does so without
    /// blocking commits, and then calls [`WalWriter::synced`]. There must be no other generation before that.
    pub fn unsynced_current(&self) -> Option<Unsynced> {
        let (len, begins) = (self.current.len, self.current.unsynced_header.is_some());
        let is_alone = self.older.iter().all(Generation::is_synced) && self.failure.is_none();
        let is_due = is_alone && !self.current.is_synced() && self.pending.is_empty();
        is_due.then(|| self.to_be_synced(&self.current, What::Written { len, begins }))
    }

    /// Records what has become of it.
    ///
    /// # Errors
    /// As [`WalWriter::sync`].
    pub fn synced(&mut self, unsynced: &Unsynced, result: Result<()>) -> Result<()> {
        result.map_err(|error| self.fail(error))?;
        if let What::Written { len, begins } = unsynced.what
            && unsynced.generation == self.current.number
        {
            if begins {
                self.current.has_begun();
            }
            self.current.synced = self.current.synced.max(len);
            self.stored.synced();
        }
        Ok(())
    }

    /// This generation, if it is the current one and not begun yet, for a caller that begins it without
    /// blocking commits, and then calls [`WalWriter::mark_begun`].
    pub fn unsynced_header(&self, generation: u64) -> Option<Unsynced> {
        let header = self.current.unsynced_header.filter(|_| self.current.number == generation);
        header.map(|header| self.to_be_synced(&self.current, What::Header(header)))
    }

    /// Records that another thread has begun a generation.
    pub fn mark_begun(&mut self, generation: u64) {
        if self.current.number == generation {
            self.current.has_begun();
        }
    }

    /// Bytes of the longest generation that this writer still has, with what is pending.
    pub fn longest(&self) -> u64 {
        let current = self.current.len + self.pending.len() as u64;
        self.older.iter().map(|old| old.len).max().unwrap_or(0).max(current)
    }

    /// Bytes not covered by a sync. The operating system keeps them in memory until it has written them.
    pub fn unsynced_bytes(&self) -> u64 {
        self.older.iter().chain([&self.current]).map(|generation| generation.len - generation.synced).sum()
    }

    /// Whether a generation below `low` was synced while it grew, that is, some commits in it had to be durable
    /// at once.
    pub fn has_synced_below(&self, low: u64) -> bool {
        self.older.iter().any(|old| old.number < low && old.synced > HEADER_LEN as u64)
    }

    /// Records that another thread has synced an older generation.
    pub fn mark_synced(&mut self, generation: u64) {
        if let Some(old) = self.older.iter_mut().find(|old| old.number == generation) {
            old.synced = old.len;
        }
    }

    /// Writes what is pending, and starts the next generation without a sync. The old one is synced with the
    /// next [`WalWriter::sync`], unless it is removed before. The new one is begun then, or by
    /// [`WalWriter::begin`].
    ///
    /// # Errors
    /// [`DiskFull`](crate::error::Error::DiskFull) and [`Exhausted`](crate::error::Error::Exhausted): the current
    /// generation goes on. Others as [`WalWriter::write`].
    pub fn rotate(&mut self) -> Result<()> {
        self.write()?;
        // Only the newest generation may be unbegun: all generations before a sound header must be sound.
        self.begin_header()?;
        let header = Header {
            database: self.database,
            generation: next_generation(self.current.number)?,
            base: self.current.end(),
            previous_generation: self.current.number,
            previous_len: self.current.len,
            durable: durable(&self.older, &self.current),
            first_seq: self.pending.next_seq(),
        };
        let file = match write_file(&*self.volume, &header, &mut self.syncs) {
            Ok(file) => file,
            Err(refused) if refused.is_refusal() => return Err(refused),
            Err(other) => return Err(self.fail(other)),
        };
        self.bytes_written += HEADER_LEN as u64;
        self.on_disk.insert(header.generation);
        let next = Generation::written(&header, file);
        self.older.push(std::mem::replace(&mut self.current, next));
        self.stored.begin();
        Ok(())
    }

    /// Removes the generations below `low`, but never the current one. Their content is in the trees, and the
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

    /// Takes all generations below `low`, which the manifest no longer needs; see [`Old::remove`]. None while
    /// they are being read ([`WalWriter::keep`]).
    pub fn take_below(&mut self, low: u64) -> Old {
        let low = if self.readers > 0 { 0 } else { low.min(self.current.number) };
        let open = self.older.extract_if(.., |old| old.number < low).map(|old| old.file).collect();
        let kept = self.on_disk.split_off(&low);
        let generations = std::mem::replace(&mut self.on_disk, kept);
        Old { open, generations }
    }

    /// Takes back generations that could not be removed, to try again later.
    pub fn put_back(&mut self, left: Vec<u64>) {
        self.on_disk.extend(left);
    }
}
