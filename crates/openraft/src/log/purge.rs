//! Purging a log, and when that is on the disk.
//!
//! openraft 0.9 gives a snapshot to the state machine and purges the log behind it at once, while the snapshot is installed: seconds to minutes,
//! or it fails. A log that was purged beyond the state is one that the state never comes to: the entries between are gone. So:
//!
//! ```text
//! purge up to X ──▶ the state has X: removed, durable ──▶ returns
//!              └──▶ it has not: hidden from readers ──▶ returns … the snapshot is installed ──▶ removed
//! ```
//! Invariants:
//! 1. On the disk nothing is purged that the state has not, durably.
//! 2. What a purge hides is not given out any more, as if it had been removed.
//! 3. Behind a purge that emptied the log nothing is appended before the state has come to it. An append that was acknowledged would lie
//!    behind a hole after a crash, so it would be lost, and others have counted on it. Where entries up to X and behind it were
//!    there, they stay, and what follows them has no hole before it.

use super::{Ends, Log};
use crate::error::{Error, Result};
use crate::record::Kind;
use openraft::{LogId, RaftTypeConfig};
use sapwood::{Batch, Durability};
use serde::Serialize;

/// A purge that waits for the state.
pub(super) struct Waiting<C: RaftTypeConfig> {
    upto: LogId<C::NodeId>,
    /// Whether it empties the log.
    is_all: bool,
}

impl<C: RaftTypeConfig> Clone for Waiting<C> {
    fn clone(&self) -> Self {
        Self { upto: self.upto.clone(), is_all: self.is_all }
    }
}

impl<C: RaftTypeConfig> Log<C> {
    /// Changes the records beside the entries, and waits for what it asks for.
    pub(super) fn commit(
        &self,
        durability: Durability,
        change: impl FnOnce(&mut Batch) -> Result<()>,
    ) -> Result<()> {
        let mut batch = self.lease.shared.log_db.batch();
        change(&mut batch)?;
        Ok(batch.durability(durability).commit()?)
    }

    pub(super) fn put<T: Serialize>(&self, batch: &mut Batch, kind: Kind, value: &T) -> Result<()> {
        batch.insert(&self.lease.shared.log_meta, kind.key(self.lease.group), kind.encode(value)?);
        Ok(())
    }

    pub(super) fn purge(&self, log_id: LogId<C::NodeId>) -> Result<()> {
        let mut ends = self.ends.lock();
        if ends.purged.as_ref().is_some_and(|purged| *purged >= log_id) {
            return Ok(());
        }
        // Of an earlier leader than the snapshot that brings the state here: they conflict with it, also those of higher indexes. Or of a later one, and not as many:
        // a leader behind that has committed what the earlier one had appended. openraft takes the log to be empty then.
        let conflicts =
            |last: &LogId<C::NodeId>| *last < log_id || last.index <= log_id.index && *last != log_id;
        let is_all = ends.last.as_ref().is_none_or(conflicts);
        let purge = Waiting { upto: log_id, is_all };
        // Under the lock: an installation that ends from here on finds what waits for it.
        let applied: Option<LogId<C::NodeId>> = self.lease.read(&self.lease.shared.meta, Kind::Applied)?;
        if applied.as_ref() < Some(&purge.upto) {
            ends.purge(&purge);
            ends.waiting = Some(purge);
            return Ok(());
        }
        drop(ends);
        self.remove(&purge)?;
        let mut ends = self.ends.lock();
        ends.purge(&purge);
        // One that waited for less.
        ends.waiting = None;
        drop(ends);
        self.waited.notify_waiters();
        Ok(())
    }

    /// The state is durably that after `applied`: what has waited for it is purged.
    pub(crate) fn state_came_to(&self, applied: Option<&LogId<C::NodeId>>) -> Result<()> {
        let waiting = self.ends.lock().waiting.clone();
        let Some(purge) = waiting.filter(|purge| Some(&purge.upto) <= applied) else { return Ok(()) };
        self.remove(&purge)?;
        let mut ends = self.ends.lock();
        // openraft may have another snapshot by now, which is installed next.
        if ends.waiting.as_ref().is_some_and(|waiting| waiting.upto == purge.upto) {
            ends.waiting = None;
        }
        drop(ends);
        self.waited.notify_waiters();
        Ok(())
    }

    /// The state comes to nothing more: its machine has failed, or was dropped.
    pub(crate) fn state_is_gone(&self) {
        self.ends.lock().is_state_gone = true;
        self.waited.notify_waiters();
    }

    /// Returns once entries may follow what is there.
    pub(super) async fn wait_to_append(&self) -> Result<()> {
        loop {
            let mut waited = std::pin::pin!(self.waited.notified());
            // From here on: what happens between the look and the wait counts.
            waited.as_mut().enable();
            {
                let ends = self.ends.lock();
                let Some(purge) = ends.waiting.as_ref().filter(|purge| purge.is_all) else { return Ok(()) };
                if ends.is_state_gone {
                    return Err(Error::NotInstalled { group: self.lease.group, index: purge.upto.index });
                }
            }
            waited.await;
        }
    }

    /// The index from which on entries on the disk are of the log, if any are.
    pub(super) fn first_there(&self) -> Option<u64> {
        match &self.ends.lock().waiting {
            None => Some(0),
            Some(purge) if purge.is_all => None,
            Some(purge) => purge.upto.index.checked_add(1),
        }
    }

    fn remove(&self, purge: &Waiting<C>) -> Result<()> {
        if self.lease.shared.two {
            self.lease.shared.db.sync()?;
        }
        let last = if purge.is_all { u64::MAX } else { purge.upto.index };
        self.commit(Durability::Immediate, |batch| {
            let purged = self.lease.entry_key(0)..=self.lease.entry_key(last);
            batch.remove_range(&self.lease.shared.log, purged);
            self.put(batch, Kind::Purged, &purge.upto)
        })
    }
}

impl<C: RaftTypeConfig> Ends<C> {
    fn purge(&mut self, purge: &Waiting<C>) {
        if purge.is_all {
            self.last = Some(purge.upto.clone());
        }
        self.purged = Some(purge.upto.clone());
    }
}
