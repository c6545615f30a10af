//! What the background thread does next. The choice is a pure function of a [`Load`]; [`crate::background`] looks at the
//! load, picks, and does it.
//!
//! ```text
//!    job                 when
//!    ─────────────────── after a flush has brought its queue to the trees, until it ends ───────────────────────────────
//! 1  append ahead        the next queue is frozen, and blocks are due: runs beside job 2, on the blocks that are not
//! 2  cleanse due         blocks are due; once the next queue is frozen, only as long as job 1 runs
//! 3  end flush           neither, or the flush has failed, or the database is being closed
//!    ─────────────────── while no flush is under way ───────────────────────────────────────────────────────────────────
//! 4  flush               a queue is frozen
//! 5  drop carry-over     none is, so what the last flush left for it is of no use
//! 6  give back           memory or space is kept for the next flush, and no writes come, or the last flush is long ago
//!    ─────────────────── at intervals from here on: the intervals become longer while nothing happens ──────────────────
//! 7  restore reserve     it is not whole, so puts are refused
//! 8  collect             no writes come, and flushes left more dead space than is tolerated at rest
//! 9  finish manifest     no writes come, and the next manifest was begun: until its end it takes memory and space
//! 10 take apart          the trees of dropped keyspaces, also while writes come
//! 11 freeze              no writes come, and a flush is worth it: readers miss what the queue's memory would hold, or
//!                        what is removed in the queue holds much space
//! 12 cleanse for scans   scans have charged blocks enough, also while writes come
//! 13 cleanse grown       no writes come: blocks whose log areas became long while the database grew. It begins a walk
//!    ─────────────────── in an interval ────────────────────────────────────────────────────────────────────────────────
//! 14 cleanse grown       the walk has rested for long enough, or no reads come
//! ```
//! A job is a portion of work, and the same job is picked again while it has more and nothing above it is to do.
//!
//! Invariants:
//! 1. After an interval, each of jobs 7 to 13 goes on until it has no more, or fails, and is not begun again.
//! 2. Nothing but jobs 3, 5 and 6 is picked while writes are refused. (A step of a flush fails then, which ends it.)
//! 3. A flush that has begun is ended, also when the database is closed.

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
    /// A step of the flush that is under way.
    InFlush(FlushStep),
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

/// What there is to do before a flush ends, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FlushStep {
    AppendAhead,
    CleanseDue,
    End,
}

/// The next job, or how long to wait before the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Job(Job),
    Wait(Duration),
    /// All is done after the interval that is over: the next one has begun.
    EndInterval,
    /// The database is being closed.
    Stop,
}

/// Whether the next queue is appended ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AppendAhead {
    #[default]
    NotBegun,
    Running,
    /// It has ended, or no thread was free for it.
    Over,
}

/// A flush whose queue is in the trees, or that has failed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlushLoad {
    /// Whether it has failed, or the database is being closed.
    pub is_over: bool,
    /// Whether blocks are due.
    pub has_due: bool,
    /// Whether the next queue is frozen.
    pub has_next: bool,
    pub append_ahead: AppendAhead,
}

/// What the background thread sees.
#[derive(Clone, Debug, Default)]
pub(crate) struct Load {
    /// The flush that is under way.
    pub flush: Option<FlushLoad>,
    pub stops: bool,
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
    /// Time until the walk over grown blocks, if one is under way, goes on or has to be looked at again.
    pub walk: Option<Duration>,
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
    /// Whether scans have charged any block enough.
    pub has_charged: bool,
    /// The last job that has no more to do after this interval.
    pub done: Option<Job>,
}

impl Interval {
    fn wants(&self, job: Job) -> bool {
        match job {
            Job::RestoreReserve => !self.is_reserve_whole,
            Job::Collect => self.is_quiet && self.has_to_collect,
            Job::FinishManifest => self.is_quiet && self.has_next_manifest,
            Job::TakeApart => self.has_dropped_trees,
            Job::Freeze => self.is_quiet && self.is_flush_worthwhile(),
            Job::CleanseForScans => self.has_charged,
            Job::CleanseGrown => self.is_quiet,
            Job::InFlush(_) | Job::Flush | Job::DropCarryOver | Job::GiveBack => false,
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
    if let Some(flush) = &load.flush {
        return Choice::Job(Job::InFlush(pick_in_flush(flush)));
    }
    if load.stops {
        return Choice::Stop;
    }
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
        let walk = load.walk.filter(|_| load.is_writable);
        if walk == Some(Duration::ZERO) {
            return Choice::Job(Job::CleanseGrown);
        }
        let until_still = if load.keeps_something { STILL - load.still } else { Duration::MAX };
        return Choice::Wait(load.left.min(until_still).min(walk.unwrap_or(Duration::MAX)));
    };
    let next = OF_AN_INTERVAL
        .into_iter()
        .filter(|job| interval.done.is_none_or(|done| *job > done))
        .filter(|job| *job != Job::CleanseGrown || load.walk.is_none())
        .find(|job| load.is_writable && interval.wants(*job));
    next.map_or(Choice::EndInterval, Choice::Job)
}

/// The same while a flush is under way, as the first three lines of the table.
pub(crate) fn pick_in_flush(load: &FlushLoad) -> FlushStep {
    if load.is_over || !load.has_due {
        return FlushStep::End;
    }
    match (load.has_next, load.append_ahead) {
        (true, AppendAhead::NotBegun) => FlushStep::AppendAhead,
        (true, AppendAhead::Over) => FlushStep::End,
        (true, AppendAhead::Running) | (false, _) => FlushStep::CleanseDue,
    }
}

/// The length of the next interval: where nothing happens, twice this one's.
pub(crate) fn next_interval(length: Duration, seen: &Interval) -> Duration {
    if seen.is_quiet && seen.missed == 0 && !seen.has_charged && !seen.has_dropped_trees {
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
            has_charged: has("charged"),
            done: None,
        };
        let flush = FlushLoad {
            is_over: has("failed") || has("closes"),
            has_due: has("due"),
            has_next: has("frozen"),
            append_ahead: match () {
                () if has("appending") => AppendAhead::Running,
                () if has("appended") => AppendAhead::Over,
                () => AppendAhead::NotBegun,
            },
        };
        Load {
            flush: has("flushed").then_some(flush),
            stops: has("closes"),
            is_writable: !has("refused"),
            has_frozen: has("frozen"),
            has_carry_over: has("carry-over"),
            keeps_something: has("keeps"),
            still: if has("still") { STILL } else { STILL / 2 },
            interval: has("over").then_some(interval),
            left: INTERVAL / 2,
            walk: match () {
                () if has("rested") => Some(Duration::ZERO),
                () if has("rests") => Some(STILL / 4),
                () => None,
            },
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
                Choice::EndInterval | Choice::Stop => {
                    jobs.push(format!("{:?}", pick(&load)));
                    return jobs.join(", ");
                }
                Choice::Job(Job::InFlush(step)) => {
                    jobs.push(format!("{step:?}"));
                    let flush = load.flush.as_mut().unwrap();
                    match step {
                        FlushStep::AppendAhead => flush.append_ahead = AppendAhead::Running,
                        // All of it.
                        FlushStep::CleanseDue => flush.has_due = false,
                        FlushStep::End => load.flush = None,
                    }
                }
                Choice::Job(job) => {
                    jobs.push(format!("{job:?}"));
                    match job {
                        Job::Flush => load.has_frozen = false,
                        Job::DropCarryOver => load.has_carry_over = false,
                        Job::GiveBack => load.still = Duration::ZERO,
                        // It has no more.
                        Job::CleanseGrown if load.interval.is_none() => load.walk = None,
                        _ => load.interval.as_mut().unwrap().done = Some(job),
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
            ("frozen quiet dead charged short", "Flush, wait 500 ms"),
            ("over", "EndInterval"),
            ("over quiet", "CleanseGrown, EndInterval"),
            ("over dead manifest removed misses queued", "EndInterval"),
            ("over dropped charged", "TakeApart, CleanseForScans, EndInterval"),
            ("over short charged", "RestoreReserve, CleanseForScans, EndInterval"),
            ("over quiet misses", "CleanseGrown, EndInterval"),
            ("over quiet misses queued", "Freeze, CleanseGrown, EndInterval"),
            (
                "over quiet short dead manifest removed charged",
                "RestoreReserve, Collect, FinishManifest, Freeze, CleanseForScans, CleanseGrown, EndInterval",
            ),
            ("refused frozen over quiet short dead charged", "EndInterval"),
            ("refused carry-over keeps still", "DropCarryOver, GiveBack, wait 250 ms"),
            // A walk is under way.
            ("rests", "wait 62 ms"),
            ("rests keeps still", "GiveBack, wait 62 ms"),
            ("rested", "CleanseGrown, wait 500 ms"),
            ("rested keeps still frozen", "Flush, GiveBack, CleanseGrown, wait 250 ms"),
            ("rested over quiet charged", "CleanseForScans, EndInterval"),
            ("refused rested", "wait 500 ms"),
            // A queue is in the trees.
            ("flushed", "End, wait 500 ms"),
            ("flushed due", "CleanseDue, End, wait 500 ms"),
            ("flushed frozen", "End, Flush, wait 500 ms"),
            ("flushed frozen due", "AppendAhead, CleanseDue, End, Flush, wait 500 ms"),
            ("flushed frozen due appending", "CleanseDue, End, Flush, wait 500 ms"),
            ("flushed frozen due appended", "End, Flush, wait 500 ms"),
            ("flushed due appended", "CleanseDue, End, wait 500 ms"),
            ("flushed frozen due failed refused", "End, wait 500 ms"),
            ("flushed frozen due carry-over over quiet closes", "End, Stop"),
            ("frozen carry-over keeps still closes", "Stop"),
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
        for words in ["over", "over quiet misses", "over quiet charged"] {
            assert_eq!(next_interval(INTERVAL_MAX, &seen(words)), INTERVAL);
        }
    }
}
