//! The only place where the store starts threads: as many as the user allows (`Builder::background_threads`), and a few for tasks of
//! an async program, each with its first work, all until the database is closed.
//!
//! ```text
//! submit ─▶ waiting ──a thread is free──▶ running ──▶ done ──▶ Task::wait
//!              └──── Task::wait, and no thread was free: runs in the thread that waits
//! ```
//! So work never waits for a thread that it is itself needed by, and with no threads everything happens in the caller,
//! in one order.
//!
//! Invariants:
//! 1. A thread that waits runs the work waited for, or sleeps; never other work: it may hold locks.
//! 2. When a [`Task`] is gone, its work has ended or will never begin.
//! 3. A panic of the work is an error for the one that waits, and the thread stays.
//! 4. Detached work is begun by a thread, at the latest when the pool is closed; never in place of one.

use crate::error::{Error, Result};
use crate::lock_order::{RankedGuard, RankedMutex, rank};
use crate::watchdog;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar};
use std::thread::{Builder, JoinHandle};

/// See the module documentation.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    threads_max: usize,
    state: RankedMutex<rank::Pool, State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Arc<dyn Work>>,
    /// How many waited when those that had begun were last forgotten.
    left: usize,
    threads: Vec<JoinHandle<()>>,
    /// Threads that have nothing to do.
    idle: usize,
    /// Threads whose work goes on until the database is closed.
    resident: usize,
    is_closed: bool,
    /// How many works were looked at to forget them.
    #[cfg(test)]
    looked_at: usize,
}

impl State {
    /// Forgets what has been run by a thread that waited for it, or given up: all threads may be busy for as long as the
    /// database is open.
    fn forget_begun(&mut self) {
        #[cfg(test)]
        (self.looked_at += self.waiting.len());
        self.waiting.retain(|work| work.is_waiting());
        self.left = self.waiting.len();
    }

    /// The same where there may be many: thousands of tasks wait for a few threads, and each that comes must not look at all others.
    fn forget_begun_of_many(&mut self) {
        if self.waiting.len() > 2 * self.left {
            self.forget_begun();
        }
    }

    /// How many works more could begin at once.
    fn free(&self, threads_max: usize) -> usize {
        (self.idle + threads_max.saturating_sub(self.threads.len())).saturating_sub(self.waiting.len())
    }
}

/// What a thread of the pool can run, whatever the result.
trait Work: Send + Sync {
    /// Runs it, unless it was begun or given up.
    fn run(&self);

    /// Whether it has neither begun nor been given up.
    fn is_waiting(&self) -> bool;
}

/// Work that no thread waits for.
struct Detached(RankedMutex<rank::Task, Option<Box<dyn FnOnce() + Send>>>);

impl Work for Detached {
    fn run(&self) {
        let Some(work) = self.0.lock().take() else { return };
        // The panic's message has been printed.
        let _ = catch_unwind(AssertUnwindSafe(work));
    }

    fn is_waiting(&self) -> bool {
        self.0.lock().is_some()
    }
}

/// What follows work that is polled for: it tells the one that polls, in code of the user, who may give up its task there. So the work has ended
/// then: a task that is given up waits for work that runs, also in the same thread. Not called if the task was given up before.
#[cfg(feature = "async")]
pub(crate) type Behind = Box<dyn FnOnce() + Send>;

/// Work that is polled for.
#[cfg(feature = "async")]
struct Polled(Arc<Job<Behind>>);

#[cfg(feature = "async")]
impl Work for Polled {
    fn run(&self) {
        if !self.0.run_if_waiting(self.0.progress.lock()) {
            return;
        }
        let ended = std::mem::replace(&mut *self.0.progress.lock(), Progress::Over);
        if let Progress::Ended(Ok(behind)) = ended {
            let _ = catch_unwind(AssertUnwindSafe(behind));
        }
    }

    fn is_waiting(&self) -> bool {
        self.0.is_waiting()
    }
}

/// The result of work that may panic.
pub(crate) fn caught<T>(name: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Error::panicked(name)))
}

/// When a thread begins detached work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    Now,
    /// When one is free.
    Later,
    /// No thread can be free for it.
    Never,
}

/// Work that was begun.
pub(crate) struct Task<T> {
    job: Arc<Job<T>>,
}

struct Job<T> {
    name: &'static str,
    progress: RankedMutex<rank::Task, Progress<T>>,
    ended: Condvar,
}

enum Progress<T> {
    Waiting(Box<dyn FnOnce() -> Result<T> + Send>),
    Running,
    Ended(Result<T>),
    /// Its result was taken, or it was given up.
    Over,
}

impl<T: Send> Work for Job<T> {
    fn run(&self) {
        self.run_if_waiting(self.progress.lock());
    }

    fn is_waiting(&self) -> bool {
        matches!(*self.progress.lock(), Progress::Waiting(_))
    }
}

impl<T> Job<T> {
    /// Returns whether it was run here.
    fn run_if_waiting(&self, mut progress: RankedGuard<'_, rank::Task, Progress<T>>) -> bool {
        if !matches!(*progress, Progress::Waiting(_)) {
            return false;
        }
        let Progress::Waiting(work) = std::mem::replace(&mut *progress, Progress::Running) else {
            return false;
        };
        drop(progress);
        let result = caught(self.name, work);
        *self.progress.lock() = Progress::Ended(result);
        self.ended.notify_all();
        true
    }

    /// Waits until it no longer runs.
    fn at_rest(&self) -> RankedGuard<'_, rank::Task, Progress<T>> {
        let mut progress = self.progress.lock();
        while matches!(*progress, Progress::Running) {
            progress = watchdog::wait(&self.ended, progress, self.name);
        }
        progress
    }
}

impl<T> Task<T> {
    /// Returns the result. Runs the work here if no thread has begun it.
    ///
    /// # Errors
    /// What the work returns; [`Error::Poisoned`] if it panicked.
    pub fn wait(self) -> Result<T> {
        self.help();
        match std::mem::replace(&mut *self.job.at_rest(), Progress::Over) {
            Progress::Ended(result) => result,
            _ => Err(Error::Closed),
        }
    }

    /// Runs the work here if no thread has begun it.
    pub fn help(&self) {
        self.job.run_if_waiting(self.job.progress.lock());
    }

    /// Whether the work has ended.
    pub fn has_ended(&self) -> bool {
        matches!(*self.job.progress.lock(), Progress::Ended(_) | Progress::Over)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        // Work that is given up goes without the lock: it may hold other tasks.
        let _given_up = std::mem::replace(&mut *self.job.at_rest(), Progress::Over);
    }
}

impl Pool {
    pub fn new(threads_max: usize) -> Self {
        let shared = Shared { threads_max, state: RankedMutex::default(), more: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Threads that were started.
    #[cfg(all(test, feature = "async"))]
    pub fn thread_count(&self) -> usize {
        self.shared.state.lock().threads.len()
    }

    /// Whether the thread that calls is one of its own.
    pub fn is_own_thread(&self) -> bool {
        POOL.get() == Arc::as_ptr(&self.shared).addr()
    }

    /// Whether it may have threads at all.
    pub fn has_threads(&self) -> bool {
        self.shared.threads_max > 0
    }

    /// Queues `work` for the next free thread. `name`: what a thread that waits for it waits for.
    pub fn submit<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Task<T> {
        let task = Task::new(name, work);
        if self.has_threads() {
            let mut state = self.shared.state.lock();
            state.forget_begun_of_many();
            self.give(&mut state, Arc::clone(&task.job) as Arc<dyn Work>);
        }
        task
    }

    /// Submits work that is polled for and not waited for: a thread runs it, or this one if there is none.
    #[cfg(feature = "async")]
    pub fn submit_polled(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Behind + Send + 'static,
    ) -> Task<Behind> {
        let task = Task::new(name, move || Ok(work()));
        let polled = Arc::new(Polled(Arc::clone(&task.job)));
        let mut has_thread = false;
        if self.has_threads() {
            let mut state = self.shared.state.lock();
            state.forget_begun_of_many();
            self.give(&mut state, Arc::clone(&polled) as Arc<dyn Work>);
            has_thread = !state.threads.is_empty();
        }
        if !has_thread {
            polled.run();
        }
        task
    }

    /// Submits work that no waiting thread will run, for as long as the database is open. `None` if the system provides no thread.
    pub fn submit_resident<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Option<Task<T>> {
        let task = self.submit(name, work);
        let mut state = self.shared.state.lock();
        if state.threads.is_empty() {
            return None;
        }
        state.resident += 1;
        drop(state);
        Some(task)
    }

    /// Submits work that no thread waits for.
    pub fn submit_detached(&self, work: impl FnOnce() + Send + 'static) -> Begun {
        let mut state = self.shared.state.lock();
        if state.is_closed || self.shared.threads_max <= state.resident {
            return Begun::Never;
        }
        state.forget_begun();
        let work = Arc::new(Detached(RankedMutex::new(Some(Box::new(work)))));
        if self.give(&mut state, work) {
            Begun::Now
        } else if state.threads.len() > state.resident {
            Begun::Later
        } else {
            state.waiting.pop_back();
            Begun::Never
        }
    }

    /// Queues detached work behind what waits for the thread of this pool that calls. Returns `false`, and queues nothing, if nothing waits.
    #[cfg(feature = "async")]
    pub fn submit_behind(&self, work: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.shared.state.lock();
        state.forget_begun_of_many();
        if state.is_closed || state.threads.is_empty() || state.waiting.is_empty() {
            return false;
        }
        self.give(&mut state, Arc::new(Detached(RankedMutex::new(Some(Box::new(work))))));
        true
    }

    /// Submits work if a thread is free for it now.
    pub fn try_submit<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Option<Task<T>> {
        let mut state = self.shared.state.lock();
        state.forget_begun();
        if state.free(self.shared.threads_max) == 0 {
            return None;
        }
        let task = Task::new(name, work);
        let has_thread = self.give(&mut state, Arc::clone(&task.job) as Arc<dyn Work>);
        if !has_thread {
            state.waiting.pop_back();
            return None;
        }
        drop(state);
        Some(task)
    }

    /// Queues work, and sees to it that there is a thread for it, if there may be one more. Returns whether one is free.
    fn give(&self, state: &mut State, work: Arc<dyn Work>) -> bool {
        state.waiting.push_back(work);
        let lacks = state.waiting.len() > state.idle;
        if lacks && !state.is_closed && state.threads.len() < self.shared.threads_max {
            let shared = Arc::clone(&self.shared);
            let name = format!("sapwood-{}", state.threads.len() + 1);
            match Builder::new().name(name).spawn(move || shared.run()) {
                Ok(thread) => {
                    state.threads.push(thread);
                    // Until it runs it is as good as idle.
                    state.idle += 1;
                }
                Err(error) => tracing::warn!(%error, "no thread for background work"),
            }
        }
        self.shared.more.notify_one();
        state.waiting.len() <= state.idle
    }

    /// Ends the threads, each after the work that it has and what waits. Called by a thread of the pool, in detached
    /// work, it does not wait for that thread.
    pub fn close(&self) {
        let mut state = self.shared.state.lock();
        state.is_closed = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.shared.more.notify_all();
        let this = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != this) {
            // A thread ends without a panic: it catches those of its work.
            let _ = thread.join();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Perhaps by one of its own threads, which cannot wait for itself.
        self.shared.state.lock().is_closed = true;
        self.shared.more.notify_all();
    }
}

impl<T: Send + 'static> Task<T> {
    fn new(name: &'static str, work: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        let progress = RankedMutex::new(Progress::Waiting(Box::new(work)));
        Self { job: Arc::new(Job { name, progress, ended: Condvar::new() }) }
    }
}

thread_local! {
    /// The pool that this thread is of, as an address that is only compared.
    static POOL: Cell<usize> = const { Cell::new(0) };
}

impl Shared {
    /// What a thread does.
    fn run(&self) {
        POOL.set(std::ptr::from_ref(self).addr());
        let mut state = self.state.lock();
        loop {
            if let Some(work) = state.waiting.pop_front() {
                state.idle -= 1;
                drop(state);
                work.run();
                drop(work);
                state = self.state.lock();
                state.idle += 1;
            } else if state.is_closed {
                return;
            } else {
                state = state.wait(&self.more);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread::current;
    use std::time::Duration;

    /// Work that a thread has begun, and that ends when it is told to.
    fn blocked(pool: &Pool) -> (impl Fn() + use<>, Task<bool>) {
        let (go, goes) = channel::<()>();
        let (begun, begins) = channel();
        let task = pool.submit("a test", move || {
            let _ = begun.send(());
            Ok(goes.recv_timeout(Duration::from_secs(60)).is_ok())
        });
        begins.recv_timeout(Duration::from_secs(60)).expect("a thread begins it");
        (move || _ = go.send(()), task)
    }

    #[test]
    fn there_are_never_more_threads_than_allowed_and_they_stay() {
        let pool = Pool::new(2);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            let tasks: Vec<_> =
                (0..5).map(|_| pool.submit("a test", || Ok(current().name().map(str::to_owned)))).collect();
            while !tasks.iter().all(Task::has_ended) {
                std::thread::yield_now();
            }
            seen.extend(tasks.into_iter().filter_map(|task| task.wait().unwrap()));
        }
        assert!(seen.iter().all(|name| ["sapwood-1", "sapwood-2"].contains(&name.as_str())), "{seen:?}");
        pool.close();
    }

    #[test]
    fn a_waiting_thread_does_the_work_if_no_thread_is_free() {
        let pool = Pool::new(1);
        let (go, first) = blocked(&pool);
        let here = pool.submit("a test", || Ok(current().id())).wait().unwrap();
        assert_eq!(here, current().id());
        assert!(pool.try_submit("a test", || Ok(())).is_none());
        go();
        assert!(first.wait().unwrap());
        pool.close();
        assert!(Pool::new(0).submit_resident("a test", || Ok(())).is_none());
        assert_eq!(Pool::new(0).submit("a test", || Ok(current().id())).wait().unwrap(), current().id());
        assert!(Pool::new(0).try_submit("a test", || Ok(())).is_none());
    }

    #[test]
    fn a_panic_is_an_error_and_the_thread_stays() {
        let pool = Pool::new(1);
        let task = pool.try_submit("a test", || -> Result<()> { panic!("on purpose") }).unwrap();
        while !task.has_ended() {
            std::thread::yield_now();
        }
        assert!(matches!(task.wait(), Err(Error::Poisoned { .. })));
        let name = loop {
            if let Some(task) = pool.try_submit("a test", || Ok(current().name().map(str::to_owned))) {
                while !task.has_ended() {
                    std::thread::yield_now();
                }
                break task.wait().unwrap();
            }
        };
        assert_eq!(name.as_deref(), Some("sapwood-1"));
    }

    /// A single thread is busy with the background work for as long as the database is open.
    #[test]
    fn what_was_run_in_place_of_a_busy_thread_is_forgotten() {
        let pool = Pool::new(1);
        let (go, first) = blocked(&pool);
        (0..100)
            .for_each(|number| assert_eq!(pool.submit("a test", move || Ok(number)).wait().unwrap(), number));
        let left = pool.shared.state.lock().waiting.len();
        assert!(left <= 1, "{left} are kept");
        go();
        first.wait().unwrap();
    }

    /// Each looked at all that waited before it.
    #[test]
    fn many_works_that_wait_are_not_looked_at_by_each_that_comes() {
        let pool = Pool::new(1);
        let (go, first) = blocked(&pool);
        let tasks: Vec<_> = (0..10_000).map(|number| pool.submit("a test", move || Ok(number))).collect();
        let looked_at = pool.shared.state.lock().looked_at;
        assert!(looked_at <= 4 * tasks.len(), "{looked_at} looks");
        // Those that their waiters run are forgotten nevertheless.
        for (number, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.wait().unwrap(), number);
        }
        (0..20_000)
            .for_each(|number| assert_eq!(pool.submit("a test", move || Ok(number)).wait().unwrap(), number));
        let left = pool.shared.state.lock().waiting.len();
        assert!(left < 20_000, "{left} are kept");
        go();
        assert!(first.wait().unwrap());
    }

    /// What it borrows may be gone afterwards.
    #[test]
    fn work_without_a_waiter_ends_or_does_not_begin() {
        let pool = Pool::new(1);
        let (go, first) = blocked(&pool);
        let (begun, begins) = channel();
        drop(pool.submit("a test", move || {
            let _ = begun.send(());
            Ok(())
        }));
        assert!(begins.recv().is_err(), "it never begins");
        std::thread::scope(|scope| {
            let dropper = scope.spawn(|| drop(first));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!dropper.is_finished(), "it is still running");
            go();
        });
    }

    #[test]
    fn detached_work_is_begun_when_a_thread_is_free_and_by_no_other() {
        assert_eq!(Pool::new(0).submit_detached(|| ()), Begun::Never);
        let pool = Pool::new(1);
        let (go, goes) = channel::<()>();
        let resident =
            pool.submit_resident("a test", move || Ok(goes.recv_timeout(Duration::from_secs(60)).is_ok()));
        assert_eq!(pool.submit_detached(|| panic!("it is not to be run")), Begun::Never);
        assert!(pool.try_submit("a test", || Ok(())).is_none());
        _ = go.send(());
        assert!(resident.unwrap().wait().unwrap());

        let pool = Pool::new(1);
        let (go, first) = blocked(&pool);
        let (begun, begins) = channel();
        assert_eq!(pool.submit_detached(move || _ = begun.send(())), Begun::Later);
        assert!(begins.try_recv().is_err());
        go();
        assert!(first.wait().unwrap());
        begins.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    /// The last handle of a database may be dropped there.
    #[test]
    fn a_pool_may_be_closed_by_its_own_thread_in_detached_work() {
        let pool = Arc::new(Pool::new(2));
        let (closed, closes) = channel();
        let its = Arc::clone(&pool);
        let work = move || {
            its.close();
            _ = closed.send(());
        };
        assert_eq!(pool.submit_detached(work), Begun::Now);
        closes.recv_timeout(Duration::from_secs(10)).expect("it does not wait for itself");
        assert_eq!(pool.submit_detached(|| ()), Begun::Never);
    }

    #[test]
    fn a_pool_may_be_let_go_of_by_its_own_thread() {
        let pool = Arc::new(Pool::new(1));
        let (go, goes) = channel::<()>();
        let held = Arc::clone(&pool);
        let task = pool.submit("a test", move || {
            let _ = goes.recv_timeout(Duration::from_secs(10));
            drop(held);
            Ok(())
        });
        drop(pool);
        let _ = go.send(());
        task.wait().unwrap();
    }
}
