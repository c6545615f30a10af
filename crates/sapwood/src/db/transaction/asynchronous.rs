//! The calls of transactions for tasks.

use crate::db::asynchronous::Waiting;
use crate::db::asynchronous::methods::begin_commit;
use crate::db::asynchronous::waiting::{Owner, Stage};
use crate::db::database::Database;
use crate::db::keyspace::Keyspace;
use crate::db::merging::{has_operands, needs_beneath};
use crate::db::transaction::Transaction;
use crate::db::transaction::retry::CONFLICTS_MAX;
use crate::error::Result;
use crate::value::Value;
use bytes::Bytes;
use std::sync::Arc;

impl Database {
    /// As [`transact`](Self::transact), for a task: runs a transaction, and again until it is committed without a conflict. Needs the feature
    /// `async`.
    ///
    /// After a few conflicts it waits for other calls that have conflicted as often: one of them at a time is repeated. It takes no turn
    /// before other commits, as `transact` does: a commit that is held back may block the thread that has to poll this one. So a long
    /// transaction beside hot keys that are changed otherwise may be repeated often; it must not wait for another call. A future that is
    /// dropped is as a [`commit_async`](Transaction::commit_async) that is.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let visits = db.keyspace("visits")?;
    /// use futures_util::future::try_join_all;
    ///
    /// let visit = |name: &'static str| {
    ///     let visits = visits.clone();
    ///     db.transact_async(async move |tx| {
    ///         let count = tx.get_async(&visits, name).await?.map_or(0, |count| count[0]);
    ///         tx.insert(&visits, name, [count + 1])
    ///     })
    /// };
    /// futures_executor::block_on(try_join_all(["fram", "beagle", "fram"].map(visit)))?;
    /// assert_eq!(visits.get("fram")?.as_deref(), Some(&[2][..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`transact`](Self::transact).
    pub fn transact_async<R, F: AsyncFnMut(&mut Transaction) -> Result<R>>(
        &self,
        mut run: F,
    ) -> impl Future<Output = Result<R>> + use<R, F> {
        let db = self.clone();
        async move {
            let (mut conflicts, mut permit) = (0, None);
            loop {
                let mut transaction = db.transaction()?;
                let result = run(&mut transaction).await?;
                match transaction.commit_async().await {
                    Err(error) if error.is_conflict() => conflicts += 1,
                    committed => return committed.map(|()| result),
                }
                // One that commits may wait for this thread.
                let may_wait = !db.handle.engine.commits.is_waited_for();
                if conflicts >= CONFLICTS_MAX && permit.is_none() && may_wait {
                    let answer = db.handle.engine.tasks.retries.permit();
                    let asked = std::future::poll_fn(|context| {
                        // In a forked child no thread gives it.
                        db.handle.engine.health.check_process()?;
                        answer.poll(context)
                    });
                    permit = Some(asked.await?);
                }
            }
        }
    }
}

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
                let merging = keyspace.values().merging();
                if let (Some(operands), Some(_)) =
                    (value.clone().filter(|value| has_operands(value)), merging)
                {
                    if needs_beneath(&operands) {
                        self.reads.lock().add_key(keyspace.id(), key);
                    }
                    let (snapshot, of, own_key) = (self.snapshot.clone(), keyspace.clone(), key.to_vec());
                    let readers = &keyspace.handle().engine.tasks.readers;
                    let laid = move || {
                        let laid = Self::laid_over(&of, &operands, || snapshot.get_stored(&of, &own_key));
                        laid.map(|laid| laid.map(Value::from))
                    };
                    let readers = Arc::clone(readers);
                    return Waiting::get(keyspace, key, move || {
                        Stage::work(&readers, "a get of a task", laid)
                    });
                }
                return Waiting::get(keyspace, key, || Stage::ready(Ok(value)));
            }
            self.reads.lock().add_key(keyspace.id(), key);
        }
        // Which refuses what is to be refused.
        self.snapshot.get_async(keyspace, key)
    }

    /// As [`multi_get`](Self::multi_get), for a task: see [`Keyspace::multi_get_async`]. Needs the feature `async`. Sees what the transaction
    /// has written when this is called; the keys count as read from then on.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let mut tx = db.transaction()?;
    /// tx.insert(&ships, "beagle", "1820")?;
    /// let found = futures_executor::block_on(tx.multi_get_async(&ships, ["beagle", "titanic", "fram"]))?;
    /// assert!(found[0].is_some() && found[1].is_none() && found[2].is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Transaction::multi_get`].
    pub fn multi_get_async<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Waiting<Vec<Option<Value>>> {
        let keys: Vec<Bytes> = keys.into_iter().map(|key| Bytes::copy_from_slice(key.as_ref())).collect();
        let parts = self.parts_of_multi_get(keyspace, &keys);
        let (snapshot, keyspace, owner) = (self.snapshot.clone(), keyspace.clone(), keyspace.clone());
        Waiting::new(Owner::Keyspace(owner), move || match parts {
            Err(error) => Stage::ready(Err(error)),
            Ok(parts) if parts.is_whole() => Stage::ready(parts.complete(&snapshot, &keyspace, &keys)),
            Ok(parts) => {
                let handle = Arc::clone(&snapshot.handle);
                Stage::work(&handle.engine.tasks.readers, "a multi_get of a task", move || {
                    parts.complete(&snapshot, &keyspace, &keys)
                })
            }
        })
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
        Waiting::new(Owner::Database(Arc::clone(&handle)), move || {
            if self.writes.is_empty() {
                return Stage::ready(self.commit());
            }
            begin_commit(&handle, durability, move |_, durability| self.commit_as(durability))
        })
    }
}
