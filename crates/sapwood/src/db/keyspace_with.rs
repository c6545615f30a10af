//! Keyspaces with options: how they are created, and how options change.

use crate::db::create_keyspaces::{Creation, TREE_LISTED, check_name, publish_listed};
use crate::db::database::Database;
use crate::db::engine::Engine;
use crate::db::keyspace::Keyspace;
use crate::db::keyspace_options::KeyspaceOptions;
use crate::db::merging::value_max;
use crate::error::{Error, Result};
use crate::version::Tree;
use crate::version::edit::Edit;
use std::sync::Arc;

/// Bytes that the options of a keyspace but its merge operator take in the manifest: at most, so that the reserve can be made long
/// enough before.
const OPTIONS_LISTED: u64 = 32;

impl Creation {
    /// The keyspace of this name, with these options: it is created, or its options are changed, if need be.
    fn find_or_create_with(&self, engine: &Engine, name: &str, options: &KeyspaceOptions) -> Result<()> {
        check_name(name)?;
        let _turn = self.turn.lock();
        let found = self.find_existing(engine, name);
        if let Some((id, name)) = found {
            let tree = engine.state.load().version.trees.get(&id).cloned();
            let stored = tree.as_ref().map_or_else(KeyspaceOptions::default, KeyspaceOptions::of);
            if let Some(asked) = options.merging().filter(|asked| stored.merging() != Some(asked)) {
                let keyspace = name.to_string();
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
                return Err(Error::NoExpiry { keyspace: name.to_string() });
            }
            let life = options.expiry().filter(|asked| stored.expiry() != Some(*asked));
            let durability = options.own_durability().filter(|asked| stored.own_durability() != Some(*asked));
            let compression = options.own_compression().filter(|asked| stored.is_compressed_by() != *asked);
            let edit = Edit {
                compressions: compression.map(|compression| (id, compression)).into_iter().collect(),
                lives: life.map(|life| (id, life)).into_iter().collect(),
                durabilities: durability.map(|durability| (id, durability)).into_iter().collect(),
                ..Edit::default()
            };
            return if edit == Edit::default() { Ok(()) } else { publish_options(engine, edit) };
        }
        engine.health.check_writable()?;
        let (name, id) = (Arc::<str>::from(name), self.next_id(engine)?);
        let max = value_max(engine.shares.value);
        let edit = Edit {
            trees: vec![(id, Tree::empty(Arc::clone(&name)))],
            lives: options.expiry().map(|life| (id, life)).into_iter().collect(),
            merges: options.merging().map(|merging| (id, merging.of_at_most(max))).into_iter().collect(),
            durabilities: options.own_durability().map(|own| (id, own)).into_iter().collect(),
            compressions: self.compression_of(id, options.own_compression()).into_iter().collect(),
            clock: options.expiry().map(|_| engine.clock.now().max(1)),
            ..Edit::default()
        };
        let operator = options.merging().map_or(0, |merging| merging.name().len());
        publish_listed(engine, edit, (name.len() + operator + TREE_LISTED) as u64 + OPTIONS_LISTED)?;
        self.remember(name, id);
        Ok(())
    }
}

/// Publishes an edit of the options of a keyspace that exists.
pub(super) fn publish_options(engine: &Engine, edit: Edit) -> Result<()> {
    engine.health.check_writable()?;
    publish_listed(engine, edit, OPTIONS_LISTED)
}

impl Database {
    /// Returns the keyspace `name` with these options. It is created, durably, if it does not exist. If it does, it gets the
    /// options' time to live, if they have one, for what is inserted from then on, their durability, if they have one, for
    /// handles that are made from then on, and their compression, if they have one, for what is written to the trees from then on.
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
        if options != KeyspaceOptions::default() {
            options.check()?;
            self.handle.creation.find_or_create_with(&self.handle.engine, name, &options)?;
        }
        self.keyspace(name)
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
        self.check_there()?;
        let state = engine.state.load();
        let tree = state.version.trees.get(&self.id());
        Ok(tree.map_or_else(KeyspaceOptions::default, KeyspaceOptions::of))
    }
}
