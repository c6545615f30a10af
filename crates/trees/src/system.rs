//! The systems: each a composition of parts.

pub(crate) mod as_btree;
pub(crate) mod blink;
pub(crate) mod btree;
pub(crate) mod cb_tree;
pub(crate) mod pio;
