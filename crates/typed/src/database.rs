//! Opening typed keyspaces.
//!
//! Invariant: a keyspace is opened only with the schema that it has; it gets one only if it has none and is empty or adopted, or by a
//! migration.

use crate::key::TypedKey;
use crate::keyspace::TypedKeyspace;
use crate::migration;
use crate::opening::{self, Turn};
use crate::schema::{Schema, Stored};
use crate::value::TypedValue;
use sapwood::{Database, Error, Keyspace, Result};

/// Typed keyspaces of a [`Database`].
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// use sapwood_typed::DatabaseExt;
///
/// let ships = db.typed::<(u32, String), u16>("ships")?;
/// ships.insert((7, "fram"), 1892)?;
/// # Ok(()) }
/// ```
pub trait DatabaseExt {
    /// Opens a keyspace with types, of version 1; it is created, durably, if it does not exist. A keyspace of the same name followed by
    /// ` (migrating)` is taken for what a crash has left of a migration, and dropped.
    ///
    /// ```
    /// use sapwood::Error;
    /// use sapwood_typed::DatabaseExt;
    ///
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let ships = db.typed::<(u32, String), u16>("ships")?;
    /// ships.insert((7, "fram"), 1892)?;
    /// match db.typed::<(String, u32), u16>("ships") {
    ///     Err(error @ Error::Schema { .. }) => println!("{error}"), // says what it has, and what was asked for
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Schema`] if it has other types or another version, or records and no schema; and as
    /// [`Database::keyspace`].
    fn typed<K: TypedKey, V: TypedValue>(&self, name: &str) -> Result<TypedKeyspace<K, V>>;

    /// Opens a keyspace with this schema; it is created, durably, if it does not exist, and migrated if the schema says how.
    ///
    /// ```
    /// use sapwood_typed::{DatabaseExt, Schema};
    ///
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let ships = db.typed_with("ships", Schema::<String, u16>::new().version(2))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`typed`](Self::typed), and as [`Database::keyspace_with`]; [`Error::Schema`] also if it is to be migrated, and the database is read only; while migrating [`Error::Decode`], those of the function that changes
    /// the records, [`Error::Encode`] if two of them get the same key, and [`Error::ValueTooLong`] of a value that is longer than a commit takes (it was merged, or
    /// committed with more memory) if its key does not stay behind those before it, or records expire. That function must not wait for another thread that migrates, or opens a keyspace of this name.
    /// Not to be called within [`Database::transact`]: a migration commits, and would wait for the turn of a transaction that waits for it.
    fn typed_with<K: TypedKey, V: TypedValue>(
        &self,
        name: &str,
        schema: Schema<K, V>,
    ) -> Result<TypedKeyspace<K, V>>;
}

impl DatabaseExt for Database {
    fn typed<K: TypedKey, V: TypedValue>(&self, name: &str) -> Result<TypedKeyspace<K, V>> {
        self.typed_with(name, Schema::new())
    }

    fn typed_with<K: TypedKey, V: TypedValue>(
        &self,
        name: &str,
        mut schema: Schema<K, V>,
    ) -> Result<TypedKeyspace<K, V>> {
        // Keys whose parts cannot follow each other are refused by the compiler here.
        const { _ = K::IS_PREFIX_FREE }
        check_readable::<V>(name)?;
        let opened = open(self, name, &mut schema, &opening::take_turn(name), May::Open)?;
        let opened = match opened {
            Some(keyspace) => keyspace,
            None => {
                let _alone = opening::migrate();
                // It is looked at again: another thread may have migrated it.
                let turn = opening::take_turn(name);
                let expected = schema.stored().to_string();
                let opened = open(self, name, &mut schema, &turn, May::Migrate)?;
                let found = "what is being migrated".into();
                opened.ok_or_else(|| Error::Schema { keyspace: name.into(), found, expected })?
            }
        };
        Ok(TypedKeyspace::new(self.clone(), opened))
    }
}

/// What a thread may do that has the turn of a name.
#[derive(PartialEq, Eq)]
enum May {
    Open,
    Migrate,
}

/// Opens a keyspace. `None`: it is to be migrated, and the thread may not do that now.
fn open<K: TypedKey, V: TypedValue>(
    db: &Database,
    name: &str,
    schema: &mut Schema<K, V>,
    turn: &Turn<'_>,
    may: May,
) -> Result<Option<Keyspace>> {
    // The keyspace can be used as it is, whatever is beside it.
    let taken_back = if turn.is_first() { migration::take_back(db, name) } else { Ok(()) };
    // What has another schema, or cannot be migrated, keeps its options.
    let keyspace = match db.keyspace_if_exists(name)? {
        Some(existing) => existing,
        None => db.keyspace_with(name, schema.options.clone())?,
    };
    let expected = schema.stored();
    let metadata = keyspace.metadata()?;
    let mismatch =
        |found: String| Error::Schema { keyspace: name.into(), found, expected: expected.to_string() };
    match Stored::decode(&metadata).map_err(mismatch)? {
        (Some(found), _) if found == expected => {}
        (Some(found), rest) => {
            let from = schema.migrations.iter_mut().find(|migration| *migration.older() == found);
            let Some(migration) = from else { return Err(mismatch(found.to_string())) };
            // Whoever only reads cannot migrate it, whether or not there is a copy.
            let not_begun = |error| match error {
                Error::ReadOnly | Error::NoKeyspace { .. } => mismatch(found.to_string()),
                error => error,
            };
            taken_back.map_err(not_begun)?;
            // Within its own migration, whose copy is there, it can be opened as it was.
            if may == May::Open || (!turn.is_first() && migration::has_begun(db, name)) {
                return Ok(None);
            }
            let new = (&expected.encode(rest)?[..], schema.options.clone());
            return migration::run(db, &keyspace, &mut **migration, new, not_begun).map(Some);
        }
        (None, rest) => {
            if !schema.adopts && !keyspace.is_empty()? {
                return Err(mismatch("records and no schema".into()));
            }
            let metadata = expected.encode(rest)?;
            let keyspace = db.keyspace_with(name, schema.options.clone())?;
            set(&keyspace, &metadata)?;
            return Ok(Some(keyspace));
        }
    }
    db.keyspace_with(name, schema.options.clone()).map(Some)
}

/// Refuses values that could be written and never be read: postcard does not say what comes next.
fn check_readable<V: TypedValue>(keyspace: &str) -> Result<()> {
    let mut words = String::new();
    V::describe_value(&mut words);
    if words.strip_prefix("postcard ").is_some_and(crate::value::shape::is_any) {
        let expected = std::any::type_name::<V>().to_owned();
        let reason = "it reads itself only from forms that name the type of each value, such as JSON (an enum that is untagged or \
                      internally tagged, a `serde_json::Value`): store its text, or another type";
        return Err(Error::Encode { keyspace: keyspace.into(), expected, reason: reason.into() });
    }
    Ok(())
}

/// Gives a keyspace its schema. A database that is read only goes without.
fn set(keyspace: &Keyspace, metadata: &[u8]) -> Result<()> {
    match keyspace.set_metadata(metadata) {
        Err(Error::ReadOnly) => Ok(()),
        set => set,
    }
}
