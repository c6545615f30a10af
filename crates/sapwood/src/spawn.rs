//! Runs work on a thread of its own if the system provides one; otherwise when the result is asked for.
//!
//! Invariant: all work has ended when the scope ends.

use crate::error::{Error, Result};
use std::thread::{Builder, Scope};

/// Waits for the work and returns its result; [`Error::Poisoned`] if it panicked.
pub(crate) type Wait<'a, T = ()> = Box<dyn FnOnce() -> Result<T> + 'a>;

/// Starts `work`.
pub(crate) fn beside<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl Fn() -> Result<T> + Copy + Send + 'scope,
) -> Wait<'scope, T> {
    let name = name.to_string();
    match Builder::new().name(name.clone()).spawn_scoped(scope, work) {
        Ok(thread) => Box::new(move || thread.join().unwrap_or_else(|_| Err(Error::panicked(&name)))),
        Err(_) => Box::new(work),
    }
}
