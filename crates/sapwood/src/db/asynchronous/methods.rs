//! The calls for tasks: of keyspaces, snapshots, batches and transactions.

use super::waiting::{Owner, Stage, Waiting};
use crate::answer::Giver;
use crate::commit::CommitPipeline;
use crate::current_state::Queued;
use crate::db::batch::{Batch, check_key};
use crate::db::handle::Handle;
use crate::db::keyspace::Keyspace;
use crate::db::snapshot::Snapshot;
use crate::durability::Durability;
use crate::error::Result;
use crate::operation::SeqNo;
use crate::pool::caught;
use crate::value::Value;
use bytes::Bytes;
use std::sync::Arc;

impl Keyspace {
    /// As [`get`](Self::get), for a task: waits without holding a thread. Needs the feature `async`.
    ///
    /// The gets of all tasks that wait at the same time descend the tree together, as those of one [`multi_get`](Self::multi_get), so many
    /// tasks that get one key each are about as fast. Returns at once what is in the operation queue or in the cache of records. It
    /// sees what was committed before it was first polled, and perhaps later commits.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let year = futures_executor::block_on(async { ships.get_async("fram").await })?; // of any runtime
    /// assert!(year.is_some_and(|year| year == "1892"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn get_async(&self, key: impl AsRef<[u8]>) -> Waiting<Option<Value>> {
        let (keyspace, key) = (self.clone(), Bytes::copy_from_slice(key.as_ref()));
        Waiting::get(self, &key.clone(), move || {
            let handle = Arc::clone(keyspace.handle());
            begin_get(&Snapshot::new(handle), &keyspace, key, Moment::Any)
        })
    }

    /// As [`multi_get`](Self::multi_get), for a task. Needs the feature `async`. The keys are one group, beside the
    /// gets of other tasks.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let found = futures_executor::block_on(ships.multi_get_async(["titanic", "fram"]))?;
    /// assert!(found[0].is_none() && found[1].is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn multi_get_async<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Waiting<Vec<Option<Value>>> {
        let (keyspace, keys) = (self.clone(), copied(keys));
        Waiting::new(Owner::Keyspace(self.clone()), move || {
            let snapshot = Snapshot::new(Arc::clone(keyspace.handle()));
            begin_multi_get(snapshot, keyspace, keys)
        })
    }
}

impl Snapshot {
    /// As [`get`](Self::get), for a task: see [`Keyspace::get_async`]. Needs the feature `async`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let before = db.snapshot();
    /// ships.insert("fram", "1892")?;
    /// assert!(futures_executor::block_on(before.get_async(&ships, "fram"))?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn get_async(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Waiting<Option<Value>> {
        let (snapshot, key) = (self.clone(), Bytes::copy_from_slice(key.as_ref()));
        let of = keyspace.clone();
        Waiting::get(keyspace, &key.clone(), move || begin_get(&snapshot, &of, key, Moment::Snapshot))
    }

    /// As [`multi_get`](Self::multi_get), for a task: see [`Keyspace::multi_get_async`]. Needs the feature `async`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let found = futures_executor::block_on(db.snapshot().multi_get_async(&ships, ["titanic", "fram"]))?;
    /// assert!(found[0].is_none() && found[1].is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Snapshot::multi_get`].
    pub fn multi_get_async<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Waiting<Vec<Option<Value>>> {
        let (snapshot, of, keys) = (self.clone(), keyspace.clone(), copied(keys));
        Waiting::new(Owner::Keyspace(keyspace.clone()), move || begin_multi_get(snapshot, of, keys))
    }
}

impl Batch {
    /// As [`commit`](Self::commit), for a task: waits without holding a thread. Needs the feature `async`. The call empties the batch; the commit
    /// begins when the future is first polled.
    ///
    /// Commits of tasks share syncs. A durable one is seen by readers shortly before it is durable, as with
    /// [`commit_visible`](Self::commit_visible); when the future is ready it is durable. For a future that is dropped see [`Waiting`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// let mut batch = db.batch();
    /// batch.insert(&ships, "fram", "1892");
    /// futures_executor::block_on(batch.commit_async())?; // of any runtime
    /// assert!(ships.contains("fram")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Batch::commit`]: what is refused was never visible. Where a full disk keeps a visible commit from becoming durable, a flush does
    /// it; [`Error::Io`](crate::Error::Io) if there is no space for that either.
    pub fn commit_async(&mut self) -> Waiting<()> {
        let (taken, durability, handle) = (self.take(), self.durability, Arc::clone(&self.handle));
        Waiting::new(Owner::Database(Arc::clone(&handle)), move || match taken {
            Err(error) => Stage::ready(Err(error)),
            Ok(None) => Stage::ready(Ok(())),
            Ok(Some((body, count))) => begin_commit(&handle, durability, move |commits, durability| {
                commits.commit(body, count, durability)
            }),
        })
    }
}

fn copied<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>) -> Vec<Bytes> {
    keys.into_iter().map(|key| Bytes::copy_from_slice(key.as_ref())).collect()
}

/// As of when a get reads.
#[derive(PartialEq, Eq)]
enum Moment {
    Snapshot,
    /// Any since it was asked.
    Any,
}

fn begin_get(snapshot: &Snapshot, keyspace: &Keyspace, key: Bytes, moment: Moment) -> Stage<Option<Value>> {
    if let Err(error) = snapshot.check(keyspace).and_then(|()| check_key(&key)) {
        return Stage::ready(Err(error));
    }
    let engine = &snapshot.handle.engine;
    let of = (keyspace.id(), snapshot.state.version.merging_of(keyspace.id()));
    match snapshot.state.known(&engine.pager, of, &key, snapshot.seq) {
        Queued::Is(known) => Stage::ready(Ok(known.map(Value))),
        Queued::Nothing | Queued::Operands(_) => {
            let view = || (Arc::clone(&snapshot.state), snapshot.seq);
            let view = (moment == Moment::Snapshot).then(view);
            Stage::Asked(engine.tasks.gatherer.get(keyspace.id(), key, view))
        }
    }
}

fn begin_multi_get(snapshot: Snapshot, keyspace: Keyspace, keys: Vec<Bytes>) -> Stage<Vec<Option<Value>>> {
    let handle = Arc::clone(&snapshot.handle);
    Stage::work(&handle.engine.tasks.readers, "a multi_get of a task", move || {
        snapshot.multi_get(&keyspace, keys)
    })
}

/// Has a thread commit, which lets a sync follow that other commits share.
pub(crate) fn begin_commit(
    handle: &Arc<Handle>,
    durability: Durability,
    commit: impl FnOnce(&CommitPipeline, Durability) -> Result<()> + Send + 'static,
) -> Stage<()> {
    let commits = Arc::clone(&handle.engine.commits);
    let name = "a commit of a task";
    if commits.is_waited_for() {
        // Another thread would wait for this one, and this one perhaps for the future.
        return Stage::ready(caught(name, || commit(&commits, durability)));
    }
    let waits = Arc::clone(&commits);
    // What it is to wait for until it is durable.
    let work = move || match durability {
        Durability::Immediate => {
            commits.commit_visible(|commits| commit(commits, Durability::Buffered)).map(Some)
        }
        weaker => commit(&commits, weaker).map(|()| None),
    };
    let tell = move |visible: Result<Option<SeqNo>>, giver: Giver<()>| match visible {
        Ok(Some(seq)) => waits.on_durable_or_flushed(seq, Box::new(|durable| giver.give(durable))),
        done => giver.give(done.map(drop)),
    };
    Stage::work_and(&handle.engine.tasks.writers, name, work, tell)
}
