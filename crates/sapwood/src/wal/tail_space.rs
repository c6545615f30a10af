//! Room ahead of the log's end: zeros written ahead of commits ([`zeroing`](super::zeroing)), and a
//! window over them ([`mmap_appender`](super::mmap_appender)).
//!
//! Invariant: if there is no space for it, the log does without. A full disk is never reported from here.

use super::WalWriter;
use super::generation::Generation;
use crate::error::Result;
use psync::{AlignedBuffer, FileId, Write};
use std::ops::Range;

impl WalWriter {
    /// Reserves room for the pending records and for more to come, if they are to be synced: see
    /// [`zeroing`](super::zeroing). If there is no space for it, the log does without.
    ///
    /// # Errors
    /// As [`WalWriter::write`], but never [`DiskFull`](crate::error::Error::DiskFull).
    pub fn reserve(&mut self) -> Result<()> {
        self.usable()?;
        let adds = self.pending.len() as u64;
        let end = self.current.len.saturating_add(adds);
        match self.current.reserved.wanted(&self.steps, end, adds) {
            Some(range) => self.write_zeros(range).map(drop),
            None => Ok(()),
        }
    }

    /// Writes zeros ahead. Returns whether there was space for them; if not, this file does without.
    fn write_zeros(&mut self, range: Range<u64>) -> Result<bool> {
        let count = (range.end - range.start) as usize;
        if self.zeros.len() < count {
            self.zeros = AlignedBuffer::new(count);
        }
        let Generation { file, len, .. } = self.current;
        match self.volume.write(&[Write { file, offset: range.start, data: &self.zeros[..count] }]) {
            Ok(()) => {
                self.bytes_written += count as u64;
                self.current.reserved.grew(range.end);
                Ok(true)
            }
            Err(full) if full.is_full() => {
                self.current.reserved.refuse();
                // Others need the space more. If there is not even space for cutting the file, the zeros stay,
                // which is harmless.
                self.cut(file, len)?;
                Ok(false)
            }
            Err(other) => Err(self.fail(other.into())),
        }
    }

    /// Cuts the file at the end of the log, if the file system has the space to do so.
    pub(super) fn cut(&mut self, file: FileId, len: u64) -> Result<()> {
        self.stored.close();
        match self.volume.resize(file, len) {
            Err(error) if !error.is_full() => Err(self.fail(error.into())),
            _ => Ok(()),
        }
    }

    /// Opens a window for the pending records, if they should have one.
    pub(super) fn make_window(&mut self) -> Result<()> {
        let (at, adds) = (self.current.len, self.pending.len() as u64);
        if self.current.reserved.is_refused() {
            return Ok(());
        }
        let Some(until) = self.stored.wanted(at, adds) else { return Ok(()) };
        if let Some(missing) = self.current.reserved.missing(at, until)
            && !self.write_zeros(missing)?
        {
            return Ok(());
        }
        match self.volume.window(self.current.file, at..until) {
            Ok(window) => self.stored.open(window),
            Err(error) => return Err(self.fail(error.into())),
        }
        Ok(())
    }
}
