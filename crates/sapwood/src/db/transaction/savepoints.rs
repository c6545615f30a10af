//! Savepoints: marks to which the writes of a transaction can be taken back.

use super::Transaction;
use crate::db::transaction::writes::Savepoint;
use crate::error::Result;

impl Transaction {
    /// Marks a place to which the writes of this transaction can be [rolled back](Self::roll_back_to). Savepoints nest.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// tx.insert(&ships, "fram", "1892")?;
    /// let mark = tx.savepoint();
    /// tx.remove(&ships, "fram")?;
    /// tx.roll_back_to(mark)?;
    /// assert!(tx.contains(&ships, "fram")?);
    /// # Ok(()) }
    /// ```
    pub fn savepoint(&mut self) -> Savepoint {
        let savepoint = self.writes.savepoint();
        self.staged.mark(savepoint);
        savepoint
    }

    /// Takes back all writes since a savepoint. The savepoint can be used again; those made after it cannot. What was read
    /// since still counts as read: it may have decided what was done.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// let (outer, inner) = (tx.savepoint(), tx.savepoint());
    /// tx.insert(&ships, "fram", "1892")?;
    /// tx.roll_back_to(outer)?;
    /// assert_eq!(tx.writes_len(), 0);
    /// assert!(matches!(tx.roll_back_to(inner), Err(sapwood::Error::NoSavepoint)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSavepoint`](crate::Error::NoSavepoint) if the savepoint is not one of this transaction, or not any more.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<()> {
        self.writes.roll_back_to(savepoint)?;
        self.staged.roll_back_to(savepoint);
        Ok(())
    }

    /// Forgets a savepoint, and those made after it, and the memory that they take. The writes stay.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// let mark = tx.savepoint();
    /// tx.insert(&ships, "fram", "1892")?;
    /// tx.release(mark)?;
    /// assert_eq!(tx.writes_len(), 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::roll_back_to`].
    pub fn release(&mut self, savepoint: Savepoint) -> Result<()> {
        self.writes.release(savepoint)?;
        self.staged.release(savepoint);
        Ok(())
    }
}
