//! Work beside other work: on a thread of its own, if the system gives one, and otherwise when its result is asked for.
//!
//! Invariant: whatever was begun is over when the scope ends.

use crate::error::{Error, Result};
use std::thread::{Builder, Scope};

/// Waits for what was begun, and says how it went. If it panicked: [`Error::Closed`].
pub(crate) type Wait<'a, T = ()> = Box<dyn FnOnce() -> Result<T> + 'a>;

/// Begins `work`.
pub(crate) fn beside<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl Fn() -> Result<T> + Copy + Send + 'scope,
) -> Wait<'scope, T> {
    match Builder::new().name(name.into()).spawn_scoped(scope, work) {
        Ok(thread) => Box::new(move || thread.join().unwrap_or(Err(Error::Closed))),
        Err(_) => Box::new(work),
    }
}
