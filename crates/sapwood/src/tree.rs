//! B+-trees over the store: search, range search and batch update. A tree does not know where its nodes are; it knows
//! ids, and the version's mapping table knows the rest.

pub(crate) mod bupdate;
pub(crate) mod candidates;
pub(crate) mod change;
pub(crate) mod change_buffer;
pub(crate) mod cleanse;
pub(crate) mod cleansing_cursor;
pub(crate) mod cleansing_prefetch;
pub(crate) mod fan;
mod keys;
pub(crate) mod lookup;
pub(crate) mod merge;
pub(crate) mod merge_runs;
pub(crate) mod overlay;
pub(crate) mod pack;
pub(crate) mod paths;
pub(crate) mod range;
pub(crate) mod range_size;
pub(crate) mod remove_blocks;
pub(crate) mod route;
pub(crate) mod sample;
mod subtree;
pub(crate) mod view;
