//! What goes ahead of a flush ([`crate::background::flush::Ahead`]), step by step: whatever others publish before the flush of its queue, all of the queue comes to the trees, once.

use crate::background::cleanse::tests::{all_due, with_due};
use crate::background::flush::event::FlushEvent;
use crate::background::flush::run::{Applied, NextQueue};
use crate::background::flush::{Ahead, CarryOver, goes_elsewhere};
use crate::background::garbage_collection;
use crate::background::garbage_collection::Reading;
use crate::background::pick::{FlushStep, pick_in_flush};
use crate::flow::memory::Need;
use crate::operation::OperationRef;
use crate::publish::TreesChange;
use crate::tree::bupdate::bupdate;
use crate::tree::cleansing_cursor::CleansingTask;
use crate::tree::cleansing_prefetch::prefetch_for_cleansing;
use crate::tree::route::deferred::DeferredRanges;
use crate::tree::route::{Budget, Grounds, route};
use crate::tree::sample::Sample;
use crate::tree::view::TreeView;
use crate::version::builder::VersionBuilder;
use crate::{Database, Keyspace, Result};
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Of each of the two keyspaces.
const RECORDS: [u32; 2] = [80_000, 20_000];
const KEYSPACES: [&str; 2] = ["main", "other"];
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A database with blocks that are due, and a frozen queue with changes to all of them.
struct Story {
    db: Database,
    keyspaces: [Keyspace; 2],
    due: [Vec<CleansingTask>; 2],
    models: [RefCell<Model>; 2],
    /// Keys that the queue has.
    queued: [BTreeSet<Vec<u8>>; 2],
}

impl Story {
    fn new(volume: &Simulated) -> Self {
        let (db, main, due) = with_due(volume, 0, RECORDS[0]);
        let other = db.keyspace(KEYSPACES[1]).unwrap();
        other.ingest((0..RECORDS[1]).map(|number| (number.to_be_bytes(), [0; 100]))).unwrap();
        let mut batch = db.batch();
        (0..RECORDS[1])
            .step_by(105)
            .for_each(|number| _ = batch.insert(&other, number.to_be_bytes(), [1; 100]));
        batch.commit().unwrap();
        db.flush().unwrap();
        let due = [due, all_due(&db, &other)];
        let keyspaces = [main, other];
        let mut models = [const { Model::new() }; 2];
        let mut queued = [const { BTreeSet::new() }; 2];
        let mut batch = db.batch();
        for index in 0..2 {
            let (keyspace, model) = (&keyspaces[index], &mut models[index]);
            for number in 0..RECORDS[index] {
                let value = if number.is_multiple_of(105) { 1 } else { 0 };
                model.insert(number.to_be_bytes().to_vec(), vec![value; 100]);
            }
            let mut change = |key: &[u8], value: Option<Vec<u8>>| {
                queued[index].insert(key.to_vec());
                match value {
                    Some(value) => {
                        batch.insert(keyspace, key, &value);
                        model.insert(key.to_vec(), value);
                    }
                    None => {
                        batch.remove(keyspace, key);
                        model.remove(key);
                    }
                }
            };
            for number in (0..RECORDS[index]).step_by(31) {
                let key = number.to_be_bytes();
                change(&key, (number % 7 != 0).then(|| vec![2; 100]));
                if number % 7 == 1 {
                    change(&[&key[..], b"new"].concat(), Some(vec![3; 50]));
                }
            }
        }
        batch.commit().unwrap();
        let engine = &db.handle.engine;
        engine.commits.freeze(engine.commits.log.lock_for_test().as_mut().unwrap()).unwrap();
        Self { db, keyspaces, due, models: models.map(RefCell::new), queued }
    }

    /// The queue goes ahead beside these blocks.
    fn go_ahead(&self, left: &[CleansingTask]) -> Result<Option<Ahead>> {
        let engine = &self.db.handle.engine;
        let mut guard = engine.writer().lock(Need::default())?;
        let mut cursor = engine.background.flusher.cursor.lock();
        let another = guard.get()?.beside();
        engine.background.flusher.append_ahead(&mut cursor, left, another)
    }

    fn cleanse(&self, mut due: &[CleansingTask]) {
        let engine = &self.db.handle.engine;
        let mut guard = engine.writer().lock(Need::default()).unwrap();
        while !due.is_empty() {
            due = engine.background.cleanser.cleanse_portion(guard.get().unwrap(), due, u64::MAX).unwrap();
        }
    }

    /// Another thread brings the log area of a block of a keyspace to its leaves, and then changes of its own.
    fn change_block(&self, of: usize, index: usize, change: impl Fn(&[u8]) -> (Vec<u8>, Option<Vec<u8>>)) {
        let engine = &self.db.handle.engine;
        let due = &self.due[of];
        self.cleanse(&due[index..index + 1]);
        let keyspace = self.keyspaces[of].id();
        let version = engine.state.version();
        let end = due.get(index + 1).map_or(vec![0xff], |next| next.low.to_vec());
        let numbers = (0..RECORDS[of]).map(u32::to_be_bytes);
        let changes: Vec<_> = numbers
            .filter(|key| due[index].low[..] <= key[..] && key[..] < end[..])
            .map(|key| change(&key))
            .collect();
        let mut guard = engine.writer().lock(Need::default()).unwrap();
        let mut builder = VersionBuilder::begin(Arc::clone(&version), &engine.pager, guard.get().unwrap());
        let refs = changes.iter().map(|(key, value)| OperationRef { keyspace, key, value: value.as_deref() });
        bupdate(&mut builder, keyspace, &mut refs.peekable(), engine.shares.node_len).unwrap();
        engine.publisher.commit_version(builder, TreesChange::Same).unwrap();
        let mut model = self.models[of].borrow_mut();
        for (key, value) in changes.into_iter().filter(|(key, _)| !self.queued[of].contains(key)) {
            match value {
                Some(value) => _ = model.insert(key, value),
                None => _ = model.remove(&key),
            }
        }
    }

    fn flush(&self, ahead: Option<Ahead>) {
        assert!(ahead.is_some());
        let mut carry_over = CarryOver { ahead, ..CarryOver::default() };
        self.db.handle.engine.background.flusher.flush_to_the_end(&mut carry_over).unwrap();
        assert!(carry_over.ahead.is_none());
    }

    /// All is there, now and after another opening. Says how many changes came ahead.
    fn verify(self, volume: &Simulated) -> u64 {
        let Self { db, keyspaces, models, .. } = self;
        let models = models.map(RefCell::into_inner);
        compare(&keyspaces, &models, "is what was committed");
        let ahead = db.stats().writes.changes_ahead;
        db.check().unwrap();
        drop(keyspaces);
        db.close().unwrap();
        verify_reopened(volume, &models);
        ahead
    }
}

fn compare(keyspaces: &[Keyspace; 2], models: &[Model; 2], story: &str) {
    for (keyspace, model) in keyspaces.iter().zip(models) {
        let found = keyspace.iter().map(|record| record.unwrap());
        let found: Model = found.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        assert!(found == *model, "{} {story}", keyspace.name());
    }
}

fn verify_reopened(volume: &Simulated, models: &[Model; 2]) {
    let db = reopened(volume);
    let keyspaces = KEYSPACES.map(|name| db.keyspace(name).unwrap());
    compare(&keyspaces, models, "is so after another opening");
    db.check().unwrap();
    // What comes next finds ids and segments that are free.
    let numbers = (0..RECORDS[0]).step_by(50);
    numbers.for_each(|number| keyspaces[0].insert(number.to_be_bytes(), [9; 100]).unwrap());
    db.flush().unwrap();
    db.check().unwrap();
}

fn reopened(volume: &Simulated) -> Database {
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    Database::builder().memory(8 << 20).background_threads(0).open_on(shared).unwrap()
}

#[test]
fn what_went_ahead_comes_to_the_trees_with_the_rest() {
    for share in [0, 1, 2, 3] {
        let volume = Simulated::new(1);
        let story = Story::new(&volume);
        let main = &story.due[0];
        let left = &main[..main.len() * share / 3];
        let ahead = story.go_ahead(left).unwrap();
        let appended = ahead.as_ref().unwrap().appended as usize;
        // The last blocks have no log areas.
        let all = main.len() - usize::from(share < 3) + story.due[1].len() - 1;
        assert_eq!(appended, all - left.len());
        story.cleanse(left);
        story.flush(ahead);
        assert!(story.verify(&volume) > 0, "{share} thirds were left");
    }
}

#[test]
fn what_others_only_move_still_fits() {
    let volume = Simulated::new(1);
    let story = Story::new(&volume);
    let ahead = story.go_ahead(&[]).unwrap();
    let engine = &story.db.handle.engine;
    let version = engine.state.version();
    let all: Vec<_> = version.segments.iter().map(|entry| entry.segment.number).collect();
    let mut guard = engine.writer().lock(Need::default()).unwrap();
    let mut builder = VersionBuilder::begin(Arc::clone(&version), &engine.pager, guard.get().unwrap());
    garbage_collection::evacuate(&mut builder, &all, Reading::Together).unwrap();
    engine.publisher.commit_version(builder, TreesChange::Same).unwrap();
    drop(guard);
    assert!(engine.state.load().version.segments.get(all[0]).is_none(), "all was moved");
    story.flush(ahead);
    assert!(story.verify(&volume) > 0);
}

#[test]
fn beside_a_block_that_has_become_two_the_flush_begins_anew() {
    let volume = Simulated::new(1);
    let story = Story::new(&volume);
    let index = story.due[0].len() / 2;
    let ahead = story.go_ahead(&[]).unwrap();
    story.change_block(0, index, |key| ([key, b"more"].concat(), Some(vec![5; 200])));
    story.flush(ahead);
    assert_eq!(story.verify(&volume), 0);
}

#[test]
fn what_was_passed_by_does_not_come_to_a_block_that_was_appended_to() {
    for (of, index) in [(0, 10), (0, 0), (1, 0), (1, 2)] {
        let volume = Simulated::new(1);
        let story = Story::new(&volume);
        let due = &story.due[of][index..index + 1];
        let ahead = story.go_ahead(due).unwrap();
        let block = || {
            let engine = &story.db.handle.engine;
            let version = engine.state.version();
            let view = TreeView { pager: &engine.pager, version: &version, keyspace: due[0].keyspace };
            view.block_at(&due[0].low).unwrap().unwrap().id
        };
        let before = block();
        story.change_block(of, index, |key| (key.to_vec(), None));
        assert!(block() != before, "the block is no more");
        story.flush(ahead);
        assert_eq!(story.verify(&volume), 0, "block {index} of keyspace {of}");
    }
}

/// What goes ahead sees newer versions on its way.
#[test]
fn nor_to_one_that_has_got_its_neighbours_range_on_the_way() {
    let volume = Simulated::new(1);
    let story = Story::new(&volume);
    let engine = &story.db.handle.engine;
    let (main, due) = (story.keyspaces[0].id(), &story.due[0]);
    let version = || engine.state.version();
    let frozen = engine.state.load().frozen.clone().unwrap();
    let mut changes = frozen.queue.newest(None).peekable();
    let mut guard = engine.writer().lock(Need::default()).unwrap();
    let another = guard.get().unwrap().beside();
    drop(guard);
    let mut builder = VersionBuilder::begin(version(), &engine.pager, Box::new(another));
    let mut deferred = DeferredRanges::default();
    for chunks in [1, 100] {
        let mut cursor = engine.background.flusher.cursor.lock();
        deferred.chunks = chunks;
        let most = Budget { rewrite: u64::MAX, write: u64::MAX, hold: u64::MAX, nodes: usize::MAX };
        let sample = &mut Sample::default();
        let (fresh, leaf_len) = (0, engine.shares.node_len.leaf);
        let grounds = Grounds { cursor: &mut cursor, sample, fresh, leaf_len, ahead: Some(&mut deferred) };
        route(&mut builder, main, &mut changes, grounds, most).unwrap();
        drop(cursor);
        if let Some(next) = changes.peek().filter(|next| next.keyspace == main) {
            let index = due.iter().rposition(|due| due.low[..] <= *next.key).unwrap();
            assert!(index > 0 && deferred.passed.is_empty());
            story.change_block(0, index, |key| (key.to_vec(), None));
            builder.go_on_at(version());
        }
    }
    assert_eq!(deferred.passed.len(), 2, "that range, and the last block's");
    assert!(!goes_elsewhere(&builder, &deferred.passed, &version()).unwrap());
    assert!(goes_elsewhere(&builder, &deferred.passed[1..], &version()).unwrap());
}

/// Without space it comes to nothing, and is done later; any other failure is one of the flush.
#[test]
fn what_fails_ahead_leaves_no_trace() {
    for fault in [Fault::NoSpace, Fault::Error] {
        let mut failed = 0;
        for nth in 1.. {
            let volume = Simulated::new(1);
            let story = Story::new(&volume);
            let engine = &story.db.handle.engine;
            let place = || format!("{:?}", engine.background.flusher.cursor.lock().position());
            let next_id = || {
                let mut guard = engine.writer().lock(Need::default()).unwrap();
                let file = guard.get().unwrap().file();
                let id = file.take_id();
                file.give_back_ids([id].into_iter());
                id
            };
            let before = (place(), engine.space.slots.used(), next_id());
            volume.fail_nth(Filter::kinds([OperationKind::Write]).file("data"), nth, fault, Repeat::Once);
            match story.go_ahead(&[]) {
                Ok(Some(ahead)) => {
                    drop(ahead);
                    assert_eq!((engine.space.slots.used(), next_id()), (before.1, before.2));
                    break;
                }
                Ok(None) => assert_eq!(fault, Fault::NoSpace),
                Err(error) => assert!(fault != Fault::NoSpace && !error.is_disk_full(), "{error}"),
            }
            failed += 1;
            assert_eq!((place(), engine.space.slots.used(), next_id()), before);
            engine.flush.flush_now().unwrap();
            assert_eq!(story.verify(&volume), 0);
        }
        assert!(failed > 0, "{failed} writes");
    }
}

#[test]
fn a_flush_without_space_for_what_went_ahead_begins_anew() {
    let mut anew = 0;
    for nth in 1.. {
        let volume = Simulated::new(1);
        let story = Story::new(&volume);
        let left = &story.due[0][..story.due[0].len() / 3];
        let ahead = story.go_ahead(left).unwrap();
        let mut carry_over = CarryOver { ahead, ..CarryOver::default() };
        story.cleanse(left);
        volume.fail_nth(Filter::kinds([OperationKind::Write]), nth, Fault::NoSpace, Repeat::Once);
        story.db.handle.engine.background.flusher.flush_to_the_end(&mut carry_over).unwrap();
        drop(carry_over);
        let is_over = volume.fired() == 0;
        let ahead = story.verify(&volume);
        anew += usize::from(ahead == 0);
        if is_over {
            assert!(ahead > 0);
            break;
        }
    }
    assert!(anew > 1, "{anew} times");
}

/// What the first portion has no room for is the rest of what was passed by, and nothing of what went ahead.
#[test]
fn a_second_portion_brings_what_is_left_and_no_more() {
    let volume = Simulated::new(1);
    let story = Story::new(&volume);
    let engine = &story.db.handle.engine;
    let left = &story.due[0];
    let ahead = story.go_ahead(left).unwrap();
    story.cleanse(left);
    let before = story.db.stats().writes;
    // Portions are as small as they get.
    engine.flush.low_space.failed(0);
    story.flush(ahead);
    let after = story.db.stats().writes;
    assert!(after.portions > before.portions + 1, "{} portions", after.portions - before.portions);
    let queued: usize = story.queued.iter().map(BTreeSet::len).sum();
    assert_eq!(after.changes_flushed - before.changes_flushed, queued as u64);
    assert!(story.verify(&volume) > 0);
}

/// What was written ahead is written to its end by the flush that gets it, and that is where an error shows.
#[test]
fn all_waiters_get_the_error_if_a_write_of_what_went_ahead_fails() {
    for nth in 1.. {
        let volume = Simulated::new(1);
        let story = Story::new(&volume);
        let engine = &story.db.handle.engine;
        let mut carry_over = CarryOver { ahead: story.go_ahead(&[]).unwrap(), ..CarryOver::default() };
        assert!(carry_over.is_some());
        volume.fail_nth(Filter::kinds([OperationKind::Write]).file("data"), nth, Fault::Error, Repeat::Once);
        let result = engine.background.flusher.flush_to_the_end(&mut carry_over);
        assert!(!carry_over.is_some(), "it is gone either way");
        drop(carry_over);
        if volume.fired() == 0 {
            volume.clear_faults();
            result.unwrap();
            assert!(nth > 1 && story.verify(&volume) > 0);
            break;
        }
        assert!(result.is_err_and(|error| !error.is_disk_full()), "write {nth}");
        assert_eq!(story.db.stats().writes.changes_ahead, 0);
        assert!(story.db.flush().is_err() && story.keyspaces[0].insert("key", "value").is_err());
        let Story { db, keyspaces, models, .. } = story;
        drop((db, keyspaces));
        verify_reopened(&volume, &models.map(RefCell::into_inner));
    }
}

/// The reader ahead of a cleansing asks for log pieces of many blocks before their leaves. The cleansing may come to one of these first.
#[test]
fn reading_ahead_goes_on_behind_a_block_that_is_no_more() {
    let volume = Simulated::new(1);
    let story = Story::new(&volume);
    let engine = &story.db.handle.engine;
    let version = || engine.state.version();
    let before = RefCell::new(Some(version()));
    story.change_block(0, 3, |key| (key.to_vec(), None));
    let prefetch = &engine.pager.prefetch;
    let _open = prefetch.open(64 << 20);
    let next = || before.borrow_mut().take().unwrap_or_else(version);
    prefetch_for_cleansing(prefetch, &engine.pager, &story.due[0], next, 64 << 20);
    let leaves = u64::from(RECORDS[0]) * 104;
    assert!(prefetch.bytes() > leaves / 10 * 9, "{} bytes of {leaves}", prefetch.bytes());
}

/// Its slots would be free, and the next that a writer beside it takes.
#[test]
fn no_write_goes_over_what_an_edit_names_that_may_be_durable() {
    let volume = Simulated::new(1);
    let story = Story::new(&volume);
    let engine = &story.db.handle.engine;
    let version = engine.state.version();
    let all: Vec<_> = version.segments.iter().map(|entry| entry.segment.number).collect();
    let mut guard = engine.writer().lock(Need::default()).unwrap();
    let another = guard.get().unwrap().beside();
    // It is written, but whether it is durable is unknown.
    let syncs = Filter::kinds([OperationKind::Sync]).file("manifest");
    volume.fail_nth(syncs, 1, Fault::Error, Repeat::Once);
    let error = engine
        .background
        .cleanser
        .cleanse_portion(guard.get().unwrap(), &story.due[0], u64::MAX)
        .unwrap_err();
    assert!(!error.is_disk_full() && engine.health.check_writable().is_err(), "{error}");
    let mut builder = VersionBuilder::begin(version, &engine.pager, Box::new(another));
    garbage_collection::evacuate(&mut builder, &all, Reading::Together).unwrap();
    drop((builder, guard));
    reopened(&volume.crash()).check().unwrap();
}

/// What goes ahead is waited for if nothing is due any more, ends the cleansing when it is over, and may panic.
#[test]
fn cleansing_ends_with_what_goes_ahead_beside_it() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Way {
        Short,
        Long,
        Panics,
        Stops,
        Refused,
    }
    for way in [Way::Short, Way::Long, Way::Panics, Way::Stops, Way::Refused] {
        let volume = Simulated::new(1);
        let (db, keyspace, due) = with_due(&volume, 4, 200_000);
        let engine = &db.handle.engine;
        let flusher = &engine.background.flusher;
        // The flushing thread waits for the writer as long as this thread has it.
        let mut carry_over = CarryOver::default();
        let mut run = flusher.begin_flush(&mut carry_over).unwrap();
        let event = FlushEvent::begin(&flusher.ctx);
        let lengths = flusher.cursor.lock().lengths();
        flusher.begin_cleansing(&mut run, Applied { due, lengths, event }, &mut carry_over);
        keyspace.insert("key", "value").unwrap();
        engine.commits.freeze(engine.commits.log.lock_for_test().as_mut().unwrap()).unwrap();
        let (begun, is_over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let task = {
            let (engine, begun, is_over) = (Arc::clone(engine), Arc::clone(&begun), Arc::clone(&is_over));
            Arc::clone(&engine.pool).try_submit("a test", move || {
                begun.store(true, SeqCst);
                match way {
                    Way::Short | Way::Refused => {}
                    Way::Panics => panic!("for this test"),
                    Way::Stops => {
                        engine.flush.stop();
                        std::thread::sleep(Duration::from_millis(200));
                    }
                    // Until nothing is due any more.
                    Way::Long => {
                        while engine.state.load().version.logs.iter().count() > 0 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        std::thread::sleep(Duration::from_millis(500));
                    }
                }
                is_over.store(true, SeqCst);
                Ok(None)
            })
        };
        let task = task.filter(|_| way != Way::Refused);
        run.next = task.map_or(NextQueue::Refused, NextQueue::Begun);
        let mut portions = 0;
        loop {
            match pick_in_flush(&flusher.look(&run)) {
                FlushStep::AppendAhead => panic!("it has begun"),
                FlushStep::CleanseDue => flusher.cleanse_some(&mut run),
                FlushStep::End => break,
            }
            portions += 1;
            // Before all is cleansed.
            while (way == Way::Short && !is_over.load(SeqCst)) || (way == Way::Stops && !engine.flush.stops())
            {
                std::thread::yield_now();
            }
        }
        let left = run.cleansing.as_ref().unwrap().blocks.left().len();
        let ended = flusher.end_flush(run, &mut carry_over);
        assert!(way == Way::Refused || begun.load(SeqCst));
        assert_eq!(ended.is_err(), way == Way::Panics, "{ended:?}");
        assert!(carry_over.ahead.is_none());
        assert!(way != Way::Refused || portions == 0, "the next queue comes first");
        // A thread that panics may take long to tell of it.
        assert!(way == Way::Panics || (left == 0) == (way == Way::Long), "{way:?}: {left} are left");
        assert!(way != Way::Long || is_over.load(SeqCst), "it is waited for");
    }
}
