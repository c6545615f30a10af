//! How a tree changes.

pub(crate) mod bulk_load;
pub(crate) mod bupdate;
pub(crate) mod single;
pub(crate) mod split_merge;
