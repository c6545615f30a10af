//! Search in the tree of a keyspace with a merge operator. A change that a log piece has may be an operand, so all pieces of a block
//! that should have a key are read, and its leaf: together, with one parallel read. Nothing is remembered in the cache of single
//! records, which a flush would have to merge as well.

use super::{NodeOrPiece, visit_children, visit_each_piece};
use crate::cache::pager::ReadMode;
use crate::error::{Error, Result};
use crate::merging::Merging;
use crate::opq::Change;
use crate::storage::node::{Node, NodeId};
use crate::tree::view::TreeView;
use bytes::Bytes;
use mpsearch::{Visit, mpsearch};

/// What is known of a key.
#[derive(Clone, Default)]
struct Stack {
    /// Log pieces that should have the key, newest first.
    pieces: Vec<NodeId>,
    /// What was found, each with the index of its piece, or behind all of them for the leaf.
    found: Vec<(usize, Change)>,
}

struct Search<'a, K> {
    view: TreeView<'a>,
    mode: ReadMode,
    keys: &'a [K],
    stacks: Vec<Stack>,
}

/// Like [`super::multi_get`], in a keyspace with this operator.
pub(super) fn multi_get<K: AsRef<[u8]>>(
    view: TreeView<'_>,
    (merging, mode): (&Merging, ReadMode),
    keys: &[K],
    found: &mut dyn FnMut(usize, Bytes),
) -> Result<()> {
    let Some((root, height)) = view.root() else { return Ok(()) };
    let mut search = Search { view, mode, keys, stacks: vec![Stack::default(); keys.len()] };
    mpsearch(&mut search, NodeOrPiece::Node(root), usize::from(height), 0..keys.len(), view.pager.pio_max())?;
    for (index, Stack { found: mut stack, .. }) in search.stacks.into_iter().enumerate() {
        stack.sort_unstable_by_key(|(age, _)| *age);
        let newest_first = stack.iter().map(|(_, change)| change.as_deref());
        // Beneath the leaf is nothing.
        if let Some(value) = merging.lay_all(newest_first.chain([None])) {
            found(index, value.into());
        }
    }
    Ok(())
}

impl<K: AsRef<[u8]>> mpsearch::Tree for Search<'_, K> {
    type Place = NodeOrPiece;
    type Node = Node;
    type Error = Error;

    fn read(&mut self, height: usize, group: &[Visit<NodeOrPiece>]) -> Result<Vec<Node>> {
        super::read(self.view, self.mode, height, group)
    }

    fn fits(&self, _: usize, visits: &[Visit<NodeOrPiece>]) -> usize {
        super::fits(self.view, visits)
    }

    fn descend(
        &mut self,
        height: usize,
        node: Node,
        visit: Visit<NodeOrPiece>,
        below: &mut Vec<Visit<NodeOrPiece>>,
    ) -> Result<()> {
        if height == 1
            && let Some(area) = self.view.log(node.name().id)
        {
            let mut wanted: Vec<(NodeId, usize)> = Vec::new();
            for index in visit.keys.clone() {
                let pieces: Vec<_> = area.candidates(self.keys[index].as_ref()).collect();
                wanted.extend(pieces.iter().map(|piece| (*piece, index)));
                self.stacks[index].pieces = pieces;
            }
            visit_each_piece(wanted, below);
        }
        visit_children(&node, (self.keys, visit.keys), |_| true, below);
        Ok(())
    }

    fn deliver(&mut self, group: Vec<(Visit<NodeOrPiece>, Node)>) -> Result<()> {
        for (visit, node) in group {
            for index in visit.keys {
                let Ok(at) = node.search(self.keys[index].as_ref()) else { continue };
                let stack = &mut self.stacks[index];
                let found = match visit.place {
                    NodeOrPiece::Node(_) => (stack.pieces.len(), Some(node.lasting(node.record(at).1))),
                    NodeOrPiece::Piece(id) => match stack.pieces.iter().position(|piece| *piece == id) {
                        Some(age) => (age, node.logged_value(at).map(|value| node.lasting(value))),
                        // It was visited for another key.
                        None => continue,
                    },
                };
                stack.found.push(found);
            }
        }
        Ok(())
    }
}
