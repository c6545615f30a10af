//! Transactions that are repeated, and the turn that they take.

use super::{open, put};
use crate::commit::queue::{Leadership, PendingBatch, Queued};
use crate::commit::turn::TurnHolder;
use crate::{Database, Durability, Error};
use psync::Simulated;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

#[test]
fn a_long_transaction_beside_hot_short_ones_ends() {
    let db = Database::builder().memory(4 << 20).open_on(Arc::new(Simulated::new(1))).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let (is_over, writes) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (db, keyspace, is_over, writes) = (&db, &keyspace, &is_over, &writes);
            scope.spawn(move || {
                while !is_over.load(SeqCst) {
                    put(db, keyspace, &format!("key {thread}"), "value");
                    db.transact(|tx| {
                        tx.durability(Durability::Buffered).get(keyspace, "key 0")?;
                        tx.insert(keyspace, "key 1", "value")
                    })
                    .unwrap();
                    writes.fetch_add(1, SeqCst);
                }
            });
        }
        let mut runs = 0;
        let (mut transactions, began) = (0, Instant::now());
        while transactions < 5 || (writes.load(SeqCst) <= 100 && began.elapsed() < Duration::from_secs(20)) {
            transactions += 1;
            db.transact(|tx| {
                runs += 1;
                let found = tx.iter(&keyspace).count();
                std::thread::sleep(Duration::from_millis(10));
                tx.insert(&keyspace, "found", found.to_string())
            })
            .unwrap();
        }
        is_over.store(true, SeqCst);
        assert!(
            (transactions..=5 * transactions).contains(&runs),
            "{runs} runs of {transactions} transactions"
        );
    });
    assert!(writes.into_inner() > 100);
}

/// Runs something in the turn of a transaction, by making it conflict before that.
fn in_turn<R>(
    db: &Database,
    mut run: impl FnMut(&mut crate::Transaction) -> crate::Result<R>,
) -> crate::Result<R> {
    let hot = db.keyspace("hot").unwrap();
    db.transact(|tx| {
        tx.get(&hot, "hot")?;
        tx.insert(&hot, "cold", "1")?;
        if !db.handle.engine.commits.queues.turn.is_mine() {
            put(db, &hot, "hot", "1");
            return run(tx).map(Some);
        }
        run(tx).map(Some)
    })
    .map(|result| result.unwrap())
}

#[test]
fn others_wait_for_the_turn_and_its_thread_does_not() {
    let (db, keyspace) = open();
    std::thread::scope(|scope| {
        let (mut waiting, turn) = (None, &db.handle.engine.commits.queues.turn);
        in_turn(&db, |tx| {
            if turn.is_mine() {
                let commit = scope.spawn(|| put(&db, &keyspace, "k", "other"));
                std::thread::sleep(Duration::from_millis(50));
                assert!(!commit.is_finished() && !keyspace.contains("k").unwrap());
                waiting = Some(commit);
                // The leader of others waits for the log, and these pass by it.
                put(&db, &keyspace, "own", "1");
                keyspace.insert("own, durable", "1").unwrap();
                db.transact(|tx| tx.insert(&keyspace, "own, nested", "1")).unwrap();
                db.flush().unwrap();
                assert!(turn.is_mine(), "the inner one has not ended it");
                scope.spawn(|| db.sync().unwrap()).join().unwrap();
            }
            tx.insert(&keyspace, "in turn", "1")
        })
        .unwrap();
        waiting.unwrap().join().unwrap();
    });
    assert_eq!(keyspace.iter().count(), 5);
}

#[test]
fn the_turn_ends_whatever_happens() {
    let (db, keyspace) = open();
    let turn = &db.handle.engine.commits.queues.turn;
    let mut had_turn = 0;
    let refused = in_turn(&db, |_| -> crate::Result<()> {
        had_turn += usize::from(turn.is_mine());
        if turn.is_mine() { Err(Error::KeyEmpty) } else { Ok(()) }
    });
    assert!(matches!(refused, Err(Error::KeyEmpty)));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        in_turn(&db, |_| {
            had_turn += usize::from(turn.is_mine());
            assert!(!turn.is_mine(), "for this test");
            Ok(())
        })
    }));
    assert!(panicked.is_err() && had_turn == 2);
    // What its own thread changes after it was read is its own fault, and is not tried for ever.
    let refused = in_turn(&db, |tx| {
        tx.get(&keyspace, "k")?;
        had_turn += usize::from(turn.is_mine());
        put(&db, &keyspace, "k", "own");
        tx.insert(&keyspace, "x", "1")
    });
    assert!(matches!(&refused, Err(Error::Conflict { key, .. }) if *key == "k"), "{refused:?}");
    assert_eq!(had_turn, 3);
    std::thread::scope(|scope| scope.spawn(|| put(&db, &keyspace, "after", "1")).join().unwrap());
    assert!(keyspace.contains("after").unwrap() && !keyspace.contains("x").unwrap());
}

/// The queue fills up while no other thread commits, and is flushed.
#[test]
fn a_turn_that_writes_more_than_a_queue_takes_ends() {
    for threads in [0, 1] {
        let db = Database::builder().memory(4 << 20).background_threads(threads);
        let db = db.open_on(Arc::new(Simulated::new(1))).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        in_turn(&db, |tx| {
            for number in 0..3000u32 {
                put(&db, &keyspace, &format!("{number}"), &"value ".repeat(200));
            }
            tx.insert(&keyspace, "x", "1")
        })
        .unwrap();
        assert_eq!(keyspace.iter().count(), 3001);
    }
}

#[test]
fn many_threads_count_in_one_record_and_none_is_lost() {
    let db = Database::builder().memory(4 << 20).open_on(Arc::new(Simulated::new(1))).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    db.transact(|tx| {
                        let count = tx
                            .get(&keyspace, "n")?
                            .map_or(0, |n| u32::from_be_bytes(n[..].try_into().unwrap()));
                        tx.durability(Durability::Buffered);
                        tx.insert(&keyspace, "n", (count + 1).to_be_bytes())
                    })
                    .unwrap();
                }
            });
        }
    });
    assert_eq!(keyspace.get("n").unwrap().unwrap(), &800u32.to_be_bytes());
}

/// Whoever tells of keyspaces makes all before it durable, with locks that the turn's thread may want, and must not wait for a leader
/// who waits for the turn.
#[test]
fn keyspaces_are_told_of_while_a_leader_waits_for_the_turn() {
    let builder = Database::builder().memory(4 << 20).keep_changes(1 << 20);
    let db = builder.open_on(Arc::new(Simulated::new(1))).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    std::thread::scope(|scope| {
        let (mut waiting, commits) = (None, &db.handle.engine.commits);
        in_turn(&db, |tx| {
            if commits.queues.turn.is_mine() {
                let commit = scope.spawn(|| keyspace.insert("durable", "1").unwrap());
                while !commits.queues.durable.inner.lock().has_leader {
                    std::thread::yield_now();
                }
                waiting = Some(commit);
                let others = [
                    scope.spawn(|| drop(db.keyspace("new").unwrap())),
                    scope.spawn(|| {
                        assert_eq!(db.keyspace("ingested").unwrap().ingest([("k", "v")]).unwrap(), 1)
                    }),
                    scope.spawn(|| _ = db.drop_keyspace("new").unwrap()),
                ];
                let began = std::time::Instant::now();
                while !others.iter().all(|other| other.is_finished()) && began.elapsed().as_secs() < 20 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let done = others.iter().filter(|other| other.is_finished()).count();
                tx.insert(&keyspace, "in turn", done.to_string())?;
                return Ok(done);
            }
            Ok(3)
        })
        .map(|done| assert_eq!(done, 3, "the others wait for the turn"))
        .unwrap();
        waiting.unwrap().join().unwrap();
    });
}

/// Whether a thread ends within seconds.
fn ends_soon<T>(thread: &std::thread::ScopedJoinHandle<'_, T>) -> bool {
    let began = std::time::Instant::now();
    while !thread.is_finished() && began.elapsed().as_secs() < 10 {
        std::thread::sleep(Duration::from_millis(1));
    }
    thread.is_finished()
}

/// The thread that synced slept behind a leader who waited for the turn, whose thread waited for the sync.
#[test]
fn a_visible_commit_within_the_turn_becomes_durable() {
    let db = Database::builder().memory(4 << 20).background_threads(3).open_on(Arc::new(Simulated::new(1)));
    let db = db.unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let commits = &db.handle.engine.commits;
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let turn = commits.take_turn().unwrap();
        let leader = scope.spawn(|| keyspace.insert("durable", "1"));
        while !commits.queues.durable.inner.lock().has_leader {
            std::thread::yield_now();
        }
        let mut batch = db.batch();
        batch.insert(&keyspace, "visible", "1");
        batch.commit_visible().unwrap().on_durable(move |durable| send.send(durable.is_ok()).unwrap());
        let told = receive.recv_timeout(Duration::from_secs(10));
        // That of another thread neither.
        let sync = scope.spawn(|| db.sync());
        let is_synced = ends_soon(&sync);
        assert!(!leader.is_finished());
        drop(turn);
        leader.join().unwrap().unwrap();
        sync.join().unwrap().unwrap();
        assert!(told == Ok(true) && is_synced, "{told:?}, {is_synced}");
    });
}

/// Whoever had the lock of the creation of keyspaces, and flushed for the reserve on a full disk, waited for a leader who waited for the turn, whose
/// thread wanted the lock.
#[test]
fn a_flush_of_nothing_waits_for_no_leader_that_waits_for_the_turn() {
    let db = Database::builder().memory(4 << 20).open_on(Arc::new(Simulated::new(1))).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let commits = &db.handle.engine.commits;
    std::thread::scope(|scope| {
        let turn = commits.take_turn().unwrap();
        let leader = scope.spawn(|| keyspace.insert("durable", "1"));
        while !commits.queues.durable.inner.lock().has_leader {
            std::thread::yield_now();
        }
        let flush = scope.spawn(|| commits.flush_all());
        let is_done = ends_soon(&flush);
        assert!(!leader.is_finished());
        drop(turn);
        flush.join().unwrap().unwrap();
        leader.join().unwrap().unwrap();
        assert!(is_done, "it waits for the turn");
    });
}

/// A sync slept behind a leader that had its group before the turn began, and then waited for its end.
#[test]
fn no_sync_waits_for_a_turn_behind_a_leader_that_was_there_before() {
    for is_in_group in [false, true] {
        let (db, keyspace) = open();
        let (engine, queue) = (&db.handle.engine, &db.handle.engine.commits.queues.durable);
        std::thread::scope(|scope| {
            let first = is_in_group.then(|| {
                let sync = PendingBatch::new(Vec::new(), 0, Durability::Immediate);
                assert!(matches!(queue.wait_or_lead(sync, &TurnHolder::default()), Queued::Leads(_)));
                Leadership::new(queue, Vec::new())
            });
            let wait_for = |waiters: usize| {
                while queue.inner.lock().waiters.len() < waiters {
                    std::thread::yield_now();
                }
            };
            // Holds a transaction up that has read of the keyspace.
            let shows = engine.commits.show_ingested(keyspace.id());
            let mut transaction = db.transaction().unwrap();
            transaction.get(&keyspace, "k").unwrap();
            transaction.insert(&keyspace, "durable", "1").unwrap();
            let sync = is_in_group.then(|| scope.spawn(|| db.sync()));
            wait_for(usize::from(is_in_group));
            transaction.durability(Durability::Immediate);
            let leader = scope.spawn(move || transaction.commit());
            let sync = sync.unwrap_or_else(|| {
                while !queue.inner.lock().has_leader {
                    std::thread::yield_now();
                }
                scope.spawn(|| db.sync())
            });
            wait_for(1 + usize::from(is_in_group));
            drop(first);
            while is_in_group && queue.syncs_in_group() == 0 {
                std::thread::yield_now();
            }
            let turn = engine.commits.take_turn().unwrap();
            drop(shows);
            let is_synced = ends_soon(&sync);
            assert!(!leader.is_finished());
            drop(turn);
            sync.join().unwrap().unwrap();
            leader.join().unwrap().unwrap();
            assert!(is_synced, "it waits for the turn");
        });
    }
}

/// A thread of the store waited for the turn, whose thread waited for the commit, or for the future that it dropped.
#[cfg(feature = "async")]
#[test]
fn a_commit_of_a_task_within_the_turn_is_of_its_thread() {
    let db = Database::builder().memory(4 << 20).background_threads(3).open_on(Arc::new(Simulated::new(1)));
    let db = db.unwrap();
    let keyspace = db.keyspace("main").unwrap();
    for is_dropped in [false, true] {
        let (db, keyspace) = (db.clone(), keyspace.clone());
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let turn = db.handle.engine.commits.take_turn().unwrap();
            let mut batch = db.batch();
            batch.insert(&keyspace, format!("dropped: {is_dropped}"), "1");
            let mut commit = batch.commit_async();
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let polled = std::future::Future::poll(std::pin::Pin::new(&mut commit), &mut context);
            if is_dropped {
                drop(commit);
            }
            send.send(matches!(polled, std::task::Poll::Ready(Ok(())))).unwrap();
            drop(turn);
        });
        assert_eq!(receive.recv_timeout(Duration::from_secs(20)), Ok(true), "dropped: {is_dropped}");
    }
    assert_eq!(keyspace.iter().count(), 2);
}

/// Threads that wait for the turn of the one that closes are waited for by it.
#[test]
fn closing_within_the_turn_ends() {
    let db = Database::builder().memory(4 << 20).background_threads(3).open_on(Arc::new(Simulated::new(1)));
    let db = db.unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let engine = Arc::clone(&db.handle.engine);
    let (send, receive) = std::sync::mpsc::channel();
    let closing = {
        let (engine, db) = (Arc::clone(&engine), db.clone());
        std::thread::spawn(move || {
            let turn = engine.commits.take_turn().unwrap();
            // In a thread of the store, which is joined.
            let begun = engine.pool.submit_detached(move || _ = send.send(keyspace.insert("behind", "1")));
            assert!(matches!(begun, crate::pool::Begun::Now | crate::pool::Begun::Later));
            while engine.commits.queues.waiting.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            let closed = db.close();
            drop(turn);
            closed
        })
    };
    let answer = receive.recv_timeout(Duration::from_secs(20));
    assert!(matches!(answer, Ok(Err(Error::Closed))), "{answer:?}");
    closing.join().unwrap().unwrap();
}
