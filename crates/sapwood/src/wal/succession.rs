//! How the log's generations follow one another: one ends and the next is written, is begun, and goes when nobody needs it any more.
//!
//! Invariants:
//! 1. Only the current generation may be one that is not begun ([`Generation`]).
//! 2. A generation that is closed is cut back to its length.
//! 3. What others sync or remove without the log in their hands stays open until it is taken from here.

use super::WalWriter;
use super::generation::{Generation, Old, next_generation, write_file};
use super::old_syncs::Unsynced;
use super::record::{HEADER_LEN, Header};
use super::writer::durable;
use crate::error::Result;
use std::sync::Arc;

impl WalWriter {
    /// Makes sure that the current generation is begun: that its header is durable, and its name.
    ///
    /// # Errors
    /// As [`WalWriter::sync`].
    pub fn begin(&mut self) -> Result<()> {
        self.usable()?;
        if self.current.unbegun.is_none() { Ok(()) } else { self.sync_current() }
    }

    /// The same, and the records behind the header are left as they are: nobody was promised them.
    fn begin_header(&mut self) -> Result<()> {
        let Some(header) = self.current.unbegun else { return Ok(()) };
        let begun = self.old_syncs.begin_newest(&*self.volume, self.current.file, &header);
        begun.map_err(|error| self.fail(error))?;
        self.current.has_begun();
        Ok(())
    }

    /// Older generations that are not durable yet, oldest first, for a caller that syncs them itself, without keeping commits
    /// waiting, and then calls [`WalWriter::mark_synced`]. Their files stay open until [`WalWriter::take_below`].
    pub fn unsynced(&self) -> Vec<Unsynced> {
        let unsynced = self.older.iter().filter(|old| !old.is_synced());
        unsynced.map(|old| self.to_be_synced(old, None)).collect()
    }

    fn to_be_synced(&self, generation: &Generation, header: Option<[u8; HEADER_LEN]>) -> Unsynced {
        Unsynced {
            generation: generation.number,
            file: generation.file,
            header,
            syncs: Arc::clone(&self.old_syncs),
            volume: Arc::clone(&self.volume),
        }
    }

    /// This generation, if it is not begun yet, for a caller that sees to it without keeping commits waiting, and then calls
    /// [`WalWriter::mark_begun`].
    pub fn unbegun(&self, generation: u64) -> Option<Unsynced> {
        let header = self.current.unbegun.filter(|_| self.current.number == generation);
        header.map(|header| self.to_be_synced(&self.current, Some(header)))
    }

    /// Notes that somebody else has begun a generation.
    pub fn mark_begun(&mut self, generation: u64) {
        if self.current.number == generation {
            self.current.has_begun();
        }
    }

    /// Bytes that no sync has told of: the operating system keeps them in memory until it has written them.
    pub fn unsynced_bytes(&self) -> u64 {
        self.older.iter().chain([&self.current]).map(|generation| generation.len - generation.synced).sum()
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

    /// Writes what is pending and starts the next generation, without a sync. The old one is synced
    /// with the next [`WalWriter::sync`], unless it is removed before; the new one is begun then, or by [`WalWriter::begin`].
    ///
    /// # Errors
    /// [`DiskFull`](crate::error::Error::DiskFull): the current generation goes on. Others as [`WalWriter::write`].
    pub fn rotate(&mut self) -> Result<()> {
        self.write()?;
        // Only one may be without: behind a sound header all others are to be sound.
        self.begin_header()?;
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
            durable: durable(&self.older, &self.current),
            first_seq: self.pending.next_seq(),
        };
        let file = match write_file(&*self.volume, &header, &mut self.syncs) {
            Ok(file) => file,
            Err(full) if full.is_disk_full() => return Err(full),
            Err(other) => return Err(self.fail(other)),
        };
        self.bytes_written += HEADER_LEN as u64;
        self.on_disk.insert(header.generation);
        let next = Generation::written(&header, file);
        self.older.push(std::mem::replace(&mut self.current, next));
        self.stored.begin();
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
}
