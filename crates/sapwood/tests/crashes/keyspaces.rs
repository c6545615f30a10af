//! Keyspaces that come and go, are renamed and cleared, with the power lost at a random operation of the device: what is found is
//! the state before or after the call that failed.

use crate::scenario::{self, open};
use psync::{Fault, Filter, Repeat};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Result};
use std::collections::BTreeMap;

/// Metadata and records of each keyspace.
type Contents = BTreeMap<String, (Vec<u8>, BTreeMap<u32, u8>)>;

/// Does one thing to the database, and to the model.
fn step(rng: &mut StdRng, db: &Database, model: &mut Contents) -> Result<()> {
    let name = format!("ks{}", rng.random_range(0..4));
    match rng.random_range(0..13) {
        0 => {
            let was_there = model.remove(&name).is_some();
            assert_eq!(db.drop_keyspace(&name)?, was_there);
        }
        1 => {
            let to = format!("ks{}", rng.random_range(0..6));
            if let (true, false) = (model.contains_key(&name), model.contains_key(&to)) {
                let contents = model.remove(&name).expect("it is there");
                model.insert(to.clone(), contents);
                db.rename_keyspace(&name, &to)?;
            } else if name == to && model.contains_key(&name) {
                db.rename_keyspace(&name, &to)?;
            } else {
                db.rename_keyspace(&name, &to).expect_err("refused");
            }
        }
        2 => {
            let metadata = vec![rng.random(); rng.random_range(0..40)];
            if let Some((of_model, _)) = model.get_mut(&name) {
                of_model.clone_from(&metadata);
                db.keyspace_if_exists(&name)?.expect("it is there").set_metadata(&metadata)?;
            }
        }
        3 => {
            if let Some((_, records)) = model.get_mut(&name) {
                let (from, len) = (rng.random_range(0..3000u32), rng.random_range(1..3000));
                records.retain(|key, _| *key < from || *key >= from + len);
                let keyspace = db.keyspace_if_exists(&name)?.expect("it is there");
                keyspace.remove_range(from.to_be_bytes()..(from + len).to_be_bytes())?;
            }
        }
        4 => db.flush()?,
        5 => {
            let to = format!("ks{}", rng.random_range(0..6));
            if let Some(contents) = model.remove(&name) {
                model.insert(to.clone(), contents);
                db.replace_keyspace(&name, &to)?;
            } else {
                db.replace_keyspace(&name, &to).expect_err("refused");
            }
        }
        6 if rng.random_bool(0.2) => db.compact()?,
        _ => {
            // In two calls, the second of which is what may have happened or not.
            let before = model.entry(name.clone()).or_default();
            let keyspace = db.keyspace(&name)?;
            let mut batch = db.batch();
            let (start, step): (u32, u32) = (rng.random_range(0..3000), rng.random_range(1..4));
            for number in 0..rng.random_range(1..200) {
                let (key, value): (u32, u8) = ((start + number * step) % 3000, rng.random());
                batch.insert(&keyspace, key.to_be_bytes(), [value; 60]);
                before.1.insert(key, value);
            }
            batch.commit()?;
        }
    }
    Ok(())
}

fn found(db: &Database) -> Contents {
    let of = |name: &String| {
        let keyspace = db.keyspace_if_exists(name).expect("sound").expect("it is listed");
        let record = |record: Result<(sapwood::Key, sapwood::Value)>| {
            let (key, value) = record.expect("sound");
            (u32::from_be_bytes(key[..].try_into().expect("four bytes")), value[0])
        };
        (keyspace.metadata().expect("sound"), keyspace.iter().map(record).collect())
    };
    db.keyspaces().iter().map(|name| (name.clone(), of(name))).collect()
}

/// The state before a call creates a keyspace and fails to fill it, if that is what it did.
fn created(before: &Contents, after: &Contents) -> Option<Contents> {
    let mut created = before.clone();
    let new = after.keys().find(|name| !before.contains_key(*name))?;
    created.insert(new.clone(), Default::default());
    Some(created)
}

fn life(seed: u64) -> u64 {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut volume = scenario::volume(seed);
    let mut model = Contents::new();
    let mut points = 0;
    for round in 0..4u64 {
        let most = if rng.random_bool(0.3) { 60 } else { 600 };
        let at = rng.random_range(1..most);
        volume.fail_nth(Filter::any(), at, Fault::PowerOff, Repeat::Once);
        let mut after = model.clone();
        if let Ok(db) = open(&volume) {
            for _ in 0..150 {
                if step(&mut rng, &db, &mut after).is_err() {
                    break;
                }
                model.clone_from(&after);
            }
            let _ = db.close();
        }
        let image = seed * 100 + round;
        let story = format!("seed {seed}, round {round}, power off at operation {at}");
        volume = volume.power_loss(image);
        let db = open(&volume).unwrap_or_else(|error| panic!("{story}: {error}"));
        let found = found(&db);
        let is_known = found == model || found == after || created(&model, &after) == Some(found.clone());
        assert!(is_known, "{story}: {:?}", found.keys());
        db.check().unwrap_or_else(|error| panic!("{story}: {error:?}"));
        db.close().unwrap_or_else(|error| panic!("{story}: {error}"));
        model = found;
        points += 1;
    }
    points
}

#[test]
fn keyspaces_are_there_or_not_as_the_last_call_left_them() {
    let lives = std::env::var("KEYSPACE_LIVES").map_or(120, |lives| lives.parse().expect("a number"));
    let points: u64 = (0..lives).map(life).sum();
    assert_eq!(points, 4 * lives);
}
