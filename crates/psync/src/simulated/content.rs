//! The bytes of one simulated file: sparse pages that images share until one of them writes.
//!
//! Invariants:
//! 1. a page that is not there reads as zeros;
//! 2. bytes at and past the length are zeros wherever there is a page, so that growing shows zeros;
//! 3. no page lies wholly past the length.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes in a page: the unit of sharing, and of accounting for space.
pub(super) const PAGE: u64 = 4096;

type Page = [u8; PAGE as usize];

/// Sparse content. A clone shares all pages.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pages: BTreeMap<u64, Arc<Page>>,
    len: u64,
}

/// The part of a range that lies in one page: page number, where in the page, where in the range.
fn by_page(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let page = at / PAGE;
        let end = range.end.min((page + 1) * PAGE);
        let within = (at - page * PAGE) as usize..(end - page * PAGE) as usize;
        let of_range = (at - range.start) as usize..(end - range.start) as usize;
        at = end;
        Some((page, within, of_range))
    })
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Pages that take space.
    pub(super) fn page_count(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Pages that a write to `range` would add.
    pub(super) fn missing_pages(&self, range: Range<u64>) -> u64 {
        by_page(range).filter(|(page, ..)| !self.pages.contains_key(page)).count() as u64
    }

    /// Fills as much of `buffer` as there is from `offset` on, and says how much that is.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let there = self.len.saturating_sub(offset).min(buffer.len() as u64);
        for (page, within, part) in by_page(offset..offset + there) {
            match self.pages.get(&page) {
                Some(bytes) => buffer[part].copy_from_slice(&bytes[within]),
                None => buffer[part].fill(0),
            }
        }
        there as usize
    }

    /// Writes, growing where needed.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        for (page, within, part) in by_page(offset..end) {
            let bytes = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(bytes)[within].copy_from_slice(&data[part]);
        }
        if !data.is_empty() {
            self.len = self.len.max(end);
        }
    }

    /// Sets the length; what is added reads as zeros.
    pub(super) fn resize(&mut self, len: u64) {
        if len < self.len {
            drop(self.pages.split_off(&len.div_ceil(PAGE)));
            let tail = (len % PAGE) as usize;
            if tail != 0
                && let Some(bytes) = self.pages.get_mut(&(len / PAGE))
            {
                Arc::make_mut(bytes)[tail..].fill(0);
            }
        }
        self.len = len;
    }

    /// Adds the pages that are missing in `range`, growing where needed. What is added reads as zeros.
    pub(super) fn allocate(&mut self, range: Range<u64>) {
        let zeros = Arc::new([0; PAGE as usize]);
        for (page, ..) in by_page(range.clone()) {
            self.pages.entry(page).or_insert_with(|| Arc::clone(&zeros));
        }
        if !range.is_empty() {
            self.len = self.len.max(range.end);
        }
    }

    /// Makes a hole: whole pages go, parts of pages become zeros. The length stays.
    pub(super) fn release(&mut self, range: Range<u64>) {
        let range = range.start..range.end.min(self.len.next_multiple_of(PAGE));
        if range.is_empty() {
            return;
        }
        let whole = range.start.div_ceil(PAGE)..range.end / PAGE;
        if !whole.is_empty() {
            let mut from = self.pages.split_off(&whole.start);
            self.pages.append(&mut from.split_off(&whole.end));
        }
        for edge in [range.start / PAGE, range.end / PAGE] {
            let (first, last) = (edge * PAGE, (edge + 1) * PAGE);
            let (start, end) = (range.start.max(first), range.end.min(last));
            if start < end
                && let Some(bytes) = self.pages.get_mut(&edge)
            {
                Arc::make_mut(bytes)[(start - first) as usize..(end - first) as usize].fill(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(content: &Content) -> Vec<u8> {
        let mut all = vec![0xee; content.len() as usize];
        assert_eq!(content.read(0, &mut all), all.len());
        all
    }

    #[test]
    fn what_was_cut_or_released_reads_as_zeros() {
        let mut content = Content::default();
        content.write(100, &[7; 20_000]);
        let before = content.clone();
        content.resize(5000);
        content.resize(9000);
        let mut expected = vec![0; 9000];
        expected[100..5000].fill(7);
        assert_eq!(bytes(&content), expected);
        content.write(0, &[9; 30_000]);
        content.release(1000..13_000);
        let mut expected = vec![9; 30_000];
        expected[1000..13_000].fill(0);
        assert_eq!(bytes(&content), expected);
        assert_eq!(content.page_count(), 8 - 2, "two whole pages were given back");
        let mut expected = vec![7; 20_100];
        expected[..100].fill(0);
        assert_eq!(bytes(&before), expected, "a clone is not touched");
    }

    #[test]
    fn a_far_write_takes_one_page() {
        let mut content = Content::default();
        assert_eq!(content.missing_pages(1 << 40..(1 << 40) + 5), 1);
        content.write(1 << 40, b"hello");
        assert_eq!((content.page_count(), content.len()), (1, (1 << 40) + 5));
    }
}
