//! A group: leaves that a walk comes to next, and the log pieces of the blocks that it enters with them, brought by one parallel read.
//!
//! Invariants:
//! 1. All pieces of a block are in the group of the first of its leaves that the walk comes to.
//! 2. What a search takes of a block's pieces is paid for when they are looked up, wherever they are.

use crate::error::Result;
use crate::node::{Node, NodeId, PIECE};
use crate::store::log_area::LogArea;
use crate::store::pager::Coming;
use crate::store::rent::price;
use crate::tree::range::path::{Course, Entered};
use crate::tree::view::TreeView;
use psync::AlignedBuffer;
use std::sync::Arc;

/// See the module. What is not here is still to be read, or in flight.
pub(super) struct Group {
    /// No more than a short search reads.
    is_short: bool,
    /// Leaves that are here ...
    leaves: Vec<Node>,
    /// ... or are to come, so many, before the pieces that are not here.
    coming: Option<(Coming, usize)>,
    pieces: Pieces,
}

/// The log pieces of some blocks, as far as they are in the cache.
#[derive(Default)]
pub(super) struct Pieces {
    nodes: Vec<(NodeId, Option<Node>)>,
    /// How many of each block.
    blocks: Vec<usize>,
}

/// A group that is here as a whole.
pub(super) struct Arrived {
    pub is_short: bool,
    pub leaves: Vec<Node>,
    /// The log pieces of each block, oldest first.
    pub blocks: Vec<Vec<Node>>,
}

impl Pieces {
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Those that are not in the cache.
    pub fn missing(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().filter(|(_, node)| node.is_none()).map(|(id, _)| *id)
    }

    /// Looks in the cache for the pieces of some blocks, and pays their rent. If this fails, nothing has changed.
    pub fn look_up(&mut self, course: &Course, entered: &[Entered]) -> Result<()> {
        let view = course.view();
        let pieces = entered.iter().flat_map(|(_, area)| area.pieces());
        let nodes = pieces.map(|piece| Ok((piece.id, view.cached(piece.id, PIECE)?)));
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        pay(view, entered, &nodes);
        self.nodes.extend(nodes);
        self.blocks.extend(entered.iter().map(|(_, area)| area.len()));
        Ok(())
    }
}

/// Pays the rent for the pieces of some blocks, of which some were found in the cache.
fn pay(view: TreeView<'_>, entered: &[(Node, Arc<LogArea>)], pieces: &[(NodeId, Option<Node>)]) {
    let mut rest = pieces;
    for (block, area) in entered {
        let (pieces, others) = rest.split_at(area.len());
        rest = others;
        let cached = pieces.iter().filter(|(_, node)| node.is_some()).count() as u64;
        let leaves = || view.leaves_of(block).map(|(_, leaf)| u64::from(leaf.len)).sum();
        let begin = view.version.table.address(block.child(0)).map(|address| address.position);
        view.pager.rents.pay(
            area.rent(),
            (pieces.len() as u64 - cached, cached),
            || price(leaves(), area.bytes()),
            (begin, block.name().id),
        );
    }
}

/// Puts what a short search has come to into the cache; what was read ahead for nothing would only push out something better.
pub(super) fn keep(course: &Course, node: &Node) {
    if let Some(address) = course.version.table.address(node.name().id)
        && course.pager.cached(address).is_none()
    {
        course.pager.admit(address.position, node.clone());
    }
}

impl Group {
    /// Leaves that are here, with pieces that are.
    pub fn here(leaves: Vec<Node>, pieces: Pieces) -> Self {
        Self { is_short: false, leaves, coming: None, pieces }
    }

    /// Asks for leaves, and for those of the pieces that are not here.
    pub fn ask(course: &Course, leaves: &[NodeId], pieces: Pieces, is_short: bool) -> Result<Self> {
        let coming = course.view().ask(leaves, pieces.missing())?;
        Ok(Self { is_short, leaves: Vec::new(), coming: Some((coming, leaves.len())), pieces })
    }

    /// Has the device begin to read what is not here, into spare buffers as far as there are any.
    pub fn begin(&mut self, course: &Course, spare: &mut Vec<AlignedBuffer>) {
        if let Some((coming, _)) = &mut self.coming {
            course.pager.begin(coming, spare);
        }
    }

    /// Waits for it, or reads it, if that was not begun. The buffers of what was begun are spare then.
    pub fn bring(self, course: &Course, spare: &mut Vec<AlignedBuffer>) -> Result<Arrived> {
        let Self { is_short, mut leaves, coming, mut pieces } = self;
        if let Some((coming, count)) = coming {
            let read;
            (leaves, read) = course.view().bring(coming, spare, count)?;
            for ((_, piece), read) in pieces.nodes.iter_mut().filter(|(_, node)| node.is_none()).zip(read) {
                if is_short {
                    keep(course, &read);
                }
                *piece = Some(read);
            }
        }
        let mut nodes = pieces.nodes.into_iter().filter_map(|(_, node)| node);
        let blocks = pieces.blocks.into_iter().map(|count| nodes.by_ref().take(count).collect());
        Ok(Arrived { is_short, leaves, blocks: blocks.collect() })
    }
}
