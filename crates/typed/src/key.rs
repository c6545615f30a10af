//! Keys of any type, as bytes that are ordered as their values are.
//!
//! ```text
//! u8 … u128, usize   big-endian; usize as u64          bool       00 or 01
//! i8 … i128, isize   big-endian, sign bit flipped      char       its number in 3 bytes, big-endian
//! f32, f64           big-endian; of negative numbers all bits are flipped, of others the sign bit
//! String, Vec<u8>    the bytes, with 00 as 01 01 and 01 as 01 02, then 00
//! Vec<T>             for each item 01 and the item, then 00
//! [T; N], tuples     one after the other               Option<T>  00, or 01 and the value
//! Reverse<T>         as T, all bits flipped            Verbatim   the bytes, up to the end of the key
//! SystemTime         seconds since 1970 as i64, nanoseconds (0 to 999,999,999) as u32; Duration with seconds as u64
//! derived structs    as tuples                         derived enums  the tag as u8, then as tuples
//! jiff               Timestamp as SystemTime; Date as i16, u8, u8 (year, month, day)
//! Uuid               its 16 bytes
//! ```
//! Invariants:
//! 1. For any two values `a < b` of one type, the bytes of `a` are less than those of `b`.
//! 2. No value's bytes begin with those of another value of the type ([`TypedKey::IS_PREFIX_FREE`]), so that what follows does not matter:
//!    tuples are ordered too. [`Verbatim`] is excepted, and can only stand last.
//! 3. Bytes of any kind are decoded or refused, and what is decoded is encoded as these bytes again.
//! 4. The bytes do not change from one release to the next: each type has golden bytes in a test.

mod numbers;
mod outside;
mod prefix;
mod reader;
mod several;
mod text;
mod times;
mod tuples;

pub use prefix::{AsPrefix, StartsWith};
pub use reader::{KeyError, KeyReader};
pub use text::Verbatim;

/// What can stand for a key of type `K`: `K` itself, a reference to it, `&str` for `String`, `(1, "a")` for `(u32, String)`.
///
/// ```
/// use sapwood_typed::AsKey;
///
/// fn bytes(key: impl AsKey<(u32, String)>) -> Vec<u8> {
///     let mut bytes = Vec::new();
///     key.encode_key(&mut bytes);
///     bytes
/// }
/// assert_eq!(bytes((1, "a")), bytes((1, String::from("a"))));
/// ```
pub trait AsKey<K> {
    /// Appends the key's bytes.
    ///
    /// ```
    /// use sapwood_typed::AsKey;
    ///
    /// let mut bytes = Vec::new();
    /// AsKey::<u16>::encode_key(&258, &mut bytes);
    /// assert_eq!(bytes, [1, 2]);
    /// ```
    fn encode_key(&self, bytes: &mut Vec<u8>);
}

/// A type of keys whose bytes are ordered as its values are: integers, floats, `bool`, `char`, `String`, `Vec`, arrays, `Option`, tuples
/// of up to eight, [`Reverse`](std::cmp::Reverse), [`SystemTime`](std::time::SystemTime), [`Duration`](std::time::Duration), UUIDs and times of
/// `jiff` (features), and structs and enums that derive it.
///
/// Floats are ordered by `total_cmp`: each NaN is a key of its own (with the sign bit before, without it behind all numbers), and `-0.0` is
/// another key than `0.0`, before it.
///
/// A derived struct is stored as the tuple of its fields. A derived enum begins with its variant's tag, 0 to 255 in the order in which they
/// are declared, which is also that of a derived `Ord` (variants with numbers, `Berth = 1`, must ascend). `#[key(tag = 10)]` gives a variant another tag, so that there is room between two;
/// tags must ascend. Names of types and fields do not matter to what is stored.
///
/// ```
/// use sapwood_typed::{DatabaseExt, TypedKey};
///
/// #[derive(TypedKey, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
/// enum Place {
///     Berth { harbour: String, number: u16 },
///     AtSea,
/// }
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// let ships = db.typed::<Place, String>("ships")?;
/// ships.insert(Place::AtSea, "fram".to_owned())?;
/// ships.insert(Place::Berth { harbour: "bergen".into(), number: 7 }, "beagle".to_owned())?;
/// let first = ships.first()?.expect("there are two");
/// assert_eq!(first, (Place::Berth { harbour: "bergen".into(), number: 7 }, "beagle".to_owned()));
/// # Ok(()) }
/// ```
pub trait TypedKey: AsKey<Self> + Sized {
    /// Whether no value's bytes begin with those of another. Only the last part of a key may be otherwise.
    ///
    /// ```
    /// use sapwood_typed::{TypedKey, Verbatim};
    ///
    /// assert!(String::IS_PREFIX_FREE && !Verbatim::<String>::IS_PREFIX_FREE);
    /// ```
    const IS_PREFIX_FREE: bool = true;

    /// What a prefix of such keys has the first parts of ([`AsPrefix`]): of a derived struct the tuple of its fields, up to the eighth; of
    /// others the type itself.
    ///
    /// ```
    /// use sapwood_typed::{DatabaseExt, StartsWith, TypedKey};
    ///
    /// #[derive(TypedKey, Debug)]
    /// struct Berth { harbour: String, number: u16 }
    ///
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let berths = db.typed::<Berth, String>("berths")?;
    /// berths.insert(Berth { harbour: "bergen".into(), number: 7 }, "fram".to_owned())?;
    /// assert_eq!((berths.prefix(("bergen",)).count(), berths.prefix((StartsWith("be"),)).count()), (1, 1));
    /// # Ok(()) }
    /// ```
    type Parts;

    /// Takes a value from the front of a key's bytes.
    ///
    /// ```
    /// use sapwood_typed::{KeyReader, TypedKey};
    ///
    /// assert_eq!(u16::decode_key(&mut KeyReader::new(&[1, 2])), Ok(258));
    /// ```
    ///
    /// # Errors
    /// [`KeyError`] if no value of the type has these bytes.
    fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError>;

    /// Appends what determines the bytes of this type, in words. It is stored with the keyspace, and compared when that is opened.
    ///
    /// ```
    /// use sapwood_typed::TypedKey;
    ///
    /// let mut words = String::new();
    /// <(u32, Option<String>)>::describe_key(&mut words);
    /// assert_eq!(words, "(u32, option string)");
    /// ```
    fn describe_key(words: &mut String);

    /// Appends the bytes of a list. Of use for types of single bytes only, which need no mark before each.
    #[doc(hidden)]
    fn encode_list(items: &[Self], bytes: &mut Vec<u8>) {
        several::encode_list(items, bytes);
    }

    /// The reverse of `encode_list`.
    #[doc(hidden)]
    fn decode_list(bytes: &mut KeyReader<'_>) -> Result<Vec<Self>, KeyError> {
        several::decode_list(bytes)
    }

    /// What determines the bytes of a list.
    #[doc(hidden)]
    fn describe_list(words: &mut String) {
        words.push_str("list ");
        Self::describe_key(words);
    }
}

/// References stand for what they refer to.
impl<K, A: AsKey<K> + ?Sized> AsKey<K> for &A {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        (**self).encode_key(bytes);
    }
}

/// Bytes for which a key's memory is allocated at first: most keys fit, and need one allocation.
const CAPACITY: usize = 64;

/// The bytes of a key.
///
/// ```
/// assert_eq!(sapwood_typed::encode_key::<(u8, String)>((7, "fram")), b"\x07fram\0");
/// ```
pub fn encode_key<K: TypedKey>(key: impl AsKey<K>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(CAPACITY);
    key.encode_key(&mut bytes);
    bytes
}

/// The key that has these bytes.
///
/// ```
/// assert_eq!(sapwood_typed::decode_key(b"\x07fram\0"), Ok((7u8, "fram".to_owned())));
/// assert!(sapwood_typed::decode_key::<(u8, String)>(b"\x07fram").is_err());
/// ```
///
/// # Errors
/// [`KeyError`] if no value of the type has these bytes.
pub fn decode_key<K: TypedKey>(bytes: &[u8]) -> Result<K, KeyError> {
    let mut reader = KeyReader::new(bytes);
    let key = K::decode_key(&mut reader)?;
    match reader.left() {
        0 => Ok(key),
        bytes => Err(KeyError::Left { bytes }),
    }
}

pub(crate) fn describe<K: TypedKey>() -> String {
    let mut words = String::new();
    K::describe_key(&mut words);
    words
}

/// What the compiler refuses. Tags that do not ascend:
/// ```compile_fail
/// #[derive(sapwood_typed::TypedKey)]
/// enum Place {
///     #[key(tag = 1)]
///     Berth,
///     #[key(tag = 1)]
///     AtSea,
/// }
/// ```
/// A tag of more than a byte:
/// ```compile_fail
/// #[derive(sapwood_typed::TypedKey)]
/// enum Place {
///     #[key(tag = 255)]
///     Berth,
///     AtSea,
/// }
/// ```
/// Variants that a derived `Ord` has in another order:
/// ```compile_fail
/// #[derive(sapwood_typed::TypedKey)]
/// enum Place {
///     Berth = 10,
///     AtSea = 1,
/// }
/// ```
/// A prefix that is a whole key, and the beginning of others:
/// ```compile_fail
/// use sapwood_typed::{DatabaseExt, Verbatim};
///
/// # fn main() -> sapwood::Result<()> {
/// let db = sapwood::Database::open("ships.db")?;
/// let ships = db.typed::<(u8, Verbatim<String>), u8>("ships")?;
/// ships.prefix((7, "fram"));
/// # Ok(()) }
/// ```
/// A key without bytes:
/// ```compile_fail
/// #[derive(sapwood_typed::TypedKey)]
/// struct Nothing;
/// ```
#[cfg(doctest)]
struct Refused;
