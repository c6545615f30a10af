//! Large values that lack a chunk are left out of the new database, and listed by their keys: a record that names chunks which are
//! not there is damage. Chunks whose record is lost get one that says that their value was being written, with which the next opening removes
//! them; and chunks that a record names lose such a one, which an older node may have brought back.

use crate::database_id::DatabaseId;
use crate::db::engine::Engine;
use crate::db::handle::Handle;
use crate::db::keyspace::Keyspace;
use crate::db::large_values::stored::{Head, HeadRef, LargeId, chunks};
use crate::db::snapshot::Snapshot;
use crate::error::Result;
use crate::operation::{KeyspaceId, Operation, OperationRef, Operations};
use crate::version::Version;
use crate::wal::{Generations, LogFiles};
use psync::Volume;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Brings what the log has of large values to the queue: of short ones only that they are there. What it has of other keyspaces may be longer
/// than memory, and nobody reads it here.
pub(super) fn replay_large(
    engine: &Engine,
    volume: &dyn Volume,
    database: DatabaseId,
    generations: Generations,
) -> Result<()> {
    let state = engine.state.load_full();
    let trees = state.version.trees.iter();
    let chunks: BTreeSet<_> = trees.filter_map(|(_, tree)| tree.chunks).collect();
    LogFiles::new(volume, database).replay(&engine.encryption, generations, &mut |record| {
        let needed = Operations::new(&record.body).flatten().filter_map(|operation| {
            if chunks.contains(&operation.keyspace()) {
                Some(operation)
            } else {
                head(&state.version, operation)
            }
        });
        state.active.insert_all(needed, record.first_seq, &|_| None);
        engine.state.set_visible(record.first_seq + u64::from(record.count) - 1);
        Ok(())
    })?;
    Ok(())
}

/// The change of a large value's record, without a short value's bytes.
fn head<'a>(version: &Version, operation: Operation<'a>) -> Option<Operation<'a>> {
    version.trees.get(&operation.keyspace())?.chunks?;
    Some(match operation {
        Operation::Change(OperationRef { keyspace, key, value: Some(value) })
            if matches!(HeadRef::decode(value), Some(HeadRef::Short(_))) =>
        {
            Operation::Change(OperationRef { keyspace, key, value: value.get(..1) })
        }
        other => other,
    })
}

/// A large value that lacks a chunk.
pub(super) struct Lacking {
    pub heads: KeyspaceId,
    pub chunks: KeyspaceId,
    pub key: Vec<u8>,
    /// Its id and the number of its chunks, if the record tells.
    pub id: Option<(LargeId, u32)>,
}

/// Passes the large values that lack a chunk to `take`.
pub(super) fn each_lacking(handle: &Arc<Handle>, take: &mut dyn FnMut(Lacking) -> Result<()>) -> Result<()> {
    let snapshot = Snapshot::new(Arc::clone(handle));
    let version = handle.engine.state.version();
    for (heads_id, tree) in version.trees.iter() {
        let Some(chunks_id) = tree.chunks else { continue };
        let opened = |id| Keyspace::in_version(Arc::clone(handle), &version, id, Arc::clone(&tree.name));
        let (heads, chunks_of) = (opened(heads_id), opened(chunks_id));
        for record in snapshot.iter(&heads) {
            let (key, stored) = record?;
            let head = Head::decode(&stored.0).ok();
            let is_whole = match &head {
                Some(head) => crate::db::large_values::check::missing(&snapshot, &chunks_of, head)?.is_none(),
                None => false,
            };
            if !is_whole {
                let id = head.and_then(|head| Some((head.id()?, chunks(head.len()))));
                take(Lacking { heads: heads_id, chunks: chunks_id, key: key.to_vec(), id })?;
            }
        }
    }
    Ok(())
}

/// Passes ids of chunks to `take`: with true, if no record names them nor says that they are being written; with false, if one says so although
/// they are named. Takes memory for the ids of all values: far less than the mapping table, which has each of their chunks.
pub(super) fn each_misnamed(
    handle: &Arc<Handle>,
    take: &mut dyn FnMut(KeyspaceId, LargeId, bool) -> Result<()>,
) -> Result<()> {
    let snapshot = Snapshot::new(Arc::clone(handle));
    let version = handle.engine.state.version();
    for (heads_id, tree) in version.trees.iter() {
        let Some(chunks_id) = tree.chunks else { continue };
        let opened = |id| Keyspace::in_version(Arc::clone(handle), &version, id, Arc::clone(&tree.name));
        let (heads, chunks_of) = (opened(heads_id), opened(chunks_id));
        let mut named = BTreeSet::new();
        for record in snapshot.iter(&heads) {
            named.extend(Head::decode(&record?.1.0).ok().and_then(|head| head.id()));
        }
        for key in snapshot.prefix(&chunks_of, LargeId::all_begun()).keys() {
            if let Some(id) = LargeId::of_begun(&key?).filter(|id| named.contains(id)) {
                take(chunks_id, id, false)?;
            }
        }
        let mut from = Some(LargeId([0; 16]));
        while let Some(first) = from {
            let key = snapshot.range(&chunks_of, first.chunk(0)..).keys().next().transpose()?;
            let Some(id) = key.and_then(|key| LargeId::of_chunk(&key)) else { break };
            if !named.contains(&id) && snapshot.get(&chunks_of, id.begun())?.is_none() {
                take(chunks_id, id, true)?;
            }
            from = id.next();
        }
    }
    Ok(())
}
