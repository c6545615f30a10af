//! What waits in memory to be brought to the tree.

pub(crate) mod opq;
