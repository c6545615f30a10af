//! The writer of nodes, which one thread at a time works with: the flush, cleansing, the collector, or an ingestion.
//!
//! Invariants:
//! 1. The thread that has the writer has the memory for its work reserved, and gives it back after the writer's buffers.
//! 2. A thread that gives the writer back and wants it again waits until one that waited meanwhile has had it. The standard library's
//!    mutex is not fair, so the thread that is next holds `next`: the others wait for that, and pass nobody by.

use crate::error::{Error, Result};
use crate::flow::flush_control::FlushControl;
use crate::flow::memory::{MemoryBudget, Need, Reservation};
use crate::lock_order::{RankedGuard, RankedMutex, rank};
use crate::storage::data_file::DataFile;
use crate::storage::writer::Writer;
use std::sync::{Arc, OnceLock};

/// See the module documentation.
pub(crate) struct TreeWriter {
    /// Held by the thread that gets the writer next, until it has it.
    next: RankedMutex<rank::WriterNext, ()>,
    /// `None` if the database is read-only or closed.
    writer: RankedMutex<rank::Writer, Option<Writer>>,
    /// Shared by `writer` and other writers that run beside it. Empty if the database is read-only.
    file: OnceLock<Arc<DataFile>>,
    flush: Arc<FlushControl>,
    memory: Arc<MemoryBudget>,
}

/// The writer while a thread works with it: the lock, and the memory reserved for the work.
pub(crate) struct WriterAtWork<'a> {
    writer: RankedGuard<'a, rank::Writer, Option<Writer>>,
    // Dropped last, after `drop` has released the writer's buffers.
    work: Reservation,
}

impl WriterAtWork<'_> {
    pub fn get(&mut self) -> Result<&mut Writer> {
        self.writer.as_mut().ok_or(Error::Closed)
    }

    /// The writer and its memory reservation.
    pub fn parts(&mut self) -> Result<(&mut Writer, &Reservation)> {
        Ok((self.writer.as_mut().ok_or(Error::Closed)?, &self.work))
    }
}

impl Drop for WriterAtWork<'_> {
    fn drop(&mut self) {
        if let Some(writer) = &mut *self.writer {
            writer.rest();
        }
    }
}

impl TreeWriter {
    /// Without a writer until [`TreeWriter::set`].
    pub fn new(flush: Arc<FlushControl>, memory: Arc<MemoryBudget>) -> Self {
        Self {
            next: RankedMutex::default(),
            writer: RankedMutex::new(None),
            file: OnceLock::new(),
            flush,
            memory,
        }
    }

    /// Gives a newly opened database its writer.
    pub fn set(&self, writer: Writer) {
        let _ = self.file.set(Arc::clone(writer.file()));
        *self.writer.lock() = Some(writer);
    }

    /// Locks the writer for exclusive work, and reserves the memory `need` for it, taken from the cache.
    pub fn lock(&self, need: Need) -> Result<WriterAtWork<'_>> {
        let waits = self.flush.waits();
        let writer = self.lock_fairly();
        drop(waits);
        if writer.is_none() {
            return Err(Error::Closed);
        }
        Ok(WriterAtWork { writer, work: self.memory.work(need) })
    }

    /// Waits for the writer, passing by no thread that waited before.
    pub fn lock_fairly(&self) -> RankedGuard<'_, rank::Writer, Option<Writer>> {
        let _next = self.next.lock();
        self.writer.lock()
    }

    /// Bytes written to the data file since it was opened.
    pub fn bytes_written(&self) -> u64 {
        self.file.get().map_or(0, |file| file.bytes_written())
    }

    /// Waits for the thread that has the writer, does some last work, and drops the writer. Nothing is written from now on.
    pub fn close_behind<T>(&self, last: impl FnOnce() -> T) -> T {
        let mut writer = self.lock_fairly();
        let done = last();
        *writer = None;
        done
    }
}
