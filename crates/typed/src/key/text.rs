//! Strings as keys, of text and of bytes.

use super::reader::{END, ESCAPE};
use super::{AsKey, KeyError, KeyReader, TypedKey};

const UTF_8: KeyError = KeyError::Invalid { what: "text is UTF-8" };

/// Appends a string without its end: what all strings that start so begin with.
pub(super) fn encode_start(string: &[u8], bytes: &mut Vec<u8>) {
    bytes.reserve(string.len() + 1);
    for part in string.split_inclusive(|byte| *byte <= ESCAPE) {
        match part {
            [plain @ .., byte @ ..=ESCAPE] => {
                bytes.extend_from_slice(plain);
                bytes.extend_from_slice(&[ESCAPE, byte + 1]);
            }
            plain => bytes.extend_from_slice(plain),
        }
    }
}

pub(super) fn encode_string(string: &[u8], bytes: &mut Vec<u8>) {
    encode_start(string, bytes);
    bytes.push(END);
}

macro_rules! is_text {
    ($($type:ty)*) => {$(
        impl AsKey<String> for $type {
            fn encode_key(&self, bytes: &mut Vec<u8>) {
                encode_string(self.as_bytes(), bytes);
            }
        }

        impl AsKey<Verbatim<String>> for $type {
            fn encode_key(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(self.as_bytes());
            }
        }
    )*};
}

is_text! { str String Box<str> std::sync::Arc<str> std::borrow::Cow<'_, str> }

impl TypedKey for String {
    type Parts = Self;

    fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
        String::from_utf8(bytes.escaped()?).map_err(|_| UTF_8)
    }

    fn describe_key(words: &mut String) {
        words.push_str("string");
    }
}

/// A `String` or `Vec<u8>` as the last part of a key, or all of it, whose bytes are stored as they are. One byte less than otherwise, and what
/// keyspaces have that were written without types.
///
/// As all of a key it must not be empty.
///
/// ```
/// use sapwood_typed::{DatabaseExt, Schema, Verbatim};
///
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// db.keyspace("ships")?.insert("fram", [1]); // long ago
/// let schema = Schema::<Verbatim<String>, u8>::new().adopt();
/// let ships = db.typed_with("ships", schema)?;
/// assert_eq!(ships.get("fram")?, Some(1));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Verbatim<T>(pub T);

impl AsKey<Verbatim<String>> for Verbatim<String> {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.0.as_bytes());
    }
}

impl TypedKey for Verbatim<String> {
    const IS_PREFIX_FREE: bool = false;

    type Parts = Self;

    fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
        String::from_utf8(bytes.rest()).map(Self).map_err(|_| UTF_8)
    }

    fn describe_key(words: &mut String) {
        words.push_str("verbatim string");
    }
}

macro_rules! is_bytes {
    ($([$($generic:tt)*] $type:ty),*) => {$(
        impl<$($generic)*> AsKey<Verbatim<Vec<u8>>> for $type {
            fn encode_key(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(AsRef::<[u8]>::as_ref(self));
            }
        }
    )*};
}

is_bytes! { [] [u8], [] Vec<u8>, [const N: usize] [u8; N], [] str, [] sapwood::Value }

impl AsKey<Verbatim<Vec<u8>>> for Verbatim<Vec<u8>> {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.0);
    }
}

impl TypedKey for Verbatim<Vec<u8>> {
    const IS_PREFIX_FREE: bool = false;

    type Parts = Self;

    fn decode_key(bytes: &mut KeyReader<'_>) -> Result<Self, KeyError> {
        Ok(Self(bytes.rest()))
    }

    fn describe_key(words: &mut String) {
        words.push_str("verbatim bytes");
    }
}
