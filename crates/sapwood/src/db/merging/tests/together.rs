//! What comes together, in a transaction or an ingestion, is what it is alone.

use super::{Own, appending, open};
use crate::merge::{AddU64, Append, MergeOperator};
use crate::{Database, Error, KeyspaceOptions};
use psync::{Simulated, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Whatever is written for a key in one transaction comes to what it comes to in several, also where its parts cannot be put together.
#[test]
fn a_transaction_merges_as_several_do() {
    const LEN: usize = 500_000;
    let long = |byte: u8| Some(vec![byte; LEN]);
    // What is inserted (`None`: it is removed) and what is merged, in this order.
    let bad: &[(bool, Option<Vec<u8>>)] = &[
        (false, Some(b"no number".to_vec())),
        (true, Some(1u64.to_be_bytes().into())),
        (true, Some(2u64.to_be_bytes().into())),
    ];
    let counted = [&bad[1..], &[(false, None)], &bad[1..]].concat();
    let based: &[_] = &[(false, long(b'a')), (true, long(b'b'))];
    let blind: &[_] = &[(true, long(b'c')), (true, long(b'd'))];
    let removed: &[_] = &[(false, None), (true, long(b'e')), (true, long(b'f'))];
    for is_flushed in [false, true] {
        for (add, writes) in
            [(true, bad), (true, &counted[..]), (false, based), (false, blind), (false, removed)]
        {
            let volume = Simulated::new(1);
            let shared = Arc::new(volume.clone()) as Arc<dyn Volume>;
            let db = Database::builder().memory(16 << 20).background_threads(0).open_on(shared).unwrap();
            let options = KeyspaceOptions::new();
            let options = if add { options.merge(AddU64) } else { options.merge(Append) };
            let keyspace = db.keyspace_with("counts", options).unwrap();
            let first = if add { 7u64.to_be_bytes().to_vec() } else { b"before".to_vec() };
            for key in ["alone", "together"] {
                keyspace.insert(key, &first).unwrap();
            }
            let write =
                |tx: &mut crate::Transaction, key: &str, (merges, value): &(bool, Option<Vec<u8>>)| match (
                    merges, value,
                ) {
                    (true, Some(value)) => tx.merge(&keyspace, key, value),
                    (false, Some(value)) => tx.insert(&keyspace, key, value),
                    (_, None) => tx.remove(&keyspace, key),
                };
            for one in writes {
                db.transact(|tx| write(tx, "alone", one)).unwrap();
            }
            let seen = |found: crate::Result<Option<crate::Value>>| match found {
                Ok(value) => Ok(value.map(|value| value.to_vec())),
                Err(Error::MergeFailed { key: _, reason, .. }) => Err(reason),
                Err(error) => panic!("{error}"),
            };
            let mut tx = db.transaction().unwrap();
            for (number, one) in writes.iter().enumerate() {
                // What is rolled back leaves nothing.
                let mark = tx.savepoint();
                write(&mut tx, "together", &(number > 0, Some(vec![b'9'; 8]))).unwrap();
                tx.roll_back_to(mark).unwrap();
                write(&mut tx, "together", one).unwrap();
            }
            // As it is seen within, by each way.
            let expected = seen(keyspace.get("alone"));
            assert_eq!(seen(tx.get(&keyspace, "together")), expected);
            let all = tx.multi_get(&keyspace, ["together"]).map(|found| found[0].clone());
            assert_eq!(seen(all), expected);
            for item in [tx.range(&keyspace, "b"..).next(), tx.range(&keyspace, "b"..).next_back()] {
                assert_eq!(seen(item.transpose().map(|item| item.map(|(_, value)| value))), expected);
            }
            assert_eq!(tx.writes_len(), 1);
            tx.commit().unwrap();
            if is_flushed {
                db.flush().unwrap();
                db.compact().unwrap();
            }
            assert_eq!(seen(keyspace.get("alone")), expected);
            assert_eq!(seen(keyspace.get("together")), expected);
            // From its log.
            drop((keyspace, db));
            let shared = Arc::new(volume.power_loss(1)) as Arc<dyn Volume>;
            let db = Database::builder().memory(16 << 20).background_threads(0).open_on(shared).unwrap();
            assert_eq!(seen(db.keyspace("counts").unwrap().get("together")), expected);
        }
    }
}

/// What a transaction kept of a range of writes counted less than it took.
#[test]
fn several_operations_of_a_key_count_with_its_key() {
    let db = open(&Simulated::new(1));
    let keyspace = appending(&db);
    let key = vec![b'k'; crate::KEY_LEN_MAX];
    let mut tx = db.transaction().unwrap();
    tx.insert(&keyspace, &key, vec![b'v'; 460_000]).unwrap();
    // With the keys of both operations it is more than a batch may have.
    let merged = tx.merge(&keyspace, &key, vec![b'o'; 530_000]);
    assert!(matches!(merged, Err(Error::BatchTooLarge { .. })), "{merged:?}");
    assert!(matches!(tx.take_refused(), Some(Error::BatchTooLarge { .. })) && tx.take_refused().is_none());
    assert_eq!(tx.get(&keyspace, &key).unwrap().map(|value| value.len()), Some(460_000));
    tx.commit().unwrap();
}

/// Only what more memory could take: all databases do the same with the rest.
#[test]
fn what_no_memory_takes_is_no_refusal_for_want_of_it() {
    let db = open(&Simulated::new(1));
    let keyspaces = [db.keyspace("plain").unwrap(), appending(&db)];
    for keyspace in &keyspaces {
        let mut tx = db.transaction().unwrap();
        let (max, most) = match tx.insert(keyspace, "k", vec![0; 2 << 20]) {
            Err(Error::ValueTooLong { max, most, .. }) => (max, most),
            other => panic!("{other:?}"),
        };
        assert!(tx.take_refused().is_some() && max < most);
        for (len, is_noted) in [(max + 1, true), (most, true), (most + 1, false), (100 << 20, false)] {
            for is_merge in [false, true] {
                let refused = match is_merge {
                    false => tx.insert(keyspace, "k", vec![0; len]),
                    true if keyspace.name() == "plain" => continue,
                    true => tx.merge(keyspace, "k", vec![0; len]),
                };
                assert!(matches!(refused, Err(Error::ValueTooLong { .. })), "{refused:?}");
                assert_eq!(tx.take_refused().is_some(), is_noted, "{len} bytes, merged: {is_merge}");
            }
        }
    }
}

/// What a transaction has only written conflicts with nothing, also where it has merged into that; what lies beneath operands is read.
#[test]
fn what_was_written_and_merged_into_counts_not_as_read() {
    use futures_executor::block_on;
    let db = open(&Simulated::new(1));
    let keyspace = db.keyspace_with("counts", KeyspaceOptions::new().merge(AddU64)).unwrap();
    let one = 1u64.to_be_bytes();
    for is_inserted in [true, false] {
        for way in 0..4 {
            keyspace.insert("k", "bad").unwrap();
            let mut tx = db.transaction().unwrap();
            if is_inserted {
                tx.insert(&keyspace, "k", "bad").unwrap();
            }
            tx.merge(&keyspace, "k", one).unwrap();
            let is_failed = match way {
                0 => tx.get(&keyspace, "k").is_err(),
                1 => tx.multi_get(&keyspace, ["k"]).is_err(),
                2 => block_on(tx.get_async(&keyspace, "k")).is_err(),
                _ => block_on(tx.multi_get_async(&keyspace, ["k"])).is_err(),
            };
            assert!(is_failed);
            keyspace.insert("k", one).unwrap();
            let done = tx.commit();
            match is_inserted {
                true => assert!(done.is_ok(), "{way}: {done:?}"),
                false => assert!(done.is_err_and(|error| error.is_conflict()), "{way}"),
            }
        }
    }
}

/// Appends to all but one value, and counts what that costs.
#[derive(Clone, Default)]
struct Counting {
    applied: Arc<AtomicUsize>,
    longest_combined: Arc<AtomicUsize>,
}

impl MergeOperator for Counting {
    fn name(&self) -> &str {
        "counting"
    }

    fn apply(&self, value: Option<&[u8]>, operand: &[u8]) -> Result<Vec<u8>, String> {
        self.applied.fetch_add(1, Ordering::Relaxed);
        if value == Some(b"bad") {
            return Err("bad".into());
        }
        Ok([value.unwrap_or_default(), operand].concat())
    }

    fn combine(&self, older: &[u8], newer: &[u8]) -> Vec<u8> {
        self.longest_combined.fetch_max(older.len() + newer.len(), Ordering::Relaxed);
        [older, newer].concat()
    }
}

/// Each operand was combined with all that the transaction had for its key, and laid once more onto a value that it cannot be merged into.
#[test]
fn a_merge_costs_little_whatever_its_transaction_has() {
    let db = Database::builder().memory(16 << 20).background_threads(0);
    let db = db.open_on(Arc::new(Simulated::new(1))).unwrap();
    let counting = Counting::default();
    let keyspace = db.keyspace_with("long", KeyspaceOptions::new().merge(counting.clone())).unwrap();
    let operands = || (0..200u32).map(|number| number.to_be_bytes().repeat(1_000));
    let mut tx = db.transaction().unwrap();
    operands().for_each(|operand| tx.merge(&keyspace, "blind", operand).unwrap());
    let longest = counting.longest_combined.load(Ordering::Relaxed);
    assert!((8_000..=64 << 10).contains(&longest), "{longest}");
    assert!(
        tx.get(&keyspace, "blind").unwrap().as_deref() == Some(&operands().flatten().collect::<Vec<_>>()[..])
    );
    tx.commit().unwrap();
    assert!(keyspace.get("blind").unwrap().as_deref() == Some(&operands().flatten().collect::<Vec<_>>()[..]));

    let mut tx = db.transaction().unwrap();
    tx.insert(&keyspace, "based", "bad").unwrap();
    tx.merge(&keyspace, "based", "m").unwrap();
    let applied = counting.applied.load(Ordering::Relaxed);
    for _ in 0..100 {
        tx.merge(&keyspace, "based", "m").unwrap();
    }
    assert_eq!(counting.applied.load(Ordering::Relaxed), applied);
    assert!(matches!(tx.get(&keyspace, "based"), Err(Error::MergeFailed { .. })));
    tx.insert(&keyspace, "based", "b").unwrap();
    tx.merge(&keyspace, "based", "m").unwrap();
    assert_eq!(tx.get(&keyspace, "based").unwrap().as_deref(), Some(&b"bm"[..]));
}

/// Records that cannot be merged, and values as long as merging makes them with any budget, can be copied.
#[test]
fn whatever_a_keyspace_has_is_ingested_into_another() {
    let db = open(&Simulated::new(1));
    let keyspace = appending(&db);
    for _ in 0..5 {
        keyspace.merge("long", vec![b'l'; 900_000]).unwrap();
    }
    let copy = db.keyspace_with("copy", KeyspaceOptions::new().merge(Append)).unwrap();
    assert_eq!(copy.try_ingest(keyspace.iter()).unwrap(), 1);
    copy.merge("long", "x").unwrap();
    assert_eq!(copy.get("long").unwrap().map(|value| value.len()), Some(4_500_001));

    let adding = |name: &str| db.keyspace_with(name, KeyspaceOptions::new().merge(AddU64)).unwrap();
    let (hits, copy, plain) = (adding("hits"), adding("copied hits"), db.keyspace("plain").unwrap());
    for (key, value) in [("a", 1u64.to_be_bytes()), ("b", *b"a number"), ("c", 3u64.to_be_bytes())] {
        hits.insert(key, &value[..if key == "b" { 3 } else { 8 }]).unwrap();
        hits.merge(key, 1u64.to_be_bytes()).unwrap();
    }
    assert!(matches!(plain.try_ingest(hits.iter()), Err(Error::MergeFailed { .. })));
    assert!(plain.is_empty().unwrap());
    assert_eq!(copy.try_ingest(hits.iter()).unwrap(), 3);
    let reason = |found| match found {
        Err(Error::MergeFailed { reason, key, .. }) if key == "b" => reason,
        other => panic!("{other:?}"),
    };
    for round in 0..3 {
        assert_eq!(reason(copy.get("b")), reason(hits.get("b")), "{round}");
        assert_eq!(copy.get("c").unwrap().as_deref(), Some(&4u64.to_be_bytes()[..]));
        // With what comes later it is as the other.
        [&hits, &copy].iter().for_each(|keyspace| keyspace.merge("b", 1u64.to_be_bytes()).unwrap());
        if round == 1 {
            db.compact().unwrap();
            db.check().unwrap();
        }
    }
    copy.insert("b", 5u64.to_be_bytes()).unwrap();
    copy.merge("b", 1u64.to_be_bytes()).unwrap();
    assert_eq!(copy.get("b").unwrap().as_deref(), Some(&6u64.to_be_bytes()[..]));
    let failed = [Ok(("d", "1")), Err(Error::KeyspaceDropped { name: "k".into() })];
    let failed = copy.try_ingest(failed);
    assert!(matches!(&failed, Err(Error::KeyspaceDropped { name }) if name == "k"), "{failed:?}");
}

/// Errors in the place of a record are those of where records come from: the database that is written to stays as it is. Its own do concern it.
#[test]
fn errors_of_where_records_come_from_do_not_concern_the_target() {
    let db = open(&Simulated::new(1));
    let copy = db.keyspace("copy").unwrap();
    let damaged = |file: &str| Error::corrupt(file, 0, "a record", "one", "none");
    let (file, waited) = ("data-1".to_owned(), std::time::Duration::from_secs(30));
    let stalled = || Error::from(psync::Error::Stalled { operation: "read", file, offset: None, waited });
    for error in [damaged("wal-1"), damaged("manifest"), damaged("data"), stalled()] {
        let told = error.to_string();
        // Enough that leaves have been written before it comes.
        let sound = (0..5_000u32).map(|number| Ok((number.to_be_bytes().to_vec(), vec![7; 100])));
        let ended = copy.try_ingest(sound.chain([Err(error)]));
        assert!(ended.as_ref().is_err_and(|error| error.to_string() == told), "{ended:?}");
        assert!(copy.is_empty().unwrap());
        copy.insert("k", "v").unwrap();
        copy.remove("k").unwrap();
    }
    assert_eq!(copy.ingest([("k", "v")]).unwrap(), 1);
    db.check().unwrap();
    db.drop_keyspace("copy").unwrap();
    let dropped = copy.try_ingest([Ok(("l", "v"))]);
    assert!(matches!(&dropped, Err(Error::KeyspaceDropped { name }) if name == "copy"), "{dropped:?}");
}

/// Operands that wait for a value are no failed record, where it is only the reader that lacks their operator.
#[test]
fn records_whose_operator_the_reader_lacks_do_not_become_failed_ones() {
    let volume = Simulated::new(1);
    let own = |db: &Database| db.keyspace_with("own", KeyspaceOptions::new().merge(Own)).unwrap();
    let db = open(&volume);
    let keyspace = own(&db);
    keyspace.insert("a", "a").unwrap();
    for operand in ["b", "c"] {
        keyspace.merge("k", operand).unwrap();
        keyspace.merge("l", operand).unwrap();
    }
    db.sync().unwrap();
    let reading = |is_told: bool| {
        let shared = Arc::new(volume.power_loss(1)) as Arc<dyn Volume>;
        let builder = Database::builder().memory(4 << 20).read_only(true);
        let builder = if is_told { builder.merge_operator(Own) } else { builder };
        builder.open_on(shared).unwrap()
    };
    let target = open(&Simulated::new(1));
    let copy = own(&target);
    let blind = reading(false).keyspace("own").unwrap();
    // A range goes on behind each.
    let told = |found: &crate::Result<_>| matches!(found, Err(Error::MergeFailed { operator, reason, .. }) if operator == "own" && reason.contains("merge_operator"));
    let found: Vec<_> = blind.iter().collect();
    assert!(found.len() == 3 && found[0].is_ok() && found[1..].iter().all(told), "{found:?}");
    let ended = copy.try_ingest(blind.iter());
    assert!(matches!(&ended, Err(Error::MergeFailed { key, .. }) if key == "k"), "{ended:?}");
    assert!(copy.is_empty().unwrap());
    assert_eq!(copy.try_ingest(reading(true).keyspace("own").unwrap().iter()).unwrap(), 3);
    assert_eq!(copy.get("k").unwrap().as_deref(), Some(&b",b,c"[..]));
}
