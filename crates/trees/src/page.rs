//! What stands on a page, byte for byte.

pub(crate) mod blink_node;
pub(crate) mod header;
pub(crate) mod leaf_segments;
pub(crate) mod node;

/// A key.
pub type Key = u64;
/// What a key stands for: in a database, where the record is.
pub type Value = u64;

/// Names a node for as long as it lives. For trees in place, the number of its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub u64);

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {}", self.0)
    }
}
