//! Which logical pages hold nothing. Pages are given out in ascending order, round and round, so that files written in one go
//! lie in few runs.

use crate::LogicalPage;
use std::ops::Range;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Space {
    /// A bit a page, set where it is free.
    free: Vec<u64>,
    count: u32,
    /// Where to look next.
    at: usize,
}

impl Space {
    /// All of the range is free, and nothing else.
    pub(super) fn new(range: Range<u32>) -> Self {
        let mut space = Self { free: vec![0; range.end.div_ceil(64) as usize], count: 0, at: 0 };
        range.for_each(|page| space.give(LogicalPage(page)));
        space
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn take(&mut self) -> Option<LogicalPage> {
        if self.count == 0 {
            return None;
        }
        while self.free[self.at] == 0 {
            self.at = (self.at + 1) % self.free.len();
        }
        let bit = self.free[self.at].trailing_zeros();
        self.free[self.at] &= self.free[self.at] - 1;
        self.count -= 1;
        Some(LogicalPage(self.at as u32 * 64 + bit))
    }

    pub(super) fn give(&mut self, page: LogicalPage) {
        let bit = 1 << (page.0 % 64);
        debug_assert!(self.free[page.0 as usize / 64] & bit == 0, "page {} is free already", page.0);
        self.free[page.0 as usize / 64] |= bit;
        self.count += 1;
    }

    /// The page holds something: for recovery. Whether it was free.
    pub(super) fn claim(&mut self, page: LogicalPage) -> bool {
        let bit = 1 << (page.0 % 64);
        match self.free.get_mut(page.0 as usize / 64) {
            Some(word) if *word & bit != 0 => {
                *word &= !bit;
                self.count -= 1;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_given_out_once_until_it_comes_back() {
        let mut space = Space::new(10..200);
        let taken: Vec<_> = std::iter::from_fn(|| space.take()).map(|page| page.0).collect();
        assert_eq!(taken, (10..200).collect::<Vec<_>>());
        space.give(LogicalPage(70));
        assert_eq!((space.count(), space.take(), space.take()), (1, Some(LogicalPage(70)), None));
        space.give(LogicalPage(11));
        assert!(space.claim(LogicalPage(11)) && !space.claim(LogicalPage(11)));
        assert!(!space.claim(LogicalPage(3)) && !space.claim(LogicalPage(3_000_000)));
        assert_eq!(space.take(), None);
    }
}
