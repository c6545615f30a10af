//! Free space of the data file: places are handed out to segments and taken back. A place is an extent of *granules*: as many as
//! its segment has, so that the file is hardly longer than what is in it.
//!
//! Invariants:
//! 1. A granule is in use, waits for followers, or is in exactly one of the two sets of free extents.
//! 2. While followers are registered (other processes that read), a place waits until none of them has a version with it.

use crate::lock_order::{RankedMutex, rank};
use std::collections::BTreeMap;

/// Bytes of a granule: a multiple of all alignments, and little beside the shortest segment that is full.
pub(crate) const GRANULE: u64 = 64 << 10;

/// Granules that have room for so many bytes.
pub(crate) fn granules(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(GRANULE)).unwrap_or(u32::MAX)
}

/// An extent of granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub start: u32,
    pub len: u32,
}

impl Extent {
    pub fn end(self) -> u32 {
        self.start + self.len
    }

    /// Its bytes in the file.
    pub fn bytes(self) -> std::ops::Range<u64> {
        u64::from(self.start) * GRANULE..u64::from(self.end()) * GRANULE
    }
}

/// Extents of granules that do not touch one another, by their starts.
#[derive(Debug, Default)]
struct Extents {
    by_start: BTreeMap<u32, u32>,
    granules: usize,
}

impl Extents {
    fn insert(&mut self, Extent { mut start, mut len }: Extent) {
        if len == 0 {
            return;
        }
        self.granules += len as usize;
        if let Some((before, its)) = self.by_start.range(..start).next_back().map(|(a, b)| (*a, *b))
            && before + its == start
        {
            self.by_start.remove(&before);
            (start, len) = (before, its + len);
        }
        if let Some(behind) = self.by_start.remove(&(start + len)) {
            len += behind;
        }
        self.by_start.insert(start, len);
    }

    /// Takes the granules of a place, all of which are here.
    fn remove(&mut self, Extent { start, len }: Extent) -> bool {
        let Some((from, its)) = self.by_start.range(..=start).next_back().map(|(a, b)| (*a, *b)) else {
            return false;
        };
        if from + its < start + len {
            return false;
        }
        self.by_start.remove(&from);
        self.granules -= its as usize;
        self.insert(Extent { start: from, len: start - from });
        self.insert(Extent { start: start + len, len: from + its - start - len });
        true
    }

    /// The first extent that has at least so many granules.
    fn first(&self, least: u32) -> Option<(u32, u32)> {
        self.by_start.iter().find(|(_, its)| **its >= least).map(|(a, b)| (*a, *b))
    }

    /// Takes `most` granules at the beginning of the first extent that has as many, or all of the first that has `least`.
    fn take(&mut self, least: u32, most: u32) -> Option<Extent> {
        let (start, len) = self.first(most).or_else(|| self.first(least))?;
        let place = Extent { start, len: len.min(most) };
        self.remove(place);
        Some(place)
    }

    /// Takes the end of the last extent, at most `most` granules.
    fn pop_last(&mut self, most: u32) -> Option<Extent> {
        let (start, len) = self.by_start.last_key_value().map(|(a, b)| (*a, *b))?;
        let len_taken = len.min(most);
        let place = Extent { start: start + len - len_taken, len: len_taken };
        self.remove(place);
        Some(place)
    }
}

/// A segment is no shorter than this part (1/4) of what it should be, unless more granules are free than this part (1/4) of
/// those in use: then the file must not become longer for it.
const PART: u32 = 4;
const MUCH_FREE: usize = 4;
/// If more granules are free than this part (1/2) of those in use, the lowest place comes first that has this part (1/16) of
/// what a segment should have, with disk space or without: the file should become shorter.
const VERY_FREE: usize = 2;
const SHORT_PART: u32 = 16;

/// Fewer free granules (1 MiB) at the file's end are not worth a call: it would soon be as long again.
const CUT_MIN: u32 = 16;

/// Most granules whose space is given back with one call: so many take some milliseconds.
const RELEASED_MAX: u32 = 256;

/// Hands out places of the data file and takes them back.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    state: RankedMutex<rank::Slots, SlotState>,
}

#[derive(Debug, Default)]
struct SlotState {
    /// The file's granules: those at and above this one were never used, or were cut off.
    next: u32,
    /// As many must stay, however little is in them ([`Slots::keep_long`]).
    least: u32,
    /// Free granules that may still hold disk space.
    dirty: Extents,
    /// Free granules whose space was given back.
    clean: Extents,
    /// Granules in use now; the most in use in this round; and the most in the rounds before, which decays the
    /// longer they are over.
    used: usize,
    peak: usize,
    peak_before: usize,
    /// The oldest epoch that a follower may read, if there are followers.
    pinned: Option<u64>,
    /// The epoch of the newest durable version.
    epoch: u64,
    /// Places that no version of this process has, and that followers of epochs below may read.
    waiting: Vec<(u64, Extent)>,
}

impl SlotState {
    fn count_used(&mut self, granules: u32) {
        self.used += granules as usize;
        self.peak = self.peak.max(self.used);
    }

    fn free(&self) -> usize {
        self.dirty.granules + self.clean.granules
    }

    fn give_back(&mut self, place: Extent) {
        self.dirty.insert(place);
        self.used -= place.len as usize;
    }

    /// Takes the lowest place of at least `least` granules, whether it has disk space or not.
    fn take_lowest(&mut self, least: u32, most: u32) -> Option<Extent> {
        let extents = [&mut self.dirty, &mut self.clean];
        let lowest = extents.into_iter().filter_map(|extents| Some((extents.first(least)?, extents)));
        let ((start, its), extents) = lowest.min_by_key(|((start, _), _)| *start)?;
        let place = Extent { start, len: its.min(most) };
        extents.remove(place);
        Some(place)
    }

    fn take(&mut self, least: u32, most: u32) -> Extent {
        if self.free() > self.used / VERY_FREE
            && let Some(place) = self.take_lowest(least.max(most.div_ceil(SHORT_PART)), most)
        {
            return place;
        }
        if let Some(place) = self.dirty.take(least, most).or_else(|| self.clean.take(least, most)) {
            return place;
        }
        // What is free at the end is too short, and is the beginning of what is needed.
        let mut start = self.next;
        for extents in [&mut self.dirty, &mut self.clean] {
            if let Some((last, len)) = extents.by_start.last_key_value().map(|(a, b)| (*a, *b))
                && last + len == start
            {
                extents.remove(Extent { start: last, len });
                start = last;
            }
        }
        let place = Extent { start, len: most };
        let rest = Extent { start: place.end(), len: self.next.saturating_sub(place.end()) };
        self.dirty.insert(rest);
        self.next = self.next.max(place.end());
        place
    }
}

impl Slots {
    /// Takes a place of `most` granules, or at least of a quarter of them, or, if much is free, of `least`: the lowest that
    /// has disk space already, or the lowest; of all if the file is far longer than what is in use.
    pub fn take(&self, least: u32, most: u32) -> Extent {
        let mut state = self.state.lock();
        let (least, most) = (least.clamp(1, most.max(1)), most.max(1));
        // Otherwise there would be too many short segments.
        let least =
            if state.free() > state.used / MUCH_FREE { least } else { least.max(most.div_ceil(PART)) };
        let place = state.take(least, most);
        state.count_used(place.len);
        place
    }

    /// Marks a place as used, while a database is opened. Granules below it that are not claimed are free.
    /// Returns whether it was free.
    pub fn claim(&self, place: Extent) -> bool {
        let mut state = self.state.lock();
        let known = Extent { len: place.end().min(state.next).saturating_sub(place.start), ..place };
        if place.start >= state.next {
            let left = Extent { start: state.next, len: place.start - state.next };
            state.dirty.insert(left);
        } else if !state.dirty.remove(known) {
            return false;
        }
        state.next = state.next.max(place.end());
        state.count_used(place.len);
        true
    }

    /// The file reaches as far as so many granules. Those that are not claimed are free, and hold what a version builder has left
    /// that came to no end.
    pub fn reach(&self, granules: u32) {
        let mut state = self.state.lock();
        let left = Extent { start: state.next, len: granules.saturating_sub(state.next) };
        state.dirty.insert(left);
        state.next = state.next.max(granules);
    }

    /// The file must not become shorter than so many granules.
    pub fn keep_long(&self, granules: u32) {
        let mut state = self.state.lock();
        state.least = state.least.max(granules);
    }

    /// If the file ends with free granules whose space was given back, more than a few, `cut` is to cut it to so many
    /// granules. No thread takes a place meanwhile. Returns whether there were such.
    pub fn cut_off<E>(&self, cut: impl FnOnce(u32) -> Result<(), E>) -> Result<bool, E> {
        let mut state = self.state.lock();
        let Some((start, len)) = state.clean.by_start.last_key_value().map(|(a, b)| (*a, *b)) else {
            return Ok(false);
        };
        let end = start.max(state.least);
        if start + len < state.next || state.next < end + CUT_MIN {
            return Ok(false);
        }
        cut(end)?;
        let rest = Extent { start: end, len: state.next - end };
        state.clean.remove(rest);
        state.next = end;
        Ok(true)
    }

    /// Granules at and above this one were never used, as far as is known.
    pub fn next(&self) -> u32 {
        self.state.lock().next
    }

    /// Gives back a place that no reader was ever led to.
    pub(super) fn give_back(&self, place: Extent) {
        self.state.lock().give_back(place);
    }

    /// Gives back a place that no version of this process has any more.
    pub(super) fn let_go(&self, place: Extent) {
        let mut state = self.state.lock();
        if state.pinned.is_some() {
            let epoch = state.epoch;
            state.waiting.push((epoch, place));
        } else {
            state.give_back(place);
        }
    }

    /// From now on followers read versions from the epoch `pinned` on, or there are none. `epoch`: of the newest durable version,
    /// which no older one is shown after. Places that followers do not need any more are free.
    pub fn pin(&self, pinned: Option<u64>, epoch: u64) {
        let mut state = self.state.lock();
        state.pinned = pinned;
        state.epoch = state.epoch.max(epoch);
        let is_free = |died: u64| pinned.is_none_or(|pinned| died <= pinned);
        let free: Vec<_> = state.waiting.extract_if(.., |(died, _)| is_free(*died)).collect();
        free.into_iter().for_each(|(_, place)| state.give_back(place));
    }

    /// While a database is opened: followers may read whatever is free now, since versions before `epoch` are not known.
    pub fn pin_all_free(&self, epoch: u64) {
        let mut state = self.state.lock();
        let extents = [std::mem::take(&mut state.dirty), std::mem::take(&mut state.clean)];
        for (start, len) in extents.into_iter().flat_map(|extents| extents.by_start) {
            state.count_used(len);
            state.waiting.push((epoch, Extent { start, len }));
        }
    }

    /// Places that wait for followers (count).
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Granules that some version or snapshot holds.
    pub fn used(&self) -> usize {
        self.state.lock().used
    }

    /// Begins a new round with each flush, which is expected to need about as much as the last.
    pub fn begin_round(&self) {
        let mut state = self.state.lock();
        let forgotten = state.peak_before.saturating_sub(state.peak).div_ceil(4);
        state.peak_before = state.peak.max(state.peak_before - forgotten);
        state.peak = state.used;
    }

    /// How many granules fewer are in use than at the peak of this round and those before.
    pub fn below_peak(&self) -> usize {
        let state = self.state.lock();
        state.peak.max(state.peak_before) - state.used
    }

    /// Takes free granules whose disk space should go back to the file system: all but `keep` of them, and at
    /// most `most`. They are out of circulation until [`Slots::cleaned`] or [`Slots::still_dirty`] is called
    /// with them.
    pub fn take_dirty(&self, keep: usize, most: usize) -> Vec<Extent> {
        let mut state = self.state.lock();
        let mut left = state.dirty.granules.saturating_sub(keep).min(most);
        let mut taken = Vec::new();
        while left > 0
            && let Some(place) = state.dirty.pop_last(left.min(RELEASED_MAX as usize) as u32)
        {
            left -= place.len as usize;
            taken.push(place);
        }
        taken
    }

    /// Takes back places that are not to be offered again: their space was given back, or cannot be.
    pub fn cleaned(&self, places: Vec<Extent>) {
        let mut state = self.state.lock();
        places.into_iter().for_each(|place| state.clean.insert(place));
    }

    /// Takes back places whose space was not given back.
    pub fn still_dirty(&self, places: Vec<Extent>) {
        let mut state = self.state.lock();
        places.into_iter().for_each(|place| state.dirty.insert(place));
    }

    /// Free granules that may hold disk space.
    pub fn dirty_count(&self) -> usize {
        self.state.lock().dirty.granules
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::segment::Segment;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn place(start: u32, len: u32) -> Extent {
        Extent { start, len }
    }

    #[test]
    fn a_place_is_free_only_when_no_handle_is_left() {
        let slots = Arc::new(Slots::default());
        let first = Segment::new(1, slots.take(1, 4), &slots);
        let snapshot = Arc::clone(&first);
        assert_eq!((first.start, slots.take(1, 4)), (0, place(4, 4)));
        drop(first);
        assert_eq!(slots.dirty_count(), 0, "a snapshot still reads from it");
        drop(snapshot);
        assert_eq!((slots.dirty_count(), slots.take(1, 4)), (4, place(0, 4)));
    }

    #[test]
    fn what_a_segment_leaves_behind_its_end_is_taken_by_the_next() {
        let slots = Arc::new(Slots::default());
        let first = Segment::new(1, slots.take(1, 100), &slots);
        first.end_at(2 * GRANULE + 1);
        assert_eq!((first.room(), slots.used()), (3 * GRANULE, 3));
        let second = Segment::new(2, slots.take(1, 100), &slots);
        assert_eq!((second.start, second.granules(), slots.next()), (3, 97, 100));
        first.end_at(3 * GRANULE);
        drop(first);
        assert_eq!(slots.take(1, 1), place(0, 1));
        assert_eq!(slots.take(4, 9), place(100, 9), "two granules are not enough");
        assert_eq!(slots.take(1, 9), place(109, 9), "less than a quarter, and little is free");
    }

    #[test]
    fn the_peak_is_forgotten_slowly() {
        let slots = Arc::new(Slots::default());
        let take = |count| {
            (0..count).map(|number| Segment::new(number, slots.take(1, 1), &slots)).collect::<Vec<_>>()
        };
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
        assert!(slots.claim(place(2, 2)));
        assert!(slots.claim(place(0, 1)));
        for again in [place(2, 2), place(1, 2), place(3, 1), place(3, 4)] {
            assert!(!slots.claim(again), "{again:?}");
        }
        assert_eq!((slots.take(1, 1), slots.take(1, 1)), (place(1, 1), place(4, 1)));
    }

    #[test]
    fn clean_places_come_back_after_their_space_was_given_up() {
        let slots = Slots::default();
        for _ in 0..3 {
            slots.take(1, 1);
        }
        (0..3).for_each(|start| slots.give_back(place(start, 1)));
        let dirty = slots.take_dirty(1, 9);
        assert_eq!(dirty, [place(1, 2)]);
        slots.cleaned(dirty);
        let taken = [(); 4].map(|()| slots.take(1, 1).start);
        assert_eq!(taken, [0, 1, 2, 3]);
    }

    #[test]
    fn a_free_end_is_cut_off_if_its_space_was_given_back() {
        let slots = Slots::default();
        let places: Vec<_> = (0..3).map(|_| slots.take(100, 100)).collect();
        slots.keep_long(30);
        let would_cut = || slots.cut_off(Err::<(), u32>).err();
        assert_eq!(would_cut(), None, "all of it is in use");
        slots.give_back(places[2]);
        assert_eq!(would_cut(), None, "it has its space");
        let dirty = slots.take_dirty(0, usize::MAX);
        assert_eq!(would_cut(), None, "another thread is about to give it back");
        slots.cleaned(dirty);
        assert_eq!(would_cut(), Some(200));
        assert_eq!((slots.next(), would_cut()), (300, Some(200)), "that was refused");
        assert_eq!(slots.cut_off(|_| Ok::<_, ()>(())), Ok(true));
        assert_eq!((slots.next(), would_cut()), (200, None));
        // The file grows again at its end.
        assert_eq!(slots.take(150, 150), Extent { start: 200, len: 150 });
        slots.give_back(Extent { start: 0, len: 350 });
        slots.cleaned(slots.take_dirty(0, usize::MAX));
        assert_eq!(would_cut(), Some(30), "so many must stay");
        let few = slots.take(350 - CUT_MIN + 1, 350 - CUT_MIN + 1);
        assert_eq!((few.start, would_cut()), (0, None), "few are not worth it");
    }

    proptest! {
        /// No granule is in two places, whatever is taken, ended, given back and released.
        #[test]
        fn no_granule_is_taken_twice(steps in prop::collection::vec((0u8..7, 1u32..9, any::<u16>()), 1..200)) {
            let slots = Arc::new(Slots::default());
            let mut segments: Vec<Arc<Segment>> = Vec::new();
            for (what, len, which) in steps {
                let which = usize::from(which) % segments.len().max(1);
                match what {
                    0 | 1 => segments.push(Segment::new(0, slots.take(len.div_ceil(2), len), &slots)),
                    2 if !segments.is_empty() => drop(segments.swap_remove(which)),
                    3 if !segments.is_empty() => segments[which].end_at(u64::from(len) * GRANULE),
                    4 => {
                        let end = segments.iter().map(|one| one.start + one.granules() as u32).max().unwrap_or(0);
                        let cut = |to: u32| if to < end { Err(TestCaseError::fail(format!("{to} of {end}"))) } else { Ok(()) };
                        slots.cut_off(cut)?;
                    }
                    _ => {
                        let dirty = slots.take_dirty(0, len as usize);
                        if which.is_multiple_of(2) { slots.cleaned(dirty) } else { slots.still_dirty(dirty) }
                    }
                }
                let mut places: Vec<_> = segments.iter().map(|one| (one.start, one.granules() as u32)).collect();
                places.sort_unstable();
                prop_assert!(places.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{:?}", places);
                let used: usize = segments.iter().map(|one| one.granules()).sum();
                let state = slots.state.lock();
                prop_assert_eq!(used, state.used);
                prop_assert_eq!(used + state.dirty.granules + state.clean.granules, state.next as usize);
            }
        }
    }

    /// An underflow: no space was given back until the next flush.
    #[test]
    fn places_that_are_pinned_at_the_opening_count_for_the_peak() {
        let slots = Slots::default();
        slots.give_back(slots.take(1, 100));
        // As if they had been found free.
        (0..100).for_each(|_| slots.begin_round());
        slots.pin_all_free(7);
        assert_eq!((slots.used(), slots.below_peak()), (100, 0));
        slots.pin(None, 7);
        assert_eq!((slots.used(), slots.below_peak()), (0, 100));
    }
}
