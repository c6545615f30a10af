//! A layer in memory: its pieces in a row, and which of them a key is in, found by halving.
//!
//! ```text
//! head:     pieces, removals and bytes of fences, varints
//! pieces:   6×pieces their ids
//! fences:   4×(pieces - 1) where each fence begins among them │ the fences, each behind its length
//! ```
//!
//! Invariant: a layer has as many fences as pieces, less one, however it came here: the manifest's are counted when they are read.

use super::fences::Fences;
use super::layer::Layer;
use crate::bytecode::{Reader, put_varint};
use crate::node::{Node, NodeId};

/// Bytes of an id: a mapping table of as many nodes would be a thousand times as large as any memory.
const ID_LEN: usize = 6;

/// Ids of pieces, as the memory has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids<'a>(&'a [[u8; ID_LEN]]);

impl<'a> Ids<'a> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn at(&self, index: usize) -> NodeId {
        let mut id = [0; 8];
        id[..ID_LEN].copy_from_slice(&self.0[index]);
        NodeId(u64::from_le_bytes(id))
    }

    pub fn iter(self) -> impl DoubleEndedIterator<Item = NodeId> + ExactSizeIterator + 'a {
        (0..self.len()).map(move |index| self.at(index))
    }

    /// Those that [`Row::put_ids`] has appended.
    pub(super) fn of(memory: &'a [u8]) -> Self {
        Self(memory.as_chunks().0)
    }
}

/// How much of the memory of some layers is one's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Head {
    pieces: usize,
    removals: u32,
    fences: usize,
}

impl Head {
    /// What a layer will take.
    pub fn of(layer: Layer<'_>) -> Self {
        let starts = 4 * (layer.pieces.len() - 1);
        let fences = starts + layer.fences.0.len();
        Self { pieces: layer.pieces.len(), removals: layer.removals, fences }
    }

    pub fn put(self, out: &mut Vec<u8>) {
        put_varint(out, self.pieces as u64);
        put_varint(out, u64::from(self.removals));
        put_varint(out, self.fences as u64);
    }

    /// What [`Head::put`] has appended.
    pub fn take(from: &mut Reader<'_>) -> Self {
        let mut next = || from.length().unwrap_or(0);
        Self { pieces: next(), removals: next() as u32, fences: next() }
    }

    /// Bytes of its ids.
    pub fn ids_len(self) -> usize {
        ID_LEN * self.pieces
    }

    /// Bytes of its fences.
    pub fn fences_len(self) -> usize {
        self.fences
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub pieces: Ids<'a>,
    /// As many as there are fences.
    starts: &'a [[u8; 4]],
    pub fences: Fences<'a>,
    /// Changes that are removals.
    pub removals: u32,
}

impl<'a> Row<'a> {
    /// What was put of the layer.
    pub(super) fn of(head: Head, ids: &'a [u8], fences: &'a [u8]) -> Self {
        let (starts, fences) = fences.split_at(4 * (head.pieces - 1));
        let pieces = Ids::of(ids);
        Self { pieces, starts: starts.as_chunks().0, fences: Fences(fences), removals: head.removals }
    }

    /// Appends the ids of a layer's pieces.
    pub(super) fn put_ids(layer: Layer<'_>, out: &mut Vec<u8>) {
        for id in layer.pieces {
            debug_assert!(id.0 >> (8 * ID_LEN) == 0, "{id} is within what a mapping table can have");
            out.extend_from_slice(&id.0.to_le_bytes()[..ID_LEN]);
        }
    }

    /// Appends its fences.
    pub(super) fn put_fences(layer: Layer<'_>, out: &mut Vec<u8>) {
        let mut rest = layer.fences;
        let all = rest.0.len();
        for _ in 1..layer.pieces.len() {
            out.extend_from_slice(&((all - rest.0.len()) as u32).to_le_bytes());
            rest.next();
        }
        debug_assert!(rest.0.is_empty(), "a fence for each piece but the first");
        out.extend_from_slice(layer.fences.0);
    }

    /// Index of the piece that has the key, if any has.
    pub fn piece_for(&self, key: &[u8]) -> usize {
        self.pieces_while(|fence| fence <= key) - 1
    }

    /// How many pieces there are before the first of which this is not true of the fence; the first piece is one of them. It is true of no fence
    /// above one of which it is not.
    pub fn pieces_while(&self, is_before: impl Fn(&[u8]) -> bool) -> usize {
        let fence = |start: &[u8; 4]| Fences(&self.fences.0[u32::from_le_bytes(*start) as usize..]).next();
        1 + self.starts.partition_point(|start| fence(start).is_some_and(&is_before))
    }

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
