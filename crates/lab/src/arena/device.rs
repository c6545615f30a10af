//! What the disk alone can do for a workload: a line to measure all stores by.
//!
//! A figure here is the disk's limit for a store that asks it once for every operation, with nothing in memory and 4 KiB a
//! record read; who has memory, or packs well, can exceed it.

use arena::Workload;
use disk_profile::Profile;

/// Operations a second; none where the disk alone sets no limit.
pub(crate) fn limit(workload: Workload, profile: &Profile, record: u64) -> Option<f64> {
    let reads = |depth: usize| {
        let mut rates = profile.read_rate.iter().filter(|rate| rate.bytes == 4 << 10);
        rates.find(|rate| rate.depth == depth).map(|rate| rate.iops)
    };
    let per_record = |bandwidth: f64| (record > 0).then(|| bandwidth / record as f64);
    match workload {
        Workload::Get1 => reads(1),
        Workload::Get4 | Workload::YcsbC => reads(4),
        Workload::Get16 => reads(16),
        Workload::MultiGet => reads(64),
        Workload::Scan100 | Workload::Scan10k | Workload::ScanAll | Workload::ScanDeleted => {
            per_record(profile.read_bandwidth)
        }
        Workload::SortedLoad | Workload::RandomLoad => per_record(profile.write_bandwidth),
        Workload::DurablePut1 | Workload::DurableTx1 | Workload::DurableTxZipf1 => {
            Some(1e6 / profile.sync_latency.mean_us)
        }
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use disk_profile::{Latency, Rate};
    use psync::Backend;

    pub fn profile() -> Profile {
        let rate = |depth| Rate { bytes: 4 << 10, depth, iops: 1000.0 * depth as f64 };
        let sync_latency = Latency { bytes: 4 << 10, mean_us: 50.0, p50_us: 50.0, p99_us: 90.0 };
        Profile {
            format: 1,
            directory: "/disk".into(),
            measured_at: 0,
            backend: Backend::Auto,
            direct: true,
            alignment: 512,
            read_latency: Vec::new(),
            write_latency: Vec::new(),
            read_rate: [1, 4, 16, 64].map(rate).to_vec(),
            write_rate: Vec::new(),
            read_bandwidth: 2e9,
            write_bandwidth: 1e9,
            sync_latency,
        }
    }

    #[test]
    fn each_limit_is_that_of_the_requests_which_the_workload_makes() {
        let limit = |workload| limit(workload, &profile(), 100);
        assert_eq!(limit(Workload::Get16), Some(16_000.0));
        assert_eq!(limit(Workload::MultiGet), Some(64_000.0));
        assert_eq!(limit(Workload::ScanAll), Some(2e7));
        assert_eq!(limit(Workload::SortedLoad), Some(1e7));
        assert_eq!(limit(Workload::DurablePut1), Some(20_000.0));
        assert_eq!(limit(Workload::Update), None);
    }
}
