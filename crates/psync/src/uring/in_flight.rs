//! Sets of reads in flight that own their buffers: waited for, dropped, or pinned since the kernel does not let go of them.

use super::progress::{Held, Progress, is_sent_back};
use super::{BEGUN_MAX, LEFT_BYTES, LEFT_MAX, Rings, entry};
use crate::AlignedBuffer;
use crate::error::Unreturned;
use crate::ring::{Exit, Ring};
use crate::stall::quietly;
use crate::transfer::{OwnedRead, OwnedReads};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Buffers of a set that the kernel does not let go of.
pub(super) struct Pinned {
    exit: Exit,
    buffers: Vec<AlignedBuffer>,
}

impl Pinned {
    pub fn is_free(&self) -> bool {
        self.exit.wait(Duration::ZERO)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.is_free() {
            // The kernel may still write to them.
            std::mem::take(&mut self.buffers).into_iter().for_each(std::mem::forget);
        }
    }
}

/// Permission to have a set in flight.
pub(super) struct Permit(Arc<Rings>);

impl Permit {
    pub fn among(rings: &Arc<Rings>) -> Option<Self> {
        let permit = Self(Arc::clone(rings));
        // The drop gives the permit back, even if it was one too many.
        (rings.begun.fetch_add(1, Relaxed) < BEGUN_MAX).then_some(permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.begun.fetch_sub(1, Relaxed);
    }
}

/// Reads in flight. Dropping it waits for them.
pub(super) struct RingReads {
    /// `None` once nothing is in flight any more, or what is has been pinned.
    ring: Option<Ring>,
    set: Vec<OwnedRead>,
    progress: Progress,
    permit: Permit,
}

impl RingReads {
    /// Starts a set, which the ring has room for.
    pub fn begin(permit: Permit, ring: Ring, set: Vec<OwnedRead>) -> Self {
        let mut reads = Self { ring: Some(ring), set, progress: Progress::default(), permit };
        reads.submit();
        reads
    }

    fn submit(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        ring.begin_set();
        for read in &mut self.set {
            let entry = entry(&mut read.transfer());
            self.progress.submit_piece(ring);
            // SAFETY: the buffer behind the entry and the file belong to this member of `self.set`, which is neither touched nor
            // dropped before every entry that was submitted has completed, or the kernel has freed the ring with it (this loop
            // goes on to the next members; `wait` and `drop` call `end` first, which pins the buffers if need be; `has_completed`
            // sets outcomes and looks at no buffer). If `self` is leaked, so are buffer and file: both are on the heap. Moving
            // `self` does not move what an `AlignedBuffer` points to. Entries that were not submitted go with the ring.
            if !unsafe { self.progress.queue(ring, entry) } {
                break;
            }
        }
        self.progress.call(ring, 0, Duration::ZERO);
    }

    /// Bytes of memory that it holds.
    fn bytes(&self) -> usize {
        self.set.iter().map(|read| read.buffer.capacity()).sum()
    }

    /// Whether nothing is in flight any more.
    pub fn has_completed(&mut self) -> bool {
        let Some(ring) = &mut self.ring else { return true };
        self.progress.collect(ring, &mut self.set[..]);
        self.progress.completed >= self.progress.queued
    }

    /// Waits until nothing is in flight, or what is in flight has been pinned.
    fn end(&mut self) {
        let Some(mut ring) = self.ring.take() else { return };
        let rings = Arc::clone(&self.permit.0);
        let (progress, set) = (&mut self.progress, &mut self.set[..]);
        let mut watch = rings.stalls.watch();
        if progress.finish(&mut ring, None, &mut watch, set) {
            if progress.is_sound(set.len()) {
                rings.give(ring);
            }
            return;
        }
        let exit = match progress.cancel(ring, &rings.stalls, &watch, set) {
            Held::Nothing => return progress.end_pending(set),
            Held::Closed(exit) => Some(exit),
            Held::Open(ring) => {
                // Nobody will know when the buffers are free.
                std::mem::forget(ring);
                None
            }
        };
        let waited = watch.waited();
        let mut buffers = Vec::new();
        for index in progress.pending.iter().filter(|index| *index < progress.submitted) {
            if let Some(read) = set.get_mut(index) {
                buffers.push(std::mem::replace(&mut read.buffer, AlignedBuffer::new(0)));
                read.outcome = Err(io::Error::other(Unreturned { waited }));
            }
        }
        match exit {
            Some(exit) => rings.pin(Pinned { exit, buffers }),
            None => buffers.into_iter().for_each(std::mem::forget),
        }
        quietly(|| {
            tracing::error!(?waited, "the kernel does not let go of reads: their buffers are not used again");
        });
    }

    /// Waits until nothing is in flight, and returns the reads, each tried once.
    fn wait(mut self) -> Vec<OwnedRead> {
        self.end();
        let submitted = self.progress.submitted;
        for (index, read) in self.set.iter_mut().enumerate() {
            if index >= submitted || is_sent_back(&read.outcome) {
                let mut transfer = read.transfer();
                transfer.run_alone();
                read.outcome = transfer.outcome;
            }
        }
        std::mem::take(&mut self.set)
    }
}

impl Drop for RingReads {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads in flight, whether they are waited for or dropped.
pub(super) struct Begun(Option<RingReads>);

impl Begun {
    pub fn new(reads: RingReads) -> Self {
        Self(Some(reads))
    }
}

impl OwnedReads for Begun {
    fn wait(mut self: Box<Self>) -> Vec<OwnedRead> {
        self.0.take().map_or_else(Vec::new, RingReads::wait)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let Some(mut reads) = self.0.take() else { return };
        // Requests that the kernel has not taken would never be submitted by anyone else.
        if reads.has_completed() || reads.progress.submitted < reads.progress.queued {
            return;
        }
        let rings = Arc::clone(&reads.permit.0);
        let mut left = rings.left.lock();
        let has_room = |sets: &[RingReads]| {
            let bytes: usize = sets.iter().map(RingReads::bytes).sum();
            sets.is_empty() || (sets.len() < LEFT_MAX && bytes + reads.bytes() <= LEFT_BYTES)
        };
        match left.as_mut().filter(|sets| has_room(sets)) {
            Some(sets) => {
                sets.push(reads);
                rings.left_count.store(sets.len(), Relaxed);
            }
            None => {
                drop(left);
                drop(reads);
            }
        }
    }
}
