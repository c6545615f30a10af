//! Keys and values returned by reads: bytes of their own, or bytes that share the memory of the node that holds
//! them.

use bytes::Bytes;
use std::ops::Deref;

/// A value. Derefs to `[u8]`. A clone increments a reference count and copies nothing.
///
/// A value that was got has memory of its own, if it is shorter than 4 KiB. A longer one, and what a range
/// returns, can keep the whole node alive that it came from (mostly about 4 KiB). To keep many records of a range
/// for a long time, copy them: `value.to_vec()`.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// ships.insert("fram", "1892")?;
/// let year = ships.get("fram")?.expect("it is there");
/// assert!(year == "1892" && year.len() == 4);
/// let owned: Vec<u8> = year.to_vec();
/// assert_eq!(sapwood::Value::from(owned), year);
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Value(pub(crate) Bytes);

/// A key returned by a range. Behaves like a [`Value`].
pub type Key = Value;

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::borrow::Borrow<[u8]> for Value {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// Equality with other types of bytes, from either side.
macro_rules! equals {
    ($([$($generic:tt)*] $other:ty),* $(,)?) => {$(
        impl<$($generic)*> PartialEq<$other> for Value {
            fn eq(&self, other: &$other) -> bool {
                self.0[..] == *AsRef::<[u8]>::as_ref(other)
            }
        }

        impl<$($generic)*> PartialEq<Value> for $other {
            fn eq(&self, other: &Value) -> bool {
                other == self
            }
        }
    )*};
}

equals!(
    [] [u8],
    [] &[u8],
    [const N: usize] [u8; N],
    [const N: usize] &[u8; N],
    [] str,
    [] &str,
    [] String,
    [] Vec<u8>,
    [] Bytes,
);

impl From<Bytes> for Value {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }
}

impl<const N: usize> From<[u8; N]> for Value {
    fn from(bytes: [u8; N]) -> Self {
        Self::from(&bytes[..])
    }
}

impl<const N: usize> From<&[u8; N]> for Value {
    fn from(bytes: &[u8; N]) -> Self {
        Self::from(&bytes[..])
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::from(text.as_bytes())
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Self {
        value.0.into()
    }
}

impl From<Value> for Bytes {
    fn from(value: Value) -> Self {
        value.0
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equals<T: PartialEq<Value> + ?Sized>(same: &T, other: &T)
    where
        Value: PartialEq<T>,
    {
        let value = Value::from("ab");
        assert!(value == *same);
        assert!(*same == value);
        assert!(value != *other);
        assert!(*other != value);
    }

    #[test]
    fn a_value_equals_the_same_bytes_of_any_type() {
        equals("ab", "abc");
        equals(&"ab", &"");
        equals(b"ab", b"ba");
        equals(&b"ab", &b"aa");
        equals(&b"ab"[..], &b"a"[..]);
        equals(&&b"ab"[..], &&b"b"[..]);
        equals(&String::from("ab"), &String::from("a"));
        equals(&b"ab".to_vec(), &Vec::new());
        equals(&Bytes::from("ab"), &Bytes::from("b"));
    }

    #[test]
    fn a_value_is_made_of_any_bytes() {
        let of_slices = [Value::from(&b"ab"[..]), Value::from(*b"ab"), Value::from(b"ab"), Value::from("ab")];
        let owned = [Value::from(vec![b'a', b'b']), String::from("ab").into(), Bytes::from("ab").into()];
        assert!(of_slices.iter().chain(&owned).all(|value| *value == "ab"));
        assert_eq!(Vec::from(owned[0].clone()), b"ab");
    }
}
