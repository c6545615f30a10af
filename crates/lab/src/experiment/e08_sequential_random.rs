//! E8: sequential and random, reads and writes (AS B-tree, table 1).

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::{Laboratory, Layer};
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::stage::{Ground, SsdStage};
use crate::sweep::{Point, sweep};
use crate::traffic::{Flow, Mix, Places, Traffic};
use crate::wording::{megabytes, times};
use flash::Profile;

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
    causes: &[
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "page map, writes",
            text: "the drive is full, and keeps 7 % to spare: 9.38 pages are programmed for each that is written at random, 1.00 in sequence, a quarter of the 35.9 \
                   times; the rest is not known. That over-provision matters shows the fitted X25-E, with page mapping and 22 %: 190 and 19.5 MB/s, 9.7 \
                   times; but its queue is kept full besides, where a set of 32 here waits for its slowest",
        },
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "FAST, writes",
            text: "its log has 3 % of the drive, all of it full, and a log block holds pages of many blocks: merging them programs 24.81 pages for each that is written at random, 1.01 in \
                   sequence. Which is nearly all of the 26.5 times; the fitted X25-E, which has no log blocks, writes 9.7 times as much in sequence",
        },
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "X25-E, random write",
            text: "the fit has one figure for the collector, the over-provision, and takes that of 8 KiB, the node of the paper. With page \
               mapping a random write of 32 KiB kills eight pages in eight blocks, and costs eight times what one of 4 KiB costs; the \
               paper's drive gained with size, as one does that maps or collects in units of more than a page",
        },
    ],
};

const SIZES: [usize; 4] = [4 << 10, 8 << 10, 16 << 10, 32 << 10];
const DEPTH: usize = 32;
/// The simulated drives, by translation layer. FAST (block mapping with shared log blocks) is what drives of the X25-E's time
/// resembled more.
const DRIVES: [(Layer, &str); 2] = [(Layer::PageMap, "page map"), (Layer::Fast, "FAST")];
/// How many times faster sequential writes of 8 KiB are than random ones: 188 by 22 MB/s, a tenth more or less.
const OF_WRITES: std::ops::RangeInclusive<f64> = 7.7..=9.4;

const LINES: [(&str, Places, Mix); 4] = [
    ("sequential read", Places::Sequential, Mix::Reads),
    ("sequential write", Places::Sequential, Mix::Writes),
    ("random read", Places::Random, Mix::Reads),
    ("random write", Places::Random, Mix::Writes),
];

fn requests(scale: Scale) -> u64 {
    scale.requests(4_000, 20_000, 100_000)
}

fn points(scale: Scale, drive: &str) -> Vec<Point> {
    let mut points = Vec::new();
    for bytes in SIZES {
        for (line, places, mix) in LINES {
            let traffic =
                Traffic { flow: Flow::Sets, mix, places, bytes, depth: DEPTH, requests: requests(scale) };
            points.push(Point::new(series(drive, line), bytes as f64, traffic));
        }
    }
    points
}

/// The drive that is fitted to the paper's table 1, and how near it is to be.
const X25_E: &str = "X25-E";
const NEAR: f64 = 0.25;
/// Table 1 in MB/s: the lines of [`LINES`] by size.
const TABLE_1: [[f64; 4]; 4] = [
    [193.0, 206.0, 206.0, 206.0],
    [158.0, 188.0, 186.0, 175.0],
    [149.0, 192.0, 227.0, 256.0],
    [21.0, 22.0, 32.0, 40.0],
];
/// How often the fitted drive is written at random before random writes are measured: from then on its collector does the same.
const AGED: u64 = 3;

/// Requests as IOMeter sends them: the queue is kept full.
fn x25_e_points(scale: Scale) -> Vec<Point> {
    let mut points = points(scale, X25_E);
    points.iter_mut().for_each(|point| point.traffic = point.traffic.kept_full());
    points
}

/// The fitted drive, full, and for random writes written again at random places.
fn x25_e(laboratory: &Laboratory, random: bool, run: u32) -> Result<(SsdStage, Ground)> {
    let (stage, ground) = laboratory.on_x25_e(run)?;
    if random {
        let again = AGED * ground.len / (4 << 10);
        Traffic::random_4k(Mix::Writes, DEPTH, again).send(
            &stage,
            std::slice::from_ref(&ground),
            u64::from(run),
        )?;
    }
    Ok((stage, ground))
}

/// How near the fitted drive is to table 1.
fn judge_fitted<C: Clock>(rows: &Rows<C>, judgement: &mut Judgement) -> std::result::Result<(), Missing> {
    if !rows.series().contains(&series(X25_E, LINES[0].0).as_str()) {
        return Ok(());
    }
    for ((line, ..), published) in LINES.iter().zip(TABLE_1) {
        for (bytes, published) in SIZES.into_iter().zip(published) {
            let name = format!("{line}, {} KiB", bytes >> 10);
            let found = rows.median(&series(X25_E, line), bytes as f64, Row::bandwidth)?;
            let off = found.number() / 1e6 / published - 1.0;
            judgement.calibration(
                &series(X25_E, &name),
                &format!("{X25_E}, {name}: within 25 % of the paper's"),
                &format!("{published} MB/s"),
                format!("{}, {:+.0} %", megabytes(found), off * 100.0),
                off.abs() <= NEAR,
            );
        }
    }
    Ok(())
}

fn is_random_write(point: &Point) -> bool {
    point.traffic.places == Places::Random && point.traffic.mix == Mix::Writes
}

/// The name of a line; disks have no other drive beside them.
fn series(drive: &str, line: &str) -> String {
    if drive.is_empty() { line.to_owned() } else { format!("{drive}, {line}") }
}

/// A simulated drive that is full, as drives of the paper's time soon were: its file takes all of it, and was written
/// in sequence, and, for random writes, all over again at random places.
fn full_drive(laboratory: &Laboratory, layer: Layer, random: bool, run: u32) -> Result<(SsdStage, Ground)> {
    let mut profile = Profile::ssdsim();
    profile.geometry.blocks_per_plane = blocks_per_plane(laboratory.scale);
    let (stage, ground) = laboratory.on_full_drive(profile, layer, run)?;
    if random {
        let pages = ground.len / (4 << 10);
        // FAST's log, 3 % of the drive, is full and merged over and over after a tenth.
        let again = if layer == Layer::Fast { pages / 10 } else { pages };
        Traffic::random_4k(Mix::Writes, DEPTH, again).send(
            &stage,
            std::slice::from_ref(&ground),
            u64::from(run),
        )?;
    }
    Ok((stage, ground))
}

fn blocks_per_plane(scale: Scale) -> u32 {
    if scale == Scale::Trial { 8 } else { scale.pick(32, 128, 128) }
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
            match device {
                Device::Disk => Parameter::new("file", "not told", Laboratory::file(scale, device)),
                _ => Parameter::new(
                    "drive",
                    "Intel X25-E, 32 GB",
                    format!(
                        "full, 7 % over-provision, {} blocks a plane; before random writes all of it (with FAST, whose log \
                         takes 3 %, a tenth) was written again at random places. The fitted X25-E (docs/flash.md): {:.0} MB, full, \
                         22 % over-provision, written {AGED} times at random before random writes; its queue is kept full",
                        blocks_per_plane(scale),
                        f64::from(crate::tree_ground::x25_e_blocks(scale)) * 20.0 * 0.524288
                    ),
                ),
            },
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        let points = points(laboratory.scale, "");
        sweep(laboratory, &points, |_| laboratory.on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let mut rows = Rows(Vec::new());
        for (layer, drive) in DRIVES {
            let (random, orderly): (Vec<_>, Vec<_>) =
                points(laboratory.scale, drive).into_iter().partition(is_random_write);
            rows.0.extend(sweep(laboratory, &orderly, |run| full_drive(laboratory, layer, false, run))?.0);
            rows.0.extend(sweep(laboratory, &random, |run| full_drive(laboratory, layer, true, run))?.0);
        }
        let (random, orderly): (Vec<_>, Vec<_>) =
            x25_e_points(laboratory.scale).into_iter().partition(is_random_write);
        rows.0.extend(sweep(laboratory, &orderly, |run| x25_e(laboratory, false, run))?.0);
        rows.0.extend(sweep(laboratory, &random, |run| x25_e(laboratory, true, run))?.0);
        Ok(rows)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, device: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let simulated = device != Device::Disk;
        let drives = if simulated { DRIVES.map(|(_, drive)| drive).to_vec() } else { vec![""] };
        for drive in drives {
            let bandwidth =
                |line, kib: usize| rows.median(&series(drive, line), (kib << 10) as f64, Row::bandwidth);
            let (large, small) = (bandwidth("random read", 32)?, bandwidth("random read", 4)?);
            judgement.check(
                &series(drive, "random-read"),
                &series(drive, "random reads of 32 KiB have at least the bandwidth of those of 4 KiB"),
                "256 and 149 MB/s: 1.72 x",
                format!("{} and {}: {}", megabytes(large), megabytes(small), times(large.over(small))),
                large.over(small) >= 1.0,
            );
            let (sequential, random) = (bandwidth("sequential write", 8)?, bandwidth("random write", 8)?);
            let (key, paper) = (series(drive, "writes"), "188 and 22 MB/s: 8.5 x");
            let ratio = sequential.over(random);
            let ours = format!("{} and {}: {}", megabytes(sequential), megabytes(random), times(ratio));
            if !simulated {
                judgement.report(&key, "sequential against random writes of 8 KiB", paper, ours);
                continue;
            }
            let amplified = |row: &Row<C>| 1.0 + row.count("internal_programs") / row.count("host_programs");
            let at = |line| rows.median(&series(drive, line), 8192.0, amplified);
            let claim = series(drive, "pages programmed for each that the host wrote, sequential and random");
            let amplified = match (at("sequential write"), at("random write")) {
                (Ok(sequential), Ok(random)) => format!("{sequential:.2} and {random:.2}"),
                _ => "not counted".to_owned(),
            };
            judgement.report(&series(drive, "amplification"), &claim, "not told", amplified);
            let claim = series(drive, "bandwidth of sequential writes of 8 KiB by that of random ones");
            judgement.figure((&key, &claim, paper), ours, [ratio], OF_WRITES);
        }
        judge_fitted(rows, &mut judgement)?;
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
    fn a_full_simulated_drive_must_be_slower_at_random_writes() {
        let verdict = |page_map: f64, fast: f64| {
            let drive = |drive: &str, micros_random: f64| {
                [
                    ("random read", 4096, 10.0),
                    ("random read", 32768, 10.0),
                    ("sequential write", 8192, 10.0),
                    ("random write", 8192, micros_random),
                ]
                .map(|(line, bytes, micros)| {
                    row::<Simulated>(&series(drive, line), f64::from(bytes), 0, micros)
                })
            };
            let rows = Rows([drive("page map", page_map), drive("FAST", fast)].concat());
            Study::judge(&SequentialRandom, &rows, Device::Ssdsim).unwrap().verdict()
        };
        assert_eq!(verdict(85.0, 85.0), Verdict::Holds);
        for (page_map, fast) in [(76.0, 85.0), (85.0, 76.0), (95.0, 85.0), (85.0, 95.0)] {
            assert_eq!(verdict(page_map, fast), Verdict::DoesNotHold, "{page_map} and {fast}");
        }
    }

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
