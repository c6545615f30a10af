//! The creation of keyspaces. Each needs a durable edit of the manifest, and the version that this makes has a table of
//! all keyspaces. So a thread that creates some does so for all that wait: one edit for all of them.
//!
//! Invariants:
//! 1. A name that is found was durable before.
//! 2. Of several threads that create the same name, one does, and all get the same keyspace.

use crate::compression::Compression;
use crate::db::engine::Engine;
use crate::db::large_values::create::{check_ordinary, is_hidden};
use crate::error::{Error, Result};
use crate::lock_order::{RankedMutex, RankedRwLock, rank};
use crate::operation::KeyspaceId;
use crate::publish::PublishContext;
use crate::version::edit::Edit;
use crate::version::trees::NAME_LEN_MAX;
use crate::version::{Tree, Version};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Bytes of a keyspace in the manifest, without its name: at most, so that the reserve can be made long enough before.
pub(super) const TREE_LISTED: usize = 48;
/// Keyspaces of one edit (count): with the longest names it fits into a mebibyte.
const TOGETHER: usize = 4096;

/// Names in the message that there is none of a name (count): what a line can show, and no list of a hundred thousand.
const NAMED_MAX: usize = 20;

/// A keyspace's id, and its name.
pub(crate) type Named = (KeyspaceId, Arc<str>);

/// Ids by name.
#[derive(Default)]
struct Ids {
    all: HashMap<Arc<str>, KeyspaceId>,
    /// The version that they were learned of.
    epoch: Option<u64>,
}

impl Ids {
    /// Whether they are those of this version. What this process changes it notes here itself; where another process does, each version
    /// may have other names.
    fn are_of(&self, engine: &Engine, version: &Version) -> bool {
        self.epoch.is_some_and(|epoch| epoch == version.epoch || !engine.health.is_read_only())
    }
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Creation {
    ids: RankedRwLock<rank::KeyspaceIds, Ids>,
    /// Names that a thread waits for.
    wanted: RankedMutex<rank::CreationNames, Vec<Arc<str>>>,
    /// Who creates, drops or renames keyspaces: `ids`, `wanted` and the edit of the manifest agree when nobody has it.
    pub(super) catalog: RankedMutex<rank::Creation, ()>,
    /// Of keyspaces that are created without one.
    compression: Compression,
}

/// Returns an error if there can be no keyspace of this name.
pub(super) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_LEN_MAX || name.chars().any(char::is_control) {
        let reason = "names have 1 to 255 bytes and no control characters";
        return Err(Error::BadName { name: name.into(), reason });
    }
    Ok(())
}

/// Publishes an edit that makes the manifest longer by `listed` bytes for good: opening copies it, so the reserve must be long
/// enough before.
pub(super) fn publish_listed(engine: &Engine, mut edit: Edit, listed: u64) -> Result<()> {
    let events = engine.note_events(&mut edit, None)?;
    provide_listed(engine, listed + events)?;
    publish_kept(engine, &edit, PublishContext::default())
}

/// Publishes an edit, on a full disk with the space that is kept for other work.
pub(super) fn publish_kept(engine: &Engine, edit: &Edit, with: PublishContext<'_>) -> Result<()> {
    engine.space.with_kept_space(|| engine.publisher.publish(edit.clone(), with))
}

/// Makes the reserve long enough for so many bytes more in the list of keyspaces.
pub(super) fn provide_listed(engine: &Engine, listed: u64) -> Result<()> {
    if engine.space.reserve.covers(listed) { Ok(()) } else { engine.commits.provide_reserve(listed) }
}

fn id_behind(last: u32) -> Result<KeyspaceId> {
    if last >= KeyspaceId::LAST.0 {
        let expected = "one that another can follow";
        return Err(Error::corrupt("manifest", 0, "id of the last keyspace", expected, last));
    }
    Ok(KeyspaceId(last + 1))
}

impl Creation {
    pub fn new(compression: Compression) -> Self {
        Self { compression, ..Self::default() }
    }

    /// What the manifest is to say of the compression of a new keyspace: what was asked for, or the database's.
    pub(super) fn compression_of(
        &self,
        id: KeyspaceId,
        asked: Option<Compression>,
    ) -> Option<(KeyspaceId, Compression)> {
        let compression = asked.unwrap_or(self.compression);
        (compression != Compression::None).then_some((id, compression))
    }

    /// The keyspaces of these names, in this order. Those that do not exist are created.
    pub fn find_or_create(&self, engine: &Engine, names: &[Arc<str>]) -> Result<Vec<Named>> {
        names.iter().try_for_each(|name| check_name(name))?;
        self.learn(engine);
        if let Some(found) = self.find(names) {
            return Ok(found);
        }
        if !engine.health.is_read_only() {
            self.wanted.lock().extend(names.iter().cloned());
        }
        let _catalog = self.catalog.lock();
        // Perhaps created by the thread before this one.
        if let Some(found) = self.find(names) {
            // Whoever creates the next ones must not create these again, should they be dropped by then.
            let mut wanted = self.wanted.lock();
            let ids = self.ids.read();
            wanted.retain(|name| !ids.all.contains_key(name));
            return Ok(found);
        }
        if engine.health.is_read_only() {
            let missing = names.iter().find(|name| self.find(std::slice::from_ref(name)).is_none());
            return Err(self.no_keyspace(engine, missing.map_or("", |name| name)));
        }
        if let Err(error) = self.check_existing(engine, names) {
            // Whoever creates the next ones must not create these.
            let refused: HashSet<_> = names.iter().collect();
            self.wanted.lock().retain(|name| !refused.contains(name));
            return Err(error);
        }
        let mut wanted = std::mem::take(&mut *self.wanted.lock());
        // Another thread may have taken these, and failed.
        wanted.extend(names.iter().cloned());
        for some in wanted.chunks(TOGETHER) {
            self.create(engine, some)?;
        }
        self.find(names).ok_or(Error::Closed)
    }

    /// Returns an error if one of them is of large values: then none is created.
    fn check_existing(&self, engine: &Engine, names: &[Arc<str>]) -> Result<()> {
        let version = engine.state.version();
        let ids = self.ids.read();
        names.iter().filter_map(|name| ids.all.get(name)).try_for_each(|id| check_ordinary(&version, *id))
    }

    fn find(&self, names: &[Arc<str>]) -> Option<Vec<Named>> {
        let ids = self.ids.read();
        names
            .iter()
            .map(|name| ids.all.get_key_value(name).map(|(name, id)| (*id, Arc::clone(name))))
            .collect()
    }

    /// The keyspace of this name, if there is one.
    pub(super) fn find_existing(&self, engine: &Engine, name: &str) -> Option<Named> {
        self.learn(engine);
        let ids = self.ids.read();
        ids.all.get_key_value(name).map(|(name, id)| (*id, Arc::clone(name)))
    }

    /// The same for one who drops or renames it: those that only the store knows of are not theirs.
    pub(super) fn find_shown(&self, engine: &Engine, name: &str) -> Option<Named> {
        self.find_existing(engine, name).filter(|(_, name)| !is_hidden(name))
    }

    /// Whether there is one, also for a forked child: there a lock of the parent's may be held for ever.
    pub(super) fn has_shown(&self, engine: &Engine, name: &str) -> bool {
        if engine.health.check_process().is_ok() {
            return self.find_shown(engine, name).is_some();
        }
        let version = &engine.state.load_full().version;
        version.trees.iter().any(|(_, tree)| &*tree.name == name && !is_hidden(name))
    }

    /// The error that there is no keyspace of this name.
    pub(super) fn no_keyspace(&self, engine: &Engine, name: &str) -> Error {
        let version = engine.state.version();
        let mut names = version.trees.iter().map(|(_, tree)| &*tree.name).filter(|name| !is_hidden(name));
        let mut existing: Vec<_> = names.by_ref().take(NAMED_MAX).collect();
        existing.sort_unstable();
        existing.extend(names.next().map(|_| "..."));
        Error::NoKeyspace { name: name.into(), existing: existing.join(", ") }
    }

    /// A keyspace does not have this name any more.
    pub(super) fn forget(&self, name: &str) {
        self.ids.write().all.remove(name);
    }

    /// A keyspace has another name now, which that of another one may have been: nobody who looks finds neither.
    pub(super) fn renamed(&self, from: &str, to: Arc<str>, id: KeyspaceId) {
        let mut ids = self.ids.write();
        ids.all.remove(from);
        // The key too, as the name that handles get.
        ids.all.remove(&to);
        ids.all.insert(to, id);
    }

    /// A keyspace has this name now.
    pub(super) fn remember(&self, name: Arc<str>, id: KeyspaceId) {
        self.ids.write().all.insert(name, id);
    }

    /// Learns of the keyspaces that there are.
    fn learn(&self, engine: &Engine) {
        if self.ids.read().are_of(engine, &engine.state.load().version) {
            return;
        }
        let mut ids = self.ids.write();
        // Loaded under the lock: who changes names has published that before.
        let version = engine.state.version();
        if !ids.are_of(engine, &version) {
            let all = version.trees.iter().map(|(id, tree)| (Arc::clone(&tree.name), id)).collect();
            *ids = Ids { all, epoch: Some(version.epoch) };
        }
    }

    /// The id behind this one.
    pub(super) fn id_behind(id: KeyspaceId) -> Result<KeyspaceId> {
        id_behind(id.0)
    }

    /// An id that no keyspace ever had. The caller has `catalog` locked.
    pub(super) fn next_id(&self, engine: &Engine) -> Result<KeyspaceId> {
        id_behind(engine.state.load().version.last_keyspace)
    }

    /// Creates those that do not exist. The caller has `catalog` locked.
    fn create(&self, engine: &Engine, names: &[Arc<str>]) -> Result<()> {
        let mut last = engine.state.load().version.last_keyspace;
        let mut made: HashMap<Arc<str>, KeyspaceId> = HashMap::new();
        let mut trees = Vec::new();
        for name in names {
            if made.contains_key(name) || self.ids.read().all.contains_key(name) {
                continue;
            }
            last = id_behind(last)?.0;
            made.insert(Arc::clone(name), KeyspaceId(last));
            let tree = Tree::empty(Arc::clone(name));
            trees.push((KeyspaceId(last), tree));
        }
        if !trees.is_empty() {
            let listed =
                trees.iter().map(|(_, tree): &(_, Tree)| (tree.name.len() + TREE_LISTED) as u64).sum();
            let compressions = trees.iter().filter_map(|(id, _)| self.compression_of(*id, None)).collect();
            publish_listed(engine, Edit { trees, compressions, ..Edit::default() }, listed)?;
            self.ids.write().all.extend(made);
            engine.memory.balance_memory();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Database, Error};
    use psync::{Device, Simulated, Volume};
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn open(volume: &Simulated) -> Database {
        let builder = Database::builder().memory(4 << 20).background_threads(0);
        builder.open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).unwrap()
    }

    /// A thread that looks for a name may have begun before the names changed.
    #[test]
    fn names_of_an_older_version_do_not_come_back() {
        let db = open(&Simulated::new(1));
        for round in 0..200 {
            std::thread::scope(|scope| {
                let looks = scope.spawn(|| (0..200).for_each(|_| _ = db.keyspace_if_exists("x").unwrap()));
                for name in ["one", "other"] {
                    db.keyspace(name).unwrap().insert("key", "value").unwrap();
                    assert!(db.drop_keyspace(name).unwrap(), "round {round}");
                }
                looks.join().unwrap();
            });
            for name in ["one", "other"] {
                assert!(db.keyspace_if_exists(name).unwrap().is_none());
                db.keyspace(name).unwrap().insert("key", "value").unwrap();
            }
        }
    }

    /// Each refusal made a sorted list of all names.
    #[test]
    fn a_refusal_names_some_of_many_keyspaces() {
        let db = open(&Simulated::new(1));
        let refused = || match db.rename_keyspace("none", "x") {
            Err(Error::NoKeyspace { name, existing }) if name == "none" => existing,
            other => panic!("{other:?}"),
        };
        db.create_keyspaces(["ships", "harbours"]).unwrap();
        assert_eq!(refused(), "harbours, ships");
        let names: Vec<_> = (0..5000).map(|number| format!("keyspace {number}")).collect();
        db.create_keyspaces(names.iter().map(String::as_str)).unwrap();
        let told = refused();
        assert!(told.len() < 300, "{} bytes", told.len());
        assert!(told.starts_with("harbours, keyspace 0, ") && told.ends_with(", ships, ..."), "{told}");
    }

    /// Each took a walk through all that there were, and an edit of its own.
    #[test]
    fn many_keyspaces_take_few_edits() {
        const COUNT: usize = 10_000;
        let volume = Simulated::new(1);
        let db = open(&volume);
        let one = db.keyspace("one").unwrap();
        let names: Vec<_> = (0..COUNT).map(|number| format!("keyspace {number}")).collect();
        let syncs = volume.counters().syncs;
        let again = names.iter().map(String::as_str).chain(["one", "keyspace 7"]);
        let made = db.create_keyspaces(again).unwrap();
        assert!(volume.counters().syncs - syncs < 20, "{} syncs", volume.counters().syncs - syncs);
        assert_eq!(made.len(), COUNT + 2);
        assert!(made.iter().zip(&names).all(|(keyspace, name)| keyspace.name() == name));
        made[7].insert("key", "7").unwrap();
        one.insert("key", "one").unwrap();
        assert_eq!(made[COUNT].get("key").unwrap().unwrap()[..], b"one"[..]);
        assert_eq!(made[COUNT + 1].get("key").unwrap().unwrap()[..], b"7"[..]);
        assert!(matches!(db.create_keyspaces(["new", ""]), Err(Error::BadName { .. })));
        assert!(!db.keyspaces().contains(&"new".into()));
        for seed in 0..5 {
            let db = open(&volume.power_loss(seed));
            assert_eq!(db.keyspaces().len(), COUNT + 1);
            assert_eq!(db.keyspace("keyspace 7").unwrap().get("key").unwrap().unwrap()[..], b"7"[..]);
        }
    }

    #[test]
    fn threads_that_create_the_same_keyspaces_get_the_same() {
        let volume = Simulated::new(1);
        let db = open(&volume);
        let ids: Vec<Vec<_>> = std::thread::scope(|scope| {
            let threads = [1, 3, 7, 9].map(|factor| {
                let db = &db;
                scope.spawn(move || {
                    let numbers = (0..200).map(|number| number * factor % 200);
                    let mut made: Vec<_> = numbers
                        .map(|number| (number, db.keyspace(&format!("{number}")).unwrap().id()))
                        .collect();
                    made.sort_unstable();
                    made
                })
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|made| *made == ids[0]));
        assert_eq!(ids[0].iter().map(|(_, id)| *id).collect::<BTreeSet<_>>().len(), 200);
        assert_eq!(db.keyspaces().len(), 200);
        db.check().unwrap();
    }
}
