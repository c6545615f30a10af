//! House rules as tests. One rule a file, each with its table or limits at the top, and a canary: a snippet that breaks
//! the rule and must be reported. `tests/house.rs` applies all of them to this repository.
//!
//! Invariants:
//! 1. a rule reads only the [`Tree`] it is given, so that canaries need no files;
//! 2. every [`Violation`] says where, what, why, and what to do.

mod architecture;
pub mod constants;
pub mod crate_arrows;
pub mod dead_files;
pub mod decisions;
pub mod examples;
pub mod folder_arrows;
pub mod formats;
pub mod impls;
pub mod leftovers;
pub mod length;
pub mod links;
pub mod locks;
pub mod named_tests;
pub mod opening;
pub mod places;
pub mod threads;
mod tokens;
mod tree;
pub mod unsafe_code;
mod violation;

pub use tree::{File, Tree};
pub use violation::{Violation, report};
