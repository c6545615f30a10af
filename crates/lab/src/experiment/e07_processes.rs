//! E7: the comparisons of E4 to E6 with processes in the place of threads (PIO B-tree, end of section 2.2).

use super::e04_shared_file::NO_THREADS;
use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling};
use crate::failure::{Failure, Result};
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Wall};
use crate::rival::{self, Job};
use crate::row::{Missing, Row, Rows};
use crate::usage::{SWITCHES, Usage};

pub(super) struct Processes;

static CARD: Card = Card {
    number: 7,
    name: "processes",
    title: "Processes in the place of threads",
    source: "Roh et al., PVLDB 5(4), 2011, section 2.2, text to figure 4",
    question: "Does it matter whether the workers that psync is compared with are threads of one process, or processes? \
               Each comparison of E4 to E6 is run both ways. A worker process is this program again.",
    reported: "Almost identical results with processes.",
    absent: &[(Device::Ssdsim, NO_THREADS), (Device::Nand, NO_THREADS)],
    causes: &[Cause {
        device: Device::Disk,
        scale: None,
        key: "ordered",
        text: "Threads take their turns by a queue in memory; processes by locks that the kernel keeps for a file (flock), \
               which cost two system calls for each request and let readers overtake writers that wait.",
    }],
};

/// The workloads: name, whether half are writes, a file for each worker, POSIX order.
const WORKLOADS: [(&str, bool, bool, bool); 4] = [
    ("shared file", true, false, false),
    ("ordered", true, false, true),
    ("own files", true, true, false),
    ("reads", false, false, false),
];
const LEVELS: [usize; 3] = [2, 8, 32];
const WAYS: [&str; 2] = ["threads", "processes"];

fn series(workload: &str, way: &str) -> String {
    format!("{workload}, {way}")
}

fn requests(scale: Scale) -> u64 {
    scale.requests(10_000, 20_000, 100_000)
}

impl Study for Processes {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        vec![
            Parameter::new("workers", "1 to 64", "2, 8, 32"),
            Parameter::new(
                "request",
                "4 KiB, random",
                "4 KiB, random; half of them writes except in \"reads\"",
            ),
            Parameter::new("requests a point", "1,000,000 for the switches", requests(scale).to_string()),
            Parameter::new("file", "4 GiB", Laboratory::file(scale, device)),
            Parameter::new("processes", "fork", "this program, run again by each worker"),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        if Usage::so_far().is_none() {
            return Err(Failure::CannotRun("this system does not tell context switches".into()));
        }
        let (disk, ground) = (laboratory.disk()?, laboratory.disk_ground()?);
        let own = laboratory.disk_grounds(LEVELS[LEVELS.len() - 1])?;
        let requests = requests(laboratory.scale);
        laboratory.expect(WORKLOADS.len() * LEVELS.len() * WAYS.len() * Wall::RUNS as usize);
        let mut rows = Vec::new();
        for run in 0..Wall::RUNS {
            for (place, (workload, mixed, own_files, ordered)) in WORKLOADS.into_iter().enumerate() {
                for level in LEVELS {
                    let seed = Laboratory::seed(run, place);
                    let job = |worker: usize| {
                        let ground = if own_files { &own[worker] } else { &ground };
                        let path = disk.path(&ground.name);
                        Job {
                            order: ordered.then(|| path.clone()),
                            path,
                            len: ground.len,
                            direct: true,
                            mixed,
                            requests: requests.div_ceil(level as u64),
                            seed: seed * 1024 + worker as u64,
                        }
                    };
                    let jobs: Vec<_> = (0..level).map(job).collect();
                    for way in WAYS {
                        laboratory.step(&format!("{workload}, {way} at {level}"))?;
                        let done = match way {
                            "threads" => rival::threads(&jobs)?,
                            _ => rival::processes(laboratory.program(), &jobs)?,
                        };
                        rows.push(done.row(&series(workload, way), level as f64, run));
                    }
                }
            }
        }
        for ground in own {
            ground.clear(disk)?;
        }
        Ok(Rows(rows))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let near = |ratios: &[f64]| ratios.iter().all(|ratio| (0.75..=1.25).contains(ratio));
        let told = |ratios: &[f64]| {
            let pairs = ratios.iter().zip(LEVELS);
            pairs.map(|(ratio, level)| format!("{ratio:.2} at {level}")).collect::<Vec<_>>().join(", ")
        };
        for (workload, ..) in WORKLOADS {
            let ratio = |level: usize| -> std::result::Result<f64, Missing> {
                let of = |way| rows.median(&series(workload, way), level as f64, Row::bandwidth);
                Ok(of("processes")?.over(of("threads")?))
            };
            let ratios = LEVELS.into_iter().map(ratio).collect::<std::result::Result<Vec<_>, Missing>>()?;
            let claim = format!("{workload}: the bandwidth of processes is within 25 % of that of threads");
            judgement.check(
                &format!("{workload}-bandwidth"),
                &claim,
                "almost identical",
                told(&ratios),
                near(&ratios),
            );
        }
        let ratio = |level: usize| -> std::result::Result<f64, Missing> {
            let of = |way| {
                rows.median(&series("reads", way), level as f64, |row| {
                    row.count(SWITCHES) / row.requests as f64
                })
            };
            Ok(of("processes")? / of("threads")?)
        };
        let ratios = LEVELS.into_iter().map(ratio).collect::<std::result::Result<Vec<_>, Missing>>()?;
        let claim = "reads: processes switch contexts as often as threads, within 25 %";
        judgement.check("reads-switches", claim, "almost identical", told(&ratios), near(&ratios));
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1e-6, Row::bandwidth)?;
        for line in &mut lines {
            line.paired = line.name.ends_with("processes");
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "workers".into(), scale: Scaling::Doubling },
            y: Axis { label: "bandwidth, MB/s".into(), scale: Scaling::Doubling },
            lines,
            bars: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::row::tests::row;

    fn judgement(slower: impl Fn(&str) -> f64, switches: f64) -> Judgement {
        let mut rows = Vec::new();
        for (workload, ..) in WORKLOADS {
            for level in LEVELS {
                for way in WAYS {
                    let (micros, count) =
                        if way == "threads" { (10.0, 1.0) } else { (10.0 * slower(workload), switches) };
                    let mut row = row::<Wall>(&series(workload, way), level as f64, 0, micros);
                    row.counts.insert(SWITCHES.into(), count * 1000.0);
                    rows.push(row);
                }
            }
        }
        Study::judge(&Processes, &Rows(rows), Device::Disk).unwrap()
    }

    #[test]
    fn alike_holds_and_different_does_not() {
        assert_eq!(judgement(|_| 1.1, 1.2).verdict(), Verdict::Holds);
        let slow = judgement(|workload| if workload == "own files" { 1.5 } else { 1.0 }, 1.0);
        assert_eq!(slow.outcome("own files-bandwidth"), Some(Outcome::Fails));
        assert_eq!(slow.outcome("reads-bandwidth"), Some(Outcome::Holds));
        assert_eq!(judgement(|_| 1.0, 1.4).outcome("reads-switches"), Some(Outcome::Fails));
        assert_eq!(judgement(|_| 0.7, 1.0).verdict(), Verdict::DoesNotHold);
    }
}
