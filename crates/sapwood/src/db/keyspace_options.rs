//! Options of a keyspace, which are stored with it.

use crate::compression::Compression;
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::expiry::DefaultTtl;
use crate::merge::MergeOperator;
use crate::merging::{MergeLimits, Merging, OPERATOR_NAME_MAX};
use crate::version::Tree;
use std::sync::Arc;
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
#[derive(Clone, Debug, Default)]
pub struct KeyspaceOptions {
    expiry: Option<DefaultTtl>,
    merging: Option<Merging>,
    durability: Option<Durability>,
    compression: Option<Compression>,
}

/// Without a compression it is that which databases have by default: see [`is_compressed_by`](KeyspaceOptions::is_compressed_by).
impl PartialEq for KeyspaceOptions {
    fn eq(&self, other: &Self) -> bool {
        let all = |of: &Self| (of.expiry, of.durability, of.is_compressed_by());
        all(self) == all(other) && self.merging == other.merging
    }
}

impl Eq for KeyspaceOptions {}

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

    pub(super) fn of(tree: &Tree) -> Self {
        Self {
            expiry: tree.ttl,
            merging: tree.merging.clone(),
            durability: tree.durability,
            compression: Some(tree.compressor.compression),
        }
    }

    /// Whether any option was said. Options that say what is the default anyway are not equal to none: a keyspace that exists may have another.
    pub(super) fn say_something(&self) -> bool {
        self.expiry.is_some()
            || self.merging.is_some()
            || self.durability.is_some()
            || self.compression.is_some()
    }

    /// The durability, if one was said.
    pub(super) fn own_durability(&self) -> Option<Durability> {
        self.durability
    }

    /// The compression that was asked for.
    pub(super) fn own_compression(&self) -> Option<Compression> {
        self.compression
    }

    pub(super) fn merging(&self) -> Option<&Merging> {
        self.merging.as_ref()
    }

    /// Returns an error for options that no keyspace can have.
    pub(super) fn check(&self) -> Result<()> {
        let name_len = self.merging.as_ref().map_or(1, |merging| merging.name().len());
        if !(1..=OPERATOR_NAME_MAX).contains(&name_len) {
            let range = format!("the name of a merge operator has 1 to {OPERATOR_NAME_MAX} bytes");
            return Err(Error::BadOption { option: "merge", value: name_len as u64, range });
        }
        if self.expiry.is_some() && self.merging.is_some() {
            let range = "records of a keyspace with a merge operator cannot expire".into();
            return Err(Error::BadOption { option: "merge", value: 1, range });
        }
        self.compression.map_or(Ok(()), Compression::check)
    }

    pub(super) fn expiry(&self) -> Option<DefaultTtl> {
        self.expiry
    }

    /// What is [merged](crate::Keyspace::merge) into records is put together with their values by this operator: see
    /// [`merge`](crate::merge). It costs a byte a record, up to eleven for one that was merged, and can be said only when the
    /// keyspace is created. Records of such a keyspace cannot expire, and single ones are not cached, only the leaves that they
    /// are in.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("pages.db"))?;
    /// use sapwood::{KeyspaceOptions, merge};
    ///
    /// let hits = db.keyspace_with("hits", KeyspaceOptions::new().merge(merge::AddU64))?;
    /// hits.merge("index.html", 1u64.to_be_bytes())?;
    /// assert_eq!(hits.options()?, KeyspaceOptions::new().merge(merge::AddU64));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn merge(mut self, operator: impl MergeOperator) -> Self {
        self.merging = Some(Merging::new(Arc::new(operator), MergeLimits::default()));
        self
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
        self.expiry = self.expiry.or_else(|| Some(DefaultTtl::default()));
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
        self.expiry = Some(DefaultTtl::of(Some(life)));
        self
    }

    /// Single changes ([`insert`](crate::Keyspace::insert) and others) are so durable when they return, in place of the database's
    /// [durability](crate::Builder::durability), by handles that are not [told otherwise](crate::Keyspace::with_durability). A
    /// handle keeps what it began with: a change of the option holds for handles that are made later. Batches and transactions, which may
    /// change several keyspaces, have the database's unless they are told.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::{Durability, KeyspaceOptions};
    ///
    /// db.keyspace_with("sightings", KeyspaceOptions::new().durability(Durability::Buffered))?;
    /// let sightings = db.keyspace("sightings")?; // also after the database was opened again
    /// sightings.insert("fram", "off Lofoten")?; // does not wait for the device
    /// assert_eq!(sightings.durability(), Durability::Buffered);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// How leaves and log pieces are compressed that are written from now on: those that are there stay as they are until they are written again.
    /// Without this option a keyspace has the database's ([`Builder::compression`](crate::Builder::compression)) when it is created, and keeps what it has.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::{Compression, KeyspaceOptions};
    ///
    /// let logbooks = db.keyspace_with("logbooks", KeyspaceOptions::new().compression(Compression::Lz4))?;
    /// let portraits = db.keyspace_with("portraits", KeyspaceOptions::new().compression(Compression::None))?; // JPEG
    /// assert_eq!(logbooks.options()?.is_compressed_by(), Compression::Lz4);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Of [`keyspace_with`](crate::Database::keyspace_with): [`BadOption`](crate::Error::BadOption) if there is no such level, or the program was built
    /// without the feature `zstd`.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// How leaves and log pieces are compressed; [`Compression::Lz4`], as databases do by default, where nothing was said.
    ///
    /// ```
    /// use sapwood::{Compression, KeyspaceOptions};
    ///
    /// assert_eq!(KeyspaceOptions::new().is_compressed_by(), Compression::Lz4);
    /// ```
    pub fn is_compressed_by(&self) -> Compression {
        self.compression.unwrap_or_default()
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
