//! What a drive is made of: channels, dies on them, planes in these, blocks in these, pages in these.
//!
//! Invariants:
//! 1. blocks are numbered across all units (a unit is a plane of a die, which works alone): block `b` lies in unit
//!    `b % units`, so that consecutive blocks lie on different channels first, on different dies next;
//! 2. page `p` lies in block `p / pages_per_block`;
//! 3. every page of a checked geometry has a number below `u32::MAX`, which is free to mean "none".

use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// A block of the whole drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockId(pub u32);

/// A physical page of the whole drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PageId(pub u32);

/// How many of what. All counts are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Buses that move data at the same time.
    pub channels: u32,
    /// Dies ("packages") on each channel.
    pub dies_per_channel: u32,
    /// Planes in each die. Each works alone (see docs/flash.md).
    pub planes: u32,
    /// Blocks in each plane.
    pub blocks_per_plane: u32,
    /// Pages in each block, at most 65,535.
    pub pages_per_block: u32,
    /// Bytes in each page, without the spare area: a power of two, 512 to 65,536.
    pub page_bytes: u32,
    /// Bytes of each page's spare area, 16 to 4,096.
    pub spare_bytes: u32,
}

impl Geometry {
    /// Refuses what cannot be.
    ///
    /// # Errors
    /// [`Error::Geometry`] says which count, and what it may be.
    pub fn check(&self) -> Result<()> {
        let counts = [
            ("channels", self.channels),
            ("dies per channel", self.dies_per_channel),
            ("planes", self.planes),
            ("blocks per plane", self.blocks_per_plane),
            ("pages per block", self.pages_per_block),
        ];
        for (what, count) in counts {
            if count == 0 {
                return Err(Error::Geometry(format!("{what} is 0; at least 1")));
            }
        }
        if !self.page_bytes.is_power_of_two() || !(512..=65_536).contains(&self.page_bytes) {
            let found = self.page_bytes;
            return Err(Error::Geometry(format!("pages of {found} bytes; a power of two, 512 to 65,536")));
        }
        if !(16..=4096).contains(&self.spare_bytes) {
            let found = self.spare_bytes;
            return Err(Error::Geometry(format!("a spare area of {found} bytes; 16 to 4,096")));
        }
        if self.pages_per_block > u32::from(u16::MAX) {
            return Err(Error::Geometry(format!("{} pages per block; at most 65,535", self.pages_per_block)));
        }
        let pages = counts.iter().try_fold(1_u32, |product, (_, count)| product.checked_mul(*count));
        match pages {
            Some(pages) if pages < u32::MAX => Ok(()),
            _ => Err(Error::Geometry("more than 4,294,967,294 pages in all; take fewer blocks".to_owned())),
        }
    }

    /// Planes of the whole drive: what can work at the same time.
    pub const fn units(&self) -> u32 {
        self.channels * self.dies_per_channel * self.planes
    }

    /// Blocks of the whole drive.
    pub const fn blocks(&self) -> u32 {
        self.units() * self.blocks_per_plane
    }

    /// Pages of the whole drive.
    pub const fn pages(&self) -> u32 {
        self.blocks() * self.pages_per_block
    }

    /// Bytes of the whole drive, spare areas not counted.
    pub const fn bytes(&self) -> u64 {
        self.pages() as u64 * self.page_bytes as u64
    }

    /// The `index`-th page of a block.
    pub const fn page(&self, block: BlockId, index: u32) -> PageId {
        PageId(block.0 * self.pages_per_block + index)
    }

    /// The block of a page.
    pub const fn block_of(&self, page: PageId) -> BlockId {
        BlockId(page.0 / self.pages_per_block)
    }

    /// Which page of its block a page is.
    pub const fn index_in_block(&self, page: PageId) -> u32 {
        page.0 % self.pages_per_block
    }

    /// The unit that a block lies in.
    pub const fn unit_of(&self, block: BlockId) -> u32 {
        block.0 % self.units()
    }

    /// The channel that a unit hangs on.
    pub const fn channel_of(&self, unit: u32) -> u32 {
        unit % self.channels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Geometry = Geometry {
        channels: 2,
        dies_per_channel: 2,
        planes: 1,
        blocks_per_plane: 3,
        pages_per_block: 4,
        page_bytes: 512,
        spare_bytes: 16,
    };

    #[test]
    fn consecutive_blocks_lie_on_different_channels_then_dies() {
        SMALL.check().unwrap();
        let places: Vec<_> = (0..5)
            .map(|block| (SMALL.unit_of(BlockId(block)), SMALL.channel_of(SMALL.unit_of(BlockId(block)))))
            .collect();
        assert_eq!(places, [(0, 0), (1, 1), (2, 0), (3, 1), (0, 0)]);
        let page = SMALL.page(BlockId(3), 2);
        assert_eq!((SMALL.block_of(page), SMALL.index_in_block(page)), (BlockId(3), 2));
        assert_eq!(SMALL.bytes(), 12 * 4 * 512);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for wrong in [
            Geometry { channels: 0, ..SMALL },
            Geometry { page_bytes: 1000, ..SMALL },
            Geometry { spare_bytes: 8, ..SMALL },
            Geometry { pages_per_block: 70_000, ..SMALL },
            Geometry { blocks_per_plane: 1 << 30, ..SMALL },
        ] {
            assert!(matches!(wrong.check(), Err(Error::Geometry(_))), "{wrong:?}");
        }
    }
}
