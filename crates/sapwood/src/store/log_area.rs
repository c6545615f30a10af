//! Log areas: a block, which is a node of level 1 with its leaves, gathers changes in *log pieces* instead of having its
//! leaves rewritten at every flush. (d-IPL B+-tree: sibling leaves share a log area of dynamic size. Here the pieces need
//! not lie beside the leaves: they are nodes like all others, found through the mapping table, and psync reads them
//! together, which is what makes the scattered fragments of BFTL affordable.)
//!
//! ```text
//! level-1 node 17 ──▶ leaf 3, leaf 9, leaf 4 …                                    what the log pieces do not speak of
//!      └─ log area ─▶ [layer: pieces 40 41 42] [layer: 60] [layer: 77 78] …       oldest to newest; the newest that has a key counts
//!                             ▲  a…  g…  q…      fences: a key is in the piece below whose fence it is not
//! ```
//! What a flush appends is a *layer*: pieces of some 4 KiB ([`crate::tree::route`]), one after the other in the file, each with a checksum of its own, whose keys ascend from
//! piece to piece. So a get reads the one piece that may have its key, and a scan those that its range touches. The layer is
//! named by a maplet, and the piece follows from the fences, of which the manifest keeps a copy.
//!
//! Layers are never changed, and versions share them: who appends copies the short list of *bundles*, and the
//! last bundle if that is small, for small layers are bundled, up to 8 with one maplet. So where a flush has much for each block nothing
//! is copied, and where it has little, as in a database that is many times larger than memory, layers need no allocations of their own,
//! and a get has few maplets to look into.
//!
//! Invariants:
//! 1. A change in a piece hides what older pieces and the leaves say about its key.
//! 2. The keys of a block's pieces lie between the separators of the block, which never change while it has pieces.
//! 3. A map of log areas is a value, as the mapping table is: a clone keeps what it saw.
//! 4. Fences of a layer ascend strictly; the keys of a piece lie at or above its fence and below the next one's. The first piece has none: what
//!    is below the second's fence is there.
//! 5. Appending copies no more hashes than [`BUNDLE_CHANGES`], and no more fences than [`BUNDLE_FENCES`].

use crate::bytecode::{Reader, put_varint};
use crate::node::{Node, NodeId};
use crate::store::maplet::{KeyHash, LAYERS, Maplet};
use crate::store::rent::Rent;
use std::sync::Arc;

/// Most layers that a block gathers: a scan has to merge them.
pub(crate) const LAYERS_MAX: usize = 64;

/// Changes up to which layers are bundled: 400 bytes that are copied for one more. An allocation or two a layer would be more than
/// the layers themselves where a flush has fifteen changes for a block.
const BUNDLE_CHANGES: usize = 128;
/// The same in bytes of fences.
const BUNDLE_FENCES: usize = 1024;

/// Keys one after the other, each behind its length, a varint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fences<'a>(pub &'a [u8]);

impl<'a> Iterator for Fences<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let mut reader = Reader::new(self.0);
        let len = reader.length()?;
        let fence = reader.bytes(len)?;
        self.0 = &self.0[self.0.len() - reader.remaining()..];
        Some(fence)
    }
}

impl<'a> Fences<'a> {
    /// Appends a fence to some.
    pub fn put(out: &mut Vec<u8>, fence: &[u8]) {
        put_varint(out, fence.len() as u64);
        out.extend_from_slice(fence);
    }

    /// Takes so many off the front, if there are as many.
    pub fn split(&mut self, count: usize) -> Option<Self> {
        let all = self.0;
        for _ in 0..count {
            self.next()?;
        }
        Some(Self(&all[..all.len() - self.0.len()]))
    }
}

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

/// The pieces of a layer in its area, among which one is found by halving.
///
/// ```text
/// fences of a layer in memory:   4×(pieces - 1) where each fence begins among them │ the fences, each behind its length
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub pieces: &'a [NodeId],
    /// As many as there are fences.
    starts: &'a [[u8; 4]],
    fences: Fences<'a>,
}

impl<'a> Row<'a> {
    /// `memory`: what [`Row::put`] made of the fences.
    fn of(pieces: &'a [NodeId], memory: &'a [u8]) -> Self {
        let (starts, fences) = memory.split_at(4 * (pieces.len() - 1));
        Self { pieces, starts: starts.as_chunks().0, fences: Fences(fences) }
    }

    /// Appends to the memory of some layers what this one's fences take.
    fn put(layer: Layer<'_>, memory: &mut Vec<u8>) {
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

/// Some layers, oldest first; never empty.
#[derive(Debug, Default)]
struct Bundle {
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
    fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether a layer of so many changes belongs to it, and not into another bundle.
    fn takes(&self, changes: usize) -> bool {
        self.len() < LAYERS
            && self.maplet.len() + changes <= BUNDLE_CHANGES
            && self.fences.len() <= BUNDLE_FENCES
    }

    fn with(&self, layer: Layer<'_>, hashes: &[KeyHash]) -> Self {
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

    fn row(&self, index: usize) -> Row<'_> {
        let from = index.checked_sub(1).map_or(Head::default(), |before| self.heads[before]);
        let to = self.heads[index];
        Row::of(
            &self.pieces[from.pieces as usize..to.pieces as usize],
            &self.fences[from.fences as usize..to.fences as usize],
        )
    }

    fn layer(&self, index: usize) -> Layer<'_> {
        let Row { pieces, fences, .. } = self.row(index);
        Layer { pieces, fences, removals: self.heads[index].removals }
    }

    /// Bytes of memory; an allocator takes some for each of the parts.
    fn memory(&self) -> usize {
        16 + size_of::<Self>()
            + size_of_val(&*self.heads)
            + size_of_val(&*self.pieces)
            + self.fences.len()
            + self.maplet.len() * KeyHash::LEN
            + if self.fences.is_empty() { 4 } else { 5 } * 12
    }

    /// What it takes if the next layer makes another of it, which it may.
    fn copied(&self) -> usize {
        if self.takes(1) { self.memory() } else { 0 }
    }
}

/// The log area of one block; never empty.
#[derive(Debug)]
pub(crate) struct LogArea {
    /// Oldest first.
    bundles: Box<[Arc<Bundle>]>,
    size: Size,
    rent: Rent,
}

/// How long pieces are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub bytes: u64,
    /// Those of records that are new, probably, and so take no other's place: while they lie here they cost no space.
    pub fresh: u64,
}

impl LogArea {
    /// The layers, oldest first.
    pub fn layers(&self) -> impl DoubleEndedIterator<Item = Layer<'_>> {
        self.bundles.iter().flat_map(|bundle| (0..bundle.len()).map(|index| bundle.layer(index)))
    }

    /// The pieces of each layer, oldest layer first.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.bundles.iter().flat_map(|bundle| (0..bundle.len()).map(|index| bundle.row(index)))
    }

    /// How many layers there are.
    pub fn layer_count(&self) -> usize {
        self.bundles.iter().map(|bundle| bundle.len()).sum()
    }

    /// The pieces of all layers, oldest layer first.
    pub fn pieces(&self) -> impl Iterator<Item = NodeId> {
        self.bundles.iter().flat_map(|bundle| bundle.pieces.iter().copied())
    }

    /// How many pieces there are.
    pub fn piece_count(&self) -> usize {
        self.bundles.iter().map(|bundle| bundle.pieces.len()).sum()
    }

    /// Bytes of the pieces.
    pub fn bytes(&self) -> u64 {
        self.size.bytes
    }

    /// Bytes of the pieces' records that no leaf has, probably.
    pub fn fresh(&self) -> u64 {
        self.size.fresh
    }

    /// Removals in the pieces.
    pub fn removals(&self) -> u64 {
        self.layers().map(|layer| u64::from(layer.removals)).sum()
    }

    /// What range searches have paid for the pieces.
    pub fn rent(&self) -> &Rent {
        &self.rent
    }

    /// Pieces that may have a key, newest first.
    pub fn candidates(&self, key: &[u8]) -> impl Iterator<Item = NodeId> {
        let hash = KeyHash::of(key);
        self.bundles.iter().rev().flat_map(move |bundle| {
            bundle.maplet.candidates(hash).map(move |index| {
                let row = bundle.row(index);
                row.pieces[row.piece_for(key)]
            })
        })
    }

    /// The hashes of the keys in a layer each, oldest first.
    pub fn hashes(&self) -> impl Iterator<Item = Vec<KeyHash>> {
        let bundles = self.bundles.iter();
        bundles.flat_map(|bundle| (0..bundle.len()).map(|index| bundle.maplet.hashes(index).collect()))
    }

    /// Whether these are the pieces' hashes. The pieces that were read are given, oldest layer first.
    pub fn agrees_with(&self, nodes: &[Node]) -> bool {
        let mut rest = nodes;
        self.bundles.iter().all(|bundle| {
            let mut read = Vec::new();
            for index in 0..bundle.len() {
                let count = bundle.layer(index).pieces.len().min(rest.len());
                let (of_layer, others) = rest.split_at(count);
                rest = others;
                read.extend(of_layer.iter().map(|node| (index, node)));
            }
            Maplet::of(read.into_iter()) == bundle.maplet
        })
    }

    fn count(&self) -> u64 {
        self.bundles.iter().map(|bundle| bundle.maplet.len() as u64).sum()
    }

    /// Bytes of memory, without bundles; with an entry in a chunk.
    fn memory(&self) -> usize {
        16 + 16 + size_of::<Self>() + 2 * 12 + size_of_val(&*self.bundles)
    }
}

/// Ids of neighbouring blocks share a chunk: what one change to a shared map copies.
const CHUNK: u64 = 1024;
type Chunk = Vec<(NodeId, Arc<LogArea>)>;

/// Block → log area.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogAreas {
    chunks: Vec<Arc<Chunk>>,
    totals: Totals,
    memory: Memory,
}

/// Bytes of memory of all log areas.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    /// Of areas, of bundles, and of those of these that one more layer would copy.
    areas: usize,
    bundles: usize,
    copied: usize,
}

impl Memory {
    fn add(&mut self, area: &LogArea) {
        self.areas += area.memory();
        self.bundles += area.bundles.iter().map(|bundle| bundle.memory()).sum::<usize>();
        self.copied += area.bundles.last().map_or(0, |last| last.copied());
    }

    fn subtract(&mut self, area: &LogArea) {
        self.areas -= area.memory();
        self.bundles -= area.bundles.iter().map(|bundle| bundle.memory()).sum::<usize>();
        self.copied -= area.bundles.last().map_or(0, |last| last.copied());
    }
}

/// Sums over all log areas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub areas: u64,
    pub layers: u64,
    pub pieces: u64,
    pub changes: u64,
    pub bytes: u64,
}

impl LogAreas {
    /// The log area of a block, if it has pieces.
    pub fn get(&self, block: NodeId) -> Option<&Arc<LogArea>> {
        let chunk = self.chunks.get((block.0 / CHUNK) as usize)?;
        chunk.binary_search_by_key(&block, |(id, _)| *id).ok().map(|index| &chunk[index].1)
    }

    /// Adds a layer, whose pieces are so long together, at the end of the block's area, with keys of these hashes.
    pub fn push(&mut self, block: NodeId, layer: Layer<'_>, size: Size, hashes: &[KeyHash]) {
        let index = (block.0 / CHUNK) as usize;
        if self.chunks.len() <= index {
            self.chunks.resize_with(index + 1, Arc::default);
        }
        let chunk = Arc::make_mut(&mut self.chunks[index]);
        self.totals.layers += 1;
        self.totals.pieces += layer.pieces.len() as u64;
        self.totals.changes += hashes.len() as u64;
        self.totals.bytes += size.bytes;
        match chunk.binary_search_by_key(&block, |(id, _)| *id) {
            Ok(at) => {
                let old = &chunk[at].1;
                self.memory.subtract(old);
                let (kept, last) = match old.bundles.split_last() {
                    Some((last, kept)) if last.takes(hashes.len()) => (kept, last.with(layer, hashes)),
                    _ => (&old.bundles[..], Bundle::default().with(layer, hashes)),
                };
                let bundles = kept.iter().cloned().chain([Arc::new(last)]).collect();
                let size = Size { bytes: old.size.bytes + size.bytes, fresh: old.size.fresh + size.fresh };
                let area = Arc::new(LogArea { bundles, size, rent: old.rent.carried_over() });
                self.memory.add(&area);
                chunk[at].1 = area;
            }
            Err(at) => {
                self.totals.areas += 1;
                let bundles = [Arc::new(Bundle::default().with(layer, hashes))].into();
                let area = Arc::new(LogArea { bundles, size, rent: Rent::default() });
                self.memory.add(&area);
                chunk.insert(at, (block, area));
            }
        }
    }

    /// Takes a block's area away and returns it.
    pub fn remove(&mut self, block: NodeId) -> Option<Arc<LogArea>> {
        let chunk = self.chunks.get_mut((block.0 / CHUNK) as usize)?;
        let at = chunk.binary_search_by_key(&block, |(id, _)| *id).ok()?;
        let (_, area) = Arc::make_mut(chunk).remove(at);
        self.memory.subtract(&area);
        self.totals.areas -= 1;
        self.totals.layers -= area.layer_count() as u64;
        self.totals.pieces -= area.piece_count() as u64;
        self.totals.changes -= area.count();
        self.totals.bytes -= area.size.bytes;
        Some(area)
    }

    /// All areas by block.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Arc<LogArea>)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter().map(|(id, area)| (*id, area)))
    }

    /// Sums over all areas.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Memory that the map takes with the hashes of all areas, in bytes.
    pub fn memory(&self) -> usize {
        self.chunks.len() * 40 + self.memory.areas + self.memory.bundles
    }

    /// Memory of this map that a next one does not share, in which each area has one layer more; what is new in that aside.
    pub fn unshared(&self) -> usize {
        self.memory.areas + self.memory.copied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn one(id: &[NodeId; 1]) -> Layer<'_> {
        Layer { pieces: id, fences: Fences::default(), removals: 1 }
    }

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
            let bundle = bundle.with(layer, &hashes());
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

    fn hashes() -> [KeyHash; 3] {
        [&b"ash"[..], b"elm", b"oak"].map(KeyHash::of)
    }

    #[test]
    fn a_clone_keeps_what_it_saw_and_sums_are_kept() {
        let mut areas = LogAreas::default();
        for block in [5, 2000, 7] {
            areas.push(NodeId(block), one(&[NodeId(block + 1)]), Size { bytes: 100, fresh: 40 }, &hashes());
        }
        areas.push(NodeId(5), one(&[NodeId(99)]), Size { bytes: 50, fresh: 0 }, &hashes());
        let before = areas.clone();
        assert_eq!(areas.totals(), Totals { areas: 3, layers: 4, pieces: 4, changes: 12, bytes: 350 });
        let area = areas.get(NodeId(5)).expect("an area");
        assert_eq!(area.candidates(b"elm").collect::<Vec<_>>(), [NodeId(99), NodeId(6)]);
        assert_eq!((area.hashes().flatten().count(), area.removals(), area.fresh()), (6, 2, 40));
        let gone = areas.remove(NodeId(5)).expect("an area");
        assert_eq!(gone.pieces().collect::<Vec<_>>(), [NodeId(6), NodeId(99)]);
        assert_eq!(areas.totals(), Totals { areas: 2, layers: 2, pieces: 2, changes: 6, bytes: 200 });
        assert!(areas.get(NodeId(5)).is_none() && areas.remove(NodeId(5)).is_none());
        assert_eq!(before.get(NodeId(5)).expect("still there").bytes(), 150);
        assert_eq!(areas.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [7, 2000]);
        assert!([7, 2000].into_iter().all(|block| areas.remove(NodeId(block)).is_some()));
        assert_eq!(areas.memory.areas + areas.memory.bundles + areas.memory.copied, 0);
    }

    /// Whatever layers there are, small or large: all are found, newest first, in the right piece, and appending copies little.
    #[test]
    fn layers_are_shared_and_small_ones_bundled() {
        const PIECE: u64 = 50;
        let keys =
            |layer: u64, count: u64| (0..count).map(move |number| (number * (layer + 1)).to_be_bytes());
        for counts in [vec![3; 40], vec![200; 10], vec![1, 127, 1, 128, 129, 60, 60, 60, 5]] {
            let mut areas = LogAreas::default();
            for (layer, count) in counts.iter().enumerate() {
                let before = areas.clone();
                let hashes: Vec<_> = keys(layer as u64, *count).map(|key| KeyHash::of(&key)).collect();
                let pieces: Vec<_> =
                    (0..count.div_ceil(PIECE)).map(|piece| NodeId(100 * layer as u64 + piece)).collect();
                let mut fences = Vec::new();
                keys(layer as u64, *count)
                    .step_by(PIECE as usize)
                    .skip(1)
                    .for_each(|key| Fences::put(&mut fences, &key));
                let layer = Layer { pieces: &pieces, fences: Fences(&fences), removals: 0 };
                areas.push(NodeId(1), layer, Size { bytes: 100, fresh: 0 }, &hashes);
                let Some(old) = before.get(NodeId(1)) else { continue };
                let now = areas.get(NodeId(1)).expect("an area");
                let shared = now.bundles.iter().zip(&old.bundles).filter(|(now, old)| Arc::ptr_eq(now, old));
                assert!(shared.count() + 1 >= old.bundles.len());
                let last = now.bundles.last().expect("one at least");
                assert!(last.len() == 1 || last.maplet.len() <= BUNDLE_CHANGES);
            }
            let area = areas.get(NodeId(1)).expect("an area");
            assert_eq!((area.layer_count(), area.layers().count()), (counts.len(), counts.len()));
            for (layer, count) in counts.iter().enumerate() {
                for (number, key) in keys(layer as u64, *count).enumerate() {
                    let found: Vec<_> = area.candidates(&key).map(|id| id.0).collect();
                    let expected = 100 * layer as u64 + number as u64 / PIECE;
                    assert!(found.contains(&expected), "{expected} is not among {found:?}");
                    assert!(found.is_sorted_by(|a, b| a / 100 >= b / 100));
                }
            }
            if counts[0] == 3 {
                assert_eq!(area.bundles.len(), 40 / LAYERS);
                assert!(areas.unshared() * 2 < areas.memory(), "{} of {}", areas.unshared(), areas.memory());
            }
        }
    }
}
