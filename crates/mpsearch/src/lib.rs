//! **mpsearch**: which nodes of a tree to read together.
//!
//! Pure planning, no I/O of its own, for any tree of sorted nodes:
//! - [`mpsearch`]: many keys go down a tree level by level, and the nodes that a level needs are read in groups of
//!   at most PioMax, each with one parallel read ([`Tree::read`]).
//! - [`fan_out`]: the keys that reached an inner node, divided among its children.
//! - [`ReadAhead`] and [`runs`]: the parallel range search, prange: how many leaves to read next, and which of them
//!   lie so close together that one request brings them all.
//!
//! Sources: Roh et al., "B+-tree Index Optimization by Exploiting Internal Parallelism of Flash-based Solid State
//! Drives", VLDB 2011, section 3.1.1; Roh, Park, Shin and Lee, "MPSearch: Multi-Path Search for Tree-based Indexes to
//! Exploit Internal Parallelism of Flash SSDs", IEEE Data Engineering Bulletin 2014.

mod mpsearch;
mod prange;

pub use mpsearch::{Tree, Visit, fan_out, mpsearch};
pub use prange::{Extent, ReadAhead, Run, runs};
