//! The tuning of log areas: decides how long log areas may become, from what the recent workload has charged for them.
//!
//! Each byte of an update is written to the log and to a log piece in any case. When a block's pieces reach the
//! share `s` of its leaves, the leaves are read and rewritten: `1/s` bytes of each per byte of update. A range
//! scan charges read cost for the pieces that it passes ([`crate::log_area::read_cost`]); their number is proportional to `s`.
//! Blocks whose read cost has reached their price are cleansed individually, whatever the share. Let `F` be the
//! bytes of updates between two flushes, and `R` the bytes of read cost in all other blocks while the share was
//! `s₀`. Then the bytes moved because of the share are
//!
//! ```text
//! cost(s) = 2 F / s  +  R s / s₀            least at  s = √(2 F s₀ / R)
//! ```
//! Space grows by `s/2`, which bounds the share from above.
//!
//! A new record in a log piece takes no extra space, because it exists nowhere else. The bound for new records
//! is memory: the log area keeps a hash for each change and a fence for each piece. So new records have a share
//! of their own. They weigh less than records that hide older ones, by the ratio of the two shares
//! ([`crate::tree::cleansing_cursor::LogBytes`]). Where a database grows and no scans come, log areas become several times
//! longer, and later changes find room beside the new records. When no writes come, such long areas are cleansed
//! ([`crate::background::cleanse`]). A sample of each queue shows whether the database grows ([`crate::tree::sample`]).
//!
//! (This is the cost model of the PIO B-tree, VLDB 2011, section 4, which weighs searches against batch
//! updates, extended by log areas; docs/cost-model.md has prediction and measurement.)

use crate::estimator::Estimator;
use crate::log_area::{Lengths, NewShare};
use crate::operation::KeyspaceId;
use crate::version::Version;
use std::collections::BTreeMap;

/// Limits of the share, in percent of weighted bytes. More would take too much space;
const SHARE_MAX: u64 = 24;
/// less (percent) would amount to no log area.
const SHARE_MIN: u64 = 6;
/// The maximum share of new records, in percent of the leaves, in a database that is small compared to its
/// memory. More would save little, and a scan would have many pieces to read.
const NEW_MAX: u64 = 200;
/// The same percentage (percent of the leaves) in a large database, where tables of log areas would take too much
/// memory.
const NEW_MAX_IF_LARGE: u64 = 65;
/// The part of the budget (1/13) that log area tables may take because of new records.
const TABLES: u64 = 13;
/// Bytes of tables per thousand bytes of log, until measured.
const TABLES_OF_LOG: u64 = 36;

/// Follows the workload from flush to flush.
#[derive(Debug)]
pub(crate) struct LogAreaTuning {
    share: Estimator<2>,
    /// The share of new records.
    new_share: Estimator<2>,
    /// How many in ten thousand changes are new records, as of the latest samples: over all keyspaces,
    fresh: Estimator<REMEMBERED>,
    /// and of each.
    fresh_of: BTreeMap<KeyspaceId, Estimator<REMEMBERED>>,
    /// How many of these there were when those of dropped keyspaces were forgotten last.
    were: usize,
    /// Thousandths of a queue's bytes that come to the trees, which take only the newest version of each key: of the
    /// newest queue alone, over all of whose keys it is a mean.
    newest: u64,
    /// Read cost without cleansing at the time of the last query.
    read_cost: u64,
}

/// How many sampled changes of a keyspace are remembered. A sample sees only one or two changes of a keyspace
/// that has few among many others. Such a keyspace may hold most of the data, so several samples are combined.
const REMEMBERED: u32 = 16;
/// Fewer sampled changes say nothing about a keyspace. A few are enough, because a log area has runs from
/// several flushes, whose errors go in either direction.
const ENOUGH: u32 = 4;
/// So many more keyspaces are sampled before it is looked which are dropped by now (count): some 50 KiB, and as many as one sample may have.
const MORE: usize = 1000;

/// New records in ten thousand changes, if they are so many of `of`.
fn per_ten_thousand(new: u64, of: u64) -> f64 {
    new.min(of) as f64 * 10_000.0 / of.max(1) as f64
}

fn percent(in_ten_thousand: u64) -> u64 {
    (in_ten_thousand + 50) / 100
}

impl Default for LogAreaTuning {
    fn default() -> Self {
        // The starting assumption: a young database grows.
        Self {
            share: Estimator::assuming(SHARE_MAX),
            new_share: Estimator::assuming(NEW_MAX),
            fresh: Estimator::default(),
            fresh_of: BTreeMap::new(),
            were: 0,
            newest: 1000,
            read_cost: 0,
        }
    }
}

impl LogAreaTuning {
    /// Returns the lengths of log areas for a flush of `flushed` bytes. `read_cost` is the read cost that range scans
    /// have charged since the database was opened and that led to no cleansing. `new_max` is the maximum share of
    /// new records, in percent of the leaves. The shares move only half of the way to the optimum each time,
    /// because one flush says little.
    pub fn lengths(&mut self, flushed: u64, read_cost: u64, new_max: u64) -> Lengths {
        // What was charged earlier may have been discharged since.
        let charged = read_cost.saturating_sub(std::mem::replace(&mut self.read_cost, read_cost));
        let [hiding, new] =
            [(&mut self.share, SHARE_MAX), (&mut self.new_share, new_max)].map(|(share, most)| {
                share.see(best(flushed, charged, share.or_zero(), most));
                share.limit(most);
                share.or_zero()
            });
        Lengths { share: hiding, fresh: (hiding * 100 / new.max(1)).min(100) }
    }

    /// Records how many thousandths of a whole queue's bytes came to the trees.
    pub fn note_newest(&mut self, newest: u64) {
        self.newest = newest;
    }

    /// The same, as expected of the next queue.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Records how many of a flush's changes were new records. `is_there`: whether a keyspace is not dropped.
    pub fn note_fresh(&mut self, fresh: NewShare, is_there: impl Fn(KeyspaceId) -> bool) {
        if self.fresh_of.len() >= 2 * self.were + MORE {
            self.fresh_of.retain(|keyspace, _| is_there(*keyspace));
            self.were = self.fresh_of.len();
        }
        self.fresh
            .see_mean(per_ten_thousand(fresh.all, 100), fresh.each.iter().map(|(_, seen)| seen.of).sum());
        for (keyspace, seen) in fresh.each {
            self.fresh_of.entry(keyspace).or_default().see_mean(per_ten_thousand(seen.new, seen.of), seen.of);
        }
    }

    /// The percentage of new records expected in the next flush. All, before anything is known: a young database grows.
    pub fn fresh(&self) -> u64 {
        self.fresh.get(1).map_or(100, percent)
    }

    /// The same for one keyspace. Falls back to the figure for all if too little of the keyspace has been
    /// sampled.
    pub fn fresh_of(&self, keyspace: KeyspaceId) -> u64 {
        self.fresh_of.get(&keyspace).and_then(|known| known.get(ENOUGH)).map_or(self.fresh(), percent)
    }
}

/// The share that would have cost least, up to `most`.
fn best(flushed: u64, read_cost: u64, share: u64, most: u64) -> u64 {
    let square = (u128::from(2 * flushed) * u128::from(share) * 100).checked_div(u128::from(read_cost));
    let share = square.map_or(most, |square| square.isqrt().min(u128::from(most)) as u64);
    share.max(SHARE_MIN)
}

/// The maximum share of new records, in percent of the leaves, for this version and memory budget. While log
/// areas fill up, their tables take on average what half as much would.
pub(crate) fn new_max(version: &Version, memory: u64) -> u64 {
    let (logged, live) = (version.logs.totals().bytes, version.live_bytes());
    let known = (version.logs.memory() as u64 * 1000).checked_div(logged).filter(|_| logged > memory / 64);
    let tables_of_all = live.saturating_mul(known.unwrap_or(TABLES_OF_LOG).max(1)) / 1000;
    // Of all that lives, in percent.
    let logged_max = (memory / TABLES).saturating_mul(100).checked_div(tables_of_all).unwrap_or(100).min(80);
    (2 * logged_max * 100 / (100 - logged_max)).clamp(NEW_MAX_IF_LARGE, NEW_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;
    use crate::log_area::SampledChanges;
    use crate::tree::candidates;
    use crate::tree::view::TreeView;
    use bytes::Bytes;
    use proptest::prelude::*;
    use psync::{Simulated, Volume};
    use std::sync::Arc;

    proptest! {
        #[test]
        fn no_other_share_costs_less(flushed in 1u64..1 << 30, read_cost in 0u64..1 << 38, before in SHARE_MIN..=SHARE_MAX) {
            let cost = |share: u64| {
                let share = share as f64 / 100.0;
                2.0 * flushed as f64 / share + read_cost as f64 * share / (before as f64 / 100.0)
            };
            let chosen = best(flushed, read_cost, before, SHARE_MAX);
            let least = (SHARE_MIN..=SHARE_MAX).map(cost).fold(f64::INFINITY, f64::min);
            // Whole percents, of at least six.
            prop_assert!(cost(chosen) <= 1.02 * least, "{chosen}: {} and not {least}", cost(chosen));
        }
    }

    #[test]
    fn each_keyspace_is_judged_by_what_was_seen_of_it_last() {
        let mut tuning = LogAreaTuning::default();
        let ids = [1, 2, 3, 4].map(KeyspaceId);
        let event = |tuning: &LogAreaTuning| ids.map(|id| tuning.fresh_of(id));
        assert_eq!(event(&tuning), [100; 4]);
        let note = |tuning: &mut LogAreaTuning, all, each: &[(usize, u64, u64)]| {
            let each =
                each.iter().map(|(at, new, of)| (ids[*at], SampledChanges { new: *new, of: *of })).collect();
            tuning.note_fresh(NewShare { all, each }, |_| true);
        };
        note(&mut tuning, 40, &[(0, 0, 30), (1, 27, 30), (2, 1, 2)]);
        assert_eq!(event(&tuning), [0, 90, 40, 40], "two say nothing");
        note(&mut tuning, 20, &[(1, 4, 40), (3, 1, 5)]);
        assert_eq!((event(&tuning), tuning.fresh()), ([0, 10, 20, 20], 20), "many say all");
        note(&mut tuning, 80, &[(0, 4, 4), (2, 0, 2)]);
        assert_eq!(event(&tuning), [25, 10, 25, 20], "few say a part, and together enough");
        for _ in 0..100 {
            note(&mut tuning, 80, &[(0, 0, 1), (2, 1, 1)]);
        }
        assert!(tuning.fresh_of(ids[0]) <= 1 && tuning.fresh_of(ids[2]) >= 99, "{tuning:?}");
    }

    /// Temporary keyspaces come and go, and no id comes again.
    #[test]
    fn dropped_keyspaces_are_forgotten() {
        let mut tuning = LogAreaTuning::default();
        let kept = KeyspaceId(0);
        for number in 1..100_000 {
            let each = [kept, KeyspaceId(number)].map(|id| (id, SampledChanges { new: 1, of: 10 }));
            let is_there = |id: KeyspaceId| id == kept || number - id.0 < 10;
            tuning.note_fresh(NewShare { all: 50, each: each.into_iter().collect() }, is_there);
            assert!(tuning.fresh_of.len() <= 2 * MORE, "{}", tuning.fresh_of.len());
        }
        assert_eq!(tuning.fresh_of(kept), 10);
    }

    /// Of each queue a sample sees one or two of its changes.
    #[test]
    fn a_keyspace_that_has_few_changes_is_not_taken_for_the_one_beside_it() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let options = Database::builder().memory(16 << 20).background_threads(0);
        let db = options.open_on(volume).unwrap();
        let [old, new] = ["old", "new"].map(|name| db.keyspace(name).unwrap());
        for keyspace in [&old, &new] {
            keyspace.ingest((0..20_000u32).map(|number| (number.to_be_bytes().to_vec(), [7; 100]))).unwrap();
        }
        for round in 0..6u32 {
            let mut batch = db.batch();
            for number in (0..20_000u32).step_by(10) {
                let key = [number.to_be_bytes(), round.to_be_bytes()].concat();
                batch.insert(&new, key, [7; 100]);
                if number % 400 == 0 {
                    batch.insert(&old, (number + round).to_be_bytes(), [8; 100]);
                }
            }
            batch.commit().unwrap();
            db.flush().unwrap();
        }
        let tuning = db.handle.engine.background.flusher.tuning_for_test();
        assert_eq!(tuning.lock().fresh_of(old.id()), 0);
        assert!(tuning.lock().fresh_of(new.id()) > 90);
    }

    /// One keyspace gets new records, the other has its own overwritten.
    #[test]
    fn layers_of_a_keyspace_that_grows_are_told_from_those_of_another() {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let options = Database::builder().memory(16 << 20).background_threads(0);
        let db = options.open_on(volume).unwrap();
        let [old, new] = ["old", "new"].map(|name| db.keyspace(name).unwrap());
        let insert = |numbers: [&mut dyn Iterator<Item = u32>; 2]| {
            for (keyspace, numbers) in [&old, &new].into_iter().zip(numbers) {
                let mut batch = db.batch();
                numbers.for_each(|number| _ = batch.insert(keyspace, number.to_be_bytes(), [7; 200]));
                batch.commit().unwrap();
            }
            db.flush().unwrap();
        };
        insert([&mut (0..8000).step_by(2), &mut (0..8000).step_by(2)]);
        insert([&mut (0..7000).step_by(100), &mut (1..7000).step_by(100)]);
        let version = db.handle.engine.state.version();
        let shares: Vec<Vec<u64>> = version
            .trees
            .iter()
            .map(|(keyspace, _)| {
                let view = TreeView { pager: &db.handle.engine.pager, version: &version, keyspace };
                let (blocks, _) =
                    candidates::next(view, Bytes::new(), &mut candidates::Limits::none()).unwrap();
                blocks.iter().map(|logged| logged.area.fresh() * 100 / logged.area.bytes()).collect()
            })
            .filter(|shares: &Vec<u64>| !shares.is_empty())
            .collect();
        let [of_old, of_new] = &shares[..] else { panic!("{shares:?}") };
        assert!(of_old.iter().all(|percent| *percent == 0), "{shares:?}");
        assert!(of_new.iter().all(|percent| *percent >= 99), "{shares:?}");
    }

    #[test]
    fn it_follows_a_workload_that_changes() {
        let mut tuning = LogAreaTuning::default();
        let (mut read_cost, flushed) = (0, 16 << 20);
        let mut ask = |times, more: u64, new_max| {
            let lengths = (0..times).map(|_| {
                read_cost += more;
                tuning.lengths(flushed, read_cost, new_max)
            });
            lengths.last().unwrap()
        };
        assert_eq!(
            ask(1, 0, NEW_MAX),
            Lengths { share: SHARE_MAX, fresh: SHARE_MAX * 100 / NEW_MAX },
            "no scans"
        );
        assert_eq!(ask(12, 1 << 30, NEW_MAX), Lengths { share: SHARE_MIN, fresh: 100 }, "only scans");
        assert_eq!(
            ask(12, 0, NEW_MAX),
            Lengths { share: SHARE_MAX, fresh: SHARE_MAX * 100 / NEW_MAX },
            "no scans any more"
        );
        assert_eq!(
            ask(1, 0, NEW_MAX_IF_LARGE),
            Lengths { share: SHARE_MAX, fresh: SHARE_MAX * 100 / NEW_MAX_IF_LARGE },
            "memory is short"
        );
    }
}
