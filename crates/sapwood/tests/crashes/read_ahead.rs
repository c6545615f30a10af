//! A flush in the background with another thread that reads ahead of it: what it finds there is what was written, and a
//! device that fails anywhere ends it with an error, never with two threads that wait for each other.

use crate::scenario::{self, Contents, Workload, open};
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Keyspace};
use std::sync::Arc;

const RECORDS: u32 = 6000;

fn in_background(volume: &Simulated) -> sapwood::Result<Database> {
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    scenario::options().background_threads(4).open_on(volume)
}

/// So many changes at random places, and a flush.
fn round(
    db: &Database,
    keyspace: &Keyspace,
    model: &mut Contents,
    rng: &mut StdRng,
    changes: u32,
) -> sapwood::Result<()> {
    let mut batch = db.batch();
    for _ in 0..changes {
        let key = format!("key{:06}", rng.random_range(0..RECORDS)).into_bytes();
        if rng.random_bool(0.2) {
            batch.remove(keyspace, &key);
            model.remove(&key);
        } else {
            let value = vec![rng.random(); rng.random_range(20..100)];
            batch.insert(keyspace, &key, &value);
            model.insert(key, value);
        }
    }
    batch.durability(Durability::Buffered).commit()?;
    db.flush()
}

#[test]
fn what_was_read_ahead_is_what_was_written() {
    let mut ahead = 0;
    for seed in 0..4 {
        let volume = Simulated::new(seed);
        let db = in_background(&volume).expect("opens");
        let keyspace = db.keyspace("main").expect("is made");
        let (mut model, mut rng) = (Contents::new(), StdRng::seed_from_u64(seed));
        for _ in 0..60 {
            let changes = rng.random_range(100..1200);
            round(&db, &keyspace, &mut model, &mut rng, changes).expect("nothing fails");
        }
        let stats = db.stats();
        let all = keyspace.iter().map(|item| item.map(|(k, v)| (k.to_vec(), v.to_vec())).expect("reads"));
        assert!(all.eq(model), "seed {seed}");
        assert_eq!(stats.reads.pieces_scanned, 0, "seed {seed}: nobody has scanned: {stats}");
        ahead += stats.reads.ahead;
        db.check().unwrap_or_else(|damage| panic!("seed {seed}: {damage}"));
    }
    // Of all together, since a thread that reads ahead may come too late on a busy machine.
    assert!(ahead > 1000, "flushes waited for their own reads: {ahead} nodes were read ahead");
}

#[test]
fn a_device_that_fails_while_it_is_read_ahead_ends_the_flush() {
    let mut fired = 0;
    for (seed, kind) in
        (0..60).zip([OperationKind::Read, OperationKind::Write, OperationKind::Sync].into_iter().cycle())
    {
        // Mapped, the file for followers is not written, of which a failed write harms nothing else.
        let volume = Simulated::new(seed).with_windows();
        let mut workload = Workload::new(seed);
        let db = in_background(&volume).expect("opens");
        workload.run(&db, 200).expect("nothing fails");
        let nth = StdRng::seed_from_u64(seed).random_range(1..60);
        volume.fail_nth(Filter::kinds([kind]), nth, Fault::Error, Repeat::Once);
        let result = workload.run(&db, 400);
        fired += volume.fired();
        // A read of a user may fail and everything goes on; a flush that failed refuses what comes.
        assert!(
            result.is_err() || kind == OperationKind::Read || volume.fired() == 0,
            "seed {seed}: {kind:?}"
        );
        drop(db);
        let story = format!("seed {seed}, {kind:?} {nth}");
        let found = volume.power_loss(seed);
        let db = open(&found).unwrap_or_else(|error| panic!("{story}: {error}"));
        workload.verify(&db, workload.durable, &story);
    }
    assert!(fired > 30, "{fired} faults");
}

/// Writers that are faster than the cleansing: the next queue is frozen before what was due is through, and the rest has to wait.
#[test]
fn a_queue_that_is_full_before_all_is_cleansed_goes_first() {
    let volume = Simulated::new(5);
    let db = in_background(&volume).expect("opens");
    let keyspace = db.keyspace("main").expect("is made");
    let (mut model, mut rng) = (Contents::new(), StdRng::seed_from_u64(5));
    let mut most: f64 = 0.0;
    for number in 0..1200 {
        let mut batch = db.batch();
        for _ in 0..200 {
            let key = format!("key{:06}", rng.random_range(0..10 * RECORDS)).into_bytes();
            let value = vec![number as u8; rng.random_range(20..100)];
            batch.insert(&keyspace, &key, &value);
            model.insert(key, value);
        }
        batch.durability(Durability::Buffered).commit().expect("commits");
        let space = db.stats().space;
        if number > 400 {
            most = most.max(space.logged as f64 / space.live as f64);
        }
        if number % 300 == 0 {
            let all = keyspace.iter().map(|item| item.map(|(k, v)| (k.to_vec(), v.to_vec())).expect("reads"));
            assert!(all.eq(model.clone()), "batch {number}");
        }
    }
    db.flush().expect("flushes");
    let writes = db.stats().writes;
    // How many depends on how fast the writer is, which is what is tried here.
    assert!(writes.flushes > 10 && writes.blocks_cleansed > 100, "{writes:?}");
    assert!(most < 0.45, "{most:.2} of what lives was log pieces");
    let all = keyspace.iter().map(|item| item.map(|(k, v)| (k.to_vec(), v.to_vec())).expect("reads"));
    assert!(all.eq(model), "at the end");
    db.check().unwrap_or_else(|damage| panic!("{damage}"));
}
