//! E16: many threads on a PIO B-tree with simple locks, and on a B-link tree.

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::callers::{SharedTree, Unlocked, in_virtual_time, threads};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::{Judgement, first_fall};
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Lapse, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::tpcc_ground::{Queues, TpccSize, frames, pio_options, plant_shared, publish};
use crate::trace::Step;
use crate::trace::tpcc::Tpcc;
use crate::tree_ground::{FILL, TreeGround, drive, wide_drive};
use crate::usage::{SWITCHES, Usage};
use psync::{Counters, Volume};
use std::sync::Arc;
use std::time::Duration;
use trees::{BlinkOptions, BlinkTree, Index, PioTree, SharedPioTree};

pub(super) struct Concurrency;

static CARD: Card = Card {
    number: 16,
    name: "concurrency",
    title: "Many threads: PIO B-tree with simple locks against the B-link tree",
    source: "Roh et al., PVLDB 5(4), 2011, figure 13 (b)",
    question: "A B-link tree's readers take no locks and its writers lock a node at a time. A PIO B-tree is locked as a whole while it \
               brings its queue to the device. Does it keep its lead when many threads use it?",
    reported: "A PIO B-tree is 1.33 to 1.49 (P300), 1.3 to 1.47 (Iodrive), 1.17 to 1.32 (F120) times as fast as a B-link tree.",
    absent: &[(Device::Nand, "both trees work on a block device")],
    causes: CAUSES,
};

const CAUSES: &[Cause] = &[
    Cause {
        device: Device::Ssdsim,
        scale: Some(Scale::Full),
        key: "faster",
        text: "with up to 8 threads all is inside the band; with more the ratio falls below it. Both trees make as many requests (1.04 and 1.06 an operation: \
               the 20 pages of queue gather hardly two insertions for a page), so what the PIO B-tree has is that its insertions do not wait for them, \
               and the more threads, the more requests of the B-link tree are under way at once: 1.12 at 16, 0.98 at 32. Two things limit the PIO B-tree, \
               by a run with indexes of this size at scale std, which could have refuted either: with 32 threads 1.01 are left there of 1.27 with 8; 1.06 if its \
               lock were always free, 1.03 on a drive of four times the width with the lock, and 1.18 with both. So it is not the drive alone, as was \
               supposed: where the drive does not limit, the lock does. How many threads the paper had is not told",
    },
    Cause {
        device: Device::Ssdsim,
        scale: Some(Scale::Std),
        key: "faster",
        text: "as at full: with up to 8 threads all is inside the band, with 16 the ratio is 1.13. Both trees make as many requests (1.04 and 1.06 an operation: the 20 \
               pages of queue gather hardly two insertions for a page), so what the PIO B-tree has is that its insertions do not wait for them, and the more threads, \
               the more requests of the B-link tree are under way at once. Two things limit the PIO B-tree, by the variants, which could have refuted either: with 32 threads 1.01 \
               are left of 1.27 with 8; 1.06 if its lock were always free, 1.03 on a drive of four times the width with the lock, and 1.18 with both. So it is not the drive alone, \
               as was supposed: where the drive does not limit, the lock does. How many threads the paper had is not told",
    },
    Cause {
        device: Device::Ssdsim,
        scale: None,
        key: "faster",
        text: "the queue has 8 of 102 pages here, 7.8 %, and gathers so much that the B-link tree makes 1.2 times as many reads and writes; the paper's has 2 %, \
               with which both trees make as many (E16 at full). So what is found here is no answer to the claim",
    },
    Cause {
        device: Device::Disk,
        scale: None,
        key: "faster",
        text: "the speeds differ as the trees' requests do, within 6 %: the B-link tree makes 1.30, 1.19, 1.11 and 1.11 times as many reads and writes an operation with 2, 4, 8 and \
               16 threads, and the PIO B-tree is 1.23, 1.14, 1.15 and 1.13 times as fast; both trees make as many requests a second, 26 and 27 thousand with 2 threads, 42 and 43 with \
               4, 55 and 53 with 8, 69 and 68 with 16: so it is the threads that are under way, not what the disk takes at most (80 to 90 thousand, E2), which only the last come near. That it were time in which threads wait for the PIO B-tree's lock, which was supposed, is not needed to explain it; how long they wait is counted \
               since, and a run that tells is outstanding",
    },
];

/// On three drives, by the number of threads.
const FASTER: std::ops::RangeInclusive<f64> = 1.17..=1.49;

const PIO: &str = "PIO B-tree";
const BLINK: &str = "B-link tree";
/// Lines of variants begin so; charts leave them out.
const VARIANT: &str = "by variant: ";
const UNLOCKED: &str = "by variant: PIO B-tree, its lock always free";
const WIDE_PIO: &str = "by variant: PIO B-tree, wider drive";
const WIDE_BLINK: &str = "by variant: B-link tree, wider drive";
const WIDE_UNLOCKED: &str = "by variant: PIO B-tree, wider drive, its lock always free";
const SAME_PIO: &str = "by variant: PIO B-tree";
const SAME_BLINK: &str = "by variant: B-link tree";
/// How many times the channels and the controller's speed their drive has: enough for four times the threads.
const WIDER: u32 = 4;
/// Microseconds that threads have waited for a whole tree, all together.
const WAITED: &str = "waited_us";

fn callers(scale: Scale) -> Vec<usize> {
    let all = [1, 2, 4, 8, 16, 32];
    let count = if scale == Scale::Trial { 2 } else { scale.pick(5, 5, 6) };
    all[..count].to_vec()
}

/// A disk is measured three times at scale ci, half a minute each. At std the trees of the published size, which take minutes to
/// load, are measured once: a simulated drive's time follows from the seed.
fn runs<C: Clock>(scale: Scale) -> u32 {
    match scale {
        Scale::Trial if C::IS_WALL => 1,
        Scale::Ci if C::IS_WALL => 3,
        Scale::Std if !C::IS_WALL => 1,
        _ => C::RUNS,
    }
}

/// How many callers do some steps on the trees of a kind, and how long they take.
trait Ground<C: Clock> {
    fn volume(&self) -> Arc<dyn Volume>;
    fn time<T: SharedTree>(
        &self,
        trees: &[T],
        steps: &mut (impl Iterator<Item = Step> + Send),
        callers: usize,
    ) -> Result<Duration>;
}

impl Ground<Wall> for TreeGround<Wall> {
    fn volume(&self) -> Arc<dyn Volume> {
        Arc::clone(&self.volume)
    }

    fn time<T: SharedTree>(
        &self,
        trees: &[T],
        steps: &mut (impl Iterator<Item = Step> + Send),
        callers: usize,
    ) -> Result<Duration> {
        threads(trees, steps, callers)
    }
}

impl Ground<Simulated> for flash::Ssd {
    fn volume(&self) -> Arc<dyn Volume> {
        Arc::new(self.clone())
    }

    fn time<T: SharedTree>(
        &self,
        trees: &[T],
        steps: &mut (impl Iterator<Item = Step> + Send),
        callers: usize,
    ) -> Result<Duration> {
        in_virtual_time(self, trees, steps, callers)
    }
}

/// One part of the trace after the other, each with more callers, on trees that grow meanwhile: the same parts for both kinds.
fn points<C: Clock, T: SharedTree>(
    laboratory: &Laboratory,
    ground: &impl Ground<C>,
    trees: &[T],
    (series, tpcc, run): (&str, &Tpcc, u32),
    callers: &[usize],
) -> Result<Vec<Row<C>>> {
    let each = tpcc.options().operations / callers.len() as u64;
    let mut steps = tpcc.steps();
    let volume = ground.volume();
    let mut rows = Vec::new();
    for many in callers.iter().copied() {
        laboratory.step(&format!("{series}, {many} threads"))?;
        let waited = || trees.iter().map(SharedTree::waited).sum::<Duration>();
        let (before, usage, already) = (volume.counters(), Usage::so_far(), waited());
        // What is left over when the parts are not even is nobody's.
        let took = ground.time(trees, &mut steps.by_ref().take(each as usize), many)?;
        let mut row = row(series, many as f64, run, each, took, volume.counters() - before);
        if let Some(usage) = Usage::since(usage).filter(|_| C::IS_WALL) {
            row.counts.extend(usage.counts());
            row.counts.insert(WAITED.to_owned(), (waited() - already).as_secs_f64() * 1e6);
        }
        rows.push(row);
    }
    Ok(rows)
}

fn row<C: Clock>(series: &str, at: f64, run: u32, requests: u64, took: Duration, did: Counters) -> Row<C> {
    let counts = [("psyncs", did.read_sets + did.write_sets), ("reads", did.reads), ("writes", did.writes)];
    Row {
        series: series.to_owned(),
        at,
        run,
        requests,
        bytes: did.bytes_read + did.bytes_written,
        elapsed_us: Lapse::from(took),
        counts: counts.into_iter().map(|(name, count)| (name.to_owned(), count as f64)).collect(),
    }
}

fn measure<C: Clock, G: Ground<C>>(
    laboratory: &Laboratory,
    device: Device,
    mut ground: impl FnMut(u32) -> Result<G>,
) -> Result<Rows<C>> {
    let size = TpccSize::with_published_queue(laboratory.scale, device);
    let runs = runs::<C>(laboratory.scale);
    let callers = callers(laboratory.scale);
    laboratory.expect(2 * callers.len() * runs as usize);
    let mut rows = Vec::new();
    for run in 0..runs {
        let tpcc = size.tpcc(Laboratory::seed(run, 16))?;
        publish(laboratory, &tpcc, run);
        let place = ground(run)?;
        let trees = pio_trees(&place.volume(), size, &tpcc)?;
        rows.extend(points(laboratory, &place, &trees, (PIO, &tpcc, run), &callers)?);
        drop(trees);
        let place = ground(run)?;
        let trees = blink_trees(&place.volume(), size, &tpcc)?;
        rows.extend(points(laboratory, &place, &trees, (BLINK, &tpcc, run), &callers)?);
    }
    Ok(Rows(rows))
}

fn pio_trees(volume: &Arc<dyn Volume>, size: TpccSize, tpcc: &Tpcc) -> Result<Vec<SharedPioTree>> {
    let options = pio_options(size, tpcc, Queues::ForAll);
    plant_shared(volume, tpcc, |tree, volume, records| {
        let tree = PioTree::bulk_load(volume, &options[usize::from(tree)], FILL, records)?;
        Ok(SharedPioTree::new(tree))
    })
}

fn blink_trees(volume: &Arc<dyn Volume>, size: TpccSize, tpcc: &Tpcc) -> Result<Vec<BlinkTree>> {
    let frames = frames(size, tpcc);
    plant_shared(volume, tpcc, |tree, volume, records| {
        let options = BlinkOptions { frames: frames[usize::from(tree)], ..BlinkOptions::default() };
        BlinkTree::bulk_load(volume, &options, FILL, records)
    })
}

/// Threads of the variants: so many that all is inside the published band at full, and so many that it is not.
const FEW_AND_MANY: [usize; 2] = [8, 32];

/// What could show that neither the lock nor the drive's width decides. From std on with indexes of the published size, by
/// fewer operations. Once: the drive's time follows from the seed.
fn variants(laboratory: &Laboratory) -> Result<Vec<Row<Simulated>>> {
    let scale = laboratory.scale;
    let own = TpccSize::of(scale, Device::Ssdsim);
    let published = TpccSize { operations: 400_000, ..TpccSize::of(Scale::Full, Device::Ssdsim) };
    let size = scale.pick(own, published, published);
    let tpcc = size.tpcc(Laboratory::seed(0, 16))?;
    laboratory.expect(6 * FEW_AND_MANY.len());
    let mut rows = Vec::new();
    for (times, pio, blink) in [(1, SAME_PIO, SAME_BLINK), (WIDER, WIDE_PIO, WIDE_BLINK)] {
        let ground = wide_drive(0, times)?;
        let trees = pio_trees(&ground.volume(), size, &tpcc)?;
        rows.extend(points(laboratory, &ground, &trees, (pio, &tpcc, 0), &FEW_AND_MANY)?);
        drop((trees, ground));
        let ground = wide_drive(0, times)?;
        let trees = blink_trees(&ground.volume(), size, &tpcc)?;
        rows.extend(points(laboratory, &ground, &trees, (blink, &tpcc, 0), &FEW_AND_MANY)?);
    }
    for (times, series) in [(1, UNLOCKED), (WIDER, WIDE_UNLOCKED)] {
        let ground = wide_drive(0, times)?;
        let trees = pio_trees(&ground.volume(), size, &tpcc)?.into_iter().map(Unlocked).collect::<Vec<_>>();
        rows.extend(points(laboratory, &ground, &trees, (series, &tpcc, 0), &FEW_AND_MANY)?);
    }
    Ok(rows)
}

/// Requests for pages that an operation makes: whether the trees' speeds differ as these do.
fn judge_requests<C: Clock>(rows: &Rows<C>, judgement: &mut Judgement) -> std::result::Result<(), Missing> {
    if rows.0.iter().all(|row| row.counts.is_empty()) {
        return Ok(());
    }
    let requests = |row: &Row<C>| (row.count("reads") + row.count("writes")) / row.requests as f64;
    let (pio, blink) = (rows.line(PIO, requests)?, rows.line(BLINK, requests)?);
    let ratios: Vec<(f64, f64)> =
        pio.iter().zip(&blink).map(|((at, pio), (_, blink))| (*at, blink / pio)).collect();
    judgement.report(
        "requests",
        "reads and writes of an operation, the B-link tree's by the PIO B-tree's",
        "not told",
        told(&ratios),
    );
    Ok(())
}

fn told(line: &[(f64, f64)]) -> String {
    line.iter().map(|(at, value)| format!("{} at {at}", number(*value))).collect::<Vec<_>>().join(", ")
}

/// The variants' speeds by that of the B-link tree on the same drive.
fn judge_variants<C: Clock>(rows: &Rows<C>, judgement: &mut Judgement) -> std::result::Result<(), Missing> {
    if !rows.series().contains(&WIDE_UNLOCKED) {
        return Ok(());
    }
    let rate = |series| rows.line(series, |row: &Row<C>| row.elapsed_us.rate(row.requests));
    let ratio = |one, other| {
        let (one, other) = (rate(one)?, rate(other)?);
        Ok(told(
            &one.iter()
                .zip(&other)
                .map(|((at, one), (_, other))| (*at, one.over(*other)))
                .collect::<Vec<_>>(),
        ))
    };
    let told: std::result::Result<Vec<String>, Missing> =
        [(SAME_PIO, SAME_BLINK), (UNLOCKED, SAME_BLINK), (WIDE_PIO, WIDE_BLINK), (WIDE_UNLOCKED, WIDE_BLINK)]
            .map(|(one, other)| ratio(one, other))
            .into_iter()
            .collect();
    judgement.report(
        "variants",
        &format!(
            "the PIO B-tree's operations a second by the B-link tree's, at full and std with indexes of the published size: so; its lock \
             always free; on a drive of {WIDER} times the channels and the controller's speed, with its lock; and with both"
        ),
        "not told",
        told?.join("; "),
    );
    Ok(())
}

impl Study for Concurrency {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        let size = TpccSize::with_published_queue(scale, device);
        let mut parameters = size.parameters();
        let how = match device {
            Device::Disk => "threads of this process",
            Device::Ssdsim | Device::Nand => {
                "callers who share the drive's virtual time; the PIO B-tree's lock is kept, the B-link tree's are always free"
            }
        };
        parameters.push(Parameter::new(
            "threads",
            "increasing, not told how many",
            format!("{:?}, {how}; each number gets a part of the trace", callers(scale)),
        ));
        // Sizes do not depend on the operations.
        let pages = TpccSize { operations: 0, ..size }.tpcc(0).map(|tpcc| {
            pio_options(size, &tpcc, Queues::ForAll).iter().map(|options| options.queue_pages).sum::<usize>()
        });
        let pages = pages.map_or_else(|_| "?".to_owned(), |pages| pages.to_string());
        parameters.push(Parameter::new(
            "OPQ",
            "20 pages",
            format!("{pages} pages for all indexes, a page an index at least"),
        ));
        parameters
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        measure(laboratory, Device::Disk, |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let mut rows = measure(laboratory, Device::Ssdsim, drive)?;
        rows.0.extend(variants(laboratory)?);
        Ok(rows)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let rate = |series: &str| rows.line(series, |row: &Row<C>| row.elapsed_us.rate(row.requests));
        let (pio, blink) = (rate(PIO)?, rate(BLINK)?);
        let ratios: Vec<(f64, f64)> =
            pio.iter().zip(&blink).map(|((at, pio), (_, blink))| (*at, pio.over(*blink))).collect();
        judgement.band(
            "faster",
            "the PIO B-tree's operations a second by the B-link tree's, with 2 threads and more",
            told(&ratios),
            ratios.iter().filter(|(at, _)| *at >= 2.0).map(|point| point.1),
            FASTER,
        );
        for (key, line) in [("pio", &pio), ("blink", &blink)] {
            let rates: Vec<(f64, f64)> = line.iter().map(|(at, rate)| (*at, rate.number())).collect();
            let upto: Vec<(f64, f64)> = rates.iter().copied().filter(|(at, _)| *at <= 8.0).collect();
            let name = if key == "pio" { PIO } else { BLINK };
            judgement.check(
                &format!("rises-{key}"),
                &format!("{name}: more operations a second with each number of threads up to 8"),
                "increases",
                told(&rates),
                first_fall(&upto, 0.0).is_none(),
            );
        }
        for (count, claim) in [
            ("psyncs", "psync calls an operation"),
            ("reads", "reads an operation"),
            ("writes", "writes an operation"),
            (SWITCHES, "context switches an operation"),
            (WAITED, "us an operation in which threads wait for a whole tree, all together"),
        ] {
            // A simulated drive switches nothing.
            if rows.0.iter().all(|row| !row.counts.contains_key(count)) {
                continue;
            }
            let each = |series| rows.line(series, |row: &Row<C>| row.count(count) / row.requests as f64);
            judgement.report(
                count,
                &format!("{claim}, PIO B-tree; B-link tree"),
                "not told",
                format!("{}; {}", told(&each(PIO)?), told(&each(BLINK)?)),
            );
        }
        judge_requests(rows, &mut judgement)?;
        judge_variants(rows, &mut judgement)?;
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1.0, |row| row.elapsed_us.rate(row.requests))?;
        lines.retain(|line| !line.name.starts_with(VARIANT));
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "threads".into(), scale: Scaling::Doubling },
            y: Axis { label: "operations a second".into(), scale: Scaling::Even },
            lines,
            bars: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::row::tests::row as timed;

    fn rows(pio: [f64; 5], blink: [f64; 5]) -> Rows<Simulated> {
        let of = |series: &'static str, times: [f64; 5]| {
            let callers = callers(Scale::Ci).into_iter();
            callers.zip(times).map(move |(many, time)| timed(series, many as f64, 0, time))
        };
        Rows(of(PIO, pio).chain(of(BLINK, blink)).collect())
    }

    #[test]
    fn the_published_shape_holds_and_others_do_not() {
        let judge = |pio, blink| Study::judge(&Concurrency, &rows(pio, blink), Device::Ssdsim).unwrap();
        let (pio, blink) = ([100.0, 50.0, 25.0, 13.0, 14.0], [101.0, 60.0, 30.0, 17.0, 17.0]);
        assert_eq!(judge(pio, blink).verdict(), Verdict::Holds);
        let slower = [100.0, 50.0, 25.0, 16.0, 14.0];
        assert_eq!(judge(slower, blink).outcome("faster"), Some(Outcome::Fails));
        assert_eq!(judge([40.0, 50.0, 25.0, 13.0, 14.0], blink).outcome("rises-pio"), Some(Outcome::Fails));
        let falls = [101.0, 60.0, 61.0, 17.0, 16.0];
        assert_eq!(judge(pio, falls).outcome("rises-blink"), Some(Outcome::Fails));
    }
}
