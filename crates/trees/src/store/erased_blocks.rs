//! Which blocks of raw flash are free, and which of these are erased.
//!
//! Invariants:
//! 1. Blocks are taken in the order in which they became free, so that wear is shared.
//! 2. A block that is handed out is erased. One that cannot be erased is never handed out again.

use crate::{Error, Result};
use flash::{BlockId, RawFlash};
use std::collections::VecDeque;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ErasedBlocks {
    /// And whether each is erased.
    free: VecDeque<(BlockId, bool)>,
}

impl ErasedBlocks {
    /// A block is free that may hold something.
    pub fn add_used(&mut self, block: BlockId) {
        self.free.push_back((block, false));
    }

    /// Erases a block, after which it is free. Whether that worked: if not, it is bad from now on.
    pub fn erase(&mut self, flash: &RawFlash, block: BlockId) -> Result<bool> {
        let erased = erase(flash, block)?;
        if erased {
            self.free.push_back((block, true));
        }
        Ok(erased)
    }

    /// An erased block.
    pub fn take(&mut self, flash: &RawFlash) -> Result<BlockId> {
        while let Some((block, erased)) = self.free.pop_front() {
            if erased || erase(flash, block)? {
                return Ok(block);
            }
        }
        let blocks = flash.geometry().blocks();
        Err(Error::Invalid(format!(
            "the flash is full: none of its {blocks} blocks is free; delete records or take more flash"
        )))
    }

    pub fn len(&self) -> usize {
        self.free.len()
    }

    /// Bytes of memory.
    pub fn memory(&self) -> u64 {
        8 * self.free.len() as u64
    }
}

fn erase(flash: &RawFlash, block: BlockId) -> Result<bool> {
    use flash::Error as Flash;
    match flash.erase(&[block]) {
        Ok(()) => Ok(true),
        Err(Flash::BadBlock { .. } | Flash::WornOut { .. } | Flash::EraseFailed { .. }) => Ok(false),
        Err(other) => Err(other.into()),
    }
}
