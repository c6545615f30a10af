//! Removal of whole ranges: one small record in the log, however many records the range holds. They are gone at once for
//! every reader that begins later; their space comes back with the next flushes.

use crate::KEY_LEN_MAX;
use crate::bounds::{end_at, first_at, is_below};
use crate::db::batch::{Batch, check_key};
use crate::db::key_bounds::KeyBounds;
use crate::db::keyspace::Keyspace;
use crate::db::snapshot::bounds_of_prefix;
use crate::error::Result;
use crate::operation::{KeyRange, put_remove_range};
use bytes::Bytes;
use std::ops::Bound;
use std::sync::Arc;

/// Whether it is right behind a longest key: no key, but where a range can begin or end. The change feed tells of such ranges.
fn is_behind_longest(key: &[u8]) -> bool {
    key.len() == KEY_LEN_MAX + 1 && key.ends_with(&[0])
}

/// Returns the range between two bounds, from a key up to another one that is not in it; `None` if there is no key between them.
/// Returns an error if a bound is longer than a key may be.
pub(crate) fn range_between(low: Bound<&[u8]>, high: Bound<&[u8]>) -> Result<Option<(Bytes, Option<Bytes>)>> {
    match low {
        Bound::Included(key) if key.is_empty() || is_behind_longest(key) => {}
        Bound::Excluded([]) | Bound::Unbounded => {}
        Bound::Included(key) | Bound::Excluded(key) => check_key(key)?,
    }
    match high {
        Bound::Excluded(key) if key.is_empty() || is_behind_longest(key) => {}
        Bound::Included([]) | Bound::Unbounded => {}
        Bound::Included(key) | Bound::Excluded(key) => check_key(key)?,
    }
    let from = first_at(&low.map(Bytes::copy_from_slice));
    let to = end_at(&high.map(Bytes::copy_from_slice));
    Ok(is_below(&from, to.as_ref()).then_some((from, to)))
}

impl Batch {
    /// Removes all records whose keys lie within `bounds`, as of this place in the batch: what is inserted later in the batch
    /// stays. Bounds between which no key lies remove nothing.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// # ships.insert("beagle", "1820")?;
    /// let mut batch = db.batch();
    /// batch.remove_range(&ships, "a"..="f").insert(&ships, "fram", "1892").commit()?;
    /// assert_eq!(ships.iter().count(), 1);
    /// # Ok(()) }
    /// ```
    pub fn remove_range(&mut self, keyspace: &Keyspace, bounds: impl KeyBounds) -> &mut Self {
        self.remove_between(keyspace, bounds.start(), bounds.end())
    }

    /// Removes all records whose keys start with `prefix`. An empty prefix is that of all.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let (users, sessions) = (db.keyspace("users")?, db.keyspace("sessions")?);
    /// db.batch().remove(&users, "nansen").remove_prefix(&sessions, "nansen/").commit()?;
    /// # Ok(()) }
    /// ```
    pub fn remove_prefix(&mut self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> &mut Self {
        let (low, high) = bounds_of_prefix(prefix.as_ref());
        self.remove_between(keyspace, low.as_ref().map(|key| &key[..]), high.as_ref().map(|key| &key[..]))
    }

    /// Removes all records of a keyspace.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// db.batch().clear(&ships).insert(&ships, "fram", "1892").commit()?; // never seen empty
    /// # Ok(()) }
    /// ```
    pub fn clear(&mut self, keyspace: &Keyspace) -> &mut Self {
        self.remove_range(keyspace, ..)
    }

    fn remove_between(&mut self, keyspace: &Keyspace, low: Bound<&[u8]>, high: Bound<&[u8]>) -> &mut Self {
        let checked = self.check_keyspace(keyspace).and_then(|()| range_between(low, high));
        match checked {
            Ok(Some((from, to))) => {
                let range = KeyRange { keyspace: keyspace.id(), from: &from, to: to.as_deref() };
                self.put(|body| put_remove_range(body, range));
            }
            Ok(None) => {}
            Err(error) => self.fail(error),
        }
        self
    }
}

impl Keyspace {
    /// Removes all records whose keys lie within `bounds`, durably and at once: a single small record in the log, whether the
    /// range holds ten records or a billion. Readers that began earlier, snapshots and iterators, still see them. Bounds between
    /// which no key lies remove nothing.
    ///
    /// The next flush drops whole blocks of the range without reading their records, and the space comes back as that of other
    /// removed records does. Until then, and if blocks were dropped beyond it, [`Keyspace::len_estimate`] is less exact.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("events.db"))?;
    /// let events = db.keyspace("events")?;
    /// for day in 0..100u32 {
    ///     events.insert(day.to_be_bytes(), "something happened")?;
    /// }
    /// events.remove_range(..70u32.to_be_bytes())?; // all that is older than thirty days
    /// assert_eq!(events.iter().count(), 30);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::KeyTooLong`](crate::Error::KeyTooLong) for a bound, unless it is what the change feed tells of a range that ends, or begins, right
    /// behind a longest key; and as [`Batch::commit`].
    pub fn remove_range(&self, bounds: impl KeyBounds) -> Result<()> {
        Batch::new(Arc::clone(self.handle()), self.durability())
            .remove_range(self, bounds)
            .commit()
            .map_err(|error| self.named(error))
    }

    /// Removes all records whose keys start with `prefix`, as [`Keyspace::remove_range`]. An empty prefix is that of all.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let sessions = db.keyspace("sessions")?;
    /// sessions.insert("nansen/1", "open")?;
    /// sessions.remove_prefix("nansen/")?;
    /// assert!(sessions.is_empty()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::remove_range`].
    pub fn remove_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<()> {
        Batch::new(Arc::clone(self.handle()), self.durability())
            .remove_prefix(self, prefix)
            .commit()
            .map_err(|error| self.named(error))
    }

    /// Removes all records, as [`Keyspace::remove_range`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// ships.clear()?;
    /// assert!(ships.is_empty()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::remove_range`].
    pub fn clear(&self) -> Result<()> {
        self.remove_range(..)
    }
}
