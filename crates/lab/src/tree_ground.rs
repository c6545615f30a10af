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
use flash::{FtlOptions, Profile, ReadPriority, Ssd, X25_E_OVER_PROVISION};
use psync::{Access, Device as _, Disk, DiskOptions, Volume, Write};
use rand::rngs::StdRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};
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
pub(crate) fn larger_drive(run: u32, times: u32) -> Result<Ssd> {
    let wrong = |error| Failure::CannotRun(format!("the simulated drive: {error}"));
    let mut profile = Profile::ssdsim();
    profile.geometry.blocks_per_plane *= times;
    let ssd = Ssd::new(profile, FtlOptions::default(), u64::from(run)).map_err(wrong)?;
    Ok(ssd.with_pio_max(PIO_MAX))
}

/// One with so many times the channels, and a controller that is as many times as fast: what threads wait for alone stays.
pub(crate) fn wide_drive(run: u32, times: u32) -> Result<Ssd> {
    let wrong = |error| Failure::CannotRun(format!("the simulated drive: {error}"));
    let mut profile = Profile::ssdsim();
    profile.geometry.channels *= times;
    let timing = &mut profile.timing;
    for time in [&mut timing.controller_read, &mut timing.controller_write, &mut timing.controller_turn] {
        *time /= times;
    }
    timing.host_bytes_per_second *= u64::from(times);
    let ssd = Ssd::new(profile, FtlOptions::default(), u64::from(run)).map_err(wrong)?;
    Ok(ssd.with_pio_max(PIO_MAX))
}

/// What a drive has gone through before trees come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Past {
    /// Nothing.
    New,
    /// All of it was written, and written again at random places; files that were removed since are still alive for it.
    Used,
    /// Nothing, and its write cache is off.
    Uncached,
    /// As a used one, and its reads have priority.
    UsedReadsFirst(ReadPriority),
}

impl Past {
    fn is_used(self) -> bool {
        matches!(self, Past::Used | Past::UsedReadsFirst(_))
    }
}

/// Blocks of a die of the fitted X25-E: 1 of 50 of the drive's, 1 of 20 where trees are larger.
pub(crate) fn x25_e_blocks(scale: Scale) -> u32 {
    if scale == Scale::Trial { 24 } else { 64 }
}

const MIB: u64 = 1 << 20;
/// Random writes of one set, and their bytes, that make a drive a used one.
const AGING_SET: usize = 256;
const AGING_BYTES: usize = 4096;

/// Writes all of a drive, and then as many pages of it again at random places; then so many bytes become free for files.
fn wear_in(ssd: &Ssd, room: u64, seed: u64) -> psync::Result<()> {
    let access = Access { write: true, create: true, direct: true, ..Access::default() };
    let capacity = ssd.capacity() / MIB * MIB;
    let chunk = psync::AlignedBuffer::new(MIB as usize);
    let mut files = Vec::new();
    for (name, len) in [("others-data", capacity.saturating_sub(room)), ("removed", room.min(capacity))] {
        let file = ssd.open(name, access)?;
        for offset in (0..len).step_by(MIB as usize) {
            ssd.write(&[Write { file, offset, data: &chunk }])?;
        }
        files.push((file, len));
    }
    let mut rng = StdRng::seed_from_u64(seed);
    let pages = capacity / AGING_BYTES as u64;
    let data = &chunk[..AGING_BYTES];
    for _ in 0..pages / AGING_SET as u64 {
        let places = sample(&mut rng, pages as usize, AGING_SET);
        let write = |place: usize| {
            let offset = (place * AGING_BYTES) as u64;
            match offset.checked_sub(files[0].1) {
                Some(offset) => Write { file: files[1].0, offset, data },
                None => Write { file: files[0].0, offset, data },
            }
        };
        ssd.write(&places.iter().map(write).collect::<Vec<_>>())?;
    }
    files.into_iter().try_for_each(|(file, _)| ssd.close(file))?;
    ssd.remove("removed")?;
    ssd.sync_directory()?;
    ssd.drain();
    Ok(())
}

impl TreeGround<Simulated> {
    /// The X25-E as it is fitted to the AS B-tree's table 1, with so many blocks a die, and room for trees if it was used.
    pub fn on_x25_e(past: Past, (blocks, room): (u32, u64), run: u32) -> Result<Self> {
        let wrong = |error| Failure::CannotRun(format!("the simulated drive: {error}"));
        let mut profile = Profile::x25_e();
        profile.geometry.blocks_per_plane = blocks;
        if past == Past::Uncached {
            profile.timing.write_cache_bytes = 0;
        }
        if let Past::UsedReadsFirst(priority) = past {
            profile.timing.read_priority = priority;
        }
        let options = FtlOptions { over_provision: X25_E_OVER_PROVISION, ..FtlOptions::default() };
        let ssd = Ssd::new(profile, options, u64::from(run)).map_err(wrong)?.with_pio_max(PIO_MAX);
        if past.is_used() {
            wear_in(&ssd, room, u64::from(run))?;
        }
        Ok(Self::over(ssd))
    }

    /// The same in the size that the experiments with one index need: room for 60 % of it.
    pub fn on_small_x25_e(past: Past, scale: Scale, run: u32) -> Result<Self> {
        let blocks = x25_e_blocks(scale);
        Self::on_x25_e(past, (blocks, u64::from(blocks) * 6 * MIB), run)
    }

    /// The S470 as it is fitted to the CB-tree's table 4.
    pub fn on_s470(run: u32) -> Result<Self> {
        let wrong = |error| Failure::CannotRun(format!("the simulated drive: {error}"));
        let ssd = Ssd::new(Profile::s470(), FtlOptions::default(), u64::from(run)).map_err(wrong)?;
        Ok(Self::over(ssd.with_pio_max(PIO_MAX)))
    }

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

    /// Over a drive that is there.
    pub fn over(ssd: Ssd) -> Self {
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

    /// A volume in memory, timed by the wall clock: what is left of a tree's time without a device.
    pub fn in_memory() -> Self {
        let began = Instant::now();
        Self {
            volume: Arc::new(psync::Simulated::new(1).with_pio_max(PIO_MAX)),
            now: Arc::new(move || began.elapsed()),
            rest: Box::new(|| ()),
            tally: Box::new(Vec::new),
            spent: None,
            _dir: None,
            clock: PhantomData,
        }
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

/// Sizes of the trees of the PIO B-tree's experiments. The paper has 16 MB for 10^9 records, which take more than 8 GB: 4.1 pages
/// for 10^6 records, 0.2 % of the index. A record here takes 16 bytes in leaves filled to [`FILL`], 23 in all. By records `full` and
/// `std` have the paper's ratio (4.1 and 4 pages), by bytes a third of it (0.07 %); `ci` has it by bytes (0.2 %), by records three
/// times it (12).
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
    state: StdRng,
    keys: u64,
}

impl UniformKeys {
    /// Of a tree of so many records, the free keys between them included.
    pub fn new(seed: u64, records: u64) -> Self {
        Self { state: StdRng::seed_from_u64(seed), keys: 2 * records }
    }

    /// Any key.
    pub fn next(&mut self) -> u64 {
        self.state.random_range(0..self.keys)
    }

    /// One that the bulk load has put there.
    pub fn present(&mut self) -> u64 {
        self.next() & !1
    }

    /// Between 0 and 1.
    pub fn chance(&mut self) -> f64 {
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
