//! The commit of a transaction.
//!
//! Invariant: its writes go to the commit pipeline together with what it has read, or not at all.

use super::Transaction;
use crate::conflict::validation::Validation;
use crate::db::pending::Pending;
use crate::durability::Durability;
use crate::error::{Error, Result};
use std::sync::Arc;

impl Transaction {
    /// Sets how durable the commit is when it returns. The default is the database's
    /// ([`Builder::durability`](crate::Builder::durability)).
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// tx.durability(sapwood::Durability::Buffered).insert(&ships, "fram", "1892")?;
    /// tx.commit()?;
    /// # Ok(()) }
    /// ```
    pub fn durability(&mut self, durability: Durability) -> &mut Self {
        self.durability = durability;
        self
    }

    /// Commits all writes atomically, if nothing that the transaction read was changed since it began. Returns once they are as
    /// durable as requested. Without writes it does nothing, and does not conflict.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("bank.db"))?;
    /// # let accounts = db.keyspace("accounts")?;
    /// # accounts.insert("a", [100])?;
    /// # accounts.insert("b", [0])?;
    /// let mut tx = db.transaction()?;
    /// let (a, b) = (tx.get(&accounts, "a")?, tx.get(&accounts, "b")?);
    /// if let (Some(a), Some(b)) = (a, b) {
    ///     tx.insert(&accounts, "a", [a[0] - 10])?;
    ///     tx.insert(&accounts, "b", [b[0] + 10])?;
    /// }
    /// match tx.commit() {
    ///     Err(sapwood::Error::Conflict { key, .. }) => println!("{key:?} has changed: begin again"),
    ///     other => other?,
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Conflict`] names what was read and has changed; nothing of the transaction has happened. Others as
    /// [`Batch::commit`](crate::Batch::commit).
    pub fn commit(self) -> Result<()> {
        let durability = self.durability;
        self.commit_as(durability)
    }

    /// Commits as [`commit`](Self::commit), and returns as soon as the commit is visible. It becomes durable later:
    /// see [`Pending`]. The transaction's durability does not matter.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// tx.insert(&ships, "fram", "1892")?;
    /// let pending = tx.commit_visible()?;
    /// assert!(ships.contains("fram")?);
    /// pending.wait()?; // and now it is durable
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::commit`], but for those of the sync, which the [`Pending`] returns.
    pub fn commit_visible(self) -> Result<Pending> {
        let handle = Arc::clone(&self.open.handle);
        if self.writes.is_empty() {
            self.commit()?;
            return Ok(Pending::new(handle, 0));
        }
        let seq = handle.engine.commits.commit_visible(|_| self.commit_as(Durability::Buffered))?;
        Ok(Pending::new(handle, seq))
    }

    pub(super) fn commit_as(self, durability: Durability) -> Result<()> {
        let Self { snapshot, open, writes, reads, staged, .. } = self;
        let engine = &open.handle.engine;
        engine.health.check_process()?;
        if writes.is_empty() {
            return Ok(());
        }
        let staged = staged.used_up(|keyspace, key| writes.get(keyspace.id(), key).cloned());
        let (body, count) = writes.encode();
        let len = body.len();
        let count =
            u32::try_from(count).map_err(|_| Error::BatchTooLarge { len, max: engine.shares.batch })?;
        drop(writes);
        let mut reads = std::mem::take(&mut *reads.lock());
        reads.close();
        let validation = Validation { reads, since: open.seq, ingested: snapshot.ingested() };
        // Nothing is read any more: what only the snapshot holds is free while the commit waits.
        drop(snapshot);
        engine.commits.commit_validated(body, count, durability, validation)?;
        staged.note_used_up();
        Ok(())
    }
}
