//! The arena: stores race against each other, each in a process of its own, all under the same memory limit, on the same disk,
//! with the same records. The race is described in docs/benchmarks.md.
//!
//! ```text
//! plan ─▶ race ─▶ worker (crates/peers, one store) inside a fence (memory cgroup), meters beside it
//!           └──▶ score: medians, ratios ─▶ table, picture, page
//! ```

mod bytes;
mod device;
mod fence;
mod meter;
mod page;
mod picture;
mod plan;
mod quiet;
mod race;
mod score;
mod table;
mod worker;

pub(crate) use bytes::parse as parse_bytes;
pub(crate) use page::page;
pub(crate) use picture::picture;
pub(crate) use plan::Plan;
pub(crate) use race::race;
pub(crate) use table::table;
pub(crate) use worker::Program;
