//! What keys begin with: leading parts of tuples, and the start of a string.

use super::text::encode_start;
use super::{AsKey, TypedKey, Verbatim};

/// What keys with the parts `K` ([`TypedKey::Parts`]) can begin with: for a tuple or a derived struct the tuple of its first parts, for a string
/// [`StartsWith`], and for a tuple both, one behind the other.
///
/// ```
/// use sapwood_typed::{DatabaseExt, StartsWith};
///
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// let ships = db.typed::<(String, u16, String), ()>("ships")?;
/// for key in [("bergen", 7, "fram"), ("bergen", 7, "france"), ("bergen", 8, "beagle"), ("oslo", 1, "fram")] {
///     ships.insert(key, ())?;
/// }
/// assert_eq!(ships.prefix(("bergen",)).count(), 3);
/// assert_eq!(ships.prefix(("bergen", 7)).count(), 2);
/// assert_eq!(ships.prefix(("bergen", 7, StartsWith("franc"))).count(), 1);
/// assert_eq!(ships.prefix((StartsWith("b"),)).count(), 3);
/// # Ok(()) }
/// ```
pub trait AsPrefix<K> {
    /// Appends the bytes that such keys begin with.
    ///
    /// ```
    /// use sapwood_typed::{AsPrefix, StartsWith};
    ///
    /// let mut bytes = Vec::new();
    /// AsPrefix::<String>::encode_prefix(&StartsWith("fr"), &mut bytes);
    /// assert_eq!(bytes, b"fr");
    /// ```
    fn encode_prefix(&self, bytes: &mut Vec<u8>);
}

/// The start of a `String` or of a `Vec<u8>`. See [`AsPrefix`].
///
/// ```
/// use sapwood_typed::{DatabaseExt, StartsWith};
///
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// let ships = db.typed::<String, u16>("ships")?;
/// ships.insert("fram", 1892)?;
/// ships.insert("gorch fock", 1933)?;
/// assert_eq!(ships.prefix(StartsWith("fr")).count(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartsWith<S>(pub S);

impl<S: AsRef<str>> AsPrefix<String> for StartsWith<S> {
    fn encode_prefix(&self, bytes: &mut Vec<u8>) {
        encode_start(self.0.as_ref().as_bytes(), bytes);
    }
}

impl<S: AsRef<[u8]>> AsPrefix<Vec<u8>> for StartsWith<S> {
    fn encode_prefix(&self, bytes: &mut Vec<u8>) {
        encode_start(self.0.as_ref(), bytes);
    }
}

impl<S: AsRef<str>> AsPrefix<Verbatim<String>> for StartsWith<S> {
    fn encode_prefix(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.0.as_ref().as_bytes());
    }
}

impl<S: AsRef<[u8]>> AsPrefix<Verbatim<Vec<u8>>> for StartsWith<S> {
    fn encode_prefix(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.0.as_ref());
    }
}

/// The start of a string behind the first parts of tuples that have more.
macro_rules! prefix_with_start {
    ($string:ty, $part:ty; $(($key:ident $as_key:ident $index:tt))* ; $last_index:tt ; $($more:ident)*) => {
        impl<$($key: TypedKey, $as_key: AsKey<$key>,)* Start: AsRef<$part>, $($more,)*>
            AsPrefix<($($key,)* $string, $($more,)*)> for ($($as_key,)* StartsWith<Start>,)
        {
            fn encode_prefix(&self, bytes: &mut Vec<u8>) {
                $(self.$index.encode_key(bytes);)*
                AsPrefix::<$string>::encode_prefix(&self.$last_index, bytes);
            }
        }
    };
}

/// The first parts of tuples that have more.
macro_rules! prefix {
    ($(($key:ident $as_key:ident $index:tt))* ; $last:ident $as_last:ident $last_index:tt ; $($more:ident)*) => {
        impl<$($key: TypedKey, $as_key: AsKey<$key>,)* $last: TypedKey, $as_last: AsKey<$last>, $($more,)*>
            AsPrefix<($($key,)* $last, $($more,)*)> for ($($as_key,)* $as_last,)
        {
            fn encode_prefix(&self, bytes: &mut Vec<u8>) {
                // As bytes, such a key begins others that are none of these parts.
                const { assert!($last::IS_PREFIX_FREE, "`Verbatim` is found by its start: use `StartsWith`") }
                $(self.$index.encode_key(bytes);)*
                self.$last_index.encode_key(bytes);
            }
        }

        prefix_with_start! { String, str; $(($key $as_key $index))* ; $last_index ; $($more)* }
        prefix_with_start! { Vec<u8>, [u8]; $(($key $as_key $index))* ; $last_index ; $($more)* }
    };
}

/// First parts of so many, of tuples of so many and up to eight.
macro_rules! prefixes {
    ([$($parts:tt)*] ; ) => {
        prefix! { $($parts)* ; }
        // Nothing may follow these.
        prefixes! { @verbatim [$($parts)*] }
    };
    ([$($parts:tt)*] ; $next:ident $($more:ident)*) => {
        prefix! { $($parts)* ; $next $($more)* }
        prefixes! { [$($parts)*] ; $($more)* }
    };
    (@verbatim [$(($key:ident $as_key:ident $index:tt))* ; $last:ident $as_last:ident $last_index:tt]) => {
        prefix_with_start! { Verbatim<String>, str; $(($key $as_key $index))* ; $last_index ; }
        prefix_with_start! { Verbatim<Vec<u8>>, [u8]; $(($key $as_key $index))* ; $last_index ; }
    };
}

prefixes! { [; A P 0]; M1 M2 M3 M4 M5 M6 M7 }
prefixes! { [(A P 0); B Q 1]; M1 M2 M3 M4 M5 M6 }
prefixes! { [(A P 0) (B Q 1); C R 2]; M1 M2 M3 M4 M5 }
prefixes! { [(A P 0) (B Q 1) (C R 2); D S 3]; M1 M2 M3 M4 }
prefixes! { [(A P 0) (B Q 1) (C R 2) (D S 3); E T 4]; M1 M2 M3 }
prefixes! { [(A P 0) (B Q 1) (C R 2) (D S 3) (E T 4); F U 5]; M1 M2 }
prefixes! { [(A P 0) (B Q 1) (C R 2) (D S 3) (E T 4) (F U 5); G V 6]; M1 }
prefixes! { [(A P 0) (B Q 1) (C R 2) (D S 3) (E T 4) (F U 5) (G V 6); H W 7]; }
