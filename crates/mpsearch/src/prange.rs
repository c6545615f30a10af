//! prange, the parallel range search: how far to read ahead, and what to read with one request. (VLDB 2011, section
//! 3.1.2; the growing window is ours: a short scan must not pay for a long one.)

use std::ops::Range;

/// How many leaves the next parallel read of a scan brings: 1, 2, 4, ... PioMax, or from another number on.
#[derive(Clone, Debug)]
pub struct ReadAhead {
    next: usize,
    pio_max: usize,
}

impl ReadAhead {
    /// Begins with one leaf and ends with `pio_max` of them.
    pub fn new(pio_max: usize) -> Self {
        Self { next: 1, pio_max: pio_max.max(1) }
    }

    /// Begins with `first` leaves.
    pub fn beginning_with(first: usize, pio_max: usize) -> Self {
        Self { next: first.max(1), ..Self::new(pio_max) }
    }

    /// Leaves to read now; the next answer is twice as many.
    pub fn grow(&mut self) -> usize {
        let now = self.next.min(self.pio_max);
        self.next = (self.next * 2).min(self.pio_max);
        now
    }
}

/// Bytes of a device that somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// How many.
    pub len: usize,
}

impl Extent {
    /// The smallest one with offset and length multiples of `alignment`, a power of two, that this lies in.
    pub fn aligned(self, alignment: usize) -> Self {
        let mask = alignment as u64 - 1;
        let offset = self.offset & !mask;
        let end = (self.offset + self.len as u64 + mask) & !mask;
        Self { offset, len: (end - offset) as usize }
    }
}

/// One request that brings several extents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// First byte, a multiple of the alignment.
    pub offset: u64,
    /// Bytes, a multiple of the alignment.
    pub len: usize,
    /// Which of the extents (by index) lie in it.
    pub members: Range<usize>,
}

/// Covers `extents`, sorted by offset and not overlapping, with aligned requests. Neighbours share a request as long
/// as it stays within `len_max` bytes and the gap between them is at most `gap_max` bytes. An extent larger than
/// `len_max` gets a request of its own. `alignment` is a power of two.
pub fn runs(extents: &[Extent], alignment: usize, len_max: usize, gap_max: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::with_capacity(extents.len());
    for (index, extent) in extents.iter().enumerate() {
        let Extent { offset, len } = extent.aligned(alignment);
        if let Some(last) = runs.last_mut() {
            let last_end = last.offset + last.len as u64;
            let whole = (offset + len as u64).max(last_end) - last.offset;
            if offset <= last_end + gap_max as u64 && whole <= len_max as u64 {
                last.len = whole as usize;
                last.members.end = index + 1;
                continue;
            }
        }
        runs.push(Run { offset, len, members: index..index + 1 });
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(list: &[(u64, usize)]) -> Vec<Extent> {
        list.iter().map(|&(offset, len)| Extent { offset, len }).collect()
    }

    #[test]
    fn the_window_doubles_up_to_pio_max() {
        let mut ahead = ReadAhead::new(20);
        assert_eq!([ahead.grow(), ahead.grow(), ahead.grow(), ahead.grow(), ahead.grow()], [1, 2, 4, 8, 16]);
        assert_eq!([ahead.grow(), ahead.grow()], [20, 20]);
        let mut ahead = ReadAhead::beginning_with(6, 20);
        assert_eq!([ahead.grow(), ahead.grow(), ahead.grow()], [6, 12, 20]);
    }

    #[test]
    fn neighbours_share_a_request_strangers_do_not() {
        let runs = runs(&extents(&[(100, 8000), (8100, 8000), (50_000, 10)]), 512, 64 << 10, 4096);
        assert_eq!(
            runs,
            [Run { offset: 0, len: 16384, members: 0..2 }, Run { offset: 49_664, len: 512, members: 2..3 }]
        );
    }

    #[test]
    fn a_request_never_grows_over_the_limit_unless_one_extent_does() {
        let runs = runs(&extents(&[(0, 4096), (4096, 4096), (8192, 100_000)]), 512, 8192, 0);
        assert_eq!(runs.iter().map(|run| run.members.clone()).collect::<Vec<_>>(), [0..2, 2..3]);
        assert_eq!(runs[1].len, 100_352);
    }

    #[test]
    fn extents_in_the_same_sector_are_read_once() {
        let runs = runs(&extents(&[(10, 20), (40, 20), (500, 100)]), 512, 1 << 20, 0);
        assert_eq!(runs, [Run { offset: 0, len: 1024, members: 0..3 }]);
    }
}
