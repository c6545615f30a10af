//! The range of each option.
//!
//! Invariant: an option out of its range is refused before anything is opened, with its name, its value and its range.

use super::Builder;
use crate::error::{Error, Result};
use crate::flow::address_space;
use std::ops::RangeInclusive;
use std::time::Duration;

/// More threads than there can be work for (count).
const BACKGROUND_THREADS_MAX: usize = 64;
/// The shortest lease of a follower: twice the time after which it is heard of again. Shorter in tests.
const LEASE_MIN: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 2000 });
/// The least memory in bytes: two queues, a cache and a flush would not fit into less.
pub(in crate::db) const MEMORY_MIN: u64 = 4 << 20;
/// The most memory in bytes (4 TiB): no machine that we know has more, and tables that grow with the budget would take for ever to make.
const MEMORY_MAX: u64 = 4 << 40;
/// Target bytes of a leaf: shorter than 256 would be mostly headers, of more than 1 MiB, a get would cost too much.
const LEAF_LEN: RangeInclusive<usize> = 256..=(1 << 20);
/// Bytes of a segment: must be long enough for the longest leaf, and short enough to be collected.
const SPAN: RangeInclusive<u64> = (1 << 20)..=(1 << 30);
/// Bytes of the log that are kept for the change feed, if any are: less would be given up at once.
const KEPT: RangeInclusive<u64> = (1 << 20)..=(1 << 60);

/// The range of a memory budget.
pub(in crate::db) fn check_memory(memory: u64) -> Result<()> {
    let range = match memory {
        ..MEMORY_MIN => "at least 4194304 bytes (4 MiB)",
        MEMORY_MIN..=MEMORY_MAX => return Ok(()),
        _ => "at most 4398046511104 bytes (4 TiB)",
    };
    Err(Error::BadOption { option: "memory", value: memory, range: range.into() })
}

impl Builder {
    pub(super) fn check(&self) -> Result<()> {
        let refuse =
            |option, value, range: &str| Err(Error::BadOption { option, value, range: range.into() });
        check_memory(self.memory)?;
        if let Some(left) = address_space::left().filter(|left| self.memory > *left) {
            let range = format!(
                "at most {left} bytes, which are left of this process's address space; choose less memory, or raise the \
                 limit (`ulimit -v`)"
            );
            return refuse("memory", self.memory, &range);
        }
        if !(1..=1024).contains(&self.pio_max) {
            return refuse("pio_max", self.pio_max as u64, "1 to 1024 requests");
        }
        if self.io_timeout < Duration::from_millis(1) {
            return refuse("io_timeout", self.io_timeout.as_millis() as u64, "at least 1 ms");
        }
        if self.follower_lease < LEASE_MIN {
            return refuse("follower_lease", self.follower_lease.as_millis() as u64, "at least 2000 ms");
        }
        if self.background_threads > BACKGROUND_THREADS_MAX {
            return refuse("background_threads", self.background_threads as u64, "0 to 64");
        }
        if self.keep_changes.is_some_and(|bytes| bytes != 0 && !KEPT.contains(&bytes)) {
            let bytes = self.keep_changes.unwrap_or(0);
            return refuse("keep_changes", bytes, "0, or 1048576 bytes (1 MiB) to 1 EiB");
        }
        self.compression.check()?;
        if !LEAF_LEN.contains(&self.leaf_len) {
            return refuse("leaf_len", self.leaf_len as u64, "256 to 1048576 bytes");
        }
        if !self.segment_span.is_power_of_two() || !SPAN.contains(&self.segment_span) {
            return refuse("segment_span", self.segment_span, "a power of two from 1 MiB to 1 GiB");
        }
        Ok(())
    }
}
