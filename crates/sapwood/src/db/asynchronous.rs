//! Tasks that wait: futures of gets, of many keys, of ranges and of commits, for any runtime.
//!
//! ```text
//! get ──▶ in memory: ready ─┬─ not ─▶ waiting reads ──▶ group: one multi_get, one psync for each level ──▶ its tasks are woken
//!                           └─ the key of another task may be in the same node: it is read once
//! multi_get, range, commit ──▶ work on a thread of the pools here ──▶ the task is woken
//! transact ──▶ transaction ──▶ commit ─┬─ conflict ─▶ the next one; after some, when those before it in the queue are done
//! ```
//! Threads are started when they are first needed ([`READERS`], [`WRITERS`]), and none if the database has no background
//! threads: then the poll does the work.
//!
//! Invariants:
//! 1. A future does nothing before it is first polled.
//! 2. Each task is woken once what it waits for is decided, also by errors, panics and closing.
//! 3. A group holds no handle of the database, and a future that is dropped waits for its own work or takes it back. So a
//!    database is closed when its last handle is dropped, not when some thread is done.

pub(crate) mod gather;
pub(crate) mod methods;
pub(crate) mod retry_queue;
#[cfg(test)]
mod tests;
pub(crate) mod waiting;

pub use waiting::Waiting;

use crate::current_state::CurrentState;
use crate::pool::Pool;
use gather::Gatherer;
use retry_queue::RetryQueue;
use std::sync::Arc;

/// Threads that read for tasks (count): so many groups are in flight. With one, its tasks would find the device idle while they are
/// woken.
const READERS: usize = 4;
/// Threads that commit for tasks (count). More would wait for the same log.
const WRITERS: usize = 1;

/// What tasks wait for.
pub(crate) struct Tasks {
    pub gatherer: Arc<Gatherer>,
    pub readers: Arc<Pool>,
    pub writers: Pool,
    pub retries: Arc<RetryQueue>,
}

impl Tasks {
    pub fn new(state: Arc<CurrentState>, has_threads: bool) -> Self {
        let threads = |count| if has_threads { count } else { 0 };
        let readers = Arc::new(Pool::new(threads(READERS)));
        Self {
            gatherer: Gatherer::new(state, Arc::clone(&readers), READERS),
            readers,
            writers: Pool::new(threads(WRITERS)),
            retries: Arc::default(),
        }
    }

    /// Whether the thread that calls is one of these.
    pub fn is_own_thread(&self) -> bool {
        self.readers.is_own_thread() || self.writers.is_own_thread()
    }

    /// Ends the threads, after what waits. The reader is closed before, so that reads end with an error.
    pub fn close(&self) {
        self.readers.close();
        self.writers.close();
    }
}
