//! Tasks against plain calls: answers, groups, errors, closing, and futures that are dropped at every poll.

use crate::db::asynchronous::READERS;
use crate::{Builder, Database, Durability, Error, Keyspace, KeyspaceOptions, Result, Value};
use futures_executor::block_on;
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::{Condvar, Mutex};
use psync::{FileId, PassThrough, Read, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

const RECORDS: u32 = 20_000;
/// Behind the first leaf (record), which is in memory: what is asked of that is there at once, if a thread is quick.
const BEHIND: u32 = 505;

/// A volume whose reads wait while a gate is closed, fail where told, and are counted, and whose syncs may be held.
#[derive(Default)]
struct Gate {
    inner: Option<Simulated>,
    is_closed: Mutex<bool>,
    opened: Condvar,
    /// Reads that wait at the gate.
    waiting: AtomicUsize,
    /// Offset of reads that fail, and what they do.
    fails_at: AtomicU64,
    panics: AtomicUsize,
    /// The offset that was read last.
    last: AtomicU64,
    holds_syncs: AtomicBool,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: Some(Simulated::new(1)),
            fails_at: AtomicU64::new(u64::MAX),
            ..Self::default()
        })
    }

    /// Until the result is dropped, by a failed assertion too.
    fn close(&self) -> Closed<'_> {
        *self.is_closed.lock() = true;
        Closed(self)
    }

    fn wait_for(&self, reads: usize) {
        while self.waiting.load(SeqCst) < reads {
            std::thread::yield_now();
        }
    }
}

struct Closed<'a>(&'a Gate);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        *self.0.is_closed.lock() = false;
        self.0.opened.notify_all();
    }
}

/// The gate, as a volume.
struct Gated(Arc<Gate>);

impl PassThrough for Gated {
    fn inner(&self) -> &dyn Volume {
        self.0.inner.as_ref().expect("a volume")
    }

    fn read(&self, set: &mut [Read<'_>]) -> psync::Result<()> {
        let gate = &self.0;
        let mut is_closed = gate.is_closed.lock();
        gate.waiting.fetch_add(1, SeqCst);
        while *is_closed {
            gate.opened.wait(&mut is_closed);
        }
        gate.waiting.fetch_sub(1, SeqCst);
        drop(is_closed);
        for read in &*set {
            gate.last.store(read.offset, SeqCst);
            let bytes = read.offset..read.offset + read.buffer.len() as u64;
            if bytes.contains(&gate.fails_at.load(SeqCst)) {
                assert_eq!(gate.panics.load(SeqCst), 0, "on purpose");
                return Err(psync::Error::Io {
                    operation: "read",
                    file: "data".into(),
                    offset: Some(read.offset),
                    source: std::io::Error::other("on purpose"),
                });
            }
        }
        self.inner().read(set)
    }

    fn sync(&self, file: FileId) -> psync::Result<()> {
        while self.0.holds_syncs.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.inner().sync(file)
    }
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn builder() -> Builder {
    Database::builder().memory(4 << 20).leaf_len(4096)
}

/// A database whose records are on the device, and its inner nodes mostly in memory.
fn cold(gate: &Arc<Gate>, builder: &Builder) -> (Database, Keyspace) {
    let db = builder.clone().open_on(Arc::new(Gated(Arc::clone(gate)))).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    keyspace.ingest((0..RECORDS).map(|number| (key(number), [number as u8; 100]))).unwrap();
    drop(keyspace);
    db.close().unwrap();
    opened(gate, builder)
}

fn opened(gate: &Arc<Gate>, builder: &Builder) -> (Database, Keyspace) {
    let db = builder.clone().open_on(Arc::new(Gated(Arc::clone(gate)))).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    // Two of them, so that inner nodes are wanted again.
    (0..2).for_each(|number| _ = keyspace.get(key(number)).unwrap());
    (db, keyspace)
}

/// The leaf of record 10,000 fails from now on, and is not in memory.
fn failing(gate: &Arc<Gate>) -> (Database, Keyspace) {
    let (db, keyspace) = cold(gate, &builder());
    keyspace.get(key(10_000)).unwrap();
    let leaf = gate.last.load(SeqCst);
    drop((db, keyspace));
    let opened = opened(gate, &builder());
    gate.fails_at.store(leaf, SeqCst);
    opened
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn value(number: u32) -> Option<Value> {
    Some(vec![number as u8; 100].into())
}

#[test]
fn tasks_see_what_plain_calls_see() {
    for threads in [0, 4] {
        let (db, keyspace) = cold(&Gate::new(), &builder().background_threads(threads));
        let mut rng = StdRng::seed_from_u64(1);
        let mut model: BTreeMap<u32, Vec<u8>> =
            (0..RECORDS).map(|number| (number, vec![number as u8; 100])).collect();
        let mut before = (db.snapshot(), model.clone());
        for round in 0..40u8 {
            let mut batch = db.batch();
            for _ in 0..200 {
                let number = rng.random_range(0..RECORDS + 100);
                if rng.random_ratio(1, 3) {
                    batch.remove(&keyspace, key(number));
                    model.remove(&number);
                } else {
                    batch.insert(&keyspace, key(number), [round; 50]);
                    model.insert(number, vec![round; 50]);
                }
            }
            block_on(batch.durability(Durability::Buffered).commit_async()).unwrap();
            if round % 8 == 7 {
                db.flush().unwrap();
            }
            // Neighbours and the same key twice are among them.
            let from = rng.random_range(0..RECORDS);
            let mut wanted: Vec<u32> = (0..100).map(|_| rng.random_range(0..RECORDS + 100)).collect();
            wanted.extend([from, from + 1, from]);
            let (snapshot, old) = &before;
            let found = block_on(join_all(wanted.iter().map(|number| keyspace.get_async(key(*number)))));
            let older = wanted.iter().map(|number| snapshot.get_async(&keyspace, key(*number)));
            let older = block_on(join_all(older));
            let many = block_on(keyspace.multi_get_async(wanted.iter().map(|number| key(*number)))).unwrap();
            for (index, number) in wanted.iter().enumerate() {
                let now = model.get(number).map(Vec::as_slice);
                assert_eq!(found[index].as_ref().unwrap().as_deref(), now, "{number}");
                assert_eq!(many[index].as_deref(), now, "{number}");
                let then = old.get(number).map(Vec::as_slice);
                assert_eq!(older[index].as_ref().unwrap().as_deref(), then, "{number}");
            }
            let to = from + rng.random_range(0..3000);
            let stream = keyspace.range(key(from)..key(to)).into_stream();
            let found: Vec<_> = block_on(stream.try_collect()).unwrap();
            let found: Vec<_> = found.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            let expected =
                model.range(from..to).map(|(number, value)| (key(*number).to_vec(), value.clone()));
            assert_eq!(found, expected.collect::<Vec<_>>());
            if round % 10 == 9 {
                before = (db.snapshot(), model.clone());
            }
        }
    }
}

#[test]
fn records_of_tasks_expire() {
    let seconds = Arc::new(AtomicU64::new(1_000_000));
    let now = Arc::clone(&seconds);
    let clock = move || SystemTime::UNIX_EPOCH + Duration::from_secs(now.load(SeqCst));
    let (db, _) = cold(&Gate::new(), &builder().clock(clock));
    let minute = KeyspaceOptions::new().time_to_live(Duration::from_secs(60));
    let keyspace = db.keyspace_with("expiring", minute).unwrap();
    for is_in_trees in [false, true] {
        let mut batch = db.batch();
        batch.insert(&keyspace, "a", "1");
        block_on(batch.commit_async()).unwrap();
        if is_in_trees {
            db.flush().unwrap();
        }
        let (snapshot, mut tx) = (db.snapshot(), db.transaction().unwrap());
        tx.insert(&keyspace, "b", "2").unwrap();
        for expected in [Some(&b"1"[..]), None] {
            assert_eq!(block_on(keyspace.get_async("a")).unwrap().as_deref(), expected);
            assert_eq!(block_on(snapshot.get_async(&keyspace, "a")).unwrap().as_deref(), expected);
            assert_eq!(block_on(tx.get_async(&keyspace, "a")).unwrap().as_deref(), expected);
            assert_eq!(
                block_on(tx.get_async(&keyspace, "b")).unwrap().as_deref(),
                expected.map(|_| &b"2"[..])
            );
            assert_eq!(block_on(keyspace.multi_get_async(["a"])).unwrap()[0].as_deref(), expected);
            let all: Vec<_> = block_on(keyspace.iter().into_stream().try_collect()).unwrap();
            assert_eq!(all.first().map(|(_, value)| &value[..]), expected);
            seconds.fetch_add(60, SeqCst);
        }
    }
}

#[test]
fn gets_that_wait_at_the_same_time_are_one_group() {
    let gate = Gate::new();
    let (db, keyspace) = cold(&gate, &builder());
    let reader = &db.handle.engine.pager.reader;
    let sets = || reader.counters.total(|counters| &counters.sets);
    let before = sets();
    let closed = gate.close();
    let mut tasks: Vec<_> = (0..65).map(|task| keyspace.get_async(key(task * 300 + BEHIND))).collect();
    // The first ones go in small groups, and the others are there before these are back.
    assert!(tasks.iter_mut().all(|task| poll(task).is_pending()));
    gate.wait_for(1);
    drop(closed);
    let found = block_on(join_all(tasks));
    for (task, found) in (0..).zip(found) {
        assert_eq!(found.unwrap(), value(task * 300 + BEHIND));
    }
    let sets = sets() - before;
    assert!(sets <= 6 * READERS as u64, "{sets} parallel reads");
}

#[test]
fn a_thousand_tasks_need_a_few_threads() {
    let gate = Gate::new();
    let (db, keyspace) = cold(&gate, &builder());
    let closed = gate.close();
    let mut tasks: Vec<_> = (0..1000).map(|task| keyspace.get_async(key(task * 19 + BEHIND))).collect();
    assert!(tasks.iter_mut().all(|task| poll(task).is_pending()));
    gate.wait_for(1);
    assert!(db.handle.engine.tasks.readers.thread_count() <= READERS);
    drop(closed);
    let found = block_on(join_all(tasks));
    assert!((0..).zip(found).all(|(task, found)| found.unwrap() == value(task * 19 + BEHIND)));
    assert_eq!(db.handle.engine.tasks.writers.thread_count(), 0, "nobody commits");
}

/// A future that its waker drops, as of an executor that has gone.
struct Dropping<F>(Mutex<Option<F>>);

impl<F: Send + 'static> std::task::Wake for Dropping<F> {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().take());
    }
}

/// Its task waited for work that was waking it.
#[test]
fn a_future_may_be_dropped_where_it_is_woken() {
    fn polled<F: Future + Unpin + Send + 'static>(mut future: F) {
        let dropping = Arc::new(Dropping(Mutex::new(None)));
        let waker = Waker::from(Arc::clone(&dropping));
        assert!(std::pin::Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
        *dropping.0.lock() = Some(future);
    }
    let gate = Gate::new();
    let (db, keyspace) = cold(&gate, &builder());
    let closed = gate.close();
    polled(keyspace.multi_get_async((0..64).map(|number| key(number * 300 + 7))));
    polled(keyspace.range(key(BEHIND)..).into_stream().into_future());
    gate.wait_for(1);
    drop(closed);
    drop(keyspace);
    let (closes, is_closed) = std::sync::mpsc::channel();
    std::thread::spawn(move || closes.send(db.close()));
    is_closed.recv_timeout(Duration::from_secs(30)).expect("it waits for itself").unwrap();
    Database::builder().open_on(Arc::new(gate.inner.clone().unwrap())).expect("nothing holds it any more");
}

/// Panics where it is woken.
struct Panicking;

impl std::task::Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("a waker, for a test");
    }
}

/// The others of a group were told that the database is poisoned, and a second one ended the process.
#[test]
fn a_waker_that_panics_concerns_no_other_task() {
    let gate = Gate::new();
    let (_db, keyspace) = cold(&gate, &builder());
    let closed = gate.close();
    let mut before: Vec<_> = (0..READERS as u32).map(|task| keyspace.get_async(key(task + BEHIND))).collect();
    assert!(before.iter_mut().all(|task| poll(task).is_pending()));
    let waker = Waker::from(Arc::new(Panicking));
    let mut tasks: Vec<_> = (0..9).map(|task| keyspace.get_async(key(task * 900 + 2000))).collect();
    for (number, task) in tasks.iter_mut().enumerate() {
        let waker = if number % 4 == 0 { &waker } else { Waker::noop() };
        assert!(pin!(task).poll(&mut Context::from_waker(waker)).is_pending());
    }
    drop(closed);
    block_on(join_all(before)).into_iter().for_each(|found| assert!(found.unwrap().is_some()));
    for (number, found) in (0..).zip(block_on(join_all(tasks))) {
        assert_eq!(found.unwrap(), value(number * 900 + 2000));
    }
}

#[test]
fn an_error_reaches_the_tasks_whose_leaf_it_is_and_no_others() {
    for panics in [0, 1] {
        let gate = Gate::new();
        let (_db, keyspace) = failing(&gate);
        gate.panics.store(panics, SeqCst);
        let closed = gate.close();
        let numbers: Vec<u32> =
            [9_999, 10_001].into_iter().chain((0..62).map(|task| 200 + task * 100)).collect();
        let mut tasks: Vec<_> = numbers.iter().map(|number| keyspace.get_async(key(*number))).collect();
        tasks.iter_mut().for_each(|task| assert!(poll(task).is_pending()));
        drop(closed);
        let found = block_on(join_all(tasks));
        assert!(found.iter().any(Result::is_err));
        for (number, found) in numbers.iter().zip(found) {
            match found {
                Err(Error::Io(_)) => assert!(panics == 0 && number.abs_diff(10_000) == 1, "{number}"),
                Err(Error::Poisoned { .. }) => assert_eq!(panics, 1),
                found => assert_eq!(found.unwrap(), value(*number)),
            }
        }
        // It is as it was, once the device is.
        gate.fails_at.store(u64::MAX, SeqCst);
        assert_eq!(block_on(keyspace.get_async(key(9_999))).unwrap(), value(9_999));
    }
}

#[test]
fn a_stream_ends_with_the_error_of_its_range() {
    let gate = Gate::new();
    let (_db, keyspace) = failing(&gate);
    let mut stream = keyspace.iter().into_stream();
    block_on(async {
        for number in 0.. {
            match stream.next().await {
                Some(Ok((found, _))) => assert_eq!(found, key(number)),
                // Whole groups of leaves are read ahead.
                Some(Err(Error::Io(_))) => {
                    assert!((5_000..=10_000).contains(&number), "{number}");
                    break;
                }
                other => panic!("{other:?} at {number}"),
            }
        }
        assert!(stream.next().await.is_none() && stream.next().await.is_none());
    });
}

#[test]
fn closing_answers_all_that_wait() {
    let gate = Gate::new();
    let (db, keyspace) = cold(&gate, &builder());
    let closed = gate.close();
    let mut tasks: Vec<_> = (0..300).map(|task| keyspace.get_async(key(task * 60 + BEHIND))).collect();
    assert!(tasks.iter_mut().all(|task| poll(task).is_pending()));
    let mut many = keyspace.multi_get_async((0..64).map(|number| key(number * 300 + 7)));
    assert!(poll(&mut many).is_pending());
    let mut stream = keyspace.range(key(5000)..).into_stream();
    assert!(stream.poll_next_unpin(&mut Context::from_waker(Waker::noop())).is_pending());
    gate.wait_for(1);
    std::thread::scope(|scope| {
        let closer = db.clone();
        let closing = scope.spawn(move || closer.close());
        std::thread::sleep(Duration::from_millis(20));
        drop(closed);
        for (task, found) in (0..).zip(block_on(join_all(tasks))) {
            match found {
                Err(Error::Closed) => {}
                found => assert_eq!(found.unwrap(), value(task * 60 + BEHIND)),
            }
        }
        assert!(matches!(block_on(many), Ok(_) | Err(Error::Closed)));
        block_on(async { while let Ok(Some(_)) = stream.try_next().await {} });
        closing.join().unwrap().unwrap();
    });
    assert!(matches!(block_on(keyspace.get_async(key(7777))), Err(Error::Closed)));
    assert!(matches!(block_on(keyspace.multi_get_async([key(7777)])), Err(Error::Closed)));
    let mut batch = db.batch();
    batch.insert(&keyspace, "a", "b");
    assert!(block_on(batch.commit_async()).is_err());
    let mut stream = keyspace.range(key(7777)..).into_stream();
    assert!(matches!(block_on(stream.next()), Some(Err(Error::Closed))));
}

/// Polls a future so often, and drops it.
fn give_up<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(output);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    None
}

/// The database can be opened at once after its last handle is gone: nothing that was given up holds it.
#[test]
fn what_is_dropped_at_any_poll_is_whole_or_absent_and_leaks_nothing() {
    let gate = Gate::new();
    let builder = builder();
    drop(cold(&gate, &builder));
    let mut committed = 0;
    for round in 0..120u32 {
        let volume: Arc<dyn Volume> = Arc::new(Gated(Arc::clone(&gate)));
        let db = builder.clone().open_on(volume).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        let engine = Arc::downgrade(&db.handle.engine);
        let polls = round as usize % 6;
        let (from, new) = (round * 150, [key(RECORDS + 2 * round), key(RECORDS + 2 * round + 1)]);
        let closed = (round % 4 == 1).then(|| gate.close());
        let mut gets: Vec<_> = (0..10).map(|task| keyspace.get_async(key(from + 13 * task))).collect();
        gets.iter_mut().for_each(|get| (0..polls).for_each(|_| _ = poll(get)));
        drop(gets);
        drop(closed);
        give_up(keyspace.multi_get_async((0..50).map(|task| key(from + 17 * task))), polls);
        give_up(keyspace.range(key(from)..).into_stream().try_collect::<Vec<_>>(), polls);
        let is_done = if round % 2 == 0 {
            let mut batch = db.batch();
            new.iter().for_each(|key| _ = batch.insert(&keyspace, key, "new"));
            give_up(batch.commit_async(), polls)
        } else {
            let mut tx = db.transaction().unwrap();
            new.iter().for_each(|key| tx.insert(&keyspace, key, "new").unwrap());
            give_up(
                async { tx.get_async(&keyspace, key(from + 5)).await.and(tx.commit_async().await) },
                polls,
            )
        };
        let found = keyspace.multi_get(new).unwrap();
        assert_eq!(found[0], found[1], "half a commit");
        assert!(is_done.is_none() || found[0].is_some());
        assert!(polls > 0 || found[0].is_none(), "it was never polled");
        // It is decided.
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(keyspace.multi_get(new).unwrap(), found);
        committed += usize::from(found[0].is_some());
        drop(keyspace);
        drop(db);
        assert_eq!(engine.strong_count(), 0, "round {round}");
    }
    assert!((1..=100).contains(&committed), "{committed} of 120");
}

#[test]
fn transactions_of_tasks_lose_no_update() {
    let (db, keyspace) = cold(&Gate::new(), &builder());
    let add = async |number: u32| -> Result<()> {
        loop {
            let mut tx = db.transaction()?;
            let count = tx.get_async(&keyspace, key(number)).await?.map_or(0, |value| value[0]);
            tx.insert(&keyspace, key(number), [count.wrapping_add(1)])?;
            assert_eq!(tx.get_async(&keyspace, key(number)).await?.unwrap(), [count.wrapping_add(1)]);
            tx.durability(Durability::Buffered);
            match tx.commit_async().await {
                Err(error) if error.is_conflict() => {}
                committed => return committed,
            }
        }
    };
    let tasks: FuturesUnordered<_> = (0..200u32).map(|task| add(RECORDS + task % 4)).collect();
    block_on(tasks.try_collect::<()>()).unwrap();
    for number in 0..4 {
        assert_eq!(keyspace.get(key(RECORDS + number)).unwrap().unwrap(), [50]);
    }
}

/// With each other as with others they conflict; those that do often wait for one another.
#[test]
fn transactions_that_are_repeated_end_soon() {
    const TASKS: usize = 200;
    let (db, keyspace) = cold(&Gate::new(), &builder());
    let runs = AtomicUsize::new(0);
    let add = || {
        db.transact_async(async |tx| {
            runs.fetch_add(1, SeqCst);
            tx.durability(Durability::Buffered);
            let count = tx.get_async(&keyspace, key(RECORDS)).await?.map_or(0, |value| value[0]);
            // All others read it before one of them writes.
            for _ in 0..3 {
                let mut is_ready = false;
                poll_fn(|context| {
                    context.waker().wake_by_ref();
                    if std::mem::replace(&mut is_ready, true) { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            }
            tx.insert(&keyspace, key(RECORDS), [count.wrapping_add(1)])
        })
    };
    let tasks: FuturesUnordered<_> = (0..TASKS).map(|_| add()).collect();
    block_on(tasks.try_collect::<()>()).unwrap();
    assert_eq!(keyspace.get(key(RECORDS)).unwrap().unwrap(), [TASKS as u8]);
    let runs = runs.into_inner();
    assert!(runs > 2 * TASKS, "{runs} runs: they conflict");
    assert!(runs <= 6 * TASKS, "{runs} runs");
}

#[test]
fn a_transaction_that_is_repeated_can_be_given_to_another_thread() {
    fn is_send<F: Future + Send + 'static>(future: F) -> F {
        future
    }
    let (db, keyspace) = cold(&Gate::new(), &builder());
    let of_task = keyspace.clone();
    let future = is_send(db.transact_async(async move |tx| {
        let found = tx.multi_get_async(&of_task, [key(1), key(RECORDS)]).await?;
        tx.insert(&of_task, key(2), "new")?;
        assert!(found[0].is_some() && found[1].is_none());
        Err::<(), _>(Error::Closed)
    }));
    assert!(matches!(block_on(future), Err(Error::Closed)));
    assert!(keyspace.get(key(2)).unwrap().is_some_and(|value| value != "new"), "an error ends it");
}

#[test]
fn many_keys_of_a_transaction_are_its_own_and_those_of_its_snapshot() {
    for threads in [0, 1] {
        let (db, keyspace) = cold(&Gate::new(), &builder().background_threads(threads));
        let mut tx = db.transaction().unwrap();
        tx.insert(&keyspace, key(7), "mine").unwrap();
        tx.remove(&keyspace, key(8)).unwrap();
        keyspace.insert(key(9), "newer").unwrap();
        let found = block_on(tx.multi_get_async(&keyspace, [9, 7, 8, RECORDS, 9].map(key))).unwrap();
        let mine = Some(Value::from("mine"));
        assert_eq!(found, [value(9), mine.clone(), None, None, value(9)]);
        assert_eq!(block_on(tx.multi_get_async(&keyspace, [7, 8].map(key))).unwrap(), [mine, None]);
        let unread = tx.multi_get_async(&keyspace, [RECORDS + 1].map(key));
        assert!(matches!(block_on(tx.multi_get_async(&keyspace, [b""])), Err(Error::KeyEmpty)));
        drop(unread);
        assert!(tx.commit().unwrap_err().is_conflict(), "it has read what was changed");
    }
}

#[test]
fn durable_commits_of_tasks_share_syncs() {
    let gate = Gate::new();
    let (db, keyspace) = cold(&gate, &builder());
    let before = db.stats().device.syncs;
    let commits = (0..200u32).map(|task| {
        let mut batch = db.batch();
        batch.insert(&keyspace, key(RECORDS + task), "new");
        batch.commit_async()
    });
    let mut commits = join_all(commits);
    assert!(keyspace.get(key(RECORDS)).unwrap().is_none(), "nothing happens before it is polled");
    // All of them are there before the first sync is done.
    gate.holds_syncs.store(true, SeqCst);
    assert!(poll(&mut commits).is_pending());
    let is_there = |task| keyspace.get(key(RECORDS + task)).unwrap().is_some();
    while !(0..200).all(is_there) {
        std::thread::yield_now();
    }
    gate.holds_syncs.store(false, SeqCst);
    block_on(commits).into_iter().collect::<Result<()>>().unwrap();
    let syncs = db.stats().device.syncs - before;
    assert!((1..=2).contains(&syncs), "{syncs} syncs");
    // What was ready is durable.
    let after = gate.inner.as_ref().expect("a volume").power_loss(7);
    let db = builder().open_on(Arc::new(after)).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    assert!((0..200).all(|task| keyspace.get(key(RECORDS + task)).unwrap().is_some()));
}
