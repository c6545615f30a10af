//! A bundle: some layers of a block in one piece of memory, with one maplet.
//!
//! ```text
//! layers 1 │ changes 4 │ maplet │ a head for each layer │ ids of all pieces, oldest layer first │ fences of all layers
//! ```
//! What heads, ids and fences are: [`Row`].
//!
//! Invariants:
//! 1. It is never changed, so that versions share it: who appends makes another.
//! 2. Appending copies no more changes than [`BUNDLE_CHANGES`], and no more bytes than [`BUNDLE_LEN`].

use super::layer::Layer;
use super::row::{Head, Ids, Row};
use crate::bytecode::Reader;
use crate::store::maplet::{Entry, KeyHash, LAYERS, Maplet};
use std::sync::Arc;

/// Changes up to which layers are bundled: some 500 bytes that are copied for one more. A bundle for each layer would be more than
/// the layer itself where a flush has fifteen changes for a block.
pub(super) const BUNDLE_CHANGES: usize = 256;
/// The same in bytes, of which fences may be many.
const BUNDLE_LEN: usize = 2048;

/// Of how many layers a bundle is, and their changes.
const SIZES: usize = 1 + 4;

/// Some layers, oldest first; never empty.
#[derive(Clone, Debug)]
pub(super) struct Bundle(Arc<[u8]>);

impl Bundle {
    /// One layer, of keys with these hashes.
    pub fn of(layer: Layer<'_>, hashes: &[KeyHash]) -> Self {
        let mut entries: Vec<_> = hashes.iter().map(|hash| hash.in_layer(0)).collect();
        entries.sort_unstable();
        Self::made_of(0, [&[]; 3], layer, &entries)
    }

    /// This one with a layer more, of keys with these hashes.
    pub fn with(&self, layer: Layer<'_>, hashes: &[KeyHash]) -> Self {
        let (layers, mut entries): (_, Vec<_>) = (self.len(), self.maplet().entries().collect());
        let old = entries.len();
        entries.extend(hashes.iter().map(|hash| hash.in_layer(layers)));
        entries[old..].sort_unstable();
        // It finds both runs, and merges them.
        entries.sort();
        Self::made_of(layers, self.parts(), layer, &entries)
    }

    /// So many layers, of which are these parts, and one behind them; these are the entries of all.
    fn made_of(layers: usize, [heads, ids, fences]: [&[u8]; 3], layer: Layer<'_>, entries: &[Entry]) -> Self {
        let mut out = Vec::new();
        out.push(layers as u8 + 1);
        out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        Maplet::put(layers + 1, entries, &mut out);
        out.extend_from_slice(heads);
        Head::of(layer).put(&mut out);
        out.extend_from_slice(ids);
        Row::put_ids(layer, &mut out);
        out.extend_from_slice(fences);
        Row::put_fences(layer, &mut out);
        Self(out.into())
    }

    fn split(&self) -> (Maplet<'_>, &[u8]) {
        Maplet::split(self.len(), self.changes(), &self.0[SIZES..])
    }

    /// Heads, ids and fences.
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
        usize::from(self.0[0])
    }

    /// Changes in all of them.
    pub fn changes(&self) -> usize {
        let [a, b, c, d] = [self.0[1], self.0[2], self.0[3], self.0[4]];
        u32::from_le_bytes([a, b, c, d]) as usize
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

    /// Whether a layer of so many changes belongs to it, and not into another bundle.
    pub fn takes(&self, changes: usize) -> bool {
        self.len() < LAYERS && self.changes() + changes <= BUNDLE_CHANGES && self.0.len() <= BUNDLE_LEN
    }

    /// Bytes of memory, with what an allocator takes, and counts beside it.
    pub fn memory(&self) -> usize {
        16 + 12 + self.0.len()
    }

    /// What it takes if the next layer makes another of it, which it may.
    pub fn copied(&self) -> usize {
        if self.takes(1) { self.memory() } else { 0 }
    }

    /// Whether both are the same memory.
    #[cfg(test)]
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodeId;
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
