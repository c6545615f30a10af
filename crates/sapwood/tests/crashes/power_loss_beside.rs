//! Power loss while the next queue is appended beside a flush that still cleanses: scattered updates as fast as they come, with a thread in the background, and
//! the power goes at any write or sync. What is there afterwards is all of the batches up to some point, which is not before what was promised.
//!
//! More of it: `BESIDE_LIVES=5000 cargo test --release -p sapwood --test crashes power_loss_beside`. Which thread comes when differs from run to run.

use crate::scenario;
use psync::{Fault, Filter, Repeat, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const KEYS: u32 = 12_000;
const BATCHES: u64 = 500;

fn open(volume: &Simulated) -> Result<Database, Error> {
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    scenario::options().background_threads(1).open_on(volume)
}

/// The keys that a batch writes.
fn keys_of(batch: u64) -> impl Iterator<Item = u32> {
    (0..150)
        .map(move |at| (batch * 150 + at).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32)
        .map(|hash| hash as u32 % KEYS)
}

/// A value says which batch wrote it.
fn value(batch: u64) -> Vec<u8> {
    let mut value = batch.to_le_bytes().to_vec();
    value.resize(60, batch as u8);
    value
}

fn loaded() -> Simulated {
    let volume = Simulated::new(1);
    let db = open(&volume).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    keyspace.ingest((0..KEYS).map(|key| (key.to_be_bytes(), value(0)))).expect("ingests");
    db.close().expect("closes");
    volume
}

/// Changes that went ahead.
fn life(seed: u64, loaded: &Simulated) -> u64 {
    let volume = loaded.power_loss(seed);
    let mut rng = StdRng::seed_from_u64(seed);
    let nth = rng.random_range(1..6000);
    volume.fail_nth(Filter::changes(), nth, Fault::PowerOff, Repeat::Once);
    let (mut durable, mut issued, mut ahead) = (0, 0, 0);
    if let Ok(db) = open(&volume)
        && let Ok(keyspace) = db.keyspace("main")
    {
        for number in 1..=BATCHES {
            let mut batch = db.batch();
            keys_of(number).for_each(|key| _ = batch.insert(&keyspace, key.to_be_bytes(), value(number)));
            let durability = if rng.random_bool(0.02) { Durability::Immediate } else { Durability::Buffered };
            issued = number;
            if batch.durability(durability).commit().is_err() {
                break;
            }
            if durability == Durability::Immediate {
                durable = number;
            }
        }
        ahead = db.stats().writes.changes_ahead;
    }
    let story = format!("seed {seed}, off at change {nth}");
    let db = open(&volume.power_loss(seed)).unwrap_or_else(|error| panic!("{story}: {error}"));
    let keyspace = db.keyspace("main").expect("a keyspace");
    let found: Vec<u64> = keyspace
        .iter()
        .zip(0..)
        .map(|(record, key): (_, u32)| {
            let (found, bytes) = record.unwrap_or_else(|error| panic!("{story}: {error}"));
            assert_eq!(found[..], key.to_be_bytes(), "{story}");
            let number = u64::from_le_bytes(*bytes.first_chunk().expect("a number"));
            assert_eq!(bytes[..], value(number)[..], "{story}: key {key}");
            number
        })
        .collect();
    let last = found.iter().copied().max().unwrap_or(0);
    assert!((durable..=issued).contains(&last), "{story}: {last} is not of {durable}..={issued}");
    let mut expected = vec![0; KEYS as usize];
    (1..=last).for_each(|number| keys_of(number).for_each(|key| expected[key as usize] = number));
    assert!(found == expected, "{story}: not what {last} batches leave");
    db.check().unwrap_or_else(|error| panic!("{story}: {error:?}"));
    ahead
}

#[test]
fn what_was_appended_beside_a_flush_is_there_as_a_whole_or_not_at_all() {
    let lives = std::env::var("BESIDE_LIVES").map_or(60, |lives| lives.parse().expect("a number"));
    let loaded = loaded();
    let next = AtomicU64::new(0);
    let work = || {
        let seeds = std::iter::repeat_with(|| next.fetch_add(1, Relaxed)).take_while(|seed| *seed < lives);
        seeds.map(|seed| life(seed, &loaded)).sum::<u64>()
    };
    let ahead: u64 = std::thread::scope(|scope| {
        let workers = [(); 2].map(|()| scope.spawn(work));
        workers.into_iter().map(|worker| worker.join().expect("no worker fails")).sum()
    });
    println!("{ahead} changes went ahead");
    assert!(ahead > lives * 1000, "{ahead} changes went ahead");
}
