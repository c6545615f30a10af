//! The sweep: a cursor that goes through all blocks in key order, flush by flush, and says where cleansing is due. It is done when the flush
//! has published its queue.
//!
//! Each flush moves it on by as many bytes of leaves as make the log areas cost what they should: flushed bytes / the share that
//! the advisor sets. So blocks are cleansed about when their log reaches that share, neighbours one after the other, and what they
//! leave behind dies in the order in which it was written. When the share falls, or new records weigh more, the cursor goes faster, but what has more
//! already waits for it, for a round, or all of that would be due at once. A block that grows its log faster does not wait for the cursor,
//! and one that has hardly any is passed by. When writers are so fast that the next queue is to come to the trees before all of that is cleansed, the rest
//! goes with what is due then.
//!
//! Invariants:
//! 1. The cursor is never beyond the block that the flush works on, so a block is considered once a round; but for those that what goes ahead has passed by:
//!    most are due already or go to their leaves at once, and the last one of a tree has its turn when its log has become long.
//! 2. What is due is in key order, each block once.

use crate::operation::KeyspaceId;
use crate::store::stage::Mark;
use bytes::Bytes;

/// Shares of the log in the leaves, in percent of what the sweep aims at: what it passes by ...
const LEAST: u64 = 36;
/// ... what is not left to wait for it,
const MOST: u64 = 180;
/// ... and what does not even wait until the queue is published.
const OVERDUE: u64 = 360;

/// What new records weigh where it is asked whether changes are dense, in percent.
const FRESH_IF_DENSE: u64 = 40;

/// What they weigh at least, in percent.
pub(crate) const LIGHTEST: u64 = 12;

/// Where so many in a hundred of an area's bytes are new records', they weigh what the advisor says; where so many or fewer are, no less than
/// [`FRESH_IF_DENSE`]. That so many of the changes to a keyspace are new is all that is known of them: where records are overwritten at one place of it and
/// inserted at another, both areas are told to be as new, and what is hidden in one would have no bound but this.
const ALL_NEW: u64 = 95;
const NOT_ALL_NEW: u64 = 75;

/// How long log areas are to become, as the advisor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// Of bytes as they weigh, in percent of the leaves.
    pub share: u64,
    /// What a byte of log weighs, in percent, that a new record takes: it lies nowhere else, so that all it costs is whoever reads the
    /// pieces, and memory for their tables.
    pub fresh: u64,
}

/// The log of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogBytes {
    /// Its bytes, and those of new records among them.
    pub bytes: u64,
    pub fresh: u64,
    /// Bytes of the records that wait for its removals.
    pub removed: u64,
}

impl LogBytes {
    /// What it weighs, if new records weigh so many percent.
    pub fn weight(self, fresh: u64) -> u64 {
        let new = self.fresh.min(self.bytes);
        let percent = (new * 100).checked_div(self.bytes).unwrap_or(100).clamp(NOT_ALL_NEW, ALL_NEW);
        let more = FRESH_IF_DENSE.saturating_sub(fresh) * (ALL_NEW - percent) / (ALL_NEW - NOT_ALL_NEW);
        self.bytes - new + new * (fresh + more) / 100 + self.removed
    }
}

/// The place behind a block that ends below `fence`: there, or where the next keyspace begins.
pub(crate) fn beyond(keyspace: KeyspaceId, fence: Option<Bytes>) -> Mark {
    match fence {
        Some(fence) => (keyspace, fence),
        None => (KeyspaceId(keyspace.0.saturating_add(1)), Bytes::new()),
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
pub(crate) struct Due {
    pub keyspace: KeyspaceId,
    /// The smallest key that may be in it.
    pub low: Bytes,
    /// Bytes of its leaves.
    pub leaves: u64,
    /// Whether it has its turn whatever its log weighs: range searches have paid for it, or its layers are many.
    pub is_wanted: bool,
}

/// How far a sweep has come within a flush.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    at: Mark,
    quota: u64,
    due: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    cursor: Cursor,
    /// The quota that the flush began with.
    begun_with: u64,
    /// Thousandths of their quotas that the last two flushes used. Two, since where the cursor comes to its end one flush uses little.
    used: [u64; 2],
    due: Vec<Due>,
    /// What the flush before has left.
    left: Vec<Due>,
}

/// Where the sweep is.
#[derive(Debug)]
struct Cursor {
    at: Mark,
    /// Bytes of leaves that may still be cleansed in this flush because of the cursor.
    quota: u64,
    /// Log bytes per leaf byte that it aims at, in percent.
    share: u64,
    /// What new records weigh, in percent.
    fresh: u64,
    /// The greatest share of this round and the last, and the least that new records weighed: what blocks may have that the cursor has not come to since.
    highest: [u64; 2],
    lightest: [u64; 2],
}

/// Whoever had the database before may have had more memory, and longer log areas.
impl Default for Cursor {
    fn default() -> Self {
        Self { at: Mark::default(), quota: 0, share: 0, fresh: 100, highest: [0; 2], lightest: [LIGHTEST; 2] }
    }
}

impl Cursor {
    /// Whether a log that weighs so much is `most` percent of what blocks may have beside so many bytes of leaves.
    fn reaches(&self, weight: u64, leaves: u64, most: u64) -> bool {
        weight * 10_000 >= leaves * self.highest[0].max(self.highest[1]) * most
    }

    /// Whether a log is to be brought to so many bytes of leaves.
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

    /// Moves it behind a block, which ends below `fence`, and whose leaves are cleansed, so many bytes of them.
    fn pass(&mut self, keyspace: KeyspaceId, fence: Option<Bytes>, cleansed: u64) {
        self.quota = self.quota.saturating_sub(cleansed);
        self.at = beyond(keyspace, fence);
    }
}

impl Sweep {
    /// A flush of so much begins, and log areas are to become about so long.
    pub fn begin(&mut self, changes: LogBytes, lengths: Lengths) {
        let cursor = &mut self.cursor;
        cursor.share = lengths.share.max(1);
        cursor.fresh = lengths.fresh;
        cursor.highest[0] = cursor.highest[0].max(cursor.share);
        cursor.lightest[0] = cursor.lightest[0].min(cursor.fresh);
        let round = changes.weight(cursor.fresh) * 100 / cursor.share;
        cursor.quota = cursor.quota.min(round) + round;
        self.begun_with = cursor.quota;
        self.due.clear();
    }

    /// How long log areas are to become in the flush that has begun.
    pub fn lengths(&self) -> Lengths {
        Lengths { share: self.cursor.share, fresh: self.cursor.fresh }
    }

    /// Whether changes are so much beside the leaves that they touch that they go there at once.
    pub fn is_dense(&self, changes: LogBytes, leaves: u64) -> bool {
        self.cursor.reaches(changes.weight(FRESH_IF_DENSE), leaves, MOST)
    }

    /// The flush is at a block, in key order, which has or would have such a log. Says whether it
    /// is to be cleansed: at once, or after the flush, which is noted then.
    pub fn at_block(&mut self, due: Due, fence: Option<Bytes>, log: LogBytes) -> Urgency {
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

    /// Where it is, before an attempt that may come to nothing.
    pub fn place(&self) -> Place {
        Place { at: self.cursor.at.clone(), quota: self.cursor.quota, due: self.due.len() }
    }

    /// The attempt has come to nothing, and the flush comes to the same blocks again.
    pub fn back_to(&mut self, place: Place) {
        (self.cursor.at, self.cursor.quota) = (place.at, place.quota);
        self.due.truncate(place.due);
    }

    /// The flush has seen all its blocks: what is to be cleansed now. If the cursor came to the end it begins anew.
    pub fn take_due(&mut self) -> Vec<Due> {
        let used = (self.begun_with - self.cursor.quota) * 1000;
        self.used = [self.used[1], used.checked_div(self.begun_with).unwrap_or(0)];
        if self.cursor.quota > 0 {
            self.cursor.at = Default::default();
            self.cursor.highest = [self.cursor.share, self.cursor.highest[0]];
            self.cursor.lightest = [self.cursor.fresh, self.cursor.lightest[0]];
        }
        let mut due = std::mem::take(&mut self.due);
        due.append(&mut self.left);
        due.sort_by(|a, b| a.place().cmp(&b.place()));
        due.dedup_by(|again, first| {
            let is_same = again.place() == first.place();
            first.is_wanted |= is_same && again.is_wanted;
            is_same
        });
        due
    }

    /// These of them are not cleansed, and are due with those of the next flush.
    pub fn leave(&mut self, left: &[Due]) {
        self.left.extend_from_slice(left);
    }

    /// Bytes of leaves that this flush will probably cleanse: because of the cursor, and because the one before has left them.
    pub fn expected(&self) -> u64 {
        let left: u64 = self.left.iter().map(|due| due.leaves).sum();
        left + self.begun_with / 1000 * self.used[0].max(self.used[1])
    }

    /// Whether the cursor is at the block that begins at `low`.
    fn is_next(&self, keyspace: KeyspaceId, low: &Bytes) -> bool {
        self.cursor.quota > 0 && (keyspace, low) >= (self.cursor.at.0, &self.cursor.at.1)
    }
}

impl Due {
    pub fn new(keyspace: KeyspaceId, low: Bytes, leaves: u64, is_wanted: bool) -> Self {
        Self { keyspace, low, leaves, is_wanted }
    }

    fn place(&self) -> (KeyspaceId, &[u8]) {
        (self.keyspace, &self.low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_due_by_what_their_log_weighs() {
        let mut sweep = Sweep::default();
        let log = |bytes, fresh| LogBytes { bytes, fresh, removed: 0 };
        sweep.begin(log(1000, 0), Lengths { share: 25, fresh: 40 });
        sweep.cursor.lightest = [40; 2];
        let due = || Due::new(KeyspaceId(1), Bytes::from_static(b"a"), 1000, false);
        let fence = || Some(Bytes::from_static(b"b"));
        // Behind the cursor a block waits until it has more than 45 percent.
        sweep.cursor.quota = 0;
        assert_eq!(sweep.at_block(due(), fence(), log(460, 0)), Urgency::Due);
        assert_eq!(sweep.at_block(due(), fence(), log(460, 460)), Urgency::NotDue);
        assert_eq!(sweep.at_block(due(), fence(), log(1130, 1130)), Urgency::Due);
        assert_eq!(log(100, 200).weight(40), 40, "no more is new than there is");
        let weights = [100, 95, 85, 75, 50].map(|new| log(100, new).weight(20));
        assert_eq!(weights, [20, 24, 15 + 85 * 30 / 100, 55, 70], "that much is hidden among what is new");
    }

    /// All that has become long meanwhile would be due with one flush.
    #[test]
    fn what_new_records_have_made_long_waits_for_the_cursor_when_they_weigh_more() {
        let mut sweep = Sweep::default();
        let all_new = |bytes| LogBytes { bytes, fresh: bytes, removed: 0 };
        let due = || Due::new(KeyspaceId(1), Bytes::from_static(b"a"), 1000, false);
        let fence = || Some(Bytes::from_static(b"b"));
        let mut at_block = |fresh, has_quota: bool, ends: bool| {
            sweep.begin(all_new(1000), Lengths { share: 25, fresh });
            if !has_quota {
                sweep.cursor.quota = 0;
            }
            let urgency = sweep.at_block(due(), fence(), all_new(2000));
            if ends {
                sweep.take_due();
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
    fn what_a_flush_leaves_is_due_with_the_next_once_and_in_key_order() {
        let mut sweep = Sweep::default();
        let log = LogBytes { bytes: 500, fresh: 0, removed: 0 };
        let due = |key: &'static str, is_wanted| {
            Due::new(KeyspaceId(1), Bytes::from_static(key.as_bytes()), 1000, is_wanted)
        };
        let lengths = Lengths { share: 25, fresh: 40 };
        sweep.begin(log, lengths);
        sweep.leave(&[due("k", false), due("m", true), due("x", false)]);
        sweep.begin(log, lengths);
        assert_eq!(sweep.expected(), 3000);
        for (key, is_wanted) in [("m", false), ("p", false), ("b", false)] {
            assert_eq!(sweep.at_block(due(key, is_wanted), None, log), Urgency::Due);
        }
        let found = sweep.take_due();
        let found: Vec<_> = found.iter().map(|due| (&due.low[..], due.is_wanted)).collect();
        let expected = [("b", false), ("k", false), ("m", true), ("p", false), ("x", false)];
        assert_eq!(found, expected.map(|(key, is_wanted)| (key.as_bytes(), is_wanted)));
        assert!(sweep.take_due().is_empty());
    }
}
