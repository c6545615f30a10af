//! Dropping and renaming keyspaces, and what is kept beside their records. Each is one edit of the manifest.
//!
//! ```text
//! drop    trees: ships ──one edit──▶ dropped: the tree of ships ──background, portions──▶ nothing
//! ```
//! Commits in flight may still bring changes of a dropped keyspace to the log and the queue: a flush passes over them, and so
//! does opening. Ids are never used again.

use crate::db::create_keyspaces::{Creation, check_name, provide_listed, publish_kept, publish_listed};
use crate::db::database::Database;
use crate::db::engine::Engine;
use crate::db::keyspace::Keyspace;
use crate::db::large_values::create::{check_ordinary, with_chunks};
use crate::error::{Error, Result};
use crate::operation::KeyspaceId;
use crate::publish::{PublishContext, TreesChange};
use crate::version::Version;
use crate::version::edit::Edit;
use crate::version::trees::{METADATA_MAX, TreeName};
use std::sync::Arc;

impl Creation {
    /// Drops a keyspace. Returns whether there was one.
    fn drop_keyspace(&self, engine: &Engine, name: &str) -> Result<bool> {
        engine.health.check_writable()?;
        let _catalog = self.catalog.lock();
        let Some((id, _)) = self.find_shown(engine, name) else { return Ok(false) };
        let version = engine.state.version();
        let mut edit = Edit { dropped: with_chunks(&version, id), ..Edit::default() };
        // Which may have to make commits durable.
        engine.space.with_reserve(|| engine.note_events(&mut edit, None))?;
        // Transactions that have read of it are validated before that, or conflict.
        let _shown = engine.commits.show_ingested(id);
        let with = PublishContext { trees: TreesChange::Grown, ..PublishContext::default() };
        engine.space.with_reserve(|| publish_kept(engine, &edit, with))?;
        self.forget_all(&version, &edit.dropped);
        Ok(true)
    }

    /// Keyspaces that a version had, and their chunks', have no names any more.
    fn forget_all(&self, version: &Version, dropped: &[KeyspaceId]) {
        let trees = dropped.iter().filter_map(|id| version.trees.get(id));
        trees.for_each(|tree| self.forget(&tree.name));
    }

    /// Gives a keyspace another name.
    fn rename_keyspace(&self, engine: &Engine, from: &str, to: &str) -> Result<()> {
        engine.health.check_writable()?;
        check_name(to)?;
        let _catalog = self.catalog.lock();
        let (id, _) = self.find_shown(engine, from).ok_or_else(|| self.no_keyspace(engine, from))?;
        if from == to {
            return Ok(());
        }
        if self.find_existing(engine, to).is_some() {
            let reason = "there is a keyspace of this name";
            return Err(Error::BadName { name: to.into(), reason });
        }
        let metadata = engine.state.load().version.trees.get(&id).and_then(|tree| tree.metadata.clone());
        let to: Arc<str> = to.into();
        self.publish_name(engine, TreeName { id, name: Arc::clone(&to), metadata })?;
        self.renamed(from, to, id);
        Ok(())
    }

    /// Gives a keyspace the name of another one, which is dropped.
    fn replace_keyspace(&self, engine: &Engine, from: &str, to: &str) -> Result<()> {
        engine.health.check_writable()?;
        check_name(to)?;
        let _catalog = self.catalog.lock();
        let (id, _) = self.find_shown(engine, from).ok_or_else(|| self.no_keyspace(engine, from))?;
        if from == to {
            return Ok(());
        }
        let replaced = self.find_existing(engine, to).map(|(id, _)| id);
        let metadata = engine.state.load().version.trees.get(&id).and_then(|tree| tree.metadata.clone());
        let name = TreeName { id, name: to.into(), metadata };
        let listed = name.listed_len();
        let version = engine.state.version();
        let dropped = replaced.map(|id| with_chunks(&version, id)).unwrap_or_default();
        let mut edit = Edit { dropped, names: vec![name], ..Edit::default() };
        let events = engine.note_events(&mut edit, None)?;
        provide_listed(engine, listed + events)?;
        // As in `drop_keyspace`.
        let _shown = replaced.map(|id| engine.commits.show_ingested(id));
        let with = PublishContext { trees: TreesChange::Grown, ..PublishContext::default() };
        publish_kept(engine, &edit, with)?;
        self.forget_all(&version, &edit.dropped);
        self.renamed(from, to.into(), id);
        Ok(())
    }

    /// Sets what is kept beside a keyspace.
    fn set_metadata(&self, engine: &Engine, keyspace: &Keyspace, metadata: &[u8]) -> Result<()> {
        engine.health.check_writable()?;
        if metadata.len() > METADATA_MAX {
            return Err(Error::ValueTooLong { len: metadata.len(), max: METADATA_MAX, most: METADATA_MAX });
        }
        let _catalog = self.catalog.lock();
        let name = engine.state.load().version.trees.get(&keyspace.id()).map(|tree| Arc::clone(&tree.name));
        let name = name.ok_or_else(|| Error::KeyspaceDropped { name: keyspace.name().into() })?;
        let metadata = (!metadata.is_empty()).then(|| metadata.into());
        self.publish_name(engine, TreeName { id: keyspace.id(), name, metadata })
    }

    fn publish_name(&self, engine: &Engine, name: TreeName) -> Result<()> {
        let listed = name.listed_len();
        publish_listed(engine, Edit { names: vec![name], ..Edit::default() }, listed)
    }
}

impl Database {
    /// Returns the keyspace `name` if there is one.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// assert!(db.keyspace_if_exists("ships")?.is_none());
    /// db.keyspace("ships")?;
    /// assert!(db.keyspace_if_exists("ships")?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::LargeValues`]; [`Error::Closed`]; [`Error::Forked`] in another process than the one that opened it.
    pub fn keyspace_if_exists(&self, name: &str) -> Result<Option<Keyspace>> {
        let engine = &self.handle.engine;
        engine.health.check_process()?;
        if engine.health.is_closed() {
            return Err(Error::Closed);
        }
        let find = || Ok(self.handle.creation.find_shown(engine, name).into_iter().collect());
        let (version, found) = self.handle.find_there(find)?;
        let Some((id, name)) = found.into_iter().next() else { return Ok(None) };
        check_ordinary(&version, id)?;
        Ok(Some(Keyspace::in_version(Arc::clone(&self.handle), &version, id, name)))
    }

    /// Drops a keyspace with all its records, durably. Returns whether there was one. It takes a sync or two, however many
    /// records there are; their space comes back in the background, or with the next [`Database::compact`].
    ///
    /// Handles of the keyspace answer with [`Error::KeyspaceDropped`] from then on, and so do commits that would change it.
    /// Snapshots and iterators that were made before still see it. Transactions that have read of it conflict. A
    /// keyspace that is created with the same name is another one.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::Error;
    ///
    /// let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// assert!(db.drop_keyspace("ships")?);
    /// assert!(matches!(ships.get("fram"), Err(Error::KeyspaceDropped { .. })));
    /// assert!(db.keyspace("ships")?.is_empty()?);
    /// assert!(!db.drop_keyspace("harbours")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Poisoned`]; [`Error::Closed`]; [`Error::DiskFull`]; [`Error::Io`].
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        let engine = &self.handle.engine;
        engine.health.check_process()?;
        let was_there = self.handle.creation.drop_keyspace(engine, name)?;
        engine.flush.notify();
        Ok(was_there)
    }

    /// Gives a keyspace another name, durably. Its handles stay valid; [`Keyspace::name`] of those that there are says the old
    /// name.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let ships = db.keyspace("ships.new")?;
    /// ships.insert("fram", "1892")?;
    /// db.drop_keyspace("ships")?;
    /// db.rename_keyspace("ships.new", "ships")?;
    /// assert!(db.keyspace("ships")?.contains("fram")? && ships.contains("fram")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoKeyspace`] if there is none named `from`; [`Error::BadName`] if `to` is no name, or that of another
    /// keyspace; and as [`Database::drop_keyspace`].
    pub fn rename_keyspace(&self, from: &str, to: &str) -> Result<()> {
        self.handle.engine.health.check_process()?;
        self.handle.creation.rename_keyspace(&self.handle.engine, from, to)
    }

    /// Gives keyspace `from` the name `to`, durably, and drops the keyspace that had it, if there was one: both at once, so
    /// that at any moment, also after a crash, `to` is wholly the one or the other. What [`drop_keyspace`](Self::drop_keyspace) says of the
    /// dropped one's handles holds here, and what [`rename_keyspace`](Self::rename_keyspace) says of those of `from`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let ships = db.keyspace("ships")?;
    /// ships.insert("fram", "1892")?;
    /// let built_anew = db.keyspace("ships.new")?;
    /// built_anew.ingest(ships.iter().flatten().map(|(name, year)| (name, [&year[..], b", afloat"].concat())))?;
    /// db.replace_keyspace("ships.new", "ships")?;
    /// assert!(db.keyspace("ships")?.get("fram")?.is_some_and(|year| year == "1892, afloat"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoKeyspace`] if there is none named `from`; [`Error::BadName`] if `to` is no name; and as
    /// [`Database::drop_keyspace`].
    pub fn replace_keyspace(&self, from: &str, to: &str) -> Result<()> {
        self.handle.engine.health.check_process()?;
        self.handle.creation.replace_keyspace(&self.handle.engine, from, to)
    }
}

impl Keyspace {
    /// What [`Keyspace::set_metadata`] has set; empty if nothing was.
    ///
    /// # Errors
    /// [`Error::KeyspaceDropped`].
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// assert!(ships.metadata()?.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn metadata(&self) -> Result<Vec<u8>> {
        self.handle().engine.health.check_process()?;
        let state = self.handle().engine.state.load();
        self.check_in(&state.version)?;
        let tree = state.version.trees.get(&self.id());
        Ok(tree.and_then(|tree| tree.metadata.as_ref()).map(|metadata| metadata.to_vec()).unwrap_or_default())
    }

    /// Keeps some bytes with the keyspace, durably: what wrote its records, and how, for instance. At most 4096 bytes, in
    /// place of what was there; none to remove it. They are in memory as long as the database is open.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// # let ships = db.keyspace("ships")?;
    /// ships.set_metadata("schema 3")?;
    /// assert_eq!(ships.metadata()?, b"schema 3");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::ValueTooLong`]; [`Error::KeyspaceDropped`]; and as [`Database::drop_keyspace`].
    pub fn set_metadata(&self, metadata: impl AsRef<[u8]>) -> Result<()> {
        self.handle().engine.health.check_process()?;
        self.handle().creation.set_metadata(&self.handle().engine, self, metadata.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use crate::reserve::FILE;
    use crate::{Database, Durability, Error};
    use psync::{Simulated, Volume};
    use std::sync::Arc;

    /// A handle that was made while its keyspace was dropped took records that expire for plain ones, where a snapshot still had them.
    #[test]
    fn a_handle_is_of_the_version_that_has_its_keyspace() {
        let db =
            Database::builder().memory(4 << 20).background_threads(0).open_on(Arc::new(Simulated::new(1)));
        let db = db.unwrap();
        let expiring = crate::KeyspaceOptions::new().expiring();
        db.keyspace_with("main", expiring).unwrap().insert("k", "value").unwrap();
        let found = db.handle.creation.find_shown(&db.handle.engine, "main").unwrap();
        let snapshot = db.snapshot();
        db.drop_keyspace("main").unwrap();
        let refused = db.handle.find_there(|| Ok(vec![found.clone()]));
        assert!(matches!(refused, Err(Error::KeyspaceDropped { name }) if name == "main"));
        let asked = std::cell::Cell::new(0);
        let (_, there) = db
            .handle
            .find_there(|| {
                asked.set(asked.get() + 1);
                if asked.get() == 1 { Ok(vec![found.clone()]) } else { Ok(Vec::new()) }
            })
            .unwrap();
        assert!(there.is_empty());
        assert_eq!(snapshot.get(&snapshot.keyspaces()[0], "k").unwrap().unwrap(), "value");
    }

    #[test]
    fn a_keyspace_may_get_the_name_that_it_has() {
        let db =
            Database::builder().memory(4 << 20).background_threads(0).open_on(Arc::new(Simulated::new(1)));
        let db = db.unwrap();
        db.keyspace("main").unwrap().insert("k", "value").unwrap();
        db.rename_keyspace("main", "main").unwrap();
        db.replace_keyspace("main", "main").unwrap();
        assert!(db.keyspace("main").unwrap().contains("k").unwrap());
        assert!(matches!(db.rename_keyspace("other", "other"), Err(Error::NoKeyspace { .. })));
    }

    /// Commits that had to become durable before the drop is told to the change feed had no space, although the drop has the reserve.
    #[test]
    fn a_keyspace_is_dropped_on_a_full_disk_where_commits_are_not_durable_yet() {
        let volume = Simulated::new(1);
        let builder = Database::builder().memory(4 << 20).background_threads(0).keep_changes(1 << 20);
        let db = builder.open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).unwrap();
        let keyspace = db.keyspace("main").unwrap().with_durability(Durability::None);
        db.keyspace("other").unwrap().insert("k", "value").unwrap();
        db.flush().unwrap();
        for capacity in 0..40 {
            keyspace.insert([capacity], vec![7; 3000]).unwrap();
        }
        db.handle.engine.space.reclaim(0);
        while db.handle.engine.space.kept_log.give_up_oldest(&volume) {}
        volume.set_capacity(volume.used());
        let log = crate::reserve::FILE;
        assert!(volume.list().unwrap().iter().any(|entry| entry.name == log), "there is a reserve");
        assert!(db.drop_keyspace("other").unwrap());
    }

    /// The log that is kept for the change feed stayed where it was, and edits of keyspaces were refused beside it; so was opening.
    #[test]
    fn keyspaces_change_while_a_full_disk_has_something_that_is_kept() {
        let volume = Simulated::new(1);
        let builder = Database::builder().memory(4 << 20).background_threads(0).keep_changes(1 << 30);
        let open = || builder.clone().open_on(Arc::new(volume.clone()) as Arc<dyn Volume>);
        let db = open().unwrap();
        let keyspace = db.keyspace("main").unwrap().with_durability(Durability::Buffered);
        for number in 0..4000u32 {
            keyspace.insert(number.to_be_bytes(), [number as u8; 500]).unwrap();
        }
        db.flush().unwrap();
        let others: Vec<_> = (0..20).map(|number| format!("other {number}")).collect();
        db.create_keyspaces(others.iter().map(String::as_str)).unwrap();
        let kept = |db: &Database| db.stats().space.kept_log;
        assert!(kept(&db) > 1 << 20);
        db.handle.engine.space.reclaim(0);
        // Only what is kept of the log can give the manifest more space.
        volume.set_capacity(volume.used());
        let long = |number: usize| format!("{number:0200}");
        for number in 0..60 {
            let from = if number == 0 { "main".to_owned() } else { long(number - 1) };
            let before = kept(&db);
            db.rename_keyspace(&from, &long(number))
                .unwrap_or_else(|error| panic!("{before} bytes kept: {error}"));
        }
        let before = kept(&db);
        assert!(before > 0);
        for other in &others {
            assert!(db.drop_keyspace(other).unwrap());
            volume.set_capacity(volume.used());
        }
        drop(keyspace);
        // The same of opening, without the reserve.
        volume.set_capacity(u64::MAX);
        db.close().unwrap();
        volume.remove(FILE).unwrap();
        volume.set_capacity(volume.used());
        let db = open().unwrap();
        assert!(kept(&db) < before);
        assert_eq!(db.keyspace(&long(59)).unwrap().iter().count(), 4000);
    }
}
