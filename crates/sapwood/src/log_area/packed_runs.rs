//! A bundle: several layers of a block in one allocation, with one maplet.
//!
//! ```text
//! layers, changes │ ─▶ maplet │ a head for each layer │ ids of all pieces, oldest layer first │ fences of all layers
//! ```
//! For heads, ids and fences see [`Row`]. The counts lie beside those of the area's other bundles: who looks for a key asks
//! all bundles, and finds with them what to read of each.
//!
//! Invariants:
//! 1. It is immutable, so that versions share it: appending makes another.
//! 2. Appending copies at most [`BUNDLE_CHANGES`] changes, and at most [`BUNDLE_LEN`] bytes.

use super::delta_run::Layer;
use super::run_ref::{Head, Ids, Row};
use crate::bytecode::Reader;
use crate::log_area::maplet::{Entry, KeyHash, LAYERS, Maplet};
use std::sync::Arc;

/// Layers are bundled up to this many changes: some 500 bytes that are copied for one more layer. If a flush
/// has fifteen changes for a block, a bundle for each layer would be larger than the layer itself.
pub(super) const BUNDLE_CHANGES: usize = 256;
/// The same limit in bytes, since fences may be long.
const BUNDLE_LEN: usize = 2048;

/// Several layers, oldest first; never empty.
#[derive(Clone, Debug)]
pub(super) struct Bundle {
    layers: u8,
    changes: u32,
    memory: Arc<[u8]>,
}

impl Bundle {
    /// A bundle of one layer, with keys of these hashes.
    pub fn of(layer: Layer<'_>, hashes: &[KeyHash]) -> Self {
        let mut entries: Vec<_> = hashes.iter().map(|hash| hash.in_layer(0)).collect();
        entries.sort_unstable();
        Self::made_of(0, [&[]; 3], layer, &entries)
    }

    /// This bundle with one more layer, with keys of these hashes.
    pub fn with(&self, layer: Layer<'_>, hashes: &[KeyHash]) -> Self {
        let (layers, mut entries): (_, Vec<_>) = (self.len(), self.maplet().entries().collect());
        let old = entries.len();
        entries.extend(hashes.iter().map(|hash| hash.in_layer(layers)));
        entries[old..].sort_unstable();
        // A stable sort, which finds both sorted runs and merges them.
        entries.sort();
        Self::made_of(layers, self.parts(), layer, &entries)
    }

    /// A bundle of `layers` old layers, given by their parts, and a new one. `entries`: of all of them.
    fn made_of(layers: usize, [heads, ids, fences]: [&[u8]; 3], layer: Layer<'_>, entries: &[Entry]) -> Self {
        let mut out = Vec::new();
        Maplet::put(layers + 1, entries, &mut out);
        out.extend_from_slice(heads);
        Head::of(layer).put(&mut out);
        out.extend_from_slice(ids);
        Row::put_ids(layer, &mut out);
        out.extend_from_slice(fences);
        Row::put_fences(layer, &mut out);
        Self { layers: layers as u8 + 1, changes: entries.len() as u32, memory: out.into() }
    }

    fn split(&self) -> (Maplet<'_>, &[u8]) {
        Maplet::split(self.len(), self.changes(), &self.memory)
    }

    /// The bytes of all heads, ids and fences.
    fn parts(&self) -> [&[u8]; 3] {
        let (_, rest) = self.split();
        let mut reader = Reader::new(rest);
        let ids: usize = (0..self.len()).map(|_| Head::take(&mut reader).ids_len()).sum();
        let (heads, rest) = rest.split_at(rest.len() - reader.remaining());
        let (ids, fences) = rest.split_at(ids);
        [heads, ids, fences]
    }

    /// How many layers there are.
    pub fn len(&self) -> usize {
        usize::from(self.layers)
    }

    /// Number of changes in all layers.
    pub fn changes(&self) -> usize {
        self.changes as usize
    }

    pub fn maplet(&self) -> Maplet<'_> {
        self.split().0
    }

    /// The layers, oldest first.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let [heads, mut ids, mut fences] = self.parts();
        let mut heads = Reader::new(heads);
        (0..self.len()).map(move |_| {
            let head = Head::take(&mut heads);
            let (own_ids, own_fences);
            (own_ids, ids) = ids.split_at(head.ids_len());
            (own_fences, fences) = fences.split_at(head.fences_len());
            Row::of(head, own_ids, own_fences)
        })
    }

    /// The pieces of all layers, oldest layer first.
    pub fn pieces(&self) -> Ids<'_> {
        let [_, ids, _] = self.parts();
        Ids::of(ids)
    }

    /// Whether a layer of so many changes goes into this bundle, not into a new one.
    pub fn takes(&self, changes: usize) -> bool {
        self.len() < LAYERS && self.changes() + changes <= BUNDLE_CHANGES && self.memory.len() <= BUNDLE_LEN
    }

    /// Bytes of memory, with the overhead of the allocator and the reference counts.
    pub fn memory(&self) -> usize {
        16 + 12 + self.memory.len()
    }

    /// Bytes that are copied if the next layer goes into this bundle.
    pub fn copied(&self) -> usize {
        if self.takes(1) { self.memory() } else { 0 }
    }

    /// Whether both are the same memory.
    #[cfg(test)]
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_area::Fences;
    use crate::storage::node::NodeId;
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
            let of_layer = bytes(&fences);
            let second = Layer { pieces: &pieces, fences: Fences(&of_layer), removals: 3 };
            let hashes = [KeyHash::of(b"ash")];
            let bundle = if others.len() < pieces.len() {
                let first = Layer { pieces: &pieces[..others.len() + 1], fences: Fences(&before), ..layer };
                Bundle::of(first, &[]).with(second, &hashes)
            } else {
                Bundle::of(second, &hashes)
            };
            let row = bundle.rows().last().expect("a layer");
            prop_assert!(row.pieces.iter().eq(pieces.iter().copied()));
            prop_assert_eq!((row.fences, row.removals), (second.fences, 3));
            for key in keys.iter().chain(&fences) {
                let linear = Fences(&of_layer).take_while(|fence| *fence <= &key[..]).count();
                prop_assert_eq!(row.piece_for(key), linear);
                let below = Fences(&of_layer).take_while(|fence| *fence < &key[..]).count();
                prop_assert_eq!(row.pieces_while(|fence| fence < &key[..]), below + 1);
            }
        }
    }
}
