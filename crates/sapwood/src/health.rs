//! Whether an open database accepts writes, and if not, why.
//!
//! Invariants:
//! 1. Once writes are refused, they are refused until the database is opened again, and the first cause is what callers
//!    are told.
//! 2. Nothing that reports it stands in the way of that: the report comes last, and never unwinds.
//! 3. A thread that waits for something that will not come any more is woken when writes begin to be refused.

use crate::error::{Error, Result};
use crate::lock_order::{RankedMutex, rank};
use psync::Process;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
pub(crate) struct Health {
    /// The database's location, for messages.
    path: String,
    /// The process that opened it, whose threads these are.
    process: Process,
    is_read_only: bool,
    /// Why writes are refused, if they are.
    cause: RankedMutex<rank::Health, Option<Error>>,
    /// Whether `cause` is set. Each commit checks this twice.
    is_poisoned: AtomicBool,
    /// Called when `cause` was set.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Health {
    /// A database that this process opens. `wake` wakes the threads that wait for others' work on it.
    pub fn new(path: String, is_read_only: bool, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            path,
            process: Process::this(),
            is_read_only,
            cause: RankedMutex::default(),
            is_poisoned: AtomicBool::new(false),
            wake: Box::new(wake),
        }
    }

    /// The database's location, for messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Whether this is another process than the one that opened the database.
    pub fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    /// Returns an error in another process than the one that opened the database.
    pub fn check_process(&self) -> Result<()> {
        Ok(self.process.check()?)
    }

    /// Returns an error if writes are refused.
    pub fn check_writable(&self) -> Result<()> {
        self.check_process()?;
        if self.is_read_only {
            return Err(Error::ReadOnly);
        }
        if !self.is_poisoned.load(Ordering::Acquire) {
            return Ok(());
        }
        self.cause.lock().clone().map_or(Ok(()), Err)
    }

    /// Refuses all writes from now on, since it is unknown what the failed one left behind.
    pub fn poison(&self, cause: &Error) {
        let mut first = self.cause.lock();
        let is_first = first.is_none();
        if is_first {
            *first = Some(match cause {
                Error::Poisoned { .. } | Error::Closed | Error::Gone { .. } | Error::Forked { .. } => {
                    cause.clone()
                }
                other => Error::Poisoned { cause: other.to_string() },
            });
            self.is_poisoned.store(true, Ordering::Release);
        }
        drop(first);
        (self.wake)();
        // To close a database is no error.
        if is_first && !matches!(cause, Error::Closed) {
            quietly(|| tracing::error!(%cause, path = %self.path, "writes are refused from now on"));
        }
    }

    /// Whether writes are refused because the database was closed.
    pub fn is_closed(&self) -> bool {
        matches!(*self.cause.lock(), Some(Error::Closed))
    }
}

/// Reports, and survives a subscriber that panics, for instance where standard error cannot be written: the thread may be panicking already, or
/// others wait for it.
pub(crate) fn quietly(report: impl FnOnce()) {
    _ = catch_unwind(AssertUnwindSafe(report));
}

/// Poisons the database if the current thread panics while this guard exists. The thread's work is half done in
/// an unknown state, and other threads would wait forever for the rest.
pub(crate) struct Panicked<'h> {
    health: &'h Health,
    work: &'static str,
    /// Whether the thread was already panicking when the guard was created, that is, it runs a destructor.
    before: bool,
}

impl<'h> Panicked<'h> {
    pub fn watch(health: &'h Health, work: &'static str) -> Self {
        Self { health, work, before: std::thread::panicking() }
    }
}

impl Drop for Panicked<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.before {
            self.health.poison(&Error::Poisoned { cause: format!("{} panicked", self.work) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use tracing::span::{Attributes, Id, Record};
    use tracing::subscriber::with_default;
    use tracing::{Event, Metadata, Subscriber};

    fn health() -> (Health, Arc<AtomicUsize>) {
        let woken = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&woken);
        let wake = move || _ = counter.fetch_add(1, Ordering::Relaxed);
        (Health::new("here".into(), false, wake), woken)
    }

    #[test]
    fn the_first_cause_is_what_callers_are_told_and_waiting_threads_are_woken() {
        let (health, woken) = health();
        health.check_writable().unwrap();
        health.poison(&Error::corrupt("data", 0, "the first", "", ""));
        health.poison(&Error::Closed);
        let Err(Error::Poisoned { cause }) = health.check_writable() else { panic!("writes are accepted") };
        assert!(cause.contains("the first") && !health.is_closed(), "{cause}");
        assert_eq!(woken.load(Ordering::Relaxed), 2);
    }

    /// Counts events, and panics then.
    struct Panicking(Arc<AtomicUsize>);

    impl Subscriber for Panicking {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("standard error cannot be written");
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// It unwound with writes still accepted; in a thread that panicked already it ended the process.
    #[test]
    fn a_report_that_panics_stands_in_the_way_of_nothing() {
        // A place that another test meets for the first time while this one listens is taken for one that nobody listens to.
        health().0.poison(&Error::corrupt("data", 0, "something", "", ""));
        let events = Arc::new(AtomicUsize::new(0));
        let with_subscriber = |work: &dyn Fn()| with_default(Panicking(Arc::clone(&events)), work);
        let (closed, _) = health();
        with_subscriber(&|| closed.poison(&Error::Closed));
        assert!(closed.is_closed() && events.load(Ordering::Relaxed) == 0, "to close a database is no error");
        let (poisoned, woken) = health();
        with_subscriber(&|| poisoned.poison(&Error::corrupt("data", 0, "something", "", "")));
        assert!(matches!(poisoned.check_writable(), Err(Error::Poisoned { .. })));
        assert_eq!((woken.load(Ordering::Relaxed), events.load(Ordering::Relaxed)), (1, 1));
        let (panicked, woken) = health();
        let panics = || {
            let _panicked = Panicked::watch(&panicked, "a thread");
            panic!("for this test");
        };
        catch_unwind(AssertUnwindSafe(|| with_subscriber(&panics))).unwrap_err();
        assert!(matches!(panicked.check_writable(), Err(Error::Poisoned { .. })));
        assert_eq!((woken.load(Ordering::Relaxed), events.load(Ordering::Relaxed)), (1, 2));
    }

    #[test]
    fn when_a_thread_panics_writes_are_refused() {
        let (health, woken) = health();
        drop(Panicked::watch(&health, "a thread"));
        health.check_writable().unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _panicked = Panicked::watch(&health, "another thread");
                panic!("for this test");
            });
            thread.join().unwrap_err();
        });
        assert!(matches!(health.check_writable(), Err(Error::Poisoned { .. })));
        assert_eq!(woken.load(Ordering::Relaxed), 1);
    }
}
