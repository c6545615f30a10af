//! Reports each flush as one trace event when it ends (`tracing`, target `sapwood::flush`, level DEBUG). It
//! explains why writers wait, and where written bytes come from. The series of events shows more than sums do:
//! faults of pacing and memory showed up in no other way.
//!
//! ```text
//! queue frozen ──append──▶ in the trees ──collect, cleanse what is due──▶ over        in_trees_ms, took_ms
//! ```
//! Invariant: without a listener, the only cost is checking whether there is one.

use crate::background::context::WorkContext;
use crate::log_area::Lengths;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const TARGET: &str = "sapwood::flush";

/// The data collected for the event. `None` without a listener.
pub(super) struct FlushEvent(Option<Baseline>);

struct Baseline {
    at: Instant,
    in_trees: Duration,
    /// The counters when the flush began.
    before: [u64; COUNTED],
}

/// Number of counters whose difference a flush event reports: those of [`counted`].
const COUNTED: usize = 7;

fn counted(ctx: &WorkContext) -> [u64; COUNTED] {
    let counters = &ctx.flush.counters;
    let get = |counter: &AtomicU64| counter.load(Relaxed);
    [
        get(&counters.changes),
        get(&counters.changes_ahead),
        get(&counters.change_bytes),
        get(&counters.blocks_appended),
        get(&counters.blocks_cleansed),
        ctx.writer.bytes_written(),
        get(&counters.collected_bytes),
    ]
}

impl FlushEvent {
    pub fn begin(ctx: &WorkContext) -> Self {
        let listens = tracing::enabled!(target: TARGET, tracing::Level::DEBUG);
        let begun = || Baseline { at: Instant::now(), in_trees: Duration::ZERO, before: counted(ctx) };
        Self(listens.then(begun))
    }

    /// The queue is in the trees.
    pub fn in_trees(&mut self) {
        if let Some(begun) = &mut self.0 {
            begun.in_trees = begun.at.elapsed();
        }
    }

    /// The flush has ended. `due` blocks were due, and `left` of them have not been cleansed.
    pub fn end(self, ctx: &WorkContext, lengths: Lengths, due: usize, left: usize) {
        let Some(Baseline { at, in_trees, before }) = self.0 else { return };
        let now = counted(ctx);
        let [changes, ahead, bytes, appended, cleansed, written, collected] =
            std::array::from_fn(|index| now[index].saturating_sub(before[index]));
        tracing::debug!(
            target: TARGET,
            changes,
            ahead,
            bytes,
            appended,
            cleansed,
            due,
            left,
            written,
            collected,
            share = lengths.share,
            weight_of_new = lengths.fresh,
            in_trees_ms = in_trees.as_millis() as u64,
            took_ms = at.elapsed().as_millis() as u64,
            "flushed"
        );
    }
}
