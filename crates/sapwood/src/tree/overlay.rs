//! An overlay: what the log pieces of the blocks that a range search visits say, in the order of the search, to be merged
//! with what the leaves say. A short search ends within a block, so what lies behind is never looked at.
//!
//! Invariant: a key is in it once, with its newest change.

use crate::node::Node;
use crate::queue::opq::Change;
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::{Bound, Range};

/// Changes in the order of a search, upwards or downwards.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    /// The blocks behind the first change.
    blocks: VecDeque<Block>,
    next: Option<(Bytes, Change)>,
}

/// The pieces of a block, newest first, with what is still to come of each.
#[derive(Debug)]
struct Block {
    pieces: Vec<(Node, Range<usize>)>,
    upwards: bool,
}

impl Block {
    /// The next key's newest change.
    fn pop(&mut self) -> Option<(Bytes, Change)> {
        let upwards = self.upwards;
        let head = |rest: &Range<usize>| match upwards {
            true => rest.clone().next(),
            false => rest.clone().next_back(),
        };
        // Strictly, so that of equal keys the newest is taken.
        let mut first: Option<(&Node, usize)> = None;
        for (piece, rest) in &self.pieces {
            if let Some(at) = head(rest)
                && first.is_none_or(|(best, best_at)| match upwards {
                    true => piece.key(at) < best.key(best_at),
                    false => piece.key(at) > best.key(best_at),
                })
            {
                first = Some((piece, at));
            }
        }
        let (piece, at) = first?;
        let (key, change) = (piece.key_bytes(at), piece.change(at));
        for (piece, rest) in &mut self.pieces {
            if head(rest).is_some_and(|at| piece.key(at) == &key[..]) {
                if upwards { rest.start += 1 } else { rest.end -= 1 }
            }
        }
        Some((key, change))
    }
}

impl Overlay {
    /// Adds the changes of one block's pieces, oldest piece first, that lie within the bounds. The block lies behind all
    /// blocks that were added before, seen in the direction of the search.
    pub fn add(&mut self, pieces: &[Node], (low, high): (&Bound<Bytes>, &Bound<Bytes>), upwards: bool) {
        let within = |piece: &Node| (piece.clone(), within(piece, low, high));
        self.blocks.push_back(Block { pieces: pieces.iter().rev().map(within).collect(), upwards });
        if self.next.is_none() {
            self.advance();
        }
    }

    fn advance(&mut self) {
        while let Some(block) = self.blocks.front_mut() {
            self.next = block.pop();
            if self.next.is_some() {
                return;
            }
            self.blocks.pop_front();
        }
    }

    /// The next change.
    pub fn peek(&self) -> Option<&(Bytes, Change)> {
        self.next.as_ref()
    }

    /// Takes the next change.
    pub fn pop(&mut self) -> Option<(Bytes, Change)> {
        let next = self.next.take();
        self.advance();
        next
    }

    /// Forgets all changes.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Which entries of a piece or leaf lie within the bounds.
pub(crate) fn within(node: &Node, low: &Bound<Bytes>, high: &Bound<Bytes>) -> Range<usize> {
    let last = node.count() - 1;
    let from = match low {
        // Most nodes that a long search comes to lie within the bounds as a whole.
        Bound::Included(low) | Bound::Excluded(low) if node.key(0) > &low[..] => 0,
        Bound::Unbounded => 0,
        Bound::Included(low) => node.search(low).unwrap_or_else(|index| index),
        Bound::Excluded(low) => node.search(low).map_or_else(|index| index, |index| index + 1),
    };
    let to = match high {
        Bound::Included(high) | Bound::Excluded(high) if node.key(last) < &high[..] => last + 1,
        Bound::Unbounded => last + 1,
        Bound::Included(high) => node.search(high).map_or_else(|index| index, |index| index + 1),
        Bound::Excluded(high) => node.search(high).unwrap_or_else(|index| index),
    };
    from..to.max(from)
}

/// All changes of some pieces, oldest piece first, in key order, each key with its newest.
pub(crate) fn merge(pieces: &[Node]) -> Vec<(Bytes, Change)> {
    let mut changes = Vec::with_capacity(pieces.iter().map(Node::count).sum());
    for piece in pieces.iter().rev() {
        changes.extend((0..piece.count()).map(|index| (piece.key_bytes(index), piece.change(index))));
    }
    // Stable, so that of equal keys the newest stays in front; and quick, since the pieces are sorted runs.
    changes.sort_by(|(a, _), (b, _)| a.cmp(b));
    changes.dedup_by(|(later, _), (earlier, _)| later == earlier);
    changes
}
