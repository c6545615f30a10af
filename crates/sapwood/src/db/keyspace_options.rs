//! Options of a keyspace, which are stored with it.

use crate::expiry::DefaultLife;
use std::time::Duration;

/// How a keyspace is to be, for [`Database::keyspace_with`](crate::Database::keyspace_with). What is not said is as in
/// [`Database::keyspace`](crate::Database::keyspace).
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// use sapwood::KeyspaceOptions;
/// use std::time::Duration;
///
/// let day = Duration::from_secs(24 * 3600);
/// let weather = db.keyspace_with("weather", KeyspaceOptions::new().time_to_live(day))?;
/// weather.insert("bergen", "rain")?; // until tomorrow
/// assert_eq!(weather.options()?, KeyspaceOptions::new().time_to_live(day));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceOptions {
    expiry: Option<DefaultLife>,
}

impl KeyspaceOptions {
    /// The options of a keyspace that is created without any.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::KeyspaceOptions;
    ///
    /// let ships = db.keyspace_with("ships", KeyspaceOptions::new())?; // as db.keyspace("ships")
    /// # Ok(()) }
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn of(expiry: Option<DefaultLife>) -> Self {
        Self { expiry }
    }

    pub(super) fn expiry(&self) -> Option<DefaultLife> {
        self.expiry
    }

    /// Records may expire, each at a time of its own ([`Keyspace::insert_expiring`](crate::Keyspace::insert_expiring)); those
    /// inserted otherwise do not. It costs 6 bytes a record, and can be said only when the keyspace is created.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::{Expiry, KeyspaceOptions};
    /// use std::time::Duration;
    ///
    /// let berths = db.keyspace_with("berths", KeyspaceOptions::new().expiring())?;
    /// berths.insert("museum ship", "berth 1")?;
    /// berths.insert_expiring("fram", "berth 7", Expiry::After(Duration::from_secs(60)))?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn expiring(mut self) -> Self {
        self.expiry = self.expiry.or_else(|| Some(DefaultLife::default()));
        self
    }

    /// Records expire so long after they are inserted, at least a millisecond, unless they are inserted
    /// [otherwise](crate::Keyspace::insert_expiring). Each insertion of a key begins anew. Implies
    /// [`expiring`](Self::expiring).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::KeyspaceOptions;
    /// use std::time::Duration;
    ///
    /// let moments = KeyspaceOptions::new().time_to_live(Duration::from_millis(1));
    /// let sightings = db.keyspace_with("sightings", moments)?;
    /// sightings.insert("fram", "off Lofoten")?;
    /// std::thread::sleep(Duration::from_millis(5));
    /// assert!(sightings.is_empty()?);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn time_to_live(mut self, life: Duration) -> Self {
        self.expiry = Some(DefaultLife::of(Some(life)));
        self
    }

    /// Whether records may expire: [`expiring`](Self::expiring) or [`time_to_live`](Self::time_to_live) was said.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::KeyspaceOptions;
    ///
    /// db.keyspace_with("berths", KeyspaceOptions::new().expiring())?;
    /// assert!(db.keyspace("berths")?.options()?.is_expiring());
    /// assert!(!db.keyspace("ships")?.options()?.is_expiring());
    /// # Ok(()) }
    /// ```
    pub fn is_expiring(&self) -> bool {
        self.expiry.is_some()
    }
}
