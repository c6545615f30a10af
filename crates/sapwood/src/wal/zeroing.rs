//! Writes zeros ahead of the log's end, so that a durable commit only changes bytes that the file already has.
//!
//! A sync after an append must write more than the appended data: the file's new length, and the location of
//! its new block. That is a second write, and on a file system with a journal a commit of the journal. A file
//! whose blocks already exist needs neither. Only written blocks will do: the first write into a hole
//! (`ftruncate`), or into a block that was merely allocated (`fallocate`), must be recorded too. Writes per
//! second, with a sync each, on a virtual disk with ext4 without a journal; medians of nine rounds taken in
//! turn, while others worked on the machine:
//!
//! ```text
//! bytes a write      180   1,064   4,136  16,424  65,576
//! appended         5,248   4,246   3,374   1,651   1,783
//! ftruncate ahead  6,014   5,268   2,252   2,372   1,377
//! fallocate ahead  6,131   3,734   2,044   2,326   1,885
//! zeros ahead      7,173   5,671   5,706   4,965   3,445
//! ```
//!
//! With 4,136 bytes, steps of 16 KiB gave 4,678, of up to 64 KiB 5,899, 256 KiB 6,637, 1 MiB 7,854, 4 MiB
//! 6,867. The cost: the log's bytes are written twice, in large writes; and at most as much extra space as the
//! file has, up to 1 MiB.
//!
//! Invariants:
//! 1. From the end of the log to `until`, the file holds zeros, or the remains of a failed write.
//! 2. A reservation is never a promise. It is never synced for its own sake, and after a crash all, part or
//!    none of it may be there: the log ends at its last record anyway.

use super::record::HEADER_LEN;
use std::ops::Range;

/// How much is reserved at a time, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    /// At the beginning of a file. Afterwards as much as the file has, so that at most half of it is reserved,
    pub first: u64,
    /// but never more than this.
    pub most: u64,
    /// Reservations end at multiples of this.
    pub unit: u64,
}

impl Steps {
    pub const USUAL: Self = Self { first: 16 << 10, most: 1 << 20, unit: 4 << 10 };
}

/// The reserved part of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ZeroedSpace {
    /// Where it ends. If this is at or below the end of the log, there is none.
    until: u64,
    /// There was no space for it: this file does without.
    refused: bool,
}

impl ZeroedSpace {
    pub fn none() -> Self {
        Self { until: HEADER_LEN as u64, refused: false }
    }

    /// The zeros to write if the log is to grow to `end`. `None`: there is room, or the file does without.
    pub fn wanted(&self, steps: &Steps, end: u64, adds: u64) -> Option<Range<u64>> {
        // Larger writes hardly notice the metadata, but would notice that everything is written twice.
        if self.refused || end <= self.until || adds > steps.most / 8 {
            return None;
        }
        let until = end.saturating_add(end.clamp(steps.first, steps.most)).next_multiple_of(steps.unit);
        Some(end.max(self.until)..until)
    }

    /// The zeros to write so that the file has bytes from the log's end at `len` to `until`. `None`: it has
    /// them.
    pub fn missing(&self, len: u64, until: u64) -> Option<Range<u64>> {
        let missing = len.max(self.until)..until;
        (!missing.is_empty()).then_some(missing)
    }

    pub fn is_refused(&self) -> bool {
        self.refused
    }

    pub fn grew(&mut self, until: u64) {
        self.until = until;
    }

    pub fn refuse(&mut self) {
        *self = Self { refused: true, ..Self::none() };
    }

    /// Everything behind the end of the log was cut off.
    pub fn cut(&mut self) {
        self.until = HEADER_LEN as u64;
    }

    /// Whether the file continues behind the end of the log.
    pub fn is_beyond(&self, end: u64) -> bool {
        self.until > end
    }
}
