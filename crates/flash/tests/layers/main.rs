//! One suite over every translation layer.
//!
//! - `power_loss`: exactly what was written, before and after power loss, at thousands of points;
//! - `model`: any sequence of operations against a map in memory;
//! - `costs`: merges, folds and misses cost what they should, to the operation;
//! - `drive`: files on whole drives;
//! - `faults`: blocks that fail, until none is left.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod costs;
mod drive;
mod faults;
mod harness;
mod model;
mod power_loss;
