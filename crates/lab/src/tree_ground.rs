//! What an experiment with trees plays on: a volume of its own, and the clock that times it.
//!
//! Invariants:
//! 1. The clock belongs to the volume: see [`crate::stage`].
//! 2. What a tree leaves on a disk is gone when the ground is dropped.

use crate::experiment::Scale;
use crate::failure::{Failure, Result};
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Lapse, Simulated, Wall};
use crate::row::Row;
use flash::{FtlOptions, Profile, Ssd};
use psync::{Disk, DiskOptions, Volume};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trees::Index;

/// See the module.
pub(crate) struct TreeGround<C> {
    pub volume: Arc<dyn Volume>,
    now: Box<dyn Fn() -> Duration>,
    rest: Box<dyn Fn()>,
    _dir: Option<tempfile::TempDir>,
    clock: PhantomData<C>,
}

/// Deepest queue that a tree asks for.
const PIO_MAX: usize = 256;

impl TreeGround<Simulated> {
    /// A new simulated drive with page mapping.
    pub fn on_ssdsim(run: u32) -> Result<Self> {
        let wrong = |error| Failure::CannotRun(format!("the simulated drive: {error}"));
        let ssd = Ssd::new(Profile::ssdsim(), FtlOptions::default(), u64::from(run)).map_err(wrong)?;
        let ssd = Arc::new(ssd.with_pio_max(PIO_MAX));
        let (clock, drain) = (Arc::clone(&ssd), Arc::clone(&ssd));
        Ok(Self {
            volume: ssd,
            now: Box::new(move || clock.now()),
            rest: Box::new(move || drain.drain()),
            _dir: None,
            clock: PhantomData,
        })
    }
}

impl TreeGround<Wall> {
    /// A new directory inside `dir`.
    pub fn on_disk(dir: &Path) -> Result<Self> {
        let scratch = tempfile::Builder::new()
            .prefix("sapwood-lab.tree-")
            .tempdir_in(dir)
            .map_err(|error| Failure::at("make a directory in", dir, error))?;
        let options = DiskOptions { pio_max: PIO_MAX, ..DiskOptions::default() };
        let volume = Arc::new(Disk::open(scratch.path(), options)?);
        let began = Instant::now();
        Ok(Self {
            volume,
            now: Box::new(move || began.elapsed()),
            rest: Box::new(|| ()),
            _dir: Some(scratch),
            clock: PhantomData,
        })
    }
}

impl<C: Clock> TreeGround<C> {
    /// Time since some moment before it was made.
    pub fn now(&self) -> Duration {
        (self.now)()
    }

    /// How long `work` takes.
    pub fn time<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Lapse<C>)> {
        // What a drive does in the background for the work before is not to be counted here.
        (self.rest)();
        let began = (self.now)();
        let result = work()?;
        Ok((result, Lapse::from((self.now)() - began)))
    }

    /// Does `operations` operations and writes down what they took: time, bytes moved, psync calls, requests.
    pub fn row(
        &self,
        series: &str,
        at: f64,
        run: u32,
        operations: u64,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<Row<C>> {
        let before = self.volume.counters();
        let ((), elapsed_us) = self.time(work)?;
        let did = self.volume.counters() - before;
        let counts =
            [("psyncs", did.read_sets + did.write_sets), ("reads", did.reads), ("writes", did.writes)];
        Ok(Row {
            series: series.to_owned(),
            at,
            run,
            requests: operations,
            bytes: did.bytes_read + did.bytes_written,
            elapsed_us,
            counts: counts.into_iter().map(|(name, count)| (name.to_owned(), count as f64)).collect(),
        })
    }

    /// A tree with the records `0..count` (keys twice as large, so that half of the keys are free), nodes filled as in a
    /// steady state.
    pub fn grow<T: Index<Ground = Arc<dyn Volume>>>(&self, options: &T::Options, count: u64) -> Result<T> {
        let mut records = (0..count).map(|index| (2 * index, index));
        Ok(T::bulk_load(Arc::clone(&self.volume), options, FILL, &mut records)?)
    }
}

/// How full the nodes are that a bulk load makes: the paper does not say; this is where random insertion ends.
pub(crate) const FILL: f64 = 0.69;

/// Sizes of the trees of the PIO B-tree's experiments, which keep the ratio of memory to index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeSize {
    /// N: records.
    pub records: u64,
    /// M: pages of 4 KiB.
    pub memory_pages: usize,
    /// Operations a point.
    pub operations: u64,
}

impl TreeSize {
    /// As the scale has it: 16 MB for 10^9 records in full.
    pub fn of(scale: Scale) -> Self {
        match scale {
            Scale::Trial => Self { records: 60_000, memory_pages: 8, operations: 300 },
            Scale::Ci => Self { records: 2_000_000, memory_pages: 24, operations: 10_000 },
            Scale::Std => Self { records: 100_000_000, memory_pages: 400, operations: 200_000 },
            Scale::Full => Self { records: 1_000_000_000, memory_pages: 4096, operations: 5_000_000 },
        }
    }

    /// What parameters say of it.
    pub fn told(self) -> String {
        format!("{} records, {} pages of 4 KiB memory", self.records, self.memory_pages)
    }
}

/// A stream of uniform keys.
pub(crate) struct UniformKeys {
    state: rand::rngs::StdRng,
    keys: u64,
}

impl UniformKeys {
    /// Of a tree of so many records, the free keys between them included.
    pub fn new(seed: u64, records: u64) -> Self {
        use rand::SeedableRng;
        Self { state: rand::rngs::StdRng::seed_from_u64(seed), keys: 2 * records }
    }

    /// Any key.
    pub fn next(&mut self) -> u64 {
        use rand::Rng;
        self.state.random_range(0..self.keys)
    }

    /// One that the bulk load has put there.
    pub fn present(&mut self) -> u64 {
        self.next() & !1
    }

    /// Between 0 and 1.
    pub fn chance(&mut self) -> f64 {
        use rand::Rng;
        self.state.random()
    }
}

impl Laboratory {
    /// A place for a tree on the disk.
    pub(crate) fn trees_on_disk(&self) -> Result<TreeGround<Wall>> {
        TreeGround::on_disk(self.dir())
    }
}

impl From<trees::Error> for Failure {
    fn from(error: trees::Error) -> Self {
        match error {
            trees::Error::Invalid(what) => Failure::CannotRun(what),
            other => Failure::Io(other.to_string()),
        }
    }
}
