//! E1: what a larger request costs (PIO B-tree, figure 2).

use super::{Card, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, bytes};
use crate::failure::Result;
use crate::judgement::{Judgement, first_fall};
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::stage::Stage;
use crate::sweep::{Point, sweep};
use crate::traffic::{Flow, Mix, Places, Traffic};
use crate::wording::{megabytes, micros, times};
use flash::Profile;
use psync::Device as _;

pub(super) struct IoSize;

static CARD: Card = Card {
    number: 1,
    name: "io-size",
    title: "Latency by request size",
    source: "Roh et al., PVLDB 5(4), 2011, figure 2 (a), (b)",
    question: "One request at a time, ever larger. If twice the bytes cost less than twice the time, a tree should have \
               larger leaves: the packages behind a channel work in parallel.",
    reported: "Latency grows more slowly than size; on several drives 4 KiB take no longer than 2 KiB; the best size is \
               about 8 KiB. Six drives, direct I/O.",
    absent: &[(Device::Nand, "raw flash reads and programs whole pages: there is no size to vary")],
    causes: &[],
};

const SIZES: [usize; 10] =
    [512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10];
const LINES: [(&str, Mix); 2] = [("read", Mix::Reads), ("write", Mix::Writes)];

/// No point moves more than this on a disk, and on a simulated drive, whose collector is not to have anything to do: all
/// writes together fit beside the file.
const DISK_BYTES_MAX: u64 = 1 << 30;
const SSD_BYTES_MAX: u64 = 256 << 20;

fn requests(scale: Scale) -> u64 {
    scale.requests(1_000, 20_000, 20_000)
}

fn bytes_max(device: Device) -> u64 {
    if device == Device::Disk { DISK_BYTES_MAX } else { SSD_BYTES_MAX }
}

fn points(scale: Scale, alignment: usize, bytes_max: u64) -> Vec<Point> {
    let mut points = Vec::new();
    for (series, mix) in LINES {
        for bytes in SIZES.into_iter().filter(|bytes| bytes.is_multiple_of(alignment)) {
            let requests = requests(scale).min(bytes_max / bytes as u64);
            let traffic =
                Traffic { flow: Flow::Sets, mix, places: Places::Random, bytes, depth: 1, requests };
            points.push(Point::new(series, bytes as f64, traffic));
        }
    }
    points
}

impl Study for IoSize {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        vec![
            Parameter::new(
                "request sizes",
                "2 KiB doubling to 64 KiB and more",
                "512 B (or what the device takes) doubling to 256 KiB",
            ),
            Parameter::new(
                "requests a point",
                "not told",
                format!("{}, but at most {}", requests(scale), bytes(bytes_max(device) as f64)),
            ),
            Parameter::new("file", "not told", Laboratory::file(scale, device)),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        let alignment = laboratory.disk()?.volume().limits().alignment;
        let points = points(laboratory.scale, alignment, DISK_BYTES_MAX);
        sweep(laboratory, &points, |_| laboratory.on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let points = points(laboratory.scale, Profile::ssdsim().geometry.page_bytes as usize, SSD_BYTES_MAX);
        sweep(laboratory, &points, |run| laboratory.on_ssdsim(run))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        for (series, _) in LINES {
            let latency = |kib: usize| rows.median(series, (kib << 10) as f64, Row::latency);
            let four = latency(4)?;
            for (kib, limit, inclusive, paper) in
                [(8, 2.0, false, "about 8 KiB is best"), (16, 3.0, true, "less than in proportion")]
            {
                let large = latency(kib)?;
                let ratio = large.over(four);
                judgement.check(
                    &format!("{series}-{kib}k"),
                    &format!(
                        "a {series} of {kib} KiB takes {} than {limit} times one of 4 KiB",
                        if inclusive { "no longer" } else { "less" }
                    ),
                    paper,
                    format!("{} and {}: {}", micros(large), micros(four), times(ratio)),
                    ratio < limit || (inclusive && ratio <= limit),
                );
            }
            let line = rows.line(series, |row| row.bandwidth().number())?;
            let ours = match (first_fall(&line, 0.05), line.first(), line.last()) {
                (Some((from, to)), ..) => format!("it falls from {} to {}", bytes(from), bytes(to)),
                (None, Some(first), Some(last)) => format!(
                    "from {} at {} to {} at {}",
                    megabytes(rows.median(series, first.0, Row::bandwidth)?),
                    bytes(first.0),
                    megabytes(rows.median(series, last.0, Row::bandwidth)?),
                    bytes(last.0)
                ),
                _ => String::new(),
            };
            judgement.check(
                &format!("{series}-bandwidth"),
                &format!("{series} bandwidth does not fall with size (within 5 %)"),
                "it rises",
                ours,
                first_fall(&line, 0.05).is_none(),
            );
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "size of the request".into(), scale: Scaling::DoublingBytes },
            y: Axis { label: "latency of one request, microseconds".into(), scale: Scaling::Doubling },
            lines: Line::all(rows, 1.0, Row::latency)?,
            bars: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::row::tests::row;

    /// Rows whose latency is `first` microseconds and a share more for each doubling from 4 KiB.
    fn rows(first: f64, growth: f64) -> Rows<Wall> {
        let at = |series, bytes: usize| {
            let doublings = (bytes as f64 / 4096.0).log2().max(0.0);
            let mut row = row::<Wall>(series, bytes as f64, 0, first * growth.powf(doublings));
            row.bytes = 1000 * bytes as u64;
            row
        };
        Rows(LINES.iter().flat_map(|(series, _)| SIZES.map(|bytes| at(series, bytes))).collect())
    }

    #[test]
    fn slow_growth_holds_and_growth_in_proportion_does_not() {
        assert_eq!(Study::judge(&IoSize, &rows(50.0, 1.1), Device::Disk).unwrap().verdict(), Verdict::Holds);
        let judgement = Study::judge(&IoSize, &rows(50.0, 2.0), Device::Disk).unwrap();
        assert_eq!(judgement.outcome("read-8k"), Some(Outcome::Fails));
        assert_eq!(judgement.outcome("write-16k"), Some(Outcome::Fails));
        assert_eq!(judgement.outcome("read-bandwidth"), Some(Outcome::Holds));
        let judgement = Study::judge(&IoSize, &rows(50.0, 2.2), Device::Disk).unwrap();
        assert_eq!(judgement.outcome("read-bandwidth"), Some(Outcome::Fails));
    }

    #[test]
    fn three_times_is_the_limit_at_16_kib() {
        let mut rows = rows(50.0, 1.5);
        for row in rows.0.iter_mut().filter(|row| row.at == 16384.0) {
            row.elapsed_us = crate::quantity::Lapse::micros(150.0 * 1000.0);
        }
        let judgement = Study::judge(&IoSize, &rows, Device::Disk).unwrap();
        assert_eq!(judgement.outcome("read-16k"), Some(Outcome::Holds));
        assert_eq!(judgement.outcome("read-8k"), Some(Outcome::Holds));
    }
}
