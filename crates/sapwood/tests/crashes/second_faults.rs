//! Troubles that come in twos. Each test tells a loss that once happened.

use crate::scenario::{self, open};
use psync::{Access, Fault, FileId, Filter, OperationKind, PassThrough, Repeat, Simulated, Volume};
use sapwood::{Database, Durability, Error};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn put(db: &Database, number: u32, durability: Durability) -> Result<(), Error> {
    let keyspace = db.keyspace("main")?;
    let mut batch = db.batch();
    batch.insert(&keyspace, format!("key{number:05}"), vec![number as u8; 300]);
    batch.durability(durability).commit()
}

/// The power goes while a log that has several generations, the older one torn, is being recovered. Recovery used to
/// remove generations that the manifest still asked for, so that a power loss at the wrong moment left a database that
/// never opened again ("a part of the log is missing").
#[test]
fn the_power_goes_again_during_the_recovery() {
    let mut points = 0;
    for nth in 1..40 {
        let volume = Simulated::new(nth);
        let db = open(&volume).expect("opens");
        put(&db, 0, Durability::Immediate).expect("commits");
        for number in 1..12 {
            put(&db, number, Durability::Buffered).expect("commits");
        }
        volume.fail_nth(Filter::any(), nth, Fault::PowerOff, Repeat::Once);
        if db.flush().is_ok() {
            break;
        }
        drop(db);
        for seed in 0..4 {
            for second in 1..60 {
                let image = volume.power_loss(seed);
                image.fail_nth(Filter::any(), second, Fault::PowerOff, Repeat::Once);
                let recovered = open(&image);
                if image.fired() == 0 {
                    break;
                }
                drop(recovered);
                for third in 0..4 {
                    let story =
                        format!("off at operation {nth}, image {seed}, off again at {second}, image {third}");
                    let db =
                        open(&image.power_loss(third)).unwrap_or_else(|error| panic!("{story}: {error}"));
                    let keyspace = db.keyspace("main").expect("is there");
                    assert!(
                        keyspace.get("key00000").expect("sound").is_some(),
                        "{story}: an acknowledged write is lost"
                    );
                    points += 1;
                }
            }
        }
    }
    assert!(points > 5000, "{points} points");
}

/// The disk is full when the log is to begin a new generation, the flush is refused, and commits go on in the old one.
/// The new generation's header, which was removed but not durably, used to come back after a power loss and cut
/// everything off that was committed after it. A sync that failed for want of space even counted as a mere refusal.
#[test]
fn commits_after_a_refused_flush_survive() {
    let cases = [
        (OperationKind::SyncDirectory, None),
        (OperationKind::Write, Some("wal-0000000002")),
        (OperationKind::Sync, Some("wal-0000000002")),
        (OperationKind::Write, Some("manifest")),
        (OperationKind::Sync, Some("manifest")),
        (OperationKind::Write, Some("data")),
        (OperationKind::Sync, Some("data")),
    ];
    for (kind, file) in cases {
        for seed in 0..200 {
            let volume = Simulated::new(seed);
            let db = open(&volume).expect("opens");
            put(&db, 1, Durability::Immediate).expect("commits");
            let filter = Filter::kinds([kind]);
            let filter = file.into_iter().fold(filter, Filter::file);
            volume.fail_nth(filter, 1, Fault::NoSpace, Repeat::Once);
            let flushed = db.flush();
            let second = put(&db, 2, Durability::Immediate);
            let found = open(&volume.power_loss(seed)).expect("opens");
            let keyspace = found.keyspace("main").expect("is there");
            let story = format!("no space at {kind:?} of {file:?}, seed {seed}: the flush said {flushed:?}");
            assert!(keyspace.get("key00001").expect("sound").is_some(), "{story}: the first commit is lost");
            if second.is_ok() {
                assert!(
                    keyspace.get("key00002").expect("sound").is_some(),
                    "{story}: the second commit is lost"
                );
            }
            found.check().unwrap_or_else(|error| panic!("{story}: {error:?}"));
        }
    }
}

/// A volume whose syncs of the log's first file wait a while for one another, and of which only the first fails: as an operating system
/// tells of a lost write once.
struct LostOnce {
    inner: Simulated,
    first_log: Mutex<Vec<FileId>>,
    syncs: AtomicU32,
    is_lost: AtomicU32,
}

impl PassThrough for LostOnce {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn open(&self, name: &str, access: Access) -> psync::Result<FileId> {
        let file = Volume::open(&self.inner, name, access)?;
        if name == "wal-0000000001" {
            self.first_log.lock().expect("no poison").push(file);
        }
        Ok(file)
    }

    fn sync(&self, file: FileId) -> psync::Result<()> {
        let is_old = self.first_log.lock().expect("no poison").contains(&file);
        if !is_old || self.is_lost.load(Ordering::SeqCst) == 0 {
            return psync::Device::sync(&self.inner, file);
        }
        let nth = self.syncs.fetch_add(1, Ordering::SeqCst);
        let began = Instant::now();
        while self.syncs.load(Ordering::SeqCst) < 2 && began.elapsed() < Duration::from_millis(300) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if nth > 0 {
            return Ok(());
        }
        // Whoever was not told goes on before this one can warn anybody.
        std::thread::sleep(Duration::from_millis(100));
        Err(psync::Error::from_io("sync", "wal-0000000001", None, std::io::Error::from_raw_os_error(5)))
    }
}

/// A flush and a durable commit sync the same old log at the same time, and the operating system tells only one of them that a
/// part of it was lost. The other used to believe that all was durable.
#[test]
fn a_lost_log_is_told_to_the_commit_and_to_the_flush() {
    let inner = Simulated::new(1);
    let volume = Arc::new(LostOnce {
        inner: inner.clone(),
        first_log: Mutex::default(),
        syncs: AtomicU32::new(0),
        is_lost: AtomicU32::new(0),
    });
    let shared: Arc<dyn Volume> = Arc::clone(&volume) as Arc<dyn Volume>;
    let db = scenario::options().background_threads(4).open_on(shared).expect("opens");
    // So that the flush syncs the log early, beside its work.
    put(&db, 1, Durability::Immediate).expect("commits");
    put(&db, 2, Durability::Buffered).expect("commits");
    volume.is_lost.store(1, Ordering::SeqCst);
    let (flushed, committed) = std::thread::scope(|scope| {
        let flush = scope.spawn(|| db.flush());
        while volume.syncs.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let committed = put(&db, 3, Durability::Immediate);
        (flush.join().expect("no panic"), committed)
    });
    assert!(flushed.is_err() && committed.is_err(), "flush: {flushed:?}, commit: {committed:?}");
    assert!(put(&db, 4, Durability::Buffered).is_err(), "nobody knows what is on the disk");
}
