//! E5: psync against threads with a file for each (PIO B-tree, figure 4 (b)).

use super::e04_shared_file::{LEVELS, NO_THREADS, PSYNC, THREADS};
use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Wall};
use crate::rival::{self, Job};
use crate::row::{Missing, Row, Rows};
use crate::sweep::Point;
use crate::traffic::{Mix, Traffic};
use crate::usage::CPU;

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
        key: "equal",
        text: "With few processors, threads also compete for processor time: the time that each way takes for a request is \
               reported beside, and where psync takes less of it, it wins by that.",
    }],
};

fn requests(scale: Scale) -> u64 {
    scale.pick(4_000, 20_000, 50_000)
}

/// Levels that are judged: at one request at a time the two are the same call.
fn judged() -> impl Iterator<Item = f64> {
    LEVELS.into_iter().filter(|level| *level >= 2).map(|level| level as f64)
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
        laboratory.expect(2 * LEVELS.len() * Wall::RUNS as usize);
        let mut rows = Vec::new();
        for run in 0..Wall::RUNS {
            for (place, level) in LEVELS.into_iter().enumerate() {
                let seed = Laboratory::seed(run, place);
                laboratory.step(&format!("{PSYNC} at {level}"))?;
                let point = Point::new(PSYNC, level as f64, Traffic::random_4k(Mix::Chance, level, requests));
                rows.push(point.measure(disk, &grounds[..level], run, seed, true)?);
                laboratory.step(&format!("{THREADS} at {level}"))?;
                let job = |(index, ground): (usize, &crate::stage::Ground)| Job {
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
            [row::<Wall>(PSYNC, level, 0, 50.0 / level), row(THREADS, level, 0, 50.0 / level * ratio(level))]
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
