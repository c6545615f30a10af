//! Several callers of one drive: each waits for its own batch, while those of the others are under way.
//!
//! Invariants:
//! 1. Requests come into the drive's queue in the order of their batches' submission.
//! 2. Every submission is answered once; answers that nobody has asked for wait.

use super::{Active, BACKGROUND_MAX, Clock};
use crate::{Batch, RequestKind};
use std::time::Duration;

/// A batch that was submitted and is not answered.
#[derive(Clone, Debug)]
pub(super) struct Submitted {
    ticket: u64,
    batch: Batch,
    /// The first request that has not come into the queue.
    next: usize,
    unanswered: usize,
}

impl Clock {
    /// Hands over all requests of a batch now, for a caller who waits for them while others go on: no time passes. The answer is
    /// the ticket that [`Clock::next_answered`] gives back. Requests of all callers come into the drive's queue in the order of
    /// their submission.
    pub fn submit(&mut self, batch: Batch) -> u64 {
        let ticket = self.tickets;
        self.tickets += 1;
        let unanswered = batch.requests.len();
        if unanswered == 0 {
            self.done.push_back(ticket);
        } else {
            self.submitted.push_back(Submitted { ticket, batch, next: 0, unanswered });
            self.admit_submitted();
        }
        ticket
    }

    /// Lets time pass until all requests of some submission are answered, and says which one's; `None` if nothing is submitted.
    /// `answered` is told of each request on the way, as in [`Clock::run`].
    pub fn next_answered(&mut self, mut answered: impl FnMut(RequestKind, Duration)) -> Option<u64> {
        while self.done.is_empty() && !self.submitted.is_empty() {
            self.step_submitted(&mut answered);
        }
        while self.pending.len() > BACKGROUND_MAX {
            self.step_submitted(&mut answered);
        }
        self.done.pop_front()
    }

    fn admit_submitted(&mut self) {
        let mut at = 0;
        while at < self.submitted.len() && self.active.len() < self.queue_depth {
            let next = self.submitted[at].next;
            if next == self.submitted[at].batch.requests.len() {
                at += 1;
                continue;
            }
            self.submitted[at].next += 1;
            let batch = std::mem::take(&mut self.submitted[at].batch);
            self.admit(&batch, next, self.submitted[at].ticket);
            self.submitted[at].batch = batch;
        }
    }

    /// The next event happens while batches are submitted.
    pub(super) fn step_submitted(&mut self, answered: &mut impl FnMut(RequestKind, Duration)) {
        let Some(number) = self.step() else { return };
        let Active { kind, admitted, ticket, .. } = self.active.items[number as usize];
        self.active.free.push(number);
        answered(kind, Duration::from_nanos(self.now - admitted));
        if let Some(at) = self.submitted.iter().position(|submitted| submitted.ticket == ticket) {
            self.submitted[at].unanswered -= 1;
            if self.submitted[at].unanswered == 0 {
                self.submitted.remove(at);
                self.done.push_back(ticket);
            }
        }
        self.admit_submitted();
    }
}
