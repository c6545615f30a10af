//! Write-behind: a thread of the pool writes the sequential writer's full buffers to the device while the writer fills
//! the next. If no thread is free, the thread that needs a buffer back writes.
//!
//! Invariants:
//! 1. At most [`BUFFERS`] buffers, the writer's own among them; they are written one after the other, in order.
//! 2. A failed write is reported by the next call that needs its buffer back, at the latest by
//!    [`WriteBehind::finish`], after which no write is in flight, whatever that returns.

use crate::error::{Error, Result};
use crate::lock_order::{RankedMutex, rank};
use crate::pool::{Pool, Task};
use psync::{AlignedBuffer, FileId, Volume, Write};
use std::collections::VecDeque;
use std::sync::Arc;

/// Buffers (count). The writer fills one; the others are being written or wait for it, so that the end of a portion waits for
/// little.
pub(crate) const BUFFERS: usize = 4;

const NAME: &str = "a write behind the flush";

/// See the module.
pub(crate) struct WriteBehind {
    target: Target,
    pool: Arc<Pool>,
    to_write: Arc<RankedMutex<rank::WriteBehind, ToWrite>>,
    /// Empties `to_write`.
    drain: Option<Task<()>>,
    /// Buffers handed over and not yet returned.
    away: usize,
    spare: Vec<AlignedBuffer>,
}

/// The file that everything goes to.
#[derive(Clone)]
struct Target {
    volume: Arc<dyn Volume>,
    file: FileId,
}

/// Buffers on their way.
#[derive(Default)]
struct ToWrite {
    full: VecDeque<Full>,
    written: VecDeque<(AlignedBuffer, psync::Result<()>)>,
    /// Whether a task is there that writes what is full.
    is_draining: bool,
}

struct Full {
    buffer: AlignedBuffer,
    filled: usize,
    offset: u64,
}

impl Target {
    /// With one request, which the kernel splits for the device. Several at once are slower if the file has
    /// no blocks yet, since each waits for the others' (research/docs/notebook.md, "One request a buffer").
    fn write(&self, bytes: &[u8], offset: u64) -> psync::Result<()> {
        self.volume.write(&[Write { file: self.file, offset, data: bytes }])
    }

    /// Writes what is full until nothing is.
    fn drain(&self, to_write: &RankedMutex<rank::WriteBehind, ToWrite>) {
        loop {
            let mut locked = to_write.lock();
            let Some(Full { buffer, filled, offset }) = locked.full.pop_front() else {
                locked.is_draining = false;
                return;
            };
            drop(locked);
            let result = self.write(&buffer[..filled], offset);
            to_write.lock().written.push_back((buffer, result));
        }
    }
}

impl WriteBehind {
    pub fn new(volume: Arc<dyn Volume>, file: FileId, pool: Arc<Pool>) -> Self {
        Self::to(Target { volume, file }, pool)
    }

    fn to(target: Target, pool: Arc<Pool>) -> Self {
        Self { target, pool, to_write: Arc::default(), drain: None, away: 0, spare: Vec::new() }
    }

    /// Another one for the same file, with buffers of its own.
    pub fn beside(&self) -> Self {
        Self::to(self.target.clone(), Arc::clone(&self.pool))
    }

    /// Writes the first `filled` bytes of `buffer` to `offset`, now or soon, and puts a buffer of the same
    /// length in its place. An error may be that of an earlier write.
    pub fn write(&mut self, buffer: &mut AlignedBuffer, filled: usize, offset: u64) -> Result<()> {
        if !self.pool.has_threads() {
            return Ok(self.target.write(&buffer[..filled], offset)?);
        }
        let next = self.free_buffer(buffer.len())?;
        let full = Full { buffer: std::mem::replace(buffer, next), filled, offset };
        self.away += 1;
        let mut to_write = self.to_write.lock();
        to_write.full.push_back(full);
        if !std::mem::replace(&mut to_write.is_draining, true) {
            drop(to_write);
            let (target, to_write) = (self.target.clone(), Arc::clone(&self.to_write));
            self.drain = Some(self.pool.submit(NAME, move || {
                target.drain(&to_write);
                Ok(())
            }));
        }
        Ok(())
    }

    /// Frees spare buffers.
    pub fn rest(&mut self) {
        self.spare = Vec::new();
    }

    /// Waits until everything is written.
    pub fn finish(&mut self) -> Result<()> {
        let mut result = Ok(());
        while self.away > 0 {
            result = result.and(self.take_back());
        }
        result
    }

    fn free_buffer(&mut self, len: usize) -> Result<AlignedBuffer> {
        if self.spare.is_empty() && self.away + 1 < BUFFERS {
            return Ok(AlignedBuffer::new(len));
        }
        if self.spare.is_empty() {
            self.take_back()?;
        }
        self.spare.pop().ok_or_else(|| Error::panicked(NAME))
    }

    /// Takes back the buffer that was handed over first. Waits until it is written.
    fn take_back(&mut self) -> Result<()> {
        let mut written = self.to_write.lock().written.pop_front();
        if written.is_none() {
            // The task ends when all is written, so this waits for more than one buffer, but only if none was back.
            self.drain.take().map_or(Ok(()), Task::wait)?;
            written = self.to_write.lock().written.pop_front();
        }
        self.away -= 1;
        let (buffer, result) = written.ok_or_else(|| Error::panicked(NAME))?;
        self.spare.push(buffer);
        Ok(result?)
    }
}
