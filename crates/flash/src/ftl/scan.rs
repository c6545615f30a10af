//! Finds out from spare areas alone what is where, when the power comes back.
//!
//! Whatever was under way has left traces: a block half erased, a block into which others were being copied. Of these, the
//! ones whose every page is outdated or is held by another block too are redundant; they are erased at once, so that
//! nothing in them can come to light after the next power loss.
//!
//! Invariants:
//! 1. of each number of a class, at least one page of the newest version stays;
//! 2. no block that stays is redundant: each holds a page that no other does;
//! 3. at most one erase was under way, since an erase begins when all before it has ended.

use super::free_blocks::FreeBlocks;
use super::spare::{Found, SPARE, Spare};
use crate::{BlockId, Error, Flash, Geometry, PageId, Result};
use std::collections::HashMap;

/// What a page is for. The numbers stand in spare areas.
pub(crate) mod kind {
    /// Content of the logical page `number`. `page_map` says the same.
    pub(crate) const DATA: u8 = 1;
    /// A page of the mapping table, the `number`-th.
    pub(crate) const TABLE: u8 = 2;
    /// Nothing: it was programmed because a later page of its block was to be.
    pub(crate) const FILLER: u8 = 3;
    /// The logical page `number` could not be read when it was to be copied.
    pub(crate) const LOST: u8 = 4;
}

/// A page that says what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundPage {
    pub at: PageId,
    pub spare: Spare,
    /// No page says the same of a higher version.
    pub newest: bool,
}

/// A block that holds something that no other does.
#[derive(Clone, Debug)]
pub(crate) struct FoundBlock {
    pub block: BlockId,
    /// In ascending order, fillers left out.
    pub pages: Vec<FoundPage>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Scan {
    pub blocks: Vec<FoundBlock>,
    pub free: FreeBlocks,
    /// Above all versions found.
    pub version: u64,
}

/// A version is compared among pages of the same class and number.
fn key(spare: &Spare) -> (bool, u32) {
    (spare.kind == kind::TABLE, spare.number)
}

/// The newest version of something, and how many blocks hold it.
#[derive(Clone, Copy)]
struct Newest {
    version: u64,
    holders: u32,
    /// The last block that was counted.
    last: BlockId,
}

impl Scan {
    /// Looks into every block, and erases those that are redundant.
    pub(crate) fn of(flash: &mut Flash) -> Result<Self> {
        let geometry = flash.geometry();
        let mut scan = Self { blocks: Vec::new(), free: FreeBlocks::none(&geometry), version: 1 };
        for block in (0..geometry.blocks()).map(BlockId) {
            if flash.nand().is_bad(block) {
                scan.free.note_bad();
                continue;
            }
            flash.begin_task();
            match look_into(flash, &geometry, block)? {
                None => scan.free.add_suspect(block),
                Some(pages) => scan.blocks.push(FoundBlock { block, pages }),
            }
        }
        let pages = scan.blocks.iter().flat_map(|found| &found.pages);
        scan.version = pages.map(|page| page.spare.version + 1).max().unwrap_or(1);
        let redundant = find_redundant(&mut scan.blocks);
        for block in &redundant {
            flash.begin_task();
            scan.free.release(flash, *block)?;
        }
        scan.blocks.retain(|found| !redundant.contains(&found.block));
        flash.fence();
        Ok(scan)
    }
}

/// The pages of a block, or `None` if it looks erased.
fn look_into(flash: &mut Flash, geometry: &Geometry, block: BlockId) -> Result<Option<Vec<FoundPage>>> {
    let mut pages = Vec::new();
    for index in 0..geometry.pages_per_block {
        let at = geometry.page(block, index);
        let mut bytes = [0; SPARE];
        match flash.read_spare(at, &mut bytes).map(|_| Spare::decode(&bytes)) {
            Ok(Found::Erased) if index == 0 => return Ok(None),
            // Pages are programmed one after the other. Behind this, a half-erased block may hold pages, but everything
            // in it was copied before the erase began.
            Ok(Found::Erased) => break,
            Ok(Found::Valid(Spare { kind: kind::FILLER, .. })) => {}
            Ok(Found::Valid(spare)) => pages.push(FoundPage { at, spare, newest: false }),
            Ok(Found::Damaged) | Err(Error::Unreadable { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(pages))
}

/// Marks the newest pages, and chooses blocks that can all go without anything being lost.
fn find_redundant(blocks: &mut [FoundBlock]) -> Vec<BlockId> {
    let mut newest: HashMap<(bool, u32), Newest> = HashMap::new();
    for found in &*blocks {
        for FoundPage { spare, .. } in &found.pages {
            let this = Newest { version: spare.version, holders: 1, last: found.block };
            let known = newest.entry(key(spare)).or_insert(this);
            if known.version < spare.version {
                *known = this;
            } else if known.version == spare.version && known.last != found.block {
                known.holders += 1;
                known.last = found.block;
            }
        }
    }
    for page in blocks.iter_mut().flat_map(|found| &mut found.pages) {
        page.newest = newest.get(&key(&page.spare)).is_some_and(|known| known.version == page.spare.version);
    }
    // Those first that hold much that is outdated: they were being emptied. Then those with little in them: they were
    // being filled.
    let mut order: Vec<&FoundBlock> = blocks.iter().collect();
    order.sort_by_key(|found| {
        let live = found.pages.iter().filter(|page| page.newest).count();
        (std::cmp::Reverse(found.pages.len() - live), live)
    });
    let mut redundant = Vec::new();
    for found in order {
        let mut live: Vec<_> =
            found.pages.iter().filter(|page| page.newest).map(|page| key(&page.spare)).collect();
        live.sort_unstable();
        live.dedup();
        if live.iter().all(|key| newest.get(key).is_some_and(|known| known.holders > 1)) {
            for key in live {
                if let Some(known) = newest.get_mut(&key) {
                    known.holders -= 1;
                }
            }
            redundant.push(found.block);
        }
    }
    redundant
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block for each list of `(number, version)`.
    fn blocks(lists: &[&[(u32, u64)]]) -> Vec<FoundBlock> {
        let page = |(number, version): &(u32, u64)| FoundPage {
            at: PageId(0),
            spare: Spare { number: *number, version: *version, kind: kind::DATA },
            newest: false,
        };
        let block = |(block, list): (usize, &&[(u32, u64)])| FoundBlock {
            block: BlockId(block as u32),
            pages: list.iter().map(page).collect(),
        };
        lists.iter().enumerate().map(block).collect()
    }

    #[test]
    fn what_was_being_copied_goes_and_nothing_is_lost() {
        let redundant = |lists: &[&[(u32, u64)]]| find_redundant(&mut blocks(lists));
        // Half copied: the copy goes.
        assert_eq!(redundant(&[&[(0, 1), (1, 2), (2, 3)], &[(0, 1), (1, 2)]]), [BlockId(1)]);
        // All copied, one page newer: the source goes.
        assert_eq!(redundant(&[&[(0, 1), (1, 2)], &[(0, 1), (1, 3)]]), [BlockId(0)]);
        // Both hold something of their own: both stay.
        assert_eq!(redundant(&[&[(0, 1), (1, 2)], &[(0, 3)]]), []);
        // Each of two would do; one stays.
        assert_eq!(redundant(&[&[(0, 1)], &[(0, 1)]]).len(), 1);
        // Twice in one block is not twice.
        assert_eq!(redundant(&[&[(0, 1), (0, 1)]]), []);
        // Nothing in it.
        assert_eq!(redundant(&[&[], &[(0, 1)]]), [BlockId(0)]);
    }
}
