//! E17: does the cost model know which leaf size and queue share are best?

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::Result;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Lapse, Quantity, Simulated, Wall};
use crate::rounds::{check_collector, settle, whole_rounds};
use crate::row::{Missing, Row, Rows};
use crate::tree_choice::{self, BUFFERS};
use crate::tree_ground::{TreeGround, TreeSize, UniformKeys};
use trees::{
    Choice, DeviceTimes, Eviction, Index, Load, LogMode, PioOptions, PioTree, level_table, tune_as_published,
};

pub(super) struct Tuning;

static CARD: Card = Card {
    number: 17,
    name: "tuning",
    title: "Self-tuning: the model's choice of leaf size and queue, against all others",
    source: "Roh et al., PVLDB 5(4), 2011, section 3.6; the grid is ours",
    question: "A PIO B-tree measures the device when it is created, and asks its cost model how long leaves are to be and how much \
               memory the operation queue gets. Is the model right? Every point of the grid is measured, for five shares of \
               updates, with two buffers: the paper measures with LRU, but its model assumes one that holds the upper levels.",
    reported: "The tree tunes itself by (10) for the best attainable performance. Leaves of 4 to 16 KB unless nearly all operations are \
               updates.",
    absent: &[(Device::Nand, "the tree works on a block device")],
    causes: &[
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "LRU-published",
            text: "operands of (9) are lost in the text that is at hand. As it is rebuilt a leaf of L pages has the fan-out of one, so that a longer leaf costs more and saves nothing, and (10) chooses L = 1 for every load. Section 4.1.1 chooses leaves by (10) and gains up to 1.5 times by them, and 3.6 expects 4 to 16 KB: so this is not the formula that the authors ran, and what it misses at 90 % says nothing of theirs. Our level table, which differs in that, chooses L = 8 at 90 % and is within 3 % of the best",
        },
        Cause {
            device: Device::Disk,
            scale: None,
            key: "by-level-choice",
            text: "the disk's pace: of three runs of the whole grid within two hours all choices held in the first, and in the others the choice for one \
               share took 1.17 and 1.19 times what the best point took, which was another point each time (L = 8, O = 8; L = 4, O = 2). \
               The best of 40 noisy points is the luckiest",
        },
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "by-level-leaf",
            text: "at scale std: 400 pages for 10^8 records hold the whole level above the leaves only if leaves have 32 KiB, and then a search \
               makes 1.09 reads, not 2 (E11). The choice is right: it takes at most 1.01 times what the best measured point takes. The \
               paper's range is that of its memories",
        },
    ],
};

const SHARES: [u32; 5] = [10, 30, 50, 70, 90];
const PAGE: usize = 4096;
/// Searches after which a buffer holds what it will hold, by frame.
const WARM: u64 = 4;

fn segments(scale: Scale) -> Vec<usize> {
    if scale == Scale::Trial { vec![1, 2] } else { vec![1, 2, 4, 8, 16] }
}

/// How often each point is measured.
fn runs(device: Device) -> u32 {
    if device == Device::Disk { 3 } else { 1 }
}

/// The buffers that are measured.
fn buffers(device: Device, scale: Scale) -> &'static [(Eviction, &'static str)] {
    if device == Device::Disk && scale <= Scale::Ci { &BUFFERS[..1] } else { &BUFFERS }
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
    tree_choice::load(size, f64::from(share) / 100.0, eviction)
}

/// The line of the tree that was tuned when it was created.
fn tuned(buffer: &str, share: u32) -> String {
    format!("{buffer}, tuned, {share} % updates")
}

/// The line of the tree that the published tuner chooses: equation (10) over equation (9), of pages of 4 KiB.
fn published(buffer: &str, share: u32) -> String {
    format!("{buffer}, published tuner, {share} % updates")
}

/// What to measure on trees of one shape.
struct Shape {
    page_len: usize,
    segments: usize,
    points: Vec<Point>,
}

struct Point {
    name: String,
    load: Load,
    queue_pages: usize,
}

/// The grid, and the trees that the model builds.
fn plan(
    size: TreeSize,
    scale: Scale,
    buffers: &[(Eviction, &str)],
    times: &DeviceTimes,
) -> Result<Vec<Shape>> {
    let shape = |segments| Shape { page_len: PAGE, segments, points: Vec::new() };
    let mut plan: Vec<Shape> = segments(scale).into_iter().map(shape).collect();
    for share in SHARES {
        for (eviction, buffer) in buffers {
            let load = load(size, share, *eviction);
            for shape in &mut plan[..segments(scale).len()] {
                for queue_pages in queues(size) {
                    let name = series(buffer, shape.segments, share);
                    shape.points.push(Point { name, load, queue_pages });
                }
            }
            let options = PioOptions::tuned(times, &load)?;
            let is_it =
                |shape: &Shape| shape.page_len == options.page_len && shape.segments == options.segments;
            let at = plan.iter().position(is_it).unwrap_or_else(|| {
                plan.push(Shape {
                    page_len: options.page_len,
                    segments: options.segments,
                    points: Vec::new(),
                });
                plan.len() - 1
            });
            let name = tuned(buffer, share);
            plan[at].points.push(Point { name, load, queue_pages: options.queue_pages });
            // It knows no buffer but that of its model, so both buffers get the same choice.
            if let Some(choice) = tune_as_published(times, &load, PAGE)
                && let Some(shape) =
                    plan[..segments(scale).len()].iter_mut().find(|shape| shape.segments == choice.segments)
            {
                shape.points.push(Point {
                    name: published(buffer, share),
                    load,
                    queue_pages: choice.queue_pages,
                });
            }
        }
    }
    Ok(plan)
}

fn measure<C: Clock>(
    laboratory: &Laboratory,
    runs: u32,
    buffers: &[(Eviction, &str)],
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let size = TreeSize::of(laboratory.scale);
    let mut times = tree_choice::times(&ground(0)?, laboratory.scale)?;
    let plan = plan(size, laboratory.scale, buffers, &times)?;
    laboratory.expect(plan.iter().map(|shape| shape.points.len()).sum::<usize>() * runs as usize);
    let mut rows = Vec::new();
    // Where a point is measured more than once, all others come before it is its turn again, so that a disk that changes
    // its pace favours none. Else there need be no more than one tree at a time.
    let together = if runs > 1 { plan.len() } else { 1 };
    for shapes in plan.chunks(together) {
        let mut grown = Vec::new();
        for shape in shapes {
            let place = ground(0)?.with_accounts();
            let (page_len, segments) = (shape.page_len, shape.segments);
            let options = PioOptions { page_len, segments, log: LogMode::Off, ..PioOptions::default() };
            let tree: PioTree = place.grow(&options, size.records)?;
            grown.push((place, tree));
        }
        for run in 0..runs {
            if run > 0 {
                times = tree_choice::times(&ground(run)?, laboratory.scale)?;
            }
            for (shape, (place, tree)) in shapes.iter().zip(&mut grown) {
                for point in &shape.points {
                    laboratory.step(&format!("{}, {} pages of queue", point.name, point.queue_pages))?;
                    let (page_len, segments, queue_pages) =
                        (shape.page_len, shape.segments, point.queue_pages);
                    let cost = level_table::pio(&times, &point.load, page_len, segments, queue_pages as f64);
                    let choice = Choice { page_len, segments, queue_pages, cost };
                    rows.push(measured(place, tree, &choice, point, run)?);
                }
            }
        }
    }
    Ok(Rows(rows))
}

/// Whole rounds of filling the queue and bringing it to the tree, so that nobody gets a batch for nothing.
fn measured<C: Clock>(
    place: &TreeGround<C>,
    tree: &mut PioTree,
    choice: &Choice,
    point: &Point,
    run: u32,
) -> Result<Row<C>> {
    let Point { name, load, .. } = point;
    let options = PioOptions::chosen(choice, load)?;
    tree.divide_memory(options.queue_pages, options.frames, options.eviction)?;
    let mut keys =
        UniformKeys::new(Laboratory::seed(run, name.len() + choice.queue_pages), load.records as u64);
    for _ in 0..WARM * options.frames as u64 {
        tree.search(keys.present())?;
    }
    settle(tree, |tree, _| Ok(tree.insert(keys.next(), 0)?))?;
    let mut count = 0;
    let mut row = place.row(name, choice.queue_pages as f64, run, 1, || {
        count = whole_rounds(tree, ROUND_MIN, |tree, index| {
            if keys.chance() < load.updates {
                tree.insert(keys.next(), index)?;
            } else {
                tree.search(keys.present())?;
            }
            Ok(())
        })?
        .done;
        Ok(())
    })?;
    row.requests = count;
    row.counts.insert("model_us".into(), choice.cost.mixed);
    row.counts.insert("page".into(), choice.page_len as f64);
    row.counts.insert("L".into(), choice.segments as f64);
    Ok(row)
}

/// Operations of a point, at least.
const ROUND_MIN: u64 = 1000;

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

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        let size = TreeSize::of(scale);
        vec![
            Parameter::new("index", "10^9 records, 16 MB memory", size.told()),
            Parameter::new("L", "not told", format!("{:?}", segments(scale))),
            Parameter::new("O", "not told", format!("{:?} pages", queues(size))),
            Parameter::new("updates", "not told", format!("{SHARES:?} %")),
            Parameter::new(
                "buffer",
                "LRU; the model assumes one that holds the upper levels",
                buffers(device, scale).iter().map(|buffer| buffer.1).collect::<Vec<_>>().join(", and "),
            ),
            Parameter::new("runs", "not told", runs(device).to_string()),
            Parameter::new(
                "operations a point",
                "not told",
                "from one batch update to another: one or more, and 1000 operations or more",
            ),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        let buffers = buffers(Device::Disk, laboratory.scale);
        measure(laboratory, runs(Device::Disk), buffers, |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        // Room for what all points of a shape write, so that the collector has nothing to do.
        let times = laboratory.scale.pick(1, 2, 8);
        let ground = |run| TreeGround::on_larger_ssdsim(run, times);
        measure(laboratory, runs(Device::Ssdsim), &BUFFERS, ground)
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
        check_collector(&mut judgement, rows);
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
struct Found<C: Clock> {
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
    let (mut leaves, mut trees, mut by_paper) = (Vec::new(), Vec::new(), Vec::new());
    let measured = rows.series();
    for share in SHARES {
        let mut points = Vec::new();
        for segments in [1, 2, 4, 8, 16] {
            let line = series(buffer, segments, share);
            for at in rows.points(&line) {
                let model = rows.median(&line, at, |row| row.count("model_us"))?;
                let measured = rows.median(&line, at, Row::latency)?;
                points.push(Found { segments, name: format!("L = {segments}, O = {at}"), model, measured });
            }
        }
        let chosen = points.iter().min_by(|one, two| one.model.total_cmp(&two.model));
        let best = points.iter().min_by(|one, two| one.measured.number().total_cmp(&two.measured.number()));
        let (Some(chosen), Some(best)) = (chosen, best) else {
            rows.line(&series(buffer, 1, share), Row::latency)?;
            continue;
        };
        let ratio = chosen.measured.over(best.measured);
        judgement.own(
            &format!("{key}-choice-{share}"),
            &format!(
                "buffer {buffer}, {share} % updates: our model's choice takes at most 1.15 times the best point's time"
            ),
            format!("{} ({}; best {})", number(ratio), chosen.name, best.name),
            ratio <= 1.15,
        );
        if share < 90 {
            leaves.push((share, chosen.segments * PAGE / 1024));
        }
        let name = published(buffer, share);
        if measured.contains(&name.as_str()) {
            for (at, time) in rows.line(&name, Row::latency)? {
                let segments = rows.median(&name, at, |row| row.count("L"))?;
                by_paper.push((
                    share,
                    time.over(best.measured),
                    segments,
                    format!("L = {segments}, O = {at} at {share} %"),
                ));
            }
        }
        all.extend(points.iter().map(|point| (point.model, point.measured.number())));
        for (at, time) in rows.line(&tuned(buffer, share), Row::latency)? {
            let count =
                |name: &'static str| rows.median(&tuned(buffer, share), at, move |row| row.count(name));
            let (page, segments) = (count("page")? / 1024.0, count("L")?);
            trees.push((
                time.over(best.measured),
                format!("L = {segments} of {page} KiB, O = {at} at {share} %"),
            ));
        }
    }
    if !by_paper.is_empty() {
        judge_published(judgement, buffer, &key, &by_paper);
    }
    judgement.own(
        &format!("{key}-tuned"),
        &format!(
            "buffer {buffer}: the tree that was tuned when it was created, its page size too, takes at most 1.15 times the best \
             point's time"
        ),
        trees.iter().map(|(ratio, told)| format!("{} ({told})", number(*ratio))).collect::<Vec<_>>().join(", "),
        trees.iter().all(|(ratio, _)| *ratio <= 1.15),
    );
    judgement.own(
        &format!("{key}-leaf"),
        &format!("buffer {buffer}: the leaf that our model chooses has 4 to 16 KiB, unless 90 % are updates"),
        leaves.iter().map(|(share, kib)| format!("{kib} KiB at {share} %")).collect::<Vec<_>>().join(", "),
        leaves.iter().all(|(_, kib)| (4..=16).contains(kib)),
    );
    let correlation = rank_correlation(&all);
    judgement.own(
        &format!("{key}-rank"),
        &format!(
            "buffer {buffer}: our model orders the points as the measurement does: rank correlation at least 0.8"
        ),
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

/// What the paper says of its own tuner, by (9) as rebuilt. That is one reading of a formula whose operands are lost, and one that the
/// paper's own choices contradict, so it is a figure, and no verdict.
fn judge_published(judgement: &mut Judgement, buffer: &str, key: &str, choices: &[(u32, f64, f64, String)]) {
    let told = |choice: &(u32, f64, f64, String)| format!("{} ({})", number(choice.1), choice.3);
    let told = choices.iter().map(told).collect::<Vec<_>>().join(", ");
    let claim = format!(
        "buffer {buffer}: the published tuner, (10) over (9) as rebuilt (its operands are lost), by the best point's time"
    );
    judgement.report(&format!("{key}-published"), &claim, "the best attainable performance", told);
    if buffer != "LRU" {
        return;
    }
    let leaves = choices.iter().filter(|choice| choice.0 < 90).map(|choice| choice.2 * PAGE as f64 / 1024.0);
    let leaves: Vec<f64> = leaves.collect();
    judgement.check(
        &format!("{key}-published-leaf"),
        "the leaf that it chooses has 4 to 16 KiB, unless the share of insertions is extremely high (90 %)",
        "4 to 16 KB",
        leaves.iter().map(|kib| format!("{kib} KiB")).collect::<Vec<_>>().join(", "),
        leaves.iter().all(|kib| (4.0..=16.0).contains(kib)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::Outcome;
    use crate::row::tests::row;

    /// A grid on which the model says `at` + 10, and the measurement something else.
    fn rows(measured: impl Fn(f64) -> f64, leaf: f64) -> Rows<Simulated> {
        let mut rows = Vec::new();
        for share in SHARES {
            for buffer in ["by level", "LRU"] {
                let grid = [1.0, 2.0, 4.0, 8.0].map(|at| (series(buffer, 1, share), at));
                let chosen = [(tuned(buffer, share), 1.0), (published(buffer, share), 1.0)];
                for (name, at) in grid.into_iter().chain(chosen) {
                    let mut row = row(&name, at, 0, measured(at));
                    let counts = [("model_us", at + 10.0), ("page", 4096.0), ("L", leaf)];
                    row.counts.extend(counts.map(|(name, count)| (name.to_owned(), count)));
                    rows.push(row);
                }
            }
        }
        Rows(rows)
    }

    #[test]
    fn a_model_that_knows_holds_and_one_that_does_not_fails() {
        let judge =
            |measured: fn(f64) -> f64| Study::judge(&Tuning, &rows(measured, 1.0), Device::Ssdsim).unwrap();
        let right = judge(|at| 2.0 * at + 3.0);
        assert!(right.checks.iter().all(|check| check.outcome != Outcome::Fails), "{right:#?}");
        let wrong = judge(|at| 20.0 - at);
        assert_eq!(wrong.outcome("by-level-rank"), Some(Outcome::Fails));
        assert_eq!(wrong.outcome("by-level-choice-50"), Some(Outcome::Fails));
        assert_eq!(wrong.outcome("by-level-tuned"), Some(Outcome::Fails));
        assert_eq!(wrong.outcome("LRU-published"), Some(Outcome::Reported), "(9) as rebuilt is one reading");
        let long = Study::judge(&Tuning, &rows(|at| at, 8.0), Device::Ssdsim).unwrap();
        assert_eq!(long.outcome("LRU-published-leaf"), Some(Outcome::Fails));
    }

    #[test]
    fn rank_correlation_of_known_lists() {
        assert_eq!(rank_correlation(&[(1.0, 5.0), (2.0, 6.0), (3.0, 9.0)]), 1.0);
        assert_eq!(rank_correlation(&[(1.0, 9.0), (2.0, 6.0), (3.0, 5.0)]), -1.0);
        assert_eq!(rank_correlation(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)]), 0.5);
    }
}
