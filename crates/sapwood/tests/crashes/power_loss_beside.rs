//! Power loss while the next queue is appended beside a flush that still cleanses: scattered changes as fast as they come, with a thread in the background, and
//! the power goes at any write or sync. Values grow and shrink, and for a while most changes are removals, so that blocks are split, joined and given up
//! meanwhile. What is there afterwards is all of the batches up to some point, which is not before what was promised.
//!
//! More of it: `BESIDE_LIVES=5000 cargo test --release -p sapwood --test crashes power_loss_beside`. Which thread comes when differs from run to run.

use crate::scenario;
use psync::{Fault, Filter, Repeat, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const KEYS: u32 = 40_000;
/// Behind all others: what the last batch was.
const COUNTER: [u8; 4] = [0xff; 4];
const BATCHES: u64 = 1500;

fn open(volume: &Simulated) -> Result<Database, Error> {
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    scenario::plain_options().background_threads(4).open_on(volume)
}

/// The keys that a batch writes.
fn keys_of(batch: u64) -> impl Iterator<Item = u32> {
    let hash = move |at: u64| (batch * 150 + at).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    (0..150).map(move |at| hash(at) as u32 % KEYS)
}

/// A value says which batch wrote it. Some write none: they remove their keys.
fn value(batch: u64) -> Option<Vec<u8>> {
    let mut value = batch.to_le_bytes().to_vec();
    value.resize(20 + batch as usize / 30 % 4 * 30, batch as u8);
    let removes = if batch / 60 % 2 == 1 { 4 } else { 1 };
    (batch == 0 || batch % 5 >= removes).then_some(value)
}

fn loaded() -> Simulated {
    let volume = Simulated::new(1);
    let db = open(&volume).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    let record = |key: u32| (key.to_be_bytes(), value(0).unwrap_or_default());
    keyspace.ingest((0..KEYS).map(record)).expect("ingests");
    db.close().expect("closes");
    volume
}

/// Changes that went ahead.
fn life(seed: u64, loaded: &Simulated) -> u64 {
    let volume = loaded.power_loss(seed);
    let mut rng = StdRng::seed_from_u64(seed);
    let nth = rng.random_range(1..6000);
    let story = format!("seed {seed}, off at change {nth}");
    volume.fail_nth(Filter::changes(), nth, Fault::PowerOff, Repeat::Once);
    let (mut durable, mut issued, mut ahead) = (0, 0, 0);
    if let Ok(db) = open(&volume)
        && let Ok(keyspace) = db.keyspace("main")
    {
        for number in 1..=BATCHES {
            let mut batch = db.batch();
            keys_of(number).for_each(|key| {
                match value(number) {
                    Some(value) => batch.insert(&keyspace, key.to_be_bytes(), value),
                    None => batch.remove(&keyspace, key.to_be_bytes()),
                };
            });
            batch.insert(&keyspace, COUNTER, number.to_le_bytes());
            let durability = if rng.random_bool(0.02) { Durability::Immediate } else { Durability::Buffered };
            issued = number;
            if let Err(error) = batch.durability(durability).commit() {
                assert!(volume.is_off(), "{story}: {error}");
                break;
            }
            if durability == Durability::Immediate {
                durable = number;
            }
        }
        ahead = db.stats().writes.changes_ahead;
    }
    let db = open(&volume.power_loss(seed)).unwrap_or_else(|error| panic!("{story}: {error}"));
    let keyspace = db.keyspace("main").expect("a keyspace");
    let number_in = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().expect("a number"));
    let last = keyspace.get(COUNTER).expect("gets").map_or(0, |bytes| number_in(&bytes));
    assert!((durable..=issued).contains(&last), "{story}: {last} is not of {durable}..={issued}");
    let mut found = vec![None; KEYS as usize];
    for record in keyspace.range(..COUNTER) {
        let (key, bytes) = record.unwrap_or_else(|error| panic!("{story}: {error}"));
        let key = u32::from_be_bytes(*key.first_chunk().expect("a key"));
        let number = number_in(&bytes);
        assert_eq!(Some(&bytes[..]), value(number).as_deref(), "{story}: key {key}");
        found[key as usize] = Some(number);
    }
    let mut expected = vec![Some(0); KEYS as usize];
    for number in 1..=last {
        let is_there = value(number).map(|_| number);
        keys_of(number).for_each(|key| expected[key as usize] = is_there);
    }
    assert!(found == expected, "{story}: not what {last} batches leave");
    db.check().unwrap_or_else(|error| panic!("{story}: {error:?}"));
    ahead
}

#[test]
fn what_was_appended_beside_a_flush_is_there_as_a_whole_or_not_at_all() {
    let lives = std::env::var("BESIDE_LIVES").map_or(20, |lives| lives.parse().expect("a number"));
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
