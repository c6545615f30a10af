//! What a tree keeps in memory of its nodes.

pub(crate) mod lru_pool;
pub(crate) mod unit_buffer;
