//! A bundle: some layers of a block that share their memory, with one maplet.
//!
//! Invariants:
//! 1. It is never changed, so that versions share it: who appends makes another.
//! 2. Appending copies no more hashes than [`BUNDLE_CHANGES`], and no more fences than [`BUNDLE_FENCES`].

use super::layer::Layer;
use super::row::Row;
use crate::node::NodeId;
use crate::store::maplet::{KeyHash, LAYERS, Maplet};

/// Changes up to which layers are bundled: 400 bytes that are copied for one more. An allocation or two a layer would be more than
/// the layers themselves where a flush has fifteen changes for a block.
pub(super) const BUNDLE_CHANGES: usize = 128;
/// The same in bytes of fences.
const BUNDLE_FENCES: usize = 1024;

/// Some layers, oldest first; never empty.
#[derive(Debug, Default)]
pub(super) struct Bundle {
    heads: Box<[Head]>,
    /// Of all layers.
    pieces: Box<[NodeId]>,
    /// Of all layers, each as [`Row`] has them.
    fences: Box<[u8]>,
    maplet: Maplet,
}

/// Where a layer ends in its bundle.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    pieces: u32,
    fences: u32,
    removals: u32,
}

impl Bundle {
    /// The pieces of all layers, oldest layer first.
    pub fn pieces(&self) -> &[NodeId] {
        &self.pieces
    }

    pub fn maplet(&self) -> &Maplet {
        &self.maplet
    }

    /// How many layers there are.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether a layer of so many changes belongs to it, and not into another bundle.
    pub fn takes(&self, changes: usize) -> bool {
        self.len() < LAYERS
            && self.maplet.len() + changes <= BUNDLE_CHANGES
            && self.fences.len() <= BUNDLE_FENCES
    }

    /// This one with a layer more, of keys with these hashes.
    pub fn with(&self, layer: Layer<'_>, hashes: &[KeyHash]) -> Self {
        let pieces: Box<[_]> = self.pieces.iter().chain(layer.pieces).copied().collect();
        let room = 4 * (layer.pieces.len() - 1) + layer.fences.0.len();
        let mut fences = Vec::with_capacity(self.fences.len() + room);
        fences.extend_from_slice(&self.fences);
        Row::put(layer, &mut fences);
        let fences = fences.into_boxed_slice();
        let (pieces_end, fences_end) = (pieces.len() as u32, fences.len() as u32);
        let head = Head { pieces: pieces_end, fences: fences_end, removals: layer.removals };
        let heads = self.heads.iter().copied().chain([head]).collect();
        Self { heads, pieces, fences, maplet: self.maplet.with(self.len(), hashes) }
    }

    pub fn row(&self, index: usize) -> Row<'_> {
        let from = index.checked_sub(1).map_or(Head::default(), |before| self.heads[before]);
        let to = self.heads[index];
        Row::of(
            &self.pieces[from.pieces as usize..to.pieces as usize],
            &self.fences[from.fences as usize..to.fences as usize],
        )
    }

    pub fn layer(&self, index: usize) -> Layer<'_> {
        let Row { pieces, fences, .. } = self.row(index);
        Layer { pieces, fences, removals: self.heads[index].removals }
    }

    /// Bytes of memory; an allocator takes some for each of the parts.
    pub fn memory(&self) -> usize {
        16 + size_of::<Self>()
            + size_of_val(&*self.heads)
            + size_of_val(&*self.pieces)
            + self.fences.len()
            + self.maplet.len() * KeyHash::LEN
            + if self.fences.is_empty() { 4 } else { 5 } * 12
    }

    /// What it takes if the next layer makes another of it, which it may.
    pub fn copied(&self) -> usize {
        if self.takes(1) { self.memory() } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::log_area::Fences;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Whatever fences there are, halving finds what going through them would.
        #[test]
        fn halving_finds_the_piece_that_going_through_them_finds(
            fences in prop::collection::btree_set(prop::collection::vec(0u8..4, 0..200), 0..40),
            others in prop::collection::btree_set(prop::collection::vec(0u8..4, 0..3), 0..5),
            keys in prop::collection::vec(prop::collection::vec(0u8..5, 0..6), 1..20))
        {
            let pieces: Vec<_> = (0..fences.len() as u64 + 1).map(NodeId).collect();
            let bytes = |fences: &BTreeSet<Vec<u8>>| {
                let mut bytes = Vec::new();
                fences.iter().for_each(|fence| Fences::put(&mut bytes, fence));
                bytes
            };
            // Behind another layer in the same bundle.
            let before = bytes(&others);
            let layer = Layer { pieces: &pieces[..1], fences: Fences::default(), removals: 0 };
            let mut bundle = Bundle::default();
            if others.len() < pieces.len() {
                bundle = bundle.with(Layer { pieces: &pieces[..others.len() + 1], fences: Fences(&before), ..layer }, &[]);
            }
            let of_layer = bytes(&fences);
            let layer = Layer { pieces: &pieces, fences: Fences(&of_layer), removals: 3 };
            let bundle = bundle.with(layer, &[KeyHash::of(b"ash")]);
            prop_assert_eq!(bundle.layer(bundle.len() - 1), layer);
            let row = bundle.row(bundle.len() - 1);
            for key in keys.iter().chain(&fences) {
                let linear = Fences(&of_layer).take_while(|fence| *fence <= &key[..]).count();
                prop_assert_eq!(row.piece_for(key), linear);
                let below = Fences(&of_layer).take_while(|fence| *fence < &key[..]).count();
                prop_assert_eq!(row.pieces_while(|fence| fence < &key[..]), below + 1);
            }
        }
    }
}
