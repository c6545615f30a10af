//! E3: what mingling reads and writes costs (PIO B-tree, figure 3 (c)).

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling};
use crate::failure::Result;
use crate::judgement::{Judgement, first_fall};
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::sweep::{Point, sweep};
use crate::traffic::{Mix, Traffic};
use crate::wording::times;

pub(super) struct Mingling;

static CARD: Card = Card {
    number: 3,
    name: "mingling",
    title: "Reads and writes grouped, and mingled",
    source: "Roh et al., PVLDB 5(4), 2011, figure 3 (c)",
    question: "As many reads as writes, of 4 KiB at random places: a set of n reads and then a set of n writes, against \
               read, write, read, write within every set of n. A read that waits behind a program on the same die waits \
               long: this is why psync's sets are all reads or all writes.",
    reported: "Grouped is faster by 1.25 (F120), 1.37 (P300) and 1.3 times (Iodrive) at 64 requests at a time.",
    absent: &[(Device::Nand, "raw flash takes one operation at a time: nothing can be mingled")],
    causes: &[
        Cause {
            device: Device::Disk,
            scale: None,
            key: "",
            text: "Today's controllers reorder, suspend programs for reads, and take writes into a buffer of their own, and a \
               virtual disk puts its host before the flash; so a disk is reported and not judged. A ratio \
               below 1 says that mingling is even faster, presumably because reads and writes meet different limits of the \
               host, and a mingled set waits for both at the same time instead of for one after the other.",
        },
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "queue kept full: rises",
            text: "From 8 to 16 the ratio stays at 1.02 and falls by less than 1 %: so few requests leave the controller \
                   idle, and mingling costs nothing yet. From 16 on, where it has no time to spare for turning from reads to \
                   writes, the gain rises as published, to 1.36.",
        },
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "rises",
            text: "By sets, most of the gain is arithmetic, and there from the smallest set on: 2n requests in two mingled sets \
               last two programs, grouped ones a read and a program (at n = 2 already 1.5). Larger sets lengthen both by \
               the controller's time for each request, which brings the ratio down. With a queue that is kept full \
               nothing waits for a set, and the gain is that of mingling alone.",
        },
    ],
};

const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const GROUPED: &str = "grouped";
const MINGLED: &str = "mingled";

/// The same with a queue that is kept full: the paper's "n outstanding at a time" can be read either way.
const KEPT_FULL: [&str; 2] = ["grouped, queue kept full", "mingled, queue kept full"];

fn requests(scale: Scale) -> u64 {
    scale.requests(4_000, 20_000, 50_000)
}

fn points(scale: Scale) -> Vec<Point> {
    let mut points = Vec::new();
    for depth in DEPTHS {
        for (series, mix) in [(GROUPED, Mix::Grouped), (MINGLED, Mix::Alternating)] {
            let traffic = Traffic::random_4k(mix, depth, requests(scale));
            points.push(Point::new(series, depth as f64, traffic));
        }
    }
    points
}

/// The gain at each depth that is judged.
fn gains(
    gain: impl Fn(f64) -> std::result::Result<f64, Missing>,
) -> std::result::Result<Vec<(f64, f64)>, Missing> {
    [8.0, 16.0, 32.0, 64.0].into_iter().map(|depth| Ok((depth, gain(depth)?))).collect()
}

fn judge_gains(judgement: &mut Judgement, how: &str, paper: &str, gains: &[(f64, f64)], device: Device) {
    let at_64 = gains.last().map_or(f64::NAN, |point| point.1);
    let told =
        gains.iter().map(|(depth, gain)| format!("{gain:.2} at {depth}")).collect::<Vec<_>>().join(", ");
    let faster = format!("{how}grouped is at least 1.1 times as fast at 64");
    let rises = format!("{how}the gain does not fall from 8 to 64 requests at a time");
    let (gain_key, rises_key) = (format!("{how}gain"), format!("{how}rises"));
    if device != Device::Disk {
        judgement.check(&gain_key, &faster, paper, times(at_64), at_64 >= 1.1);
        judgement.check(&rises_key, &rises, "it rises", told, first_fall(gains, 0.0).is_none());
    } else if (0.95..=1.05).contains(&at_64) {
        judgement.not_applicable(&gain_key, &faster, paper, format!("{}: no difference", times(at_64)));
        judgement.report(&rises_key, &rises, "it rises", told);
    } else {
        judgement.report(&gain_key, &faster, paper, times(at_64));
        judgement.report(&rises_key, &rises, "it rises", told);
    }
}

impl Study for Mingling {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        vec![
            Parameter::new("requests at a time", "up to 64", "1 to 64"),
            Parameter::new("request", "4 KiB, random, half of them writes", "the same"),
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
            .map(|point| {
                let series = KEPT_FULL[usize::from(point.series == MINGLED)];
                Point::new(series, point.at, point.traffic.kept_full())
            })
            .collect();
        points.extend(full);
        sweep(laboratory, &points, |run| laboratory.on_ssdsim(run))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, device: Device) -> std::result::Result<Judgement, Missing> {
        let gain = |depth: f64| -> std::result::Result<f64, Missing> {
            let of = |series| rows.median(series, depth, Row::bandwidth);
            Ok(of(GROUPED)?.over(of(MINGLED)?))
        };
        let mut judgement = Judgement::default();
        let paper = "1.25, 1.37, 1.3 x";
        judge_gains(&mut judgement, "", paper, &gains(gain)?, device);
        if rows.series().contains(&KEPT_FULL[0]) {
            let gain = |depth| {
                let [grouped, mingled] = KEPT_FULL.map(|series| rows.median(series, depth, Row::bandwidth));
                Ok(grouped?.over(mingled?))
            };
            judge_gains(&mut judgement, "queue kept full: ", paper, &gains(gain)?, device);
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1e-6, Row::bandwidth)?;
        // Beside the line that it is evidence for.
        lines.sort_by_key(|line| (!line.name.starts_with(GROUPED), line.name.len()));
        for line in &mut lines {
            line.paired = line.name.ends_with("full");
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "requests at a time".into(), scale: Scaling::Doubling },
            y: Axis { label: "bandwidth, reads and writes together, MB/s".into(), scale: Scaling::Doubling },
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

    /// Rows in which grouping gains so much at each depth.
    fn rows<C: Clock>(gain: impl Fn(f64) -> f64) -> Rows<C> {
        let pair = |depth: usize| {
            let depth = depth as f64;
            [row(GROUPED, depth, 0, 100.0), row(MINGLED, depth, 0, 100.0 * gain(depth))]
        };
        Rows(DEPTHS.into_iter().flat_map(pair).collect())
    }

    #[test]
    fn a_growing_gain_holds_on_the_simulated_drive() {
        let judge = |gain: &dyn Fn(f64) -> f64| {
            Study::judge(&Mingling, &rows::<Simulated>(gain), Device::Ssdsim).unwrap()
        };
        assert_eq!(judge(&|depth| 1.0 + depth / 200.0).verdict(), Verdict::Holds);
        assert_eq!(judge(&|_| 1.05).outcome("gain"), Some(Outcome::Fails));
        let falling = judge(&|depth| 1.5 - depth / 200.0);
        assert_eq!(falling.outcome("rises"), Some(Outcome::Fails));
        assert_eq!(falling.outcome("gain"), Some(Outcome::Holds));
        let mut both = rows::<Simulated>(|_| 1.2);
        for (series, micros) in KEPT_FULL.into_iter().zip([100.0, 105.0]) {
            both.0.extend(DEPTHS.map(|depth| row(series, depth as f64, 0, micros)));
        }
        let judgement = Study::judge(&Mingling, &both, Device::Ssdsim).unwrap();
        assert_eq!(judgement.outcome("gain"), Some(Outcome::Holds));
        assert_eq!(judgement.outcome("queue kept full: gain"), Some(Outcome::Fails));
    }

    #[test]
    fn a_disk_is_reported_and_never_judged() {
        for gain in [0.8, 1.0, 1.3] {
            let judgement = Study::judge(&Mingling, &rows::<Wall>(|_| gain), Device::Disk).unwrap();
            let (verdict, outcome) = if gain == 1.0 {
                (Verdict::NotApplicable, Outcome::NotApplicable)
            } else {
                (Verdict::NotJudged, Outcome::Reported)
            };
            assert_eq!(judgement.verdict(), verdict);
            assert_eq!(judgement.outcome("gain"), Some(outcome));
        }
    }
}
