//! What was written and is not yet in the trees.

pub(crate) mod map;
pub(crate) mod opq;
