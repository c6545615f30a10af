//! A group: the leaves that a walk reaches next, and the log pieces that they need, brought by one parallel
//! read.
//!
//! Invariants:
//! 1. All pieces that may have a key of a leaf's range are in its group, or in an earlier one.
//! 2. A search charges the block for its pieces when it looks them up, whether they are in the cache or not.

use crate::cache::pager::AskedNodes;
use crate::error::Result;
use crate::storage::frames::memory_of;
use crate::storage::node::{Node, NodeId, PIECE};
use crate::storage::reader::InFlightLimit;
use crate::tree::overlay::RunOfPiece;
use crate::tree::range::path::{Path, ScanSpec};
use psync::AlignedBuffer;

/// See the module. Nodes that are not here are still to be read, or in flight.
pub(super) struct Group {
    /// The scan is short so far: it has read no more than a short one does.
    is_short: bool,
    /// Leaves from the cache ...
    leaves: Vec<Node>,
    /// ... or reads still to come: this many leaves, and then the pieces that are missing.
    asked: Option<(AskedNodes, usize)>,
    pieces: Pieces,
}

/// The log pieces of some leaves, in the order of the walk, with their nodes if those are in the cache.
#[derive(Default)]
pub(super) struct Pieces(Vec<(RunOfPiece, NodeId, Option<Node>)>);

/// A complete group.
pub(super) struct Arrived {
    pub is_short: bool,
    pub leaves: Vec<Node>,
    pub pieces: Vec<(RunOfPiece, Node)>,
}

impl Pieces {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Pieces that are not in the cache.
    pub fn missing(&self) -> impl Iterator<Item = NodeId> {
        self.0.iter().filter(|(_, _, node)| node.is_none()).map(|(_, id, _)| *id)
    }

    /// Looks up the pieces that the next leaf of the path needs in the cache, and charges their read cost. An error
    /// changes nothing.
    pub fn look_up(&mut self, spec: &ScanSpec, path: &mut Path) -> Result<()> {
        self.take(spec, path, |_| true).map(|_| ())
    }

    /// The same, but only if all of them are in the cache; returns whether they are.
    pub fn look_up_cached(&mut self, spec: &ScanSpec, path: &mut Path) -> Result<bool> {
        self.take(spec, path, |is_cached| is_cached)
    }

    fn take(&mut self, spec: &ScanSpec, path: &mut Path, takes: impl Fn(bool) -> bool) -> Result<bool> {
        let next = path.next_pieces(spec);
        if next.is_empty() {
            return Ok(true);
        }
        let view = spec.view();
        let found = next.into_iter().map(|piece| {
            let node = view.cached(piece.id, PIECE)?;
            Ok((piece, node))
        });
        let found = found.collect::<Result<Vec<_>>>()?;
        if !takes(found.iter().all(|(_, node)| node.is_some())) {
            return Ok(false);
        }
        if let Some((block, runs)) = path.take_pieces(spec, &found) {
            let place = |run| RunOfPiece { block, run, runs };
            self.0.extend(found.into_iter().map(|(piece, node)| (place(piece.run), piece.id, node)));
        }
        Ok(true)
    }
}

/// Puts a node of a short search into the cache. Nodes that were read ahead for nothing would only push out
/// better ones.
pub(super) fn keep(spec: &ScanSpec, node: &Node) {
    if let Some(address) = spec.version.table.address(node.name().id)
        && spec.pager.cached(address).is_none()
    {
        spec.pager.admit(address.position, node.clone());
    }
}

impl Group {
    /// A group whose leaves and pieces are all here.
    pub fn here(leaves: Vec<Node>, pieces: Pieces) -> Self {
        Self { is_short: false, leaves, asked: None, pieces }
    }

    /// Asks for the leaves, and for the pieces that are not here.
    pub fn ask(spec: &ScanSpec, leaves: &[NodeId], pieces: Pieces, is_short: bool) -> Result<Self> {
        let asked = spec.view().ask(leaves, pieces.missing())?;
        Ok(Self { is_short, leaves: Vec::new(), asked: Some((asked, leaves.len())), pieces })
    }

    /// The nodes that are still to be read, and their levels.
    pub fn missing(&self) -> Vec<(NodeId, u8)> {
        let Some((asked, leaves)) = &self.asked else { return Vec::new() };
        asked.ids().enumerate().map(|(index, id)| (id, if index < *leaves { 0 } else { PIECE })).collect()
    }

    /// Bytes of its nodes that are here.
    pub fn memory(&self) -> usize {
        let pieces = self.pieces.0.iter().filter_map(|(_, _, node)| node.as_ref());
        self.leaves.iter().chain(pieces).map(|node| memory_of(node.bytes().len())).sum()
    }

    /// Takes in the nodes that were missing.
    pub fn take_in(&mut self, spec: &ScanSpec, mut nodes: Vec<Node>) {
        let Some((_, leaves)) = self.asked.take() else { return };
        let read = nodes.split_off(leaves.min(nodes.len()));
        self.leaves = nodes;
        self.take_in_pieces(spec, read);
    }

    fn take_in_pieces(&mut self, spec: &ScanSpec, read: Vec<Node>) {
        for ((_, _, piece), read) in self.pieces.0.iter_mut().filter(|(_, _, node)| node.is_none()).zip(read)
        {
            if self.is_short {
                keep(spec, &read);
            }
            *piece = Some(read);
        }
    }

    /// Has the device begin to read the missing nodes, into spare buffers if there are any. `mine`: bytes
    /// that the walk has in flight already. Returns whether the reads are in flight, or nothing has to be
    /// read.
    pub fn begin(&mut self, spec: &ScanSpec, spare: &mut Vec<AlignedBuffer>, mine: usize) -> bool {
        self.asked
            .as_mut()
            .is_none_or(|(asked, _)| spec.pager.begin(asked, spare, InFlightLimit::Shared { mine }))
    }

    /// Bytes of memory that the group has in flight.
    pub fn bytes_in_flight(&self) -> usize {
        self.asked.as_ref().map_or(0, |(asked, _)| asked.bytes_in_flight())
    }

    /// Waits for the reads, or reads now what was not begun. Buffers of begun reads become spare.
    pub fn bring(mut self, spec: &ScanSpec, spare: &mut Vec<AlignedBuffer>) -> Result<Arrived> {
        if let Some((asked, count)) = self.asked.take() {
            let read;
            (self.leaves, read) = spec.view().bring(asked, spare, count)?;
            self.take_in_pieces(spec, read);
        }
        let Self { is_short, leaves, pieces, .. } = self;
        let pieces = pieces.0.into_iter().filter_map(|(place, _, node)| Some((place, node?)));
        Ok(Arrived { is_short, leaves, pieces: pieces.collect() })
    }
}
