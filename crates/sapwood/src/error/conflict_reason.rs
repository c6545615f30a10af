//! Why a transaction conflicts.

/// Why a transaction conflicts with others.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// use sapwood::{ConflictReason, Error};
///
/// let mut tx = db.transaction()?;
/// tx.get(&ships, "fram")?;
/// tx.insert(&ships, "beagle", "1820")?;
/// ships.insert("fram", "1892")?; // by another one, meanwhile
/// assert!(matches!(tx.commit(), Err(Error::Conflict { reason: ConflictReason::Changed, .. })));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConflictReason {
    /// The key was read, or lies in a range that was, and has been changed since.
    Changed,
    /// Records were ingested into the keyspace since it was read.
    Ingested,
    /// The keyspace was dropped, or replaced by another one, since it was read.
    Dropped,
    /// The transaction was open for so long that it is not known any more what was changed since it began: shorter
    /// transactions help, and [`Database::transact`](crate::Database::transact).
    TooOld,
}

impl std::fmt::Display for ConflictReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Changed => "another commit has changed what it read",
            Self::Ingested => "records were ingested into a keyspace that it read",
            Self::Dropped => "a keyspace that it read was dropped",
            Self::TooOld => "so much was written since it began that conflicts cannot be told any more",
        })
    }
}
