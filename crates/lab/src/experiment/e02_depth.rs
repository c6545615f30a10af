//! E2: what many requests at a time gain (PIO B-tree, figure 3 (a), (b); MPSearch, figure 2).

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling};
use crate::failure::Result;
use crate::judgement::{Judgement, first_fall};
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::sweep::{Point, sweep};
use crate::traffic::{Mix, Traffic};
use crate::wording::{megabytes, times};

pub(super) struct Depth;

static CARD: Card = Card {
    number: 2,
    name: "depth",
    title: "Bandwidth of 4 KiB requests by depth",
    source: "Roh et al., PVLDB 5(4), 2011, figure 3 (a), (b); Roh et al., IEEE Data Eng. Bull. 37(2), 2014, figure 2",
    question: "Random requests of 4 KiB, ever more of them at a time. The channels of a drive work in parallel, but only \
               for whoever gives them all something to do: this is the gain that the whole project lives on.",
    reported: "More than ten times the bandwidth between one request at a time and 64, for reads and for writes, rising \
               gradually; about 32 at a time are enough.",
    absent: &[(
        Device::Nand,
        "raw flash takes one operation at a time: parallelism begins in the drive around it",
    )],
    causes: &[
        Cause {
            device: Device::Disk,
            scale: None,
            key: "",
            text: "This is a virtual disk, whose host caps requests a second (80 to 90 thousand reads, however deep the \
                   queue), so that the gain depends on what one request takes alone: from 41 to 54 us the cap is \
                   3.4 to 5 times as much. Others who use the disk, on this machine or its host, take from it as \
                   well: one run had a dent in the writes at depth 2 (79 MB/s alone, 74 two at a time), which a run half an \
                   hour later at half the load had not (100 and 151). It is not the way to the disk: io_uring and libaio \
                   (--backend) are ahead of each other by turns.",
        },
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "write-32",
            text: "A write keeps its place in the queue for some 250 us (its program), and the controller takes a new one every \
               5.4 us (4 us, and 4 KiB on the link): only 46 under way keep it busy, and 32 do not. That it is not the sets \
               shows the line with a queue kept full, which has the same gap. Reads stay for 80 us, of which 15 fill the \
               time: kept full, 32 give what 64 give.",
        },
    ],
};

const DEPTHS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const LINES: [(&str, Mix); 2] = [("read", Mix::Reads), ("write", Mix::Writes)];

/// The same with a queue that is kept full, judged by nobody: evidence of what the waiting of sets costs.
fn kept_full(series: &str) -> String {
    format!("{series}, queue kept full")
}

fn requests(scale: Scale) -> u64 {
    scale.requests(4_000, 20_000, 50_000)
}

fn points(scale: Scale) -> Vec<Point> {
    let mut points = Vec::new();
    for (series, mix) in LINES {
        for depth in DEPTHS {
            let traffic = Traffic::random_4k(mix, depth, requests(scale));
            points.push(Point::new(series, depth as f64, traffic));
        }
    }
    points
}

/// The gain from depth 1 to 64: "more than ten-fold".
const GAIN: f64 = 10.0;

impl Study for Depth {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        vec![
            Parameter::new("depths", "1 to 64", "1 to 256"),
            Parameter::new("request", "4 KiB, random", "4 KiB, random"),
            Parameter::new("requests a point", "not told", requests(scale).to_string()),
            Parameter::new("file", "4 GiB", Laboratory::file(scale, device)),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        let points = points(laboratory.scale);
        sweep(laboratory, &points, |_| laboratory.on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let mut points = points(laboratory.scale);
        let full: Vec<_> = points
            .iter()
            .map(|point| Point::new(kept_full(&point.series), point.at, point.traffic.kept_full()))
            .collect();
        points.extend(full);
        sweep(laboratory, &points, |run| laboratory.on_ssdsim(run))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, device: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        for (series, _) in LINES {
            let bandwidth = |depth: f64| rows.median(series, depth, Row::bandwidth);
            let (one, thirty_two, sixty_four) = (bandwidth(1.0)?, bandwidth(32.0)?, bandwidth(64.0)?);
            let line = rows.line(series, |row| row.bandwidth().number())?;
            let knee = line.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0.0, |point| point.0);
            let rising: Vec<_> = line.iter().copied().filter(|point| point.0 <= knee).collect();
            let fall = first_fall(&rising, 0.05);
            judgement.check(
                &format!("{series}-rises"),
                &format!("{series} bandwidth rises with depth up to its knee (within 5 %)"),
                "gradually",
                match fall {
                    Some((from, to)) => format!("it falls from depth {from} to {to}"),
                    None => format!("up to depth {knee}"),
                },
                fall.is_none(),
            );
            let gain = sixty_four.over(one);
            judgement.check(
                &format!("{series}-gain"),
                &format!("64 {series}s at a time give more than {GAIN} times the bandwidth of one"),
                "more than 10 x",
                format!("{} to {}: {}", megabytes(one), megabytes(sixty_four), times(gain)),
                gain > GAIN,
            );
            let (claim, share) =
                (format!("32 {series}s at a time give 80 % of what 64 give"), thirty_two.over(sixty_four));
            let (key, paper) = (format!("{series}-32"), "about 32 are enough");
            let ours = format!("{:.0} %", share * 100.0);
            if device == Device::Disk {
                judgement.report(&key, &claim, paper, ours);
            } else {
                judgement.check(&key, &claim, paper, ours, share >= 0.8);
            }
            let full = kept_full(series);
            if rows.series().contains(&full.as_str()) {
                let of = |depth| rows.median(&full, depth, Row::bandwidth);
                let claim =
                    format!("{series}s: 32 against 64 when the queue is kept full instead of by sets");
                let ours = format!("{:.0} %", of(32.0)?.over(of(64.0)?) * 100.0);
                judgement.report(&format!("{series}-full"), &claim, paper, ours);
            }
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1e-6, Row::bandwidth)?;
        // Beside the line that it is evidence for.
        lines.sort_by_key(|line| (!line.name.starts_with(LINES[0].0), line.name.len()));
        for line in &mut lines {
            line.paired = line.name.ends_with("full");
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "requests at a time".into(), scale: Scaling::Doubling },
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

    /// Rows whose time for a request falls with depth until `channels` are busy.
    fn rows<C: Clock>(channels: f64) -> Rows<C> {
        let at = |series, depth: usize| row(series, depth as f64, 0, 80.0 / (depth as f64).min(channels));
        Rows(LINES.iter().flat_map(|(series, _)| DEPTHS.map(|depth| at(series, depth))).collect())
    }

    #[test]
    fn enough_channels_hold_and_too_few_do_not() {
        assert_eq!(
            Study::judge(&Depth, &rows::<Simulated>(32.0), Device::Ssdsim).unwrap().verdict(),
            Verdict::Holds
        );
        assert_eq!(
            Study::judge(&Depth, &rows::<Wall>(32.0), Device::Disk).unwrap().verdict(),
            Verdict::Holds
        );
        let judgement = Study::judge(&Depth, &rows::<Simulated>(4.0), Device::Ssdsim).unwrap();
        assert_eq!(judgement.outcome("read-gain"), Some(Outcome::Fails));
        let judgement = Study::judge(&Depth, &rows::<Wall>(9.0), Device::Disk).unwrap();
        assert_eq!(judgement.outcome("write-gain"), Some(Outcome::Fails));
    }

    #[test]
    fn drives_that_want_more_than_32_are_noticed() {
        let judgement = Study::judge(&Depth, &rows::<Simulated>(64.0), Device::Ssdsim).unwrap();
        assert_eq!(judgement.outcome("read-32"), Some(Outcome::Fails));
    }

    #[test]
    fn a_dent_before_the_knee_is_noticed() {
        let mut rows = rows::<Wall>(32.0);
        let dent = rows.0.iter_mut().find(|row| row.series == "write" && row.at == 8.0).unwrap();
        dent.elapsed_us = crate::quantity::Lapse::micros(80_000.0);
        let judgement = Study::judge(&Depth, &rows, Device::Disk).unwrap();
        assert_eq!(judgement.outcome("write-rises"), Some(Outcome::Fails));
        assert_eq!(judgement.outcome("read-rises"), Some(Outcome::Holds));
    }
}
