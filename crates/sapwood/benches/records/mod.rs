//! Records that benchmarks write: random values, of 100 bytes unless told, under keys of 16, in commits of many.

#![allow(dead_code, reason = "each benchmark uses a part of it")]

use rand::Rng;
use rand::rngs::StdRng;
use sapwood::{Database, Durability, Keyspace};
use std::time::{Duration, Instant};

/// Records of a commit.
pub const BATCH: u64 = 1000;

/// Bytes of a value, where nobody asks for another length.
pub const VALUE_LEN: usize = 100;

/// A random value.
pub fn value(rng: &mut StdRng) -> [u8; VALUE_LEN] {
    let mut value = [0; VALUE_LEN];
    rng.fill(&mut value[..]);
    value
}

/// Commits `batches` times, buffered, [`BATCH`] records with values of `value_len` bytes whose keys `next` says, and tells `committed`
/// the number of each commit and how long it took.
pub fn write(
    db: &Database,
    keyspace: &Keyspace,
    batches: u64,
    value_len: usize,
    rng: &mut StdRng,
    mut next: impl FnMut(&mut StdRng) -> [u8; 16],
    mut committed: impl FnMut(u64, Duration),
) -> sapwood::Result<()> {
    let mut value = vec![0; value_len];
    for number in 0..batches {
        let mut batch = db.batch();
        for _ in 0..BATCH {
            let key = next(rng);
            rng.fill(&mut value[..]);
            batch.insert(keyspace, key, &value);
        }
        let began = Instant::now();
        batch.durability(Durability::Buffered).commit()?;
        committed(number, began.elapsed());
    }
    Ok(())
}
