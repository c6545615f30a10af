//! What a flush tells of itself when it is over: one event each (`tracing`, target `sapwood::flush`, level DEBUG), for whoever wonders why
//! writers wait, or where the bytes come from. A picture of all of them is worth more than sums: faults of pacing and of memory showed in no
//! other way.
//!
//! ```text
//! queue frozen ──append──▶ in the trees ──collect, cleanse what is due──▶ over        in_trees_ms, took_ms
//! ```
//! Invariant: where nobody listens it costs nothing but the question whether somebody does.

use crate::engine::Engine;
use crate::tree::sweep::Lengths;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const TARGET: &str = "sapwood::flush";

/// What a flush has to tell so far; `None` where nobody listens.
pub(super) struct Told(Option<Begun>);

struct Begun {
    at: Instant,
    in_trees: Duration,
    /// The counters as they were.
    before: [u64; COUNTED],
}

const COUNTED: usize = 7;

fn counted(engine: &Engine) -> [u64; COUNTED] {
    let counters = &engine.flush.counters;
    let get = |counter: &AtomicU64| counter.load(Relaxed);
    [
        get(&counters.changes),
        get(&counters.changes_ahead),
        get(&counters.change_bytes),
        get(&counters.blocks_appended),
        get(&counters.blocks_cleansed),
        engine.data_bytes_written(),
        get(&counters.collected_bytes),
    ]
}

impl Told {
    pub fn begin(engine: &Engine) -> Self {
        let listens = tracing::enabled!(target: TARGET, tracing::Level::DEBUG);
        let begun = || Begun { at: Instant::now(), in_trees: Duration::ZERO, before: counted(engine) };
        Self(listens.then(begun))
    }

    /// The queue is in the trees.
    pub fn in_trees(&mut self) {
        if let Some(begun) = &mut self.0 {
            begun.in_trees = begun.at.elapsed();
        }
    }

    /// The flush is over, and of so many blocks that were due some are left.
    pub fn end(self, engine: &Engine, lengths: Lengths, due: usize, left: usize) {
        let Some(Begun { at, in_trees, before }) = self.0 else { return };
        let now = counted(engine);
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
