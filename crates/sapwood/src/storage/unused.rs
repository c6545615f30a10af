//! The parts of the data file that no segment of a version takes, and that a writer may write to.
//!
//! Without direct I/O, a failed sync leaves pages there that the page cache takes for clean. On ext4 what is written
//! to them afterwards may never reach the device although each sync succeeds (see `wal/rewrite.rs`). A hole in their
//! place ends that.

use crate::storage::segment::Segments;
use std::ops::Range;

/// The unused parts of a data file of `data_len` bytes, in order.
pub(crate) fn unused(segments: &Segments, data_len: u64) -> Vec<Range<u64>> {
    let used = segments.iter().map(|entry| {
        let start = entry.segment.offset();
        start..start + entry.used
    });
    gaps(used.collect(), data_len)
}

/// What lies between the ranges, up to `end`.
fn gaps(mut ranges: Vec<Range<u64>>, end: u64) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut gaps = Vec::new();
    let mut at = 0;
    for range in ranges {
        if at < range.start {
            gaps.push(at..range.start);
        }
        at = at.max(range.end);
    }
    if at < end {
        gaps.push(at..end);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_ranges_is_found_in_whatever_order_they_are() {
        assert_eq!(gaps(vec![20..30, 0..10, 30..35], 50), [10..20, 35..50]);
        assert_eq!(gaps(vec![5..6, 8..9], 9), [0..5, 6..8]);
        assert!(gaps(vec![], 7).iter().eq([&(0..7)]));
        assert!(gaps(vec![0..4, 4..9], 9).is_empty() && gaps(vec![], 0).is_empty());
    }
}
