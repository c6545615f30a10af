//! What is stored with a typed keyspace about its types, and what it is opened with.
//!
//! ```text
//! metadata | "sapwoodt" 1 version klen key vlen value rest
//!          version: u32; klen, vlen: u16, lengths of the words that describe keys and values; rest: what the user has set
//! ```
//! Integers are little-endian. The manifest has a checksum of all of it.

use crate::key::{self, TypedKey};
use crate::migration::{Migrate, Migration};
use crate::value::{self, TypedValue};
use sapwood::{Error, KeyspaceOptions, Result};
use std::marker::PhantomData;

/// What metadata begins with that has a schema.
const MAGIC: &[u8] = b"sapwoodt";
/// The version of the format of the schema: the first.
const FORMAT: u8 = 1;
/// Bytes of the words that describe a type. Longer ones are cut, and end with a hash of all: both and the user's own have to fit into 4096
/// bytes.
const WORDS_MAX: usize = 1024;
/// Most bytes of a keyspace's metadata, as [`Keyspace::set_metadata`](sapwood::Keyspace::set_metadata) says.
const METADATA_MAX: usize = 4096;

/// What the records of a keyspace are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub version: u32,
    pub key: String,
    pub value: String,
}

impl Stored {
    /// The bytes of the metadata: this, and what the user has set. Refused before anything is changed for it, if that is too long.
    pub fn encode(&self, rest: &[u8]) -> Result<Vec<u8>> {
        let mut bytes = [MAGIC, &[FORMAT], &self.version.to_le_bytes()].concat();
        for words in [&self.key, &self.value] {
            // They have at most `WORDS_MAX` bytes.
            bytes.extend_from_slice(&(words.len() as u16).to_le_bytes());
            bytes.extend_from_slice(words.as_bytes());
        }
        bytes.extend_from_slice(rest);
        if bytes.len() > METADATA_MAX {
            return Err(Error::ValueTooLong { len: bytes.len(), max: METADATA_MAX, most: METADATA_MAX });
        }
        Ok(bytes)
    }

    /// The schema that metadata begins with, if any, and what the user has set. The error says in words what is there instead.
    pub fn decode(metadata: &[u8]) -> std::result::Result<(Option<Self>, &[u8]), String> {
        let Some(bytes) = metadata.strip_prefix(MAGIC) else { return Ok((None, metadata)) };
        let Some((format, bytes)) = bytes.split_first() else {
            return Err("a schema that ends early".into());
        };
        if *format != FORMAT {
            return Err(format!("a schema of format {format}, which needs a newer sapwood-typed"));
        }
        let whole = || {
            let (version, bytes) = bytes.split_first_chunk::<4>()?;
            let (key, bytes) = words(bytes)?;
            let (value, rest) = words(bytes)?;
            Some((Some(Self { version: u32::from_le_bytes(*version), key, value }), rest))
        };
        whole().ok_or_else(|| "a schema that cannot be read".into())
    }
}

/// Takes words and their length.
fn words(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (len, bytes) = bytes.split_first_chunk::<2>()?;
    let (words, rest) = bytes.split_at_checked(u16::from_le_bytes(*len).into())?;
    Some((std::str::from_utf8(words).ok()?.to_owned(), rest))
}

impl std::fmt::Display for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "version {} of records {} → {}", self.version, self.key, self.value)
    }
}

/// Cuts words that are too long.
fn bounded(mut words: String) -> String {
    if words.len() > WORDS_MAX {
        // FNV-1a: it must be the same in all releases.
        let hash = words.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let ending = format!("… {hash:016x}");
        let end = (0..=WORDS_MAX - ending.len()).rev().find(|end| words.is_char_boundary(*end)).unwrap_or(0);
        words.truncate(end);
        words.push_str(&ending);
    }
    words
}

/// What a typed keyspace is opened with, by [`DatabaseExt::typed_with`](crate::DatabaseExt::typed_with): a version, a name of its values,
/// options of the keyspace, and ways from older schemas.
///
/// A keyspace that is opened for the first time gets the schema. Later it can only be opened with the same version and types; types are the
/// same if they have the same description ([`TypedKey::describe_key`], [`TypedValue::describe_value`]). Keys are described completely. Of
/// values serde tells the name of the outermost type and of its fields or variants, but not the fields' types: raise the version when these
/// change.
///
/// ```
/// use sapwood::Error;
/// use sapwood_typed::{DatabaseExt, Schema};
///
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// let ships = db.typed_with("ships", Schema::<String, u16>::new().version(3))?;
/// assert!(matches!(db.typed::<String, u16>("ships"), Err(Error::Schema { .. }))); // version 1
/// assert!(matches!(db.typed_with("ships", Schema::<u64, u16>::new().version(3)), Err(Error::Schema { .. })));
/// # Ok(()) }
/// ```
pub struct Schema<K, V> {
    version: u32,
    value_name: Option<String>,
    pub(crate) adopts: bool,
    pub(crate) options: KeyspaceOptions,
    pub(crate) migrations: Vec<Box<dyn Migrate<K, V>>>,
    of: PhantomData<fn() -> (K, V)>,
}

impl<K: TypedKey, V: TypedValue> Schema<K, V> {
    /// Version 1, named by its types: what [`DatabaseExt::typed`](crate::DatabaseExt::typed) opens with.
    ///
    /// ```
    /// use sapwood_typed::{DatabaseExt, Schema};
    ///
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// db.typed::<String, u16>("ships")?;
    /// let the_same = db.typed_with("ships", Schema::<String, u16>::new())?;
    /// # Ok(()) }
    /// ```
    pub fn new() -> Self {
        let (options, migrations) = (KeyspaceOptions::new(), Vec::new());
        Self { version: 1, value_name: None, adopts: false, options, migrations, of: PhantomData }
    }

    /// The version of the types, of your own counting. The default is 1.
    ///
    /// ```
    /// use sapwood_typed::{DatabaseExt, Schema};
    ///
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let ships = db.typed_with("ships", Schema::<String, u16>::new().version(2))?;
    /// assert_eq!(ships.version()?, 2);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Names the values, in place of what serde says of their type or of the size of a [`Fixed`](crate::Fixed). Give one where that says too
    /// little, or where fields will be renamed.
    ///
    /// ```
    /// use sapwood::Error;
    /// use sapwood_typed::{DatabaseExt, Fixed, Schema};
    ///
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// db.typed_with("ships", Schema::<String, Fixed<[u8; 4]>>::new().value_name("colour"))?;
    /// let weights = Schema::<String, Fixed<[u8; 4]>>::new().value_name("weight");
    /// assert!(matches!(db.typed_with("ships", weights), Err(Error::Schema { .. })));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn value_name(mut self, name: impl Into<String>) -> Self {
        self.value_name = Some(name.into());
        self
    }

    /// Options of the keyspace, as of [`Database::keyspace_with`](sapwood::Database::keyspace_with).
    ///
    /// ```
    /// use sapwood::KeyspaceOptions;
    /// use sapwood_typed::{DatabaseExt, Schema};
    /// use std::time::Duration;
    ///
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let hour = KeyspaceOptions::new().time_to_live(Duration::from_secs(3600));
    /// let sessions = db.typed_with("sessions", Schema::<u128, String>::new().options(hour))?;
    /// sessions.insert(0xf3a9, "amundsen".to_owned())?; // gone in an hour
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn options(mut self, options: KeyspaceOptions) -> Self {
        self.options = options;
        self
    }

    /// Takes over a keyspace that has records and no schema. It gets this one; whether its records are of these types shows when they are read.
    ///
    /// ```
    /// use sapwood::Error;
    /// use sapwood_typed::{DatabaseExt, Schema};
    ///
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// db.keyspace("masts")?.insert(7u32.to_be_bytes(), [3])?;
    /// assert!(matches!(db.typed::<u32, u8>("masts"), Err(Error::Schema { .. })));
    /// let masts = db.typed_with("masts", Schema::<u32, u8>::new().adopt())?;
    /// assert_eq!(masts.get(7)?, Some(3));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn adopt(mut self) -> Self {
        self.adopts = true;
        self
    }

    /// How to migrate from an older schema: what each of its records becomes, or `None` if it goes. Say it once for each schema from which
    /// there is a way; the first that fits is used.
    ///
    /// Opening then copies all records to another keyspace, `NAME (migrating)`, which takes the old one's place when it is whole and durable,
    /// with the old one's metadata and expiry. It needs space for both. After a crash, or an error of `change`, the keyspace is as before, and the
    /// next opening begins again. Nothing else may write to the keyspace meanwhile; handles
    /// of it answer with [`Error::KeyspaceDropped`](sapwood::Error::KeyspaceDropped) afterwards.
    ///
    /// ```
    /// use sapwood_typed::{DatabaseExt, Schema};
    ///
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// db.typed::<String, u16>("ships")?.insert("fram", 1892)?;
    ///
    /// let by_year = Schema::<(u16, String), ()>::new()
    ///     .version(2)
    ///     .migrate_from(Schema::<String, u16>::new(), |name, year| Ok(Some(((year, name), ()))));
    /// let ships = db.typed_with("ships", by_year)?;
    /// assert!(ships.contains((1892, "fram"))?);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn migrate_from<K1: TypedKey + 'static, V1: TypedValue + 'static>(
        mut self,
        older: Schema<K1, V1>,
        change: impl FnMut(K1, V1) -> Result<Option<(K, V)>> + 'static,
    ) -> Self {
        self.migrations.push(Box::new(Migration::new(older.stored(), change)));
        self
    }

    /// What is stored of it.
    pub(crate) fn stored(&self) -> Stored {
        let value = match &self.value_name {
            Some(name) => format!("{} ({name})", value_codec::<V>()),
            None => value::describe::<V>(),
        };
        Stored { version: self.version, key: bounded(key::describe::<K>()), value: bounded(value) }
    }
}

/// The first word of a description: how values become bytes.
fn value_codec<V: TypedValue>() -> String {
    let words = value::describe::<V>();
    words.split(' ').next().unwrap_or_default().to_owned()
}

impl<K: TypedKey, V: TypedValue> Default for Schema<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: TypedKey, V: TypedValue> std::fmt::Debug for Schema<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Schema({})", self.stored())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stored() -> Stored {
        Schema::<(u32, String), Vec<u16>>::new().version(258).stored()
    }

    #[test]
    fn golden() {
        let bytes = stored().encode(b"mine").unwrap();
        let mut expected = b"sapwoodt\x01\x02\x01\0\0\x0d\0(u32, string)\x11\0postcard list u16".to_vec();
        assert_eq!(&bytes[..expected.len()], &expected);
        expected.extend_from_slice(b"mine");
        assert_eq!(bytes, expected);
        assert_eq!(Stored::decode(&bytes), Ok((Some(stored()), &b"mine"[..])));
    }

    #[test]
    fn what_is_no_schema_is_the_users() {
        assert_eq!(Stored::decode(b"mine"), Ok((None, &b"mine"[..])));
        assert_eq!(Stored::decode(b""), Ok((None, &b""[..])));
        let whole = stored().encode(b"").unwrap();
        for end in MAGIC.len()..whole.len() {
            assert!(Stored::decode(&whole[..end]).is_err(), "{end} bytes");
        }
        let newer = [MAGIC, &[FORMAT + 1]].concat();
        assert!(Stored::decode(&newer).is_err_and(|words| words.contains("newer")));
    }

    #[test]
    fn long_words_are_cut_and_told_apart() {
        let long = |last: &str| bounded(format!("{}{last}", "é".repeat(4000)));
        assert!(long("a").len() <= WORDS_MAX && long("a").len() > WORDS_MAX - 4);
        assert_ne!(long("a"), long("b"));
        assert_eq!(long("a"), long("a"));
        assert_eq!(bounded("short".into()), "short");
        // The hash is a part of the format.
        assert!(bounded("x".repeat(2000)).ends_with("… 4cb100005f153a65"));
    }

    proptest! {
        #[test]
        fn schemas_round_trip(version: u32, key in ".{0,40}", value in ".{0,40}", rest: Vec<u8>) {
            let stored = Stored { version, key, value };
            let bytes = stored.encode(&rest).unwrap();
            prop_assert_eq!(Stored::decode(&bytes), Ok((Some(stored), &rest[..])));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            let _ = Stored::decode(&bytes);
            let _ = Stored::decode(&[MAGIC, &[FORMAT], &bytes].concat());
        }
    }
}
