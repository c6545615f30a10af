//! Flash translation layers: logical pages that can be overwritten, on flash that cannot.
//!
//! | file | what |
//! |---|---|
//! | `page_map` | every logical page anywhere; a table of all of them in memory |
//! | `block_map` | every logical page in its place in its block; a table of blocks |
//! | `fmax` | the same with replacement blocks, and chains of them that are folded |
//! | `fast` | the same with few log blocks that all blocks share, and merges |
//! | `dftl` | as `page_map`, with the table on flash and a part of it in memory |
//! | `block_mapped` | what `block_map`, `fmax` and `fast` share |
//! | `page_blocks` | the blocks of `dftl`: where pages go, and which block to empty |
//! | `mapping_cache` | the part of the table that `dftl` has in memory |
//! | `garbage_collection` | which block to empty next |
//! | `free_blocks` | blocks that nobody needs |
//! | `scan` | what is found on flash when the power comes back |
//! | `spare` | what a page's spare area says of it |
//!
//! What an overwrite costs, besides the program of the host's page, where `v` is the share of valid pages in a block that is
//! collected, and `n` the pages of a block (examples/layers.rs measures it):
//!
//! | | random | in order | memory for the mapping |
//! |---|---|---|---|
//! | `page_map` | `v / (1 - v)` copies | none | 4 bytes a page |
//! | `block_map` | `n - 1` copies, 1 erase | the same | 4 bytes a block, a bit a page |
//! | `fmax` | a fold (`n - 1` copies, an erase for each block of the chain) for as many pages as a replacement block got | 1/n erase | besides, 2 bytes for each page of a replacement block |
//! | `fast` | `a n` copies, `a + 1` erases for `n` pages | 1/n erase | besides, 8 bytes for each page of a log block |
//! | `dftl` | as `page_map`; a read for a miss; a read and a program for a dirty eviction, and for each translation page that collection must correct | a read for a miss | 8 bytes for each cached entry, a bit a physical page |
//!
//! ```
//! use flash::ftl::fast::{Fast, LOG_BLOCKS};
//! use flash::{Flash, Ftl, FtlOptions, LogicalPage, Profile, Rules, Ssd};
//!
//! let profile = Profile::slc_2007();
//! let mut flash = Flash::new(profile.geometry, Rules::default(), 1)?;
//! let mut layer = Fast::new(&flash, FtlOptions::default(), LOG_BLOCKS)?;
//! for page in (0..64).chain([9]) {
//!     layer.write(&mut flash, LogicalPage(page), &[page as u8; 2048])?;
//! }
//! assert!(layer.events().contains(&("random", 1)), "page 9 went to a log block");
//! flash.settle();
//! flash.nand_mut().power_loss(7);
//! let mut found = [0; 4];
//! layer.recovered(&mut flash)?.read(&mut flash, LogicalPage(9), 100, &mut found)?;
//! assert_eq!(found, [9; 4]);
//!
//! // Or a whole drive on any of them:
//! let make = |flash: &Flash| Ok(Box::new(Fast::new(flash, FtlOptions::default(), LOG_BLOCKS)?) as _);
//! let drive = Ssd::with_ftl(profile, 1, make)?;
//! # assert!(drive.capacity() > 0);
//! # Ok::<(), flash::Error>(())
//! ```
//!
//! Contract of [`Ftl`]:
//! 1. a logical page reads as what was last written to it, and as zeros if nothing was, or it was trimmed;
//! 2. a write is all or nothing: whatever is found after power loss of a page whose write had not returned is
//!    the old content or the new;
//! 3. writes that are settled ([`Flash::settle`]) survive power loss. A trim is a hint that power loss may undo: until
//!    it is written again, the page then reads as zeros or as something that was written to it at some time;
//! 4. a layer keeps nothing that it could not find again on the flash: [`Ftl::recovered`] starts from options alone;
//! 5. everything done to flash goes through [`Flash`], which counts it and passes it on to the clock. What the host need
//!    not wait for follows a call of [`Flash::answered`].

pub mod block_map;
mod block_mapped;
pub mod dftl;
pub mod fast;
pub mod fmax;
mod free_blocks;
pub mod garbage_collection;
mod mapping_cache;
mod page_blocks;
pub mod page_map;
mod scan;
pub(crate) mod spare;

use crate::{BlockId, Error, Flash, Geometry, PageId, Result};
use garbage_collection::Victims;
use serde::{Deserialize, Serialize};

/// A page as the host numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogicalPage(pub u32);

/// Makes logical pages out of physical ones. See the module.
pub trait Ftl: Send + std::fmt::Debug {
    /// What it is called, for reports: `page_map`.
    fn name(&self) -> &'static str;

    /// How many logical pages there are.
    fn logical_pages(&self) -> u32;

    /// Reads `buffer.len()` bytes of a logical page from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::NoSuchPage`], [`Error::Unreadable`], [`Error::PowerOff`].
    fn read(&mut self, flash: &mut Flash, page: LogicalPage, offset: usize, buffer: &mut [u8]) -> Result<()>;

    /// Writes a whole logical page. A program that fails is tried elsewhere.
    ///
    /// # Errors
    /// [`Error::NoSuchPage`], [`Error::NoBlocks`], [`Error::PowerOff`].
    fn write(&mut self, flash: &mut Flash, page: LogicalPage, data: &[u8]) -> Result<()>;

    /// The host needs the page's content no more.
    ///
    /// # Errors
    /// As [`Ftl::write`].
    fn trim(&mut self, flash: &mut Flash, page: LogicalPage) -> Result<()>;

    /// A layer of the same kind and options that knows only what it finds on the flash: what happens when the
    /// power comes back.
    ///
    /// # Errors
    /// [`Error::PowerOff`], [`Error::NoBlocks`].
    fn recovered(&self, flash: &mut Flash) -> Result<Box<dyn Ftl>>;

    /// How many pages of a block hold what the host would read, for maps of a drive; `None` if the layer does not keep
    /// count.
    fn live_pages(&self, _: BlockId) -> Option<u32> {
        None
    }

    /// Which logical page stands on a physical one, for maps of a drive; `None` if none does, or if the layer does not say.
    fn owner(&self, _: PageId) -> Option<LogicalPage> {
        None
    }

    /// Bytes of memory that a drive would need for the mapping.
    fn mapping_bytes(&self) -> usize;

    /// How often each of its paths was taken since it was made or recovered, by name: merges, folds, cache misses.
    fn events(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// What all layers are told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FtlOptions {
    /// Physical pages beyond the logical ones, as a share of the logical ones: 0.03 to 0.28. A drive sold as 1000 GB
    /// with 1073 GB of flash has 0.07.
    pub over_provision: f64,
    /// Collection goes on while fewer blocks than this share of all are free (but never more than a quarter of the
    /// over-provisioned ones, or nothing would be left to write to).
    pub free_blocks: f64,
    /// Which block is emptied next.
    pub victims: Victims,
}

impl Default for FtlOptions {
    fn default() -> Self {
        Self { over_provision: 0.07, free_blocks: 0.05, victims: Victims::Greedy }
    }
}

impl FtlOptions {
    /// Refuses what cannot be.
    ///
    /// # Errors
    /// [`Error::Geometry`].
    pub fn check(&self) -> Result<()> {
        if !(0.03..=0.28).contains(&self.over_provision) {
            let found = self.over_provision;
            return Err(Error::Geometry(format!("an over-provision of {found}; 0.03 to 0.28")));
        }
        if !(0.0..=0.5).contains(&self.free_blocks) {
            return Err(Error::Geometry(format!("{} of the blocks kept free; 0 to 0.5", self.free_blocks)));
        }
        Ok(())
    }

    /// Logical pages that a drive of this geometry shows.
    pub fn logical_pages(&self, geometry: &Geometry) -> u32 {
        (f64::from(geometry.pages()) / (1.0 + self.over_provision)) as u32
    }

    /// Collection goes on while fewer blocks than these are free: at least 2.
    pub fn free_blocks(&self, geometry: &Geometry) -> u32 {
        let blocks = f64::from(geometry.blocks());
        let spare = blocks - blocks / (1.0 + self.over_provision);
        ((self.free_blocks * blocks).min(spare / 4.0) as u32).max(2)
    }
}

/// Refuses a logical page that does not exist.
pub(crate) fn check_page(page: LogicalPage, pages: u32) -> Result<()> {
    if page.0 < pages { Ok(()) } else { Err(Error::NoSuchPage { page: page.0, pages }) }
}
