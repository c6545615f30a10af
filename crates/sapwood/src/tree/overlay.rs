//! An overlay: what the log pieces of the blocks that a range search visits say, in the order of the search, to be merged
//! with what the leaves say.
//!
//! Invariant: a key is in it once, with its newest change.

use crate::node::Node;
use crate::queue::opq::Change;
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Bound;

/// Changes in the order of a search, upwards or downwards.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    changes: VecDeque<(Bytes, Change)>,
}

impl Overlay {
    /// Adds the changes of one block's pieces, oldest piece first, that lie within the bounds. The block lies behind all
    /// blocks that were added before, seen in the direction of the search.
    pub fn add(&mut self, pieces: &[Node], (low, high): (&Bound<Bytes>, &Bound<Bytes>), upwards: bool) {
        let block = merge(pieces, low, high);
        if upwards {
            self.changes.extend(block);
        } else {
            self.changes.extend(block.into_iter().rev());
        }
    }

    /// The next change.
    pub fn peek(&self) -> Option<&(Bytes, Change)> {
        self.changes.front()
    }

    /// Takes the next change.
    pub fn pop(&mut self) -> Option<(Bytes, Change)> {
        self.changes.pop_front()
    }

    pub fn clear(&mut self) {
        self.changes.clear();
    }
}

/// All changes of some pieces, oldest piece first, within the bounds, in key order, each key with its newest.
pub(crate) fn merge(pieces: &[Node], low: &Bound<Bytes>, high: &Bound<Bytes>) -> Vec<(Bytes, Change)> {
    let mut changes = Vec::with_capacity(pieces.iter().map(Node::count).sum());
    for piece in pieces.iter().rev() {
        let from = match low {
            Bound::Unbounded => 0,
            Bound::Included(low) => piece.search(low).unwrap_or_else(|index| index),
            Bound::Excluded(low) => piece.search(low).map_or_else(|index| index, |index| index + 1),
        };
        let to = match high {
            Bound::Unbounded => piece.count(),
            Bound::Included(high) => piece.search(high).map_or_else(|index| index, |index| index + 1),
            Bound::Excluded(high) => piece.search(high).unwrap_or_else(|index| index),
        };
        changes.extend((from..to).map(|index| (piece.key_bytes(index), piece.change(index))));
    }
    // Stable, so that of equal keys the newest stays in front; and quick, since the pieces are sorted runs.
    changes.sort_by(|(a, _), (b, _)| a.cmp(b));
    changes.dedup_by(|(later, _), (earlier, _)| later == earlier);
    changes
}
