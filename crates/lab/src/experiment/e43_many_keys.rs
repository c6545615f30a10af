//! E43: many keys at once through several trees, by MPSearch.

use super::{Card, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::packed_rtree::{PackedRTree, Point, Window};
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::tree_ground::{TreeGround, TreeSize, UniformKeys};
use std::sync::Arc;
use trees::{BTree, BTreeOptions, FdTree, FdTreeOptions, Index, LogMode, PioOptions, PioTree};

pub(super) struct ManyKeys;

static CARD: Card = Card {
    number: 43,
    name: "many-keys",
    title: "Many keys at once through several trees, by MPSearch",
    source: "ours, on Roh, Park, Shin and Lee, IEEE Data Eng. Bull. 2014, section 3",
    question: "MPSearch sends a set of keys down a tree, with one parallel read a level and group. Its authors name the trees that it is \
               for, and measure one. What does a key cost, by how many are asked for at once (|S|) and by PioMax, against searches \
               one by one, in a B+-tree, an FD-tree, a PIO B-tree, and for windows in an R-tree?",
    reported: "Not told: it can be applied to B+-tree variants, R-trees, LSM-trees and fractal trees.",
    absent: &[(Device::Nand, "the trees work on a block device")],
    causes: &[],
};

const TREES: [&str; 4] = ["B+-tree", "FD-tree", "PIO B-tree", "R-tree"];
/// Records that a window has on average.
const IN_A_WINDOW: f64 = 8.0;
/// Windows are sorted by columns of so many to a side, so that near ones follow each other.
const COLUMNS: u32 = 64;
/// Keys asked for at a point, at least.
const KEYS: u64 = 2048;

fn sets(scale: Scale) -> Vec<usize> {
    if scale == Scale::Trial { vec![1, 64] } else { vec![1, 4, 16, 64, 256, 1024] }
}

fn pio_maxes(scale: Scale) -> Vec<usize> {
    if scale == Scale::Trial { vec![1, 64] } else { vec![1, 4, 16, 64, 128] }
}

fn series(tree: &str, pio_max: usize) -> String {
    format!("{tree}, PioMax {pio_max}")
}

/// Larger sizes would make no other depths of these trees.
fn size(scale: Scale) -> TreeSize {
    TreeSize::of(if scale == Scale::Trial { Scale::Trial } else { Scale::Ci })
}

fn measure<C: Clock>(
    laboratory: &Laboratory,
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let (size, sets, pio_maxes) =
        (size(laboratory.scale), sets(laboratory.scale), pio_maxes(laboratory.scale));
    laboratory.expect(TREES.len() * pio_maxes.len() * sets.len() * C::RUNS as usize);
    let mut rows = Vec::new();
    for run in 0..C::RUNS {
        let windows = windows(laboratory, &ground(run)?, size, run)?;
        rows.extend(windows);
        for pio_max in &pio_maxes {
            let (pio_max, frames) = (*pio_max, size.memory_pages);
            let place = ground(run)?;
            let options = BTreeOptions { frames, pio_max, ..BTreeOptions::default() };
            let tree: BTree = place.grow(&options, size.records)?;
            rows.extend(points(laboratory, &place, &tree, (TREES[0], pio_max), run)?);
            let place = ground(run)?;
            let options =
                FdTreeOptions { frames, pio_max, head_pages: 4, ratio: 64, ..FdTreeOptions::default() };
            let tree: FdTree = place.grow(&options, size.records)?;
            rows.extend(points(laboratory, &place, &tree, (TREES[1], pio_max), run)?);
            let place = ground(run)?;
            let options = PioOptions {
                frames: frames - 1,
                queue_pages: 1,
                pio_max,
                log: LogMode::Off,
                ..PioOptions::default()
            };
            let tree: PioTree = place.grow(&options, size.records)?;
            rows.extend(points(laboratory, &place, &tree, (TREES[2], pio_max), run)?);
        }
    }
    Ok(Rows(rows))
}

fn points<C: Clock>(
    laboratory: &Laboratory,
    place: &TreeGround<C>,
    tree: &impl Index,
    (name, pio_max): (&str, usize),
    run: u32,
) -> Result<Vec<Row<C>>> {
    let size = size(laboratory.scale);
    let mut rows = Vec::new();
    for (index, set) in sets(laboratory.scale).into_iter().enumerate() {
        let name = series(name, pio_max);
        laboratory.step(&format!("{name}, {set} keys"))?;
        let mut keys = UniformKeys::new(Laboratory::seed(run, index), size.records);
        let rounds = KEYS.div_ceil(set as u64);
        rows.push(place.row(&name, set as f64, run, rounds * set as u64, || {
            for _ in 0..rounds {
                let keys: Vec<u64> = (0..set).map(|_| keys.present()).collect();
                tree.search_many(&keys)?;
            }
            Ok(())
        })?);
    }
    Ok(rows)
}

fn windows<C: Clock>(
    laboratory: &Laboratory,
    place: &TreeGround<C>,
    size: TreeSize,
    run: u32,
) -> Result<Vec<Row<C>>> {
    let mut random = UniformKeys::new(Laboratory::seed(run, 43), u64::from(u32::MAX) / 2);
    let points: Vec<Point> =
        (0..size.records).map(|_| Point { x: random.next() as u32, y: random.next() as u32 }).collect();
    let tree = PackedRTree::build(Arc::clone(&place.volume), &points)?;
    let side = ((IN_A_WINDOW / size.records as f64).sqrt() * f64::from(u32::MAX)) as u32;
    let mut rows = Vec::new();
    for pio_max in pio_maxes(laboratory.scale) {
        for set in sets(laboratory.scale) {
            let name = series(TREES[3], pio_max);
            laboratory.step(&format!("{name}, {set} windows"))?;
            let rounds = KEYS.div_ceil(set as u64);
            rows.push(place.row(&name, set as f64, run, rounds * set as u64, || {
                for _ in 0..rounds {
                    let window = |low: u32| (low, low.saturating_add(side));
                    let mut windows: Vec<Window> = (0..set)
                        .map(|_| Window { x: window(random.next() as u32), y: window(random.next() as u32) })
                        .collect();
                    windows.sort_by_key(|window| (window.x.0 / (u32::MAX / COLUMNS), window.y.0));
                    tree.search(&windows, pio_max)?;
                }
                Ok(())
            })?);
        }
    }
    Ok(rows)
}

impl Study for ManyKeys {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        let size = size(scale);
        vec![
            Parameter::new(
                "index",
                "not told",
                format!("{}; points for the R-tree, which has no buffer", size.told()),
            ),
            Parameter::new("|S|", "not told", format!("{:?}", sets(scale))),
            Parameter::new("PioMax", "not told", format!("{:?}", pio_maxes(scale))),
            Parameter::new("keys a point", "not told", format!("{KEYS} at least, uniform")),
            Parameter::new("windows", "not told", format!("squares with {IN_A_WINDOW} points on average")),
            Parameter::new("pages", "not told", "4 KiB; leaves of the PIO B-tree 8 KiB"),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        measure(laboratory, |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        measure(laboratory, TreeGround::on_ssdsim)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        for tree in TREES {
            let one = rows.line(&series(tree, 1), Row::latency)?;
            // A line has a point, or is missed.
            let alone = one[0].1;
            let gains: Vec<(f64, f64)> = rows
                .line(&series(tree, 64), Row::latency)?
                .into_iter()
                .map(|(at, time)| (at, alone.over(time)))
                .collect();
            let told = gains.iter().map(|(at, gain)| format!("{} at {at}", number(*gain)));
            judgement.own(
                &format!("{tree}-gains"),
                &format!("{tree}: with PioMax 64 a key becomes cheaper with |S|, at least 4 times at the most; gain over one by one"),
                told.collect::<Vec<_>>().join(", "),
                gains.windows(2).all(|pair| pair[1].1 >= 0.98 * pair[0].1)
                    && gains.last().is_some_and(|last| last.1 >= 4.0),
            );
            let depth_first: Vec<f64> = one.iter().map(|(_, time)| alone.over(*time)).collect();
            judgement.own(
                &format!("{tree}-one"),
                &format!("{tree}: with PioMax 1 a set costs no more than its keys one by one (10 % slack: keys differ by |S|)"),
                depth_first.iter().map(|gain| number(*gain)).collect::<Vec<_>>().join(", "),
                depth_first.iter().all(|gain| *gain >= 0.9),
            );
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1.0, Row::latency)?;
        lines.retain(|line| line.name.ends_with("PioMax 64"));
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "keys (or windows) asked for at once".into(), scale: Scaling::Doubling },
            y: Axis { label: "time of a key, us".into(), scale: Scaling::Doubling },
            lines,
            bars: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::Outcome;
    use crate::row::tests::row;

    fn rows(one: [f64; 3], many: [f64; 3]) -> Rows<Simulated> {
        let lines = TREES.into_iter().flat_map(|tree| [(series(tree, 1), one), (series(tree, 64), many)]);
        let points = lines.flat_map(|(name, times)| {
            [1.0, 64.0, 1024.0].into_iter().zip(times).map(move |(at, time)| row(&name, at, 0, time))
        });
        Rows(points.collect())
    }

    #[test]
    fn sets_that_gain_and_sets_that_do_not() {
        let judge = |one, many| Study::judge(&ManyKeys, &rows(one, many), Device::Ssdsim).unwrap();
        let good = judge([100.0, 90.0, 60.0], [100.0, 30.0, 10.0]);
        for tree in TREES {
            assert_eq!(good.outcome(&format!("{tree}-gains")), Some(Outcome::Holds));
            assert_eq!(good.outcome(&format!("{tree}-one")), Some(Outcome::Holds));
            let little = judge([100.0, 112.0, 60.0], [100.0, 30.0, 26.0]);
            assert_eq!(little.outcome(&format!("{tree}-gains")), Some(Outcome::Fails));
            assert_eq!(little.outcome(&format!("{tree}-one")), Some(Outcome::Fails));
            let turned = judge([100.0, 90.0, 60.0], [100.0, 10.0, 20.0]);
            assert_eq!(turned.outcome(&format!("{tree}-gains")), Some(Outcome::Fails));
        }
    }
}
