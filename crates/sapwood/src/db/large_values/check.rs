//! Checks that the chunks of large values are all there.

use super::stored::{Head, chunk_len, chunks as count_of};
use crate::db::database::Handle;
use crate::db::keyspace::Keyspace;
use crate::db::snapshot::Snapshot;
use crate::error::{DATA, Error, Result};
use std::sync::Arc;

/// At most so many places of damage (count) are listed: the first are enough to act on.
const DAMAGE_MAX: usize = 1000;

/// Returns [`Error::Damaged`] if any value lacks a chunk. Reads all of them.
pub(in crate::db) fn check(handle: &Arc<Handle>) -> Result<()> {
    let snapshot = Snapshot::new(Arc::clone(handle));
    let version = Arc::clone(&handle.engine.state.load().version);
    let mut damage = Vec::new();
    for (id, tree) in version.trees.iter() {
        let Some(chunks) = tree.chunks else { continue };
        let opened = |id| Keyspace::in_version(Arc::clone(handle), &version, id, Arc::clone(&tree.name));
        let (heads, chunks) = (opened(id), opened(chunks));
        for record in snapshot.iter(&heads) {
            let (key, stored) = record?;
            match Head::decode(&stored.0).and_then(|head| missing(&snapshot, &chunks, &head)) {
                Ok(None) => {}
                Ok(Some(number)) if damage.len() < DAMAGE_MAX => {
                    let what = format!("chunk {number} of the value of {key:?} in keyspace {:?}", tree.name);
                    damage.push(Error::corrupt(DATA, 0, what, "a whole chunk", "none"));
                }
                Err(error) if error.is_damage() && damage.len() < DAMAGE_MAX => damage.push(error),
                Err(error) if !error.is_damage() => return Err(error),
                _ => {}
            }
        }
    }
    if damage.is_empty() { Ok(()) } else { Err(Error::Damaged { damage }) }
}

/// The number of the first chunk of a value that is not there as a whole.
pub(in crate::db) fn missing(snapshot: &Snapshot, chunks: &Keyspace, head: &Head) -> Result<Option<u32>> {
    let Head::Long { id, len } = *head else { return Ok(None) };
    let count = count_of(len);
    let mut range = snapshot.range(chunks, id.chunk(0)..id.chunk(count));
    for number in 0..count {
        let found = range.next().transpose()?;
        let is_whole = found
            .is_some_and(|(key, chunk)| key[..] == id.chunk(number) && chunk.len() == chunk_len(len, number));
        if !is_whole {
            return Ok(Some(number));
        }
    }
    Ok(None)
}
