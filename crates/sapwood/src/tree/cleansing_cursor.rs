//! The cleansing cursor decides when a block's log area is due for cleansing. It is a cursor that walks all blocks in
//! key order, a stretch further with each flush. The flush cleanses the blocks that are due after it has
//! published its queue.
//!
//! Each flush advances the cursor by as many leaf bytes as keep the log areas at their target cost: flushed
//! bytes / the share that the tuning of log areas sets. So a block is cleansed about when its log reaches that share,
//! neighbours are cleansed one after the other, and the space that they leave behind dies in the order in
//! which it was written. When the share falls, or new records weigh more, the cursor moves faster; a block
//! that is over the new limit still waits for the cursor for one round, since otherwise all such blocks would
//! be due at once. A block whose log grows faster is due without waiting for the cursor. The cursor skips a
//! block that has hardly any log. When writers are so fast that the next queue is full before all due blocks
//! are cleansed, the remaining blocks are cleansed together with those that are due then.
//!
//! Invariants:
//! 1. The cursor is never beyond the block that the flush works on, so each block is considered once a round.
//!    Exceptions are the blocks that an append ahead of the flush passes by: most of them are due already or
//!    go to their leaves at once, and the last block of a tree is cleansed when its log has become long.
//! 2. Due blocks are in key order, each once.

use crate::cache::prefetch_buffer::KeyPosition;
use crate::log_area::Lengths;
use crate::operation::KeyspaceId;
use bytes::Bytes;

/// Percent of the share that the cleansing cursor aims at, from which a block's log is worth its cleansing: the cursor
/// passes by a block below this one.
const LEAST: u64 = 36;
/// Percent of it from which a block is due without waiting for the cursor: so that none has a much longer log than the
/// others.
const MOST: u64 = 180;
/// Percent of it from which a block is cleansed at once, before the queue is published, so that log areas have a limit.
const OVERDUE: u64 = 360;

/// Weight of a new record in the test whether changes are dense, in percent: so that new records alone seldom make them
/// so.
const FRESH_IF_DENSE: u64 = 40;

/// Least weight of a new record, in percent: areas of new records alone would otherwise have no limit.
pub(crate) const LIGHTEST: u64 = 12;

/// If at least `ALL_NEW` percent of a log area's bytes are new records, they weigh what the tuning of log areas says. At
/// `NOT_ALL_NEW` percent or less they weigh at least [`FRESH_IF_DENSE`]; between the two the weight is
/// interpolated. The fraction of new records is only known per keyspace. If records are overwritten in one
/// part of a keyspace and inserted in another, the areas of both parts get the same fraction, and only this
/// rule bounds what the overwritten records hide.
const ALL_NEW: u64 = 95;
const NOT_ALL_NEW: u64 = 75;

/// Size of a block's log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogBytes {
    /// All log bytes, and those of new records among them.
    pub bytes: u64,
    pub fresh: u64,
    /// Bytes of the leaf records that the log's removals will free.
    pub removed: u64,
}

impl LogBytes {
    /// The log's weight if a new record weighs `fresh` percent.
    pub fn weight(self, fresh: u64) -> u64 {
        let new = self.fresh.min(self.bytes);
        let percent = (new * 100).checked_div(self.bytes).unwrap_or(100).clamp(NOT_ALL_NEW, ALL_NEW);
        let more = FRESH_IF_DENSE.saturating_sub(fresh) * (ALL_NEW - percent) / (ALL_NEW - NOT_ALL_NEW);
        self.bytes - new + new * (fresh + more) / 100 + self.removed
    }
}

/// The position behind a block that ends below `fence`: the fence, or the start of the next keyspace.
pub(crate) fn beyond(keyspace: KeyspaceId, fence: Option<Bytes>) -> KeyPosition {
    match fence {
        Some(fence) => (keyspace, fence),
        None => (KeyspaceId(keyspace.0 + 1), Bytes::new()),
    }
}

/// How urgently a block is to be cleansed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    NotDue,
    Due,
    Overdue,
}

/// A block that is to be cleansed.
#[derive(Clone, Debug)]
pub(crate) struct CleansingTask {
    pub keyspace: KeyspaceId,
    /// The smallest key that may be in it.
    pub low: Bytes,
    /// Bytes of its leaves.
    pub leaves: u64,
    /// Cleanse it whatever its log weighs: range searches have charged enough for it, or it has many runs.
    pub is_wanted: bool,
}

/// The state of a cleansing cursor within a flush, for [`CleansingCursor::back_to`].
#[derive(Clone, Debug)]
pub(crate) struct CursorPosition {
    at: KeyPosition,
    quota: u64,
    due: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct CleansingCursor {
    cursor: Cursor,
    /// Quota at the beginning of the flush.
    begun_with: u64,
    /// Thousandths of their quota that the last two flushes used. Two, because a flush uses little of it when
    /// the cursor reaches its end.
    used: [u64; 2],
    due: Vec<CleansingTask>,
    /// Due blocks that the last flush has not cleansed.
    left: Vec<CleansingTask>,
}

/// Position and limits of the cleansing cursor.
#[derive(Debug)]
struct Cursor {
    at: KeyPosition,
    /// Bytes of leaves that the cursor may still pass on to cleansing in this flush.
    quota: u64,
    /// Target share: log bytes per leaf byte, in percent.
    share: u64,
    /// Weight of new records, in percent.
    fresh: u64,
    /// The greatest share, and the least weight of new records, of this round and the last one. They bound
    /// the log of a block that the cursor has not reached since.
    highest: [u64; 2],
    lightest: [u64; 2],
}

/// A new process assumes the least weight: the process that had the database before may have had more memory,
/// and so longer log areas.
impl Default for Cursor {
    fn default() -> Self {
        Self {
            at: KeyPosition::default(),
            quota: 0,
            share: 0,
            fresh: 100,
            highest: [0; 2],
            lightest: [LIGHTEST; 2],
        }
    }
}

impl Cursor {
    /// Whether a log of this weight is at least `most` percent of what a block with so many bytes of leaves
    /// may have.
    fn reaches(&self, weight: u64, leaves: u64, most: u64) -> bool {
        weight * 10_000 >= leaves * self.highest[0].max(self.highest[1]) * most
    }

    /// How urgently the log of a block with so many bytes of leaves is to be cleansed. `is_next`: the cursor
    /// is at this block.
    fn urgency(&self, log: LogBytes, leaves: u64, is_next: bool) -> Urgency {
        let lightest = log.weight(self.lightest[0].min(self.lightest[1]));
        if self.reaches(lightest, leaves, OVERDUE) {
            Urgency::Overdue
        } else if self.reaches(lightest, leaves, MOST)
            || (is_next && log.weight(self.fresh) * 10_000 >= leaves * self.share * LEAST)
        {
            Urgency::Due
        } else {
            Urgency::NotDue
        }
    }

    /// Moves the cursor behind a block that ends below `fence`, of which `cleansed` bytes of leaves will be
    /// cleansed.
    fn pass(&mut self, keyspace: KeyspaceId, fence: Option<Bytes>, cleansed: u64) {
        self.quota = self.quota.saturating_sub(cleansed);
        self.at = beyond(keyspace, fence);
    }
}

/// Due blocks in key order, each once.
fn each_once(mut due: Vec<CleansingTask>) -> Vec<CleansingTask> {
    due.sort_by(|a, b| a.key().cmp(&b.key()));
    due.dedup_by(|again, first| {
        let is_same = again.key() == first.key();
        first.is_wanted |= is_same && again.is_wanted;
        is_same
    });
    due
}

impl CleansingCursor {
    /// Begins a flush of `changes` with these target lengths.
    pub fn begin(&mut self, changes: LogBytes, lengths: Lengths) {
        let cursor = &mut self.cursor;
        cursor.share = lengths.share.max(1);
        cursor.fresh = lengths.fresh;
        cursor.highest[0] = cursor.highest[0].max(cursor.share);
        cursor.lightest[0] = cursor.lightest[0].min(cursor.fresh);
        let round = changes.weight(cursor.fresh) * 100 / cursor.share;
        cursor.quota = cursor.quota.min(round) + round;
        self.begun_with = cursor.quota;
        // Of a flush that ended early.
        self.left.append(&mut self.due);
        self.left = each_once(std::mem::take(&mut self.left));
    }

    /// Target lengths of the flush that has begun.
    pub fn lengths(&self) -> Lengths {
        Lengths { share: self.cursor.share, fresh: self.cursor.fresh }
    }

    /// Whether the changes are so many, compared with the leaves that they touch, that they go to the leaves
    /// at once.
    pub fn is_dense(&self, changes: LogBytes, leaves: u64) -> bool {
        self.cursor.reaches(changes.weight(FRESH_IF_DENSE), leaves, MOST)
    }

    /// Called by the flush for each block that it has changes for, in key order; `log` is the block's log
    /// with them. Says how urgently to cleanse the block. If that is to happen after the flush, notes it as
    /// due.
    pub fn at_block(&mut self, due: CleansingTask, fence: Option<Bytes>, log: LogBytes) -> Urgency {
        let is_next = self.is_next(due.keyspace, &due.low);
        let urgency = self.cursor.urgency(log, due.leaves, is_next);
        if is_next {
            self.cursor.pass(due.keyspace, fence, if urgency == Urgency::NotDue { 0 } else { due.leaves });
        }
        if urgency == Urgency::Due || (urgency == Urgency::NotDue && due.is_wanted) {
            self.due.push(due);
        }
        urgency
    }

    /// Saves the state before a version builder that may be discarded.
    pub fn position(&self) -> CursorPosition {
        CursorPosition { at: self.cursor.at.clone(), quota: self.cursor.quota, due: self.due.len() }
    }

    /// Restores the state after a version builder was discarded; the flush will visit the same blocks again.
    pub fn back_to(&mut self, position: CursorPosition) {
        (self.cursor.at, self.cursor.quota) = (position.at, position.quota);
        self.due.truncate(position.due);
    }

    /// Ends the pass of a flush over its blocks and returns those to be cleansed now. If the cursor has quota
    /// left it has reached its end, and begins a new round.
    pub fn take_due(&mut self) -> Vec<CleansingTask> {
        let used = (self.begun_with - self.cursor.quota) * 1000;
        self.used = [self.used[1], used.checked_div(self.begun_with).unwrap_or(0)];
        if self.cursor.quota > 0 {
            self.cursor.at = Default::default();
            self.cursor.highest = [self.cursor.share, self.cursor.highest[0]];
            self.cursor.lightest = [self.cursor.fresh, self.cursor.lightest[0]];
        }
        let mut due = std::mem::take(&mut self.due);
        due.append(&mut self.left);
        each_once(due)
    }

    /// These blocks were not cleansed; they are due with those of the next flush.
    pub fn leave(&mut self, left: &[CleansingTask]) {
        self.left.extend_from_slice(left);
    }

    /// Bytes of leaves that this flush will probably cleanse: those that the cursor passes on, and those that
    /// the last flush left.
    pub fn expected(&self) -> u64 {
        let left: u64 = self.left.iter().map(|due| due.leaves).sum();
        left + self.begun_with / 1000 * self.used[0].max(self.used[1])
    }

    /// Whether the cursor is at or before the block that begins at `low`, and has quota left.
    fn is_next(&self, keyspace: KeyspaceId, low: &Bytes) -> bool {
        self.cursor.quota > 0 && (keyspace, low) >= (self.cursor.at.0, &self.cursor.at.1)
    }
}

impl CleansingTask {
    pub fn new(keyspace: KeyspaceId, low: Bytes, leaves: u64, is_wanted: bool) -> Self {
        Self { keyspace, low, leaves, is_wanted }
    }

    fn key(&self) -> (KeyspaceId, &[u8]) {
        (self.keyspace, &self.low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_due_by_what_their_log_weighs() {
        let mut cursor = CleansingCursor::default();
        let log = |bytes, fresh| LogBytes { bytes, fresh, removed: 0 };
        cursor.begin(log(1000, 0), Lengths { share: 25, fresh: 40 });
        cursor.cursor.lightest = [40; 2];
        let due = || CleansingTask::new(KeyspaceId(1), Bytes::from_static(b"a"), 1000, false);
        let fence = || Some(Bytes::from_static(b"b"));
        // Behind the cursor a block waits until it has more than 45 percent.
        cursor.cursor.quota = 0;
        assert_eq!(cursor.at_block(due(), fence(), log(460, 0)), Urgency::Due);
        assert_eq!(cursor.at_block(due(), fence(), log(460, 460)), Urgency::NotDue);
        assert_eq!(cursor.at_block(due(), fence(), log(1130, 1130)), Urgency::Due);
        assert_eq!(log(100, 200).weight(40), 40, "no more is new than there is");
        let weights = [100, 95, 85, 75, 50].map(|new| log(100, new).weight(20));
        assert_eq!(weights, [20, 24, 15 + 85 * 30 / 100, 55, 70], "that much is hidden among what is new");
    }

    /// Otherwise everything that has grown long meanwhile would be due with one flush.
    #[test]
    fn what_new_records_have_made_long_waits_for_the_cursor_when_they_weigh_more() {
        let mut cursor = CleansingCursor::default();
        let all_new = |bytes| LogBytes { bytes, fresh: bytes, removed: 0 };
        let due = || CleansingTask::new(KeyspaceId(1), Bytes::from_static(b"a"), 1000, false);
        let fence = || Some(Bytes::from_static(b"b"));
        let mut at_block = |fresh, has_quota: bool, ends: bool| {
            cursor.begin(all_new(1000), Lengths { share: 25, fresh });
            if !has_quota {
                cursor.cursor.quota = 0;
            }
            let urgency = cursor.at_block(due(), fence(), all_new(2000));
            if ends {
                cursor.take_due();
            }
            urgency
        };
        assert_eq!(at_block(10, false, false), Urgency::NotDue);
        assert_eq!(at_block(100, false, false), Urgency::NotDue, "behind the cursor");
        assert_eq!(at_block(100, true, true), Urgency::Due, "the cursor is there");
        assert_eq!(at_block(100, false, false), Urgency::NotDue, "the cursor has not come to all since");
        assert_eq!(at_block(100, true, true), Urgency::Due);
        assert_eq!(at_block(100, false, false), Urgency::Overdue, "it has");
    }

    #[test]
    fn what_a_flush_that_ended_early_has_found_is_due_with_the_next() {
        let mut cursor = CleansingCursor::default();
        let log = |bytes| LogBytes { bytes, fresh: 0, removed: 0 };
        cursor.begin(log(1000), Lengths { share: 25, fresh: 40 });
        let due = CleansingTask::new(KeyspaceId(1), Bytes::from_static(b"a"), 1000, false);
        assert_eq!(cursor.at_block(due.clone(), Some(Bytes::from_static(b"b")), log(460)), Urgency::Due);
        cursor.begin(log(1000), Lengths { share: 25, fresh: 40 });
        assert_eq!(cursor.at_block(due.clone(), None, log(600)), Urgency::Due, "tried again and again");
        cursor.begin(log(1000), Lengths { share: 25, fresh: 40 });
        assert_eq!(cursor.left.len(), 1);
        assert_eq!(cursor.take_due().iter().map(|due| &due.low[..]).collect::<Vec<_>>(), [b"a"]);
    }

    #[test]
    fn what_a_flush_leaves_is_due_with_the_next_once_and_in_key_order() {
        let mut cursor = CleansingCursor::default();
        let log = LogBytes { bytes: 500, fresh: 0, removed: 0 };
        let due = |key: &'static str, is_wanted| {
            CleansingTask::new(KeyspaceId(1), Bytes::from_static(key.as_bytes()), 1000, is_wanted)
        };
        let lengths = Lengths { share: 25, fresh: 40 };
        cursor.begin(log, lengths);
        cursor.leave(&[due("k", false), due("m", true), due("x", false)]);
        cursor.begin(log, lengths);
        assert_eq!(cursor.expected(), 3000);
        for (key, is_wanted) in [("m", false), ("p", false), ("b", false)] {
            assert_eq!(cursor.at_block(due(key, is_wanted), None, log), Urgency::Due);
        }
        let found = cursor.take_due();
        let found: Vec<_> = found.iter().map(|due| (&due.low[..], due.is_wanted)).collect();
        let expected = [("b", false), ("k", false), ("m", true), ("p", false), ("x", false)];
        assert_eq!(found, expected.map(|(key, is_wanted)| (key.as_bytes(), is_wanted)));
        assert!(cursor.take_due().is_empty());
    }
}
