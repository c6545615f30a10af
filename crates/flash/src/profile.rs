//! Drives ready to use: geometry, timing and rules of flash of some years, of the default simulation, and of a measured disk.
//!
//! docs/flash.md names a source for each figure.

use crate::{Error, Geometry, Order, Result, Rules};
use disk_profile::Rate;
use std::time::Duration;

/// How long things take. See docs/flash.md for what waits for what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Sensing a page, without its transfer.
    pub read: Duration,
    /// Programming a page, without its transfer.
    pub program: Duration,
    /// Erasing a block.
    pub erase: Duration,
    /// What a channel moves in a second, in bytes; at least 1,000,000.
    pub bus_bytes_per_second: u64,
    /// Commands and addresses before each transfer.
    pub bus_command: Duration,
    /// What it costs a channel to turn from moving in to moving out, or back.
    pub bus_turn: Duration,
    /// The controller's time for a read (or a command), during which it does nothing else.
    pub controller_read: Duration,
    /// The controller's time for a write, during which it does nothing else.
    pub controller_write: Duration,
    /// What it costs the controller to turn from a read to a write, or back.
    pub controller_turn: Duration,
    /// What each request costs besides, at the host and on the way, side by side with others.
    pub host_overhead: Duration,
    /// What the host link moves in a second, in bytes; at least 1,000,000. Counts as the controller's time.
    pub host_bytes_per_second: u64,
    /// Requests that the drive takes at a time, at least 1.
    pub queue_depth: u32,
    /// Bytes of the drive's volatile write cache; 0 is none. A write that fits is answered once it is there.
    pub write_cache_bytes: u64,
    /// Whether the host's reads pass what waits for the same flash.
    pub read_priority: ReadPriority,
}

/// What a read of the host does not wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadPriority {
    /// It waits for all that came before it.
    #[default]
    None,
    /// It passes programs, erases and the collector's reads that have not begun on its unit, but for a program of its own page, and what
    /// waits for its channel.
    Queued,
    /// It also interrupts a program or an erase that has begun, which goes on afterwards from where it was; that costs nothing here.
    Suspending,
}

impl Timing {
    /// Refuses what cannot be.
    ///
    /// # Errors
    /// [`Error::Geometry`].
    pub fn check(&self) -> Result<()> {
        if self.bus_bytes_per_second < 1_000_000 || self.host_bytes_per_second < 1_000_000 {
            return Err(Error::Geometry("a bus or link of less than 1 MB/s".to_owned()));
        }
        if self.queue_depth == 0 {
            return Err(Error::Geometry("a queue without slots".to_owned()));
        }
        let durations = [
            self.read,
            self.program,
            self.erase,
            self.bus_command,
            self.bus_turn,
            self.controller_read,
            self.controller_write,
            self.controller_turn,
            self.host_overhead,
        ];
        if durations.iter().any(|duration| *duration > Duration::from_secs(10)) {
            return Err(Error::Geometry("an operation of more than 10 seconds".to_owned()));
        }
        Ok(())
    }
}

/// A drive before it is built.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// What it is called.
    pub name: String,
    /// What it is made of.
    pub geometry: Geometry,
    /// How long things take.
    pub timing: Timing,
    /// What the flash demands.
    pub rules: Rules,
    /// Whether the drive hears of pages that files have given up (TRIM). If not, they are alive for it until they are overwritten.
    pub trim: bool,
}

/// Physical pages beyond the logical ones of the fitted X25-E, as a share of these.
pub const X25_E_OVER_PROVISION: f64 = 0.22;

const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// What the drives here have alike unless they say otherwise: the bus's commands and turns, a controller without turns, the
/// host's part, neither cache nor priority. The rest each says for itself; a bus, link or queue that nobody says is refused.
const COMMON: Timing = Timing {
    read: Duration::ZERO,
    program: Duration::ZERO,
    erase: Duration::ZERO,
    bus_bytes_per_second: 0,
    bus_command: Duration::from_nanos(300),
    bus_turn: Duration::from_nanos(200),
    controller_read: Duration::ZERO,
    controller_write: Duration::ZERO,
    controller_turn: Duration::ZERO,
    host_overhead: micros(5),
    host_bytes_per_second: 0,
    queue_depth: 0,
    write_cache_bytes: 0,
    read_priority: ReadPriority::None,
};

impl Profile {
    fn named(name: &str, geometry: Geometry, timing: Timing) -> Self {
        Self { name: name.to_owned(), geometry, timing, rules: Rules::default(), trim: true }
    }

    /// The default: a drive of about 2010 as the PIO B-tree's authors had them, with 8 channels of 4 dies and 4 GiB.
    pub fn ssdsim() -> Self {
        let geometry = Geometry {
            channels: 8,
            dies_per_channel: 4,
            planes: 2,
            blocks_per_plane: 128,
            pages_per_block: 128,
            page_bytes: 4096,
            spare_bytes: 128,
        };
        let timing = Timing {
            read: micros(50),
            program: micros(220),
            erase: micros(1500),
            bus_bytes_per_second: 200_000_000,
            controller_read: micros(4),
            controller_write: micros(4),
            controller_turn: micros(2),
            host_bytes_per_second: 3_000_000_000,
            queue_depth: 256,
            ..COMMON
        };
        Self::named("ssdsim", geometry, timing)
    }

    /// Single-level flash of 2007, as the papers on in-page logging have it: one chip with pages of 2 KiB, which are
    /// programmed in up to four parts, and may be left out.
    pub fn slc_2007() -> Self {
        let geometry = Geometry {
            channels: 1,
            dies_per_channel: 1,
            planes: 1,
            blocks_per_plane: 4096,
            pages_per_block: 64,
            page_bytes: 2048,
            spare_bytes: 64,
        };
        let timing = Timing {
            // With their transfer, 80 us and 200 us.
            read: micros(28),
            program: micros(148),
            erase: micros(1500),
            bus_bytes_per_second: 40_000_000,
            host_bytes_per_second: 300_000_000,
            queue_depth: 1,
            ..COMMON
        };
        let rules = Rules { order: Order::Ascending, programs_max: 4, ..Rules::default() };
        Self { rules, ..Self::named("slc-2007", geometry, timing) }
    }

    /// Multi-level flash of 2010: a small drive of 4 channels with pages of 4 KiB.
    pub fn mlc_2010() -> Self {
        let geometry = Geometry {
            channels: 4,
            dies_per_channel: 2,
            planes: 2,
            blocks_per_plane: 256,
            pages_per_block: 128,
            page_bytes: 4096,
            spare_bytes: 224,
        };
        let timing = Timing {
            read: micros(60),
            program: micros(800),
            erase: micros(3000),
            bus_bytes_per_second: 166_000_000,
            controller_read: micros(2),
            controller_write: micros(2),
            host_bytes_per_second: 280_000_000,
            queue_depth: 32,
            ..COMMON
        };
        Self::named("mlc-2010", geometry, timing)
    }

    /// The OpenSSD board (Jasmine, Barefoot controller) as measured in the CB-tree paper: one request at a time, and pages
    /// of 32 KiB, because two planes of two chips with pages of 8 KiB are always used as one.
    pub fn open_ssd() -> Self {
        let geometry = Geometry {
            channels: 4,
            dies_per_channel: 2,
            planes: 1,
            blocks_per_plane: 128,
            pages_per_block: 128,
            page_bytes: 32_768,
            spare_bytes: 512,
        };
        let timing = Timing {
            read: micros(70),
            program: micros(950),
            erase: micros(3000),
            bus_bytes_per_second: 320_000_000,
            // The firmware runs on one core of 87.5 MHz.
            controller_read: micros(270),
            controller_write: micros(270),
            host_bytes_per_second: 260_000_000,
            queue_depth: 1,
            ..COMMON
        };
        Self::named("openssd", geometry, timing)
    }

    /// Intel's X25-E, fitted to what the AS B-tree's authors measured of theirs (docs/flash.md has the procedure): 10 channels of
    /// two dies of single-level flash, and 256 KiB of write cache in the controller. An eighth of the drive's 32 GB. Its
    /// over-provision is [`X25_E_OVER_PROVISION`].
    pub fn x25_e() -> Self {
        let geometry = Geometry {
            channels: 10,
            dies_per_channel: 2,
            planes: 1,
            blocks_per_plane: 410,
            pages_per_block: 128,
            page_bytes: 4096,
            spare_bytes: 128,
        };
        let timing = Timing {
            read: micros(25),
            program: micros(350),
            erase: micros(1500),
            bus_bytes_per_second: 50_000_000,
            controller_read: micros(8),
            controller_write: micros(10),
            host_bytes_per_second: 256_000_000,
            queue_depth: 32,
            write_cache_bytes: 256 << 10,
            ..COMMON
        };
        // The drive came before TRIM.
        Self { trim: false, ..Self::named("x25-e", geometry, timing) }
    }

    /// Samsung's S470 of 64 GB, fitted to what the CB-tree's authors measured of theirs (docs/flash.md has the procedure): 8 channels
    /// of two dies of multi-level flash, and a write cache of 1 MiB. A sixteenth of the drive.
    pub fn s470() -> Self {
        let geometry = Geometry {
            channels: 8,
            dies_per_channel: 2,
            planes: 1,
            blocks_per_plane: 512,
            pages_per_block: 128,
            page_bytes: 4096,
            spare_bytes: 224,
        };
        let timing = Timing {
            read: micros(60),
            program: micros(950),
            erase: micros(3000),
            bus_bytes_per_second: 133_000_000,
            controller_read: micros(2),
            controller_write: micros(54),
            host_overhead: micros(139),
            host_bytes_per_second: 346_000_000,
            queue_depth: 32,
            write_cache_bytes: 1 << 20,
            ..COMMON
        };
        Self::named("s470", geometry, timing)
    }

    /// Triple-level flash of 2020: a drive of 8 channels with pages of 16 KiB.
    pub fn tlc_2020() -> Self {
        let geometry = Geometry {
            channels: 8,
            dies_per_channel: 4,
            planes: 2,
            blocks_per_plane: 32,
            pages_per_block: 256,
            page_bytes: 16_384,
            spare_bytes: 2048,
        };
        let timing = Timing {
            read: micros(60),
            program: micros(700),
            erase: micros(5000),
            bus_bytes_per_second: 1_200_000_000,
            controller_read: Duration::from_nanos(1500),
            controller_write: Duration::from_nanos(1500),
            host_bytes_per_second: 3_500_000_000,
            queue_depth: 1024,
            ..COMMON
        };
        Self::named("tlc-2020", geometry, timing)
    }

    /// A disk of 2026 behind a virtual machine: [`Profile::fitted`] to rates of random 4 KiB requests measured there.
    pub fn host() -> Self {
        let rate = |(depth, iops): &(usize, f64)| Rate { bytes: 4096, depth: *depth, iops: *iops };
        let reads: Vec<_> = HOST_READS.iter().map(rate).collect();
        let writes: Vec<_> = HOST_WRITES.iter().map(rate).collect();
        let fitted = Self::fitted(&reads, &writes, HOST_BYTES_PER_SECOND);
        fitted.expect("these rates can be fitted: a test does")
    }

    /// A drive that behaves like a measured disk, as far as rates by depth go.
    ///
    /// # Errors
    /// As [`Profile::fitted`].
    pub fn from_measured(disk: &disk_profile::Profile) -> Result<Self> {
        Self::fitted(&disk.read_rate, &disk.write_rate, disk.read_bandwidth as u64)
    }

    /// A drive with these rates of random 4 KiB requests; other sizes among them are left out. `bytes_per_second` is what
    /// the disk moves at most.
    ///
    /// A set of n requests is taken to last `n * s + l`: s is the time of what does one request after the other (the
    /// controller), l of what goes on side by side (the rest). Both by least squares of the relative error.
    ///
    /// # Errors
    /// [`Error::Geometry`] if there are not rates of at least two depths, all above 0, each for reads and writes.
    pub fn fitted(reads: &[Rate], writes: &[Rate], bytes_per_second: u64) -> Result<Self> {
        let (read_each, read_once) = fit(reads, "reads")?;
        let (write_each, write_once) = fit(writes, "writes")?;
        let geometry = Geometry {
            channels: 16,
            dies_per_channel: 4,
            planes: 4,
            blocks_per_plane: 64,
            pages_per_block: 128,
            page_bytes: 4096,
            spare_bytes: 128,
        };
        let host_bytes_per_second = bytes_per_second.max(1_000_000);
        let bus_bytes_per_second = 1_200_000_000;
        let command = COMMON.bus_command + COMMON.host_overhead;
        let transfer = 4096.0 / bus_bytes_per_second as f64 + command.as_secs_f64();
        let link = 4096.0 / host_bytes_per_second as f64;
        let seconds = |seconds: f64| Duration::from_nanos((seconds.clamp(0.0, 1.0) * 1e9) as u64);
        let timing = Timing {
            read: seconds(read_once - transfer).max(micros(1)),
            program: seconds(write_once - transfer).max(micros(1)),
            erase: micros(1000),
            bus_bytes_per_second,
            controller_read: seconds(read_each - link),
            controller_write: seconds(write_each - link),
            host_bytes_per_second,
            queue_depth: 1024,
            ..COMMON
        };
        Ok(Self::named("host", geometry, timing))
    }
}

/// Random reads of 4 KiB a second by depth, of one psync set after the other (see docs/flash.md for the disk).
const HOST_READS: [(usize, f64); 6] =
    [(1, 18_000.0), (4, 46_000.0), (16, 76_000.0), (32, 84_000.0), (64, 88_000.0), (128, 90_000.0)];
/// Random writes.
const HOST_WRITES: [(usize, f64); 4] = [(1, 15_000.0), (8, 51_000.0), (32, 68_000.0), (64, 76_000.0)];
const HOST_BYTES_PER_SECOND: u64 = 2_800_000_000;

/// Seconds for each request of a set, and for the set besides.
fn fit(rates: &[Rate], what: &str) -> Result<(f64, f64)> {
    let points: Vec<_> = rates
        .iter()
        .filter(|rate| rate.bytes == 4096 && rate.iops > 0.0 && rate.depth > 0)
        .map(|rate| (rate.depth as f64, rate.depth as f64 / rate.iops))
        .collect();
    // Minimizes the sum of ((n s + l) / t - 1)^2: two linear equations.
    let (mut nn, mut n1, mut ones, mut nt, mut t1) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (n, t) in points {
        nn += n * n / (t * t);
        n1 += n / (t * t);
        ones += 1.0 / (t * t);
        nt += n / t;
        t1 += 1.0 / t;
    }
    let determinant = nn * ones - n1 * n1;
    if determinant <= nn * ones * 1e-9 {
        return Err(Error::Geometry(format!("{what} of 4 KiB at two depths at least are needed for a fit")));
    }
    let each = (nt * ones - n1 * t1) / determinant;
    let once = (nn * t1 - n1 * nt) / determinant;
    Ok((each.max(1e-9), once.max(1e-9)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates of sets that take `each` us a request and `once` us besides.
    fn rates(each: f64, once: f64) -> Vec<Rate> {
        let depths = [1, 4, 32, 128];
        let rate = |depth: usize| {
            let n = depth as f64;
            Rate { bytes: 4096, depth, iops: n / (n * each + once) * 1e6 }
        };
        depths.map(rate).to_vec()
    }

    #[test]
    fn a_fit_finds_what_takes_turns_and_what_does_not() {
        let mut reads = rates(10.0, 40.0);
        reads.push(Rate { bytes: 16_384, depth: 1, iops: 1.0 });
        let drive = Profile::fitted(&reads, &rates(20.0, 60.0), 4_096_000_000).unwrap();
        let near = |found: Duration, micros: f64| (found.as_secs_f64() * 1e6 - micros).abs() < 0.01;
        // The link takes 1 us, the host 5, the channel 3.413 and 0.3.
        assert!(near(drive.timing.controller_read, 9.0), "{:?}", drive.timing);
        assert!(near(drive.timing.read, 40.0 - 8.713), "{:?}", drive.timing);
        assert!(near(drive.timing.controller_write, 19.0), "{:?}", drive.timing);
        assert!(near(drive.timing.program, 60.0 - 8.713), "{:?}", drive.timing);
    }

    #[test]
    fn what_cannot_be_fitted_is_refused() {
        let good = rates(10.0, 40.0);
        for few in [&[][..], &good[..1], &[good[1], good[1]], &[Rate { iops: 0.0, ..good[0] }, good[1]]] {
            assert!(matches!(Profile::fitted(few, &good, 1 << 30), Err(Error::Geometry(_))), "{few:?}");
            assert!(matches!(Profile::fitted(&good, few, 1 << 30), Err(Error::Geometry(_))), "{few:?}");
        }
    }

    #[test]
    fn a_measured_profile_makes_a_drive() {
        let latency = disk_profile::Latency { bytes: 4096, mean_us: 1.0, p50_us: 1.0, p99_us: 1.0 };
        let disk = disk_profile::Profile {
            format: 1,
            directory: String::new(),
            measured_at: 0,
            backend: psync::Backend::Auto,
            direct: true,
            alignment: 4096,
            read_latency: vec![],
            write_latency: vec![],
            read_rate: rates(10.0, 40.0),
            write_rate: rates(20.0, 60.0),
            read_bandwidth: 4.096e9,
            write_bandwidth: 1e9,
            sync_latency: latency,
        };
        let drive = Profile::from_measured(&disk).unwrap();
        assert_eq!(drive.timing.host_bytes_per_second, 4_096_000_000);
        assert_eq!((drive.timing.controller_read.as_nanos() + 5) / 10, 900);
    }

    #[test]
    fn impossible_timings_are_refused() {
        let good = Profile::host().timing;
        good.check().unwrap();
        for wrong in [
            Timing { queue_depth: 0, ..good },
            Timing { bus_bytes_per_second: 0, ..good },
            Timing { erase: Duration::from_secs(11), ..good },
        ] {
            assert!(matches!(wrong.check(), Err(Error::Geometry(_))), "{wrong:?}");
        }
    }
}
