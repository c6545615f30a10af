//! The groups of a walk, one after the other: how large each is, and which is asked for before the walk comes to it.
//!
//! ```text
//! first group │ second, larger: the walk is long │ third, begun when half of the second was eaten │ fourth, begun at once …
//!    waited for            waited for                        in flight meanwhile
//! ```
//! Of a long walk the next group is in flight while one is eaten, so that it takes the time of the device or of the one who eats,
//! whichever is longer, and not both. Such a group goes on beyond the end of a block. As long as all that the walk comes to is in
//! the cache, nothing is read ahead.
//!
//! Invariants:
//! 1. At most PioMax leaves are in memory or in flight, and the log pieces of their blocks.
//! 2. What went wrong with a group is told when the walk comes to it: not before, and never if the walk ends before.

use crate::error::{Error, Result};
use crate::node::Node;
use crate::tree::range::group::{Arrived, Group, Pieces};
use crate::tree::range::path::{Beginning, Course, Path};
use mpsearch::ReadAhead;
use psync::AlignedBuffer;

/// Bytes of leaves that a scan begins with: where they are neighbours, as they are after a load and a cleansing, one request
/// brings so many at little more than the cost of a single leaf. They go into the cache; a scan that goes on is a long one,
/// and leaves the cache alone.
const FIRST: usize = 24 << 10;

/// Leaves that are looked for in the cache at a time.
const CACHED: usize = 2;

/// See the module.
pub(super) struct Groups {
    path: Path,
    is_begun: bool,
    /// How many leaves the first read brings, and all others.
    first: usize,
    ahead: ReadAhead,
    /// Whether more than the first read brings was asked for at a time.
    is_long: bool,
    /// The next group, if it was asked for already; `None` in it at the end of the walk.
    coming: Option<Result<Option<Group>>>,
    /// Buffers of the group before.
    spare: Vec<AlignedBuffer>,
    /// Why the walk cannot go on behind the last group that was asked for.
    failed: Option<Error>,
    /// Leaves of the groups before the present one, and of the present one.
    eaten: usize,
    size: usize,
}

impl Groups {
    pub fn new(pio_max: usize) -> Self {
        Self {
            path: Path::default(),
            is_begun: false,
            first: 1,
            ahead: ReadAhead::new(pio_max),
            is_long: false,
            coming: None,
            spare: Vec::new(),
            failed: None,
            eaten: 0,
            size: 0,
        }
    }

    /// The next group; `None` at the end of the walk.
    pub fn next(&mut self, course: &Course) -> Result<Option<Arrived>> {
        let group = match self.coming.take() {
            Some(group) => group?,
            None if self.is_begun => self.ask(course)?,
            None => self.begin(course)?,
        };
        let Some(group) = group else { return Ok(None) };
        let arrived = group.bring(course, &mut self.spare)?;
        self.eaten += self.size;
        self.size = arrived.leaves.len();
        Ok(Some(arrived))
    }

    /// No further groups are needed.
    pub fn finish(&mut self) {
        self.path.clear();
        self.coming = None;
        self.spare.clear();
        (self.is_begun, self.is_long) = (true, false);
    }

    /// Goes to where the walk begins, and asks for the first group.
    fn begin(&mut self, course: &Course) -> Result<Option<Group>> {
        self.is_begun = true;
        let leaf = match self.path.begin(course)? {
            Beginning::Nowhere => return Ok(None),
            Beginning::Root(leaf) => {
                let leaf = course.view().node(leaf, 0)?;
                return Ok(Some(Group::here(vec![leaf], Pieces::default())));
            }
            Beginning::Leaf(leaf) => leaf,
        };
        if let Some(leaf) = course.version.table.address(leaf) {
            let pio_max = course.pager.pio_max();
            self.first = FIRST.div_ceil(leaf.len.max(1) as usize).min(pio_max);
            self.ahead = ReadAhead::beginning_with(self.first, pio_max);
        }
        self.ask(course)
    }

    /// Asks for the next group, which is needed now and ends with its block; `None` at the end of the walk.
    fn ask(&mut self, course: &Course) -> Result<Option<Group>> {
        if !self.has_more(course)? {
            return Ok(None);
        }
        let mut pieces = Pieces::default();
        pieces.look_up(course, &self.path.take_entered())?;
        if pieces.missing().next().is_none() {
            let leaves = self.cached_leaves(course)?;
            if !leaves.is_empty() {
                return Ok(Some(Group::here(leaves, pieces)));
            }
        }
        let wanted = self.ahead.grow();
        self.is_long = wanted > self.first;
        let mut ids = Vec::with_capacity(wanted);
        while ids.len() < wanted
            && let Some(id) = self.path.next_leaf(course)
        {
            ids.push(id);
        }
        Group::ask(course, &ids, pieces, !self.is_long).map(Some)
    }

    /// Has the next group begun, if the walk is long and far enough for it: `left` leaves of the present one are still to come.
    pub fn look_ahead(&mut self, course: &Course, left: usize) {
        if !self.is_long || self.coming.is_some() {
            return;
        }
        let pio_max = course.pager.pio_max();
        // So that a walk that ends here has read for nothing at most twice what it has eaten.
        let is_far = self.eaten >= self.size || 2 * left <= self.size;
        let most = pio_max / 2;
        if !is_far || most == 0 || left + 1 + most > pio_max {
            return;
        }
        let wanted = self.ahead.grow().min(most);
        let mut group = self.ask_ahead(course, wanted);
        if let Ok(Some(group)) = &mut group {
            group.begin(course, &mut self.spare);
        }
        self.coming = Some(group);
    }

    /// Asks for so many leaves and log pieces, of one block or several, or a few pieces more; `None` at the end of the walk.
    fn ask_ahead(&mut self, course: &Course, wanted: usize) -> Result<Option<Group>> {
        if !self.has_more(course)? {
            return Ok(None);
        }
        let (mut ids, mut pieces) = (Vec::with_capacity(wanted), Pieces::default());
        loop {
            pieces.look_up(course, &self.path.take_entered())?;
            while ids.len() < wanted
                && let Some(id) = self.path.next_leaf(course)
            {
                ids.push(id);
            }
            if ids.len() + pieces.len() >= wanted {
                break;
            }
            match self.path.next_block(course) {
                Ok(true) => {}
                Ok(false) => break,
                // What lies before is whole.
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
        }
        Group::ask(course, &ids, pieces, false).map(Some)
    }

    /// Whether there are further leaves; if so, the path leads to the first of them.
    fn has_more(&mut self, course: &Course) -> Result<bool> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.path.has_more(course),
        }
    }

    /// The next leaves of the block, as far as they are in the cache, and not many more than a short scan needs.
    fn cached_leaves(&mut self, course: &Course) -> Result<Vec<Node>> {
        let mut leaves = Vec::new();
        while leaves.len() < CACHED {
            let Some(id) = self.path.peek_leaf(course) else { break };
            let Some(leaf) = course.view().cached(id, 0)? else { break };
            self.path.next_leaf(course);
            leaves.push(leaf);
        }
        Ok(leaves)
    }
}
