//! An encrypted database over power losses and faults at each operation of the volume, from its creation through a change of its key: all
//! that was acknowledged is there, and one of the two keys opens it.

use psync::{Fault, Filter, Repeat, Simulated};
use sapwood::{Database, EncryptionKey, Error, KeyProblem};
use std::collections::BTreeMap;
use std::sync::Arc;

fn open(volume: &Simulated, key: u8) -> sapwood::Result<Database> {
    let builder = Database::builder().memory(4 << 20).leaf_len(512).segment_span(1 << 20);
    let key = EncryptionKey::from_bytes([key; 32]);
    builder.background_threads(0).encryption_key(key).open_on(Arc::new(volume.clone()))
}

/// What was acknowledged.
#[derive(Default)]
struct Promise {
    is_created: bool,
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What was being put.
    under_way: Option<(Vec<u8>, Vec<u8>)>,
    is_changing: bool,
    is_changed: bool,
}

fn story(volume: &Simulated, promise: &mut Promise) -> sapwood::Result<()> {
    let put = |db: &Database, promise: &mut Promise, numbers: std::ops::Range<u32>| {
        let keyspace = db.keyspace("main")?;
        for number in numbers {
            let (key, value) = (number.to_be_bytes().to_vec(), vec![number as u8; 100]);
            promise.under_way = Some((key.clone(), value.clone()));
            keyspace.insert(&key, &value)?;
            promise.records.insert(key, value);
        }
        Ok::<_, Error>(())
    };
    let db = open(volume, 1)?;
    promise.is_created = true;
    put(&db, promise, 0..20)?;
    db.flush()?;
    put(&db, promise, 20..25)?;
    promise.is_changing = true;
    db.change_encryption_key(&EncryptionKey::from_bytes([2; 32]))?;
    promise.is_changed = true;
    put(&db, promise, 10..30)?;
    db.flush()?;
    put(&db, promise, 30..35)
}

fn is_wrong<T>(opened: &sapwood::Result<T>) -> bool {
    matches!(opened, Err(Error::EncryptionKey { problem: KeyProblem::Wrong, .. }))
}

/// Checks what is found on the volume.
fn is_kept(volume: &Simulated, promise: &Promise, story: &str) {
    let (old, new) = if promise.is_changed {
        let old = open(volume, 1);
        assert!(is_wrong(&old), "{story}: the old key: {old:?}");
        (old, open(volume, 2))
    } else {
        let old = open(volume, 1);
        if old.is_ok() {
            (old, Err(Error::Closed))
        } else {
            assert!(is_wrong(&old) && promise.is_changing, "{story}: {old:?}");
            (old, open(volume, 2))
        }
    };
    let db = new.or(old).unwrap_or_else(|error| panic!("{story}: {error}"));
    let keyspace = db.keyspace("main").expect("a keyspace");
    let mut found: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for item in keyspace.iter() {
        let (key, value) = item.unwrap_or_else(|error| panic!("{story}: {error}"));
        found.insert(key.to_vec(), value.to_vec());
    }
    if let Some((key, value)) = &promise.under_way
        && !promise.records.contains_key(key)
        && found.get(key) == Some(value)
    {
        found.remove(key);
    }
    assert!(found == promise.records, "{story}: {} of {} records", found.len(), promise.records.len());
    db.check().unwrap_or_else(|error| panic!("{story}: {error}"));
    keyspace.insert("after", "all").expect("it can be written");
}

/// The story with a fault at each operation of the volume, until it passes. `after`: what is found then.
fn at_each(fault: Fault, after: impl Fn(&Simulated, u64) -> Simulated) {
    for nth in 1.. {
        let volume = Simulated::new(nth).with_windows();
        volume.fail_nth(Filter::any(), nth, fault, Repeat::Once);
        let mut promise = Promise::default();
        let result = story(&volume, &mut promise);
        if volume.fired() == 0 {
            assert!(nth > 150, "{nth} operations: {result:?}");
            return;
        }
        volume.clear_faults();
        let found = after(&volume, nth);
        let story = format!("{fault:?} at {nth}: {result:?}");
        if !promise.is_created && promise.records.is_empty() {
            open(&found, 1).unwrap_or_else(|error| panic!("{story}, while it was created: {error}"));
            continue;
        }
        is_kept(&found, &promise, &story);
    }
}

#[test]
fn a_power_loss_at_any_operation_loses_nothing() {
    at_each(Fault::PowerOff, |volume, seed| volume.power_loss(seed));
}

#[test]
fn a_fault_at_any_operation_loses_nothing() {
    at_each(Fault::Error, |volume, _| volume.clone());
    at_each(Fault::NoSpace, |volume, _| volume.clone());
}
