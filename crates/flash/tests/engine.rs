//! The engine runs on a simulated drive unchanged: it loads, flushes, loses power, and finds everything again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use flash::{FtlOptions, Geometry, Profile, RequestKind, Ssd};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sapwood::Database;
use std::sync::Arc;

fn open(drive: &Ssd) -> sapwood::Result<Database> {
    let builder = Database::builder().memory(4 << 20).compression(sapwood::Compression::None);
    builder.open_on(Arc::new(drive.clone()))
}

fn value(key: u32, round: u32) -> Vec<u8> {
    format!("value {key} of round {round} ").repeat(5).into_bytes()
}

#[test]
fn a_database_loads_flushes_loses_power_and_is_found_again() {
    let profile = Profile::ssdsim();
    let geometry = Geometry { blocks_per_plane: 8, pages_per_block: 64, ..profile.geometry };
    let mut drive = Ssd::new(Profile { geometry, ..profile }, FtlOptions::default(), 1).unwrap();
    let mut rounds = vec![0_u32; 5000];
    for round in 1..5 {
        let db = open(&drive).unwrap();
        let data = db.keyspace("data").unwrap();
        for key in 0..rounds.len() as u32 {
            if key % round == 0 {
                data.insert(key.to_be_bytes(), value(key, round)).unwrap();
                rounds[key as usize] = round;
            }
        }
        db.flush().unwrap();
        // Committed and not flushed: in the log alone.
        for key in (0..100).filter(|key| key % round == 0) {
            data.insert(key.to_be_bytes(), value(key, 100 + round)).unwrap();
            rounds[key as usize] = 100 + round;
        }
        drive.cut_power_at(u64::from(round) * 7);
        // These may be found or not.
        let unsure = (4000..5000_u32).find(|key| data.insert(key.to_be_bytes(), b"unsure").is_err()).unwrap();
        let found = drive.power_loss(u64::from(round)).unwrap();
        drop((data, db));
        drive = found;
        let db = open(&drive).unwrap();
        let data = db.keyspace("data").unwrap();
        for key in 0..rounds.len() as u32 {
            let found = data.get(key.to_be_bytes()).unwrap().unwrap();
            let acknowledged = (4000..unsure).contains(&key);
            if key == unsure && found[..] == *b"unsure" || acknowledged {
                assert_eq!(&found[..], b"unsure", "round {round}, key {key}");
                data.insert(key.to_be_bytes(), value(key, rounds[key as usize])).unwrap();
            } else {
                assert_eq!(found[..], value(key, rounds[key as usize]), "round {round}, key {key}");
            }
        }
        db.close().unwrap();
    }
    let counters = drive.flash_counters();
    let reads = drive.latency(RequestKind::Read);
    println!("{counters:?} in {:?}, reads {reads:?}", drive.now());
    assert!(counters.host_programs > 1000 && reads.count > 100 && reads.p50.as_micros() >= 50);
}

/// The power goes at any flash operation: in the log, in a flush, in the drive's own collection. What was acknowledged as durable is
/// there. `FLASH_CUTS` for more.
#[test]
fn acknowledged_puts_survive_power_loss_at_any_flash_operation() {
    let cuts = std::env::var("FLASH_CUTS").map_or(60, |cuts| cuts.parse().unwrap());
    let profile = Profile::ssdsim();
    let geometry = Geometry { channels: 2, planes: 1, blocks_per_plane: 24, ..profile.geometry };
    let profile = Profile { geometry, ..profile };
    let mut rng = SmallRng::seed_from_u64(11);
    let mut drive = Ssd::new(profile, FtlOptions::default(), 1).unwrap();
    let mut known = vec![0_u32; 3000];
    let mut unsure = None;
    for cut in 1..=cuts {
        let story = format!("cut {cut}");
        let db = open(&drive).unwrap_or_else(|error| panic!("{story}: {error}"));
        let data = db.keyspace("data").unwrap();
        for (key, round) in known.iter_mut().enumerate() {
            let found = data.get((key as u32).to_be_bytes()).unwrap();
            if unsure == Some(key) && found.as_deref() == Some(&value(key as u32, cut - 1)[..]) {
                *round = cut - 1;
            }
            let expected = (*round > 0).then(|| value(key as u32, *round));
            assert_eq!(found.as_deref(), expected.as_deref(), "{story}, key {key}");
        }
        let at = rng.random_range(1..=if cut % 3 == 0 { 100 } else { 3000 });
        drive.cut_power_at(at);
        let flush_after = rng.random_range(1..600);
        let lost = (0..).find_map(|number| {
            let key = rng.random_range(0..known.len());
            if let Err(error) = data.insert((key as u32).to_be_bytes(), value(key as u32, cut)) {
                unsure = Some(key);
                return Some(error);
            }
            known[key] = cut;
            if number == flush_after { db.flush().err().inspect(|_| unsure = None) } else { None }
        });
        assert!(drive.is_off(), "{story}: {lost:?}");
        let found = drive.power_loss(u64::from(cut)).unwrap_or_else(|error| panic!("{story}: {error}"));
        drop((data, db));
        drive = found;
    }
    let counters = drive.flash_counters();
    println!("{counters:?}, {:?}", drive.wear());
    assert!(counters.erases > 10 && drive.wear().bad == 0);
}
