//! The turn: a thread that has it is the only one to commit, so that the transaction that it repeats cannot conflict. Threads have
//! it in the order in which they asked for it.
//!
//! Others wait at the log, with what they would commit; flushes and readers go on. So a thread that has the turn must not wait
//! for another's commit. It may commit whatever it likes itself.
//!
//! Invariants:
//! 1. Changed only under the lock of the log. Read without it by the thread that may have the turn: no other one changes the
//!    answer to "is it mine"; and by syncs, which may go alone whatever the answer.
//! 2. The turn ends when [`Turn`](crate::commit::validate::Turn) is dropped, also by a panic.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

thread_local! {
    /// A number of its own for each thread, above zero.
    static THREAD: u64 = {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        COUNT.fetch_add(1, Relaxed)
    };
}

/// Which thread has the turn. See the module.
#[derive(Default)]
pub(crate) struct TurnHolder {
    /// The thread, or zero.
    thread: AtomicU64,
    next_place: AtomicU64,
    served: AtomicU64,
}

impl TurnHolder {
    /// Whether this thread has the turn.
    pub fn is_mine(&self) -> bool {
        let thread = self.thread.load(Relaxed);
        thread != 0 && thread == THREAD.with(|thread| *thread)
    }

    /// Whether another thread has it.
    pub fn is_others(&self) -> bool {
        let thread = self.thread.load(Relaxed);
        thread != 0 && thread != THREAD.with(|thread| *thread)
    }

    /// A place in the line for the turn. The caller holds the log.
    pub fn place(&self) -> u64 {
        self.next_place.fetch_add(1, Relaxed)
    }

    /// Whether this place is the next.
    pub fn is_due(&self, place: u64) -> bool {
        self.served.load(Relaxed) == place
    }

    /// This thread has the turn from now on. The caller holds the log, and a place that is due.
    pub fn begin(&self) {
        self.thread.store(THREAD.with(|thread| *thread), Relaxed);
    }

    /// Ends the turn whose place is due, whether it has begun or not. The caller holds the log.
    pub fn end(&self) {
        self.thread.store(0, Relaxed);
        self.served.fetch_add(1, Relaxed);
    }
}
