//! The sweep: a cursor that goes through all blocks in key order, flush by flush, and says where cleansing is due.
//!
//! Each flush moves it on by as many bytes of leaves as make the log areas cost what they should: flushed bytes / the share that
//! the advisor sets. So blocks are cleansed about when their log reaches that share, neighbours one after the other, and what they
//! leave behind dies in the order in which it was written. A block that grows its log faster does not wait for the cursor,
//! and one that has hardly any is passed by.
//!
//! Invariant: the cursor is never beyond the block that the flush works on, so a block is considered once a round.

use crate::operation::KeyspaceId;
use bytes::Bytes;

/// Shares of the log in the leaves, in percent of what the sweep aims at: what it passes by ...
const LEAST: u64 = 36;
/// ... and what is not left to wait for it.
const MOST: u64 = 180;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    cursor: Cursor,
    /// The quota that the flush began with.
    begun_with: u64,
    /// Thousandths of their quotas that the last two flushes used. Two, since where the cursor comes to its end one flush uses little.
    used: [u64; 2],
}

/// Where the sweep is; or, in a copy, where it will be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    pub at: (KeyspaceId, Bytes),
    /// Bytes of leaves that may still be cleansed in this flush because of the cursor.
    pub quota: u64,
    /// Log bytes per leaf byte that it aims at, in percent.
    share: u64,
}

impl Cursor {
    /// Whether a log of so many bytes is to be brought to so many bytes of leaves.
    pub fn is_due(&self, log: u64, leaves: u64, is_next: bool) -> bool {
        log * 10_000 >= leaves * self.share * if is_next { LEAST } else { MOST }
    }

    /// Moves it behind a block, which ends below `fence`, and whose leaves were cleansed, so many bytes of them.
    pub fn pass(&mut self, keyspace: KeyspaceId, fence: Option<Bytes>, cleansed: u64) {
        self.quota = self.quota.saturating_sub(cleansed);
        self.at = match fence {
            Some(fence) => (keyspace, fence),
            None => (KeyspaceId(keyspace.0.saturating_add(1)), Bytes::new()),
        };
    }
}

impl Sweep {
    /// A flush of so many bytes begins, and log areas are to reach about `share` percent of their leaves.
    pub fn begin(&mut self, bytes: u64, share: u64) {
        let cursor = &mut self.cursor;
        cursor.share = share.max(1);
        let round = bytes * 100 / cursor.share;
        cursor.quota = cursor.quota.min(round) + round;
        self.begun_with = cursor.quota;
    }

    /// Bytes of leaves that this flush will probably cleanse because of the cursor.
    pub fn expected(&self) -> u64 {
        self.begun_with / 1000 * self.used[0].max(self.used[1])
    }

    /// The flush is through. If the cursor came to the end it begins anew.
    pub fn end(&mut self) {
        let used = (self.begun_with - self.cursor.quota) * 1000;
        self.used = [self.used[1], used.checked_div(self.begun_with).unwrap_or(0)];
        if self.cursor.quota > 0 {
            self.cursor.at = Default::default();
        }
    }

    /// The cursor, to move it on or to guess with a copy what comes next.
    pub fn cursor(&mut self) -> &mut Cursor {
        &mut self.cursor
    }

    /// Whether the cursor is at the block that begins at `low`.
    pub fn is_next(&self, keyspace: KeyspaceId, low: &Bytes) -> bool {
        self.cursor.quota > 0 && (keyspace, low) >= (self.cursor.at.0, &self.cursor.at.1)
    }
}
