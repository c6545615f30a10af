//! E18: what each part of the PIO B-tree is good for.

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::{Judgement, first_fall};
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Lapse, Quantity, Simulated, Wall};
use crate::rounds::{check_matched, settle, whole_rounds};
use crate::row::{Missing, Row, Rows};
use crate::tree_choice::{self, BUFFERS};
use crate::tree_ground::{TreeGround, TreeSize, UniformKeys};
use trees::{BTree, Eviction, Index, LogMode, PioOptions, PioTree};

pub(super) struct Parts;

static CARD: Card = Card {
    number: 18,
    name: "parts",
    title: "What each part of the PIO B-tree is good for",
    source: "ours, on Roh et al., PVLDB 5(4), 2011, sections 3.1 to 3.3",
    question: "A PIO B-tree is a B+-tree with a queue of updates, with psync for the batches, and with long leaves that are \
               appended to, helped by a map of their last segments. Take one part away, or leave one alone: what does an insertion \
               cost then? And how long does the insertion wait that finds the queue full, by the size of a batch (bcnt)?",
    reported: "Not told: the paper measures all parts together, with bcnt 5000.",
    absent: &[(Device::Nand, "the trees work on a block device")],
    causes: &[
        Cause { device: Device::Ssdsim, scale: None, key: "p999", text: COUNTING },
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "mean",
            text: "going round the keys once, batches write a segment of each of the 3000 leaves, whatever bcnt is (2980 to 3153 \
                   segments); what differs is how many insertions that is for, and how full the psync calls are. With bcnt 1000 \
                   a batch meets 26 leaves, so a call carries 26 requests, not PioMax = 64, and a request takes 11.8 us instead of \
                   8.2 to 8.9. With bcnt 50,000, four fifths of the queue, once round is for 79,000 insertions, not for 118,000 to \
                   122,000: small batches always come to the keys that have waited the longest, and find the queue twice as dense \
                   there as on average; one that takes nearly all does not. The mean can be the same only for batches of many \
                   times PioMax leaves from a queue of many times a batch",
        },
        Cause { device: Device::Disk, scale: None, key: "p999", text: COUNTING },
        Cause {
            device: Device::Disk,
            scale: None,
            key: "mean",
            text: "as on the simulated drive: an insertion makes 0.026 reads and writes with bcnt 1000 and 5000, 0.029 with 20,000, 0.038 with 50,000, and \
                   small batches make psync calls that are not full. Beside that the runs of one point differ by a third (1.05 to \
                   1.43 us at 5000), as this disk changes its pace",
        },
    ],
};

const COUNTING: &str = "the claim cannot hold as it is worded: one insertion in bcnt brings a batch to the tree, so with bcnt above \
                        1000 fewer than one in a thousand wait, and the 99.9th percentile is an append in memory. The longest wait \
                        shows what was meant";

const BTREE: &str = "B+-tree";
const QUEUE: &str = "queue alone";
const PSYNC: &str = "queue, psync";
const WHOLE: &str = "queue, psync, long leaves written whole";
const BLIND: &str = "all but the map";
const SYNCHRONOUS: &str = "all but psync";
const ALL: &str = "all";
const BATCH: &str = "by bcnt";
/// How often each point is measured.
const RUNS: u32 = 3;
/// In the order of the picture.
const PARTS: [&str; 7] = [BTREE, QUEUE, PSYNC, WHOLE, BLIND, SYNCHRONOUS, ALL];

/// Batches, and the inserts that are looked at for each.
fn batches(scale: Scale) -> (Vec<usize>, u64) {
    if scale == Scale::Trial {
        (vec![16, 64], 500)
    } else {
        (vec![256, 1000, 5000, 20_000, 50_000], scale.pick(50_000, 200_000, 1_000_000))
    }
}

/// A queue that holds more than the largest batch, and a buffer, in pages.
fn room(scale: Scale) -> (usize, usize) {
    if scale == Scale::Trial { (1, 4) } else { (256, 64) }
}

/// A line by its buffer. The one that holds the upper levels, which the paper did not measure, has no mark.
fn series(name: &str, eviction: Eviction) -> String {
    if eviction == Eviction::Lru { format!("{name}, LRU") } else { name.to_owned() }
}

/// The parts that a PIO B-tree has. A third of the memory is queue.
fn options(name: &str, size: TreeSize, eviction: Eviction) -> PioOptions {
    let queue_pages = (size.memory_pages / 3 / 4 * 4).max(1);
    let four = PioOptions {
        segments: 4,
        queue_pages,
        frames: size.memory_pages - queue_pages - 1,
        log: LogMode::Off,
        eviction,
        ..PioOptions::default()
    };
    match name {
        QUEUE => PioOptions { segments: 1, pio_max: 1, ..four },
        PSYNC => PioOptions { segments: 1, ..four },
        WHOLE => PioOptions {
            page_len: 4 * four.page_len,
            segments: 1,
            queue_pages: (queue_pages / 4).max(1),
            frames: (size.memory_pages - queue_pages) / 4,
            ..four
        },
        BLIND => PioOptions { last_segment_map: false, ..four },
        SYNCHRONOUS => PioOptions { pio_max: 1, ..four },
        _ => four,
    }
}

fn measure<C: Clock>(
    laboratory: &Laboratory,
    runs: u32,
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let size = TreeSize::of(laboratory.scale);
    let (batches, inserts) = batches(laboratory.scale);
    laboratory.expect(BUFFERS.len() * (PARTS.len() + batches.len()) * runs as usize);
    let mut rows = Vec::new();
    for (eviction, run) in
        BUFFERS.into_iter().flat_map(|(eviction, _)| (0..runs).map(move |run| (eviction, run)))
    {
        for (at, name) in PARTS.iter().enumerate() {
            let line = series(name, eviction);
            laboratory.step(&line)?;
            let place = ground(run)?;
            let mut keys = UniformKeys::new(Laboratory::seed(run, at), size.records);
            let count = size.operations / 2;
            if *name == BTREE {
                let load = tree_choice::load(size, 1.0, eviction);
                let mut tree: BTree = place.grow(&tree_choice::btree_of(4096, &load), size.records)?;
                rows.push(place.row(&line, at as f64, run, count, || {
                    (0..count).try_for_each(|index| Ok(tree.insert(keys.next(), index)?))
                })?);
                continue;
            }
            let mut tree: PioTree = place.grow(&options(name, size, eviction), size.records)?;
            let mut insert = |tree: &mut PioTree, index| Ok(tree.insert(keys.next(), index)?);
            settle(&mut tree, &mut insert)?;
            let mut rounds = None;
            let mut row = place.row(&line, at as f64, run, 1, || {
                rounds = Some(whole_rounds(&mut tree, count, &mut insert)?);
                Ok(())
            })?;
            if let Some(rounds) = rounds {
                row.requests = rounds.done;
                rounds.tell(&mut row, rounds.done);
            }
            rows.push(row);
        }
        let (queue_pages, frames) = room(laboratory.scale);
        for (at, bcnt) in batches.iter().enumerate() {
            let line = series(BATCH, eviction);
            laboratory.step(&format!("{line}, {bcnt}"))?;
            let place = ground(run)?;
            let options = PioOptions { queue_pages, frames, bcnt: *bcnt, ..options(ALL, size, eviction) };
            let mut tree: PioTree = place.grow(&options, size.records)?;
            let work = (inserts, Laboratory::seed(run, 100 + at));
            rows.push(waits(&place, &mut tree, (&line, *bcnt), run, work, size)?);
        }
    }
    Ok(Rows(rows))
}

/// Inserts, each by the clock.
fn waits<C: Clock>(
    place: &TreeGround<C>,
    tree: &mut PioTree,
    (line, bcnt): (&str, usize),
    run: u32,
    (inserts, seed): (u64, u64),
    size: TreeSize,
) -> Result<Row<C>> {
    let mut keys = UniformKeys::new(seed, size.records);
    settle(tree, |tree, index| Ok(tree.insert(keys.next(), index)?))?;
    let (mut waits, mut rounds) = (Vec::new(), None);
    let mut row = place.row(line, bcnt as f64, run, 1, || {
        rounds = Some(whole_rounds(tree, inserts, |tree, index| {
            let began = place.now();
            tree.insert(keys.next(), index)?;
            waits.push((place.now() - began).as_secs_f64() * 1e6);
            Ok(())
        })?);
        Ok(())
    })?;
    if let Some(rounds) = rounds {
        row.requests = rounds.done;
        rounds.tell(&mut row, rounds.done);
    }
    waits.sort_by(f64::total_cmp);
    let last = waits.len().saturating_sub(1);
    for (name, place) in [("p999_us", waits.len() * 999 / 1000), ("max_us", last)] {
        row.counts.insert(name.into(), waits.get(place.min(last)).copied().unwrap_or(0.0));
    }
    Ok(row)
}

impl Study for Parts {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        let size = TreeSize::of(scale);
        let all = options(ALL, size, Eviction::Lru);
        let (queue, frames) = room(scale);
        let (batches, inserts) = batches(scale);
        vec![
            Parameter::new("index", "10^9 records, 16 MB memory", size.told()),
            Parameter::new(
                "insertions",
                "not told",
                format!(
                    "{}; from one way of the batches round the keys to another, in a steady state",
                    size.operations / 2
                ),
            ),
            Parameter::new("queue", "not told", format!("{} pages of 4 KiB", all.queue_pages)),
            Parameter::new("leaves", "not told", "4 segments of 4 KiB, or one page of 16 KiB, or of 4 KiB"),
            Parameter::new("runs", "not told", RUNS.to_string()),
            Parameter::new("buffer", "LRU", "LRU, and one that holds the upper levels, each for all"),
            Parameter::new("bcnt", "5000", format!("{batches:?}")),
            Parameter::new(
                "for bcnt",
                "not told",
                format!(
                    "{queue} pages of queue, {frames} of buffer, {inserts} insertions at least, in the same way"
                ),
            ),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        measure(laboratory, RUNS, |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        measure(laboratory, RUNS, TreeGround::on_ssdsim)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let measured = |name| rows.series().contains(&series(name, Eviction::Lru).as_str());
        // What the paper measured with, if it was run.
        let eviction = if measured(ALL) { Eviction::Lru } else { Eviction::LowestLevel };
        let batch = series(BATCH, eviction);
        let time = |name: &str| -> std::result::Result<Lapse<C>, Missing> {
            let at = PARTS.iter().position(|part| *part == name).unwrap_or(0);
            rows.median(&series(name, eviction), at as f64, Row::latency)
        };
        for (key, part, without, with) in [
            ("queue", "the queue alone", BTREE, QUEUE),
            ("psync", "psync, in addition to the queue", QUEUE, PSYNC),
            ("psync-of-all", "psync, with all other parts", SYNCHRONOUS, ALL),
            ("long", "long leaves that are appended to, in addition to queue and psync", PSYNC, ALL),
            ("append", "appending, against writing long leaves whole", WHOLE, ALL),
            ("map", "the map of last segments, with all other parts", BLIND, ALL),
        ] {
            let (without, with) = (time(without)?, time(with)?);
            judgement.own(
                key,
                &format!("{part}: insertion becomes faster"),
                format!(
                    "{} us to {} us: {} x",
                    number(without.number()),
                    number(with.number()),
                    number(without.over(with))
                ),
                with.number() < without.number(),
            );
        }
        check_matched(&mut judgement, rows);
        let line = |name: &'static str| rows.line(&batch, move |row| row.count(name));
        let told = |line: &[(f64, f64)]| {
            line.iter()
                .map(|(at, value)| format!("{} at {at}", number(*value)))
                .collect::<Vec<_>>()
                .join(", ")
        };
        for (key, claim, line) in [
            (
                "p999",
                "99.9 % of insertions take no longer than so many us, which grows with bcnt",
                line("p999_us")?,
            ),
            ("longest", "the longest insertion, in us, grows with bcnt", line("max_us")?),
        ] {
            judgement.own(key, claim, told(&line), first_fall(&line, 0.0).is_none());
        }
        let by = |part: &'static str, whole: &'static str| {
            rows.line(&batch, move |row| row.count(part) / row.count(whole))
        };
        for (key, claim, line) in [
            (
                "leaves",
                "segments of leaves written for a thousand insertions, by bcnt",
                by("writes", "updates")?.into_iter().map(|(at, each)| (at, 1000.0 * each)).collect(),
            ),
            ("sets", "requests that a psync call carries (PioMax 64), by bcnt", {
                rows.line(&batch, |row| (row.count("reads") + row.count("writes")) / row.count("psyncs"))?
            }),
        ] {
            judgement.report(key, claim, "not told", told(&line));
        }
        let means: Vec<(f64, f64)> = rows
            .line(&batch, Row::latency)?
            .into_iter()
            .map(|(at, time)| (at, time.number()))
            .filter(|(at, _)| *at >= 1000.0 || rows.points(&batch).len() < 3)
            .collect();
        let least = means.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let most = means.iter().map(|point| point.1).fold(0.0, f64::max);
        judgement.own(
            "mean",
            "the mean, in us, stays within 15 % for bcnt from 1000 on",
            told(&means),
            most <= 1.15 * least,
        );
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1.0, Row::latency)?;
        let lru = lines.iter().any(|line| line.name == series(ALL, Eviction::Lru));
        let eviction = if lru { Eviction::Lru } else { Eviction::LowestLevel };
        let shown = PARTS.map(|part| series(part, eviction));
        lines.retain(|line| shown.contains(&line.name));
        // One bar each, all in a row.
        let points = lines.iter().flat_map(|line| line.points.clone()).collect();
        let lines = vec![Line { name: "insertion".into(), paired: false, points }];
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "parts".into(), scale: Scaling::Names(&SHORT) },
            y: Axis { label: "time of an insertion, us".into(), scale: Scaling::Even },
            lines,
            bars: true,
        })
    }
}

/// For the picture.
const SHORT: [&str; 7] = ["B+-tree", "queue", "+ psync", "+ 16 KiB", "no map", "no psync", "all"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::rounds::tests::brought;
    use crate::row::tests::row;

    fn rows(times: [f64; 7], batches: [(f64, f64, f64); 3]) -> Rows<Simulated> {
        let mut rows: Vec<_> = PARTS
            .iter()
            .zip(times)
            .enumerate()
            .map(|(at, (name, time))| row(name, at as f64, 0, time))
            .collect();
        for (at, (mean, p999, max)) in [256.0, 1000.0, 5000.0].into_iter().zip(batches) {
            let mut row = row(BATCH, at, 0, mean);
            row.counts.extend([("p999_us".to_owned(), p999), ("max_us".to_owned(), max)]);
            row.counts.extend(["psyncs", "reads", "writes"].map(|name| (name.to_owned(), 10.0)));
            rows.push(brought(row, 100));
        }
        Rows(rows)
    }

    #[test]
    fn each_part_is_asked_for_and_so_are_the_batches() {
        let good = [300.0, 150.0, 30.0, 60.0, 40.0, 120.0, 20.0];
        let waits = [(30.0, 500.0, 900.0), (20.0, 2000.0, 3000.0), (21.0, 2000.0, 9000.0)];
        let judge = |times, waits| Study::judge(&Parts, &rows(times, waits), Device::Ssdsim).unwrap();
        assert_eq!(judge(good, waits).verdict(), Verdict::NotJudged);
        for (part, time, key) in [
            (1, 400.0, "queue"),
            (2, 200.0, "psync"),
            (5, 19.0, "psync-of-all"),
            (2, 19.0, "long"),
            (3, 19.0, "append"),
            (4, 19.0, "map"),
        ] {
            let mut times = good;
            times[part] = time;
            assert_eq!(judge(times, waits).outcome(key), Some(Outcome::Fails), "{key}");
        }
        for (waits, key) in [
            ([(30.0, 500.0, 900.0), (20.0, 1.0, 3000.0), (21.0, 2000.0, 9000.0)], "p999"),
            ([(30.0, 500.0, 900.0), (20.0, 2000.0, 3000.0), (21.0, 2000.0, 2000.0)], "longest"),
            ([(30.0, 500.0, 900.0), (20.0, 2000.0, 3000.0), (25.0, 2000.0, 9000.0)], "mean"),
        ] {
            assert_eq!(judge(good, waits).outcome(key), Some(Outcome::Fails), "{key}");
        }
    }
}
