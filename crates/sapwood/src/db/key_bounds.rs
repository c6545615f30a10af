//! Bounds of a range of keys: what [`Keyspace::range`](crate::Keyspace::range) takes.

use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// Bounds of a range of keys: `"a".."d"`, `key..`, `..=key`, `..`, or a pair of [`Bound`]s. Keys are anything that is
/// `AsRef<[u8]>`.
///
/// (Not the standard library's `RangeBounds`: a pair of bounds of references has two of these, so that the compiler
/// would ask which.)
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// use std::ops::Bound;
///
/// for number in 0..10u8 {
///     ships.insert([number], "afloat")?;
/// }
/// assert_eq!(ships.range([3]..=[5]).count(), 3);
/// assert_eq!(ships.range(..).count(), 10);
/// let (from, to) = (vec![3], vec![5]);
/// assert_eq!((ships.range(&from..&to).count(), ships.range(&from..).count()), (2, 7)); // borrowed
/// assert_eq!(ships.range((Bound::Excluded([3]), Bound::Unbounded)).count(), 6); // behind a key
/// # Ok(()) }
/// ```
pub trait KeyBounds {
    /// The first key, or what the first key comes after.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// use sapwood::KeyBounds;
    /// use std::ops::Bound;
    ///
    /// assert_eq!(("a".."d").start(), Bound::Included(&b"a"[..]));
    /// # Ok(()) }
    /// ```
    fn start(&self) -> Bound<&[u8]>;

    /// The last key, or what the last key comes before.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// use sapwood::KeyBounds;
    /// use std::ops::Bound;
    ///
    /// assert_eq!(("a".."d").end(), Bound::Excluded(&b"d"[..]));
    /// # Ok(()) }
    /// ```
    fn end(&self) -> Bound<&[u8]>;
}

fn bytes<K: AsRef<[u8]>>(bound: &Bound<K>) -> Bound<&[u8]> {
    bound.as_ref().map(AsRef::as_ref)
}

impl<K: AsRef<[u8]>> KeyBounds for (Bound<K>, Bound<K>) {
    fn start(&self) -> Bound<&[u8]> {
        bytes(&self.0)
    }

    fn end(&self) -> Bound<&[u8]> {
        bytes(&self.1)
    }
}

impl<K: AsRef<[u8]>> KeyBounds for Range<K> {
    fn start(&self) -> Bound<&[u8]> {
        Bound::Included(self.start.as_ref())
    }

    fn end(&self) -> Bound<&[u8]> {
        Bound::Excluded(self.end.as_ref())
    }
}

impl<K: AsRef<[u8]>> KeyBounds for RangeInclusive<K> {
    fn start(&self) -> Bound<&[u8]> {
        Bound::Included(RangeInclusive::start(self).as_ref())
    }

    fn end(&self) -> Bound<&[u8]> {
        Bound::Included(RangeInclusive::end(self).as_ref())
    }
}

impl<K: AsRef<[u8]>> KeyBounds for RangeFrom<K> {
    fn start(&self) -> Bound<&[u8]> {
        Bound::Included(self.start.as_ref())
    }

    fn end(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }
}

impl<K: AsRef<[u8]>> KeyBounds for RangeTo<K> {
    fn start(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }

    fn end(&self) -> Bound<&[u8]> {
        Bound::Excluded(self.end.as_ref())
    }
}

impl<K: AsRef<[u8]>> KeyBounds for RangeToInclusive<K> {
    fn start(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }

    fn end(&self) -> Bound<&[u8]> {
        Bound::Included(self.end.as_ref())
    }
}

impl KeyBounds for RangeFull {
    fn start(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }

    fn end(&self) -> Bound<&[u8]> {
        Bound::Unbounded
    }
}
