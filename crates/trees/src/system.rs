//! The systems: each a composition of parts.

pub(crate) mod blink;
pub(crate) mod btree;
pub(crate) mod pio;
