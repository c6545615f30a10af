//! The entries of a list in order, read ahead: one walk along the lowest level waits at every node for memory, so it is cut
//! into stretches, which are walked along in turns. Where they begin, a higher level says. (prange, `tree/range.rs`, one
//! storey higher.)
//!
//! Invariants:
//! 1. A stretch ends where the next one begins, so entries come in order, each once.
//! 2. What is inserted meanwhile may be left out.

use super::parallel::prefetch;
use super::{Entry, SkipList, load};

/// Stretches begin at nodes of this level and above: one of sixteen.
const LEVEL: usize = 2;
/// Stretches that are walked along at a time.
const STRETCHES: usize = 16;

/// See the module.
pub(crate) struct Ahead<'a> {
    /// The first entry that is in no stretch yet.
    next: Option<Entry<'a>>,
    /// Read, and not yet asked for, the last one first.
    ready: Vec<Entry<'a>>,
    stretches: Vec<Stretch<'a>>,
}

struct Stretch<'a> {
    entries: Vec<Entry<'a>>,
    at: Option<Entry<'a>>,
    end: Option<Entry<'a>>,
}

impl SkipList {
    /// The entries from this one on (none: from none on).
    pub fn ahead<'a>(&'a self, from: Option<Entry<'a>>) -> Ahead<'a> {
        Ahead { next: from, ready: Vec::new(), stretches: Vec::new() }
    }
}

impl<'a> Stretch<'a> {
    /// Takes one entry more, and asks for the one behind it. Returns false at the end.
    #[inline]
    fn step(&mut self) -> bool {
        let Some(at) = self.at else { return false };
        self.entries.push(at);
        self.at = at.next().filter(|next| Some(*next) != self.end);
        if let Some(next) = self.at {
            prefetch(next, 0);
        }
        self.at.is_some()
    }
}

impl<'a> Ahead<'a> {
    fn read(&mut self) {
        let mut used = 0;
        while let Some(first) = self.next
            && used < STRETCHES
        {
            // Up to the first node of the level, each entry is a stretch of its own.
            let end = if first.height() > LEVEL { load(first.link(LEVEL)) } else { first.next() };
            if self.stretches.len() == used {
                self.stretches.push(Stretch { entries: Vec::new(), at: None, end: None });
            }
            let stretch = &mut self.stretches[used];
            (stretch.at, stretch.end) = (Some(first), end);
            (self.next, used) = (end, used + 1);
        }
        let stretches = &mut self.stretches[..used];
        let mut walking = true;
        while walking {
            walking = false;
            for stretch in &mut *stretches {
                walking |= stretch.step();
            }
        }
        for stretch in stretches.iter_mut().rev() {
            self.ready.extend(stretch.entries.drain(..).rev());
        }
    }
}

impl<'a> Iterator for Ahead<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        if self.ready.is_empty() {
            self.read();
        }
        self.ready.pop()
    }
}
