//! From log areas to leaves: whole blocks are cleansed, one after the other, with nothing held back. The pieces of a few blocks are read, merged and given to
//! bupdate before those of the next are asked for, so that what is read ahead ([`crate::tree::sweep_ahead`]) is used in the order in which it
//! comes, pieces and leaves of a block together, and memory does not depend on how many blocks have their turn.
//!
//! Invariants:
//! 1. Blocks come in key order, and all that their log areas hold comes to the leaves in the attempt that empties them, or the attempt fails.
//! 2. What could not be read ends the stream early, and is told of before anybody can publish the attempt.

use crate::error::{Error, Result};
use crate::node::{Node, NodeId, PIECE};
use crate::operation::Operation;
use crate::queue::opq::Change;
use crate::store::attempt::Attempt;
use crate::store::log_area::LogArea;
use crate::store::pager::Gather;
use crate::tree::bupdate::{NodeLen, bupdate};
use crate::tree::overlay;
use crate::tree::view::TreeView;
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of log pieces that are read together where nobody has read them ahead, or one log area: enough requests for the device, and little memory.
const READ: u64 = 128 << 10;
/// Bytes of changes that are on their way from pieces to leaves, about: what is read together, with what is long in that, and what goes down the tree together.
pub(crate) const ON_THE_WAY: u64 = 8 * READ;

/// A block that has a log area.
pub(crate) struct Logged {
    pub block: NodeId,
    pub area: Arc<LogArea>,
}

/// Brings what the log areas of `blocks` hold, which are in key order, to their leaves, and empties them.
pub(crate) fn to_leaves(
    view: TreeView<'_>,
    attempt: &mut Attempt<'_>,
    blocks: Vec<Logged>,
    node_len: NodeLen,
) -> Result<()> {
    blocks.iter().for_each(|logged| attempt.empty_log(logged.block));
    let failed = RefCell::default();
    let areas = blocks.into_iter().map(|logged| logged.area).collect();
    let stream =
        Stream { view, areas, read: VecDeque::new(), changes: Vec::new().into_iter(), failed: &failed };
    // What was not read comes first: what was written without it says nothing.
    let written = bupdate(attempt, view.keyspace, &mut stream.peekable(), node_len);
    failed.into_inner().map_or(written, Err)
}

/// The changes of log areas in key order.
struct Stream<'a> {
    view: TreeView<'a>,
    /// Whose pieces are still to be read.
    areas: VecDeque<Arc<LogArea>>,
    /// Pieces of the next blocks, oldest first.
    read: VecDeque<Vec<Node>>,
    /// What is left of the block whose turn it is.
    changes: std::vec::IntoIter<(Bytes, Change)>,
    failed: &'a RefCell<Option<Error>>,
}

impl Stream<'_> {
    /// Reads the pieces of the next blocks.
    fn read(&mut self) -> Result<()> {
        let (mut count, mut bytes) = (0, 0);
        while let Some(area) = self.areas.get(count)
            && bytes < READ
        {
            bytes += area.bytes();
            count += 1;
        }
        let areas: Vec<_> = self.areas.drain(..count).collect();
        let ids = areas.iter().flat_map(|area| area.pieces());
        let mut nodes = self.view.nodes(ids, PIECE, Gather::Staged)?.into_iter();
        self.read.extend(areas.iter().map(|area| nodes.by_ref().take(area.piece_count()).collect()));
        Ok(())
    }
}

impl Iterator for Stream<'_> {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        loop {
            if let Some((key, value)) = self.changes.next() {
                return Some(Operation { keyspace: self.view.keyspace, key, value });
            }
            if self.read.is_empty()
                && let Err(error) = self.read()
            {
                self.areas.clear();
                *self.failed.borrow_mut() = Some(error);
            }
            self.changes = overlay::merge(&self.read.pop_front()?).into_iter();
        }
    }
}
