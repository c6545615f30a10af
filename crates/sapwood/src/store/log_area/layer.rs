//! A layer: what one flush appends to a block.

use super::fences::Fences;
use crate::node::NodeId;

/// What a flush appends to a block. What becomes of it in memory is a [`Row`](super::Row).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layer<'a> {
    /// In key order; one at least.
    pub pieces: &'a [NodeId],
    /// Those of all pieces but the first.
    pub fences: Fences<'a>,
    /// Changes that are removals.
    pub removals: u32,
}
