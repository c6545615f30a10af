//! **The laboratory**: the published experiments on flash, run again on a disk and on a simulated SSD, and judged by the
//! shape that each paper claims. The program is `sapwood-lab`; this library is what it is made of, so that tests reach it.
//!
//! - [`experiments`] has all [`Experiment`]s, [`find`] one of them; each has a [`Card`] with its paper and question.
//! - [`Laboratory`] gives a running experiment its devices; a [`Stage`] is a volume with its clock.
//! - [`Rows`] is what is recorded, [`Lapse`] and [`Rate`] the times in it, which know their clock.
//! - [`trace`] makes, reads, counts and hashes operations on indexes.
//! - [`Judgement`] is what a predicate says of rows; a [`Record`] is all of it in a file.

mod arena;
mod arguments;
mod as_growth;
mod as_suite;
mod block_ground;
mod callers;
mod chart;
mod command;
mod every_system;
mod experiment;
mod failure;
mod flash_map;
mod flash_trees;
mod interrupt;
mod judgement;
mod laboratory;
mod named_volume;
mod packed_rtree;
mod progress;
mod quantity;
mod raw_trees;
mod read_log;
mod record;
mod report;
mod rival;
mod rival_tuning;
mod rounds;
mod row;
mod spent;
mod stage;
mod statistics;
mod sweep;
mod tpcc_ground;
pub mod trace;
mod traffic;
mod tree_choice;
mod tree_ground;
mod tree_times;
mod usage;
mod wear_ground;
mod wording;
mod write_order;

pub use chart::{Axis, Chart, Line, Scaling};
pub use experiment::{Card, Cause, Device, Experiment, Measured, Parameter, Scale, all as experiments, find};
pub use failure::{Failure, Result};
pub use judgement::{Check, Judgement, Outcome, Verdict};
pub use laboratory::Laboratory;
pub use quantity::{Clock, Lapse, Quantity, Rate, Simulated, Spread, Wall};
pub use record::{Machine, Record};
pub use row::{BadTable, Missing, Row, Rows};
pub use stage::{DiskStage, Ground, SsdStage, Stage};

use clap::Parser;
use std::process::ExitCode;

/// Runs the program with the arguments of this process.
pub fn run() -> ExitCode {
    match command::run(arguments::Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}
