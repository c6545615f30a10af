//! What a tree keeps in memory of its nodes.

pub(crate) mod always_sequential;
pub(crate) mod buffered_nodes;
pub(crate) mod cascade;
pub(crate) mod frames;
pub(crate) mod in_place_batches;
pub(crate) mod latched_pool;
pub(crate) mod log_frames;
pub(crate) mod lru_pool;
pub(crate) mod unit_buffer;
pub(crate) mod write_buffer;
pub(crate) mod write_through;
