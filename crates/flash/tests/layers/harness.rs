//! Layers of all kinds, and pages whose content says whose it is and which version.

use flash::ftl::block_map::BlockMap;
use flash::ftl::dftl::Dftl;
use flash::ftl::fast::Fast;
use flash::ftl::fmax::Fmax;
use flash::ftl::page_map::PageMap;
use flash::{Error, Flash, Ftl, FtlOptions, Geometry, LogicalPage, RequestKind};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

pub const PAGE: usize = 512;

/// Small, so that merges and collection go on all the time.
pub const SMALL: Geometry = Geometry {
    channels: 2,
    dies_per_channel: 1,
    planes: 1,
    blocks_per_plane: 24,
    pages_per_block: 8,
    page_bytes: PAGE as u32,
    spare_bytes: 16,
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    PageMap,
    BlockMap,
    Fmax(u32),
    Fast(f64),
    Dftl(f64),
}

pub const KINDS: [Kind; 6] =
    [Kind::PageMap, Kind::BlockMap, Kind::Fmax(1), Kind::Fmax(2), Kind::Fast(0.08), Kind::Dftl(0.05)];

pub fn options() -> FtlOptions {
    FtlOptions { over_provision: 0.28, ..FtlOptions::default() }
}

impl Kind {
    pub fn make(self, flash: &Flash, options: FtlOptions) -> Result<Box<dyn Ftl>, Error> {
        Ok(match self {
            Self::PageMap => Box::new(PageMap::new(flash, options)?),
            Self::BlockMap => Box::new(BlockMap::new(flash, options)?),
            Self::Fmax(replacements) => Box::new(Fmax::new(flash, options, replacements)?),
            Self::Fast(log_blocks) => Box::new(Fast::new(flash, options, log_blocks)?),
            Self::Dftl(cached) => Box::new(Dftl::new(flash, options, cached)?),
        })
    }
}

/// What a page holds at its `version`-th write; version 0 was never written.
pub fn content(page: u32, version: u64) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    if version > 0 {
        let mut rng = SmallRng::seed_from_u64(version << 20 | u64::from(page));
        rng.fill(&mut bytes[8..]);
        bytes[..8].copy_from_slice(&version.to_le_bytes());
    }
    bytes
}

/// The version that these bytes of a page are, whole.
pub fn version_of(page: u32, bytes: &[u8; PAGE]) -> Option<u64> {
    let version = bytes[..8].iter().rev().fold(0, |version, byte| version << 8 | u64::from(*byte));
    (content(page, version) == *bytes).then_some(version)
}

pub fn write(layer: &mut dyn Ftl, flash: &mut Flash, page: u32, data: &[u8]) -> Result<(), Error> {
    flash.begin_request(RequestKind::Write, data.len() as u32);
    layer.write(flash, LogicalPage(page), data)
}

pub fn read(layer: &mut dyn Ftl, flash: &mut Flash, page: u32) -> Result<[u8; PAGE], Error> {
    let mut found = [0xaa; PAGE];
    flash.begin_request(RequestKind::Read, PAGE as u32);
    layer.read(flash, LogicalPage(page), 0, &mut found)?;
    Ok(found)
}

pub fn trim(layer: &mut dyn Ftl, flash: &mut Flash, page: u32) -> Result<(), Error> {
    flash.begin_request(RequestKind::Command, 0);
    layer.trim(flash, LogicalPage(page))
}

/// How often a path of a layer was taken.
pub fn event(layer: &dyn Ftl, name: &str) -> u64 {
    let events = layer.events();
    let found = events.iter().find(|(event, _)| *event == name);
    found.unwrap_or_else(|| panic!("{} knows no {name}: {events:?}", layer.name())).1
}
