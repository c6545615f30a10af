//! Tells a process from the children that were forked from it. They have copies of everything that it has open, but
//! none of its threads, and their descriptors are the same open files: what such a child releases is released for
//! its parent.
//!
//! Invariant: the answer costs one load, so that it can be asked with each call. A child is known by a counter in its
//! own memory, which the C library's `fork` increments there. (One that was made by a bare `clone` is not known.)

use crate::{Error, Result};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How many forks there are between the first of our processes and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);
static WATCHED: Once = Once::new();

/// The process that has opened something.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    forks: u32,
    id: u32,
}

impl Process {
    /// The process that asks.
    pub fn this() -> Self {
        WATCHED.call_once(watch);
        Self { forks: FORKS.load(Relaxed), id: std::process::id() }
    }

    /// Whether another process asks now: one that was forked from this one.
    pub fn is_forked(&self) -> bool {
        FORKS.load(Relaxed) != self.forks
    }

    /// Refuses what a forked process may not do.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn check(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked { opener: self.id }) } else { Ok(()) }
    }
}

/// What is of the process that made it: a forked child cannot have it, and leaves it alone when it drops it.
pub(crate) struct OfProcess<T> {
    value: Option<T>,
    process: Process,
}

impl<T> OfProcess<T> {
    pub fn new(value: T) -> Self {
        Self { value: Some(value), process: Process::this() }
    }

    /// The value. Another process gets [`Error::Forked`].
    pub fn take(mut self) -> Result<T> {
        self.process.check()?;
        self.value.take().ok_or_else(|| Error::Invalid("it was taken before".to_owned()))
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process.is_forked() {
            std::mem::forget(self.value.take());
        }
    }
}

#[cfg(all(unix, not(miri)))]
fn watch() {
    type Handler = Option<unsafe extern "C" fn()>;
    unsafe extern "C" {
        // The libc crate lacks it on Linux.
        fn pthread_atfork(before: Handler, in_parent: Handler, in_child: Handler) -> libc::c_int;
    }
    unsafe extern "C" fn forked() {
        FORKS.fetch_add(1, Relaxed);
    }
    // SAFETY: the handler does what a signal handler may do, and stays as long as the program. If there is no memory for it,
    // children are not known.
    let failed = unsafe { pthread_atfork(None, None, Some(forked)) };
    if failed != 0 {
        tracing::warn!("children of this process will not be known: error {failed}");
    }
}

#[cfg(not(all(unix, not(miri))))]
fn watch() {}
