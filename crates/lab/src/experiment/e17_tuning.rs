//! E17: does the cost model know which leaf size and queue share are best?

use super::{Card, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Lapse, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::tree_ground::{TreeGround, TreeSize, UniformKeys};
use crate::tree_times;
use trees::{Choice, DeviceTimes, Eviction, Index, Load, LogMode, PioOptions, PioTree, level_table};

pub(super) struct Tuning;

static CARD: Card = Card {
    number: 17,
    name: "tuning",
    title: "Self-tuning: the model's choice of leaf size and queue, against all others",
    source: "Roh et al., PVLDB 5(4), 2011, section 3.6; the grid is ours",
    question: "A PIO B-tree measures the device when it is created, and asks its cost model how long leaves are to be and how much \
               memory the operation queue gets. Is the model right? Every point of the grid is measured, for five shares of \
               updates, with two buffers: the paper measures with LRU, but its model assumes one that holds the upper levels.",
    reported: "Not told; the paper's trees are tuned so. Leaves of 4 to 16 KB unless nearly all operations are updates.",
    absent: &[(Device::Nand, "the tree works on a block device")],
    causes: &[],
};

const SHARES: [u32; 5] = [10, 30, 50, 70, 90];
const PAGE: usize = 4096;
/// Searches after which a buffer holds what it will hold, by frame.
const WARM: u64 = 4;

/// The two buffers, by the names of their lines.
const BUFFERS: [(Eviction, &str); 2] = [(Eviction::LowestLevel, "by level"), (Eviction::Lru, "LRU")];

fn segments(scale: Scale) -> Vec<usize> {
    if scale == Scale::Trial { vec![1, 2] } else { vec![1, 2, 4, 8, 16] }
}

/// Pages of queue: doubling up to half of the memory.
fn queues(size: TreeSize) -> Vec<usize> {
    std::iter::successors(Some(1), |pages| Some(pages * 2))
        .take_while(|pages| pages * 2 <= size.memory_pages)
        .collect()
}

fn series(buffer: &str, segments: usize, share: u32) -> String {
    format!("{buffer}, L = {segments}, {share} % updates")
}

fn load(size: TreeSize, share: u32, eviction: Eviction) -> Load {
    Load {
        records: size.records as f64,
        memory: (size.memory_pages * PAGE) as f64,
        updates: f64::from(share) / 100.0,
        eviction,
        ..Load::default()
    }
}

/// A tree of leaves of one length, and where it grows.
struct Grown<C> {
    segments: usize,
    place: TreeGround<C>,
    tree: PioTree,
}

fn measure<C: Clock>(
    laboratory: &Laboratory,
    runs: u32,
    buffers: &[(Eviction, &str)],
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let size = TreeSize::of(laboratory.scale);
    let (leaves, queues) = (segments(laboratory.scale), queues(size));
    laboratory.expect(buffers.len() * leaves.len() * queues.len() * SHARES.len() * runs as usize);
    let mut grown = Vec::new();
    for segments in leaves {
        let place = ground(0)?;
        let options = PioOptions { segments, log: LogMode::Off, ..PioOptions::default() };
        let tree = place.grow(&options, size.records)?;
        grown.push(Grown { segments, place, tree });
    }
    let mut rows = Vec::new();
    for run in 0..runs {
        let len = (size.records * 32).next_multiple_of(1 << 20);
        let times = tree_times::measure(&ground(run)?, len, Load::default().pio_max as usize)?;
        for queue_pages in &queues {
            for share in SHARES {
                for (eviction, buffer) in buffers {
                    let load = load(size, share, *eviction);
                    for grown in &mut grown {
                        let name = series(buffer, grown.segments, share);
                        laboratory.step(&format!("{name}, {queue_pages} pages of queue"))?;
                        let choice = priced(&times, &load, grown.segments, *queue_pages);
                        let mut row = point(grown, &choice, &load, run, &name)?;
                        row.counts.insert("model_us".into(), choice.cost.mixed);
                        rows.push(row);
                    }
                }
            }
        }
    }
    Ok(Rows(rows))
}

/// A point of the grid.
fn priced(times: &DeviceTimes, load: &Load, segments: usize, queue_pages: usize) -> Choice {
    let cost = level_table::pio(times, load, PAGE, segments, queue_pages as f64);
    Choice { page_len: PAGE, segments, queue_pages, cost }
}

/// Whole rounds of filling the queue and bringing it to the tree, so that nobody gets a batch for nothing.
fn point<C: Clock>(
    grown: &mut Grown<C>,
    choice: &Choice,
    load: &Load,
    run: u32,
    name: &str,
) -> Result<Row<C>> {
    let Grown { place, tree, .. } = grown;
    let options = PioOptions::chosen(choice, load)?;
    tree.divide_memory(options.queue_pages, options.frames, options.eviction)?;
    let mut keys =
        UniformKeys::new(Laboratory::seed(run, name.len() + choice.queue_pages), load.records as u64);
    for _ in 0..WARM * options.frames as u64 {
        tree.search(keys.present())?;
    }
    let flushes = |tree: &PioTree| tree.stats().flushes;
    let begin = flushes(tree);
    while flushes(tree) == begin {
        tree.insert(keys.next(), 0)?;
    }
    let batch = (options.queue_pages * PAGE / 17).min(options.bcnt) as f64;
    let rounds = (ROUND_MIN * load.updates / batch).ceil() as u64;
    let end = flushes(tree) + rounds;
    let mut count = 0;
    let mut row = place.row(name, choice.queue_pages as f64, run, 1, || {
        while flushes(tree) < end {
            count += 1;
            if keys.chance() < load.updates {
                tree.insert(keys.next(), count)?;
            } else {
                tree.search(keys.present())?;
            }
        }
        Ok(())
    })?;
    row.requests = count;
    Ok(row)
}

/// Operations of a point, at least.
const ROUND_MIN: f64 = 1000.0;

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
            Parameter::new(
                "buffer",
                "LRU; the model assumes one that holds the upper levels",
                "by level, and LRU",
            ),
            Parameter::new(
                "operations a point",
                "not told",
                "from one batch update to another: one or more, and 1000 operations or more",
            ),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        let buffers = laboratory.scale.pick(&BUFFERS[..1], &BUFFERS, &BUFFERS);
        measure(laboratory, laboratory.scale.pick(3, 3, 3), buffers, |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        measure(laboratory, 1, &BUFFERS, TreeGround::on_ssdsim)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let measured: Vec<&str> = rows.series();
        let buffers = BUFFERS.iter().map(|(_, buffer)| *buffer);
        // Not every scale measures both.
        let buffers = buffers.filter(|buffer| measured.iter().any(|series| series.starts_with(buffer)));
        let buffers: Vec<&str> = buffers.collect();
        if buffers.is_empty() {
            rows.line(&series(BUFFERS[0].1, 1, SHARES[0]), Row::latency)?;
        }
        for buffer in buffers {
            judge_buffer(rows, buffer, &mut judgement)?;
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let drawn = |line: &Line| [1, 4, 16].iter().any(|l| line.name == series(BUFFERS[0].1, *l, 50));
        let mut lines = Line::all(rows, 1.0, Row::latency)?;
        lines.retain(drawn);
        let mut models = Line::all(rows, 1.0, |row| row.count("model_us"))?;
        models.retain(drawn);
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

/// A measured point of the grid.
struct Point<C: Clock> {
    segments: usize,
    name: String,
    model: f64,
    measured: Lapse<C>,
}

fn judge_buffer<C: Clock>(
    rows: &Rows<C>,
    buffer: &str,
    judgement: &mut Judgement,
) -> std::result::Result<(), Missing> {
    let key = buffer.replace(' ', "-");
    let mut all = Vec::new();
    let mut leaves = Vec::new();
    for share in SHARES {
        let mut points = Vec::new();
        for segments in [1, 2, 4, 8, 16] {
            let line = series(buffer, segments, share);
            for at in rows.points(&line) {
                let model = rows.median(&line, at, |row| row.count("model_us"))?;
                let measured = rows.median(&line, at, Row::latency)?;
                points.push(Point { segments, name: format!("L = {segments}, O = {at}"), model, measured });
            }
        }
        let chosen = points.iter().min_by(|one, two| one.model.total_cmp(&two.model));
        let best = points.iter().min_by(|one, two| one.measured.number().total_cmp(&two.measured.number()));
        let (Some(chosen), Some(best)) = (chosen, best) else {
            rows.line(&series(buffer, 1, share), Row::latency)?;
            continue;
        };
        let ratio = chosen.measured.over(best.measured);
        judgement.check(
            &format!("{key}-choice-{share}"),
            &format!(
                "buffer {buffer}, {share} % updates: the model's choice takes at most 1.15 times the best point's time"
            ),
            "not told",
            format!("{} ({}; best {})", number(ratio), chosen.name, best.name),
            ratio <= 1.15,
        );
        if share < 90 {
            leaves.push((share, chosen.segments * PAGE >> 10));
        }
        all.extend(points.iter().map(|point| (point.model, point.measured.number())));
    }
    judgement.check(
        &format!("{key}-leaf"),
        &format!("buffer {buffer}: the chosen leaf has 4 to 16 KiB, unless 90 % are updates"),
        "4 to 16 KB",
        leaves.iter().map(|(share, kib)| format!("{kib} KiB at {share} %")).collect::<Vec<_>>().join(", "),
        leaves.iter().all(|(_, kib)| (4..=16).contains(kib)),
    );
    let correlation = rank_correlation(&all);
    judgement.check(
        &format!("{key}-rank"),
        &format!(
            "buffer {buffer}: the model orders the points as the measurement does: rank correlation at least 0.8"
        ),
        "not told",
        number(correlation),
        correlation >= 0.8,
    );
    let mut ratios: Vec<f64> = all.iter().map(|(model, measured)| measured / model).collect();
    ratios.sort_by(f64::total_cmp);
    judgement.report(
        &format!("{key}-scale"),
        &format!("buffer {buffer}: measured by predicted: least, middle, most"),
        "not told",
        [0, ratios.len() / 2, ratios.len() - 1].map(|index| number(ratios[index])).join(", "),
    );
    Ok(())
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
                    let mut row = row(&series("by level", 1, share), at, 0, measured(at));
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
        assert_eq!(wrong.outcome("by-level-rank"), Some(Outcome::Fails));
        assert_eq!(wrong.outcome("by-level-choice-50"), Some(Outcome::Fails));
    }

    #[test]
    fn rank_correlation_of_known_lists() {
        assert_eq!(rank_correlation(&[(1.0, 5.0), (2.0, 6.0), (3.0, 9.0)]), 1.0);
        assert_eq!(rank_correlation(&[(1.0, 9.0), (2.0, 6.0), (3.0, 5.0)]), -1.0);
        assert_eq!(rank_correlation(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)]), 0.5);
    }
}
