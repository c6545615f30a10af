//! Records that benchmarks write: random values of 100 bytes under keys of 16, in commits of many.

use rand::Rng;
use rand::rngs::StdRng;
use sapwood::{Database, Durability, Keyspace};
use std::time::{Duration, Instant};

/// Records of a commit.
pub const BATCH: u64 = 1000;

/// A random value.
pub fn value(rng: &mut StdRng) -> [u8; 100] {
    let mut value = [0; 100];
    rng.fill(&mut value[..]);
    value
}

/// Commits `batches` times, buffered, [`BATCH`] records whose keys `next` says, and tells `committed` the number of each commit and
/// how long it took.
pub fn write(
    db: &Database,
    keyspace: &Keyspace,
    batches: u64,
    rng: &mut StdRng,
    mut next: impl FnMut(&mut StdRng) -> [u8; 16],
    mut committed: impl FnMut(u64, Duration),
) -> sapwood::Result<()> {
    for number in 0..batches {
        let mut batch = db.batch();
        for _ in 0..BATCH {
            let key = next(rng);
            batch.insert(keyspace, key, value(rng));
        }
        let began = Instant::now();
        batch.durability(Durability::Buffered).commit()?;
        committed(number, began.elapsed());
    }
    Ok(())
}
