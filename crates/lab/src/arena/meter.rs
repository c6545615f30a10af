//! What a worker costs the machine, seen from outside: bytes to and from the device, processor time, memory, space.
//!
//! Bytes are counted twice. The device's own counters (/sys/dev/block/M:N/stat) see everything that reaches it, the log and
//! the file system's journal included, and everybody else's as well. The worker's (/proc/PID/io) see what it sent and what it
//! dirtied, whether that has been written yet or not. On a quiet machine the first is the truth, elsewhere the second.

use super::fence::Fence;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes since some beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Traffic {
    pub read: u64,
    pub written: u64,
}

impl Traffic {
    fn since(self, earlier: Self) -> Self {
        Self {
            read: self.read.saturating_sub(earlier.read),
            written: self.written.saturating_sub(earlier.written),
        }
    }
}

/// What a workload cost. What the system does not tell is not there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// By the device's count.
    pub device: Option<Traffic>,
    /// By the worker's count.
    pub process: Option<Traffic>,
    /// Seconds after the workload until the store and the system had written what they owed; included in the traffic and in
    /// the processor time.
    pub settled_s: f64,
    pub cpu_s: Option<f64>,
    /// The most memory, page cache included, in bytes.
    pub memory_peak: Option<u64>,
    /// The most memory without page cache, sampled, in bytes.
    pub anonymous_peak: Option<u64>,
    /// What the database takes on the disk afterwards, in bytes.
    pub space: u64,
}

/// Where the device of a directory counts.
#[derive(Clone, Debug)]
pub(crate) struct DeviceCounter(PathBuf);

impl DeviceCounter {
    /// Of the device that holds `dir`, if it counts.
    #[cfg(target_os = "linux")]
    pub fn of(dir: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let device = fs::metadata(dir).ok()?.dev();
        let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
        let stat = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
        stat.exists().then_some(Self(stat))
    }

    #[cfg(not(target_os = "linux"))]
    pub fn of(_: &Path) -> Option<Self> {
        None
    }

    pub fn read(&self) -> Option<Traffic> {
        device_traffic(&fs::read_to_string(&self.0).ok()?)
    }

    /// Bytes a second that others move in the time from now on.
    pub fn others(&self, time: Duration) -> Option<f64> {
        let (before, began) = (self.read()?, Instant::now());
        std::thread::sleep(time);
        let moved = self.read()?.since(before);
        Some((moved.read + moved.written) as f64 / began.elapsed().as_secs_f64())
    }
}

/// The third field is sectors read, the seventh sectors written, of 512 bytes each, whatever the device's are.
fn device_traffic(stat: &str) -> Option<Traffic> {
    let fields: Vec<u64> = stat.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some(Traffic { read: fields.get(2)? * 512, written: fields.get(6)? * 512 })
}

fn process_traffic(io: &str) -> Option<Traffic> {
    let field = |name| io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let cancelled = field("cancelled_write_bytes:").unwrap_or(0);
    Some(Traffic { read: field("read_bytes:")?, written: field("write_bytes:")?.saturating_sub(cancelled) })
}

/// Clock ticks in user and system mode.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses, which may hold anything; these are the 14th and 15th.
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(unix)]
fn ticks_per_second() -> f64 {
    let asked = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK);
    asked.ok().flatten().map_or(100.0, |ticks| ticks as f64)
}

#[cfg(not(unix))]
fn ticks_per_second() -> f64 {
    100.0
}

/// Measures one worker through one workload.
pub(crate) struct Meter<'a> {
    process: u32,
    fence: &'a Fence,
    device: Option<&'a DeviceCounter>,
    dir: &'a Path,
    before: Reading,
}

#[derive(Clone, Copy, Default)]
struct Reading {
    device: Option<Traffic>,
    process: Option<Traffic>,
    ticks: Option<u64>,
}

impl<'a> Meter<'a> {
    /// Begins to measure.
    pub fn begin(process: u32, fence: &'a Fence, device: Option<&'a DeviceCounter>, dir: &'a Path) -> Self {
        fence.reset_peak();
        let mut meter = Self { process, fence, device, dir, before: Reading::default() };
        meter.before = meter.read();
        meter
    }

    fn proc(&self, file: &str) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/{file}", self.process)).ok()
    }

    fn read(&self) -> Reading {
        Reading {
            device: self.device.and_then(DeviceCounter::read),
            process: self.proc("io").as_deref().and_then(process_traffic),
            ticks: self.proc("stat").as_deref().and_then(cpu_ticks),
        }
    }

    /// Waits until the worker writes no more, `longest` at most, and reads everything. With `longest` zero it does not wait.
    pub fn end(&self, longest: Duration, anonymous_peak: Option<u64>) -> Cost {
        let began = Instant::now();
        if !longest.is_zero() {
            write_back(self.dir);
            self.wait_for_quiet(longest);
            write_back(self.dir);
        }
        let now = self.read();
        let since = |now: Option<Traffic>, before: Option<Traffic>| Some(now?.since(before?));
        Cost {
            device: since(now.device, self.before.device),
            process: since(now.process, self.before.process),
            settled_s: if longest.is_zero() { 0.0 } else { began.elapsed().as_secs_f64() },
            cpu_s: now
                .ticks
                .zip(self.before.ticks)
                .map(|(now, before)| (now - before) as f64 / ticks_per_second()),
            memory_peak: self.fence.peak(),
            anonymous_peak,
            space: space(self.dir),
        }
    }

    /// Quiet is less than a MiB in a second.
    fn wait_for_quiet(&self, longest: Duration) {
        let began = Instant::now();
        let moved = || self.read().process.map(|traffic| traffic.read + traffic.written);
        let mut last = moved();
        while began.elapsed() + Duration::from_secs(1) <= longest && last.is_some() {
            std::thread::sleep(Duration::from_secs(1));
            let now = moved();
            if now.zip(last).is_none_or(|(now, last)| now - last < 1 << 20) {
                break;
            }
            last = now;
        }
    }
}

/// Has the file system of `dir` written what it holds back.
#[cfg(target_os = "linux")]
pub(super) fn write_back(dir: &Path) {
    if let Ok(dir) = fs::File::open(dir) {
        // Only for the counters: stores see to their durability themselves.
        let _ = nix::unistd::syncfs(&dir);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn write_back(_: &Path) {}

/// Everything in a directory, as far as it takes space: holes do not count.
pub(crate) fn space(dir: &Path) -> u64 {
    files(dir).iter().filter_map(|path| fs::metadata(path).ok()).map(|data| allocated(&data)).sum()
}

#[cfg(unix)]
fn allocated(data: &fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    data.blocks() * 512
}

#[cfg(not(unix))]
fn allocated(data: &fs::Metadata) -> u64 {
    data.len()
}

/// All files in a directory and below.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut dirs) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

/// Samples the memory that is not page cache while a workload runs.
#[derive(Default)]
pub(crate) struct Sampler {
    peak: AtomicU64,
    over: AtomicBool,
}

impl Sampler {
    /// Runs `work`, and gives the peak of what was seen beside it.
    pub fn during<T>(fence: &Fence, work: impl FnOnce() -> T) -> (T, Option<u64>) {
        let sampler = Sampler::default();
        let done = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !sampler.over.load(Ordering::Acquire) {
                    sampler.peak.fetch_max(fence.anonymous().unwrap_or(0), Ordering::AcqRel);
                    std::thread::park_timeout(Duration::from_millis(50));
                }
            });
            let done = work();
            sampler.over.store(true, Ordering::Release);
            done
        });
        let peak = sampler.peak.load(Ordering::Acquire);
        (done, (peak > 0).then_some(peak))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use crate::usage::Usage;

    #[test]
    fn counters_are_read_from_the_right_fields() {
        let stat = " 4711 12 2000 5 815 99 4000 7 0 1 2 0 0 0 0";
        assert_eq!(device_traffic(stat), Some(Traffic { read: 2000 * 512, written: 4000 * 512 }));
        assert_eq!(device_traffic("1 2"), None);
        let io = "rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 1000\n";
        assert_eq!(process_traffic(io), Some(Traffic { read: 4096, written: 7192 }));
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 2 3 4 500 60 0 0 20 0 1 0 9";
        assert_eq!(cpu_ticks(stat), Some(560));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_this_process_does_is_seen() {
        // Beside the program, which is on a disk and not among the sources.
        let program = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let fence = Fence::new(1 << 30);
        let meter = Meter::begin(std::process::id(), &fence, None, dir.path());
        let ((), _) = Sampler::during(&fence, || {
            fs::create_dir(dir.path().join("below")).unwrap();
            fs::write(dir.path().join("below/file"), vec![1; 4 << 20]).unwrap();
            // By the processor's time, not the wall's: others may be at work.
            let begun = Usage::so_far();
            while Usage::since(begun).unwrap().cpu_us < 60_000 {
                std::hint::spin_loop();
            }
        });
        let cost = meter.end(Duration::from_millis(1), None);
        assert!(cost.space >= 4 << 20, "{cost:?}");
        // Less what another test of this process has written before, and removed meanwhile.
        assert!(cost.process.unwrap().written >= 3 << 20, "{cost:?}");
        assert!(cost.cpu_s.unwrap() >= 0.04, "{cost:?}");
    }
}
