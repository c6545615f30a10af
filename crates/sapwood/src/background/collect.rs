//! Collecting: runs the [collector](garbage_collection) in portions, so that dead space stays within its target.
//!
//! ```text
//! flush or cleansing ends ─▶ tidy_up: portion ─▶ portion ─▶ … ─▶ within the target, or writers wait and it is bearable
//! no writes come ───────────▶ a job of the picker's: a portion each time ─▶ … ─▶ within the target, or a flush is due   (crate::background::pick)
//! ```
//!
//! Invariants:
//! 1. A portion that finds no space is tried again with the poorest segments only: these take the least space, and free
//!    the most for it.
//! 2. A segment with a node that cannot be read is left alone for a time, and everything else goes on.

use crate::background::context::WorkContext;
use crate::background::expire::Expirer;
use crate::background::garbage_collection;
use crate::background::garbage_collection::{Failed, GcUrgency, Reading, Spared};
use crate::background::live_nodes::LiveNodes;
use crate::background::portions::{PORTION, portion};
use crate::background::unreadable::Unreadable;
use crate::error::{Error, Result};
use crate::flow::memory::Need;
use crate::publish::{PublishContext, TreesChange};
use crate::spans::span;
use crate::storage::mapping_table::Address;
use crate::storage::node::NodeId;
use crate::storage::writer::Writer;
use crate::version::Version;
use crate::version::builder::VersionBuilder;
use crate::version::edit::Edit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// See the module documentation.
pub(crate) struct Collector {
    pub ctx: Arc<WorkContext>,
    /// Segments that are left alone, because a node in them could not be read.
    unreadable: Unreadable<u64>,
    /// The length of the data file, in granules, at which moving its end made it no shorter; or 0.
    stuck_end: AtomicU32,
    pub expirer: Expirer,
    live: LiveNodes,
}

impl Collector {
    pub fn new(ctx: Arc<WorkContext>) -> Self {
        let expirer = Expirer::new(Arc::clone(&ctx));
        Self {
            ctx,
            unreadable: Unreadable::default(),
            stuck_end: AtomicU32::new(0),
            expirer,
            live: LiveNodes::default(),
        }
    }

    fn spared(&self) -> Spared {
        Spared { unreadable: self.unreadable.now(), pinned: self.ctx.space.is_much_pinned() }
    }

    /// Whether there is more dead space than `urgency` tolerates.
    pub fn has_to_collect(&self, urgency: GcUrgency) -> bool {
        let (version, spared) = (self.ctx.state.version(), self.spared());
        garbage_collection::excess(&version, urgency, &spared) > 0
            || !self.at_the_end(&version, urgency, 0, &spared).is_empty()
            || self.expirer.has_expired(&version, Some(urgency), &spared)
    }

    /// Removes all that had expired by a time from the leaves, as far as it can be read: also where it could not be before. What
    /// expires meanwhile stays, or this might never end. Returns the first error in reading.
    pub fn expire_all(&self, time: u64) -> Result<Option<Error>> {
        let (mut spared, mut unread) = (Spared::default(), None);
        loop {
            let mut guard = self.ctx.writer_unless_closing()?;
            let writer = guard.get()?;
            let expire = || match self.expirer.expire_by(writer, time, &spared) {
                Err(Failed::Reading(segment, error)) => Ok(Err((segment, error))),
                Err(Failed::Other(error)) => Err(error),
                Ok(has_expired) => Ok(Ok(has_expired)),
            };
            match self.ctx.or_poison(expire)? {
                Ok(true) => {}
                Ok(false) => return Ok(unread),
                Err((segment, error)) => {
                    self.leave_alone(segment, &error);
                    spared.unreadable.insert(segment);
                    unread = unread.or(Some(error));
                }
            }
        }
    }

    /// Leaves a segment alone for a time: something in it could not be read.
    fn leave_alone(&self, segment: u64, error: &Error) {
        tracing::error!(%error, path = %self.ctx.health.path(), segment, "dead space is not collected there for now");
        self.unreadable.leave_alone(segment);
    }

    /// Segments to move so that the data file can be cut off.
    fn at_the_end(&self, version: &Version, urgency: GcUrgency, budget: u64, spared: &Spared) -> Vec<u64> {
        // What snapshots hold is in use.
        let (len, allowed) = (
            self.ctx.space.slots.next(),
            garbage_collection::length_allowed(self.ctx.space.slots.used(), urgency),
        );
        if len <= allowed || len == self.stuck_end.load(Relaxed) {
            return Vec::new();
        }
        garbage_collection::at_the_end(version, allowed, budget, spared)
    }

    /// The maximum memory that the collector takes.
    pub fn collecting_max(&self) -> Need {
        self.ctx.memory.shares.work(0, u64::MAX)
    }

    /// Whether a thread waits for the collector: a writer, or the thread that closes the database.
    fn is_hurried(&self) -> bool {
        self.ctx.flush.stops() || self.ctx.are_writers_pressed()
    }

    /// Copies live nodes out of some of the segments with the least live data, `most` bytes at most; less if there is no
    /// space for as many, also in `most` for the next call. Returns whether there may be more to do now: not if space is
    /// within its target, or within a looser bound while a thread waits, nor if something could not be read.
    pub fn collect_some(&self, writer: &mut Writer, urgency: GcUrgency, most: &mut u64) -> Result<bool> {
        let urgency = if self.is_hurried() { GcUrgency::InAHurry } else { urgency };
        match self.expirer.expire_some(writer, Some(urgency), &self.spared()) {
            Ok(false) => {}
            // There is less to copy afterwards.
            Ok(true) => return Ok(true),
            // It can wait: there may be space when what is dead has gone.
            Err(Failed::Other(error)) if error.is_disk_full() => self.ctx.space.reclaim_space(),
            Err(Failed::Other(error)) => return Err(error),
            Err(Failed::Reading(segment, error)) => self.leave_alone(segment, &error),
        }
        let base = self.ctx.state.version();
        loop {
            let budget = portion(base.live_bytes()).min(self.ctx.flush.low_space.limit()).min(*most);
            let spared = self.spared();
            let mut victims = garbage_collection::choose(&base, urgency, budget, &spared);
            let of_end = victims.is_empty();
            if of_end {
                victims = self.at_the_end(&base, urgency, budget, &spared);
            }
            if victims.is_empty() {
                return Ok(false);
            }
            let nodes = self.live.of(&base, &victims, |budget| match of_end {
                true => self.at_the_end(&base, urgency, budget, &spared),
                false => garbage_collection::poorest(&base, urgency, budget, &spared),
            });
            let emptied = match self.empty(writer, &base, &nodes, Reading::Together) {
                Err(Failed::Reading(..)) => self.empty(writer, &base, &nodes, Reading::OneByOne),
                done => done,
            };
            match emptied {
                Err(Failed::Other(error)) if error.is_disk_full() && budget > *PORTION.start() => {
                    self.ctx.space.reclaim_space();
                    *most = *PORTION.start();
                }
                Err(Failed::Other(error)) => return Err(error),
                // If all can be read the next time, it was an outage, which may last.
                Err(Failed::Reading(segment, error)) => {
                    self.leave_alone(segment, &error);
                    return Ok(false);
                }
                Ok(()) => {
                    self.ctx.reclaim_by_steps(of_end);
                    if of_end {
                        self.note_end(&base);
                    }
                    *most = most.saturating_mul(2);
                    return Ok(true);
                }
            }
        }
    }

    /// After the end of the data file was moved: if segments reach as far as those of `base` did, it is not tried again
    /// until the file has another length, or it would be moved to and fro.
    fn note_end(&self, base: &Version) {
        let end = |version: &Version| {
            version
                .segments
                .iter()
                .map(|entry| u64::from(entry.segment.start) + entry.segment.granules() as u64)
                .max()
        };
        let is_stuck = end(&self.ctx.state.load().version) >= end(base);
        self.stuck_end.store(if is_stuck { self.ctx.space.slots.next() } else { 0 }, Relaxed);
    }

    /// Copies these nodes, all that are live of some segments.
    fn empty(
        &self,
        writer: &mut Writer,
        base: &Arc<Version>,
        nodes: &[(NodeId, Address)],
        reading: Reading,
    ) -> std::result::Result<(), Failed> {
        span!("collect", nodes = nodes.len());
        let report = |bytes| self.ctx.progress.copied(bytes);
        let mut builder = VersionBuilder::begin(Arc::clone(base), &self.ctx.pager, writer).reporting(&report);
        garbage_collection::copy(&mut builder, nodes, reading)?;
        let bytes = builder.bytes();
        self.ctx.publisher.commit_version(builder, TreesChange::Same).map_err(Failed::Other)?;
        self.ctx.flush.counters.collected_bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Copies all live nodes that may be encrypted with an older data key, so that they are with the newest. What is damaged is an error.
    pub fn encrypt_anew(&self) -> Result<()> {
        let newest = u64::from(self.ctx.pager.reader.encryption().newest_key());
        // No version is held longer than its portion is copied: it keeps all space that becomes free.
        let last = {
            let version = &self.ctx.state.load().version;
            if newest <= version.oldest_key.max(1) {
                return Ok(());
            }
            version.segments.iter().map(|entry| entry.segment.number).max().unwrap_or(0)
        };
        let mut from = 0;
        loop {
            let mut guard = self.ctx.writer_unless_closing()?;
            let writer = guard.get()?;
            let base = self.ctx.state.version();
            let some = garbage_collection::oldest(&base, from..=last, portion(base.live_bytes()));
            let Some(end) = some.last() else { break };
            let next = |budget| garbage_collection::oldest(&base, from..=last, budget);
            let nodes = self.live.of(&base, &some, next);
            from = end + 1;
            // What cannot be read harms nothing else.
            let unread =
                self.ctx.or_poison(|| match self.empty(writer, &base, &nodes, Reading::Together) {
                    Err(Failed::Reading(_, error)) => Ok(Some(error)),
                    Err(Failed::Other(error)) => Err(error),
                    Ok(()) => Ok(None),
                })?;
            if let Some(error) = unread {
                return Err(error);
            }
            drop((some, base));
            self.ctx.reclaim_by_steps(false);
        }
        // The manifest before has edits that are encrypted with the older ones. Only when it is gone the work is done: what fails before is
        // tried again.
        self.ctx.publisher.renew_manifest()?;
        let edit = Edit { oldest_key: Some(newest), ..Edit::default() };
        self.ctx.publisher.publish(edit, PublishContext::default())
    }

    /// Cleans up after an edit has made nodes dead: collects, and gives space back. Both stop early while
    /// writers are pressed.
    pub fn tidy_up(&self, writer: &mut Writer, urgency: GcUrgency) -> Result<()> {
        let mut most = u64::MAX;
        while self.collect_some(writer, urgency, &mut most)? {}
        self.ctx.reclaim_by_steps(false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;
    use crate::background::cleanse::tests::{cleansed, cleansed_on, damage, with_due};
    use crate::background::garbage_collection::allowance_of;
    use crate::cache::pager::ReadMode;
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated};

    #[test]
    fn while_writers_are_pressed_nothing_is_collected_or_given_back_that_is_bearable() {
        for (records, is_bearable) in [(80_000, true), (200_000, false)] {
            let (db, keyspace, due) = with_due(&Simulated::new(1), 4, records);
            let engine = &db.handle.engine;
            // The flushing thread waits for the writer as long as this thread has it.
            let mut guard = engine.writer().lock(Need::default()).unwrap();
            let writer = guard.get().unwrap();
            let mut left = &due[..];
            while !left.is_empty() {
                left = engine.background.cleanser.cleanse_portion(writer, left, u64::MAX).unwrap();
            }
            let is_within = |urgency| {
                let version = &engine.state.load().version;
                version.used_bytes() <= allowance_of(version, urgency)
            };
            let collected = || engine.flush.counters.collected_bytes.load(Relaxed);
            assert!(!is_within(GcUrgency::AtRest));
            assert_eq!(is_within(GcUrgency::InAHurry), is_bearable);
            keyspace.insert("key", "value").unwrap();
            assert!(!engine.background.ctx.are_writers_pressed());
            engine.commits.freeze(engine.commits.log.lock_for_test().as_mut().unwrap()).unwrap();
            assert!(engine.background.ctx.are_writers_pressed());
            let (before, dirty) = (collected(), engine.space.slots.dirty_count());
            engine.background.cleanser.collector.tidy_up(writer, GcUrgency::AtRest).unwrap();
            // What is more than bearable is collected nevertheless, and no more.
            assert_eq!(collected() == before && engine.space.slots.dirty_count() == dirty, is_bearable);
            assert!(is_within(GcUrgency::InAHurry) && !is_within(GcUrgency::AtRest));
            // And the rest when no thread waits any more.
            drop(guard);
            db.flush().unwrap();
            assert!(is_within(GcUrgency::AtWork));
        }
    }

    #[test]
    fn closing_does_not_wait_for_the_collector_where_the_space_is_bearable() {
        for stops in [true, false] {
            let db = cleansed(80_000);
            let engine = &db.handle.engine;
            if stops {
                engine.flush.stop();
            }
            let mut guard = engine.writer().lock(Need::default()).unwrap();
            engine.background.cleanser.collector.tidy_up(guard.get().unwrap(), GcUrgency::AtRest).unwrap();
            drop(guard);
            assert_eq!(engine.background.cleanser.collector.has_to_collect(GcUrgency::AtRest), stops);
        }
    }

    /// Readers would have to read it once more only because it lies elsewhere.
    #[test]
    fn what_is_cached_stays_so_when_the_collector_moves_it() {
        let db = cleansed(80_000);
        let engine = &db.handle.engine;
        let version = || engine.state.version();
        let (before, pager) = (version(), &engine.pager);
        let mut nodes: Vec<_> = before.table.iter().collect();
        nodes.sort_unstable_by_key(|(_, address)| address.position);
        let leaves: Vec<_> = nodes.iter().copied().step_by(20).collect();
        for ((_, address), leaf) in
            leaves.iter().zip(pager.fetch(&before.segments, &leaves, ReadMode::Runs).unwrap())
        {
            pager.admit(address.position, leaf);
        }
        let is_cached: Vec<_> = nodes.iter().map(|(_, old)| pager.cached(*old).is_some()).collect();
        let cached = is_cached.iter().filter(|is_cached| **is_cached).count();
        assert!(cached >= leaves.len() && cached * 2 < nodes.len(), "{cached} of {}", nodes.len());
        let all: Vec<_> = before.segments.iter().map(|entry| entry.segment.number).collect();
        let mut guard = engine.writer().lock(Need::default()).unwrap();
        let bytes = pager.cache.bytes();
        for succeeds in [false, true] {
            let mut builder = VersionBuilder::begin(version(), pager, guard.get().unwrap());
            garbage_collection::evacuate(&mut builder, &all, Reading::Together).unwrap();
            if succeeds {
                engine.publisher.commit_version(builder, TreesChange::Same).unwrap();
            } else {
                drop(builder);
            }
            assert_eq!(pager.cache.bytes(), bytes);
        }
        let after = version();
        for ((id, old), is_cached) in nodes.into_iter().zip(is_cached) {
            let new = after.table.address(id).unwrap();
            assert!(new.position != old.position && pager.cached(old).is_none());
            assert_eq!(pager.cached(new).is_some(), is_cached);
        }
    }

    fn version(db: &Database) -> Arc<Version> {
        db.handle.engine.state.version()
    }

    fn tidy_up(db: &Database) -> Result<()> {
        let engine = &db.handle.engine;
        let mut guard = engine.writer().lock(Need::default())?;
        engine
            .background
            .ctx
            .or_poison(|| engine.background.cleanser.collector.tidy_up(guard.get()?, GcUrgency::AtRest))
    }

    #[test]
    fn a_segment_that_cannot_be_read_is_left_alone_and_all_else_goes_on() {
        for is_damaged in [true, false] {
            let volume = Simulated::new(1);
            let db = cleansed_on(&volume, 80_000);
            let (engine, base) = (&db.handle.engine, version(&db));
            let victims = garbage_collection::choose(&base, GcUrgency::AtRest, u64::MAX, &Spared::default());
            let live = |segment: &u64| base.segments.get(*segment).unwrap().live;
            let poor = *victims.iter().find(|segment| live(segment) > 0).unwrap();
            let (_, address) = base.table.iter().find(|(_, at)| at.position.0 / base.span == poor).unwrap();
            engine.pager.forget(address.position);
            let reads = Filter::kinds([OperationKind::Read]).file("data");
            if is_damaged {
                damage(&volume, &db, address);
            } else {
                volume.fail_nth(reads, 1, Fault::Error, Repeat::Once);
            }
            tidy_up(&db).unwrap();
            engine.health.check_writable().unwrap();
            // What can be read the second time is no damage.
            assert!(is_damaged || !engine.background.cleanser.collector.has_to_collect(GcUrgency::AtRest));
            tidy_up(&db).unwrap();
            assert!(!engine.background.cleanser.collector.has_to_collect(GcUrgency::AtRest));
            let left: Vec<_> = engine.background.cleanser.collector.unreadable.now();
            assert_eq!(left, if is_damaged { vec![poor] } else { vec![] });
            let after = version(&db);
            for victim in victims.iter().filter(|victim| !left.contains(victim)) {
                assert!(after.segments.get(*victim).is_none(), "{victim}");
            }
            assert_eq!(after.segments.get(poor).is_some(), is_damaged);
            db.keyspace("main").unwrap().insert("key", "value").unwrap();
            db.flush().unwrap();
            assert_eq!(db.check().is_err(), is_damaged);
        }
    }

    /// Each copy would take space and free none.
    #[test]
    fn what_a_snapshot_holds_is_copied_only_when_much_of_it_is_dead() {
        let mut copied = Vec::new();
        for is_held in [false, true] {
            let options = Database::builder().memory(4 << 20).segment_span(1 << 20).background_threads(0);
            let db = options.open_on(Arc::new(Simulated::new(1))).unwrap();
            let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
            keyspace.ingest((0..200_000u32).map(|number| (number.to_be_bytes(), [0; 100]))).unwrap();
            let snapshot = is_held.then(|| db.snapshot());
            let update = |rounds: std::ops::Range<u32>| {
                let before = engine.flush.counters.collected_bytes.load(Relaxed);
                for round in rounds {
                    let mut batch = db.batch();
                    // Whole leaves, here and there.
                    for leaf in 0..100 {
                        let first = (round * 100 + leaf) * 7919 % 5000 * 40;
                        for number in first..first + 40 {
                            batch.insert(&keyspace, number.to_be_bytes(), [round as u8; 100]);
                        }
                    }
                    batch.commit().unwrap();
                    db.flush().unwrap();
                    engine.background.cleanser.cleanse_all().unwrap();
                    tidy_up(&db).unwrap();
                    let version = version(&db);
                    // An eighth is not noticed, and half may be dead.
                    let within = if is_held { 100 + 8 + 13 + 50 } else { 110 };
                    assert!(version.used_bytes() < version.live_bytes() / 100 * within + (4 << 20));
                }
                engine.flush.counters.collected_bytes.load(Relaxed) - before
            };
            copied.push([update(0..15), update(15..150)]);
            if let Some(snapshot) = snapshot {
                assert_eq!(
                    snapshot.iter(&keyspace).filter(|item| item.as_ref().unwrap().1[..] == [0; 100]).count(),
                    200_000
                );
                drop(snapshot);
                tidy_up(&db).unwrap();
            }
            assert!(!engine.background.cleanser.collector.has_to_collect(GcUrgency::AtRest));
            let version = version(&db);
            assert!(
                version.used_bytes() < version.live_bytes() / 100 * 110 + (2 << 20),
                "it goes with the snapshot"
            );
            db.check().unwrap();
        }
        let [[free, free_later], [pinned, pinned_later]] = copied[..] else { panic!("{copied:?}") };
        assert!(pinned * 3 < free && pinned_later < free_later * 3 / 2, "{copied:?}");
    }

    #[test]
    fn without_space_for_a_portion_it_collects_in_smaller_ones() {
        let volume = Simulated::new(1);
        let db = cleansed_on(&volume, 80_000);
        let engine = &db.handle.engine;
        engine.space.reclaim(0);
        let budget = portion(version(&db).live_bytes());
        assert!(budget > 4 * PORTION.start(), "{budget}");
        volume.set_capacity(volume.used() + 2 * PORTION.start());
        tidy_up(&db).unwrap();
        assert!(!engine.background.cleanser.collector.has_to_collect(GcUrgency::AtRest));
        db.check().unwrap();
    }
}
