//! Flash for the crash suite: blocks of 8 pages of 512 bytes in two units, so that erases come often.

use flash::{Geometry, Profile, RawFlash};

/// Erased flash of so many blocks.
pub fn tiny_flash(seed: u64, blocks: u32) -> RawFlash {
    let geometry = Geometry {
        channels: 2,
        dies_per_channel: 1,
        planes: 1,
        blocks_per_plane: blocks / 2,
        pages_per_block: 8,
        page_bytes: 512,
        spare_bytes: 64,
    };
    RawFlash::new(Profile { geometry, ..Profile::mlc_2010() }, seed).expect("flash")
}
