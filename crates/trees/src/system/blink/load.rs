//! Builds a B-link tree from records in order: level upon level, each from left to right, every node written once.
//!
//! Invariant: nodes are as full as those of [`crate::update::bulk_load`], and a node is written when it is known which one is
//! right of it.

use super::BlinkTree;
use crate::page::NodeId;
use crate::page::blink_node::BlinkNode;
use crate::page::node::{Inner, Leaf, Node};
use crate::store::Root;
use crate::update::bulk_load::{for_each_chunk, share};
use crate::{Key, Result, Value};

/// Nodes that are written at a time.
const GROUP: usize = 64;

impl BlinkTree {
    /// Fills a tree that has no root yet. Without records it gets none.
    pub(super) fn load(
        &mut self,
        fill: f64,
        records: &mut dyn Iterator<Item = (Key, Value)>,
    ) -> Result<Option<Root>> {
        let shape = self.shape;
        let mut nodes = self.load_level(records, (shape.records, fill), &|entries| {
            Node::Leaf(Leaf { entries, next: None })
        })?;
        let mut level = 0;
        while nodes.len() > 1 {
            level += 1;
            nodes = self.load_level(&mut nodes.into_iter(), (shape.fanout, fill), &|below| {
                let fences = below[1..].iter().map(|child| child.0).collect();
                let children = below.into_iter().map(|child| child.1).collect();
                Node::Inner(Inner { level, fences, children })
            })?;
        }
        Ok(nodes.first().map(|(_, id)| Root { id: *id, level }))
    }

    /// Writes the nodes of a level, and gives the first key and the place of each.
    fn load_level<V>(
        &self,
        entries: &mut dyn Iterator<Item = (Key, V)>,
        (max, fill): (usize, f64),
        node: &dyn Fn(Vec<(Key, V)>) -> Node,
    ) -> Result<Vec<(Key, NodeId)>> {
        let mut level = Vec::new();
        let mut group: Vec<(NodeId, BlinkNode)> = Vec::new();
        for_each_chunk(entries, share(max, fill), max, &mut |entries, _| {
            let (low, id) = (entries[0].0, self.allocate());
            if let Some((_, left)) = group.last_mut() {
                left.right = Some((low, id));
            }
            if group.len() >= GROUP {
                self.write_group(&mut group)?;
            }
            group.push((id, BlinkNode { right: None, node: node(entries) }));
            level.push((low, id));
            Ok(())
        })?;
        if !group.is_empty() {
            self.write_group(&mut group)?;
        }
        Ok(level)
    }

    fn write_group(&self, group: &mut Vec<(NodeId, BlinkNode)>) -> Result<()> {
        self.nodes.store().write_pages(group.iter().map(|(id, node)| (*id, node)))?;
        group.clear();
        Ok(())
    }
}
