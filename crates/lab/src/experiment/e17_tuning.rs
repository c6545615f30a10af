//! E17: does the cost model know which leaf size and queue share are best?

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::tree_ground::{TreeGround, TreeSize, UniformKeys};
use crate::tree_times;
use trees::{DeviceTimes, Index, Load, LogMode, PioOptions, PioTree, level_table};

pub(super) struct Tuning;

const LRU: &str = "the model lets the buffer hold the upper levels whole; LRU gives its frames to leaves too, four to each when L = 4, \
                   and they drive inner nodes out: at 10 % updates and L = 4, 1.7 reads an operation where the model expects 1.0 \
                   (the counts are the same on disk and simulated drive). So it finds long leaves cheaper than they are";

static CARD: Card = Card {
    number: 17,
    name: "tuning",
    title: "Self-tuning: the model's choice of leaf size and queue, against all others",
    source: "Roh et al., PVLDB 5(4), 2011, section 3.6; the grid is ours",
    question: "A PIO B-tree measures the device when it is created, and asks its cost model how long leaves are to be and how much \
               memory the operation queue gets. Is the model right? Every point of the grid is measured, for five shares of \
               updates.",
    reported: "Not told; the paper's trees are tuned so.",
    absent: &[(Device::Nand, "the tree works on a block device")],
    causes: &[
        Cause { device: Device::Ssdsim, key: "choice", text: LRU },
        Cause { device: Device::Disk, key: "choice", text: LRU },
        Cause { device: Device::Disk, key: "rank", text: LRU },
    ],
};

const SHARES: [u32; 5] = [10, 30, 50, 70, 90];
const PAGE: usize = 4096;
const BCNT: usize = 5000;
const PIO_MAX: usize = 64;

fn segments(scale: Scale) -> Vec<usize> {
    if scale == Scale::Trial {
        vec![1, 2]
    } else {
        scale.pick(vec![1, 2, 4], vec![1, 2, 4, 8], vec![1, 2, 4, 8, 16])
    }
}

/// Pages of queue: doubling up to half of the memory.
fn queues(size: TreeSize) -> Vec<usize> {
    std::iter::successors(Some(1), |pages| Some(pages * 2))
        .take_while(|pages| pages * 2 <= size.memory_pages)
        .collect()
}

fn series(segments: usize, share: u32) -> String {
    format!("L = {segments}, {share} % updates")
}

/// Enough for the queue to be filled several times.
fn operations(size: TreeSize, queue_pages: usize, share: u32) -> u64 {
    let filled = queue_pages * PAGE / 17;
    (size.operations / 4).max(3 * filled as u64 * 100 / u64::from(share))
}

fn load(size: TreeSize, share: u32) -> Load {
    Load {
        records: size.records as f64,
        memory: (size.memory_pages * PAGE) as f64,
        updates: f64::from(share) / 100.0,
        bcnt: BCNT as f64,
    }
}

fn measure<C: Clock>(
    laboratory: &Laboratory,
    runs: u32,
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let size = TreeSize::of(laboratory.scale);
    let (leaves, queues) = (segments(laboratory.scale), queues(size));
    laboratory.expect(leaves.len() * queues.len() * SHARES.len() * runs as usize);
    let mut rows = Vec::new();
    for run in 0..runs {
        for segments in &leaves {
            let place = ground(run)?;
            let times = tree_times::measure(&place, (size.records * 32).next_multiple_of(1 << 20), PIO_MAX)?;
            let options = |queue_pages: usize| PioOptions {
                segments: *segments,
                queue_pages,
                frames: size.memory_pages - queue_pages,
                log: LogMode::Off,
                pio_max: PIO_MAX,
                bcnt: BCNT,
                ..PioOptions::default()
            };
            drop(place.grow::<PioTree>(&options(1), size.records)?);
            for queue_pages in &queues {
                for share in SHARES {
                    let name = series(*segments, share);
                    laboratory.step(&format!("{name}, {queue_pages} pages of queue"))?;
                    let mut row = point(&place, size, &options(*queue_pages), share, run, &name)?;
                    row.counts.insert("model_us".into(), model(&times, size, *segments, *queue_pages, share));
                    rows.push(row);
                }
            }
        }
    }
    Ok(Rows(rows))
}

fn model(times: &DeviceTimes, size: TreeSize, segments: usize, queue_pages: usize, share: u32) -> f64 {
    level_table::pio(times, &load(size, share), PAGE, segments, queue_pages as f64).mixed
}

fn point<C: Clock>(
    place: &TreeGround<C>,
    size: TreeSize,
    options: &PioOptions,
    share: u32,
    run: u32,
    name: &str,
) -> Result<Row<C>> {
    let mut tree = PioTree::recover(place.volume.clone(), options)?;
    let mut keys = UniformKeys::new(Laboratory::seed(run, share as usize), size.records);
    let count = operations(size, options.queue_pages, share);
    let mut mixed = |count: u64| -> Result<()> {
        for index in 0..count {
            if keys.chance() * 100.0 < f64::from(share) {
                tree.insert(keys.next(), index)?;
            } else {
                tree.search(keys.present())?;
            }
        }
        Ok(())
    };
    // So that the buffer holds what it will hold, and the queue is somewhere between empty and full.
    mixed(count / 6)?;
    let row = place.row(name, options.queue_pages as f64, run, count, || mixed(count))?;
    tree.flush()?;
    Ok(row)
}

/// Spearman's rank correlation.
fn rank_correlation(pairs: &[(f64, f64)]) -> f64 {
    let ranks = |values: Vec<f64>| {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|one, two| values[*one].total_cmp(&values[*two]));
        let mut ranks = vec![0.0; values.len()];
        for (rank, index) in order.into_iter().enumerate() {
            ranks[index] = rank as f64;
        }
        ranks
    };
    let one = ranks(pairs.iter().map(|pair| pair.0).collect());
    let two = ranks(pairs.iter().map(|pair| pair.1).collect());
    let n = pairs.len() as f64;
    let squares: f64 = one.iter().zip(&two).map(|(one, two)| (one - two).powi(2)).sum();
    1.0 - 6.0 * squares / (n * (n * n - 1.0))
}

impl Study for Tuning {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        let size = TreeSize::of(scale);
        vec![
            Parameter::new("index", "10^9 records, 16 MB memory", size.told()),
            Parameter::new("L", "not told", format!("{:?}", segments(scale))),
            Parameter::new("O", "not told", format!("{:?} pages", queues(size))),
            Parameter::new("updates", "not told", format!("{SHARES:?} %")),
            Parameter::new("operations a point", "not told", "enough to fill the queue three times"),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        measure(laboratory, laboratory.scale.pick(1, 3, 3), |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        measure(laboratory, 1, TreeGround::on_ssdsim)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let mut all = Vec::new();
        for share in SHARES {
            let ending = format!(", {share} % updates");
            // Model and measurement of every point.
            let mut points = Vec::new();
            for series in rows.series().into_iter().filter(|series| series.ends_with(&ending)) {
                for (at, measured) in rows.line(series, Row::latency)? {
                    let model = rows.median(series, at, |row| row.count("model_us"))?;
                    points.push((model, measured, format!("{series}, O = {at}")));
                }
            }
            let chosen = points.iter().min_by(|one, two| one.0.total_cmp(&two.0));
            let best = points.iter().min_by(|one, two| one.1.number().total_cmp(&two.1.number()));
            let (Some(chosen), Some(best)) = (chosen, best) else {
                rows.line(&series(1, share), Row::latency)?;
                continue;
            };
            let ratio = chosen.1.over(best.1);
            judgement.check(
                &format!("choice-{share}"),
                &format!(
                    "{share} % updates: the model's choice takes at most 1.15 times the best point's time"
                ),
                "not told",
                format!("{} ({}; best {})", number(ratio), chosen.2, best.2),
                ratio <= 1.15,
            );
            all.extend(points.iter().map(|(model, measured, _)| (*model, measured.number())));
        }
        let correlation = rank_correlation(&all);
        judgement.check(
            "rank",
            "the model orders the points as the measurement does: rank correlation at least 0.8",
            "not told",
            number(correlation),
            correlation >= 0.8,
        );
        let mut ratios: Vec<f64> = all.iter().map(|(model, measured)| measured / model).collect();
        ratios.sort_by(f64::total_cmp);
        judgement.report(
            "scale",
            "measured by predicted: least, middle, most",
            "not told",
            [0, ratios.len() / 2, ratios.len() - 1].map(|index| number(ratios[index])).join(", "),
        );
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1.0, Row::latency)?;
        lines.retain(|line| line.name.ends_with("50 % updates"));
        let mut models = Line::all(rows, 1.0, |row| row.count("model_us"))?;
        models.retain(|line| line.name.ends_with("50 % updates"));
        let mut paired = Vec::new();
        for (measured, mut model) in lines.into_iter().zip(models) {
            model.name = format!("{}: model", model.name);
            model.paired = true;
            paired.extend([measured, model]);
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "pages of operation queue".into(), scale: Scaling::Doubling },
            y: Axis { label: "time of an operation, us".into(), scale: Scaling::Even },
            lines: paired,
            bars: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::row::tests::row;

    /// A grid on which the model says `at` + 10, and the measurement something else.
    fn rows(measured: impl Fn(f64) -> f64) -> Rows<Simulated> {
        let points = SHARES.into_iter().flat_map(|share| [1.0, 2.0, 4.0, 8.0].map(|at| (share, at)));
        Rows(
            points
                .map(|(share, at)| {
                    let mut row = row(&series(1, share), at, 0, measured(at));
                    row.counts.insert("model_us".into(), at + 10.0);
                    row
                })
                .collect(),
        )
    }

    #[test]
    fn a_model_that_knows_holds_and_one_that_does_not_fails() {
        let judge =
            |measured: fn(f64) -> f64| Study::judge(&Tuning, &rows(measured), Device::Ssdsim).unwrap();
        assert_eq!(judge(|at| 2.0 * at + 3.0).verdict(), Verdict::Holds);
        let wrong = judge(|at| 20.0 - at);
        assert_eq!(wrong.outcome("rank"), Some(Outcome::Fails));
        assert_eq!(wrong.outcome("choice-50"), Some(Outcome::Fails));
    }

    #[test]
    fn rank_correlation_of_known_lists() {
        assert_eq!(rank_correlation(&[(1.0, 5.0), (2.0, 6.0), (3.0, 9.0)]), 1.0);
        assert_eq!(rank_correlation(&[(1.0, 9.0), (2.0, 6.0), (3.0, 5.0)]), -1.0);
        assert_eq!(rank_correlation(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)]), 0.5);
    }
}
