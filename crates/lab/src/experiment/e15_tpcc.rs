//! E15: the index operations of TPC-C on a PIO B-tree and on a B+-tree.

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::tpcc_ground::{Queues, TpccSize, btree_options, pio_options, plant_all, publish};
use crate::trace::Op;
use crate::trace::replay::{Replayed, plant};
use crate::trace::tpcc::Tpcc;
use crate::tree_ground::TreeGround;
use std::ops::RangeInclusive;
use trees::{BTree, PioTree};

pub(super) struct TpccTrace;

static CARD: Card = Card {
    number: 15,
    name: "tpcc",
    title: "The index operations of TPC-C: PIO B-tree against B+-tree",
    source: "Roh et al., PVLDB 5(4), 2011, figure 13 (a)",
    question: "Uniform random keys are one thing, a database's indexes another: hot districts, order numbers that grow, ranges of a \
               few records. What of a PIO B-tree's advantage is left on eight indexes that share a small memory?",
    reported: "In total a PIO B-tree is 1.25 to 1.49 times as fast as a B+-tree; its insertions 5.7 to 6.2 times, its range searches \
               1.9 to 2.1 times. Deletions take next to nothing.",
    absent: &[(Device::Nand, "both trees work on a block device")],
    causes: CAUSES,
};

const CAUSES: &[Cause] = &[
    Cause {
        device: Device::Ssdsim,
        scale: Some(Scale::Ci),
        key: "insert",
        text: "the queue spares 1.38 of 1.87 reads and writes an insertion, and sets do the rest: 0.0104 psync calls are left. That it is sets \
               for the most part shows a PIO B-tree that asks for one page a call, with half of that queue, the run that could have refuted \
               this: it is 2.1 times as fast as the B+-tree, not 36. In sets the simulated drive writes 27 times as many pages of 4 KiB as \
               alone (E2), the paper's drives more than 10 times",
    },
    Cause {
        device: Device::Ssdsim,
        scale: Some(Scale::Ci),
        key: "total",
        text: "insertions: see there. All else is as published (range searches 1.91, searches 0.99)",
    },
    Cause {
        device: Device::Ssdsim,
        scale: Some(Scale::Std),
        key: "insert",
        text: "sets alone, if the queue is for all indexes: it spares next to nothing, 0.73 reads and writes an insertion to the B+-tree's 0.75, but in \
               0.015 psync calls, not 0.75. A PIO B-tree that asks for one page a call, the run that could have refuted this, is 0.89 times as \
               fast as the B+-tree, not 15.4. A queue for each, eight times as large, spares nearly half (0.42). In sets the simulated drive \
               writes 27 times as many pages of 4 KiB as alone (E2), the paper's drives more than 10 times",
    },
    Cause {
        device: Device::Ssdsim,
        scale: Some(Scale::Std),
        key: "range",
        text: "by 0.06 above. It is not sets: one page a call leaves 2.08. A range search of the B+-tree reads 1.74 pages and writes 0.51 that insertions \
               have left in its buffer, each as long as three reads; the PIO B-tree reads 1.61 and writes none. Without insertions and \
               deletions in the trace, the run that could have refuted this, 1.03 is left",
    },
    Cause {
        device: Device::Ssdsim,
        scale: Some(Scale::Full),
        key: "insert",
        text: "sets alone, if the queue is for all indexes: it spares nothing, an insertion takes 0.72 reads and writes, and 0.75 in the B+-tree, but \
               in 0.0154 psync calls, not 0.75. A queue for each, eight times as large, spares a third (0.45). In sets the simulated drive writes \
               27 times as many pages of 4 KiB as alone (E2), the paper's drives more than 10 times. One page a call, which could \
               have refuted this, was run at std: 0.89 are left there of 15.4",
    },
    Cause {
        device: Device::Ssdsim,
        scale: Some(Scale::Full),
        key: "range",
        text: "by 0.09 above. It is not sets: the PIO B-tree reads 1.6 pages in 1.53 calls. A range search of the B+-tree reads 1.73 pages and writes \
               0.52 that insertions have left in its buffer, each as long as three reads, the PIO B-tree's none. The run that could have \
               refuted this is of scale std: without insertions and deletions in the trace 1.03 is left there of 2.16",
    },
    Cause {
        device: Device::Disk,
        scale: None,
        key: "range",
        text: "as on the simulated drive it is the B+-tree's writing of pages that insertions have left in its buffer: 0.54 a range search, and 2.76 calls in all, where the PIO B-tree (queue for each) makes 2.08: 1.33 times as many. On the simulated drive a write takes three times a read, here hardly more than one (54 and 41 us, E2), so less is gained. That it is not how the disk reads sets, which was supposed, the simulated drive shows: one page a call changes the ratio by 0.06 there, and without insertions in the trace nothing is left of it",
    },
    Cause {
        device: Device::Disk,
        scale: None,
        key: "insert",
        text: "by counts: the B+-tree makes 1.39 reads and 0.57 writes an insertion, a call each; the PIO B-tree with a queue for each index 0.26 and 0.18, 4.5 times fewer, in 0.0097 calls. The rest, 7.0 times, is more than sets gain (64 at a time are 4.3 times as many reads a second and 5.6 times as many writes, E2): a call of the B+-tree took 114 us, twice what one takes alone, on a machine with others at work (load 4.5). That sets are the larger part the simulated drive shows, where one page a call leaves 2.1 of 36 (E15 there, at ci)",
    },
    Cause { device: Device::Disk, scale: None, key: "total", text: "insertions: see there" },
];

/// On three drives.
const OF_ALL: RangeInclusive<f64> = 1.25..=1.49;
const OF_INSERTS: RangeInclusive<f64> = 5.7..=6.2;
const OF_RANGES: RangeInclusive<f64> = 1.9..=2.1;

const BTREE: &str = "B+-tree";
const FOR_ALL: &str = "PIO, 20 pages of queue for all";
const FOR_EACH: &str = "PIO, 20 pages of queue for each";
/// Lines of variants begin so; charts leave them out.
const VARIANT: &str = "by variant: ";
/// What its sets are good for: the same tree, which asks for one page a call.
const ONE_A_CALL: &str = "by variant: PIO, one page a call";
/// What changes among them do to searches: the same trace without insertions and deletions.
const BTREE_UNCHANGED: &str = "by variant: B+-tree, searches and ranges alone";
const PIO_UNCHANGED: &str = "by variant: PIO, searches and ranges alone";

/// Kinds of operations by position; behind them all together.
const KINDS: [Op; 4] = [Op::Search, Op::Insert, Op::Range, Op::Delete];
const NAMES: [&str; 5] = ["search", "insert", "range", "delete", "total"];
const TOTAL: usize = 4;

/// A disk is measured three times at scale ci, half a minute each. At std the eight trees of the published size, which take
/// minutes to load, are measured once: a simulated drive's time follows from the seed.
fn runs<C: Clock>(scale: Scale) -> u32 {
    match scale {
        Scale::Trial if C::IS_WALL => 1,
        Scale::Ci if C::IS_WALL => 3,
        Scale::Std if !C::IS_WALL => 1,
        _ => C::RUNS,
    }
}

fn rows_of<C: Clock>(replayed: &Replayed, series: &str, run: u32) -> Vec<Row<C>> {
    let kinds = KINDS.iter().enumerate().map(|(at, op)| replayed.of(*op).row(series, at as f64, run));
    kinds.chain([replayed.total().row(series, TOTAL as f64, run)]).collect()
}

fn measure<C: Clock>(
    laboratory: &Laboratory,
    device: Device,
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let size = TpccSize::with_published_queue(laboratory.scale, device);
    let runs = runs::<C>(laboratory.scale);
    laboratory.expect(6 * runs as usize);
    let mut rows = Vec::new();
    for run in 0..runs {
        let tpcc = size.tpcc(Laboratory::seed(run, 15))?;
        publish(laboratory, &tpcc, run);
        for series in [BTREE, FOR_ALL, FOR_EACH, ONE_A_CALL, BTREE_UNCHANGED, PIO_UNCHANGED] {
            laboratory.step(series)?;
            let place = ground(run)?;
            let unchanged = matches!(series, BTREE_UNCHANGED | PIO_UNCHANGED);
            let replayed = match series {
                BTREE | BTREE_UNCHANGED => {
                    let options = btree_options(size, &tpcc);
                    let plant = plant::<BTree>(|tree| options[usize::from(tree)].clone());
                    replay(&place, &tpcc, &plant, unchanged)?
                }
                _ => {
                    let queues = if series == FOR_EACH { Queues::ForEach } else { Queues::ForAll };
                    let mut options = pio_options(size, &tpcc, queues);
                    if series == ONE_A_CALL {
                        options.iter_mut().for_each(|options| options.pio_max = 1);
                    }
                    let plant = plant::<PioTree>(|tree| options[usize::from(tree)].clone());
                    replay(&place, &tpcc, &plant, unchanged)?
                }
            };
            rows.extend(rows_of(&replayed, series, run));
        }
    }
    Ok(Rows(rows))
}

fn replay<C: Clock>(
    place: &TreeGround<C>,
    tpcc: &Tpcc,
    plant: crate::trace::replay::Plant<'_>,
    unchanged: bool,
) -> Result<Replayed> {
    let steps = tpcc.steps().filter(|step| !unchanged || matches!(step.op, Op::Search | Op::Range));
    plant_all(place, tpcc, plant)?.replay(place, plant, steps.map(Ok), false)
}

/// Requests for pages, and calls with them, of each operation of a kind: reads, writes, calls.
fn pages_of<C: Clock>(rows: &Rows<C>, series: &str, kind: usize) -> std::result::Result<[f64; 3], Missing> {
    let of = |name: &'static str| {
        rows.median(series, kind as f64, move |row| row.count(name) / row.requests as f64)
    };
    Ok([of("reads")?, of("writes")?, of("psyncs")?])
}

/// What decides, where it was measured.
fn judge_variants<C: Clock>(rows: &Rows<C>, judgement: &mut Judgement) -> std::result::Result<(), Missing> {
    if rows.0.iter().all(|row| row.counts.is_empty()) {
        return Ok(());
    }
    let time = |series: &str, kind: usize| rows.median(series, kind as f64, |row| row.elapsed_us);
    for (kind, key, of) in [(1, "insert-pages", "an insertion"), (2, "range-pages", "a range search")] {
        let told = |series| {
            let [reads, writes, calls] = pages_of(rows, series, kind)?;
            Ok(format!("{}, {} and {}", number(reads), number(writes), number(calls)))
        };
        let told: std::result::Result<Vec<String>, Missing> =
            [BTREE, FOR_ALL, FOR_EACH].map(told).into_iter().collect();
        let claim = format!(
            "reads, writes and psync calls of {of}: B+-tree; PIO B-tree (queue for all); (queue for each)"
        );
        judgement.report(key, &claim, "not told", told?.join("; "));
    }
    if !rows.series().contains(&PIO_UNCHANGED) {
        return Ok(());
    }
    let ratio = |kind| Ok(number(time(BTREE, kind)?.over(time(ONE_A_CALL, kind)?)));
    let told: std::result::Result<Vec<String>, Missing> = [1, 2, TOTAL].map(ratio).into_iter().collect();
    judgement.report(
        "one-a-call",
        "one page a psync call: the B+-tree's time by the PIO B-tree's (queue for all), of insertions, range searches and all",
        "not told",
        told?.join(", "),
    );
    let ratio = |kind| Ok(number(time(BTREE_UNCHANGED, kind)?.over(time(PIO_UNCHANGED, kind)?)));
    let told: std::result::Result<Vec<String>, Missing> = [0, 2].map(ratio).into_iter().collect();
    judgement.report(
        "unchanged",
        "without insertions and deletions: the B+-tree's time by the PIO B-tree's (queue for all), of searches and range searches",
        "not told",
        told?.join(", "),
    );
    Ok(())
}

impl Study for TpccTrace {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        let size = TpccSize::with_published_queue(scale, device);
        let mut parameters = size.parameters();
        // Sizes do not depend on the operations.
        let small = TpccSize { operations: 0, ..size };
        let told = |queues| match small.tpcc(0) {
            Ok(tpcc) => {
                let options = pio_options(size, &tpcc, queues);
                options.iter().map(|options| options.queue_pages.to_string()).collect::<Vec<_>>().join("+")
            }
            Err(_) => "?".to_owned(),
        };
        let (all, each) = (told(Queues::ForAll), told(Queues::ForEach));
        parameters.push(Parameter::new(
            "OPQ",
            "20 pages; for all indexes or for each is not told",
            format!(
                "the same share of the memory, a page an index at least: {all} (for all), {each} (for each)"
            ),
        ));
        parameters
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        measure(laboratory, Device::Disk, |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        measure(laboratory, Device::Ssdsim, TreeGround::on_ssdsim)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let time = |series: &str, kind: usize| rows.median(series, kind as f64, |row| row.elapsed_us);
        for (series, key, queues) in [(FOR_ALL, "all", "for all"), (FOR_EACH, "each", "for each")] {
            let mut ratios = [f64::NAN; 5];
            for (kind, ratio) in ratios.iter_mut().enumerate() {
                *ratio = time(BTREE, kind)?.over(time(series, kind)?);
            }
            let deleted = time(series, 3)?.over(time(series, TOTAL)?);
            for (kind, of, band) in [
                (TOTAL, "all together", OF_ALL),
                (1, "insertions", OF_INSERTS),
                (2, "range searches", OF_RANGES),
            ] {
                judgement.band(
                    &format!("{}-{key}", NAMES[kind]),
                    &format!("{of}: the B+-tree's time by the PIO B-tree's (queue {queues})"),
                    number(ratios[kind]),
                    [ratios[kind]],
                    band,
                );
            }
            judgement.own(
                &format!("search-{key}"),
                &format!("searches take what the B+-tree's take: 0.9 to 1.2 times as fast (queue {queues})"),
                number(ratios[0]),
                (0.9..=1.2).contains(&ratios[0]),
            );
            judgement.check(
                &format!("delete-{key}"),
                &format!("deletions take less than 3 % of the time (queue {queues})"),
                "a dot",
                number(deleted),
                deleted < 0.03,
            );
        }
        judge_variants(rows, &mut judgement)?;
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1e-6, |row| row.elapsed_us)?;
        lines.retain(|line| !line.name.starts_with(VARIANT));
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "kind of operation".into(), scale: Scaling::Names(&NAMES) },
            y: Axis { label: "time of all of them, s".into(), scale: Scaling::Even },
            lines,
            bars: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Place, Verdict};
    use crate::row::tests::row;

    /// The B+-tree takes 100 for each kind and 1000 in total; PIO trees are so many times as fast.
    fn rows(ratios: [f64; 5]) -> Rows<Simulated> {
        let time = |kind: usize| if kind == TOTAL { 1000.0 } else { 100.0 };
        let kinds = 0..5;
        Rows(
            kinds
                .flat_map(|kind| {
                    let pio = time(kind) / ratios[kind];
                    let of = |series, time| row(series, kind as f64, 0, time);
                    [of(BTREE, time(kind)), of(FOR_ALL, pio), of(FOR_EACH, pio)]
                })
                .collect(),
        )
    }

    #[test]
    fn the_published_shape_holds_and_others_do_not() {
        let judge = |ratios| Study::judge(&TpccTrace, &rows(ratios), Device::Ssdsim).unwrap();
        let good = [1.0, 6.0, 2.0, 50.0, 1.3];
        assert_eq!(judge(good).verdict(), Verdict::Holds);
        let fails = |ratios, key: &str| {
            for queues in ["all", "each"] {
                let key = format!("{key}-{queues}");
                assert_eq!(judge(ratios).outcome(&key), Some(Outcome::Fails), "{key}");
            }
        };
        fails([1.0, 6.0, 2.0, 50.0, 1.2], "total");
        fails([1.0, 5.6, 2.0, 50.0, 1.3], "insert");
        fails([1.0, 6.0, 1.8, 50.0, 1.3], "range");
        fails([0.8, 6.0, 2.0, 50.0, 1.3], "search");
        fails([1.3, 6.0, 2.0, 50.0, 1.3], "search");
        fails([1.0, 6.0, 2.0, 2.0, 1.3], "delete");
        let much = judge([1.0, 30.0, 2.0, 50.0, 1.3]);
        let insert = much.checks.iter().find(|check| check.key == "insert-all");
        assert_eq!(insert.and_then(|check| check.place), Some(Place::Above));
    }
}
