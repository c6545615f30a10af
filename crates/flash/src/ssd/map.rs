//! What a look at every block of a drive finds.

use super::files::Files;
use crate::{BlockId, Flash, Ftl, LogicalPage, PageId};
use std::collections::HashMap;
use std::sync::Arc;

/// What is in a block. Pages that are neither live nor dead are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockState {
    /// Pages that hold what the host would read; `None` if the translation layer does not keep count.
    pub live: Option<u32>,
    /// Pages that may not be programmed before the next erase, whether live or dead.
    pub used: u32,
    /// How often it was erased.
    pub erases: u32,
    /// Whether it is bad.
    pub bad: bool,
}

pub(super) fn blocks(flash: &Flash, layer: &dyn Ftl) -> Vec<BlockState> {
    let look = |block| BlockState {
        live: layer.live_pages(block),
        used: flash.nand().next_page(block),
        erases: flash.nand().erases(block),
        bad: flash.nand().is_bad(block),
    };
    (0..flash.geometry().blocks()).map(BlockId).map(look).collect()
}

pub(super) fn owners(flash: &Flash, layer: &dyn Ftl, files: &Files) -> Vec<Option<(Arc<str>, u64)>> {
    let mut names: HashMap<&str, Arc<str>> = HashMap::new();
    let mut of: HashMap<LogicalPage, (Arc<str>, u64)> = HashMap::new();
    for (name, page, at) in files.pages() {
        let name = names.entry(name).or_insert_with(|| Arc::from(name));
        of.insert(at, (Arc::clone(name), page));
    }
    let nameless: Arc<str> = Arc::from("");
    let look = |page| {
        let logical = layer.owner(PageId(page))?;
        Some(of.get(&logical).cloned().unwrap_or_else(|| (Arc::clone(&nameless), logical.0.into())))
    };
    (0..flash.geometry().pages()).map(look).collect()
}

#[cfg(test)]
mod tests {
    use crate::{FtlOptions, Geometry, PageId, Profile, Ssd};
    use psync::{Access, Device, Volume, Write};

    #[test]
    fn live_and_dead_pages_follow_what_the_host_writes() {
        let mut profile = Profile::ssdsim();
        profile.geometry = Geometry { blocks_per_plane: 8, pages_per_block: 16, ..profile.geometry };
        let ssd = Ssd::new(profile, FtlOptions { over_provision: 0.2, ..FtlOptions::default() }, 1).unwrap();
        let live = |ssd: &Ssd| ssd.blocks().iter().filter_map(|block| block.live).sum::<u32>();
        let used = |ssd: &Ssd| ssd.blocks().iter().map(|block| block.used).sum::<u32>();
        let before = live(&ssd);
        let file = ssd.open("a", Access { write: true, create: true, ..Access::default() }).unwrap();
        let data = vec![7; 100 * 4096];
        for round in 1..=3 {
            ssd.write(&[Write { file, offset: 0, data: &data }]).unwrap();
            assert_eq!(live(&ssd), before + 100, "overwriting kills as much as it writes");
            assert!(used(&ssd) >= round * 100, "{} pages used in round {round}", used(&ssd));
        }
        let owners = ssd.owners();
        assert_eq!(owners.iter().flatten().count() as u32, live(&ssd), "who lives has an owner");
        let mut pages: Vec<u64> =
            owners.iter().flatten().filter(|owner| &*owner.0 == "a").map(|owner| owner.1).collect();
        pages.sort_unstable();
        assert_eq!(pages, (0..100).collect::<Vec<_>>(), "every page of the file stands in one place");
        let reads = ssd.nand_counters();
        for (page, owner) in (0..).map(PageId).zip(&owners) {
            let mut bytes = [0; 4096];
            let programs = ssd.peek(page, &mut bytes).unwrap();
            let is_data = owner.as_ref().is_some_and(|owner| &*owner.0 == "a");
            assert!(!is_data || (programs == 1 && bytes == [7; 4096]), "{page:?} {owner:?}");
        }
        assert_eq!(ssd.nand_counters(), reads, "looking is not reading");
        for block in ssd.blocks() {
            assert!(block.live.unwrap() <= block.used && block.used <= 16 && !block.bad, "{block:?}");
        }
    }
}
