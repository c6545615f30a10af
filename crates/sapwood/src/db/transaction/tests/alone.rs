//! What a transaction sees, what conflicts with it, and what it refuses.

use super::{open, put};
use crate::{ConflictReason, Database, Durability, Error, Key, Keyspace, Result, Transaction, Value};
use psync::{Simulated, Volume};
use std::sync::Arc;

type Record = (Key, Value);

fn keys(records: impl Iterator<Item = Result<Record>>) -> Vec<String> {
    records.map(|record| String::from_utf8(record.unwrap().0.to_vec()).unwrap()).collect()
}

/// Iterates from both ends, in all ways to alternate.
fn has_from_both_ends(tx: &Transaction, keyspace: &Keyspace, all: &[&str; 4]) {
    for ends in 0..16u32 {
        let (mut range, mut low, mut high) = (tx.iter(keyspace), Vec::new(), Vec::new());
        for step in 0..4 {
            let (next, to) = match ends >> step & 1 {
                0 => (range.next(), &mut low),
                _ => (range.next_back(), &mut high),
            };
            to.push(String::from_utf8(next.unwrap().unwrap().0.to_vec()).unwrap());
        }
        assert!(range.next().is_none() && range.next_back().is_none());
        high.reverse();
        assert_eq!([low, high].concat(), all, "{ends:b}");
    }
}

#[test]
fn a_removed_range_hides_the_snapshot_up_to_its_end() {
    let (db, keyspace) = open();
    for key in ["a", "b", "c", "d", "e", "f", "g"] {
        put(&db, &keyspace, key, "old");
    }
    let mut tx = db.transaction().unwrap();
    tx.insert(&keyspace, "c", "before, and gone with the range").unwrap();
    tx.remove_range(&keyspace, "b".."e").unwrap();
    tx.remove_range(&keyspace, "g"..).unwrap();
    tx.insert(&keyspace, "d", "new").unwrap();
    let all = ["a", "d", "e", "f"];
    assert_eq!(keys(tx.iter(&keyspace)), all);
    assert_eq!(keys(tx.iter(&keyspace).rev()), ["f", "e", "d", "a"]);
    assert_eq!(keys(tx.range(&keyspace, "b"..="e")), ["d", "e"]);
    has_from_both_ends(&tx, &keyspace, &all);
    assert!(!tx.contains(&keyspace, "c").unwrap() && tx.contains(&keyspace, "d").unwrap());
    let found = tx.multi_get(&keyspace, ["a", "b", "g"]).unwrap();
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false]);
    tx.commit().unwrap();
    assert_eq!(keys(keyspace.iter()), all);
    // A transaction that has not read the range conflicts with nothing, and removes what others have inserted meanwhile.
    let mut tx = db.transaction().unwrap();
    tx.remove_range(&keyspace, "b".."e").unwrap();
    put(&db, &keyspace, "cc", "meanwhile");
    tx.commit().unwrap();
    assert_eq!(keys(keyspace.iter()), ["a", "e", "f"]);
}

#[test]
fn reads_see_the_snapshot_and_over_it_its_own_writes() {
    let (db, keyspace) = open();
    for key in ["a", "b", "c", "d", "e"] {
        put(&db, &keyspace, key, "old");
    }
    let mut tx = db.transaction().unwrap();
    put(&db, &keyspace, "f", "later");
    tx.remove(&keyspace, "b").unwrap();
    tx.insert(&keyspace, "c", "new").unwrap();
    tx.insert(&keyspace, "cc", "new").unwrap();
    tx.remove(&keyspace, "e").unwrap();
    let all = ["a", "c", "cc", "d"];
    assert_eq!(keys(tx.iter(&keyspace)), all);
    assert_eq!(keys(tx.iter(&keyspace).rev()), ["d", "cc", "c", "a"]);
    assert_eq!(keys(tx.prefix(&keyspace, "c")), ["c", "cc"]);
    assert_eq!(keys(tx.range(&keyspace, "b"..="c")), ["c"]);
    assert_eq!(keys(tx.range(&keyspace, "d".."a")), [""; 0]);
    let (first, last) = (tx.first(&keyspace).unwrap().unwrap(), tx.last(&keyspace).unwrap().unwrap());
    assert!(first.0 == "a" && last.0 == "d");
    assert!(tx.get(&keyspace, "c").unwrap().unwrap() == "new");
    assert!(!tx.contains(&keyspace, "b").unwrap() && !tx.contains(&keyspace, "f").unwrap());
    let found = tx.multi_get(&keyspace, ["f", "cc", "a", "b", "a"]).unwrap();
    let found: Vec<_> = found.iter().map(|value| value.as_ref().map(|value| value.to_vec())).collect();
    let (old, new) = (Some(b"old".to_vec()), Some(b"new".to_vec()));
    assert_eq!(found, [None, new, old.clone(), None, old]);
    has_from_both_ends(&tx, &keyspace, &all);
    // An iterator has what was there when it was made, and does not keep the transaction from writing.
    for record in tx.iter(&keyspace) {
        tx.remove(&keyspace, record.unwrap().0).unwrap();
    }
    assert_eq!(tx.iter(&keyspace).count(), 0);
    drop(tx);
    assert_eq!(keyspace.iter().count(), 6, "what is dropped has no effect");
}

/// Each of these reads something, then another changes "k", then it writes something else.
#[test]
fn what_was_read_and_changed_is_a_conflict_and_nothing_else_is() {
    type Read = fn(&mut Transaction, &Keyspace);
    let reads: [(&str, bool, Read); 16] = [
        ("get", true, |tx, ks| _ = tx.get(ks, "k").unwrap()),
        ("get another", false, |tx, ks| _ = tx.get(ks, "kk").unwrap()),
        ("multi_get", true, |tx, ks| _ = tx.multi_get(ks, ["a", "k"]).unwrap()),
        ("contains", true, |tx, ks| _ = tx.contains(ks, "k").unwrap()),
        ("all", true, |tx, ks| _ = tx.iter(ks).count()),
        ("prefix", true, |tx, ks| _ = tx.prefix(ks, "k").count()),
        ("another prefix", false, |tx, ks| _ = tx.prefix(ks, "j").count()),
        ("a range around it", true, |tx, ks| _ = tx.range(ks, "j".."l").next()),
        ("a range up to it", false, |tx, ks| _ = tx.range(ks, "a".."k").count()),
        ("first, before it", false, |tx, ks| _ = tx.first(ks).unwrap()),
        ("first of a range, behind it", true, |tx, ks| _ = tx.range(ks, "b"..).next()),
        ("last, behind it", false, |tx, ks| _ = tx.last(ks).unwrap()),
        ("last of a range, before it", true, |tx, ks| _ = tx.range(ks, .."m").next_back()),
        ("both ends", false, |tx, ks| {
            let mut range = tx.iter(ks);
            _ = (range.next().unwrap().unwrap(), range.next_back().unwrap().unwrap());
        }),
        ("an iterator that is still there", true, |tx, ks| {
            let mut range = tx.range(ks, "b"..);
            range.next().unwrap().unwrap();
            std::mem::forget(range);
        }),
        ("what it has written itself", false, |tx, ks| {
            tx.insert(ks, "k", "mine").unwrap();
            tx.get(ks, "k").unwrap();
        }),
    ];
    for is_there in [false, true] {
        for (name, conflicts, read) in reads {
            let (db, keyspace) = open();
            let other = db.keyspace("other").unwrap();
            put(&db, &keyspace, "a", "1");
            put(&db, &keyspace, "z", "1");
            if is_there {
                put(&db, &keyspace, "k", "1");
            }
            let mut tx = db.transaction().unwrap();
            // As far as it depends on whether the key is there: where it is, the first of a range ends with it.
            read(&mut tx, &keyspace);
            tx.insert(&other, "written", "1").unwrap();
            put(&db, &keyspace, "k", "2");
            let result = tx.commit();
            match &result {
                Ok(()) => assert!(!conflicts, "{name} {is_there}"),
                Err(Error::Conflict { keyspace, key, reason }) => {
                    assert!(conflicts && keyspace == "main" && *key == "k", "{name}: {result:?}");
                    assert_eq!(*reason, ConflictReason::Changed);
                }
                Err(error) => panic!("{name}: {error}"),
            }
            assert_eq!(other.contains("written").unwrap(), !conflicts, "{name}");
        }
    }
}

#[test]
fn a_removal_conflicts_and_the_same_key_elsewhere_does_not() {
    let (db, keyspace) = open();
    let other = db.keyspace("other").unwrap();
    put(&db, &keyspace, "k", "1");
    for (from, conflicts) in [(&keyspace, true), (&other, false)] {
        let mut tx = db.transaction().unwrap();
        tx.get(&keyspace, "k").unwrap();
        tx.insert(&keyspace, "x", "1").unwrap();
        from.remove("k").unwrap();
        assert_eq!(tx.commit().is_err_and(|error| error.is_conflict()), conflicts);
    }
}

#[test]
fn writes_that_were_not_read_and_transactions_without_writes_do_not_conflict() {
    let (db, keyspace) = open();
    put(&db, &keyspace, "k", "1");
    let mut blind = db.transaction().unwrap();
    blind.insert(&keyspace, "k", "blind").unwrap();
    let reader = db.transaction().unwrap();
    reader.get(&keyspace, "k").unwrap();
    put(&db, &keyspace, "k", "2");
    assert!(reader.get(&keyspace, "k").unwrap().unwrap() == "1");
    reader.commit().unwrap();
    blind.commit().unwrap();
    assert!(keyspace.get("k").unwrap().unwrap() == "blind");
}

#[test]
fn of_two_that_read_what_the_other_writes_one_is_refused() {
    let (db, keyspace) = open();
    let (mut one, mut two) = (db.transaction().unwrap(), db.transaction().unwrap());
    for (tx, reads, writes) in [(&mut one, "x", "y"), (&mut two, "y", "x")] {
        assert!(tx.get(&keyspace, reads).unwrap().is_none());
        tx.insert(&keyspace, writes, "on call").unwrap();
    }
    one.commit().unwrap();
    assert!(matches!(two.commit(), Err(Error::Conflict { key, .. }) if key == "y"));
    assert_eq!(keyspace.iter().count(), 1);
}

/// The operation queues that had the change are gone by then.
#[test]
fn a_conflict_is_found_after_flushes() {
    let (db, keyspace) = open();
    for (key, is_changed) in [("k", true), ("l", false)] {
        let mut tx = db.transaction().unwrap();
        assert!(tx.get(&keyspace, key).unwrap().is_none());
        tx.insert(&keyspace, "x", "1").unwrap();
        if is_changed {
            put(&db, &keyspace, key, "1");
        }
        for round in 0..4 {
            put(&db, &keyspace, &format!("other {round}"), "1");
            db.flush().unwrap();
        }
        assert_eq!(tx.commit().is_err(), is_changed);
    }
}

#[test]
fn a_transaction_that_is_open_for_too_long_is_told_so() {
    let (db, keyspace) = open();
    let mut tx = db.transaction().unwrap();
    tx.get(&keyspace, "k").unwrap();
    tx.insert(&keyspace, "x", "1").unwrap();
    let mut number = 0u32;
    for _ in 0..200 {
        let mut batch = db.batch();
        (0..500).for_each(|_| {
            number += 1;
            batch.insert(&keyspace, format!("other {number}"), "1");
        });
        batch.durability(Durability::Buffered).commit().unwrap();
    }
    let history = &db.handle.engine.commits.history;
    assert!((1..=db.handle.engine.shares.history).contains(&history.memory()), "{}", history.memory());
    let told = tx.commit().unwrap_err();
    assert!(matches!(&told, Error::Conflict { reason: ConflictReason::TooOld, .. }), "{told}");
    assert_eq!(history.memory(), 0);
    // What it wrote without having read anything is no matter of age.
    let mut tx = db.transaction().unwrap();
    tx.insert(&keyspace, "x", "1").unwrap();
    for _ in 0..200 {
        let mut batch = db.batch();
        (0..500u32).for_each(|number| _ = batch.insert(&keyspace, format!("other {number}"), "1"));
        batch.durability(Durability::Buffered).commit().unwrap();
    }
    tx.commit().unwrap();
}

#[test]
fn ingested_records_conflict_with_readers_of_their_keyspace() {
    let (db, keyspace) = open();
    let other = db.keyspace("other").unwrap();
    let (mut reader, mut elsewhere) = (db.transaction().unwrap(), db.transaction().unwrap());
    reader.get(&keyspace, "k").unwrap();
    elsewhere.get(&other, "k").unwrap();
    for tx in [&mut reader, &mut elsewhere] {
        tx.insert(&other, "x", "1").unwrap();
    }
    keyspace.ingest([("k", "1")]).unwrap();
    let refused = reader.commit();
    assert!(
        matches!(&refused, Err(Error::Conflict { reason: ConflictReason::Ingested, keyspace, .. }) if keyspace == "main"),
        "{refused:?}"
    );
    elsewhere.commit().unwrap();
    let mut later = db.transaction().unwrap();
    later.get(&keyspace, "k").unwrap().unwrap();
    later.insert(&keyspace, "x", "1").unwrap();
    later.commit().unwrap();
}

#[test]
fn savepoints_nest() {
    let (db, keyspace) = open();
    let mut tx = db.transaction().unwrap();
    tx.insert(&keyspace, "a", "1").unwrap();
    let outer = tx.savepoint();
    tx.insert(&keyspace, "a", "2").unwrap();
    let inner = tx.savepoint();
    tx.remove(&keyspace, "a").unwrap();
    tx.insert(&keyspace, "b", "1").unwrap();
    tx.roll_back_to(inner).unwrap();
    assert!(tx.get(&keyspace, "a").unwrap().unwrap() == "2" && !tx.contains(&keyspace, "b").unwrap());
    let foreign = db.transaction().unwrap().savepoint();
    assert!(matches!(tx.roll_back_to(foreign), Err(Error::NoSavepoint)));
    tx.roll_back_to(outer).unwrap();
    assert!(matches!(tx.release(inner), Err(Error::NoSavepoint)));
    tx.insert(&keyspace, "c", "1").unwrap();
    tx.release(outer).unwrap();
    tx.commit().unwrap();
    let found: Vec<_> = keyspace.iter().map(|record| record.unwrap()).collect();
    assert!(found.len() == 2 && found[0].0 == "a" && found[0].1 == "1" && found[1].0 == "c");
}

#[test]
fn a_write_set_that_is_too_large_is_refused_before_anything_is_lost() {
    let (db, keyspace) = open();
    let mut tx = db.transaction().unwrap();
    let refused = (0u32..).find_map(|number| {
        let refused = tx.insert(&keyspace, number.to_be_bytes(), [1; 1000]).err()?;
        Some((number, refused))
    });
    let (count, refused) = refused.unwrap();
    assert!(matches!(refused, Error::BatchTooLarge { len, max } if len > max), "{refused}");
    assert!(count > 900, "{count}");
    tx.insert(&keyspace, 0u32.to_be_bytes(), "short").unwrap();
    tx.commit().unwrap();
    assert_eq!(keyspace.iter().count(), count as usize);
    assert!(keyspace.get(0u32.to_be_bytes()).unwrap().unwrap() == "short");
}

#[test]
fn bad_keys_values_and_keyspaces_are_refused() {
    let (db, keyspace) = open();
    let (_other, foreign) = open();
    let mut tx = db.transaction().unwrap();
    assert!(matches!(tx.insert(&keyspace, "", "1"), Err(Error::KeyEmpty)));
    assert!(matches!(tx.get(&keyspace, vec![0; 65_537]), Err(Error::KeyTooLong { .. })));
    assert!(matches!(tx.insert(&keyspace, "k", vec![0; 16 << 20]), Err(Error::ValueTooLong { .. })));
    assert!(matches!(tx.insert(&foreign, "k", "1"), Err(Error::Foreign { .. })));
    assert!(matches!(tx.get(&foreign, "k"), Err(Error::Foreign { .. })));
    assert!(matches!(tx.iter(&foreign).next(), Some(Err(Error::Foreign { .. }))));
    assert_eq!(tx.writes_len(), 0);
}

#[test]
fn closed_poisoned_and_read_only_databases_say_so() {
    let (db, keyspace) = open();
    let mut tx = db.transaction().unwrap();
    tx.insert(&keyspace, "k", "1").unwrap();
    let reader = db.transaction().unwrap();
    db.handle.engine.health.poison(&Error::Poisoned { cause: "a sync failed".into() });
    assert!(matches!(tx.insert(&keyspace, "l", "1"), Err(Error::Poisoned { .. })));
    assert!(matches!(tx.commit(), Err(Error::Poisoned { .. })));
    reader.get(&keyspace, "k").unwrap();
    reader.commit().unwrap();
    assert!(matches!(db.transact(|tx| tx.insert(&keyspace, "l", "1")), Err(Error::Poisoned { .. })));

    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(4 << 20).open_on(Arc::clone(&volume)).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let mut tx = db.transaction().unwrap();
    tx.insert(&keyspace, "k", "1").unwrap();
    let shared = db.clone();
    db.close().unwrap();
    assert!(matches!(tx.commit(), Err(Error::Closed)));
    assert!(matches!(shared.transaction(), Err(Error::Closed)));
    assert!(matches!(shared.handle.engine.commits.take_turn().map(drop), Err(Error::Closed)));
    drop((shared, keyspace));

    let db = Database::builder().read_only(true).memory(4 << 20).open_on(volume).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let mut tx = db.transaction().unwrap();
    assert!(tx.get(&keyspace, "k").unwrap().is_none());
    assert!(matches!(tx.insert(&keyspace, "k", "1"), Err(Error::ReadOnly)));
    tx.commit().unwrap();
}
