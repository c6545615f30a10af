//! bupdate, the batch update (PIO B-tree, VLDB 2011, sections 3.1.3 and 3.3, Algorithms 2 and 3): a sorted batch goes down the tree as
//! MPSearch does, groups of leaves take what is theirs by appending, and what becomes too full or too empty is divided or
//! joined in groups too. Every group is read with one psync and written with one psync.
//!
//! Where the published algorithm loses updates (a group may span several parents; a child may split into many), this one
//! keeps slices of the batch per child, and applies what children report to their parents when all groups below are done.
//!
//! Invariants:
//! 1. Before a page is overwritten, [`Undo`] has been told what stands there, and its barrier has returned.
//! 2. Every child of every visited node is changed by at most one group. A sibling is drawn in only if the batch does not
//!    touch it, or it is in the same group.
//! 3. Pages that a batch frees are not used again by the same batch: undoing it needs them.

use crate::buffer::write_through::WriteThrough;
use crate::page::NodeId;
use crate::page::leaf_segments::{Entry, Op, Segment, replay};
use crate::page::node::{Inner, Leaf, Node};
use crate::store::Root;
use crate::store::last_segments::LastSegments;
use crate::store::leaf_extents::SegmentedLeaf;
use crate::update::single::Events;
use crate::update::split_merge::{join, split_at};
use crate::{Error, Key, Result};
use mpsearch::fan_out;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Is told what stands on a page before it is overwritten.
pub(crate) trait Undo {
    /// An inner node.
    fn inner(&mut self, id: NodeId, old: &Node);
    /// A segment that more entries will be appended to.
    fn append(&mut self, old: &Segment, page_len: usize);
    /// A segment that will be replaced.
    fn segment(&mut self, old: &Segment);
    /// A segment of which nothing counts so far.
    fn unused(&mut self, leaf: NodeId, segment: usize);
    /// Makes all that was told durable.
    fn barrier(&mut self) -> Result<()>;
}

/// What a batch update works on.
pub(crate) struct Bupdate<'a> {
    pub pages: &'a mut WriteThrough,
    pub last: &'a mut LastSegments,
    pub undo: &'a mut dyn Undo,
    /// In order of key, and of arrival.
    pub entries: &'a [Entry],
    pub pio_max: usize,
    /// F.
    pub fanout: usize,
    /// Version of the leaves that are written as a whole: of this batch only.
    pub version: u32,
    pub events: &'a mut Events,
    /// To be freed when the batch is durable.
    pub freed_inner: Vec<NodeId>,
    pub freed_leaves: Vec<NodeId>,
    /// Grows with every segment written.
    pub sequence: &'a mut u64,
    /// Inner nodes that were left with one child.
    pub lone: HashSet<NodeId>,
}

/// A node that the batch goes to.
struct Visit {
    parent: usize,
    child: usize,
    id: NodeId,
    keys: Range<usize>,
}

/// What a group has made of a node.
enum Content {
    /// New entries fit behind the old ones. `old` is the last segment as it stands on the device.
    Append { old: Segment, batch: Range<usize> },
    /// All of the node, as it is to be written.
    Whole(Node),
}

struct Item {
    parent: usize,
    child: usize,
    id: NodeId,
    content: Content,
}

/// Neighbouring children that become other neighbouring children.
struct Edit {
    children: Range<usize>,
    /// Each with the fence below it; the first keeps the one it has.
    pieces: Vec<(Key, NodeId)>,
}

/// Items joined into one node, with the ids that they leave for use.
struct Run {
    children: Range<usize>,
    ids: Vec<NodeId>,
    node: Node,
}

impl Bupdate<'_> {
    /// Applies the batch to the tree at `root`, and says where the tree begins then.
    pub fn run(&mut self, root: Root) -> Result<Root> {
        // A node above the root makes a root that splits or vanishes a case like any other.
        let mut top = Inner { level: root.level + 1, fences: Vec::new(), children: vec![root.id] };
        if let Some(changed) = self.below(&[(top.clone(), 0..self.entries.len())])?.pop().flatten() {
            top = changed;
        }
        while top.children.len() > 1 {
            let level = top.level;
            let pieces = divide(Node::Inner(top), self.fanout, self.fanout);
            let named: Vec<_> =
                pieces.into_iter().map(|(fence, node)| (fence, self.pages.inner.allocate(), node)).collect();
            let fences = named[1..].iter().map(|(fence, ..)| *fence).collect();
            let children = named.iter().map(|(_, id, _)| *id).collect();
            self.pages.write_inner(named.into_iter().map(|(_, id, node)| (id, node)).collect())?;
            top = Inner { level: level + 1, fences, children };
        }
        let mut root = Root { id: top.children[0], level: top.level - 1 };
        // Only a root that this batch has left with one child can have one; those below it may have one, too.
        let may_be_lone = self.lone.contains(&root.id);
        while root.level > 0 && may_be_lone {
            let node = self.pages.read_inner(&[root.id])?.remove(0);
            let inner = node.as_inner()?;
            if inner.children.len() > 1 {
                break;
            }
            self.freed_inner.push(root.id);
            root = Root { id: inner.children[0], level: root.level - 1 };
        }
        Ok(root)
    }

    /// Takes the batch to what is below a group of nodes of one level; what they become, if they change.
    fn below(&mut self, parents: &[(Inner, Range<usize>)]) -> Result<Vec<Option<Inner>>> {
        let mut visits = Vec::new();
        for (parent, (node, keys)) in parents.iter().enumerate() {
            fan_out(
                keys.clone(),
                |index| self.entries[index].key,
                |key| node.child_of(*key),
                |child| node.fence_above(child),
                |child, keys| visits.push(Visit { parent, child, id: node.children[child], keys }),
            );
        }
        let mut taken: HashSet<(usize, usize)> =
            visits.iter().map(|visit| (visit.parent, visit.child)).collect();
        let mut edits: Vec<Vec<Edit>> = parents.iter().map(|_| Vec::new()).collect();
        let level = parents.first().map_or(1, |(node, _)| node.level);
        for group in visits.chunks(self.pio_max) {
            if level == 1 {
                self.leaf_group(parents, group, &mut taken, &mut edits)?;
            } else {
                self.inner_group(parents, group, &mut taken, &mut edits)?;
            }
        }
        Ok(parents
            .iter()
            .zip(edits)
            .map(|((node, _), edits)| (!edits.is_empty()).then(|| apply(node, edits)))
            .collect())
    }

    fn inner_group(
        &mut self,
        parents: &[(Inner, Range<usize>)],
        group: &[Visit],
        taken: &mut HashSet<(usize, usize)>,
        edits: &mut [Vec<Edit>],
    ) -> Result<()> {
        let ids: Vec<_> = group.iter().map(|visit| visit.id).collect();
        let nodes = self.pages.read_inner(&ids)?;
        let mut old: HashMap<NodeId, Arc<Node>> = ids.iter().copied().zip(nodes.iter().cloned()).collect();
        let below: Vec<_> = nodes
            .iter()
            .zip(group)
            .map(|(node, visit)| Ok((node.as_inner()?.clone(), visit.keys.clone())))
            .collect::<Result<_>>()?;
        let changed = self.below(&below)?;
        let mut items: Vec<Item> = group
            .iter()
            .zip(changed)
            .filter_map(|(visit, changed)| {
                let content = Content::Whole(Node::Inner(changed?));
                Some(Item { parent: visit.parent, child: visit.child, id: visit.id, content })
            })
            .collect();
        // Siblings of those that have become too empty.
        let wanted = siblings(parents, &items, taken, self.fanout);
        let ids: Vec<_> = wanted.iter().map(|wanted| wanted.2).collect();
        for ((parent, child, id), node) in wanted.into_iter().zip(self.pages.read_inner(&ids)?) {
            items.push(Item { parent, child, id, content: Content::Whole(node.as_ref().clone()) });
            old.insert(id, node);
        }
        let mut writes = Vec::new();
        for (parent, run) in join_runs(parents, items, self.fanout) {
            let pieces = self.pieces(run, self.fanout, self.fanout, parent, edits, false);
            writes.extend(pieces);
        }
        for (id, node) in &writes {
            if let Some(old) = old.get(id) {
                self.undo.inner(*id, old);
            }
            if node.count() == 1 {
                self.lone.insert(*id);
            }
        }
        self.undo.barrier()?;
        self.pages.write_inner(writes)
    }

    fn leaf_group(
        &mut self,
        parents: &[(Inner, Range<usize>)],
        group: &[Visit],
        taken: &mut HashSet<(usize, usize)>,
        edits: &mut [Vec<Edit>],
    ) -> Result<()> {
        let (segments, per_segment) = (self.pages.leaves.segments(), self.pages.leaves.per_segment());
        let capacity = segments * per_segment;
        // The last segment of each leaf, or all of it where nobody knows which is the last.
        let mut old: HashMap<NodeId, SegmentedLeaf> = HashMap::new();
        let (known, unknown): (Vec<_>, Vec<_>) =
            group.iter().partition(|visit| self.last.get(visit.id.0).is_some());
        let wanted: Vec<_> =
            known.iter().map(|visit| (visit.id, self.last.get(visit.id.0).unwrap_or(0))).collect();
        let (tails, wholes) = self
            .pages
            .leaves
            .read_tails(&wanted, &unknown.iter().map(|visit| visit.id).collect::<Vec<_>>())?;
        let mut tails: HashMap<NodeId, Segment> =
            tails.into_iter().map(|segment| (segment.leaf, segment)).collect();
        for (visit, whole) in unknown.iter().zip(wholes) {
            tails.insert(visit.id, whole.last_segment(visit.id, per_segment));
            old.insert(visit.id, whole);
        }
        let mut items = Vec::new();
        let mut overfull = Vec::new();
        for visit in group {
            let Some(tail) = tails.remove(&visit.id) else { continue };
            let there = tail.number * per_segment + tail.entries.len();
            if there + visit.keys.len() > capacity {
                overfull.push((visit, tail));
            } else {
                let content = Content::Append { old: tail, batch: visit.keys.clone() };
                items.push(Item { parent: visit.parent, child: visit.child, id: visit.id, content });
            }
        }
        // Where the batch does not fit: the rest of the leaf, and shrink.
        let missing: Vec<_> = overfull
            .iter()
            .filter(|(visit, _)| !old.contains_key(&visit.id))
            .map(|(visit, tail)| (visit.id, tail.clone()))
            .collect();
        for ((id, _), whole) in missing.iter().zip(self.pages.leaves.read_rest(&missing)?) {
            old.insert(*id, whole);
        }
        for (visit, _) in &overfull {
            let node = self.shrink(&old, visit.id, visit.keys.clone())?;
            items.push(Item {
                parent: visit.parent,
                child: visit.child,
                id: visit.id,
                content: Content::Whole(node),
            });
        }
        // Siblings of those that have become too empty; neighbours in this group that only append are needed whole.
        let outside = siblings(parents, &items, taken, capacity);
        let inside = appending_neighbours(&items, capacity);
        let mut ids: Vec<_> = outside.iter().map(|wanted| wanted.2).collect();
        ids.extend(inside.iter().map(|index| items[*index].id).filter(|id| !old.contains_key(id)));
        let read = if ids.is_empty() { Vec::new() } else { self.pages.leaves.read_leaves(&ids)? };
        old.extend(ids.into_iter().zip(read));
        for index in inside {
            if let Content::Append { batch, .. } = &items[index].content {
                items[index].content = Content::Whole(self.shrink(&old, items[index].id, batch.clone())?);
            }
        }
        for (parent, child, id) in outside {
            items.push(Item { parent, child, id, content: Content::Whole(self.shrink(&old, id, 0..0)?) });
        }
        let mut writes = Vec::new();
        for item in &items {
            if let Content::Append { old, batch } = &item.content {
                self.append(old, batch.clone(), per_segment, &mut writes);
            }
        }
        for (parent, run) in join_runs(parents, items, capacity) {
            let merge_max = capacity * 9 / 10;
            for (id, node) in self.pieces(run, capacity, merge_max, parent, edits, true) {
                self.rewrite(id, node.as_leaf()?, old.get(&id), per_segment, &mut writes);
            }
        }
        writes.sort_by_key(|segment| (segment.leaf, segment.number));
        self.undo.barrier()?;
        for segment in &writes {
            self.last.set(segment.leaf.0, None);
        }
        self.pages.write_segments(&writes)?;
        for segment in &writes {
            self.last.set(segment.leaf.0, Some(segment.number));
        }
        Ok(())
    }

    /// A leaf's live records after its part of the batch.
    fn shrink(&self, old: &HashMap<NodeId, SegmentedLeaf>, id: NodeId, batch: Range<usize>) -> Result<Node> {
        let whole = old.get(&id).ok_or_else(|| Error::broken(format!("leaf {id} was not read")))?;
        let entries = replay(whole.entries.iter().chain(&self.entries[batch]).copied());
        Ok(Node::Leaf(Leaf { entries, next: None }))
    }

    /// The segments that take the batch behind what is there.
    fn append(&mut self, old: &Segment, batch: Range<usize>, per_segment: usize, writes: &mut Vec<Segment>) {
        let mut rest = &self.entries[batch];
        let mut number = old.number;
        if old.entries.len() < per_segment {
            self.undo.append(old, self.pages.leaves.page_len());
            let (now, later) = rest.split_at(rest.len().min(per_segment - old.entries.len()));
            rest = later;
            let mut segment = Segment { sequence: self.next_sequence(), ..old.clone() };
            segment.entries.extend_from_slice(now);
            writes.push(segment);
        }
        while !rest.is_empty() {
            number += 1;
            self.undo.unused(old.leaf, number);
            let (now, later) = rest.split_at(rest.len().min(per_segment));
            rest = later;
            let sequence = self.next_sequence();
            writes.push(Segment { number, sequence, entries: now.to_vec(), ..old.clone() });
        }
    }

    /// The segments of a leaf that is written as a whole, in order of key.
    fn rewrite(
        &mut self,
        id: NodeId,
        leaf: &Leaf,
        old: Option<&SegmentedLeaf>,
        per_segment: usize,
        writes: &mut Vec<Segment>,
    ) {
        let entries: Vec<Entry> = leaf
            .entries
            .iter()
            .map(|(key, value)| Entry { key: *key, value: *value, op: Op::Insert })
            .collect();
        // An empty leaf has one empty segment.
        let count = entries.len().div_ceil(per_segment).max(1);
        for number in 0..count {
            match old {
                Some(old) if number <= old.last => self.undo.segment(&old.segment(id, number, per_segment)),
                _ => self.undo.unused(id, number),
            }
            let from = number * per_segment;
            let to = entries.len().min(from + per_segment);
            let sequence = self.next_sequence();
            let entries = entries[from..to].to_vec();
            writes.push(Segment { leaf: id, number, version: self.version, sequence, entries });
        }
    }

    fn next_sequence(&mut self) -> u64 {
        *self.sequence += 1;
        *self.sequence
    }

    /// Divides what a run holds among its ids and new ones, frees what is left of them, and notes what its parent must
    /// know.
    fn pieces(
        &mut self,
        run: Run,
        capacity: usize,
        merge_max: usize,
        parent: usize,
        edits: &mut [Vec<Edit>],
        leaves: bool,
    ) -> Vec<(NodeId, Node)> {
        let before = run.ids.len();
        let divided = divide(run.node, capacity, if before > 1 { merge_max } else { capacity });
        let mut ids = run.ids.into_iter();
        let mut pieces = Vec::with_capacity(divided.len());
        let mut fences = Vec::with_capacity(divided.len());
        for (fence, node) in divided {
            let id = ids.next().unwrap_or_else(|| {
                if leaves { self.pages.leaves.allocate() } else { self.pages.inner.allocate() }
            });
            fences.push((fence, id));
            pieces.push((id, node));
        }
        let freed = if leaves { &mut self.freed_leaves } else { &mut self.freed_inner };
        freed.extend(ids);
        match pieces.len().cmp(&before) {
            std::cmp::Ordering::Greater => self.events.splits += (pieces.len() - before) as u64,
            std::cmp::Ordering::Less => self.events.merges += (before - pieces.len()) as u64,
            std::cmp::Ordering::Equal if before > 1 => self.events.redistributions += 1,
            std::cmp::Ordering::Equal => {}
        }
        if before > 1 || pieces.len() > 1 {
            edits[parent].push(Edit { children: run.children, pieces: fences });
        }
        pieces
    }
}

/// Cuts a node evenly, if it has more than `max`: into two up to one and a half of `capacity`, else into nodes that are
/// filled to about two thirds. Each with the fence below it (the first's means nothing).
fn divide(node: Node, capacity: usize, max: usize) -> Vec<(Key, Node)> {
    let count = node.count();
    let parts = if count <= max {
        1
    } else if 2 * count <= 3 * capacity {
        2
    } else {
        (count * 100).div_ceil(capacity * 69)
    };
    let mut pieces = Vec::with_capacity(parts);
    let mut rest = node;
    let mut fence = 0;
    for parts_left in (2..=parts).rev() {
        let take = rest.count().div_ceil(parts_left);
        let pair = split_at(rest, take);
        pieces.push((fence, pair.left));
        fence = pair.fence;
        rest = pair.right;
    }
    pieces.push((fence, rest));
    pieces
}

fn is_underfull(item: &Item, capacity: usize) -> bool {
    matches!(&item.content, Content::Whole(node) if node.count() < capacity.div_ceil(2))
}

/// For each item that is too empty and has no neighbour in its group: a sibling that the batch does not touch.
fn siblings(
    parents: &[(Inner, Range<usize>)],
    items: &[Item],
    taken: &mut HashSet<(usize, usize)>,
    capacity: usize,
) -> Vec<(usize, usize, NodeId)> {
    let here: HashSet<(usize, usize)> = items.iter().map(|item| (item.parent, item.child)).collect();
    let mut wanted = Vec::new();
    for item in items.iter().filter(|item| is_underfull(item, capacity)) {
        let (parent, child) = (item.parent, item.child);
        let children = &parents[parent].0.children;
        let neighbours = [child.checked_sub(1), Some(child + 1).filter(|child| *child < children.len())];
        let mut neighbours = neighbours.into_iter().flatten();
        if neighbours.clone().any(|neighbour| here.contains(&(parent, neighbour))) {
            continue;
        }
        if let Some(sibling) = neighbours.find(|neighbour| taken.insert((parent, *neighbour))) {
            wanted.push((parent, sibling, children[sibling]));
        }
    }
    wanted
}

/// Items that only append, but stand beside one that is too empty and has no other neighbour that is whole.
fn appending_neighbours(items: &[Item], capacity: usize) -> Vec<usize> {
    let at: BTreeMap<(usize, usize), usize> =
        items.iter().enumerate().map(|(index, item)| ((item.parent, item.child), index)).collect();
    let mut found = HashSet::new();
    for item in items.iter().filter(|item| is_underfull(item, capacity)) {
        let neighbours: Vec<usize> = [item.child.checked_sub(1), item.child.checked_add(1)]
            .into_iter()
            .flatten()
            .filter_map(|child| at.get(&(item.parent, child)).copied())
            .collect();
        let is_whole = |index: &usize| matches!(items[*index].content, Content::Whole(_));
        if !neighbours.iter().any(|index| is_whole(index) || found.contains(index))
            && let Some(first) = neighbours.first()
        {
            found.insert(*first);
        }
    }
    found.into_iter().collect()
}

/// Joins neighbouring items of which one is too empty; each result with its parent.
fn join_runs(parents: &[(Inner, Range<usize>)], mut items: Vec<Item>, capacity: usize) -> Vec<(usize, Run)> {
    items.sort_by_key(|item| (item.parent, item.child));
    let half = capacity.div_ceil(2);
    let mut runs: Vec<(usize, Run)> = Vec::new();
    for item in items {
        let Content::Whole(node) = item.content else { continue };
        match runs.pop() {
            Some((parent, run))
                if parent == item.parent
                    && run.children.end == item.child
                    && (run.node.count() < half || node.count() < half) =>
            {
                let fence = parents[parent].0.fences[item.child - 1];
                let mut ids = run.ids;
                ids.push(item.id);
                let node = join(run.node, fence, node);
                runs.push((parent, Run { children: run.children.start..item.child + 1, ids, node }));
            }
            other => {
                runs.extend(other);
                let run = Run { children: item.child..item.child + 1, ids: vec![item.id], node };
                runs.push((item.parent, run));
            }
        }
    }
    runs
}

/// A node after its children have become others.
fn apply(node: &Inner, mut edits: Vec<Edit>) -> Inner {
    edits.sort_by_key(|edit| edit.children.start);
    let mut after = Inner { level: node.level, fences: Vec::new(), children: Vec::new() };
    let mut edits = edits.into_iter().peekable();
    let mut child = 0;
    while child < node.children.len() {
        if child > 0 {
            after.fences.push(node.fences[child - 1]);
        }
        match edits.next_if(|edit| edit.children.start == child) {
            Some(edit) => {
                after.fences.extend(edit.pieces[1..].iter().map(|piece| piece.0));
                after.children.extend(edit.pieces.iter().map(|piece| piece.1));
                child = edit.children.end;
            }
            None => {
                after.children.push(node.children[child]);
                child += 1;
            }
        }
    }
    after
}
