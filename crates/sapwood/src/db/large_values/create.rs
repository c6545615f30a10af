//! Creating and opening keyspaces of large values.

use super::stored::LargeId;
use super::{LargeValues, remove_chunks};
use crate::db::batch::Batch;
use crate::db::create_keyspaces::{Creation, Named, TREE_LISTED, check_name, publish_listed};
use crate::db::database::Database;
use crate::db::engine::Engine;
use crate::db::keyspace::Keyspace;
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::operation::KeyspaceId;
use crate::version::edit::Edit;
use crate::version::{Tree, Version};
use std::sync::Arc;

/// What the name of a keyspace of chunks begins with: a control character, which users' names do not have.
const HIDDEN: char = '\u{1}';

/// Whether this is the name of a keyspace that users do not know.
pub(in crate::db) fn is_hidden(name: &str) -> bool {
    name.starts_with(HIDDEN)
}

/// The keyspace, and that of its chunks if it has one: what is dropped with it.
pub(in crate::db) fn with_chunks(version: &Version, id: KeyspaceId) -> Vec<KeyspaceId> {
    let chunks = version.trees.get(&id).and_then(|tree| tree.chunks);
    std::iter::once(id).chain(chunks).collect()
}

/// Returns an error if the keyspace has large values.
pub(in crate::db) fn check_ordinary(version: &Version, id: KeyspaceId) -> Result<()> {
    match version.trees.get(&id) {
        Some(tree) if tree.chunks.is_some() => Err(Error::LargeValues { keyspace: tree.name.to_string() }),
        _ => Ok(()),
    }
}

/// A keyspace of large values that was found, and that of its chunks. One that is gone by now stands for both: the caller looks again.
fn with_its_chunks(version: &Version, (id, name): Named) -> Result<[Named; 2]> {
    // In a follower trees go whenever it refreshes.
    let Some(tree) = version.trees.get(&id) else { return Ok([(id, Arc::clone(&name)), (id, name)]) };
    let chunks = tree.chunks.and_then(|chunks| Some((chunks, Arc::clone(&version.trees.get(&chunks)?.name))));
    let chunks = chunks.ok_or_else(|| Error::NoLargeValues { keyspace: name.to_string() })?;
    Ok([(id, name), chunks])
}

/// Bytes that the list of keyspaces takes beside two trees: at most.
const LARGE_LISTED: usize = 64;

impl Creation {
    /// The keyspace of large values of this name, and that of its chunks. It is created if need be.
    fn find_or_create_large(&self, engine: &Engine, name: &str) -> Result<[Named; 2]> {
        check_name(name)?;
        let _catalog = self.catalog.lock();
        if let Some(found) = self.find_existing(engine, name) {
            return with_its_chunks(&engine.state.load().version, found);
        }
        if engine.health.is_read_only() {
            return Err(self.no_keyspace(engine, name));
        }
        engine.health.check_writable()?;
        let id = self.next_id(engine)?;
        let chunks = Self::id_behind(id)?;
        let (name, hidden) =
            (Arc::<str>::from(name), Arc::<str>::from(format!("{HIDDEN}chunks of {}", id.0)));
        let tree = |name: &Arc<str>| Tree::empty(Arc::clone(name));
        let compressions = [id, chunks].into_iter().filter_map(|id| self.compression_of(id, None));
        let edit = Edit {
            trees: vec![(id, tree(&name)), (chunks, tree(&hidden))],
            larges: vec![(id, chunks)],
            compressions: compressions.collect(),
            ..Edit::default()
        };
        publish_listed(engine, edit, (name.len() + 2 * TREE_LISTED + LARGE_LISTED) as u64)?;
        self.remember(Arc::clone(&name), id);
        self.remember(Arc::clone(&hidden), chunks);
        Ok([(id, name), (chunks, hidden)])
    }
}

impl Database {
    /// Returns the keyspace `name` of large values. It is created, durably, if it does not exist. What a process has left of values
    /// that it was writing when it ended is removed.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::Error;
    ///
    /// let photos = db.large_values("photos")?;
    /// assert!(matches!(db.keyspace("photos"), Err(Error::LargeValues { .. })));
    /// db.keyspace("ships")?;
    /// assert!(matches!(db.large_values("ships"), Err(Error::NoLargeValues { .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Database::keyspace`]; [`Error::NoLargeValues`] if there is another keyspace of this name.
    pub fn large_values(&self, name: &str) -> Result<LargeValues> {
        let handle = &self.handle;
        handle.engine.health.check_process()?;
        let find = || handle.creation.find_or_create_large(&handle.engine, name).map(Vec::from);
        let (version, found) = handle.find_there(find)?;
        let keyspaces =
            found.into_iter().map(|(id, name)| Keyspace::in_version(Arc::clone(handle), &version, id, name));
        let [heads, chunks] = keyspaces.collect::<Vec<_>>().try_into().map_err(|_| Error::Closed)?;
        if !handle.engine.health.is_read_only() {
            remove_abandoned(&chunks).map_err(|error| heads.named(error))?;
        }
        Ok(LargeValues { heads, chunks })
    }
}

/// Values whose chunks are removed with one commit (count): some 70 KiB, where a small memory budget allows a megabyte.
const ABANDONED: usize = 1000;

/// Removes what other processes were writing when they ended.
fn remove_abandoned(chunks: &Keyspace) -> Result<()> {
    let handle = chunks.handle();
    let mut keys = chunks.prefix(LargeId::all_begun()).keys();
    loop {
        let (mut batch, mut count) = (Batch::new(Arc::clone(handle), Durability::Buffered), 0);
        for key in keys.by_ref() {
            let key = key?;
            let Some(id) = LargeId::of_begun(&key).filter(|id| !handle.large_ids.made(*id)) else { continue };
            remove_chunks(&mut batch, chunks, id);
            batch.remove(chunks, id.begun());
            count += 1;
            if count == ABANDONED {
                break;
            }
        }
        match batch.commit() {
            Ok(()) if count == ABANDONED => {}
            // It can wait for space, or for another opening.
            Err(error) if error.is_disk_full() => return Ok(()),
            removed => return removed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::with_its_chunks;
    use crate::Database;
    use psync::Simulated;
    use std::sync::Arc;

    /// A follower that refreshes in between was told that the keyspace has no large values, which both have.
    #[test]
    fn large_values_that_were_replaced_meanwhile_are_looked_for_again() {
        let options = Database::builder().memory(4 << 20).background_threads(0);
        let db = options.open_on(Arc::new(Simulated::new(1))).unwrap();
        ["main", "anew"].iter().for_each(|name| _ = db.large_values(name).unwrap());
        let (engine, creation) = (&db.handle.engine, &db.handle.creation);
        let look = || creation.find_existing(engine, "main").unwrap();
        let first = std::cell::Cell::new(Some(look()));
        let gone = look().0;
        db.replace_keyspace("anew", "main").unwrap();
        let find = || {
            let found = first.take().unwrap_or_else(look);
            with_its_chunks(&engine.state.load().version, found).map(Vec::from)
        };
        let (version, found) = db.handle.find_there(find).unwrap();
        assert!(found[0].0 != gone && found.iter().all(|(id, _)| version.trees.contains(id)));
        assert_eq!(version.trees.get(&found[0].0).unwrap().chunks, Some(found[1].0));
    }
}
