//! Blocks that nobody needs, and what becomes of blocks that are needed no more.
//!
//! Invariants:
//! 1. used first in, first out within each unit, units in turn, which spreads wear and work;
//! 2. a block that was not erased since power came back is erased before use, whatever it looks like: an interrupted erase can
//!    look like a finished one;
//! 3. a block in which a program failed is written to no more, and is marked bad when it is released, after everything that
//!    was copied out of it has ended.

use crate::{BlockId, Error, Flash, Geometry, Result};
use std::collections::VecDeque;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct FreeBlocks {
    /// By unit.
    queues: Vec<VecDeque<BlockId>>,
    len: u32,
    blocks: u32,
    /// By block: free, but perhaps half erased.
    suspect: Vec<bool>,
    /// By block: a program failed in it.
    failing: Vec<bool>,
    bad: u32,
    /// The unit that gives a block next.
    turn: u32,
}

impl FreeBlocks {
    /// None yet.
    pub(crate) fn none(geometry: &Geometry) -> Self {
        let blocks = geometry.blocks();
        Self {
            queues: vec![VecDeque::new(); geometry.units() as usize],
            len: 0,
            blocks,
            suspect: vec![false; blocks as usize],
            failing: vec![false; blocks as usize],
            bad: 0,
            turn: 0,
        }
    }

    /// All blocks of erased flash, but those that are bad.
    pub(crate) fn all(flash: &Flash) -> Self {
        let geometry = flash.geometry();
        let mut free = Self::none(&geometry);
        for block in (0..geometry.blocks()).map(BlockId) {
            if flash.nand().is_bad(block) {
                free.bad += 1;
            } else {
                free.add(block);
            }
        }
        free
    }

    fn add(&mut self, block: BlockId) {
        let units = self.queues.len();
        self.queues[block.0 as usize % units].push_back(block);
        self.len += 1;
    }

    /// The block looks erased; who knows whether it is.
    pub(crate) fn add_suspect(&mut self, block: BlockId) {
        self.suspect[block.0 as usize] = true;
        self.add(block);
    }

    /// One block more is bad.
    pub(crate) fn note_bad(&mut self) {
        self.bad += 1;
    }

    /// How many blocks are free.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// None is left to write to.
    pub(crate) fn exhausted(&self) -> Error {
        Error::NoBlocks { bad: self.bad, blocks: self.blocks }
    }

    /// An erased block of the unit whose turn it is.
    pub(crate) fn take(&mut self, flash: &mut Flash) -> Result<BlockId> {
        let units = self.queues.len() as u32;
        loop {
            if self.len == 0 {
                return Err(self.exhausted());
            }
            let unit = self.turn as usize;
            self.turn = (self.turn + 1) % units;
            let Some(block) = self.queues[unit].pop_front() else { continue };
            self.len -= 1;
            if !std::mem::take(&mut self.suspect[block.0 as usize]) {
                return Ok(block);
            }
            match flash.erase(block) {
                Ok(_) => return Ok(block),
                Err(Error::PowerOff) => return Err(Error::PowerOff),
                Err(_) => self.bad += 1,
            }
        }
    }

    /// A program failed in this block.
    pub(crate) fn note_failure(&mut self, block: BlockId) {
        self.failing[block.0 as usize] = true;
    }

    /// Nothing in the block is needed any more.
    pub(crate) fn release(&mut self, flash: &mut Flash, block: BlockId) -> Result<()> {
        if std::mem::take(&mut self.failing[block.0 as usize]) {
            // The mark is for good at once; what was copied out of the block must not be behind it.
            flash.fence();
            flash.nand_mut().mark_bad(block)?;
            self.bad += 1;
            return Ok(());
        }
        match flash.erase(block) {
            Ok(_) => self.add(block),
            Err(Error::PowerOff) => return Err(Error::PowerOff),
            Err(_) => self.bad += 1,
        }
        Ok(())
    }
}
