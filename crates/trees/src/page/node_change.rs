//! What a log sector in memory gathers: changes of one node, small enough to be logged instead of the node.

use crate::page::log_unit::Record;
use crate::page::node::Node;
use crate::page::{Key, NodeId};
use crate::{Error, Result};

/// A change of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A record of a leaf, or a fence and the child to the right of it.
    Put(Key, u64),
    /// A record, or a fence and the child to the right of it.
    Remove(Key),
    /// Everything from this key on, which is another node's now.
    Cut(Key),
}

impl Change {
    /// As a record about the node that its block calls `slot`.
    pub fn record(self, slot: u8) -> Record {
        match self {
            Self::Put(key, word) => Record::Put { slot, key, word },
            Self::Remove(key) => Record::Remove { slot, key },
            Self::Cut(key) => Record::Cut { slot, key },
        }
    }

    /// Changes the node.
    pub fn apply(self, node: &mut Node) -> Result<()> {
        match (node, self) {
            (Node::Leaf(leaf), Self::Put(key, value)) => {
                leaf.insert(key, value);
            }
            (Node::Leaf(leaf), Self::Remove(key)) => {
                leaf.remove(key);
            }
            (Node::Leaf(leaf), Self::Cut(key)) => {
                leaf.entries.truncate(leaf.entries.partition_point(|entry| entry.0 < key));
            }
            (Node::Inner(inner), Self::Put(fence, child)) => {
                match inner.fences.binary_search(&fence) {
                    Ok(at) => inner.children[at + 1] = NodeId(child),
                    Err(at) => {
                        inner.fences.insert(at, fence);
                        inner.children.insert(at + 1, NodeId(child));
                    }
                };
            }
            (Node::Inner(inner), Self::Remove(fence)) => {
                let at = inner.fences.binary_search(&fence);
                let at = at.map_err(|_| Error::broken(format!("no fence {fence} to be removed")))?;
                inner.fences.remove(at);
                inner.children.remove(at + 1);
            }
            (Node::Inner(inner), Self::Cut(key)) => {
                inner.fences.truncate(inner.fences.partition_point(|fence| *fence < key));
                inner.children.truncate(inner.fences.len() + 1);
            }
        }
        Ok(())
    }
}

/// All that stands in a node, as changes of an empty one; the first child of an inner node is not among them.
pub(crate) fn contents(node: &Node) -> Vec<Change> {
    match node {
        Node::Leaf(leaf) => leaf.entries.iter().map(|(key, value)| Change::Put(*key, *value)).collect(),
        Node::Inner(inner) => {
            let right = inner.children.iter().skip(1);
            inner.fences.iter().zip(right).map(|(fence, child)| Change::Put(*fence, child.0)).collect()
        }
    }
}
