//! Writes the log. Used by one thread at a time: the leader of a group of commits.
//!
//! ```text
//! append ──▶ pending ──write──▶ page cache ──sync──▶ durable
//!               ▲                  │ disk full: nothing was written; retract what is refused
//!               └──────────────────┘
//! ```
//!
//! Invariants:
//! 1. Records lie behind each other without gap, in the order of their sequence numbers.
//! 2. What is left in the file of a write that failed never becomes part of the log: the next write has a higher
//!    epoch, and epochs never go down.
//! 3. `durable` claims only what a sync that succeeded has covered, older generations included.

use crate::bytecode::Reader;
use crate::database_id::DatabaseId;
use crate::error::{Error, Result};
use crate::operation::SeqNo;
use crate::wal::reader::{self, Tail};
use crate::wal::record::{FILE_HEADER, Header, Lsn, Place, file_name};
use bytes::Bytes;
use psync::{Access, FileId, Volume, Write};
use std::sync::Arc;

/// A generation that is written, or waits for its sync.
struct File {
    generation: u64,
    id: FileId,
    base: Lsn,
    len: u64,
    /// Bytes of it that are durable.
    synced: u64,
}

struct Pending {
    first_seq: SeqNo,
    count: u32,
    body: Bytes,
}

/// See the module.
pub(crate) struct WalWriter {
    volume: Arc<dyn Volume>,
    database: DatabaseId,
    current: File,
    /// Generations that are still needed, oldest first.
    older: Vec<File>,
    /// Generations on disk from before this writer, oldest first; all durable.
    inherited: Vec<u64>,
    pending: Vec<Pending>,
    pending_bytes: usize,
    epoch: u32,
    next_seq: SeqNo,
    encoded: Vec<u8>,
    bytes_written: u64,
    syncs: u64,
}

/// Longest single write.
const WRITE_MAX: usize = 8 << 20;

impl WalWriter {
    /// Begins the generation after `tail`, which must be durable.
    pub fn create(volume: Arc<dyn Volume>, database: DatabaseId, tail: &Tail) -> Result<Self> {
        let header = Header {
            database,
            generation: tail.generation + 1,
            base: tail.end,
            previous_len: tail.len,
            durable: tail.end,
            first_seq: tail.next_seq,
        };
        let current = create_file(&*volume, &header)?;
        let inherited =
            reader::list(&*volume)?.into_iter().filter(|found| *found < header.generation).collect();
        Ok(Self::with(volume, database, current, inherited, tail.next_seq))
    }

    /// Goes on with the last generation if there is nothing in it but its header. All of the log must be durable.
    pub fn resume(volume: Arc<dyn Volume>, database: DatabaseId, tail: &Tail) -> Result<Option<Self>> {
        let generations = reader::list(&*volume)?;
        if tail.len != FILE_HEADER as u64 || generations.last() != Some(&tail.generation) {
            return Ok(None);
        }
        let id = volume.open(&file_name(tail.generation), Access { write: true, ..Access::default() })?;
        if volume.len(id)? != tail.len {
            volume.close(id)?;
            return Ok(None);
        }
        let base = tail.end - tail.len;
        let current = File { generation: tail.generation, id, base, len: tail.len, synced: 0 };
        let inherited = generations.into_iter().filter(|found| *found < tail.generation).collect();
        let mut wal = Self::with(volume, database, current, inherited, tail.next_seq);
        wal.sync_current()?;
        Ok(Some(wal))
    }

    fn with(
        volume: Arc<dyn Volume>,
        database: DatabaseId,
        current: File,
        inherited: Vec<u64>,
        next_seq: SeqNo,
    ) -> Self {
        Self {
            volume,
            database,
            current,
            older: Vec::new(),
            inherited,
            pending: Vec::new(),
            pending_bytes: 0,
            epoch: 1,
            next_seq,
            encoded: Vec::new(),
            bytes_written: 0,
            syncs: 0,
        }
    }

    pub fn generation(&self) -> u64 {
        self.current.generation
    }

    /// Whether the current generation holds nothing.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.current.len == FILE_HEADER as u64
    }

    /// Adds a record to what is to be written.
    pub fn append(&mut self, first_seq: SeqNo, count: u32, body: Bytes) {
        self.pending_bytes += body.len();
        self.pending.push(Pending { first_seq, count, body });
    }

    /// Bytes that wait to be written.
    pub fn pending(&self) -> usize {
        self.pending_bytes
    }

    /// Takes back the last `count` records, which must still be pending.
    pub fn retract(&mut self, count: usize) {
        let keep = self.pending.len().saturating_sub(count);
        for refused in self.pending.drain(keep..) {
            self.pending_bytes -= refused.body.len();
        }
    }

    /// LSN below which all is durable.
    fn durable(&self) -> Lsn {
        let oldest = self.older.iter().find(|file| file.synced < file.len).unwrap_or(&self.current);
        oldest.base + oldest.synced
    }

    /// Gives what is pending to the operating system. On `DiskFull` all of it is still pending.
    pub fn write(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.clear();
        let durable = self.durable();
        let start = self.current.len;
        for record in &self.pending {
            let place = Place {
                database: self.database,
                generation: self.current.generation,
                offset: start + encoded.len() as u64,
            };
            place.encode(&mut encoded, self.epoch, durable, record.first_seq, record.count, &record.body);
        }
        let set: Vec<_> = encoded
            .chunks(WRITE_MAX)
            .enumerate()
            .map(|(index, data)| Write {
                file: self.current.id,
                offset: start + (index * WRITE_MAX) as u64,
                data,
            })
            .collect();
        let result = self.volume.write(&set);
        let len = encoded.len() as u64;
        // A buffer for one giant batch is not kept.
        if encoded.capacity() <= 2 * WRITE_MAX {
            self.encoded = encoded;
        }
        if let Err(error) = result {
            self.epoch += 1;
            if error.is_full() {
                // Whoever is told that the disk is full may believe that nothing happened, also after a power loss.
                self.volume.resize(self.current.id, start).map_err(Error::undecided)?;
                self.volume.sync(self.current.id).map_err(Error::undecided)?;
                self.current.synced = start;
            }
            return Err(error.into());
        }
        self.current.len += len;
        self.bytes_written += len;
        if let Some(last) = self.pending.last() {
            self.next_seq = last.first_seq + SeqNo::from(last.count);
        }
        self.pending.clear();
        self.pending_bytes = 0;
        Ok(())
    }

    /// Writes what is pending and makes everything durable.
    pub fn sync(&mut self) -> Result<()> {
        self.write()?;
        for file in &mut self.older {
            if file.synced < file.len {
                self.volume.sync(file.id).map_err(Error::undecided)?;
                self.syncs += 1;
                file.synced = file.len;
            }
        }
        if self.current.synced < self.current.len {
            self.sync_current()?;
        }
        Ok(())
    }

    /// Older generations that are not durable yet, with the length up to which a sync by [`Self::mark_synced`]'s caller
    /// would cover them: a flush must not make durable what the log may still lose, and it need not keep commits
    /// waiting for that sync.
    pub fn unsynced(&self) -> Vec<(u64, FileId)> {
        let unsynced = self.older.iter().filter(|file| file.synced < file.len);
        unsynced.map(|file| (file.generation, file.id)).collect()
    }

    /// Notes that an older generation was synced.
    pub fn mark_synced(&mut self, generation: u64) {
        if let Some(file) = self.older.iter_mut().find(|file| file.generation == generation) {
            file.synced = file.len;
            self.syncs += 1;
        }
    }

    fn sync_current(&mut self) -> Result<()> {
        self.volume.sync(self.current.id).map_err(Error::undecided)?;
        self.syncs += 1;
        self.current.synced = self.current.len;
        Ok(())
    }

    /// Writes what is pending, and begins the next generation.
    pub fn rotate(&mut self) -> Result<()> {
        self.write()?;
        let header = Header {
            database: self.database,
            generation: self.current.generation + 1,
            base: self.current.base + self.current.len,
            previous_len: self.current.len,
            durable: self.durable(),
            first_seq: self.next_seq,
        };
        let next = create_file(&*self.volume, &header)?;
        self.bytes_written += FILE_HEADER as u64;
        self.older.push(std::mem::replace(&mut self.current, next));
        Ok(())
    }

    /// Removes the generations below `low`, whose operations are in the trees.
    pub fn remove_below(&mut self, low: u64) -> Result<()> {
        let mut first_error = Ok(());
        let mut keep = |result: psync::Result<()>| {
            if first_error.is_ok() {
                first_error = result;
            }
        };
        let mut outdated: Vec<u64> =
            self.inherited.iter().copied().filter(|generation| *generation < low).collect();
        self.inherited.retain(|generation| *generation >= low);
        while self.older.first().is_some_and(|file| file.generation < low) {
            let file = self.older.remove(0);
            keep(self.volume.close(file.id));
            outdated.push(file.generation);
        }
        for generation in outdated {
            match self.volume.remove(&file_name(generation)) {
                Err(psync::Error::NotFound { .. }) => {}
                other => keep(other),
            }
        }
        Ok(first_error?)
    }

    /// Reads back everything that was written from generation `low` on and verifies it. Returns how many records there
    /// are.
    pub fn verify(&self, low: u64) -> Result<u64> {
        let mut records = 0;
        let tail = reader::replay(&*self.volume, self.database, low, self.current.generation, &mut |_| {
            records += 1;
            Ok(())
        })?;
        if tail.generation != self.current.generation || tail.len != self.current.len {
            return Err(Error::corrupt(
                file_name(tail.generation),
                tail.len,
                "the log ends early",
                format!("{} bytes in {}", self.current.len, file_name(self.current.generation)),
                format!("{} bytes in {}", tail.len, file_name(tail.generation)),
            ));
        }
        Ok(records)
    }

    /// Bytes written since the database was opened.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// Syncs since the database was opened.
    pub fn syncs(&self) -> u64 {
        self.syncs
    }
}

impl Drop for WalWriter {
    fn drop(&mut self) {
        for file in self.older.iter().chain([&self.current]) {
            // Whoever needs it durable has synced it.
            let _ = self.volume.close(file.id);
        }
    }
}

/// Creates a generation's file with a durable header under a durable name.
fn create_file(volume: &dyn Volume, header: &Header) -> Result<File> {
    let name = file_name(header.generation);
    // What an attempt before left here was never part of the log.
    let id = volume.open(&name, Access { write: true, create: true, ..Access::default() })?;
    let written = volume
        .resize(id, 0)
        .and_then(|()| volume.write(&[Write { file: id, offset: 0, data: &header.encode() }]));
    if let Err(error) = written {
        let _ = volume.close(id);
        // A header that came back would say that the generation before ends here, whatever is committed to it from
        // now on.
        volume.remove(&name).and_then(|()| volume.sync_directory()).map_err(Error::undecided)?;
        return Err(error.into());
    }
    if let Err(error) = volume.sync(id).and_then(|()| volume.sync_directory()) {
        let _ = volume.close(id);
        // Also for want of space: a failed sync is not a refusal.
        return Err(Error::undecided(error));
    }
    let len = FILE_HEADER as u64;
    debug_assert_eq!(Reader::new(&header.encode()).remaining() as u64, len, "the header's length");
    Ok(File { generation: header.generation, id, base: header.base, len, synced: len })
}
