//! How a tree changes.

pub(crate) mod batch;
pub(crate) mod bulk_load;
pub(crate) mod bupdate;
pub(crate) mod cascaded;
pub(crate) mod check_blocks;
pub(crate) mod deferred_underflow;
pub(crate) mod ghost;
pub(crate) mod in_order;
pub(crate) mod load_levels;
pub(crate) mod logged_nodes;
pub(crate) mod logged_tree;
pub(crate) mod path_rewrite;
pub(crate) mod rejoin;
pub(crate) mod single;
pub(crate) mod split_merge;
