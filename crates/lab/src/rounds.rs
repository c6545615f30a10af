//! Whole rounds of a PIO B-tree's queue, and of an FD-tree's runs, and what they bring to the tree.
//!
//! Batch updates go round the keys. A queue that fits into a batch is taken whole by each, so each is a round. A larger one is
//! in the same state only where it was a round before, and not from the beginning: what waits lies evenly over the keys when
//! the queue has just been filled for the first time, and the densest just before the next batch later on. Whoever measures
//! another stretch gets queue for nothing, or pays for operations that came before.
//!
//! An FD-tree's round is that of its slowest merge, the one into the lowest run: it comes once in as many rounds of the head as
//! runs grow by, and is half or more of what insertions cost.
//!
//! Invariant: in a settled tree, what whole rounds bring to the pages is about what they put into the queue.

use crate::failure::Result;
use crate::judgement::{Check, Judgement, Outcome};
use crate::quantity::Clock;
use crate::row::{Row, Rows};
use trees::{FdTree, Index, PioTree};

/// Rounds after which a queue that is larger than a batch is settled, the one that begins when it is full for the first time
/// included.
const SETTLED: u64 = 3;
/// Names of the counts in rows.
const UPDATES: &str = "updates";
const BROUGHT: &str = "brought";
const BATCHES: &str = "batches";

/// What whole rounds have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rounds {
    /// How often the work was done.
    pub done: u64,
    /// Operations that batch updates have taken to the pages.
    pub brought: u64,
    pub batches: u64,
}

impl Rounds {
    /// Writes into a row what was brought to the tree while so many updates were timed.
    pub fn tell<C: Clock>(self, row: &mut Row<C>, updates: u64) {
        for (name, count) in [(UPDATES, updates), (BROUGHT, self.brought), (BATCHES, self.batches)] {
            row.counts.insert(name.to_owned(), count as f64);
        }
    }
}

/// Does `work`, updates only, until the queue is settled and a round has just begun.
pub(crate) fn settle(
    tree: &mut PioTree,
    mut work: impl FnMut(&mut PioTree, u64) -> Result<()>,
) -> Result<()> {
    for _ in 0..SETTLED {
        whole_rounds(tree, 1, &mut work)?;
        if tree.waiting() == 0 {
            break;
        }
    }
    Ok(())
}

/// Does `work`, which is told how often it was done, until `least` times and until a round has just begun: the batch that
/// begins it has come to the tree. Begin behind [`settle`], or behind other rounds.
pub(crate) fn whole_rounds(
    tree: &mut PioTree,
    least: u64,
    mut work: impl FnMut(&mut PioTree, u64) -> Result<()>,
) -> Result<Rounds> {
    let (begun, flushes) = (tree.brought(), tree.stats().flushes);
    let mut done = 0;
    loop {
        let before = tree.brought().rounds;
        work(tree, done)?;
        done += 1;
        if done >= least && tree.brought().rounds > before {
            let brought = tree.brought().operations - begun.operations;
            return Ok(Rounds { done, brought, batches: tree.stats().flushes - flushes });
        }
    }
}

/// Bytes of the lowest run, in rows of FD-trees.
pub(crate) const LOWEST: &str = "lowest_run";

/// Does `work`, which inserts, until there was a merge into the lowest run: behind another such round, all of one way round.
pub(crate) fn whole_round_of_runs(
    tree: &mut FdTree,
    mut work: impl FnMut(&mut FdTree) -> Result<()>,
) -> Result<()> {
    let (merged, mut cascades) = (tree.details().lowest_merges, tree.stats().flushes);
    loop {
        work(tree)?;
        if tree.stats().flushes > cascades {
            cascades = tree.stats().flushes;
            if tree.details().lowest_merges > merged {
                return Ok(());
            }
        }
    }
}

/// Whether what was timed of FD-trees includes a merge into the lowest run, wherever rows tell. Those of FD-trees that do not are of before
/// rounds were whole: checks whose keys begin so are not judged by them.
pub(crate) fn check_lowest<C: Clock>(judgement: &mut Judgement, rows: &Rows<C>, keys: &[&str]) {
    if rows.0.iter().any(|row| row.series.starts_with("FD-tree") && !row.counts.contains_key(LOWEST)) {
        let meant = |check: &&mut Check| keys.iter().any(|key| check.key.starts_with(key));
        for check in judgement.checks.iter_mut().filter(meant) {
            (check.outcome, check.place) = (Outcome::Reported, None);
            check.claim = format!("{} (no merge into an FD-tree's lowest run was timed)", check.claim);
        }
    }
    let share = |row: &Row<C>| Some(row.bytes as f64 / row.counts.get(LOWEST)?);
    let least = rows.0.iter().filter_map(share).fold(f64::INFINITY, f64::min);
    if least.is_finite() {
        judgement.invariant(
            "lowest",
            "wherever insertions of an FD-tree are timed, its lowest run is read and written: bytes moved by those of that run, at least 1.8",
            "not told",
            format!("{least:.2}"),
            least >= 1.8,
        );
    }
}

/// Whether a simulated drive's collector had next to nothing to do, wherever rows tell. A drive that fills while points are
/// measured makes the later ones slower, whatever they are of.
pub(crate) fn check_collector<C: Clock>(judgement: &mut Judgement, rows: &Rows<C>) {
    let copies = |row: &Row<C>| Some(row.counts.get("flash_copies")? / row.requests as f64);
    let most = rows.0.iter().filter_map(copies).fold(f64::NAN, f64::max);
    if !most.is_nan() {
        judgement.invariant(
            "collector",
            "the drive's collector hardly works meanwhile: pages that it copies for an operation, at most 0.1",
            "drives of ten times the index",
            format!("{most:.3}"),
            most <= 0.1,
        );
    }
}

/// Whether all that was timed is matched by what came to the tree meanwhile, wherever rows tell.
pub(crate) fn check_matched<C: Clock>(judgement: &mut Judgement, rows: &Rows<C>) {
    let share = |row: &Row<C>| Some(row.counts.get(BROUGHT)? / row.counts.get(UPDATES)?);
    let shares: Vec<f64> = rows.0.iter().filter_map(share).collect();
    let (least, most) = shares
        .iter()
        .fold((f64::INFINITY, 0.0_f64), |(least, most), share| (least.min(*share), most.max(*share)));
    judgement.invariant(
        "matched",
        "wherever updates of a PIO B-tree are timed, at least 0.9 times as many are brought to its pages meanwhile",
        "not told",
        format!("{least:.3} to {most:.3}"),
        !shares.is_empty() && least >= 0.9,
    );
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::quantity::Simulated;
    use crate::row::tests::row;
    use crate::tree_ground::{TreeGround, UniformKeys};
    use trees::{FdTreeOptions, LogMode, PioOptions};

    /// Tells of a row that so many updates of 100 came to the tree.
    pub fn brought(mut row: Row<Simulated>, brought: u64) -> Row<Simulated> {
        Rounds { done: 100, brought, batches: 1 }.tell(&mut row, 100);
        row
    }

    const RECORDS: u64 = 20_000;

    fn tree(bcnt: usize) -> PioTree {
        let options =
            PioOptions { queue_pages: 4, frames: 4, bcnt, log: LogMode::Off, ..PioOptions::default() };
        TreeGround::on_ssdsim(0).unwrap().grow(&options, RECORDS).unwrap()
    }

    /// A queue of about 960 operations.
    #[test]
    fn what_is_timed_comes_to_the_tree_whatever_the_size_of_a_batch() {
        for bcnt in [90, 500, 950, 5000] {
            let (mut tree, mut keys) = (tree(bcnt), UniformKeys::new(1, RECORDS));
            let mut insert = |tree: &mut PioTree, index| Ok(tree.insert(keys.next(), index)?);
            settle(&mut tree, &mut insert).unwrap();
            let rounds = whole_rounds(&mut tree, 1, &mut insert).unwrap();
            assert!(rounds.brought.abs_diff(rounds.done) * 20 < rounds.done, "bcnt {bcnt}: {rounds:?}");
            // Going round the keys in small batches takes about twice what waits.
            let wanted = if bcnt == 90 { 1500..2200 } else { 900..2000 };
            assert!(wanted.contains(&rounds.done), "bcnt {bcnt}: {rounds:?}");
        }
    }

    /// Insertions have paid for all that was merged, the lowest run included: rounds cost about the same.
    #[test]
    fn a_round_of_runs_has_the_merge_into_the_lowest() {
        let options = FdTreeOptions { head_pages: 1, ratio: 16, ..FdTreeOptions::default() };
        let mut tree: FdTree = TreeGround::on_ssdsim(0).unwrap().grow(&options, RECORDS).unwrap();
        assert_eq!(tree.details().levels.len(), 2);
        let mut keys = UniformKeys::new(1, RECORDS);
        let mut costs = Vec::new();
        for _ in 0..3 {
            let (before, mut inserted) = (tree.details(), 0);
            let insert = |tree: &mut FdTree| {
                inserted += 1;
                Ok(tree.insert(keys.next(), 0)?)
            };
            whole_round_of_runs(&mut tree, insert).unwrap();
            let after = tree.details();
            let lowest = after.levels.last().unwrap().pages;
            let written = after.merge_pages_written - before.merge_pages_written;
            assert!(written > lowest && after.cascades > before.cascades + 3, "{before:?} {after:?}");
            costs.push(written as f64 / inserted as f64);
        }
        assert!((costs[1] / costs[2] - 1.0).abs() < 0.2, "{costs:?}");
    }

    #[test]
    fn a_round_without_the_lowest_run_is_noticed() {
        let outcome = |bytes: Option<f64>| {
            let mut row = Row { bytes: 180, ..row::<Simulated>("FD-tree", 0.0, 0, 1.0) };
            row.counts.extend(bytes.map(|bytes| (LOWEST.to_owned(), bytes)));
            let mut judgement = Judgement::default();
            judgement.check("fd-ratio", "it is", "so", "so".into(), true);
            check_lowest(&mut judgement, &Rows(vec![row]), &["fd-"]);
            (judgement.outcome("lowest"), judgement.outcome("fd-ratio"))
        };
        assert_eq!(outcome(None), (None, Some(Outcome::Reported)));
        assert_eq!(outcome(Some(100.0)), (Some(Outcome::Holds), Some(Outcome::Holds)));
        assert_eq!(outcome(Some(101.0)), (Some(Outcome::Fails), Some(Outcome::Holds)));
    }

    #[test]
    fn a_collector_that_works_is_noticed_and_rows_that_do_not_tell_are_not_asked() {
        let outcome = |copies: Option<f64>| {
            let mut row = row::<Simulated>("a", 0.0, 0, 1.0);
            row.counts.extend(copies.map(|copies| ("flash_copies".to_owned(), copies)));
            let mut judgement = Judgement::default();
            check_collector(&mut judgement, &Rows(vec![row]));
            judgement.outcome("collector")
        };
        assert_eq!(outcome(None), None);
        assert_eq!(outcome(Some(100.0)), Some(Outcome::Holds));
        assert_eq!(outcome(Some(101.0)), Some(Outcome::Fails));
    }

    #[test]
    fn timing_more_than_is_brought_is_noticed() {
        let outcome = |rows: Vec<Row<Simulated>>| {
            let mut judgement = Judgement::default();
            check_matched(&mut judgement, &Rows(rows));
            judgement.outcome("matched")
        };
        let of = |count| brought(row("a", 0.0, 0, 1.0), count);
        assert_eq!(outcome(vec![of(100), of(90), row("b", 0.0, 0, 1.0)]), Some(Outcome::Holds));
        assert_eq!(outcome(vec![of(100), of(89)]), Some(Outcome::Fails));
        assert_eq!(outcome(vec![row("b", 0.0, 0, 1.0)]), Some(Outcome::Fails));
    }
}
