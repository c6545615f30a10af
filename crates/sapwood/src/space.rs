//! Disk space beside the trees: the [reserve](crate::reserve) that lets a full disk be emptied, and giving free space back to the file
//! system. What a portion of background work may take stands in [`crate::background::portions`].
//!
//! Invariant: space goes back only if no manifest that the next open may read leads there.

use crate::current_state::CurrentState;
use crate::error::Result;
use crate::followers::Followers;
use crate::health::Health;
use crate::pool::Pool;
use crate::publish::Publisher;
pub(crate) use crate::reserve::User as ReserveUser;
use crate::reserve::{Reserve, Work};
use crate::storage::slots::{Extent, GRANULE, Slots, granules};
use crate::storage::writer::segment_capacity;
use crate::wal::KeptGenerations;
use psync::{FileId, Volume};
use std::sync::Arc;

/// Number of granules (64 MiB) whose space is given back before checking again whether more is needed, or other work
/// is due.
pub(crate) const GRANULES: usize = 1024;
/// Segments whose space a running flush keeps when the log runs out of space: for a small portion, and what the
/// collector copies of it.
const SEGMENTS_OF_A_FLUSH: u64 = 4;
/// Snapshots matter if older versions hold this fraction (1/8) more granules than there are, and a few: some segments of
/// a small database. Less is what readers hold for a moment.
const HELD: usize = 8;
const FEW_GRANULES: usize = 32;

/// The space of an open database. See the module documentation.
pub(crate) struct Space {
    pub volume: Arc<dyn Volume>,
    pub data: FileId,
    pub slots: Arc<Slots>,
    pub reserve: Arc<Reserve>,
    pub followers: Arc<Followers>,
    pub health: Arc<Health>,
    pub state: Arc<CurrentState>,
    pub publisher: Arc<Publisher>,
    pub pool: Arc<Pool>,
    /// What is kept of the log for the change feed.
    pub kept_log: KeptGenerations,
}

impl Space {
    /// Number of free granules whose space is kept for the writer. Giving space back and allocating it again would
    /// delay both the collector and the writer. Keeps a 128th of the live bytes and, unless idle, as many
    /// more granules as are missing to the peak use during this flush or the
    /// previous one.
    pub fn granules_to_keep(&self, is_idle: bool) -> usize {
        let version = &self.state.load().version;
        let live = version.live_bytes();
        let again = if is_idle || !self.pool.has_threads() { 0 } else { self.slots.below_peak() };
        // In whole segments: a small database keeps none.
        let capacity = segment_capacity(live, version.span);
        granules(live / 128 / capacity * capacity) as usize + again
    }

    /// Whether more space is kept than an idle database needs, and it may be given back.
    pub fn keeps_space(&self) -> bool {
        self.followers.look_again();
        self.keeps_space_as_known()
    }

    /// The same, without looking at what followers need now, which is in files.
    pub fn keeps_space_as_known(&self) -> bool {
        self.slots.dirty_count() > self.granules_to_keep(true) && self.health.check_writable().is_ok()
    }

    /// The disk is full: gives back all space that can be spared.
    pub fn reclaim_space(&self) {
        self.publisher.give_up_next_manifest();
        self.kept_log.give_up_oldest(&*self.volume);
        self.followers.revoke();
        self.reclaim(0);
    }

    /// Gives the space of all free granules but `keep` back to the file system, with one call of some milliseconds
    /// for 16 MiB. Only for a full disk and for closing, where waiting threads could not go on without it.
    /// Elsewhere, space is given back in steps.
    pub fn reclaim(&self, keep: usize) {
        self.reclaim_some(keep, usize::MAX);
    }

    /// Gives back at most `most` granules. Returns in how many places.
    pub fn reclaim_some(&self, keep: usize, most: usize) -> usize {
        self.followers.look_again();
        loop {
            let slots = self.slots.take_dirty(keep, most);
            // After a failed manifest write it is unknown whether the next open will see an edit that needs
            // these slots. A failing thread poisons the engine before it returns its slots, so this check is
            // not too early.
            if self.health.check_writable().is_err() {
                self.slots.still_dirty(slots);
                return 0;
            }
            if slots.is_empty() {
                return 0;
            }
            let given_back = slots.iter().filter(|place| self.release(**place)).count();
            // Those that keep their space as well, or they would be tried again and again: it serves the work that
            // takes the slot next.
            self.slots.cleaned(slots);
            if given_back > 0 {
                return given_back;
            }
        }
    }

    /// Cuts off the end of the data file if it is free and its space was given back. As with that, the edit that has
    /// freed it is durable, and no version, snapshot or attempt holds anything of it.
    pub fn cut_data(&self) {
        if self.health.check_writable().is_err() {
            return;
        }
        let cut = self.slots.cut_off(|end| self.volume.resize(self.data, u64::from(end) * GRANULE));
        if let Err(error) = cut {
            tracing::warn!(%error, path = %self.health.path(), "the free end of the data file was not cut off");
        }
    }

    /// Gives a place's space back. Returns whether that was possible.
    fn release(&self, place: Extent) -> bool {
        let at = place.bytes().start;
        let released = self.volume.release(self.data, place.bytes());
        released.inspect_err(|error| tracing::warn!(%error, at, "free space was not given back")).is_ok()
    }

    /// Number of free granules whose space a running flush keeps, however full the disk is.
    fn granules_of_a_flush(&self) -> usize {
        let version = &self.state.load().version;
        let capacity = segment_capacity(version.live_bytes(), version.span);
        let of_a_flush = granules(SEGMENTS_OF_A_FLUSH * capacity) as usize;
        self.granules_to_keep(true).max(of_a_flush)
    }

    /// Runs work on the log. If the disk is full, gives the log the space that is kept for the trees, a little
    /// at a time, and tries again. Keeps what a running flush needs to finish, since only flushes shorten the
    /// log.
    pub fn with_kept_space<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match work() {
                Err(error) if error.is_disk_full() => {
                    let keep =
                        if self.state.load().frozen.is_some() { self.granules_of_a_flush() } else { 0 };
                    if self.reclaim_some(keep, GRANULES) == 0
                        && !self.publisher.give_up_next_manifest()
                        && !self.kept_log.give_up_oldest(&*self.volume)
                        && !self.followers.revoke()
                    {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
    }

    /// Runs work on the log. If the disk is full, gives it the space that is kept for the trees, then a part of the
    /// reserve, if it is such `work`.
    pub fn with_space_for<T>(
        &self,
        work: Work,
        mut run: impl FnMut() -> Result<T>,
        is_it: impl Fn() -> bool,
    ) -> Result<T> {
        loop {
            match self.with_kept_space(&mut run) {
                Err(error) if error.is_disk_full() && is_it() && self.reserve.give_some(work) => {}
                result => return result,
            }
        }
    }

    /// Makes the reserve whole if there is space for it, also with what is kept for the trees: they get it back from the reserve.
    pub fn restore_reserve(&self) {
        while !self.reserve.is_whole()
            && let Err(error) = self.reserve.grow(0)
        {
            let lacks = granules(self.reserve.lacks()) as usize;
            if !error.is_disk_full()
                || self.reserve.is_in_use()
                || self.reclaim_some(self.granules_of_a_flush(), lacks.max(1)) == 0
            {
                tracing::debug!(%error, path = %self.health.path(), "puts are refused until there is space for the reserve");
                return;
            }
        }
    }

    /// Runs work that frees space and can be begun again, if the disk is full with the space of the reserve.
    pub fn with_reserve<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        let mut user = self.reserve.user();
        loop {
            match work() {
                Err(error)
                    if error.is_disk_full()
                        && (user.gets_space() || self.kept_log.give_up_oldest(&*self.volume)) =>
                {
                    self.reclaim_space();
                }
                result => {
                    drop(user);
                    self.restore_reserve();
                    return result;
                }
            }
        }
    }

    /// Whether snapshots keep much that has died since, so that copies of nodes free nothing.
    pub fn is_much_pinned(&self) -> bool {
        let granules = self.state.load().version.segments.granules();
        self.slots.used() > granules + granules / HELD + FEW_GRANULES
    }
}

#[cfg(test)]
mod tests {
    use super::granules;
    use crate::background::cleanse::tests::with_due;
    use crate::storage::slots::Extent;
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated};

    #[test]
    fn space_that_was_not_given_back_does_not_count() {
        let volume = Simulated::new(1);
        let (db, _keyspace, _) = with_due(&volume, 0, 80_000);
        db.compact().unwrap();
        let engine = &db.handle.engine;
        let places = engine.space.slots.take_dirty(0, usize::MAX).len();
        let place = |start: u32| Extent { start: 10 * start, len: 1 };
        let fail = |nth, repeat| {
            volume.fail_nth(Filter::kinds([OperationKind::Release]), nth, Fault::Error, repeat);
        };
        engine.space.slots.still_dirty((1000..1010).chain(2000..2010).map(place).collect());
        fail(1, Repeat::Sticky);
        assert_eq!(engine.space.reclaim_some(10, usize::MAX), 0, "of {places} places");
        assert_eq!(engine.space.slots.dirty_count(), 10, "they are not tried again");
        volume.clear_faults();
        fail(1, Repeat::Once);
        assert_eq!(engine.space.reclaim_some(0, 1), 1, "the next one");
        assert!(engine.space.slots.dirty_count() < 10);
    }

    /// The trees kept space that they did not need, and puts were refused for want of a reserve.
    #[test]
    fn the_reserve_gets_what_is_kept_for_the_trees() {
        let volume = Simulated::new(1);
        let (db, keyspace, _) = with_due(&volume, 0, 80_000);
        let engine = &db.handle.engine;
        let mut batch = db.batch();
        (0..80_000u32)
            .step_by(16)
            .for_each(|number| _ = batch.insert(&keyspace, number.to_be_bytes(), [2; 100]));
        batch.commit().unwrap();
        let snapshot = db.snapshot();
        db.flush().unwrap();
        db.compact().unwrap();
        drop(snapshot);
        let space = &engine.space;
        let kept = || space.slots.dirty_count();
        let reserve = &space.reserve;
        let whole = reserve.needs().whole();
        assert!(
            reserve.is_whole() && kept() > space.granules_of_a_flush() + granules(whole) as usize,
            "{}",
            kept()
        );
        assert!(reserve.user().gets_space());
        volume.set_capacity(volume.used());
        let before = kept();
        space.restore_reserve();
        assert!(reserve.is_whole() && kept() < before);
        // What a flush needs stays.
        assert!(kept() >= space.granules_of_a_flush());
        volume.set_capacity(u64::MAX);
        db.check().unwrap();
    }
}
