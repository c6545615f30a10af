//! A sync or a write fails, the store refuses writes, and the process restarts without a loss of power: what was written and never
//! synced is there then, and counts. Nothing that it speaks of may have been given back to the file system meanwhile.

use crate::scenario::{Contents, open_plain as open, plain_options as options};
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use sapwood::{Database, Durability, Error, Keyspace};
use std::sync::Arc;
use std::time::Duration;

const RECORDS: u32 = 12_000;

fn record(number: u32, round: u8) -> (Vec<u8>, Vec<u8>) {
    (format!("key{number:05}").into_bytes(), vec![round; 60])
}

fn contents(db: &Database, story: &str) -> Contents {
    let keyspace = db.keyspace("main").unwrap_or_else(|error| panic!("{story}: {error}"));
    let read = |item: sapwood::Result<_>| item.unwrap_or_else(|error| panic!("{story}: {error}"));
    keyspace.iter().map(read).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

fn overwrite(db: &Database, keyspace: &Keyspace, every: usize, round: u8) -> Result<(), Error> {
    for start in (0..RECORDS).step_by(3000) {
        let mut batch = db.batch();
        for number in (start..start + 3000).step_by(every) {
            let (key, value) = record(number, round);
            batch.insert(keyspace, key, value);
        }
        batch.durability(Durability::Immediate).commit()?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Ingest,
    Flush,
    Compact,
}

impl Work {
    /// Brings the database to where the work is all that is left to do.
    fn prepare(self, db: &Database) {
        let keyspace = db.keyspace("main").expect("a keyspace");
        keyspace.ingest((0..RECORDS).map(|number| record(number, 0))).expect("ingests");
        match self {
            Self::Ingest => {}
            Self::Flush => overwrite(db, &keyspace, 3, 1).expect("commits"),
            Self::Compact => {
                overwrite(db, &keyspace, 100, 1).expect("commits");
                db.flush().expect("flushes");
                assert!(db.stats().space.log_pieces > 5, "{}", db.stats());
            }
        }
    }

    fn run(self, db: &Database) -> Result<(), Error> {
        match self {
            Self::Ingest => {
                let keyspace = db.keyspace("main")?;
                keyspace.ingest((RECORDS..2 * RECORDS).map(|number| record(number, 2))).map(|_| ())
            }
            Self::Flush => db.flush(),
            Self::Compact => db.compact(),
        }
    }

    /// What there is when it was done.
    fn after(self, before: &Contents) -> Contents {
        let mut after = before.clone();
        if let Self::Ingest = self {
            after.extend((RECORDS..2 * RECORDS).map(|number| record(number, 2)));
        }
        after
    }
}

/// Opens what a process has left, works on, and loses power.
fn restart(image: &Simulated, [before, after]: [&Contents; 2], seed: u64, story: &str) {
    let db = open(image).unwrap_or_else(|error| panic!("{story}: {error}"));
    db.check().unwrap_or_else(|damage| panic!("{story}: {damage}"));
    let found = contents(&db, story);
    assert!(found == *before || found == *after, "{story}: {} records found", found.len());
    if seed.is_multiple_of(4) {
        let keyspace = db.keyspace("main").expect("a keyspace");
        overwrite(&db, &keyspace, 2, 3).unwrap_or_else(|error| panic!("{story}: {error}"));
        db.flush().unwrap_or_else(|error| panic!("{story}: {error}"));
        let now = contents(&db, story);
        let db = open(&image.power_loss(seed)).unwrap_or_else(|error| panic!("{story}, power: {error}"));
        db.check().unwrap_or_else(|damage| panic!("{story}, power: {damage}"));
        assert!(contents(&db, story) == now, "{story}: lost by the power loss after it");
    }
}

#[test]
fn whatever_fails_once_nothing_is_given_back_that_the_next_open_may_need() {
    let works = [Work::Ingest, Work::Flush, Work::Compact];
    for (work, fault) in works.into_iter().flat_map(|work| [(work, Fault::Error), (work, Fault::NoSpace)]) {
        for nth in 1.. {
            let volume = Simulated::new(nth);
            let db = open(&volume).expect("opens");
            work.prepare(&db);
            let before = contents(&db, "before");
            let after = work.after(&before);
            volume.fail_nth(Filter::changes(), nth, fault, Repeat::Once);
            let result = work.run(&db);
            if volume.fired() == 0 {
                assert!(nth > 4, "{work:?} does enough: {nth} operations");
                break;
            }
            let story = format!("{work:?}, {fault:?} at operation {nth}: {result:?}");
            if fault == Fault::Error {
                restart(&volume.crash(), [&before, &after], nth, &story);
            }
            drop(db);
            restart(&volume.crash(), [&before, &after], nth + 1, &format!("{story}, closed"));
        }
    }
}

/// The same in the background, where the space of free slots is given back when nobody has written for a while.
#[test]
fn a_while_after_a_failed_sync_nothing_is_given_back_that_the_next_open_may_need() {
    let one = |work: Work, file: &str, nth| {
        let volume = Simulated::new(nth);
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let db = options().background_threads(4).open_on(shared).expect("opens");
        work.prepare(&db);
        let before = contents(&db, "before");
        let after = work.after(&before);
        let syncs = Filter::kinds([OperationKind::Sync]).file(file);
        volume.fail_nth(syncs, nth, Fault::Error, Repeat::Once);
        let result = work.run(&db);
        if volume.fired() > 0 {
            std::thread::sleep(Duration::from_millis(600));
            let story = format!("{work:?}, sync {nth} of {file}: {result:?}");
            assert!(result.is_err(), "{story}");
            restart(&volume.crash(), [&before, &after], 1, &story);
        }
        volume.fired()
    };
    let fired: u64 = std::thread::scope(|scope| {
        let mut running = Vec::new();
        for work in [Work::Ingest, Work::Flush, Work::Compact] {
            for nth in 1..=2 {
                running.push(scope.spawn(move || one(work, "manifest", nth)));
            }
            running.push(scope.spawn(move || one(work, "data", 1)));
        }
        running.into_iter().map(|thread| thread.join().expect("sound")).sum()
    });
    assert!(fired >= 6, "{fired} syncs have failed");
}
