//! What an experiment with trees plays on: a volume of its own, and the clock that times it.
//!
//! Invariants:
//! 1. The clock belongs to the volume: see [`crate::stage`].
//! 2. What a tree leaves on a disk is gone when the ground is dropped.

use crate::experiment::Scale;
use crate::failure::{Failure, Result};
use crate::laboratory::{Laboratory, Layer};
use crate::quantity::{Clock, Lapse, Simulated, Wall};
use crate::row::Row;
use crate::spent::{Now, Spent};
use flash::ftl::fast::{self, Fast};
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
    now: Now,
    rest: Box<dyn Fn()>,
    /// What a drive counts of itself, ever rising, by name.
    tally: Box<dyn Fn() -> Vec<(&'static str, u64)>>,
    spent: Option<Arc<Spent>>,
    _dir: Option<tempfile::TempDir>,
    clock: PhantomData<C>,
}

/// Deepest queue that a tree asks for.
const PIO_MAX: usize = 256;

/// The drive that trees grow on, new.
pub(crate) fn drive(run: u32) -> Result<Ssd> {
    larger_drive(run, 1)
}

/// One with so many times the blocks.
fn larger_drive(run: u32, times: u32) -> Result<Ssd> {
    let wrong = |error| Failure::CannotRun(format!("the simulated drive: {error}"));
    let mut profile = Profile::ssdsim();
    profile.geometry.blocks_per_plane *= times;
    let ssd = Ssd::new(profile, FtlOptions::default(), u64::from(run)).map_err(wrong)?;
    Ok(ssd.with_pio_max(PIO_MAX))
}

impl TreeGround<Simulated> {
    /// A new simulated drive with page mapping.
    pub fn on_ssdsim(run: u32) -> Result<Self> {
        Self::on_larger_ssdsim(run, 1)
    }

    /// The same with so many times the blocks.
    pub fn on_larger_ssdsim(run: u32, times: u32) -> Result<Self> {
        Ok(Self::over(larger_drive(run, times)?))
    }

    /// A new simulated drive with page mapping of 128 MiB, which a trace writes several times.
    pub fn on_small_ssdsim(run: u32) -> Result<Self> {
        let wrong = |error| Failure::CannotRun(format!("the simulated drive: {error}"));
        let mut profile = Profile::ssdsim();
        profile.geometry.channels = 2;
        profile.geometry.dies_per_channel = 2;
        profile.geometry.planes = 1;
        profile.geometry.blocks_per_plane = 64;
        let ssd = Ssd::new(profile, FtlOptions::default(), u64::from(run)).map_err(wrong)?;
        Ok(Self::over(ssd.with_pio_max(PIO_MAX)))
    }

    /// A new simulated drive with a translation layer.
    pub fn on_drive(layer: Layer, run: u32) -> Result<Self> {
        Ok(Self::over(match layer {
            Layer::PageMap => drive(run)?,
            Layer::Fast => {
                let wrong = |error| Failure::CannotRun(format!("the simulated drive: {error}"));
                Ssd::with_ftl(Profile::ssdsim(), u64::from(run), |flash| {
                    Ok(Box::new(Fast::new(flash, FtlOptions::default(), fast::LOG_BLOCKS)?))
                })
                .map_err(wrong)?
                .with_pio_max(PIO_MAX)
            }
        }))
    }

    fn over(ssd: Ssd) -> Self {
        let ssd = Arc::new(ssd);
        let (clock, drain, counted) = (Arc::clone(&ssd), Arc::clone(&ssd), Arc::clone(&ssd));
        Self {
            volume: ssd,
            now: Arc::new(move || clock.now()),
            rest: Box::new(move || drain.drain()),
            tally: Box::new(move || {
                let counters = counted.flash_counters();
                vec![
                    ("flash_reads", counters.host_reads + counters.internal_reads),
                    ("flash_programs", counters.host_programs + counters.internal_programs),
                    ("flash_copies", counters.internal_programs),
                    ("flash_erases", counters.erases),
                ]
            }),
            spent: None,
            _dir: None,
            clock: PhantomData,
        }
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
            now: Arc::new(move || began.elapsed()),
            rest: Box::new(|| ()),
            tally: Box::new(Vec::new),
            spent: None,
            _dir: Some(scratch),
            clock: PhantomData,
        })
    }
}

impl<C: Clock> TreeGround<C> {
    /// Time since some moment before the ground was first used.
    pub fn now(&self) -> Duration {
        (self.now)()
    }

    /// What a drive still does in the background comes to its end.
    pub fn rest(&self) {
        (self.rest)();
    }

    /// The same with accounts of what the device does: rows tell the time that it spends reading (`read_us`) and writing
    /// (`write_us`), and, of a simulated drive, what its flash does.
    pub fn with_accounts(mut self) -> Self {
        let spent = Spent::over(Arc::clone(&self.volume), Arc::clone(&self.now));
        self.volume = Arc::<Spent>::clone(&spent);
        self.spent = Some(spent);
        self
    }

    /// What a simulated drive's flash has done so far; nothing of a disk.
    pub fn flash_counts(&self) -> Vec<(&'static str, u64)> {
        (self.tally)()
    }

    /// What rows tell besides the psync calls, ever rising.
    fn accounts(&self) -> Vec<(&'static str, f64)> {
        let Some(spent) = &self.spent else { return Vec::new() };
        let (reads, writes) = spent.micros();
        let flash = (self.tally)().into_iter().map(|(name, count)| (name, count as f64));
        [("read_us", reads), ("write_us", writes)].into_iter().chain(flash).collect()
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
        (self.rest)();
        let (before, accounts) = (self.volume.counters(), self.accounts());
        let ((), elapsed_us) = self.time(work)?;
        let did = self.volume.counters() - before;
        let counts =
            [("psyncs", did.read_sets + did.write_sets), ("reads", did.reads), ("writes", did.writes)];
        let counts = counts.into_iter().map(|(name, count)| (name, count as f64));
        let accounts =
            self.accounts().into_iter().zip(accounts).map(|((name, now), (_, then))| (name, now - then));
        Ok(Row {
            series: series.to_owned(),
            at,
            run,
            requests: operations,
            bytes: did.bytes_read + did.bytes_written,
            elapsed_us,
            counts: counts.chain(accounts).map(|(name, count)| (name.to_owned(), count)).collect(),
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
            trees::Error::Device(error) => Self::from(error),
            trees::Error::Full(what) => Failure::NoRoom(what),
            other => Failure::Io(other.to_string()),
        }
    }
}
