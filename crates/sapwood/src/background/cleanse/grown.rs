//! Cleanses log areas that became long while the database grew. A new record in a log area replaces no other
//! record, so it costs no space, and while writers are active such areas are allowed to grow
//! ([`crate::flow::log_area_tuning`]). But scans must read their pieces, and their tables take memory. So while no writes come,
//! blocks are cleansed whose log areas hold new records for a quarter of their leaves. That is as much as areas
//! of changes may have at most, so moving them to the leaves at that point would have been necessary anyway.
//!
//! It walks through all blocks in key order, some at a time, and rests while others read. A walk begins when
//! there is much that is new, and the next one only when as much has come again.
//!
//! The walk pauses while a snapshot holds much that is no longer current, because every old copy would be kept.
//!
//! Invariant: a frozen queue, and closing, wait for at most one portion.

use super::Cleanser;
use crate::cache::prefetch_buffer::KeyPosition;
use crate::error::Result;
use crate::flow::memory::{Need, Reservation};
use crate::tree::candidates;
use crate::tree::cleansing_cursor::beyond;
use crate::tree::view::TreeView;
use crate::version::Version;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A log area with this much new records, in percent of the leaves, is worth cleansing.
const WORTH: u64 = 25;
/// A walk is worthwhile when new records in log areas exceed this fraction (1/16) of live data.
const MUCH: u64 = 16;
/// Blocks examined together (count): so few that the version which they are looked up in is soon dropped.
const SOME: usize = 32;

/// The progress of a walk.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    at: Option<KeyPosition>,
    /// Bytes of new records that the last walk left in log areas.
    left: u64,
    /// How long the last portion worked, without waiting for the writer and without rests.
    took: Duration,
}

impl Growth {
    pub fn took(&self) -> Duration {
        self.took
    }

    #[cfg(test)]
    pub fn is_begun(&self) -> bool {
        self.at.is_some()
    }
}

impl Cleanser {
    /// Cleanses some of the grown blocks, with memory reserved by the first of them. Returns whether there is
    /// more to do now.
    pub fn cleanse_grown(&self, growth: &mut Growth, work: &mut Option<Reservation>) -> Result<bool> {
        let version = self.ctx.state.version();
        let fresh = version.logs.totals().fresh;
        growth.left = growth.left.min(fresh);
        // If the disk refuses to read or write, do not try again and again.
        let done = self.cleanse_next_grown(version, growth, work);
        done.inspect_err(|_| *growth = Growth { left: fresh, ..Growth::default() })
    }

    fn cleanse_next_grown(
        &self,
        version: Arc<Version>,
        growth: &mut Growth,
        work: &mut Option<Reservation>,
    ) -> Result<bool> {
        let fresh = version.logs.totals().fresh;
        if growth.at.is_none() && fresh - growth.left <= version.live_bytes() / MUCH {
            return Ok(false);
        }
        // A snapshot would keep the old copies of everything that is cleansed.
        if self.ctx.space.is_much_pinned() {
            return Ok(false);
        }
        let (first, from) = growth.at.take().unwrap_or_default();
        let Some((keyspace, _)) = version.trees.from(first).next() else {
            growth.left = fresh;
            return Ok(false);
        };
        let view = TreeView { pager: &self.ctx.pager, version: &version, keyspace };
        let (began, rested) = (Instant::now(), self.ctx.flush.time_rested());
        let mut waited = Duration::ZERO;
        let from = if keyspace == first { from } else { Default::default() };
        let (due, next) = candidates::grown(view, from, WORTH, SOME)?;
        drop(version);
        let mut left = &due[..];
        if !due.is_empty() {
            work.get_or_insert_with(|| self.ctx.memory.work(self.cleansing_max()));
            let waits = Instant::now();
            let mut guard = self.ctx.writer.lock(Need::default())?;
            waited = waits.elapsed();
            self.ctx.or_poison(|| self.cleanse_due(guard.get()?, &mut left))?;
        }
        let idle = waited + self.ctx.flush.time_rested().saturating_sub(rested);
        growth.took = began.elapsed().saturating_sub(idle);
        let undone = left.first().map(|due| (due.keyspace, due.low.clone()));
        let at = undone.unwrap_or_else(|| beyond(keyspace, next));
        if at.0 == keyspace && at.1.is_empty() && left.is_empty() {
            // After the last keyspace that can exist.
            growth.left = fresh;
            return Ok(false);
        }
        // The walk ends when the next keyspace is looked for and there is none.
        growth.at = Some(at);
        Ok(left.is_empty())
    }
}
