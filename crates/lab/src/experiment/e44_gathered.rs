//! E44: point searches of many threads, gathered into one MPSearch.

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::failure::{Failure, Result};
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Lapse, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::tree_ground::{FILL, TreeGround, TreeSize, UniformKeys, drive};
use crate::usage::{SWITCHES, Usage};
use flash::{Batch, RequestKind, Ssd};
use mpsearch::Gather;
use psync::Volume;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use trees::{BTree, BTreeOptions, Index, LogMode, LsmTree, LsmTreeOptions, PioOptions, PioTree};

pub(super) struct Gathered;

static CARD: Card = Card {
    number: 44,
    name: "gathered",
    title: "Point searches of many threads, gathered into one MPSearch",
    source: "ours, on Roh, Park, Shin and Lee, IEEE Data Eng. Bull. 2014, sections 3 and 5",
    question: "A server has many threads, each with one key. Each may search by itself, so that the device sees as many requests as \
               there are threads; or whoever finds no search under way takes the keys of all that wait down the tree in one MPSearch. \
               The second reads each node once and calls the system once for many, but all wait for the slowest read of a level. \
               Which is faster, by the number of threads?",
    reported: "Not told: the paper's future work is to process many search requests faster in a single thread.",
    absent: &[(Device::Nand, "the trees work on a block device")],
    causes: CAUSES,
};

/// Of all that are slower gathered.
const SLOWEST: &str = "sets end together, and what ended early waits. By Little's law time is lost by fewer reads under way, or by longer ones: of 16 \
    threads by themselves in the B+-tree 16 have a read at the drive, 96 us each; gathered 8.5 have, 122 us each, and 8.5 / 16 × 96 / 122 is \
    the 0.41. A set of 16 reads 9.9 pages at a level, since a thread whose page is in memory, or is another's too, waits without a read \
    (0.62); reads that are answered wait for the last of their set (0.86); and reads that come together queue for the controller and for \
    dies (0.79). The run that could have refuted it: eight sets at a time do not wait for each other, and lose 14 % in the B+-tree instead of \
    59, and nothing with 64 threads. The LSM-tree reads all runs at once: its sets have 14.6 reads under way, but 151 us each, for 23 come \
    together. Pages are not it: 8 to 19 % fewer are read. Nor is it the busiest channel: with 64 and 256 channels for 8 (2026-11-27, a run by \
    hand) gathering is as slow. This clock counts neither processors nor context switches, for which gathering is made";
/// Of sets that overlap more and gain less.
const FULL: &str = "with 64 threads the drive is full, with two sets at a time (60 reads under way) as with eight (81), so that only pages count: smaller \
    sets share fewer of them";
const CAUSES: &[Cause] = &[
    Cause { device: Device::Ssdsim, scale: None, key: "B+-tree-gathered", text: SLOWEST },
    Cause { device: Device::Ssdsim, scale: None, key: "B+-tree-halves", text: SLOWEST },
    Cause { device: Device::Ssdsim, scale: None, key: "PIO B-tree-gathered", text: SLOWEST },
    Cause { device: Device::Ssdsim, scale: None, key: "PIO B-tree-halves", text: SLOWEST },
    Cause { device: Device::Ssdsim, scale: None, key: "LSM-tree-gathered", text: SLOWEST },
    Cause { device: Device::Ssdsim, scale: None, key: "LSM-tree-halves", text: SLOWEST },
    Cause { device: Device::Ssdsim, scale: None, key: "B+-tree-eighths", text: SLOWEST },
    Cause { device: Device::Ssdsim, scale: None, key: "PIO B-tree-eighths", text: SLOWEST },
    Cause { device: Device::Ssdsim, scale: None, key: "LSM-tree-eighths", text: FULL },
    Cause { device: Device::Ssdsim, scale: None, key: "LSM-tree-overlap", text: FULL },
];

const TREES: [&str; 3] = ["B+-tree", "PIO B-tree", "LSM-tree"];
/// Searches under way at a time; none if each thread searches by itself.
const WAYS: [(&str, Option<usize>); 4] = [
    ("each by itself", None),
    ("gathered", Some(1)),
    ("gathered by halves", Some(2)),
    ("gathered by eighths", Some(8)),
];
/// Nanoseconds that all reads together took, each from its admission to its answer: what the simulated drive tells.
const UNDER_WAY: &str = "read_nanos";
/// PioMax: as the paper has it.
const PIO_MAX: usize = 64;

fn threads(scale: Scale) -> Vec<usize> {
    if scale == Scale::Trial { vec![1, 16] } else { vec![1, 4, 16, 64] }
}

fn searches(scale: Scale) -> u64 {
    if scale == Scale::Trial { 200 } else { 8192 }
}

/// As E43.
fn size(scale: Scale) -> TreeSize {
    TreeSize::of(if scale == Scale::Trial { Scale::Trial } else { Scale::Ci })
}

fn series(tree: &str, way: &str) -> String {
    format!("{tree}, {way}")
}

/// Keys that one search may take along: with two under way, none takes all.
fn share(threads: usize, leaders: usize) -> usize {
    threads.div_ceil(leaders)
}

/// How long so many threads take for `count` searches.
trait Ground<C: Clock> {
    fn volume(&self) -> Arc<dyn Volume>;
    fn time(
        &self,
        tree: &(impl Index + Sync),
        threads: usize,
        leaders: Option<usize>,
        keys: &mut UniformKeys,
        count: u64,
    ) -> Result<Duration>;

    /// How long all reads took together since the last call, if the ground tells.
    fn reads_took(&self) -> Option<Duration> {
        None
    }
}

impl Ground<Wall> for TreeGround<Wall> {
    fn volume(&self) -> Arc<dyn Volume> {
        Arc::clone(&self.volume)
    }

    fn time(
        &self,
        tree: &(impl Index + Sync),
        threads: usize,
        leaders: Option<usize>,
        keys: &mut UniformKeys,
        count: u64,
    ) -> Result<Duration> {
        let keys: Vec<u64> = (0..count).map(|_| keys.present()).collect();
        let next = AtomicU64::new(0);
        let gather = leaders.map(|leaders| Gather::new(leaders, share(threads, leaders)));
        let search_many = |keys: &[u64]| match tree.search_many(keys) {
            Ok(values) => values.into_iter().map(Ok).collect(),
            Err(error) => keys.iter().map(|_| Err(error.to_string())).collect(),
        };
        let work = || -> Result<()> {
            while let Some(key) = keys.get(next.fetch_add(1, Relaxed) as usize) {
                let found = match &gather {
                    Some(gather) => gather.ask(*key, search_many).map_err(Failure::Io)?,
                    None => tree.search(*key)?,
                };
                if found.is_none() {
                    return Err(Failure::CannotRun(format!("key {key} is not found")));
                }
            }
            Ok(())
        };
        let began = Instant::now();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| match worker.join() {
                Ok(ended) => ended,
                Err(_) => Err(Failure::CannotRun("a thread that searched has panicked".to_owned())),
            })
        })?;
        Ok(began.elapsed())
    }
}

/// On a simulated drive one thread plays all callers: see [`crate::callers`]. A search is carried out as a whole when it begins,
/// while time stands still, and its callers wait for what it asked of the drive, set by set.
impl Ground<Simulated> for Ssd {
    fn volume(&self) -> Arc<dyn Volume> {
        Arc::new(self.clone())
    }

    fn time(
        &self,
        tree: &(impl Index + Sync),
        threads: usize,
        leaders: Option<usize>,
        keys: &mut UniformKeys,
        count: u64,
    ) -> Result<Duration> {
        self.drain();
        let began = self.now();
        // Callers that are not part of a search, searches under way by their ticket, and keys that are left.
        let (mut idle, mut left) = (threads, count);
        let mut under_way: HashMap<u64, (usize, VecDeque<Batch>)> = HashMap::new();
        let (most, at_a_time) = match leaders {
            Some(leaders) => (leaders, share(threads, leaders)),
            None => (threads, 1),
        };
        loop {
            while idle > 0 && left > 0 && under_way.len() < most {
                let set: Vec<u64> =
                    (0..left.min(at_a_time.min(idle) as u64)).map(|_| keys.present()).collect();
                left -= set.len() as u64;
                let (found, batches) = self.deferring(|| match (leaders, set.first()) {
                    (None, Some(key)) => tree.search(*key).map(|found| vec![found]),
                    _ => tree.search_many(&set),
                });
                if found?.iter().any(Option::is_none) {
                    return Err(Failure::CannotRun("a key is not found".to_owned()));
                }
                let mut batches = VecDeque::from(batches);
                // A search that found all in memory takes no time.
                if let Some(first) = batches.pop_front() {
                    idle -= set.len();
                    under_way.insert(self.submit(first), (set.len(), batches));
                }
            }
            let Some(ticket) = self.next_answered() else { break };
            let Some((callers, mut batches)) = under_way.remove(&ticket) else { continue };
            match batches.pop_front() {
                Some(next) => {
                    under_way.insert(self.submit(next), (callers, batches));
                }
                None => idle += callers,
            }
        }
        Ok(self.now() - began)
    }

    fn reads_took(&self) -> Option<Duration> {
        let reads = self.latency(RequestKind::Read);
        self.reset_latencies();
        Some(reads.mean.mul_f64(reads.count as f64))
    }
}

fn measure<C: Clock, G: Ground<C>>(
    laboratory: &Laboratory,
    mut ground: impl FnMut(u32) -> Result<G>,
) -> Result<Rows<C>> {
    let (size, frames) = (size(laboratory.scale), size(laboratory.scale).memory_pages);
    laboratory.expect(TREES.len() * WAYS.len() * threads(laboratory.scale).len() * C::RUNS as usize);
    let mut rows = Vec::new();
    for run in 0..C::RUNS {
        let records = || (0..size.records).map(|index| (2 * index, index));
        let place = ground(run)?;
        let options = BTreeOptions { frames, pio_max: PIO_MAX, ..BTreeOptions::default() };
        let tree = BTree::bulk_load(place.volume(), &options, FILL, &mut records())?;
        rows.extend(points(laboratory, &place, &tree, (TREES[0], run))?);
        let place = ground(run)?;
        let options = PioOptions {
            frames: frames - 1,
            queue_pages: 1,
            pio_max: PIO_MAX,
            log: LogMode::Off,
            ..PioOptions::default()
        };
        let tree = PioTree::bulk_load(place.volume(), &options, FILL, &mut records())?;
        rows.extend(points(laboratory, &place, &tree, (TREES[1], run))?);
        let place = ground(run)?;
        let options = LsmTreeOptions {
            memtable_pages: frames / 3,
            frames: frames / 2,
            pio_max: PIO_MAX,
            ..LsmTreeOptions::default()
        };
        let mut tree = LsmTree::bulk_load(place.volume(), &options, FILL, &mut records())?;
        let mut keys = UniformKeys::new(Laboratory::seed(run, 1000), size.records);
        (0..size.records / 10).try_for_each(|index| tree.update(keys.present(), index))?;
        tree.flush()?;
        rows.extend(points(laboratory, &place, &tree, (TREES[2], run))?);
    }
    Ok(Rows(rows))
}

fn points<C: Clock>(
    laboratory: &Laboratory,
    ground: &impl Ground<C>,
    tree: &(impl Index + Sync),
    (name, run): (&str, u32),
) -> Result<Vec<Row<C>>> {
    let (size, count) = (size(laboratory.scale), searches(laboratory.scale));
    let volume = ground.volume();
    let mut rows = Vec::new();
    for (index, many) in threads(laboratory.scale).into_iter().enumerate() {
        for (way, leaders) in WAYS {
            let series = series(name, way);
            laboratory.step(&format!("{series}, {many} threads"))?;
            // The same keys for each way.
            let mut keys = UniformKeys::new(Laboratory::seed(run, index), size.records);
            let (before, usage) = (volume.counters(), Usage::so_far());
            ground.reads_took();
            let took = ground.time(tree, many, leaders, &mut keys, count)?;
            let did = volume.counters() - before;
            let mut counts: std::collections::BTreeMap<String, f64> =
                [("psyncs", did.read_sets as f64), ("reads", did.reads as f64)]
                    .into_iter()
                    .map(|(name, count)| (name.to_owned(), count))
                    .collect();
            if let Some(under_way) = ground.reads_took() {
                counts.insert(UNDER_WAY.to_owned(), under_way.as_nanos() as f64);
            }
            if let Some(usage) = Usage::since(usage).filter(|_| C::IS_WALL) {
                counts.extend(usage.counts());
            }
            let (at, bytes) = (many as f64, did.bytes_read);
            rows.push(Row { series, at, run, requests: count, bytes, elapsed_us: Lapse::from(took), counts });
        }
    }
    Ok(rows)
}

impl Study for Gathered {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        let how = match device {
            Device::Disk => "threads of this process",
            Device::Ssdsim | Device::Nand => {
                "callers who share the drive's virtual time, in which processors and handing over take none"
            }
        };
        vec![
            Parameter::new("index", "not told", format!("{}; trees as in E43", size(scale).told())),
            Parameter::new(
                "threads",
                "not told",
                format!("{:?}, {how}; each has one key at a time", threads(scale)),
            ),
            Parameter::new("searches a point", "not told", format!("{}, uniform", searches(scale))),
            Parameter::new(
                "gathered",
                "not told",
                "one search at a time takes all that wait; by halves: two at a time, each with half of the threads at most; by eighths: \
                 eight, each with an eighth",
            ),
            Parameter::new("PioMax", "64", PIO_MAX.to_string()),
        ]
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        measure(laboratory, |_| laboratory.trees_on_disk())
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        measure(laboratory, drive)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, device: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        for tree in TREES {
            let line = |way: usize| rows.line(&series(tree, WAYS[way].0), Row::latency);
            let by_itself = line(0)?;
            let gains = |way| -> std::result::Result<Vec<(f64, f64)>, Missing> {
                let pairs = by_itself.iter().zip(line(way)?);
                Ok(pairs.map(|((at, alone), (_, gathered))| (*at, alone.over(gathered))).collect())
            };
            let told = |gains: &[(f64, f64)]| {
                gains
                    .iter()
                    .map(|(at, gain)| format!("{} at {at}", number(*gain)))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let (whole, halves, eighths) = (gains(1)?, gains(2)?, gains(3)?);
            judgement.own(
                &format!("{tree}-alone"),
                &format!("{tree}: a single thread loses nothing by gathering (within 5 %)"),
                whole.first().map_or_else(String::new, |gain| number(gain.1)),
                whole.first().is_some_and(|gain| gain.1 >= 0.95),
            );
            for (key, what, gains) in [
                ("gathered", "one at a time", &whole),
                ("halves", "by halves", &halves),
                ("eighths", "by eighths", &eighths),
            ] {
                judgement.own(
                    &format!("{tree}-{key}"),
                    &format!(
                        "{tree}: with the most threads, searches gathered {what} are no slower than each by itself; how many times \
                         as fast by threads"
                    ),
                    told(gains),
                    gains.last().is_some_and(|gain| gain.1 >= 1.0),
                );
            }
            // Both sides of Little's law: requests under way = requests a second times the time of one.
            let little = |way: usize| -> std::result::Result<String, Missing> {
                let line = series(tree, WAYS[way].0);
                let at_a_time =
                    rows.line(&line, |row| row.count(UNDER_WAY) / 1000.0 / row.elapsed_us.number())?;
                let of_one = rows.line(&line, |row| row.count(UNDER_WAY) / 1000.0 / row.count("reads"))?;
                let pairs = at_a_time.iter().zip(&of_one);
                let each = pairs.map(|((at, reads), (_, time))| {
                    format!("{} of {} us at {at}", number(*reads), number(*time))
                });
                Ok(each.collect::<Vec<_>>().join(", "))
            };
            if rows.0.iter().any(|row| row.counts.contains_key(UNDER_WAY)) {
                for (way, (name, _)) in WAYS.iter().enumerate() {
                    judgement.report(
                        &format!("{tree}-under-way-{way}"),
                        &format!(
                            "{tree}, {name}: reads under way on average, and how long each takes, by threads"
                        ),
                        "not told",
                        little(way)?,
                    );
                }
            }
            // If all that gathering costs is that sets wait for their slowest, it costs less the more sets overlap.
            let more = |fewer: &[(f64, f64)], more: &[(f64, f64)]| {
                fewer.iter().zip(more).skip(1).all(|(few, many)| many.1 >= 0.97 * few.1)
            };
            judgement.own(
                &format!("{tree}-overlap"),
                &format!("{tree}: with two threads and more, the more sets overlap, the less is lost (3 % slack): one, two, eight at a time"),
                [&whole, &halves, &eighths].map(|gains| told(gains)).join("; "),
                more(&whole, &halves) && more(&halves, &eighths),
            );
            let each = |way: usize, name: &'static str| {
                rows.line(&series(tree, WAYS[way].0), move |row| row.count(name) / row.requests as f64)
            };
            for (key, what, name) in [
                ("reads", "pages read for a search", "reads"),
                ("switches", "context switches for a search", SWITCHES),
            ] {
                if name == SWITCHES && device != Device::Disk {
                    continue;
                }
                let (alone, gathered) = (each(0, name)?, each(1, name)?);
                let last = |line: &[(f64, f64)]| line.last().map_or(f64::NAN, |last| last.1);
                judgement.own(
                    &format!("{tree}-{key}"),
                    &format!("{tree}: with the most threads, gathering saves {what}; each by itself, and gathered, by threads"),
                    format!("{}; {}", told(&alone), told(&gathered)),
                    last(&gathered) < last(&alone),
                );
            }
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        let mut lines = Line::all(rows, 1.0, Row::latency)?;
        lines.retain(|line| !line.name.ends_with("halves") && !line.name.ends_with("eighths"));
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis { label: "threads".into(), scale: Scaling::Doubling },
            y: Axis { label: "time for a search, all threads together, us".into(), scale: Scaling::Doubling },
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

    /// Times by threads: each by itself, gathered, by halves; and switches for a search.
    fn rows(ways: [[f64; 2]; 4], switches: [f64; 4]) -> Rows<Simulated> {
        let lines = TREES.into_iter().flat_map(|tree| {
            WAYS.into_iter()
                .zip(ways)
                .zip(switches)
                .map(move |(((way, _), times), each)| (series(tree, way), times, each))
        });
        let points = lines.flat_map(|(name, times, each)| {
            [1.0, 64.0].into_iter().zip(times).map(move |(at, time)| {
                let mut row = row(&name, at, 0, time);
                let all = each * row.requests as f64;
                row.counts.extend([(SWITCHES.to_owned(), all), ("reads".to_owned(), all)]);
                row
            })
        });
        Rows(points.collect())
    }

    #[test]
    fn gathering_that_pays_and_that_does_not() {
        let judge = |ways, each| Study::judge(&Gathered, &rows(ways, each), Device::Disk).unwrap();
        let (good, less) =
            ([[100.0, 20.0], [101.0, 15.0], [101.0, 14.0], [101.0, 13.0]], [2.0, 1.0, 1.0, 1.0]);
        for tree in TREES {
            let outcome = |judged: &Judgement, key: &str| judged.outcome(&format!("{tree}-{key}"));
            let judged = judge(good, less);
            for key in ["alone", "gathered", "halves", "eighths", "overlap", "reads", "switches"] {
                assert_eq!(outcome(&judged, key), Some(Outcome::Holds), "{key}");
            }
            for (ways, key) in [
                ([[100.0, 20.0], [107.0, 15.0], [101.0, 14.0], [101.0, 13.0]], "alone"),
                ([[100.0, 20.0], [101.0, 21.0], [101.0, 14.0], [101.0, 13.0]], "gathered"),
                ([[100.0, 20.0], [101.0, 15.0], [101.0, 21.0], [101.0, 13.0]], "halves"),
                ([[100.0, 20.0], [101.0, 15.0], [101.0, 14.0], [101.0, 21.0]], "eighths"),
                ([[100.0, 20.0], [101.0, 15.0], [101.0, 16.0], [101.0, 13.0]], "overlap"),
                ([[100.0, 20.0], [101.0, 15.0], [101.0, 14.0], [101.0, 15.0]], "overlap"),
            ] {
                assert_eq!(outcome(&judge(ways, less), key), Some(Outcome::Fails), "{key}");
            }
            let more = judge(good, [1.0; 4]);
            assert_eq!(outcome(&more, "reads"), Some(Outcome::Fails));
            assert_eq!(outcome(&more, "switches"), Some(Outcome::Fails));
        }
    }
}
