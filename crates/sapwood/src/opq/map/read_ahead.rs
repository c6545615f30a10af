//! Iterates over a map in order with read-ahead: while the entries of one leaf are consumed, those of the next
//! are prefetched into the cache. (Like prange in `tree/range.rs`, one level higher.)

use super::Map;
use super::entry::{Entry, Key};
use super::search::{Goal, Page};

/// See the module documentation.
pub(crate) struct Ahead<'a> {
    map: &'a Map,
    page: Option<Page<'a>>,
    next: Option<Page<'a>>,
}

impl Map {
    /// The entries from `from` on (or all, if `None`). Concurrent insertions may be missed.
    pub fn ahead(&self, from: Option<Key<'_>>) -> Ahead<'_> {
        let mut page = self.page(from.map_or(Goal::First, Goal::At));
        if let (Some(page), Some(key)) = (&mut page, from) {
            page.skip_to(self, key);
        }
        let next = page.as_ref().and_then(|page| self.behind(page));
        Ahead { map: self, page, next }
    }

    fn behind<'a>(&'a self, page: &Page<'a>) -> Option<Page<'a>> {
        let next = self.page(Goal::At(page.upper?.key()))?;
        next.prefetch(self, usize::MAX);
        Some(next)
    }
}

impl<'a> Iterator for Ahead<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        loop {
            if let Some(entry) = self.page.as_mut()?.next(self.map) {
                return Some(entry);
            }
            self.page = self.next.take();
            self.next = self.page.as_ref().and_then(|page| self.map.behind(page));
        }
    }
}
