//! E25: insertion and search by the size of an LRU cache (AS B-tree, figures 13 and 14).

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::as_suite::{
    AS, Act, BFTL, BFTL_LONG, IN_PLACE, NAMES, Recipe, Size, X25_E_CACHE, X25_E_UNKNOWN, claim,
};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::statistics::r_squared;
use crate::tree_ground::{Past, TreeGround};

pub(super) struct Cache;

static CARD: Card = Card {
    number: 25,
    name: "as-cache",
    title: "Insertion and search by hits of an LRU cache",
    source: "AS B-tree, Journal of Information Science and Engineering 30, 2014, figures 13 and 14",
    question: "A database has a buffer cache. Does one tree gain more from it than another? If each node that is not found there \
               costs a read and nothing else changes, time is a straight line over the share of misses.",
    reported: "All three trees gain at a similar rate with the hit ratio; the AS B-tree is fastest and BFTL slowest throughout.",
    absent: &[(Device::Nand, "the B+-tree overwrites pages, which raw flash cannot")],
    causes: &[
        Cause { device: Device::Ssdsim, scale: None, key: "X25-E, insert, in-place", text: X25_E_CACHE },
        Cause { device: Device::Ssdsim, scale: None, key: "X25-E", text: X25_E_UNKNOWN },
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "insert, bftl",
            text: "a node that is written in place by itself takes 251 us here, three times what a read of one takes (82 us); on the \
               paper's drive it took 100 us, about half of a read (table 2: 10 s for 100,000 writes, 56 s for 300,000 reads). \
               BFTL writes what 256 insertions leave with one large write, 5 us an insertion, and so has nothing but its reads. \
               Without the price of writes, in searches, the order is the paper's",
        },
    ],
};

const TREES: [f64; 4] = [IN_PLACE, AS, BFTL, BFTL_LONG];
const ACTS: [Act; 2] = [Act::Insert, Act::Search];

/// Nodes of cache; the tree has some 2280.
fn sizes(scale: Scale) -> &'static [usize] {
    if scale == Scale::Trial { &[0, 16, 64] } else { &[0, 32, 128, 512, 1024, 2048] }
}

fn operations(scale: Scale, device: Device) -> u64 {
    match (scale, device) {
        (Scale::Trial, _) => 300,
        (Scale::Ci, Device::Disk) => 1_000,
        (Scale::Ci, _) => 4_000,
        (Scale::Std, Device::Disk) => 5_000,
        _ => 100_000,
    }
}

/// The simulated drive, without a name, and the fitted one that was used.
const X25_E: &str = "X25-E, ";

fn tree_of(which: f64) -> &'static str {
    if which == AS { "AS B-tree" } else { NAMES[which as usize] }
}

fn series(drive: &str, act: Act, which: f64) -> String {
    format!("{drive}{}, {}", tree_of(which), act.name())
}

fn measure<C: Clock>(
    laboratory: &Laboratory,
    device: Device,
    drive: &str,
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let scale = laboratory.scale;
    let count = operations(scale, device);
    let size = Size { operations: count, ..Size::of(scale, device) };
    laboratory.expect(TREES.len() * sizes(scale).len() * ACTS.len());
    let mut rows = Vec::new();
    for which in TREES {
        for cached in sizes(scale) {
            let place = ground(0)?.with_accounts();
            let mut tree = Recipe { which, keys: 256, cached: *cached }.build(&place, size.records)?;
            // The cache fills, and BFTL's lists grow.
            Act::Search.perform(tree.index(), size, Laboratory::seed(0, 8), 2 * *cached as u64)?;
            Act::Insert.perform(tree.index(), size, Laboratory::seed(0, 9), count / 2)?;
            for (number, act) in ACTS.into_iter().enumerate() {
                let name = series(drive, act, which);
                laboratory.step(&format!("{name}, {cached} nodes"))?;
                let seed = Laboratory::seed(0, number);
                rows.push(tree.row(&place, (&name, *cached as f64, 0), count, |tree| {
                    act.perform(tree, size, seed, count)
                })?);
            }
        }
    }
    Ok(Rows(rows))
}

/// Nodes, or sectors, that were not in memory, of those that were asked for.
fn misses<C: Clock>(row: &Row<C>) -> f64 {
    row.count("pages_read") / (row.count("pages_read") + row.count("hits"))
}

impl Study for Cache {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        let count = operations(scale, device);
        let mut parameters = Size { operations: count, ..Size::of(scale, device) }.parameters();
        parameters.extend([
            Parameter::new("cache", "not legible", format!("{:?} nodes", sizes(scale))),
            Parameter::new(
                "F, WB, C",
                "256, 32, 3",
                "256, 32, lists of 3 sectors at most; besides, lists of 2",
            ),
            Parameter::new("BFTL's cache", "not told", "of sectors"),
        ]);
        parameters
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        measure(laboratory, Device::Disk, "", |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let mut rows = measure(laboratory, Device::Ssdsim, "", TreeGround::on_ssdsim)?;
        // At the smaller scales: time for the rest is short.
        if laboratory.scale <= Scale::Ci {
            let used = |run| TreeGround::on_small_x25_e(Past::Used, laboratory.scale, run);
            rows.0.extend(measure(laboratory, Device::Ssdsim, X25_E, used)?.0);
        }
        Ok(rows)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, device: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        judge_on(&mut judgement, rows, device, "")?;
        if rows.series().contains(&series(X25_E, Act::Insert, AS).as_str()) {
            judge_on(&mut judgement, rows, device, X25_E)?;
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1.0, Row::latency)?;
        lines.retain(|line| !line.name.starts_with(X25_E));
        for line in &mut lines {
            for point in &mut line.points {
                point.0 = rows.median(&line.name, point.0, misses)? * 100.0;
            }
            line.points.sort_by(|one, two| one.0.total_cmp(&two.0));
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "not found in memory, %".into(), scale: Scaling::Even },
            y: Axis { label: "time of an operation, us".into(), scale: Scaling::Even },
            lines,
            bars: false,
        })
    }
}

/// The slope of the straight line that fits best.
fn rate(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let both = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>();
    both / points.iter().map(|point| (point.0 - x).powi(2)).sum::<f64>()
}

/// Judges what was measured on a drive. Records of before have no lists of 3.
fn judge_on<C: Clock>(
    judgement: &mut Judgement,
    rows: &Rows<C>,
    device: Device,
    drive: &str,
) -> std::result::Result<(), Missing> {
    let measured = rows.series();
    let has = |which| measured.contains(&series(drive, Act::Insert, which).as_str());
    let literal = if has(BFTL_LONG) { BFTL_LONG } else { BFTL };
    for act in ACTS {
        let mut rates = Vec::new();
        for which in TREES.into_iter().filter(|which| has(*which)) {
            let name = series(drive, act, which);
            let times = rows.line(&name, Row::latency)?;
            let shares = rows.line(&name, misses)?;
            let points: Vec<_> =
                shares.iter().zip(&times).map(|((_, share), (_, time))| (*share, time.number())).collect();
            let told: Vec<_> = points
                .iter()
                .map(|(share, time)| format!("{} us at {:.0} %", number(*time), share * 100.0))
                .collect();
            let fit = r_squared(&points);
            judgement.own(
                &format!("{name}, line"),
                &format!("{name}: time is a straight line over misses, R^2 at least 0.95"),
                format!("{fit:.3}: {}", told.join(", ")),
                fit >= 0.95,
            );
            rates.push((which, rate(&points)));
        }
        let each = rates.iter().map(|(which, rate)| format!("{} {}", tree_of(*which), number(*rate)));
        judgement.report(
            &format!("{drive}{}, rates", act.name()),
            &format!("{drive}{}: what all misses take, us an operation", act.name()),
            "a similar rate, which has no figure",
            each.collect::<Vec<_>>().join("; "),
        );
        let line = |which| rows.line(&series(drive, act, which), Row::latency);
        let (in_place, in_sequence, scattered) = (line(IN_PLACE)?, line(AS)?, line(literal)?);
        let told = |one: &[(f64, crate::quantity::Lapse<C>)], other: &[(f64, crate::quantity::Lapse<C>)]| {
            let each = one.iter().zip(other);
            let each = each.map(|((at, one), (_, other))| format!("{:.2} at {at}", one.over(*other)));
            each.collect::<Vec<_>>().join(", ")
        };
        let name = format!("{drive}{}", act.name());
        claim(
            judgement,
            device,
            (
                &format!("{name}, in-place"),
                &format!("{name}: the AS B-tree takes no longer than the B+-tree with any cache (1 % slack)"),
                "faster",
            ),
            told(&in_sequence, &in_place),
            in_sequence.iter().zip(&in_place).all(|(one, other)| one.1.over(other.1) <= 1.01),
        );
        claim(
            judgement,
            device,
            (
                &format!("{name}, bftl"),
                &format!("{name}: the B+-tree takes less time than BFTL with any cache"),
                "less",
            ),
            told(&in_place, &scattered),
            in_place.iter().zip(&scattered).all(|(one, other)| one.1 < other.1),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::row::tests::row;

    /// `time` by tree and share of misses.
    fn rows(time: impl Fn(f64, f64) -> f64) -> Rows<Simulated> {
        let mut rows = Vec::new();
        for act in ACTS {
            for which in TREES {
                for cached in sizes(Scale::Ci) {
                    let misses = 1.0 - *cached as f64 / 2500.0;
                    let mut row = row(&series("", act, which), *cached as f64, 0, time(which, misses));
                    row.counts = [
                        ("pages_read".to_owned(), misses * 3000.0),
                        ("hits".to_owned(), (1.0 - misses) * 3000.0),
                    ]
                    .into();
                    rows.push(row);
                }
            }
        }
        Rows(rows)
    }

    #[test]
    fn the_published_shape_holds_and_others_do_not() {
        let judge = |rows: Rows<Simulated>| Study::judge(&Cache, &rows, Device::Ssdsim).unwrap();
        let order = |which| {
            [(AS, 1.0), (IN_PLACE, 1.2), (BFTL, 1.5), (BFTL_LONG, 1.5)]
                .iter()
                .find(|of| of.0 == which)
                .unwrap()
                .1
        };
        assert_eq!(
            judge(rows(|which, misses| order(which) * (20.0 + 250.0 * misses))).verdict(),
            Verdict::Holds
        );
        let bent = judge(rows(|which, misses| order(which) * (20.0 + 250.0 * misses.powi(12))));
        assert_eq!(bent.outcome("AS B-tree, search, line"), Some(Outcome::Fails));
        let rates = bent.checks.iter().find(|check| check.key == "insert, rates").unwrap();
        assert!(rates.ours.contains("AS B-tree ") && rates.ours.contains("BFTL"), "{}", rates.ours);
        let other = |slow: f64, by: f64| {
            judge(rows(move |which, misses| {
                (if which == slow { by } else { order(which) }) * (20.0 + 250.0 * misses)
            }))
        };
        assert_eq!(other(AS, 1.25).outcome("insert, in-place"), Some(Outcome::Fails));
        assert_eq!(other(IN_PLACE, 1.6).outcome("search, bftl"), Some(Outcome::Fails));
    }
}
