//! E10: MPSearch on the example that both papers draw.

use super::{Card, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Simulated, Wall};
use crate::read_log::{Place, ReadLog};
use crate::row::{Missing, Row, Rows};
use crate::tree_ground::TreeGround;
use std::collections::BTreeSet;
use std::sync::Arc;
use trees::{Eviction, Index, LogMode, PioOptions, PioTree};

pub(super) struct MpSearch;

static CARD: Card = Card {
    number: 10,
    name: "mpsearch",
    title: "MPSearch: five keys with two psync calls",
    source: "Roh et al., PVLDB 5(4), 2011, figure 6; Roh, Park, Shin and Lee, IEEE Data Eng. Bull. 2014, figures 4 and 5",
    question: "MPSearch goes down a tree with many keys at a time, one psync for all nodes that it needs of a level. In a tree of \
               three levels whose root is in memory, do five keys come with two calls, from exactly the leaves that five searches \
               would read? And what if no more than PioMax nodes may be read at a time?",
    reported: "Two psync calls for S = {1, 2, 42, 65, 67}; with PioMax 2 the tree is gone through group by group, depth first, in \
               PioMax pages a level.",
    absent: &[(Device::Nand, "the tree works on a block device")],
    causes: &[],
};

/// S.
const KEYS: [u64; 5] = [1, 2, 42, 65, 67];
/// Keys of the drawn tree.
const DRAWN: u64 = 70;
/// Records for each drawn key, so that a leaf of a real page has about four of them.
const SCALE: u64 = 60;
const SERIES: &str = "MPSearch";
const SINGLE: &str = "one search after the other";
const HEIGHT: f64 = 3.0;

fn limits() -> [usize; 4] {
    [1, 2, 3, 64]
}

fn options(pio_max: usize) -> PioOptions {
    PioOptions {
        segments: 1,
        pio_max,
        // The root, which the papers take to be in memory.
        frames: 1,
        eviction: Eviction::LowestLevel,
        fanout_max: Some(5),
        log: LogMode::Off,
        ..PioOptions::default()
    }
}

/// Inner nodes and leaves among places read.
fn parts(sets: &[Vec<Place>]) -> (BTreeSet<Place>, BTreeSet<Place>) {
    let (leaves, inner) = sets.iter().flatten().cloned().partition(|(file, _)| file == "pio-leaves");
    (inner, leaves)
}

fn measure<C: Clock>(
    laboratory: &Laboratory,
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    laboratory.expect(limits().len());
    let place = ground(0)?;
    let log = Arc::new(ReadLog::new(Arc::clone(&place.volume)));
    let mut records = (0..DRAWN * SCALE).map(|key| (key, key));
    drop(PioTree::bulk_load(log.clone(), &options(64), 1.0, &mut records)?);
    let keys = KEYS.map(|key| key * SCALE);
    let mut rows = Vec::new();
    for pio_max in limits() {
        laboratory.step(&format!("PioMax {pio_max}"))?;
        let tree = PioTree::recover(log.clone(), &options(pio_max))?;
        // The root comes into its frame.
        tree.search(0)?;
        let row = |name: &str, work: &mut dyn FnMut() -> Result<()>| -> Result<(Row<C>, Vec<Vec<Place>>)> {
            log.take();
            let row = place.row(name, pio_max as f64, 0, KEYS.len() as u64, work)?;
            Ok((row, log.take()))
        };
        let (mut single, sets) = row(SINGLE, &mut || {
            keys.iter().try_for_each(|key| tree.search(*key).map(|_| ()).map_err(Into::into))
        })?;
        let (inner, wanted) = parts(&sets);
        single.counts.insert("inner".into(), inner.len() as f64);
        single.counts.insert("leaves".into(), wanted.len() as f64);
        let mut found = Vec::new();
        let (mut many, sets) = row(SERIES, &mut || {
            found = tree.search_many(&keys)?;
            Ok(())
        })?;
        let (_, leaves) = parts(&sets);
        // Groups are gone through depth first, so of each level there is never more than one in memory.
        let largest = |is_leaf: bool| {
            let of_level =
                sets.iter().filter(|set| set.iter().any(|(file, _)| (file == "pio-leaves") == is_leaf));
            of_level.map(Vec::len).max().unwrap_or(0)
        };
        let right = found.iter().zip(keys).filter(|(found, key)| **found == Some(*key)).count();
        let counts = [
            ("found", right),
            ("sets", sets.len()),
            ("missing", wanted.difference(&leaves).count()),
            ("surplus", leaves.difference(&wanted).count()),
            ("frames", largest(false) + largest(true)),
            ("height", tree.stats().height as usize),
        ];
        many.counts.extend(counts.map(|(name, count)| (name.to_owned(), count as f64)));
        rows.extend([many, single]);
    }
    Ok(Rows(rows))
}

impl Study for MpSearch {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, _: Scale, _: Device) -> Vec<Parameter> {
        vec![
            Parameter::new("S", "{1, 2, 42, 65, 67}", format!("the same, each key times {SCALE}")),
            Parameter::new(
                "tree",
                "drawn: three levels, about 70 keys",
                format!("{} records", DRAWN * SCALE),
            ),
            Parameter::new("fan-out", "drawn: up to 5", "5; leaves of 4 KiB"),
            Parameter::new("PioMax", "not limited; 2", format!("{:?}", limits())),
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
        let line = |name: &'static str| rows.line(SERIES, move |row| row.count(name));
        let told = |line: &[(f64, f64)]| {
            line.iter().map(|(at, count)| format!("{count} at {at}")).collect::<Vec<_>>().join(", ")
        };
        let (height, found) = (line("height")?, line("found")?);
        judgement.check(
            "found",
            "the tree has three levels, and all five keys are found, by PioMax",
            "found",
            told(&found),
            height.iter().all(|point| point.1 == HEIGHT) && found.iter().all(|point| point.1 == 5.0),
        );
        let sets = line("sets")?;
        judgement.check(
            "calls",
            "two psync calls bring all leaves, by PioMax",
            "2",
            told(&sets),
            sets.last().is_some_and(|point| point.1 == 2.0),
        );
        let (missing, surplus) = (line("missing")?, line("surplus")?);
        judgement.check(
            "leaves",
            "the leaves read are those that single searches read: none missing, none besides, by PioMax",
            "the same",
            format!("missing {}; besides {}", told(&missing), told(&surplus)),
            missing.iter().chain(&surplus).all(|point| point.1 == 0.0),
        );
        let frames = line("frames")?;
        judgement.check(
            "frames",
            "never more than PioMax (H - 1) pages are read before they are done with",
            "PioMax (H - 1)",
            told(&frames),
            frames.iter().all(|(pio_max, frames)| *frames <= pio_max * (HEIGHT - 1.0)),
        );
        let mut groups = Vec::new();
        for (pio_max, calls) in &sets {
            let count = |name: &'static str| rows.median(SINGLE, *pio_max, move |row| row.count(name));
            let (inner, leaves) = (count("inner")?, count("leaves")?);
            // At least one call for each full group of a level; and one more for each group above that ends early.
            let above = (inner / pio_max).ceil();
            let least = above + (leaves / pio_max).ceil();
            groups.push(*calls >= least && *calls <= least + above - 1.0);
        }
        judgement.check(
            "groups",
            "calls are those of groups of PioMax nodes, level by level and depth first",
            "figure 5, for 2",
            told(&sets),
            groups.iter().all(|fits| *fits),
        );
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "PioMax".into(), scale: Scaling::Doubling },
            y: Axis { label: "psync calls for five keys".into(), scale: Scaling::Even },
            lines: Line::all(rows, 1.0, |row| row.count("psyncs"))?,
            bars: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::row::tests::row;

    fn rows(change: impl Fn(f64, &mut Row<Simulated>)) -> Rows<Simulated> {
        let mut rows = Vec::new();
        // Three inner nodes, four leaves.
        for (pio_max, sets, frames) in [(1.0, 7.0, 2.0), (2.0, 4.0, 4.0), (64.0, 2.0, 7.0)] {
            let mut many = row(SERIES, pio_max, 0, 1.0);
            let counts = [
                ("found", 5.0),
                ("sets", sets),
                ("missing", 0.0),
                ("surplus", 0.0),
                ("frames", frames),
                ("height", 3.0),
                ("psyncs", sets),
            ];
            many.counts.extend(counts.map(|(name, count)| (name.to_owned(), count)));
            change(pio_max, &mut many);
            let mut single = row(SINGLE, pio_max, 0, 1.0);
            single.counts.extend([("inner".to_owned(), 3.0), ("leaves".to_owned(), 4.0)]);
            rows.extend([many, single]);
        }
        Rows(rows)
    }

    #[test]
    fn the_drawn_example_holds_and_others_do_not() {
        let judge = |rows| Study::judge(&MpSearch, &rows, Device::Ssdsim).unwrap();
        assert_eq!(judge(rows(|_, _| ())).verdict(), Verdict::Holds);
        for (name, count, key) in [
            ("found", 4.0, "found"),
            ("sets", 3.0, "calls"),
            ("missing", 1.0, "leaves"),
            ("surplus", 1.0, "leaves"),
            ("frames", 400.0, "frames"),
            ("sets", 1.0, "groups"),
        ] {
            let judged = judge(rows(|_, row| {
                row.counts.insert(name.into(), count);
            }));
            assert_eq!(judged.outcome(key), Some(Outcome::Fails), "{name} {count}");
        }
    }
}
