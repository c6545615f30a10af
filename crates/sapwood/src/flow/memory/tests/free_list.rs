//! What a queue that is gone has left for the next one.

use super::{queues, writing};
use crate::Database;
use crate::background::pick::STILL;
use crate::operation::{KeyspaceId, OperationRef};
use crate::opq::Opq;
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn what_a_queue_has_left_counts_until_the_next_has_taken_it_or_it_is_given_back() {
    let (db, mut write) = writing(0);
    let engine = &db.handle.engine;
    let capacity = || engine.pager.cache.capacity() as usize;
    let whole = capacity();
    let is_counted = || {
        let taken = capacity() + queues(engine) + engine.memory.free_list.bytes();
        assert!(taken.abs_diff(whole) < 64 << 10, "{taken} of {whole}");
    };
    (0..16).for_each(|_| write(1000, 200));
    let memory = queues(engine);
    db.flush().unwrap();
    assert_eq!(
        engine.memory.free_list.bytes(),
        0,
        "without a background thread it would never be given back"
    );
    (0..16).for_each(|_| write(1000, 200));
    engine.memory.free_list.open(engine.shares.queue);
    db.flush().unwrap();
    assert_eq!(engine.memory.free_list.bytes(), memory);
    assert_eq!(db.stats().memory.spare, memory as u64);
    is_counted();
    assert!(engine.background.idle_work.keeps_something());
    for _ in 0..8 {
        write(1000, 200);
        assert_eq!(queues(engine) + engine.memory.free_list.bytes(), memory);
        is_counted();
    }
    engine.memory.give_back_free_list(Duration::from_secs(3600));
    assert!(engine.memory.free_list.is_open(), "it may still be taken");
    engine.memory.give_back_free_list(Duration::ZERO);
    assert_eq!((engine.memory.free_list.bytes(), engine.memory.free_list.is_open()), (0, false));
    is_counted();
    // A flush may be at work for long when its queue is in the trees, and then no thread is idle.
    db.flush().unwrap();
    engine.memory.free_list.open(engine.shares.queue);
    engine.background.ctx.rest_beside_readers(2 * STILL);
    assert!(!engine.memory.free_list.is_open());
}

#[test]
fn queues_and_what_they_have_left_never_take_more_than_two() {
    let (db, mut write) = writing(0);
    let engine = &db.handle.engine;
    let most = 2 * engine.shares.queue.next_multiple_of(256 << 10) + (512 << 10);
    engine.memory.free_list.open(engine.shares.queue);
    let mut kept = 0;
    for round in 0..6 {
        // Such as go into chunks, and such as stand alone.
        let (records, len) = [(200, 200), (2, 100 << 10)][round % 2];
        let flushes = db.stats().writes.flushes;
        while db.stats().writes.flushes < flushes + 2 {
            write(records, len);
            let all = queues(engine) + engine.memory.free_list.bytes();
            assert!(all <= most, "{all} of {most}");
            kept = kept.max(engine.memory.free_list.bytes());
        }
    }
    assert!(kept > engine.shares.queue / 2, "{kept}");
    // And what it may be follows what a queue may take.
    engine.memory.free_list.open(1 << 40);
    engine.memory.balance_memory();
    let other = Opq::new(&engine.memory.free_list, &[]);
    let value = vec![1; 50 << 10];
    let change = |_| OperationRef { keyspace: KeyspaceId(1), key: b"key", value: Some(&value) };
    other.insert_all((0..200).map(change), 1, &|_| None);
    assert!(other.memory() > 8 << 20);
    drop(other);
    assert_eq!(engine.memory.free_list.bytes(), engine.shares.queue.next_multiple_of(256 << 10));
    engine.memory.give_back_free_list(Duration::ZERO);
    // A queue that is held comes there when it is let go.
    write(1000, 200);
    let (snapshot, memory) = (db.snapshot(), queues(engine));
    db.flush().unwrap();
    engine.memory.free_list.open(engine.shares.queue);
    assert_eq!(db.stats().memory.queues, memory as u64);
    drop(snapshot);
    assert_eq!((db.stats().memory.queues, engine.memory.free_list.bytes()), (0, memory));
    let state = engine.state.load_full();
    assert_eq!(engine.memory.queue_max(&state), engine.shares.queue);
}

/// While it flushes, one queue's memory is the next one's; and a quarter of a second later it is given back.
#[test]
fn a_database_at_rest_keeps_nothing_of_a_queue() {
    let (db, mut write) = writing(1);
    let engine = &db.handle.engine;
    let until = |what: &str, is_so: &mut dyn FnMut() -> bool| {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(120), "{what}");
        }
    };
    let capacity = || engine.pager.cache.capacity() as usize;
    let whole = capacity();
    let mut before = 0;
    until("some of a queue is left", &mut || {
        write(200, 200);
        before = engine.memory.free_list.bytes();
        before > 1 << 20
    });
    until("the next takes it", &mut || {
        write(200, 200);
        engine.memory.free_list.bytes() < before && engine.memory.free_list.bytes() > 0
    });
    db.flush().unwrap();
    until("it is given back", &mut || {
        std::thread::sleep(Duration::from_millis(10));
        !engine.memory.free_list.is_open()
    });
    assert_eq!(db.stats().memory.spare, 0);
    until("the cache has it", &mut || capacity() + queues(engine) + (512 << 10) > whole);
    write(1, 200);
    let handle = Arc::clone(&db.handle);
    db.flush().unwrap();
    db.close().unwrap();
    assert!(!handle.engine.memory.free_list.is_open());
}

#[test]
fn while_the_disk_is_full_nothing_is_kept_for_a_next_queue() {
    let simulated = Simulated::new(1);
    let volume: Arc<dyn Volume> = Arc::new(simulated.clone());
    let db = Database::builder().memory(32 << 20).open_on(volume).unwrap();
    let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
    keyspace.insert("key", "value").unwrap();
    let writes = Filter::kinds([OperationKind::Write]).file("data");
    simulated.fail_nth(writes, 1, Fault::NoSpace, Repeat::Sticky);
    assert!(db.flush().is_err_and(|error| error.is_disk_full()));
    let began = Instant::now();
    while engine.memory.free_list.is_open() {
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    assert!(engine.state.load().frozen.is_some());
    simulated.clear_faults();
    db.flush().unwrap();
}
