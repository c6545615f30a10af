//! The groups of a walk, one after the other: how large each is, and which is asked for before the walk comes to it.
//!
//! ```text
//! nobody knows   6 leaves │ 12: the walk is long │ 24, begun when half of the 12 were eaten │ 32, begun at once …
//! known          as many as such walks have needed, 32 at most │ the rest, begun at once if it most likely will be needed …
//!                waited for                                     in flight meanwhile
//! ```
//! How much to ask for follows from how long walks of this kind have been ([`ScanLengths`](crate::store::scan_lengths)); where that
//! does not tell, groups double. A group goes on in the next block if that is worth the pieces there.
//! Of a long walk the next groups are in flight while one is eaten, so that it takes the time of the device or of the one who eats,
//! whichever is longer, and not both; several, since a device that has one request at a time does not give all it can. The first group
//! is begun together with them where it is known that they will be needed. As long as all that the walk comes to is in the cache, nothing is read ahead.
//!
//! Invariants:
//! 1. Behind the group that is needed now at most [`FLIGHTS`] are asked for, each of half of PioMax leaves at most and the log pieces that they need, and in flight is no more of them
//!    than there is memory for in read buffers that are kept idle (see [`NodeReader`](crate::store::node_reader::NodeReader)). The leaves of a group are together no longer than
//!    those, unless it is a single one.
//! 2. What went wrong with a group is told when the walk comes to it: not before, and never if the walk ends before.
//! 3. The length of a walk that came to a leaf is noted once.
//! 4. A walk that stands at a leaf holds no buffers but those of the groups that were begun.

use crate::error::{Error, Result};
use crate::node::{Node, NodeId};
use crate::store::scan_lengths::BYTES_A_ROUND;
use crate::tree::range::group::{Arrived, Group, Pieces};
use crate::tree::range::path::{Beginning, Course, Path};
use mpsearch::ReadAhead;
use psync::AlignedBuffer;
use std::collections::VecDeque;

/// Bytes of leaves that a scan begins with while nobody knows how long it will be: where they are neighbours, as they are after a
/// load and a cleansing, one request brings so many at little more than the cost of a single leaf.
const FIRST: usize = 24 << 10;

/// Bytes of leaves up to which a scan is short, as it is when it has asked for no more than those: what it comes to goes into the cache. A long one leaves the cache alone.
const SHORT: u64 = 64 << 10;

/// Groups that are asked for ahead. With one in flight of 128 KiB the disk where we measured gives 0.6 GB/s, with two 0.7, with four 0.9 of the 1.0 that it can.
const FLIGHTS: usize = 4;

/// Leaves that are looked for in the cache at a time.
const CACHED: usize = 2;

/// See the module.
pub(super) struct Groups {
    path: Path,
    is_begun: bool,
    /// Bytes of the first leaf.
    first_len: u64,
    /// How many leaves the first read brings where nobody knows, and all others.
    first: usize,
    ahead: ReadAhead,
    /// Whether more than that was asked for at a time, where nobody knows.
    is_long: bool,
    /// Leaves that were asked for, or taken from the cache; and how many of them the walk has come to.
    asked: usize,
    asked_bytes: u64,
    entered: usize,
    /// Whether anything had to be read.
    has_read: bool,
    /// The next groups, as far as they were asked for already; the last one may be `None`, at the end of the walk, or what went wrong.
    coming: VecDeque<Result<Option<Group>>>,
    /// Buffers of the group before, until the walk has come to the first leaf of this one.
    spare: Vec<AlignedBuffer>,
    /// Why the walk cannot go on behind the last group that was asked for.
    failed: Option<Error>,
    /// Nobody looks how many more are worth asking for before the walk has come to this leaf; and what was found then.
    look_at: usize,
    found: Option<usize>,
    /// Leaves of the groups before the present one, and of the present one.
    eaten: usize,
    size: usize,
}

/// Leaves that were chosen for a group.
#[derive(Default)]
struct Chosen {
    ids: Vec<NodeId>,
    bytes: u64,
    /// Whether the next one would be too much.
    is_full: bool,
}

impl Groups {
    pub fn new(pio_max: usize) -> Self {
        Self {
            path: Path::default(),
            is_begun: false,
            first_len: 1,
            first: 1,
            ahead: ReadAhead::new(pio_max),
            is_long: false,
            asked: 0,
            asked_bytes: 0,
            entered: 0,
            has_read: false,
            coming: VecDeque::new(),
            spare: Vec::new(),
            failed: None,
            look_at: 0,
            found: None,
            eaten: 0,
            size: 0,
        }
    }

    /// Bytes of memory in flight for the groups that are coming.
    fn aloft(&self) -> usize {
        let groups = self.coming.iter().filter_map(|group| group.as_ref().ok()?.as_ref());
        groups.map(Group::aloft).sum()
    }

    /// Buffers in the hands of the walk that are not in flight.
    #[cfg(test)]
    pub fn spare(&self) -> usize {
        self.spare.len()
    }

    /// Leaves that the walk has come to.
    pub fn entered(&self) -> usize {
        self.entered
    }

    /// The next group; `None` at the end of the walk.
    pub fn next(&mut self, course: &Course) -> Result<Option<Arrived>> {
        let group = match self.coming.pop_front() {
            Some(group) => group?,
            None if self.is_begun => self.ask(course)?,
            None => self.begin(course)?,
        };
        let Some(mut group) = group else { return Ok(None) };
        self.accompany(course, &mut group);
        let arrived = group.bring(course, &mut self.spare)?;
        self.eaten += self.size;
        self.size = arrived.leaves.len();
        Ok(Some(arrived))
    }

    /// No further groups are needed.
    pub fn finish(&mut self) {
        self.path.clear();
        self.coming.clear();
        self.spare.clear();
        (self.is_begun, self.has_read) = (true, false);
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
        self.ahead = ReadAhead::beginning_with(self.first, pio_max);
        self.ask(course)
    }

    /// Asks for the next group, which is needed now; `None` at the end of the walk.
    fn ask(&mut self, course: &Course) -> Result<Option<Group>> {
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
            let wanted = self.ahead.grow();
            self.is_long = wanted > self.first;
            self.choose(course, &mut chosen, &mut pieces, wanted);
            return self.ask_for(course, &chosen, pieces).map(Some);
        };
        let pio_max = course.pager.pio_max();
        let most = (pio_max / 2).max(1);
        let mut wanted = (goal - self.asked).min(most);
        self.choose(course, &mut chosen, &mut pieces, wanted);
        // Beyond the end of the block, if the pieces that this brings cost less than to come back for the rest.
        while !chosen.is_full
            && chosen.ids.len() < wanted
            && let Some(toll) = self.path.toll(course)
            && let Some(goal) = self.worth(course, needed, &chosen, toll)
            && goal > self.asked + chosen.ids.len()
            && self.goes_on(course, &mut pieces)
        {
            wanted = (goal - self.asked).min(most);
            self.choose(course, &mut chosen, &mut pieces, wanted);
        }
        // Should it be longer than any before, it goes on from here.
        self.ahead = ReadAhead::beginning_with(self.first.max(chosen.ids.len() + 1), pio_max);
        self.ask_for(course, &chosen, pieces).map(Some)
    }

    /// The next leaves of the block with the pieces that they need, up to so many in all and as long as there may be. What is wrong with a piece is told when the walk
    /// comes to its leaf: what was chosen before is whole.
    fn choose(&mut self, course: &Course, chosen: &mut Chosen, pieces: &mut Pieces, wanted: usize) {
        while chosen.ids.len() < wanted
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
    fn goes_on(&mut self, course: &Course, pieces: &mut Pieces) -> bool {
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

    /// The walk comes to a leaf, behind which `left` leaves of the present group are still to come, and where it may stay.
    pub fn enter(&mut self, course: &Course, left: usize, is_last: bool) {
        self.entered += 1;
        if !is_last {
            self.read_on(course, left);
        }
        self.spare.clear();
    }

    /// Has a group that is needed now begun together with those behind it, if it is known that these will be needed.
    fn accompany(&mut self, course: &Course, group: &mut Group) {
        let at = self.entered + 1;
        let others = self.aloft();
        if (self.wanted(course, at) > Some(0) || !self.coming.is_empty())
            && group.begin(course, &mut self.spare, others)
        {
            self.read_on_known(course, at, group.aloft());
        }
    }

    /// Has the next groups begun, if they will be needed: if most walks go on that long, or, where nobody knows, one if this walk is long and far enough for it.
    fn read_on(&mut self, course: &Course, left: usize) {
        if self.read_on_known(course, self.entered, 0).is_some() || !self.coming.is_empty() {
            return;
        }
        // So that a walk that ends here has read for nothing at most twice what it has eaten.
        if self.is_long && (self.eaten >= self.size || 2 * left <= self.size) {
            let wanted = self.ahead.grow().min(course.pager.pio_max() / 2);
            self.begin_ahead(course, wanted, 0);
        }
    }

    /// Has begun what will be needed when the walk has come to its leaf number `at`, or needs it now; `None` if nobody knows. `besides` bytes are in flight beside what is coming.
    fn read_on_known(&mut self, course: &Course, at: usize, besides: usize) -> Option<()> {
        loop {
            // What there was no memory for, there may be by now. Where a device does not read ahead, one group is enough.
            let mine = besides + self.aloft();
            if let Some(Ok(Some(last))) = self.coming.back_mut()
                && !last.begin(course, &mut self.spare, mine)
            {
                return Some(());
            }
            match self.wanted(course, at)? {
                0 => return Some(()),
                wanted => self.begin_ahead(course, wanted, mine),
            }
        }
    }

    /// How many leaves more to ask for then, as far as there may be; `None` if nobody knows.
    fn wanted(&mut self, course: &Course, at: usize) -> Option<usize> {
        let is_over = self.coming.back().is_some_and(|last| !matches!(last, Ok(Some(_))));
        if !self.has_read || is_over || self.coming.len() >= FLIGHTS {
            return Some(0);
        }
        if at < self.look_at {
            return self.found;
        }
        // Who ends before it has come leaves it to the device, which is busy with it all the same.
        let goal = self.worth(course, at, &Chosen::default(), BYTES_A_ROUND);
        let wanted = goal.map(|goal| (goal - self.asked).min(course.pager.pio_max() / 2));
        if matches!(wanted, None | Some(0)) {
            // The answer changes as the walk goes on, but not with every leaf.
            self.look_at = at + (self.asked.saturating_sub(at) / 4).max(1);
            self.found = wanted;
        }
        wanted
    }

    /// Has a group of so many leaves begun.
    fn begin_ahead(&mut self, course: &Course, wanted: usize, mine: usize) {
        if wanted == 0 {
            return;
        }
        let mut group = self.ask_ahead(course, wanted);
        if let Ok(Some(group)) = &mut group {
            group.begin(course, &mut self.spare, mine);
        }
        self.coming.push_back(group);
    }

    /// Asks for so many leaves and log pieces, of one block or several, or a few pieces more; `None` at the end of the walk.
    fn ask_ahead(&mut self, course: &Course, wanted: usize) -> Result<Option<Group>> {
        if !self.has_more(course)? {
            return Ok(None);
        }
        let (mut chosen, mut pieces) = (Chosen::default(), Pieces::default());
        pieces.look_up(course, &mut self.path)?;
        self.choose(course, &mut chosen, &mut pieces, wanted);
        while !chosen.is_full && chosen.ids.len() + pieces.len() < wanted && self.goes_on(course, &mut pieces)
        {
            self.choose(course, &mut chosen, &mut pieces, wanted);
        }
        self.ask_for(course, &chosen, pieces).map(Some)
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
