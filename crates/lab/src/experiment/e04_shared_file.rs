//! E4: psync against threads on one file (PIO B-tree, figure 4 (a)).

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
use crate::wording::{megabytes, times};

pub(super) struct SharedFile;

pub(super) const NO_THREADS: &str = "it compares ways through an operating system: threads, locks of a file system, \
                                     context switches. A simulated drive has none of them";

static CARD: Card = Card {
    number: 4,
    name: "shared-file",
    title: "psync and threads on one file, half writes",
    source: "Roh et al., PVLDB 5(4), 2011, figure 4 (a)",
    question: "n requests at a time, by one thread with psync or by n threads with a synchronous request each, on the same \
               file. POSIX orders the writes of a file; a file system that keeps this with a lock for each file lets \
               threads use no more than a part of the drive.",
    reported: "Threads stay at about the bandwidth of 2 requests at a time, psync goes far beyond. ext2, direct I/O.",
    absent: &[(Device::Ssdsim, NO_THREADS), (Device::Nand, NO_THREADS)],
    causes: &[
        Cause {
            device: Device::Disk,
            scale: None,
            key: "ordered-stays",
            text: "Processors that are busy with something else. Under the emulated order a request begins when the thread \
               before it has been answered, gets a processor and hands over. With 2 threads nothing else happens \
               meanwhile, with 32 several reads overlap, so that the lack of processors slows 2 threads more. On \
               the same disk and machine, loaded by others (7 to 14 on 2 processors), the growth was 1.61 without and 0.98 with \
               real-time priority.",
        },
        Cause {
            device: Device::Disk,
            scale: None,
            key: "real",
            text: "Today's ext4 and XFS take a file's lock shared for direct overwrites of blocks that are there already, so \
               that threads overlap; ext2 of 2011 took it exclusively. The line with an emulated POSIX order has the old \
               behaviour on the same disk.",
        },
    ],
};

pub(super) const PSYNC: &str = "psync";
pub(super) const THREADS: &str = "threads";
const ORDERED: &str = "threads, POSIX order";
pub(super) const LEVELS: [usize; 6] = [1, 2, 4, 8, 16, 32];

fn requests(scale: Scale) -> u64 {
    scale.requests(10_000, 20_000, 50_000)
}

impl Study for SharedFile {
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
            Parameter::new("file", "4 GiB, on ext2", Laboratory::file(scale, device)),
            Parameter::new(
                "order of writes",
                "the file system's",
                "the file system's, and emulated: a lock in the order of arrival",
            ),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        let (disk, ground) = (laboratory.disk()?, laboratory.disk_ground()?);
        let requests = requests(laboratory.scale);
        let job = Job {
            path: disk.path(&ground.name),
            len: ground.len,
            direct: true,
            mixed: true,
            requests,
            seed: 0,
            order: None,
        };
        let ordered = Job { order: Some(job.path.clone()), ..job.clone() };
        let grounds = [ground];
        laboratory.expect(3 * LEVELS.len() * Wall::RUNS as usize);
        let mut rows = Vec::new();
        for run in 0..Wall::RUNS {
            for (place, level) in LEVELS.into_iter().enumerate() {
                let seed = Laboratory::seed(run, place);
                laboratory.step(&format!("{PSYNC} at {level}"))?;
                let point = Point::new(PSYNC, level as f64, Traffic::random_4k(Mix::Chance, level, requests));
                rows.push(point.measure(disk, &grounds, run, seed, true)?);
                for (series, job) in [(THREADS, &job), (ORDERED, &ordered)] {
                    laboratory.step(&format!("{series} at {level}"))?;
                    let done = rival::threads(&job.split(level, seed))?;
                    rows.push(done.row(series, level as f64, run));
                }
            }
        }
        Ok(Rows(rows))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let bandwidth = |series, level| rows.median(series, level, Row::bandwidth);
        let psync = bandwidth(PSYNC, 32.0)?;
        let mut judgement = Judgement::default();
        let grows = |series| -> std::result::Result<(String, f64), Missing> {
            let (two, many) = (bandwidth(series, 2.0)?, bandwidth(series, 32.0)?);
            Ok((
                format!("{} to {}: {}", megabytes(two), megabytes(many), times(many.over(two))),
                many.over(two),
            ))
        };
        let (ours, growth) = grows(ORDERED)?;
        judgement.check(
            "ordered-stays",
            "under POSIX order 32 threads have at most 1.3 times the bandwidth of 2",
            "the bandwidth of 2",
            ours,
            growth <= 1.3,
        );
        let gain = psync.over(bandwidth(ORDERED, 32.0)?);
        judgement.check(
            "ordered-psync",
            "psync at 32 has at least twice the bandwidth of 32 threads under POSIX order",
            "far more",
            format!("{} to {}: {}", megabytes(bandwidth(ORDERED, 32.0)?), megabytes(psync), times(gain)),
            gain >= 2.0,
        );
        let (ours, growth) = grows(THREADS)?;
        judgement.check(
            "real-stays",
            "on this file system as it is, 32 threads have at most 1.3 times the bandwidth of 2",
            "nearly the bandwidth of 2",
            ours,
            growth <= 1.3,
        );
        let gain = psync.over(bandwidth(THREADS, 32.0)?);
        judgement.check(
            "real-psync",
            "on this file system as it is, psync at 32 has more than the bandwidth of 32 threads",
            "psync outperformed threads",
            times(gain),
            gain > 1.0,
        );
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "requests at a time".into(), scale: Scaling::Doubling },
            y: Axis { label: "bandwidth, reads and writes together, MB/s".into(), scale: Scaling::Doubling },
            lines: Line::all(rows, 1e-6, Row::bandwidth)?,
            bars: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::row::tests::row;

    /// Rows in which requests under POSIX order overlap up to `ordered`, and psync's up to `psync`.
    fn rows(ordered: f64, psync: f64) -> Rows<Wall> {
        let at = |level: usize| {
            let level = level as f64;
            [(PSYNC, psync), (THREADS, psync), (ORDERED, ordered)]
                .map(|(series, most)| row::<Wall>(series, level, 0, 60.0 / level.min(most)))
        };
        Rows(LEVELS.into_iter().flat_map(at).collect())
    }

    #[test]
    fn threads_that_wait_for_each_other_hold() {
        let outcomes = |threads| {
            let mut rows = rows(1.4, 5.0);
            for row in rows.0.iter_mut().filter(|row| row.series == THREADS) {
                *row = super::tests::row(THREADS, row.at, 0, 60.0 / row.at.min(threads));
            }
            let judged = Study::judge(&SharedFile, &rows, Device::Disk).unwrap();
            (judged.verdict(), judged.outcome("real-stays"), judged.outcome("real-psync"))
        };
        assert_eq!(outcomes(2.0).0, Verdict::Holds);
        assert_eq!(outcomes(4.0).1, Some(Outcome::Fails));
        assert_eq!(outcomes(5.0).2, Some(Outcome::Fails));
        let overlapping = Study::judge(&SharedFile, &rows(4.0, 5.0), Device::Disk).unwrap();
        assert_eq!(overlapping.outcome("ordered-stays"), Some(Outcome::Fails));
        assert_eq!(overlapping.outcome("ordered-psync"), Some(Outcome::Fails));
        let slow = Study::judge(&SharedFile, &rows(1.4, 2.0), Device::Disk).unwrap();
        assert_eq!(slow.outcome("ordered-psync"), Some(Outcome::Fails));
    }
}
