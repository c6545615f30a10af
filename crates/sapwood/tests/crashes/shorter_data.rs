//! Power loss and kills while the data file becomes shorter, after most records were removed: everything that was durable
//! is there, the file that is found is long enough, and it grows again.

use crate::scenario::plain_options as options;
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use sapwood::{Database, Durability, Keyspace, Result};
use std::sync::Arc;

const RECORDS: u32 = 40_000;
/// One in so many stays.
const STAYS: u32 = 40;
/// Points of the whole way at which the power goes.
fn points() -> u64 {
    std::env::var("SHORTER_POINTS").map_or(6, |points| points.parse().expect("a number"))
}

fn open(volume: &Simulated) -> Result<(Database, Keyspace)> {
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    let db = options().open_on(volume)?;
    let keyspace = db.keyspace("main")?;
    Ok((db, keyspace))
}

fn key(number: u32) -> [u8; 4] {
    number.wrapping_mul(2_654_435_769).to_be_bytes()
}

fn put(db: &Database, keyspace: &Keyspace, value: u8) -> Result<()> {
    for start in (0..RECORDS).step_by(500) {
        let mut batch = db.batch();
        (start..start + 500).for_each(|number| {
            batch.insert(keyspace, key(number), [value; 150]);
        });
        batch.durability(Durability::Buffered).commit()?;
    }
    db.flush()
}

/// Removes durably, and has the file cut off. Counts the batches that were acknowledged.
fn remove(db: &Database, keyspace: &Keyspace, acknowledged: &mut u32) -> Result<()> {
    for start in (0..RECORDS).step_by(500) {
        let mut batch = db.batch();
        (start..start + 500).filter(|number| number % STAYS > 0).for_each(|number| {
            batch.remove(keyspace, key(number));
        });
        batch.durability(Durability::Immediate).commit()?;
        *acknowledged += 1;
    }
    db.compact()
}

fn len(volume: &Simulated) -> u64 {
    let entries = Volume::list(volume).expect("a list");
    entries.iter().find(|entry| entry.name == "data").expect("the data").len
}

fn grown() -> Simulated {
    let volume = Simulated::new(1);
    let (db, keyspace) = open(&volume).expect("opens");
    put(&db, &keyspace, 1).expect("commits");
    drop((keyspace, db));
    volume
}

fn verify(found: &Simulated, acknowledged: u32, story: &str) {
    let (db, keyspace) = open(found).unwrap_or_else(|error| panic!("{story}: {error}"));
    for number in 0..RECORDS {
        let is_there = keyspace.get(key(number)).expect("reads").is_some();
        let must_stay = number % STAYS == 0 || number / 500 > acknowledged;
        assert!(is_there || !must_stay, "{story}: record {number} is lost");
        assert!(!is_there || must_stay || number / 500 >= acknowledged, "{story}: record {number} is back");
    }
    db.check().unwrap_or_else(|error| panic!("{story}: {error}"));
    put(&db, &keyspace, 2).expect("commits");
    db.check().unwrap_or_else(|error| panic!("{story}: {error}"));
    assert_eq!(keyspace.iter().count(), RECORDS as usize, "{story}");
    db.close().expect("closes");
}

#[test]
fn nothing_is_lost_while_the_data_file_becomes_shorter() {
    let volume = grown();
    let (grown, before, begins) = (volume.crash(), len(&volume), volume.operations());
    let (db, keyspace) = open(&volume).expect("opens");
    remove(&db, &keyspace, &mut 0).expect("removes");
    assert!(len(&volume) < before / 3 * 2, "{} of {before} bytes", len(&volume));
    let (operations, mut shortened) = (volume.operations() - begins, 0);
    drop((keyspace, db));
    let cut = || Filter::kinds([OperationKind::Resize]).file("data");
    let points = points();
    for point in 0..points {
        let (volume, mut acknowledged) = (grown.crash(), 0);
        match point % 4 {
            // At a cut, or right after it.
            0 => volume.fail_nth(cut(), 1 + point / 4, Fault::PowerOff, Repeat::Once),
            1 => volume.fail_nth(cut(), 1 + point / 4, Fault::Error, Repeat::Sticky),
            _ => {
                let at = 1 + point * operations / points;
                volume.fail_nth(Filter::any(), at, Fault::PowerOff, Repeat::Once);
            }
        }
        if let Ok((db, keyspace)) = open(&volume) {
            let _ = remove(&db, &keyspace, &mut acknowledged);
        }
        shortened += u64::from(len(&volume.crash()) < before);
        volume.clear_faults();
        for (image, found) in [volume.power_loss(point), volume.crash()].into_iter().enumerate() {
            verify(&found, acknowledged, &format!("point {point}, image {image}"));
        }
    }
    assert!(shortened > points / 8, "{shortened}");
}
