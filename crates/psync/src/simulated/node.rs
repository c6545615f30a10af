//! One simulated file: what reads see, what surely survives power loss, and the changes between the two.
//!
//! Invariants:
//! 1. `seen` is what the changes since the file began make of it, in order;
//! 2. `durable` changes only in a sync (or where a test asks for it);
//! 3. without a failed sync, `durable` with all of `unsynced` applied is `seen`. After one it need not be: pages that
//!    the failed sync dropped are seen but no longer listed, and nothing but writing them again makes them durable.

use super::content::{Content, PAGE};
use rand::Rng;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// What happened to a file and is not durable yet.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { offset: u64, data: Arc<[u8]> },
    Resize { len: u64 },
    Release { range: Range<u64> },
}

impl Change {
    pub(super) fn apply(&self, content: &mut Content) {
        match self {
            Self::Write { offset, data } => content.write(*offset, data),
            Self::Resize { len } => content.resize(*len),
            Self::Release { range } => content.release(range.clone()),
        }
    }
}

/// A file, whatever its name.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) seen: Arc<Content>,
    pub(super) durable: Arc<Content>,
    pub(super) unsynced: Vec<Change>,
}

impl Node {
    /// A file that is durable as it is.
    pub(super) fn settled(content: Arc<Content>) -> Self {
        Self { seen: Arc::clone(&content), durable: content, unsynced: Vec::new() }
    }

    pub(super) fn change(&mut self, change: Change) {
        change.apply(Arc::make_mut(&mut self.seen));
        self.unsynced.push(change);
    }

    /// All that is listed becomes durable.
    pub(super) fn sync(&mut self) {
        if self.unsynced.is_empty() {
            return;
        }
        let durable = Arc::make_mut(&mut self.durable);
        for change in self.unsynced.drain(..) {
            change.apply(durable);
        }
    }

    /// A sync that fails the way Linux fails it: every dirty page is marked clean, whether it reached the device
    /// or not, so that no later sync tries again.
    pub(super) fn fail_sync(&mut self, random: &mut impl Rng) {
        if self.unsynced.is_empty() {
            return;
        }
        let mut reached: BTreeMap<u64, bool> = BTreeMap::new();
        let durable = Arc::make_mut(&mut self.durable);
        for change in self.unsynced.drain(..) {
            if let Change::Write { offset, data } = &change {
                for (at, part) in pieces(*offset, data, PAGE) {
                    if *reached.entry(at / PAGE).or_insert_with(|| random.random()) {
                        durable.write(at, part);
                    }
                }
            } else if random.random() {
                change.apply(durable);
            }
        }
    }

    /// Makes the file durable as it is seen.
    pub(super) fn settle(&mut self) {
        self.unsynced.clear();
        self.durable = Arc::clone(&self.seen);
    }
}

/// `data` at `offset`, cut where multiples of `unit` are.
pub(super) fn pieces(offset: u64, data: &[u8], unit: u64) -> impl Iterator<Item = (u64, &[u8])> {
    let mut at = offset;
    let end = offset + data.len() as u64;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let start = at;
        at = end.min((at / unit + 1) * unit);
        Some((start, &data[(start - offset) as usize..(at - offset) as usize]))
    })
}
