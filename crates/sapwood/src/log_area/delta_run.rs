//! A run: what one flush appends to a block.

use super::fences::Fences;
use crate::storage::node::NodeId;

/// What a flush appends to a block. In memory it becomes a [`RunRef`](super::RunRef).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeltaRun<'a> {
    /// In key order; at least one.
    pub pieces: &'a [NodeId],
    /// Fences of all pieces but the first.
    pub fences: Fences<'a>,
    /// Number of changes that are removals.
    pub removals: u32,
}
