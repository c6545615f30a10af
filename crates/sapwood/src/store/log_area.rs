//! Log areas: a block, which is a node of level 1 with its leaves, gathers changes in *log pieces* instead of having its
//! leaves rewritten at every flush. (d-IPL B+-tree: sibling leaves share a log area of dynamic size. Here the pieces need
//! not lie beside the leaves: they are nodes like all others, found through the mapping table, and psync reads them
//! together, which is what makes the scattered fragments of BFTL affordable.)
//!
//! ```text
//! level-1 node 17 ──▶ leaf 3, leaf 9, leaf 4 …                       what the log pieces do not speak of
//!      └─ log area ─▶ [piece 40, piece 51, piece 60] [piece 77] …     oldest to newest; the newest that has a key counts
//!                      bundle: up to 8 layers, one maplet
//! ```
//! What a flush appends is a *layer*. Layers are never changed, and versions share them: who appends copies the short list of *bundles*, and the
//! last bundle if that is small, for small layers are bundled, a few with one maplet. So where a flush has much for each block nothing
//! is copied, and where it has little, as in a database that is many times larger than memory, layers need no allocations of their own,
//! and a get has few maplets to look into.
//!
//! Invariants:
//! 1. A change in a piece hides what older pieces and the leaves say about its key.
//! 2. The keys of a block's pieces lie between the separators of the block, which never change while it has pieces.
//! 3. A map of log areas is a value, as the mapping table is: a clone keeps what it saw.
//! 4. Appending copies no more hashes than [`BUNDLE_CHANGES`].

use crate::node::{Node, NodeId};
use crate::store::maplet::{KeyHash, LAYERS, Maplet};
use crate::store::rent::Rent;
use std::sync::Arc;

/// Most layers that a block gathers: a scan has to merge them.
pub(crate) const LAYERS_MAX: usize = 64;

/// Changes up to which layers are bundled: 400 bytes that are copied for one more. An allocation or two a layer would be more than
/// the layers themselves where a flush has fifteen changes for a block.
const BUNDLE_CHANGES: usize = 128;

/// One log piece, which is a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPiece {
    pub id: NodeId,
    /// Changes in it ...
    pub count: u32,
    /// ... and how many of them are removals.
    pub removals: u32,
}

/// Some layers, oldest first; never empty.
#[derive(Debug)]
struct Bundle {
    pieces: Box<[LogPiece]>,
    maplet: Maplet,
}

impl Bundle {
    fn of(piece: LogPiece, hashes: &[KeyHash]) -> Self {
        Self { pieces: [piece].into(), maplet: Maplet::default().with(0, hashes) }
    }

    /// Whether a layer of so many changes belongs to it, and not into another bundle.
    fn takes(&self, changes: usize) -> bool {
        self.pieces.len() < LAYERS && self.maplet.len() + changes <= BUNDLE_CHANGES
    }

    fn with(&self, piece: LogPiece, hashes: &[KeyHash]) -> Self {
        let mut pieces = Vec::with_capacity(self.pieces.len() + 1);
        pieces.extend_from_slice(&self.pieces);
        pieces.push(piece);
        Self { pieces: pieces.into(), maplet: self.maplet.with(self.pieces.len(), hashes) }
    }

    /// Bytes of memory; an allocator takes some for each of the three parts.
    fn memory(&self) -> usize {
        16 + size_of::<Self>()
            + self.pieces.len() * size_of::<LogPiece>()
            + self.maplet.len() * KeyHash::LEN
            + 3 * 16
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
    /// Bytes of all pieces.
    bytes: u64,
    rent: Rent,
}

impl LogArea {
    /// The pieces, oldest first.
    pub fn pieces(&self) -> impl DoubleEndedIterator<Item = &LogPiece> {
        self.bundles.iter().flat_map(|bundle| bundle.pieces.iter())
    }

    /// How many pieces there are, and so many layers.
    pub fn len(&self) -> usize {
        self.bundles.iter().map(|bundle| bundle.pieces.len()).sum()
    }

    /// Bytes of the pieces.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Removals in the pieces.
    pub fn removals(&self) -> u64 {
        self.pieces().map(|piece| u64::from(piece.removals)).sum()
    }

    /// What range searches have paid for the pieces.
    pub fn rent(&self) -> &Rent {
        &self.rent
    }

    /// Pieces that may have a key, newest first.
    pub fn candidates(&self, key: &[u8]) -> impl Iterator<Item = NodeId> {
        let hash = KeyHash::of(key);
        let newest_first = self.bundles.iter().rev();
        newest_first
            .flat_map(move |bundle| bundle.maplet.candidates(hash).map(|layer| bundle.pieces[layer].id))
    }

    /// The hashes of the keys in all pieces, piece by piece.
    pub fn hashes(&self) -> impl Iterator<Item = KeyHash> {
        let bundles = self.bundles.iter();
        bundles.flat_map(|bundle| (0..bundle.pieces.len()).flat_map(|layer| bundle.maplet.hashes(layer)))
    }

    /// Whether these are the pieces' hashes, of which those that were read are given, oldest first.
    pub fn agrees_with<'a>(&self, pieces: impl Iterator<Item = &'a Node>) -> bool {
        let mut pieces = pieces;
        self.bundles
            .iter()
            .all(|bundle| Maplet::of(pieces.by_ref().take(bundle.pieces.len()).enumerate()) == bundle.maplet)
    }

    fn count(&self) -> u64 {
        self.bundles.iter().map(|bundle| bundle.maplet.len() as u64).sum()
    }

    /// Bytes of memory, without bundles; with an entry in a chunk.
    fn memory(&self) -> usize {
        16 + 16 + size_of::<Self>() + 2 * 16 + self.bundles.len() * size_of::<Arc<Bundle>>()
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

    /// Adds a piece of `len` bytes at the end of the block's area, with keys of these hashes.
    pub fn push(&mut self, block: NodeId, piece: LogPiece, len: u32, hashes: &[KeyHash]) {
        let index = (block.0 / CHUNK) as usize;
        if self.chunks.len() <= index {
            self.chunks.resize_with(index + 1, Arc::default);
        }
        let chunk = Arc::make_mut(&mut self.chunks[index]);
        self.totals.pieces += 1;
        self.totals.changes += hashes.len() as u64;
        self.totals.bytes += u64::from(len);
        match chunk.binary_search_by_key(&block, |(id, _)| *id) {
            Ok(at) => {
                let old = &chunk[at].1;
                self.memory.subtract(old);
                let (kept, last) = match old.bundles.split_last() {
                    Some((last, kept)) if last.takes(hashes.len()) => (kept, last.with(piece, hashes)),
                    _ => (&old.bundles[..], Bundle::of(piece, hashes)),
                };
                let bundles = kept.iter().cloned().chain([Arc::new(last)]).collect();
                let (bytes, rent) = (old.bytes + u64::from(len), old.rent.carried_over());
                let area = Arc::new(LogArea { bundles, bytes, rent });
                self.memory.add(&area);
                chunk[at].1 = area;
            }
            Err(at) => {
                self.totals.areas += 1;
                let bundles = [Arc::new(Bundle::of(piece, hashes))].into();
                let area = Arc::new(LogArea { bundles, bytes: u64::from(len), rent: Rent::default() });
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
        self.totals.pieces -= area.len() as u64;
        self.totals.changes -= area.count();
        self.totals.bytes -= area.bytes;
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

    fn piece(id: u64) -> LogPiece {
        LogPiece { id: NodeId(id), count: 3, removals: 1 }
    }

    fn hashes() -> [KeyHash; 3] {
        [&b"ash"[..], b"elm", b"oak"].map(KeyHash::of)
    }

    #[test]
    fn a_clone_keeps_what_it_saw_and_sums_are_kept() {
        let mut areas = LogAreas::default();
        for block in [5, 2000, 7] {
            areas.push(NodeId(block), piece(block + 1), 100, &hashes());
        }
        areas.push(NodeId(5), piece(99), 50, &hashes());
        let before = areas.clone();
        assert_eq!(areas.totals(), Totals { areas: 3, pieces: 4, changes: 12, bytes: 350 });
        let area = areas.get(NodeId(5)).expect("an area");
        assert_eq!(area.candidates(b"elm").collect::<Vec<_>>(), [NodeId(99), NodeId(6)]);
        assert_eq!(area.hashes().count(), 6);
        let gone = areas.remove(NodeId(5)).expect("an area");
        assert_eq!(gone.pieces().copied().collect::<Vec<_>>(), [piece(6), piece(99)]);
        assert_eq!(areas.totals(), Totals { areas: 2, pieces: 2, changes: 6, bytes: 200 });
        assert!(areas.get(NodeId(5)).is_none() && areas.remove(NodeId(5)).is_none());
        assert_eq!(before.get(NodeId(5)).expect("still there").bytes(), 150);
        assert_eq!(areas.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [7, 2000]);
        assert!([7, 2000].into_iter().all(|block| areas.remove(NodeId(block)).is_some()));
        assert_eq!(areas.memory.areas + areas.memory.bundles + areas.memory.copied, 0);
    }

    /// Whatever layers there are, small or large: all are found, newest first, and appending copies little.
    #[test]
    fn layers_are_shared_and_small_ones_bundled() {
        let keys =
            |layer: u64, count: u64| (0..count).map(move |number| (number * (layer + 1)).to_be_bytes());
        for counts in [vec![3; 40], vec![200; 10], vec![1, 127, 1, 128, 129, 60, 60, 60, 5]] {
            let mut areas = LogAreas::default();
            for (layer, count) in counts.iter().enumerate() {
                let before = areas.clone();
                let hashes: Vec<_> = keys(layer as u64, *count).map(|key| KeyHash::of(&key)).collect();
                let piece = LogPiece { id: NodeId(layer as u64), count: *count as u32, removals: 0 };
                areas.push(NodeId(1), piece, 100, &hashes);
                let Some(old) = before.get(NodeId(1)) else { continue };
                let now = areas.get(NodeId(1)).expect("an area");
                let shared = now.bundles.iter().zip(&old.bundles).filter(|(now, old)| Arc::ptr_eq(now, old));
                assert!(shared.count() + 1 >= old.bundles.len());
                let last = now.bundles.last().expect("one at least");
                assert!(last.pieces.len() == 1 || last.maplet.len() <= BUNDLE_CHANGES);
            }
            let area = areas.get(NodeId(1)).expect("an area");
            assert_eq!(area.len(), counts.len());
            for (layer, count) in counts.iter().enumerate() {
                for key in keys(layer as u64, *count) {
                    let found: Vec<_> = area.candidates(&key).map(|id| id.0).collect();
                    assert!(found.contains(&(layer as u64)) && found.is_sorted_by(|a, b| a >= b));
                }
            }
            if counts[0] == 3 {
                assert_eq!(area.bundles.len(), 40 / LAYERS);
                assert!(areas.unshared() * 2 < areas.memory(), "{} of {}", areas.unshared(), areas.memory());
            }
        }
    }
}
