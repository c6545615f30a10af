//! The stores that race in the arena, one file each, and the worker program `sapwood-peers` that holds one of them.
//!
//! With what settings each store races, and why, is explained in docs/benchmarks.md: a setting that changes here changes there.
//! Each store is a feature of this crate, so that one that cannot be built somewhere keeps nobody from racing the others.

mod store;

pub use store::{names, open};
