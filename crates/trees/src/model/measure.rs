//! The micro-benchmark by which a tree tunes itself when it is created (VLDB 2011, section 3.6): random reads and writes, alone
//! and in sets of PioMax, by page size.
//!
//! Invariants:
//! 1. Every round visits all points, and the middle round of a point counts: a device that changes its pace within seconds
//!    favours no size, and a moment's stall does not count.
//! 2. The file that is measured in is gone when the measurement has succeeded.

use crate::model::device_times::{DeviceTimes, PageTimes};
use crate::{Error, Result};
use psync::{Access, AlignedBuffer, FileId, Read, Volume, Write};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const FILE: &str = "tree-times";
/// Bytes of a request.
const SIZES: [usize; 6] = [2048, 4096, 8192, 16384, 32768, 65536];
/// Requests of a point in a round, at least.
const REQUESTS: usize = 128;
const ROUNDS: usize = 11;
/// Bytes of the requests that fill the file.
const CHUNK: usize = 1 << 20;
/// Always the same places, so that a simulated device gives the same times again.
const SEED: u64 = 7;

/// Runs the work that it is given, and tells how many microseconds that took.
pub type Stopwatch<'a> = dyn FnMut(&mut dyn FnMut() -> Result<()>) -> Result<f64> + 'a;

impl DeviceTimes {
    /// Measures single requests and sets of `pio_max` in a new file of `len` bytes, which is removed again; best as long as the
    /// tree will be. Sizes that the device does not take are left out.
    ///
    /// # Errors
    /// Those of the device; [`Error::Invalid`] if the file is too short for the largest request, or there is a file of this
    /// name.
    pub fn measure(
        volume: &dyn Volume,
        len: u64,
        pio_max: usize,
        stopwatch: &mut Stopwatch<'_>,
    ) -> Result<Self> {
        let len = len.next_multiple_of(CHUNK as u64);
        if len == 0 || pio_max == 0 {
            return Err(Error::Invalid(format!(
                "times of a file of {len} bytes in sets of {pio_max}: both are at least 1"
            )));
        }
        let access = Access { write: true, create: true, create_new: true, direct: true };
        let file = volume.open(FILE, access)?;
        let chunk = AlignedBuffer::new(CHUNK);
        for offset in (0..len).step_by(CHUNK) {
            volume.write(&[Write { file, offset, data: &chunk }])?;
        }
        volume.sync(file)?;
        let times =
            Bench { volume, file, len, random: StdRng::seed_from_u64(SEED), stopwatch }.run(pio_max)?;
        volume.close(file)?;
        volume.remove(FILE)?;
        Ok(times)
    }
}

struct Bench<'a, 'b> {
    volume: &'a dyn Volume,
    file: FileId,
    len: u64,
    random: StdRng,
    stopwatch: &'a mut Stopwatch<'b>,
}

impl Bench<'_, '_> {
    fn run(mut self, pio_max: usize) -> Result<DeviceTimes> {
        let alignment = self.volume.limits().alignment;
        let sizes: Vec<usize> = SIZES.into_iter().filter(|bytes| bytes.is_multiple_of(alignment)).collect();
        let kinds = [(1, false), (1, true), (pio_max, false), (pio_max, true)];
        let mut points = vec![[const { Vec::new() }; 4]; sizes.len()];
        for _ in 0..ROUNDS {
            for (bytes, points) in sizes.iter().zip(&mut points) {
                for ((depth, writes), point) in kinds.into_iter().zip(points) {
                    point.push(self.round(*bytes, depth, writes)?);
                }
            }
        }
        let sizes = sizes.into_iter().zip(points).map(|(bytes, points)| {
            let [read, write, psync_read, psync_write] = points.map(|mut rounds: Vec<f64>| {
                rounds.sort_by(f64::total_cmp);
                rounds[ROUNDS / 2]
            });
            PageTimes { bytes, read, write, psync_read, psync_write }
        });
        Ok(DeviceTimes { sizes: sizes.collect() })
    }

    /// Microseconds of a request.
    fn round(&mut self, bytes: usize, depth: usize, writes: bool) -> Result<f64> {
        let mut buffers: Vec<AlignedBuffer> = (0..depth).map(|_| AlignedBuffer::new(bytes)).collect();
        let sets = REQUESTS.div_ceil(depth);
        let (volume, file, len, random) = (self.volume, self.file, self.len, &mut self.random);
        // A short file has fewer places than a set has requests.
        let mut requests = 0;
        let mut work = || {
            for _ in 0..sets {
                let slots = len / bytes as u64;
                let mut place = || random.random_range(0..2 * len) / 2 % slots * bytes as u64;
                let mut places: Vec<u64> = Vec::with_capacity(depth);
                while (places.len() as u64) < slots.min(depth as u64) {
                    places.extend((places.len()..depth).map(|_| place()));
                    places.sort_unstable();
                    places.dedup();
                }
                requests += places.len();
                let each = places.iter().zip(&mut buffers);
                if writes {
                    let set = each.map(|(offset, data)| Write { file, offset: *offset, data: &*data });
                    volume.write(&set.collect::<Vec<_>>())?;
                } else {
                    let set = each.map(|(offset, buffer)| Read { file, offset: *offset, buffer });
                    volume.read(&mut set.collect::<Vec<_>>())?;
                }
            }
            Ok(())
        };
        let micros = (self.stopwatch)(&mut work)?;
        Ok(micros / requests.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use psync::Simulated;

    /// A stopwatch for which each psync call takes 100 us and each request 1 us more.
    fn by_count(volume: &Simulated) -> impl FnMut(&mut dyn FnMut() -> Result<()>) -> Result<f64> {
        move |work| {
            use psync::Device;
            let before = volume.counters();
            work()?;
            let did = volume.counters() - before;
            Ok(100.0 * (did.read_sets + did.write_sets) as f64 + (did.reads + did.writes) as f64)
        }
    }

    #[test]
    fn sets_are_timed_as_sets_and_nothing_is_left() {
        let volume = Simulated::new(1).with_alignment(4096).with_pio_max(64);
        let times = DeviceTimes::measure(&volume, 1 << 24, 32, &mut by_count(&volume)).expect("measured");
        let sizes: Vec<usize> = times.sizes.iter().map(|size| size.bytes).collect();
        assert_eq!(sizes, [4096, 8192, 16384, 32768, 65536], "2 KiB is no multiple of the alignment");
        for size in &times.sizes {
            assert_eq!((size.read, size.write), (101.0, 101.0));
            assert!((3.9..=4.2).contains(&size.psync_read), "{size:?}");
            assert!((3.9..=4.2).contains(&size.psync_write), "{size:?}");
        }
        assert!(volume.list().expect("listed").iter().all(|entry| entry.name != FILE));
    }

    /// A short file has fewer places than a set has requests: what was not asked for is not counted.
    #[test]
    fn a_request_takes_what_it_takes_in_a_short_file_too() {
        use psync::Device;
        let volume = Simulated::new(1).with_alignment(4096).with_pio_max(64);
        let mut stopwatch = |work: &mut dyn FnMut() -> Result<()>| {
            let before = volume.counters();
            work()?;
            let did = volume.counters() - before;
            Ok(7.0 * (did.reads + did.writes) as f64)
        };
        let times = DeviceTimes::measure(&volume, 1 << 20, 64, &mut stopwatch).expect("measured");
        for size in &times.sizes {
            assert_eq!([size.read, size.write, size.psync_read, size.psync_write], [7.0; 4], "{size:?}");
        }
    }

    #[test]
    fn nothing_to_measure_is_an_error() {
        let volume = Simulated::new(1);
        let wrong =
            |len, pio_max| DeviceTimes::measure(&volume, len, pio_max, &mut by_count(&volume)).is_err();
        assert!(wrong(0, 64) && wrong(1 << 20, 0));
    }
}
