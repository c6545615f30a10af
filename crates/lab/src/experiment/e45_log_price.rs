//! E45: what the log of a PIO B-tree costs (section 3.4): insertions, the TPC-C trace, and recovery by the length of the log.

mod victim;

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::{Judgement, first_fall};
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated};
use crate::rounds::{check_collector, check_matched, settle, whole_rounds};
use crate::row::{Missing, Row, Rows};
use crate::tpcc_ground::{Queues, TpccSize, btree_options, pio_options, plant_all};
use crate::trace::Op;
use crate::trace::replay::{Plant, plant};
use crate::tree_choice;
use crate::tree_ground::{TreeGround, TreeSize, UniformKeys};
use trees::{BTree, Choice, Eviction, Index, LogMode, PioOptions, PioTree, Transaction};
use victim::Victim;

pub(super) struct LogPrice;

static CARD: Card = Card {
    number: 45,
    name: "log-price",
    title: "What the PIO B-tree's log costs, and what recovery takes",
    source: "Roh et al., PVLDB 5(4), 2011, section 3.4",
    question: "The paper gives its tree a log and a recovery, and measures it without either. How much slower is it if operations \
               are durable with the next flush, and if each is when it returns? How long does recovery take, by what the log \
               holds, and by how far a batch update had come?",
    reported: "No figure. Operations in the queue survive a crash and keep their order, and a batch update is atomic: only the \
               entries that have never been flushed are redone, and the redo logs in the key ranges of completed flushes are \
               ignored.",
    absent: &[
        (
            Device::Disk,
            "the crash is the simulated drive's; what a sync costs on a virtual disk its host decides",
        ),
        (Device::Nand, "the tree works on a block device"),
    ],
    causes: CAUSES,
};

const CAUSES: &[Cause] = &[
    Cause {
        device: Device::Ssdsim,
        scale: None,
        key: "literally",
        text: "the ranges of finished batches soon cover nearly all keys, so that by the letter of the rule whatever was logged since is passed over, though it came after them. Sequence numbers, which table 2's logs do not have, tell what came before; that they are what is missing show the two lines above, of the same crashes",
    },
    Cause {
        device: Device::Ssdsim,
        scale: None,
        key: "btree-each",
        text: "a sync writes the log's last page anew, which is read for it, and a page of the file system's journal, one after the other: at ci 2.0 programs and 1.0 reads for an insertion more than without a log, where the B+-tree has one write of a node. The run that could have refuted it: with a commit for 16 insertions it is 5.4 to 7.1 times as fast as the B+-tree",
    },
    Cause {
        device: Device::Ssdsim,
        scale: None,
        key: "undo",
        text: "std: it does go by psync, 31 requests a call; but the batch of a queue of 66 pages has changed so many leaves that undo reads as many pages again as recovery does without it, 118 calls for 61, and writes them. Before undo went by psync it took 1646 ms at three quarters of the batch, where it takes 98. A bound on time was the wrong question",
    },
    Cause {
        device: Device::Ssdsim,
        scale: None,
        key: "longer",
        text: "std: the same 3507 reads in the same 61 calls take 28.3 to 30.8 ms with logs of less than a queue, so what differs is which of them meet on a die. What the log itself costs is less (1 ms for 1 MB); before the inner nodes were read by psync, recovery took 290 ms and hid it",
    },
    Cause {
        device: Device::Ssdsim,
        scale: None,
        key: "tpcc-each",
        text: "insertions: see btree-each; searches and ranges take what they take without",
    },
];

/// What is logged, by the name of its lines.
const MODES: [(LogMode, &str); 3] =
    [(LogMode::Off, "no log"), (LogMode::Buffered, "log, buffered"), (LogMode::Each, "log, each synced")];
/// The last again, but a sync for so many operations: a transaction has more than one.
const COMMITTED: &str = "log, 16 a commit";
const COMMIT: u64 = 16;
const BTREE: &str = "insert, B+-tree, no log";
const TPCC_BTREE: &str = "TPC-C, B+-tree, no log";
/// Kinds of operations of the trace by position; behind them all together.
const KINDS: [Op; 4] = [Op::Search, Op::Insert, Op::Range, Op::Delete];
const TOTAL: f64 = 4.0;
const INSERTS: f64 = 1.0;
/// By how many queues full of operations the log holds.
const RECOVERY: &str = "recovery, crash between batches";
/// By the share of a batch update's flash operations that were done.
const UNDO: &str = "recovery, crash in a batch";
const LENGTHS: [f64; 8] = [0.0, 0.25, 0.5, 0.99, 2.5, 4.5, 8.5, 16.5];
const SHARES: [f64; 3] = [0.25, 0.5, 0.75];

fn insert(mode: &str) -> String {
    format!("insert, {mode}")
}

fn search(mode: &str) -> String {
    format!("search, {mode}")
}

fn tpcc(mode: &str) -> String {
    format!("TPC-C, {mode}")
}

/// Pages of queue: as E13, but for every fourth one where there are many.
fn queues(size: TreeSize) -> Vec<usize> {
    let factor = if size.memory_pages > 64 { 16 } else { 2 };
    let mut queues: Vec<usize> = std::iter::successors(Some(1), |pages| Some(pages * factor))
        .take_while(|pages| pages * 4 <= size.memory_pages)
        .collect();
    queues.push((size.memory_pages * 9 / 10).min(size.memory_pages - 2));
    queues
}

/// Pages of queue whose recovery is measured: a sixth of the memory.
fn recovered_queue(size: TreeSize) -> usize {
    (size.memory_pages / 6).max(1)
}

fn runs(scale: Scale) -> u32 {
    scale.pick(Simulated::RUNS, 1, 1)
}

/// How many times the blocks of the default drive, so that its collector has nothing to do: as E13.
fn room(scale: Scale) -> u32 {
    scale.pick(1, 2, 8)
}

/// Does work, and writes the syncs that it asked for into the row.
fn row_with_syncs(
    place: &TreeGround<Simulated>,
    (series, at, run): (&str, f64, u32),
    operations: u64,
    work: impl FnOnce() -> Result<()>,
) -> Result<Row<Simulated>> {
    let before = place.volume.counters().syncs;
    let mut row = place.row(series, at, run, operations, work)?;
    row.counts.insert("syncs".into(), (place.volume.counters().syncs - before) as f64);
    Ok(row)
}

fn insertions(laboratory: &Laboratory, rows: &mut Vec<Row<Simulated>>) -> Result<()> {
    let size = TreeSize::of(laboratory.scale);
    let ground = |run| TreeGround::on_larger_ssdsim(run, room(laboratory.scale));
    let times = tree_choice::times(&ground(0)?, laboratory.scale)?;
    let load = tree_choice::load(size, 0.0, Eviction::Lru);
    let choice = tree_choice::pio_of_4k(&times, &load)?;
    let btree_options = tree_choice::btree(&times, &load)?;
    for run in 0..runs(laboratory.scale) {
        laboratory.step(BTREE)?;
        let place = ground(run)?.with_accounts();
        let mut tree: BTree = place.grow(&btree_options, size.records)?;
        let count = size.operations.min((1 << 30) / btree_options.page_len as u64);
        let mut keys = UniformKeys::new(Laboratory::seed(run, 0), size.records);
        rows.push(row_with_syncs(&place, (BTREE, 0.0, run), count, || {
            (0..count).try_for_each(|index| Ok(tree.insert(keys.next(), index)?))
        })?);
        drop((tree, place));
        for (index, queue_pages) in queues(size).into_iter().enumerate() {
            for (log, mode) in MODES.into_iter().chain([(LogMode::Each, COMMITTED)]) {
                laboratory.step(&format!("{mode}, {queue_pages} pages of queue"))?;
                let place = ground(run)?.with_accounts();
                let options =
                    PioOptions { log, ..PioOptions::chosen(&Choice { queue_pages, ..choice }, &load)? };
                let tree = place.grow(&options, size.records)?;
                let keys = UniformKeys::new(Laboratory::seed(run, 1 + index), size.records);
                rows.extend(of_pio(&place, (tree, keys), (mode, queue_pages as f64, run), size.operations)?);
            }
        }
    }
    Ok(())
}

/// Insertions, whole rounds of them, and searches behind them.
fn of_pio(
    place: &TreeGround<Simulated>,
    (mut tree, mut keys): (PioTree, UniformKeys),
    (mode, at, run): (&str, f64, u32),
    operations: u64,
) -> Result<[Row<Simulated>; 2]> {
    let mut open: Option<Transaction> = None;
    let mut work = |tree: &mut PioTree, keys: &mut UniformKeys, index: u64| -> Result<()> {
        if mode != COMMITTED {
            return Ok(tree.insert(keys.next(), index)?);
        }
        let transaction = open.take().unwrap_or_else(|| tree.begin());
        tree.insert_in(&transaction, keys.next(), index)?;
        if index % COMMIT == COMMIT - 1 {
            tree.commit(transaction)?;
        } else {
            open = Some(transaction);
        }
        Ok(())
    };
    settle(&mut tree, |tree, index| work(tree, &mut keys, index))?;
    let mut rounds = None;
    let mut inserted = row_with_syncs(place, (&insert(mode), at, run), 1, || {
        rounds = Some(whole_rounds(&mut tree, operations, |tree, index| work(tree, &mut keys, index))?);
        Ok(())
    })?;
    if let Some(rounds) = rounds {
        inserted.requests = rounds.done;
        rounds.tell(&mut inserted, rounds.done);
    }
    let searched = place.row(&search(mode), at, run, operations, || {
        (0..operations).try_for_each(|_| Ok(tree.search(keys.present()).map(|_| ())?))
    })?;
    Ok([inserted, searched])
}

fn trace(laboratory: &Laboratory, rows: &mut Vec<Row<Simulated>>) -> Result<()> {
    let size = TpccSize::of(laboratory.scale, Device::Ssdsim);
    for run in 0..runs(laboratory.scale) {
        let trace = size.tpcc(Laboratory::seed(run, 15))?;
        let mut replay = |series: &str, planted: Plant<'_>| -> Result<()> {
            laboratory.step(series)?;
            let place = TreeGround::on_ssdsim(run)?;
            let before = place.volume.counters().syncs;
            let mut forest = plant_all(&place, &trace, planted)?;
            let replayed = forest.replay(&place, planted, trace.steps().map(Ok), false)?;
            let kinds = KINDS.iter().enumerate();
            rows.extend(kinds.map(|(at, op)| replayed.of(*op).row(series, at as f64, run)));
            let mut total = replayed.total().row(series, TOTAL, run);
            total.counts.insert("syncs".into(), (place.volume.counters().syncs - before) as f64);
            rows.push(total);
            Ok(())
        };
        let options = btree_options(size, &trace);
        replay(TPCC_BTREE, &plant::<BTree>(|tree| options[usize::from(tree)].clone()))?;
        for (log, mode) in MODES {
            let options = pio_options(size, &trace, Queues::ForAll);
            let of = |tree| PioOptions { log, ..options[usize::from(tree)].clone() };
            replay(&tpcc(mode), &plant::<PioTree>(of))?;
        }
    }
    Ok(())
}

fn recovery(laboratory: &Laboratory, rows: &mut Vec<Row<Simulated>>) -> Result<()> {
    let size = TreeSize::of(laboratory.scale);
    let place = TreeGround::on_larger_ssdsim(0, room(laboratory.scale))?;
    let times = tree_choice::times(&place, laboratory.scale)?;
    drop(place);
    let load = tree_choice::load(size, 0.0, Eviction::Lru);
    let choice = tree_choice::pio_of_4k(&times, &load)?;
    // A check reads all leaves, which says nothing more of a larger tree.
    let checked = laboratory.scale <= Scale::Ci;
    let mut victim = Victim::grow(laboratory, &load, &choice)?;
    for length in LENGTHS {
        laboratory.step(&format!("{RECOVERY}, {length} queues"))?;
        victim.begin_anew()?;
        for _ in 0..(length * victim.capacity as f64) as u64 {
            victim.insert()?;
        }
        rows.push(victim.crash(RECOVERY, length, checked)?);
    }
    // A batch update that nothing cuts off, for what a whole one takes.
    victim.make_ready()?;
    let before = victim.flash_operations();
    victim.insert()?;
    let whole = victim.flash_operations() - before;
    for share in SHARES {
        laboratory.step(&format!("{UNDO}, {share} of it done"))?;
        victim.make_ready()?;
        victim.ssd.cut_power_at((share * whole as f64) as u64);
        let cut = victim.insert().is_err() && victim.ssd.is_off();
        let mut row = victim.crash(UNDO, share, checked)?;
        row.counts.insert("cut".into(), f64::from(u8::from(cut)));
        rows.push(row);
        victim = victim.revived()?;
    }
    Ok(())
}

impl Study for LogPrice {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        let (size, trace) = (TreeSize::of(scale), TpccSize::of(scale, Device::Ssdsim));
        vec![
            Parameter::new("index", "not told: nothing was measured", size.told()),
            Parameter::new("OPQ", "not told", format!("{:?} pages", queues(size))),
            Parameter::new(
                "operations a point",
                "not told",
                format!(
                    "{} insertions at least, whole rounds, as E13; as many searches behind them",
                    size.operations
                ),
            ),
            Parameter::new("nodes, buffer", "not told", "as E13: by equation 10 for searches; LRU"),
            Parameter::new(
                "TPC-C trace",
                "not told",
                format!(
                    "that of E15 but for its size, {} warehouses, {} operations, queue for all",
                    trace.warehouses, trace.operations
                ),
            ),
            Parameter::new(
                "recovery",
                "not told",
                format!(
                    "{} pages of queue, each operation synced; logs of {LENGTHS:?} queues full; power cut after {SHARES:?} of a \
                     batch's flash operations; one run",
                    recovered_queue(size)
                ),
            ),
            Parameter::new(
                "syncs",
                "not told",
                "a sync is a journal transaction of the simulated drive's file system, and no write cache to empty",
            ),
        ]
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let size = TreeSize::of(laboratory.scale);
        let points = 1 + queues(size).len() * (MODES.len() + 1) + 1 + MODES.len();
        laboratory.expect(points * runs(laboratory.scale) as usize + LENGTHS.len() + SHARES.len());
        let mut rows = Vec::new();
        insertions(laboratory, &mut rows)?;
        trace(laboratory, &mut rows)?;
        recovery(laboratory, &mut rows)?;
        Ok(Rows(rows))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        judge_crashes(rows, &mut judgement)?;
        judge_insertions(rows, &mut judgement)?;
        judge_trace(rows, &mut judgement)?;
        judge_recovery(rows, &mut judgement)?;
        check_collector(&mut judgement, rows);
        check_matched(&mut judgement, rows);
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1.0, Row::latency)?;
        lines.retain(|line| line.name.starts_with("insert, ") && line.name != BTREE);
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "pages of operation queue".into(), scale: Scaling::Doubling },
            y: Axis { label: "time of an insertion, us".into(), scale: Scaling::Doubling },
            lines,
            bars: false,
        })
    }
}

fn told(line: &[(f64, f64)]) -> String {
    line.iter().map(|(at, value)| format!("{} at {at}", number(*value))).collect::<Vec<_>>().join(", ")
}

/// Told of a crash between batches, and of one in a batch.
const CRASHES: [(&str, &str, &str); 2] = [
    (
        RECOVERY,
        "survives",
        "what was acknowledged and waits in the queue survives a crash: operations lost, by queues logged",
    ),
    (
        UNDO,
        "atomic",
        "the same if the crash cuts a batch update off: operations lost, by the share of it that was done",
    ),
];

/// The paper's own claims: nothing is lost, and a batch update is atomic. Its rule stands there in two sentences, which
/// differ: what is to be redone, and what is to be passed over.
fn judge_crashes<C: Clock>(rows: &Rows<C>, judgement: &mut Judgement) -> std::result::Result<(), Missing> {
    for (count, prefix, reading) in [
        (
            "lost",
            "",
            "read by what is to be redone, \"only the OPQ entries that have never been flushed\": sequence numbers of ours tell which",
        ),
        (
            "lost_literally",
            "literally-",
            "read as printed: \"the logical redo logs included in the key ranges are ignored\", those too that came after the flush",
        ),
    ] {
        for (series, key, claim) in CRASHES {
            let counted = |name: &'static str| rows.line(series, move |row: &Row<C>| row.count(name));
            let lost = counted(count)?;
            let cut = series == RECOVERY || counted("cut")?.iter().all(|point| point.1 == 1.0);
            judgement.check(
                &format!("{prefix}{key}"),
                &format!("{claim} (the redo rule {reading})"),
                "none",
                told(&lost),
                cut && lost.iter().all(|point| point.1 == 0.0),
            );
        }
    }
    Ok(())
}

/// What insertions with a log take, by pages of queue: times those without.
fn prices<C: Clock>(
    rows: &Rows<C>,
    of: fn(&str) -> String,
    mode: &str,
) -> std::result::Result<Vec<(f64, f64)>, Missing> {
    let with = rows.line(&of(mode), Row::latency)?;
    let without = rows.line(&of(MODES[0].1), Row::latency)?;
    Ok(with.into_iter().zip(without).map(|((at, with), (_, without))| (at, with.over(without))).collect())
}

fn judge_insertions<C: Clock>(rows: &Rows<C>, judgement: &mut Judgement) -> std::result::Result<(), Missing> {
    let btree = rows.median(BTREE, 0.0, Row::latency)?;
    for (key, mode) in [("buffered", MODES[1].1), ("each", MODES[2].1), ("commit", COMMITTED)] {
        let price = prices(rows, insert, mode)?;
        judgement.report(
            &format!("insert-{key}"),
            &format!("{mode}: what an insertion takes, times one without, by pages of queue"),
            "not told",
            told(&price),
        );
        let faster: Vec<(f64, f64)> = rows
            .line(&insert(mode), Row::latency)?
            .into_iter()
            .map(|(at, time)| (at, btree.over(time)))
            .collect();
        judgement.own(
            &format!("btree-{key}"),
            &format!("{mode}: insertion is still faster than a B+-tree's without any log, how many times, by pages of queue"),
            told(&faster),
            faster.iter().all(|point| point.1 > 1.0),
        );
        let searches = prices(rows, search, mode)?;
        judgement.own(
            &format!("search-{key}"),
            &format!("{mode}: searches take what they take without, within 5 %"),
            told(&searches),
            searches.iter().all(|point| (0.95..=1.05).contains(&point.1)),
        );
    }
    let price = prices(rows, insert, MODES[1].1)?;
    let falls: Vec<(f64, f64)> = price.iter().map(|(at, price)| (*at, 1.0 / price)).collect();
    judgement.own(
        "amortized",
        "the buffered log costs no larger a share with more queue (5 % slack): syncs are for a batch",
        told(&price),
        first_fall(&falls, 0.05).is_none(),
    );
    let syncs = |mode| rows.line(&insert(mode), |row: &Row<C>| row.count("syncs") / row.requests as f64);
    judgement.report(
        "syncs",
        "syncs for an insertion, buffered, by pages of queue; each synced; 16 a commit",
        "not told",
        format!("{}; {}; {}", told(&syncs(MODES[1].1)?), told(&syncs(MODES[2].1)?), told(&syncs(COMMITTED)?)),
    );
    Ok(())
}

fn judge_trace<C: Clock>(rows: &Rows<C>, judgement: &mut Judgement) -> std::result::Result<(), Missing> {
    let time = |series: &str, kind: f64| rows.median(series, kind, |row| row.elapsed_us);
    for (key, (_, mode)) in ["none", "buffered", "each"].into_iter().zip(MODES) {
        let by = |kind| -> std::result::Result<f64, Missing> {
            Ok(time(TPCC_BTREE, kind)?.over(time(&tpcc(mode), kind)?))
        };
        let (total, inserts) = (by(TOTAL)?, by(INSERTS)?);
        judgement.own(
            &format!("tpcc-{key}"),
            &format!("{mode}: the TPC-C trace is done faster than by B+-trees without a log: how many times; its insertions"),
            format!("{}; {}", number(total), number(inserts)),
            total > 1.0,
        );
    }
    Ok(())
}

fn judge_recovery<C: Clock>(rows: &Rows<C>, judgement: &mut Judgement) -> std::result::Result<(), Missing> {
    let millis = |series| -> std::result::Result<Vec<(f64, f64)>, Missing> {
        let line = rows.line(series, |row: &Row<C>| row.elapsed_us)?;
        Ok(line.into_iter().map(|(at, time)| (at, time.number() / 1000.0)).collect())
    };
    let counted = |series, name: &'static str| rows.line(series, move |row: &Row<C>| row.count(name));
    let times = millis(RECOVERY)?;
    judgement.own(
        "longer",
        "recovery takes no less time with a longer log (5 % slack), in milliseconds, by queues logged",
        told(&times),
        first_fall(&times, 0.05).is_none(),
    );
    for (key, series) in [("between", RECOVERY), ("within", UNDO)] {
        judgement.report(
            &format!("reads-{key}"),
            &format!("{series}: requests to read; psync calls; bytes of log; operations redone"),
            "not told",
            format!(
                "{}; {}; {}; {}",
                told(&counted(series, "reads")?),
                told(&counted(series, "psyncs")?),
                told(&counted(series, "log_bytes")?),
                told(&counted(series, "redone")?)
            ),
        );
    }
    let (undo, full) = (millis(UNDO)?, rows.median(RECOVERY, 0.99, |row| row.elapsed_us)?.number() / 1000.0);
    judgement.own(
        "undo",
        "undo goes by psync: recovery takes at most twice what that of a full queue takes whose batch has not begun: milliseconds, by the share of the batch done",
        format!("{} against {}", told(&undo), number(full)),
        undo.iter().all(|point| point.1 <= 2.0 * full),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::quantity::Lapse;
    use crate::rounds::tests::brought;
    use crate::row::tests::row;

    fn counted(series: &str, at: f64, micros: f64, counts: &[(&str, f64)]) -> Row<Simulated> {
        let mut row = row(series, at, 0, micros);
        row.counts.extend(counts.iter().map(|(name, count)| ((*name).to_owned(), *count)));
        row
    }

    /// Times of insertions by mode at two sizes of queue; all else as it should be.
    fn rows(inserts: [[f64; 2]; 4]) -> Vec<Row<Simulated>> {
        let mut rows = vec![row(BTREE, 0.0, 0, 100.0)];
        for (mode, times) in MODES.map(|mode| mode.1).into_iter().chain([COMMITTED]).zip(inserts) {
            for (at, time) in [1.0, 4.0].into_iter().zip(times) {
                rows.push(brought(counted(&insert(mode), at, time, &[("syncs", 1.0)]), 100));
                rows.push(row(&search(mode), at, 0, 50.0));
            }
        }
        for kind in [0.0, INSERTS, 2.0, 3.0, TOTAL] {
            rows.push(row(TPCC_BTREE, kind, 0, 100.0));
            rows.extend(MODES.map(|(_, mode)| row(&tpcc(mode), kind, 0, 50.0)));
        }
        let figures = ["lost", "lost_literally", "reads", "psyncs", "log_bytes", "redone"]
            .map(|name| (name, if name.starts_with("lost") { 0.0 } else { 9.0 }));
        rows.extend([0.5, 0.99, 2.5].map(|at| counted(RECOVERY, at, 10.0 + at, &figures)));
        rows.extend(SHARES.map(|at| counted(UNDO, at, 20.0, &[&figures[..], &[("cut", 1.0)]].concat())));
        rows
    }

    const GOOD: [[f64; 2]; 4] = [[10.0, 5.0], [20.0, 9.0], [90.0, 90.0], [30.0, 20.0]];

    fn judged(rows: &[Row<Simulated>]) -> Judgement {
        Study::judge(&LogPrice, &Rows(rows.to_vec()), Device::Ssdsim).unwrap()
    }

    #[test]
    fn nothing_lost_holds_and_each_loss_is_noticed() {
        let good = judged(&rows(GOOD));
        assert_eq!(good.verdict(), Verdict::Holds);
        assert!(good.checks.iter().all(|check| check.outcome != Outcome::Fails), "{good:#?}");
        for (series, count, number, key) in [
            (RECOVERY, "lost", 1.0, "survives"),
            (UNDO, "lost", 1.0, "atomic"),
            (UNDO, "cut", 0.0, "atomic"),
            (RECOVERY, "lost_literally", 1.0, "literally-survives"),
            (UNDO, "lost_literally", 1.0, "literally-atomic"),
        ] {
            let mut changed = rows(GOOD);
            changed.iter_mut().filter(|row| row.series == series).for_each(|row| {
                row.counts.insert(count.to_owned(), number);
            });
            assert_eq!(judged(&changed).outcome(key), Some(Outcome::Fails), "{key} {count}");
        }
    }

    #[test]
    fn prices_that_are_other_than_asked_are_noticed() {
        let fails = |inserts, key: &str| {
            assert_eq!(judged(&rows(inserts)).outcome(key), Some(Outcome::Fails), "{key}");
        };
        fails([GOOD[0], [20.0, 11.0], GOOD[2], GOOD[3]], "amortized");
        fails([GOOD[0], [101.0, 9.0], GOOD[2], GOOD[3]], "btree-buffered");
        fails([GOOD[0], GOOD[1], [90.0, 101.0], GOOD[3]], "btree-each");
        fails([GOOD[0], GOOD[1], GOOD[2], [101.0, 20.0]], "btree-commit");
        let slower = |series: &str, at: f64, times: f64, key: &str| {
            let mut changed = rows(GOOD);
            for row in changed.iter_mut().filter(|row| row.series == series && row.at == at) {
                row.elapsed_us = Lapse::micros(row.elapsed_us.number() * times);
            }
            assert_eq!(judged(&changed).outcome(key), Some(Outcome::Fails), "{key}");
        };
        slower(&search(MODES[1].1), 4.0, 1.1, "search-buffered");
        slower(&tpcc(MODES[2].1), TOTAL, 3.0, "tpcc-each");
        slower(RECOVERY, 2.5, 0.5, "longer");
        slower(UNDO, 0.25, 1.2, "undo");
    }
}
