//! Cleansing of what a flush has found due, when its queue is in the trees.
//!
//! Invariant: the next frozen queue, and closing, wait for one portion at most.

use crate::engine::Engine;
use crate::error::Result;
use crate::publish::Trees;
use crate::space::PORTION;
use crate::store::attempt::Attempt;
use crate::store::rent::price;
use crate::store::writer::Writer;
use crate::tree::cleanse::Paid;
use crate::tree::sweep::Due;
use crate::tree::sweep_ahead::sweep_ahead;
use crate::tree::to_leaves::{Logged, to_leaves};
use crate::tree::view::{Block, TreeView};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Engine {
    /// Cleanses what a flush has found due, until the next queue is frozen or the database is to be closed. `written` is what the
    /// flush has written before. What is left of them is what is not done, after an error too.
    pub fn cleanse_due(&self, writer: &mut Writer, due: &mut &[Due], written: u64) -> Result<()> {
        if !self.flush.in_background() || due.is_empty() {
            return self.cleanse_in_turn(writer, due, written);
        }
        let (stage, limit) = (&self.pager.stage, self.shares.stage);
        std::thread::scope(|scope| {
            let open = stage.open(limit);
            let version = || Arc::clone(&self.state.load().version);
            let all = *due;
            let work = move || sweep_ahead(stage, &self.pager, all, version, limit / 4);
            // Without a thread nothing is read ahead.
            let thread = std::thread::Builder::new().name("sapwood-ahead".into());
            let reader = thread.spawn_scoped(scope, work).ok();
            let result = self.cleanse_in_turn(writer, due, written);
            drop(open);
            // If it panicked, nothing was read ahead.
            reader.map(std::thread::ScopedJoinHandle::join);
            result
        })
    }

    fn cleanse_in_turn(&self, writer: &mut Writer, due: &mut &[Due], mut written: u64) -> Result<()> {
        let expected = written + due.iter().map(|due| due.leaves).sum::<u64>();
        // Of a portion while there is little space.
        let mut limit = u64::MAX;
        while !due.is_empty() && !self.flush.stops() && self.state.load().frozen.is_none() {
            self.check_writable()?;
            let (bytes, left) = match self.cleanse_portion(writer, *due, limit) {
                // What dies with a small one makes room for the next.
                Err(error) if error.is_disk_full() && limit > *PORTION.start() => {
                    self.reclaim(0);
                    limit = *PORTION.start();
                    continue;
                }
                done => done?,
            };
            limit = limit.saturating_mul(2);
            (*due, written) = (left, written + bytes);
            self.pace.report(written, expected);
            if let Some(next) = due.first() {
                self.pager.stage.pass((next.keyspace, next.low.clone()));
            }
            self.tidy_up(writer)?;
        }
        Ok(())
    }

    /// Cleanses the first blocks of those that are due. Says how many bytes that wrote, at most about `limit`, and which are left.
    fn cleanse_portion<'d>(
        &self,
        writer: &mut Writer,
        mut due: &'d [Due],
        limit: u64,
    ) -> Result<(u64, &'d [Due])> {
        let Some(keyspace) = due.first().map(|first| first.keyspace) else { return Ok((0, due)) };
        let base = Arc::clone(&self.state.load().version);
        let budget = self.cleansing_portion(base.live_bytes()).min(limit);
        let view = TreeView { pager: &self.pager, version: &base, keyspace };
        let (mut blocks, mut paid): (Vec<Logged>, Vec<_>) = Default::default();
        let mut bytes = 0;
        while let Some((next, rest)) = due.split_first()
            && next.keyspace == keyspace
            && bytes < budget
        {
            due = rest;
            // It may have been cleansed meanwhile.
            if let Some(Block { id, .. }) = view.block_at(&next.low)?
                && let Some(area) = view.log(id)
                && blocks.last().is_none_or(|last| last.block != id)
            {
                bytes += next.leaves + area.bytes();
                let price = price(next.leaves, area.bytes());
                if next.is_paid && area.rent().has_reached(price) {
                    paid.push(Paid { area: Arc::clone(area), price });
                }
                blocks.push(Logged { block: id, area: Arc::clone(area) });
            }
        }
        let count = blocks.len() as u64;
        if count == 0 {
            return Ok((0, due));
        }
        let mut attempt = Attempt::begin(Arc::clone(&base), &self.pager, writer);
        to_leaves(view, &mut attempt, blocks, self.shares.node_len)?;
        let written = attempt.bytes();
        self.commit_attempt(attempt, Trees::Same)?;
        self.flush.counters.blocks_cleansed.fetch_add(count, Relaxed);
        self.flush.counters.cleansed_for_scans(&self.pager.rents, &paid);
        self.flush.counters.portions.fetch_add(1, Relaxed);
        Ok((written, due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Need;
    use crate::store::garbage_collection::{allowance, bearable};
    use crate::{Database, Keyspace};
    use bytes::Bytes;
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};

    /// Records in blocks that all have log pieces, for a third of their leaves, and all of the blocks as due.
    fn with_due(volume: &Simulated, threads: usize, records: u32) -> (Database, Keyspace, Vec<Due>) {
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let db = Database::builder().memory(8 << 20).background_threads(threads).open_on(shared).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..records).map(|number| (number.to_be_bytes(), [0; 100]))).unwrap();
        let mut batch = db.batch();
        for number in (0..records).step_by(105) {
            batch.insert(&keyspace, number.to_be_bytes(), [1; 100]);
        }
        batch.commit().unwrap();
        db.flush().unwrap();
        let engine = &db.handle.engine;
        let version = Arc::clone(&engine.state.load().version);
        let view = TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
        let (mut due, mut low) = (Vec::new(), Some(Bytes::new()));
        while let Some(at) = low.take() {
            let block = view.block_at(&at).unwrap().unwrap();
            assert!(view.log(block.id).is_some());
            due.push(Due::new(keyspace.id(), at, 200 << 10, false));
            low = block.fence;
        }
        assert!(due.len() > 15, "{} blocks", due.len());
        (db, keyspace, due)
    }

    /// All of them were counted as work undone.
    #[test]
    fn on_a_full_disk_only_what_was_not_cleansed_is_left() {
        let mut seen = Vec::new();
        for nth in 1..100 {
            let volume = Simulated::new(1);
            let (db, _, due) = with_due(&volume, 0, 80_000);
            let engine = &db.handle.engine;
            let writes = Filter::kinds([OperationKind::Write]).file("data");
            volume.fail_nth(writes, nth, Fault::NoSpace, Repeat::Sticky);
            let mut left = &due[..];
            let mut guard = engine.writer(Need::default()).unwrap();
            let result = engine.cleanse_due(guard.get().unwrap(), &mut left, 0);
            let cleansed = engine.flush.counters.blocks_cleansed.load(Relaxed) as usize;
            assert_eq!(left.len(), due.len() - cleansed);
            match result {
                Ok(()) => break,
                Err(error) => assert!(error.is_disk_full(), "{error}"),
            }
            seen.push(cleansed);
        }
        assert!(seen.first() == Some(&0) && seen.iter().any(|cleansed| *cleansed > 0), "{seen:?}");
    }

    #[test]
    fn while_writers_are_pressed_nothing_is_collected_or_given_back_that_is_bearable() {
        for (records, is_bearable) in [(80_000, true), (200_000, false)] {
            let (db, keyspace, due) = with_due(&Simulated::new(1), 1, records);
            let engine = &db.handle.engine;
            // The flushing thread waits for the writer as long as this thread has it.
            let mut guard = engine.writer(Need::default()).unwrap();
            let writer = guard.get().unwrap();
            let mut left = &due[..];
            while !left.is_empty() {
                left = engine.cleanse_portion(writer, left, u64::MAX).unwrap().1;
            }
            let space = || {
                let version = &engine.state.load().version;
                (version.used_bytes(), version.live_bytes())
            };
            let collected = || engine.flush.counters.collected_bytes.load(Relaxed);
            let (used, live) = space();
            assert!(used > allowance(live), "{used} bytes, {live} of them live");
            assert_eq!(used <= bearable(live), is_bearable, "{used} bytes, {live} of them live");
            keyspace.insert("key", "value").unwrap();
            assert!(!engine.are_writers_pressed());
            engine.freeze(engine.log.lock().as_mut().unwrap()).unwrap();
            assert!(engine.are_writers_pressed());
            let (before, dirty) = (collected(), engine.slots.dirty_count());
            engine.tidy_up(writer).unwrap();
            // What is more than bearable is collected nevertheless, and no more.
            let (used, live) = space();
            assert_eq!(collected() == before && engine.slots.dirty_count() == dirty, is_bearable);
            assert!(used <= bearable(live) && used > allowance(live), "{used} bytes, {live} of them live");
            // And the rest when nobody is pressed any more.
            drop(guard);
            db.flush().unwrap();
            let (used, live) = space();
            assert!(used <= allowance(live), "{used} bytes, {live} of them live");
        }
    }
}
