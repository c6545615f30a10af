//! What goes ahead of a flush ([`crate::flush::Ahead`]), step by step: whatever others publish before the flush of its queue, all of the queue comes to the trees, once.

use crate::budget::Need;
use crate::cleansing::tests::with_due;
use crate::flush::Ahead;
use crate::operation::OperationRef;
use crate::publish::Trees;
use crate::store::attempt::Attempt;
use crate::store::garbage_collection;
use crate::tree::bupdate::bupdate;
use crate::tree::sweep::Due;
use crate::tree::view::TreeView;
use crate::{Database, Keyspace, Result};
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const RECORDS: u32 = 80_000;
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A database with blocks that are due, and a frozen queue with changes to all of them, and to another keyspace.
struct Story {
    db: Database,
    keyspace: Keyspace,
    due: Vec<Due>,
    model: RefCell<Model>,
    /// Keys that the queue has.
    queued: BTreeSet<Vec<u8>>,
}

impl Story {
    fn new(volume: &Simulated) -> Self {
        let (db, keyspace, due) = with_due(volume, 0, RECORDS);
        let mut model = Model::new();
        for number in 0..RECORDS {
            let value = if number.is_multiple_of(105) { 1 } else { 0 };
            model.insert(number.to_be_bytes().to_vec(), vec![value; 100]);
        }
        let mut queued = BTreeSet::new();
        let other = db.keyspace("other").unwrap();
        let mut batch = db.batch();
        for number in (0..RECORDS).step_by(31) {
            match number % 7 {
                0 => {
                    batch.remove(&keyspace, number.to_be_bytes());
                    model.remove(&number.to_be_bytes()[..]);
                }
                1 => {
                    let key = [&number.to_be_bytes()[..], b"new"].concat();
                    batch.insert(&keyspace, number.to_be_bytes(), [2; 100]);
                    model.insert(number.to_be_bytes().to_vec(), vec![2; 100]);
                    batch.insert(&keyspace, &key, [3; 50]);
                    model.insert(key.clone(), vec![3; 50]);
                    queued.insert(key);
                }
                _ => {
                    batch.insert(&keyspace, number.to_be_bytes(), [2; 100]);
                    model.insert(number.to_be_bytes().to_vec(), vec![2; 100]);
                }
            }
            queued.insert(number.to_be_bytes().to_vec());
            batch.insert(&other, number.to_be_bytes(), [4; 10]);
        }
        batch.commit().unwrap();
        let engine = &db.handle.engine;
        engine.freeze(engine.log.lock().as_mut().unwrap()).unwrap();
        Self { db, keyspace, due, model: model.into(), queued }
    }

    /// The queue goes ahead beside these blocks.
    fn go_ahead(&self, left: &[Due]) -> Result<Option<Ahead<'_>>> {
        let engine = &self.db.handle.engine;
        let mut sweep = engine.flush.sweep_for_test().lock();
        let mut guard = engine.writer(Need::default())?;
        let another = guard.get()?.beside();
        engine.append_ahead(&mut sweep, left, another)
    }

    fn cleanse(&self, mut due: &[Due]) {
        let engine = &self.db.handle.engine;
        let mut guard = engine.writer(Need::default()).unwrap();
        while !due.is_empty() {
            due = engine.cleanse_portion(guard.get().unwrap(), due, u64::MAX).unwrap();
        }
    }

    /// Somebody else brings the log area of a block to its leaves, and then changes of his own.
    fn change_block(&self, index: usize, change: impl Fn(u32) -> Option<(Vec<u8>, Option<Vec<u8>>)>) {
        let engine = &self.db.handle.engine;
        self.cleanse(&self.due[index..index + 1]);
        let (from, to) = self.range(index);
        let changes: Vec<_> = (from..to).filter_map(change).collect();
        let keyspace = self.keyspace.id();
        let version = Arc::clone(&engine.state.load().version);
        let mut guard = engine.writer(Need::default()).unwrap();
        let mut attempt = Attempt::begin(Arc::clone(&version), &engine.pager, guard.get().unwrap());
        let refs = changes.iter().map(|(key, value)| OperationRef { keyspace, key, value: value.as_deref() });
        bupdate(&mut attempt, keyspace, &mut refs.peekable(), engine.shares.node_len).unwrap();
        engine.commit_attempt(attempt, Trees::Same).unwrap();
        for (key, value) in changes.into_iter().filter(|(key, _)| !self.queued.contains(key)) {
            match value {
                Some(value) => _ = self.model.borrow_mut().insert(key, value),
                None => _ = self.model.borrow_mut().remove(&key),
            }
        }
    }

    /// Numbers of the records of a block.
    fn range(&self, index: usize) -> (u32, u32) {
        let number = |due: &Due| {
            let mut bytes = [0; 4];
            due.low.iter().take(4).zip(&mut bytes).for_each(|(from, to)| *to = *from);
            u32::from_be_bytes(bytes)
        };
        (number(&self.due[index]), self.due.get(index + 1).map_or(RECORDS, number))
    }

    fn flush<'a>(&'a self, mut ahead: Option<Ahead<'a>>) {
        assert!(ahead.is_some());
        self.db.handle.engine.flush_and_go_ahead(&mut ahead).unwrap();
        assert!(ahead.is_none());
    }

    /// All is there, now and after another opening. Says how many changes came ahead.
    fn verify(self, volume: &Simulated) -> u64 {
        let Self { db, keyspace, model, .. } = self;
        let model = model.into_inner();
        let found = |keyspace: &Keyspace| -> Model {
            keyspace.iter().map(|record| record.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
        };
        assert!(found(&keyspace) == model, "what was committed");
        let ahead = db.stats().writes.changes_ahead;
        let count = db.check().unwrap().records;
        drop(keyspace);
        db.close().unwrap();
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let db = Database::builder().memory(8 << 20).background_threads(0).open_on(shared).unwrap();
        assert!(found(&db.keyspace("main").unwrap()) == model, "after another opening");
        assert_eq!(found(&db.keyspace("other").unwrap()).len(), RECORDS.div_ceil(31) as usize);
        assert_eq!(db.check().unwrap().records, count);
        // What comes next finds ids and segments that are free.
        let keyspace = db.keyspace("main").unwrap();
        (0..RECORDS).step_by(50).for_each(|number| keyspace.insert(number.to_be_bytes(), [9; 100]).unwrap());
        db.flush().unwrap();
        db.check().unwrap();
        ahead
    }
}

#[test]
fn what_went_ahead_comes_to_the_trees_with_the_rest() {
    for share in [0, 1, 2, 3] {
        let volume = Simulated::new(1);
        let story = Story::new(&volume);
        let left = &story.due[..story.due.len() * share / 3];
        let ahead = story.go_ahead(left).unwrap();
        let appended = ahead.as_ref().unwrap().appended as usize;
        // The last block has no log area, and the other keyspace no blocks.
        assert_eq!(appended, story.due.len() - left.len() - usize::from(share < 3));
        story.cleanse(left);
        story.flush(ahead);
        assert_eq!(story.verify(&volume) > 0, share < 3, "{share} thirds were left");
    }
}

#[test]
fn what_others_only_move_still_fits() {
    let volume = Simulated::new(1);
    let story = Story::new(&volume);
    let ahead = story.go_ahead(&[]).unwrap();
    let engine = &story.db.handle.engine;
    let version = Arc::clone(&engine.state.load().version);
    let all: Vec<_> = version.segments.iter().map(|entry| entry.segment.number).collect();
    let mut guard = engine.writer(Need::default()).unwrap();
    let mut attempt = Attempt::begin(Arc::clone(&version), &engine.pager, guard.get().unwrap());
    garbage_collection::evacuate(&mut attempt, &all).unwrap();
    engine.commit_attempt(attempt, Trees::Same).unwrap();
    drop(guard);
    assert!(engine.state.load().version.segments.get(all[0]).is_none(), "all was moved");
    story.flush(ahead);
    assert!(story.verify(&volume) > 0);
}

#[test]
fn beside_a_block_that_has_become_two_the_flush_begins_anew() {
    let volume = Simulated::new(1);
    let story = Story::new(&volume);
    let index = story.due.len() / 2;
    story.change_block(index, |number| {
        Some(([&number.to_be_bytes()[..], b"more"].concat(), Some(vec![5; 100])))
    });
    let ahead = story.go_ahead(&[]).unwrap();
    story.change_block(index, |number| {
        Some(([&number.to_be_bytes()[..], b"more"].concat(), Some(vec![5; 200])))
    });
    story.flush(ahead);
    assert_eq!(story.verify(&volume), 0);
}

#[test]
fn what_was_passed_by_does_not_come_to_a_block_that_was_appended_to() {
    let volume = Simulated::new(1);
    let story = Story::new(&volume);
    let index = story.due.len() / 2;
    let ahead = story.go_ahead(&story.due[index..index + 1]).unwrap();
    let blocks = |story: &Story| {
        let engine = &story.db.handle.engine;
        let version = Arc::clone(&engine.state.load().version);
        let view = TreeView { pager: &engine.pager, version: &version, keyspace: story.keyspace.id() };
        let low = story.due[index].low.clone();
        (view.block_at(&low).unwrap().unwrap().id, version.table.count())
    };
    let before = blocks(&story);
    story.change_block(index, |number| Some((number.to_be_bytes().to_vec(), None)));
    assert!(blocks(&story).0 != before.0, "the block is no more");
    story.flush(ahead);
    assert_eq!(story.verify(&volume), 0);
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
            let place = || format!("{:?}", engine.flush.sweep_for_test().lock().place());
            let (before, slots) = (place(), engine.slots.used());
            let next_id = || {
                let mut guard = engine.writer(Need::default()).unwrap();
                let file = guard.get().unwrap().file();
                let id = file.take_id();
                file.give_back_ids([id].into_iter());
                id
            };
            let id = next_id();
            volume.fail_nth(Filter::kinds([OperationKind::Write]).file("data"), nth, fault, Repeat::Once);
            match story.go_ahead(&[]) {
                Ok(Some(ahead)) => {
                    drop(ahead);
                    assert_eq!(engine.slots.used(), slots);
                    break;
                }
                Ok(None) => assert_eq!(fault, Fault::NoSpace),
                Err(error) => assert!(fault != Fault::NoSpace && !error.is_disk_full(), "{error}"),
            }
            failed += 1;
            assert_eq!((place(), engine.slots.used(), next_id()), (before, slots, id));
            engine.flush_and_go_ahead(&mut None).unwrap();
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
        let left = &story.due[..story.due.len() / 3];
        let mut ahead = story.go_ahead(left).unwrap();
        story.cleanse(left);
        volume.fail_nth(Filter::kinds([OperationKind::Write]), nth, Fault::NoSpace, Repeat::Once);
        story.db.handle.engine.flush_and_go_ahead(&mut ahead).unwrap();
        drop(ahead);
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
