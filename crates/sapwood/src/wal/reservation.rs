//! Zeros ahead of the log's end, so that a durable commit changes nothing but bytes that the file has already.
//!
//! A sync that follows an append has more to write than what was appended: the file's new length, and where its new
//! block lies, which is another write, and on a file system with a journal a commit of that. A file that has its blocks
//! already needs neither. Only written blocks will do: of a hole, and of a block that was merely allocated
//! (`fallocate`), the file system must note the first write. Appends with a sync each, in thousands a second, of 180 / 1064
//! / 4136 bytes on an ext4: `APPENDING`; set ahead by `ftruncate` `SPARSE`; zeros written ahead `ZEROS`.
//!
//! Invariants:
//! 1. From the end of the log to `until` the file holds zeros, or what a write that failed left there.
//! 2. A reservation is never a promise. Nobody syncs it for its own sake, and after a crash it is there, or a part of it,
//!    or nothing: the log ends at its last record all the same.

use super::record::HEADER_LEN;
use std::ops::Range;

/// How much is reserved at a time, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    /// At the beginning of a file; afterwards as much as the file has, so that at most half of it is reserved,
    pub first: u64,
    /// but never more than this.
    pub most: u64,
    /// Reservations end at multiples of this.
    pub unit: u64,
}

impl Steps {
    pub const USUAL: Self = Self { first: 16 << 10, most: 1 << 20, unit: 4 << 10 };
}

/// What of a file is reserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation {
    /// Where it ends; at or below the end of the log: there is none.
    until: u64,
    /// There was no space for it: this file does without.
    refused: bool,
}

impl Reservation {
    pub fn none() -> Self {
        Self { until: HEADER_LEN as u64, refused: false }
    }

    /// The zeros to be written if the log is to grow to `end`. `None`: it has room, or is to do without.
    pub fn wanted(&self, steps: &Steps, end: u64, adds: u64) -> Option<Range<u64>> {
        // Whoever writes this much at a time hardly feels the metadata, but would feel that all is written twice.
        if self.refused || end <= self.until || adds > steps.most / 8 {
            return None;
        }
        let until = end.saturating_add(end.clamp(steps.first, steps.most)).next_multiple_of(steps.unit);
        Some(end.max(self.until)..until)
    }

    pub fn grew(&mut self, until: u64) {
        self.until = until;
    }

    pub fn refuse(&mut self) {
        *self = Self { refused: true, ..Self::none() };
    }

    /// What lies behind the end of the log was cut off.
    pub fn cut(&mut self) {
        self.until = HEADER_LEN as u64;
    }

    /// Whether the file goes on behind the end of the log.
    pub fn is_beyond(&self, end: u64) -> bool {
        self.until > end
    }
}
