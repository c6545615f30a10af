//! The overlay of a range search: the changes in the log pieces of the blocks that the search visits, in the
//! order of the search, to be merged with the leaves. Pieces are added as the search reaches their keys; a
//! short search ends within a block and never looks at the pieces behind.
//!
//! Invariants:
//! 1. A key is in it once, with its newest change, or with what operands make of it; their value may lie in the leaf.
//! 2. Its next change is right as long as all pieces that may have a key up to that one have been added. The
//!    search takes no change that lies beyond the leaves whose pieces were added.

use crate::merging::{Merging, is_operands};
use crate::opq::Change;
use crate::storage::node::{Node, NodeId};
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::{Bound, Range};

/// Changes in the order of a search, upwards or downwards.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    /// In the order of the search; the last one may get more pieces.
    blocks: VecDeque<Block>,
    next: Option<(Bytes, Change)>,
    /// How operands are merged, if there may be any.
    merging: Option<Merging>,
}

/// The run that a piece belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunOfPiece {
    pub block: NodeId,
    /// Index of the run among `runs`, oldest first.
    pub run: usize,
    pub runs: usize,
}

/// The runs of a block, each with the rest of its pieces in the order of the search. No piece in the list
/// is used up.
#[derive(Debug)]
struct Block {
    id: NodeId,
    runs: Vec<VecDeque<(Node, Range<usize>)>>,
    upwards: bool,
}

impl Block {
    /// The next key's newest change.
    fn peek(&self, merging: Option<&Merging>) -> Option<(Bytes, Change)> {
        let mut first: Option<(&Node, usize)> = None;
        // Newest run first, with a strict comparison, so that of equal keys the newest is taken.
        for run in self.runs.iter().rev() {
            if let Some((piece, rest)) = run.front() {
                let at = if self.upwards { rest.start } else { rest.end - 1 };
                let is_first = first.is_none_or(|(best, best_at)| match self.upwards {
                    true => piece.key(at) < best.key(best_at),
                    false => piece.key(at) > best.key(best_at),
                });
                if is_first {
                    first = Some((piece, at));
                }
            }
        }
        let (piece, at) = first?;
        let (key, change) = (piece.key_bytes(at), piece.change(at));
        match (merging, &change) {
            (Some(merging), Some(newest)) if is_operands(newest) => {
                let change = self.laid(&key, merging);
                Some((key, change))
            }
            _ => Some((key, change)),
        }
    }

    /// What the runs have of the next key together.
    fn laid(&self, key: &[u8], merging: &Merging) -> Change {
        let of_key = self.runs.iter().rev().filter_map(|run| {
            let (piece, rest) = run.front()?;
            let at = if self.upwards { rest.start } else { rest.end - 1 };
            (piece.key(at) == key).then(|| piece.logged_value(at))
        });
        merging.lay_all(of_key).map(Bytes::from)
    }

    /// Moves past `key`, which is the next one.
    fn pass(&mut self, key: &[u8]) {
        let upwards = self.upwards;
        for run in &mut self.runs {
            let Some((piece, rest)) = run.front_mut() else { continue };
            let at = if upwards { rest.start } else { rest.end - 1 };
            if piece.key(at) == key {
                if upwards {
                    rest.start += 1
                } else {
                    rest.end -= 1
                }
                if rest.start >= rest.end {
                    run.pop_front();
                }
            }
        }
    }
}

impl Overlay {
    /// Without changes; `merging`: how operands are merged, if there may be any.
    pub fn new(merging: Option<Merging>) -> Self {
        Self { merging, ..Self::default() }
    }

    /// How operands are merged, if there may be any.
    pub fn merging(&self) -> Option<&Merging> {
        self.merging.as_ref()
    }

    /// Adds the changes of pieces that lie within the bounds. The pieces of a block come in one call, or in
    /// several without another block in between; those of a run come in the order of the search, and so do
    /// blocks.
    pub fn add(
        &mut self,
        pieces: impl IntoIterator<Item = (RunOfPiece, Node)>,
        (low, high): (&Bound<Bytes>, &Bound<Bytes>),
        upwards: bool,
    ) {
        for (RunOfPiece { block, run, runs }, piece) in pieces {
            if self.blocks.back().is_none_or(|last| last.id != block) {
                let runs = vec![VecDeque::new(); runs];
                self.blocks.push_back(Block { id: block, runs, upwards });
            }
            let rest = within(&piece, low, high);
            if !rest.is_empty()
                && let Some(run) = self.blocks.back_mut().and_then(|last| last.runs.get_mut(run))
            {
                run.push_back((piece, rest));
            }
        }
        self.look();
    }

    /// Finds the next change.
    fn look(&mut self) {
        while let Some(block) = self.blocks.front() {
            self.next = block.peek(self.merging.as_ref());
            // The last block may get more pieces.
            if self.next.is_some() || self.blocks.len() == 1 {
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
        let next = self.next.take()?;
        if let Some(block) = self.blocks.front_mut() {
            block.pass(&next.0);
        }
        self.look();
        Some(next)
    }

    /// Forgets all changes.
    pub fn clear(&mut self) {
        *self = Self::new(self.merging.take());
    }
}

/// The entries of a piece or leaf that lie within the bounds.
pub(crate) fn within(node: &Node, low: &Bound<Bytes>, high: &Bound<Bytes>) -> Range<usize> {
    let last = node.count() - 1;
    let from = match low {
        // Most nodes of a long search lie within the bounds as a whole.
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
