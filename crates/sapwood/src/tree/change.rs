//! A change on its way to the leaves, wherever it is stored: in the queue, among the changes that a flush
//! holds back, in a log piece, or in memory of its own. A batch update looks at the key several times and
//! copies it once, into the leaf.
//!
//! Invariant: `key` and `value` always return the same.

use crate::operation::OperationRef;
use bytes::Bytes;

/// See the module.
pub(crate) trait LeafChange {
    fn key(&self) -> &[u8];

    /// The new value; `None` for a removal.
    fn value(&self) -> Option<&[u8]>;
}

impl LeafChange for OperationRef<'_> {
    fn key(&self) -> &[u8] {
        self.key
    }

    fn value(&self) -> Option<&[u8]> {
        self.value
    }
}

/// A record: key and value.
impl LeafChange for (Bytes, Bytes) {
    fn key(&self) -> &[u8] {
        &self.0
    }

    fn value(&self) -> Option<&[u8]> {
        Some(&self.1)
    }
}

/// A change from one of two places.
pub(crate) enum Either<A, B> {
    One(A),
    Other(B),
}

impl<A: LeafChange, B: LeafChange> LeafChange for Either<A, B> {
    fn key(&self) -> &[u8] {
        match self {
            Self::One(change) => change.key(),
            Self::Other(change) => change.key(),
        }
    }

    fn value(&self) -> Option<&[u8]> {
        match self {
            Self::One(change) => change.value(),
            Self::Other(change) => change.value(),
        }
    }
}
