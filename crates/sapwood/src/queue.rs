//! What was written and is not yet in the trees.

pub(crate) mod opq;
pub(crate) mod map;
