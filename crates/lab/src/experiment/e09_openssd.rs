//! E9: the OpenSSD board and the S470 of the CB-tree paper, simulated (CB-tree, table 4).

use super::{Card, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated, Spread};
use crate::row::{Missing, Row, Rows};
use crate::sweep::{Point, sweep};
use crate::traffic::{Flow, Mix, Places, Traffic};
use crate::wording::megabytes;
use flash::Profile;

pub(super) struct OpenSsd;

const A_BOARD: &str = "it is about one board, which is simulated; a disk cannot be made to be that board";

static CARD: Card = Card {
    number: 9,
    name: "openssd",
    title: "The OpenSSD board: measured by the paper, and simulated",
    source: "CB-tree, Applied Sciences 10(3), 2020, table 4",
    question: "Trees that manage flash themselves were measured on a development board. Is the simulated board, on which \
               they will run here, as fast as the real one was? This is a calibration, not a claim about flash.",
    reported: "OpenSSD, MB/s: sequential read 66.5, sequential write 22, random read of 4 KB 10.5, random write 2.5 (a \
               product of the time, SSD S470: 225, 66.5, 16.5, 20).",
    absent: &[
        (Device::Disk, A_BOARD),
        (Device::Nand, "the figures are those of the board with its translation layer"),
    ],
    causes: &[],
};

const SEQUENTIAL_BYTES: usize = 32 << 10;
const NAMES: &[&str] = &["sequential read", "sequential write", "random read, 4 KiB", "random write, 4 KiB"];

/// The workloads in the order of [`NAMES`], and the paper's MB/s.
const WORKLOADS: [(Places, Mix, usize, f64); 4] = [
    (Places::Sequential, Mix::Reads, SEQUENTIAL_BYTES, 66.5),
    (Places::Sequential, Mix::Writes, SEQUENTIAL_BYTES, 22.0),
    (Places::Random, Mix::Reads, 4 << 10, 10.5),
    (Places::Random, Mix::Writes, 4 << 10, 2.5),
];
const BOARD: &str = "simulated board";
/// The drive that the buffered trees were measured on.
const DRIVE: &str = "simulated S470";
/// Bytes of a sequential request to it: one at a time, smaller ones cannot reach what the paper measured.
const DRIVE_SEQUENTIAL_BYTES: usize = 1 << 20;
/// The paper's MB/s of the drive, in the order of [`NAMES`].
const DRIVE_PUBLISHED: [f64; 4] = [225.0, 66.5, 16.5, 20.0];
/// How far from the paper's figures is near enough.
const NEAR: f64 = 0.25;

fn requests(scale: Scale) -> u64 {
    scale.requests(2_000, 10_000, 20_000)
}

impl Study for OpenSsd {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        vec![
            Parameter::new(
                "sequential requests",
                "not told",
                "32 KiB (board) and 1 MiB (S470), one at a time",
            ),
            Parameter::new("random requests", "4 KB", "4 KiB, one at a time"),
            Parameter::new("requests a point", "not told", requests(scale).to_string()),
            Parameter::new(
                "translation",
                "not told",
                "page mapping, 7 % over-provision, drive a quarter full",
            ),
        ]
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let point = |(index, (places, mix, bytes, _)): (usize, (Places, Mix, usize, f64))| {
            let requests = requests(laboratory.scale);
            let traffic = Traffic { flow: Flow::Sets, mix, places, bytes, depth: 1, requests };
            Point::new(BOARD, index as f64, traffic)
        };
        let mut points: Vec<_> = WORKLOADS.into_iter().enumerate().map(point).collect();
        let mut rows = Rows(Vec::new());
        for (profile, series) in [(Profile::open_ssd(), BOARD), (Profile::s470(), DRIVE)] {
            for point in &mut points {
                series.clone_into(&mut point.series);
                if series == DRIVE && point.traffic.places == Places::Sequential {
                    point.traffic.bytes = DRIVE_SEQUENTIAL_BYTES;
                }
            }
            let quarter = profile.geometry.bytes() / 4;
            rows.0.extend(
                sweep(laboratory, &points, |run| laboratory.on_drive(profile.clone(), quarter, run))?.0,
            );
        }
        Ok(rows)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        for (index, (.., paper)) in WORKLOADS.into_iter().enumerate() {
            let found = rows.median(BOARD, index as f64, Row::bandwidth)?;
            let off = found.number() / 1e6 / paper - 1.0;
            judgement.check(
                NAMES[index],
                &format!("{}: within 25 % of the board's", NAMES[index]),
                &format!("{paper} MB/s"),
                format!("{}, {:+.0} %", megabytes(found), off * 100.0),
                off.abs() <= NEAR,
            );
        }
        if rows.series().contains(&DRIVE) {
            for (index, paper) in DRIVE_PUBLISHED.into_iter().enumerate() {
                let found = rows.median(DRIVE, index as f64, Row::bandwidth)?;
                let off = found.number() / 1e6 / paper - 1.0;
                judgement.check(
                    &format!("S470, {}", NAMES[index]),
                    &format!("S470, {}: within 25 % of the drive's", NAMES[index]),
                    &format!("{paper} MB/s"),
                    format!("{}, {:+.0} %", megabytes(found), off * 100.0),
                    off.abs() <= NEAR,
                );
            }
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1e-6, Row::bandwidth)?;
        let paper = |(index, (.., paper)): (usize, (Places, Mix, usize, f64))| {
            (index as f64, Spread { median: paper, min: paper, max: paper })
        };
        let points = WORKLOADS.into_iter().enumerate().map(paper).collect();
        lines.insert(0, Line { name: "the paper's board".into(), paired: false, points });
        let paper =
            |(index, paper): (usize, f64)| (index as f64, Spread { median: paper, min: paper, max: paper });
        let points = DRIVE_PUBLISHED.into_iter().enumerate().map(paper).collect();
        lines.push(Line { name: "the paper's S470".into(), paired: false, points });
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "workload".into(), scale: Scaling::Names(NAMES) },
            y: Axis { label: "bandwidth, MB/s".into(), scale: Scaling::Even },
            lines,
            bars: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::quantity::Lapse;
    use crate::row::tests::row;

    /// Rows whose bandwidths are the paper's times so much.
    fn rows(times: [f64; 4]) -> Rows<Simulated> {
        let at = |index: usize| {
            let mut row = row::<Simulated>(BOARD, index as f64, 0, 1.0);
            row.elapsed_us = Lapse::micros(row.bytes as f64 / (WORKLOADS[index].3 * times[index]));
            row
        };
        Rows((0..4).map(at).collect())
    }

    #[test]
    fn near_holds_and_far_does_not() {
        let judge = |times| Study::judge(&OpenSsd, &rows(times), Device::Ssdsim).unwrap();
        assert_eq!(judge([1.0, 1.24, 0.76, 1.1]).verdict(), Verdict::Holds);
        assert_eq!(judge([1.0, 1.0, 1.26, 1.0]).outcome(NAMES[2]), Some(Outcome::Fails));
        assert_eq!(judge([0.74, 1.0, 1.0, 1.0]).outcome(NAMES[0]), Some(Outcome::Fails));
    }

    #[test]
    fn the_paper_stands_beside_the_simulation() {
        let svg = Study::draw(&OpenSsd, &rows([1.0; 4])).unwrap().to_svg().unwrap();
        for text in ["the paper&apos;s board", "random write, 4 KiB", "simulated board"] {
            assert!(svg.contains(text) || svg.contains(&text.replace("&apos;", "'")), "{text}: {svg}");
        }
    }
}
