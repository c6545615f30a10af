//! Segments and slots of the data file. The file is a row of equally long *slots*; a *segment* is what was
//! written into one slot, from its beginning to its end and once only. Segments are numbered in the order in
//! which they were begun, and no number is used twice.
//!
//! Invariants:
//! 1. A slot belongs to at most one segment at a time. It is free again only when the last [`Segment`] handle is
//!    gone, that is when no version and no snapshot can read from it. (The RAII handle is the whole mechanism.)
//! 2. `live <= used <= span` for every segment of a version.

use crate::store::mapping_table::Position;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Hands out slots of the data file and takes them back.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    state: Mutex<SlotState>,
}

#[derive(Debug, Default)]
struct SlotState {
    /// Slots at and above this one were never used.
    next: u32,
    /// Free slots that may still hold disk space.
    dirty: BTreeSet<u32>,
    /// Free slots whose space was given back.
    clean: BTreeSet<u32>,
    /// Slots in use now; the most in use in this round; and the most in the rounds before, which decays the
    /// longer they are over.
    used: usize,
    peak: usize,
    peak_before: usize,
}

impl SlotState {
    fn count_used(&mut self) {
        self.used += 1;
        self.peak = self.peak.max(self.used);
    }
}

impl Slots {
    /// Takes a slot, one that has disk space already if there is one.
    pub fn take(&self) -> u32 {
        let mut state = self.state.lock();
        state.count_used();
        if let Some(slot) = state.dirty.pop_first().or_else(|| state.clean.pop_first()) {
            return slot;
        }
        state.next += 1;
        state.next - 1
    }

    /// Marks a slot as used, while a database is opened. Slots below it that nobody claims are free.
    /// Returns whether it was free.
    pub fn claim(&self, slot: u32) -> bool {
        let mut state = self.state.lock();
        if slot < state.next {
            let was_free = state.dirty.remove(&slot) || state.clean.remove(&slot);
            if was_free {
                state.count_used();
            }
            return was_free;
        }
        let fresh = state.next..slot;
        state.dirty.extend(fresh);
        state.next = slot + 1;
        state.count_used();
        true
    }

    /// The file reaches as far as so many slots. Those that nobody has claimed are free, and hold what an attempt has left
    /// that came to no end.
    pub fn reach(&self, slots: u32) {
        let mut state = self.state.lock();
        let left = state.next..slots;
        state.dirty.extend(left);
        state.next = state.next.max(slots);
    }

    /// Slots at and above this one were never used, as far as is known.
    pub fn next(&self) -> u32 {
        self.state.lock().next
    }

    fn give_back(&self, slot: u32) {
        let mut state = self.state.lock();
        state.dirty.insert(slot);
        state.used -= 1;
    }

    /// Slots that some version or snapshot holds.
    pub fn used(&self) -> usize {
        self.state.lock().used
    }

    /// Begins a new round with each flush, which is expected to need about as many slots as the last.
    pub fn begin_round(&self) {
        let mut state = self.state.lock();
        let forgotten = state.peak_before.saturating_sub(state.peak).div_ceil(4);
        state.peak_before = state.peak.max(state.peak_before - forgotten);
        state.peak = state.used;
    }

    /// How many slots fewer are in use than at the peak of this round and those before.
    pub fn below_peak(&self) -> usize {
        let state = self.state.lock();
        state.peak.max(state.peak_before) - state.used
    }

    /// Takes free slots whose disk space should go back to the file system: all but `keep` of them, and at
    /// most `most`. They are out of circulation until [`Slots::cleaned`] or [`Slots::still_dirty`] is called
    /// with them.
    pub fn take_dirty(&self, keep: usize, most: usize) -> Vec<u32> {
        let mut state = self.state.lock();
        let mut taken = Vec::new();
        while state.dirty.len() > keep && taken.len() < most {
            taken.extend(state.dirty.pop_last());
        }
        taken
    }

    /// Takes back slots that are not to be offered again: their space was given back, or cannot be.
    pub fn cleaned(&self, slots: Vec<u32>) {
        self.state.lock().clean.extend(slots);
    }

    /// Takes back slots whose space was not given back.
    pub fn still_dirty(&self, slots: Vec<u32>) {
        self.state.lock().dirty.extend(slots);
    }

    /// Free slots that may hold disk space.
    pub fn dirty_count(&self) -> usize {
        self.state.lock().dirty.len()
    }
}

/// A handle on one segment: its holder can read the slot.
#[derive(Debug)]
pub(crate) struct Segment {
    pub number: u64,
    pub slot: u32,
    slots: Arc<Slots>,
}

impl Segment {
    /// Puts a segment into a slot that the caller has taken or claimed.
    pub fn new(number: u64, slot: u32, slots: &Arc<Slots>) -> Arc<Self> {
        Arc::new(Self { number, slot, slots: Arc::clone(slots) })
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.slots.give_back(self.slot);
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
}

/// The segments of a version, by number. Numbers and entries are in the same order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    by_number: Vec<SegmentUse>,
    /// Their numbers, side by side: each node that is read or replaced is looked up among them, and the
    /// number of an entry is behind a pointer.
    numbers: Vec<u64>,
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
        (offset + len as u64 <= entry.used).then(|| u64::from(entry.segment.slot) * span + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_free_only_when_no_handle_is_left() {
        let slots = Arc::new(Slots::default());
        let first = Segment::new(1, slots.take(), &slots);
        let snapshot = Arc::clone(&first);
        assert_eq!((first.slot, slots.take()), (0, 1));
        drop(first);
        assert_eq!(slots.dirty_count(), 0, "a snapshot still reads from it");
        drop(snapshot);
        assert_eq!((slots.dirty_count(), slots.take()), (1, 0));
    }

    #[test]
    fn the_peak_is_forgotten_slowly() {
        let slots = Arc::new(Slots::default());
        let take =
            |count| (0..count).map(|number| Segment::new(number, slots.take(), &slots)).collect::<Vec<_>>();
        let lasting = take(3);
        let passing = take(16);
        assert_eq!(slots.below_peak(), 0);
        drop(passing);
        assert_eq!(slots.below_peak(), 16);
        slots.begin_round();
        drop(take(4));
        assert_eq!(slots.below_peak(), 16, "the round before had more");
        slots.begin_round();
        assert_eq!(slots.below_peak(), 13, "a quarter of what it had more");
        drop(lasting);
        assert_eq!(slots.below_peak(), 16);
        (0..20).for_each(|_| slots.begin_round());
        assert_eq!(slots.below_peak(), 0);
    }

    #[test]
    fn claims_leave_the_rest_free_and_refuse_a_second_claim() {
        let slots = Slots::default();
        assert!(slots.claim(2));
        assert!(slots.claim(0));
        assert!(!slots.claim(2));
        assert_eq!((slots.take(), slots.take()), (1, 3));
    }

    #[test]
    fn clean_slots_come_back_after_their_space_was_given_up() {
        let slots = Slots::default();
        for _ in 0..3 {
            slots.take();
        }
        (0..3).for_each(|slot| slots.give_back(slot));
        let dirty = slots.take_dirty(1, 9);
        assert_eq!(dirty, [2, 1]);
        slots.cleaned(dirty);
        assert_eq!([slots.take(), slots.take(), slots.take(), slots.take()], [0, 1, 2, 3]);
    }

    #[test]
    fn segments_are_found_and_die() {
        let slots = Arc::new(Slots::default());
        let mut segments = Segments::default();
        for number in [3, 4, 7] {
            let segment = Segment::new(number, slots.take(), &slots);
            segments.insert(SegmentUse { segment, used: 100, live: if number == 4 { 0 } else { 50 } });
        }
        assert_eq!(segments.file_offset(Position(7 * 1000 + 20), 80, 1000), Some(2020));
        assert_eq!(segments.file_offset(Position(7 * 1000 + 20), 81, 1000), None);
        assert_eq!(segments.file_offset(Position(5 * 1000), 1, 1000), None);
        segments.drop_dead(7);
        assert_eq!((segments.count(), segments.live_bytes(), segments.used_bytes()), (2, 100, 200));
        assert_eq!(slots.dirty_count(), 1);
    }
}
