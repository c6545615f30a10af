//! Building a snapshot, while commands are applied.

use super::reader::View;
use super::{Header, State};
use crate::error::{Error, Result, blocking};
use crate::snapshot_file::{SnapshotFile, Writer, unique};
use openraft::{
    ErrorSubject, ErrorVerb, RaftSnapshotBuilder, RaftTypeConfig, Snapshot, SnapshotMeta, StorageError,
};
use std::sync::Arc;

/// Builds a snapshot of the state as it was when the builder was made. Made by openraft.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use openraft::RaftSnapshotBuilder;
/// use openraft::storage::RaftStateMachine;
/// # use sapwood_openraft::{KvConfig, KvMachine, Store};
/// # let db = sapwood::Database::open(dir.path().join("node.db"))?;
/// # let store = Store::open(&db, dir.path().join("snapshots"))?;
/// let (log, mut machine) = store.group::<KvConfig, _>(1, KvMachine::new())?;
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let snapshot = machine.get_snapshot_builder().await.build_snapshot().await?;
/// assert_eq!(machine.get_current_snapshot().await?.map(|current| current.meta), Some(snapshot.meta));
/// # Ok::<_, openraft::StorageError<u64>>(()) })?;
/// # Ok(()) }
/// ```
pub struct SnapshotBuilder<C: RaftTypeConfig> {
    state: Arc<State<C>>,
    /// Or why it could not be read.
    view: Arc<Result<View<C>>>,
}

impl<C: RaftTypeConfig<SnapshotData = SnapshotFile>> SnapshotBuilder<C> {
    pub(super) fn new(state: Arc<State<C>>) -> Self {
        Self { view: Arc::new(View::of(&state)), state }
    }

    fn build(state: &State<C>, view: &Result<View<C>>) -> Result<Snapshot<C>> {
        let view = view.as_ref().map_err(Error::clone)?;
        let (shared, group) = (&state.lease.shared, state.lease.group);
        let index = view.applied().map_or(0, |applied| applied.index);
        let meta = SnapshotMeta {
            last_log_id: view.applied().cloned(),
            last_membership: view.membership().clone(),
            snapshot_id: format!("{index}-{:016x}", unique()),
        };
        let path = SnapshotFile::finished_path(&shared.directory, group, &meta.snapshot_id);
        let names = state.keyspaces.iter().map(|(name, _)| name.clone()).collect();
        let header: Header<C> = (meta.clone(), names);
        let mut writer = Writer::begin(&path, state.key.as_ref(), &header)?;
        for (number, keyspace) in (0u16..).zip(view.keyspaces()) {
            let mut records = view.snapshot().iter(keyspace);
            while let Some(record) = records.next_ref() {
                match record {
                    Ok((key, value)) => writer.record(number, key, Ok(value))?,
                    // It is so on each node, until a command writes the record anew.
                    Err(sapwood::Error::MergeFailed { key, reason, .. }) => {
                        writer.record(number, &key, Err(&reason))?;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        // openraft purges the log up to here as soon as it has the snapshot: from then on nothing can be applied again.
        shared.db.sync()?;
        writer.end()?;
        // From the name on, whoever shows another snapshot removes the file: so none may, until this one is open and shown.
        let mut shown = state.snapshot.lock();
        writer.name(&path)?;
        let file = SnapshotFile::open(&path, state.key.as_ref())?;
        if !state.show_snapshot(&mut shown, meta.clone(), path.clone())? {
            // One was installed meanwhile. This one stays readable as long as it is open.
            std::fs::remove_file(&path).map_err(Error::file("removing", &path))?;
        }
        Ok(Snapshot { meta, snapshot: Box::new(file) })
    }
}

impl<C: RaftTypeConfig<SnapshotData = SnapshotFile>> RaftSnapshotBuilder<C> for SnapshotBuilder<C> {
    async fn build_snapshot(&mut self) -> std::result::Result<Snapshot<C>, StorageError<C::NodeId>> {
        let (state, view) = (Arc::clone(&self.state), Arc::clone(&self.view));
        let built = blocking(move || Self::build(&state, &view)).await;
        built.map_err(|error| error.of(ErrorSubject::Snapshot(None), ErrorVerb::Write))
    }
}

impl<C: RaftTypeConfig> std::fmt::Debug for SnapshotBuilder<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SnapshotBuilder of {:?}", self.state)
    }
}
