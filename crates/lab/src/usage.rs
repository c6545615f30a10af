//! What this process has cost the machine so far, all its threads together (getrusage).

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Context switches, whether the process gave up the processor or had it taken away.
    pub switches: u64,
    /// Processor time in user and system mode, in microseconds.
    pub cpu_us: u64,
}

/// Names of the counts in rows.
pub(crate) const SWITCHES: &str = "context_switches";
pub(crate) const CPU: &str = "cpu_us";

impl Usage {
    /// So far; `None` where the system does not tell.
    #[cfg(unix)]
    pub fn so_far() -> Option<Self> {
        use nix::sys::resource::{UsageWho, getrusage};
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
        let micros = |time: nix::sys::time::TimeVal| time.tv_sec() * 1_000_000 + time.tv_usec();
        Some(Self {
            switches: (usage.voluntary_context_switches() + usage.involuntary_context_switches()) as u64,
            cpu_us: (micros(usage.user_time()) + micros(usage.system_time())) as u64,
        })
    }

    #[cfg(not(unix))]
    pub fn so_far() -> Option<Self> {
        None
    }

    /// What came since.
    pub fn since(earlier: Option<Self>) -> Option<Self> {
        let (now, earlier) = (Self::so_far()?, earlier?);
        Some(Self { switches: now.switches - earlier.switches, cpu_us: now.cpu_us - earlier.cpu_us })
    }

    /// As the counts of a row.
    pub fn counts(self) -> BTreeMap<String, f64> {
        BTreeMap::from([(SWITCHES.to_owned(), self.switches as f64), (CPU.to_owned(), self.cpu_us as f64)])
    }
}

impl std::ops::Add for Usage {
    type Output = Usage;

    fn add(self, other: Usage) -> Usage {
        Usage { switches: self.switches + other.switches, cpu_us: self.cpu_us + other.cpu_us }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn work_and_waiting_are_counted() {
        let before = Usage::so_far();
        let began = std::time::Instant::now();
        // Others may have the processor for most of that time.
        while Usage::since(before).unwrap().cpu_us < 10_000 {
            assert!(began.elapsed() < std::time::Duration::from_secs(60), "no processor time is counted");
            std::hint::spin_loop();
        }
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let usage = Usage::since(before).unwrap();
        assert!(usage.switches >= 5, "{usage:?}");
    }
}
