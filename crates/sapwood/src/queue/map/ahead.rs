//! The entries of a map in order, read ahead: while those of one leaf are eaten, those of the next are brought into the cache.
//! (prange, `tree/range.rs`, one storey higher.)

use super::Map;
use super::entry::{Entry, Key};
use super::search::{Goal, Page};

/// See the module.
pub(crate) struct Ahead<'a> {
    map: &'a Map,
    page: Option<Page<'a>>,
    next: Option<Page<'a>>,
}

impl Map {
    /// The entries from this key on (none: all). What is inserted meanwhile may be left out.
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
