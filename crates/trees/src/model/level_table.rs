//! The cost model level by level, with real nodes instead of real numbers: how many nodes each level has, how much of it the
//! buffer holds under its policy (`residence.rs`), and what an operation costs on the levels that it does not hold. It
//! replaces the published equations ([`super::equations`]) where these break: leaves larger than inner nodes, trees that fit
//! into memory, a pool that is not the one they assume, batches that pass every node of a level.
//!
//! A psync of n requests is taken to last as long as one request and n - 1 times the same bit more, so that a set of
//! PioMax takes what was measured, and one request too.

use crate::buffer::frames::Eviction;
use crate::model::device_times::DeviceTimes;
use crate::model::residence::{Population, Rhythm, residence, searches_alone};
use crate::page::leaf_segments::{ENTRY, per_segment};
use crate::page::node::Shape;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// How full nodes are on average: ln 2.
pub(crate) const UTILISATION: f64 = 0.69;

/// What is to be done, and with how much memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// N: records.
    pub records: f64,
    /// M: bytes of memory.
    pub memory: f64,
    /// Ri: the share of updates, 0 to 1; the rest are searches.
    pub updates: f64,
    /// bcnt: most operations that one batch update takes.
    pub bcnt: f64,
    /// PioMax: most requests in one psync.
    pub pio_max: f64,
    /// What the buffer evicts first.
    pub eviction: Eviction,
}

impl Default for Load {
    /// The paper's: 10^9 records, 16 MB, half of the operations updates, bcnt 5000, PioMax 64, LRU.
    fn default() -> Self {
        Self {
            records: 1e9,
            memory: 16e6,
            updates: 0.5,
            bcnt: 5000.0,
            pio_max: 64.0,
            eviction: Eviction::Lru,
        }
    }
}

impl Load {
    /// Whether it makes sense.
    pub(crate) fn validate(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Invalid(what));
        let at_least_one = |number: f64| number.is_finite() && number >= 1.0;
        if !(0.0..=1.0).contains(&self.updates) {
            return wrong(format!("a share of updates of {}: 0 to 1", self.updates));
        }
        let numbers = [
            ("records", self.records),
            ("bytes of memory", self.memory),
            ("operations of a batch (bcnt)", self.bcnt),
            ("requests of a psync (PioMax)", self.pio_max),
        ];
        match numbers.into_iter().find(|(_, number)| !at_least_one(*number)) {
            Some((what, number)) => wrong(format!("{number} {what}: at least 1")),
            None => Ok(()),
        }
    }
}

/// Microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Of a point search.
    pub search: f64,
    /// Of an update.
    pub update: f64,
    /// Of an operation of the load.
    pub mixed: f64,
}

impl Cost {
    pub(crate) fn of(load: &Load, search: f64, update: f64) -> Self {
        Self { search, update, mixed: load.updates * update + (1.0 - load.updates) * search }
    }
}

/// Levels from the root down to the leaves.
fn levels(records: f64, per_leaf: f64, fanout: f64, leaf_pages: f64) -> Vec<Population> {
    let mut levels = vec![Population { nodes: (records / per_leaf).ceil().max(1.0), pages: leaf_pages }];
    while levels.last().is_some_and(|last| last.nodes > 1.0) {
        let nodes = levels.last().map_or(1.0, |last| (last.nodes / fanout).ceil());
        levels.push(Population { nodes, pages: 1.0 });
    }
    levels.reverse();
    levels
}

/// What a B+-tree of pages of `page_len` bytes costs.
pub fn btree(times: &DeviceTimes, load: &Load, page_len: usize) -> Cost {
    let shape = Shape::of_page(page_len);
    let page = times.page(page_len);
    let per_leaf = shape.records as f64 * UTILISATION;
    let levels = levels(load.records, per_leaf, shape.fanout as f64 * UTILISATION, 1.0);
    let held = searches_alone(load.eviction, &levels, load.memory / page_len as f64);
    let search: f64 = held.iter().map(|held| (1.0 - held) * page.read).sum();
    // A dirty leaf is written when it is evicted; one that stays in memory is not written for each update.
    let written = held.last().map_or(0.0, |held| (1.0 - held) * page.write);
    // And now and then a leaf is divided: two more pages, the new leaf and its parent.
    let split = 2.0 * page.write / (per_leaf / 2.0);
    Cost::of(load, search, search + written + split)
}

/// The share of each of these levels, told as nodes of a page from the top down, that an LRU pool of so many pages holds under
/// uniform searches of one node a level.
pub fn held_by_lru(nodes: &[f64], pages: f64) -> Vec<f64> {
    let level = |nodes: &f64| Population { nodes: nodes.max(1.0), pages: 1.0 };
    searches_alone(Eviction::Lru, &nodes.iter().map(level).collect::<Vec<_>>(), pages)
}

/// How long `requests` take that go out in sets of at most PioMax: `alone` is the time of one, `share` that of one in a
/// full set.
fn sets(requests: f64, pio_max: f64, alone: f64, share: f64) -> f64 {
    if pio_max <= 1.0 || requests <= 1.0 {
        return requests * alone;
    }
    let more = (pio_max * share - alone).max(0.0) / (pio_max - 1.0);
    (requests / pio_max).ceil() * (alone - more) + requests * more
}

/// What a PIO B-tree costs, with leaves of `segments` pages and `queue_pages` pages of OPQ.
pub fn pio(times: &DeviceTimes, load: &Load, page_len: usize, segments: usize, queue_pages: f64) -> Cost {
    let shape = Shape::of_page(page_len);
    let page = times.page(page_len);
    let whole = times.page(page_len * segments);
    let per_leaf = (segments * per_segment(page_len)) as f64 * UTILISATION;
    let frames = load.memory / page_len as f64 - queue_pages - map_pages(load.records, page_len, segments);
    let levels = levels(load.records, per_leaf, shape.fanout as f64 * UTILISATION, segments as f64);
    let queued = queue_pages * (page_len / ENTRY) as f64;
    // A batch takes this many, from so much of the key range.
    let batch = queued.min(load.bcnt).max(1.0);
    let span = (batch / queued).min(1.0);
    let passed = |level: &Population| {
        let within = (level.nodes * span).max(1.0);
        (within * -f64::exp_m1(-batch / within)).max(1.0)
    };
    let passed: Vec<f64> = levels.iter().map(passed).collect();
    let searches = batch * (1.0 - load.updates) / load.updates.max(1e-9);
    let rhythm = Rhythm { searches, passed: passed.clone(), pio_max: load.pio_max };
    let held = residence(load.eviction, &levels, frames, &rhythm);
    let leaf = levels.len() - 1;
    let search = held.of_search[..leaf].iter().map(|held| (1.0 - held) * page.read).sum::<f64>()
        + (1.0 - held.of_search[leaf]) * whole.read;
    let read = |count: f64| sets(count, load.pio_max, page.read, page.psync_read);
    let write = |count: f64| sets(count, load.pio_max, page.write, page.psync_write);
    let descent: f64 = (0..leaf).map(|level| read(passed[level] * (1.0 - held.of_batch[level]))).sum();
    // One segment read and one written for each leaf that the batch touches.
    let touched = read(passed[leaf]) + write(passed[leaf]);
    // And now and then a leaf is shrunk or divided.
    let shrunk = (whole.psync_read + 2.0 * whole.psync_write) / (per_leaf / 2.0);
    Cost::of(load, search, (descent + touched) / batch + shrunk)
}

/// Pages that the LSMap takes.
pub(crate) fn map_pages(records: f64, page_len: usize, segments: usize) -> f64 {
    let leaves = records / ((segments * per_segment(page_len)) as f64 * UTILISATION);
    let bits = if segments == 1 { 0 } else { usize::BITS - (segments / 2 + 1).leading_zeros() };
    leaves * f64::from(bits) / 8.0 / page_len as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::device_times::tests::guess;

    fn load(updates: f64) -> Load {
        // The specification's values are of a buffer that holds the upper levels.
        Load { updates, eviction: Eviction::LowestLevel, ..Load::default() }
    }

    /// The specification's sanity values for this device guess: B+-tree insert about 150 us, PIO update 22 to 28 us (ratio
    /// 5.6 to 6.7), half and half about 1.8, searches 0.95 to 1.1.
    #[test]
    fn sanity_values() {
        let times = guess();
        let btree = btree(&times, &load(0.5), 4096);
        assert!((130.0..190.0).contains(&btree.update), "{btree:?}");
        let small = pio(&times, &load(0.5), 4096, 1, 1.0);
        // With one page of queue every node above the leaves is read anew.
        assert!((28.0..36.0).contains(&small.update), "{small:?}");
        let pio = pio(&times, &load(0.5), 4096, 1, 1000.0);
        assert!((20.0..28.0).contains(&pio.update), "{pio:?}");
        assert!((5.5..6.8).contains(&(btree.update / pio.update)), "{btree:?} {pio:?}");
        assert!((1.4..2.2).contains(&(btree.mixed / pio.mixed)), "{btree:?} {pio:?}");
        assert!((0.85..1.15).contains(&(btree.search / pio.search)), "{btree:?} {pio:?}");
    }

    #[test]
    fn a_larger_queue_makes_updates_cheaper_and_searches_dearer() {
        let times = guess();
        let cost = |queue| pio(&times, &load(0.5), 4096, 2, queue);
        let costs: Vec<_> = [1.0, 100.0, 1000.0, 3000.0].map(cost).to_vec();
        assert!(costs.is_sorted_by(|one, two| one.update >= two.update), "{costs:?}");
        assert!(costs.is_sorted_by(|one, two| one.search <= two.search), "{costs:?}");
    }

    #[test]
    fn what_fits_into_memory_costs_no_reads() {
        let small = Load { records: 1e4, updates: 0.0, ..Load::default() };
        assert_eq!(btree(&guess(), &small, 4096).search, 0.0);
        assert_eq!(pio(&guess(), &small, 4096, 4, 4.0).search, 0.0);
    }
}
