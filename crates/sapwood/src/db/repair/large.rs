//! Large values that lack a chunk are left out of the new database, and listed by their keys: a record that names chunks which are
//! not there is damage.

use crate::db::database::Handle;
use crate::db::keyspace::Keyspace;
use crate::db::large_values::stored::{Head, LargeId, chunks};
use crate::db::snapshot::Snapshot;
use crate::error::Result;
use crate::operation::KeyspaceId;
use std::sync::Arc;

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
    let version = Arc::clone(&handle.engine.state.load().version);
    for (heads_id, tree) in version.trees.iter() {
        let Some(chunks_id) = tree.chunks else { continue };
        let opened = |id| Keyspace::new(Arc::clone(handle), id, Arc::clone(&tree.name));
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
