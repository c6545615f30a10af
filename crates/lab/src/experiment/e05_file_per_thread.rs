//! E5: psync against threads with a file for each (PIO B-tree, figure 4 (b)).

use super::e04_shared_file::{LEVELS, NO_THREADS, PSYNC, THREADS};
use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling};
use crate::failure::{Failure, Result};
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Wall};
use crate::rival::{self, Job};
use crate::row::{Missing, Row, Rows};
use crate::stage::{DiskStage, Ground};
use crate::sweep::Point;
use crate::traffic::{Mix, Traffic};
use crate::usage::CPU;
use crate::wording::times;
use std::collections::BTreeMap;
use std::time::Instant;

pub(super) struct FilePerThread;

static CARD: Card = Card {
    number: 5,
    name: "file-per-thread",
    title: "psync and threads, a file for each, half writes",
    source: "Roh et al., PVLDB 5(4), 2011, figure 4 (b)",
    question: "As E4, but the n-th request goes to the n-th file. Now no lock of a file stands between threads, so they \
               should reach what psync reaches: what was missing in E4 was the file's order, not the threads' speed.",
    reported: "Threads reach about the bandwidth of psync.",
    absent: &[(Device::Ssdsim, NO_THREADS), (Device::Nand, NO_THREADS)],
    causes: &[Cause {
        device: Device::Disk,
        scale: None,
        key: "equal",
        text: "psync waits for the slowest of its set before it asks for more; threads ask anew as soon as each is \
               answered. The line of threads that wait for each other after every request shows that this is all: they \
               have psync's bandwidth at every level (32 at a time: 284 and 287 MB/s through io_uring, 282 and 270 through \
               libaio, 397 and 419 for threads that do not wait). Two psync callers with half a set each win some of it \
               back. psync takes little more than half of the processor time of threads for it.",
    }],
};

/// Evidence for the cause, judged by nobody.
const IN_STEP: &str = "threads in step";
const TWO: &str = "two psync callers";

fn requests(scale: Scale) -> u64 {
    scale.requests(10_000, 20_000, 50_000)
}

/// Levels that are judged: at one request at a time the two are the same call.
fn judged() -> impl Iterator<Item = f64> {
    LEVELS.into_iter().filter(|level| *level >= 2).map(|level| level as f64)
}

/// Two threads, each with psync and half of the files.
fn two_callers(
    disk: &DiskStage,
    grounds: &[Ground],
    requests: u64,
    run: u32,
    seed: u64,
) -> Result<Row<Wall>> {
    let half = grounds.len() / 2;
    let traffic = Traffic::random_4k(Mix::Chance, half, requests / 2);
    let (mut total, began) = (0, Instant::now());
    std::thread::scope(|scope| {
        let callers = [(&grounds[..half], 0), (&grounds[half..], 1)]
            .map(|(grounds, caller)| scope.spawn(move || traffic.send(disk, grounds, 2 * seed + caller)));
        for caller in callers {
            let sent = caller.join().map_err(|_| Failure::CannotRun("a psync caller panicked".into()))??;
            total += sent.requests;
        }
        Ok::<(), Failure>(())
    })?;
    let elapsed_us = began.elapsed().into();
    let (bytes, at) = (total * traffic.bytes as u64, grounds.len() as f64);
    Ok(Row { series: TWO.into(), at, run, requests: total, bytes, elapsed_us, counts: BTreeMap::new() })
}

impl Study for FilePerThread {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        vec![
            Parameter::new("requests at a time", "1 to 64", "1 to 32"),
            Parameter::new(
                "request",
                "4 KiB, random, reads and writes",
                "4 KiB, random, half of them writes",
            ),
            Parameter::new("requests a point", "not told", requests(scale).to_string()),
            Parameter::new(
                "files",
                "one for each thread",
                format!("32, together {}", Laboratory::file(scale, device)),
            ),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        let most = LEVELS[LEVELS.len() - 1];
        let (disk, grounds) = (laboratory.disk()?, laboratory.disk_grounds(most)?);
        let requests = requests(laboratory.scale);
        laboratory.expect(4 * LEVELS.len() * Wall::RUNS as usize);
        let mut rows = Vec::new();
        for run in 0..Wall::RUNS {
            for (place, level) in LEVELS.into_iter().enumerate() {
                let seed = Laboratory::seed(run, place);
                laboratory.step(&format!("{PSYNC} at {level}"))?;
                let point = Point::new(PSYNC, level as f64, Traffic::random_4k(Mix::Chance, level, requests));
                rows.push(point.measure(disk, &grounds[..level], run, seed, true)?);
                laboratory.step(&format!("{THREADS} at {level}"))?;
                let job = |(index, ground): (usize, &Ground)| Job {
                    path: disk.path(&ground.name),
                    len: ground.len,
                    direct: true,
                    mixed: true,
                    requests: requests.div_ceil(level as u64),
                    seed: seed * 1024 + index as u64,
                    order: None,
                };
                let jobs: Vec<_> = grounds[..level].iter().enumerate().map(job).collect();
                rows.push(rival::threads(&jobs)?.row(THREADS, level as f64, run));
                laboratory.step(&format!("{IN_STEP} at {level}"))?;
                rows.push(rival::threads_in_step(&jobs)?.row(IN_STEP, level as f64, run));
                laboratory.step(&format!("{TWO} at {level}"))?;
                if level >= 2 {
                    rows.push(two_callers(disk, &grounds[..level], requests, run, seed)?);
                }
            }
        }
        for ground in grounds {
            ground.clear(disk)?;
        }
        Ok(Rows(rows))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let ratio = |level| -> std::result::Result<(f64, f64), Missing> {
            let of = |series| rows.median(series, level, Row::bandwidth);
            Ok((level, of(PSYNC)?.over(of(THREADS)?)))
        };
        let ratios = judged().map(ratio).collect::<std::result::Result<Vec<_>, Missing>>()?;
        let told = ratios
            .iter()
            .map(|(level, ratio)| format!("{ratio:.2} at {level}"))
            .collect::<Vec<_>>()
            .join(", ");
        judgement.check(
            "equal",
            "psync has 0.8 to 1.6 times the bandwidth of threads with a file each, 2 to 32 at a time",
            "about the same",
            told,
            ratios.iter().all(|(_, ratio)| (0.8..=1.6).contains(ratio)),
        );
        let cpu = |series| rows.median(series, 32.0, |row| row.count(CPU) / row.requests as f64);
        let ours = match (cpu(PSYNC), cpu(THREADS)) {
            (Ok(psync), Ok(threads)) => format!("{psync:.1} us and {threads:.1} us"),
            _ => "this system does not tell".to_owned(),
        };
        let threads = rows.median(THREADS, 32.0, Row::bandwidth)?;
        for (key, series, claim) in [
            (
                "in-step",
                IN_STEP,
                "32 threads that wait for each other after every request, against 32 that do not",
            ),
            ("two", TWO, "two psync callers with 16 requests each, against 32 threads"),
        ] {
            let ratio = rows.median(series, 32.0, Row::bandwidth)?.over(threads);
            judgement.report(key, claim, "not told", times(ratio));
        }
        judgement.report("cpu", "processor time of a request at 32, psync and threads", "not told", ours);
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "requests at a time, each to its file".into(), scale: Scaling::Doubling },
            y: Axis { label: "bandwidth, reads and writes together, MB/s".into(), scale: Scaling::Doubling },
            lines: Line::all(rows, 1e-6, Row::bandwidth)?,
            bars: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::Verdict;
    use crate::row::tests::row;

    fn verdict(ratio: impl Fn(f64) -> f64) -> Verdict {
        let pair = |level: usize| {
            let level = level as f64;
            let micros = 50.0 / level;
            [(PSYNC, micros), (THREADS, micros * ratio(level)), (IN_STEP, micros), (TWO, micros)]
                .map(|(series, micros)| row::<Wall>(series, level, 0, micros))
        };
        let rows = Rows(LEVELS.into_iter().flat_map(pair).collect());
        Study::judge(&FilePerThread, &rows, Device::Disk).unwrap().verdict()
    }

    #[test]
    fn equal_holds_and_far_apart_does_not() {
        assert_eq!(verdict(|_| 1.0), Verdict::Holds);
        assert_eq!(verdict(|level| if level == 1.0 { 3.0 } else { 1.55 }), Verdict::Holds);
        assert_eq!(verdict(|level| if level == 8.0 { 1.7 } else { 1.0 }), Verdict::DoesNotHold);
        assert_eq!(verdict(|level| if level == 32.0 { 0.7 } else { 1.0 }), Verdict::DoesNotHold);
    }
}
