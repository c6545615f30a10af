//! Log areas: a block, which is a node of level 1 with its leaves, collects changes in *log pieces*, so that
//! its leaves need not be rewritten at every flush. (d-IPL B+-tree: sibling leaves share a log area of
//! dynamic size. Here the pieces need not lie beside the leaves: they are nodes like all others, found
//! through the mapping table, and psync reads them together, which is what makes the scattered fragments of
//! BFTL affordable.)
//!
//! ```text
//! level-1 node 17 ──▶ leaf 3, leaf 9, leaf 4 …                                    what the log pieces do not speak of
//!      └─ log area ─▶ [run: pieces 40 41 42] [run: 60] [run: 77 78] …       oldest to newest; the newest that has a key counts
//!                             ▲  a…  g…  q…      fences: a key is in the piece below whose fence it is not
//! ```
//! A flush appends a *run*: pieces of some 4 KiB ([`crate::tree::route`]), one after the other in the file,
//! each with a checksum of its own, whose keys ascend from piece to piece. So a get reads the one piece that
//! may have its key, and a scan those that its range touches. A maplet names the run, and the fences, of
//! which the manifest keeps a copy, name the piece.
//!
//! Runs are immutable, and versions share them. Appending copies the short list of *packed runs*, and the last
//! packed runs if it is small: small runs are packed, up to 8 with one maplet and one allocation. So if a flush
//! has many changes for each block nothing is copied; if it has few, as in a database that is many times
//! larger than memory, runs need no allocations of their own, and a get has few maplets to look into.
//!
//! This file is the area of one block. A [`DeltaRun`] is what a flush appends, with its [`Fences`]; a [`RunRef`]
//! is the run in memory, [`PackedRuns`] hold several, and the [`map`] finds the area of a block.
//!
//! Invariants:
//! 1. A change in a piece hides what older pieces and the leaves say about its key.
//! 2. The keys of a block's pieces lie between the separators of the block, whose range never shrinks while it has
//!    pieces.

mod delta_run;
mod fences;
mod map;
pub(crate) mod maplet;
mod new_share;
mod packed_runs;
pub(crate) mod read_cost;
mod run_ref;

pub(crate) use delta_run::DeltaRun;
pub(crate) use fences::Fences;
pub(crate) use map::LogAreas;
pub(crate) use new_share::{NewShare, SampledChanges};

use crate::log_area::maplet::{KeyHash, entries_of};
use crate::log_area::read_cost::ReadCost;
use crate::storage::node::{Node, NodeId};
use packed_runs::PackedRuns;
use run_ref::RunRef;
use std::hint::black_box;
use std::sync::{Arc, OnceLock};

/// Most runs of a log area: a scan has to merge them.
pub(crate) const RUNS_MAX: usize = 64;

/// Target length of log areas, as the tuning of log areas sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// Weighted log bytes, in percent of the leaves' bytes.
    pub share: u64,
    /// Weight of a log byte that belongs to a new record, in percent. A new record is stored nowhere else, so
    /// it costs only the readers of the pieces, and memory for the pieces' tables.
    pub fresh: u64,
}

/// A log area that range searches have charged the price of its cleansing, or of merging its runs.
#[derive(Debug)]
pub(crate) struct Charged {
    pub area: Arc<LogArea>,
    /// Price of the cleansing or merging: see [`Remedy`](read_cost::Remedy).
    pub price: u64,
}

/// The log area of one block; never empty.
#[derive(Debug)]
pub(crate) struct LogArea {
    /// Oldest first.
    packed_runs: Box<[PackedRuns]>,
    size: Size,
    read_cost: ReadCost,
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
    /// An area of one run. `size`: of all its pieces together; `hashes`: of its keys.
    fn new(run: DeltaRun<'_>, size: Size, hashes: &[KeyHash]) -> Self {
        let packed_runs = [PackedRuns::of(run, hashes)].into();
        Self { packed_runs, size, read_cost: ReadCost::default(), leaves: OnceLock::new() }
    }

    /// This area with one more run.
    fn with(&self, run: DeltaRun<'_>, size: Size, hashes: &[KeyHash]) -> Self {
        let (kept, last) = match self.packed_runs.split_last() {
            Some((last, kept)) if last.takes(hashes.len()) => (kept, last.with(run, hashes)),
            _ => (&self.packed_runs[..], PackedRuns::of(run, hashes)),
        };
        let packed_runs = kept.iter().cloned().chain([last]).collect();
        let size = Size { bytes: self.size.bytes + size.bytes, fresh: self.size.fresh + size.fresh };
        Self { packed_runs, size, read_cost: self.read_cost.carried_over(), leaves: self.leaves.clone() }
    }

    /// The runs, oldest first.
    pub fn runs(&self) -> impl Iterator<Item = RunRef<'_>> {
        self.packed_runs.iter().flat_map(|packed| packed.runs())
    }

    /// How many runs there are.
    pub fn run_count(&self) -> usize {
        self.packed_runs.iter().map(|packed| packed.len()).sum()
    }

    /// The pieces of all runs, oldest run first.
    pub fn pieces(&self) -> impl Iterator<Item = NodeId> {
        self.packed_runs.iter().flat_map(|packed| packed.pieces().iter())
    }

    /// How many pieces there are.
    pub fn piece_count(&self) -> usize {
        self.packed_runs.iter().map(|packed| packed.pieces().len()).sum()
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
        self.runs().map(|run| u64::from(run.removals)).sum()
    }

    /// What range searches have charged for the pieces.
    pub fn read_cost(&self) -> &ReadCost {
        &self.read_cost
    }

    /// Pieces that may have a key, newest first: one for each run that the maplets name.
    pub fn candidates(&self, key: &[u8]) -> impl Iterator<Item = NodeId> {
        let hash = KeyHash::of(key);
        // One after the other the maplets would be some twenty cache misses.
        black_box(self.packed_runs.iter().fold(0, |touched, packed| touched ^ packed.maplet().touch(hash)));
        self.packed_runs.iter().rev().flat_map(move |packed| {
            let runs = packed.maplet().candidates(hash).filter_map(|index| packed.runs().nth(index));
            runs.map(|run| run.pieces.at(run.piece_for(key)))
        })
    }

    /// The hashes of the keys, run by run, oldest first.
    pub fn hashes(&self) -> impl Iterator<Item = Vec<KeyHash>> {
        self.packed_runs.iter().flat_map(|packed| {
            let mut runs = vec![Vec::new(); packed.len()];
            packed.maplet().entries().for_each(|entry| runs[entry.run()].push(entry.hash()));
            runs
        })
    }

    /// Whether the area's hashes are those of its pieces. `nodes`: the pieces, oldest run first.
    pub fn agrees_with(&self, nodes: &[Node]) -> bool {
        let mut rest = nodes;
        self.packed_runs.iter().all(|packed| {
            let mut read = Vec::new();
            for (index, run) in packed.runs().enumerate() {
                let (of_run, others) = rest.split_at(run.pieces.len().min(rest.len()));
                rest = others;
                read.extend(of_run.iter().flat_map(|node| entries_of(index, node)));
            }
            read.sort_unstable();
            packed.maplet().entries().eq(read)
        })
    }

    fn count(&self) -> u64 {
        self.packed_runs.iter().map(|packed| packed.changes() as u64).sum()
    }

    /// Bytes of memory of this area without its packed runs, including its entry in a chunk.
    fn memory(&self) -> usize {
        16 + 16 + size_of::<Self>() + 2 * 12 + size_of_val(&*self.packed_runs)
    }
}
