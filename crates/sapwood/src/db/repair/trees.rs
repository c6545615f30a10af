//! Copies the trees of a version that is known, without what is damaged.
//!
//! ```text
//! root ─▶ inner nodes ─▶ block ─▶ leaves, log pieces      in key order, each read once and copied as it is stored
//!            ✗ damaged: the gap is filled with nodes that nothing leads to (`orphans`)
//!                          ✗ damaged leaf or piece: its range is listed, its block is made anew without it
//! ```
//! Inner nodes above blocks are made anew from what was copied.
//!
//! Invariants:
//! 1. Blocks come in key order, and their ranges neither overlap nor leave anything out: what is lost belongs to a neighbour.
//! 2. Memory: the inner nodes on the way to a block, [`GROUP`](super::old_nodes::GROUP) bytes of nodes, and the list of a block's
//!    children.

use crate::backup::Reporter;
use crate::db::repair::old_nodes::{Found, OldNodes};
use crate::db::repair::orphans::{Head, Orphans};
use crate::db::repair::output::{Output, Run};
use crate::db::repair::report::{Loss, LossCause, Losses};
use crate::db::repair::tree_builder::TreeBuilder;
use crate::error::{DATA, Error, Result};
use crate::log_area::maplet::KeyHash;
use crate::log_area::{Fences, LogArea};
use crate::merging;
use crate::operation::KeyspaceId;
use crate::storage::entries::Entries;
use crate::storage::node::{ChildPayload, NodeId, PIECE};
use crate::version::Tree;
use std::sync::Arc;

/// Keys of a subtree: from `low` (empty: the first) up to `high`.
pub(super) type Bounds<'b> = (&'b [u8], Option<&'b [u8]>);

/// The smallest key above this one.
pub(super) fn behind(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// A child of a block.
struct Child {
    low: Vec<u8>,
    id: NodeId,
    is_lone: bool,
}

/// A block that is made of nodes that nothing leads to. Two log areas of one keyspace have no key range in common.
struct NewBlock {
    low: Vec<u8>,
    children: Vec<Child>,
    /// The block that has had the log area, and the last key in that.
    area: Option<(NodeId, Vec<u8>)>,
    /// The last key of the last leaf.
    last: Vec<u8>,
}

/// Leaves (count) of a block without a log area: some 190 KiB.
const LEAVES: usize = 48;

/// Copies a tree. See the module.
pub(super) struct CopyTree<'a, 'm> {
    pub old: &'a OldNodes<'a>,
    pub out: &'a mut Output,
    pub losses: &'a mut Losses,
    pub orphans: &'a mut Orphans,
    pub reporter: &'a mut Reporter<'m>,
    pub keyspace: KeyspaceId,
    pub tree: &'a Tree,
    records: u64,
    bytes: u64,
    /// Bytes of the old tree's leaves, of those that are copied and those that are known to be lost.
    told: u64,
    /// Where leaves may be missing that nothing leads to.
    gaps: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl<'a, 'm> CopyTree<'a, 'm> {
    pub fn new(
        (old, out): (&'a OldNodes<'a>, &'a mut Output),
        (losses, orphans): (&'a mut Losses, &'a mut Orphans),
        reporter: &'a mut Reporter<'m>,
        (keyspace, tree): (KeyspaceId, &'a Tree),
    ) -> Self {
        Self {
            old,
            out,
            losses,
            orphans,
            reporter,
            keyspace,
            tree,
            records: 0,
            bytes: 0,
            told: 0,
            gaps: Vec::new(),
        }
    }

    /// Copies the tree, and returns what the new database knows of it.
    pub fn run(mut self) -> Result<Tree> {
        let tree = self.tree;
        let built = match tree.root {
            None => None,
            Some(root) if tree.height == 0 => {
                let found = self.old.read(&[root], Some(self.keyspace)).pop();
                match found.map(|found| sound(found, 0, (&[], None))) {
                    Some(Ok(found)) => {
                        self.leaf(&found)?;
                        Some((root, 0))
                    }
                    Some(Err(error)) => {
                        self.lose(error, (&[], None), Loss::Missing, LossCause::Leaf);
                        None
                    }
                    None => None,
                }
            }
            Some(root) => {
                let mut builder = TreeBuilder::new(self.keyspace, tree, 1);
                let found = self.old.read(&[root], Some(self.keyspace)).pop();
                if let Some(found) = found {
                    self.subtree(&mut builder, (tree.height, root, found), (&[], None))?;
                }
                builder.finish(self.out)?
            }
        };
        // If all bytes of leaves are told, what cannot be read in the gaps are inner nodes.
        if self.told != tree.bytes {
            for (from, to) in std::mem::take(&mut self.gaps) {
                let bounds = (&*from, to.as_deref());
                self.losses.add(self.keyspace, bounds, Loss::Missing, LossCause::InnerNode);
            }
        }
        let (root, height) = built.map_or((None, 0), |(root, height)| (Some(root), height));
        Ok(Tree { root, height, len: self.records, bytes: self.bytes, is_estimated: false, ..tree.clone() })
    }

    fn lose(&mut self, error: Error, bounds: Bounds<'_>, loss: Loss, cause: LossCause) {
        self.losses.note(error);
        self.losses.add(self.keyspace, bounds, loss, cause);
    }

    /// Copies a leaf.
    fn leaf(&mut self, found: &Found) -> Result<()> {
        self.out.copy(found, self.tree.ttl.is_some())?;
        self.records += found.node.count() as u64;
        self.bytes += found.stored.bytes().len() as u64;
        self.told += found.stored.bytes().len() as u64;
        self.reporter.advance(found.stored.bytes().len() as u64)
    }

    fn subtree(
        &mut self,
        builder: &mut TreeBuilder,
        (level, id, found): (u8, NodeId, Result<Found>),
        (low, high): Bounds<'_>,
    ) -> Result<()> {
        let is_readable = found.is_ok();
        let node = match sound(found, level, (low, high)) {
            Ok(found) => found,
            Err(error) => {
                self.losses.note(error);
                if is_readable {
                    // It leads to nodes that are not orphans.
                    self.losses.add(self.keyspace, (low, high), Loss::Missing, LossCause::InnerNode);
                }
                return self.gap(builder, (level, id), (low, high));
            }
        };
        if level == 1 {
            return self.block(builder, &node, (low, high));
        }
        let node = node.node;
        let ids: Vec<_> = (0..node.count()).map(|index| node.child(index)).collect();
        let mut next = 0;
        while next < ids.len() {
            let group = self.old.group(&ids, next);
            next = group.end;
            let children = self.old.read(&ids[group.clone()], Some(self.keyspace));
            for (index, child) in group.zip(children) {
                let low = if index == 0 { low } else { node.key(index) };
                let high = if index + 1 < ids.len() { Some(node.key(index + 1)) } else { high };
                self.subtree(builder, (level - 1, ids[index], child), (low, high))?;
            }
        }
        Ok(())
    }

    fn block(&mut self, builder: &mut TreeBuilder, found: &Found, (low, high): Bounds<'_>) -> Result<()> {
        let node = &found.node;
        let low_of = |index| if index == 0 { low } else { node.key(index) };
        let child = |index| Child {
            low: low_of(index).to_vec(),
            id: node.child(index),
            is_lone: node.is_lone(index),
        };
        let children: Vec<_> = (0..node.count()).map(child).collect();
        let id = node.name().id;
        self.emit(builder, (id, Some(found)), children, self.old.version.logs.get(id).cloned(), (low, high))
    }

    /// Copies leaves and log area of a block, and then the block; makes it anew if it is no longer what it was.
    fn emit(
        &mut self,
        builder: &mut TreeBuilder,
        (id, original): (NodeId, Option<&Found>),
        mut children: Vec<Child>,
        area: Option<Arc<LogArea>>,
        (low, high): Bounds<'_>,
    ) -> Result<()> {
        let ids: Vec<_> = children.iter().map(|child| child.id).collect();
        let (mut kept, mut next) = (vec![false; ids.len()], 0);
        while next < ids.len() {
            let group = self.old.group(&ids, next);
            next = group.end;
            let leaves = self.old.read(&ids[group.clone()], Some(self.keyspace));
            for (index, leaf) in group.zip(leaves) {
                let from = children[index].low.as_slice();
                let to = children.get(index + 1).map(|next| next.low.as_slice()).or(high);
                match sound(leaf, 0, (from, to)) {
                    Ok(found) => {
                        self.leaf(&found)?;
                        kept[index] = true;
                    }
                    Err(error) => {
                        let address = self.old.version.table.address(children[index].id);
                        self.told += address.map_or(0, |address| u64::from(address.len()));
                        // A lone leaf has one record, whose key the block tells.
                        let lone = children[index].is_lone.then(|| behind(from));
                        let to = lone.as_deref().or(to);
                        self.losses.note(error);
                        self.losses.add(self.keyspace, (from, to), Loss::Missing, LossCause::Leaf);
                    }
                }
            }
        }
        let is_whole = kept.iter().all(|kept| *kept);
        let mut is_kept = kept.iter();
        children.retain(|_| is_kept.next().is_some_and(|kept| *kept));
        if children.is_empty() {
            let filler = match &area {
                Some(area) => self.filler(area, (low, high))?,
                None => None,
            };
            let Some(leaf) = filler else {
                if area.is_some() {
                    self.losses.add(self.keyspace, (low, high), Loss::Missing, LossCause::Leaf);
                }
                return Ok(());
            };
            children.push(Child { low: low.to_vec(), id: leaf, is_lone: false });
        }
        let runs = match &area {
            Some(area) => self.area(area, (low, high))?,
            None => Vec::new(),
        };
        match original.filter(|_| is_whole && !kept.is_empty()) {
            Some(found) => self.out.copy(found, false)?,
            None => {
                let mut entries = Entries::default();
                for (index, child) in children.iter().enumerate() {
                    let (key, is_lone) =
                        if index == 0 { (&[][..], false) } else { (&*child.low, child.is_lone) };
                    entries.push(key, &[ChildPayload::of(child.id, is_lone).bytes()]);
                }
                self.out.make(id, 1, (self.keyspace, self.tree), &entries)?;
            }
        }
        runs.iter().for_each(|run| self.out.add_run(id, run));
        builder.push(self.out, low, id)
    }

    /// Copies the log pieces of a block. Returns the runs that are left.
    fn area(&mut self, area: &LogArea, (low, high): Bounds<'_>) -> Result<Vec<Run>> {
        let fresh = area.fresh_percent();
        let mut runs = Vec::new();
        for (run, hashes) in area.runs().zip(area.hashes()) {
            let ids: Vec<_> = run.pieces.iter().collect();
            let fences: Vec<_> = run.fences.collect();
            let mut run =
                Run { pieces: Vec::new(), fences: Vec::new(), hashes: Vec::new(), removals: 0, fresh };
            let mut next = 0;
            while next < ids.len() {
                let group = self.old.group(&ids, next);
                next = group.end;
                let pieces = self.old.read(&ids[group.clone()], Some(self.keyspace));
                for (index, piece) in group.zip(pieces) {
                    let fence = |index: usize| fences.get(index).copied();
                    let from = index.checked_sub(1).and_then(fence).map_or(low, |fence| fence.max(low));
                    let to = match (fence(index), high) {
                        (Some(fence), Some(high)) => Some(fence.min(high)),
                        (fence, high) => fence.or(high),
                    };
                    match sound(piece, PIECE, (from, to)) {
                        Ok(found) => {
                            self.out.copy(&found, false)?;
                            self.reporter.advance(found.stored.bytes().len() as u64)?;
                            if !run.pieces.is_empty() {
                                Fences::put(&mut run.fences, from);
                            }
                            run.pieces.push(found.node.name().id);
                            for entry in 0..found.node.count() {
                                run.hashes.push(KeyHash::of(found.node.key(entry)));
                                run.removals += u32::from(found.node.logged_value(entry).is_none());
                            }
                        }
                        Err(error) => self.lose(error, (from, to), Loss::Older, LossCause::LogPiece),
                    }
                }
            }
            debug_assert!(run.pieces.len() < ids.len() || run.hashes.len() == hashes.len(), "hashes of keys");
            if !run.pieces.is_empty() {
                runs.push(run);
            }
        }
        Ok(runs)
    }

    /// A leaf for a block that has lost all of its own, with a record that its log area replaces or removes; `None` if that
    /// has nothing but operands, which are nothing without values.
    fn filler(&mut self, area: &LogArea, (low, high): Bounds<'_>) -> Result<Option<NodeId>> {
        let mut removed: Option<Vec<u8>> = None;
        let mut put: Option<(Vec<u8>, Vec<u8>)> = None;
        let ids: Vec<_> = area.pieces().collect();
        'pieces: for id in ids.iter().rev() {
            let Some(Ok(found)) = self.old.read(&[*id], Some(self.keyspace)).pop() else { continue };
            let Ok(found) = sound(Ok(found), PIECE, (low, high)) else { continue };
            for index in 0..found.node.count() {
                let key = found.node.key(index);
                match found.node.logged_value(index) {
                    None => removed = Some(key.to_vec()),
                    Some(value) if self.tree.merging.is_some() && merging::is_operands(value) => {}
                    Some(value) => {
                        put = Some((key.to_vec(), value.to_vec()));
                        break 'pieces;
                    }
                }
            }
        }
        let Some((key, value)) = put.or_else(|| removed.map(|key| (key, Vec::new()))) else {
            return Ok(None);
        };
        let mut entries = Entries::default();
        entries.push(&key, &[&value]);
        let id = self.out.new_id();
        self.bytes += self.out.make(id, 0, (self.keyspace, self.tree), &entries)?;
        self.records += 1;
        Ok(Some(id))
    }

    /// Fills the place of a damaged inner node with the nodes that nothing leads to and whose keys belong there.
    fn gap(
        &mut self,
        builder: &mut TreeBuilder,
        (level, id): (u8, NodeId),
        (low, high): Bounds<'_>,
    ) -> Result<()> {
        let heads = self.orphans.take(self.keyspace, (low, high));
        if heads.iter().any(|head| head.lacks_piece) || self.orphans.lack_area(level, id) {
            self.losses.add(self.keyspace, (low, high), Loss::Older, LossCause::LogPiece);
        }
        let may_lack = self.orphans.unreadable > 0;
        // Behind all that came, and behind all whose leaves came.
        let (mut at, mut known) = (low.to_vec(), low.to_vec());
        let mut block: Option<NewBlock> = None;
        for (index, head) in heads.iter().enumerate() {
            if may_lack && head.level != PIECE {
                self.add_gap(&known, Some(&head.low));
            }
            if head.level == 0 || head.level == PIECE {
                if let Some(begins) = add_to_block(&mut block, head) {
                    let to = begins.low.clone();
                    let ended = block.replace(begins);
                    self.end_block(builder, ended, Some(&to))?;
                }
            } else {
                self.end_block(builder, block.take(), Some(&at))?;
                let to = heads.get(index + 1).map(|next| &*next.low).or(high);
                if let Some(found) = self.old.read(&[head.id], Some(self.keyspace)).pop() {
                    self.subtree(builder, (head.level, head.id, found), (&at, to))?;
                }
            }
            at = behind(&head.last).max(at);
            if head.level != PIECE {
                known = behind(&head.last).max(known);
            }
        }
        self.end_block(builder, block, high)?;
        if may_lack {
            self.add_gap(&known, high);
        }
        Ok(())
    }

    fn add_gap(&mut self, from: &[u8], to: Option<&[u8]>) {
        if to.is_none_or(|to| from < to) {
            self.gaps.push((from.to_vec(), to.map(<[u8]>::to_vec)));
        }
    }

    /// Makes a block of what was gathered, if anything was, which reaches up to `high`.
    fn end_block(
        &mut self,
        builder: &mut TreeBuilder,
        block: Option<NewBlock>,
        high: Option<&[u8]>,
    ) -> Result<()> {
        let Some(NewBlock { low, children, area, .. }) = block else { return Ok(()) };
        let id = area.as_ref().map_or_else(|| self.out.new_id(), |(id, _)| *id);
        let area = area.and_then(|(id, _)| self.old.version.logs.get(id).cloned());
        self.emit(builder, (id, None), children, area, (&low, high))
    }
}

/// Adds a leaf or a log area to a block that is being made, or returns the next block that begins with it.
fn add_to_block(block: &mut Option<NewBlock>, head: &Head) -> Option<NewBlock> {
    let is_area = head.level == PIECE;
    let leaf = || Child { low: head.low.clone(), id: head.id, is_lone: false };
    let begin = || NewBlock {
        low: head.low.clone(),
        children: if is_area { Vec::new() } else { vec![leaf()] },
        area: is_area.then(|| (head.id, head.last.clone())),
        last: if is_area { Vec::new() } else { head.last.clone() },
    };
    let Some(current) = block else {
        *block = Some(begin());
        return None;
    };
    if is_area {
        if current.area.is_none() {
            current.area = Some((head.id, head.last.clone()));
            return None;
        }
        let mut next = begin();
        // A leaf that reaches into the next area is of the same block as that.
        if current.last >= head.low
            && let Some(leaf) = current.children.pop()
        {
            next.low = leaf.low.clone().min(next.low);
            next.last.clone_from(&current.last);
            next.children.push(leaf);
        }
        return Some(next);
    }
    let is_behind = current.area.as_ref().is_none_or(|(_, last)| *last < head.low);
    if current.children.len() >= LEAVES && is_behind {
        return Some(begin());
    }
    current.children.push(leaf());
    current.last.clone_from(&head.last);
    None
}

/// Whether a node belongs there: on this level, with keys in these bounds.
fn sound(found: Result<Found>, level: u8, (low, high): Bounds<'_>) -> Result<Found> {
    let found = found?;
    let (name, node) = (found.node.name(), &found.node);
    // The first key of an inner node is empty.
    let first = usize::from(name.is_inner());
    let is_below = node.count() > first && node.key(first) < low;
    let is_above = node.count() > first && high.is_some_and(|high| node.key(node.count() - 1) >= high);
    if name.level != level || is_below || is_above {
        let expected = format!("level {level}, keys within the parent's separators");
        let found = format!("level {}, or keys outside of them", name.level);
        return Err(Error::corrupt(DATA, 0, format!("place of {}", name.id), expected, found));
    }
    Ok(found)
}
