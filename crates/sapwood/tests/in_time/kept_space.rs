//! Space that a flush in the background keeps for the next one: it goes back when nobody writes, after a compaction, at the end, and when
//! the log needs it.

use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Error, Keyspace};
use std::sync::Arc;
use std::time::{Duration, Instant};

const RECORDS: u32 = 40_000;
/// Bytes that blocks of files, and the writer's open segment, take beyond what they hold.
const SLACK: u64 = 300 << 10;

struct Store {
    keyspace: Keyspace,
    db: Database,
    volume: Simulated,
    rng: StdRng,
}

impl Store {
    /// Overwritten at random, with log pieces in most blocks, and no queue.
    fn new() -> Self {
        let volume = Simulated::new(1);
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let options = Database::builder()
            .compression(sapwood::Compression::None)
            .memory(8 << 20)
            .segment_span(1 << 20)
            .background_threads(1);
        let db = options.open_on(shared).expect("opens");
        let keyspace = db.keyspace("main").expect("a keyspace");
        let mut store = Self { keyspace, db, volume, rng: StdRng::seed_from_u64(1) };
        let records = (0..RECORDS).map(|number| (number.to_be_bytes(), [1; 100]));
        store.keyspace.ingest(records).expect("ingests");
        store.overwrite(8000);
        store.db.flush().expect("flushes");
        store
    }

    fn overwrite(&mut self, count: usize) {
        for _ in 0..count.div_ceil(500) {
            self.put(count.min(500)).expect("commits");
        }
    }

    fn put(&mut self, count: usize) -> Result<(), Error> {
        let mut batch = self.db.batch();
        for _ in 0..count {
            batch.insert(&self.keyspace, self.rng.random_range(0..RECORDS).to_be_bytes(), [2; 100]);
        }
        batch.durability(Durability::Buffered).commit()
    }

    /// Flushes until space is kept, and somebody sees it before a machine that is busy elsewhere has let the moment pass. Says how many bytes
    /// it is, and how many the volume has in all.
    fn flush_and_keep(&mut self) -> (u64, u64) {
        for _ in 0..20 {
            self.overwrite(8000);
            self.db.flush().expect("flushes");
            let (used, kept) = (self.volume.used(), self.kept());
            if kept > 2 * SLACK {
                return (kept, used);
            }
        }
        panic!("nothing is kept for the next flush");
    }

    /// Bytes that files have beyond what they hold.
    fn kept(&self) -> u64 {
        let space = self.db.stats().space;
        self.volume.used().saturating_sub(space.used + space.log + space.manifest + space.reserve)
    }
}

#[test]
fn what_a_compaction_sets_free_goes_back_though_no_flush_comes_after_it() {
    let store = Store::new();
    // The longer nobody does anything, the more seldom the background thread looks: in six seconds or more now.
    std::thread::sleep(Duration::from_millis(8500));
    store.db.compact().expect("compacts");
    let began = Instant::now();
    while store.kept() > SLACK {
        assert!(began.elapsed() < Duration::from_secs(5), "{} bytes are kept", store.kept());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_a_flush_keeps_goes_back_at_the_end() {
    let mut store = Store::new();
    let (kept, used) = store.flush_and_keep();
    let Store { keyspace, db, volume, .. } = store;
    drop(keyspace);
    db.close().expect("closes");
    assert!(
        used - volume.used() > kept - SLACK,
        "{kept} bytes were kept, {} went back",
        used - volume.used()
    );
}

#[test]
fn a_commit_gets_the_space_that_is_kept_for_a_flush() {
    let mut store = Store::new();
    let (kept, _) = store.flush_and_keep();
    store.volume.set_capacity(store.volume.used());
    store.put(200).expect("there is space, though it is kept");
    assert!(store.kept() + SLACK < kept, "{kept} bytes were kept, {} are", store.kept());
}
