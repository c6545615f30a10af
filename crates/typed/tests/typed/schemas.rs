//! Opening with a schema: which fits, which does not, and what the error says.

use crate::types::{Berth, Ship};
use psync::Simulated;
use sapwood::{Compression, Database, Error, KeyspaceOptions, psync};
use sapwood_typed::{DatabaseExt, Fixed, Raw, Schema, TypedKey, TypedKeyspace, TypedValue, Verbatim};
use std::sync::Arc;

pub fn open(volume: &Arc<Simulated>) -> Database {
    let builder = Database::builder().memory(4 << 20).background_threads(0);
    builder.open_on(Arc::clone(volume) as Arc<dyn psync::Volume>).unwrap()
}

fn new() -> Database {
    open(&Arc::new(Simulated::new(1)))
}

/// The words of the error, which must be one of schemas.
fn refused<K: TypedKey, V: TypedValue>(opened: sapwood::Result<TypedKeyspace<K, V>>) -> (String, String) {
    match opened {
        Err(Error::Schema { keyspace, found, expected }) => {
            assert_eq!(keyspace, "ships");
            (found, expected)
        }
        other => panic!("{other:?}"),
    }
}

mod other {
    /// Of the same name, with other fields.
    #[derive(serde::Serialize, serde::Deserialize)]
    pub struct Ship {
        pub built: u16,
        pub masts: u8,
    }
}

#[test]
fn other_types_and_versions_are_refused_and_both_are_named() {
    let db = new();
    db.typed::<(u32, String), Ship>("ships").unwrap();
    let found = "version 1 of records (u32, string) → postcard Ship{built,owners,tonnes}";
    let words = |expected: &str| (found.to_owned(), expected.to_owned());
    let key = refused(db.typed::<(String, u32), Ship>("ships"));
    assert_eq!(key, words("version 1 of records (string, u32) → postcard Ship{built,owners,tonnes}"));
    let value = refused(db.typed::<(u32, String), other::Ship>("ships"));
    assert_eq!(value, words("version 1 of records (u32, string) → postcard Ship{built,masts}"));
    let version = refused(db.typed_with("ships", Schema::<(u32, String), Ship>::new().version(2)));
    assert_eq!(version.1, "version 2 of records (u32, string) → postcard Ship{built,owners,tonnes}");
    let raw = refused(db.typed::<(u32, String), Raw>("ships"));
    assert_eq!(raw.1, "version 1 of records (u32, string) → raw");
    refused(db.typed::<(u32, String), Fixed<[u8; 9]>>("ships"));
    refused(db.typed_with("ships", Schema::<(u32, String), Ship>::new().value_name("vessel")));
    db.typed::<(u32, String), Ship>("ships").unwrap();
    // A derived struct is a tuple.
    db.typed::<(String, u16), u8>("berths").unwrap();
    db.typed::<Berth, u8>("berths").unwrap();
}

#[test]
fn the_schema_is_there_after_reopening_and_after_a_new_name() {
    let volume = Arc::new(Simulated::new(1));
    let db = open(&volume);
    db.typed_with("old", Schema::<String, u16>::new().version(3)).unwrap().insert("fram", 1892).unwrap();
    db.rename_keyspace("old", "ships").unwrap();
    db.close().unwrap();
    let db = open(&volume);
    refused(db.typed::<String, u16>("ships"));
    let ships = db.typed_with("ships", Schema::<String, u16>::new().version(3)).unwrap();
    assert_eq!(ships.get("fram").unwrap(), Some(1892));
}

#[test]
fn records_without_a_schema_are_adopted_only_if_it_is_said() {
    let db = new();
    let plain = db.keyspace("ships").unwrap();
    plain.set_metadata("mine").unwrap();
    plain.insert("fram", [3]).unwrap();
    assert_eq!(refused(db.typed::<Verbatim<String>, u8>("ships")).0, "records and no schema");
    assert_eq!(plain.metadata().unwrap(), b"mine", "nothing was changed");
    let schema = Schema::<Verbatim<String>, u8>::new().adopt();
    let ships = db.typed_with("ships", schema).unwrap();
    assert_eq!((ships.get("fram").unwrap(), ships.metadata().unwrap()), (Some(3), b"mine".to_vec()));
    db.typed::<Verbatim<String>, u8>("ships").unwrap();
}

#[test]
fn an_empty_keyspace_gets_its_schema_and_keeps_its_metadata() {
    let db = new();
    db.keyspace("ships").unwrap().set_metadata("mine").unwrap();
    let ships = db.typed::<u8, u8>("ships").unwrap();
    assert_eq!(ships.metadata().unwrap(), b"mine");
    ships.set_metadata("ours").unwrap();
    refused(db.typed::<u8, u16>("ships"));
    assert_eq!(db.typed::<u8, u8>("ships").unwrap().metadata().unwrap(), b"ours");
    let most = 4096 - 17 - "u8postcard u8".len();
    ships.set_metadata(vec![7; most]).unwrap();
    assert!(matches!(ships.set_metadata(vec![7; most + 1]), Err(Error::ValueTooLong { .. })));
}

/// The options were changed, or all records copied, before it was seen that the schema does not fit beside what the user has set.
#[test]
fn an_opening_that_is_refused_for_its_metadata_changes_nothing() {
    let db = new();
    let plain = db.keyspace("ships").unwrap();
    plain.set_metadata([7; 4090]).unwrap();
    let before = format!("{:?}", plain.options().unwrap());
    let lz4 = || KeyspaceOptions::new().compression(Compression::Lz4);
    let opened = db.typed_with("ships", Schema::<u8, u8>::new().options(lz4()));
    assert!(matches!(opened, Err(Error::ValueTooLong { max: 4096, .. })), "{opened:?}");
    assert_eq!(format!("{:?}", plain.options().unwrap()), before);
    plain.set_metadata("").unwrap();
    let ships = db.typed::<u8, u8>("ships").unwrap();
    ships.insert(1, 1).unwrap();
    ships.set_metadata([7; 4066]).unwrap();
    let wider = Schema::<u8, (u64, String)>::new().version(2);
    let wider = wider.migrate_from(Schema::<u8, u8>::new(), |_, _| unreachable!());
    assert!(matches!(db.typed_with("ships", wider), Err(Error::ValueTooLong { .. })));
    assert_eq!(db.keyspaces(), ["ships"]);
}

#[test]
fn a_damaged_or_newer_schema_is_an_error() {
    let db = new();
    let plain = db.keyspace("ships").unwrap();
    for (metadata, words) in
        [("sapwoodt", "a schema that ends early"), ("sapwoodt\x01\x02", "a schema that cannot be read")]
    {
        plain.set_metadata(metadata).unwrap();
        assert_eq!(refused(db.typed::<u8, u8>("ships")).0, words);
    }
    plain.set_metadata("sapwoodt\x02").unwrap();
    assert!(refused(db.typed::<u8, u8>("ships")).0.contains("newer"));
}

#[test]
fn a_database_that_is_read_only_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ships.db");
    let db = Database::open(&path).unwrap();
    db.typed::<String, u16>("ships").unwrap().insert("fram", 1892).unwrap();
    db.keyspace("empty").unwrap();
    db.keyspace("ships (migrating)").unwrap();
    db.close().unwrap();
    let db = Database::builder().read_only(true).open(&path).unwrap();
    assert_eq!(db.typed::<String, u16>("ships").unwrap().get("fram").unwrap(), Some(1892));
    assert!(db.typed::<String, u16>("empty").unwrap().is_empty().unwrap());
    refused(db.typed::<String, u32>("ships"));
    db.close().unwrap();
    // With a copy that a crash has left, and without one.
    for has_copy in [true, false] {
        if !has_copy {
            Database::open(&path).unwrap().drop_keyspace("ships (migrating)").unwrap();
        }
        for builder in [Database::builder().read_only(true), Database::builder().follow(true)] {
            let db = builder.open(&path).unwrap();
            let new = sapwood_typed::Schema::<String, u32>::new().version(2);
            let old = sapwood_typed::Schema::<String, u16>::new();
            let new = new.migrate_from(old, |name, year| Ok(Some((name, u32::from(year)))));
            let (found, expected) = refused(db.typed_with("ships", new));
            assert!(
                found.starts_with("version 1") && expected.starts_with("version 2"),
                "{found}, {expected}"
            );
            assert_eq!(db.contains_keyspace("ships (migrating)"), has_copy);
            db.close().unwrap();
        }
    }
}

/// They could be written, and never read.
#[test]
fn values_that_cannot_be_read_again_are_refused_at_opening() {
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u8),
        Text(String),
    }
    let db = new();
    assert!(matches!(db.typed::<String, Either>("x"), Err(Error::Encode { .. })));
    assert!(matches!(db.typed::<String, Vec<Either>>("x"), Err(Error::Encode { .. })));
    assert!(matches!(db.typed::<String, Option<Vec<Either>>>("x"), Err(Error::Encode { .. })));
    assert!(!db.contains_keyspace("x"));
}

/// A name that says `any` was taken for a type that takes whatever comes.
#[test]
fn names_of_fields_may_have_any_words() {
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    #[serde(rename = "in any case")]
    struct Words {
        #[serde(rename = "if any at all")]
        number: u8,
    }
    let db = new();
    let words = db.typed::<String, Words>("x").unwrap();
    words.insert("k", Words { number: 3 }).unwrap();
    assert_eq!(words.get("k").unwrap(), Some(Words { number: 3 }));
    let lists = db.typed::<String, Vec<Words>>("y").unwrap();
    lists.insert("k", vec![Words { number: 3 }]).unwrap();
}

/// Keys were read with their values, of which one cannot be merged.
#[test]
fn keys_are_those_of_the_plain_range() {
    let db = new();
    let options = sapwood::KeyspaceOptions::new().merge(sapwood::merge::AddU64);
    let counts = db.keyspace_with("counts", options.clone()).unwrap();
    counts.insert(1u32.to_be_bytes(), [7; 3]).unwrap();
    counts.merge(1u32.to_be_bytes(), 1u64.to_le_bytes()).unwrap();
    counts.insert(2u32.to_be_bytes(), 1u64.to_le_bytes()).unwrap();
    let schema = sapwood_typed::Schema::<u32, sapwood_typed::Raw>::new().options(options).adopt();
    let typed = db.typed_with("counts", schema).unwrap();
    let keys = typed.iter().keys().collect::<sapwood::Result<Vec<_>>>().unwrap();
    assert_eq!(keys, [1, 2]);
    assert!(typed.iter().next().unwrap().is_err());
}

#[test]
fn records_of_other_types_are_errors_that_say_where() {
    let db = new();
    let ships = db.typed::<(u8, String), u16>("ships").unwrap();
    ships.insert((1, "a"), 1).unwrap();
    ships.keyspace().insert(b"\x02b", [1]).unwrap();
    ships.keyspace().insert(b"\x03c\0", [0x80]).unwrap();
    ships.insert((4, "d"), 4).unwrap();
    let mut range = ships.iter();
    assert_eq!(range.next().unwrap().unwrap().1, 1);
    match range.next().unwrap() {
        Err(Error::Decode { keyspace, key, expected, reason }) => {
            assert_eq!((&keyspace[..], &expected[..]), ("ships", "key (u8, string)"));
            assert_eq!((&key[..], &reason[..]), (&b"\x02b"[..], "at least 1 bytes are missing at its end"));
        }
        other => panic!("{other:?}"),
    }
    match range.next().unwrap() {
        Err(Error::Decode { key, expected, .. }) => {
            assert_eq!((&key[..], &expected[..]), (&b"\x03c\0"[..], "value postcard u16"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(range.next().unwrap().unwrap().1, 4, "it goes on behind them");
    assert!(range.next().is_none());
    let streamed = futures_util::StreamExt::collect::<Vec<_>>(ships.iter().into_stream());
    let is_ok: Vec<_> = futures_executor::block_on(streamed).iter().map(Result::is_ok).collect();
    assert_eq!(is_ok, [true, false, false, true]);
    ships.keyspace().insert(b"\x05e\0", [5, 0]).unwrap();
    assert!(
        matches!(ships.get((5, "e")), Err(Error::Decode { reason, .. }) if reason == "1 bytes more than it has")
    );
    ships.remove((5, "e")).unwrap();
    let is_refused = |found: sapwood::Result<Option<u16>>| matches!(found, Err(Error::Decode { .. }));
    assert!(is_refused(ships.get((3, "c"))) && is_refused(ships.take((3, "c"))));
    assert!(is_refused(ships.update((3, "c"), |_| unreachable!())));
    assert!(ships.multi_get([(1, "a"), (3, "c")]).is_err());
    assert!(ships.contains((3, "c")).unwrap(), "what cannot be read stays");
    ships.remove((3, "c")).unwrap();
    ships.remove((1, "a")).unwrap();
    assert!(ships.pop_first().is_err() && ships.pop_last().unwrap().is_some());
    assert_eq!(ships.keyspace().count(..).unwrap(), 1);
}

/// A value whose `Serialize` refuses.
#[derive(Debug, serde::Deserialize)]
struct Refuses;

impl serde::Serialize for Refuses {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("not today"))
    }
}

#[test]
fn a_value_that_refuses_is_an_error_and_nothing_happens() {
    use sapwood_typed::BatchExt;
    let db = new();
    let ships = db.typed::<u8, Refuses>("ships").unwrap();
    let is_refused = |error: Error| matches!(error, Error::Encode { keyspace, .. } if keyspace == "ships");
    assert!(is_refused(ships.insert(1, Refuses).unwrap_err()));
    assert!(is_refused(ships.ingest([(1, Refuses)]).unwrap_err()));
    assert!(is_refused(ships.update(1, |_| Some(Refuses)).err().unwrap()));
    let mut batch = db.batch();
    assert!(is_refused(batch.typed(&ships).insert(1, Refuses).unwrap_err()));
    batch.commit().unwrap();
    assert!(ships.is_empty().unwrap());
}

#[test]
fn keys_whose_bytes_are_none_are_refused() {
    let db = new();
    let ships = db.typed::<Verbatim<String>, u8>("ships").unwrap();
    assert!(matches!(ships.insert("", 1), Err(Error::KeyEmpty)));
    db.typed::<String, u8>("others").unwrap().insert("", 1).unwrap();
}
