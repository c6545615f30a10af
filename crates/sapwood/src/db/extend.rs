//! Batches take records from iterators.

use crate::db::batch::Batch;
use crate::db::keyspace::Keyspace;

/// Inserts records into the batch, as [`Batch::insert`] each.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// let mut batch = db.batch();
/// batch.extend([("beagle", "1820"), ("fram", "1892")].map(|(name, year)| (&ships, name, year)));
/// batch.commit()?;
/// assert_eq!(ships.count(..)?, 2);
/// # Ok(()) }
/// ```
impl<'k, K: AsRef<[u8]>, V: AsRef<[u8]>> Extend<(&'k Keyspace, K, V)> for Batch {
    fn extend<I: IntoIterator<Item = (&'k Keyspace, K, V)>>(&mut self, records: I) {
        for (keyspace, key, value) in records {
            self.insert(keyspace, key, value);
        }
    }
}
