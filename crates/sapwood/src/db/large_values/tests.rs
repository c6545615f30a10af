//! Large values: as a map would have them, written once, and with nothing left of those that died.

use super::stored::{CHUNK_LEN, Head, LargeIds, SHORT_MAX, chunks};
use crate::repair::Repair;
use crate::{Builder, Database, Error, Keyspace, LargeValues, StagedValue, Transaction};
use psync::{Device, Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

fn builder() -> Builder {
    Database::builder().memory(8 << 20).segment_span(8 << 20).background_threads(0)
}

fn open(volume: &Simulated) -> (Database, LargeValues) {
    let db = builder().open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).unwrap();
    let values = db.large_values("values").unwrap();
    (db, values)
}

/// Bytes that differ from chunk to chunk, and from value to value.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let at = |index: usize| (seed as usize).wrapping_mul(2_654_435_761).wrapping_add(index / 7) as u8;
    (0..len).map(at).collect()
}

/// Asserts that there are exactly the chunks of the values that have names and of those that are staged.
fn holds_only(values: &LargeValues, staged: u64) {
    let mut expected = 0;
    for record in values.heads.iter() {
        if let Head::Long { len, .. } = Head::decode(&record.unwrap().1.0).unwrap() {
            expected += u64::from(chunks(len));
        }
    }
    let found = values.chunks.keys().map(|key| key.unwrap()).collect::<Vec<_>>();
    let begun = found.iter().filter(|key| key[0] == 1).count() as u64;
    assert_eq!((found.len() as u64 - begun, begun), (expected + staged, u64::from(staged > 0)));
}

impl Keyspace {
    fn keys(&self) -> impl Iterator<Item = crate::Result<crate::Key>> {
        self.iter().keys()
    }
}

#[test]
fn large_values_are_as_a_map_would_have_them() {
    const LENS: [usize; 8] =
        [0, 9, SHORT_MAX, SHORT_MAX + 1, CHUNK_LEN, CHUNK_LEN + 1, 3 * CHUNK_LEN - 1, 700_000];
    for seed in 0..3 {
        let volume = Simulated::new(seed);
        let (mut db, mut values) = open(&volume);
        let (mut rng, mut model) = (StdRng::seed_from_u64(seed), BTreeMap::<Vec<u8>, Vec<u8>>::new());
        let mut kept: Vec<(crate::LargeValueReader, Vec<u8>)> = Vec::new();
        for step in 0..150 {
            let key = vec![rng.random_range(0..12u8)];
            match rng.random_range(0..14) {
                0..5 => {
                    let value = bytes(step, LENS[rng.random_range(0..LENS.len())]);
                    assert_eq!(values.insert_from(&key, &value[..]).unwrap(), value.len() as u64);
                    model.insert(key, value);
                }
                5 | 6 => assert_eq!(values.remove(&key).unwrap(), model.remove(&key).is_some()),
                7 => drop(values.stage(&key, &bytes(step, 300_000)[..]).unwrap()),
                8 => {
                    let (found, expected) = (values.get_reader(&key).unwrap(), model.get(&key));
                    assert_eq!(
                        found.as_ref().map(|reader| reader.len()),
                        expected.map(|value| value.len() as u64)
                    );
                    kept.extend(found.zip(expected.cloned()));
                }
                9 => {
                    let (from, len) = (rng.random_range(0..400_000u64), rng.random_range(0..200_000));
                    let found = values.get_range(&key, from..from + len).unwrap();
                    let expected = model.get(&key).map(|value| {
                        let part = value.iter().copied().skip(from as usize).take(len as usize);
                        part.collect::<Vec<_>>()
                    });
                    assert!(found == expected, "{:?}", found.map(|found| found.len()));
                }
                10 => db.flush().unwrap(),
                11 => db.compact().unwrap(),
                12 => {
                    let to = vec![rng.random_range(0..12u8)];
                    let mut reader = values.get_reader(&key).unwrap();
                    if let Some(source) = &mut reader {
                        values.insert_from(&to, source).unwrap();
                        let value = model[&key].clone();
                        model.insert(to, value);
                    }
                }
                _ => {
                    kept.clear();
                    drop(values);
                    match rng.random_bool(0.5) {
                        true => db.close().unwrap(),
                        false => drop(db),
                    }
                    (db, values) = open(&volume);
                }
            }
            if kept.len() > 3 {
                let (mut reader, value) = kept.swap_remove(rng.random_range(0..kept.len()));
                let from = rng.random_range(0..=value.len());
                reader.seek(SeekFrom::Start(from as u64)).unwrap();
                let mut rest = Vec::new();
                reader.read_to_end(&mut rest).unwrap();
                assert!(rest == value[from..], "a reader sees its own moment");
            }
            if step % 10 == 0 {
                let found: Vec<_> = values.range(..).map(|item| item.unwrap()).collect();
                let expected = model.iter().map(|(key, value)| (key.clone(), value.len() as u64));
                assert_eq!(
                    found.into_iter().map(|(k, len)| (k.to_vec(), len)).collect::<Vec<_>>(),
                    expected.collect::<Vec<_>>()
                );
                for (key, value) in &model {
                    assert!(values.get(key).unwrap().as_ref() == Some(value), "seed {seed}, step {step}");
                }
                holds_only(&values, 0);
                db.check().unwrap();
            }
        }
    }
}

#[test]
fn a_value_is_written_once_and_its_space_comes_back() {
    let volume = Simulated::new(1);
    let (db, values) = open(&volume);
    let before = volume.counters().bytes_written;
    values.insert_from("one", std::io::repeat(7).take(64 << 20)).unwrap();
    let written = volume.counters().bytes_written - before;
    assert!(written < (64 << 20) / 100 * 102, "{written} bytes");
    let space = |db: &Database| {
        db.compact().unwrap();
        volume.used()
    };
    assert!(space(&db) > 64 << 20);
    let mut reader = values.get_reader("one").unwrap().unwrap();
    values.insert("one", "short").unwrap();
    assert!(space(&db) > 64 << 20, "a reader holds it");
    assert_eq!(std::io::copy(&mut reader, &mut std::io::sink()).unwrap(), 64 << 20);
    drop(reader);
    assert!(space(&db) < 8 << 20, "{} bytes", volume.used());
}

#[test]
fn a_snapshot_reads_large_values_of_its_moment() {
    let volume = Simulated::new(1);
    let (db, values) = open(&volume);
    values.insert("one", bytes(1, 300_000)).unwrap();
    let before = db.snapshot();
    values.remove("one").unwrap();
    values.insert("two", bytes(2, 300_000)).unwrap();
    db.compact().unwrap();
    let mut read = Vec::new();
    before.large_value_reader(&values, "one").unwrap().unwrap().read_to_end(&mut read).unwrap();
    assert!(read == bytes(1, 300_000));
    assert!(before.large_value_reader(&values, "two").unwrap().is_none());
}

#[test]
fn what_a_process_left_is_removed_at_the_next_opening() {
    let volume = Simulated::new(1);
    let (db, values) = open(&volume);
    let staged = values.stage("one", &bytes(1, 1_000_000)[..]).unwrap();
    holds_only(&values, u64::from(chunks(1_000_000)));
    let again = db.large_values("values").unwrap();
    holds_only(&again, u64::from(chunks(1_000_000)));
    for crashed in [volume.crash(), volume.power_loss(1)] {
        let (db, values) = open(&crashed);
        holds_only(&values, 0);
        assert!(values.get("one").unwrap().is_none());
        db.check().unwrap();
    }
    db.transact(|tx| tx.insert_staged(&staged)).unwrap();
    let (_db, values) = open(&volume.power_loss(2));
    holds_only(&values, 0);
    assert!(values.get("one").unwrap().unwrap() == bytes(1, 1_000_000));
}

#[test]
fn a_source_that_fails_leaves_nothing() {
    struct Failing(usize);
    impl Read for Failing {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let len = buffer.len().min(self.0).min(10_000);
            self.0 -= len;
            if len == 0 { Err(std::io::ErrorKind::ConnectionReset.into()) } else { Ok(len) }
        }
    }
    let volume = Simulated::new(1);
    let (_db, values) = open(&volume);
    values.insert("one", "before").unwrap();
    for len in [0, 100, SHORT_MAX + 1, 5_000_000] {
        let failed = values.insert_from("one", Failing(len));
        let Err(error @ Error::Source { .. }) = failed else { panic!("{failed:?}") };
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert_eq!(values.get("one").unwrap().as_deref(), Some(&b"before"[..]));
    holds_only(&values, 0);
}

#[test]
fn transactions_insert_and_remove_large_values_with_the_rest() {
    let volume = Simulated::new(1);
    let (db, values) = open(&volume);
    let names = db.keyspace("names").unwrap();
    let stage = |seed| -> StagedValue { values.stage("one", &bytes(seed, 200_000)[..]).unwrap() };
    let (first, second, third) = (stage(1), stage(2), stage(3));
    let mut tx = db.transaction().unwrap();
    tx.insert(&names, "one", "first").unwrap();
    tx.insert_staged(&first).unwrap();
    let mut read = Vec::new();
    tx.large_value_reader(&values, "one").unwrap().unwrap().read_to_end(&mut read).unwrap();
    assert!(read == bytes(1, 200_000) && values.get("one").unwrap().is_none());
    // Another one comes first: both have read that there is none.
    db.transact(|tx| tx.insert_staged(&second)).unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    assert!(names.is_empty().unwrap() && values.get("one").unwrap().unwrap() == bytes(2, 200_000));
    assert!(matches!(db.transact(|tx| tx.insert_staged(&second)), Err(Error::StagedTwice)));
    // Of two in one transaction the last counts; what is rolled back does not.
    let mut tx = db.transaction().unwrap();
    tx.insert_staged(&first).unwrap();
    let savepoint = tx.savepoint();
    tx.insert_staged(&third).unwrap();
    tx.roll_back_to(savepoint).unwrap();
    tx.insert_staged(&first).unwrap();
    tx.commit().unwrap();
    assert!(values.get("one").unwrap().unwrap() == bytes(1, 200_000));
    drop((first, second, third));
    holds_only(&values, 0);
    let other = open(&Simulated::new(2));
    let foreign = other.1.stage("one", &b"x"[..]).unwrap();
    assert!(matches!(db.transact(|tx| tx.insert_staged(&foreign)), Err(Error::Foreign { .. })));
    assert!(db.transact(|tx| tx.remove_large_value(&values, "one")).unwrap());
    holds_only(&values, 0);
}

/// Writes until nothing more fits, and then makes room for so many bytes.
fn leave_room(tx: &mut Transaction, names: &Keyspace, room: usize) {
    tx.insert(names, "room", vec![0; room]).unwrap();
    let mut key = 0u32;
    for len in [60_000, 1000, 10, 0] {
        while tx.insert(names, key.to_be_bytes(), vec![0; len]).is_ok() {
            key += 1;
        }
    }
    tx.insert(names, "room", "").unwrap();
}

/// The chunks of the value before were removed, and its record stayed; or the record named chunks that went with the staged value.
#[test]
fn what_is_refused_for_its_size_changes_nothing() {
    let volume = Simulated::new(1);
    let (db, values) = open(&volume);
    let names = db.keyspace("names").unwrap();
    let key = vec![b'k'; 50_000];
    values.insert(&key, bytes(0, 200_000)).unwrap();
    let mut expected = 0;
    let (mut refused, mut done) = (0, 0);
    let rooms = (0..200).step_by(7).chain((key.len()..key.len() + 300).step_by(7));
    for (seed, room) in (1..).zip(rooms.map(|room| 100 + room)) {
        let staged = values.stage(&key, &bytes(seed, 200_000)[..]).unwrap();
        let mut tx = db.transaction().unwrap();
        leave_room(&mut tx, &names, room);
        match tx.insert_staged(&staged) {
            Ok(()) => (done, expected) = (done + 1, seed),
            Err(error) => {
                assert!(matches!(error, Error::BatchTooLarge { .. }), "{error}");
                refused += 1;
            }
        }
        tx.commit().unwrap();
        drop(staged);
        assert!(values.get(&key).unwrap().unwrap() == bytes(expected, 200_000), "{room} bytes of room");
        let mut tx = db.transaction().unwrap();
        leave_room(&mut tx, &names, room);
        let removed = tx.remove_large_value(&values, &key);
        tx.commit().unwrap();
        assert_eq!(values.get(&key).unwrap().is_none(), removed.is_ok(), "{room} bytes of room: {removed:?}");
        if removed.is_ok() {
            values.insert(&key, bytes(expected, 200_000)).unwrap();
        }
        holds_only(&values, 0);
    }
    assert!(refused > 20 && done > 5, "{refused} were refused, {done} were not");
}

/// Its chunks go with the value that is replaced or removed: it cannot come again.
#[test]
fn a_staged_value_that_was_replaced_or_removed_is_used_up() {
    let volume = Simulated::new(1);
    let (db, values) = open(&volume);
    let stage = |seed| -> StagedValue { values.stage("one", &bytes(seed, 200_000)[..]).unwrap() };
    let (a, b) = (stage(1), stage(2));
    let mut tx = db.transaction().unwrap();
    tx.insert_staged(&a).unwrap();
    tx.insert_staged(&a).unwrap();
    let savepoint = tx.savepoint();
    tx.insert_staged(&b).unwrap();
    assert!(matches!(tx.insert_staged(&a), Err(Error::StagedTwice)));
    // What is rolled back was not replaced.
    tx.roll_back_to(savepoint).unwrap();
    tx.insert_staged(&a).unwrap();
    tx.insert_staged(&b).unwrap();
    tx.commit().unwrap();
    assert!(values.get("one").unwrap().unwrap() == bytes(2, 200_000));
    assert!(matches!(db.transact(|tx| tx.insert_staged(&a)), Err(Error::StagedTwice)));
    // Also before the thread that has committed it has noted that.
    for used_up in [&a, &b] {
        used_up.staging.is_used_up.store(false, Relaxed);
        assert!(matches!(db.transact(|tx| tx.insert_staged(used_up)), Err(Error::StagedTwice)));
        used_up.staging.is_used_up.store(true, Relaxed);
    }
    drop((a, b));
    holds_only(&values, 0);
    let a = stage(3);
    let mut tx = db.transaction().unwrap();
    tx.insert_staged(&a).unwrap();
    assert!(tx.remove_large_value(&values, "one").unwrap());
    assert!(matches!(tx.insert_staged(&a), Err(Error::StagedTwice)));
    tx.commit().unwrap();
    assert!(values.get("one").unwrap().is_none());
    assert!(matches!(db.transact(|tx| tx.insert_staged(&a)), Err(Error::StagedTwice)));
    drop(a);
    holds_only(&values, 0);
}

#[test]
fn a_keyspace_of_large_values_is_one_for_its_users() {
    let volume = Simulated::new(1);
    let (db, values) = open(&volume);
    values.insert("one", bytes(1, 300_000)).unwrap();
    assert_eq!(db.keyspaces(), ["values"]);
    let hidden = values.chunks.name().to_owned();
    assert!(!db.contains_keyspace(&hidden) && db.keyspace_if_exists(&hidden).unwrap().is_none());
    assert!(matches!(db.keyspace(&hidden), Err(Error::BadName { .. })));
    assert!(matches!(db.keyspace("values"), Err(Error::LargeValues { .. })));
    assert!(matches!(db.keyspace_if_exists("values"), Err(Error::LargeValues { .. })));
    let options = crate::KeyspaceOptions::new().durability(crate::Durability::Buffered);
    assert!(matches!(db.keyspace_with("values", options), Err(Error::LargeValues { .. })));
    assert!(matches!(db.create_keyspaces(["new", "values"]), Err(Error::LargeValues { .. })));
    db.keyspace("other").unwrap();
    // Neither the call that was refused has created it, nor the next one.
    assert_eq!(db.keyspaces(), ["other", "values"]);
    assert!(db.drop_keyspace("other").unwrap());
    db.rename_keyspace("values", "renamed").unwrap();
    drop(values);
    db.close().unwrap();
    let (db, values) = open(&volume);
    let renamed = db.large_values("renamed").unwrap();
    assert!(renamed.get("one").unwrap().unwrap() == bytes(1, 300_000));
    values.insert("two", bytes(2, 300_000)).unwrap();
    db.replace_keyspace("values", "renamed").unwrap();
    assert!(matches!(renamed.get("one"), Err(Error::KeyspaceDropped { .. })));
    assert!(db.large_values("renamed").unwrap().get("two").unwrap().unwrap() == bytes(2, 300_000));
    assert!(db.drop_keyspace("renamed").unwrap());
    db.compact().unwrap();
    let version = db.handle.engine.state.version();
    assert!(version.trees.len() == 0 && version.table.iter().next().is_none());
    assert!(matches!(values.insert("one", bytes(1, 300_000)), Err(Error::KeyspaceDropped { .. })));
}

#[test]
fn large_values_of_other_threads_do_not_conflict() {
    let volume = Simulated::new(1);
    let (db, values) = open(&volume);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let values = values.clone();
            scope.spawn(move || {
                for round in 0..8u64 {
                    values.insert_from([thread % 2], &bytes(round, 150_000 + round as usize)[..]).unwrap();
                }
            });
        }
    });
    assert!(values.get([0]).unwrap().unwrap() == bytes(7, 150_007));
    holds_only(&values, 0);
    db.check().unwrap();
}

/// The log that is kept for the change feed stayed where it was.
#[test]
fn a_full_disk_takes_what_is_kept_for_a_large_value() {
    let volume = Simulated::new(1);
    let db = builder().keep_changes(1 << 30).open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).unwrap();
    let (values, keyspace) = (db.large_values("values").unwrap(), db.keyspace("main").unwrap());
    let keyspace = keyspace.with_durability(crate::Durability::Buffered);
    for number in 0..20_000u32 {
        keyspace.insert(number.to_be_bytes(), bytes(number.into(), 1000)).unwrap();
    }
    db.flush().unwrap();
    let kept = || db.stats().space.kept_log;
    let before = kept();
    assert!(before > 16 << 20, "{before} bytes kept");
    db.handle.engine.space.reclaim(0);
    volume.set_capacity(volume.used());
    values.insert("k", bytes(3, 6_000_000)).unwrap();
    assert!(values.get("k").unwrap().unwrap() == bytes(3, 6_000_000));
    assert!((1..before).contains(&kept()), "{} bytes kept", kept());
}

/// A fault or a power loss at every I/O: each key has the whole of a value that was given to it, no older one than was told to be
/// there, and nothing is left of others.
#[test]
fn a_fault_at_every_operation_leaves_whole_values() {
    for fault in [Fault::Error, Fault::NoSpace, Fault::PowerOff] {
        leaves_whole_values(fault);
    }
}

fn leaves_whole_values(fault: Fault) {
    let mut points = 0;
    for nth in 1.. {
        let volume = Simulated::new(nth);
        let (db, values) = open(&volume);
        values.insert("kept", bytes(0, 200_000)).unwrap();
        volume.fail_nth(Filter::any(), nth, fault, Repeat::Once);
        // What each step leaves for the keys `kept` and `other`: seeds of values.
        let mut told = (Some(0), None);
        let mut may_be = vec![told];
        let steps: [(&dyn Fn() -> crate::Result<()>, _); 4] = [
            (&|| values.insert("other", bytes(1, 400_000)), (Some(0), Some(1))),
            (&|| values.insert("kept", bytes(2, 300_000)), (Some(2), Some(1))),
            (&|| values.remove("other").map(drop), (Some(2), None)),
            (&|| db.flush(), (Some(2), None)),
        ];
        for (step, after) in steps {
            match step() {
                Ok(()) => {
                    told = after;
                    may_be = vec![told];
                }
                // It goes on as if that step had never been.
                Err(error) if error.is_disk_full() => {
                    may_be.push(told);
                    break;
                }
                Err(_) => {
                    may_be.push(after);
                    break;
                }
            }
        }
        let fired = volume.fired() > 0;
        drop(values);
        drop(db);
        for seed in 0..2 {
            let (db, values) = open(&volume.power_loss(seed));
            let read = |key: &str| values.get(key).unwrap();
            let is = |found: &Option<Vec<u8>>, seed: Option<u64>| match (found, seed) {
                (Some(found), Some(seed)) => {
                    *found == bytes(seed, [200_000, 400_000, 300_000][seed as usize])
                }
                (found, seed) => found.is_none() && seed.is_none(),
            };
            let found = (read("kept"), read("other"));
            let sound = may_be.iter().any(|(kept, other)| is(&found.0, *kept) && is(&found.1, *other));
            assert!(sound, "operation {nth}, {fault:?}: it may be one of {may_be:?}");
            holds_only(&values, 0);
            db.check().unwrap_or_else(|damage| panic!("operation {nth}: {damage}"));
            points += 1;
        }
        if !fired {
            break;
        }
    }
    assert!(points > 40, "{points} points");
}

#[test]
fn a_chunk_that_is_missing_is_damage() {
    let volume = Simulated::new(1);
    let (db, values) = open(&volume);
    values.insert("one", bytes(1, 700_000)).unwrap();
    let Head::Long { id, .. } = Head::decode(&values.heads.get("one").unwrap().unwrap().0).unwrap() else {
        panic!("it is long")
    };
    db.check().unwrap();
    for change in [None, Some(&b"short"[..])] {
        match change {
            None => values.chunks.remove(id.chunk(2)).unwrap(),
            Some(chunk) => values.chunks.insert(id.chunk(2), chunk).unwrap(),
        }
        let Err(Error::Damaged { damage, .. }) = db.check() else { panic!("it was not noticed") };
        assert!(damage.len() == 1 && damage[0].to_string().contains("chunk 2"), "{damage:?}");
        let before = values.get_range("one", 0..2 * CHUNK_LEN as u64).unwrap().unwrap();
        assert!(before == bytes(1, 700_000)[..2 * CHUNK_LEN]);
        assert!(matches!(values.get("one"), Err(Error::Corrupt { .. })));
    }
}

/// Chunks go past the queue while flushes, cleansing and collections of other records are under way, and others remove theirs.
#[test]
fn large_values_come_and_go_beside_flushes() {
    let volume = Simulated::new(1);
    let builder = builder().memory(4 << 20).background_threads(1);
    let db = builder.clone().open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).unwrap();
    let (values, records) = (db.large_values("values").unwrap(), db.keyspace("records").unwrap());
    std::thread::scope(|scope| {
        let writer = records.with_durability(crate::Durability::Buffered);
        scope.spawn(move || {
            for number in 0..60_000u32 {
                let key = (number % 20_000).wrapping_mul(0x9e37_79b9).to_be_bytes();
                writer.insert(key, [number as u8; 100]).unwrap();
            }
        });
        for thread in 0..2u8 {
            let values = values.clone();
            scope.spawn(move || {
                for round in 0..40u64 {
                    let key = [thread, (round % 5) as u8];
                    values.insert(key, bytes(round, 100_000 + 20_000 * (round as usize % 7))).unwrap();
                    let gone = [thread, (round % 3) as u8 + 5];
                    values.insert(gone, bytes(round, 200_000)).unwrap();
                    let before = values.get_reader(gone).unwrap().unwrap();
                    assert!(values.remove(gone).unwrap());
                    assert!(before.bytes().map(|byte| byte.unwrap()).eq(bytes(round, 200_000)));
                }
            });
        }
    });
    let verify = |db: &Database, values: &LargeValues| {
        for (thread, slot) in (0..2).flat_map(|thread| (0..5u8).map(move |slot| (thread, slot))) {
            let round = 35 + u64::from(slot);
            let expected = bytes(round, 100_000 + 20_000 * (round as usize % 7));
            assert!(values.get([thread, slot]).unwrap().as_ref() == Some(&expected), "{thread} {slot}");
        }
        assert_eq!(values.range(..).count(), 10);
        holds_only(values, 0);
        db.check().unwrap();
    };
    verify(&db, &values);
    let (found, values) = open(&volume.power_loss(3));
    verify(&found, &values);
}

#[test]
fn a_follower_reads_large_values() {
    let volume = Simulated::new(1).with_windows();
    let (db, values) = open(&volume);
    values.insert("one", bytes(1, 300_000)).unwrap();
    let following = builder().follow(true).open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).unwrap();
    let followed = following.large_values("values").unwrap();
    assert!(followed.get("one").unwrap().unwrap() == bytes(1, 300_000));
    let mut reader = followed.get_reader("one").unwrap().unwrap();
    values.insert("one", bytes(2, 400_000)).unwrap();
    db.compact().unwrap();
    following.refresh().unwrap();
    assert!(followed.get("one").unwrap().unwrap() == bytes(2, 400_000));
    let mut before = Vec::new();
    reader.read_to_end(&mut before).unwrap();
    assert!(before == bytes(1, 300_000));
    assert!(followed.insert("two", "short").is_err() && following.check().is_ok());
}

/// What followed an error was taken for damage: the chunk that could not be read seemed to be missing.
#[test]
fn a_read_that_failed_can_be_repeated() {
    let volume = Simulated::new(1);
    let (db, values) = open(&volume);
    let expected = bytes(1, 2_000_000);
    values.insert("one", &expected).unwrap();
    db.flush().unwrap();
    db.handle.engine.pager.cache.set_capacity(0, 0);
    let mut reader = values.get_reader("one").unwrap().unwrap();
    let (mut found, mut buffer, mut failed, mut is_planned) = (Vec::new(), vec![0; 100_000], 0, false);
    loop {
        if found.len() > 500_000 && !std::mem::replace(&mut is_planned, true) {
            volume.fail_nth(Filter::kinds([OperationKind::Read]).file("data"), 1, Fault::Error, Repeat::Once);
        }
        match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => found.extend_from_slice(&buffer[..count]),
            Err(error) => {
                failed += 1;
                assert!(failed == 1, "{error}");
            }
        }
    }
    assert!(failed == 1 && found == expected);
}

/// Flips a bit in the root of a keyspace's tree.
fn damage_root(db: &Database, volume: &Simulated, keyspace: &Keyspace) {
    let version = db.handle.engine.state.version();
    let root = version.trees.get(&keyspace.id()).unwrap().root.unwrap();
    let address = version.table.address(root).unwrap();
    let at = version.segments.file_offset(address.position, address.len() as usize, version.span).unwrap();
    volume.flip_bit("data", at + u64::from(address.len()) / 2, 1).unwrap();
}

fn repaired(volume: &Simulated) -> (Database, LargeValues) {
    let new = Simulated::new(2);
    let report = Repair::of_volume(Arc::new(volume.clone())).onto(Arc::new(new.clone())).unwrap();
    assert!(report.has_losses());
    open(&new)
}

/// Nothing named them any more, and nothing removed them.
#[test]
fn a_repair_leaves_no_chunk_without_a_name() {
    let volume = Simulated::new(1);
    let (db, values) = open(&volume);
    for number in 0..10u8 {
        values.insert([number], bytes(u64::from(number), 500_000)).unwrap();
    }
    let staged = values.stage("staged", &bytes(11, 300_000)[..]).unwrap();
    db.flush().unwrap();
    damage_root(&db, &volume, &values.heads);
    std::mem::forget(staged);
    drop((db, values));
    let (db, values) = repaired(&volume.crash());
    assert_eq!(values.range(..).count(), 0);
    holds_only(&values, 0);
    db.compact().unwrap();
    db.check().unwrap();
    let live = db.stats().space.live;
    assert!(live < 100_000, "{live} bytes");
}

/// An older node may bring back that a value is being written which was: the next opening would remove its chunks.
#[test]
fn a_repair_leaves_the_chunks_of_values_that_are_there() {
    let volume = Simulated::new(1);
    let (db, values) = open(&volume);
    values.insert("one", bytes(1, 500_000)).unwrap();
    let Head::Long { id, .. } = Head::decode(&values.heads.get("one").unwrap().unwrap().0).unwrap() else {
        panic!("it is long")
    };
    values.chunks.insert(id.begun(), "one").unwrap();
    let other = db.keyspace("other").unwrap();
    other.insert("key", "value").unwrap();
    db.flush().unwrap();
    damage_root(&db, &volume, &other);
    drop((db, values, other));
    let (db, values) = repaired(&volume);
    assert!(values.get("one").unwrap().unwrap() == bytes(1, 500_000));
    holds_only(&values, 0);
    db.check().unwrap();
}

/// A repair may leave many: their removal was one commit, which was too large each time.
#[test]
fn however_many_values_were_being_written_the_keyspace_opens() {
    let volume = Simulated::new(1);
    let open = || builder().memory(4 << 20).open_on(Arc::new(volume.clone())).unwrap();
    let (db, ids) = (open(), LargeIds::new().unwrap());
    let values = db.large_values("values").unwrap();
    let mut batch = db.batch();
    for count in 1..=20_000 {
        batch.insert(&values.chunks, ids.next().begun(), "key");
        if count % 1000 == 0 {
            std::mem::replace(&mut batch, db.batch()).commit().unwrap();
        }
    }
    drop((batch, values, db));
    let db = open();
    holds_only(&db.large_values("values").unwrap(), 0);
}

/// All of the log was brought to memory, or was too long for that.
#[test]
fn a_repair_needs_no_memory_for_what_the_log_has_of_others() {
    let volume = Simulated::new(1);
    let db = builder().memory(768 << 20).open_on(Arc::new(volume.clone())).unwrap();
    let (values, main) = (db.large_values("values").unwrap(), db.keyspace("main").unwrap());
    let other = db.keyspace("other").unwrap();
    other.insert("key", "value").unwrap();
    for key in ["lost", "kept", "removed"] {
        values.insert(key, bytes(1, 300_000)).unwrap();
    }
    db.flush().unwrap();
    let lost = values.chunks.iter().find_map(|item| item.ok().filter(|(key, _)| key[0] == 2)).unwrap().0;
    damage_root(&db, &volume, &other);
    let value = vec![1; 1 << 20];
    (0..75u8).for_each(|number| main.insert([number], &value).unwrap());
    values.chunks.remove(&lost).unwrap();
    values.insert("short", "in the log").unwrap();
    values.remove("removed").unwrap();
    drop((db, values, main, other));
    let (db, values) = repaired(&volume.crash());
    assert_eq!(db.keyspace("main").unwrap().iter().count(), 75);
    assert_eq!(values.get("short").unwrap().as_deref(), Some(&b"in the log"[..]));
    assert!(values.get("kept").unwrap().unwrap() == bytes(1, 300_000));
    assert_eq!(values.range(..).count(), 2);
    holds_only(&values, 0);
    db.check().unwrap();
}
