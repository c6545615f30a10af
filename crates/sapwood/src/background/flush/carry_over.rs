//! What a flush hands on to the next one if that follows at once: the part of its queue that is already in log
//! pieces, and the read-ahead buffers.
//!
//! Invariant: the flush thread drops it when there is nothing to flush, or when a flush has failed.

use super::append_ahead::Ahead;
use crate::flow::memory::Reservation;

/// See the module documentation.
#[derive(Default)]
pub(crate) struct CarryOver {
    pub ahead: Option<Ahead>,
    /// Memory that is allocated and released again and again costs a page fault per page.
    pub buffers: Option<Reservation>,
}

impl CarryOver {
    /// Whether there is anything to drop.
    pub fn is_some(&self) -> bool {
        self.ahead.is_some() || self.buffers.is_some()
    }
}
