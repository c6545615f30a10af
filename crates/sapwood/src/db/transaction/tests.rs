//! Transactions: alone, against a model, beside others, and checked for serializability.

mod alone;
mod beside;
mod model;
mod serializable;
mod turn;

use crate::{Database, Keyspace};
use psync::Simulated;
use std::sync::Arc;

/// A database with a budget of 4 MiB on a simulated volume, without a flush thread.
fn open() -> (Database, Keyspace) {
    let db = Database::builder().memory(4 << 20).background_threads(0);
    let db = db.open_on(Arc::new(Simulated::new(1))).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    (db, keyspace)
}

/// Changes a key, not durably.
fn put(db: &Database, keyspace: &Keyspace, key: &str, value: &str) {
    let mut batch = db.batch();
    batch.insert(keyspace, key, value);
    batch.durability(crate::Durability::Buffered).commit().unwrap();
}
