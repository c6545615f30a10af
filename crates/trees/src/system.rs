//! The systems: each a composition of parts.

pub(crate) mod as_btree;
pub(crate) mod btree;
