//! What the background thread does while nobody writes, or hardly anybody: it makes the database better for those who read.
//!
//! ```text
//! nobody writes ── readers miss the cache, and much waits in the queue ─▶ flush: the queue's memory becomes cache
//! hardly anybody writes ── scans read log pieces ─▶ cleanse blocks, as many as these reads would have paid for
//! ```
//! Cleansing follows the rule of ski rental: it never moves more bytes than scans have already spent on log pieces, so it
//! costs at most as much again as not doing it, however the reading goes on. (d-IPL B+-tree: eager cleansing, there
//! begun by a threshold of reads.)
//!
//! Invariant: a queue that is full ends all of it, at the next portion at the latest.

use crate::advisor::BYTES_A_PIECE;
use crate::engine::Engine;
use crate::error::Result;
use crate::operation::{KeyspaceId, SeqNo};
use bytes::Bytes;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How often the thread looks, when something happens, and when nothing does.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// Reads from the device in a pause that are worth a flush.
const MISSES: u64 = 100;
/// A queue that would take more than so many pauses to fill is as good as one that nobody writes to.
const PAUSES_TO_FILL: usize = 60;

/// Between two portions it rests for so many times as long as one took, since those for whom it works use the device too.
const RESTS: u32 = 3;

/// What the thread saw when it looked last.
pub(crate) struct Idle {
    pub pause: Duration,
    visible: SeqNo,
    queued: usize,
    misses: u64,
    scanned: u64,
    /// Log pieces that scans have read and no cleansing has made up for.
    debt: u64,
    /// Where the next block is cleansed.
    cursor: Option<(KeyspaceId, Bytes)>,
}

impl Default for Idle {
    fn default() -> Self {
        Self { pause: PAUSE, visible: 0, queued: 0, misses: 0, scanned: 0, debt: 0, cursor: None }
    }
}

impl Engine {
    /// After a pause in which no queue was frozen. Errors have been noted where they happened.
    pub fn idle(&self, idle: &mut Idle) {
        let (visible, counters) = (self.visible(), &self.pager.counters);
        let (misses, scanned) = (counters.misses.load(Relaxed), counters.pieces_scanned.load(Relaxed));
        let quiet = std::mem::replace(&mut idle.visible, visible) == visible;
        let missed = misses - std::mem::replace(&mut idle.misses, misses);
        idle.debt += scanned - std::mem::replace(&mut idle.scanned, scanned);
        idle.pause = if quiet && missed == 0 { (2 * idle.pause).min(PAUSE_MAX) } else { PAUSE };
        let queued = self.state.load().active.memory();
        let before = std::mem::replace(&mut idle.queued, queued);
        let hardly = queued >= before && queued - before <= self.shares.queue / PAUSES_TO_FILL;
        if !hardly || missed < MISSES || self.check_writable().is_err() {
            return;
        }
        if quiet && queued >= self.shares.queue / 8 {
            self.freeze_if_nobody_writes(visible);
        } else {
            // What it cannot do for an error is told to whoever writes next.
            let _ = self.cleanse_for_scans(idle);
        }
    }

    fn freeze_if_nobody_writes(&self, visible: SeqNo) {
        let mut guard = self.log.lock();
        let Some(log) = guard.as_mut() else { return };
        if self.visible() != visible || self.state.load().frozen.is_some() {
            return;
        }
        // What fails for want of space is tried again by the next commit.
        let _ = self.freeze(log);
    }

    fn cleanse_for_scans(&self, idle: &mut Idle) -> Result<()> {
        let keyspaces: Vec<_> = self.state.load().version.trees.keys().copied().collect();
        let Some(first) = keyspaces.first() else { return Ok(()) };
        let (mut wrapped, mut work) = (false, None);
        while idle.debt * BYTES_A_PIECE > self.shares.hold
            && self.state.load().frozen.is_none()
            && !self.flush.stops()
        {
            let (keyspace, from) = idle.cursor.take().unwrap_or((*first, Bytes::new()));
            // From the first portion to the last: a cache that shrinks and grows with each would read its nodes again and again.
            work.get_or_insert_with(|| self.work());
            let mut guard = self.writer()?;
            let writer = guard.get()?;
            let (began, before) = (Instant::now(), writer.bytes_written());
            let next = self.cleanse_some_or_poison(writer, keyspace, from, 1)?;
            // Read once, written once.
            let spent = 2 * (writer.bytes_written() - before) / BYTES_A_PIECE;
            idle.debt = idle.debt.saturating_sub(spent.max(1));
            idle.cursor = match next {
                Some(next) => Some((keyspace, next)),
                None => keyspaces.iter().find(|other| **other > keyspace).map(|other| (*other, Bytes::new())),
            };
            drop(guard);
            self.rest(RESTS * began.elapsed());
            if idle.cursor.is_none() && std::mem::replace(&mut wrapped, true) {
                idle.debt = 0;
            }
        }
        Ok(())
    }
}
