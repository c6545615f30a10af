//! The sequence of a walk's groups, some of which are in flight before the walk reaches them.
//!
//! ```text
//!                 waited for       in flight meanwhile
//! length unknown  6 leaves │ 12 │ 24, begun when half of the 12 were consumed │ 32, begun at once …
//! length known    the first     │ the rest, begun at once if it will most likely be needed …
//! ```
//! [`Grouping`] decides how large they are. On a long walk the next groups are in flight while the present
//! one is consumed, so the walk takes the longer of the device's and the consumer's time, not their sum.
//! Several groups are in flight, since a device with one request at a time does not deliver all it can. The
//! first group is begun together with the next ones if it is known that those will be needed. As long as the
//! walk finds everything in the cache, nothing is read ahead.
//!
//! Invariants:
//! 1. Behind the group that is needed now at most [`FLIGHTS`] groups are asked for. No more of them is in
//!    flight than fits the memory for read buffers that are kept idle (see
//!    [`NodeReader`](crate::storage::reader::NodeReader)).
//! 2. The error of a group is returned when the walk reaches the group: not before, and never if the walk
//!    ends before.
//! 3. A walk that rests at a leaf holds no buffers but those of the groups that were begun.

use crate::error::Result;
use crate::tree::range::group::{Arrived, Group};
use crate::tree::range::grouping::Grouping;
use crate::tree::range::path::ScanSpec;
use psync::AlignedBuffer;
use std::collections::VecDeque;

/// Groups that are asked for ahead. With one of 128 KiB in flight the disk where we measured delivers 0.6
/// GB/s, with two 0.7, with four 0.9 of its 1.0.
const FLIGHTS: usize = 4;

/// See the module.
pub(super) struct Groups {
    grouping: Grouping,
    /// The next groups that were asked for already. The last one may be `None`, at the end of the walk, or an
    /// error.
    ahead: VecDeque<Result<Option<Group>>>,
    /// Buffers of the last group, kept until the walk has reached the first leaf of this one.
    spare: Vec<AlignedBuffer>,
    /// The last answer of `count_ahead` if that was none or unknown, and the leaf that the walk
    /// must reach before the question is asked again.
    answer: Option<usize>,
    answer_until: usize,
    /// Number of leaves that the walk has reached.
    entered: usize,
    /// Leaves of the groups before the present one, and leaves of the present one.
    consumed: usize,
    size: usize,
}

impl Groups {
    pub fn new(pio_max: usize) -> Self {
        Self {
            grouping: Grouping::new(pio_max),
            ahead: VecDeque::new(),
            spare: Vec::new(),
            answer: None,
            answer_until: 0,
            entered: 0,
            consumed: 0,
            size: 0,
        }
    }

    /// Bytes of memory in flight for the groups ahead.
    fn bytes_in_flight(&self) -> usize {
        let groups = self.ahead.iter().filter_map(|group| group.as_ref().ok()?.as_ref());
        groups.map(Group::bytes_in_flight).sum()
    }

    /// Buffers that the walk holds and that are not in flight.
    #[cfg(test)]
    pub fn spare(&self) -> usize {
        self.spare.len()
    }

    /// Number of leaves that the walk has reached.
    pub fn entered(&self) -> usize {
        self.entered
    }

    /// The next group; `None` at the end of the walk.
    pub fn next(&mut self, spec: &ScanSpec) -> Result<Option<Arrived>> {
        let group = match self.ahead.pop_front() {
            Some(group) => group?,
            None => self.grouping.needed(spec)?,
        };
        let Some(mut group) = group else { return Ok(None) };
        self.begin_with_those_behind(spec, &mut group);
        let arrived = group.bring(spec, &mut self.spare)?;
        self.consumed += self.size;
        self.size = arrived.leaves.len();
        Ok(Some(arrived))
    }

    /// The first group, which is not read yet, of a walk that has not begun.
    pub fn first(&mut self, spec: &ScanSpec) -> Option<&mut Group> {
        if self.entered == 0 && self.ahead.is_empty() {
            let first = self.grouping.needed(spec);
            self.ahead.push_back(first);
        }
        self.ahead.front_mut()?.as_mut().ok()?.as_mut()
    }

    /// Ends the walk: no further groups are needed.
    pub fn finish(&mut self) {
        self.grouping.finish();
        self.ahead.clear();
        self.spare.clear();
    }

    /// The walk reaches a leaf, at which it may rest. `left` leaves of the present group come behind it.
    pub fn enter(&mut self, spec: &ScanSpec, left: usize, is_last: bool) {
        self.entered += 1;
        if !is_last {
            self.read_ahead(spec, left);
        }
        self.spare.clear();
    }

    /// Begins a group that is needed now together with the next ones, if it is known that those will be
    /// needed.
    fn begin_with_those_behind(&mut self, spec: &ScanSpec, group: &mut Group) {
        let at = self.entered + 1;
        let others = self.bytes_in_flight();
        if (self.count_ahead(spec, at) > Some(0) || !self.ahead.is_empty())
            && group.begin(spec, &mut self.spare, others)
        {
            self.read_ahead_as_known(spec, at, group.bytes_in_flight());
        }
    }

    /// Begins the next groups if they will be needed: if most walks go on that long, or, if the length is
    /// unknown, one group if this walk is long and has come far enough.
    fn read_ahead(&mut self, spec: &ScanSpec, left: usize) {
        if self.read_ahead_as_known(spec, self.entered, 0).is_some() || !self.ahead.is_empty() {
            return;
        }
        // So a walk that ends here has read for nothing at most twice what it has consumed.
        if self.grouping.is_long() && (self.consumed >= self.size || 2 * left <= self.size) {
            let count = self.grouping.doubled_ahead(spec);
            self.begin_ahead(spec, count, 0);
        }
    }

    /// Begins the groups that will be needed when the walk has reached, or needs, its leaf number `at`;
    /// `None` if the length is unknown. `besides` bytes are in flight in addition to the groups ahead.
    fn read_ahead_as_known(&mut self, spec: &ScanSpec, at: usize, besides: usize) -> Option<()> {
        loop {
            // A group that there was no memory for may fit by now. If a device does not read ahead, one group
            // is enough.
            let mine = besides + self.bytes_in_flight();
            if let Some(Ok(Some(last))) = self.ahead.back_mut()
                && !last.begin(spec, &mut self.spare, mine)
            {
                return Some(());
            }
            match self.count_ahead(spec, at)? {
                0 => return Some(()),
                count => self.begin_ahead(spec, count, mine),
            }
        }
    }

    /// How many leaves the next group ahead should have then; 0 if there should be none, `None` if the length
    /// is unknown.
    fn count_ahead(&mut self, spec: &ScanSpec, at: usize) -> Option<usize> {
        let is_over = self.ahead.back().is_some_and(|last| !matches!(last, Ok(Some(_))));
        if !self.grouping.has_read() || is_over || self.ahead.len() >= FLIGHTS {
            return Some(0);
        }
        if at < self.answer_until {
            return self.answer;
        }
        let count = self.grouping.worth_ahead(spec, at);
        if matches!(count, None | Some(0)) {
            // The answer changes as the walk goes on, but not with every leaf.
            self.answer_until = at + (self.grouping.asked().saturating_sub(at) / 4).max(1);
            self.answer = count;
        }
        count
    }

    /// Begins a group of `count` leaves. `mine` bytes are in flight already.
    fn begin_ahead(&mut self, spec: &ScanSpec, count: usize, mine: usize) {
        if count == 0 {
            return;
        }
        let mut group = self.grouping.ahead(spec, count);
        if let Ok(Some(group)) = &mut group {
            group.begin(spec, &mut self.spare, mine);
        }
        self.ahead.push_back(group);
    }
}
