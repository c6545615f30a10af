//! What stands on a page, byte for byte.

pub(crate) mod blink_node;
pub(crate) mod buffered_node;
pub(crate) mod filter_page;
pub(crate) mod flash_node;
pub(crate) mod glance;
pub(crate) mod header;
pub(crate) mod leaf_segments;
pub(crate) mod log_node;
pub(crate) mod log_unit;
pub(crate) mod node;
pub(crate) mod node_change;
pub(crate) mod path_page;
pub(crate) mod run_page;
pub(crate) mod unit_page;

use std::ops::Bound;

/// A key.
pub type Key = u64;
/// What a key stands for: in a database, where the record is.
pub type Value = u64;

/// What an update does to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Put(Value),
    Remove,
}

impl Change {
    /// The value that the key has then.
    pub fn value(self) -> Option<Value> {
        match self {
            Self::Put(value) => Some(value),
            Self::Remove => None,
        }
    }
}

/// The keys that a node is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub low: Key,
    /// The smallest key beyond; none if there is no limit.
    pub high: Option<Key>,
}

impl KeyRange {
    pub const ALL: Self = Self { low: 0, high: None };

    pub fn contains(&self, key: Key) -> bool {
        key >= self.low && self.high.is_none_or(|high| key < high)
    }

    /// As bounds for sorted maps.
    pub fn bounds(&self) -> (Bound<Key>, Bound<Key>) {
        (Bound::Included(self.low), self.high.map_or(Bound::Unbounded, Bound::Excluded))
    }
}

/// Names a node for as long as it lives. For trees in place, the number of its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub u64);

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {}", self.0)
    }
}
