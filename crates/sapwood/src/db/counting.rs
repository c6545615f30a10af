//! The number of records of a range, counted: keyspaces hold no exact number. [`crate::db::len_estimate`] reads hardly anything for one
//! that is nearly right.
//!
//! Invariant: what is counted is as of one moment.

use crate::db::key_bounds::KeyBounds;
use crate::db::keyspace::Keyspace;
use crate::db::snapshot::Snapshot;
use crate::error::Result;

impl Snapshot {
    /// The number of records whose keys lie within `bounds`. As [`Keyspace::count`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let before = db.snapshot();
    /// ships.insert("fram", "1892")?;
    /// assert_eq!(before.count(&ships, ..)?, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn count(&self, keyspace: &Keyspace, bounds: impl KeyBounds) -> Result<u64> {
        let (mut range, mut count) = (self.range(keyspace, bounds).of_keys(), 0);
        while let Some(record) = range.next_ref() {
            record?;
            count += 1;
        }
        Ok(count)
    }
}

impl Keyspace {
    /// The number of records whose keys lie within `bounds`. Reads them all, ahead and in parallel, as a scan that copies nothing; so the device
    /// is busy. Of what is cached, several threads can count parts of one [`Snapshot`](Snapshot::count). [`Keyspace::len_estimate`] and
    /// [`Keyspace::range_estimate`] read hardly anything.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// for name in ["beagle", "fram", "titanic"] {
    ///     ships.insert(name, "afloat")?;
    /// }
    /// assert_eq!((ships.count(..)?, ships.count("c"..)?, ships.count("x".."a")?), (3, 2, 0));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn count(&self, bounds: impl KeyBounds) -> Result<u64> {
        Snapshot::new(self.handle().clone()).count(self, bounds)
    }
}
