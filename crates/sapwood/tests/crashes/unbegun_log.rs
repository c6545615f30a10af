//! The log's next file is only written when a queue is frozen; the flush has it begun, durably, before the manifest says that the log begins there.
//! What must hold if that fails: nobody knows what is on the disk, so writes are refused until the database is opened again, whatever else has
//! failed in the same flush; and nothing is lost that was acknowledged.

use crate::scenario::{self, open};
use psync::{Access, Fault, FileId, Filter, OperationKind, PassThrough, Repeat, Simulated, Volume};
use sapwood::{Database, Durability, Error};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The file that the log goes on in when the first queue is frozen.
const NEXT: &str = "wal-0000000002";

/// Records of a batch, and batches, which are one queue, of several portions.
const BATCH: u32 = 25;
const DURABLE: u32 = 16;
const ALL: u32 = 24;

fn key(number: u32) -> Vec<u8> {
    format!("key{number:05}").into_bytes()
}

fn put(db: &Database, batch: u32, durability: Durability) -> Result<(), Error> {
    let keyspace = db.keyspace("main")?;
    let mut changes = db.batch();
    for number in batch * BATCH..(batch + 1) * BATCH {
        changes.insert(&keyspace, key(number), vec![number as u8; 500]);
    }
    changes.durability(durability).commit()
}

/// Has these batches, goes on, and has them after a power loss as well.
fn is_whole_and_works(image: &Simulated, batches: u32, story: &str) {
    let has_all = |db: &Database, batches: u32| {
        let keyspace = db.keyspace("main").expect("is there");
        for number in 0..batches * BATCH {
            let found = keyspace.get(key(number)).unwrap_or_else(|error| panic!("{story}: {error}"));
            assert!(found.is_some(), "{story}: record {number} is lost");
        }
        db.check().unwrap_or_else(|error| panic!("{story}: {error:?}"));
    };
    let db = open(image).unwrap_or_else(|error| panic!("{story}: {error}"));
    has_all(&db, batches);
    put(&db, batches, Durability::Buffered).unwrap_or_else(|error| panic!("{story}: {error}"));
    db.flush().unwrap_or_else(|error| panic!("{story}: {error}"));
    put(&db, batches + 1, Durability::Immediate).unwrap_or_else(|error| panic!("{story}: {error}"));
    for seed in 0..4 {
        let image = image.power_loss(seed);
        let db = open(&image).unwrap_or_else(|error| panic!("{story}, later power loss: {error}"));
        has_all(&db, batches + 2);
    }
}

/// All batches, of which the first are durable, in one queue that is not frozen yet.
fn filled(volume: Arc<dyn Volume>, inner: &Simulated, background: usize) -> Database {
    let db = scenario::options().background_threads(background).open_on(volume).expect("opens");
    for batch in 0..ALL {
        let durability = if batch < DURABLE { Durability::Immediate } else { Durability::Buffered };
        put(&db, batch, durability).expect("commits");
    }
    assert!(inner.read_file(NEXT).is_err(), "no queue is frozen yet");
    db
}

/// Whatever is asked for is refused but reading, and what was acknowledged is there when the database is opened again, after a power loss too.
fn refuses_and_has_lost_nothing(db: Database, volume: &Simulated, story: &str) {
    let is_refused = || {
        for durability in [Durability::None, Durability::Buffered, Durability::Immediate] {
            let refused = put(&db, ALL, durability);
            assert!(matches!(refused, Err(Error::Poisoned { .. })), "{story}: {refused:?}");
        }
        assert!(db.sync().is_err() && db.flush().is_err(), "{story}");
    };
    is_refused();
    let last = db.keyspace("main").expect("is there").get(key(ALL * BATCH - 1)).expect("reads");
    assert!(last.is_some(), "{story}");
    is_whole_and_works(&volume.crash(), ALL, &format!("{story}, killed"));
    for seed in 0..4 {
        is_whole_and_works(&volume.power_loss(seed), DURABLE, &format!("{story}, no power ({seed})"));
    }
    volume.clear_faults();
    is_refused();
    drop(db);
    is_whole_and_works(volume, ALL, &format!("{story}, closed"));
}

#[test]
fn if_the_next_log_cannot_be_begun_writes_are_refused_and_nothing_is_lost() {
    let begins = [Filter::kinds([OperationKind::Sync]).file(NEXT), OperationKind::SyncDirectory.into()];
    for (at, begin) in begins.iter().enumerate() {
        for (fault, background) in
            [Fault::Error, Fault::NoSpace].into_iter().flat_map(|fault| [(fault, 0), (fault, 1)])
        {
            let story = format!("{fault:?} at step {at}, {background} threads");
            let volume = Simulated::new(1);
            let db = filled(Arc::new(volume.clone()), &volume, background);
            volume.fail_nth(begin.clone(), 1, fault, Repeat::Once);
            let flushed = db.flush();
            assert_eq!(volume.fired(), 1, "{story}: the next log is begun otherwise now");
            assert!(flushed.is_err(), "{story}");
            refuses_and_has_lost_nothing(db, &volume, &story);
        }
    }
}

/// A volume that syncs the next log only when something else has failed, or does not.
struct Late {
    inner: Simulated,
    next: Mutex<Option<FileId>>,
}

impl PassThrough for Late {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn open(&self, name: &str, access: Access) -> psync::Result<FileId> {
        let file = Volume::open(&self.inner, name, access)?;
        if name == NEXT {
            *self.next.lock().expect("no poison") = Some(file);
        }
        Ok(file)
    }

    fn sync(&self, file: FileId) -> psync::Result<()> {
        let is_next = *self.next.lock().expect("no poison") == Some(file);
        let began = Instant::now();
        while is_next && self.inner.fired() == 0 && began.elapsed() < Duration::from_millis(500) {
            std::thread::sleep(Duration::from_millis(1));
        }
        psync::Device::sync(&self.inner, file)
    }
}

/// A full disk passes, and so the flush fails with what would be tried again.
#[test]
fn a_full_disk_does_not_hide_that_the_next_log_could_not_be_begun() {
    for attempt in 0..100 {
        let inner = Simulated::new(1);
        let volume = Arc::new(Late { inner: inner.clone(), next: Mutex::default() });
        let db = filled(volume, &inner, 1);
        let data = Filter::kinds([OperationKind::Write]).file("data");
        inner.fail_nth(data, 1, Fault::NoSpace, Repeat::Once);
        let begin = Filter::kinds([OperationKind::Sync]).file(NEXT);
        inner.fail_nth(begin, 1, Fault::Error, Repeat::Once);
        let flushed = db.flush();
        let fired = inner.fired();
        assert!(flushed.is_err() && fired > 0, "{fired} faults, {flushed:?}");
        refuses_and_has_lost_nothing(db, &inner, &format!("behind a full disk, {attempt}"));
        if fired == 2 {
            return;
        }
        // The next log was begun before the one before was synced. That waits for it, and nothing is written to the data without.
    }
    panic!("the disk is never found full before the next log is begun");
}
