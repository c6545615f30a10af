//! Cleansing: what the log areas of blocks hold goes to their leaves, and the areas are empty. Where a flush has changes for a block as well, they go
//! with it, and all of that is held back until the flush has seen its blocks ([`cleanse`]); otherwise it goes as a stream, with nothing held ([`to_leaves`]).
//! (d-IPL B+-tree: block cleansing.)
//!
//! ```text
//! log areas ─a few at a time─▶ pieces ─merge─▶ changes of a block ─┬─ and newer ones ─▶ Held ─▶ bupdate
//!                                                                  └─ stream ─────────────────▶ bupdate
//! ```
//!
//! The pieces of a few blocks are read and merged before those of the next are asked for, so that what is read ahead ([`crate::tree::sweep_ahead`]) is used in
//! the order in which it comes, pieces and leaves of a block together, and memory does not depend on how many blocks have their turn.
//!
//! Invariants:
//! 1. Blocks come in key order, and all that their log areas hold comes to the leaves in the attempt that empties them, or the attempt fails.
//! 2. What could not be read ends the stream early, and is told of before anybody can publish the attempt.

use crate::error::{Error, Result};
use crate::node::{Node, NodeId, PIECE};
use crate::operation::OperationRef;
use crate::store::attempt::Attempt;
use crate::store::log_area::LogArea;
use crate::store::pager::Gather;
use crate::tree::bupdate::{NodeLen, bupdate};
use crate::tree::held::Held;
use crate::tree::incoming::Incoming;
use crate::tree::logged::Logged;
use crate::tree::merge::Merged;
use crate::tree::view::TreeView;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of log pieces that are read together where nobody has read them ahead, or one log area: enough requests for the device, and little memory.
const READ: u64 = 128 << 10;
/// Bytes of changes that are on their way from pieces to leaves, about: what is read together, with what is long in that, and what goes down the tree together.
pub(crate) const ON_THE_WAY: u64 = 8 * READ;

/// A block to be cleansed by a flush.
pub(crate) struct Cleansing<'q> {
    pub block: NodeId,
    pub area: Option<Arc<LogArea>>,
    /// Changes that are newer than the log area, in key order.
    pub changes: Vec<OperationRef<'q>>,
}

/// Empties the log areas of `blocks`, which are in key order, and appends to `out` what has to go to the leaves.
pub(crate) fn cleanse<'q>(
    view: TreeView<'_>,
    attempt: &mut Attempt<'_>,
    blocks: Vec<Cleansing<'q>>,
    out: &mut Held<'q>,
) -> Result<()> {
    let mut areas = Areas::of(view, blocks.iter().filter_map(|block| block.area.clone()));
    for Cleansing { block, area, changes } in blocks {
        if area.is_none() {
            out.lend(changes);
            continue;
        }
        let mut logged = areas.next()?.unwrap_or_default().peekable();
        attempt.empty_log(block);
        for change in changes {
            while let Some(before) = logged.next_if(|before| before.key() < change.key) {
                out.push(before.key(), before.value());
            }
            logged.next_if(|same| same.key() == change.key);
            out.push(change.key, change.value);
        }
        logged.for_each(|change| out.push(change.key(), change.value()));
    }
    Ok(())
}

/// Brings what the log areas of `blocks` hold, which are in key order, to their leaves, and empties them.
pub(crate) fn to_leaves(
    view: TreeView<'_>,
    attempt: &mut Attempt<'_>,
    blocks: Vec<Logged>,
    node_len: NodeLen,
) -> Result<()> {
    blocks.iter().for_each(|logged| attempt.empty_log(logged.block));
    let mut areas = Areas::of(view, blocks.into_iter().map(|logged| logged.area));
    let mut changes = Merged::default();
    let failed: RefCell<Option<Error>> = RefCell::default();
    let stream = std::iter::from_fn(|| {
        loop {
            if let Some(change) = changes.next() {
                return Some(change);
            }
            match areas.next() {
                Ok(next) => changes = next?,
                Err(error) => {
                    areas = Areas::of(view, []);
                    *failed.borrow_mut() = Some(error);
                }
            }
        }
    });
    // What was not read comes first: what was written without it says nothing.
    let written = bupdate(attempt, view.keyspace, &mut stream.peekable(), node_len);
    failed.into_inner().map_or(written, Err)
}

/// What log areas hold, one after the other.
pub(super) struct Areas<'a> {
    view: TreeView<'a>,
    /// Whose pieces are still to be read.
    rest: VecDeque<Arc<LogArea>>,
    /// Pieces of the next areas, oldest first.
    read: VecDeque<Vec<Node>>,
}

impl<'a> Areas<'a> {
    pub fn of(view: TreeView<'a>, areas: impl IntoIterator<Item = Arc<LogArea>>) -> Self {
        Self { view, rest: areas.into_iter().collect(), read: VecDeque::new() }
    }

    /// The changes of the next area in key order, each key with its newest; `None` if there is no other.
    pub fn next(&mut self) -> Result<Option<Merged>> {
        if self.read.is_empty() {
            self.read()?;
        }
        Ok(self.read.pop_front().map(Merged::of))
    }

    /// Reads the pieces of the next areas.
    fn read(&mut self) -> Result<()> {
        let (mut count, mut bytes) = (0, 0);
        while let Some(area) = self.rest.get(count)
            && bytes < READ
        {
            bytes += area.bytes();
            count += 1;
        }
        let areas: Vec<_> = self.rest.drain(..count).collect();
        let ids = areas.iter().flat_map(|area| area.pieces());
        let mut nodes = self.view.nodes(ids, PIECE, Gather::Staged)?.into_iter();
        self.read.extend(areas.iter().map(|area| nodes.by_ref().take(area.piece_count()).collect()));
        Ok(())
    }
}
