//! **trees**: the published B+-trees for flash, and what their papers compare them with, each a composition of shared
//! parts.
//!
//! ```text
//! page ← store ← buffer ← { queue, log } ← update, read ← system
//! ```
//! No part knows a system, no system another. Every system is an [`Index`]: records are `u64` key → `u64` value, as in the
//! papers' experiments, and it runs on any [`psync::Volume`]: a directory with direct I/O, or a simulated device.
//!
//! | system | source | placement | what it gathers in memory |
//! |---|---|---|---|
//! | [`PioTree`] | Roh et al., VLDB 2011 | in place, append-only leaves | updates (OPQ), brought to the tree as one batch |
//! | [`BlinkTree`] | Lehman and Yao, TODS 1981 | in place | dirty pages (LRU), for many threads |
//! | [`BTree`] | the baseline of all | in place | dirty pages (LRU) |

mod buffer;
mod counters;
mod error;
mod index;
mod log;
mod model;
mod page;
mod queue;
mod read;
mod store;
mod system;
mod update;

pub use counters::Counters;
pub use error::{Error, Result};
pub use index::{Checked, Contract, Index};
pub use model::device_times::{DeviceTimes, PageTimes};
pub use model::level_table::{Cost, Load};
pub use model::tuning::{Choice, tune_btree, tune_pio};
pub use model::{equations, level_table, tuning};
pub use page::{Key, Value};
pub use system::blink::{BlinkOptions, BlinkTree};
pub use system::btree::{BTree, BTreeOptions};
pub use system::pio::concurrent::SharedPioTree;
pub use system::pio::{LogMode, PioOptions, PioTree};
