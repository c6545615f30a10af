//! E8: sequential and random, reads and writes (AS B-tree, table 1).

use super::{Card, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::sweep::{Point, sweep};
use crate::traffic::{Mix, Places, Traffic};
use crate::wording::{megabytes, times};

pub(super) struct SequentialRandom;

static CARD: Card = Card {
    number: 8,
    name: "sequential-random",
    title: "Sequential and random bandwidth by request size",
    source: "AS B-tree, Journal of Information Science and Engineering 30, 2014, table 1",
    question: "Reads and writes, in sequence and at random places, 32 at a time. Where random writes are much slower than \
               sequential ones, a tree should only ever write in sequence: the idea of the AS B-tree.",
    reported: "Intel X25-E, MB/s at 4, 8, 16, 32 KB: sequential reads 193 206 206 206, sequential writes 158 188 186 175, \
               random reads 149 192 227 256, random writes 21 22 32 40.",
    absent: &[(
        Device::Nand,
        "raw flash cannot be overwritten: there are no random writes without a translation layer",
    )],
    causes: &[],
};

const SIZES: [usize; 4] = [4 << 10, 8 << 10, 16 << 10, 32 << 10];
const DEPTH: usize = 32;
const LINES: [(&str, Places, Mix); 4] = [
    ("sequential read", Places::Sequential, Mix::Reads),
    ("sequential write", Places::Sequential, Mix::Writes),
    ("random read", Places::Random, Mix::Reads),
    ("random write", Places::Random, Mix::Writes),
];

fn requests(scale: Scale) -> u64 {
    scale.requests(4_000, 20_000, 100_000)
}

fn points(scale: Scale) -> Vec<Point> {
    let mut points = Vec::new();
    for bytes in SIZES {
        for (series, places, mix) in LINES {
            let traffic = Traffic { mix, places, bytes, depth: DEPTH, requests: requests(scale) };
            points.push(Point::new(series, bytes as f64, traffic));
        }
    }
    points
}

impl Study for SequentialRandom {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        vec![
            Parameter::new("request sizes", "4, 8, 16, 32 KB", "4, 8, 16, 32 KiB"),
            Parameter::new("requests at a time", "32", "32"),
            Parameter::new("requests a point", "not told", requests(scale).to_string()),
            Parameter::new("file", "not told", Laboratory::file(scale, device)),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        let points = points(laboratory.scale);
        sweep(laboratory, &points, |_| laboratory.on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let points = points(laboratory.scale);
        sweep(laboratory, &points, |run| laboratory.on_ssdsim(run))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let bandwidth = |series, kib: usize| rows.median(series, (kib << 10) as f64, Row::bandwidth);
        let (large, small) = (bandwidth("random read", 32)?, bandwidth("random read", 4)?);
        judgement.check(
            "random-read",
            "random reads of 32 KiB have at least the bandwidth of those of 4 KiB",
            "256 and 149 MB/s: 1.72 x",
            format!("{} and {}: {}", megabytes(large), megabytes(small), times(large.over(small))),
            large >= small,
        );
        let (sequential, random) = (bandwidth("sequential write", 8)?, bandwidth("random write", 8)?);
        judgement.report(
            "writes",
            "sequential against random writes of 8 KiB",
            "188 and 22 MB/s: 8.5 x",
            format!(
                "{} and {}: {}",
                megabytes(sequential),
                megabytes(random),
                times(sequential.over(random))
            ),
        );
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "size of the request".into(), scale: Scaling::DoublingBytes },
            y: Axis { label: "bandwidth, MB/s".into(), scale: Scaling::Doubling },
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

    #[test]
    fn large_random_reads_must_not_be_slower() {
        let verdict = |micros_large: f64| {
            let at = |(series, bytes, micros): (&str, usize, f64)| {
                let mut row = row::<Wall>(series, bytes as f64, 0, micros);
                row.bytes = 1000 * bytes as u64;
                row
            };
            let rows = [
                ("random read", 4096, 10.0),
                ("random read", 32768, micros_large),
                ("sequential write", 8192, 10.0),
                ("random write", 8192, 50.0),
            ];
            Study::judge(&SequentialRandom, &Rows(rows.map(at).into()), Device::Disk).unwrap().verdict()
        };
        assert_eq!(verdict(40.0), Verdict::Holds);
        assert_eq!(verdict(80.0), Verdict::Holds);
        assert_eq!(verdict(90.0), Verdict::DoesNotHold);
    }
}
