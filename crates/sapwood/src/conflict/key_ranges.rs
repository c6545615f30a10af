//! A set of keys as half-open ranges, `[start, end)`: what iterators of a transaction have read, or what it removes at once.
//!
//! Invariant: ranges are disjoint and do not touch one another.

use crate::bounds::is_below;
use crate::operation::KeyRange;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Memory of a range beside its bytes: a place in a B-tree's node, and the headers of its allocations.
const ENTRY: usize = 80;

/// Disjoint ranges: from their starts to their ends, `None` for no end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KeyRanges(BTreeMap<Bytes, Option<Bytes>>);

impl KeyRanges {
    pub fn contains(&self, key: &[u8]) -> bool {
        self.range_of(key).is_some()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Where ranges begin, in order.
    pub fn starts(&self) -> impl Iterator<Item = &Bytes> {
        self.0.keys()
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Bytes, Option<&Bytes>)> {
        self.0.iter().map(|(start, end)| (start, end.as_ref()))
    }

    /// The ranges, in order.
    pub fn into_ranges(self) -> impl Iterator<Item = (Bytes, Option<Bytes>)> {
        self.0.into_iter()
    }

    /// Bytes that a range takes, about.
    pub fn bytes_of(start: &Bytes, end: Option<&Bytes>) -> usize {
        start.len() + end.map_or(0, Bytes::len) + ENTRY
    }

    /// Bytes of memory taken, about.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(start, end)| Self::bytes_of(start, end.as_ref())).sum()
    }

    /// The range that has this key.
    pub fn range_of(&self, key: &[u8]) -> Option<(&Bytes, Option<&Bytes>)> {
        let before = self.0.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
        before.map(|(start, end)| (start, end.as_ref())).filter(|(_, end)| is_below(key, *end))
    }

    /// The first key of what lies in both.
    pub fn first_in(&self, range: KeyRange<'_>) -> Option<Bytes> {
        if self.contains(range.from) {
            return Some(Bytes::copy_from_slice(range.from));
        }
        let above = self.0.range::<[u8], _>((Bound::Excluded(range.from), Bound::Unbounded)).next();
        above.map(|(start, _)| start.clone()).filter(|start| range.to.is_none_or(|to| &start[..] < to))
    }

    /// Adds a range, and returns by how many bytes the set has grown or shrunk.
    pub fn add(&mut self, mut start: Bytes, mut end: Option<Bytes>) -> isize {
        if !is_below(&start, end.as_ref()) {
            return 0;
        }
        let mut grown = 0;
        let reaches = |end: &Option<Bytes>, key: &[u8]| end.as_ref().is_none_or(|end| key <= &end[..]);
        let before = self.0.range::<[u8], _>((Bound::Unbounded, Bound::Included(&start[..]))).next_back();
        if let Some((low, _)) = before.filter(|(_, high)| reaches(high, &start)) {
            start = low.clone();
        }
        while let Some((low, high)) =
            self.0.range::<[u8], _>((Bound::Included(&start[..]), Bound::Unbounded)).next()
            && reaches(&end, low)
        {
            let (low, high) = (low.clone(), high.clone());
            grown -= Self::bytes_of(&low, high.as_ref()) as isize;
            self.0.remove(&low);
            end = match (end, high) {
                (Some(end), Some(high)) => Some(end.max(high)),
                _ => None,
            };
        }
        grown += Self::bytes_of(&start, end.as_ref()) as isize;
        self.0.insert(start, end);
        grown
    }
}
