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

/// A record, or one key, of this many bytes is kept as it is, with the leaf whose memory it shares: that is mostly no more than twice as long. A
/// shorter one is copied.
pub(crate) const KEPT_FROM: usize = 2048;

/// The same record. A short one gets memory of its own, so that it does not hold the leaf that it comes from.
pub(crate) fn unpinned((key, value): (Key, Value)) -> (Key, Value) {
    let is_short = key.len() + value.len() < KEPT_FROM;
    if is_short { (Value::from(&key[..]), Value::from(&value[..])) } else { (key, value) }
}

/// A place for one key or value after the other, each kept for as long as one likes: a short one is copied, always into the same memory.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    short: Vec<u8>,
    /// Empty, unless what is kept is long.
    long: Bytes,
}

impl Kept {
    /// Keeps this one in place of the one before.
    pub fn keep(&mut self, part: &Bytes) {
        if part.len() >= KEPT_FROM {
            self.long = part.clone();
            return;
        }
        self.short.clear();
        self.short.extend_from_slice(part);
        if !self.long.is_empty() {
            self.long = Bytes::new();
        }
    }

    /// The one that was kept last.
    pub fn bytes(&self) -> &[u8] {
        if self.long.is_empty() { &self.short } else { &self.long }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that say whether they are still held.
    fn leaf(len: usize) -> (Bytes, impl Fn() -> bool) {
        struct Leaf(Vec<u8>, #[expect(dead_code, reason = "it goes with the leaf")] std::sync::Arc<()>);
        impl AsRef<[u8]> for Leaf {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let held = std::sync::Arc::new(());
        let weak = std::sync::Arc::downgrade(&held);
        (Bytes::from_owner(Leaf(vec![7; len], held)), move || weak.strong_count() > 0)
    }

    #[test]
    fn what_is_short_does_not_hold_its_leaf() {
        for (key, value, is_shared) in [
            (5, 100, false),
            (5, KEPT_FROM, true),
            (KEPT_FROM, 0, true),
            (1, KEPT_FROM - 1, true),
            (0, 0, false),
        ] {
            let (bytes, is_held) = leaf(8192);
            let record = unpinned((Value(bytes.slice(..key)), Value(bytes.slice(key..key + value))));
            drop(bytes);
            assert_eq!((record.0.len(), record.1.len(), is_held()), (key, value, is_shared));
        }
        let mut kept = Kept::default();
        assert_eq!(kept.bytes(), b"");
        for len in [3, KEPT_FROM, 1, KEPT_FROM + 1, KEPT_FROM - 1, 0] {
            let (bytes, is_held) = leaf(8192);
            kept.keep(&bytes.slice(..len));
            drop(bytes);
            assert_eq!((kept.bytes(), is_held()), (&vec![7; len][..], len >= KEPT_FROM));
        }
    }

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
