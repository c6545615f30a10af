//! What a PIO B-tree is built with, and how the cost model chooses it.

use crate::buffer::frames::Eviction;
use crate::model::device_times::DeviceTimes;
use crate::model::level_table::{Load, map_pages};
use crate::model::tuning::{Choice, tune_pio};
use crate::page::leaf_segments::ENTRY;
use crate::page::node::Shape;
use crate::queue::opq::Opq;
use crate::store::last_segments::LastSegments;
use crate::{Error, Result};

/// What of the updates is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogMode {
    /// Nothing: the tree survives no power loss during a batch update.
    Off,
    /// Updates are durable with the next [`Index::flush`](crate::Index::flush); a power loss leaves the state after some update since then.
    #[default]
    Buffered,
    /// Each update is durable when it returns, as published.
    Each,
}

/// What a PIO B-tree is built with.
#[derive(Clone, Debug)]
pub struct PioOptions {
    /// Bytes of a page, which is an inner node or a leaf segment: a power of two from 128 on.
    pub page_len: usize,
    /// L: segments of a leaf, 1 to 128.
    pub segments: usize,
    /// PioMax: most requests in one psync.
    pub pio_max: usize,
    /// O: pages of memory for the OPQ, at 17 bytes an entry.
    pub queue_pages: usize,
    /// Pages of memory for the buffer: M less O and what the LSMap takes.
    pub frames: usize,
    /// Arrivals in the OPQ until its tail is sorted.
    pub speriod: usize,
    /// Most operations that one batch update takes.
    pub bcnt: usize,
    /// Most children of an inner node, if less than a page holds: for tests.
    pub fanout_max: Option<usize>,
    /// What is logged.
    pub log: LogMode,
    /// What the buffer evicts first.
    pub eviction: Eviction,
    /// Whether there is an LSMap. Without one, a batch update reads whole leaves: to see what it is good for.
    pub last_segment_map: bool,
}

impl Default for PioOptions {
    fn default() -> Self {
        Self {
            page_len: 4096,
            segments: 2,
            pio_max: 64,
            queue_pages: 16,
            frames: 4080,
            speriod: 5000,
            bcnt: 5000,
            fanout_max: None,
            log: LogMode::Buffered,
            eviction: Eviction::Lru,
            last_segment_map: true,
        }
    }
}

impl PioOptions {
    /// The tree that the cost model finds cheapest for a load on a device (VLDB 2011, section 3.6): page, L and O as
    /// [`tune_pio`](crate::tune_pio) chooses them, and a buffer of what they and the LSMap leave of the memory. Measure the
    /// device with sets of the load's PioMax, on a file as large as the tree will be.
    ///
    /// ```
    /// use trees::{DeviceTimes, Load, PageTimes, PioOptions};
    /// let page = |bytes, alone, in_a_set| PageTimes {
    ///     bytes, read: alone, write: alone, psync_read: in_a_set, psync_write: in_a_set,
    /// };
    /// let times = DeviceTimes { sizes: vec![page(4096, 55.0, 11.0), page(8192, 58.0, 15.0)] };
    /// let load = Load { records: 1e8, memory: 1.6e6, updates: 0.5, ..Load::default() };
    /// let options = PioOptions::tuned(&times, &load)?;
    /// assert!((options.queue_pages + options.frames) * options.page_len <= 1_600_000);
    /// # Ok::<(), trees::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if nothing was measured, or if the load makes no sense or leaves no page for a buffer.
    pub fn tuned(times: &DeviceTimes, load: &Load) -> Result<Self> {
        load.validate()?;
        if times.sizes.is_empty() {
            return Err(Error::Invalid(
                "the device's times are empty: measure at least one page size".into(),
            ));
        }
        let choice = tune_pio(times, load, None).ok_or_else(|| {
            Error::Invalid(format!(
                "{:.0} bytes of memory for {:.0} records: a queue of one page and the LSMap leave no page for the buffer",
                load.memory, load.records
            ))
        })?;
        Self::chosen(&choice, load)
    }

    /// The tree of a point of the grid.
    ///
    /// # Errors
    /// [`Error::Invalid`] if queue and LSMap leave no page for a buffer.
    pub fn chosen(choice: &Choice, load: &Load) -> Result<Self> {
        let pages = load.memory / choice.page_len as f64;
        let map = map_pages(load.records, choice.page_len, choice.segments);
        let frames = pages - choice.queue_pages as f64 - map.ceil();
        if frames < 1.0 {
            return Err(Error::Invalid(format!(
                "{pages:.1} pages of memory: {} of queue and {map:.1} of LSMap leave none for the buffer",
                choice.queue_pages
            )));
        }
        Ok(Self {
            page_len: choice.page_len,
            segments: choice.segments,
            queue_pages: choice.queue_pages,
            frames: frames as usize,
            bcnt: load.bcnt as usize,
            pio_max: load.pio_max as usize,
            eviction: load.eviction,
            ..Self::default()
        })
    }

    pub(super) fn queue(&self) -> Opq {
        Opq::new(self.queue_pages * self.page_len / ENTRY, self.speriod)
    }

    pub(super) fn last_segments(&self) -> LastSegments {
        if self.last_segment_map {
            LastSegments::new(self.segments)
        } else {
            LastSegments::without(self.segments)
        }
    }

    pub(super) fn fanout(&self) -> usize {
        Shape::of_page(self.page_len).limited(self.fanout_max).fanout
    }

    pub(super) fn validate(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Invalid(what));
        if !(1..=128).contains(&self.segments) {
            return wrong(format!("leaves of {} segments: 1 to 128", self.segments));
        }
        if self.pio_max == 0 || self.bcnt == 0 || self.queue_pages == 0 {
            return wrong("PioMax, bcnt and the pages of the queue are at least 1".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::device_times::tests::guess;
    use crate::model::level_table::pio;
    use crate::model::tuning::grid;

    #[test]
    fn a_tuned_tree_is_the_cheapest_of_the_grid_and_fits_its_memory() {
        for updates in [0.05, 0.5, 0.95] {
            for eviction in [Eviction::Lru, Eviction::LowestLevel] {
                let load = Load { records: 1e7, memory: 4e5, updates, eviction, ..Load::default() };
                let options = PioOptions::tuned(&guess(), &load).unwrap();
                let cost =
                    pio(&guess(), &load, options.page_len, options.segments, options.queue_pages as f64);
                let grid = grid(&guess(), &load, &[4096, 8192, 16384]);
                assert!(grid.iter().all(|point| point.cost.mixed >= cost.mixed), "{options:?}");
                assert!(options.frames >= 1);
                let pages = options.queue_pages + options.frames;
                assert!((pages * options.page_len) as f64 <= load.memory, "{options:?}");
                assert_eq!(options.eviction, eviction);
            }
        }
    }

    #[test]
    fn what_cannot_be_tuned_is_told() {
        let load = Load { records: 1e7, memory: 4e5, ..Load::default() };
        let told = |times: &DeviceTimes, load: Load| PioOptions::tuned(times, &load).unwrap_err().to_string();
        assert!(told(&DeviceTimes { sizes: Vec::new() }, load).contains("measure at least one"));
        assert!(told(&guess(), Load { updates: 1.5, ..load }).contains("0 to 1"));
        assert!(told(&guess(), Load { records: f64::NAN, ..load }).contains("records"));
        assert!(told(&guess(), Load { memory: 5000.0, ..load }).contains("leave no page"));
    }
}
