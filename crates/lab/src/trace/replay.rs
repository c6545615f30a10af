//! Replays a trace on trees, one for each of its indexes, and says what each kind of operation took.
//!
//! Invariants:
//! 1. What comes in as [`Op::Load`] is there before the clock runs.
//! 2. Each operation is timed by itself, by the clock of the ground; what a tree does for many operations at once counts for
//!    the one that set it off. What waits in memory at the end is brought to the device as a kind of its own.

use super::{Op, Step};
use crate::failure::{Failure, Result};
use crate::named_volume::NamedVolume;
use crate::quantity::{Clock, Lapse};
use crate::row::Row;
use crate::tree_ground::{FILL, TreeGround};
use psync::{Counters, Volume};
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;
use trees::Index;

/// Records in ascending order of key.
pub(crate) type Records<'a> = &'a mut dyn Iterator<Item = (u64, u64)>;

/// A tree of any kind.
type Planted = trees::Result<Box<dyn Index>>;

/// Makes the tree of an index from its records.
pub(crate) type Plant<'a> = &'a dyn Fn(u8, Arc<dyn Volume>, Records<'_>) -> Planted;

/// Trees of a kind, with the options that an index's number gives.
pub(crate) fn plant<T: Index<Ground = Arc<dyn Volume>> + 'static>(
    options: impl Fn(u8) -> T::Options,
) -> impl Fn(u8, Arc<dyn Volume>, Records<'_>) -> Planted {
    move |tree, volume, records| Ok(Box::new(T::bulk_load(volume, &options(tree), FILL, records)?))
}

/// The trees of a trace, by index.
pub(crate) struct Forest {
    trees: BTreeMap<u8, Box<dyn Index>>,
}

/// What operations of a kind took together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    pub operations: u64,
    time: Duration,
    /// What the device did.
    device: Counters,
    /// Searches that found something, and records that ranges gave.
    pub found: u64,
    /// Nodes that were found in memory, and nodes that were read. Only counted if asked for.
    pub hits: u64,
    pub read: u64,
}

impl Taken {
    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self {
            operations: self.operations + other.operations,
            time: self.time + other.time,
            device: sum(self.device, other.device),
            found: self.found + other.found,
            hits: self.hits + other.hits,
            read: self.read + other.read,
        }
    }

    /// As a row.
    pub fn row<C: Clock>(&self, series: &str, at: f64, run: u32) -> Row<C> {
        let device = self.device;
        let counts = [
            ("psyncs", device.read_sets + device.write_sets),
            ("reads", device.reads),
            ("writes", device.writes),
            ("found", self.found),
            ("node_hits", self.hits),
            ("node_reads", self.read),
        ];
        Row {
            series: series.to_owned(),
            at,
            run,
            requests: self.operations,
            bytes: device.bytes_read + device.bytes_written,
            elapsed_us: self.elapsed(),
            counts: counts.into_iter().map(|(name, count)| (name.to_owned(), count as f64)).collect(),
        }
    }

    /// How long.
    pub fn elapsed<C: Clock>(&self) -> Lapse<C> {
        Lapse::from(self.time)
    }

    /// Requests to the device.
    pub fn requests(&self) -> (u64, u64) {
        (self.device.reads, self.device.writes)
    }
}

fn sum(one: Counters, two: Counters) -> Counters {
    Counters {
        read_sets: one.read_sets + two.read_sets,
        reads: one.reads + two.reads,
        bytes_read: one.bytes_read + two.bytes_read,
        write_sets: one.write_sets + two.write_sets,
        writes: one.writes + two.writes,
        bytes_written: one.bytes_written + two.bytes_written,
        syncs: one.syncs + two.syncs,
        stalls: one.stalls + two.stalls,
        longest_stall_ms: one.longest_stall_ms.max(two.longest_stall_ms),
        timeouts: one.timeouts + two.timeouts,
    }
}

/// What a replay took, by kind of operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replayed {
    kinds: BTreeMap<Op, Taken>,
    /// To bring what waited at the end to the device.
    pub flush: Taken,
}

impl Replayed {
    /// Of a kind.
    pub fn of(&self, op: Op) -> Taken {
        self.kinds.get(&op).copied().unwrap_or_default()
    }

    /// Of all operations, the flush at the end included.
    pub fn total(&self) -> Taken {
        self.kinds.values().fold(self.flush, |sum, taken| sum.and(*taken))
    }

    /// A row for each kind, named after it.
    pub fn rows<C: Clock>(&self, series: &str, at: f64, run: u32) -> Vec<Row<C>> {
        let kinds =
            self.kinds.iter().map(|(op, taken)| taken.row(&format!("{series}, {}", op.name()), at, run));
        kinds.chain([self.total().row(&format!("{series}, total"), at, run)]).collect()
    }
}

impl Forest {
    /// Plants a tree for each index that loads come for; they are the first steps.
    pub fn grow<C: Clock>(
        ground: &TreeGround<C>,
        plant: Plant<'_>,
        steps: &mut Peekable<impl Iterator<Item = Result<Step>>>,
    ) -> Result<Self> {
        let mut forest = Self { trees: BTreeMap::new() };
        while let Some(Ok(Step { tree, op: Op::Load, .. })) = steps.peek() {
            let tree = *tree;
            let is_own =
                |step: &Result<Step>| matches!(step, Ok(step) if step.op == Op::Load && step.tree == tree);
            let mut records = std::iter::from_fn(|| steps.next_if(is_own))
                .filter_map(|step| step.ok().map(|step| (step.key, step.value)));
            forest.plant(ground, plant, tree, &mut records)?;
        }
        Ok(forest)
    }

    /// Plants the tree of an index.
    pub fn plant<C: Clock>(
        &mut self,
        ground: &TreeGround<C>,
        plant: Plant<'_>,
        tree: u8,
        records: Records<'_>,
    ) -> Result<()> {
        let volume = Arc::new(NamedVolume::new(Arc::clone(&ground.volume), format!("index-{tree}-")));
        self.trees.insert(tree, plant(tree, volume, records)?);
        Ok(())
    }

    /// No tree yet.
    pub fn bare() -> Self {
        Self { trees: BTreeMap::new() }
    }

    #[cfg(test)]
    fn trees(&self) -> impl Iterator<Item = &dyn Index> {
        self.trees.values().map(|tree| &**tree)
    }

    /// Does all steps. An index without a tree gets an empty one when it is first named. `watched`: nodes in memory and nodes
    /// read are counted for each kind, which takes time on the host.
    pub fn replay<C: Clock>(
        &mut self,
        ground: &TreeGround<C>,
        plant: Plant<'_>,
        steps: impl Iterator<Item = Result<Step>>,
        watched: bool,
    ) -> Result<Replayed> {
        let mut replayed = Replayed::default();
        ground.rest();
        let mut device = ground.volume.counters();
        let (mut began, mut asked) = (ground.now(), 0_u64);
        for step in steps {
            let Step { tree: number, op, key, value } = step?;
            if op == Op::Load {
                return Err(Failure::CannotRun(format!("key {key} is loaded after the trace has begun")));
            }
            asked += 1;
            if asked.is_multiple_of(1 << 14) && crate::interrupt::pressed() {
                return Err(Failure::Interrupted);
            }
            if !self.trees.contains_key(&number) {
                self.plant(ground, plant, number, &mut std::iter::empty())?;
                (device, began) = (ground.volume.counters(), ground.now());
            }
            let Some(tree) = self.trees.get_mut(&number) else { continue };
            let nodes = watched.then(|| tree.stats());
            if C::IS_WALL {
                // What the host does between two operations is no part of them.
                began = ground.now();
            }
            let found = match op {
                Op::Search => u64::from(tree.search(key)?.is_some()),
                Op::Range => tree.range(key..value)?.len() as u64,
                Op::Insert => tree.insert(key, value).map(|()| 0)?,
                Op::Update => tree.update(key, value).map(|()| 0)?,
                Op::Delete | Op::Load => tree.delete(key).map(|()| 0)?,
            };
            let ended = ground.now();
            let taken = replayed.kinds.entry(op).or_default();
            taken.operations += 1;
            taken.found += found;
            taken.time += ended - began;
            if let Some(before) = nodes {
                let after = tree.stats();
                taken.hits += after.hits - before.hits;
                taken.read += after.pages_read - before.pages_read;
            }
            began = ended;
            let now = ground.volume.counters();
            taken.device = sum(taken.device, now - device);
            device = now;
        }
        began = ground.now();
        self.trees.values_mut().try_for_each(|tree| tree.flush())?;
        replayed.flush = Taken {
            time: ground.now() - began,
            device: ground.volume.counters() - device,
            ..Taken::default()
        };
        Ok(replayed)
    }
}

/// `share` of `whole` pages for each of several indexes by their size: at least one each, and as many as there are in all
/// unless that is less than one each.
pub(crate) fn divide(pages: usize, sizes: &[u64]) -> Vec<usize> {
    let whole: u64 = sizes.iter().sum::<u64>().max(1);
    let exact = |size: u64| pages as f64 * size as f64 / whole as f64;
    let mut parts: Vec<usize> = sizes.iter().map(|size| (exact(*size) as usize).max(1)).collect();
    // What is missing goes where most is missing; what is too much comes from where most is.
    while parts.iter().sum::<usize>() < pages {
        let missing = |at: usize| exact(sizes[at]) - parts[at] as f64;
        let Some(at) = (0..parts.len()).max_by(|one, two| missing(*one).total_cmp(&missing(*two))) else {
            break;
        };
        parts[at] += 1;
    }
    while parts.iter().sum::<usize>() > pages {
        let Some(most) = parts.iter_mut().filter(|part| **part > 1).max() else { break };
        *most -= 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::{Quantity, Simulated};
    use trees::{BTree, BTreeOptions, PioOptions, PioTree};

    #[test]
    fn pages_are_divided_by_size_and_everyone_has_one() {
        assert_eq!(divide(100, &[1, 10, 300, 300, 389]), [1, 1, 30, 30, 38]);
        assert_eq!(divide(8, &[1; 8]), [1; 8]);
        assert_eq!(divide(3, &[1; 8]), [1; 8]);
        assert_eq!(divide(10, &[0, 0]), [5, 5]);
        for pages in 3..200 {
            assert_eq!(divide(pages, &[7, 100_000, 33_333]).iter().sum::<usize>(), pages);
        }
    }

    fn steps() -> Vec<Result<Step>> {
        let mut steps: Vec<Step> = Vec::new();
        for tree in [0, 3] {
            steps.extend((0..2000).map(|key| Step::new(tree, Op::Load, 2 * key, key)));
        }
        for key in 0..500 {
            steps.push(Step::new(0, Op::Search, 2 * key, 0));
            steps.push(Step::new(3, Op::Insert, 2 * key + 1, 5));
            steps.push(Step::new(3, Op::Delete, 2 * key, 0));
            steps.push(Step::new(7, Op::Update, key, 0));
        }
        steps.push(Step::new(3, Op::Range, 0, 20));
        steps.push(Step::new(0, Op::Range, 0, 20));
        steps.into_iter().map(Ok).collect()
    }

    fn replayed(plant: Plant<'_>) -> (Replayed, Vec<u64>) {
        let ground = TreeGround::<Simulated>::on_ssdsim(0).unwrap();
        let mut steps = steps().into_iter().peekable();
        let mut forest = Forest::grow(&ground, plant, &mut steps).unwrap();
        let replayed = forest.replay(&ground, plant, steps, true).unwrap();
        let records = forest.trees().map(|tree| tree.check().unwrap().records).collect();
        (replayed, records)
    }

    #[test]
    fn a_trace_does_the_same_to_every_tree_and_each_kind_is_timed() {
        let btree = plant::<BTree>(|_| BTreeOptions { frames: 2, ..BTreeOptions::default() });
        let pio = plant::<PioTree>(|_| PioOptions {
            frames: 2,
            queue_pages: 1,
            segments: 1,
            ..PioOptions::default()
        });
        for (name, plant) in [("btree", &btree as Plant<'_>), ("pio", &pio)] {
            let (replayed, records) = replayed(plant);
            assert_eq!(records, [2000, 2000, 500], "{name}");
            let of = |op| replayed.of(op);
            assert_eq!((of(Op::Search).operations, of(Op::Search).found), (500, 500), "{name}");
            assert_eq!((of(Op::Range).operations, of(Op::Range).found), (2, 20), "{name}");
            assert_eq!((of(Op::Insert).operations, of(Op::Update).operations), (500, 500));
            assert_eq!(replayed.total().operations, 2002);
            let search = of(Op::Search);
            assert!(search.read > 0 && search.requests().0 == search.read, "{name}: {search:?}");
            assert!(search.elapsed::<Simulated>().number() > 40.0 * search.read as f64, "{name}: {search:?}");
            assert!(replayed.flush.requests().1 > 0, "{name}: {replayed:?}");
            let rows = replayed.rows::<Simulated>("tree", 1.0, 0);
            assert_eq!(
                rows.last().map(|row| (row.series.as_str(), row.requests)),
                Some(("tree, total", 2002))
            );
        }
    }

    #[test]
    fn a_load_in_the_midst_and_an_error_of_the_source_end_it() {
        let ground = TreeGround::<Simulated>::on_ssdsim(0).unwrap();
        let btree = plant::<BTree>(|_| BTreeOptions::default());
        let replay = |steps: Vec<Result<Step>>| {
            Forest::bare()
                .replay(&ground, &btree, steps.into_iter(), false)
                .map(|_| ())
                .unwrap_err()
                .to_string()
        };
        let told = replay(vec![Ok(Step::new(0, Op::Insert, 1, 1)), Ok(Step::new(0, Op::Load, 1, 1))]);
        assert!(told.contains("loaded after"), "{told}");
        let told = replay(vec![Err(Failure::CannotRun("line 7".into()))]);
        assert_eq!(told, "line 7");
    }
}
