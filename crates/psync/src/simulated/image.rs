//! The bytes of one simulated file: what reads see, and what a power loss would leave.
//!
//! Invariants:
//! 1. `durable` is what the last sync covered; `unsynced` is everything since, in order.
//! 2. A sector (512 bytes) is old or new, never mixed.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const PAGE: usize = 4096;
pub(super) const SECTOR: usize = 512;

/// A sparse file. Clones share pages.
#[derive(Clone, Default)]
pub(super) struct Pages {
    pages: BTreeMap<u64, Arc<[u8; PAGE]>>,
    pub len: u64,
}

impl Pages {
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        for_pages(offset, out.len(), |page, within, range| match self.pages.get(&page) {
            Some(bytes) => out[range.clone()].copy_from_slice(&bytes[within..within + range.len()]),
            None => out[range].fill(0),
        });
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for_pages(offset, data.len(), |page, within, range| {
            let bytes = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(bytes)[within..within + range.len()].copy_from_slice(&data[range]);
        });
        self.len = self.len.max(offset + data.len() as u64);
    }

    pub fn zero(&mut self, start: u64, end: u64) {
        let first_whole = start.div_ceil(PAGE as u64);
        let last_whole = end / PAGE as u64;
        let whole: Vec<u64> = if first_whole < last_whole {
            self.pages.range(first_whole..last_whole).map(|(page, _)| *page).collect()
        } else {
            Vec::new()
        };
        for page in whole {
            self.pages.remove(&page);
        }
        for page in [start / PAGE as u64, end / PAGE as u64] {
            let (from, to) = (start.max(page * PAGE as u64), end.min((page + 1) * PAGE as u64));
            if let Some(bytes) = self.pages.get_mut(&page)
                && from < to
            {
                let within = (from - page * PAGE as u64) as usize;
                Arc::make_mut(bytes)[within..within + (to - from) as usize].fill(0);
            }
        }
    }

    pub fn resize(&mut self, len: u64) {
        if len < self.len {
            let end = self.len.next_multiple_of(PAGE as u64);
            self.zero(len, end);
            self.pages.split_off(&len.div_ceil(PAGE as u64));
        }
        self.len = len;
    }

    /// Bytes that it takes on disk.
    pub fn allocated(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }

    /// Pages that a write would add.
    pub fn would_add(&self, offset: u64, len: usize) -> u64 {
        let mut added = 0;
        for_pages(offset, len, |page, _, _| added += u64::from(!self.pages.contains_key(&page)));
        added * PAGE as u64
    }
}

fn for_pages(offset: u64, len: usize, mut visit: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = (at % PAGE as u64) as usize;
        let part = (PAGE - within).min(len - done);
        visit(at / PAGE as u64, within, done..done + part);
        done += part;
    }
}

#[derive(Clone)]
enum Change {
    Write { offset: u64, data: Arc<[u8]> },
    Resize { len: u64 },
}

/// See the module.
#[derive(Clone, Default)]
pub(super) struct Image {
    pub now: Pages,
    durable: Pages,
    unsynced: Vec<Change>,
    /// Pages that differ, or may differ, from the durable ones and are covered by the next sync.
    dirty: BTreeSet<u64>,
    resized: bool,
}

impl Image {
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.now.write(offset, data);
        for_pages(offset, data.len(), |page, _, _| {
            self.dirty.insert(page);
        });
        self.unsynced.push(Change::Write { offset, data: data.into() });
    }

    pub fn resize(&mut self, len: u64) {
        if len != self.now.len {
            self.now.resize(len);
            self.unsynced.push(Change::Resize { len });
            self.resized = true;
        }
    }

    /// A hole takes effect at once, also on the medium: the harshest thing that it may do.
    pub fn release(&mut self, start: u64, end: u64) {
        self.now.zero(start, end);
        self.durable.zero(start, end);
    }

    pub fn sync(&mut self) {
        if std::mem::take(&mut self.resized) {
            // Pages that a failed sync has doomed may become durable by this; that is one of the things that happen.
            self.durable = self.now.clone();
        } else {
            for page in &self.dirty {
                match self.now.pages.get(page) {
                    Some(bytes) => self.durable.pages.insert(*page, Arc::clone(bytes)),
                    None => self.durable.pages.remove(page),
                };
            }
            self.durable.len = self.now.len;
        }
        self.dirty.clear();
        self.unsynced.clear();
    }

    /// What a failed sync does on Linux: the pages count as clean although they never reached the medium, so that no
    /// later sync covers them.
    pub fn doom(&mut self) {
        self.dirty.clear();
        self.unsynced.clear();
        self.resized = false;
    }

    /// Makes what reads see durable, whatever happened to it (for files that a test plants).
    pub fn settle(&mut self) {
        self.resized = true;
        self.sync();
    }

    /// The file after a power loss: of what was not synced, some sectors.
    pub fn after_power_loss(&self, rng: &mut StdRng) -> Image {
        let mut pages = self.durable.clone();
        let mut changes: Vec<&Change> = self.unsynced.iter().collect();
        // How much of the unsynced survives: nothing, all, all but the end, or every sector by chance.
        let severity = rng.random_range(0..5);
        match severity {
            0 => changes.clear(),
            1 => {}
            2 if !changes.is_empty() => changes.truncate(rng.random_range(0..=changes.len())),
            _ => {
                if rng.random_bool(0.5) {
                    changes.shuffle(rng);
                }
            }
        }
        let last = changes.len().saturating_sub(1);
        let chance = [1.0, 1.0, 1.0, 0.5, rng.random_range(0.05..0.95)][severity];
        for (index, change) in changes.iter().enumerate() {
            match change {
                Change::Resize { len } => {
                    if rng.random_bool(chance) {
                        pages.resize(*len);
                    }
                }
                Change::Write { offset, data } => {
                    // Whatever else, the write that was under way may be torn.
                    let chance = if index == last && severity == 2 { 0.5 } else { chance };
                    let mut at = 0;
                    while at < data.len() {
                        let sector_end = (offset + at as u64) / SECTOR as u64 * SECTOR as u64 + SECTOR as u64;
                        let end = data.len().min((sector_end - offset) as usize);
                        if rng.random_bool(chance) {
                            pages.write(offset + at as u64, &data[at..end]);
                        }
                        at = end;
                    }
                }
            }
        }
        Image { now: pages.clone(), durable: pages, ..Image::default() }
    }
}
