//! A child that is forked from a process has copies of its databases, and no part in them.

use crate::{builder, count, is_alone, key, open, put, scratch};
use fork::{Fork, fork, waitpid};
use futures_executor::block_on;
use futures_util::{Stream, TryStreamExt};
use psync::{Access, AlignedBuffer, Device, ReadInto, Volume, Write};
use sapwood::merge::MergeOperator;
use sapwood::{Durability, Error, KeyspaceOptions, RangeStream, Result};
use std::future::Future;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Longer than a child takes on a slow disk.
const ENDS_WITHIN: Duration = Duration::from_secs(600);

/// Runs `work` in a child, and returns whether it came to its end and found what it expected. The child shall not run
/// what else ends a program: other threads of this one had locks.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    match fork().expect("a child") {
        Fork::Parent(child) => {
            let deadline = Instant::now() + ENDS_WITHIN;
            loop {
                match fork::waitpid_nohang(child).expect("it is waited for") {
                    Some(status) => return status == 0,
                    None if Instant::now() > deadline => {
                        Command::new("kill").args(["-9", &child.to_string()]).status().expect("kill");
                        waitpid(child).expect("it is waited for");
                        return false;
                    }
                    None => std::thread::sleep(Duration::from_millis(10)),
                }
            }
        }
        Fork::Child => {
            let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(false);
            let error = Command::new(if worked { "true" } else { "false" }).exec();
            panic!("no program: {error}")
        }
    }
}

fn is_refused<T>(answer: Result<T>) -> bool {
    matches!(answer, Err(Error::Forked { .. }))
}

/// It panicked, and its parent's lock was no more.
#[test]
fn a_child_that_drops_its_handle_does_not_release_the_parents_lock() {
    if !is_alone("forked::a_child_that_drops_its_handle_does_not_release_the_parents_lock") {
        return;
    }
    for closes in [false, true] {
        let dir = scratch();
        let path = dir.path().join("d");
        let (db, keyspace) = open(&path);
        (0..100).for_each(|number| put(&db, &keyspace, number).unwrap());
        let (mut db, mut keyspace) = (Some(db), Some(keyspace));
        let ended = in_child(|| {
            // The last ones in the child.
            drop(keyspace.take());
            match db.take() {
                Some(db) if closes => is_refused(db.close()),
                db => {
                    drop(db);
                    true
                }
            }
        });
        assert!(ended, "the child came to a bad end");
        let (db, keyspace) = (db.expect("the parent's"), keyspace.expect("the parent's"));
        let opened = builder().open(&path);
        assert!(matches!(opened, Err(Error::Locked { .. })), "{opened:?}");
        (100..200).for_each(|number| put(&db, &keyspace, number).unwrap());
        drop(keyspace);
        db.close().unwrap();
        assert_eq!(count(&path, 0), 200);
    }
}

#[test]
fn a_child_that_uses_its_copy_is_told_so() {
    if !is_alone("forked::a_child_that_uses_its_copy_is_told_so") {
        return;
    }
    let dir = scratch();
    let path = dir.path().join("d");
    let (db, keyspace) = open(&path);
    put(&db, &keyspace, 0).unwrap();
    db.flush().unwrap();
    let snapshot = db.snapshot();
    let mut batch = db.batch();
    batch.insert(&keyspace, "visible", "1");
    let mut pending = Some(batch.commit_visible().unwrap());
    // By now the parent has threads for tasks, which the child has not.
    let commit =
        |key: &str| db.batch().insert(&keyspace, key, "1").durability(Durability::Immediate).commit_async();
    block_on(commit("of a task")).unwrap();
    let [mut begun, mut dropped] = ["begun", "dropped"].map(|key| {
        let mut commit = Box::pin(commit(key));
        let mut context = Context::from_waker(Waker::noop());
        assert!(commit.as_mut().poll(&mut context).is_pending());
        Some(commit)
    });
    let told = in_child(|| {
        // By a thread that is the parent's.
        let (sender, receiver) = std::sync::mpsc::channel();
        pending.take().expect("one").on_durable(move |durable| _ = sender.send(durable));
        receiver.try_recv().is_ok_and(is_refused)
            && is_refused(keyspace.get(key(0)))
            && is_refused(keyspace.insert("key", "value"))
            && is_refused(put(&db, &keyspace, 1))
            && is_refused(snapshot.get(&keyspace, key(0)))
            && is_refused(keyspace.multi_get([key(0)]))
            && keyspace.iter().next().is_some_and(is_refused)
            && is_refused(keyspace.metadata())
            && is_refused(keyspace.ingest([("key", "value")]))
            && is_refused(db.keyspace("other"))
            && is_refused(db.flush())
            && is_refused(db.compact())
            && is_refused(db.sync())
            && is_refused(db.check())
            && is_refused(block_on(keyspace.multi_get_async([key(0)])))
            && is_refused(block_on(db.batch().insert(&keyspace, "key", "value").commit_async()))
            && begun.take().is_some_and(|begun| is_refused(block_on(begun)))
            && dropped.take().is_some()
            && (0..8).all(|number| other_is_fine(&path.with_extension(number.to_string())))
    });
    assert!(told);
    put(&db, &keyspace, 1).unwrap();
    drop((begun, dropped));
    ["visible", "of a task", "begun", "dropped"].iter().for_each(|key| keyspace.remove(key).unwrap());
    drop((snapshot, keyspace, pending));
    db.close().unwrap();
    assert_eq!(count(&path, 0), 2);
}

/// An operator that takes until it is told to go on, so that a read of its records does.
#[derive(Default)]
struct Slow {
    is_slow: AtomicBool,
    /// Reads that were begun.
    begun: AtomicUsize,
}

struct SlowOperator(Arc<Slow>);

impl MergeOperator for SlowOperator {
    fn name(&self) -> &str {
        "slow"
    }

    fn apply(&self, _: Option<&[u8]>, operand: &[u8]) -> std::result::Result<Vec<u8>, String> {
        self.0.begun.fetch_add(1, SeqCst);
        while self.0.is_slow.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(operand.to_vec())
    }

    fn combine(&self, _: &[u8], newer: &[u8]) -> Vec<u8> {
        newer.to_vec()
    }
}

/// It waited for threads that are its parent's.
#[test]
fn a_child_gets_nothing_of_a_stream_and_waits_for_nothing() {
    if !is_alone("forked::a_child_gets_nothing_of_a_stream_and_waits_for_nothing") {
        return;
    }
    let dir = scratch();
    let slow = Arc::new(Slow::default());
    let operator = || SlowOperator(Arc::clone(&slow));
    let db = builder().merge_operator(operator()).open(dir.path().join("d")).unwrap();
    let keyspace = db.keyspace_with("main", KeyspaceOptions::new().merge(operator())).unwrap();
    keyspace.merge("key", "value").unwrap();
    let read = |stream: RangeStream| block_on(stream.try_collect::<Vec<_>>()).unwrap().len();
    // Threads for tasks are there, and have nothing to do.
    assert_eq!(read(keyspace.iter().into_stream()), 1);
    let poll = |stream: &mut RangeStream| Pin::new(stream).poll_next(&mut Context::from_waker(Waker::noop()));
    let is_told = |stream: &mut RangeStream| {
        matches!(poll(stream), Poll::Ready(Some(Err(Error::Forked { .. }))))
            && matches!(poll(stream), Poll::Ready(None))
    };
    let mut unused = Some(keyspace.iter().into_stream());
    slow.is_slow.store(true, SeqCst);
    let begun = slow.begun.load(SeqCst);
    let mut running = Some([(); 2].map(|()| {
        let mut stream = keyspace.iter().into_stream();
        assert!(poll(&mut stream).is_pending());
        stream
    }));
    while slow.begun.load(SeqCst) < begun + 2 {
        std::thread::yield_now();
    }
    let was_told = in_child(|| {
        let ([mut polled, dropped], mut unused) = (running.take().expect("two"), unused.take().expect("one"));
        drop(dropped);
        is_told(&mut unused) && is_told(&mut polled) && is_told(&mut keyspace.iter().into_stream())
    });
    // Before anything fails: the streams are waited for when they are dropped.
    slow.is_slow.store(false, SeqCst);
    assert!(was_told);
    assert!(running.into_iter().flatten().chain(unused).all(|stream| read(stream) == 1));
}

/// Two children of one process had the same random numbers, so the same ids of databases, and nonces.
#[test]
fn databases_of_two_children_have_ids_of_their_own() {
    if !is_alone("forked::databases_of_two_children_have_ids_of_their_own") {
        return;
    }
    let dir = scratch();
    drop(open(&dir.path().join("parent")));
    let ids = ["one", "other"].map(|name| {
        let path = dir.path().join(name);
        assert!(in_child(|| {
            let (db, keyspace) = open(&path);
            let worked = put(&db, &keyspace, 0).is_ok();
            drop(keyspace);
            worked && db.close().is_ok()
        }));
        // Where the format has it.
        std::fs::read(path.join("CURRENT")).unwrap()[12..28].to_vec()
    });
    assert_ne!(ids[0], ids[1]);
}

/// The kernel's queues are shared with it: its parent waited for what the child had taken from them.
#[test]
fn a_child_leaves_its_parents_reads_in_flight() {
    if !is_alone("forked::a_child_leaves_its_parents_reads_in_flight") {
        return;
    }
    let dir = scratch();
    let disk = psync::Disk::open(dir.path(), psync::DiskOptions::default()).unwrap();
    let file =
        disk.open("data", Access { write: true, create: true, direct: true, ..Access::default() }).unwrap();
    let mut block = AlignedBuffer::new(64 << 10);
    block.fill(7);
    let writes: Vec<_> = (0..64).map(|number| Write { file, offset: number << 16, data: &block }).collect();
    disk.write(&writes).unwrap();
    let set = || {
        let reads = (0..8).map(|number| ReadInto {
            file,
            offset: number << 18,
            buffer: AlignedBuffer::new(64 << 10),
        });
        reads.collect::<Vec<_>>()
    };
    for waits in [false, true] {
        let began = Instant::now();
        disk.begin(set()).wait().unwrap();
        // The reads are done by then, also on a slow disk.
        let is_done = Duration::from_millis(100) + 10 * began.elapsed();
        let mut reads = Some(disk.begin(set()));
        assert!(in_child(|| {
            std::thread::sleep(is_done);
            match reads.take() {
                Some(reads) if waits => {
                    reads.has_ended() || matches!(reads.wait(), Err(psync::Error::Forked { .. }))
                }
                reads => {
                    drop(reads);
                    true
                }
            }
        }));
        let began = Instant::now();
        let buffers = reads.expect("the parent's").wait().unwrap();
        assert!(buffers.len() == 8 && buffers.iter().all(|buffer| buffer.iter().all(|byte| *byte == 7)));
        assert!(began.elapsed().as_secs() < 30, "it has waited for its child");
        assert_eq!(disk.counters().timeouts, 0);
    }
}

/// The child may open others, and its own child is no part of it either. The threads of its parent, which wait for work in that
/// process, shall not be in the way of the child's: they were, if these took over their memory.
fn other_is_fine(path: &Path) -> bool {
    let (db, keyspace) = open(path);
    let grandchild = in_child(|| is_refused(keyspace.get(key(0))));
    grandchild && put(&db, &keyspace, 0).is_ok() && {
        drop(keyspace);
        db.close().is_ok()
    }
}
