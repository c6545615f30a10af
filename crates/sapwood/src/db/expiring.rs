//! Keyspaces whose records may expire: how they are created, and what is done with the times of their records.

use crate::db::batch::Batch;
use crate::db::keyspace::Keyspace;
use crate::db::keyspace_with::publish_options;
use crate::db::transaction::{Transaction, retry};
use crate::error::{Error, Result};
use crate::expiry::{DefaultTtl, Expiry, Stamp};
use crate::version::edit::Edit;
use std::sync::Arc;
use std::time::Duration;

impl Keyspace {
    /// Sets, durably, how long records live that are inserted from now on without saying so; `None`: until they are removed.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::{Expiry, KeyspaceOptions};
    /// use std::time::Duration;
    ///
    /// let weather = db.keyspace_with("weather", KeyspaceOptions::new().time_to_live(Duration::from_secs(60)))?;
    /// weather.set_time_to_live(None)?;
    /// weather.insert("bergen", "rain")?;
    /// assert_eq!(weather.expiry("bergen")?, Some(Expiry::Never));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoExpiry`]; [`Error::KeyspaceDropped`]; [`Error::ReadOnly`]; [`Error::Poisoned`]; [`Error::Closed`];
    /// [`Error::DiskFull`]; [`Error::Io`].
    pub fn set_time_to_live(&self, life: Option<Duration>) -> Result<()> {
        let engine = &self.handle().engine;
        engine.health.check_process()?;
        if self.values().clock().is_none() {
            return Err(self.no_expiry());
        }
        let _catalog = self.handle().creation.catalog.lock();
        self.check_there()?;
        let ttls = vec![(self.id(), DefaultTtl::of(life))];
        publish_options(engine, Edit { ttls, ..Edit::default() })
    }

    /// Like [`insert`](Self::insert), for a record that expires as said, whatever the keyspace's default is.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::{Expiry, KeyspaceOptions};
    /// use std::time::Duration;
    ///
    /// let berths = db.keyspace_with("berths", KeyspaceOptions::new().expiring())?;
    /// berths.insert_expiring("fram", "berth 7", Expiry::After(Duration::from_secs(3600)))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert). [`Error::NoExpiry`] if the keyspace was not created for it.
    pub fn insert_expiring(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> Result<()> {
        let mut batch = Batch::new(Arc::clone(self.handle()), self.durability());
        batch.insert_expiring(self, key, value, expiry);
        batch.commit().map_err(|error| self.named(error))
    }

    /// When the record of `key` expires; `None` if there is no such record, or it has expired.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood::{Expiry, KeyspaceOptions};
    /// # use std::time::{Duration, SystemTime};
    /// let berths = db.keyspace_with("berths", KeyspaceOptions::new().expiring())?;
    /// let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    /// berths.insert_expiring("fram", "berth 7", Expiry::At(noon))?;
    /// assert_eq!(berths.expiry("fram")?, Some(Expiry::At(noon)));
    /// assert_eq!(berths.expiry("beagle")?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn expiry(&self, key: impl AsRef<[u8]>) -> Result<Option<Expiry>> {
        let stored = self.get_stored(key.as_ref())?;
        stored.map_or(Ok(None), |stored| self.values().expiry(&stored))
    }

    /// Lets the record of `key` expire at another time, and leaves its value as it is. Nothing comes between. Returns whether
    /// there is such a record.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood::{Expiry, KeyspaceOptions};
    /// # use std::time::Duration;
    /// # let hour = Duration::from_secs(3600);
    /// let berths = db.keyspace_with("berths", KeyspaceOptions::new().time_to_live(hour))?;
    /// berths.insert("fram", "berth 7")?;
    /// assert!(berths.set_expiry("fram", Expiry::After(24 * hour))?);
    /// assert!(!berths.set_expiry("beagle", Expiry::Never)?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`insert_expiring`](Self::insert_expiring) and [`get`](Self::get).
    pub fn set_expiry(&self, key: impl AsRef<[u8]>, expiry: Expiry) -> Result<bool> {
        retry::transact(self.handle(), self.durability(), |tx| tx.set_expiry(self, &key, expiry))
    }

    /// The stamp of a record that is inserted now, without saying when it expires; `None` if values have no stamps.
    pub(super) fn default_stamp(&self) -> Option<Stamp> {
        let clock = self.values().clock()?;
        let state = self.handle().engine.state.load();
        let life = state.version.trees.get(&self.id()).and_then(|tree| tree.ttl).unwrap_or_default();
        Some(life.expiry().stamp(clock.now()))
    }

    fn stamp(&self, expiry: Expiry) -> Result<Stamp> {
        let clock = self.values().clock().ok_or_else(|| self.no_expiry())?;
        Ok(expiry.stamp(clock.now()))
    }

    fn no_expiry(&self) -> Error {
        Error::NoExpiry { keyspace: self.name().into() }
    }
}

impl Batch {
    /// Like [`insert`](Self::insert), for a record that expires as said, whatever the keyspace's default is. What is meant by
    /// [`Expiry::After`] is the time of this call.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood::{Expiry, KeyspaceOptions};
    /// # use std::time::Duration;
    /// let berths = db.keyspace_with("berths", KeyspaceOptions::new().expiring())?;
    /// db.batch().insert_expiring(&berths, "fram", "7", Expiry::After(Duration::from_secs(60))).commit()?;
    /// # Ok(()) }
    /// ```
    pub fn insert_expiring(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> &mut Self {
        match keyspace.stamp(expiry) {
            Ok(stamp) => self.insert_stamped(keyspace, key.as_ref(), Some(stamp), value.as_ref()),
            Err(error) => self.fail(error),
        }
        self
    }
}

impl Transaction {
    /// Like [`insert`](Self::insert), for a record that expires as said, whatever the keyspace's default is. What is meant by
    /// [`Expiry::After`] is the time of this call.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood::{Expiry, KeyspaceOptions};
    /// # use std::time::Duration;
    /// # let berths = db.keyspace_with("berths", KeyspaceOptions::new().expiring())?;
    /// db.transact(|tx| tx.insert_expiring(&berths, "fram", "7", Expiry::After(Duration::from_secs(60))))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert). [`Error::NoExpiry`] if the keyspace was not created for it.
    pub fn insert_expiring(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> Result<()> {
        self.insert_stamped(keyspace, key.as_ref(), Some(keyspace.stamp(expiry)?), value.as_ref())
    }

    /// When the record of `key` expires, as [`Keyspace::expiry`]. The key counts as read.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood::{Expiry, KeyspaceOptions};
    /// # let berths = db.keyspace_with("berths", KeyspaceOptions::new().expiring())?;
    /// let mut tx = db.transaction()?;
    /// tx.insert(&berths, "fram", "7")?;
    /// assert_eq!(tx.expiry(&berths, "fram")?, Some(Expiry::Never));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn expiry(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Expiry>> {
        let stored = self.get_stored(keyspace, key.as_ref())?;
        stored.map_or(Ok(None), |stored| keyspace.values().expiry(&stored))
    }

    /// Lets the record of `key` expire at another time, as [`Keyspace::set_expiry`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # use sapwood::{Expiry, KeyspaceOptions};
    /// # let berths = db.keyspace_with("berths", KeyspaceOptions::new().expiring())?;
    /// assert!(!db.transact(|tx| tx.set_expiry(&berths, "fram", Expiry::Never))?); // there is none
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`insert_expiring`](Self::insert_expiring).
    pub fn set_expiry(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, expiry: Expiry) -> Result<bool> {
        let stamp = keyspace.stamp(expiry)?;
        let Some(value) = self.get(keyspace, key.as_ref())? else { return Ok(false) };
        self.insert_stamped(keyspace, key.as_ref(), Some(stamp), &value)?;
        Ok(true)
    }
}
