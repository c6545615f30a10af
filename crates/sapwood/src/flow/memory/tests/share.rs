//! How long a queue may be follows what the cache would do with the memory.

use crate::flow::opq_tuning::WorkloadCounts;
use crate::{Database, Keyspace};
use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::{Duration, Instant};

const RECORDS: u32 = 30_000;

fn write(db: &Database, keyspace: &Keyspace, rng: &mut StdRng) {
    let mut batch = db.batch();
    for _ in 0..500 {
        batch.insert(keyspace, rng.random_range(0..RECORDS).to_be_bytes(), [7; 200]);
    }
    batch.commit().unwrap();
}

#[test]
fn queues_are_short_while_records_that_are_read_again_need_the_memory() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(8 << 20).open_on(volume).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let mut rng = StdRng::seed_from_u64(1);
    let engine = &db.handle.engine;
    let most = engine.shares.queue;
    let length = || engine.memory.opq_tuning.most(&engine.shares);
    assert_eq!((length(), db.stats().memory.queue_max), (most, most as u64));
    let until = Instant::now() + Duration::from_secs(60);
    while length() > most / 10 * 8 {
        assert!(
            Instant::now() < until,
            "records are read again, and queues stay as they are:\n{}",
            db.stats()
        );
        write(&db, &keyspace, &mut rng);
        // Many of them do not fit.
        for _ in 0..2000 {
            keyspace.get(rng.random_range(0..RECORDS).to_be_bytes()).unwrap();
        }
    }
    assert!(db.stats().memory.queue_max <= length() as u64);
    let until = Instant::now() + Duration::from_secs(60);
    while length() < most / 10 * 9 {
        assert!(Instant::now() < until, "nobody reads, and queues stay short:\n{}", db.stats());
        write(&db, &keyspace, &mut rng);
    }
}

#[test]
fn short_queues_do_not_become_shorter_beside_one_that_somebody_holds() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(32 << 20).background_threads(0).open_on(volume).unwrap();
    let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
    (0..4).for_each(|round| write(&db, &keyspace, &mut StdRng::seed_from_u64(round)));
    let queue_max = || engine.memory.queue_max(&engine.state.load());
    for flush in 1..20 {
        let seen = WorkloadCounts { runs: 0, missed: flush << 50 };
        engine.memory.opq_tuning.flushed(Some(queue_max()), seen, &engine.shares);
    }
    let short = queue_max();
    assert!(short < engine.shares.queue / 3);
    let snapshot = db.snapshot();
    db.flush().unwrap();
    assert!(engine.memory.old_queues() > 0);
    assert_eq!(queue_max(), short);
    drop(snapshot);
}
