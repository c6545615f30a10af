//! How durable a commit is.

/// How durable a commit is when it returns.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// use sapwood::Durability;
///
/// let mut batch = db.batch();
/// batch.insert(&ships, "fram", "1892");
/// batch.durability(Durability::Buffered).commit()?; // survives the process
/// db.sync()?; // and from now on a power failure
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// In memory only. A crash of the process loses the commit, unless a commit with stronger durability, a
    /// [`sync`](crate::Database::sync), or 64 KiB of further commits followed it.
    None,
    /// Handed to the operating system. Survives a crash of the process, but not a power failure.
    Buffered,
    /// On the device. Survives a power failure. Concurrent commits share one sync (group commit).
    #[default]
    Immediate,
}
