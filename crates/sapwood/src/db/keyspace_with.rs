//! Keyspaces with options: how they are created, and how options change.

use crate::db::create_keyspaces::{Creation, Named, TREE_LISTED, check_name, publish_listed};
use crate::db::database::Database;
use crate::db::engine::Engine;
use crate::db::keyspace::Keyspace;
use crate::db::keyspace_options::KeyspaceOptions;
use crate::db::large_values::create::check_ordinary;
use crate::db::merging::merge_limits;
use crate::error::{Error, Result};
use crate::operation::KeyspaceId;
use crate::version::Tree;
use crate::version::edit::Edit;
use std::sync::Arc;

/// Bytes that the options of a keyspace but its merge operator take in the manifest: at most, so that the reserve can be made long
/// enough before.
const OPTIONS_LISTED: u64 = 32;

impl Creation {
    /// The keyspace of this name, with these options: it is created, or its options are changed, if need be.
    fn find_or_create_with(&self, engine: &Engine, name: &str, options: &KeyspaceOptions) -> Result<Named> {
        check_name(name)?;
        let _catalog = self.catalog.lock();
        if let Some((id, name)) = self.find_existing(engine, name) {
            give_options(engine, (id, &name), options)?;
            return Ok((id, name));
        }
        if engine.health.is_read_only() {
            return Err(self.no_keyspace(engine, name));
        }
        engine.health.check_writable()?;
        let (name, id) = (Arc::<str>::from(name), self.next_id(engine)?);
        let limits = merge_limits(&engine.shares);
        let edit = Edit {
            trees: vec![(id, Tree::empty(Arc::clone(&name)))],
            ttls: options.expiry().map(|ttl| (id, ttl)).into_iter().collect(),
            merges: options.merging().map(|merging| (id, merging.within(limits))).into_iter().collect(),
            durabilities: options.own_durability().map(|own| (id, own)).into_iter().collect(),
            compressions: self.compression_of(id, options.own_compression()).into_iter().collect(),
            clock: options.expiry().map(|_| engine.clock.now().max(1)),
            ..Edit::default()
        };
        let operator = options.merging().map_or(0, |merging| merging.name().len());
        publish_listed(engine, edit, (name.len() + operator + TREE_LISTED) as u64 + OPTIONS_LISTED)?;
        self.remember(Arc::clone(&name), id);
        engine.memory.balance_memory();
        Ok((id, name))
    }
}

/// Gives these options to a keyspace that was found, if they can be changed; nothing to one that is gone by now, for which the caller looks again.
fn give_options(engine: &Engine, (id, name): (KeyspaceId, &str), options: &KeyspaceOptions) -> Result<()> {
    let version = engine.state.version();
    check_ordinary(&version, id)?;
    // In a follower trees go whenever it refreshes.
    let Some(tree) = version.trees.get(&id) else { return Ok(()) };
    let stored = KeyspaceOptions::of(tree);
    if let Some(asked) = options.merging().filter(|asked| stored.merging() != Some(asked)) {
        let keyspace = name.to_owned();
        return Err(match stored.merging() {
            None => Error::NoMergeOperator { keyspace },
            Some(stored) => Error::OtherMergeOperator {
                keyspace,
                stored: stored.name().into(),
                asked: asked.name().into(),
            },
        });
    }
    if options.expiry().is_some() && stored.expiry().is_none() {
        return Err(Error::NoExpiry { keyspace: name.to_owned() });
    }
    // Options that only say that records may expire say nothing of how long they live.
    let ttl = options.expiry().filter(|asked| asked.duration().is_some() && stored.expiry() != Some(*asked));
    let durability = options.own_durability().filter(|asked| stored.own_durability() != Some(*asked));
    let compression = options.own_compression().filter(|asked| stored.is_compressed_by() != *asked);
    let edit = Edit {
        compressions: compression.map(|compression| (id, compression)).into_iter().collect(),
        ttls: ttl.map(|ttl| (id, ttl)).into_iter().collect(),
        durabilities: durability.map(|durability| (id, durability)).into_iter().collect(),
        ..Edit::default()
    };
    // What only reads goes without: options are of what is written.
    if edit == Edit::default() || engine.health.is_read_only() {
        return Ok(());
    }
    publish_options(engine, edit)
}

/// Publishes an edit of the options of a keyspace that exists.
pub(super) fn publish_options(engine: &Engine, edit: Edit) -> Result<()> {
    engine.health.check_writable()?;
    publish_listed(engine, edit, OPTIONS_LISTED)
}

impl Database {
    /// Returns the keyspace `name` with these options. It is created, durably, if it does not exist. If it does, it gets the
    /// options' time to live, if they have one, for what is inserted from then on, their durability, if they have one, for
    /// handles that are made from then on, and their compression, if they have one, for what is written to the trees from then on. A database that is open read-only
    /// keeps what it has.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// use sapwood::KeyspaceOptions;
    /// use std::time::Duration;
    ///
    /// let half_an_hour = Duration::from_secs(30 * 60);
    /// let sessions = db.keyspace_with("sessions", KeyspaceOptions::new().time_to_live(half_an_hour))?;
    /// sessions.insert("f3a9", "amundsen")?; // gone in half an hour, unless inserted again
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Database::keyspace`]. [`Error::NoExpiry`], [`Error::NoMergeOperator`], [`Error::OtherMergeOperator`] if the keyspace was
    /// created without expiry, or without this merge operator. [`Error::BadOption`] for options that do not go together.
    pub fn keyspace_with(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        self.handle.engine.health.check_process()?;
        if !options.say_something() {
            return self.keyspace(name);
        }
        options.check()?;
        let find = || self.handle.creation.find_or_create_with(&self.handle.engine, name, &options);
        let (version, found) = self.handle.find_there(|| Ok(vec![find()?]))?;
        let (id, name) = found.into_iter().next().ok_or(Error::Closed)?;
        Ok(Keyspace::in_version(Arc::clone(&self.handle), &version, id, name))
    }
}

impl Keyspace {
    /// The options that are stored with the keyspace.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// assert_eq!(db.keyspace("ships")?.options()?, sapwood::KeyspaceOptions::new());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::KeyspaceDropped`]; [`Error::Forked`] in another process than the one that opened the database.
    pub fn options(&self) -> Result<KeyspaceOptions> {
        let engine = &self.handle().engine;
        engine.health.check_process()?;
        let state = engine.state.load();
        self.check_in(&state.version)?;
        let tree = state.version.trees.get(&self.id());
        Ok(tree.map_or_else(KeyspaceOptions::default, KeyspaceOptions::of))
    }
}

#[cfg(test)]
mod tests {
    use super::give_options;
    use crate::storage::compressed::{StoredNode, is_compressed};
    use crate::{Builder, Change, Compression, Database, Error, KeyspaceOptions};
    use bytes::Bytes;
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn open(volume: &Simulated) -> Database {
        let builder =
            Database::builder().memory(4 << 20).background_threads(0).durability(crate::Durability::Buffered);
        builder.open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).unwrap()
    }

    fn value(number: u32) -> String {
        format!(
            "{{\"user\":{},\"seen\":{},\"path\":\"/a/{}\"}}",
            number % 977,
            number.wrapping_mul(0x9E37_79B9),
            number % 13
        )
    }

    /// How many leaves and log pieces are stored with each codec.
    fn codecs(db: &Database) -> BTreeMap<u8, usize> {
        let (engine, mut found) = (&db.handle.engine, BTreeMap::new());
        let version = engine.state.version();
        for (id, address) in version.table.iter() {
            let stored: Vec<StoredNode> =
                engine.pager.reader.read_stored(&version.segments, &[(id, address)]).unwrap();
            if !stored[0].name().is_inner() {
                assert_eq!(is_compressed(stored[0].bytes()), stored[0].bytes()[6] != 0);
                *found.entry(stored[0].bytes()[6]).or_default() += 1;
            }
        }
        found
    }

    /// A build without Zstandard took such leaves for damaged: repairs left them out, and the first one that was to be cleansed ended all writing.
    #[cfg(feature = "zstd")]
    #[test]
    fn what_only_this_build_cannot_read_is_neither_damaged_nor_in_the_way() {
        use crate::storage::compressed::WITHOUT_ZSTD;
        let volume = Simulated::new(1);
        let db = open(&volume);
        let zstd = KeyspaceOptions::new().compression(Compression::Zstd { level: 1 });
        let keyspace = db.keyspace_with("main", zstd).unwrap();
        (0..5000u32).for_each(|number| keyspace.insert(number.to_be_bytes(), value(number)).unwrap());
        db.flush().unwrap();
        db.compact().unwrap();
        drop(keyspace);
        let lz4 = KeyspaceOptions::new().compression(Compression::Lz4);
        db.keyspace_with("main", lz4.clone()).unwrap();
        db.close().unwrap();
        WITHOUT_ZSTD.set(true);
        let db = open(&volume);
        let keyspace = db.keyspace_with("main", lz4).unwrap();
        let refused = keyspace.get(7u32.to_be_bytes());
        assert!(matches!(&refused, Err(Error::BadOption { option: "compression", .. })), "{refused:?}");
        let other = db.keyspace("other").unwrap();
        for round in 0..20u32 {
            for number in 0..200 {
                keyspace.insert((round * 200 + number).to_be_bytes(), "new").unwrap();
                other.insert(number.to_be_bytes(), value(round)).unwrap();
            }
            // Such changes are appended to log areas, and no leaf is read.
            db.flush().unwrap();
        }
        let _ = db.compact();
        other.insert("goes on", "1").unwrap();
        // A flush that has to read such a leaf does not get on, and neither does writing.
        keyspace.remove_range(4990u32.to_be_bytes()..4999u32.to_be_bytes()).unwrap();
        let refused = db.flush();
        assert!(matches!(&refused, Err(Error::BadOption { option: "compression", .. })), "{refused:?}");
        assert!(matches!(other.insert("goes on", "2"), Err(Error::Poisoned { .. })));
        drop((keyspace, other));
        let _ = db.close();
        let image = volume.crash();
        let repair =
            || crate::repair::Repair::of_volume(Arc::new(image.clone())).onto(Arc::new(Simulated::new(2)));
        let refused = repair();
        assert!(matches!(&refused, Err(Error::BadOption { option: "compression", .. })), "{refused:?}");
        WITHOUT_ZSTD.set(false);
        assert!(repair().unwrap().damage.is_empty());
        let db = open(&volume);
        let keyspace = db.keyspace("main").unwrap();
        assert!(keyspace.get(4999u32.to_be_bytes()).unwrap().is_some());
        assert!(keyspace.get(4998u32.to_be_bytes()).unwrap().is_none());
        db.flush().unwrap();
    }

    #[test]
    fn a_dictionary_is_trained_kept_and_dropped_with_its_keyspace() {
        let volume = Simulated::new(1);
        let mut db = open(&volume);
        let options = KeyspaceOptions::new().compression(Compression::ZstdDictionary { level: 1 });
        let load = |db: &Database, from: u32, to: u32| {
            let keyspace = db.keyspace_with("main", options.clone()).unwrap();
            (from..to).for_each(|number| keyspace.insert(number.to_be_bytes(), value(number)).unwrap());
            db.flush().unwrap();
        };
        load(&db, 0, 60_000);
        let dictionaries =
            |db: &Database| db.handle.engine.state.load().version.segments.dictionaries.iter().count();
        assert_eq!(dictionaries(&db), 1);
        for round in 3..6 {
            db.close().unwrap();
            db = open(&volume);
            load(&db, 20_000 * round, 20_000 * (round + 1));
            let keyspace = db.keyspace("main").unwrap();
            for number in (0..20_000 * (round + 1)).step_by(7) {
                let found = keyspace.get(number.to_be_bytes()).unwrap();
                assert_eq!(found.as_deref(), Some(value(number).as_bytes()), "record {number}");
            }
            db.check().unwrap();
        }
        let found = codecs(&db);
        assert!(found.get(&3).is_some_and(|with| *with > 100), "{found:?}");
        // What is written from now on is as the keyspace says now.
        let keyspace =
            db.keyspace_with("main", KeyspaceOptions::new().compression(Compression::Lz4)).unwrap();
        (0..5000u32).for_each(|number| keyspace.insert(number.to_be_bytes(), value(number + 1)).unwrap());
        db.compact().unwrap();
        let found = codecs(&db);
        assert!(found.contains_key(&1) && found.contains_key(&3), "{found:?}");
        assert_eq!(keyspace.get(70_000u32.to_be_bytes()).unwrap().as_deref(), Some(value(70_000).as_bytes()));
        assert!(db.drop_keyspace("main").unwrap());
        db.compact().unwrap();
        assert_eq!(dictionaries(&db), 0);
        db.close().unwrap();
        assert_eq!(dictionaries(&open(&volume)), 0);
    }

    /// Nodes that are written beside the drop are compressed with it, until they are taken apart.
    #[test]
    fn a_dictionary_stays_while_nodes_are_written_for_a_keyspace_that_is_dropped() {
        let volume = Simulated::new(1);
        let builder = Database::builder().memory(4 << 20).background_threads(0).keep_changes(1 << 20);
        let db = builder.open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).unwrap();
        let options = KeyspaceOptions::new().compression(Compression::ZstdDictionary { level: 1 });
        let keyspace = db.keyspace_with("main", options).unwrap();
        let records = || (0..60_000u32).map(|number| (number.to_be_bytes(), value(number)));
        records().for_each(|(key, value)| keyspace.insert(key, value).unwrap());
        keyspace.remove_range(..).unwrap();
        db.compact().unwrap();
        let engine = &db.handle.engine;
        let version = engine.state.version();
        assert!(version.segments.dictionaries.get(keyspace.id()).is_some());
        assert!(version.trees.get(&keyspace.id()).unwrap().root.is_none());
        let (_, position) = db.snapshot_for_changes().unwrap();
        let drop_it = || {
            std::thread::scope(|scope| scope.spawn(|| db.drop_keyspace("main").unwrap()).join().unwrap());
        };
        let mut has_begun = false;
        let records = records().map(|(key, value)| {
            if !std::mem::replace(&mut has_begun, true) {
                drop_it();
            }
            Ok((Bytes::copy_from_slice(&key), Bytes::from(value)))
        });
        engine.ingest(keyspace.id(), || Ok(None), records).unwrap().unwrap();
        assert!(engine.state.load().version.dropped.contains(&keyspace.id()));
        db.check().unwrap();
        // Nobody is told of records of a keyspace that is gone.
        let told: Vec<_> = db.changes(&position).unwrap().map(|change| change.unwrap()).collect();
        assert!(matches!(told[..], [Change::KeyspaceDropped { .. }]), "{told:?}");
        db.compact().unwrap();
        assert_eq!(engine.state.load().version.segments.dictionaries.iter().count(), 0);
        db.check().unwrap();
    }

    /// A follower that refreshes in between was told that the keyspace has no expiry, which both have.
    #[test]
    fn a_keyspace_that_was_replaced_meanwhile_is_looked_for_again() {
        let db = open(&Simulated::new(1));
        let options = KeyspaceOptions::new().expiring();
        ["main", "anew"].iter().for_each(|name| _ = db.keyspace_with(name, options.clone()).unwrap());
        let (engine, creation) = (&db.handle.engine, &db.handle.creation);
        let look = || creation.find_existing(engine, "main").unwrap();
        let first = std::cell::Cell::new(Some(look()));
        let gone = look().0;
        db.replace_keyspace("anew", "main").unwrap();
        let find = || {
            let (id, name) = first.take().unwrap_or_else(look);
            give_options(engine, (id, &name), &options)?;
            Ok(vec![(id, name)])
        };
        let (version, found) = db.handle.find_there(find).unwrap();
        assert!(found[0].0 != gone && version.trees.contains(&found[0].0));
    }

    #[test]
    fn there_are_levels_that_are_none() {
        let db = open(&Simulated::new(1));
        for compression in [Compression::Zstd { level: 0 }, Compression::ZstdDictionary { level: 20 }] {
            let refused = db.keyspace_with("main", KeyspaceOptions::new().compression(compression));
            assert!(matches!(refused, Err(Error::BadOption { option: "compression", .. })));
            let refused = Builder::default().compression(compression).open_on(Arc::new(Simulated::new(1)));
            assert!(matches!(refused, Err(Error::BadOption { option: "compression", .. })));
        }
        assert!(db.keyspaces().is_empty());
    }

    #[test]
    fn many_compressed_leaves_are_read_together_or_not_at_all() {
        let volume = Simulated::new(1);
        let db = open(&volume);
        let options = KeyspaceOptions::new().compression(Compression::Lz4);
        let keyspace = db.keyspace_with("main", options).unwrap();
        (0..60_000u32).for_each(|number| keyspace.insert(number.to_be_bytes(), value(number)).unwrap());
        db.compact().unwrap();
        db.close().unwrap();
        let db = open(&volume);
        let keyspace = db.keyspace("main").unwrap();
        let numbers: Vec<u32> = (0..60_000).step_by(500).collect();
        let get = || keyspace.multi_get(numbers.iter().map(|number| number.to_be_bytes()));
        keyspace.get(7u32.to_be_bytes()).unwrap();
        for nth in [1, 20, 60, 100] {
            let fired = volume.fired();
            volume.fail_nth(Filter::kinds([OperationKind::Read]), nth, Fault::Error, Repeat::Once);
            assert_eq!(get().is_err(), volume.fired() > fired, "read {nth}");
            volume.clear_faults();
        }
        assert!(volume.fired() > 1, "{} reads failed", volume.fired());
        let found = get().unwrap();
        for (number, found) in numbers.iter().zip(found) {
            assert_eq!(found.as_deref(), Some(value(*number).as_bytes()));
        }
    }
}
