//! Commits that are visible before they are durable: when they are seen, how many syncs they take, and how their end is reported.

use psync::{Fault, FileId, Filter, OperationKind, PassThrough, Repeat, Simulated, Volume, Write};
use sapwood::{Database, Durability, Error, Keyspace, Pending, Result};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(10);

/// A device whose syncs of the log can be held up.
struct Gate {
    inner: Simulated,
    /// Whether syncs go on, and how many wait.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
    syncs: AtomicUsize,
}

impl Gate {
    fn new() -> Arc<Self> {
        let (state, changed) = (Mutex::new((true, 0)), Condvar::new());
        Arc::new(Self { inner: Simulated::new(1), state, changed, syncs: AtomicUsize::new(0) })
    }

    fn set_open(&self, is_open: bool) {
        self.state.lock().expect("sound").0 = is_open;
        self.changed.notify_all();
    }

    /// Holds syncs up until the result is dropped, also by a panic.
    fn shut(&self) -> Shut<'_> {
        self.set_open(false);
        Shut(self)
    }

    fn wait_for_a_sync(&self) {
        let state = self.state.lock().expect("sound");
        let (state, _) =
            self.changed.wait_timeout_while(state, LONG, |(_, waiting)| *waiting == 0).expect("sound");
        assert!(state.1 > 0, "nothing is synced");
    }

    fn pass(&self) {
        self.syncs.fetch_add(1, SeqCst);
        let mut state = self.state.lock().expect("sound");
        state.1 += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |(is_open, _)| !*is_open).expect("sound");
        state.1 -= 1;
    }
}

struct Shut<'g>(&'g Gate);

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        self.0.set_open(true);
    }
}

impl PassThrough for Gate {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn sync(&self, file: FileId) -> psync::Result<()> {
        self.pass();
        self.inner().sync(file)
    }

    fn sync_part(&self, part: Write<'_>) -> psync::Result<()> {
        self.pass();
        self.inner().sync_part(part)
    }
}

fn open(volume: &Arc<Gate>, threads: usize) -> (Database, Keyspace) {
    let volume = Arc::clone(volume) as Arc<dyn Volume>;
    let db = Database::builder().memory(4 << 20).background_threads(threads).open_on(volume).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    keyspace.insert("first", "1").expect("commits");
    (db, keyspace)
}

fn put(db: &Database, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Pending> {
    db.batch().insert(keyspace, key, "1").commit_visible()
}

fn has(keyspace: &Keyspace, key: &str) -> bool {
    keyspace.contains(key).expect("reads")
}

/// After a power failure that keeps nothing that was not synced.
fn survives(volume: &Gate, key: &str) -> bool {
    (0..40).all(|seed| {
        let volume: Arc<dyn Volume> = Arc::new(volume.inner.power_loss(seed));
        let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume).expect("opens");
        has(&db.keyspace("main").expect("a keyspace"), key)
    })
}

/// Wakes the thread, and counts.
struct Unpark(std::thread::Thread, AtomicUsize);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, SeqCst);
        self.0.unpark();
    }
}

fn unpark() -> Arc<Unpark> {
    Arc::new(Unpark(std::thread::current(), AtomicUsize::new(0)))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = unpark().into();
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park_timeout(LONG),
        }
    }
}

#[test]
fn a_visible_commit_is_seen_at_once_and_a_durable_one_only_when_it_is_durable() {
    let volume = Gate::new();
    let (db, keyspace) = open(&volume, 4);
    volume.set_open(false);
    let pending = put(&db, &keyspace, "visible").expect("it does not wait for the device");
    assert!(has(&keyspace, "visible") && !pending.is_durable() && !survives(&volume, "visible"));
    volume.wait_for_a_sync();
    std::thread::scope(|scope| {
        let durable = scope.spawn(|| keyspace.insert("durable", "1"));
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(2));
            assert!(!has(&keyspace, "durable"));
        }
        assert!(!pending.is_durable() && !durable.is_finished());
        volume.set_open(true);
        durable.join().expect("sound").expect("commits");
    });
    assert!(has(&keyspace, "durable"));
    // The durable commit is behind it in the log.
    assert!(pending.is_durable() && survives(&volume, "visible") && survives(&volume, "durable"));
    // One that is being synced itself.
    std::thread::scope(|scope| {
        let shut = volume.shut();
        let durable = scope.spawn(|| keyspace.insert("being synced", "1"));
        volume.wait_for_a_sync();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
            assert!(!has(&keyspace, "being synced"), "it is seen before it is durable");
        }
        drop(shut);
        durable.join().expect("sound").expect("commits");
    });
    assert!(has(&keyspace, "being synced"));
}

#[test]
fn waiting_makes_it_durable_with_any_number_of_threads() {
    for threads in [0, 1, 2, 4] {
        let volume = Gate::new();
        let (db, keyspace) = open(&volume, threads);
        let pending = put(&db, &keyspace, "waited").expect("commits");
        pending.wait().expect("syncs");
        assert!(pending.is_durable() && survives(&volume, "waited"), "{threads} threads");
        let pending = put(&db, &keyspace, "awaited").expect("commits");
        block_on(pending).expect("syncs");
        assert!(survives(&volume, "awaited"), "{threads} threads");
        let (answer, answers) = channel();
        put(&db, &keyspace, "told").expect("commits").on_durable(move |result| _ = answer.send(result));
        answers.recv_timeout(LONG).expect("it is called").expect("syncs");
        assert!(survives(&volume, "told"), "{threads} threads");
        let mut transaction = db.transaction().expect("begins");
        transaction.insert(&keyspace, "of a transaction", "1").expect("writes");
        transaction.commit_visible().expect("commits").wait().expect("syncs");
        assert!(survives(&volume, "of a transaction"), "{threads} threads");
        let nothing = db.batch().commit_visible().expect("commits");
        assert!(nothing.is_durable());
        nothing.wait().expect("nothing is to be done");
    }
}

#[test]
fn a_commit_that_is_not_waited_for_becomes_durable_all_the_same() {
    let volume = Gate::new();
    let (db, keyspace) = open(&volume, 4);
    let pending = put(&db, &keyspace, "left alone").expect("commits");
    let began = std::time::Instant::now();
    while !pending.is_durable() {
        assert!(began.elapsed() < LONG, "no thread syncs");
        std::thread::yield_now();
    }
    drop(put(&db, &keyspace, "dropped").expect("commits"));
    let began = std::time::Instant::now();
    while !survives(&volume, "dropped") {
        assert!(began.elapsed() < LONG, "no thread syncs");
    }
}

/// Each commit had a sync of its own.
#[test]
fn many_share_a_sync_and_are_told_in_their_order() {
    let volume = Gate::new();
    let (db, keyspace) = open(&volume, 4);
    volume.set_open(false);
    let first = put(&db, &keyspace, "0").expect("commits");
    volume.wait_for_a_sync();
    let before = volume.syncs.load(SeqCst);
    let (answer, answers) = channel();
    for number in 1..=500 {
        let answer = answer.clone();
        let pending = put(&db, &keyspace, number.to_string()).expect("commits");
        pending.on_durable(move |result| _ = answer.send(result.map(|()| number)));
    }
    assert!(answers.try_recv().is_err(), "it is not durable yet");
    volume.set_open(true);
    for number in 1..=500 {
        assert_eq!(answers.recv_timeout(LONG).expect("it is called").expect("syncs"), number);
    }
    first.wait().expect("syncs");
    let syncs = volume.syncs.load(SeqCst) - before;
    assert!(syncs <= 2, "{syncs} syncs");
}

/// Threads that wait, and a durable commit, in one sync.
#[test]
fn threads_that_wait_join_the_group_commit() {
    let volume = Gate::new();
    let (db, keyspace) = open(&volume, 0);
    volume.set_open(false);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| keyspace.insert("durable", "1"));
        volume.wait_for_a_sync();
        let before = volume.syncs.load(SeqCst);
        let waiting: Vec<_> = (0..20)
            .map(|number| {
                let pending = put(&db, &keyspace, number.to_string()).expect("commits");
                scope.spawn(move || pending.wait())
            })
            .collect();
        std::thread::sleep(Duration::from_millis(50));
        volume.set_open(true);
        waiting.into_iter().for_each(|thread| thread.join().expect("sound").expect("syncs"));
        first.join().expect("sound").expect("commits");
        let syncs = volume.syncs.load(SeqCst) - before;
        assert!((1..=2).contains(&syncs), "{syncs} syncs");
    });
}

/// Each waited for the other.
#[test]
fn a_callback_may_close_what_another_thread_closes() {
    let builder = Database::builder().memory(4 << 20).background_threads(2);
    let db = builder.open_on(Arc::new(Simulated::new(1))).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    let mut batch = db.batch();
    batch.insert(&keyspace, "k", "value");
    let own = db.clone();
    let (ends, ended) = std::sync::mpsc::channel();
    let callback = move |_| {
        let began = std::time::Instant::now();
        while own.keyspace_if_exists("main").is_ok() && began.elapsed().as_secs() < 10 {
            std::thread::yield_now();
        }
        let _ = ends.send(own.close());
    };
    batch.commit_visible().expect("commits").on_durable(callback);
    let (closes, closed) = std::sync::mpsc::channel();
    std::thread::spawn(move || closes.send(db.close()));
    let limit = std::time::Duration::from_secs(30);
    ended.recv_timeout(limit).expect("it waits for whoever waits for it").expect("closes");
    closed.recv_timeout(limit).expect("it waits for a callback that waits for it").expect("closes");
}

/// A lock that is held while a callback is called would end here, and so would a thread that waits for itself.
#[test]
fn a_callback_may_commit_panic_close_and_let_go_of_the_last_handle() {
    for threads in [0, 1, 2, 4] {
        let volume = Gate::new();
        let (db, keyspace) = open(&volume, threads);
        let (answer, answers): (Sender<Result<()>>, Receiver<_>) = channel();
        let pending = put(&db, &keyspace, "1").expect("commits");
        let (db_there, there) = (db.clone(), keyspace.clone());
        pending.on_durable(move |_| {
            let visible = put(&db_there, &there, "2");
            _ = answer.send(there.insert("3", "1").and_then(|()| db_there.sync()));
            visible.expect("commits").on_durable(move |result| _ = answer.send(result));
        });
        for _ in 0..2 {
            answers.recv_timeout(LONG).expect("it is called").expect("commits");
        }
        if threads > 1 {
            // Were it durable already, the panic would be this thread's.
            volume.set_open(false);
            put(&db, &keyspace, "4").expect("commits").on_durable(|_| panic!("on purpose"));
            volume.set_open(true);
            let (answer, answers) = channel();
            put(&db, &keyspace, "5").expect("commits").on_durable(move |result| _ = answer.send(result));
            answers.recv_timeout(LONG).expect("it is called").expect("syncs");
        }
        let (answer, answers) = channel();
        volume.set_open(threads < 2);
        put(&db, &keyspace, "6").expect("commits").on_durable(move |result| {
            drop(keyspace);
            _ = answer.send(result.and_then(|()| db.close()));
        });
        volume.set_open(true);
        answers.recv_timeout(LONG).expect("it is called").expect("closes");
        let (db, keyspace) = open(&volume, threads);
        assert!(["1", "2", "3", "6"].iter().all(|key| has(&keyspace, key)));
        let (answer, answers) = channel();
        volume.set_open(threads < 2);
        put(&db, &keyspace, "7").expect("commits").on_durable(move |_| {
            drop((db, keyspace));
            _ = answer.send(());
        });
        volume.set_open(true);
        answers.recv_timeout(LONG).expect("it is called");
        // The lock of the volume is free again.
        let (_db, keyspace) = open(&volume, threads);
        assert!(has(&keyspace, "7"));
    }
}

/// Each would be called within the one before, until the stack ends.
#[test]
fn a_callback_may_register_the_next_one_again_and_again() {
    fn next(db: &Database, keyspace: &Keyspace, left: u32, ended: Sender<()>) {
        if left == 0 {
            return ended.send(()).expect("it is waited for");
        }
        let (db_there, there) = (db.clone(), keyspace.clone());
        let pending = put(db, keyspace, left.to_be_bytes()).expect("commits");
        pending.on_durable(move |_| next(&db_there, &there, left - 1, ended));
    }
    let volume = Gate::new();
    let (db, keyspace) = open(&volume, 4);
    let (ended, ends) = channel();
    volume.set_open(false);
    next(&db, &keyspace, 20_000, ended);
    volume.set_open(true);
    ends.recv_timeout(Duration::from_secs(300)).expect("it ends");
}

/// The thread that calls it is the one that would make durable what it waits for.
#[test]
fn a_callback_may_wait_for_futures() {
    for threads in [0, 1, 2, 4] {
        let volume = Gate::new();
        let (db, keyspace) = open(&volume, threads);
        let (answer, answers): (Sender<Result<()>>, Receiver<_>) = channel();
        // Otherwise it may be durable at once, and the callback called by this thread.
        volume.set_open(threads < 2);
        let pending = put(&db, &keyspace, "1").expect("commits");
        let (db_there, there) = (db.clone(), keyspace.clone());
        pending.on_durable(move |_| {
            let visible = put(&db_there, &there, "2").expect("commits");
            _ = answer.send(futures_executor::block_on(visible));
            let mut batch = db_there.batch();
            batch.insert(&there, "3", "1");
            _ = answer.send(futures_executor::block_on(batch.commit_async()));
            let transaction =
                db_there.transact_async(async |transaction| transaction.insert(&there, "4", "1"));
            _ = answer.send(futures_executor::block_on(transaction));
            let got = futures_executor::block_on(there.get_async("4"));
            _ = answer.send(got.map(|value| assert!(value.is_some())));
        });
        volume.set_open(true);
        for number in 0..4 {
            let answer = answers.recv_timeout(LONG);
            answer.unwrap_or_else(|_| panic!("{threads} threads: {number}")).expect("commits");
        }
        assert!(["2", "3", "4"].iter().all(|key| has(&keyspace, key) && survives(&volume, key)));
        db.close().expect("closes");
    }
}

fn failing() -> (Simulated, Database, Keyspace) {
    let volume = Simulated::new(1);
    let db = Database::builder().memory(4 << 20).background_threads(4);
    let db = db.open_on(Arc::new(volume.clone())).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    keyspace.insert("first", "1").expect("commits");
    (volume, db, keyspace)
}

#[test]
fn a_failed_sync_reaches_wait_callback_and_future() {
    let (volume, db, keyspace) = failing();
    volume.fail_nth(Filter::kinds([OperationKind::Sync]), 1, Fault::Error, Repeat::Once);
    let [waited, told, awaited] = ["1", "2", "3"].map(|key| put(&db, &keyspace, key));
    // The syncer may have found the fault before the others were committed.
    let is_poisoned = |result: &Result<()>| matches!(result, Err(Error::Poisoned { .. } | Error::Io(_)));
    let waited = waited.expect("commits");
    let result = waited.wait();
    assert!(is_poisoned(&result), "{result:?}");
    assert!(is_poisoned(&waited.wait()) && !waited.is_durable());
    if let Ok(told) = told {
        let (answer, answers) = channel();
        told.on_durable(move |result| _ = answer.send(result));
        assert!(is_poisoned(&answers.recv_timeout(LONG).expect("it is called")));
    }
    if let Ok(awaited) = awaited {
        assert!(is_poisoned(&block_on(awaited)));
    }
    assert!(is_poisoned(&put(&db, &keyspace, "4").map(|_| ())));
    assert!(has(&keyspace, "1"), "it stays visible");
}

#[test]
fn registered_callbacks_and_futures_hear_of_a_failed_sync() {
    let volume = Gate::new();
    let (db, keyspace) = open(&volume, 4);
    volume.set_open(false);
    let (answer, answers) = channel();
    let mut futures = Vec::new();
    for number in 0..10 {
        let answer = answer.clone();
        let pending = put(&db, &keyspace, format!("told {number}")).expect("commits");
        pending.on_durable(move |result| _ = answer.send(result));
        futures.push(put(&db, &keyspace, format!("awaited {number}")).expect("commits"));
    }
    let waker = unpark();
    let woken = Arc::clone(&waker);
    let waker = waker.into();
    let mut context = Context::from_waker(&waker);
    assert!(futures.iter_mut().all(|pending| Pin::new(pending).poll(&mut context).is_pending()));
    // One that is dropped is not woken.
    drop(futures.pop());
    volume.inner.fail_nth(Filter::kinds([OperationKind::Sync]), 1, Fault::Error, Repeat::Sticky);
    volume.set_open(true);
    for _ in 0..10 {
        assert!(answers.recv_timeout(LONG).expect("it is called").is_err());
    }
    for pending in futures {
        assert!(block_on(pending).is_err());
    }
    assert!((9..=10).contains(&woken.1.load(SeqCst)), "each is woken once");
}

type Commit = fn(&Keyspace) -> Result<()>;

#[test]
fn durabilities_have_defaults() {
    for (default, is_durable) in [(Durability::Buffered, false), (Durability::Immediate, true)] {
        let volume = Gate::new();
        let builder = Database::builder().memory(4 << 20).background_threads(0).durability(default);
        let db = builder.open_on(Arc::clone(&volume) as Arc<dyn Volume>).expect("opens");
        let keyspace = db.keyspace("main").expect("a keyspace");
        let (durable, buffered) =
            (keyspace.with_durability(Durability::Immediate), keyspace.with_durability(Durability::Buffered));
        assert_eq!((keyspace.durability(), durable.durability()), (default, Durability::Immediate));
        let syncs = |work: &dyn Fn()| {
            let before = volume.syncs.load(SeqCst);
            work();
            volume.syncs.load(SeqCst) > before
        };
        let commits: [Commit; 9] = [
            |keyspace| keyspace.insert("a", "1"),
            |keyspace| keyspace.insert_if_absent("b", "1").map(drop),
            |keyspace| keyspace.compare_and_swap("b", Some("1"), Some("2")).map(|done| done.expect("it is")),
            |keyspace| keyspace.replace("b", "3").map(drop),
            |keyspace| keyspace.update("b", |_| Some("4")).map(drop),
            |keyspace| keyspace.pop_last().map(drop),
            |keyspace| keyspace.pop_first().map(drop),
            |keyspace| keyspace.insert("a", "1").and_then(|()| keyspace.take("a").map(drop)),
            |keyspace| keyspace.remove("a"),
        ];
        for (keyspace, is_durable) in [(&keyspace, is_durable), (&durable, true), (&buffered, false)] {
            for (number, commit) in commits.iter().enumerate() {
                assert_eq!(syncs(&|| commit(keyspace).expect("commits")), is_durable, "{number}");
            }
        }
        let batch = || db.batch().insert(&durable, "c", "1").commit().expect("commits");
        assert_eq!(syncs(&batch), is_durable);
        let transaction = || db.transact(|tx| tx.insert(&durable, "d", "1")).expect("commits");
        assert_eq!(syncs(&transaction), is_durable);
        let transaction = || {
            let mut tx = db.transaction().expect("begins");
            tx.durability(Durability::Immediate).insert(&buffered, "d", "1").expect("writes");
            tx.commit().expect("commits");
        };
        assert!(syncs(&transaction));
    }
}
