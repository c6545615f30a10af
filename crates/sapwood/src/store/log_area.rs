//! Log areas: a block, which is a node of level 1 with its leaves, gathers changes in *log pieces* instead of having its
//! leaves rewritten at every flush. (d-IPL B+-tree: sibling leaves share a log area of dynamic size. Here the pieces need
//! not lie beside the leaves: they are nodes like all others, found through the mapping table, and psync reads them
//! together, which is what makes the scattered fragments of BFTL affordable.)
//!
//! ```text
//! level-1 node 17 ──▶ leaf 3, leaf 9, leaf 4 …          what the log pieces do not speak of
//!      └─ log area ─▶ piece 40, piece 51, piece 77       oldest to newest; the newest that has a key counts
//! ```
//!
//! Invariants:
//! 1. A change in a piece hides what older pieces and the leaves say about its key.
//! 2. The keys of a block's pieces lie between the separators of the block, which never change while it has pieces.
//! 3. A map of log areas is a value, as the mapping table is: a clone keeps what it saw.

use crate::node::NodeId;
use crate::store::maplet::{KeyHash, Maplet};
use crate::store::rent::Rent;
use std::sync::Arc;

/// Most pieces that a block gathers.
pub(crate) const PIECES_MAX: usize = 64;

/// One log piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPiece {
    pub id: NodeId,
    /// Changes in it ...
    pub count: u32,
    /// ... and how many of them are removals.
    pub removals: u32,
}

/// The log area of one block; never empty.
#[derive(Debug)]
pub(crate) struct LogArea {
    /// Oldest first.
    pieces: Vec<LogPiece>,
    /// Bytes of all of them.
    bytes: u64,
    maplet: Maplet,
    rent: Rent,
}

impl LogArea {
    /// The pieces, oldest first.
    pub fn pieces(&self) -> &[LogPiece] {
        &self.pieces
    }

    /// Bytes of the pieces.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Removals in the pieces.
    pub fn removals(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.removals)).sum()
    }

    /// What range searches have paid for the pieces.
    pub fn rent(&self) -> &Rent {
        &self.rent
    }

    /// Which pieces may have a key.
    pub fn maplet(&self) -> &Maplet {
        &self.maplet
    }

    /// The hashes of the keys in all pieces, piece by piece.
    pub fn hashes(&self) -> impl Iterator<Item = KeyHash> {
        self.maplet.hashes(self.pieces.len())
    }

    fn count(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.count)).sum()
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
        self.totals.changes += u64::from(piece.count);
        self.totals.bytes += u64::from(len);
        match chunk.binary_search_by_key(&block, |(id, _)| *id) {
            Ok(at) => {
                let old = &chunk[at].1;
                let mut pieces = Vec::with_capacity(old.pieces.len() + 1);
                pieces.extend_from_slice(&old.pieces);
                pieces.push(piece);
                let maplet = old.maplet.with(old.pieces.len(), hashes);
                let (bytes, rent) = (old.bytes + u64::from(len), old.rent.carried_over());
                let area = LogArea { pieces, bytes, maplet, rent };
                chunk[at].1 = Arc::new(area);
            }
            Err(at) => {
                self.totals.areas += 1;
                let maplet = Maplet::default().with(0, hashes);
                let (bytes, rent) = (u64::from(len), Rent::default());
                let area = LogArea { pieces: vec![piece], bytes, maplet, rent };
                chunk.insert(at, (block, Arc::new(area)));
            }
        }
    }

    /// Takes a block's area away and returns it.
    pub fn remove(&mut self, block: NodeId) -> Option<Arc<LogArea>> {
        let chunk = self.chunks.get_mut((block.0 / CHUNK) as usize)?;
        let at = chunk.binary_search_by_key(&block, |(id, _)| *id).ok()?;
        let (_, area) = Arc::make_mut(chunk).remove(at);
        self.totals.areas -= 1;
        self.totals.pieces -= area.pieces.len() as u64;
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

    /// Memory that the map takes with the maplets of all areas, in bytes.
    pub fn memory(&self) -> usize {
        let totals = self.totals;
        self.chunks.len() * 40
            + totals.areas as usize * (16 + size_of::<LogArea>() + 48)
            + totals.pieces as usize * size_of::<LogPiece>()
            + totals.changes as usize * size_of::<u32>()
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
        assert_eq!(area.maplet().candidates(b"elm").collect::<Vec<_>>(), [1, 0]);
        assert_eq!(area.hashes().count(), 6);
        let gone = areas.remove(NodeId(5)).expect("an area");
        assert_eq!(gone.pieces(), [piece(6), piece(99)]);
        assert_eq!(areas.totals(), Totals { areas: 2, pieces: 2, changes: 6, bytes: 200 });
        assert!(areas.get(NodeId(5)).is_none() && areas.remove(NodeId(5)).is_none());
        assert_eq!(before.get(NodeId(5)).expect("still there").bytes(), 150);
        assert_eq!(areas.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [7, 2000]);
    }
}
