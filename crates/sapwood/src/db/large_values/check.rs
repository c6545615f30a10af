//! Checks that the chunks of large values are all there.

use super::stored::{Head, chunk_len, chunks as count_of};
use crate::db::check::DAMAGE_MAX;
use crate::db::handle::Handle;
use crate::db::keyspace::Keyspace;
use crate::db::snapshot::Snapshot;
use crate::error::{DATA, Error, Findings, Result};
use std::sync::Arc;

/// Returns [`Error::Damaged`] if any value lacks a chunk. Reads all of them, but those behind a record of the keyspace that cannot be read: of
/// these only that is told.
pub(in crate::db) fn check(handle: &Arc<Handle>) -> Result<()> {
    let snapshot = Snapshot::new(Arc::clone(handle));
    let version = handle.engine.state.version();
    let mut found = Findings::new(DAMAGE_MAX);
    for (id, tree) in version.trees.iter() {
        let Some(chunks) = tree.chunks else { continue };
        let opened = |id| Keyspace::in_version(Arc::clone(handle), &version, id, Arc::clone(&tree.name));
        let (heads, chunks) = (opened(id), opened(chunks));
        let mut last = None;
        for record in snapshot.iter(&heads) {
            if found.is_over() {
                return found.into_result();
            }
            let (key, stored) = match record {
                Ok(record) => record,
                Err(error) if error.is_damage() => {
                    let behind = last.map_or_else(String::new, |key| format!(", behind that of {key:?}"));
                    let what = format!("large values of keyspace {:?}{behind}", tree.name);
                    let expected = "records that can be read";
                    found.note(Error::corrupt(
                        DATA,
                        0,
                        what,
                        expected,
                        "damage, so that no value was looked at",
                    ));
                    break;
                }
                Err(error) => {
                    found.note(error);
                    break;
                }
            };
            last = Some(key.clone());
            let wrong = |chunk: &str, found| {
                let what = format!("{chunk} of the value of {key:?} in keyspace {:?}", tree.name);
                Error::corrupt(DATA, 0, what, "a whole chunk", found)
            };
            let error = match Head::decode(&stored.0).map(|head| missing(&snapshot, &chunks, &head)) {
                Ok(Ok(None)) => continue,
                Ok(Ok(Some(number))) => wrong(&format!("chunk {number}"), "none"),
                Ok(Err(error)) if error.is_damage() => wrong("a chunk", "one that is damaged"),
                Ok(Err(error)) | Err(error) => error,
            };
            found.note(error);
        }
    }
    found.into_result()
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
