//! How a tree changes.

pub(crate) mod batch;
pub(crate) mod bulk_load;
pub(crate) mod bupdate;
pub(crate) mod cascaded;
pub(crate) mod in_order;
pub(crate) mod single;
pub(crate) mod split_merge;
