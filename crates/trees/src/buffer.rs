//! What a tree keeps in memory of its nodes.

pub(crate) mod latched_pool;
pub(crate) mod lru_pool;
pub(crate) mod write_through;
