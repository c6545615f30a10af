//! E12: range search, from leaf to leaf against prange.

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::{Judgement, first_fall};
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::tree_ground::{TreeGround, TreeSize, UniformKeys};
use trees::{BTree, BTreeOptions, Index, LogMode, PioOptions, PioTree};

pub(super) struct RangeSearch;

static CARD: Card = Card {
    number: 12,
    name: "range",
    title: "Range search: leaf by leaf against prange",
    source: "Roh et al., PVLDB 5(4), 2011, figure 10; Roh, Park and Lee, IEEE Data Eng. Bull. 2014, figure 7",
    question: "A B+-tree walks from leaf to leaf, one read at a time. prange knows the leaves of a range from the level above \
               and reads 64 of them at once. How much faster is that, by the width of the range?",
    reported: "prange is faster at every width on every drive: 5 times from 64 K records on (Iodrive), 4.5 and 3.5 times from \
               512 K on (P300, F120).",
    absent: &[(Device::Nand, "both trees work on a block device")],
    causes: &[Cause {
        device: Device::Disk,
        key: "plateau",
        text: "the disk reads four to five times as many pages a second at depth 64 as at depth 1 (E2); a plateau cannot be higher",
    }],
};

const BTREE: &str = "B+-tree";
const PIO: &str = "PIO B-tree";

fn widths(scale: Scale) -> Vec<u64> {
    let all = [1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20];
    let count = if scale == Scale::Trial { 2 } else { scale.pick(4, 5, 6) };
    all[..count].to_vec()
}

fn searches(scale: Scale, width: u64) -> u64 {
    let most: u64 = if scale == Scale::Trial { 2 } else { scale.pick(10, 100, 100) };
    // The widest take long enough.
    if width > 1 << 18 { most.div_ceil(5) } else { most }
}

fn measure<C: Clock>(
    laboratory: &Laboratory,
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let size = TreeSize::of(laboratory.scale);
    let widths = widths(laboratory.scale);
    laboratory.expect(2 * widths.len() * C::RUNS as usize);
    let mut rows = Vec::new();
    for run in 0..C::RUNS {
        let place = ground(run)?;
        let options = BTreeOptions { frames: size.memory_pages, ..BTreeOptions::default() };
        let btree: BTree = place.grow(&options, size.records)?;
        rows.extend(points(laboratory, &place, &btree, BTREE, run)?);
        drop(btree);
        let place = ground(run)?;
        let options = PioOptions {
            segments: 1,
            frames: size.memory_pages - 1,
            queue_pages: 1,
            log: LogMode::Off,
            ..PioOptions::default()
        };
        let pio: PioTree = place.grow(&options, size.records)?;
        rows.extend(points(laboratory, &place, &pio, PIO, run)?);
    }
    Ok(Rows(rows))
}

fn points<C: Clock>(
    laboratory: &Laboratory,
    place: &TreeGround<C>,
    tree: &impl Index,
    series: &str,
    run: u32,
) -> Result<Vec<Row<C>>> {
    let size = TreeSize::of(laboratory.scale);
    let mut rows = Vec::new();
    for (index, width) in widths(laboratory.scale).into_iter().enumerate() {
        laboratory.step(&format!("{series}, {width} records"))?;
        let count = searches(laboratory.scale, width);
        let mut keys = UniformKeys::new(Laboratory::seed(run, index), size.records);
        let last = 2 * size.records.saturating_sub(width);
        let row = place.row(series, width as f64, run, count, || {
            for _ in 0..count {
                // Every second key is taken, so this range has `width` records.
                let start = keys.next().min(last);
                let found = tree.range(start..start + 2 * width)?;
                debug_assert!(found.len() as u64 <= width);
            }
            Ok(())
        })?;
        rows.push(row);
    }
    Ok(rows)
}

impl Study for RangeSearch {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        vec![
            Parameter::new("index", "10^9 records, 16 MB memory", TreeSize::of(scale).told()),
            Parameter::new("range", "1 K to 32 M records", format!("{:?} records", widths(scale))),
            Parameter::new("searches a width", "100", searches(scale, 0).to_string()),
            Parameter::new("page", "4 KB, L = 1", "4 KiB, L = 1"),
            Parameter::new("PioMax", "64", "64"),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        measure(laboratory, |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        measure(laboratory, TreeGround::on_ssdsim)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, device: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let (btree, pio) = (rows.line(BTREE, Row::latency)?, rows.line(PIO, Row::latency)?);
        let ratios: Vec<(f64, f64)> =
            btree.iter().zip(&pio).map(|((at, btree), (_, pio))| (*at, btree.over(*pio))).collect();
        let told = ratios
            .iter()
            .map(|(at, ratio)| format!("{} at {at}", number(*ratio)))
            .collect::<Vec<_>>()
            .join(", ");
        let least = ratios.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let most = ratios.iter().map(|point| point.1).fold(0.0, f64::max);
        judgement.check(
            "faster",
            "prange is no slower at any width: B+-tree's time by PIO B-tree's is at least 1",
            "more than 1",
            told.clone(),
            least >= 1.0,
        );
        judgement.check(
            "rises",
            "the ratio does not fall with the width (10 % slack)",
            "rises to a plateau",
            told.clone(),
            first_fall(&ratios, 0.1).is_none(),
        );
        let wanted = if device == Device::Ssdsim { 3.0 } else { 2.4 };
        judgement.check(
            "plateau",
            &format!("the plateau is at least {wanted}"),
            "3.5 to 5",
            number(most),
            most >= wanted,
        );
        judgement.check(
            "narrow",
            "at 1 K records the ratio is below the plateau",
            "below",
            told,
            ratios.first().is_some_and(|first| first.1 < most),
        );
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "records in the range".into(), scale: Scaling::Doubling },
            y: Axis { label: "time of a range search, ms".into(), scale: Scaling::Doubling },
            lines: Line::all(rows, 1e-3, Row::latency)?,
            bars: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::row::tests::row;

    fn rows(ratios: [f64; 4]) -> Rows<Simulated> {
        let widths = widths(Scale::Ci);
        let pairs = widths.iter().zip(ratios);
        Rows(
            pairs
                .flat_map(|(width, ratio)| {
                    [row(BTREE, *width as f64, 0, 100.0 * ratio), row(PIO, *width as f64, 0, 100.0)]
                })
                .collect(),
        )
    }

    #[test]
    fn the_published_shape_holds_and_others_do_not() {
        let judge = |ratios| Study::judge(&RangeSearch, &rows(ratios), Device::Ssdsim).unwrap();
        assert_eq!(judge([1.5, 3.0, 5.0, 5.0]).verdict(), Verdict::Holds);
        assert_eq!(judge([0.9, 3.0, 5.0, 5.0]).outcome("faster"), Some(Outcome::Fails));
        assert_eq!(judge([1.5, 4.0, 2.0, 5.0]).outcome("rises"), Some(Outcome::Fails));
        assert_eq!(judge([1.5, 2.0, 2.5, 2.5]).outcome("plateau"), Some(Outcome::Fails));
        assert_eq!(judge([5.0, 5.0, 5.0, 5.0]).outcome("narrow"), Some(Outcome::Fails));
    }
}
