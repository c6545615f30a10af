//! The calls of transactions for tasks.

use crate::db::asynchronous::Waiting;
use crate::db::asynchronous::methods::begin_commit;
use crate::db::asynchronous::waiting::{Host, Stage};
use crate::db::keyspace::Keyspace;
use crate::db::transaction::Transaction;
use crate::value::Value;
use std::sync::Arc;

impl Transaction {
    /// As [`get`](Self::get), for a task: see [`Keyspace::get_async`]. Needs the feature `async`. Sees what the transaction has written when this is called; the key counts as
    /// read from then on.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let visits = db.keyspace("visits")?;
    /// futures_executor::block_on(async {
    ///     loop {
    ///         let mut tx = db.transaction()?;
    ///         let count = tx.get_async(&visits, "fram").await?.map_or(0, |count| count[0]);
    ///         tx.insert(&visits, "fram", [count + 1])?;
    ///         match tx.commit_async().await {
    ///             Err(error) if error.is_conflict() => continue,
    ///             committed => return committed,
    ///         }
    ///     }
    /// })?;
    /// assert!(visits.get("fram")?.is_some_and(|count| count == [1]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn get_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Waiting<Option<Value>> {
        let key = key.as_ref();
        if self.snapshot.check(keyspace).is_ok() {
            if let Some(written) = self.writes.get(keyspace.id(), key) {
                let value = written.clone().map(Value);
                return Waiting::get(keyspace, || Stage::ready(Ok(value)));
            }
            self.reads.lock().add_key(keyspace.id(), key);
        }
        // Which refuses what is to be refused.
        self.snapshot.get_async(keyspace, key)
    }

    /// As [`commit`](Self::commit), for a task: waits without holding a thread, and is durable as a
    /// [`Batch::commit_async`](crate::Batch::commit_async). Needs the feature `async`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut tx = db.transaction()?;
    /// tx.insert(&ships, "fram", "1892")?;
    /// futures_executor::block_on(tx.commit_async())?;
    /// assert!(ships.contains("fram")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn commit_async(self) -> Waiting<()> {
        let (handle, durability) = (Arc::clone(&self.open.handle), self.durability);
        Waiting::new(Host::Database(Arc::clone(&handle)), move || {
            if self.writes.is_empty() {
                return Stage::ready(self.commit());
            }
            begin_commit(&handle, durability, move |_, durability| self.commit_as(durability))
        })
    }
}
