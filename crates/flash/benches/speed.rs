//! Simulated page operations a second of CPU time: `cargo bench -p flash --bench speed`. Each line is one kind of work on
//! the default drive, with everything that belongs to it: files, translation layer, NAND and clock; first with all
//! bytes kept, then with tags alone, so that moving bytes can be told from simulating.
//! Page operations are reads and programs of flash pages, collection's included.

use flash::{Content, FtlOptions, Geometry, Profile, Rules, Ssd};
use psync::{Access, AlignedBuffer, Device, FileId, Read, Volume, Write};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::hint::black_box;
use std::time::Duration;

const DEPTH: usize = 64;
const PAGE: u64 = 4096;

/// CPU time of this thread: what else the machine does is not counted.
#[cfg(unix)]
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Real time where there is no clock for CPU time.
#[cfg(not(unix))]
fn cpu_time() -> Duration {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

struct Bench {
    drive: Ssd,
    file: FileId,
    pages: u64,
    rng: SmallRng,
    buffers: Vec<AlignedBuffer>,
}

impl Bench {
    /// A drive of a quarter of the default's size (so that it fits in memory with room to spare), full.
    fn new(content: Content) -> psync::Result<Self> {
        let profile = Profile::ssdsim();
        let geometry = Geometry { blocks_per_plane: 32, ..profile.geometry };
        let rules = Rules { content, ..profile.rules };
        let drive = Ssd::new(Profile { geometry, rules, ..profile }, FtlOptions::default(), 1)
            .map_err(|error| psync::Error::Invalid(error.to_string()))?;
        let file = drive.open("data", Access { write: true, create: true, ..Access::default() })?;
        let pages = drive.capacity() / PAGE / DEPTH as u64 * DEPTH as u64;
        let buffers = (0..DEPTH).map(|_| AlignedBuffer::new(PAGE as usize)).collect();
        Ok(Self { drive, file, pages, rng: SmallRng::seed_from_u64(1), buffers })
    }

    fn write(&self, first: impl Fn(usize) -> u64) -> psync::Result<()> {
        let file = self.file;
        let set: Vec<_> = self
            .buffers
            .iter()
            .enumerate()
            .map(|(number, data)| Write { file, offset: first(number) * PAGE, data })
            .collect();
        self.drive.write(&set)
    }

    /// Different pages, one in each of as many equal parts of the file.
    fn places(&mut self) -> [u64; DEPTH] {
        let part = self.pages / DEPTH as u64;
        std::array::from_fn(|number| number as u64 * part + self.rng.random_range(0..part))
    }

    fn read(&mut self) -> psync::Result<()> {
        let places = self.places();
        let file = self.file;
        let mut set: Vec<_> = self
            .buffers
            .iter_mut()
            .zip(places)
            .map(|(buffer, page)| Read { file, offset: page * PAGE, buffer })
            .collect();
        self.drive.read(&mut set)?;
        black_box(&self.buffers);
        Ok(())
    }

    fn report(&mut self, what: &str, work: impl FnOnce(&mut Self) -> psync::Result<()>) -> psync::Result<()> {
        let drive = self.drive.clone();
        let (counters, now, began) = (drive.nand_counters(), drive.now(), cpu_time());
        work(self)?;
        let (after, took) = (drive.nand_counters(), cpu_time() - began);
        let operations = after.reads + after.programs - counters.reads - counters.programs;
        let rate = operations as f64 / took.as_secs_f64() / 1e6;
        let passed: Duration = drive.now() - now;
        println!(
            "{what:<44} {rate:>6.2} M page operations/s ({operations} in {took:.2?}; virtual {passed:.2?})"
        );
        Ok(())
    }
}

fn run(content: Content) -> psync::Result<()> {
    println!("{content:?} content");
    let mut bench = Bench::new(content)?;
    let sets = bench.pages / DEPTH as u64;
    for what in ["sequential writes, memory touched first", "sequential overwrites"] {
        bench.report(what, |bench| {
            (0..sets).try_for_each(|set| bench.write(|number| set * DEPTH as u64 + number as u64))
        })?;
    }
    bench.report("random overwrites of a full drive", |bench| {
        (0..3 * sets).try_for_each(|_| {
            let places = bench.places();
            bench.write(|number| places[number])
        })
    })?;
    bench.report("random reads", |bench| (0..3 * sets).try_for_each(|_| bench.read()))?;
    println!("write amplification in all: {:.2}", bench.drive.flash_counters().write_amplification());
    Ok(())
}

fn main() -> psync::Result<()> {
    run(Content::Full)?;
    run(Content::Tags)
}
