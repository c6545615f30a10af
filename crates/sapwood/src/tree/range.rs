//! prange, the parallel range search: walks the leaves of a tree in either direction and returns their
//! records. (PIO B-tree, VLDB 2011, section 3.1.3.)
//!
//! [`path`] finds the next leaves, [`grouping`] decides how many of them one parallel read brings, [`group`]
//! is one such group of leaves and log pieces, and [`read_ahead`] decides which groups are in flight before
//! they are needed. This file overlays the changes in the log pieces on the leaves.
//!
//! Invariants:
//! 1. No record outside of the bounds is returned, and none twice.
//! 2. The error of a group is returned after all records before it, and never if the walk ends before it.
//! 3. The length of a walk that has reached a leaf is noted once.

mod group;
mod grouping;
mod path;
mod read_ahead;

pub(crate) use path::Direction;

use crate::cache::pager::{Pager, ReadMode};
use crate::error::Result;
use crate::merging::is_operands;
use crate::operation::KeyspaceId;
use crate::storage::frames::memory_of;
use crate::storage::node::Node;
use crate::tree::overlay::{Overlay, within};
use crate::version::Version;
use bytes::Bytes;
use group::Arrived;
use path::ScanSpec;
use read_ahead::Groups;
use std::collections::VecDeque;
use std::ops::{Bound, Range};
use std::sync::Arc;

/// The records of one tree between two bounds, in one direction.
pub(crate) struct Leaves {
    spec: ScanSpec,
    groups: Groups,
    /// No further leaves are needed.
    is_over: bool,
    is_short: bool,
    /// Leaves of the present group behind `leaf`.
    leaves: VecDeque<Node>,
    leaf: Option<Node>,
    /// Entries of `leaf` within the bounds that are still to come.
    rest: Range<usize>,
    /// At least how many of `rest` come before the overlay's next change.
    free: usize,
    /// The bounds end within `leaf`.
    is_last: bool,
    overlay: Overlay,
    /// Bytes of the present group, or of the first one before it is entered.
    memory: usize,
    given: LastKey,
}

/// One step of a walk that does not go on for ever where records are removed.
pub(crate) enum Step {
    Record(Bytes, Bytes),
    /// So many removed records were passed; the last one had this key.
    Passed(usize, Bytes),
    End,
}

/// Removed records that are passed over in one step (count): the caller must see in between whether it knows that more
/// are gone.
const PASSED_MAX: usize = 64;

/// The key that was returned last.
enum LastKey {
    Nothing,
    /// The key of this entry of the present leaf.
    Entry(usize),
    Key(Bytes),
}

impl Leaves {
    pub fn new(
        pager: Arc<Pager>,
        version: Arc<Version>,
        keyspace: KeyspaceId,
        (low, high): (Bound<Bytes>, Bound<Bytes>),
        direction: Direction,
    ) -> Self {
        let groups = Groups::new(pager.pio_max());
        let overlay = Overlay::new(version.merging(keyspace));
        Self {
            spec: ScanSpec { pager, version, keyspace, low, high, direction },
            groups,
            is_over: false,
            is_short: false,
            leaves: VecDeque::new(),
            leaf: None,
            rest: 0..0,
            free: 0,
            is_last: false,
            overlay,
            memory: 0,
            given: LastKey::Nothing,
        }
    }

    /// Reads together what these walks, of one tree of one version, need first. What cannot be read, or does not fit the memory for
    /// reads or the `room` (bytes) for what walks hold, is left to the walk that needs it.
    pub fn begin_together<'w>(walks: impl Iterator<Item = &'w mut Self>, room: usize) {
        let mut walks: Vec<_> = walks.filter(|walk| !walk.is_over).collect();
        let (mut wanted, mut buffers, mut room) = (Vec::new(), 0, room);
        for Self { spec, groups, memory, .. } in &mut walks {
            if wanted.is_empty() {
                buffers = spec.pager.reader.buffers_max() as usize;
            }
            let first = groups.first(spec);
            let missing = first.as_ref().map_or_else(Vec::new, |first| first.missing());
            // What the cache has counts too: it may be evicted while the walk rests.
            *memory = first.map_or(0, |first| first.memory());
            let read: usize = missing.iter().map(|(id, _)| spec.view().memory_len_of(*id)).sum();
            if read > buffers || *memory + read > room {
                break;
            }
            (buffers, room) = (buffers - read, room - (*memory + read));
            wanted.push(missing);
        }
        let Some(Self { spec, .. }) = walks.first() else { return };
        let Ok(read) = spec.view().mixed(wanted.iter().flatten().copied(), ReadMode::Runs) else { return };
        let mut read = read.into_iter();
        for (Self { spec, groups, memory, .. }, missing) in walks.iter_mut().zip(wanted) {
            let nodes = read.by_ref().take(missing.len()).collect();
            if let Some(first) = groups.first(spec) {
                first.take_in(spec, nodes);
                *memory = first.memory();
            }
        }
    }

    /// The same walk, over already: what it would return is hidden.
    pub fn without_any(mut self) -> Self {
        self.is_over = true;
        self
    }

    /// Moves to the next record if the overlay need not be consulted for it, as in most steps of a long walk.
    /// Returns whether it did.
    #[inline]
    pub fn step_free(&mut self) -> bool {
        if self.free == 0 {
            return false;
        }
        self.free -= 1;
        let index = match self.spec.direction {
            Direction::Up => {
                self.rest.start += 1;
                self.rest.start - 1
            }
            Direction::Down => {
                self.rest.end -= 1;
                self.rest.end
            }
        };
        self.given = LastKey::Entry(index);
        true
    }

    /// The record that [`Leaves::step_free`] moved to.
    #[inline]
    pub fn record(&self) -> Option<(&[u8], &[u8])> {
        match (&self.given, &self.leaf) {
            (LastKey::Entry(index), Some(leaf)) => Some(leaf.record(*index)),
            _ => None,
        }
    }

    /// The same record, sharing the leaf's memory.
    #[inline]
    pub fn shared_record(&self) -> Option<(Bytes, Bytes)> {
        match (&self.given, &self.leaf) {
            (LastKey::Entry(index), Some(leaf)) => Some(leaf.entry(*index)),
            _ => None,
        }
    }

    /// How many free steps (see [`Leaves::step_free`]) lead to records before this key.
    pub fn free_steps_before(&self, key: &[u8]) -> usize {
        let (Some(leaf), 1..) = (&self.leaf, self.free) else { return 0 };
        let Range { start, end } = self.rest;
        // If the queue holds many changes, the next one mostly comes before the leaf's next entry.
        let is_behind = match self.spec.direction {
            Direction::Up => leaf.key(start) >= key,
            Direction::Down => leaf.key(end - 1) <= key,
        };
        if is_behind {
            return 0;
        }
        self.rest_before(leaf.search(key)).min(self.free)
    }

    /// Number of entries still to come that lie before the result of a search of the leaf.
    fn rest_before(&self, found: std::result::Result<usize, usize>) -> usize {
        let Range { start, end } = self.rest;
        match (self.spec.direction, found) {
            (Direction::Up, Ok(at) | Err(at)) => at.clamp(start, end) - start,
            (Direction::Down, Ok(at)) => end - (at + 1).clamp(start, end),
            (Direction::Down, Err(at)) => end - at.clamp(start, end),
        }
    }

    /// The next record. After an error, the end.
    #[cfg(test)]
    pub fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        loop {
            match self.step()? {
                Step::Record(key, value) => return Ok(Some((key, value))),
                Step::Passed(..) => {}
                Step::End => return Ok(None),
            }
        }
    }

    /// Like [`Iterator::next`], but does not go on for ever where records are removed.
    pub fn step(&mut self) -> Result<Step> {
        let mut passed = 0;
        loop {
            if self.step_free() {
                let Some((key, value)) = self.shared_record() else { return Ok(Step::End) };
                return Ok(Step::Record(key, value));
            }
            if !self.rest.is_empty() {
                let is_hidden = self.look_at_overlay();
                if self.free > 0 {
                    continue;
                }
                let mut hidden = None;
                if is_hidden {
                    match self.spec.direction {
                        Direction::Up => self.rest.start += 1,
                        Direction::Down => self.rest.end -= 1,
                    }
                    hidden = Some(match self.spec.direction {
                        Direction::Up => self.rest.start - 1,
                        Direction::Down => self.rest.end,
                    });
                }
                match self.pop_logged(&mut passed, hidden) {
                    Some(step) => return Ok(step),
                    None => continue,
                }
            }
            if self.is_last {
                self.finish();
            } else if let Some(leaf) = self.leaves.pop_front() {
                self.enter_leaf(leaf);
                continue;
            }
            if self.is_over {
                if self.overlay.peek().is_none() {
                    return Ok(Step::End);
                }
                match self.pop_logged(&mut passed, None) {
                    Some(step) => return Ok(step),
                    None => continue,
                }
            }
            self.leave_leaf();
            if let Err(error) = self.next_group() {
                self.finish();
                self.overlay.clear();
                return Err(error);
            }
        }
    }

    /// Counts the entries of the leaf that come before the overlay's next change. If there are none, returns
    /// whether that change is to the leaf's next entry.
    fn look_at_overlay(&mut self) -> bool {
        let Range { start, end } = self.rest;
        let (Some(leaf), Some((logged, _))) = (&self.leaf, self.overlay.peek()) else {
            self.free = end - start;
            return false;
        };
        let found = leaf.search(logged);
        let next = if self.spec.direction == Direction::Up { start } else { end - 1 };
        self.free = self.rest_before(found);
        found == Ok(next)
    }

    /// Bytes of nodes that the walk holds, about.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Buffers that the walk holds and that are not in flight.
    #[cfg(test)]
    pub fn spare(&self) -> usize {
        self.groups.spare()
    }

    /// The key that was returned last.
    pub fn last_key(&self) -> Option<&[u8]> {
        match (&self.given, &self.leaf) {
            (LastKey::Entry(index), Some(leaf)) => Some(leaf.key(*index)),
            (LastKey::Key(key), _) => Some(key),
            _ => None,
        }
    }

    /// The same, sharing the leaf's memory.
    pub fn last_key_bytes(&self) -> Option<Bytes> {
        match (&self.given, &self.leaf) {
            (LastKey::Entry(index), Some(leaf)) => Some(leaf.key_bytes(*index)),
            (LastKey::Key(key), _) => Some(key.clone()),
            _ => None,
        }
    }

    /// Takes the overlay's next change; `None` if it is a removal, and not one of too many. `hidden`: the leaf's entry of the same
    /// key.
    fn pop_logged(&mut self, passed: &mut usize, hidden: Option<usize>) -> Option<Step> {
        let (key, value) = self.overlay.pop()?;
        let Some(value) = value else {
            *passed += 1;
            return (*passed == PASSED_MAX).then_some(Step::Passed(PASSED_MAX, key));
        };
        self.given = LastKey::Key(key.clone());
        let value = match self.overlay.merging() {
            Some(merging) if is_operands(&value) => {
                let leaf = self.leaf.as_ref();
                let older = hidden.zip(leaf).map(|(at, leaf)| leaf.record(at).1);
                merging.lay(&value, older).into()
            }
            _ => value,
        };
        Some(Step::Record(key, value))
    }

    /// Ends the walk: no further leaves are needed.
    fn finish(&mut self) {
        self.is_over = true;
        self.leave_leaf();
        self.leaves.clear();
        self.groups.finish();
    }

    fn leave_leaf(&mut self) {
        if let (LastKey::Entry(index), Some(leaf)) = (&self.given, &self.leaf) {
            self.given = LastKey::Key(leaf.key_bytes(*index));
        }
        (self.leaf, self.rest, self.free, self.is_last) = (None, 0..0, 0, false);
    }

    fn enter_leaf(&mut self, leaf: Node) {
        if self.is_short {
            group::keep(&self.spec, &leaf);
        }
        self.leave_leaf();
        self.rest = within(&leaf, &self.spec.low, &self.spec.high);
        self.is_last = match self.spec.direction {
            Direction::Up => self.rest.end < leaf.count(),
            Direction::Down => self.rest.start > 0,
        };
        self.leaf = Some(leaf);
        self.groups.enter(&self.spec, self.leaves.len(), self.is_last);
    }

    /// Moves to the next group of leaves, or ends the walk.
    fn next_group(&mut self) -> Result<()> {
        let Some(Arrived { is_short, leaves, pieces }) = self.groups.next(&self.spec)? else {
            self.finish();
            return Ok(());
        };
        self.is_short = is_short;
        let nodes = leaves.iter().chain(pieces.iter().map(|(_, piece)| piece));
        self.memory = nodes.map(|node| memory_of(node.bytes().len())).sum();
        let is_up = self.spec.direction == Direction::Up;
        if !pieces.is_empty() {
            self.overlay.add(pieces, (&self.spec.low, &self.spec.high), is_up);
        }
        self.leaves = leaves.into();
        Ok(())
    }
}

impl Drop for Leaves {
    fn drop(&mut self) {
        if self.groups.entered() > 0 {
            self.spec.pager.lengths.note(self.spec.kind(), self.groups.entered());
        }
    }
}
