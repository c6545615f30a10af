//! One simulated file: what reads see, what certainly survives a power failure, and the changes between the
//! two.
//!
//! Invariants:
//! 1. `seen` results from all changes since the file was created, in order;
//! 2. `durable` changes only in a sync (or on request of a test);
//! 3. without a failed sync, `durable` with all of `unsynced` applied equals `seen`. After a failed sync it may
//!    not: pages that the sync dropped are seen but no longer listed;
//! 4. a page that a failed sync dropped is *stuck*: what is written there through the page cache from then on is
//!    seen, each sync of it succeeds, and nothing of it becomes durable. ext4 does so where the failed write-back
//!    has left an unwritten extent. Only cutting the page off, a hole in its place, or direct I/O ends it, or
//!    another file.

use super::content::{Content, PAGE};
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// A change of a file that is not durable yet.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { offset: u64, data: Arc<[u8]> },
    Resize { len: u64 },
    Release { range: Range<u64> },
    Allocate { range: Range<u64> },
}

impl Change {
    pub(super) fn apply(&self, content: &mut Content) {
        match self {
            Self::Write { offset, data } => content.write(*offset, data),
            Self::Resize { len } => content.resize(*len),
            Self::Release { range } => content.release(range.clone()),
            Self::Allocate { range } => content.allocate(range.clone()),
        }
    }

    /// Whether this takes bytes of `range` away, so that later content there cannot be durable before this is.
    fn takes_from(&self, range: &Range<u64>) -> bool {
        match self {
            Self::Write { .. } | Self::Allocate { .. } => false,
            Self::Resize { len } => *len < range.end,
            Self::Release { range: hole } => hole.start < range.end && range.start < hole.end,
        }
    }

    /// The rest of this change, listed before `cut`, once `cut` is durable: nothing that would bring back what
    /// was removed.
    fn before(self, cut: &Self) -> Option<Self> {
        let Self::Write { offset, data } = self else { return Some(self) };
        let data = match cut {
            Self::Resize { len } if *len <= offset => return None,
            Self::Resize { len } => data.get(..(len - offset) as usize).map_or(data.clone(), Arc::from),
            Self::Release { range } => {
                // Zeros, since its length is applied later.
                let taken = within(offset, &data, range);
                let mut data = data.to_vec();
                data[taken].fill(0);
                data.into()
            }
            Self::Write { .. } | Self::Allocate { .. } => data,
        };
        Some(Self::Write { offset, data })
    }
}

/// A file, independent of its name.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) seen: Arc<Content>,
    pub(super) durable: Arc<Content>,
    pub(super) unsynced: Vec<Change>,
    /// Numbers of the stuck pages.
    stuck: BTreeSet<u64>,
}

impl Node {
    /// A file that is durable in its current state.
    pub(super) fn durable(content: Arc<Content>) -> Self {
        Self { seen: Arc::clone(&content), durable: content, ..Self::default() }
    }

    /// Fills as much of `buffer` as there is from `offset` on, and says how much that is.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        self.seen.read(offset, buffer)
    }

    /// The same from the device. The page cache is written out first, except that stuck pages look clean.
    pub(super) fn read_directly(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let found = self.seen.read(offset, buffer);
        for page in self.stuck.range(offset / PAGE..(offset + found as u64).div_ceil(PAGE)) {
            let start = (page * PAGE).max(offset);
            let end = ((page + 1) * PAGE).min(offset + found as u64);
            let part = &mut buffer[(start - offset) as usize..(end - offset) as usize];
            part.fill(0);
            self.durable.read(start, part);
        }
        found
    }

    /// A change through the page cache.
    pub(super) fn change(&mut self, change: Change) {
        let len = self.seen.len();
        change.apply(Arc::make_mut(&mut self.seen));
        match &change {
            Change::Write { offset, data } if !self.stuck.is_empty() => {
                for (at, part) in pieces(*offset, data, PAGE) {
                    if !self.stuck.contains(&(at / PAGE)) {
                        self.unsynced.push(Change::Write { offset: at, data: part.into() });
                    }
                }
                // The length is not in the page.
                if self.seen.len() > len {
                    self.unsynced.push(Change::Resize { len: self.seen.len() });
                }
                return;
            }
            Change::Write { .. } | Change::Allocate { .. } => {}
            Change::Resize { len } => self.stuck.retain(|page| page * PAGE < *len),
            Change::Release { range } => {
                self.stuck.retain(|page| page * PAGE < range.start || range.end < (page + 1) * PAGE);
            }
        }
        self.unsynced.push(change);
    }

    /// A change that goes past the page cache.
    pub(super) fn change_directly(&mut self, change: Change) {
        if let Change::Write { offset, data } = &change {
            let pages = offset / PAGE..(offset + data.len() as u64).div_ceil(PAGE);
            self.stuck.retain(|page| !pages.contains(page));
        }
        self.change(change);
    }

    /// Makes all listed changes in `range` durable, and those other changes that its content depends on. The
    /// latter go through the file system's journal, so earlier ones of their kind are included. Everything else
    /// stays listed. The durable length becomes at least the end of what was written in the range.
    pub(super) fn sync(&mut self, range: &Range<u64>) {
        if self.unsynced.is_empty() {
            return;
        }
        let journalled =
            self.unsynced.iter().rposition(|change| change.takes_from(range)).map_or(0, |last| last + 1);
        let durable = Arc::make_mut(&mut self.durable);
        let mut left: Vec<Change> = Vec::new();
        for (index, change) in std::mem::take(&mut self.unsynced).into_iter().enumerate() {
            if let Change::Write { offset, data } = &change {
                let synced = within(*offset, data, range);
                durable.write(offset + synced.start as u64, &data[synced.clone()]);
                for part in [0..synced.start, synced.end..data.len()] {
                    if !part.is_empty() {
                        left.push(Change::Write {
                            offset: offset + part.start as u64,
                            data: data[part].into(),
                        });
                    }
                }
            } else if index < journalled {
                change.apply(durable);
                left = left.into_iter().filter_map(|earlier| earlier.before(&change)).collect();
            } else {
                left.push(change);
            }
        }
        self.unsynced = left;
    }

    /// A sync of `range` that fails as on Linux: every dirty page of it is marked clean, whether or not it
    /// reached the device, so that no later sync tries again. A page that did not reach it is stuck.
    pub(super) fn fail_sync(&mut self, range: &Range<u64>, random: &mut impl Rng) {
        if self.unsynced.is_empty() {
            return;
        }
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        let mut reached: BTreeMap<u64, bool> = BTreeMap::new();
        let durable = Arc::make_mut(&mut self.durable);
        let mut left = Vec::new();
        for change in std::mem::take(&mut self.unsynced) {
            if let Change::Write { offset, data } = &change {
                for (at, part) in pieces(*offset, data, PAGE) {
                    if !pages.contains(&(at / PAGE)) {
                        left.push(Change::Write { offset: at, data: part.into() });
                    } else if *reached.entry(at / PAGE).or_insert_with(|| random.random()) {
                        durable.write(at, part);
                    }
                }
            } else if !change.takes_from(range) {
                left.push(change);
            } else if random.random() {
                change.apply(durable);
            }
        }
        self.unsynced = left;
        self.stuck.extend(reached.into_iter().filter(|(_, reached)| !reached).map(|(page, _)| page));
    }

    /// Makes the file durable as it is seen.
    pub(super) fn make_durable(&mut self) {
        self.unsynced.clear();
        self.stuck.clear();
        self.durable = Arc::clone(&self.seen);
    }
}

/// The part of `data` at `offset` that is in `range`. An empty part still has a position.
fn within(offset: u64, data: &[u8], range: &Range<u64>) -> Range<usize> {
    let len = data.len() as u64;
    let start = range.start.saturating_sub(offset).min(len);
    let end = range.end.saturating_sub(offset).min(len);
    start as usize..end.max(start) as usize
}

/// `data` at `offset`, split at multiples of `unit`.
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
