//! bupdate: applies a sorted batch of changes to a tree. MPSearch finds the leaves and reads many of them at
//! a time; neighbouring leaves are repacked together, split k ways or joined; each inner node above them is
//! rewritten once. (PIO B-tree, VLDB 2011, section 3.2.2, algorithm 3; in place of their in-place writes
//! everything goes to the end.) This file handles the leaves, [`rise`] the levels above.
//!
//! ```text
//! changes ─chunks─▶ MPSearch ─groups of leaves─▶ runs of siblings ─merge, pack─▶ new leaves
//!                                                       │ splices: children a..b are now …
//!                                                       ▼
//!                               level by level: parents ─pack─▶ new inner nodes ─▶ … ─▶ root
//! ```
//!
//! Invariants:
//! 1. A rewritten node keeps its id, so that its parent is touched only when children come, go or change
//!    their separators.
//! 2. Within one call every node of the base version is replaced at most once: chunks end at leaf boundaries,
//!    and a neighbour is joined only if no change will go to it.
//! 3. The first node of a run keeps the run's first separator if it is its parent's first child, so the lower
//!    end of a parent's range never changes.
//! 4. `len` and `bytes` are exactly the records of the leaves, and their bytes.
//! 5. If changes go to most leaves of a block, all leaves from the first to the last that the chunk changes
//!    are rewritten (see [`Touched`]), except those of one long record.
//! 6. In a tree whose records may expire, what had expired by the base version's clock counts as removed. What is not
//!    rewritten is left.
//! 7. Operands are laid over what the leaf has of their key, or over nothing ([`crate::merging`]).
//! 8. The log areas of all blocks that it rewrites are emptied by the same attempt (see
//!    [`crate::tree::route`]).

mod leaf;
mod rise;

use crate::cache::pager::ReadMode;
use crate::error::{Error, Result};
use crate::expiry::is_expired;
use crate::merging::{Merging, is_operands};
use crate::operation::KeyspaceId;
use crate::storage::entries::Entries;
use crate::storage::node::{Node, NodeId, NodeLen};
use crate::tree::change::LeafChange;
use crate::tree::fan::{Touched, fence_of};
use crate::tree::pack::{Child, Packer};
use crate::tree::view::TreeView;
use crate::version::Tree;
use crate::version::builder::VersionBuilder;
use bytes::Bytes;
use leaf::Leaf;
use mpsearch::{Visit, mpsearch};
use rise::Spliced;
use std::borrow::Cow;
use std::iter::Peekable;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Changes that go down the tree together (the paper's bcnt).
pub(super) const BCNT: usize = 1024;
/// Limit of a chunk's keys and values, in bytes, exceeded by one change at most. Without it a chunk of long
/// changes would take a great part of the memory budget, and be read long before its leaves.
const CHUNK_MAX: usize = 128 << 10;

/// Applies all `changes`, which are for `keyspace` and in key order. The tree's new root goes into the
/// version builder's edit.
pub(crate) fn bupdate<C: LeafChange, I: Iterator<Item = C>>(
    builder: &mut VersionBuilder<'_>,
    keyspace: KeyspaceId,
    changes: &mut Peekable<I>,
    node_len: NodeLen,
) -> Result<()> {
    let base = std::sync::Arc::clone(builder.base());
    let pager = Arc::clone(builder.pager());
    let view = TreeView { pager: &pager, version: &base, keyspace };
    let Some(tree) = base.trees.get(&keyspace).cloned() else {
        return Err(Error::corrupt(
            "wal",
            0,
            "a change to a keyspace that does not exist",
            "a keyspace",
            keyspace.0,
        ));
    };
    let mut update = Update {
        view,
        builder,
        changes,
        chunk: Vec::new(),
        node_len,
        len: tree.len,
        is_estimated: tree.is_estimated,
        bytes: tree.bytes,
        now: tree.ttl.map(|_| base.clock),
        merging: tree.merging.clone(),
        spliced: Vec::new(),
        top: None,
    };
    let (root, height) = match view.root() {
        None => {
            let leaves = update.plant()?;
            update.grow_root(0, leaves)?
        }
        Some((root, height)) => {
            update.leaf_pass(root, height)?;
            update.rise(root, height)?
        }
    };
    let (len, bytes) = (update.len, update.bytes);
    let is_estimated = tree.is_estimated && root.is_some();
    let len = if tree.is_estimated && root.is_none() { 0 } else { len };
    builder.set_tree(keyspace, Tree { root, height, len, bytes, is_estimated, ..tree });
    Ok(())
}

/// An inner node on the way down.
struct Parent {
    node: Node,
    place: PathNode,
}

/// A node's position below its parent.
#[derive(Clone)]
struct PathNode {
    id: NodeId,
    parent: Option<Rc<Parent>>,
    /// The node's index among the parent's children.
    index: usize,
    /// The smallest key beyond the node's range; `None` at the right end of the tree.
    fence: Option<Bytes>,
    /// The chunk visits all children of the parent below this index, from the first touched one on, already
    /// or soon; 0 if some may be left out.
    taken_to: usize,
}

impl PathNode {
    /// Whether it is a lone leaf, whose key its parent has.
    fn is_lone(&self) -> bool {
        self.parent.as_ref().is_some_and(|parent| parent.node.is_lone(self.index))
    }

    /// The node's separator in its parent (empty for the first child).
    fn separator(&self) -> Bytes {
        self.parent.as_ref().map_or_else(Bytes::new, |parent| parent.node.key_bytes(self.index))
    }
}

struct Update<'a, 'b, C: LeafChange, I: Iterator<Item = C>> {
    view: TreeView<'b>,
    builder: &'b mut VersionBuilder<'a>,
    changes: &'b mut Peekable<I>,
    /// The changes that go down the tree now.
    chunk: Vec<C>,
    node_len: NodeLen,
    len: u64,
    is_estimated: bool,
    bytes: u64,
    /// What has expired by now counts as removed, if records may expire.
    now: Option<u64>,
    merging: Option<Merging>,
    /// Parents with splices on the level that was last worked on, in key order.
    spliced: Vec<Spliced>,
    /// The nodes that replace the root, and their level.
    top: Option<(u8, Vec<Child>)>,
}

impl<C: LeafChange, I: Iterator<Item = C>> Update<'_, '_, C, I> {
    /// The next change if it is below `fence`.
    fn next_change(&mut self, fence: Option<&Bytes>) -> Option<C> {
        self.changes.next_if(|change| fence.is_none_or(|fence| change.key() < &fence[..]))
    }

    /// The value of a change, unless it has expired.
    fn value_of<'c>(&self, change: &'c C) -> Option<&'c [u8]> {
        change.value().filter(|value| !self.now.is_some_and(|now| is_expired(value, now)))
    }

    /// A value, or what operands make of the record that the leaf has.
    fn laid<'c>(
        &self,
        value: &'c [u8],
        old: impl FnOnce() -> Result<Option<Bytes>>,
    ) -> Result<Cow<'c, [u8]>> {
        match self.merging.as_ref().filter(|_| is_operands(value)) {
            Some(merging) => Ok(Cow::Owned(merging.lay(value, old()?.as_deref()))),
            None => Ok(Cow::Borrowed(value)),
        }
    }

    /// Counts one record less. An estimate may be too small.
    fn uncount(&mut self) -> Result<()> {
        if !(self.is_estimated && self.len == 0) {
            self.len = less(self.len, 1, "number of records of a tree")?;
        }
        Ok(())
    }

    /// Makes the leaves of a tree that was empty.
    fn plant(&mut self) -> Result<Vec<Child>> {
        let mut packer =
            Packer::new(0, self.view.keyspace, self.node_len.leaf, [], Bytes::new()).sized_by(self.builder);
        while let Some(change) = self.changes.next() {
            if let Some(value) = self.value_of(&change) {
                let value = self.laid(value, || Ok(None))?;
                self.len += 1;
                packer.push(self.builder, change.key(), &value)?;
            }
        }
        let packed = packer.finish(self.builder, true)?;
        self.bytes += packed.bytes;
        Ok(packed.nodes)
    }

    /// Brings chunk after chunk of changes to the leaves and rewrites those.
    fn leaf_pass(&mut self, root: NodeId, height: u8) -> Result<()> {
        loop {
            let mut chunk = std::mem::take(&mut self.chunk);
            chunk.clear();
            let mut bytes = 0;
            while chunk.len() < BCNT
                && bytes < CHUNK_MAX
                && let Some(change) = self.changes.next()
            {
                bytes += change.key().len() + change.value().map_or(0, <[u8]>::len);
                chunk.push(change);
            }
            let end = chunk.len();
            self.chunk = chunk;
            if end == 0 {
                break;
            }
            let place = PathNode { id: root, parent: None, index: 0, fence: None, taken_to: 0 };
            let pio_max = self.view.pager.pio_max();
            mpsearch(self, place, usize::from(height), 0..end, pio_max)?;
        }
        Ok(())
    }

    /// Rewrites neighbouring leaves with the changes that go to them.
    fn rewrite_leaves(&mut self, chunk: &[C], run: &[(Visit<PathNode>, Leaf)]) -> Result<()> {
        let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else { return Ok(()) };
        let mut packer = Packer::new(0, self.view.keyspace, self.node_len.leaf, [], first.place.separator())
            .may_rise(first.place.index > 0)
            .sized_by(self.builder);
        let mut appended = run.len() == 1 && last.place.fence.is_none();
        for (visit, leaf) in run {
            let (mut old, id) = (0, visit.place.id);
            // The last leaf of a chunk takes everything below its fence, so that the next chunk begins at
            // another leaf.
            let is_last_of_chunk = visit.keys.end == chunk.len();
            let mut keys = visit.keys.clone();
            loop {
                let next;
                let change = match keys.next() {
                    Some(index) => &chunk[index],
                    None if is_last_of_chunk => match self.next_change(visit.place.fence.as_ref()) {
                        Some(change) => {
                            next = change;
                            &next
                        }
                        None => break,
                    },
                    None => break,
                };
                let (kept, key) = (old, change.key());
                while old < leaf.count() && leaf.key(old) < key {
                    old += 1;
                }
                let exists = old < leaf.count() && leaf.key(old) == key;
                let old_value = || {
                    let node = exists.then(|| leaf.node(id, self.view)).transpose()?;
                    Ok(node.map(|node| node.entry(old).1))
                };
                // A removal adds nothing.
                let value = self.value_of(change).map(|value| self.laid(value, old_value)).transpose()?;
                let value = value.as_deref();
                let next = value.map(|value| key.len() + value.len());
                self.pass(&mut packer, (id, leaf), kept..old, next)?;
                if exists {
                    packer.give_up(id);
                }
                appended &= old == leaf.count();
                old += usize::from(exists);
                if exists {
                    self.uncount()?;
                }
                if let Some(value) = value {
                    self.len += 1;
                    packer.push(self.builder, key, value)?;
                }
            }
            self.pass(&mut packer, (id, leaf), old..leaf.count(), None)?;
        }
        let mut children = first.place.index..last.place.index + 1;
        let mut replaced = run.iter().map(|(_, leaf)| leaf.len() as u64).sum();
        if let Some(parent) = &first.place.parent
            && packer.is_underfull()
        {
            let is_taken = children.end < last.place.taken_to;
            let next = chunk.get(last.keys.end).or_else(|| self.changes.peek());
            let next_key = next.map(|change| Bytes::copy_from_slice(change.key()));
            replaced += self.join_neighbour(&mut packer, parent, 0, &mut children, &|fence| {
                !is_taken && next_key.as_ref().is_none_or(|next| fence.is_some_and(|fence| *next >= *fence))
            })?;
        }
        let packed = packer.finish(self.builder, appended)?;
        self.bytes = less(self.bytes, replaced, "bytes of a tree's leaves")? + packed.bytes;
        self.splice(first.place.parent.as_ref(), 0, children, packed.nodes);
        Ok(())
    }

    /// Passes records of a leaf on unchanged, or leaves the whole leaf in place. `next` is the length of the
    /// new record that follows, if one does before the next leaf.
    fn pass(
        &mut self,
        packer: &mut Packer,
        (id, leaf): (NodeId, &Leaf),
        records: Range<usize>,
        next: Option<usize>,
    ) -> Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        if packer.may_stay(leaf.count(), leaf.key(0), leaf.memory_len(), next) {
            return packer.leave(self.builder, id, leaf.key(0), (leaf.len(), leaf.memory_len()));
        }
        packer.give_up(id);
        let node = leaf.node(id, self.view)?;
        let Some(now) = self.now else { return packer.extend(self.builder, &node, records) };
        let mut from = records.start;
        for index in records.clone() {
            if is_expired(node.record(index).1, now) {
                packer.extend(self.builder, &node, from..index)?;
                self.uncount()?;
                from = index + 1;
            }
        }
        packer.extend(self.builder, &node, from..records.end)
    }

    /// Takes a neighbour below the same parent into the run: the right one if `right_is_free`, given its
    /// upper fence, says that no change needs it, or else the left one if it was not replaced and has no log
    /// area. A leaf of full length, as that of a long record, is left alone: there is nothing to be won for
    /// reading and writing it again. Returns the bytes of the neighbour, or 0.
    fn join_neighbour(
        &mut self,
        packer: &mut Packer,
        parent: &Rc<Parent>,
        level: u8,
        children: &mut Range<usize>,
        right_is_free: &dyn Fn(Option<&Bytes>) -> bool,
    ) -> Result<u64> {
        let long = self.builder.leaf_len(self.view.keyspace, self.node_len.leaf);
        let is_long = |child| level == 0 && self.view.memory_len_of(parent.node.child(child)) >= long;
        let right = children.end;
        if right < parent.node.count() && !is_long(right) {
            let fence = fence_of(&parent.node, right, parent.place.fence.as_ref());
            if right_is_free(fence.as_ref()) {
                let id = parent.node.child(right);
                let node = self.view.node_to_replace(id, level)?;
                packer.join_right(self.builder, id, &entries(&node, parent.node.key(right)))?;
                children.end += 1;
                return Ok(node.stored_len() as u64);
            }
        }
        let Some(left) = children.start.checked_sub(1) else { return Ok(0) };
        let touched = is_long(left)
            || self.builder.has_log(parent.node.child(left))
            || self.spliced.last().is_some_and(|last| last.has_replaced(parent.place.id, left));
        if touched {
            return Ok(0);
        }
        let id = parent.node.child(left);
        let node = self.view.node_to_replace(id, level)?;
        let separator = parent.node.key_bytes(left);
        packer.join_left(id, separator.clone(), entries(&node, &separator), level == 0 && left > 0);
        children.start = left;
        Ok(node.stored_len() as u64)
    }
}

/// `total` without a part of it, or the error that the manifest's `what` cannot be right.
fn less(total: u64, part: u64, what: &'static str) -> Result<u64> {
    total
        .checked_sub(part)
        .ok_or_else(|| Error::corrupt("manifest", 0, what, format!("at least {part}"), total))
}

/// All entries of a node. `separator` replaces the first key of an inner node, which is stored empty.
fn entries(node: &Node, separator: &[u8]) -> Entries {
    let mut entries = Entries::default();
    let mut rest = 0..node.count();
    if node.level() > 0 {
        entries.push(separator, &[&node.payload(0)]);
        rest.start = 1;
    }
    entries.extend(node, rest);
    entries
}

fn are_neighbours(a: &PathNode, b: &PathNode) -> bool {
    match (&a.parent, &b.parent) {
        (Some(left), Some(right)) => left.place.id == right.place.id && a.index + 1 == b.index,
        _ => false,
    }
}

impl<C: LeafChange, I: Iterator<Item = C>> mpsearch::Tree for Update<'_, '_, C, I> {
    type Place = PathNode;
    type Node = Leaf;
    type Error = Error;

    fn read(&mut self, height: usize, group: &[Visit<PathNode>]) -> Result<Vec<Leaf>> {
        if height == 0
            && let Some(first) = group.first().and_then(|first| self.chunk.get(first.keys.start))
        {
            self.view.pager.prefetch.reach((self.view.keyspace, Bytes::copy_from_slice(first.key())));
        }
        let mode = if height == 0 { ReadMode::Prefetched } else { ReadMode::Inner };
        let to_read = group.iter().filter(|visit| !visit.place.is_lone());
        let mut read = self.view.nodes(to_read.map(|visit| visit.place.id), height as u8, mode)?.into_iter();
        let each = group.iter().map(|Visit { place, .. }| match place.is_lone() {
            true => Some(Leaf::Lone {
                key: place.separator(),
                len: self.view.len_of(place.id) as usize,
                memory_len: self.view.memory_len_of(place.id),
            }),
            false => read.next().map(Leaf::Read),
        });
        Ok(each.flatten().collect())
    }

    fn fits(&self, height: usize, visits: &[Visit<PathNode>]) -> usize {
        // A lone leaf need not be read.
        let is_read = |place: &PathNode| height > 0 || !place.is_lone();
        let len = |Visit { place, .. }: &Visit<PathNode>| match is_read(place) {
            true => self.view.memory_len_of(place.id),
            false => 0,
        };
        self.view.pager.reader.fits(visits.iter().map(len))
    }

    fn descend(
        &mut self,
        _: usize,
        node: Leaf,
        visit: Visit<PathNode>,
        below: &mut Vec<Visit<PathNode>>,
    ) -> Result<()> {
        let node = node.node(visit.place.id, self.view)?;
        let parent = Rc::new(Parent { node, place: visit.place });
        let node = &parent.node;
        let touched = Touched::by(node, visit.keys, |index| self.chunk[index].key());
        let taken_to = touched.taken_to();
        below.extend(touched.rewritten().map(|(index, keys)| {
            let fence = fence_of(node, index, parent.place.fence.as_ref());
            let place =
                PathNode { id: node.child(index), parent: Some(Rc::clone(&parent)), index, fence, taken_to };
            Visit { place, keys }
        }));
        Ok(())
    }

    fn deliver(&mut self, group: Vec<(Visit<PathNode>, Leaf)>) -> Result<()> {
        let chunk = std::mem::take(&mut self.chunk);
        let mut runs = group.chunk_by(|(a, _), (b, _)| are_neighbours(&a.place, &b.place));
        let result = runs.try_for_each(|run| self.rewrite_leaves(&chunk, run));
        self.chunk = chunk;
        result
    }
}
