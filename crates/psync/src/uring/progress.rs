//! The progress of one set in a ring: from the queue to the completion of its last request, or the end of the ring.
//!
//! Invariant: a request counts as completed once, whatever the ring reports.

use super::PIECE;
use crate::busy_wait::PollPermit;
use crate::ring::{Exit, Ring};
use crate::stall::{Pending, Stalls, Watch, described, quietly, request};
use crate::transfer::{OwnedRead, Transfer};
use std::io;
use std::time::{Duration, Instant};

/// How long to wait at a stretch for completions of what was cancelled.
const CANCEL_SLICE: Duration = Duration::from_millis(100);

/// The members of a set, by number.
pub(super) trait Members {
    fn end(&mut self, index: usize, outcome: io::Result<usize>);
    /// For reports. Looks at no buffer, since the kernel may be writing to it.
    fn describe(&mut self, index: usize) -> Option<String>;
}

impl Members for [Transfer<'_>] {
    fn end(&mut self, index: usize, outcome: io::Result<usize>) {
        if let Some(transfer) = self.get_mut(index) {
            transfer.outcome = outcome;
        }
    }

    fn describe(&mut self, index: usize) -> Option<String> {
        self.get(index).map(described)
    }
}

impl Members for [OwnedRead] {
    fn end(&mut self, index: usize, outcome: io::Result<usize>) {
        if let Some(read) = self.get_mut(index) {
            read.outcome = outcome;
        }
    }

    fn describe(&mut self, index: usize) -> Option<String> {
        let read = self.get(index)?;
        Some(request("read", &read.file, read.offset, read.buffer.visible_len()))
    }
}

/// The progress of a set that was queued in a ring.
#[derive(Default)]
pub(super) struct Progress {
    pub queued: usize,
    /// How many of the queued requests the kernel has taken.
    pub submitted: usize,
    pub completed: usize,
    /// The queued requests that have not completed.
    pub pending: Pending,
    broken: Option<io::Error>,
    /// Whether there was a completion that nobody waited for, or the set was cancelled.
    is_suspect: bool,
}

/// What the kernel still holds.
pub(super) enum Held {
    /// Nothing.
    Nothing,
    /// Requests of a ring that was closed,
    Closed(Exit),
    /// or of one whose end nobody would notice.
    Open(Box<Ring>),
}

impl Progress {
    /// Queues the request of the next member. Returns false if there is no room.
    ///
    /// # Safety
    /// As for [`Ring::push`].
    pub unsafe fn queue(&mut self, ring: &mut Ring, entry: io_uring::squeue::Entry) -> bool {
        // SAFETY: by the contract of this function.
        let is_queued = unsafe { ring.push(self.queued, entry) };
        if is_queued {
            self.pending.insert(self.queued);
            self.queued += 1;
        }
        is_queued
    }

    /// Called before another request is queued: submits those that are, if they make a piece.
    pub fn submit_piece(&mut self, ring: &mut Ring) {
        if self.queued - self.submitted >= PIECE {
            self.call(ring, 0, Duration::ZERO);
        }
    }

    /// One system call: submits what is queued, and waits for `wanted` completions, but no longer than `time`. Then
    /// updates `submitted`.
    pub fn call(&mut self, ring: &mut Ring, wanted: usize, time: Duration) {
        if let Err(error) = ring.enter(wanted, time) {
            self.broken = Some(error);
        }
        // The kernel took whatever left the queue, whatever the call returned.
        self.submitted = self.queued - ring.unsubmitted();
    }

    /// Records the completions that have arrived, of each request the first.
    pub fn collect<M: Members + ?Sized>(&mut self, ring: &mut Ring, members: &mut M) {
        while let Some((mark, result)) = ring.completed() {
            let index = ring.member(mark).filter(|index| self.pending.remove(*index));
            let Some(index) = index else {
                // Of another set, or a second one.
                self.is_suspect |= !Ring::is_of_cancel(mark);
                continue;
            };
            self.completed += 1;
            let outcome = match result {
                moved if moved >= 0 => Ok(moved as usize),
                error => Err(io::Error::from_raw_os_error(-error)),
            };
            members.end(index, outcome);
        }
    }

    /// Submits the rest, and polls for completions as long as `permit` allows.
    fn look<M: Members + ?Sized>(&mut self, ring: &mut Ring, permit: PollPermit<'_>, members: &mut M) {
        if self.submitted < self.queued {
            self.call(ring, 0, Duration::ZERO);
        }
        permit.look_until(|| {
            if ring.needs_task_work() {
                self.call(ring, 0, Duration::ZERO);
            }
            self.collect(ring, members);
            self.completed >= self.submitted || self.broken.is_some()
        });
    }

    /// Whether something is in flight, or waits to be taken by the kernel.
    fn is_waiting(&self) -> bool {
        self.completed < self.submitted || (self.broken.is_none() && self.submitted < self.queued)
    }

    /// Submits the rest and waits for everything, polling if allowed. Returns false if it stalls for too long. Must not
    /// unwind: there are requests in flight.
    pub fn finish<M: Members + ?Sized>(
        &mut self,
        ring: &mut Ring,
        permit: Option<PollPermit<'_>>,
        watch: &mut Watch<'_>,
        members: &mut M,
    ) -> bool {
        self.collect(ring, members);
        if let Some(permit) = permit
            && self.completed < self.queued
        {
            self.look(ring, permit, members);
        }
        while self.is_waiting() {
            let wanted = if self.broken.is_none() { self.queued - self.completed } else { 1 };
            let before = (self.submitted, self.completed);
            self.call(ring, wanted, watch.slice());
            self.collect(ring, members);
            if (self.submitted, self.completed) != before {
                watch.has_progressed();
            } else if watch.has_timed_out(|| self.outstanding(members)) {
                return false;
            }
        }
        true
    }

    /// The requests in flight, for reports.
    fn outstanding<M: Members + ?Sized>(&self, members: &mut M) -> Vec<String> {
        self.pending.iter().filter_map(|index| members.describe(index)).collect()
    }

    /// Ends a set that has stalled: cancels it, and closes the ring. Waits for the kernel to let go of it for as long as
    /// `stalls` allow. Must not unwind.
    pub fn cancel<M: Members + ?Sized>(
        &mut self,
        mut ring: Ring,
        stalls: &Stalls,
        watch: &Watch<'_>,
        members: &mut M,
    ) -> Held {
        watch.cancels(|| self.outstanding(members));
        self.is_suspect = true;
        let until = Instant::now() + stalls.grace();
        let mut targets: Vec<usize> = self.pending.iter().collect();
        // A kernel that does not take requests takes no attempt to cancel them. And it must not take them now: they go
        // with the ring.
        while self.submitted == self.queued
            && self.broken.is_none()
            && self.completed < self.submitted
            && Instant::now() < until
        {
            while targets.last().is_some_and(|index| ring.push_cancel(*index)) {
                targets.pop();
            }
            if ring.enter(1, CANCEL_SLICE.min(stalls.grace())).is_err() {
                break;
            }
            self.collect(&mut ring, members);
        }
        if self.completed >= self.submitted {
            return Held::Nothing;
        }
        match Box::new(ring).close() {
            Ok(exit) if exit.wait(stalls.grace()) => Held::Nothing,
            Ok(exit) => Held::Closed(exit),
            Err(ring) => Held::Open(ring),
        }
    }

    /// Waits until the kernel holds nothing, for as long as it takes. Must not unwind.
    pub fn outlast<M: Members + ?Sized>(&mut self, mut held: Held, watch: &mut Watch<'_>, members: &mut M) {
        loop {
            held = match held {
                Held::Nothing => return,
                Held::Closed(exit) if exit.wait(watch.slice()) => return,
                Held::Closed(exit) => Held::Closed(exit),
                Held::Open(mut ring) => {
                    // `submitted` is final: attempts to cancel may be in the queue too. If requests are, they must stay
                    // there, so this only sleeps; they are not counted as submitted.
                    if self.submitted == self.queued {
                        _ = ring.enter(1, watch.slice());
                    } else {
                        std::thread::sleep(watch.slice());
                    }
                    self.collect(&mut ring, members);
                    if self.completed >= self.submitted {
                        return;
                    }
                    ring.close().map_or_else(Held::Open, Held::Closed)
                }
            };
            watch.has_timed_out(|| self.outstanding(members));
        }
    }

    /// Requests whose end nobody has seen, although the kernel holds none of them, count as cancelled.
    pub fn end_pending<M: Members + ?Sized>(&self, members: &mut M) {
        for index in self.pending.iter() {
            members.end(index, Err(io::Error::from_raw_os_error(libc::ECANCELED)));
        }
    }

    /// Whether the whole set went through the ring, so that the ring can be reused.
    pub fn is_sound(&self, len: usize) -> bool {
        if let Some(error) = &self.broken {
            quietly(|| tracing::error!(%error, "io_uring failed; the set is carried out otherwise"));
        }
        if self.is_suspect {
            quietly(|| {
                tracing::error!(
                    "a ring of io_uring reported what nobody waited for, or was cancelled: it is closed"
                );
            });
        }
        self.broken.is_none() && !self.is_suspect && self.submitted == len && self.completed == len
    }
}

/// Whether a request came back without having been carried out: for lack of memory, or cancelled. If the submitting
/// thread ended before its reads, they may have been cancelled, or returned for lack of its memory.
pub(super) fn is_sent_back(outcome: &io::Result<usize>) -> bool {
    let sent_back = |error: &io::Error| {
        matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ECANCELED | libc::EFAULT))
    };
    outcome.as_ref().is_err_and(sent_back)
}
