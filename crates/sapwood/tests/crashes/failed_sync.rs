//! A sync fails, the process dies, and another one opens the database and goes on, on a volume that works again. What
//! it promises from then on survives a power loss.
//!
//! On ext4 with its default options durable commits were lost that were made after such an opening: the log was made
//! good in place, which the page cache took, each sync confirmed, and the device never got.

use crate::scenario::{Workload, options};
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use sapwood::{Database, Durability};
use std::sync::Arc;

fn open(volume: &Simulated) -> sapwood::Result<Database> {
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    options().open_on(volume)
}

/// A volume with windows or without, with direct I/O or without: then the data goes through the page cache too.
fn volume(seed: u64) -> Simulated {
    let volume = Simulated::new(seed);
    let volume = if seed.is_multiple_of(2) { volume } else { volume.with_windows() };
    if (seed / 2).is_multiple_of(2) { volume } else { volume.without_direct() }
}

#[test]
fn what_is_promised_after_it_survives_a_power_loss() {
    let (mut failed, mut points) = (0, 0);
    let seeds = std::env::var("FAILED_SYNC_SEEDS").map_or(300, |seeds| seeds.parse().expect("a number"));
    for seed in 0..seeds {
        let mut volume = volume(seed);
        let mut workload = Workload::new(seed);
        for life in 0..3u64 {
            let story = format!("seed {seed}, life {life}");
            let db = open(&volume).unwrap_or_else(|error| panic!("{story}: {error}"));
            let found = workload.verify(&db, workload.written, &story);
            workload.resume(found.0);
            let (kind, file) = match (seed + life) % 4 {
                0 => (OperationKind::SyncDirectory, None),
                1 => (OperationKind::Sync, Some("data")),
                2 => (OperationKind::Sync, Some("manifest")),
                _ => (OperationKind::Sync, Some("wal")),
            };
            let filter = file.into_iter().fold(Filter::kinds([kind]), Filter::file);
            volume.fail_nth(filter, 1 + (seed / 4) % 7, Fault::Error, Repeat::Once);
            failed += u64::from(workload.run(&db, 40).is_err());
            for image in 0..2 {
                let story = format!("{story}, image {image}");
                let found = volume.power_loss(image);
                let db = open(&found).unwrap_or_else(|error| panic!("{story}: {error}"));
                workload.verify(&db, workload.durable, &story);
                points += 1;
            }
            // The process dies.
            volume = volume.crash();
        }
    }
    assert!(failed > seeds * 5 / 6 && points > seeds * 5, "{failed} failed syncs, {points} points");
}

/// The session before it ended properly, so that `CURRENT` named all of the manifest; the one in which it fails wrote nodes and no edit.
#[test]
fn nodes_whose_sync_failed_are_not_written_behind_by_the_next_session() {
    for seed in 0..20 {
        let mut volume = Simulated::new(seed).without_direct();
        let value = |number: u32| [number as u8; 100];
        let fill = |db: &Database, of: u32| {
            let (keyspace, mut batch) = (db.keyspace("main").expect("a keyspace"), db.batch());
            (of..3000)
                .step_by(3)
                .for_each(|number| _ = batch.insert(&keyspace, number.to_be_bytes(), value(number)));
            batch.durability(Durability::Immediate).commit().expect("commits");
        };
        let db = open(&volume).expect("opens");
        fill(&db, 0);
        db.flush().expect("flushes");
        db.close().expect("closes");
        let db = open(&volume).expect("opens");
        fill(&db, 1);
        volume.fail_nth(Filter::kinds([OperationKind::Sync]).file("data"), 1, Fault::Error, Repeat::Once);
        db.flush().expect_err("the sync fails");
        assert_eq!(volume.fired(), 1);
        drop(db);
        volume = volume.crash();
        let db = open(&volume).expect("opens");
        fill(&db, 2);
        db.flush().expect("flushes");
        for image in 0..3 {
            let db = open(&volume.power_loss(image)).expect("opens");
            db.check().unwrap_or_else(|error| panic!("seed {seed}, image {image}: {error}"));
            let found = db.keyspace("main").expect("a keyspace").iter().map(|item| item.expect("a record"));
            assert!(
                found
                    .map(|(key, found)| (key.to_vec(), found.to_vec()))
                    .eq((0..3000u32).map(|number| (number.to_be_bytes().to_vec(), value(number).to_vec())))
            );
        }
    }
}

/// A checker that reads the page cache says sound, and after the next power loss the database does not open.
#[test]
fn a_check_finds_what_it_has_lost() {
    let (mut lost, mut sound) = (0, 0);
    for seed in 0..60 {
        let volume = volume(seed * 4);
        let db = open(&volume).expect("opens");
        let keyspace = db.keyspace("main").expect("a keyspace");
        keyspace.insert("first", [1; 100]).expect("commits");
        volume.fail_nth(Filter::kinds([OperationKind::Sync]).file("wal"), 1, Fault::Error, Repeat::Once);
        let mut batch = db.batch();
        batch.insert(&keyspace, "second", [2; 9000]);
        batch.durability(Durability::Immediate).commit().expect_err("the sync fails");
        match db.check() {
            Ok(_) => sound += 1,
            Err(error) => {
                assert!(error.is_damage(), "seed {seed}: {error}");
                lost += 1;
            }
        }
    }
    assert!(lost > 20 && sound > 0, "{lost} of 60 are lost, {sound} are not");
}
