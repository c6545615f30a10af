//! Bounds of ranges of typed keys.

use crate::key::{AsKey, TypedKey};
use std::ops::{Bound, Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// Bounds of a range of keys of type `K`: `(1, "a")..(2, "b")`, `key..`, `..=key`, `..`, or a pair of [`Bound`]s.
///
/// ```
/// use sapwood_typed::DatabaseExt;
/// use std::ops::Bound;
///
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// let depths = db.typed::<i32, ()>("depths")?;
/// for depth in -5..5 {
///     depths.insert(depth, ())?;
/// }
/// assert_eq!((depths.range(-2..3).count(), depths.range(..=-4).count(), depths.range(..).count()), (5, 2, 10));
/// assert_eq!(depths.range((Bound::Excluded(3), Bound::Unbounded)).count(), 1);
/// # Ok(()) }
/// ```
pub trait TypedBounds<K> {
    /// The bounds of the keys' bytes.
    ///
    /// ```
    /// use sapwood_typed::TypedBounds;
    /// use std::ops::Bound;
    ///
    /// let bounds = TypedBounds::<u16>::encode_bounds(&(1..));
    /// assert_eq!(bounds, (Bound::Included(vec![0, 1]), Bound::Unbounded));
    /// ```
    fn encode_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>);
}

fn encoded<K: TypedKey>(bound: Bound<&impl AsKey<K>>) -> Bound<Vec<u8>> {
    bound.map(|key| crate::key::encode_key(key))
}

macro_rules! bounds {
    ($($type:ty, $bounds:ident => ($start:expr, $end:expr);)*) => {$(
        impl<K: TypedKey, A: AsKey<K>> TypedBounds<K> for $type {
            fn encode_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
                let $bounds = self;
                (encoded($start), encoded($end))
            }
        }
    )*};
}

bounds! {
    (Bound<A>, Bound<A>), bounds => (bounds.0.as_ref(), bounds.1.as_ref());
    Range<A>, range => (Bound::Included(&range.start), Bound::Excluded(&range.end));
    RangeInclusive<A>, range => (Bound::Included(range.start()), Bound::Included(range.end()));
    RangeFrom<A>, range => (Bound::Included(&range.start), Bound::<&A>::Unbounded);
    RangeTo<A>, range => (Bound::<&A>::Unbounded, Bound::Excluded(&range.end));
    RangeToInclusive<A>, range => (Bound::<&A>::Unbounded, Bound::Included(&range.end));
}

impl<K> TypedBounds<K> for RangeFull {
    fn encode_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}
