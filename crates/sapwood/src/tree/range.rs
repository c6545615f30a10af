//! prange, the parallel range search: walks the leaves of a tree in either direction and reads them in groups, larger ones the longer
//! it goes on. (PIO B-tree, VLDB 2011, section 3.1.3.) The log pieces of a block are read together with the
//! first of its leaves, and what they say is laid over what the leaves say. As long as all that the walk comes to is in the cache,
//! nothing is read ahead.
//!
//! ```text
//! first group │ second, larger: the walk is long │ third, begun when half of the second was eaten │ fourth, begun at once …
//!    waited for            waited for                        in flight meanwhile
//! ```
//! Of a long walk the next group is in flight while one is eaten, so that it takes the time of the device or of the one who eats,
//! whichever is longer, and not both. Such a group goes on beyond the end of a block.
//!
//! Invariants:
//! 1. Leaves outside of the bounds are not read.
//! 2. At most PioMax leaves are in memory or in flight, and the log pieces of their blocks.
//! 3. What went wrong with a group is told when the walk comes to it: not before all that lies before it was given out, and
//!    never if the walk ends before.

use crate::error::{Error, Result};
use crate::node::{Node, NodeId, PIECE};
use crate::operation::KeyspaceId;
use crate::store::log_area::LogArea;
use crate::store::pager::{Coming, Pager};
use crate::store::rent::price;
use crate::store::version::Version;
use crate::tree::overlay::{Overlay, within};
use crate::tree::view::TreeView;
use bytes::Bytes;
use mpsearch::ReadAhead;
use psync::AlignedBuffer;
use std::collections::VecDeque;
use std::ops::{Bound, Range};
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
    ahead: ReadAhead,
    /// Whether more than the first read brings was asked for at a time.
    is_long: bool,
    /// Inner nodes from the root down to level 1, each with the next child to visit.
    path: Vec<(Node, usize)>,
    state: State,
    /// Blocks with a log area that the walk has entered since it asked last.
    entered: Vec<(Node, Arc<LogArea>)>,
    /// The next group, if it was asked for already; `None` in it at the end of the walk.
    coming: Option<Result<Option<Group>>>,
    /// Buffers of the group before.
    spare: Vec<AlignedBuffer>,
    /// Why the walk cannot go on behind the last group that was asked for.
    failed: Option<Error>,
    /// Leaves of the groups before the present one, and of the present one.
    eaten: usize,
    size: usize,
    is_short: bool,
    /// What is left of the present group behind `leaf`.
    leaves: VecDeque<Node>,
    leaf: Option<Node>,
    /// Of its entries those within the bounds that are still to come.
    rest: Range<usize>,
    /// How many of these come before the overlay's next change, at least.
    free: usize,
    /// Whether the bounds end within it.
    is_last: bool,
    overlay: Overlay,
    given: Given,
}

/// The key that was given out last.
enum Given {
    Nothing,
    /// Of this entry of the present leaf.
    Entry(usize),
    Key(Bytes),
}

/// Leaves that the walk comes to next, and the log pieces of the blocks that it enters with them.
struct Group {
    /// No more than a short search reads.
    is_short: bool,
    /// Leaves that are here ...
    leaves: Vec<Node>,
    /// ... or are to come, so many, before the pieces that are not here.
    coming: Option<(Coming, usize)>,
    pieces: Pieces,
}

/// The log pieces of some blocks, as far as they are in the cache.
#[derive(Default)]
struct Pieces {
    nodes: Vec<(NodeId, Option<Node>)>,
    /// How many of each block.
    blocks: Vec<usize>,
}

impl Pieces {
    fn missing(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().filter(|(_, node)| node.is_none()).map(|(id, _)| *id)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Fresh,
    Walking,
    Done,
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
            ahead,
            is_long: false,
            path: Vec::new(),
            state: State::Fresh,
            entered: Vec::new(),
            coming: None,
            spare: Vec::new(),
            failed: None,
            eaten: 0,
            size: 0,
            is_short: false,
            leaves: VecDeque::new(),
            leaf: None,
            rest: 0..0,
            free: 0,
            is_last: false,
            overlay: Overlay::default(),
            given: Given::Nothing,
        }
    }

    /// The next record, if nothing has to be looked for, as in most steps of a long walk.
    #[inline]
    pub fn next_free(&mut self) -> Option<(Bytes, Bytes)> {
        if self.free == 0 {
            return None;
        }
        let leaf = self.leaf.as_ref()?;
        self.free -= 1;
        let index = match self.direction {
            Direction::Up => self.rest.start,
            Direction::Down => self.rest.end - 1,
        };
        match self.direction {
            Direction::Up => self.rest.start += 1,
            Direction::Down => self.rest.end -= 1,
        }
        self.given = Given::Entry(index);
        Some(leaf.entry(index))
    }

    /// The next record. After an error, the end.
    pub fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        loop {
            if let Some(record) = self.next_free() {
                return Ok(Some(record));
            }
            if !self.rest.is_empty() {
                let is_hidden = self.look_at_overlay();
                if self.free > 0 {
                    continue;
                }
                if is_hidden {
                    match self.direction {
                        Direction::Up => self.rest.start += 1,
                        Direction::Down => self.rest.end -= 1,
                    }
                }
                match self.pop_logged() {
                    Some(record) => return Ok(Some(record)),
                    None => continue,
                }
            }
            if self.is_last {
                self.finish();
            } else if let Some(leaf) = self.leaves.pop_front() {
                self.enter_leaf(leaf);
                continue;
            }
            if self.state == State::Done {
                if self.overlay.peek().is_none() {
                    return Ok(None);
                }
                match self.pop_logged() {
                    Some(record) => return Ok(Some(record)),
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

    /// Finds out how many entries of the leaf come before the overlay's next change. If none: says whether that is a change of
    /// the leaf's next entry.
    fn look_at_overlay(&mut self) -> bool {
        let Range { start, end } = self.rest;
        let (Some(leaf), Some((logged, _))) = (&self.leaf, self.overlay.peek()) else {
            self.free = end - start;
            return false;
        };
        let found = leaf.search(logged);
        let next = if self.direction == Direction::Up { start } else { end - 1 };
        self.free = match (self.direction, found) {
            (Direction::Up, Ok(at) | Err(at)) => at.clamp(start, end) - start,
            (Direction::Down, Ok(at)) => end - (at + 1).clamp(start, end),
            (Direction::Down, Err(at)) => end - at.clamp(start, end),
        };
        found == Ok(next)
    }

    /// The key that was given out last.
    pub fn last_key(&self) -> Option<&[u8]> {
        match (&self.given, &self.leaf) {
            (Given::Entry(index), Some(leaf)) => Some(leaf.key(*index)),
            (Given::Key(key), _) => Some(key),
            _ => None,
        }
    }

    /// Takes the overlay's next change; `None` if it is a removal.
    fn pop_logged(&mut self) -> Option<(Bytes, Bytes)> {
        let (key, value) = self.overlay.pop()?;
        let value = value?;
        self.given = Given::Key(key.clone());
        Some((key, value))
    }

    /// No further leaves are needed.
    fn finish(&mut self) {
        self.state = State::Done;
        self.leave_leaf();
        self.leaves.clear();
        self.path.clear();
        self.entered.clear();
        self.coming = None;
        self.spare.clear();
    }

    /// Remembers that the walk enters a node's children, if those are leaves with a log area.
    fn enter(&mut self, view: TreeView<'_>, level: u8, node: &Node) {
        if level == 1 {
            self.entered.extend(view.log(node.name().id).map(|area| (node.clone(), Arc::clone(area))));
        }
    }

    fn leave_leaf(&mut self) {
        if let (Given::Entry(index), Some(leaf)) = (&self.given, &self.leaf) {
            self.given = Given::Key(leaf.key_bytes(*index));
        }
        (self.leaf, self.rest, self.free, self.is_last) = (None, 0..0, 0, false);
    }

    fn enter_leaf(&mut self, leaf: Node) {
        if self.is_short {
            self.keep(&leaf);
        }
        self.leave_leaf();
        self.rest = within(&leaf, &self.low, &self.high);
        self.is_last = match self.direction {
            Direction::Up => self.rest.end < leaf.count(),
            Direction::Down => self.rest.start > 0,
        };
        self.leaf = Some(leaf);
        self.look_ahead();
    }

    /// Begins to read the next group, if the walk is long and far enough for it.
    fn look_ahead(&mut self) {
        if !self.is_long || self.is_last || self.coming.is_some() || self.state == State::Done {
            return;
        }
        let left = self.leaves.len();
        // So that a walk that ends here has read for nothing at most twice what it has eaten.
        let is_far = self.eaten >= self.size || 2 * left <= self.size;
        let most = self.pager.pio_max() / 2;
        if !is_far || most == 0 || left + 1 + most > self.pager.pio_max() {
            return;
        }
        let wanted = self.ahead.grow().min(most);
        let mut group = self.ask_ahead(wanted);
        if let Ok(Some(Group { coming: Some((coming, _)), .. })) = &mut group {
            self.pager.begin(coming, &mut self.spare);
        }
        self.coming = Some(group);
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
            self.state = State::Done;
            self.leaves.push_back(view.node(id, 0)?);
        }
        Ok(())
    }

    /// Goes to the next group of leaves, or ends.
    fn next_group(&mut self) -> Result<()> {
        if self.state == State::Fresh {
            self.start()?;
            if self.state == State::Done {
                return Ok(());
            }
        }
        let group = match self.coming.take() {
            Some(group) => group?,
            None => self.ask()?,
        };
        let Some(Group { is_short, mut leaves, coming, mut pieces }) = group else {
            self.finish();
            return Ok(());
        };
        self.is_short = is_short;
        if let Some((coming, count)) = coming {
            let (pager, version) = (Arc::clone(&self.pager), Arc::clone(&self.version));
            let view = TreeView { pager: &pager, version: &version, keyspace: self.keyspace };
            let read;
            (leaves, read) = view.bring(coming, &mut self.spare, count)?;
            for ((_, piece), read) in pieces.nodes.iter_mut().filter(|(_, node)| node.is_none()).zip(read) {
                if is_short {
                    self.keep(&read);
                }
                *piece = Some(read);
            }
        }
        let mut nodes = pieces.nodes.into_iter().filter_map(|(_, node)| node);
        for count in pieces.blocks {
            let block: Vec<_> = nodes.by_ref().take(count).collect();
            self.overlay.add(&block, (&self.low, &self.high), self.direction == Direction::Up);
        }
        self.eaten += self.size;
        self.size = leaves.len();
        self.leaves = leaves.into();
        Ok(())
    }

    /// Asks for the next group, which is needed now and ends with its block; `None` at the end of the walk.
    fn ask(&mut self) -> Result<Option<Group>> {
        let (pager, version) = (Arc::clone(&self.pager), Arc::clone(&self.version));
        let view = TreeView { pager: &pager, version: &version, keyspace: self.keyspace };
        if !self.has_more(view)? {
            return Ok(None);
        }
        let mut pieces = Pieces::default();
        self.look_up_pieces(view, &mut pieces)?;
        if pieces.missing().next().is_none() {
            let leaves = self.cached_leaves(view)?;
            if !leaves.is_empty() {
                return Ok(Some(Group { is_short: false, leaves, coming: None, pieces }));
            }
        }
        let wanted = self.ahead.grow();
        self.is_long = wanted > self.first;
        let mut ids = Vec::with_capacity(wanted);
        self.next_children(&mut ids, wanted);
        let coming = view.ask(&ids, pieces.missing())?;
        let coming = Some((coming, ids.len()));
        Ok(Some(Group { is_short: !self.is_long, leaves: Vec::new(), coming, pieces }))
    }

    /// Asks for so many leaves and log pieces, of one block or several, or a few pieces more; `None` at the end of the walk.
    fn ask_ahead(&mut self, wanted: usize) -> Result<Option<Group>> {
        let (pager, version) = (Arc::clone(&self.pager), Arc::clone(&self.version));
        let view = TreeView { pager: &pager, version: &version, keyspace: self.keyspace };
        if !self.has_more(view)? {
            return Ok(None);
        }
        let (mut ids, mut pieces) = (Vec::with_capacity(wanted), Pieces::default());
        loop {
            self.look_up_pieces(view, &mut pieces)?;
            self.next_children(&mut ids, wanted);
            if ids.len() + pieces.nodes.len() >= wanted {
                break;
            }
            match self.next_parent(view) {
                Ok(true) => {}
                Ok(false) => break,
                // What lies before is whole.
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
        }
        let coming = view.ask(&ids, pieces.missing())?;
        let coming = Some((coming, ids.len()));
        Ok(Some(Group { is_short: false, leaves: Vec::new(), coming, pieces }))
    }

    /// Whether there are further leaves; if so, `path` leads to the first of them.
    fn has_more(&mut self, view: TreeView<'_>) -> Result<bool> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => Ok(self.peek_child(0).is_some() || self.next_parent(view)?),
        }
    }

    /// Looks in the cache for the pieces of the blocks that were entered, and pays their rent.
    fn look_up_pieces(&mut self, view: TreeView<'_>, pieces: &mut Pieces) -> Result<()> {
        let entered = std::mem::take(&mut self.entered);
        let from = pieces.nodes.len();
        for (_, area) in &entered {
            for piece in area.pieces() {
                pieces.nodes.push((piece.id, view.cached(piece.id, PIECE)?));
            }
            pieces.blocks.push(area.pieces().len());
        }
        self.pay(view, &entered, &pieces.nodes[from..]);
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
    fn cached_leaves(&mut self, view: TreeView<'_>) -> Result<Vec<Node>> {
        let mut leaves = Vec::new();
        while leaves.len() < CACHED {
            let Some((id, _)) = self.peek_child(0) else { break };
            let Some(leaf) = view.cached(id, 0)? else { break };
            self.next_child(0);
            leaves.push(leaf);
        }
        Ok(leaves)
    }

    /// The next leaves of the block, up to so many in all.
    fn next_children(&mut self, ids: &mut Vec<NodeId>, wanted: usize) {
        while ids.len() < wanted
            && let Some(id) = self.next_child(0)
        {
            ids.push(id);
        }
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
