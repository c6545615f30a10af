//! What the background thread does next. The choice is a pure function of a [`Load`]; [`crate::background`] looks at the
//! load, picks, and does it.
//!
//! ```text
//!    job                 when
//!    ─────────────────── ───────────────────────────────────────────────────────────────────────────────────────────────
//! 1  flush               a queue is frozen
//! 2  drop carry-over     none is, so what the last flush left for it is of no use
//! 3  give back           memory or space is kept for the next flush, and no writes come, or the last flush is long ago
//!    ─────────────────── at intervals from here on: the intervals become longer while nothing happens ──────────────────
//! 4  restore reserve     it is not whole, so puts are refused
//! 5  collect             no writes come, and flushes left more dead space than is tolerated at rest
//! 6  finish manifest     no writes come, and the next manifest was begun: until its end it takes memory and space
//! 7  take apart          the trees of dropped keyspaces, also while writes come
//! 8  freeze              no writes come, and a flush is worth it: readers miss what the queue's memory would hold, or
//!                        what is removed in the queue holds much space
//! 9  cleanse for scans   scans have paid for blocks, also while writes come
//! 10 cleanse grown       no writes come: blocks whose log areas became long while the database grew
//! ```
//! Invariants:
//! 1. Each job is done at most once in an interval, and ends soon after a queue is frozen.
//! 2. Nothing but jobs 2 and 3 is picked while writes are refused.

use std::time::Duration;

/// The interval between checks: when something happens, and when nothing does.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);
pub(crate) const INTERVAL_MAX: Duration = Duration::from_secs(64);
/// How long no write must have come before space kept for the next flush is given back; also how long memory is
/// kept for the next queue.
pub(crate) const STILL: Duration = Duration::from_millis(250);
/// After this time since the last flush, space is given back even while others write: the next flush is far
/// away.
pub(crate) const LONG_AGO: Duration = Duration::from_secs(10);
/// Number of device reads per interval that make a flush worthwhile, because the memory of the queue would have saved some
/// of them.
const MISSES: u64 = 100;

/// What there is to do, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Job {
    Flush,
    DropCarryOver,
    GiveBack,
    RestoreReserve,
    Collect,
    FinishManifest,
    TakeApart,
    Freeze,
    CleanseForScans,
    CleanseGrown,
}

/// The next job, or how long to wait before the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Job(Job),
    Wait(Duration),
}

/// What the background thread sees.
#[derive(Clone, Debug, Default)]
pub(crate) struct Load {
    pub is_writable: bool,
    pub has_frozen: bool,
    pub has_carry_over: bool,
    /// Whether memory or space is kept for the next flush.
    pub keeps_something: bool,
    /// Time since it was last looked whether writes come.
    pub still: Duration,
    /// What was seen in this interval, once it is over.
    pub interval: Option<Interval>,
    /// Time until it is.
    pub left: Duration,
    /// The last job done in this interval.
    pub done: Option<Job>,
}

/// An interval that is over, and what there is to do after it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interval {
    /// Whether no writes came.
    pub is_quiet: bool,
    /// Nodes that readers waited for.
    pub missed: u64,
    pub is_reserve_whole: bool,
    pub has_to_collect: bool,
    pub has_next_manifest: bool,
    /// Whether dropped trees have nodes.
    pub has_dropped_trees: bool,
    /// Whether much waits in the queue.
    pub is_much_queued: bool,
    /// Whether removals in the queue hold much space.
    pub is_much_removed: bool,
    /// Whether scans have paid for blocks.
    pub has_paid: bool,
}

impl Interval {
    fn wants(&self, job: Job) -> bool {
        match job {
            Job::RestoreReserve => !self.is_reserve_whole,
            Job::Collect => self.is_quiet && self.has_to_collect,
            Job::FinishManifest => self.is_quiet && self.has_next_manifest,
            Job::TakeApart => self.has_dropped_trees,
            Job::Freeze => self.is_quiet && self.is_flush_worthwhile(),
            Job::CleanseForScans => self.has_paid,
            Job::CleanseGrown => self.is_quiet,
            Job::Flush | Job::DropCarryOver | Job::GiveBack => false,
        }
    }

    fn is_flush_worthwhile(&self) -> bool {
        (self.missed >= MISSES && self.is_much_queued) || self.is_much_removed
    }
}

const OF_AN_INTERVAL: [Job; 7] = [
    Job::RestoreReserve,
    Job::Collect,
    Job::FinishManifest,
    Job::TakeApart,
    Job::Freeze,
    Job::CleanseForScans,
    Job::CleanseGrown,
];

/// See the module documentation.
pub(crate) fn pick(load: &Load) -> Choice {
    if load.has_frozen && load.is_writable {
        return Choice::Job(Job::Flush);
    }
    if load.has_carry_over {
        return Choice::Job(Job::DropCarryOver);
    }
    if load.keeps_something && load.still >= STILL {
        return Choice::Job(Job::GiveBack);
    }
    let Some(interval) = &load.interval else {
        let until_still = if load.keeps_something { STILL - load.still } else { Duration::MAX };
        return Choice::Wait(load.left.min(until_still));
    };
    let next = OF_AN_INTERVAL
        .into_iter()
        .filter(|job| load.done.is_none_or(|done| *job > done))
        .find(|job| load.is_writable && interval.wants(*job));
    next.map_or(Choice::Wait(Duration::ZERO), Choice::Job)
}

/// The length of the next interval: where nothing happens, twice this one's.
pub(crate) fn next_interval(length: Duration, seen: &Interval) -> Duration {
    if seen.is_quiet && seen.missed == 0 && !seen.has_paid && !seen.has_dropped_trees {
        (2 * length).min(INTERVAL_MAX)
    } else {
        INTERVAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load in words: what is named is so.
    fn load(words: &str) -> Load {
        let has = |word| words.split_whitespace().any(|found| found == word);
        let interval = Interval {
            is_quiet: has("quiet"),
            missed: if has("misses") { MISSES } else { 0 },
            is_reserve_whole: !has("short"),
            has_to_collect: has("dead"),
            has_next_manifest: has("manifest"),
            has_dropped_trees: has("dropped"),
            is_much_queued: has("queued"),
            is_much_removed: has("removed"),
            has_paid: has("paid"),
        };
        Load {
            is_writable: !has("refused"),
            has_frozen: has("frozen"),
            has_carry_over: has("carry-over"),
            keeps_something: has("keeps"),
            still: if has("still") { STILL } else { STILL / 2 },
            interval: has("over").then_some(interval),
            left: INTERVAL / 2,
            done: None,
        }
    }

    /// All that is picked, one after the other, until it waits.
    fn picked(words: &str) -> String {
        let mut load = load(words);
        let mut jobs = Vec::new();
        loop {
            match pick(&load) {
                Choice::Wait(time) => {
                    jobs.push(format!("wait {} ms", time.as_millis()));
                    return jobs.join(", ");
                }
                Choice::Job(job) => {
                    jobs.push(format!("{job:?}"));
                    match job {
                        Job::Flush => load.has_frozen = false,
                        Job::DropCarryOver => load.has_carry_over = false,
                        Job::GiveBack => load.still = Duration::ZERO,
                        _ => load.done = Some(job),
                    }
                }
            }
        }
    }

    #[test]
    fn the_table_holds() {
        let table = [
            ("", "wait 500 ms"),
            ("keeps", "wait 125 ms"),
            ("keeps still", "GiveBack, wait 250 ms"),
            ("frozen carry-over keeps still", "Flush, DropCarryOver, GiveBack, wait 250 ms"),
            // Until an interval is over, nothing else is looked at.
            ("frozen quiet dead paid short", "Flush, wait 500 ms"),
            ("over", "wait 0 ms"),
            ("over quiet", "CleanseGrown, wait 0 ms"),
            ("over dead manifest removed misses queued", "wait 0 ms"),
            ("over dropped paid", "TakeApart, CleanseForScans, wait 0 ms"),
            ("over short paid", "RestoreReserve, CleanseForScans, wait 0 ms"),
            ("over quiet misses", "CleanseGrown, wait 0 ms"),
            ("over quiet misses queued", "Freeze, CleanseGrown, wait 0 ms"),
            (
                "over quiet short dead manifest removed paid",
                "RestoreReserve, Collect, FinishManifest, Freeze, CleanseForScans, CleanseGrown, wait 0 ms",
            ),
            ("refused frozen over quiet short dead paid", "wait 0 ms"),
            ("refused carry-over keeps still", "DropCarryOver, GiveBack, wait 250 ms"),
        ];
        for (words, jobs) in table {
            assert_eq!(picked(words), jobs, "{words:?}");
        }
    }

    #[test]
    fn intervals_become_longer_while_nothing_happens() {
        let seen = |words| load(words).interval.unwrap();
        assert_eq!(next_interval(INTERVAL, &seen("over quiet")), 2 * INTERVAL);
        assert_eq!(next_interval(INTERVAL_MAX, &seen("over quiet dead")), INTERVAL_MAX);
        for words in ["over", "over quiet misses", "over quiet paid"] {
            assert_eq!(next_interval(INTERVAL_MAX, &seen(words)), INTERVAL);
        }
    }
}
