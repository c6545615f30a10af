//! Whether all that a tree was told to write was written.
//!
//! Memory may lack what was on its way to the device when a write failed, and a sync that succeeds proves nothing for one that
//! failed before it: so a tree that keeps changes in memory does nothing more then until it is recovered, and never says that
//! what was lost is durable. A pool that writes what it evicts shares the flag of its tree, since reads evict too. A read that
//! fails before an update has changed anything is no such failure: the way down is found first.

use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// See the module. A clone is the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sound {
    has_failed: Arc<AtomicBool>,
}

impl Sound {
    /// An error if something failed earlier.
    pub fn check(&self) -> Result<()> {
        if self.has_failed.load(Relaxed) {
            return Err(Error::Invalid("an earlier operation failed: recover the tree first".to_owned()));
        }
        Ok(())
    }

    /// Remembers whether something that may have written failed.
    pub fn after<T>(&self, done: Result<T>) -> Result<T> {
        if done.is_err() {
            self.has_failed.store(true, Relaxed);
        }
        done
    }

    /// Does something that may write, unless something failed earlier.
    pub fn work<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check()?;
        self.after(work())
    }
}
