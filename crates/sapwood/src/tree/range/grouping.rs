//! Divides the leaves of a walk into groups, each of which one parallel read brings: decides how many leaves,
//! and of which blocks.
//!
//! ```text
//! length unknown  6 leaves │ 12: the walk is long │ 24 │ 32 …
//! length known    as many as such walks have needed, 32 at most │ as many as they need further …
//! ```
//! The paper's prange reads PioMax leaves at a time (VLDB 2011, section 3.1.3). A short walk would then pay
//! for leaves that it does not need. So the size of a group follows from how long walks of this kind have
//! been ([`ScanLengths`](crate::cache::scan_lengths)); if that is unknown, groups double. A group that is
//! needed now continues into the next block if that is worth reading the pieces there. As long as the walk
//! finds everything in the cache, a group is what the cache has.
//!
//! Invariants:
//! 1. Each leaf of the walk is in one group, in the walk's order, with the log pieces that it needs and that
//!    no leaf before it needed.
//! 2. A group that is read has at most PioMax leaves; half of that if it is read ahead or the length is
//!    known. Its leaves are together no longer than the read buffers that are kept idle, unless it is a
//!    single leaf.
//! 3. An error behind leaves that were chosen already is returned in place of the next group.

use crate::cache::scan_lengths::BYTES_A_ROUND;
use crate::error::{Error, Result};
use crate::storage::node::{Node, NodeId};
use crate::tree::range::group::{Group, Pieces};
use crate::tree::range::path::{Beginning, Path, ScanSpec};
use mpsearch::ReadAhead;

/// Bytes of leaves that a scan of unknown length begins with. Where leaves are neighbours, as after a load or
/// a cleansing, one request brings these at little more than the cost of a single leaf.
const FIRST: usize = 24 << 10;

/// Bytes of leaves up to which a scan is short, and puts its nodes into the cache: a longer one would evict what others
/// need.
const SHORT: u64 = 64 << 10;

/// Leaves that are looked up in the cache at a time (count): one in use and the next; more would be held for nothing if
/// the scan ends.
const CACHED: usize = 2;

/// See the module.
pub(super) struct Grouping {
    path: Path,
    is_begun: bool,
    /// Bytes of the first leaf.
    first_len: u64,
    /// Leaves of the first read if the length is unknown, and of the next reads.
    first: usize,
    doubling: ReadAhead,
    /// Whether a group of more leaves than `first` was asked for, the length being unknown.
    is_long: bool,
    /// Leaves that were asked for, or taken from the cache, and their bytes.
    asked: usize,
    asked_bytes: u64,
    /// Whether anything had to be read.
    has_read: bool,
    /// Error behind the last group that was asked for.
    failed: Option<Error>,
}

/// Leaves chosen for a group.
#[derive(Default)]
struct Chosen {
    ids: Vec<NodeId>,
    bytes: u64,
    /// The next leaf would be too much.
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

    /// Number of leaves in all groups so far.
    pub fn asked(&self) -> usize {
        self.asked
    }

    /// Whether something had to be read, and there may be more leaves.
    pub fn has_read(&self) -> bool {
        self.has_read
    }

    /// Whether groups have doubled.
    pub fn is_long(&self) -> bool {
        self.is_long
    }

    /// Ends the walk: no further groups are needed.
    pub fn finish(&mut self) {
        self.path.clear();
        (self.is_begun, self.has_read) = (true, false);
    }

    /// The next group, which is needed now; `None` at the end of the walk.
    pub fn needed(&mut self, spec: &ScanSpec) -> Result<Option<Group>> {
        if self.is_begun { self.ask_needed(spec) } else { self.begin(spec) }
    }

    /// The next group, read ahead of need: about `count` leaves and log pieces, or a few pieces more, of one
    /// or several blocks. `None` at the end of the walk.
    pub fn ahead(&mut self, spec: &ScanSpec, count: usize) -> Result<Option<Group>> {
        if !self.has_more(spec)? {
            return Ok(None);
        }
        let (mut chosen, mut pieces) = (Chosen::default(), Pieces::default());
        pieces.look_up(spec, &mut self.path)?;
        self.choose(spec, &mut chosen, &mut pieces, count);
        while !chosen.is_full
            && chosen.ids.len() + pieces.len() < count
            && self.enter_next_block(spec, &mut pieces)
        {
            self.choose(spec, &mut chosen, &mut pieces, count);
        }
        self.ask_for(spec, &chosen, pieces).map(Some)
    }

    /// How many more leaves are worth asking for ahead when the walk has reached, or needs, its leaf number
    /// `at`; `None` if the length is unknown.
    pub fn worth_ahead(&self, spec: &ScanSpec, at: usize) -> Option<usize> {
        // A walk that ends early leaves these reads to the device, which is busy with them all the same.
        let goal = self.worth(spec, at, &Chosen::default(), BYTES_A_ROUND)?;
        Some((goal - self.asked).min(spec.pager.pio_max() / 2))
    }

    /// The same if the length is unknown: twice as many each time.
    pub fn doubled_ahead(&mut self, spec: &ScanSpec) -> usize {
        self.doubling.grow().min(spec.pager.pio_max() / 2)
    }

    /// How many leaves in all are worth having been asked for, if the length is known. `at` is the number of
    /// the leaf that the walk has reached or needs; `chosen` leaves are counted as asked for.
    fn worth(&self, spec: &ScanSpec, at: usize, chosen: &Chosen, toll: u64) -> Option<usize> {
        let asked = self.asked + chosen.ids.len();
        // The other leaves are assumed to have the average length of those.
        let leaf_len = (self.asked_bytes + chosen.bytes).checked_div(asked as u64).unwrap_or(self.first_len);
        spec.pager.lengths.worth(spec.kind(), at, asked, leaf_len, toll)
    }

    /// Descends to where the walk begins, and asks for the first group.
    fn begin(&mut self, spec: &ScanSpec) -> Result<Option<Group>> {
        self.is_begun = true;
        let leaf = match self.path.begin(spec)? {
            Beginning::Nowhere => return Ok(None),
            Beginning::Root(leaf) => {
                let leaf = spec.view().node(leaf, 0)?;
                return Ok(Some(Group::here(vec![leaf], Pieces::default())));
            }
            Beginning::Leaf(leaf) => leaf,
        };
        let pio_max = spec.pager.pio_max();
        self.first_len = (spec.view().memory_len_of(leaf) as u64).max(1);
        self.first = FIRST.div_ceil(self.first_len as usize).min(pio_max);
        self.doubling = ReadAhead::beginning_with(self.first, pio_max);
        self.ask_needed(spec)
    }

    fn ask_needed(&mut self, spec: &ScanSpec) -> Result<Option<Group>> {
        if !self.has_more(spec)? {
            return Ok(None);
        }
        let mut pieces = Pieces::default();
        pieces.look_up(spec, &mut self.path)?;
        if pieces.missing().next().is_none() {
            let leaves = self.cached_leaves(spec, &mut pieces)?;
            if !leaves.is_empty() {
                return Ok(Some(Group::here(leaves, pieces)));
            }
        }
        self.has_read = true;
        let needed = self.asked + 1;
        let mut chosen = Chosen::default();
        let Some(goal) = self.worth(spec, needed, &chosen, 0) else {
            let count = self.doubling.grow();
            self.is_long = count > self.first;
            self.choose(spec, &mut chosen, &mut pieces, count);
            return self.ask_for(spec, &chosen, pieces).map(Some);
        };
        let pio_max = spec.pager.pio_max();
        let most = (pio_max / 2).max(1);
        let mut count = (goal - self.asked).min(most);
        self.choose(spec, &mut chosen, &mut pieces, count);
        // Goes beyond the end of the block if the pieces there cost less than a second read later.
        while !chosen.is_full
            && chosen.ids.len() < count
            && let Some(toll) = self.path.toll(spec)
            && let Some(goal) = self.worth(spec, needed, &chosen, toll)
            && goal > self.asked + chosen.ids.len()
            && self.enter_next_block(spec, &mut pieces)
        {
            count = (goal - self.asked).min(most);
            self.choose(spec, &mut chosen, &mut pieces, count);
        }
        // If this walk becomes longer than any before, doubling starts from here.
        self.doubling = ReadAhead::beginning_with(self.first.max(chosen.ids.len() + 1), pio_max);
        self.ask_for(spec, &chosen, pieces).map(Some)
    }

    /// Chooses the next leaves of the block with the pieces that they need, up to `count` leaves in all and
    /// within the buffer limit. An error with a piece is kept until the walk reaches its leaf: the leaves
    /// chosen before are complete.
    fn choose(&mut self, spec: &ScanSpec, chosen: &mut Chosen, pieces: &mut Pieces, count: usize) {
        while chosen.ids.len() < count
            && let Some(id) = self.path.peek_leaf(spec)
        {
            let bytes = chosen.bytes + spec.view().memory_len_of(id) as u64;
            if bytes > spec.pager.reader.buffers_max() && !chosen.ids.is_empty() {
                chosen.is_full = true;
                return;
            }
            if let Err(error) = pieces.look_up(spec, &mut self.path) {
                self.failed = Some(error);
                chosen.is_full = true;
                return;
            }
            self.path.next_leaf(spec);
            chosen.ids.push(id);
            chosen.bytes = bytes;
        }
    }

    /// Moves to the next block, if there is one. An error with it is kept until the walk reaches it: the
    /// leaves chosen before are complete.
    fn enter_next_block(&mut self, spec: &ScanSpec, pieces: &mut Pieces) -> bool {
        let next = match self.path.next_block(spec) {
            Ok(true) => pieces.look_up(spec, &mut self.path),
            Ok(false) => return false,
            Err(error) => Err(error),
        };
        self.failed = next.err();
        self.failed.is_none()
    }

    /// Asks for the chosen leaves.
    fn ask_for(&mut self, spec: &ScanSpec, chosen: &Chosen, pieces: Pieces) -> Result<Group> {
        self.asked += chosen.ids.len();
        self.asked_bytes += chosen.bytes;
        let is_short = self.asked <= self.first || self.asked_bytes <= SHORT;
        Group::ask(spec, &chosen.ids, pieces, is_short)
    }

    /// Whether there are more leaves; if so, the path then leads to the first of them.
    fn has_more(&mut self, spec: &ScanSpec) -> Result<bool> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.path.has_more(spec),
        }
    }

    /// The next leaves of the block that are in the cache, but not many more than a short scan needs. An error
    /// is kept until the walk reaches its leaf.
    fn cached_leaves(&mut self, spec: &ScanSpec, pieces: &mut Pieces) -> Result<Vec<Node>> {
        let mut leaves = Vec::new();
        while leaves.len() < CACHED {
            let Some(id) = self.path.peek_leaf(spec) else { break };
            let leaf = match spec.view().cached(id, 0) {
                Ok(Some(leaf)) => pieces.look_up_cached(spec, &mut self.path).map(|all| all.then_some(leaf)),
                missing => missing,
            };
            let leaf = match leaf {
                Ok(Some(leaf)) => leaf,
                Ok(None) => break,
                Err(error) if leaves.is_empty() => return Err(error),
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            };
            self.path.next_leaf(spec);
            self.asked += 1;
            self.asked_bytes += spec.view().memory_len_of(id) as u64;
            leaves.push(leaf);
        }
        Ok(leaves)
    }
}
