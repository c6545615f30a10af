//! Cleansing: moves the contents of blocks' log areas to their leaves, and empties the areas. (d-IPL B+-tree:
//! block cleansing.) If a flush has changes for the block as well, they go together, and the flush holds all
//! of that back until it has seen its blocks ([`cleanse`]). Otherwise the changes go as a stream, with
//! nothing held ([`to_leaves`]).
//!
//! ```text
//! log areas ─a few at a time─▶ pieces ─merge─▶ changes of a block ─┬─ and newer ones ─▶ Held ─▶ bupdate
//!                                                                  └─ stream ─────────────────▶ bupdate
//! ```
//!
//! The pieces of a few blocks are read and merged before those of the next are asked for. So the nodes read
//! ahead ([`crate::tree::cleansing_prefetch`]) are used in the order in which they arrive, pieces and leaves of a
//! block together, and memory does not depend on the number of blocks.
//!
//! Invariants:
//! 1. Blocks come in key order, and everything in their log areas goes to the leaves in the version builder that
//!    empties the areas, or the version builder fails.
//! 2. A failed read ends the stream early, and is returned before the version builder can be published.

use crate::cache::pager::ReadMode;
use crate::error::{Error, Result};
use crate::log_area::LogArea;
use crate::merging::is_operands;
use crate::operation::OperationRef;
use crate::storage::node::NodeLen;
use crate::storage::node::{Node, NodeId, PIECE};
use crate::tree::bupdate::bupdate;
use crate::tree::candidates::Logged;
use crate::tree::change::LeafChange;
use crate::tree::change_buffer::LeafChangeBuffer;
use crate::tree::merge::Merged;
use crate::tree::view::TreeView;
use crate::version::builder::VersionBuilder;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of log pieces that are read together if they were not read ahead, and at least one log area:
/// enough requests for the device, and little memory.
const READ: u64 = 128 << 10;
/// Approximate bytes of changes between pieces and leaves: what is read together, with an allowance for long
/// records, and the chunk that goes down the tree.
pub(crate) const ON_THE_WAY: u64 = 8 * READ;

/// A block to be cleansed by a flush.
pub(crate) struct Cleansing<'q> {
    pub block: NodeId,
    pub area: Option<Arc<LogArea>>,
    /// Changes that are newer than the log area, in key order.
    pub changes: Vec<OperationRef<'q>>,
}

/// Empties the log areas of `blocks`, which are in key order, and appends all their changes to `out`, for the
/// leaves.
pub(crate) fn cleanse<'q>(
    view: TreeView<'_>,
    builder: &mut VersionBuilder<'_>,
    blocks: Vec<Cleansing<'q>>,
    out: &mut LeafChangeBuffer<'q>,
) -> Result<()> {
    let mut areas = Areas::of(view, blocks.iter().filter_map(|block| block.area.clone()));
    let merging = view.merging();
    for Cleansing { block, area, changes } in blocks {
        if area.is_none() {
            out.lend(changes);
            continue;
        }
        let mut logged = areas.next()?.unwrap_or_default().peekable();
        builder.empty_log(block);
        for change in changes {
            while let Some(before) = logged.next_if(|before| before.key() < change.key) {
                out.push(before.key(), before.value());
            }
            let same = logged.next_if(|same| same.key() == change.key);
            match (merging, change.value, same) {
                (Some(merging), Some(newer), Some(older)) if is_operands(newer) => {
                    out.push(change.key, Some(&merging.lay(newer, older.value())));
                }
                _ => out.push(change.key, change.value),
            }
        }
        logged.for_each(|change| out.push(change.key(), change.value()));
    }
    Ok(())
}

/// Moves the contents of the log areas of `blocks`, which are in key order, to the leaves, and empties the
/// areas.
pub(crate) fn to_leaves(
    view: TreeView<'_>,
    builder: &mut VersionBuilder<'_>,
    blocks: Vec<Logged>,
    node_len: NodeLen,
) -> Result<()> {
    blocks.iter().for_each(|logged| builder.empty_log(logged.block));
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
    // The read error takes precedence: what was written without the missing changes is worthless.
    let written = bupdate(builder, view.keyspace, &mut stream.peekable(), node_len);
    failed.into_inner().map_or(written, Err)
}

/// The contents of log areas, one area after the other.
pub(super) struct Areas<'a> {
    view: TreeView<'a>,
    /// Areas whose pieces are still to be read.
    rest: VecDeque<Arc<LogArea>>,
    /// Pieces of the next areas; those of each area oldest first.
    read: VecDeque<Vec<Node>>,
}

impl<'a> Areas<'a> {
    pub fn of(view: TreeView<'a>, areas: impl IntoIterator<Item = Arc<LogArea>>) -> Self {
        Self { view, rest: areas.into_iter().collect(), read: VecDeque::new() }
    }

    /// The changes of the next area in key order, of each key the newest; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Merged>> {
        if self.read.is_empty() {
            self.read()?;
        }
        let merging = self.view.merging();
        Ok(self.read.pop_front().map(|pieces| Merged::of(pieces, merging)))
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
        let mut nodes = self.view.nodes(ids, PIECE, ReadMode::Prefetched)?.into_iter();
        self.read.extend(areas.iter().map(|area| nodes.by_ref().take(area.piece_count()).collect()));
        Ok(())
    }
}
