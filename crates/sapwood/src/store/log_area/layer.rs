//! A layer: what one flush appended to a block.

use super::fences::Fences;
use crate::node::{Node, NodeId};

/// What a flush appended to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layer<'a> {
    /// In key order; one at least.
    pub pieces: &'a [NodeId],
    /// Those of all pieces but the first.
    pub fences: Fences<'a>,
    /// Changes that are removals.
    pub removals: u32,
}

impl Layer<'_> {
    /// Whether the nodes, which are the pieces, keep to the fences.
    pub fn holds(&self, nodes: &[Node]) -> bool {
        let low = std::iter::once(None).chain(self.fences.map(Some));
        let high = self.fences.map(Some).chain([None]);
        nodes.iter().zip(low.zip(high)).all(|(node, (low, high))| {
            low.is_none_or(|low| node.key(0) >= low)
                && high.is_none_or(|high| node.key(node.count() - 1) < high)
        })
    }
}
