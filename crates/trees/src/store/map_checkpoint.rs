//! Checkpoints of the mapping table in files of their own.
//!
//! Invariant: the newest durable checkpoint stays until the next one is durable. Should both be lost, a recovery reads all
//! sub-files instead.

use crate::store::mapping_table::Checkpoint;
use crate::store::sub_files::{file_name, numbered};
use crate::{Error, Result};
use psync::{Access, AlignedBuffer, Read, Volume, Write};
use std::sync::Arc;

/// See the module.
pub(crate) struct MapCheckpoints {
    volume: Arc<dyn Volume>,
    prefix: String,
    page_len: usize,
    /// The newest, and what it takes.
    newest: Option<(u32, u64)>,
    /// Numbers up to this one were used.
    last: u32,
}

impl MapCheckpoints {
    pub fn new(volume: Arc<dyn Volume>, name: &str, page_len: usize) -> Self {
        Self { volume, prefix: format!("{name}-map-"), page_len, newest: None, last: 0 }
    }

    /// Writes a checkpoint and removes the one before it. Everything it speaks of must be durable.
    pub fn save(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let number = self.last + 1;
        let bytes = checkpoint.encode(self.page_len);
        let mut data = AlignedBuffer::new(bytes.len());
        data.copy_from_slice(&bytes);
        let access = Access { write: true, create: true, create_new: true, direct: true };
        let file = self.volume.open(&file_name(&self.prefix, number), access)?;
        self.last = number;
        self.volume.write(&[Write { file, offset: 0, data: &data }])?;
        self.volume.sync(file)?;
        self.volume.close(file)?;
        self.volume.sync_directory()?;
        if let Some((old, _)) = self.newest.replace((number, data.len() as u64)) {
            self.volume.remove(&file_name(&self.prefix, old))?;
        }
        Ok(())
    }

    /// Reads the newest whole checkpoint, and removes all others.
    pub fn load(&mut self) -> Result<Option<Checkpoint>> {
        let mut names: Vec<_> = self.volume.list()?;
        names.retain(|entry| numbered(&entry.name, &self.prefix).is_some());
        let mut found = None;
        for entry in names.iter().rev() {
            let number = numbered(&entry.name, &self.prefix).unwrap_or_default();
            self.last = self.last.max(number);
            if found.is_none() {
                match self.read(&entry.name, entry.len) {
                    Ok(checkpoint) => {
                        found = Some(checkpoint);
                        self.newest = Some((number, entry.len));
                        continue;
                    }
                    // Torn: the one before it, or all sub-files, will do.
                    Err(Error::Corrupt { .. } | Error::Device(psync::Error::Short { .. })) => {}
                    Err(error) => return Err(error),
                }
            }
            self.volume.remove(&entry.name)?;
        }
        Ok(found)
    }

    fn read(&self, name: &str, len: u64) -> Result<Checkpoint> {
        // A file that is cut short has no checksum to match.
        let len = (len as usize / self.page_len).max(1) * self.page_len;
        let file = self.volume.open(name, Access { direct: true, ..Access::default() })?;
        let mut data = AlignedBuffer::new(len);
        let read = self.volume.read(&mut [Read { file, offset: 0, buffer: &mut data }]);
        self.volume.close(file)?;
        read?;
        Checkpoint::decode(&data, name, self.page_len)
    }

    /// Forgets all checkpoints, since what follows will not keep to them.
    pub fn clear(&mut self) -> Result<()> {
        self.load()?;
        if let Some((number, _)) = self.newest.take() {
            self.volume.remove(&file_name(&self.prefix, number))?;
        }
        Ok(())
    }

    pub fn space(&self) -> u64 {
        self.newest.map_or(0, |(_, len)| len)
    }
}
