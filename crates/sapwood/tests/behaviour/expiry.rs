//! Records that expire: they are gone at their moment for every kind of reader, wherever they are stored, and their space comes
//! back.

use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Builder, Compression, Database, Error, Expiry, Keyspace, KeyspaceOptions, Snapshot, Value};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A clock that tests set, in milliseconds.
#[derive(Clone)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_000_000)))
    }

    fn now(&self) -> u64 {
        self.0.load(SeqCst)
    }

    fn pass(&self, millis: u64) {
        self.0.fetch_add(millis, SeqCst);
    }

    fn set(&self, millis: u64) {
        self.0.store(millis, SeqCst);
    }

    fn builder(&self) -> Builder {
        let time = self.clone();
        let builder = Database::builder().memory(4 << 20).leaf_len(512).segment_span(1 << 20);
        builder.background_threads(0).clock(move || at(time.now()))
    }

    fn open(&self, volume: &Simulated) -> Database {
        self.builder().open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).expect("opens")
    }
}

fn at(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

fn after(millis: u64) -> Expiry {
    Expiry::After(Duration::from_millis(millis))
}

fn expiring() -> KeyspaceOptions {
    KeyspaceOptions::new().expiring()
}

/// A follower's clock learned what the writer had seen when it was opened, and never again.
#[test]
fn nothing_comes_back_in_a_follower_whose_clock_is_set_back() {
    let (time, volume) = (Time::new(), Simulated::new(1));
    let db = time.open(&volume);
    let keyspace = db.keyspace_with("main", expiring()).expect("a keyspace");
    keyspace.insert_expiring("k", "value", after(10_000)).expect("inserts");
    db.flush().expect("flushes");
    let follow = || time.builder().follow(true).open_on(Arc::new(volume.clone()) as Arc<dyn Volume>);
    let follower = follow().expect("it can be followed");
    let seen = follower.keyspace("main").expect("a keyspace");
    assert!(seen.contains("k").expect("sound"));
    time.pass(20_000);
    db.keyspace("another").expect("an edit of the manifest");
    time.set(time.now() - 15_000);
    follower.refresh().expect("refreshes");
    assert!(!keyspace.contains("k").expect("sound"));
    assert!(!seen.contains("k").expect("sound"), "the writer has seen it expire");
}

/// All records of an ingestion lived from its beginning on, however long it took.
#[test]
fn what_is_ingested_lives_from_when_it_is_taken() {
    let (time, volume) = (Time::new(), Simulated::new(1));
    let db = time.open(&volume);
    let options = KeyspaceOptions::new().time_to_live(Duration::from_secs(60));
    let keyspace = db.keyspace_with("main", options).expect("a keyspace");
    let slow = ["a", "b", "c"].into_iter().inspect(|_| time.pass(40_000)).map(|key| (key, "value"));
    assert_eq!(keyspace.ingest(slow).expect("ingests"), 3);
    assert_eq!(keys(keyspace.iter()), ["b", "c"]);
}

fn keys(range: impl Iterator<Item = sapwood::Result<(Value, Value)>>) -> Vec<String> {
    let text = |key: &[u8]| String::from_utf8(key.to_vec()).expect("text");
    range.map(|record| text(&record.expect("sound").0)).collect()
}

/// That every kind of read finds of a, b and c exactly these.
#[track_caller]
fn every_reader_finds(db: &Database, keyspace: &Keyspace, expected: &[&str]) {
    let snapshot = db.snapshot();
    let tx = db.transaction().expect("begins");
    for key in ["a", "b", "c"] {
        let is_there = expected.contains(&key);
        let value = is_there.then(|| Value::from(key));
        assert_eq!(keyspace.get(key).expect("reads"), value);
        assert_eq!(snapshot.get(keyspace, key).expect("reads"), value);
        assert_eq!(tx.get(keyspace, key).expect("reads"), value);
        assert_eq!(keyspace.contains(key).expect("reads"), is_there);
        assert_eq!(snapshot.contains(keyspace, key).expect("reads"), is_there);
        assert_eq!(keyspace.expiry(key).expect("reads").is_some(), is_there);
        assert_eq!(keyspace.prefix(key).count(), usize::from(is_there));
        assert_eq!(keyspace.count(key..=key).expect("reads"), u64::from(is_there));
    }
    let of_all = |values: Vec<Option<Value>>| values.into_iter().flatten().collect::<Vec<_>>();
    let all = ["c", "a", "b", "a"];
    let wanted: Vec<_> = all.into_iter().filter(|key| expected.contains(key)).collect();
    assert_eq!(of_all(keyspace.multi_get(all).expect("reads")), wanted);
    assert_eq!(of_all(snapshot.multi_get(keyspace, all).expect("reads")), wanted);
    assert_eq!(of_all(tx.multi_get(keyspace, all).expect("reads")), wanted);
    let reversed: Vec<_> = expected.iter().rev().copied().collect();
    assert_eq!(keys(keyspace.iter()), expected);
    assert_eq!(keys(keyspace.iter().rev()), reversed);
    assert_eq!(keys(snapshot.iter(keyspace)), expected);
    assert_eq!(keys(tx.iter(keyspace)), expected);
    assert_eq!(keys(tx.iter(keyspace).rev()), reversed);
    assert_eq!(keyspace.iter().keys().collect::<Result<Vec<_>, _>>().expect("reads"), expected);
    let mut lent = keyspace.iter();
    let mut found = Vec::new();
    while let Some(record) = lent.next_ref() {
        let (key, value) = record.expect("sound");
        assert_eq!(key, value);
        found.push(key.to_vec());
    }
    assert_eq!(found, expected.iter().map(|key| key.as_bytes()).collect::<Vec<_>>());
    let mut cursor = keyspace.cursor();
    let mut at = cursor.seek_to_first().expect("seeks");
    for key in expected {
        assert_eq!(at, Some((key.as_bytes(), key.as_bytes())));
        at = cursor.next().expect("steps");
    }
    assert_eq!(at, None);
    let end = |record: Option<(Value, Value)>| record.map(|(key, _)| key.to_vec());
    let bytes = |key: Option<&&str>| key.map(|key| key.as_bytes().to_vec());
    assert_eq!(end(keyspace.first().expect("reads")), bytes(expected.first()));
    assert_eq!(end(keyspace.last().expect("reads")), bytes(expected.last()));
    assert_eq!(end(tx.first(keyspace).expect("reads")), bytes(expected.first()));
    assert_eq!(end(snapshot.last(keyspace).expect("reads")), bytes(expected.last()));
    assert_eq!(keyspace.is_empty().expect("reads"), expected.is_empty());
}

/// In the queue, in a log area, in leaves, and after opening again.
#[test]
fn a_record_is_gone_at_its_moment_for_every_reader() {
    for place in ["queue", "log area", "leaf", "reopened"] {
        let (volume, time) = (Simulated::new(1), Time::new());
        let mut db = time.open(&volume);
        let mut keyspace = db.keyspace_with("main", expiring()).expect("a keyspace");
        if place == "log area" {
            // Between many, which are in leaves.
            let others = (0..20_000u32)
                .map(|number| (format!("{}{number:05}", ["Z", "z"][number as usize / 10_000]), [7; 90]));
            keyspace.ingest(others).expect("ingests");
        }
        for (key, life) in [("a", 1000), ("b", 2000)] {
            keyspace.insert_expiring(key, key, after(life)).expect("inserts");
        }
        keyspace.insert("c", "c").expect("inserts");
        match place {
            "queue" => {}
            "reopened" => {
                drop(keyspace);
                db.close().expect("closes");
                db = time.open(&volume);
                keyspace = db.keyspace("main").expect("a keyspace");
            }
            _ => db.flush().expect("flushes"),
        }
        if place == "log area" {
            assert!(db.stats().space.log_pieces > 0);
            for (passed, expected) in [(999, 3), (1, 2), (1000, 1)] {
                time.pass(passed);
                let is_there = |key: &&str| keyspace.contains(key).expect("reads");
                assert_eq!(["a", "b", "c"].iter().filter(|key| is_there(key)).count(), expected);
                assert_eq!(keyspace.range("a"..="c").count(), expected);
                assert_eq!(keyspace.range("a"..="c").rev().count(), expected);
            }
        } else {
            let old = db.snapshot();
            every_reader_finds(&db, &keyspace, &["a", "b", "c"]);
            time.pass(999);
            every_reader_finds(&db, &keyspace, &["a", "b", "c"]);
            time.pass(1);
            every_reader_finds(&db, &keyspace, &["b", "c"]);
            time.pass(1000);
            every_reader_finds(&db, &keyspace, &["c"]);
            assert_eq!(keys(old.iter(&keyspace)), ["c"], "also for a snapshot from before");
        }
        db.compact().expect("compacts");
        assert_eq!(keyspace.range("a"..="c").count(), 1);
        db.check().expect("sound");
    }
}

#[test]
fn what_has_expired_counts_as_absent_for_conditions_and_transactions() {
    let time = Time::new();
    let db = time.open(&Simulated::new(1));
    let keyspace = db.keyspace_with("main", expiring()).expect("a keyspace");
    let put = || {
        keyspace.insert_expiring("a", "old", after(10)).expect("inserts");
        time.pass(10);
    };
    put();
    assert_eq!(keyspace.insert_if_absent("a", "new").expect("inserts"), None);
    assert_eq!(keyspace.get("a").expect("reads"), Some(Value::from("new")));
    put();
    assert_eq!(keyspace.compare_and_swap("a", Some("old"), Some("new")).expect("runs"), Err(None));
    assert_eq!(keyspace.compare_and_swap("a", None::<&str>, Some("new")).expect("runs"), Ok(()));
    put();
    assert_eq!(keyspace.take("a").expect("runs"), None);
    assert_eq!(keyspace.update("a", |old| Some(old.map_or("none", |_| "some"))).expect("runs"), None);
    assert_eq!(keyspace.get("a").expect("reads"), Some(Value::from("none")));
    put();
    keyspace.insert("b", "b").expect("inserts");
    assert_eq!(keyspace.pop_first().expect("runs"), Some((Value::from("b"), Value::from("b"))));
    assert_eq!(keyspace.pop_first().expect("runs"), None);
    // What a transaction has written itself expires too, also while it goes on.
    let mut tx = db.transaction().expect("begins");
    tx.insert_expiring(&keyspace, "x", "x", after(5)).expect("inserts");
    tx.insert(&keyspace, "y", "y").expect("inserts");
    assert_eq!(keys(tx.iter(&keyspace)), ["x", "y"]);
    assert_eq!(tx.expiry(&keyspace, "x").expect("reads"), Some(Expiry::At(at(time.now() + 5))));
    time.pass(5);
    assert_eq!(keys(tx.iter(&keyspace)), ["y"]);
    assert_eq!(keys(tx.iter(&keyspace).rev()), ["y"]);
    assert_eq!(tx.get(&keyspace, "x").expect("reads"), None);
    assert_eq!(tx.multi_get(&keyspace, ["x", "y"]).expect("reads"), [None, Some(Value::from("y"))]);
    tx.commit().expect("commits");
    assert_eq!(keys(keyspace.iter()), ["y"]);
    // A record that it found expired, and that another inserts again, is a conflict.
    let mut tx = db.transaction().expect("begins");
    assert_eq!(tx.get(&keyspace, "x").expect("reads"), None);
    tx.insert(&keyspace, "z", "z").expect("inserts");
    keyspace.insert("x", "again").expect("inserts");
    assert!(matches!(tx.commit(), Err(Error::Conflict { key, .. }) if key == "x"));
}

#[test]
fn lives_are_as_the_keyspace_says_or_as_the_record_says() {
    let (volume, time) = (Simulated::new(1), Time::new());
    let second = KeyspaceOptions::new().time_to_live(Duration::from_secs(1));
    let db = time.open(&volume);
    let keyspace = db.keyspace_with("main", second.clone()).expect("a keyspace");
    assert_eq!(keyspace.options().expect("reads"), second);
    let expires = |keyspace: &Keyspace, key: &str| keyspace.expiry(key).expect("reads");
    let now = time.now();
    keyspace.insert("default", "").expect("inserts");
    keyspace.insert_expiring("never", "", Expiry::Never).expect("inserts");
    keyspace.insert_expiring("later", "", after(5000)).expect("inserts");
    db.batch().insert(&keyspace, "in a batch", "").commit().expect("commits");
    keyspace.ingest([("zz", "ingested")]).expect("ingests");
    for key in ["default", "in a batch", "zz"] {
        assert_eq!(expires(&keyspace, key), Some(Expiry::At(at(now + 1000))), "{key}");
    }
    assert_eq!(expires(&keyspace, "never"), Some(Expiry::Never));
    assert_eq!(expires(&keyspace, "later"), Some(Expiry::At(at(now + 5000))));
    assert!(keyspace.set_expiry("default", after(7)).expect("sets"));
    assert_eq!(expires(&keyspace, "default"), Some(Expiry::At(at(now + 7))));
    time.pass(7);
    assert!(!keyspace.set_expiry("default", Expiry::Never).expect("sets"), "too late");
    // What is there keeps its time.
    keyspace.set_time_to_live(Some(Duration::from_millis(3))).expect("sets");
    keyspace.insert("short", "").expect("inserts");
    assert_eq!(expires(&keyspace, "short"), Some(Expiry::At(at(now + 10))));
    assert_eq!(expires(&keyspace, "in a batch"), Some(Expiry::At(at(now + 1000))));
    drop(keyspace);
    db.close().expect("closes");
    let db = time.open(&volume);
    let keyspace = db.keyspace("main").expect("a keyspace");
    assert_eq!(
        keyspace.options().expect("reads"),
        KeyspaceOptions::new().time_to_live(Duration::from_millis(3))
    );
    let again = db.keyspace_with("main", second.clone()).expect("a keyspace");
    assert_eq!(again.options().expect("reads"), second);
    assert_eq!(
        db.keyspace_with("main", KeyspaceOptions::new()).expect("a keyspace").options().expect("reads"),
        second
    );
    db.rename_keyspace("main", "other").expect("renames");
    assert_eq!(keyspace.options().expect("reads"), second);
    keyspace.set_metadata("kept too").expect("sets");
    assert_eq!(db.keyspace("other").expect("a keyspace").options().expect("reads"), second);
    // Another keyspace of the same name has its own.
    db.drop_keyspace("other").expect("drops");
    assert!(matches!(keyspace.options(), Err(Error::KeyspaceDropped { .. })));
    assert_eq!(db.keyspace("other").expect("a keyspace").options().expect("reads"), KeyspaceOptions::new());
}

#[test]
fn a_keyspace_without_expiry_says_so() {
    let (db, time) = (Time::new().open(&Simulated::new(1)), Time::new());
    let keyspace = db.keyspace("main").expect("a keyspace");
    let refused = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::NoExpiry { keyspace }) if keyspace == "main"));
    };
    keyspace.insert("k", "v").expect("inserts");
    refused(keyspace.insert_expiring("k", "w", after(1)));
    refused(db.batch().insert_expiring(&keyspace, "k", "w", Expiry::Never).commit());
    refused(db.transact(|tx| tx.insert_expiring(&keyspace, "k", "w", after(1))));
    refused(keyspace.set_expiry("k", after(1)).map(|_| ()));
    refused(keyspace.set_time_to_live(None));
    refused(db.keyspace_with("main", expiring()).map(|_| ()));
    time.pass(u64::from(u32::MAX));
    assert_eq!(keyspace.get("k").expect("reads"), Some(Value::from("v")));
    assert_eq!(keyspace.expiry("k").expect("reads"), Some(Expiry::Never));
    let longest = db.keyspace_with("expiring", expiring()).expect("a keyspace");
    let mut len = 1 << 20;
    while keyspace.insert("long", vec![0; len]).is_ok() {
        len *= 2;
    }
    let Err(Error::ValueTooLong { max, .. }) = keyspace.insert("long", vec![0; len]) else {
        panic!("too long")
    };
    keyspace.insert("long", vec![0; max]).expect("inserts");
    longest.insert("long", vec![0; max - 6]).expect("inserts");
    assert!(
        matches!(longest.insert("long", vec![0; max - 5]), Err(Error::ValueTooLong { max: its, .. }) if its == max - 6)
    );
}

#[test]
fn a_clock_that_goes_back_revives_nothing() {
    for is_closed in [true, false] {
        let (volume, time) = (Simulated::new(1), Time::new());
        let db = time.open(&volume);
        let keyspace = db.keyspace_with("main", expiring()).expect("a keyspace");
        keyspace.insert_expiring("a", "", after(1000)).expect("inserts");
        keyspace.insert_expiring("b", "", after(9000)).expect("inserts");
        let early = time.now();
        time.pass(1000);
        assert_eq!(keys(keyspace.iter()), ["b"]);
        time.set(early);
        assert_eq!(keys(keyspace.iter()), ["b"]);
        assert_eq!(keyspace.get("a").expect("reads"), None);
        // What comes now lives as long as it should from the latest time on.
        keyspace.insert_expiring("c", "", after(500)).expect("inserts");
        assert_eq!(keyspace.expiry("c").expect("reads"), Some(Expiry::At(at(early + 1500))));
        let db = if is_closed {
            drop(keyspace);
            db.close().expect("closes");
            time.open(&volume)
        } else {
            db.flush().expect("flushes");
            time.open(&volume.power_loss(7))
        };
        let keyspace = db.keyspace("main").expect("a keyspace");
        assert_eq!(keys(keyspace.iter()), ["b", "c"], "closed: {is_closed}");
    }
}

/// Nothing else is written, and no reader comes.
/// Also if nothing was written after it had expired.
#[test]
fn what_has_expired_does_not_come_back_after_closing() {
    let (volume, time) = (Simulated::new(1), Time::new());
    let early = time.now();
    let db = time.open(&volume);
    let keyspace = db.keyspace_with("main", expiring()).expect("a keyspace");
    keyspace.insert_expiring("k", "v", after(1000)).expect("inserts");
    db.flush().expect("flushes");
    drop(keyspace);
    db.close().expect("closes");
    let db = time.open(&volume);
    time.pass(2000);
    assert!(keys(db.keyspace("main").expect("a keyspace").iter()).is_empty());
    db.close().expect("closes");
    time.set(early);
    assert!(keys(time.open(&volume).keyspace("main").expect("a keyspace").iter()).is_empty());
}

#[test]
fn options_that_only_say_that_records_expire_change_no_life() {
    let (volume, time) = (Simulated::new(1), Time::new());
    let db = time.open(&volume);
    let keyspace = db.keyspace_with("main", expiring()).expect("a keyspace");
    keyspace.set_time_to_live(Some(Duration::from_secs(3600))).expect("sets");
    drop(keyspace);
    db.close().expect("closes");
    let db = time.open(&volume);
    let keyspace = db.keyspace_with("main", expiring()).expect("a keyspace");
    keyspace.insert("k", "v").expect("inserts");
    assert_eq!(keyspace.expiry("k").expect("reads"), Some(Expiry::At(at(time.now() + 3_600_000))));
    keyspace.set_time_to_live(None).expect("sets");
    keyspace.insert("k", "v").expect("inserts");
    assert_eq!(keyspace.expiry("k").expect("reads"), Some(Expiry::Never));
}

#[test]
fn the_space_of_what_has_expired_comes_back() {
    the_space_comes_back(Compression::None, 50);
}

/// The collector moves more leaves then, also some whose records have expired already.
#[test]
fn the_space_of_what_has_expired_comes_back_from_compressed_leaves() {
    the_space_comes_back(Compression::Lz4, 60);
}

/// At most `share` percent of the space is left.
fn the_space_comes_back(compression: Compression, share: u64) {
    let (volume, time) = (Simulated::new(1), Time::new());
    let db = time.builder().compression(compression).open_on(Arc::new(volume.clone()) as Arc<dyn Volume>);
    let db = db.expect("opens");
    let keyspace = db.keyspace_with("main", expiring()).expect("a keyspace");
    let other = db.keyspace("other").expect("a keyspace");
    let mut rng = StdRng::seed_from_u64(1);
    let mut stays = 0;
    for _ in 0..60 {
        let mut batch = db.batch();
        for _ in 0..1000 {
            let key = rng.random::<u64>().to_be_bytes();
            if rng.random_bool(0.02) {
                batch.insert(&keyspace, key, [1; 100]);
                stays += 1;
            } else {
                batch.insert_expiring(&keyspace, key, [2; 100], after(rng.random_range(1..5000)));
            }
            batch.insert(&other, key, [3; 10]);
        }
        batch.commit().expect("commits");
        time.pass(10);
    }
    db.compact().expect("compacts");
    let before = db.stats();
    time.pass(10_000);
    // Few of them were read or written for this.
    db.flush().expect("flushes");
    keyspace.insert("one more", "").expect("inserts");
    db.compact().expect("compacts");
    let after = db.stats();
    let of =
        |stats: &sapwood::Stats| stats.keyspaces.iter().find(|of| of.name == "main").map(|of| of.records);
    let (full, left) = (of(&before).expect("is there"), of(&after).expect("is there"));
    assert!(full > 50_000, "{full} records");
    assert_eq!(left, stays + 1);
    let most = before.space.used * share / 100;
    assert!(after.space.used < most, "{} of {}", after.space.used, before.space.used);
    assert_eq!(keyspace.iter().count() as u64, stays + 1);
    assert_eq!(other.iter().count(), 60_000);
    assert_eq!(keyspace.len_estimate(), stays + 1);
    db.check().expect("sound");
    keyspace.clear().expect("clears");
    db.compact().expect("compacts");
    assert_eq!(keyspace.iter().count(), 0);
}

/// An expired record may still be stored, and cached, when its key is ingested.
#[test]
fn what_is_ingested_in_place_of_what_has_expired_is_found() {
    let time = Time::new();
    let clock = time.clone();
    let builder = Database::builder().memory(32 << 20).background_threads(0).clock(move || at(clock.now()));
    let db = builder.open_on(Arc::new(Simulated::new(1))).expect("opens");
    let keyspace = db.keyspace_with("main", expiring()).expect("a keyspace");
    for number in 0..20_000u32 {
        keyspace.insert_expiring(number.to_be_bytes(), [1; 100], after(1000)).expect("inserts");
    }
    db.flush().expect("flushes");
    let get = |number: u32| keyspace.get(number.to_be_bytes()).expect("reads").map(|value| value[0]);
    for _ in 0..3 {
        assert!((0..20_000).step_by(7).all(|number| get(number) == Some(1)));
    }
    assert!(db.stats().reads.record_hits > 1000, "records are cached");
    time.pass(1000);
    assert!((0..20_000).step_by(7).all(|number| get(number).is_none()));
    keyspace.insert(3u32.to_be_bytes(), [2]).expect("inserts");
    keyspace.ingest((4..30_000u32).map(|number| (number.to_be_bytes(), [3; 50]))).expect("ingests");
    assert!((4..30_000).all(|number| get(number) == Some(3)));
    assert_eq!(keyspace.iter().count(), 29_997);
    db.compact().expect("compacts");
    assert!((4..30_000).all(|number| get(number) == Some(3)));
    assert_eq!((get(3), keyspace.iter().count()), (Some(2), 29_997));
    db.check().expect("sound");
}

/// For one record the whole record cache was looked through, and lost all records of the keyspace.
#[test]
fn few_ingested_records_leave_the_others_in_the_cache() {
    let time = Time::new();
    let clock = time.clone();
    let builder = Database::builder().memory(32 << 20).background_threads(0).clock(move || at(clock.now()));
    let db = builder.open_on(Arc::new(Simulated::new(1))).expect("opens");
    let keyspace = db.keyspace_with("main", expiring()).expect("a keyspace");
    for number in 0..20_000u32 {
        let life = after(if number < 19_990 { 100_000 } else { 1000 });
        keyspace.insert_expiring(number.to_be_bytes(), [1; 100], life).expect("inserts");
    }
    db.flush().expect("flushes");
    let get = |number: u32| keyspace.get(number.to_be_bytes()).expect("reads").map(|value| value[0]);
    let hits = || {
        let before = db.stats().reads.record_hits;
        assert!((0..20_000).step_by(70).all(|number| get(number) == Some(1)));
        db.stats().reads.record_hits - before
    };
    for _ in 0..3 {
        hits();
        assert!((19_990..20_000).all(|number| get(number) == Some(1)));
    }
    let cached = hits();
    assert!(cached > 100, "{cached} records are cached");
    time.pass(1000);
    keyspace.ingest([(19_995u32.to_be_bytes(), [3; 50])]).expect("ingests");
    assert_eq!(hits(), cached);
    assert_eq!((get(19_994), get(19_995), get(19_996)), (None, Some(3), None));
    db.compact().expect("compacts");
    assert_eq!((get(19_994), get(19_995), get(19_996)), (None, Some(3), None));
    db.check().expect("sound");
}

/// A database much shorter than a segment, in which something expires all the time.
#[test]
fn what_expires_bit_by_bit_goes_bit_by_bit() {
    for is_scattered in [false, true] {
        let (volume, time) = (Simulated::new(1), Time::new());
        let db = Database::builder().memory(4 << 20).background_threads(0).clock({
            let time = time.clone();
            move || at(time.now())
        });
        let db = db.open_on(Arc::new(volume.clone())).expect("opens");
        let life = KeyspaceOptions::new().time_to_live(Duration::from_millis(1000));
        let keyspace = db.keyspace_with("main", life).expect("a keyspace");
        let (mut written, mut rng) = (0, StdRng::seed_from_u64(1));
        for round in 0..60u32 {
            let mut batch = db.batch();
            for sensor in 0..1000u32 {
                let key = if is_scattered { [rng.random(), round] } else { [sensor, round] };
                batch.insert(&keyspace, key.map(u32::to_be_bytes).concat(), [1; 100]);
                written += 1;
            }
            batch.commit().expect("commits");
            db.flush().expect("flushes");
            time.pass(100);
        }
        assert_eq!(keyspace.iter().count(), 9000);
        let stats = db.stats();
        let stored = stats.keyspaces[0].records;
        let data = stats.writes.data_bytes;
        assert!(stored < 25_000, "{stored} of {written} are stored, scattered: {is_scattered}");
        assert!(stats.space.live < 4 << 20, "{} live bytes", stats.space.live);
        assert!(data < 12 * 130 * written, "{data} bytes written");
        db.check().expect("sound");
    }
}

/// What a record says in the model, and when it expires.
type Model = BTreeMap<u32, (u32, Option<u64>)>;

#[test]
fn it_is_a_map_whose_entries_expire() {
    for seed in 0..12 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (volume, time) = (Simulated::new(seed), Time::new());
        let mut db = time.open(&volume);
        let mut keyspace = db.keyspace_with("main", expiring()).expect("a keyspace");
        let space = [200, 4000, 40_000u32][seed as usize % 3];
        let mut model = Model::new();
        // A moment that a snapshot has: what has expired since is not there for it either.
        let mut before: Option<(Snapshot, Model)> = None;
        for round in 0..60 {
            let mut batch = db.batch();
            for _ in 0..rng.random_range(1..800) {
                let (key, value): (u32, u32) = (rng.random_range(0..space), rng.random());
                let stored = [value, 0, 0, 0, 0, 0, 0, 0, 0, 0u32].map(u32::to_be_bytes).concat();
                match rng.random_range(0..10) {
                    0 => {
                        batch.remove(&keyspace, key.to_be_bytes());
                        model.remove(&key);
                    }
                    1..4 => {
                        batch.insert(&keyspace, key.to_be_bytes(), &stored);
                        model.insert(key, (value, None));
                    }
                    _ => {
                        let life = rng.random_range(0..3000);
                        batch.insert_expiring(&keyspace, key.to_be_bytes(), &stored, after(life));
                        model.insert(key, (value, Some(time.now() + life)));
                    }
                }
            }
            batch.commit().expect("commits");
            time.pass(rng.random_range(0..400));
            model.retain(|_, (_, expires)| expires.is_none_or(|expires| expires > time.now()));
            if let Some((_, model)) = &mut before {
                model.retain(|_, (_, expires)| expires.is_none_or(|expires| expires > time.now()));
            }
            match rng.random_range(0..12) {
                0..5 => db.flush().expect("flushes"),
                5 => db.compact().expect("compacts"),
                6 => {
                    before = None;
                    drop(keyspace);
                    db.close().expect("closes");
                    db = time.open(&volume);
                    keyspace = db.keyspace("main").expect("a keyspace");
                }
                7 => {
                    let (from, to): (u32, u32) = (rng.random_range(0..space), rng.random_range(0..space));
                    keyspace.remove_range(from.to_be_bytes()..to.to_be_bytes()).expect("removes");
                    model.retain(|key, _| *key < from || *key >= to);
                }
                _ => {}
            }
            let story = format!("seed {seed}, round {round}");
            let of = |record: sapwood::Result<(Value, Value)>| {
                let number = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"));
                let (key, value) = record.expect("sound");
                (number(&key), number(&value))
            };
            let expected = |bounds: (Bound<u32>, Bound<u32>)| {
                let mut all: Vec<_> = model.range(bounds).map(|(key, (value, _))| (*key, *value)).collect();
                all.dedup();
                all
            };
            let all = (Bound::Unbounded, Bound::Unbounded);
            assert!(keyspace.iter().map(of).eq(expected(all)), "{story}");
            let from = rng.random_range(0..space);
            let found = keyspace.range(from.to_be_bytes()..).rev().map(of);
            assert!(
                found.eq(expected((Bound::Included(from), Bound::Unbounded)).into_iter().rev()),
                "{story}"
            );
            // From both ends, to where they meet.
            let mut ends = (Vec::new(), Vec::new(), keyspace.iter().map(of));
            loop {
                let next = if rng.random() {
                    ends.2.next().map(|record| ends.0.push(record))
                } else {
                    ends.2.next_back().map(|record| ends.1.push(record))
                };
                if next.is_none() {
                    break;
                }
            }
            ends.1.reverse();
            assert_eq!([ends.0, ends.1].concat(), expected(all), "{story}");
            if let Some((snapshot, model)) = &before {
                let found = snapshot.iter(&keyspace).map(of);
                assert!(found.eq(model.iter().map(|(key, (value, _))| (*key, *value))), "{story}");
            }
            if round % 8 == 0 {
                before = Some((db.snapshot(), model.clone()));
            }
            for _ in 0..20 {
                let key = rng.random_range(0..space);
                let found = keyspace
                    .get(key.to_be_bytes())
                    .expect("reads")
                    .map(|value| of(Ok((value.clone(), value))).1);
                assert_eq!(found, model.get(&key).map(|(value, _)| *value), "{story}, {key}");
                let expires = keyspace.expiry(key.to_be_bytes()).expect("reads");
                let of_model = model
                    .get(&key)
                    .map(|(_, expires)| expires.map_or(Expiry::Never, |millis| Expiry::At(at(millis))));
                assert_eq!(expires, of_model, "{story}, {key}");
            }
        }
        drop(before);
        db.check().expect("sound");
        // In the end all of it goes, but for what stays.
        time.pass(1 << 40);
        model.retain(|_, (_, expires)| expires.is_none());
        assert_eq!(keyspace.iter().count(), model.len());
        db.compact().expect("compacts");
        assert_eq!(keyspace.iter().count(), model.len(), "seed {seed}: compacted");
        let (estimate, exact) = (keyspace.len_estimate() as f64, model.len() as f64);
        assert!((estimate - exact).abs() <= exact / 20.0 + 5.0, "seed {seed}: {estimate} for {exact}");
        db.check().expect("sound");
    }
}
