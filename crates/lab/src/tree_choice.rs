//! The trees that an experiment compares, each with the nodes that its own method chooses on the measured device: the
//! PIO B-tree by its cost model, the B+-tree by the utility of a page for its cost (Roh et al., PVLDB 5(4), 2011, equation
//! 3).

use crate::experiment::Scale;
use crate::failure::{Failure, Result};
use crate::quantity::Clock;
use crate::tree_ground::{TreeGround, TreeSize};
use crate::tree_times;
use trees::{BTreeOptions, Choice, DeviceTimes, Eviction, Load, LogMode, PioOptions, equations, tune_pio};

/// Two buffers, by the names of their lines: the one that the cost model of the paper assumes, and the one that its
/// experiments had.
pub(crate) const BUFFERS: [(Eviction, &str); 2] =
    [(Eviction::LowestLevel, "by level"), (Eviction::Lru, "LRU")];

/// Node sizes of a B+-tree, from what devices take on to what they were measured for: as long as the longest leaves of the
/// PIO B-tree.
const NODES: [usize; 5] = [4096, 8192, 16384, 32768, 65536];

/// The same in words, for settings.
pub(crate) fn node_sizes() -> String {
    format!("{} to {} KiB", NODES[0] >> 10, NODES[NODES.len() - 1] >> 10)
}

/// What the device takes under a file as large as the trees will be.
pub(crate) fn times<C: Clock>(place: &TreeGround<C>, scale: Scale) -> Result<DeviceTimes> {
    let size = TreeSize::of(scale);
    let len = (size.records * 32).next_multiple_of(1 << 20);
    tree_times::measure(place, len, Load::default().pio_max as usize)
}

/// A load on the trees of a scale.
pub(crate) fn load(size: TreeSize, updates: f64, eviction: Eviction) -> Load {
    let memory = (size.memory_pages * 4096) as f64;
    Load { records: size.records as f64, memory, updates, eviction, ..Load::default() }
}

/// The PIO B-tree that the model chooses. Nothing is logged: the trees that it is compared with log nothing either.
pub(crate) fn pio(times: &DeviceTimes, load: &Load) -> Result<PioOptions> {
    Ok(PioOptions { log: LogMode::Off, ..PioOptions::tuned(times, load)? })
}

/// The PIO B-tree of pages of 4 KiB whose leaves the model chooses.
pub(crate) fn pio_of_4k(times: &DeviceTimes, load: &Load) -> Result<Choice> {
    chosen(times, load, Some(4096))
}

/// The PIO B-tree whose pages and leaves the model chooses.
pub(crate) fn free(times: &DeviceTimes, load: &Load) -> Result<Choice> {
    chosen(times, load, None)
}

fn chosen(times: &DeviceTimes, load: &Load, page_len: Option<usize>) -> Result<Choice> {
    let none =
        || Failure::CannotRun(format!("{:.0} bytes of memory are too few for a PIO B-tree", load.memory));
    tune_pio(times, load, page_len).ok_or_else(none)
}

/// The B+-tree of the node size with the greatest utility for its cost, of those that fit into the memory.
pub(crate) fn btree(times: &DeviceTimes, load: &Load) -> Result<BTreeOptions> {
    let utility = |page_len: &usize| equations::utility_per_cost(times, *page_len);
    let fits = |page_len: &usize| *page_len as f64 <= load.memory;
    let best = NODES.into_iter().filter(fits).max_by(|one, two| utility(one).total_cmp(&utility(two)));
    let page_len =
        best.ok_or_else(|| Failure::CannotRun(format!("{:.0} bytes of memory hold no node", load.memory)))?;
    Ok(btree_of(page_len, load))
}

/// A B+-tree of nodes of `page_len` bytes.
pub(crate) fn btree_of(page_len: usize, load: &Load) -> BTreeOptions {
    let frames = (load.memory / page_len as f64) as usize;
    BTreeOptions { page_len, frames, eviction: load.eviction, ..BTreeOptions::default() }
}
