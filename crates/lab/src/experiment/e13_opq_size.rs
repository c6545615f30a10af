//! E13: insert and search time by the share of memory that the OPQ gets.

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::{Failure, Result};
use crate::judgement::{Judgement, first_fall};
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::rounds::{check_collector, check_matched, settle, whole_rounds};
use crate::row::{Missing, Row, Rows};
use crate::tree_choice::{self, BUFFERS};
use crate::tree_ground::{TreeGround, TreeSize, UniformKeys};
use trees::{BTree, Choice, Eviction, Index, Load, LogMode, PioOptions, PioTree};

pub(super) struct OpqSize;

static CARD: Card = Card {
    number: 13,
    name: "opq-size",
    title: "Insert and search by the pages of the operation queue",
    source: "Roh et al., PVLDB 5(4), 2011, figure 11; Roh, Park, Shin and Lee, IEEE Data Eng. Bull. 2014, figure 8",
    question: "A PIO B-tree divides its memory between the operation queue, which makes insertion cheaper, and the buffer, \
               which makes searches cheaper. What does each page of the queue buy, and what does it cost?",
    reported: "One page of queue makes insertion 4.3 to 8.2 times as fast as a B+-tree's with all of the memory as buffer; nearly \
               all of it up to 28 times. With a quarter of the memory (P300) insertion is 16.3 times as fast, and searches are \
               still 1.2 times as fast.",
    absent: &[(Device::Nand, "both trees work on a block device")],
    causes: &[
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "first-page",
            text: "the simulated drive writes 27 times as many pages of 4 KiB at depth 64 as at depth 1 (E2), the paper's drives more than 10 times. A B+-tree that writes one node at a time gains nothing from channels, the PIO B-tree 3.42 times from 1 channel to 8 (E42, the run that could have refuted this)",
        },
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "most",
            text: "leaves are chosen for searches, and with LRU they are short: 8 KiB at ci, 4 KiB at std. Hardly one gets two updates of a batch: 0.98 leaves are written for an insertion with one page of queue, 0.67 with 21 (ci), 1.00 and 0.87 at std, where inner nodes are spared (1.90 and 0.90 reads). With longer leaves, which could have refuted it, nine tenths of the memory as queue are 2.2 (16 KiB), 3.6 (32 KiB) and 6.4 times (64 KiB) as good as a page at ci, around the published 3.4",
        },
        Cause {
            device: Device::Ssdsim,
            scale: Some(Scale::Ci),
            key: "both",
            text: "the PIO B-tree's pages have 4 KiB, in which its queue is counted, and with LRU leaves drive inner nodes of that size out of its memory more often than the B+-tree's of 16 KiB: a search reads 1.8 nodes, not 1.5, and all three with 21 of 24 pages as queue. If its page is chosen as well, 16 KiB, the run that could have refuted this, it reads 1.55, and is 0.98 times as fast, not 0.86, with one such page as queue, a sixth of the memory; insertion is 14.3 times as fast then. No other leaf would help: 0.65 to 0.86 times with leaves of 4 to 64 KiB. That segments which batches have rewritten wait for the same die, which was supposed, is so for long leaves alone: as they were loaded leaves of 32 KiB are searched 0.84 times as fast, behind insertions 0.75, and those of 8 KiB, which are judged, 0.87 and 0.86. The published 1.2 rests on the lead of figure 9, which is not found either (E11)",
        },
        Cause {
            device: Device::Ssdsim,
            scale: Some(Scale::Std),
            key: "both",
            text: "the PIO B-tree's pages have 4 KiB, in which its queue is counted, and with LRU leaves drive inner nodes of that size out of its memory more often than the B+-tree's of 32 KiB: a search reads 1.9 nodes, not 1.6. A chosen page was run at ci, where it makes searches 0.98 times as fast as the B+-tree's, not 0.86; here it was not run, but E11, whose pages are chosen, has 0.98 at that memory, not 0.91. The published 1.2 rests on the lead of figure 9, which is not found either (E11)",
        },
        Cause {
            device: Device::Disk,
            scale: None,
            key: "by-level",
            text: "on a disk only the buffer that holds the upper levels was run; figure 11 has LRU",
        },
    ],
};

/// On F120, Iodrive and P300, with one page of queue.
const FIRST_PAGE: std::ops::RangeInclusive<f64> = 4.3..=8.2;
/// On P300, with a quarter of the memory as queue: how many times as fast insertion is, and searches.
const BOTH: (f64, f64) = (16.3, 1.2);

const BTREE_INSERT: &str = "B+-tree, insert";
const BTREE_SEARCH: &str = "B+-tree, search";
const INSERT: &str = "PIO B-tree, insert";
const SEARCH: &str = "PIO B-tree, search";
const DELETE: &str = "PIO B-tree, delete";
const UPDATE: &str = "PIO B-tree, update";

/// The sweep of leaves, by their bytes: LRU, and a page of queue if nothing else is said.
const LOADED: &str = "by leaf: PIO B-tree, search as loaded";
const CHANGED: &str = "by leaf: PIO B-tree, search behind insertions";
const FEW: &str = "by leaf: PIO B-tree, insert, one page of queue";
const MANY: &str = "by leaf: PIO B-tree, insert, nine tenths of the memory as queue";
/// The tree whose page is chosen as well, by bytes of queue: LRU.
const FREE_INSERT: &str = "by page: PIO B-tree of the page that is chosen, insert";
const FREE_SEARCH: &str = "by page: PIO B-tree of the page that is chosen, search";
/// L.
const SEGMENTS: [usize; 5] = [1, 2, 4, 8, 16];

/// A line by its buffer. The one that holds the upper levels, which the paper did not measure, has no mark.
fn series(name: &str, eviction: Eviction) -> String {
    if eviction == Eviction::Lru { format!("{name}, LRU") } else { name.to_owned() }
}

/// Pages of queue: doubling up to a quarter of the memory, then nine tenths of it.
fn queues(size: TreeSize) -> Vec<usize> {
    let mut queues: Vec<usize> = std::iter::successors(Some(1), |pages| Some(pages * 2))
        .take_while(|pages| pages * 4 <= size.memory_pages)
        .collect();
    queues.push(size.memory_pages * 9 / 10);
    queues
}

fn measure<C: Clock>(
    laboratory: &Laboratory,
    mut ground: impl FnMut(u32) -> Result<TreeGround<C>>,
) -> Result<Rows<C>> {
    let size = TreeSize::of(laboratory.scale);
    let queues = queues(size);
    let runs = runs::<C>(laboratory.scale);
    laboratory.expect(BUFFERS.len() * (2 * queues.len() + 4) * runs as usize);
    let times = tree_choice::times(&ground(0)?, laboratory.scale)?;
    let mut rows = Vec::new();
    for (eviction, _) in BUFFERS {
        // Nodes as the paper's section 4.1.1 chooses them, for searches.
        let load = tree_choice::load(size, 0.0, eviction);
        let btree_options = tree_choice::btree(&times, &load)?;
        let choice = tree_choice::pio_of_4k(&times, &load)?;
        for run in 0..runs {
            let place = ground(run)?.with_accounts();
            let tree: BTree = place.grow(&btree_options, size.records)?;
            rows.extend(of_btree(laboratory, &place, tree, (run, eviction, btree_options.page_len))?);
            let options = PioOptions { log: LogMode::Off, ..PioOptions::chosen(&choice, &load)? };
            if eviction == Eviction::Lru && run == 0 && !C::IS_WALL {
                rows.extend(of_leaves(laboratory, &mut ground, (&choice, &load))?);
                rows.extend(of_free_page(
                    laboratory,
                    &mut ground,
                    &tree_choice::free(&times, &load)?,
                    &load,
                )?);
            }
            let mut grown: Option<(TreeGround<C>, PioTree)> = None;
            for point in points(&queues) {
                // What is written at one point would fill a simulated drive for the next, whose collector then copies.
                if !C::IS_WALL || grown.is_none() {
                    drop(grown.take());
                    let place = ground(run)?.with_accounts();
                    let tree = place.grow(&options, size.records)?;
                    grown = Some((place, tree));
                }
                if let Some((place, tree)) = &mut grown {
                    rows.extend(of_pio(laboratory, place, tree, (run, &choice, &load), point)?);
                }
            }
        }
    }
    Ok(Rows(rows))
}

/// A large simulated drive is measured once: by seed its times differ by less than 1 %.
fn runs<C: Clock>(scale: Scale) -> u32 {
    if C::IS_WALL { C::RUNS } else { scale.pick(C::RUNS, 1, 1) }
}

/// What is measured on one tree: changes of a kind, with so many pages of queue, the queues being counted by `index`.
#[derive(Clone, Copy)]
struct Point {
    change: &'static str,
    queue_pages: usize,
    index: usize,
}

/// Insertions with each queue, the other changes with the first.
fn points(queues: &[usize]) -> Vec<Point> {
    let inserts = queues.iter().enumerate();
    let mut points: Vec<Point> = inserts
        .map(|(index, queue_pages)| Point { change: INSERT, queue_pages: *queue_pages, index })
        .collect();
    points.extend([UPDATE, DELETE].map(|change| Point { change, queue_pages: queues[0], index: 0 }));
    points
}

/// Bytes that insertions into a B+-tree write at most: fewer than a drive has to spare, so that its collector has nothing to do.
const BTREE_WRITES: u64 = 1 << 30;

fn of_btree<C: Clock>(
    laboratory: &Laboratory,
    place: &TreeGround<C>,
    mut tree: BTree,
    (run, eviction, leaf): (u32, Eviction, usize),
) -> Result<Vec<Row<C>>> {
    let size = TreeSize::of(laboratory.scale);
    let count = size.operations.min(BTREE_WRITES / leaf as u64);
    let mut keys = UniformKeys::new(Laboratory::seed(run, 0), size.records);
    let name = series(BTREE_INSERT, eviction);
    laboratory.step(&name)?;
    let mut insert = place.row(&name, 0.0, run, count, || {
        (0..count).try_for_each(|index| Ok(tree.insert(keys.next(), index)?))
    })?;
    insert.counts.insert("leaf".into(), leaf as f64);
    let name = series(BTREE_SEARCH, eviction);
    laboratory.step(&name)?;
    let search = place.row(&name, 0.0, run, count, || {
        (0..count).try_for_each(|_| tree.search(keys.present()).map(|_| ()).map_err(Into::into))
    })?;
    Ok(vec![insert, search])
}

/// What could show that another leaf, or one whose segments lie as they were loaded, is searched faster, and that more queue is
/// worth more where leaves are longer.
fn of_leaves<C: Clock>(
    laboratory: &Laboratory,
    ground: &mut impl FnMut(u32) -> Result<TreeGround<C>>,
    (choice, load): (&Choice, &Load),
) -> Result<Vec<Row<C>>> {
    let size = TreeSize::of(laboratory.scale);
    let count = size.operations;
    laboratory.expect(SEGMENTS.len());
    let mut rows = Vec::new();
    for segments in SEGMENTS {
        let chosen = |queue_pages| {
            let choice = Choice { segments, queue_pages, ..*choice };
            Ok::<_, Failure>(PioOptions { log: LogMode::Off, ..PioOptions::chosen(&choice, load)? })
        };
        let at = (choice.page_len * segments) as f64;
        laboratory.step(&format!("{LOADED}, leaves of {at} bytes"))?;
        let place = ground(0)?.with_accounts();
        let mut tree: PioTree = place.grow(&chosen(1)?, size.records)?;
        let mut keys = UniformKeys::new(Laboratory::seed(0, 0), size.records);
        rows.push(searched(&place, &tree, (LOADED, at, 0, count), &mut keys)?);
        rows.push(inserted(&place, &mut tree, (FEW, at, 0, count), &mut keys)?);
        rows.push(searched(&place, &tree, (CHANGED, at, 0, count), &mut keys)?);
        let options = chosen(size.memory_pages * 9 / 10)?;
        tree.divide_memory(options.queue_pages, options.frames, options.eviction)?;
        rows.push(inserted(&place, &mut tree, (MANY, at, 0, count), &mut keys)?);
    }
    Ok(rows)
}

/// What could show that it is the pages of 4 KiB, in which the queue is counted, that keep searches behind: the tree whose page
/// equation (10) chooses as well, with a page of queue and with a quarter of the memory, if that leaves a buffer.
fn of_free_page<C: Clock>(
    laboratory: &Laboratory,
    ground: &mut impl FnMut(u32) -> Result<TreeGround<C>>,
    choice: &Choice,
    load: &Load,
) -> Result<Vec<Row<C>>> {
    let size = TreeSize::of(laboratory.scale);
    let quarter = ((load.memory / 4.0) as usize / choice.page_len).max(1);
    let mut rows = Vec::new();
    for queue_pages in if quarter > 1 { vec![1, quarter] } else { vec![1] } {
        let Ok(options) = PioOptions::chosen(&Choice { queue_pages, ..*choice }, load) else { continue };
        let options = PioOptions { log: LogMode::Off, ..options };
        let at = (queue_pages * choice.page_len) as f64;
        laboratory.expect(1);
        laboratory.step(&format!("{FREE_INSERT}, {at} bytes of queue"))?;
        let place = ground(0)?.with_accounts();
        let mut tree: PioTree = place.grow(&options, size.records)?;
        let mut keys = UniformKeys::new(Laboratory::seed(0, 0), size.records);
        for mut row in [
            inserted(&place, &mut tree, (FREE_INSERT, at, 0, size.operations), &mut keys)?,
            searched(&place, &tree, (FREE_SEARCH, at, 0, size.operations), &mut keys)?,
        ] {
            row.counts.insert("page".into(), choice.page_len as f64);
            row.counts.insert("leaf".into(), (choice.page_len * choice.segments) as f64);
            rows.push(row);
        }
    }
    Ok(rows)
}

/// So many insertions at least, in whole rounds of the queue.
fn inserted<C: Clock>(
    place: &TreeGround<C>,
    tree: &mut PioTree,
    (series, at, run, count): (&str, f64, u32, u64),
    keys: &mut UniformKeys,
) -> Result<Row<C>> {
    let mut insert = |tree: &mut PioTree, index| Ok(tree.insert(keys.next(), index)?);
    settle(tree, &mut insert)?;
    timed_rounds(place, tree, (series, at, run, count), insert)
}

/// Whole rounds of the queue, `work` so often at least.
fn timed_rounds<C: Clock>(
    place: &TreeGround<C>,
    tree: &mut PioTree,
    (series, at, run, count): (&str, f64, u32, u64),
    work: impl FnMut(&mut PioTree, u64) -> Result<()>,
) -> Result<Row<C>> {
    let mut rounds = None;
    let mut row = place.row(series, at, run, 1, || {
        rounds = Some(whole_rounds(tree, count, work)?);
        Ok(())
    })?;
    if let Some(rounds) = rounds {
        row.requests = rounds.done;
        rounds.tell(&mut row, rounds.done);
    }
    Ok(row)
}

/// So many searches.
fn searched<C: Clock>(
    place: &TreeGround<C>,
    tree: &PioTree,
    (series, at, run, count): (&str, f64, u32, u64),
    keys: &mut UniformKeys,
) -> Result<Row<C>> {
    place.row(series, at, run, count, || {
        (0..count).try_for_each(|_| tree.search(keys.present()).map(|_| ()).map_err(Into::into))
    })
}

/// Changes of a kind, and searches behind insertions.
fn of_pio<C: Clock>(
    laboratory: &Laboratory,
    place: &TreeGround<C>,
    tree: &mut PioTree,
    (run, choice, load): (u32, &Choice, &Load),
    point: Point,
) -> Result<Vec<Row<C>>> {
    let size = TreeSize::of(laboratory.scale);
    let count = size.operations;
    let options = PioOptions::chosen(&Choice { queue_pages: point.queue_pages, ..*choice }, load)?;
    tree.divide_memory(options.queue_pages, options.frames, options.eviction)?;
    let mut keys = UniformKeys::new(Laboratory::seed(run, 1 + point.index), size.records);
    let at = point.queue_pages as f64;
    settle(tree, |tree, index| Ok(tree.insert(keys.next(), index)?))?;
    let name = series(point.change, load.eviction);
    laboratory.step(&format!("{name}, {at} pages of queue"))?;
    let mut row = timed_rounds(place, tree, (&name, at, run, count), |tree, index| match point.change {
        UPDATE => Ok(tree.update(keys.present(), index)?),
        DELETE => Ok(tree.delete(keys.present())?),
        _ => Ok(tree.insert(keys.next(), index)?),
    })?;
    row.counts.insert("leaf".into(), (choice.page_len * choice.segments) as f64);
    let mut rows = vec![row];
    if point.change == INSERT {
        let name = series(SEARCH, load.eviction);
        laboratory.step(&format!("{name}, {at} pages of queue"))?;
        rows.push(searched(place, tree, (&name, at, run, count), &mut keys)?);
    }
    Ok(rows)
}

impl Study for OpqSize {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        let size = TreeSize::of(scale);
        let place = if device == Device::Disk {
            "all points of a tree in one file"
        } else {
            "each point on a new drive"
        };
        vec![
            Parameter::new("index", "10^9 records, 16 MB memory", size.told()),
            Parameter::new(
                "operations a point",
                "5,000,000",
                format!(
                    "{} at least (of the B+-tree at most those that write 1 GiB), {place}; updates from one \
                     way of the batches round the keys to another, in a steady state",
                    size.operations
                ),
            ),
            Parameter::new("OPQ", "1 to 4041 pages", format!("{:?} pages", queues(size))),
            Parameter::new(
                "nodes",
                "B+-tree by equation 3, PIO by equation 10, for searches (section 4.1.1)",
                "the same, (10) over our level table; nodes of the B+-tree and leaves of both of 4 to 64 KiB, PIO with pages of 4 KiB, in which its queue is counted; besides, on the simulated drive, the PIO B-tree whose page (10) chooses as well",
            ),
            Parameter::new(
                "buffer",
                "LRU; the model assumes one that holds the upper levels",
                "LRU, and one that holds them, each for both trees",
            ),
            Parameter::new("PioMax, speriod, bcnt", "64, 5000, 5000", "64, 5000, 5000"),
            Parameter::new(
                "buffers of sets",
                "of PioMax (H - 1) pages for a search (Bulletin, section 3), not said to be counted",
                "not counted as memory: up to 64 pages for a batch update",
            ),
            Parameter::new("log", "not told", "none, for both"),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        measure(laboratory, |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        // Room for what a point writes, so that the collector has nothing to do.
        let times = laboratory.scale.pick(1, 2, 8);
        measure(laboratory, |run| TreeGround::on_larger_ssdsim(run, times))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let lru = rows.series().contains(&series(INSERT, Eviction::Lru).as_str());
        if lru {
            judge_lru(rows, &mut judgement)?;
            judge_pages(rows, &mut judgement)?;
        }
        if rows.series().contains(&LOADED) {
            judge_leaves(rows, &mut judgement)?;
            judge_free_page(rows, &mut judgement)?;
        }
        let figures = Figures::of(rows, Eviction::LowestLevel)?;
        for (key, what, told) in [
            (
                "by-level-insert",
                "insertion, how many times as fast as the B+-tree's",
                told(&figures.speed_ups),
            ),
            ("by-level-search", "searches, how many times as fast as the B+-tree's", told(&figures.searches)),
        ] {
            let claim = format!("with a buffer that holds the upper levels, by pages of queue: {what}");
            judgement.report(key, &claim, "measured with LRU", told);
        }
        check_collector(&mut judgement, rows);
        check_matched(&mut judgement, rows);
        for (name, key) in [(UPDATE, "update"), (DELETE, "delete")] {
            let eviction = if lru { Eviction::Lru } else { Eviction::LowestLevel };
            let median = |name| rows.median(&series(name, eviction), 1.0, Row::latency);
            let ratio = median(name)?.over(median(INSERT)?);
            judgement.invariant(
                key,
                &format!(
                    "{key}s take what insertions take, within 25 %: each is an entry that is appended, and no leaf fills here"
                ),
                "the same",
                number(ratio),
                (0.75..=1.25).contains(&ratio),
            );
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1.0, Row::latency)?;
        let lru = rows.series().contains(&series(INSERT, Eviction::Lru).as_str());
        let shown = [BTREE_INSERT, BTREE_SEARCH, INSERT, SEARCH]
            .map(|name| series(name, if lru { Eviction::Lru } else { Eviction::LowestLevel }));
        lines.retain(|line| shown.contains(&line.name));
        // The B+-tree has no queue: the same everywhere.
        let ends = rows.points(INSERT);
        for line in lines.iter_mut().filter(|line| line.name.starts_with("B+")) {
            if let Some((_, spread)) = line.points.first().copied() {
                line.points = ends.iter().map(|at| (*at, spread)).collect();
            }
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "pages of operation queue".into(), scale: Scaling::Doubling },
            y: Axis { label: "time of an operation, us".into(), scale: Scaling::Doubling },
            lines,
            bars: false,
        })
    }
}

fn told(line: &[(f64, f64)]) -> String {
    line.iter().map(|(at, value)| format!("{} at {at}", number(*value))).collect::<Vec<_>>().join(", ")
}

/// How many times as fast as the B+-tree's, by pages of queue.
struct Figures {
    speed_ups: Vec<(f64, f64)>,
    searches: Vec<(f64, f64)>,
}

impl Figures {
    fn of<C: Clock>(rows: &Rows<C>, eviction: Eviction) -> std::result::Result<Self, Missing> {
        let by = |btree: &str, pio: &str| -> std::result::Result<Vec<(f64, f64)>, Missing> {
            let btree = rows.median(&series(btree, eviction), 0.0, Row::latency)?;
            let pio = rows.line(&series(pio, eviction), Row::latency)?;
            Ok(pio.iter().map(|(at, time)| (*at, btree.over(*time))).collect())
        };
        Ok(Self { speed_ups: by(BTREE_INSERT, INSERT)?, searches: by(BTREE_SEARCH, SEARCH)? })
    }
}

/// Pages of an insertion by pages of queue, wherever they were counted.
fn judge_pages<C: Clock>(rows: &Rows<C>, judgement: &mut Judgement) -> std::result::Result<(), Missing> {
    let name = series(INSERT, Eviction::Lru);
    if rows.0.iter().all(|row| row.series != name || !row.counts.contains_key("reads")) {
        return Ok(());
    }
    let each = |what: &'static str| rows.line(&name, move |row| row.count(what) / row.requests as f64);
    judgement.report(
        "insert-pages",
        "reads of an insertion, by pages of queue; writes",
        "not told",
        format!("{}; {}", told(&each("reads")?), told(&each("writes")?)),
    );
    Ok(())
}

fn judge_lru<C: Clock>(rows: &Rows<C>, judgement: &mut Judgement) -> std::result::Result<(), Missing> {
    let Figures { speed_ups, searches } = Figures::of(rows, Eviction::Lru)?;
    let first = speed_ups.first().map_or(f64::NAN, |point| point.1);
    let last = speed_ups.last().map_or(f64::NAN, |point| point.1);
    judgement.band(
        "first-page",
        "with one page of queue, insertion is so many times as fast as the B+-tree's",
        number(first),
        [first],
        FIRST_PAGE,
    );
    judgement.check(
        "insert-falls",
        "insertion does not become slower with more queue (5 % slack): how many times as fast as the B+-tree's",
        "becomes faster",
        told(&speed_ups),
        first_fall(&speed_ups, 0.05).is_none(),
    );
    judgement.check(
        "most",
        "nearly all of the memory as queue is at least 3.4 times as good as one page",
        "28 against 8.2 (P300)",
        format!("{} against {}", number(last), number(first)),
        last >= 3.4 * first,
    );
    let name = series(SEARCH, Eviction::Lru);
    let times: Vec<(f64, f64)> =
        rows.line(&name, Row::latency)?.into_iter().map(|(at, time)| (at, time.number())).collect();
    judgement.check(
        "search-rises",
        "searches do not become faster with more queue (5 % slack), in microseconds",
        "become slower",
        told(&times),
        first_fall(&times, 0.05).is_none(),
    );
    let (insert, search) = BOTH;
    let meets =
        |((_, speed_up), (_, faster)): &(&(f64, f64), &(f64, f64))| *speed_up >= insert && *faster >= search;
    judgement.check(
        "both",
        &format!("with some queue, insertion is {insert} times as fast as the B+-tree's and searches {search} times"),
        "16.3 and 1.2 (P300, 1024 pages)",
        format!("insertion {}; searches {}", told(&speed_ups), told(&searches)),
        speed_ups.iter().zip(&searches).any(|point| meets(&point)),
    );
    Ok(())
}

/// Searches by the bytes of a leaf, and what they read.
fn judge_leaves<C: Clock>(rows: &Rows<C>, judgement: &mut Judgement) -> std::result::Result<(), Missing> {
    let btree = rows.median(&series(BTREE_SEARCH, Eviction::Lru), 0.0, Row::latency)?;
    let faster = |name| {
        let line = rows.line(name, Row::latency)?;
        Ok(line.into_iter().map(|(at, time)| (at, btree.over(time))).collect::<Vec<_>>())
    };
    let (loaded, changed): (Vec<_>, Vec<_>) = (faster(LOADED)?, faster(CHANGED)?);
    judgement.report(
        "by-leaf",
        "by bytes of a leaf, with a page of queue: searches, how many times as fast as the B+-tree's; in segments as they were loaded",
        "1.2 with a quarter of the memory as queue",
        format!("{}; {}", told(&changed), told(&loaded)),
    );
    let (few, many) = (rows.line(FEW, Row::latency)?, rows.line(MANY, Row::latency)?);
    let worth: Vec<(f64, f64)> =
        few.iter().zip(&many).map(|((at, few), (_, many))| (*at, few.over(*many))).collect();
    judgement.report(
        "most-by-leaf",
        "by bytes of a leaf: how many times as fast insertion is with nine tenths of the memory as queue as with one page",
        "28 / 8.2 = 3.4",
        told(&worth),
    );
    let reads = |name: &str| rows.line(name, |row| row.count("reads") / row.requests as f64);
    judgement.report(
        "search-reads",
        "reads of a search: B+-tree; PIO B-tree by pages of queue; by bytes of a leaf",
        "not told",
        format!(
            "{}; {}; {}",
            told(&reads(&series(BTREE_SEARCH, Eviction::Lru))?),
            told(&reads(&series(SEARCH, Eviction::Lru))?),
            told(&reads(CHANGED)?)
        ),
    );
    Ok(())
}

/// The tree whose page is chosen as well.
fn judge_free_page<C: Clock>(rows: &Rows<C>, judgement: &mut Judgement) -> std::result::Result<(), Missing> {
    let mut told = Vec::new();
    for at in rows.points(FREE_INSERT) {
        let over = |btree, pio| {
            let btree = rows.median(&series(btree, Eviction::Lru), 0.0, Row::latency)?;
            Ok(number(btree.over(rows.median(pio, at, Row::latency)?)))
        };
        let bytes = |what: &'static str| rows.median(FREE_SEARCH, at, move |row| row.count(what));
        told.push(format!(
            "page {} KiB, leaf {} KiB, queue {} KiB: insertion {}, searches {}",
            bytes("page")? / 1024.0,
            bytes("leaf")? / 1024.0,
            at / 1024.0,
            over(BTREE_INSERT, FREE_INSERT)?,
            over(BTREE_SEARCH, FREE_SEARCH)?
        ));
    }
    if !told.is_empty() {
        judgement.report(
            "free-page",
            "a PIO B-tree whose page (10) chooses as well, LRU: how many times as fast as the B+-tree",
            "16.3 and 1.2 (P300, 1024 pages of queue)",
            told.join("; "),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::rounds::tests::brought;
    use crate::row::tests::row;

    /// Times by pages of queue: insert, search.
    fn rows(eviction: Eviction, times: [(f64, f64); 3], update: f64) -> Vec<Row<Simulated>> {
        let named = |name| series(name, eviction);
        let mut rows =
            vec![row(&named(BTREE_INSERT), 0.0, 0, 200.0), row(&named(BTREE_SEARCH), 0.0, 0, 120.0)];
        for (at, (insert, search)) in [1.0, 4.0, 21.0].into_iter().zip(times) {
            rows.extend([
                brought(row(&named(INSERT), at, 0, insert), 100),
                row(&named(SEARCH), at, 0, search),
            ]);
        }
        rows.extend([row(&named(UPDATE), 1.0, 0, update), row(&named(DELETE), 1.0, 0, update)]);
        rows
    }

    const GOOD: [(f64, f64); 3] = [(30.0, 99.0), (12.0, 100.0), (8.5, 130.0)];

    #[test]
    fn the_published_shape_holds_and_others_do_not() {
        let judge = |times, update| {
            let mut all = rows(Eviction::Lru, times, update);
            all.extend(rows(Eviction::LowestLevel, GOOD, 30.0));
            Study::judge(&OpqSize, &Rows(all), Device::Ssdsim).unwrap()
        };
        assert_eq!(judge(GOOD, 30.0).verdict(), Verdict::Holds);
        assert_eq!(judge(GOOD, 90.0).outcome("update"), Some(Outcome::Fails));
        let fails = |times, key| assert_eq!(judge(times, 30.0).outcome(key), Some(Outcome::Fails), "{key}");
        fails([(100.0, 99.0), (20.0, 100.0), (10.0, 130.0)], "first-page");
        fails([(30.0, 99.0), (40.0, 100.0), (10.0, 130.0)], "insert-falls");
        fails([(30.0, 99.0), (12.0, 100.0), (9.0, 130.0)], "most");
        fails([(30.0, 130.0), (20.0, 100.0), (10.0, 130.0)], "search-rises");
        fails([(30.0, 99.0), (28.0, 100.0), (10.0, 130.0)], "both");
    }

    #[test]
    fn a_buffer_that_the_paper_did_not_have_is_not_judged() {
        let only = Rows(rows(Eviction::LowestLevel, GOOD, 30.0));
        assert_eq!(Study::judge(&OpqSize, &only, Device::Ssdsim).unwrap().verdict(), Verdict::NotJudged);
    }
}
