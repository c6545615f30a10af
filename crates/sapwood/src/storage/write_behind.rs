//! Write-behind: a thread of its own writes the sequential writer's full buffers to the device while the
//! writer fills the next. In foreground mode, where everything happens in one order, a buffer is written at
//! once.
//!
//! Invariants:
//! 1. At most [`BUFFERS`] buffers, the writer's own among them.
//! 2. A failed write is reported by the next call that needs its buffer back, at the latest by
//!    [`WriteBehind::finish`], after which no write is in flight, whatever that returns.

use crate::error::{Error, Result};
use crate::watchdog;
use psync::{AlignedBuffer, FileId, Volume, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// The writer fills one; the others are being written or wait for it, so that the end of a portion waits for
/// little.
pub(crate) const BUFFERS: usize = 4;

const NAME: &str = "sapwood-write";

/// See the module.
pub(crate) struct WriteBehind {
    target: Target,
    in_background: bool,
    thread: Option<Thread>,
}

/// The file that everything goes to.
#[derive(Clone)]
struct Target {
    volume: Arc<dyn Volume>,
    file: FileId,
}

struct Thread {
    jobs: Option<SyncSender<Job>>,
    done: Receiver<Done>,
    handle: Option<JoinHandle<()>>,
    /// Buffers handed to the thread and not yet returned.
    away: usize,
    spare: Vec<AlignedBuffer>,
}

struct Job {
    buffer: AlignedBuffer,
    filled: usize,
    offset: u64,
}

struct Done {
    buffer: AlignedBuffer,
    result: psync::Result<()>,
}

impl Target {
    /// With one request, which the kernel splits for the device. Several at once are slower if the file has
    /// no blocks yet, since each waits for the others' (research/docs/notebook.md, "One request a buffer").
    fn write(&self, bytes: &[u8], offset: u64) -> psync::Result<()> {
        self.volume.write(&[Write { file: self.file, offset, data: bytes }])
    }
}

impl WriteBehind {
    pub fn new(volume: Arc<dyn Volume>, file: FileId, in_background: bool) -> Self {
        Self { target: Target { volume, file }, in_background, thread: None }
    }

    /// Another one for the same file, with buffers and a thread of its own.
    pub fn beside(&self) -> Self {
        Self { target: self.target.clone(), in_background: self.in_background, thread: None }
    }

    /// Writes the first `filled` bytes of `buffer` to `offset`, now or soon, and puts a buffer of the same
    /// length in its place. An error may be that of an earlier write.
    pub fn write(&mut self, buffer: &mut AlignedBuffer, filled: usize, offset: u64) -> Result<()> {
        if self.in_background && self.thread.is_none() {
            self.thread = Thread::spawn(self.target.clone());
        }
        let Some(thread) = &mut self.thread else {
            return Ok(self.target.write(&buffer[..filled], offset)?);
        };
        let next = thread.free_buffer(buffer.len())?;
        let job = Job { buffer: std::mem::replace(buffer, next), filled, offset };
        thread.away += 1;
        thread.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(|| Error::panicked(NAME))
    }

    /// Frees spare buffers.
    pub fn rest(&mut self) {
        if let Some(thread) = &mut self.thread {
            thread.spare = Vec::new();
        }
    }

    /// Waits until everything is written.
    pub fn finish(&mut self) -> Result<()> {
        let mut result = Ok(());
        while let Some(thread) = &mut self.thread
            && thread.away > 0
        {
            result = result.and(thread.take_back());
        }
        result
    }
}

impl Thread {
    /// `None` if the system gives no thread: then writes are made at once.
    fn spawn(target: Target) -> Option<Self> {
        let (jobs, to_do) = sync_channel::<Job>(BUFFERS);
        let (finished, done) = sync_channel(BUFFERS);
        let work = move || {
            while let Ok(Job { buffer, filled, offset }) = to_do.recv() {
                let result = target.write(&buffer[..filled], offset);
                if finished.send(Done { buffer, result }).is_err() {
                    return;
                }
            }
        };
        let handle = std::thread::Builder::new().name(NAME.into()).spawn(work).ok()?;
        Some(Self { jobs: Some(jobs), done, handle: Some(handle), away: 0, spare: Vec::new() })
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

    /// Waits for the thread to return a buffer.
    fn take_back(&mut self) -> Result<()> {
        self.away -= 1;
        let Done { buffer, result } =
            watchdog::receive(&self.done, "a write behind the flush").map_err(|_| Error::panicked(NAME))?;
        self.spare.push(buffer);
        Ok(result?)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(handle) = self.handle.take() {
            // A panic of the thread has shown as a closed channel.
            let _ = handle.join();
        }
    }
}
