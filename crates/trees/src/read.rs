//! How a tree is read, other than key by key.

pub(crate) mod reach;
pub(crate) mod scan;
pub(crate) mod search_many;
pub(crate) mod subtree_scan;
pub(crate) mod walk;
