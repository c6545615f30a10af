//! The device profile: a micro-benchmark that measures a disk by request size and depth, so that programs (and
//! people) can choose by measurement. (The PIO B-tree tunes itself by such a benchmark: VLDB 2011, section
//! 3.6.) The engine measures none: its costs of the device are constants.
//!
//! It is stored as JSON; the `plot` feature draws it as SVG.
//!
//! Invariant: the scratch file is removed, however a measurement ends.

#[cfg(feature = "plot")]
mod plot;

use psync::{
    Access, AlignedBuffer, Backend, Device, Disk, DiskOptions, Error, FileId, Read, Result, Volume, Write,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// A rate is the median over this many time slices, because shared disks sometimes stall for a tenth of a
/// second.
const SLICES: u32 = 9;

/// What to measure, and for how long.
#[derive(Clone, Debug)]
pub struct ProfileOptions {
    /// The backend to measure with.
    pub backend: Backend,
    /// The size of the scratch file in bytes, at least 16 MiB; best larger than the device's own cache. Limited
    /// to a quarter of the free space.
    pub file_bytes: u64,
    /// The time per point.
    pub time_per_point: Duration,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        Self { backend: Backend::Auto, file_bytes: 1 << 30, time_per_point: Duration::from_millis(120) }
    }
}

/// The progress of a measurement: told at the beginning of each point, and within the long ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileStep {
    /// Points measured so far.
    pub done: usize,
    /// Points in total.
    pub total: usize,
    /// The current measurement.
    pub what: &'static str,
}

/// Latency of single requests of one size, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Request size in bytes.
    pub bytes: usize,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}

/// Rate of random requests at one depth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Request size in bytes.
    pub bytes: usize,
    /// Requests in one psync set.
    pub depth: usize,
    /// Requests per second.
    pub iops: f64,
}

/// The measured performance of a disk. See the module documentation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The version of this format.
    pub format: u32,
    /// The directory that was measured.
    pub directory: String,
    /// The time of the measurement, in seconds since 1970.
    pub measured_at: u64,
    /// The backend that was used.
    pub backend: Backend,
    /// Whether the page cache was bypassed. If not, the figures describe memory rather than the disk.
    pub direct: bool,
    /// The alignment of direct requests, in bytes.
    pub alignment: usize,
    /// Latency of single random reads, by size.
    pub read_latency: Vec<Latency>,
    /// Latency of single random writes, by size.
    pub write_latency: Vec<Latency>,
    /// Rate of random reads, by size and depth.
    pub read_rate: Vec<Rate>,
    /// Rate of random writes, by size and depth.
    pub write_rate: Vec<Rate>,
    /// Bandwidth of sequential reads, in bytes per second.
    pub read_bandwidth: f64,
    /// Bandwidth of sequential writes, in bytes per second.
    pub write_bandwidth: f64,
    /// Latency of a durable 4 KiB write.
    pub sync_latency: Latency,
}

/// The format that this version writes.
const FORMAT: u32 = 1;
const SCRATCH: &str = "psync-profile.scratch";
const SIZES: [usize; 8] = [2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10];
const DEPTHS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
const RATE_SIZES: [usize; 3] = [4 << 10, 8 << 10, 16 << 10];
const PIO_MAX: usize = 128;
const CHUNK: usize = 1 << 20;
const FILE_MIN: u64 = 16 << 20;

/// The scratch file. It is removed on drop, however the measurement ends.
struct Scratch {
    disk: Disk,
    file: FileId,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Systems that refuse to remove open files need it closed first. The file was just opened, so this
        // cannot fail.
        let _ = self.disk.close(self.file);
        match self.disk.remove(SCRATCH) {
            // Another measurement in the same directory has removed it.
            Ok(()) | Err(Error::NotFound { .. }) => {}
            Err(error) => tracing::warn!(%error, "the scratch file of a measurement stays"),
        }
    }
}

struct Bench<'a> {
    scratch: Scratch,
    len: u64,
    /// The request sizes for which latency is measured.
    sizes: Vec<usize>,
    time: Duration,
    rng: StdRng,
    done: usize,
    total: usize,
    step: &'a mut dyn FnMut(ProfileStep),
}

impl Profile {
    /// Measures the disk that holds the directory `dir`, with a scratch file that is removed afterwards. Calls
    /// `step` before each point. Takes about 15 seconds with the default options.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the scratch file would be smaller than 16 MiB, [`Error::Full`], and errors of the
    /// system.
    pub fn measure(dir: &Path, options: &ProfileOptions, step: &mut dyn FnMut(ProfileStep)) -> Result<Self> {
        if options.file_bytes < FILE_MIN {
            return Err(Error::Invalid(format!(
                "a scratch file of {} bytes; at least {FILE_MIN}",
                options.file_bytes
            )));
        }
        let disk_options = DiskOptions {
            backend: options.backend,
            pio_max: PIO_MAX,
            create: false,
            ..DiskOptions::default()
        };
        let disk = Disk::open(dir, disk_options)?;
        let room = free_space(dir).map_or(u64::MAX, |free| free / 4).max(FILE_MIN);
        let access = Access { write: true, create: true, direct: true, ..Access::default() };
        let file = disk.open(SCRATCH, access)?;
        let scratch = Scratch { disk, file };
        let alignment = scratch.disk.limits().alignment;
        // Some devices accept no request shorter than a page.
        let sizes: Vec<_> = SIZES.into_iter().filter(|bytes| bytes.is_multiple_of(alignment)).collect();
        let total = 2 * sizes.len() + 2 * RATE_SIZES.len() * DEPTHS.len() + 4;
        let len = options.file_bytes.min(room) / CHUNK as u64 * CHUNK as u64;
        let time = options.time_per_point;
        let rng = StdRng::seed_from_u64(1);
        Bench { scratch, len, sizes, time, rng, done: 0, total, step }.run(dir)
    }

    /// Encodes the profile as JSON.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a figure cannot be written as JSON.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|error| Error::Invalid(format!("profile: {error}")))
    }

    /// Decodes a profile from JSON.
    ///
    /// # Errors
    /// [`Error::Invalid`], which says what is wrong.
    pub fn from_json(json: &str) -> Result<Self> {
        let profile: Self =
            serde_json::from_str(json).map_err(|error| Error::Invalid(format!("profile: {error}")))?;
        if profile.format != FORMAT {
            return Err(Error::Invalid(format!("profile of format {}, expected {FORMAT}", profile.format)));
        }
        Ok(profile)
    }

    /// Random 4 KiB reads per second at `depth`, interpolated between the measured depths.
    pub fn iops_read(&self, depth: usize) -> f64 {
        interpolate(&self.read_rate, depth)
    }
}

fn interpolate(rates: &[Rate], depth: usize) -> f64 {
    let points: Vec<_> = rates.iter().filter(|rate| rate.bytes == RATE_SIZES[0]).collect();
    let above = points.iter().find(|rate| rate.depth >= depth);
    let below = points.iter().rev().find(|rate| rate.depth <= depth);
    match (below, above) {
        (Some(low), Some(high)) if high.depth > low.depth => {
            let share = (depth - low.depth) as f64 / (high.depth - low.depth) as f64;
            low.iops + share * (high.iops - low.iops)
        }
        (Some(point), _) | (None, Some(point)) => point.iops,
        (None, None) => 0.0,
    }
}

impl Bench<'_> {
    fn next(&mut self, what: &'static str) {
        (self.step)(ProfileStep { done: self.done, total: self.total, what });
        self.done += 1;
    }

    fn run(mut self, dir: &Path) -> Result<Profile> {
        self.next("sequential writes");
        let write_bandwidth = self.sequential(true)?;
        self.next("sequential reads");
        let read_bandwidth = self.sequential(false)?;
        let mut latencies = [Vec::new(), Vec::new()];
        let mut rates = [Vec::new(), Vec::new()];
        for (index, writes) in [false, true].into_iter().enumerate() {
            for bytes in self.sizes.clone() {
                self.next(if writes { "write latency" } else { "read latency" });
                latencies[index].push(self.latency(bytes, writes, false)?);
            }
            for bytes in RATE_SIZES {
                for depth in DEPTHS {
                    self.next(if writes { "writes by depth" } else { "reads by depth" });
                    rates[index].push(self.rate(bytes, depth, writes)?);
                }
            }
        }
        self.next("sync");
        let sync_latency = self.latency(4096, true, true)?;
        self.next("done");
        let [read_latency, write_latency] = latencies;
        let [read_rate, write_rate] = rates;
        let limits = self.scratch.disk.limits();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Ok(Profile {
            format: FORMAT,
            directory: dir.display().to_string(),
            measured_at: since.map_or(0, |since| since.as_secs()),
            backend: self.scratch.disk.backend(),
            direct: limits.direct,
            alignment: limits.alignment,
            read_latency,
            write_latency,
            read_rate,
            write_rate,
            read_bandwidth,
            write_bandwidth,
            sync_latency,
        })
    }

    /// Bytes per second over the whole file, with eight requests of 1 MiB at a time.
    fn sequential(&mut self, writes: bool) -> Result<f64> {
        let mut buffers: Vec<_> = (0..8).map(|_| AlignedBuffer::new(CHUNK)).collect();
        for buffer in &mut buffers {
            self.rng.fill(&mut buffer[..]);
        }
        let chunks = self.len / CHUNK as u64;
        let began = Instant::now();
        for start in (0..chunks).step_by(buffers.len()) {
            let count = (chunks - start).min(buffers.len() as u64) as usize;
            let offsets = (start..).map(|chunk| chunk * CHUNK as u64);
            self.set(&mut buffers[..count], offsets, writes)?;
            // The longest of all: whoever wants to break it off is not to wait for its end.
            let what = if writes { "sequential writes" } else { "sequential reads" };
            (self.step)(ProfileStep { done: self.done - 1, total: self.total, what });
        }
        if writes {
            self.scratch.disk.sync(self.scratch.file)?;
        }
        Ok(self.len as f64 / began.elapsed().as_secs_f64())
    }

    fn set(
        &self,
        buffers: &mut [AlignedBuffer],
        offsets: impl Iterator<Item = u64>,
        writes: bool,
    ) -> Result<()> {
        let Scratch { disk, file } = &self.scratch;
        let file = *file;
        if writes {
            let set: Vec<_> = buffers
                .iter()
                .zip(offsets)
                .map(|(buffer, offset)| Write { file, offset, data: buffer })
                .collect();
            disk.write(&set)
        } else {
            let mut set: Vec<_> = buffers
                .iter_mut()
                .zip(offsets)
                .map(|(buffer, offset)| Read { file, offset, buffer })
                .collect();
            disk.read(&mut set)
        }
    }

    /// `count` different positions for requests of `bytes`, so that the writes of a set never overlap.
    fn places(&mut self, bytes: usize, count: usize) -> Vec<u64> {
        let slots = self.len / bytes as u64;
        let mut places: Vec<u64> = Vec::with_capacity(count);
        while places.len() < count {
            let place = self.rng.random_range(0..slots) * bytes as u64;
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    fn latency(&mut self, bytes: usize, writes: bool, synced: bool) -> Result<Latency> {
        let mut buffers = vec![AlignedBuffer::new(bytes)];
        self.rng.fill(&mut buffers[0][..]);
        let mut samples = Vec::new();
        let began = Instant::now();
        while began.elapsed() < self.time || samples.len() < 10 {
            let places = self.places(bytes, 1);
            let start = Instant::now();
            self.set(&mut buffers, places.into_iter(), writes)?;
            if synced {
                self.scratch.disk.sync(self.scratch.file)?;
            }
            samples.push(start.elapsed().as_secs_f64() * 1e6);
        }
        samples.sort_by(f64::total_cmp);
        let at = |share: f64| samples[((samples.len() - 1) as f64 * share) as usize];
        let mean_us = samples.iter().sum::<f64>() / samples.len() as f64;
        Ok(Latency { bytes, mean_us, p50_us: at(0.5), p99_us: at(0.99) })
    }

    fn rate(&mut self, bytes: usize, depth: usize, writes: bool) -> Result<Rate> {
        let mut buffers: Vec<_> = (0..depth).map(|_| AlignedBuffer::new(bytes)).collect();
        for buffer in &mut buffers {
            self.rng.fill(&mut buffer[..]);
        }
        let mut rates = Vec::with_capacity(SLICES as usize);
        for _ in 0..SLICES {
            let mut requests = 0;
            let began = Instant::now();
            while requests == 0 || began.elapsed() < self.time / SLICES {
                let places = self.places(bytes, depth);
                self.set(&mut buffers, places.into_iter(), writes)?;
                requests += depth;
            }
            rates.push(requests as f64 / began.elapsed().as_secs_f64());
        }
        rates.sort_by(f64::total_cmp);
        Ok(Rate { bytes, depth, iops: rates[rates.len() / 2] })
    }
}

/// Free space in the directory in bytes, if the system tells.
#[cfg(unix)]
fn free_space(dir: &Path) -> Option<u64> {
    let status = rustix::fs::statvfs(dir).ok()?;
    Some(status.f_bavail.saturating_mul(status.f_frsize))
}

#[cfg(not(unix))]
fn free_space(_: &Path) -> Option<u64> {
    None
}

/// Formats a time, given in seconds since 1970.
fn utc(seconds: u64) -> String {
    let (mut days, minutes) = (seconds / 86_400, seconds / 60 % 1440);
    // Counted from 0000-03-01, so that leap days come last: eras of 400 years have 146,097 days each.
    days += 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    format!("{:04}-{month:02}-{day:02} {:02}:{:02} UTC", era * 400 + year, minutes / 60, minutes % 60)
}

/// The length of the longest bar in characters.
const BAR: f64 = 40.0;

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} through {} at {}, {}",
            self.directory,
            self.backend,
            utc(self.measured_at),
            if self.direct {
                format!("direct I/O aligned to {} bytes", self.alignment)
            } else {
                "page cache".into()
            }
        )?;
        for (what, rates) in [("reads", &self.read_rate), ("writes", &self.write_rate)] {
            writeln!(f, "random {what} of 4 KiB by depth, a second")?;
            let points: Vec<_> = rates.iter().filter(|rate| rate.bytes == RATE_SIZES[0]).collect();
            let most = points.iter().map(|rate| rate.iops).fold(1.0, f64::max);
            let first = points.first().map_or(1.0, |rate| rate.iops);
            for rate in points {
                let bar = "#".repeat((rate.iops / most * BAR).round() as usize);
                writeln!(f, "  {:>4}  {:>9.0}  {:>4.1} x  {bar}", rate.depth, rate.iops, rate.iops / first)?;
            }
        }
        writeln!(f, "latency of one request by size, in microseconds: median (99 %)")?;
        for (read, write) in self.read_latency.iter().zip(&self.write_latency) {
            writeln!(
                f,
                "  {:>4} KiB  read {:>6.0} ({:>6.0})  write {:>6.0} ({:>6.0})",
                read.bytes >> 10,
                read.p50_us,
                read.p99_us,
                write.p50_us,
                write.p99_us
            )?;
        }
        write!(
            f,
            "sequential: {:.2} GB/s read, {:.2} GB/s written; a 4 KiB write made durable: {:.0} us ({:.0})",
            self.read_bandwidth / 1e9,
            self.write_bandwidth / 1e9,
            self.sync_latency.p50_us,
            self.sync_latency.p99_us
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_measured_written_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let options = ProfileOptions {
            file_bytes: FILE_MIN,
            time_per_point: Duration::from_millis(1),
            ..ProfileOptions::default()
        };
        let (mut steps, mut written) = (0, 0);
        let profile = Profile::measure(dir.path(), &options, &mut |step| {
            assert!(step.done < step.total, "{step:?}");
            steps += 1;
            written += usize::from(step == ProfileStep { done: 0, what: "sequential writes", ..step });
        })
        .unwrap();
        assert!(steps > 60);
        assert_eq!(written, 3, "at its beginning, and after each set of 8 MiB");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the scratch file is gone");
        assert_eq!(Profile::from_json(&profile.to_json().unwrap()).unwrap().read_rate.len(), 24);
        assert!(profile.read_rate.iter().all(|rate| rate.iops > 0.0));
        assert!(profile.to_string().contains("random reads of 4 KiB"));
        assert!(Profile::from_json("{}").is_err());
    }

    #[test]
    fn the_scratch_file_goes_also_when_the_measurement_breaks_off() {
        let dir = tempfile::tempdir().unwrap();
        let options = ProfileOptions { file_bytes: FILE_MIN, ..ProfileOptions::default() };
        let broken = std::panic::catch_unwind(|| {
            Profile::measure(dir.path(), &options, &mut |step| assert!(step.done < 2, "enough"))
        });
        assert!(broken.is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let tiny = ProfileOptions { file_bytes: FILE_MIN - 1, ..options };
        assert!(matches!(Profile::measure(dir.path(), &tiny, &mut |_| {}), Err(Error::Invalid(_))));
        let missing = Profile::measure(&dir.path().join("missing"), &options, &mut |_| {});
        assert!(matches!(missing, Err(Error::NotFound { .. })));
    }

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
        assert!(!utc(u64::MAX).is_empty());
    }

    #[test]
    fn rates_between_measured_depths_are_interpolated() {
        let rate = |depth, iops| Rate { bytes: 4096, depth, iops };
        let rates = [rate(1, 100.0), rate(4, 400.0), rate(8, 500.0)];
        assert_eq!(
            [1, 2, 4, 6, 100].map(|depth| interpolate(&rates, depth)),
            [100.0, 200.0, 400.0, 450.0, 500.0]
        );
    }
}
