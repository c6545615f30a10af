//! **trees**: the published B+-trees for flash, and what their papers compare them with, each a composition of shared
//! parts.
//!
//! ```text
//! page ← store ← buffer ← { queue, log } ← update, read ← system
//! ```
//! No part knows a system, no system another. Every system is an [`Index`]: records are `u64` key → `u64` value, as in the
//! papers' experiments. Most run on any [`psync::Volume`]: a directory with direct I/O, or a simulated device; those that manage
//! flash themselves run on [`flash::RawFlash`].
//!
//! | system | source | placement | what it gathers in memory |
//! |---|---|---|---|
//! | [`PioTree`] | Roh et al., VLDB 2011 | in place, append-only leaves | updates (OPQ), brought to the tree as one batch |
//! | [`BlinkTree`] | Lehman and Yao, TODS 1981 | in place | dirty pages (LRU), for many threads |
//! | [`BTree`] | the baseline of all | in place | dirty pages (LRU) |
//! | [`BatchedBTree`] | what the AS B-tree is compared with, JISE 2014 | in place | changed nodes, up to a batch |
//! | [`AsTree`] | AS B-tree, JISE 2014 | always at the end, in batches; a table says where | changed nodes, up to a batch |
//! | [`CbTree`] | CB-tree, Applied Sciences 2020 | in place, or out of place with a table | the path of the last update |
//! | [`Bftl`] | Wu, Kuo and Chang, TECS 2007 | nodes scattered over appended sectors | index units of nodes |
//! | [`FdTree`] | Li et al., VLDB 2010 | sorted runs, merged into fresh space | a head tree of updates |
//! | [`RecordAsTree`] | AS-tree, as the CB-tree paper has it | always at the end; a table says where | records, brought to the tree all at once |
//! | [`Ibsf`] | Lee and Lee, DKE 2010 | in place | updates; those of the oldest one's leaf go |
//! | [`LsmTree`] | O'Neil et al., Acta Informatica 1996 | sorted runs with filters, merged into fresh space | a memtable of updates |
//! | [`BEpsilonTree`] | Brodal and Fagerberg, SODA 2003 (fractal tree) | copied to fresh pages; buffers of messages in the nodes | the root with its buffer |
//! | [`LaTree`] | Agrawal et al., VLDB 2009 | in place, and buffers of subtrees in extents | the ends of those buffers |
//! | [`IplTree`] | Lee and Moon, SIGMOD 2007 | in flash blocks, changes logged in their last slot | nodes, and a log sector of each |
//! | [`DiplTree`] | Na et al., CIKM 2009 | in flash blocks, changes logged right behind | the same |
//! | [`LuTree`] | On et al., MDM 2009 | in place | updates, grouped by leaf |
//! | [`WanderingTree`] | JFFS3, 2005 | raw flash, copy on write to the root | nothing |
//! | [`MuTree`] | Kang et al., EMSOFT 2007; Ahn et al., IEEE TC 2013 | raw flash, a whole path in a page | nothing |
//! | [`LsbTree`] | Kim and Lee, DAES 2015 | raw flash, log nodes beside leaves | one log node |
//! | [`CbFlashTree`] | CB-tree, Applied Sciences 2020 | raw flash, out of place with a table | the path of the last update |

mod buffer;
mod counters;
#[cfg(feature = "crash-matrix")]
pub mod crash_matrix;
mod error;
mod index;
mod log;
mod model;
mod page;
mod page_use;
mod queue;
mod read;
mod sound;
mod store;
mod system;
mod update;

pub use buffer::frames::Eviction;
pub use buffer::unit_buffer::{Victim, VictimPolicy};
pub use counters::Counters;
pub use error::{Error, Result};
pub use index::{Checked, Contract, Index};
pub use model::device_times::{DeviceTimes, PageTimes};
pub use model::level_table::{Cost, Load};
pub use model::measure::Stopwatch;
pub use model::tuning::{Choice, tune_as_published, tune_btree, tune_pio};
pub use model::{equations, level_table, tuning};
pub use page::glance::PageGlance;
pub use page::{Key, Value};
pub use page_use::PageUse;
pub use system::as_btree::{AsRecovery, AsStats, AsTree, AsTreeOptions, SubFile};
pub use system::b_epsilon_tree::{BEpsilonTree, BEpsilonTreeOptions};
pub use system::batched_btree::{BatchedBTree, BatchedBTreeDetails, BatchedBTreeOptions};
pub use system::bftl::{Bftl, BftlDetails, BftlOptions};
pub use system::blink::{BlinkOptions, BlinkTree};
pub use system::btree::{BTree, BTreeOptions};
pub use system::cb_flash::{CbFlashOptions, CbFlashTree};
pub use system::cb_tree::{CbPersistence, CbPlacement, CbStats, CbTree, CbTreeOptions, Sequential};
pub use system::dipl::{DiplTree, DynamicLog};
pub use system::fd_tree::{FdTree, FdTreeDetails, FdTreeLevel, FdTreeOptions, HeadLog};
pub use system::ibsf::{Ibsf, IbsfOptions, OldestUnit};
pub use system::in_page_logging::{
    BlockDetails, InPageLogging, InPageLoggingOptions, LogCommit, LogDetails, LogReads,
};
pub use system::in_place_tree::InPlaceTree;
pub use system::ipl::{FixedLog, IplTree};
pub use system::la_tree::{LaTree, LaTreeDetails, LaTreeOptions};
pub use system::lsb_tree::{LsbStats, LsbTree, LsbTreeOptions};
pub use system::lsm_tree::{LsmTree, LsmTreeDetails, LsmTreeOptions};
pub use system::lu_tree::{LuTree, LuTreeOptions};
pub use system::mu_tree::{MuLayout, MuTree, MuTreeOptions};
pub use system::pio::concurrent::SharedPioTree;
pub use system::pio::transaction::Transaction;
pub use system::pio::{Brought, LogMode, PioOptions, PioTree};
pub use system::record_as_tree::{RecordAsTree, RecordAsTreeOptions};
pub use system::unit_tree::{UnitBufferDetails, UnitTree, UnitTreeOptions, VictimChoice};
pub use system::wandering::{FlashStats, WanderingOptions, WanderingTree};
pub use update::path_rewrite::Split;
