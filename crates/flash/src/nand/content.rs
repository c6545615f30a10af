//! The bytes of pages and spare areas, in memory only for blocks that were ever programmed.
//!
//! Invariants:
//! 1. whether a page holds anything is known above; bytes of a free page are left over and never shown;
//! 2. images share a block's bytes until one of them programs a page of it.

use crate::{BlockId, Geometry};
use std::sync::Arc;

/// How much of what is written to a page is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// All of it.
    #[default]
    Full,
    /// Its first 16 bytes, and the spare area; the rest reads as zeros. For measuring drives larger
    /// than memory: files on such a drive read as zeros, and are gone after power loss.
    Tags,
}

/// Bytes of data kept with [`Content::Tags`].
const TAG: usize = 16;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    blocks: Vec<Option<Arc<[u8]>>>,
    pages_per_block: usize,
    /// Bytes of data kept of each page.
    data: usize,
    spare: usize,
}

impl Contents {
    pub(super) fn new(geometry: &Geometry, content: Content) -> Self {
        let data = match content {
            Content::Full => geometry.page_bytes as usize,
            Content::Tags => TAG,
        };
        Self {
            blocks: vec![None; geometry.blocks() as usize],
            pages_per_block: geometry.pages_per_block as usize,
            data,
            spare: geometry.spare_bytes as usize,
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let blocks = self.blocks.iter().flatten().count();
        blocks * self.pages_per_block * self.kept_bytes()
    }

    /// Bytes kept of a page and its spare area.
    pub(super) fn kept_bytes(&self) -> usize {
        self.data + self.spare
    }

    /// What is kept of a page: data, then spare area. Empty if the block was never programmed.
    fn page(&self, block: BlockId, index: u32) -> &[u8] {
        let at = index as usize * self.kept_bytes();
        self.blocks[block.0 as usize].as_ref().map_or(&[], |bytes| &bytes[at..at + self.kept_bytes()])
    }

    fn page_mut(&mut self, block: BlockId, index: u32) -> &mut [u8] {
        let kept = self.kept_bytes();
        let len = self.pages_per_block * kept;
        let bytes =
            self.blocks[block.0 as usize].get_or_insert_with(|| std::iter::repeat_n(0, len).collect());
        let at = index as usize * kept;
        &mut Arc::make_mut(bytes)[at..at + kept]
    }

    pub(super) fn read(&self, block: BlockId, index: u32, offset: usize, buffer: &mut [u8]) {
        let page = self.page(block, index);
        let kept = &page[..self.data.min(page.len())];
        let kept = &kept[offset.min(kept.len())..];
        let there = kept.len().min(buffer.len());
        buffer[..there].copy_from_slice(&kept[..there]);
        buffer[there..].fill(0);
    }

    pub(super) fn read_spare(&self, block: BlockId, index: u32, buffer: &mut [u8]) {
        let page = self.page(block, index);
        buffer.copy_from_slice(&page[self.data..self.data + buffer.len()]);
    }

    /// Replaces everything of a free page.
    pub(super) fn put(&mut self, block: BlockId, index: u32, data: &[u8], spare: &[u8]) {
        let kept = self.data;
        let page = self.page_mut(block, index);
        page[..kept].copy_from_slice(&data[..kept]);
        page[kept..kept + spare.len()].copy_from_slice(spare);
        page[kept + spare.len()..].fill(0xff);
    }

    /// Makes a free page look erased, before parts of it are programmed.
    pub(super) fn erase_page(&mut self, block: BlockId, index: u32) {
        self.page_mut(block, index).fill(0xff);
    }

    pub(super) fn clear_bits(&mut self, block: BlockId, index: u32, offset: usize, data: &[u8]) {
        let kept = self.data;
        let page = &mut self.page_mut(block, index)[..kept];
        let part = &mut page[offset.min(kept)..];
        part.iter_mut().zip(data).for_each(|(byte, new)| *byte &= new);
    }

    pub(super) fn clear_spare_bits(&mut self, block: BlockId, index: u32, offset: usize, spare: &[u8]) {
        let kept = self.data;
        let part = &mut self.page_mut(block, index)[kept + offset..];
        part.iter_mut().zip(spare).for_each(|(byte, new)| *byte &= new);
    }

    pub(super) fn flip(&mut self, block: BlockId, index: u32, at: usize, bit: u8) {
        self.page_mut(block, index)[at] ^= 1 << bit;
    }

    /// Copies a page with its spare area to another place.
    pub(super) fn copy(&mut self, from: (BlockId, u32), to: (BlockId, u32)) {
        let kept = self.kept_bytes();
        if from.0 == to.0 {
            let at = from.1 as usize * kept;
            let target = to.1 as usize * kept;
            self.page_mut(to.0, to.1);
            if let Some(bytes) = &mut self.blocks[to.0.0 as usize] {
                Arc::make_mut(bytes).copy_within(at..at + kept, target);
            }
            return;
        }
        let source = self.blocks[from.0.0 as usize].clone();
        if let Some(bytes) = source {
            let at = from.1 as usize * kept;
            self.page_mut(to.0, to.1).copy_from_slice(&bytes[at..at + kept]);
        }
    }
}
