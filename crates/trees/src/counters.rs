//! What a tree has done and what it takes, in the units of the papers: pages, sets, frames.

use serde::{Deserialize, Serialize};

/// Totals since the tree was created or recovered, and what it takes now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Nodes or parts of them that were read from the device.
    pub pages_read: u64,
    /// Nodes or parts of them that were written to the device.
    pub pages_written: u64,
    /// Nodes that were found in memory.
    pub hits: u64,
    /// Nodes that were split.
    pub splits: u64,
    /// Nodes that were merged with a sibling.
    pub merges: u64,
    /// Nodes that took records from a sibling.
    pub redistributions: u64,
    /// Batches of updates that were brought to the device.
    pub flushes: u64,
    /// Levels, leaves included.
    pub height: u32,
    /// Bytes of memory: buffers, queues, maps.
    pub memory: u64,
    /// Bytes on the device.
    pub space: u64,
}
