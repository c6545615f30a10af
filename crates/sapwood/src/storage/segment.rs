//! Segments of the data file. A *segment* is what was written into one place of the file, from its beginning to its end and
//! once only. Segments are numbered in the order in which they were begun, and no number is used twice. Places are handed out and
//! taken back by [`Slots`].
//!
//! Invariants:
//! 1. A granule belongs to at most one segment at a time. It is free again only when the last [`Segment`] handle is
//!    gone, that is when no version and no snapshot can read from it. (The RAII handle is the whole mechanism.) Only what
//!    a writer leaves behind its end is free earlier ([`Segment::end_at`]).
//! 2. `live <= used <= span` for every segment of a version, and `used` is no more than its granules have room for.

use crate::expiring_bytes::ExpiringBytes;
use crate::storage::dictionary::Dictionaries;
use crate::storage::mapping_table::Position;
use crate::storage::slots::{Extent, GRANULE, Slots, granules};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A handle on one segment: its holder can read its place.
#[derive(Debug)]
pub(crate) struct Segment {
    pub number: u64,
    /// Its first granule.
    pub start: u32,
    /// Its granules; none as long as the place is not claimed ([`Segment::found`]).
    len: AtomicU32,
    slots: Arc<Slots>,
}

impl Segment {
    /// Puts a segment into a place that the caller has taken.
    pub fn new(number: u64, place: Extent, slots: &Arc<Slots>) -> Arc<Self> {
        let Extent { start, len } = place;
        Arc::new(Self { number, start, len: AtomicU32::new(len), slots: Arc::clone(slots) })
    }

    /// A segment that a manifest tells of. Its place is claimed when it is known which segments there are.
    pub fn found(number: u64, start: u32, slots: &Arc<Slots>) -> Arc<Self> {
        Self::new(number, Extent { start, len: 0 }, slots)
    }

    /// Claims as many granules as have room for `used` bytes. Returns whether they were free.
    pub fn claim(&self, used: u64) -> bool {
        let place = Extent { start: self.start, len: granules(used) };
        let is_number = place.start.checked_add(place.len).is_some();
        let is_free = place.len == 0 || (is_number && self.slots.claim(place));
        if is_free {
            self.len.store(place.len, Relaxed);
        }
        is_free
    }

    /// Granules of its place.
    pub fn granules(&self) -> usize {
        self.len.load(Relaxed) as usize
    }

    /// Bytes that its place has room for.
    pub fn room(&self) -> u64 {
        self.granules() as u64 * GRANULE
    }

    /// Where it begins in the file.
    pub fn offset(&self) -> u64 {
        u64::from(self.start) * GRANULE
    }

    /// It has been written to its end: what its place has room for behind these bytes is free.
    pub fn end_at(&self, used: u64) {
        let keep = granules(used);
        let before = self.len.fetch_min(keep, Relaxed);
        if keep < before {
            self.slots.give_back(Extent { start: self.start + keep, len: before - keep });
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let len = *self.len.get_mut();
        if len > 0 {
            self.slots.let_go(Extent { start: self.start, len });
        }
    }
}

/// One segment as a version sees it.
#[derive(Clone, Debug)]
pub(crate) struct SegmentUse {
    pub segment: Arc<Segment>,
    /// Bytes written from its beginning, padding included.
    pub used: u64,
    /// Bytes of nodes in it that the mapping table points to.
    pub live: u64,
    /// Of the records that were written to its leaves and expire.
    pub expiring: ExpiringBytes,
}

/// The segments of a version, by number. Numbers and entries are in the same order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    by_number: Vec<SegmentUse>,
    /// Their numbers, side by side: each node that is read or replaced is looked up among them, and the
    /// number of an entry is behind a pointer.
    numbers: Vec<u64>,
    /// What some of the nodes in them need to be decompressed.
    pub dictionaries: Dictionaries,
}

impl Segments {
    fn index(&self, number: u64) -> Result<usize, usize> {
        // New segments come at the end, so look there first.
        match self.numbers.last() {
            None => Err(0),
            Some(last) if *last < number => Err(self.numbers.len()),
            Some(_) => self.numbers.binary_search(&number),
        }
    }

    pub fn get(&self, number: u64) -> Option<&SegmentUse> {
        self.index(number).ok().map(|index| &self.by_number[index])
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut SegmentUse> {
        self.index(number).ok().map(|index| &mut self.by_number[index])
    }

    /// Adds a segment, which must not be there yet.
    pub fn insert(&mut self, entry: SegmentUse) {
        if let Err(index) = self.index(entry.segment.number) {
            self.numbers.insert(index, entry.segment.number);
            self.by_number.insert(index, entry);
        }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &SegmentUse> {
        self.by_number.iter()
    }

    /// Drops segments below `open` that have no live bytes.
    pub fn drop_dead(&mut self, open: u64) {
        // In each edit of a checkpoint but the last.
        if open == 0 {
            return;
        }
        self.by_number.retain(|entry| entry.live > 0 || entry.segment.number >= open);
        if self.by_number.len() < self.numbers.len() {
            self.numbers = self.by_number.iter().map(|entry| entry.segment.number).collect();
        }
    }

    pub fn last(&self) -> Option<&SegmentUse> {
        self.by_number.last()
    }

    pub fn live_bytes(&self) -> u64 {
        self.by_number.iter().map(|entry| entry.live).sum()
    }

    /// Granules of all their places.
    pub fn granules(&self) -> usize {
        self.by_number.iter().map(|entry| entry.segment.granules()).sum()
    }

    pub fn used_bytes(&self) -> u64 {
        self.by_number.iter().map(|entry| entry.used).sum()
    }

    pub fn count(&self) -> usize {
        self.by_number.len()
    }

    /// Offset in the data file of `len` bytes at `position`, if a segment holds them all.
    pub fn file_offset(&self, position: Position, len: usize, span: u64) -> Option<u64> {
        let (number, offset) = (position.0 / span, position.0 % span);
        let entry = self.get(number)?;
        (offset + len as u64 <= entry.used).then(|| entry.segment.offset() + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_found_and_die() {
        let slots = Arc::new(Slots::default());
        let mut segments = Segments::default();
        for number in [3, 4, 7] {
            let segment = Segment::new(number, slots.take(1, 1), &slots);
            segments.insert(SegmentUse {
                segment,
                used: 100,
                live: if number == 4 { 0 } else { 50 },
                expiring: ExpiringBytes::default(),
            });
        }
        assert_eq!(segments.file_offset(Position(7 * 1000 + 20), 80, 1000), Some(2 * GRANULE + 20));
        assert_eq!(segments.file_offset(Position(7 * 1000 + 20), 81, 1000), None);
        assert_eq!(segments.file_offset(Position(5 * 1000), 1, 1000), None);
        segments.drop_dead(7);
        assert_eq!((segments.count(), segments.live_bytes(), segments.used_bytes()), (2, 100, 200));
        assert_eq!(slots.dirty_count(), 1);
    }
}
