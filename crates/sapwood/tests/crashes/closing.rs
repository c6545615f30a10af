//! Closing among writers: what was committed before is durable whatever it asked for, and later commits are refused.

use psync::{FileId, PassThrough, Simulated, Volume};
use sapwood::{Database, Durability, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const WRITERS: u64 = 4;
const ROUNDS: u64 = 12;

fn key(writer: u64, number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&writer.to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// After a sync others have time to write before the one who synced goes on.
struct Slow(Simulated);

impl PassThrough for Slow {
    fn inner(&self) -> &dyn Volume {
        &self.0
    }

    fn sync(&self, file: FileId) -> psync::Result<()> {
        self.inner().sync(file)?;
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    }
}

fn open(volume: Arc<dyn Volume>) -> Database {
    Database::builder().memory(4 << 20).leaf_len(1024).segment_span(1 << 20).open_on(volume).expect("opens")
}

/// Writes single records until a commit is refused, at most as durable as the round says. Returns how many were not.
fn write(db: &Database, writer: u64, round: u64, committed: &AtomicU64) -> u64 {
    let keyspace = db.keyspace("main").expect("a keyspace");
    for number in 0.. {
        let durability = [Durability::None, Durability::Buffered, Durability::Immediate]
            [(number % (1 + round % 3)) as usize];
        let mut batch = db.batch();
        batch.insert(&keyspace, key(writer, number), [writer as u8; 200]);
        match batch.durability(durability).commit() {
            Ok(()) => committed.fetch_add(1, Ordering::Relaxed),
            Err(Error::Closed) => return number,
            Err(error) => panic!("the commit failed because of something else: {error}"),
        };
    }
    unreachable!("it would write for ever")
}

#[test]
fn what_was_committed_before_it_was_closed_is_durable() {
    for round in 0..ROUNDS {
        let volume = Simulated::new(round);
        let db = open(Arc::new(Slow(volume.clone())));
        db.keyspace("main").expect("a keyspace");
        let committed = AtomicU64::new(0);
        // From a few commits in the first queue to several flushes.
        let closes_at = 20 << (round % 9);
        let acknowledged: Vec<_> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (db, committed) = (&db, &committed);
                    scope.spawn(move || write(db, writer, round, committed))
                })
                .collect();
            while committed.load(Ordering::Relaxed) < closes_at {
                std::thread::yield_now();
            }
            db.clone().close().expect("closes");
            writers.into_iter().map(|writer| writer.join().expect("a writer")).collect()
        });
        for seed in 0..4 {
            let after = open(Arc::new(volume.power_loss(seed)));
            let keyspace = after.keyspace("main").expect("a keyspace");
            for (writer, acknowledged) in (0..).zip(&acknowledged) {
                for number in 0..*acknowledged {
                    let found = keyspace.get(key(writer, number)).expect("sound");
                    assert!(found.is_some(), "round {round}: number {number} of writer {writer} is lost");
                }
            }
            after.check().expect("sound");
        }
    }
}
