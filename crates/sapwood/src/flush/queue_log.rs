//! The log that a frozen queue came from: durable before a part of the queue is, and removed when all of it is in the trees; and the generation
//! behind it, which is begun durably before the log begins there.
//!
//! Invariant: after a sync that failed writes are refused, whatever becomes of the flush.

use crate::beside::Wait;
use crate::commit::Log;
use crate::engine::Engine;
use crate::error::{Error, Result};
use std::sync::atomic::Ordering::Relaxed;

/// The sync of the log that a frozen queue came from.
pub(super) enum SyncLog<'a> {
    /// On its way, and to be waited for.
    Begun(Wait<'a>),
    /// Only before a portion that is not all.
    IfNeeded,
    Done,
}

impl Engine {
    /// Whether the log of the frozen queue is to be synced beside the first portion: others will follow, or commits are durable one by one,
    /// and the next of them would have to wait for it.
    pub(super) fn is_log_synced_early(&self, wal_low: u64) -> bool {
        let has_durable = |log: &Log| log.wal.has_synced_below(wal_low);
        self.flush.in_portions.load(Relaxed) || self.log.lock().as_ref().is_some_and(has_durable)
    }

    /// Makes the log durable that the frozen queue came from.
    pub(super) fn sync_log_below(&self, wal_low: u64) -> Result<()> {
        let unsynced = self.log.lock().as_ref().map(|log| log.wal.unsynced()).unwrap_or_default();
        for old in unsynced.into_iter().filter(|old| old.generation() < wal_low) {
            // Whatever becomes of the flush: no other sync would tell of this any more.
            old.sync().inspect_err(|error| self.poison(error))?;
            if let Some(log) = self.log.lock().as_mut() {
                log.wal.mark_synced(old.generation());
            }
        }
        Ok(())
    }

    /// Has the generation begun that follows the frozen queue's log, before the manifest says that the log begins there. Whoever froze the
    /// queue only wrote its header, since everybody waited for him.
    pub(super) fn begin_log(&self, generation: u64) -> Result<()> {
        let guard = self.log.lock();
        let Some(log) = guard.as_ref() else {
            // While it is replayed there is none yet, and what is noted is begun. But who closes the database has taken it, and nobody can know.
            let is_begun = self.state.load().version.wal_high >= generation;
            return if is_begun { Ok(()) } else { Err(Error::Closed) };
        };
        let unbegun = log.wal.unbegun(generation);
        drop(guard);
        let Some(unbegun) = unbegun else { return Ok(()) };
        unbegun.sync().inspect_err(|error| self.poison(error))?;
        if let Some(log) = self.log.lock().as_mut() {
            log.wal.mark_begun(generation);
        }
        Ok(())
    }

    /// Removes generations of the log that are no longer needed.
    pub(super) fn shorten_log(&self, low: u64) {
        let Some(old) = self.log.lock().as_mut().map(|log| log.wal.take_below(low)) else { return };
        // Nobody waits for the log meanwhile: what goes may have many pages that are not written.
        let (left, result) = old.remove(&*self.volume);
        if let Some(log) = self.log.lock().as_mut() {
            log.wal.put_back(left);
            self.note_log(log);
        }
        self.try_balance_memory();
        if let Err(error) = result {
            tracing::warn!(%error, "an old part of the log was not removed; the next open does it");
        }
    }
}
