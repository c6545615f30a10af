//! What has how much of the memory, counted.

mod cache;
mod free_list;
mod old_queues;
mod read_buffers;

use crate::Database;
use crate::db::engine::Engine;
use psync::{Simulated, Volume};
use std::sync::Arc;

/// A database with a budget of 32 MiB, and what writes so many records of 200 bytes to it.
fn writing(threads: usize) -> (Database, impl FnMut(usize, usize)) {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(32 << 20).background_threads(threads).open_on(volume).unwrap();
    let (keyspace, shared, mut number) = (db.keyspace("main").unwrap(), db.clone(), 0u64);
    let write = move |records: usize, len: usize| {
        let mut batch = shared.batch();
        for _ in 0..records {
            batch.insert(&keyspace, (number * 7919).to_be_bytes(), vec![1; len]);
            number += 1;
        }
        batch.commit().unwrap();
    };
    (db, write)
}

fn queues(engine: &Engine) -> usize {
    engine.state.load().queues().map(|queue| queue.memory()).sum()
}
