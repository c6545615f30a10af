//! The keys of a tree's records in a range, in order. The key of a leaf with one record is in its block, so that a leaf of one long record is
//! not read: it costs a request, and one that cannot be read must not keep it from being removed. That is not known of the first leaf of a block, whose key is not stored there,
//! nor below a log area.
//!
//! ```text
//! block      k1   │ k2    │ k3 … │ k4 …          no log area above
//! leaves     lone │ lone  │ many │ many
//!            k1     k2      walked together
//! ```
//! Invariant: the parts of a block are in key order, and have no key in common.

use crate::cache::pager::Pager;
use crate::error::Result;
use crate::operation::KeyspaceId;
use crate::tree::range::{Direction, Leaves, Step};
use crate::tree::view::{Block, TreeView};
use crate::version::Version;
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

/// See the module.
pub(super) struct Keys<'v> {
    pager: &'v Arc<Pager>,
    version: &'v Arc<Version>,
    keyspace: KeyspaceId,
    end: Option<&'v Bytes>,
    /// The lower bound of the next block's keys, if there may be one.
    next: Option<Bytes>,
    /// What is left of the present block.
    parts: VecDeque<Part>,
    walk: Option<Leaves>,
}

/// Some of the keys of a block.
enum Part {
    /// That of a leaf with one record.
    Lone(Bytes),
    /// Those of leaves from one key to another, which have to be read.
    Leaves(Bytes, Option<Bytes>),
}

impl<'v> Keys<'v> {
    pub fn new(
        (pager, version): (&'v Arc<Pager>, &'v Arc<Version>),
        keyspace: KeyspaceId,
        start: &Bytes,
        end: Option<&'v Bytes>,
    ) -> Self {
        let next = Some(start.clone());
        Self { pager, version, keyspace, end, next, parts: VecDeque::new(), walk: None }
    }

    /// The next key.
    pub fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(walk) = &mut self.walk {
                match walk.step()? {
                    // Copied: a slice would keep the leaf in memory.
                    Step::Record(key, _) => return Ok(Some(Bytes::copy_from_slice(&key))),
                    Step::Passed(..) => {}
                    Step::End => self.walk = None,
                }
                continue;
            }
            match self.parts.pop_front() {
                Some(Part::Lone(key)) => return Ok(Some(key)),
                Some(Part::Leaves(low, high)) => {
                    let bounds = (Bound::Included(low), high.map_or(Bound::Unbounded, Bound::Excluded));
                    let (pager, version) = (Arc::clone(self.pager), Arc::clone(self.version));
                    self.walk = Some(Leaves::new(pager, version, self.keyspace, bounds, Direction::Up));
                }
                None => match self.next.take() {
                    Some(low) => self.enter_block(low)?,
                    None => return Ok(None),
                },
            }
        }
    }

    /// Enters the block where a key belongs, with its keys from that one on.
    fn enter_block(&mut self, low: Bytes) -> Result<()> {
        let end = self.end;
        let is_within = |key: &[u8]| end.is_none_or(|end| key < end);
        let view = TreeView { pager: self.pager, version: self.version, keyspace: self.keyspace };
        let all_to = |fence: Option<Bytes>| fence.filter(|fence| is_within(fence)).or(end.cloned());
        let Some(Block { id, fence }) = view.block_at(&low)? else {
            self.parts.push_back(Part::Leaves(low, end.cloned()));
            return Ok(());
        };
        self.next = fence.clone().filter(|fence| is_within(fence));
        if view.log(id).is_some() {
            let high = all_to(fence);
            self.parts.push_back(Part::Leaves(low, high));
            return Ok(());
        }
        let block = view.node(id, 1)?;
        for child in block.child_for(&low)..block.count() {
            let key = block.key(child);
            if !is_within(key) {
                break;
            }
            if block.is_lone(child) {
                if key >= &low[..] {
                    self.parts.push_back(Part::Lone(Bytes::copy_from_slice(key)));
                }
                continue;
            }
            let next =
                if child + 1 < block.count() { Some(block.key_bytes(child + 1)) } else { fence.clone() };
            let high = all_to(next);
            match self.parts.back_mut() {
                Some(Part::Leaves(_, end)) => *end = high,
                _ => {
                    let from = if key > &low[..] { Bytes::copy_from_slice(key) } else { low.clone() };
                    self.parts.push_back(Part::Leaves(from, high));
                }
            }
        }
        Ok(())
    }
}
