//! What a writer does for followers: processes that read the database while this one writes it (`Builder::follow`).
//!
//! ```text
//! writer                                             follower
//! sync of the log, edit of the manifest              creates follower-…, which needs all epochs
//!   └▶ DURABLE: up to here ───────────────────────▶  reads DURABLE, then manifest and log up to there
//!   └▶ looks at follower-… ◀──────────────────────   writes the oldest epoch that it needs, and a count again and again
//!   └▶ shows the version, lets go of segments
//! ```
//! Nothing waits for a follower. What dies while one is registered waits in [`Slots`] until no follower has a version with it. A
//! follower whose file does not change for the time of the lease is removed, and so is each one when the disk is full.
//!
//! Invariants:
//! 1. `DURABLE` says only what a power loss leaves (or, after one, that it does not know). It says that an edit is durable before the followers are looked at, and they are
//!    before the version is shown: a follower that is registered later reads this version or a later one.
//! 2. A registration is removed before the first place is used again that it protected. So a follower that finds other bytes than
//!    it expected finds its file gone too; unless that cannot be removed, and the database is opened without direct I/O after a kill.
//! 3. Failures here are no failures of the database: followers then see less, or more is kept for them. But a `DURABLE` of before that can
//!    neither be replaced nor removed keeps a writer out: it may say that all is durable.

pub(crate) mod durable;
pub(crate) mod registration;

use crate::database_id::DatabaseId;
use crate::error::Result;
use crate::lock_order::{RankedMutex, rank};
use crate::operation::SeqNo;
use crate::storage::slots::Slots;
use durable::{Durable, Publication};
use psync::Volume;
use registration::{Registered, is_registration};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::{Duration, Instant};

/// See the module.
pub(crate) struct Followers {
    volume: Arc<dyn Volume>,
    slots: Arc<Slots>,
    /// For how long a registration counts that does not change.
    lease: Duration,
    publication: RankedMutex<rank::Publication, Option<Publication>>,
    /// What the registrations said when they last changed.
    seen: RankedMutex<rank::Followers, HashMap<String, Seen>>,
}

struct Seen {
    said: Option<Registered>,
    since: Instant,
}

impl Followers {
    pub fn new(volume: Arc<dyn Volume>, slots: Arc<Slots>, lease: Duration) -> Self {
        Self { volume, slots, lease, publication: RankedMutex::default(), seen: RankedMutex::default() }
    }

    /// Begins, before the first edit: so far a database is durable that is being opened.
    ///
    /// # Errors
    /// `DURABLE` could neither be written nor removed.
    pub fn begin(&self, database: DatabaseId, durable: Durable) -> Result<()> {
        *self.publication.lock() = Some(Publication::begin(&self.volume, database, durable)?);
        fence(SeqCst);
        let mut seen = self.seen.lock();
        let oldest = self.oldest(&mut seen);
        if oldest.is_some_and(|oldest| oldest < durable.epoch) {
            self.slots.pin_all_free(durable.epoch);
        }
        self.slots.pin(oldest, durable.epoch);
        Ok(())
    }

    /// Operations up to this one are durable.
    pub fn note_durable(&self, seq: SeqNo) {
        if let Some(publication) = self.publication.lock().as_mut() {
            publication.reach(Durable { epoch: 0, seq }, false);
        }
    }

    /// The version of this epoch is durable, and is shown after this.
    pub fn note_version(&self, epoch: u64) {
        if let Some(publication) = self.publication.lock().as_mut() {
            publication.reach(Durable { epoch, seq: 0 }, true);
        }
        fence(SeqCst);
        self.look(epoch);
    }

    /// The same, of operations a part of which will be in the trees: followers must see all of them then.
    pub fn note_durable_part(&self, seq: SeqNo) {
        if let Some(publication) = self.publication.lock().as_mut() {
            publication.reach(Durable { epoch: 0, seq }, true);
        }
    }

    /// Looks at what followers need, and frees what they do not. `epoch`: of the newest durable version.
    pub fn look(&self, epoch: u64) {
        // What another thread has seen before is older than what this one sees.
        let mut seen = self.seen.lock();
        let oldest = self.oldest(&mut seen);
        self.slots.pin(oldest, epoch);
    }

    /// Looks again if anything waits for followers.
    pub fn look_again(&self) {
        if self.slots.waiting() > 0 {
            self.look(0);
        }
    }

    /// The oldest epoch that a follower needs, if there are followers.
    fn oldest(&self, seen: &mut HashMap<String, Seen>) -> Option<u64> {
        let names = match self.volume.names() {
            Ok(names) => names,
            Err(error) => {
                tracing::warn!(%error, "it is unknown what followers need, so everything is kept");
                return Some(0);
            }
        };
        let names = names.into_iter().filter(|name| is_registration(name));
        let mut found = HashMap::new();
        let mut oldest = None;
        for name in names {
            let said = match Registered::read(&*self.volume, &name) {
                Ok(said) => said,
                // It has just ended.
                Err(psync::Error::NotFound { .. }) => continue,
                Err(_) => None,
            };
            let now = Instant::now();
            let since = seen.get(&name).filter(|seen| seen.said == said).map_or(now, |seen| seen.since);
            if now.duration_since(since) >= self.lease && self.is_removed(&name) {
                tracing::warn!(file = name, "a follower has not been heard of for the time of its lease");
                continue;
            }
            // One that cannot be read may need anything.
            let epoch = said.map_or(0, |said| said.epoch);
            oldest = Some(oldest.map_or(epoch, |oldest: u64| oldest.min(epoch)));
            found.insert(name, Seen { said, since });
        }
        *seen = found;
        oldest
    }

    /// Removes a registration. Returns whether it is gone.
    fn is_removed(&self, name: &str) -> bool {
        match self.volume.remove(name) {
            Ok(()) | Err(psync::Error::NotFound { .. }) => true,
            Err(error) => {
                tracing::warn!(%error, file = name, "a follower's file was not removed, so what it needs is kept");
                false
            }
        }
    }

    /// Removes all registrations if places wait for them: there is no space for what followers need. Returns whether a place waits no more.
    pub fn revoke(&self) -> bool {
        let waiting = self.slots.waiting();
        if waiting > 0 {
            self.end_all();
        }
        self.slots.waiting() < waiting
    }

    /// Removes all registrations. Returns whether they are gone.
    pub fn revoke_all(&self) -> bool {
        let Ok(names) = self.volume.names() else { return false };
        let mut are_gone = true;
        for name in names.into_iter().filter(|name| is_registration(name)) {
            if self.is_removed(&name) {
                tracing::warn!(file = name, "there is no space for what a follower needs");
            } else {
                are_gone = false;
            }
        }
        are_gone
    }

    /// Removes all registrations, and lets go of what they needed.
    pub fn end_all(&self) {
        self.revoke_all();
        self.look(0);
    }

    /// Says for the last time what is durable.
    pub fn close(&self) {
        if let Some(mut publication) = self.publication.lock().take() {
            publication.reach(Durable::default(), true);
        }
    }
}
