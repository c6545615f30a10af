//! The thread that builds the tables of new versions. It stays as long as the database is open.
//!
//! The tables are what lives longest among many short-lived allocations: the chunks of the mapping table and
//! the log areas. An allocator keeps an arena for each thread, and hands the arenas of threads that have ended
//! to those that begin. If many short-lived threads build tables, each leaves some of them in another arena,
//! and none of these arenas can be given back: with tables of 21 MiB, glibc's arenas were 124 MiB. If always
//! the same thread builds them, they are 44. (docs/notebook.md, "Tables are built by one thread")
//!
//! Invariant: a panic of the work is an error for the one that waits for it, and the thread stays.

use crate::beside::Wait;
use crate::error::{Error, Result};
use rayon_core::{ThreadPool, ThreadPoolBuilder};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::mpsc::channel;

/// See the module. The thread begins with its first work.
#[derive(Default)]
pub(crate) struct VersionThread {
    /// `None` if the system provides no thread.
    thread: OnceLock<Option<ThreadPool>>,
}

impl VersionThread {
    fn thread(&self) -> Option<&ThreadPool> {
        let begin = || {
            let builder = ThreadPoolBuilder::new().num_threads(1);
            builder.thread_name(|_| "sapwood-version".into()).build().ok()
        };
        self.thread.get_or_init(begin).as_ref()
    }

    /// Starts `work`, and calls `meanwhile` with what waits for its result. Without a thread, the work is done
    /// when it is waited for.
    pub fn beside<T: Send, R>(
        &self,
        work: impl Fn() -> Result<T> + Copy + Send,
        meanwhile: impl FnOnce(Wait<'_, T>) -> R,
    ) -> R {
        let Some(thread) = self.thread() else { return meanwhile(Box::new(work)) };
        let (done, result) = channel();
        thread.in_place_scope(|scope| {
            scope.spawn(move |_| {
                // Whoever does not wait any more has failed meanwhile.
                _ = done.send(catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Error::Closed)));
            });
            meanwhile(Box::new(move || result.recv().unwrap_or(Err(Error::Closed))))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::current;

    #[test]
    fn it_is_always_the_same_thread() {
        let thread = VersionThread::default();
        let first = thread.beside(|| Ok(current().id()), |wait| wait()).unwrap();
        assert_ne!(first, current().id());
        let panicked = thread.beside(|| -> Result<()> { panic!("on purpose") }, |wait| wait());
        assert!(matches!(panicked, Err(Error::Closed)), "{panicked:?}");
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    assert_eq!(thread.beside(|| Ok(current().id()), |wait| wait()).unwrap(), first)
                });
            }
        });
    }

    #[test]
    fn who_gives_up_waits_for_the_end_of_the_work_only() {
        let thread = VersionThread::default();
        let done = std::sync::atomic::AtomicBool::new(false);
        let work = || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        };
        assert_eq!(thread.beside(work, |_| 7), 7);
        assert!(done.into_inner());
    }
}
