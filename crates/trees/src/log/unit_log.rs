//! A redo log of single updates: blocks that are appended in batches, each batch durable before the next begins, and
//! that begin anew with each generation.
//!
//! ```text
//! block: header of a page (kind 35, id = number of the block, sequence = generation, extra = number of the batch,
//! level = 1 on the last block of a batch), then per update
//! offset size
//!      0    1  0: set, 1: removed
//!      1    8  key
//!      9    8  value
//! ```
//!
//! Invariants:
//! 1. Block `b` stands at `b` × block length; the blocks of the living generation begin at 0 without a gap.
//! 2. A block is written once in its generation, so a torn batch leaves all batches before it whole.
//! 3. A generation is begun only by its owner, who has made durable elsewhere all that the one before holds.

use crate::page::header::{HEADER, Header, Kind, bytes_at, open, seal};
use crate::page::{Change, Key, NodeId};
use crate::{Error, Result};
use psync::{Access, BufferPool, FileId, Read, Volume, Write};
use std::sync::Arc;

const RECORD: usize = 17;
/// Blocks that are read at a time.
const READ_AHEAD: u64 = 64;

/// See the module.
pub(crate) struct UnitLog {
    volume: Arc<dyn Volume>,
    file: FileId,
    name: String,
    block_len: usize,
    buffers: BufferPool,
    generation: u64,
    next_block: u64,
    batch: u32,
    pending: Vec<(Key, Change)>,
    written: u64,
}

const ACCESS: Access = Access { write: true, create: false, create_new: false, direct: true };

impl UnitLog {
    /// Makes the file `name`.
    pub fn create(volume: Arc<dyn Volume>, name: &str, generation: u64) -> Result<Self> {
        let file = volume.open(name, Access { create: true, create_new: true, ..ACCESS })?;
        volume.sync_directory()?;
        Ok(Self::new(volume, file, name, generation))
    }

    /// Opens the file. [`Self::replay`] tells what is in it, and then the owner begins a new generation.
    pub fn open(volume: Arc<dyn Volume>, name: &str, generation: u64) -> Result<Self> {
        let file = volume.open(name, ACCESS)?;
        Ok(Self::new(volume, file, name, generation))
    }

    fn new(volume: Arc<dyn Volume>, file: FileId, name: &str, generation: u64) -> Self {
        let block_len = volume.limits().alignment.max(512);
        Self {
            volume,
            file,
            name: name.to_owned(),
            block_len,
            buffers: BufferPool::new(1 << 20),
            generation,
            next_block: 0,
            batch: 0,
            pending: Vec::new(),
            written: 0,
        }
    }

    /// What the generation's batches hold, in order; of the last one perhaps only the beginning.
    pub fn replay(&self) -> Result<Vec<(Key, Change)>> {
        let blocks = self.volume.len(self.file)? / self.block_len as u64;
        let (mut found, mut ended) = (Vec::new(), false);
        // The batch that a block after the last sound one may belong to, if it was torn.
        let mut batch = 0;
        for first in (0..blocks).step_by(READ_AHEAD as usize) {
            let count = (blocks - first).min(READ_AHEAD);
            let mut buffer = self.buffers.take(count as usize * self.block_len);
            let offset = first * self.block_len as u64;
            self.volume.read(&mut [Read { file: self.file, offset, buffer: &mut buffer }])?;
            for (number, block) in (first..).zip(buffer.chunks(self.block_len)) {
                let offset = number * self.block_len as u64;
                let header = open(block, &self.name, offset, NodeId(number));
                let header = header
                    .ok()
                    .filter(|header| header.kind == Kind::Log && header.sequence == self.generation);
                let Some(header) = header else {
                    ended = true;
                    continue;
                };
                if ended || header.extra != batch {
                    if header.extra > batch {
                        let expected = format!("blocks of batch {batch}, which was durable");
                        let found = format!("a block of batch {} behind them", header.extra);
                        return Err(Error::corrupt(&self.name, offset, "log", expected, found));
                    }
                    ended = true;
                    continue;
                }
                self.decode(block, &header, offset, &mut found)?;
                batch += u32::from(header.level);
            }
        }
        Ok(found)
    }

    fn decode(
        &self,
        block: &[u8],
        header: &Header,
        offset: u64,
        found: &mut Vec<(Key, Change)>,
    ) -> Result<()> {
        let count = usize::from(header.count);
        let wrong = |what: &str, found: usize| Error::corrupt(&self.name, offset, what, "a log block", found);
        if count > self.per_block() || header.level > 1 {
            return Err(wrong("updates of a block", count));
        }
        for record in block[HEADER..].chunks_exact(RECORD).take(count) {
            let [key, value] = [1, 9].map(|at| u64::from_le_bytes(bytes_at(record, at)));
            let change = match record[0] {
                0 => Change::Put(value),
                1 => Change::Remove,
                other => return Err(wrong("kind of an update", usize::from(other))),
            };
            found.push((key, change));
        }
        Ok(())
    }

    fn per_block(&self) -> usize {
        (self.block_len - HEADER) / RECORD
    }

    /// Notes an update, to be durable with the next [`Self::commit`].
    pub fn append(&mut self, key: Key, change: Change) {
        self.pending.push((key, change));
    }

    /// Makes durable what was noted, as one batch.
    pub fn commit(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let per_block = self.per_block();
        let blocks = self.pending.len().div_ceil(per_block);
        let mut buffer = self.buffers.take(blocks * self.block_len);
        buffer.fill(0);
        for (index, (block, records)) in
            buffer.chunks_mut(self.block_len).zip(self.pending.chunks(per_block)).enumerate()
        {
            for (at, (key, change)) in (HEADER..).step_by(RECORD).zip(records) {
                block[at] = u8::from(*change == Change::Remove);
                block[at + 1..at + 9].copy_from_slice(&key.to_le_bytes());
                block[at + 9..at + 17].copy_from_slice(&change.value().unwrap_or(0).to_le_bytes());
            }
            let header = Header {
                kind: Kind::Log,
                level: u8::from(index + 1 == blocks),
                count: records.len() as u16,
                id: NodeId(self.next_block + index as u64),
                sequence: self.generation,
                extra: self.batch,
            };
            seal(block, &header);
        }
        let offset = self.next_block * self.block_len as u64;
        self.volume.write(&[Write { file: self.file, offset, data: &buffer }])?;
        self.volume.sync(self.file)?;
        self.next_block += blocks as u64;
        self.written += blocks as u64;
        self.batch += 1;
        self.pending.clear();
        Ok(())
    }

    /// Begins anew. What was noted is somewhere else by now.
    pub fn restart(&mut self, generation: u64) {
        self.generation = generation;
        self.next_block = 0;
        self.batch = 0;
        self.pending.clear();
    }

    /// Blocks that were written since it was opened.
    pub fn blocks_written(&self) -> u64 {
        self.written
    }

    /// Bytes on the device, and bytes that wait in memory.
    pub fn bytes(&self) -> (u64, u64) {
        (self.next_block * self.block_len as u64, (self.pending.len() * size_of::<(Key, Change)>()) as u64)
    }
}

impl Drop for UnitLog {
    fn drop(&mut self) {
        // What was committed is durable already.
        let _ = self.volume.close(self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use psync::Simulated;

    fn write(log: &mut UnitLog, updates: std::ops::Range<u64>) {
        updates.for_each(|key| log.append(key, if key % 3 == 0 { Change::Remove } else { Change::Put(key) }));
        log.commit().unwrap();
    }

    fn replay(volume: &Simulated, generation: u64) -> Result<Vec<u64>> {
        let found = UnitLog::open(Arc::new(volume.clone()), "log", generation)?.replay()?;
        assert!(found.iter().all(|(key, change)| change.value() == (key % 3 != 0).then_some(*key)));
        Ok(found.into_iter().map(|(key, _)| key).collect())
    }

    #[test]
    fn a_torn_batch_is_the_end_and_damage_is_not() {
        let volume = Simulated::new(1);
        let mut log = UnitLog::create(Arc::new(volume.clone()), "log", 4).unwrap();
        write(&mut log, 0..5);
        // Three blocks of 28.
        write(&mut log, 5..70);
        assert_eq!(replay(&volume, 4).unwrap(), (0..70).collect::<Vec<_>>());
        assert_eq!(replay(&volume, 3).unwrap(), [0; 0]);
        volume.flip_bit("log", 2 * 512 + 100, 1).unwrap();
        assert_eq!(replay(&volume, 4).unwrap(), (0..33).collect::<Vec<_>>(), "the last batch is torn");
        write(&mut log, 70..71);
        assert!(matches!(replay(&volume, 4), Err(Error::Corrupt { .. })), "a batch that was durable is torn");
        log.restart(5);
        write(&mut log, 3..4);
        assert_eq!(replay(&volume, 5).unwrap(), [3], "the old generation is behind it");
    }
}
