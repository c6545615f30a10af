//! Cleansing of what has become long while the database grew. New records take no other's place in a log area, so that it costs no space, and while writers are at work areas
//! are let grow with them ([`crate::advisor`]); but whoever scans reads their pieces, and their tables take memory. So when nobody writes, blocks are cleansed that have new records
//! in their log areas for a quarter of their leaves, as much as areas of changes have at most: that is what bringing them to the leaves would have cost in any case.
//!
//! It is a walk through all blocks in key order, some at a time, and rests beside readers. It is begun when much is new, and then not again before as much has come since.
//!
//! While a snapshot holds much that is no longer current it does not go on: each old copy would be kept.
//!
//! Invariant: a frozen queue, and closing, wait for one portion at most.

use crate::budget::{Need, Work};
use crate::engine::Engine;
use crate::error::Result;
use crate::store::stage::Mark;
use crate::store::version::Version;
use crate::tree::logged;
use crate::tree::sweep::beyond;
use crate::tree::view::TreeView;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// New records in a log area that are worth its cleansing, in percent of the leaves.
const WORTH: u64 = 25;
/// Of what lives, new records in log areas that are worth a walk.
const MUCH: u64 = 16;
/// Blocks that are looked at together.
const SOME: usize = 32;

/// Of the segments, and a few more: what older versions may hold besides while it goes on.
const HELD: usize = 8;
const FEW_SLOTS: usize = 8;

/// How far a walk has come.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    at: Option<Mark>,
    /// Bytes of new records that the last walk has left in log areas.
    left: u64,
    /// How long its last portion was at work, without what it waited for the writer and rested.
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

impl Engine {
    /// Cleanses some of the blocks that have grown, with memory that the first of them takes. Says whether there is more to do now.
    pub fn cleanse_grown<'a>(&'a self, growth: &mut Growth, work: &mut Option<Work<'a>>) -> Result<bool> {
        let version = Arc::clone(&self.state.load().version);
        let fresh = version.logs.totals().fresh;
        growth.left = growth.left.min(fresh);
        // What a disk refuses, to read or to write, is not asked for again and again.
        let done = self.cleanse_next_grown(version, growth, work);
        done.inspect_err(|_| *growth = Growth { left: fresh, ..Growth::default() })
    }

    fn cleanse_next_grown<'a>(
        &'a self,
        version: Arc<Version>,
        growth: &mut Growth,
        work: &mut Option<Work<'a>>,
    ) -> Result<bool> {
        let fresh = version.logs.totals().fresh;
        if growth.at.is_none() && fresh - growth.left <= version.live_bytes() / MUCH {
            return Ok(false);
        }
        // A snapshot would keep the old copies of all that is cleansed.
        let segments = version.segments.count();
        if self.slots.used() > segments + segments / HELD + FEW_SLOTS {
            return Ok(false);
        }
        let (first, from) = growth.at.take().unwrap_or_default();
        let Some((&keyspace, _)) = version.trees.range(first..).next() else {
            growth.left = fresh;
            return Ok(false);
        };
        let view = TreeView { pager: &self.pager, version: &version, keyspace };
        let (began, rested) = (Instant::now(), self.flush.time_rested());
        let mut waited = Duration::ZERO;
        let from = if keyspace == first { from } else { Default::default() };
        let (due, next) = logged::grown(view, from, WORTH, SOME)?;
        drop(version);
        let mut left = &due[..];
        if !due.is_empty() {
            work.get_or_insert_with(|| self.work(self.cleansing_max()));
            let waits = Instant::now();
            let mut guard = self.writer(Need::default())?;
            waited = waits.elapsed();
            self.or_poison(|| self.cleanse_due(guard.get()?, &mut left))?;
        }
        let idle = waited + self.flush.time_rested().saturating_sub(rested);
        growth.took = began.elapsed().saturating_sub(idle);
        let undone = left.first().map(|due| (due.keyspace, due.low.clone()));
        let at = undone.unwrap_or_else(|| beyond(keyspace, next));
        if at.0 == keyspace && at.1.is_empty() && left.is_empty() {
            // Behind the last keyspace that there can be.
            growth.left = fresh;
            return Ok(false);
        }
        // The last of all ends the walk when it is looked for.
        growth.at = Some(at);
        Ok(left.is_empty())
    }
}
