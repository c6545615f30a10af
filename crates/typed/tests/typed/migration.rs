//! Migrations: what they make, what stops them, and power losses at each of their writes.

use crate::schemas::open;
use psync::{Fault, Filter, Repeat, Simulated};
use sapwood::{Database, Error, Expiry, KeyspaceOptions, psync};
use sapwood_typed::{DatabaseExt, Schema, TypedKeyspace};
use std::sync::Arc;
use std::time::Duration;

type Old = Schema<String, u16>;
type New = Schema<(u16, String), ()>;

fn old(db: &Database, count: u16) -> TypedKeyspace<String, u16> {
    let ships = db.typed::<String, u16>("ships").unwrap();
    ships.set_metadata("mine").unwrap();
    let mut batch = db.batch();
    for number in 0..count {
        sapwood_typed::BatchExt::typed(&mut batch, &ships)
            .insert(format!("ship {number:05}"), 1700 + number % 300)
            .unwrap();
    }
    batch.commit().unwrap();
    ships
}

/// Those built before 1720 go.
fn by_year() -> New {
    New::new()
        .version(2)
        .migrate_from(Old::new(), |name, year| Ok((year >= 1720).then_some(((year, name), ()))))
}

/// The copy would have had a name that is too long.
#[test]
fn keyspaces_with_the_longest_names_are_migrated() {
    let db = open(&Arc::new(Simulated::new(1)));
    let names = [format!("{}a", "é".repeat(127)), format!("{}b", "é".repeat(127)), "x".repeat(246)];
    for name in &names {
        db.typed::<u16, u8>(name).unwrap().insert(7, 1).unwrap();
    }
    for name in &names {
        let old = Schema::<u16, u8>::new();
        let new =
            Schema::<u32, u8>::new().version(2).migrate_from(old, |key, value| Ok(Some((key.into(), value))));
        assert_eq!(db.typed_with(name, new).unwrap().get(7).unwrap(), Some(1));
    }
    let mut found = db.keyspaces();
    found.sort();
    let mut expected = names.to_vec();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn each_record_becomes_what_is_said_and_handles_of_the_old_ones_say_so() {
    let db = Arc::new(Simulated::new(1));
    let db = open(&db);
    let before = old(&db, 3000);
    let ships = db.typed_with("ships", by_year()).unwrap();
    assert_eq!(ships.count(..).unwrap(), 2800);
    assert_eq!(ships.first().unwrap().unwrap().0, (1720, "ship 00020".to_owned()));
    assert_eq!((ships.metadata().unwrap(), ships.version().unwrap()), (b"mine".to_vec(), 2));
    assert!(matches!(before.get("ship 00000"), Err(Error::KeyspaceDropped { name }) if name == "ships"));
    assert_eq!(db.keyspaces(), ["ships"]);
    // It has nothing left to do.
    let unreachable = New::new().version(2).migrate_from(Old::new(), |_, _| unreachable!());
    assert_eq!(db.typed_with("ships", unreachable).unwrap().count(..).unwrap(), 2800);
    assert!(matches!(db.typed::<String, u16>("ships"), Err(Error::Schema { .. })));
}

#[test]
fn of_several_ways_the_one_that_fits_is_taken() {
    let newest = || {
        Schema::<String, u64>::new()
            .version(3)
            .migrate_from(Old::new(), |name, year| Ok(Some((name, u64::from(year)))))
            .migrate_from(New::new().version(2), |(year, name), ()| {
                Ok(Some((name, u64::from(year) + 10_000)))
            })
    };
    let db = open(&Arc::new(Simulated::new(1)));
    old(&db, 40);
    assert_eq!(db.typed_with("ships", newest()).unwrap().get("ship 00030").unwrap(), Some(1730));
    let db = open(&Arc::new(Simulated::new(2)));
    old(&db, 40);
    db.typed_with("ships", by_year()).unwrap();
    assert_eq!(db.typed_with("ships", newest()).unwrap().get("ship 00030").unwrap(), Some(11_730));
}

#[test]
fn what_stops_it_leaves_all_as_it_was() {
    let db = open(&Arc::new(Simulated::new(1)));
    old(&db, 1000);
    let is_old = |db: &Database| {
        let ships = db.typed::<String, u16>("ships").unwrap();
        assert_eq!((ships.count(..).unwrap(), ships.version().unwrap()), (1000, 1));
    };
    let same_keys =
        Schema::<u16, ()>::new().version(2).migrate_from(Old::new(), |_, year| Ok(Some((year, ()))));
    match db.typed_with("ships", same_keys) {
        Err(Error::Encode { reason, .. }) => assert_eq!(reason, "two records would have the same key"),
        other => panic!("{other:?}"),
    }
    is_old(&db);
    let refuses = New::new().version(2).migrate_from(Old::new(), |name, _| {
        if name == "ship 00777" { Err(Error::BadName { name, reason: "unlucky" }) } else { Ok(None) }
    });
    assert!(matches!(db.typed_with("ships", refuses), Err(Error::BadName { .. })));
    is_old(&db);
    db.keyspace("ships").unwrap().insert("ship 00500\0", [0x80]).unwrap();
    assert!(matches!(db.typed_with("ships", by_year()), Err(Error::Decode { .. })));
    db.keyspace("ships").unwrap().insert("ship 00500\0", [1]).unwrap();
    is_old(&db);
    db.typed_with("ships", by_year()).unwrap();
}

/// As many records as were read cannot be counted there.
#[test]
fn records_that_expire_do_not_take_each_others_key() {
    let db = open(&Arc::new(Simulated::new(1)));
    let expiring = || Old::new().options(KeyspaceOptions::new().expiring());
    let ships = db.typed_with("ships", expiring()).unwrap();
    // Those of the same year go into one batch, and into different ones.
    for number in 0..20_000 {
        ships.insert(format!("ship {number:05}"), number % 10_000).unwrap();
    }
    for year in [7, 9_999] {
        let schema = Schema::<u16, ()>::new()
            .version(2)
            .migrate_from(Old::new(), move |_, found| Ok((found == year).then_some((found, ()))));
        match db.typed_with("ships", schema) {
            Err(Error::Encode { reason, .. }) => assert_eq!(reason, "two records would have the same key"),
            other => panic!("{other:?}"),
        }
    }
    let all = Schema::<u16, ()>::new().version(2).migrate_from(Old::new(), |_, found| Ok(Some((found, ()))));
    assert!(matches!(db.typed_with("ships", all), Err(Error::Encode { .. })));
    assert_eq!(db.typed_with("ships", expiring()).unwrap().count(..).unwrap(), 20_000);
}

/// What is refused changes nothing of what the keyspace was opened with before.
#[test]
fn a_keyspace_that_is_not_opened_keeps_its_options() {
    let db = open(&Arc::new(Simulated::new(1)));
    let options = |seconds| KeyspaceOptions::new().time_to_live(Duration::from_secs(seconds));
    let ships = db.typed_with("ships", Old::new().options(options(3600))).unwrap();
    ships.insert("a", 1800).unwrap();
    let kept = |expected: u64| {
        assert_eq!(db.keyspace("ships").unwrap().options().unwrap(), options(expected));
    };
    let other = Schema::<u16, u16>::new().options(options(1));
    assert!(matches!(db.typed_with("ships", other), Err(Error::Schema { .. })));
    kept(3600);
    let refuses = New::new()
        .version(2)
        .options(options(1))
        .migrate_from(Old::new(), |name, _| Err(Error::BadName { name, reason: "unlucky" }));
    assert!(matches!(db.typed_with("ships", refuses), Err(Error::BadName { .. })));
    kept(3600);
    db.typed_with("ships", by_year().options(options(60))).unwrap();
    kept(60);
    let plain = db.typed::<String, u16>("harbours").unwrap();
    plain.insert("a", 1).unwrap();
    let expires = New::new()
        .version(2)
        .options(options(60))
        .migrate_from(Old::new(), |name, year| Ok(Some(((year, name), ()))));
    assert!(
        matches!(db.typed_with("harbours", expires), Err(Error::NoExpiry { keyspace }) if keyspace == "harbours")
    );
    assert_eq!(db.typed::<String, u16>("harbours").unwrap().get("a").unwrap(), Some(1));
}

/// The error named the copy, which is gone by then.
#[test]
fn a_merge_operator_that_does_not_fit_is_told_of_the_keyspace() {
    use sapwood::merge::{AddU64, Append};
    let db = open(&Arc::new(Simulated::new(1)));
    let migrate = || {
        let old = Schema::<String, u16>::new();
        let new = Schema::<String, u32>::new().version(2).migrate_from(old, |k, v| Ok(Some((k, v.into()))));
        new.options(KeyspaceOptions::new().merge(AddU64))
    };
    db.typed::<String, u16>("ships").unwrap().insert("a", 1).unwrap();
    let refused = db.typed_with("ships", migrate());
    assert!(matches!(refused, Err(Error::NoMergeOperator { keyspace }) if keyspace == "ships"));
    let appends = Schema::<String, u16>::new().options(KeyspaceOptions::new().merge(Append));
    db.typed_with("ports", appends).unwrap();
    let refused = db.typed_with("ports", migrate());
    assert!(matches!(refused, Err(Error::OtherMergeOperator { keyspace, .. }) if keyspace == "ports"));
    assert_eq!(db.keyspaces().len(), 2);
}

/// What had been merged to more than a commit takes could never be migrated.
#[test]
fn values_longer_than_a_commit_takes_are_migrated() {
    use sapwood_typed::Raw;
    let db = open(&Arc::new(Simulated::new(1)));
    let options = KeyspaceOptions::new().merge(sapwood::merge::Append);
    let old = || Schema::<u16, Raw>::new().options(options.clone());
    let texts = db.typed_with("texts", old()).unwrap();
    for key in [1u16, 2, 3] {
        for _ in 0..if key == 2 { 4 } else { 1 } {
            texts.keyspace().merge(key.to_be_bytes(), vec![b'a'; 500_000]).unwrap();
        }
    }
    assert!(matches!(texts.keyspace().insert("k", vec![0; 1_600_000]), Err(Error::ValueTooLong { .. })));
    // Where their keys are in another order there is no way for them, and nothing has happened.
    let turned =
        Schema::<u16, Raw>::new().version(2).migrate_from(old(), |key, text| Ok(Some((9 - key, text))));
    assert!(matches!(db.typed_with("texts", turned), Err(Error::ValueTooLong { .. })));
    let longer = Schema::<u32, Raw>::new().version(2);
    let texts =
        db.typed_with("texts", longer.migrate_from(old(), |key, text| Ok(Some((key.into(), text))))).unwrap();
    let lens =
        [1u32, 2, 3].map(|key| texts.keyspace().get(key.to_be_bytes()).unwrap().map(|text| text.len()));
    assert_eq!(lens, [Some(500_000), Some(2_000_000), Some(500_000)]);
}

#[test]
fn records_keep_their_time_to_expire() {
    let db = open(&Arc::new(Simulated::new(1)));
    let options = || KeyspaceOptions::new().time_to_live(Duration::from_secs(3600));
    let ships = db.typed_with("ships", Old::new().options(options())).unwrap();
    ships.insert("a", 1800).unwrap();
    ships.insert_expiring("b", 1801, Expiry::Never).unwrap();
    ships.insert_expiring("c", 1802, Expiry::After(Duration::from_millis(1))).unwrap();
    let expiry = ships.expiry("a").unwrap();
    std::thread::sleep(Duration::from_millis(5));
    let ships = db.typed_with("ships", by_year().options(options())).unwrap();
    assert_eq!(ships.expiry((1800, "a")).unwrap(), expiry);
    assert_eq!(ships.expiry((1801, "b")).unwrap(), Some(Expiry::Never));
    assert_eq!(ships.count(..).unwrap(), 2);
    assert_eq!(ships.keyspace().options().unwrap(), options());
}

/// A migration may open other keyspaces.
#[test]
fn other_keyspaces_can_be_opened_meanwhile() {
    let db = open(&Arc::new(Simulated::new(1)));
    old(&db, 10);
    let ports = db.clone();
    let schema = New::new().version(2).migrate_from(Old::new(), move |name, year| {
        ports.typed::<String, ()>("ports")?.insert(&name, ())?;
        Ok(Some(((year, name), ())))
    });
    db.typed_with("ships", schema).unwrap();
    assert_eq!(db.typed::<String, ()>("ports").unwrap().count(..).unwrap(), 10);
}

/// How a migration ends whose n-th change of the device fails, whatever fails then and whether or not the power goes as well.
#[derive(Default, Debug)]
struct Ends {
    olds: usize,
    news: usize,
    copies_left: usize,
}

/// Fails one operation of a migration after the other: afterwards the keyspace is wholly of one schema, and the next opening brings it to the
/// new one.
fn fail_each(filter: &Filter, fault: Fault, repeat: Repeat) -> Ends {
    let mut ends = Ends::default();
    for point in 1.. {
        let volume = Arc::new(Simulated::new(point));
        let db = open(&volume);
        old(&db, 2000);
        db.flush().unwrap();
        let fired = volume.fired();
        volume.fail_nth(filter.clone(), point, fault, repeat);
        let migrated = db.typed_with("ships", by_year());
        let (is_done, has_failed) = (migrated.is_ok(), volume.fired() > fired);
        drop((migrated, db));
        volume.clear_faults();
        let volume = if fault == Fault::PowerOff { Arc::new(volume.power_loss(point)) } else { volume };
        let db = open(&volume);
        ends.copies_left += usize::from(db.contains_keyspace("ships (migrating)"));
        match db.typed::<String, u16>("ships") {
            Ok(ships) => {
                assert_eq!((ships.count(..).unwrap(), ships.metadata().unwrap()), (2000, b"mine".to_vec()));
                assert!(!is_done, "point {point}");
                ends.olds += 1;
            }
            Err(Error::Schema { .. }) => ends.news += 1,
            other => panic!("point {point}: {other:?}"),
        }
        assert_eq!(db.keyspaces(), ["ships"], "point {point}");
        let migrated = db.typed_with("ships", by_year()).unwrap();
        assert_eq!(migrated.count(..).unwrap(), 1860, "point {point}");
        assert_eq!(migrated.metadata().unwrap(), b"mine");
        if is_done && !has_failed {
            break;
        }
    }
    ends
}

#[test]
fn after_a_power_loss_it_is_wholly_of_one_schema() {
    let ends = fail_each(&Filter::changes(), Fault::PowerOff, Repeat::Once);
    assert!(ends.olds > 5 && ends.news > 0 && ends.copies_left > 0, "{ends:?}");
}

#[test]
fn after_a_fault_it_is_wholly_of_one_schema() {
    for (fault, repeat) in [
        (Fault::Error, Repeat::Once),
        (Fault::Error, Repeat::Sticky),
        (Fault::Short, Repeat::Once),
        (Fault::NoSpace, Repeat::Once),
        (Fault::NoSpace, Repeat::Sticky),
    ] {
        let ends = fail_each(&Filter::any(), fault, repeat);
        assert!(ends.olds > 2, "{fault:?} {repeat:?}: {ends:?}");
    }
}

/// The copy of one that failed stayed until it was tried again; and where it could not be dropped, its keyspace could not be opened.
#[test]
fn what_fails_leaves_no_copy_and_nothing_in_the_way() {
    let db = open(&Arc::new(Simulated::new(1)));
    old(&db, 3000);
    let failing = New::new().version(2).migrate_from(Old::new(), |name, year| {
        if name == "ship 02999" { Err(Error::KeyEmpty) } else { Ok(Some(((year, name), ()))) }
    });
    assert!(matches!(db.typed_with("ships", failing), Err(Error::KeyEmpty)));
    assert_eq!(db.keyspaces(), ["ships"]);
    // A failed sync: writes are refused, and the copy, if there is one, cannot be dropped.
    let is_left = (1..20).any(|nth| {
        let volume = Arc::new(Simulated::new(nth));
        let db = open(&volume);
        old(&db, 100);
        volume.fail_nth(Filter::kinds([psync::OperationKind::Sync]), nth, Fault::Error, Repeat::Sticky);
        if db.typed_with("ships", by_year()).is_ok() {
            return false;
        }
        assert_eq!(db.typed::<String, u16>("ships").unwrap().count(..).unwrap(), 100);
        db.keyspaces().len() == 2
    });
    assert!(is_left, "none failed behind the creation of the copy");
}

/// One lock of all databases was held while records were changed.
#[test]
fn other_threads_may_open_keyspaces_while_one_is_migrated() {
    let (db, other) = (open(&Arc::new(Simulated::new(1))), open(&Arc::new(Simulated::new(2))));
    old(&db, 10);
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let new = New::new().version(2).migrate_from(Old::new(), move |name, year| {
            std::thread::scope(|scope| {
                scope.spawn(|| other.typed::<u8, u8>("others").map(drop)).join().expect("it ends")
            })?;
            Ok(Some(((year, name), ())))
        });
        _ = send.send(db.typed_with("ships", new).map(|ships| ships.count(..)));
    });
    let count = receive.recv_timeout(Duration::from_secs(60)).expect("it ends").unwrap();
    assert_eq!(count.unwrap(), 10);
}

#[test]
fn a_migration_that_panics_leaves_no_copy() {
    let db = open(&Arc::new(Simulated::new(1)));
    old(&db, 10);
    let panics = || {
        let new = New::new().version(2).migrate_from(Old::new(), |_, _| panic!("for this test"));
        db.typed_with("ships", new).map(drop)
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    assert_eq!(db.keyspaces(), ["ships"]);
    assert_eq!(db.typed_with("ships", by_year()).unwrap().count(..).unwrap(), 0);
}
