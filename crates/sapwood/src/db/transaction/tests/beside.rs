//! Transactions beside other commits: in one group, beside commits that are being synced, and beside an ingestion.

use super::{open, put};
use crate::db::database::Database;
use crate::{ConflictReason, Durability, Error, Keyspace};
use psync::{Device, FileId, PassThrough, Simulated};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Syncs of it wait while it is closed.
#[derive(Clone)]
struct Gate {
    inner: Simulated,
    is_closed: Arc<AtomicBool>,
    /// The only file that it holds up, if there is one.
    only: Arc<OnceLock<FileId>>,
    waiting: Arc<AtomicUsize>,
}

impl PassThrough for Gate {
    fn inner(&self) -> &dyn psync::Volume {
        &self.inner
    }

    fn sync(&self, file: FileId) -> psync::Result<()> {
        if self.only.get().is_none_or(|only| *only == file) {
            self.waiting.fetch_add(1, SeqCst);
            until(|| !self.is_closed.load(SeqCst));
            self.waiting.fetch_sub(1, SeqCst);
        }
        Device::sync(&self.inner, file)
    }
}

impl Gate {
    /// Closes it for what `run` does beside a sync, which begins by `sync`.
    fn beside<'s, 'e: 's>(&self, sync: impl FnOnce() -> ScopedJoinHandle<'s, ()>, run: impl FnOnce()) {
        self.is_closed.store(true, SeqCst);
        let syncing = sync();
        until(|| self.waiting.load(SeqCst) > 0);
        run();
        self.is_closed.store(false, SeqCst);
        syncing.join().unwrap();
    }
}

fn until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "it never becomes so");
        std::thread::yield_now();
    }
}

/// A database whose syncs can be held up, and whose log has begun.
fn gated() -> (Gate, Database, Keyspace) {
    let (is_closed, only, waiting) = Default::default();
    let gate = Gate { inner: Simulated::new(1), is_closed, only, waiting };
    let db = Database::builder().memory(4 << 20).background_threads(0);
    let db = db.open_on(Arc::new(gate.clone())).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    keyspace.insert("begun", "1").unwrap();
    (gate, db, keyspace)
}

/// Whether a thread goes on waiting.
fn is_waiting<T>(thread: &ScopedJoinHandle<'_, T>) -> bool {
    std::thread::sleep(Duration::from_millis(50));
    !thread.is_finished()
}

/// What a reader could see: the later write, and not the transaction that comes before it.
#[test]
fn what_a_transaction_has_read_is_not_changed_while_it_is_synced() {
    let (gate, db, keyspace) = gated();
    put(&db, &keyspace, "m", "1");
    std::thread::scope(|scope| {
        let durable = || {
            let mut tx = db.transaction().unwrap();
            tx.get(&keyspace, "k").unwrap();
            tx.prefix(&keyspace, "p").count();
            tx.insert(&keyspace, "x", "1").unwrap();
            tx.commit().unwrap();
        };
        let mut waiting = Vec::new();
        gate.beside(
            || scope.spawn(durable),
            || {
                put(&db, &keyspace, "another", "passes by");
                assert!(keyspace.contains("another").unwrap());
                for key in ["k", "phantom"] {
                    let write = scope.spawn({
                        let (db, keyspace) = (&db, &keyspace);
                        move || put(db, keyspace, key, "2")
                    });
                    assert!(is_waiting(&write), "{key}");
                    assert!(!keyspace.contains(key).unwrap() && !keyspace.contains("x").unwrap());
                    waiting.push(write);
                }
            },
        );
        waiting.into_iter().for_each(|write| write.join().unwrap());
    });
    assert!(keyspace.contains("phantom").unwrap() && keyspace.contains("x").unwrap());
}

#[test]
fn a_transaction_is_validated_against_what_is_being_synced() {
    let (gate, db, keyspace) = gated();
    std::thread::scope(|scope| {
        let mut buffered = db.transaction().unwrap();
        buffered.durability(Durability::Buffered);
        assert!(buffered.get(&keyspace, "k").unwrap().is_none());
        buffered.insert(&keyspace, "x", "1").unwrap();
        let mut waiting = None;
        gate.beside(
            || scope.spawn(|| keyspace.insert("k", "1").unwrap()),
            || {
                let commit = scope.spawn(|| buffered.commit());
                assert!(is_waiting(&commit));
                waiting = Some(commit);
            },
        );
        let refused = waiting.unwrap().join().unwrap();
        assert!(matches!(&refused, Err(Error::Conflict { key, .. }) if *key == "k"), "{refused:?}");
    });
}

#[test]
fn members_of_a_group_are_validated_against_each_other_and_answered_for_themselves() {
    let (db, keyspace) = open();
    let engine = &db.handle.engine;
    let of = |reads: &str, writes: &str| {
        let mut tx = db.transaction().unwrap();
        tx.get(&keyspace, reads).unwrap();
        tx.insert(&keyspace, writes, "1").unwrap();
        tx
    };
    let members = [of("x", "y"), of("y", "x"), of("y", "z"), of("a", "b"), of("z", "a")];
    std::thread::scope(|scope| {
        let log = engine.commits.log.lock_for_test();
        let first = scope.spawn(|| keyspace.insert("first", "1"));
        until(|| engine.commits.queues.durable.inner.lock().has_leader);
        let mut threads = Vec::new();
        for (number, tx) in members.into_iter().enumerate() {
            threads.push(scope.spawn(move || tx.commit()));
            until(|| engine.commits.queues.durable.inner.lock().waiters.len() > number);
        }
        let plain = scope.spawn(|| keyspace.insert("plain", "1"));
        until(|| engine.commits.queues.durable.inner.lock().waiters.len() > 5);
        drop(log);
        first.join().unwrap().unwrap();
        plain.join().unwrap().unwrap();
        let answers: Vec<_> = threads
            .into_iter()
            .map(|thread| match thread.join().unwrap() {
                Ok(()) => None,
                Err(Error::Conflict { key, .. }) => Some(String::from_utf8(key.to_vec()).unwrap()),
                Err(error) => panic!("{error}"),
            })
            .collect();
        // "z" was not written: the third is not in the group any more.
        let conflict = |key: &str| Some(key.to_owned());
        assert_eq!(answers, [None, conflict("y"), conflict("y"), None, None]);
    });
    let keys: Vec<_> = keyspace.iter().map(|record| record.unwrap().0.to_vec()).collect();
    assert_eq!(keys, [&b"a"[..], b"b", b"first", b"plain", b"y"]);
}

#[test]
fn a_transaction_waits_for_records_that_are_being_ingested_where_it_has_read() {
    let (gate, db, keyspace) = gated();
    let other = db.keyspace("other").unwrap();
    db.flush().unwrap();
    gate.only.set(db.handle.engine.data).unwrap();
    std::thread::scope(|scope| {
        let begun = |reads: &Keyspace| {
            let mut tx = db.transaction().unwrap();
            tx.durability(Durability::Buffered).get(reads, "z").unwrap();
            tx.insert(&other, "x", "1").unwrap();
            tx
        };
        let (reader, elsewhere) = (begun(&keyspace), begun(&other));
        let mut waiting = None;
        gate.beside(
            || scope.spawn(|| _ = keyspace.ingest([("z", "1")]).unwrap()),
            || {
                elsewhere.commit().unwrap();
                let commit = scope.spawn(|| reader.commit());
                assert!(is_waiting(&commit));
                waiting = Some(commit);
            },
        );
        let refused = waiting.unwrap().join().unwrap();
        let is_ingested =
            |error: &Error| matches!(error, Error::Conflict { reason: ConflictReason::Ingested, .. });
        assert!(refused.as_ref().is_err_and(is_ingested), "{refused:?}");
    });
}

#[test]
fn a_conflict_with_a_dropped_keyspace_names_it() {
    let (db, keyspace) = open();
    let other = db.keyspace("other").unwrap();
    put(&db, &keyspace, "k", "1");
    db.flush().unwrap();
    let mut tx = db.transaction().unwrap();
    tx.get(&keyspace, "k").unwrap();
    tx.insert(&other, "k", "1").unwrap();
    assert!(db.drop_keyspace("main").unwrap());
    let refused = tx.commit();
    assert!(
        matches!(&refused, Err(Error::Conflict { keyspace, reason: ConflictReason::Dropped, .. }) if keyspace == "main"),
        "{refused:?}"
    );
}
