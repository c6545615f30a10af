//! The thread that builds the tables of new versions, as long as the engine lives.
//!
//! The tables are what lives longest among many short-lived allocations: the chunks of the mapping table and
//! the log areas. An allocator keeps an arena for each thread, and hands the arenas of threads that have ended
//! to those that begin. If many short-lived threads build tables, each leaves some of them in another arena,
//! and none of these arenas can be given back: with tables of 21 MiB, glibc's arenas were 124 MiB. If the same
//! thread builds all that are long, they are 44. (docs/adr/0019-own-memory.md)
//!
//! Invariants:
//! 1. Whoever waits for work sleeps, and does no other work meanwhile: it may hold locks. (A pool whose waiting
//!    threads take other jobs, as rayon's do, would have to be kept from that.)
//! 2. A panic of the work is an error for the one that waits for it, and the thread stays.

use crate::error::{Error, Result};
use crate::spawn::Wait;
use crate::watchdog;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{SendError, Sender, channel};
use std::thread::Builder;

const NAME: &str = "sapwood-version";

type Job = Box<dyn FnOnce() + Send>;

/// See the module. The thread begins with its first work.
#[derive(Default)]
pub(crate) struct VersionThread {
    /// `None` until there is work, and if the system provides no thread; then the next work tries again.
    jobs: Mutex<Option<Sender<Job>>>,
}

impl VersionThread {
    /// Starts `work`, after what was started before. Without a thread, it is done when it is waited for.
    pub fn begin<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Wait<'static, T> {
        let mut jobs = self.jobs.lock();
        if jobs.is_none() {
            *jobs = begin_thread().inspect_err(|error| tracing::warn!(%error, "no thread for versions")).ok();
        }
        let Some(jobs) = &*jobs else { return Box::new(work) };
        let (done, result) = channel();
        let job = move || {
            // Whoever does not wait any more has failed meanwhile.
            _ = done
                .send(catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Error::panicked(NAME))));
        };
        if let Err(SendError(job)) = jobs.send(Box::new(job)) {
            job();
        }
        Box::new(move || watchdog::receive(&result, "the thread for versions").unwrap_or(Err(Error::Closed)))
    }
}

/// Starts a thread that does what it is sent, until nobody can send any more.
fn begin_thread() -> std::io::Result<Sender<Job>> {
    let (sender, jobs) = channel::<Job>();
    Builder::new().name(NAME.into()).spawn(move || jobs.into_iter().for_each(|job| job()))?;
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::current;
    use std::time::Duration;

    #[test]
    fn it_is_always_the_same_thread() {
        let thread = VersionThread::default();
        let first = thread.begin(|| Ok(current().id()))().unwrap();
        assert_ne!(first, current().id());
        let panicked = thread.begin(|| -> Result<()> { panic!("on purpose") })();
        assert!(matches!(panicked, Err(Error::Poisoned { .. })), "{panicked:?}");
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert_eq!(thread.begin(|| Ok(current().id()))().unwrap(), first));
            }
        });
    }

    /// Whoever publishes does something else while the tables are built.
    #[test]
    fn who_begins_work_does_not_wait_until_it_is_done() {
        let thread = VersionThread::default();
        let (go, goes) = channel();
        let wait = thread.begin(move || Ok(goes.recv_timeout(Duration::from_secs(10)).is_ok()));
        _ = go.send(());
        assert!(wait().unwrap());
    }

    #[test]
    fn work_is_done_although_nobody_waits_and_in_order() {
        let thread = VersionThread::default();
        let (done, results) = channel();
        for number in 0..10 {
            let done = done.clone();
            drop(thread.begin(move || {
                done.send(number).expect("somebody listens");
                Ok(())
            }));
        }
        drop((thread, done));
        assert_eq!(results.into_iter().collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    }
}
