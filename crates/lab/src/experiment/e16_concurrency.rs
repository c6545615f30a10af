//! E16: many threads on a PIO B-tree with simple locks, and on a B-link tree.

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::callers::{SharedTree, in_virtual_time, threads};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::{Judgement, first_fall};
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Lapse, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::tpcc_ground::{Queues, TpccSize, frames, pio_options, plant_shared, publish};
use crate::trace::Step;
use crate::trace::tpcc::Tpcc;
use crate::tree_ground::{FILL, TreeGround, drive};
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
        key: "faster",
        text: "insertions gain more here than there (E15). The more threads, the more requests of the B-link tree are under way at once, and the ratio falls, to 1.43 to 1.45 at 16, which is inside the band. At full both trees write as many pages (0.08 an operation: the 20 pages of queue gather \
               hardly two insertions for a page there), and from 16 threads on the drive has as much to do from either: 1.12 at 16, 0.98 at 32. \
               How many threads the paper had is not told; up to 8 all is inside the band",
    },
    Cause {
        device: Device::Disk,
        key: "faster",
        text: "not the device's work: with 2 to 16 threads the PIO B-tree makes 1.12 to 1.24 psync calls an operation where the B-link tree \
           makes 1.53 to 1.66, fewer reads (1.21 to 1.32, not 1.41 to 1.48), half as many writes and fewer context switches (1.14 to \
           1.35, not 1.67 to 3.31). So what it loses is time in which its threads wait for one another; that this is the lock, \
           which one thread holds over a whole batch, longer still if a busy machine takes the processor from it, is inferred",
    },
];

/// On three drives, by the number of threads.
const FASTER: std::ops::RangeInclusive<f64> = 1.17..=1.49;

const PIO: &str = "PIO B-tree";
const BLINK: &str = "B-link tree";

fn callers(scale: Scale) -> Vec<usize> {
    let all = [1, 2, 4, 8, 16, 32];
    let count = if scale == Scale::Trial { 2 } else { scale.pick(5, 5, 6) };
    all[..count].to_vec()
}

/// A disk is measured once at scale ci: it takes half a minute.
fn runs<C: Clock>(scale: Scale) -> u32 {
    if C::IS_WALL && scale <= Scale::Ci { 1 } else { C::RUNS }
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
) -> Result<Vec<Row<C>>> {
    let callers = callers(laboratory.scale);
    let each = tpcc.options().operations / callers.len() as u64;
    let mut steps = tpcc.steps();
    let volume = ground.volume();
    let mut rows = Vec::new();
    for many in callers {
        laboratory.step(&format!("{series}, {many} threads"))?;
        let (before, usage) = (volume.counters(), Usage::so_far());
        // What is left over when the parts are not even is nobody's.
        let took = ground.time(trees, &mut steps.by_ref().take(each as usize), many)?;
        let mut row = row(series, many as f64, run, each, took, volume.counters() - before);
        if let Some(usage) = Usage::since(usage).filter(|_| C::IS_WALL) {
            row.counts.extend(usage.counts());
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
    let size = TpccSize::of(laboratory.scale, device);
    let runs = runs::<C>(laboratory.scale);
    laboratory.expect(2 * callers(laboratory.scale).len() * runs as usize);
    let mut rows = Vec::new();
    for run in 0..runs {
        let tpcc = size.tpcc(Laboratory::seed(run, 16))?;
        publish(laboratory, &tpcc, run);
        let place = ground(run)?;
        let options = pio_options(size, &tpcc, Queues::ForAll);
        let trees = plant_shared(&place.volume(), &tpcc, |tree, volume, records| {
            let tree = PioTree::bulk_load(volume, &options[usize::from(tree)], FILL, records)?;
            Ok(SharedPioTree::new(tree))
        })?;
        rows.extend(points(laboratory, &place, &trees, (PIO, &tpcc, run))?);
        drop(trees);
        let place = ground(run)?;
        let frames = frames(size, &tpcc);
        let trees = plant_shared(&place.volume(), &tpcc, |tree, volume, records| {
            let options = BlinkOptions { frames: frames[usize::from(tree)], ..BlinkOptions::default() };
            BlinkTree::bulk_load(volume, &options, FILL, records)
        })?;
        rows.extend(points(laboratory, &place, &trees, (BLINK, &tpcc, run))?);
    }
    Ok(Rows(rows))
}

impl Study for Concurrency {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        let mut parameters = TpccSize::of(scale, device).parameters();
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
        parameters.push(Parameter::new("OPQ", "20 pages", "for all indexes, a page an index at least"));
        parameters
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        measure(laboratory, Device::Disk, |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        measure(laboratory, Device::Ssdsim, drive)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let rate = |series: &str| rows.line(series, |row: &Row<C>| row.elapsed_us.rate(row.requests));
        let (pio, blink) = (rate(PIO)?, rate(BLINK)?);
        let ratios: Vec<(f64, f64)> =
            pio.iter().zip(&blink).map(|((at, pio), (_, blink))| (*at, pio.over(*blink))).collect();
        let told = |line: &[(f64, f64)]| {
            line.iter()
                .map(|(at, value)| format!("{} at {at}", number(*value)))
                .collect::<Vec<_>>()
                .join(", ")
        };
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
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "threads".into(), scale: Scaling::Doubling },
            y: Axis { label: "operations a second".into(), scale: Scaling::Even },
            lines: Line::all(rows, 1.0, |row| row.elapsed_us.rate(row.requests))?,
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
