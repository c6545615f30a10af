//! What stands on a page, byte for byte.

pub(crate) mod header;
pub(crate) mod node;
pub(crate) mod run_page;
pub(crate) mod unit_page;

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

/// Names a node for as long as it lives. For trees in place, the number of its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub u64);

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {}", self.0)
    }
}
