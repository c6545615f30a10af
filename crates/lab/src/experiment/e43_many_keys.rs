//! E43: many keys at once through several trees, by MPSearch.

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::packed_rtree::{PackedRTree, PagesRead, Point, Window};
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::tree_ground::{TreeGround, TreeSize, UniformKeys};
use psync::Volume;
use std::sync::Arc;
use trees::{
    BEpsilonTree, BEpsilonTreeOptions, BTree, BTreeOptions, FdTree, FdTreeOptions, Index, LogMode, LsmTree,
    LsmTreeOptions, PioOptions, PioTree,
};

pub(super) struct ManyKeys;

static CARD: Card = Card {
    number: 43,
    name: "many-keys",
    title: "Many keys at once through several trees, by MPSearch",
    source: "ours, on Roh, Park, Shin and Lee, IEEE Data Eng. Bull. 2014, section 3",
    question: "MPSearch sends a set of keys down a tree, with one parallel read a level and group. Its authors name the trees that it is \
               for, and measure one. What does a key cost, by how many are asked for at once (|S|) and by PioMax, against searches \
               one by one, in a B+-tree, an FD-tree, a PIO B-tree, an LSM-tree (all runs and filters at once), a fractal tree (Bε-tree), \
               and for windows and nearest neighbours in an R-tree?",
    reported: "Not told: it can be applied to B+-tree variants, R-trees, LSM-trees and fractal trees.",
    absent: &[(Device::Nand, "the trees work on a block device")],
    causes: CAUSES,
};

const CAUSES: &[Cause] = &[Cause {
    device: Device::Ssdsim,
    scale: None,
    key: "R-tree, nearest-one",
    text: "by pages that are read twice: many queries go down once for a distance, and once for all that is within it. A single query reads 3.0 \
           pages, then 2.7, of which 2 are the root and the inner node of before; without these 3.7, best first 3.6. That count could have \
           refuted it. Sets of 16 and more share pages as much as that (1 of 3.6 again)",
}];

const BTREE: &str = "B+-tree";
const FD: &str = "FD-tree";
const PIO: &str = "PIO B-tree";
const LSM: &str = "LSM-tree";
const FRACTAL: &str = "Bε-tree";
const WINDOWS: &str = "R-tree, windows";
const NEAREST: &str = "R-tree, nearest";
const TREES: [&str; 7] = [BTREE, FD, PIO, LSM, FRACTAL, WINDOWS, NEAREST];
/// Records that a window has on average.
const IN_A_WINDOW: f64 = 8.0;
/// Neighbours that are asked for: as many as a window has.
const NEIGHBOURS: usize = 8;
/// Windows and points are sorted by columns of so many to a side, so that near ones follow each other.
const COLUMNS: u32 = 64;
/// Keys asked for at a point, at least.
const KEYS: u64 = 2048;
/// One record in so many is updated before the trees whose updates wait in runs or buffers are measured, so that these are not
/// empty.
const UPDATED: u64 = 10;
/// Pages that the first of two searches for neighbours reads, the second, and those of the second's that the first had read.
const FIRST: &str = "first_pages";
const SECOND: &str = "second_pages";
const AGAIN: &str = "pages_again";
/// The line of searches one by one.
const ALONE: &str = "one by one";

fn sets(scale: Scale) -> Vec<usize> {
    if scale == Scale::Trial { vec![1, 64] } else { vec![1, 4, 16, 64, 256, 1024] }
}

fn pio_maxes(scale: Scale) -> Vec<usize> {
    if scale == Scale::Trial { vec![1, 64] } else { vec![1, 4, 16, 64, 128] }
}

fn series(tree: &str, pio_max: usize) -> String {
    format!("{tree}, PioMax {pio_max}")
}

fn alone(tree: &str) -> String {
    format!("{tree}, {ALONE}")
}

/// Larger sizes would make no other depths of these trees.
fn size(scale: Scale) -> TreeSize {
    TreeSize::of(if scale == Scale::Trial { Scale::Trial } else { Scale::Ci })
}

fn measure<C: Clock>(
    laboratory: &Laboratory,
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let (scale, frames) = (laboratory.scale, size(laboratory.scale).memory_pages);
    let lines = TREES.len() * (pio_maxes(scale).len() * sets(scale).len() + 1);
    laboratory.expect(lines * C::RUNS as usize);
    let mut rows = Vec::new();
    for run in 0..C::RUNS {
        let place = ground(run)?;
        let points = uniform_points(size(scale), run);
        let tree = PackedRTree::build(Arc::clone(&place.volume), &points)?;
        rows.extend(windows(laboratory, &place, &tree, run)?);
        rows.extend(nearest(laboratory, &place, &tree, run)?);
        let place = ground(run)?;
        rows.extend(searched::<C, BTree>(laboratory, &place, (BTREE, run), |pio_max| BTreeOptions {
            frames,
            pio_max,
            ..BTreeOptions::default()
        })?);
        let place = ground(run)?;
        rows.extend(searched::<C, PioTree>(laboratory, &place, (PIO, run), |pio_max| PioOptions {
            frames: frames - 1,
            queue_pages: 1,
            pio_max,
            log: LogMode::Off,
            ..PioOptions::default()
        })?);
        // Most of the memory is memtable, as its users have it; the first keys of the parts take two or three pages.
        let place = ground(run)?;
        rows.extend(searched::<C, LsmTree>(laboratory, &place, (LSM, run), |pio_max| LsmTreeOptions {
            memtable_pages: frames / 3,
            frames: frames / 2,
            pio_max,
            ..LsmTreeOptions::default()
        })?);
        let place = ground(run)?;
        rows.extend(searched::<C, FdTree>(laboratory, &place, (FD, run), |pio_max| FdTreeOptions {
            head_pages: 4,
            ratio: 64,
            frames: frames - 4,
            pio_max,
            ..FdTreeOptions::default()
        })?);
        let place = ground(run)?;
        rows.extend(searched::<C, BEpsilonTree>(laboratory, &place, (FRACTAL, run), |pio_max| {
            BEpsilonTreeOptions { frames: frames - 1, pio_max, ..BEpsilonTreeOptions::default() }
        })?);
    }
    Ok(Rows(rows))
}

/// Grows a tree, and measures it for each PioMax.
fn searched<C: Clock, T: Index<Ground = Arc<dyn Volume>>>(
    laboratory: &Laboratory,
    place: &TreeGround<C>,
    (name, run): (&str, u32),
    options: impl Fn(usize) -> T::Options,
) -> Result<Vec<Row<C>>> {
    let (size, scale) = (size(laboratory.scale), laboratory.scale);
    let pio_maxes = pio_maxes(scale);
    let most = pio_maxes.iter().copied().max().unwrap_or(1);
    let mut tree: T = place.grow(&options(most), size.records)?;
    if [LSM, FD, FRACTAL].contains(&name) {
        let mut keys = UniformKeys::new(Laboratory::seed(run, 1000), size.records);
        (0..size.records / UPDATED).try_for_each(|index| tree.update(keys.present(), index))?;
    }
    tree.flush()?;
    let mut rows = Vec::new();
    let line = alone(name);
    laboratory.step(&line)?;
    let mut keys = UniformKeys::new(Laboratory::seed(run, 0), size.records);
    rows.push(place.row(&line, 1.0, run, KEYS, || {
        (0..KEYS).try_for_each(|_| Ok(tree.search(keys.present()).map(|_| ())?))
    })?);
    for pio_max in pio_maxes {
        // The same tree, opened anew.
        drop(tree);
        tree = T::recover(Arc::clone(&place.volume), &options(pio_max))?;
        for (index, set) in sets(scale).into_iter().enumerate() {
            let line = series(name, pio_max);
            laboratory.step(&format!("{line}, {set} keys"))?;
            let mut keys = UniformKeys::new(Laboratory::seed(run, index), size.records);
            let rounds = KEYS.div_ceil(set as u64);
            rows.push(place.row(&line, set as f64, run, rounds * set as u64, || {
                for _ in 0..rounds {
                    let keys: Vec<u64> = (0..set).map(|_| keys.present()).collect();
                    tree.search_many(&keys)?;
                }
                Ok(())
            })?);
        }
    }
    Ok(rows)
}

/// Points as many as records, and others to ask for.
fn random_points(seed: u64) -> impl FnMut() -> Point {
    let mut random = UniformKeys::new(seed, u64::from(u32::MAX) / 2);
    move || Point { x: random.next() as u32, y: random.next() as u32 }
}

fn uniform_points(size: TreeSize, run: u32) -> Vec<Point> {
    let mut next = random_points(Laboratory::seed(run, 43));
    (0..size.records).map(|_| next()).collect()
}

/// The column of a point, and where it is in it.
fn in_columns(point: Point) -> (u32, u32) {
    (point.x / (u32::MAX / COLUMNS), point.y)
}

fn windows<C: Clock>(
    laboratory: &Laboratory,
    place: &TreeGround<C>,
    tree: &PackedRTree,
    run: u32,
) -> Result<Vec<Row<C>>> {
    let records = size(laboratory.scale).records;
    let side = ((IN_A_WINDOW / records as f64).sqrt() * f64::from(u32::MAX)) as u32;
    let window = |low: Point| {
        let from = |low: u32| (low, low.saturating_add(side));
        Window { x: from(low.x), y: from(low.y) }
    };
    many_points(laboratory, place, (WINDOWS, run), |points, pio_max| {
        let windows: Vec<Window> = points.iter().map(|point| window(*point)).collect();
        match pio_max {
            Some(pio_max) => tree.search(&windows, pio_max).map(|_| None),
            None => {
                windows.iter().try_for_each(|window| tree.search(&[*window], 1).map(|_| ())).map(|()| None)
            }
        }
    })
}

fn nearest<C: Clock>(
    laboratory: &Laboratory,
    place: &TreeGround<C>,
    tree: &PackedRTree,
    run: u32,
) -> Result<Vec<Row<C>>> {
    many_points(laboratory, place, (NEAREST, run), |points, pio_max| match pio_max {
        Some(pio_max) => tree.nearest_of_many(points, NEIGHBOURS, pio_max).map(|(_, pages)| Some(pages)),
        None => {
            points.iter().try_for_each(|point| tree.nearest(*point, NEIGHBOURS).map(|_| ())).map(|()| None)
        }
    })
}

/// Asks an R-tree for sets of points; without a PioMax for one after the other.
fn many_points<C: Clock>(
    laboratory: &Laboratory,
    place: &TreeGround<C>,
    (name, run): (&str, u32),
    ask: impl Fn(&[Point], Option<usize>) -> Result<Option<PagesRead>>,
) -> Result<Vec<Row<C>>> {
    let scale = laboratory.scale;
    let with = pio_maxes(scale).into_iter().flat_map(|pio_max| {
        sets(scale).into_iter().map(move |set| (series(name, pio_max), set, Some(pio_max)))
    });
    let mut rows = Vec::new();
    for (at, (line, set, pio_max)) in std::iter::once((alone(name), 1, None)).chain(with).enumerate() {
        laboratory.step(&format!("{line}, {set} points"))?;
        let mut next = random_points(Laboratory::seed(run, 100 + at));
        let rounds = KEYS.div_ceil(set as u64);
        let mut pages: Option<PagesRead> = None;
        let mut row = place.row(&line, set as f64, run, rounds * set as u64, || {
            for _ in 0..rounds {
                let mut points: Vec<Point> = (0..set).map(|_| next()).collect();
                points.sort_by_key(|point| in_columns(*point));
                if let Some(read) = ask(&points, pio_max)? {
                    let sum = pages.get_or_insert_default();
                    (sum.first, sum.second) = (sum.first + read.first, sum.second + read.second);
                    sum.again += read.again;
                }
            }
            Ok(())
        })?;
        if let Some(PagesRead { first, second, again }) = pages {
            let counts = [(FIRST, first), (SECOND, second), (AGAIN, again)];
            row.counts.extend(counts.map(|(name, count)| (name.to_owned(), count as f64)));
        }
        rows.push(row);
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
            Parameter::new(
                "before",
                "not told",
                format!(
                    "one record in {UPDATED} is updated in FD-, LSM- and Bε-tree, so that runs and buffers hold something; the others \
                     write in place"
                ),
            ),
            Parameter::new(
                "LSM-tree",
                "not told",
                "levels of one run, ten times as large each; filters of 10 bits a key, first keys of blocks beside them; a third of the \
                 memory is memtable, half of it filter pages",
            ),
            Parameter::new(
                "Bε-tree",
                "not told",
                "ε = 1/2: 16 children and 236 messages to a node of 4 KiB; the pool holds upper levels first",
            ),
            Parameter::new(
                "one by one",
                "not told",
                "search by search; windows alone; neighbours best first, which reads no page in vain",
            ),
            Parameter::new("|S|", "not told", format!("{:?}", sets(scale))),
            Parameter::new("PioMax", "not told", format!("{:?}", pio_maxes(scale))),
            Parameter::new("keys a point", "not told", format!("{KEYS} at least, uniform")),
            Parameter::new(
                "windows, neighbours",
                "not told",
                format!("squares with {IN_A_WINDOW} points on average; the {NEIGHBOURS} nearest"),
            ),
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
            let alone = rows.median(&alone(tree), 1.0, Row::latency)?;
            let gains = |pio_max| -> std::result::Result<Vec<(f64, f64)>, Missing> {
                let line = rows.line(&series(tree, pio_max), Row::latency)?;
                Ok(line.into_iter().map(|(at, time)| (at, alone.over(time))).collect())
            };
            let (parallel, depth_first) = (gains(64)?, gains(1)?);
            let told = parallel.iter().map(|(at, gain)| format!("{} at {at}", number(*gain)));
            judgement.own(
                &format!("{tree}-gains"),
                &format!("{tree}: with PioMax 64 a key becomes cheaper with |S|, at least 4 times at the most; gain over one by one"),
                told.collect::<Vec<_>>().join(", "),
                parallel.windows(2).all(|pair| pair[1].1 >= 0.98 * pair[0].1)
                    && parallel.last().is_some_and(|last| last.1 >= 4.0),
            );
            judgement.own(
                &format!("{tree}-one"),
                &format!("{tree}: with PioMax 1 a set costs no more than its keys one by one (10 % slack: keys differ by |S|)"),
                depth_first.iter().map(|(_, gain)| number(*gain)).collect::<Vec<_>>().join(", "),
                depth_first.iter().all(|(_, gain)| *gain >= 0.9),
            );
        }
        let line = series(NEAREST, 1);
        if rows.0.iter().any(|row| row.series == line && row.counts.contains_key(FIRST)) {
            let best = rows.median(&alone(NEAREST), 1.0, |row| row.count("reads") / row.requests as f64)?;
            let each =
                |name: &'static str| rows.line(&line, move |row| row.count(name) / row.requests as f64);
            let (first, second, again) = (each(FIRST)?, each(SECOND)?, each(AGAIN)?);
            let pages: Vec<_> = first.iter().zip(second).zip(again).collect();
            let told = pages.iter().map(|(((at, first), (_, second)), (_, again))| {
                format!("{} and {}, {} again, at {at}", number(*first), number(*second), number(*again))
            });
            judgement.own(
                "nearest-again",
                &format!(
                    "{NEAREST}, PioMax 1: without what the second search reads again, a point costs no more pages than best first (10 % \
                     slack); pages of the first and the second by |S|, best first"
                ),
                format!("{}; {}", told.collect::<Vec<_>>().join("; "), number(best)),
                pages.iter().all(|(((_, first), (_, second)), (_, again))| first + second - again <= 1.1 * best),
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
        let alone = TREES.into_iter().map(|tree| row(&alone(tree), 1.0, 0, 100.0));
        Rows(points.chain(alone).collect())
    }

    #[test]
    fn pages_that_are_read_again_explain_what_two_searches_cost_or_do_not() {
        let judge = |[first, second, again]: [f64; 3]| {
            let mut rows = rows([100.0, 90.0, 60.0], [100.0, 30.0, 10.0]);
            for row in &mut rows.0 {
                let mut count = |name: &str, each: f64| {
                    row.counts.insert(name.to_owned(), each * row.requests as f64);
                };
                if row.series == alone(NEAREST) {
                    count("reads", 3.5);
                } else if row.series == series(NEAREST, 1) {
                    count(FIRST, first);
                    count(SECOND, second);
                    count(AGAIN, again);
                }
            }
            Study::judge(&ManyKeys, &rows, Device::Ssdsim).unwrap().outcome("nearest-again")
        };
        assert_eq!(judge([3.0, 2.5, 2.0]), Some(Outcome::Holds));
        assert_eq!(judge([3.0, 2.5, 1.5]), Some(Outcome::Fails));
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
