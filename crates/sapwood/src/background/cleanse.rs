//! Cleansing: moves the changes in log areas into their leaves, portion by portion, each as an edit of its own,
//! while others read and write. The submodules differ in which blocks they cleanse, and how far: those that a
//! flush found [`due`], [`all`] of them, those that scans have [`charged`] for, those that are long because the
//! database has [`grown`], or some [for the reserve](for_reserve). [`crate::tree::cleanse`] cleanses a single block; [`crate::tree::merge_runs`] is
//! what charges of scans lead to instead.

mod all;
mod charged;
mod due;
mod for_reserve;
mod grown;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use due::DueBlocks;
pub(crate) use grown::Growth;

use crate::background::collect::Collector;
use crate::background::context::WorkContext;
use for_reserve::ReserveWalk;
use std::sync::Arc;

/// See the module documentation.
pub(crate) struct Cleanser {
    pub ctx: Arc<WorkContext>,
    /// What cleansing leaves dead is collected at once.
    pub collector: Arc<Collector>,
    for_reserve: ReserveWalk,
}

impl Cleanser {
    pub fn new(ctx: Arc<WorkContext>, collector: Arc<Collector>) -> Self {
        Self { ctx, collector, for_reserve: ReserveWalk::default() }
    }
}
