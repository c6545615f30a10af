//! Self-tuning (VLDB 2011, section 3.6): from what the device takes and what is to be done, how long leaves are and how much memory
//! the OPQ gets. (Equation 10 over the level table.)

use crate::model::device_times::DeviceTimes;
use crate::model::equations;
use crate::model::level_table::{Cost, Load, btree, map_pages, pio};
use serde::{Deserialize, Serialize};

/// A point of the grid, and what the model says of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Bytes of a page.
    pub page_len: usize,
    /// L: segments of a leaf; 1 for the B+-tree.
    pub segments: usize,
    /// O: pages of OPQ; 0 for the B+-tree.
    pub queue_pages: usize,
    /// What the model expects.
    pub cost: Cost,
}

/// Pages of 2 to 64 KiB, as far as the device takes them: its times tell the smallest.
fn pages(times: &DeviceTimes) -> Vec<usize> {
    let smallest = times.sizes.first().map_or(usize::MAX, |size| size.bytes);
    PAGES.into_iter().filter(|page_len| *page_len >= smallest).collect()
}

/// Pages of 2 to 64 KiB.
const PAGES: [usize; 6] = [2048, 4096, 8192, 16384, 32768, 65536];
/// L.
const SEGMENTS: [usize; 5] = [1, 2, 4, 8, 16];
/// Bytes of the longest node, inner or leaf, of either tree: what devices are measured for.
const NODE_MAX: usize = 65536;

/// All points of the grid for a PIO B-tree: the pages given, L of 1 to 16 as far as a leaf has at most 64 KiB, O of 1 page to half
/// of the memory, doubling, as far as they leave a page for the buffer.
pub fn grid(times: &DeviceTimes, load: &Load, pages: &[usize]) -> Vec<Choice> {
    let mut points = Vec::new();
    for page_len in pages {
        let half = (load.memory / *page_len as f64 / 2.0).max(1.0);
        let queues = std::iter::successors(Some(1usize), |queue| Some(queue * 2));
        let queues: Vec<_> = queues.take_while(|queue| *queue as f64 <= half).collect();
        for segments in SEGMENTS.into_iter().filter(|segments| segments * page_len <= NODE_MAX) {
            let map = map_pages(load.records, *page_len, segments);
            let fits = |queue: &&usize| load.memory / *page_len as f64 - **queue as f64 - map.ceil() >= 1.0;
            for queue_pages in queues.iter().filter(fits) {
                let cost = pio(times, load, *page_len, segments, *queue_pages as f64);
                points.push(Choice { page_len: *page_len, segments, queue_pages: *queue_pages, cost });
            }
        }
    }
    points
}

/// The cheapest PIO B-tree for a load. `page_len` fixes the page size.
pub fn tune_pio(times: &DeviceTimes, load: &Load, page_len: Option<usize>) -> Option<Choice> {
    let pages = page_len.map_or_else(|| pages(times), |page_len| vec![page_len]);
    grid(times, load, &pages).into_iter().min_by(|one, two| one.cost.mixed.total_cmp(&two.cost.mixed))
}

/// The PIO B-tree of the published tuner: equation (10), the least of equation (9) over L and O for pages of `page_len` bytes. `None`
/// if equation (9) says nothing of any point, as it does where everything fits into the memory.
pub fn tune_as_published(times: &DeviceTimes, load: &Load, page_len: usize) -> Option<Choice> {
    let point = |choice: Choice| {
        let cost = equations::pio_cost(times, load, page_len, choice.segments, choice.queue_pages as f64)?;
        Some(Choice { cost, ..choice })
    };
    let points = grid(times, load, &[page_len]).into_iter().filter_map(point);
    points.min_by(|one, two| one.cost.mixed.total_cmp(&two.cost.mixed))
}

/// The cheapest B+-tree for a load.
pub fn tune_btree(times: &DeviceTimes, load: &Load) -> Option<Choice> {
    pages(times)
        .into_iter()
        .filter(|page_len| *page_len as f64 <= load.memory)
        .map(|page_len| Choice { page_len, segments: 1, queue_pages: 0, cost: btree(times, load, page_len) })
        .min_by(|one, two| one.cost.mixed.total_cmp(&two.cost.mixed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::device_times::tests::guess;

    /// Node sizes are bounded alike for all trees, and by what devices are measured for.
    #[test]
    fn no_node_is_longer_than_the_longest_that_is_measured() {
        let times = guess();
        let longest = pages(&times).into_iter().max();
        assert_eq!(longest, Some(NODE_MAX));
        let points = grid(&times, &Load::default(), &pages(&times));
        let leaves: Vec<_> = points.iter().map(|point| point.page_len * point.segments).collect();
        assert_eq!(leaves.iter().max(), longest.as_ref());
        // Where larger nodes cost no more, the B+-tree has the largest.
        let flat = DeviceTimes {
            sizes: [4096, 65536].map(|bytes| crate::PageTimes { bytes, ..times.page(4096) }).to_vec(),
        };
        assert_eq!(tune_btree(&flat, &Load::default()).map(|choice| Some(choice.page_len)), Some(longest));
    }

    #[test]
    fn the_published_tuner_is_the_least_of_equation_9() {
        for updates in [0.1, 0.5, 0.9] {
            let load = Load { updates, ..Load::default() };
            let choice = tune_as_published(&guess(), &load, 4096).unwrap();
            for point in grid(&guess(), &load, &[4096]) {
                let cost = equations::pio(&guess(), &load, 4096, point.segments, point.queue_pages as f64);
                assert!(cost.is_none_or(|cost| cost >= choice.cost.mixed), "{point:?} {choice:?}");
            }
        }
        assert_eq!(tune_as_published(&guess(), &Load { records: 1e4, ..Load::default() }, 4096), None);
    }

    #[test]
    fn more_updates_want_more_queue() {
        let load = |updates| Load { updates, ..Load::default() };
        let queues: Vec<_> = [0.01, 0.3, 0.9]
            .map(|updates| tune_pio(&guess(), &load(updates), Some(4096)).unwrap().queue_pages)
            .to_vec();
        assert!(queues.is_sorted() && queues[0] < queues[2], "{queues:?}");
        let choice = tune_pio(&guess(), &load(0.5), None).unwrap();
        let grid = grid(&guess(), &load(0.5), &pages(&guess()));
        assert!(grid.iter().all(|point| point.cost.mixed >= choice.cost.mixed));
    }
}
