//! Raw flash for the trees that manage it themselves: small enough that blocks are collected all the time.

use flash::{Geometry, Profile, RawFlash};
use std::sync::Arc;

/// Flash of so many blocks of 16 pages of 512 bytes in two units, erased.
pub fn raw_flash(blocks: u32) -> Arc<RawFlash> {
    Arc::new(RawFlash::new(small(blocks), 1).expect("flash"))
}

/// What it is made of.
pub fn small(blocks: u32) -> Profile {
    let geometry = Geometry {
        channels: 2,
        dies_per_channel: 1,
        planes: 1,
        blocks_per_plane: blocks / 2,
        pages_per_block: 16,
        page_bytes: 512,
        spare_bytes: 64,
    };
    Profile { geometry, ..Profile::mlc_2010() }
}
