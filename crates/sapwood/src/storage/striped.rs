//! Counters that many threads count up without getting in each other's way: each has copies for some of the
//! threads, far enough apart that no two share a cache line.
//!
//! A line that two processors write by turns costs each of them some 100 ns a time, and a get of a cached record takes
//! 200 ns in all (research/docs/notebook.md, "Two threads that read what is in memory").
//!
//! Invariant: what a thread has counted is in all totals that it takes later.

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Copies: threads whose numbers are the same modulo this share one.
const STRIPES: usize = 16;

/// See the module. `T` is a struct of counters.
#[derive(Debug, Default)]
pub(crate) struct Striped<T>([CachePadded<T>; STRIPES]);

/// The number of this thread.
fn number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Relaxed));
    // At the end of a thread it may be gone already.
    NUMBER.try_with(|number| *number).unwrap_or_default()
}

impl<T> Striped<T> {
    /// The counters that this thread counts up.
    pub fn mine(&self) -> &T {
        &self.0[number() % STRIPES]
    }

    /// What all threads have counted.
    pub fn total(&self, counter: impl Fn(&T) -> &AtomicU64) -> u64 {
        self.0.iter().map(|stripe| counter(stripe).load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_was_counted_is_in_the_total() {
        let counters: Striped<AtomicU64> = Striped::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * STRIPES {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counters.mine().fetch_add(1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(counters.total(|counter| counter), 2000 * STRIPES as u64);
    }
}
