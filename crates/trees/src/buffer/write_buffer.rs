//! The Write Buffer: the newest copies of nodes that wait to be written together, and the ids that wait to be freed with
//! them. (AS B-tree, JISE 2014, section 3.2.)
//!
//! Invariants:
//! 1. A node has at most one slot. Addresses are given when the buffer is written, never before.
//! 2. An id is not both in a slot and freed.

use crate::page::NodeId;
use crate::page::node::Node;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    slots: HashMap<NodeId, Arc<Node>>,
    /// In the order in which they came.
    order: Vec<NodeId>,
    freed: BTreeSet<NodeId>,
}

impl WriteBuffer {
    pub fn get(&self, id: NodeId) -> Option<&Arc<Node>> {
        self.slots.get(&id)
    }

    /// Puts a node into its slot, or a new one; whether it had one.
    pub fn put(&mut self, id: NodeId, node: Arc<Node>) -> bool {
        self.freed.remove(&id);
        let had = self.slots.insert(id, node).is_some();
        if !had {
            self.order.push(id);
        }
        had
    }

    /// Gives up a node's slot. `on_device`: an older copy is there, and the device must be told.
    pub fn free(&mut self, id: NodeId, on_device: bool) {
        if self.slots.remove(&id).is_some() {
            self.order.retain(|other| *other != id);
        }
        if on_device {
            self.freed.insert(id);
        }
    }

    /// Slots in use.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn freed(&self) -> usize {
        self.freed.len()
    }

    /// Empties it: nodes in the order in which they came, and freed ids.
    pub fn take(&mut self) -> (Vec<(NodeId, Arc<Node>)>, Vec<NodeId>) {
        let nodes = std::mem::take(&mut self.order).into_iter();
        let nodes = nodes.filter_map(|id| self.slots.remove(&id).map(|node| (id, node))).collect();
        (nodes, std::mem::take(&mut self.freed).into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::node::Leaf;

    #[test]
    fn a_node_has_one_slot_and_a_freed_one_none() {
        let leaf = |key| {
            let entries = vec![(key, key)];
            Arc::new(Node::Leaf(Leaf { entries, next: None }))
        };
        let mut slots = WriteBuffer::default();
        assert!(!slots.put(NodeId(1), leaf(1)));
        assert!(!slots.put(NodeId(2), leaf(2)));
        assert!(!slots.put(NodeId(3), leaf(3)));
        assert!(slots.put(NodeId(1), leaf(4)), "it has a slot");
        slots.free(NodeId(2), false);
        slots.free(NodeId(3), true);
        slots.free(NodeId(9), true);
        assert_eq!((slots.len(), slots.freed(), slots.get(NodeId(3))), (1, 2, None));
        slots.put(NodeId(9), leaf(9));
        let expected = vec![(NodeId(1), leaf(4)), (NodeId(9), leaf(9))];
        assert_eq!(slots.take(), (expected, vec![NodeId(3)]));
        assert_eq!((slots.len(), slots.freed()), (0, 0));
    }
}
