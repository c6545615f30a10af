//! Keyspaces that are dropped and renamed: what handles, snapshots, batches and transactions say, and what becomes of the space.

use psync::{Device, Simulated, Volume};
use sapwood::{Builder, Database, Durability, Error, Keyspace, KeyspaceOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn options() -> Builder {
    Database::builder().memory(8 << 20).leaf_len(256).background_threads(0)
}

fn open(volume: &Simulated) -> Database {
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    options().open_on(volume).expect("opens")
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn fill(keyspace: &Keyspace, count: u32) {
    keyspace.ingest((0..count).map(|number| (key(number), [0; 40]))).expect("ingests");
}

fn is_dropped<T>(result: sapwood::Result<T>) -> bool {
    matches!(result, Err(Error::KeyspaceDropped { name }) if name == "ships")
}

#[test]
fn handles_of_a_dropped_keyspace_say_so_and_snapshots_still_have_it() {
    let db = open(&Simulated::new(1));
    let (ships, other) = (db.keyspace("ships").expect("is made"), db.keyspace("other").expect("is made"));
    fill(&ships, 20_000);
    fill(&other, 100);
    ships.insert(key(7), "queued").expect("inserts");
    let (snapshot, mut iterator) = (db.snapshot(), ships.iter());
    assert!(iterator.next().is_some());
    let mut batch = db.batch();
    batch.insert(&other, "both", "or none").insert(&ships, "both", "or none");
    let mut tx = db.transaction().expect("begins");
    assert!(tx.contains(&ships, key(3)).expect("reads"));
    tx.insert(&other, "tx", "has read of it").expect("writes");

    assert!(db.drop_keyspace("ships").expect("drops") && !db.drop_keyspace("ships").expect("is gone"));
    assert!(!db.contains_keyspace("ships") && db.keyspaces() == ["other"]);
    assert!(is_dropped(ships.get(key(7))) && is_dropped(ships.insert("a", "b")) && is_dropped(ships.clear()));
    assert!(
        is_dropped(ships.multi_get([key(7)])) && is_dropped(ships.first()) && is_dropped(ships.metadata())
    );
    assert!(
        is_dropped(ships.iter().next().expect("an error")) && is_dropped(ships.insert_if_absent("a", "b"))
    );
    assert!(is_dropped(batch.commit()) && !other.contains("both").expect("reads"));
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. } | Error::KeyspaceDropped { .. })));
    // After this, which flushes, the tree is not there any more.
    assert!(is_dropped(ships.ingest([("a", "b")])) && is_dropped(ships.set_metadata("x")));
    assert!(is_dropped(ships.insert("a", "b")) && is_dropped(ships.clear()));
    assert!(!other.contains("tx").expect("reads"));
    // Whoever looked before goes on looking, whatever happens to the space.
    db.flush().expect("flushes");
    db.compact().expect("compacts");
    assert_eq!(snapshot.iter(&ships).count(), 20_000);
    assert_eq!(snapshot.get(&ships, key(7)).expect("reads").expect("is there")[..], b"queued"[..]);
    assert_eq!(iterator.count(), 19_999);
    drop(snapshot);
    // Another one of the same name.
    let again = db.keyspace("ships").expect("is made");
    assert!(again.is_empty().expect("reads") && is_dropped(ships.get(key(7))));
    again.insert("fram", "1892").expect("inserts");
    assert!(db.check().is_ok());
    assert_eq!(db.snapshot().iter(&other).count(), 100);
}

#[test]
fn the_space_of_a_dropped_keyspace_comes_back() {
    let volume = Simulated::new(1);
    let db = open(&volume);
    let (ships, other) = (db.keyspace("ships").expect("is made"), db.keyspace("other").expect("is made"));
    fill(&ships, 200_000);
    fill(&other, 1000);
    let before = db.stats().space.live;
    let reads = db.stats().reads.bytes;
    db.drop_keyspace("ships").expect("drops");
    // Without a thread in the background the next flush does it.
    other.insert("a", "change").expect("inserts");
    db.flush().expect("flushes");
    let after = db.stats();
    assert!(after.space.live < before / 50, "{} of {before} bytes are alive", after.space.live);
    assert!(after.reads.bytes - reads < before / 5, "{} bytes read", after.reads.bytes - reads);
    assert!(db.check().is_ok());
    drop((ships, other));
    db.close().expect("closes");
    let db = open(&volume);
    assert_eq!((db.keyspaces(), db.stats().space.live), (vec!["other".into()], after.space.live));
    assert!(db.check().is_ok());
}

/// A name that was asked for after opening, when it was there, came back with the next keyspace that was created.
#[test]
fn a_dropped_keyspace_does_not_come_back_with_another() {
    let volume = Simulated::new(1);
    let db = open(&volume);
    db.create_keyspaces(["one", "two"]).expect("are made");
    db.close().expect("closes");
    let db = open(&volume);
    db.create_keyspaces(["one", "two"]).expect("are there");
    assert!(db.drop_keyspace("one").expect("drops"));
    db.keyspace("three").expect("is made");
    assert_eq!(db.keyspaces(), ["three", "two"]);
}

/// Changes of a dropped keyspace are in the log, and the id must not be another's.
#[test]
fn what_the_log_has_of_a_dropped_keyspace_is_no_other_keyspaces() {
    let volume = Simulated::new(1);
    let db = open(&volume);
    let ships = db.keyspace("ships").expect("is made");
    ships.insert("fram", "1892").expect("inserts");
    db.drop_keyspace("ships").expect("drops");
    let harbours = db.keyspace("harbours").expect("is made");
    assert!(harbours.is_empty().expect("reads"));
    drop((ships, harbours));
    for found in [volume.crash(), volume.power_loss(3)] {
        let db = open(&found);
        assert_eq!(db.keyspaces(), ["harbours"]);
        let new = db.keyspace("new").expect("is made");
        assert!(
            new.is_empty().expect("reads")
                && db.keyspace("harbours").expect("is there").is_empty().expect("reads")
        );
        new.insert("a", "b").expect("inserts");
        db.flush().expect("flushes");
        assert!(db.check().is_ok());
        drop(new);
        db.close().expect("closes");
        assert_eq!(open(&found).keyspaces(), ["harbours", "new"]);
    }
}

#[test]
fn a_renamed_keyspace_keeps_its_records_its_metadata_and_its_handles() {
    let volume = Simulated::new(1);
    let db = open(&volume);
    let ships = db.keyspace("ships").expect("is made");
    fill(&ships, 1000);
    ships.set_metadata("schema 3").expect("sets");
    db.rename_keyspace("ships", "vessels").expect("renames");
    assert!(matches!(db.rename_keyspace("ships", "boats"), Err(Error::NoKeyspace { .. })));
    db.keyspace("boats").expect("is made");
    assert!(matches!(db.rename_keyspace("vessels", "boats"), Err(Error::BadName { .. })));
    assert!(matches!(db.rename_keyspace("vessels", ""), Err(Error::BadName { .. })));
    ships.insert(key(5000), "by the old handle").expect("inserts");
    db.flush().expect("flushes");
    assert!(matches!(ships.set_metadata(vec![0; 4097]), Err(Error::ValueTooLong { .. })));
    let vessels = db.keyspace("vessels").expect("is there");
    assert_eq!((vessels.iter().count(), vessels.metadata().expect("reads")), (1001, b"schema 3".to_vec()));
    assert!(!db.contains_keyspace("ships") && db.keyspaces() == ["boats", "vessels"]);
    drop((ships, vessels));
    db.close().expect("closes");
    for is_again in [false, true] {
        let db = open(&volume);
        let vessels = db.keyspace_if_exists("vessels").expect("reads").expect("is there");
        assert_eq!(
            (vessels.iter().count(), vessels.metadata().expect("reads")),
            (1001, b"schema 3".to_vec())
        );
        assert!(db.keyspace_if_exists("ships").expect("reads").is_none(), "{is_again}");
    }
}

#[test]
fn a_keyspace_takes_the_place_of_another() {
    let volume = Simulated::new(1);
    let db = open(&volume);
    let (ships, anew) = (db.keyspace("ships").expect("is made"), db.keyspace("ships.new").expect("is made"));
    fill(&ships, 5000);
    fill(&anew, 300);
    anew.set_metadata("mine").expect("sets");
    let snapshot = db.snapshot();
    let mut tx = db.transaction().expect("begins");
    assert!(tx.contains(&ships, key(3)).expect("reads"));
    tx.insert(&anew, "tx", "has read of the other").expect("writes");
    let refused = db.replace_keyspace("none", "ships");
    assert!(matches!(refused, Err(Error::NoKeyspace { name, .. }) if name == "none"));
    assert!(matches!(db.replace_keyspace("ships.new", ""), Err(Error::BadName { .. })));

    db.replace_keyspace("ships.new", "ships").expect("replaces");
    db.replace_keyspace("ships", "ships").expect("is itself");
    assert_eq!(db.keyspaces(), ["ships"]);
    assert!(is_dropped(ships.get(key(7))) && is_dropped(ships.insert("a", "b")));
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. } | Error::KeyspaceDropped { .. })));
    anew.insert("by the old handle", "").expect("inserts");
    let now = db.keyspace("ships").expect("is there");
    assert_eq!((now.count(..).expect("counts"), now.metadata().expect("is there")), (301, b"mine".to_vec()));
    assert_eq!(
        (snapshot.count(&ships, ..).expect("counts"), snapshot.count(&anew, ..).expect("counts")),
        (5000, 300)
    );
    // A name that was free is only taken.
    db.replace_keyspace("ships", "vessels").expect("renames");
    assert_eq!(db.keyspaces(), ["vessels"]);
    drop((snapshot, ships, anew, now));
    db.close().expect("closes");
    let db = open(&volume);
    assert_eq!(db.keyspaces(), ["vessels"]);
    assert_eq!(db.keyspace("vessels").expect("is there").count(..).expect("counts"), 301);
    db.check().expect("is sound");
}

#[test]
fn a_durability_is_stored_with_its_keyspace() {
    let volume = Simulated::new(1);
    let buffered = || KeyspaceOptions::new().durability(Durability::Buffered);
    let db = open(&volume);
    let plain = db.keyspace("ships").expect("is made");
    assert_eq!(plain.options().expect("has some"), KeyspaceOptions::new());
    let ships = db.keyspace_with("ships", buffered()).expect("is changed");
    let days = buffered().durability(Durability::None).time_to_live(Duration::from_secs(86_400));
    let weather = db.keyspace_with("weather", days.clone()).expect("is made");
    db.keyspace_with("new", buffered()).expect("is made");
    // A handle keeps what it has, and what it is told.
    assert_eq!(plain.durability(), Durability::Immediate);
    assert_eq!((ships.durability(), weather.durability()), (Durability::Buffered, Durability::None));
    assert_eq!(ships.with_durability(Durability::Immediate).durability(), Durability::Immediate);
    assert_eq!(db.keyspace("other").expect("is made").durability(), Durability::Immediate);

    // Only what is told otherwise waits for the device: also batches and transactions.
    let syncs = |change: &dyn Fn() -> sapwood::Result<()>| {
        let before = volume.counters().syncs;
        change().expect("commits");
        volume.counters().syncs - before
    };
    assert_eq!(syncs(&|| ships.insert(key(1), "buffered")), 0);
    assert_eq!(syncs(&|| ships.update(key(1), |_| Some("again")).map(|_| ())), 0);
    assert_eq!(syncs(&|| weather.remove(key(1))), 0);
    assert!(syncs(&|| plain.insert(key(1), "durable")) > 0);
    assert!(syncs(&|| db.batch().insert(&ships, key(2), "durable").commit()) > 0);
    assert!(syncs(&|| db.transact(|tx| tx.insert(&ships, key(3), "durable"))) > 0);

    // A flush and an ingestion replace the tree; then it has another name, and takes another's place.
    fill(&db.keyspace("new").expect("is there"), 1000);
    ships.insert(key(4), "flushed").expect("inserts");
    db.flush().expect("flushes");
    db.rename_keyspace("ships", "fleet").expect("renames");
    db.replace_keyspace("new", "other").expect("replaces");
    let check = |db: &Database| {
        for name in ["fleet", "other"] {
            let keyspace = db.keyspace(name).expect("is there");
            assert_eq!(keyspace.durability(), Durability::Buffered, "{name}");
            assert_eq!(keyspace.options().expect("has some"), buffered(), "{name}");
        }
        let weather = db.keyspace("weather").expect("is there");
        assert_eq!(weather.options().expect("has some"), days);
        assert_eq!(db.keyspace("new again").expect("is made").durability(), Durability::Immediate);
    };
    check(&db);
    // After a crash the first opening reads the edits, and the second one a checkpoint that the first has written.
    let crashed = volume.power_loss(7);
    check(&open(&crashed));
    check(&open(&crashed));
    drop((db, plain, ships, weather));
    let db = open(&volume);
    check(&db);

    // What options do not say stays, and what is refused changes nothing.
    let hour = KeyspaceOptions::new().time_to_live(Duration::from_secs(3600));
    let weather = db.keyspace_with("weather", hour.clone()).expect("is changed");
    assert_eq!(weather.options().expect("has some"), hour.clone().durability(Durability::None));
    let refused = db.keyspace_with("fleet", hour.durability(Durability::Immediate));
    assert!(matches!(refused, Err(Error::NoExpiry { .. })));
    assert_eq!(db.keyspace("fleet").expect("is there").durability(), Durability::Buffered);
    let syncs = volume.counters().syncs;
    db.keyspace_with("fleet", buffered()).expect("is so already");
    assert_eq!(volume.counters().syncs, syncs);
    let fleet = db.keyspace_with("fleet", KeyspaceOptions::new().durability(Durability::Immediate));
    assert_eq!(fleet.expect("is changed").durability(), Durability::Immediate);
}

#[test]
fn keyspaces_go_while_others_write_to_them() {
    let shared: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = options().background_threads(4).open_on(Arc::clone(&shared)).expect("opens");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3u32 {
            let (db, is_over) = (&db, &is_over);
            scope.spawn(move || {
                let mut number = thread;
                while !is_over.load(Ordering::SeqCst) {
                    let keyspace = db.keyspace(&format!("ks{}", number % 5)).expect("is made");
                    let mut batch = db.batch();
                    (0..200)
                        .for_each(|index| _ = batch.insert(&keyspace, key(number * 200 + index), [7; 50]));
                    let done = batch.durability(Durability::Buffered).commit();
                    assert!(matches!(done, Ok(()) | Err(Error::KeyspaceDropped { .. })), "{done:?}");
                    let found = keyspace.first().map(|_| ());
                    assert!(matches!(found, Ok(()) | Err(Error::KeyspaceDropped { .. })), "{found:?}");
                    number += 3;
                }
            });
        }
        for round in 0..150 {
            db.drop_keyspace(&format!("ks{}", round % 5)).expect("drops");
            if round % 20 == 7 {
                db.flush().expect("flushes");
            }
        }
        is_over.store(true, Ordering::SeqCst);
    });
    (0..5).for_each(|number| _ = db.drop_keyspace(&format!("ks{number}")).expect("drops"));
    db.compact().expect("compacts");
    assert_eq!((db.keyspaces().len(), db.stats().space.live), (0, 0));
    assert!(db.check().is_ok());
}

/// Also once some keyspace was dropped: then ids without a keyspace are looked at.
#[test]
fn a_keyspace_younger_than_a_snapshot_is_empty_in_it() {
    for drops in [false, true] {
        let builder = Database::builder().memory(4 << 20).background_threads(0);
        let db = builder.open_on(Arc::new(Simulated::new(1)) as Arc<dyn Volume>).expect("opens");
        if drops {
            db.keyspace("gone").expect("a keyspace");
            db.drop_keyspace("gone").expect("drops");
        }
        let snapshot = db.snapshot();
        let young = db.keyspace("young").expect("a keyspace");
        young.insert("key", "value").expect("commits");
        assert_eq!(snapshot.get(&young, "key").expect("reads"), None);
        assert_eq!(snapshot.iter(&young).count(), 0);
        db.transact(|tx| {
            let younger = db.keyspace("younger")?;
            assert_eq!(tx.get(&younger, "key")?, None);
            tx.insert(&younger, "key", "value")
        })
        .expect("commits");
        assert_eq!(db.keyspace("younger").expect("a keyspace").iter().count(), 1);
    }
}

/// Each creates it with its options, or finds it with them.
#[test]
fn options_are_those_of_the_keyspace_that_was_found_or_made() {
    let db = open(&Simulated::new(1));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                db.drop_keyspace("k").expect("drops");
            }
        });
        for _ in 0..300 {
            let keyspace = db.keyspace_with("k", KeyspaceOptions::new().expiring()).expect("is made");
            match keyspace.options() {
                Ok(options) => assert!(options.is_expiring()),
                Err(error) => assert!(matches!(error, Error::KeyspaceDropped { .. }), "{error}"),
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_keyspace_that_is_replaced_is_there_at_any_moment() {
    let db = open(&Simulated::new(1));
    db.keyspace("ships").expect("is made");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert!(db.keyspace_if_exists("ships").expect("looks").is_some());
            }
        });
        for _ in 0..500 {
            db.keyspace("ships.new").expect("is made");
            db.replace_keyspace("ships.new", "ships").expect("replaces");
        }
        is_over.store(true, Ordering::Relaxed);
        looks.join().expect("it is there");
    });
}

/// The pieces of large values lie in a keyspace of the store's own.
#[test]
fn what_only_the_store_knows_of_cannot_be_dropped_or_renamed() {
    let db = open(&Simulated::new(1));
    let photos = db.large_values("photos").expect("is made");
    photos.insert("fram", [7; 100_000]).expect("inserts");
    db.keyspace("photos (chunks)").expect("is made");
    let hidden = "\u{1}chunks of 1";
    assert!(!db.drop_keyspace(hidden).expect("there is none"));
    assert!(matches!(db.rename_keyspace(hidden, "x"), Err(Error::NoKeyspace { .. })));
    assert!(matches!(db.replace_keyspace(hidden, "x"), Err(Error::NoKeyspace { .. })));
    assert_eq!(photos.get("fram").expect("reads").expect("is there").len(), 100_000);
    // Nor has it the name of another in the statistics.
    let text = db.stats().to_prometheus();
    let mut samples: Vec<_> = text.lines().filter(|line| line.contains("keyspace_records{")).collect();
    let all = samples.len();
    samples.sort_unstable();
    samples.dedup_by_key(|line| line.split('}').next().expect("a label").to_owned());
    assert_eq!((all, samples.len()), (3, 3), "{text}");
}
