//! Checks that the chunks of large values are all there.

use super::stored::{Head, chunk_len, chunks as count_of};
use crate::db::check::DAMAGE_MAX;
use crate::db::database::Handle;
use crate::db::keyspace::Keyspace;
use crate::db::snapshot::Snapshot;
use crate::error::{DATA, Error, Result};
use std::sync::Arc;

/// Returns [`Error::Damaged`] if any value lacks a chunk. Reads all of them. Of values whose own records cannot be read, and those behind them
/// in the keyspace, nothing is known here: that is damage of the trees.
pub(in crate::db) fn check(handle: &Arc<Handle>) -> Result<()> {
    let snapshot = Snapshot::new(Arc::clone(handle));
    let version = Arc::clone(&handle.engine.state.load().version);
    let (mut damage, mut left_out) = (Vec::new(), 0);
    for (id, tree) in version.trees.iter() {
        let Some(chunks) = tree.chunks else { continue };
        let opened = |id| Keyspace::in_version(Arc::clone(handle), &version, id, Arc::clone(&tree.name));
        let (heads, chunks) = (opened(id), opened(chunks));
        for record in snapshot.iter(&heads) {
            let (key, stored) = match record {
                Err(error) if error.is_damage() => break,
                record => record?,
            };
            let wrong = |chunk: &str, found| {
                let what = format!("{chunk} of the value of {key:?} in keyspace {:?}", tree.name);
                Error::corrupt(DATA, 0, what, "a whole chunk", found)
            };
            let error = match Head::decode(&stored.0).map(|head| missing(&snapshot, &chunks, &head)) {
                Ok(Ok(None)) => continue,
                Ok(Ok(Some(number))) => wrong(&format!("chunk {number}"), "none"),
                Ok(Err(error)) if error.is_damage() => wrong("a chunk", "one that is damaged"),
                Ok(Err(error)) => return Err(error),
                Err(error) => error,
            };
            if damage.len() < DAMAGE_MAX {
                damage.push(error);
            } else {
                left_out += 1;
            }
        }
    }
    if damage.is_empty() { Ok(()) } else { Err(Error::Damaged { damage, left_out }) }
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
