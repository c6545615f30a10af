//! Log areas: a block, which is a node of level 1 with its leaves, collects changes in *log pieces*, so that
//! its leaves need not be rewritten at every flush. (d-IPL B+-tree: sibling leaves share a log area of
//! dynamic size. Here the pieces need not lie beside the leaves: they are nodes like all others, found
//! through the mapping table, and psync reads them together, which is what makes the scattered fragments of
//! BFTL affordable.)
//!
//! ```text
//! level-1 node 17 ──▶ leaf 3, leaf 9, leaf 4 …                                    what the log pieces do not speak of
//!      └─ log area ─▶ [layer: pieces 40 41 42] [layer: 60] [layer: 77 78] …       oldest to newest; the newest that has a key counts
//!                             ▲  a…  g…  q…      fences: a key is in the piece below whose fence it is not
//! ```
//! A flush appends a *layer*: pieces of some 4 KiB ([`crate::tree::route`]), one after the other in the file,
//! each with a checksum of its own, whose keys ascend from piece to piece. So a get reads the one piece that
//! may have its key, and a scan those that its range touches. A maplet names the layer, and the fences, of
//! which the manifest keeps a copy, name the piece.
//!
//! Layers are immutable, and versions share them. Appending copies the short list of *bundles*, and the last
//! bundle if it is small: small layers are bundled, up to 8 with one maplet and one allocation. So if a flush
//! has many changes for each block nothing is copied; if it has few, as in a database that is many times
//! larger than memory, layers need no allocations of their own, and a get has few maplets to look into.
//!
//! This file is the area of one block. A [`layer`] is what a flush appends, with its [`fences`]; a [`row`] is
//! the layer in memory, a [`bundle`] holds several rows, and the [`map`] finds the area of a block.
//!
//! Invariants:
//! 1. A change in a piece hides what older pieces and the leaves say about its key.
//! 2. The keys of a block's pieces lie between the separators of the block, whose range never shrinks while it has
//!    pieces.

mod delta_run;
mod fences;
mod map;
pub(crate) mod maplet;
mod packed_runs;
pub(crate) mod read_cost;
mod run_ref;

pub(crate) use delta_run::Layer;
pub(crate) use fences::Fences;
pub(crate) use map::LogAreas;

use crate::log_area::maplet::{KeyHash, entries_of};
use crate::log_area::read_cost::Rent;
use crate::storage::node::{Node, NodeId};
use packed_runs::Bundle;
use run_ref::Row;
use std::hint::black_box;
use std::sync::OnceLock;

/// Most layers of a log area: a scan has to merge them.
pub(crate) const LAYERS_MAX: usize = 64;

/// The log area of one block; never empty.
#[derive(Debug)]
pub(crate) struct LogArea {
    /// Oldest first.
    bundles: Box<[Bundle]>,
    size: Size,
    rent: Rent,
    /// Bytes of the block's leaves, which do not change as long as the block has this area; counted on first
    /// use.
    leaves: OnceLock<u64>,
}

/// Length of pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub bytes: u64,
    /// Bytes of records that are probably new. They hide no older record, so they cost no space while they
    /// are here.
    pub fresh: u64,
}

impl LogArea {
    /// An area of one layer. `size`: of all its pieces together; `hashes`: of its keys.
    fn new(layer: Layer<'_>, size: Size, hashes: &[KeyHash]) -> Self {
        let bundles = [Bundle::of(layer, hashes)].into();
        Self { bundles, size, rent: Rent::default(), leaves: OnceLock::new() }
    }

    /// This area with one more layer.
    fn with(&self, layer: Layer<'_>, size: Size, hashes: &[KeyHash]) -> Self {
        let (kept, last) = match self.bundles.split_last() {
            Some((last, kept)) if last.takes(hashes.len()) => (kept, last.with(layer, hashes)),
            _ => (&self.bundles[..], Bundle::of(layer, hashes)),
        };
        let bundles = kept.iter().cloned().chain([last]).collect();
        let size = Size { bytes: self.size.bytes + size.bytes, fresh: self.size.fresh + size.fresh };
        Self { bundles, size, rent: self.rent.carried_over(), leaves: self.leaves.clone() }
    }

    /// The layers, oldest first.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.bundles.iter().flat_map(|bundle| bundle.rows())
    }

    /// How many layers there are.
    pub fn layer_count(&self) -> usize {
        self.bundles.iter().map(|bundle| bundle.len()).sum()
    }

    /// The pieces of all layers, oldest layer first.
    pub fn pieces(&self) -> impl Iterator<Item = NodeId> {
        self.bundles.iter().flat_map(|bundle| bundle.pieces().iter())
    }

    /// How many pieces there are.
    pub fn piece_count(&self) -> usize {
        self.bundles.iter().map(|bundle| bundle.pieces().len()).sum()
    }

    /// Bytes of the pieces.
    pub fn bytes(&self) -> u64 {
        self.size.bytes
    }

    /// Bytes of the pieces' records that probably no leaf has.
    pub fn fresh(&self) -> u64 {
        self.size.fresh
    }

    /// The same in percent of all bytes, for an edit. Rounded, as when it is read: otherwise it would shrink
    /// each time the database is opened.
    pub fn fresh_percent(&self) -> u32 {
        let bytes = self.bytes().max(1);
        ((self.fresh() * 100 + bytes / 2) / bytes).min(100) as u32
    }

    /// Bytes of the block's leaves; `count` is called on first use.
    pub fn leaf_bytes(&self, count: impl FnOnce() -> u64) -> u64 {
        *self.leaves.get_or_init(count)
    }

    /// Number of removals in the pieces.
    pub fn removals(&self) -> u64 {
        self.rows().map(|row| u64::from(row.removals)).sum()
    }

    /// What range searches have paid for the pieces.
    pub fn rent(&self) -> &Rent {
        &self.rent
    }

    /// Pieces that may have a key, newest first: one for each layer that the maplets name.
    pub fn candidates(&self, key: &[u8]) -> impl Iterator<Item = NodeId> {
        let hash = KeyHash::of(key);
        // One after the other the maplets would be some twenty cache misses.
        black_box(self.bundles.iter().fold(0, |touched, bundle| touched ^ bundle.maplet().touch(hash)));
        self.bundles.iter().rev().flat_map(move |bundle| {
            let rows = bundle.maplet().candidates(hash).filter_map(|index| bundle.rows().nth(index));
            rows.map(|row| row.pieces.at(row.piece_for(key)))
        })
    }

    /// The hashes of the keys, layer by layer, oldest first.
    pub fn hashes(&self) -> impl Iterator<Item = Vec<KeyHash>> {
        self.bundles.iter().flat_map(|bundle| {
            let mut layers = vec![Vec::new(); bundle.len()];
            bundle.maplet().entries().for_each(|entry| layers[entry.layer()].push(entry.hash()));
            layers
        })
    }

    /// Whether the area's hashes are those of its pieces. `nodes`: the pieces, oldest layer first.
    pub fn agrees_with(&self, nodes: &[Node]) -> bool {
        let mut rest = nodes;
        self.bundles.iter().all(|bundle| {
            let mut read = Vec::new();
            for (index, row) in bundle.rows().enumerate() {
                let (of_layer, others) = rest.split_at(row.pieces.len().min(rest.len()));
                rest = others;
                read.extend(of_layer.iter().flat_map(|node| entries_of(index, node)));
            }
            read.sort_unstable();
            bundle.maplet().entries().eq(read)
        })
    }

    fn count(&self) -> u64 {
        self.bundles.iter().map(|bundle| bundle.changes() as u64).sum()
    }

    /// Bytes of memory of this area without its bundles, including its entry in a chunk.
    fn memory(&self) -> usize {
        16 + 16 + size_of::<Self>() + 2 * 12 + size_of_val(&*self.bundles)
    }
}
