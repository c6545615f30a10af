//! Queues that are in the trees and are still held.

use crate::Database;
use psync::{Simulated, Volume};
use std::sync::Arc;

#[test]
fn a_queue_held_for_a_moment_leaves_the_next_one_its_share() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(32 << 20).background_threads(0).open_on(volume).unwrap();
    let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
    let mut number = 0u64;
    let mut write = || {
        let mut batch = db.batch();
        for _ in 0..1000 {
            batch.insert(&keyspace, (number * 7919).to_be_bytes(), [1; 200]);
            number += 1;
        }
        batch.commit().unwrap();
    };
    let held_while_it_comes_to_the_trees = |write: &mut dyn FnMut()| {
        (0..12).for_each(|_| write());
        let reader = engine.state.load_full();
        db.flush().unwrap();
        assert!(engine.memory.old_queues() > 2 << 20);
        reader
    };
    // As it is at the end of a flush beside which the next queue has become nearly full.
    let reader = held_while_it_comes_to_the_trees(&mut write);
    engine.memory.taken.lock().old.clear();
    let (share, flushes) = (engine.shares.queue, db.stats().writes.flushes);
    while engine.state.load().active.fill() < share - (768 << 10) {
        write();
    }
    engine.memory.balance_without(Arc::downgrade(&reader.active));
    let state = engine.state.load_full();
    assert!(state.active.fill() > engine.memory.queue_max(&state), "it is full as long as the other is held");
    drop((reader, state));
    keyspace.insert("one", "more").unwrap();
    assert_eq!(db.stats().writes.flushes, flushes, "it was frozen for nothing");
    // Without work, too: statistics, and the idle thread.
    drop(held_while_it_comes_to_the_trees(&mut write));
    let queues = engine.state.load().queues().map(|queue| queue.memory() as u64).sum::<u64>();
    assert_eq!(db.stats().memory.queues, queues);
    drop(held_while_it_comes_to_the_trees(&mut write));
    engine.background.idle_work.look(&mut crate::background::idle::Idle::default(), false);
    assert_eq!(engine.memory.old_queues(), 0);
}

#[test]
fn queues_that_are_held_count_and_leave_less_to_the_next() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(32 << 20).background_threads(0).open_on(volume).unwrap();
    let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
    let share = engine.shares.queue;
    let queue_max = || engine.memory.queue_max(&engine.state.load());
    let capacity = || engine.pager.cache.capacity() as usize;
    let (whole, mut number) = (capacity(), 0u64);
    let mut write = |records: usize| {
        let mut batch = db.batch();
        for _ in 0..records {
            batch.insert(&keyspace, (number * 7919).to_be_bytes(), [1; 200]);
            number += 1;
        }
        batch.commit().unwrap();
    };
    (0..20).for_each(|_| write(1000));
    let snapshot = db.snapshot();
    let held = engine.state.load().active.memory();
    assert!(held > 4 << 20, "{held}");
    db.flush().unwrap();
    assert!(capacity() + held <= whole + 8192, "{} of {whole}, {held} are held", capacity());
    assert_eq!(queue_max(), (2 * share - held) / 2);
    assert_eq!(db.stats().memory.queues, held as u64);
    for _ in 0..80 {
        write(1000);
        let memory: usize = engine.state.load().queues().map(|queue| queue.memory()).sum();
        assert!(memory + held <= 2 * share, "{memory} and {held} of {share}");
    }
    // Queues of short ones, and as many of them as may be: never none.
    let mut snapshots = vec![snapshot];
    for _ in 0..40 {
        write(1000);
        snapshots.push(db.snapshot());
    }
    assert_eq!(queue_max(), share / 4);
    drop(snapshots);
    // Something to flush.
    write(1);
    db.flush().unwrap();
    assert_eq!(queue_max(), share);
    assert!(capacity() + (256 << 10) > whole, "{} of {whole}", capacity());
}
