//! The pieces of a layer in memory, in a row, and which of them a key is in: found by halving.
//!
//! ```text
//! fences of a layer:   4×(pieces - 1) where each fence begins among them │ the fences, each behind its length
//! ```
//!
//! Invariant: a layer has as many fences as pieces, less one, however it came here: the manifest's are counted when they are read.

use super::fences::Fences;
use super::layer::Layer;
use crate::node::NodeId;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub pieces: &'a [NodeId],
    /// As many as there are fences.
    starts: &'a [[u8; 4]],
    pub fences: Fences<'a>,
}

impl<'a> Row<'a> {
    /// `memory`: what [`Row::put`] made of the fences.
    pub fn of(pieces: &'a [NodeId], memory: &'a [u8]) -> Self {
        let (starts, fences) = memory.split_at(4 * (pieces.len() - 1));
        Self { pieces, starts: starts.as_chunks().0, fences: Fences(fences) }
    }

    /// Appends to the memory of some layers what this one's fences take.
    pub fn put(layer: Layer<'_>, memory: &mut Vec<u8>) {
        let mut rest = layer.fences;
        let all = rest.0.len();
        for _ in 1..layer.pieces.len() {
            memory.extend_from_slice(&((all - rest.0.len()) as u32).to_le_bytes());
            rest.next();
        }
        debug_assert!(rest.0.is_empty(), "a fence for each piece but the first");
        memory.extend_from_slice(layer.fences.0);
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
}
