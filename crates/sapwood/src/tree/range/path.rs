//! The path of a walk: from the root down to where the walk begins, and from leaf to leaf and block to block.
//!
//! Invariants:
//! 1. No leaf outside of the bounds is returned.
//! 2. The log pieces that a leaf needs are known before the leaf is returned: those that may have a key up to
//!    the far end of the leaf's range. A piece that several leaves need is returned for the first of them.

use crate::cache::pager::Pager;
use crate::cache::scan_lengths::Kind;
use crate::error::Result;
use crate::log_area::LogArea;
use crate::log_area::read_cost::{BYTES_A_PIECE, Needed, Remedy};
use crate::operation::KeyspaceId;
use crate::storage::mapping_table::Position;
use crate::storage::node::{Node, NodeId};
use crate::tree::view::TreeView;
use crate::version::Version;
use bytes::Bytes;
use std::ops::{Bound, Range};
use std::sync::Arc;

/// Direction of a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// What is walked: one tree between two bounds, in one direction.
pub(super) struct ScanSpec {
    pub pager: Arc<Pager>,
    pub version: Arc<Version>,
    pub keyspace: KeyspaceId,
    pub low: Bound<Bytes>,
    pub high: Bound<Bytes>,
    pub direction: Direction,
}

impl ScanSpec {
    pub fn view(&self) -> TreeView<'_> {
        TreeView { pager: &self.pager, version: &self.version, keyspace: self.keyspace }
    }

    /// The kind of scan whose lengths it is compared with.
    pub fn kind(&self) -> Kind {
        let end = match self.direction {
            Direction::Up => &self.high,
            Direction::Down => &self.low,
        };
        Kind::new(self.keyspace, *end != Bound::Unbounded)
    }

    /// Whether a child may hold keys before the far bound.
    fn reaches(&self, node: &Node, child: usize) -> bool {
        match (self.direction, &self.low) {
            (Direction::Up, _) => child == 0 || below_high(node.key(child), &self.high),
            // All keys in the child are less than the separator of the next one.
            (Direction::Down, Bound::Included(low) | Bound::Excluded(low)) if child + 1 < node.count() => {
                node.key(child + 1) > &low[..]
            }
            (Direction::Down, _) => true,
        }
    }

    /// The child of an inner node where the walk begins.
    fn first_child(&self, node: &Node) -> usize {
        let from = match self.direction {
            Direction::Up => &self.low,
            Direction::Down => &self.high,
        };
        match (from, self.direction) {
            (Bound::Unbounded, Direction::Up) => 0,
            (Bound::Unbounded, Direction::Down) => node.count() - 1,
            (Bound::Included(key) | Bound::Excluded(key), _) => node.child_for(key),
        }
    }
}

fn below_high(key: &[u8], high: &Bound<Bytes>) -> bool {
    match high {
        Bound::Unbounded => true,
        Bound::Included(high) => key <= &high[..],
        Bound::Excluded(high) => key < &high[..],
    }
}

/// A block with a log area that the walk is crossing, and how far it has come.
struct Crossing {
    block: Node,
    area: Arc<LogArea>,
    runs: Vec<Crossed>,
}

/// A run of that log area.
struct Crossed {
    /// Indices of the pieces that are still to come; the next one is the first of them upwards, and the last
    /// downwards.
    left: Range<usize>,
    /// Whether the last piece had to be read.
    was_read: bool,
}

impl Crossing {
    /// Where the walk begins in the block, or enters it.
    fn begin(spec: &ScanSpec, block: &Node, area: &Arc<LogArea>) -> Self {
        let runs = area.runs().map(|run| {
            let left = match (spec.direction, &spec.low, &spec.high) {
                (Direction::Up, Bound::Included(from) | Bound::Excluded(from), _) => {
                    run.piece_for(from)..run.pieces.len()
                }
                (Direction::Down, _, Bound::Included(from) | Bound::Excluded(from)) => {
                    0..run.piece_for(from) + 1
                }
                (_, _, _) => 0..run.pieces.len(),
            };
            Crossed { left, was_read: false }
        });
        Self { block: block.clone(), area: Arc::clone(area), runs: runs.collect() }
    }

    /// The pieces that the walk needs next, up to a separator or to the end of the block, and none beyond the
    /// far bound. By runs, oldest first.
    fn next(&self, spec: &ScanSpec, separator: Option<&[u8]>) -> Vec<NextPiece> {
        let mut next = Vec::new();
        for (index, (run, crossed)) in self.area.runs().zip(&self.runs).enumerate() {
            let Range { start, end } = crossed.left;
            if start >= end {
                continue;
            }
            let named = |at: usize| NextPiece { run: index, id: run.pieces.at(at) };
            match spec.direction {
                Direction::Up => {
                    let to = run.pieces_while(|fence| {
                        separator.is_none_or(|separator| fence < separator) && below_high(fence, &spec.high)
                    });
                    next.extend((start..to.min(end)).map(named));
                }
                Direction::Down => {
                    let bound = match &spec.low {
                        Bound::Included(low) | Bound::Excluded(low) => Some(&low[..]),
                        Bound::Unbounded => None,
                    };
                    // The higher of the two; `None` is the lowest.
                    let from = separator.max(bound).map_or(0, |low| run.piece_for(low));
                    next.extend((from.max(start)..end).rev().map(named));
                }
            }
        }
        next
    }
}

/// A piece that a walk needs.
pub(super) struct NextPiece {
    pub run: usize,
    pub id: NodeId,
}

/// The walk's current position.
#[derive(Default)]
pub(super) struct Path {
    /// Inner nodes from the root down to level 1, each with the next child to visit.
    nodes: Vec<(Node, usize)>,
    /// The block that the path leads to, if it has a log area.
    crossing: Option<Crossing>,
}

/// How a walk begins.
pub(super) enum Beginning {
    /// The tree is empty.
    Nowhere,
    /// With this leaf, which is the root.
    Root(NodeId),
    /// With this leaf, which the path returns next.
    Leaf(NodeId),
}

impl Path {
    /// Goes to the leaf where the walk begins.
    pub fn begin(&mut self, spec: &ScanSpec) -> Result<Beginning> {
        let view = spec.view();
        let Some((mut id, height)) = view.root() else { return Ok(Beginning::Nowhere) };
        for level in (1..=height).rev() {
            let node = view.node(id, level)?;
            let child = spec.first_child(&node);
            self.enter(spec, level, &node);
            id = node.child(child);
            self.nodes.push((node, child));
        }
        Ok(if height == 0 { Beginning::Root(id) } else { Beginning::Leaf(id) })
    }

    /// Notes the block's log area when the walk enters the children of a level-1 node.
    fn enter(&mut self, spec: &ScanSpec, level: u8, node: &Node) {
        if level == 1 {
            let view = spec.view();
            let area = view.log(node.name().id);
            self.crossing = area.map(|area| Crossing::begin(spec, node, area));
        }
    }

    /// The log pieces that the next leaf needs, without those that earlier leaves needed.
    pub fn next_pieces(&self, spec: &ScanSpec) -> Vec<NextPiece> {
        let (Some(crossing), Some((_, behind))) = (&self.crossing, self.peek_child(spec, 0)) else {
            return Vec::new();
        };
        let separator = match spec.direction {
            Direction::Up => behind,
            // The leaf's own; the first one has none.
            Direction::Down => behind.wrapping_add(1),
        };
        let has_one = separator < crossing.block.count() && separator > 0;
        crossing.next(spec, has_one.then(|| crossing.block.key(separator)))
    }

    /// Takes these pieces, which are all that the next leaf needs (some were in the cache), and charges their
    /// read cost. Returns the block, and the number of its runs.
    pub fn take_pieces(
        &mut self,
        spec: &ScanSpec,
        pieces: &[(NextPiece, Option<Node>)],
    ) -> Option<(NodeId, usize)> {
        let Crossing { block, area, runs } = self.crossing.as_mut()?;
        let view = spec.view();
        let mut needed = Needed::default();
        for (NextPiece { run, id }, cached) in pieces {
            let crossed = &mut runs[*run];
            match spec.direction {
                Direction::Up => crossed.left.start += 1,
                Direction::Down => crossed.left.end -= 1,
            }
            match cached {
                Some(_) => needed.add_cached(),
                None => {
                    needed.add_read(view.len_of(*id), crossed.was_read);
                }
            }
            crossed.was_read = cached.is_none();
        }
        let next_price = || Remedy::of(view.leaf_bytes(block), area.bytes(), runs.len()).price();
        let begin: Option<Position> =
            view.version.table.address(block.child(0)).map(|address| address.position);
        let place = (begin, block.name().id);
        view.pager.read_costs.charge(area.read_cost(), needed, next_price, place);
        Some((block.name().id, runs.len()))
    }

    /// Bytes that a search charges for entering the next block: one piece of each run, unless it is in the
    /// cache. `None` if the search ends before that block, if the block has another parent than this one, or
    /// if its node is not in the cache.
    pub fn toll(&self, spec: &ScanSpec) -> Option<u64> {
        let (node, at) = self.nodes.get(self.nodes.len().checked_sub(2)?)?;
        let next = match spec.direction {
            Direction::Up => *at + 1,
            Direction::Down => at.checked_sub(1)?,
        };
        if next >= node.count() || !spec.reaches(node, next) {
            return None;
        }
        let view = spec.view();
        let block = node.child(next);
        spec.pager.cached(view.version.table.address(block)?)?;
        let Some(area) = view.log(block) else { return Some(0) };
        let first = area.runs().filter_map(|run| match spec.direction {
            Direction::Up => run.pieces.iter().next(),
            Direction::Down => run.pieces.iter().next_back(),
        });
        let missing = first.filter_map(|piece| view.version.table.address(piece));
        let missing = missing.filter(|address| spec.pager.cached(*address).is_none());
        Some(missing.map(|address| u64::from(address.len()) + BYTES_A_PIECE).sum())
    }

    /// Whether there are more leaves, in this block or another; if so, the path then leads to the first of
    /// them.
    pub fn has_more(&mut self, spec: &ScanSpec) -> Result<bool> {
        Ok(self.peek_leaf(spec).is_some() || self.next_block(spec)?)
    }

    /// The next leaf of the block, without moving.
    pub fn peek_leaf(&self, spec: &ScanSpec) -> Option<NodeId> {
        self.peek_child(spec, 0).map(|(id, _)| id)
    }

    /// The next leaf of the block; moves past it.
    pub fn next_leaf(&mut self, spec: &ScanSpec) -> Option<NodeId> {
        self.next_child(spec, 0)
    }

    /// The next child, if the walk needs one, of the node `up` levels above level 1; moves past it.
    fn next_child(&mut self, spec: &ScanSpec, up: usize) -> Option<NodeId> {
        let (child, behind) = self.peek_child(spec, up)?;
        let index = self.nodes.len().checked_sub(1 + up)?;
        self.nodes[index].1 = behind;
        Some(child)
    }

    /// As [`Path::next_child`], without moving. Also returns the position behind the child.
    fn peek_child(&self, spec: &ScanSpec, up: usize) -> Option<(NodeId, usize)> {
        let index = self.nodes.len().checked_sub(1 + up)?;
        let (node, child) = &self.nodes[index];
        let child = *child;
        if child >= node.count() {
            return None;
        }
        spec.reaches(node, child).then(|| {
            let behind = match spec.direction {
                Direction::Up => child + 1,
                Direction::Down => child.checked_sub(1).unwrap_or(usize::MAX),
            };
            (node.child(child), behind)
        })
    }

    /// Replaces the level-1 node, whose wanted children were all visited, by the next one. Returns false at
    /// the end.
    pub fn next_block(&mut self, spec: &ScanSpec) -> Result<bool> {
        let view = spec.view();
        let height = self.nodes.len();
        // From below: the first level that has a further child. Above level 1 the path holds the child being
        // visited (it was not consumed on the way down), so step over that first.
        for up in 1..height {
            let index = height - 1 - up;
            let (node, at) = &mut self.nodes[index];
            let next = match spec.direction {
                Direction::Up => *at + 1,
                Direction::Down => at.checked_sub(1).unwrap_or(usize::MAX),
            };
            if next >= node.count() {
                continue;
            }
            *at = next;
            let Some(mut id) = self.next_child(spec, up) else { return Ok(false) };
            // `next_child` moved on; an inner level above level 1 names the child being visited.
            self.nodes[index].1 = next;
            self.nodes.truncate(index + 1);
            for level in (1..=(up as u8)).rev() {
                let node = view.node(id, level)?;
                let child = if spec.direction == Direction::Up { 0 } else { node.count() - 1 };
                self.enter(spec, level, &node);
                id = node.child(child);
                self.nodes.push((node, child));
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Ends the walk.
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.crossing = None;
    }
}
