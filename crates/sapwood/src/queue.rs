//! The operation queue: changes that are committed but not yet in the trees.

pub(crate) mod empty_ranges;
pub(crate) mod map;
pub(crate) mod opq;
