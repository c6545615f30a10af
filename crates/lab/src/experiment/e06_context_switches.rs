//! E6: context switches of psync and of threads (PIO B-tree, figure 4 (c)).

use super::e04_shared_file::{LEVELS, NO_THREADS, PSYNC, THREADS};
use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::{Failure, Result};
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Wall};
use crate::rival::{self, Job};
use crate::row::{Missing, Row, Rows};
use crate::sweep::Point;
use crate::traffic::{Mix, Traffic};
use crate::usage::{SWITCHES, Usage};
use crate::wording::times;

pub(super) struct ContextSwitches;

static CARD: Card = Card {
    number: 6,
    name: "context-switches",
    title: "Context switches for a million reads",
    source: "Roh et al., PVLDB 5(4), 2011, figure 4 (c)",
    question: "A thread that waits for a read gives up the processor, and gets it back later: two switches for each read. \
               psync waits once for a whole set. How many switches does each way take for a million reads?",
    reported: "At 32 requests at a time threads switch more than ten times as often as psync, for 1 M reads of 4 KB.",
    absent: &[(Device::Ssdsim, NO_THREADS), (Device::Nand, NO_THREADS)],
    causes: &[Cause {
        device: Device::Disk,
        scale: None,
        key: "psync",
        text: "A wait can end early: completions that arrive in bunches, or other programs on the same processors, each make \
               the kernel switch to the waiting thread and away again before the set is done.",
    }],
};

/// Counts are told for so many requests.
const MILLION: f64 = 1e6;

fn requests(scale: Scale) -> u64 {
    scale.requests(10_000, 200_000, 1_000_000)
}

fn switches<C: Clock>(row: &Row<C>) -> f64 {
    row.count(SWITCHES) / row.requests as f64 * MILLION
}

impl Study for ContextSwitches {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        vec![
            Parameter::new("requests at a time", "1 to 64", "1 to 32"),
            Parameter::new("request", "read of 4 KB, random", "read of 4 KiB, random"),
            Parameter::new(
                "requests a point",
                "1,000,000",
                format!("{}, told for a million", requests(scale)),
            ),
            Parameter::new("file", "4 GiB", Laboratory::file(scale, device)),
            Parameter::new("counted", "not told how", "getrusage of all threads: voluntary and involuntary"),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        if Usage::so_far().is_none() {
            return Err(Failure::CannotRun("this system does not tell context switches".into()));
        }
        let (disk, ground) = (laboratory.disk()?, laboratory.disk_ground()?);
        let requests = requests(laboratory.scale);
        let job = Job {
            path: disk.path(&ground.name),
            len: ground.len,
            direct: true,
            mixed: false,
            requests,
            seed: 0,
            order: None,
        };
        let grounds = [ground];
        laboratory.expect(2 * LEVELS.len() * Wall::RUNS as usize);
        let mut rows = Vec::new();
        for run in 0..Wall::RUNS {
            for (place, level) in LEVELS.into_iter().enumerate() {
                let seed = Laboratory::seed(run, place);
                laboratory.step(&format!("{PSYNC} at {level}"))?;
                let point = Point::new(PSYNC, level as f64, Traffic::random_4k(Mix::Reads, level, requests));
                rows.push(point.measure(disk, &grounds, run, seed, true)?);
                laboratory.step(&format!("{THREADS} at {level}"))?;
                rows.push(rival::threads(&job.split(level, seed))?.row(THREADS, level as f64, run));
            }
        }
        Ok(Rows(rows))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let (psync, threads) = (rows.median(PSYNC, 32.0, switches)?, rows.median(THREADS, 32.0, switches)?);
        let mut judgement = Judgement::default();
        judgement.check(
            "ratio",
            "32 threads switch at least 10 times as often as psync at 32",
            "an order of magnitude more",
            format!("{} and {}: {}", number(threads), number(psync), times(threads / psync)),
            threads / psync >= 10.0,
        );
        let (least, most) = (MILLION / 32.0, MILLION / 32.0 * 2.0);
        judgement.check(
            "psync-once",
            "psync at 32 switches once or twice for each set",
            "31 k to 63 k for 1 M reads",
            format!("{}: {:.2} a set", number(psync), psync / least),
            (least..=most).contains(&psync),
        );
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "requests at a time".into(), scale: Scaling::Doubling },
            y: Axis { label: "context switches for 1 M reads, thousands".into(), scale: Scaling::Doubling },
            lines: Line::all(rows, 1e-3, switches)?,
            bars: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::row::tests::row;

    fn judgement(psync: f64, threads: f64) -> Judgement {
        let counted = |series, a_request: f64| {
            let mut row = row::<Wall>(series, 32.0, 0, 10.0);
            row.counts.insert(SWITCHES.into(), a_request * 1000.0);
            row
        };
        let rows = Rows(vec![counted(PSYNC, psync), counted(THREADS, threads)]);
        Study::judge(&ContextSwitches, &rows, Device::Disk).unwrap()
    }

    #[test]
    fn one_switch_a_set_holds_and_one_a_request_does_not() {
        assert_eq!(judgement(1.1 / 32.0, 1.0).verdict(), Verdict::Holds);
        assert_eq!(judgement(0.5, 1.0).outcome("ratio"), Some(Outcome::Fails));
        assert_eq!(judgement(2.5 / 32.0, 2.0).outcome("psync-once"), Some(Outcome::Fails));
        assert_eq!(judgement(0.5 / 32.0, 2.0).outcome("psync-once"), Some(Outcome::Fails));
    }

    #[test]
    fn rows_without_counts_are_not_judged() {
        let rows = Rows(vec![row::<Wall>(PSYNC, 32.0, 0, 1.0), row(THREADS, 32.0, 0, 1.0)]);
        assert!(Study::judge(&ContextSwitches, &rows, Device::Disk).is_err());
    }
}
