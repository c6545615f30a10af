//! Values of any type, as bytes: by serde, of a fixed layout, or as they are.
//!
//! ```text
//! Serialize + Deserialize   postcard 1 (its format is specified and does not change)
//! Fixed<T>                  the memory of a T, which is the same on every machine (zerocopy)
//! Raw                       the bytes
//! ```
//! Invariant: bytes of any kind are decoded or refused; a value takes all of its bytes.

pub(crate) mod shape;

use sapwood::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;
use std::ops::Deref;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A type of values. All that implement serde's `Serialize` and `Deserialize` are, by [postcard](https://docs.rs/postcard); and [`Fixed`] and
/// [`Raw`].
///
/// Postcard says of a value what it is, and not of which type: what needs that to be read cannot be stored. A keyspace of `serde_json::Value`, or
/// of an enum that is `untagged` or has `tag = "…"`, is refused with [`Error::Encode`](sapwood::Error::Encode) when it is opened. Within a struct
/// or a tuple, or as the value of a map, such a part is not found out before its first record is read, which fails with [`Error::Decode`](sapwood::Error::Decode); nor is
/// `skip_serializing_if`, which leaves out what is expected.
///
/// A type that holds itself (a list by `Option<Box<Self>>`, a tree) is decoded by recursion, without a bound: bytes that were written as another type may have
/// as many levels as bytes, and end the process. Do not [adopt](crate::Schema::adopt) foreign records as such a type.
/// Nor as a type with a list of what takes no bytes (`Vec<()>`, of a unit struct): ten foreign bytes can say that it has more items than can ever be counted.
///
/// ```
/// use sapwood_typed::DatabaseExt;
///
/// #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
/// struct Ship {
///     built: u16,
///     masts: u8,
/// }
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// let ships = db.typed::<String, Ship>("ships")?;
/// ships.insert("fram", Ship { built: 1892, masts: 3 })?;
/// assert_eq!(ships.get("fram")?, Some(Ship { built: 1892, masts: 3 }));
/// # Ok(()) }
/// ```
pub trait TypedValue: Sized {
    /// Appends the value's bytes.
    ///
    /// ```
    /// use sapwood_typed::TypedValue;
    ///
    /// let mut bytes = Vec::new();
    /// (7u8, "fram").0.encode_value(&mut bytes)?;
    /// assert_eq!(bytes, [7]);
    /// # Ok::<(), String>(())
    /// ```
    ///
    /// # Errors
    /// Why there are none, in words. Then `bytes` may be anything.
    fn encode_value(&self, bytes: &mut Vec<u8>) -> Result<(), String>;

    /// The value that has these bytes.
    ///
    /// ```
    /// use sapwood_typed::TypedValue;
    ///
    /// assert_eq!(String::decode_value(&b"\x04fram".into()).as_deref(), Ok("fram"));
    /// assert!(String::decode_value(&b"\x05fram".into()).is_err());
    /// ```
    ///
    /// # Errors
    /// Why there is none, in words.
    fn decode_value(bytes: &Value) -> Result<Self, String>;

    /// Appends what determines the bytes of this type, as far as is known, in words. It is stored with the keyspace, and compared when that is
    /// opened. For types of serde: the name of the type, and the names of its fields or variants, as serde sees them.
    ///
    /// ```
    /// use sapwood_typed::TypedValue;
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Ship { name: String, #[serde(rename = "year")] built: u16 }
    ///
    /// let mut words = String::new();
    /// Vec::<Ship>::describe_value(&mut words);
    /// assert_eq!(words, "postcard list Ship{name,year}");
    /// ```
    fn describe_value(words: &mut String);
}

impl<T: Serialize + DeserializeOwned> TypedValue for T {
    fn encode_value(&self, bytes: &mut Vec<u8>) -> Result<(), String> {
        // Appends to what is there, and gives it back.
        *bytes = postcard::to_extend(self, std::mem::take(bytes)).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn decode_value(bytes: &Value) -> Result<Self, String> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, left)) => Err(format!("{} bytes more than it has", left.len())),
            Err(error) => Err(error.to_string()),
        }
    }

    fn describe_value(words: &mut String) {
        words.push_str("postcard ");
        shape::describe::<T>(words);
    }
}

/// A value of a type whose memory is the same on every machine, stored as that memory. Reading decodes and copies nothing: it derefs to
/// the type.
///
/// The type derives `FromBytes`, `IntoBytes`, `Immutable`, `KnownLayout` and `Unaligned` of the crate
/// [`zerocopy`](https://docs.rs/zerocopy) and is `repr(C)`; its numbers are bytes or those of `zerocopy::byteorder`, of which byte order and
/// alignment are known. Only its size is compared when a keyspace is opened: tell types of equal size apart by
/// [`Schema::value_name`](crate::Schema::value_name) and [`Schema::version`](crate::Schema::version).
///
/// ```
/// use sapwood_typed::{DatabaseExt, Fixed};
/// use zerocopy::byteorder::little_endian::{F64, U32};
/// use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
///
/// #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
/// #[repr(C)]
/// struct Position { latitude: F64, longitude: F64, seconds: U32 }
///
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// let positions = db.typed::<String, Fixed<Position>>("positions")?;
/// let place = Position { latitude: 78.2.into(), longitude: 15.6.into(), seconds: 7.into() };
/// positions.insert("fram", Fixed::new(&place))?;
/// assert!(positions.get("fram")?.is_some_and(|position| position.latitude.get() == 78.2));
/// # Ok(()) }
/// ```
pub struct Fixed<T> {
    /// Of the length of a `T`.
    bytes: Value,
    of: PhantomData<fn() -> T>,
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned> Fixed<T> {
    /// Copies a value's memory.
    ///
    /// ```
    /// assert_eq!(*sapwood_typed::Fixed::new(&[1u8, 2]), [1, 2]);
    /// ```
    pub fn new(value: &T) -> Self {
        Self { bytes: value.as_bytes().into(), of: PhantomData }
    }
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned> Deref for Fixed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match T::ref_from_bytes(&self.bytes) {
            Ok(value) => value,
            Err(_) => unreachable!("there are as many bytes as a value has, and any lie well"),
        }
    }
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned> TypedValue for Fixed<T> {
    fn encode_value(&self, bytes: &mut Vec<u8>) -> Result<(), String> {
        bytes.extend_from_slice(&self.bytes);
        Ok(())
    }

    fn decode_value(bytes: &Value) -> Result<Self, String> {
        if bytes.len() != size_of::<T>() {
            return Err(format!("{} bytes are not {}", bytes.len(), size_of::<T>()));
        }
        Ok(Self { bytes: bytes.clone(), of: PhantomData })
    }

    fn describe_value(words: &mut String) {
        words.push_str(&format!("fixed {} bytes", size_of::<T>()));
    }
}

impl<T> Clone for Fixed<T> {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), of: PhantomData }
    }
}

/// Equality is that of the bytes.
impl<T> PartialEq for Fixed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl<T> Eq for Fixed<T> {}

impl<T> std::fmt::Debug for Fixed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fixed({:?})", self.bytes)
    }
}

/// A value as bytes. Derefs to a [`sapwood::Value`]; a clone copies nothing.
///
/// ```
/// use sapwood_typed::{DatabaseExt, Raw};
///
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("pages.db"))?;
/// let pages = db.typed::<(String, u32), Raw>("pages")?;
/// pages.insert(("log book", 1), Raw::from("24 June. We leave Christiania."))?;
/// assert!(pages.get(("log book", 1))?.is_some_and(|page| page.starts_with(b"24 June")));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Raw(pub Value);

impl<T: Into<Value>> From<T> for Raw {
    fn from(bytes: T) -> Self {
        Self(bytes.into())
    }
}

impl Deref for Raw {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

impl TypedValue for Raw {
    fn encode_value(&self, bytes: &mut Vec<u8>) -> Result<(), String> {
        bytes.extend_from_slice(&self.0);
        Ok(())
    }

    fn decode_value(bytes: &Value) -> Result<Self, String> {
        Ok(Self(bytes.clone()))
    }

    fn describe_value(words: &mut String) {
        words.push_str("raw");
    }
}

pub(crate) fn describe<V: TypedValue>() -> String {
    let mut words = String::new();
    V::describe_value(&mut words);
    words
}
