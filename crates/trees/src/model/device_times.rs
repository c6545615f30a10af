//! What a device takes for a page: the latencies of the cost models, measured or made up.

use disk_profile::Profile;
use serde::{Deserialize, Serialize};

/// Latencies by page size, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceTimes {
    /// One row a page size, ascending.
    pub sizes: Vec<PageTimes>,
}

/// Latencies of pages of one size, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageTimes {
    /// Bytes of the page.
    pub bytes: usize,
    /// Pr: a random read, alone.
    pub read: f64,
    /// Pw: a random write, alone.
    pub write: f64,
    /// P'r: a random read's share of the time of a psync of PioMax reads.
    pub psync_read: f64,
    /// P'w: the same for writes.
    pub psync_write: f64,
}

impl DeviceTimes {
    /// From a measured profile: what sets of `pio_max` requests give. Sizes that were measured alone, but not in sets, are left
    /// out.
    pub fn measured(profile: &Profile, pio_max: usize) -> Self {
        let share = |rates: &[disk_profile::Rate], bytes: usize| {
            let of_size = rates.iter().filter(|rate| rate.bytes == bytes && rate.iops > 0.0);
            of_size.min_by_key(|rate| rate.depth.abs_diff(pio_max)).map(|rate| 1e6 / rate.iops)
        };
        let alone = |latencies: &[disk_profile::Latency], bytes: usize| {
            latencies.iter().find(|latency| latency.bytes == bytes).map(|latency| latency.p50_us)
        };
        let sizes = profile.read_latency.iter().filter_map(|latency| {
            let bytes = latency.bytes;
            Some(PageTimes {
                bytes,
                read: latency.p50_us,
                write: alone(&profile.write_latency, bytes)?,
                psync_read: share(&profile.read_rate, bytes)?,
                psync_write: share(&profile.write_rate, bytes)?,
            })
        });
        Self { sizes: sizes.collect() }
    }

    /// The times of a page of `bytes`: between measured sizes by straight lines, beyond them in proportion to the size.
    pub fn page(&self, bytes: usize) -> PageTimes {
        let at = self.sizes.partition_point(|size| size.bytes < bytes);
        let mix = |low: &PageTimes, high: &PageTimes, part: f64| {
            let line = |low: f64, high: f64| low + (high - low) * part;
            PageTimes {
                bytes,
                read: line(low.read, high.read),
                write: line(low.write, high.write),
                psync_read: line(low.psync_read, high.psync_read),
                psync_write: line(low.psync_write, high.psync_write),
            }
        };
        match (at.checked_sub(1).and_then(|below| self.sizes.get(below)), self.sizes.get(at)) {
            (_, Some(exact)) if exact.bytes == bytes => *exact,
            (Some(low), Some(high)) => {
                mix(low, high, (bytes - low.bytes) as f64 / (high.bytes - low.bytes) as f64)
            }
            // A smaller page costs what the smallest measured one does.
            (None, Some(smallest)) => PageTimes { bytes, ..*smallest },
            (Some(largest), None) => {
                let factor = bytes as f64 / largest.bytes as f64;
                PageTimes {
                    bytes,
                    read: largest.read * factor,
                    write: largest.write * factor,
                    psync_read: largest.psync_read * factor,
                    psync_write: largest.psync_write * factor,
                }
            }
            (None, None) => PageTimes { bytes, read: 0.0, write: 0.0, psync_read: 0.0, psync_write: 0.0 },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The device of the specification's sanity values: 55 microseconds alone, 11.1 in a set.
    pub(crate) fn guess() -> DeviceTimes {
        let row = |bytes, alone: f64, set: f64| PageTimes {
            bytes,
            read: alone,
            write: alone,
            psync_read: set,
            psync_write: set,
        };
        DeviceTimes { sizes: vec![row(4096, 55.0, 11.1), row(8192, 58.0, 15.0), row(16384, 62.0, 22.0)] }
    }

    #[test]
    fn sizes_between_and_beyond() {
        let times = guess();
        assert_eq!(times.page(4096).read, 55.0);
        assert_eq!(times.page(6144).read, 56.5);
        assert_eq!(times.page(2048).psync_read, 11.1);
        assert_eq!(times.page(32768).psync_write, 44.0);
    }
}
