//! What errors have in common, for whoever goes on after one.

use super::{DATA, Error};

impl Error {
    /// Whether nothing has happened, for want of disk space, descriptors or memory. The same call can succeed later.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::DiskFull(_) | Self::Exhausted(_))
    }

    /// Whether the only problem was missing disk space. The same call can succeed later.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// while let Err(error) = ships.insert("fram", "1892") {
    ///     if !error.is_disk_full() {
    ///         return Err(error);
    ///     }
    ///     std::thread::sleep(std::time::Duration::from_secs(1)); // until there is space
    /// }
    /// # Ok(()) }
    /// ```
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::DiskFull(_))
    }

    /// Whether a transaction was not committed because of others. The same transaction can succeed if it is begun again.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// loop {
    ///     let mut tx = db.transaction()?;
    ///     let visits = tx.get(&ships, "visits")?.map_or(0, |visits| visits[0]);
    ///     tx.insert(&ships, "visits", [visits + 1])?;
    ///     match tx.commit() {
    ///         Err(error) if error.is_conflict() => continue, // as `transact` does
    ///         committed => break committed?,
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// Whether the error means that the database is damaged, as opposed to busy, full or misused.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// match ships.get("fram") {
    ///     Err(error) if error.is_damage() => eprintln!("restore it from a backup, or repair it: {error}"),
    ///     found => println!("{:?}", found?),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Corrupt { .. } | Self::Damaged { .. } | Self::BackupDamaged { .. })
    }

    /// Whether a node could not be read, or is not what was written. Nothing has changed, and nothing is unknown but what
    /// the node was.
    pub(crate) fn is_of_reading(&self) -> bool {
        match self {
            Self::Io(error) => {
                matches!(&**error, psync::Error::Io { operation: "read", file, .. } if file == DATA)
            }
            Self::Corrupt { file, .. } => file == DATA,
            error => error.is_unsupported(),
        }
    }

    /// Whether nothing else can be read after it either, or each read would have to wait for a device that hangs.
    pub(crate) fn ends_reading(&self) -> bool {
        match self {
            Self::Io(error) => matches!(&**error, psync::Error::Stalled { .. }),
            error => matches!(error, Self::Closed | Self::Forked { .. } | Self::SnapshotTooOld { .. }),
        }
    }
}
