//! Bounds of ranges of keys, and ranges from a key up to another one that is not in them.
//!
//! Invariant: keys are ordered by their bytes, so the smallest key above a key is that key with a zero byte.

use bytes::Bytes;
use std::ops::Bound;

/// The smallest key above this one.
pub(crate) fn successor(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// The first key that a lower bound lets through.
pub(crate) fn first_at(low: &Bound<Bytes>) -> Bytes {
    match low {
        Bound::Unbounded => Bytes::new(),
        Bound::Included(low) => low.clone(),
        Bound::Excluded(low) => successor(low),
    }
}

/// The first key that an upper bound does not let through.
pub(crate) fn end_at(high: &Bound<Bytes>) -> Option<Bytes> {
    match high {
        Bound::Unbounded => None,
        Bound::Included(high) => Some(successor(high)),
        Bound::Excluded(high) => Some(high.clone()),
    }
}

/// Whether the bounds contradict each other. (`BTreeMap::range` panics then.)
pub(crate) fn is_empty(low: Bound<&Bytes>, high: Bound<&Bytes>) -> bool {
    match (low, high) {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            low >= high
        }
        _ => false,
    }
}

/// Whether a key comes before the end of a range.
pub(crate) fn is_below(key: &[u8], end: Option<&Bytes>) -> bool {
    end.is_none_or(|end| key < &end[..])
}
