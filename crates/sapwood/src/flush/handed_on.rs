//! What a flush leaves to the next one, if that follows at once: what of its queue is in log pieces already, and the buffers that were read ahead into.
//!
//! Invariant: whoever flushes again and again lets go of it when nothing is to be flushed, or a flush has failed.

use super::append_ahead::Ahead;
use crate::stage_buffers::StageBuffers;

/// See the module.
#[derive(Default)]
pub(crate) struct HandedOn<'e> {
    pub ahead: Option<Ahead<'e>>,
    pub buffers: Option<StageBuffers<'e>>,
}

impl HandedOn<'_> {
    /// Whether there is something to let go of.
    pub fn is_some(&self) -> bool {
        self.ahead.is_some() || self.buffers.is_some()
    }
}
