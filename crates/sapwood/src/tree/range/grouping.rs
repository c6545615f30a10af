//! How the leaves of a walk are taken together into groups, each of which one parallel read brings: how many leaves, of which blocks.
//!
//! ```text
//! nobody knows   6 leaves │ 12: the walk is long │ 24 │ 32 …
//! known          as many as such walks have needed, 32 at most │ as many as they need further …
//! ```
//! The paper's prange reads PioMax leaves at a time (VLDB 2011, section 3.1.3). A short walk would pay for leaves that it does not need; so how much to ask for follows from how long walks
//! of this kind have been ([`ScanLengths`](crate::store::scan_lengths)), and where that does not tell, groups double. A group that is needed now goes on in the next block if
//! that is worth the pieces there. As long as all that the walk comes to is in the cache, groups are what is there.
//!
//! Invariants:
//! 1. Each leaf of the walk is in one group, in the walk's order, with the log pieces that it needs and no leaf before it did.
//! 2. A group that is read has PioMax leaves at most; ahead, or where it is known how much is needed, half of that. Together they are no longer than
//!    the read buffers that are kept idle, unless it is a single one.
//! 3. What is wrong behind leaves that were chosen to be read is told instead of the next group.

use crate::error::{Error, Result};
use crate::node::{Node, NodeId};
use crate::store::scan_lengths::BYTES_A_ROUND;
use crate::tree::range::group::{Group, Pieces};
use crate::tree::range::path::{Beginning, Course, Path};
use mpsearch::ReadAhead;

/// Bytes of leaves that a scan begins with while nobody knows how long it will be: where they are neighbours, as they are after a
/// load and a cleansing, one request brings so many at little more than the cost of a single leaf.
const FIRST: usize = 24 << 10;

/// Bytes of leaves up to which a scan is short, as it is when it has asked for no more than those: what it comes to goes into the cache. A long one leaves the cache alone.
const SHORT: u64 = 64 << 10;

/// Leaves that are looked for in the cache at a time.
const CACHED: usize = 2;

/// See the module.
pub(super) struct Grouping {
    path: Path,
    is_begun: bool,
    /// Bytes of the first leaf.
    first_len: u64,
    /// How many leaves the first read brings where nobody knows, and all others.
    first: usize,
    doubling: ReadAhead,
    /// Whether more than that was asked for at a time, where nobody knows.
    is_long: bool,
    /// Leaves that were asked for, or taken from the cache.
    asked: usize,
    asked_bytes: u64,
    /// Whether anything had to be read.
    has_read: bool,
    /// Why the walk cannot go on behind the last group that was asked for.
    failed: Option<Error>,
}

/// Leaves that were chosen for a group.
#[derive(Default)]
struct Chosen {
    ids: Vec<NodeId>,
    bytes: u64,
    /// Whether the next one would be too much.
    is_full: bool,
}

impl Grouping {
    pub fn new(pio_max: usize) -> Self {
        Self {
            path: Path::default(),
            is_begun: false,
            first_len: 1,
            first: 1,
            doubling: ReadAhead::new(pio_max),
            is_long: false,
            asked: 0,
            asked_bytes: 0,
            has_read: false,
            failed: None,
        }
    }

    /// Leaves that are in groups.
    pub fn asked(&self) -> usize {
        self.asked
    }

    /// Whether anything of them had to be read, and there may be further ones.
    pub fn has_read(&self) -> bool {
        self.has_read
    }

    /// Whether groups have doubled.
    pub fn is_long(&self) -> bool {
        self.is_long
    }

    /// No further groups are needed.
    pub fn finish(&mut self) {
        self.path.clear();
        (self.is_begun, self.has_read) = (true, false);
    }

    /// The next group, which is needed now; `None` at the end of the walk.
    pub fn needed(&mut self, course: &Course) -> Result<Option<Group>> {
        if self.is_begun { self.ask_needed(course) } else { self.begin(course) }
    }

    /// The next group ahead of need: so many leaves and log pieces, of one block or several, or a few pieces more; `None` at the end of the walk.
    pub fn ahead(&mut self, course: &Course, count: usize) -> Result<Option<Group>> {
        if !self.has_more(course)? {
            return Ok(None);
        }
        let (mut chosen, mut pieces) = (Chosen::default(), Pieces::default());
        pieces.look_up(course, &mut self.path)?;
        self.choose(course, &mut chosen, &mut pieces, count);
        while !chosen.is_full
            && chosen.ids.len() + pieces.len() < count
            && self.enter_next_block(course, &mut pieces)
        {
            self.choose(course, &mut chosen, &mut pieces, count);
        }
        self.ask_for(course, &chosen, pieces).map(Some)
    }

    /// How many leaves more are worth asking for ahead, when the walk has come to its leaf number `at`, or needs it now; `None` if nobody knows.
    pub fn worth_ahead(&self, course: &Course, at: usize) -> Option<usize> {
        // Who ends before it has come leaves it to the device, which is busy with it all the same.
        let goal = self.worth(course, at, &Chosen::default(), BYTES_A_ROUND)?;
        Some((goal - self.asked).min(course.pager.pio_max() / 2))
    }

    /// How many it is where nobody knows: twice as many each time.
    pub fn doubled_ahead(&mut self, course: &Course) -> usize {
        self.doubling.grow().min(course.pager.pio_max() / 2)
    }

    /// How many leaves it pays to have asked for in all, if that is known: `at` is the number of the leaf that the walk has come to or
    /// needs, and some have been chosen already.
    fn worth(&self, course: &Course, at: usize, chosen: &Chosen, toll: u64) -> Option<usize> {
        let asked = self.asked + chosen.ids.len();
        // The others are taken to be as long as those.
        let leaf_len = (self.asked_bytes + chosen.bytes).checked_div(asked as u64).unwrap_or(self.first_len);
        course.pager.lengths.worth(course.kind(), at, asked, leaf_len, toll)
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
        let pio_max = course.pager.pio_max();
        self.first_len = course.view().len_of(leaf).max(1);
        self.first = FIRST.div_ceil(self.first_len as usize).min(pio_max);
        self.doubling = ReadAhead::beginning_with(self.first, pio_max);
        self.ask_needed(course)
    }

    fn ask_needed(&mut self, course: &Course) -> Result<Option<Group>> {
        if !self.has_more(course)? {
            return Ok(None);
        }
        let mut pieces = Pieces::default();
        pieces.look_up(course, &mut self.path)?;
        if pieces.missing().next().is_none() {
            let leaves = self.cached_leaves(course, &mut pieces)?;
            if !leaves.is_empty() {
                return Ok(Some(Group::here(leaves, pieces)));
            }
        }
        self.has_read = true;
        let needed = self.asked + 1;
        let mut chosen = Chosen::default();
        let Some(goal) = self.worth(course, needed, &chosen, 0) else {
            let count = self.doubling.grow();
            self.is_long = count > self.first;
            self.choose(course, &mut chosen, &mut pieces, count);
            return self.ask_for(course, &chosen, pieces).map(Some);
        };
        let pio_max = course.pager.pio_max();
        let most = (pio_max / 2).max(1);
        let mut count = (goal - self.asked).min(most);
        self.choose(course, &mut chosen, &mut pieces, count);
        // Beyond the end of the block, if the pieces that this brings cost less than to come back for the rest.
        while !chosen.is_full
            && chosen.ids.len() < count
            && let Some(toll) = self.path.toll(course)
            && let Some(goal) = self.worth(course, needed, &chosen, toll)
            && goal > self.asked + chosen.ids.len()
            && self.enter_next_block(course, &mut pieces)
        {
            count = (goal - self.asked).min(most);
            self.choose(course, &mut chosen, &mut pieces, count);
        }
        // Should it be longer than any before, it goes on from here.
        self.doubling = ReadAhead::beginning_with(self.first.max(chosen.ids.len() + 1), pio_max);
        self.ask_for(course, &chosen, pieces).map(Some)
    }

    /// The next leaves of the block with the pieces that they need, up to so many in all and as long as there may be. What is wrong with a piece is told when the walk
    /// comes to its leaf: what was chosen before is whole.
    fn choose(&mut self, course: &Course, chosen: &mut Chosen, pieces: &mut Pieces, count: usize) {
        while chosen.ids.len() < count
            && let Some(id) = self.path.peek_leaf(course)
        {
            let bytes = chosen.bytes + course.view().len_of(id);
            if bytes > course.pager.reader.buffers_max() && !chosen.ids.is_empty() {
                chosen.is_full = true;
                return;
            }
            if let Err(error) = pieces.look_up(course, &mut self.path) {
                self.failed = Some(error);
                chosen.is_full = true;
                return;
            }
            self.path.next_leaf(course);
            chosen.ids.push(id);
            chosen.bytes = bytes;
        }
    }

    /// Goes to the next block, if there is one. What is wrong with it is told when the walk comes to it: what was chosen before is whole.
    fn enter_next_block(&mut self, course: &Course, pieces: &mut Pieces) -> bool {
        let next = match self.path.next_block(course) {
            Ok(true) => pieces.look_up(course, &mut self.path),
            Ok(false) => return false,
            Err(error) => Err(error),
        };
        self.failed = next.err();
        self.failed.is_none()
    }

    /// Asks for these leaves.
    fn ask_for(&mut self, course: &Course, chosen: &Chosen, pieces: Pieces) -> Result<Group> {
        self.asked += chosen.ids.len();
        self.asked_bytes += chosen.bytes;
        let is_short = self.asked <= self.first || self.asked_bytes <= SHORT;
        Group::ask(course, &chosen.ids, pieces, is_short)
    }

    /// Whether there are further leaves; if so, the path leads to the first of them.
    fn has_more(&mut self, course: &Course) -> Result<bool> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.path.has_more(course),
        }
    }

    /// The next leaves of the block, as far as they are in the cache, and not many more than a short scan needs.
    fn cached_leaves(&mut self, course: &Course, pieces: &mut Pieces) -> Result<Vec<Node>> {
        let mut leaves = Vec::new();
        while leaves.len() < CACHED {
            let Some(id) = self.path.peek_leaf(course) else { break };
            let Some(leaf) = course.view().cached(id, 0)? else { break };
            if !pieces.look_up_cached(course, &mut self.path)? {
                break;
            }
            self.path.next_leaf(course);
            self.asked += 1;
            self.asked_bytes += course.view().len_of(id);
            leaves.push(leaf);
        }
        Ok(leaves)
    }
}
