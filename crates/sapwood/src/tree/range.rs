//! prange, the parallel range search: walks the leaves of a tree in either direction and reads them ahead, more at a
//! time the longer it goes on. (PIO B-tree, VLDB 2011, section 3.1.3.) The log pieces of a block are read together with the
//! first of its leaves, and what they say is laid over what the leaves say. As long as all that the walk comes to is in the cache,
//! nothing is read ahead.
//!
//! Invariants: leaves outside of the bounds are not read; at most PioMax leaves are in memory, and the log pieces of
//! their blocks.

use crate::error::Result;
use crate::node::{Node, NodeId, PIECE};
use crate::operation::KeyspaceId;
use crate::store::log_area::LogArea;
use crate::store::pager::{Gather, Pager};
use crate::store::rent::price;
use crate::store::version::Version;
use crate::tree::overlay::Overlay;
use crate::tree::view::TreeView;
use bytes::Bytes;
use mpsearch::ReadAhead;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

/// Which way a cursor goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// Bytes of leaves that a scan begins with: where they are neighbours, as they are after a load and a cleansing, one request
/// brings so many at little more than the cost of a single leaf. They go into the cache; a scan that goes on is a long one,
/// and leaves the cache alone.
const FIRST: usize = 24 << 10;

/// Leaves that are looked for in the cache at a time.
const CACHED: usize = 2;

/// The records of one tree between two bounds, in one direction.
pub(crate) struct Leaves {
    pager: Arc<Pager>,
    version: Arc<Version>,
    keyspace: KeyspaceId,
    low: Bound<Bytes>,
    high: Bound<Bytes>,
    direction: Direction,
    /// How many leaves the first read brings, and all others.
    first: usize,
    /// Whether no more than that was read at a time.
    is_short: bool,
    ahead: ReadAhead,
    /// Inner nodes from the root down to level 1, each with the next child to visit.
    path: Vec<(Node, usize)>,
    state: State,
    leaves: VecDeque<Node>,
    /// Blocks with a log area that the walk has entered since it read last.
    entered: Vec<(Node, Arc<LogArea>)>,
    overlay: Overlay,
    /// In the front leaf: the next entry (up) or one more than it (down).
    at: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Fresh,
    Walking,
    Done,
}

fn above_low(key: &[u8], low: &Bound<Bytes>) -> bool {
    match low {
        Bound::Unbounded => true,
        Bound::Included(low) => key >= &low[..],
        Bound::Excluded(low) => key > &low[..],
    }
}

fn below_high(key: &[u8], high: &Bound<Bytes>) -> bool {
    match high {
        Bound::Unbounded => true,
        Bound::Included(high) => key <= &high[..],
        Bound::Excluded(high) => key < &high[..],
    }
}

impl Leaves {
    pub fn new(
        pager: Arc<Pager>,
        version: Arc<Version>,
        keyspace: KeyspaceId,
        (low, high): (Bound<Bytes>, Bound<Bytes>),
        direction: Direction,
    ) -> Self {
        let ahead = ReadAhead::new(pager.pio_max());
        Self {
            pager,
            version,
            keyspace,
            low,
            high,
            direction,
            first: 1,
            is_short: false,
            ahead,
            path: Vec::new(),
            state: State::Fresh,
            leaves: VecDeque::new(),
            entered: Vec::new(),
            overlay: Overlay::default(),
            at: 0,
        }
    }

    /// The next record. After an error, the end.
    pub fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        loop {
            if let Some(leaf) = self.leaves.front() {
                let index = match self.direction {
                    Direction::Up if self.at < leaf.count() => self.at,
                    Direction::Down if self.at > 0 => self.at - 1,
                    _ => {
                        self.leaves.pop_front();
                        self.enter_leaf();
                        continue;
                    }
                };
                let key = leaf.key(index);
                if !above_low(key, &self.low) || !below_high(key, &self.high) {
                    self.finish();
                    continue;
                }
                let logged = self.overlay.peek().map_or(Ordering::Greater, |(logged, _)| {
                    let order = logged[..].cmp(key);
                    if self.direction == Direction::Up { order } else { order.reverse() }
                });
                let entry = (logged == Ordering::Greater).then(|| leaf.entry(index));
                if logged != Ordering::Less {
                    self.at = if self.direction == Direction::Up { index + 1 } else { index };
                }
                match entry {
                    Some(entry) => return Ok(Some(entry)),
                    None => match self.overlay.pop() {
                        Some((key, Some(value))) => return Ok(Some((key, value))),
                        _ => continue,
                    },
                }
            }
            if self.state == State::Done {
                match self.overlay.pop() {
                    Some((key, Some(value))) => return Ok(Some((key, value))),
                    Some((_, None)) => continue,
                    None => return Ok(None),
                }
            }
            if let Err(error) = self.read_ahead() {
                self.finish();
                self.overlay.clear();
                return Err(error);
            }
        }
    }

    /// No further leaves are needed.
    fn finish(&mut self) {
        self.state = State::Done;
        self.leaves.clear();
        self.path.clear();
        self.entered.clear();
    }

    /// Remembers that the walk enters a node's children, if those are leaves with a log area.
    fn enter(&mut self, view: TreeView<'_>, level: u8, node: &Node) {
        if level == 1 {
            self.entered.extend(view.log(node.name().id).map(|area| (node.clone(), Arc::clone(area))));
        }
    }

    fn enter_leaf(&mut self) {
        if let Some(leaf) = self.leaves.front() {
            self.at = if self.direction == Direction::Up { 0 } else { leaf.count() };
            if self.is_short {
                self.keep(leaf);
            }
        }
    }

    /// Puts what a short search has come to into the cache; what was read ahead for nothing would only push out something better.
    fn keep(&self, node: &Node) {
        if let Some(address) = self.version.table.address(node.name().id)
            && self.pager.cached(address).is_none()
        {
            self.pager.admit(address.position, node.clone());
        }
    }

    /// Goes to the leaf where the walk begins.
    fn start(&mut self) -> Result<()> {
        let (pager, version) = (Arc::clone(&self.pager), Arc::clone(&self.version));
        let view = TreeView { pager: &pager, version: &version, keyspace: self.keyspace };
        self.state = State::Walking;
        let Some((mut id, height)) = view.root() else {
            self.finish();
            return Ok(());
        };
        let from = match self.direction {
            Direction::Up => self.low.clone(),
            Direction::Down => self.high.clone(),
        };
        let direction = self.direction;
        let first_child = |node: &Node| match (&from, direction) {
            (Bound::Unbounded, Direction::Up) => 0,
            (Bound::Unbounded, Direction::Down) => node.count() - 1,
            (Bound::Included(key) | Bound::Excluded(key), _) => node.child_for(key),
        };
        for level in (1..=height).rev() {
            let node = view.node(id, level)?;
            let child = first_child(&node);
            self.enter(view, level, &node);
            id = node.child(child);
            self.path.push((node, child));
        }
        if let Some(leaf) = view.version.table.address(id) {
            self.first = FIRST.div_ceil(leaf.len.max(1) as usize).min(pager.pio_max());
            self.ahead = ReadAhead::beginning_with(self.first, pager.pio_max());
        }
        if height == 0 {
            self.leaves.push_back(view.node(id, 0)?);
            self.state = State::Done;
            self.seek();
        }
        Ok(())
    }

    /// Finds the beginning in the first leaf.
    fn seek(&mut self) {
        let Some(leaf) = self.leaves.front() else { return };
        let at = |key: &Bytes| leaf.search(key);
        self.at = match (self.direction, &self.low, &self.high) {
            (Direction::Up, Bound::Unbounded, _) => 0,
            (Direction::Up, Bound::Included(key), _) => at(key).unwrap_or_else(|index| index),
            (Direction::Up, Bound::Excluded(key), _) => at(key).map_or_else(|index| index, |index| index + 1),
            (Direction::Down, _, Bound::Unbounded) => leaf.count(),
            (Direction::Down, _, Bound::Included(key)) => {
                at(key).map_or_else(|index| index, |index| index + 1)
            }
            (Direction::Down, _, Bound::Excluded(key)) => at(key).unwrap_or_else(|index| index),
        };
    }

    /// Reads the next group of leaves, or ends.
    fn read_ahead(&mut self) -> Result<()> {
        let fresh = self.state == State::Fresh;
        if fresh {
            self.start()?;
            if self.state == State::Done {
                return Ok(());
            }
        }
        let (pager, version) = (Arc::clone(&self.pager), Arc::clone(&self.version));
        let view = TreeView { pager: &pager, version: &version, keyspace: self.keyspace };
        if self.peek_child(0).is_none() && !self.next_parent(view)? {
            self.finish();
            return Ok(());
        }
        let entered = std::mem::take(&mut self.entered);
        let pieces = entered.iter().flat_map(|(_, area)| area.pieces());
        let mut pieces =
            pieces.map(|piece| Ok((piece.id, view.cached(piece.id, PIECE)?))).collect::<Result<Vec<_>>>()?;
        let missing: Vec<_> = pieces.iter().filter(|(_, node)| node.is_none()).map(|(id, _)| *id).collect();
        self.pay(view, &entered, &pieces);
        self.is_short = false;
        self.leaves = if missing.is_empty() { self.cached_leaves(view)? } else { VecDeque::new() };
        if self.leaves.is_empty() {
            let wanted = self.ahead.grow();
            self.is_short = wanted <= self.first;
            let mut ids = Vec::with_capacity(wanted);
            while ids.len() < wanted
                && let Some(id) = self.next_child(0)
            {
                ids.push(id);
            }
            let leaves = ids.iter().map(|id| (*id, 0));
            let mut nodes = view.mixed(leaves.chain(missing.iter().map(|id| (*id, PIECE))), Gather::Runs)?;
            let read = nodes.split_off(ids.len());
            self.leaves = nodes.into();
            for ((_, piece), read) in pieces.iter_mut().filter(|(_, node)| node.is_none()).zip(read) {
                if self.is_short {
                    self.keep(&read);
                }
                *piece = Some(read);
            }
        }
        let mut pieces = pieces.into_iter().filter_map(|(_, node)| node);
        for (_, area) in &entered {
            let block: Vec<_> = pieces.by_ref().take(area.pieces().len()).collect();
            self.overlay.add(&block, (&self.low, &self.high), self.direction == Direction::Up);
        }
        self.enter_leaf();
        if fresh {
            self.seek();
        }
        Ok(())
    }

    /// Pays the rent for the pieces of some blocks, of which some were found in the cache.
    fn pay(&self, view: TreeView<'_>, entered: &[(Node, Arc<LogArea>)], pieces: &[(NodeId, Option<Node>)]) {
        let mut rest = pieces;
        for (block, area) in entered {
            let (pieces, others) = rest.split_at(area.pieces().len());
            rest = others;
            let cached = pieces.iter().filter(|(_, node)| node.is_some()).count() as u64;
            let leaves = || view.leaves_of(block).map(|(_, leaf)| u64::from(leaf.len)).sum();
            let begin = view.version.table.address(block.child(0)).map(|address| address.position);
            self.pager.rents.pay(
                area.rent(),
                (pieces.len() as u64 - cached, cached),
                || price(leaves(), area.bytes()),
                (begin, block.name().id),
            );
        }
    }

    /// The next leaves of the block, as far as they are in the cache, and not many more than a short scan needs.
    fn cached_leaves(&mut self, view: TreeView<'_>) -> Result<VecDeque<Node>> {
        let mut leaves = VecDeque::new();
        while leaves.len() < CACHED {
            let Some((id, _)) = self.peek_child(0) else { break };
            let Some(leaf) = view.cached(id, 0)? else { break };
            self.next_child(0);
            leaves.push_back(leaf);
        }
        Ok(leaves)
    }

    /// The next child of the node `up` levels above level 1, if the walk needs one. Moves on behind it.
    fn next_child(&mut self, up: usize) -> Option<NodeId> {
        let (child, behind) = self.peek_child(up)?;
        let index = self.path.len().checked_sub(1 + up)?;
        self.path[index].1 = behind;
        Some(child)
    }

    /// As [`Leaves::next_child`], without moving; also where one would be behind it.
    fn peek_child(&self, up: usize) -> Option<(NodeId, usize)> {
        let index = self.path.len().checked_sub(1 + up)?;
        let (node, child) = &self.path[index];
        let child = *child;
        if child >= node.count() {
            return None;
        }
        match self.direction {
            Direction::Up => {
                if child > 0 && !below_high(node.key(child), &self.high) {
                    return None;
                }
                Some((node.child(child), child + 1))
            }
            Direction::Down => {
                // All keys below the child are less than the separator of the one above it.
                let fence = (child + 1 < node.count()).then(|| node.key(child + 1));
                if let (Some(fence), Bound::Included(low) | Bound::Excluded(low)) = (fence, &self.low)
                    && fence <= &low[..]
                {
                    return None;
                }
                Some((node.child(child), child.checked_sub(1).unwrap_or(usize::MAX)))
            }
        }
    }

    /// Replaces the level-1 node, of which all wanted children were visited, by the next one. False at the end.
    fn next_parent(&mut self, view: TreeView<'_>) -> Result<bool> {
        let height = self.path.len();
        // From below: the first level that has a further child. The path holds the child being visited (it was not
        // consumed on the way down), so step over it first.
        for up in 1..height {
            let index = height - 1 - up;
            let (node, at) = &mut self.path[index];
            let next = match self.direction {
                Direction::Up => *at + 1,
                Direction::Down => at.checked_sub(1).unwrap_or(usize::MAX),
            };
            if next >= node.count() {
                continue;
            }
            *at = next;
            let Some(mut id) = self.next_child(up) else { return Ok(false) };
            // `next_child` moved on; an inner level above level 1 names the child being visited.
            self.path[index].1 = next;
            self.path.truncate(index + 1);
            for level in (1..=(up as u8)).rev() {
                let node = view.node(id, level)?;
                let child = if self.direction == Direction::Up { 0 } else { node.count() - 1 };
                self.enter(view, level, &node);
                id = node.child(child);
                self.path.push((node, child));
            }
            return Ok(true);
        }
        Ok(false)
    }
}
