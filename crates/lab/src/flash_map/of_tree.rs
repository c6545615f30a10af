//! The flash under a tree while keys are updated: what every page holds, and how long it has been there.
//!
//! Invariants:
//! 1. On a volume, what a page is follows from the file that it belongs to; which file that is, page mapping says. On raw flash it
//!    follows from the tag in the page's spare area. Where neither tells a level, a page is a node of some level.
//! 2. What the flash is asked for the map is not in the tree's time: raw flash is read from an image of it.
//! 3. A frame tells what changed since the frame before; a page's age is exact to a frame.

use crate::every_system::{Store, System};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::progress::Progress;
use crate::wear_ground::Keys;
use flash::{FtlOptions, Geometry, PageId, PageRead, Profile, RawFlash, Ssd};
use psync::Volume;
use std::sync::Arc;

/// What to play.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreePlay {
    pub tree: System,
    pub records: u64,
    pub operations: u64,
    pub frames: usize,
}

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Nothing,
    Leaf,
    Inner,
    /// Of a level that nothing tells.
    Node,
    /// Logs, tables, and what else is beside nodes.
    Beside,
    /// Of no file: dead until its block is erased.
    Dead,
}

impl Holds {
    pub const ALL: [Holds; 6] =
        [Holds::Nothing, Holds::Leaf, Holds::Inner, Holds::Node, Holds::Beside, Holds::Dead];

    pub fn name(self) -> &'static str {
        match self {
            Holds::Nothing => "erased",
            Holds::Leaf => "leaf",
            Holds::Inner => "inner node",
            Holds::Node => "node, level not told",
            Holds::Beside => "log and other",
            Holds::Dead => "dead",
        }
    }

    pub fn colour(self) -> (u8, u8, u8) {
        match self {
            Holds::Nothing => (226, 230, 235),
            Holds::Leaf => (0, 158, 115),
            Holds::Inner => (213, 94, 0),
            Holds::Node => (0, 114, 178),
            Holds::Beside => (204, 121, 167),
            Holds::Dead => (120, 120, 120),
        }
    }

    /// By the file that a page belongs to.
    fn in_file(name: &str) -> Self {
        match name {
            "pio-inner" => Holds::Inner,
            "pio-leaves" => Holds::Leaf,
            _ if name.contains("log") || name.contains("wal") || name.contains("buffers") => Holds::Beside,
            _ if name.contains("manifest") || name.contains("map") || name.contains("lock") => Holds::Beside,
            _ => Holds::Node,
        }
    }

    /// By the spare area, and whether the page was programmed. The layouts are drawn in `trees`, `store/flash_tag.rs` and
    /// `store/flash_block.rs`.
    fn tagged(spare: &[u8], programmed: bool) -> Self {
        match spare {
            [b'T', b'r', b'T', b'g', 1, ..] => Holds::Node,
            [b'T', b'r', b'T', b'g', ..] => Holds::Beside,
            [b'B', b'k', _, 0, ..] => Holds::Leaf,
            [b'B', b'k', ..] => Holds::Inner,
            _ if programmed => Holds::Beside,
            _ => Holds::Nothing,
        }
    }
}

/// A page as it is seen: what it holds, and what tells its content from another.
type Seen = (Holds, u64);

/// The flash at a moment.
#[derive(Clone, Debug)]
pub(crate) struct TreeFrame {
    /// Pages that hold something else than in the frame before: number, and what.
    pub changed: Vec<(u32, Holds)>,
    /// Virtual time since the first update.
    pub seconds: f64,
    /// Updates so far.
    pub operations: u64,
    /// Pages programmed and blocks erased so far.
    pub programs: u64,
    pub erases: u64,
}

/// A whole play.
#[derive(Debug)]
pub(crate) struct TreePlayed {
    pub play: TreePlay,
    pub geometry: Geometry,
    pub frames: Vec<TreeFrame>,
}

/// 64 MiB of flash, few enough pages that each can be seen.
const GEOMETRY: Geometry = Geometry {
    channels: 4,
    dies_per_channel: 2,
    planes: 1,
    blocks_per_plane: 32,
    pages_per_block: 64,
    page_bytes: 4096,
    spare_bytes: 128,
};
const OVER_PROVISION: f64 = 0.12;
/// Bytes of a spare area that tags have, and bytes of a page that are looked at besides.
const TAG: usize = 52;

enum Ground {
    Drive(Ssd),
    Raw(Arc<RawFlash>),
}

impl Ground {
    fn look(&self) -> Result<Vec<Seen>> {
        match self {
            Ground::Drive(drive) => {
                let blocks = drive.blocks();
                let owners = drive.owners();
                let look = |(page, owner): (usize, &Option<(Arc<str>, u64)>)| {
                    let block = &blocks[page / GEOMETRY.pages_per_block as usize];
                    match owner {
                        Some((name, at)) => (Holds::in_file(name), at << 32 | u64::from(block.erases)),
                        None if (page as u32 % GEOMETRY.pages_per_block) < block.used => (Holds::Dead, 0),
                        None => (Holds::Nothing, 0),
                    }
                };
                Ok(owners.iter().enumerate().map(look).collect())
            }
            Ground::Raw(flash) => {
                let image = flash.power_loss(0);
                let erases = flash.erases();
                let mut seen = Vec::with_capacity(GEOMETRY.pages() as usize);
                for page in 0..GEOMETRY.pages() {
                    let (mut spare, mut start) = ([0; TAG], [0; TAG]);
                    let read =
                        PageRead { page: PageId(page), offset: 0, buffer: &mut start, spare: &mut spare };
                    let programmed = match image.read(&mut [read]) {
                        Ok(()) => spare != [0xff; TAG] || start != [0xff; TAG],
                        // Half programmed: something is there.
                        Err(_) => true,
                    };
                    let number = erases[(page / GEOMETRY.pages_per_block) as usize];
                    let holds = Holds::tagged(&spare, programmed);
                    let content = if holds == Holds::Nothing { 0 } else { u64::from(number) };
                    seen.push((holds, content));
                }
                Ok(seen)
            }
        }
    }

    fn counted(&self) -> (f64, u64, u64) {
        let (now, counters) = match self {
            Ground::Drive(drive) => (drive.now(), drive.nand_counters()),
            Ground::Raw(flash) => (flash.now(), flash.counters()),
        };
        (now.as_secs_f64(), counters.programs, counters.erases)
    }
}

fn plant(play: TreePlay) -> Result<(Ground, Store)> {
    let profile = Profile { geometry: GEOMETRY, ..Profile::ssdsim() };
    let wrong = |error| Failure::CannotRun(format!("the simulated flash: {error}"));
    if System::ON_RAW_FLASH.contains(&play.tree) {
        let flash = Arc::new(RawFlash::new(play.tree.rules(profile), 1).map_err(wrong)?);
        let store = play.tree.on_raw_flash(&flash, play.records)?;
        return Ok((Ground::Raw(flash), store));
    }
    let options = FtlOptions { over_provision: OVER_PROVISION, ..FtlOptions::default() };
    let drive = Ssd::new(profile, options, 1).map_err(wrong)?.with_pio_max(64);
    let volume: Arc<dyn Volume> = Arc::new(drive.clone());
    let store = play.tree.on_volume(&volume, play.records)?;
    Ok((Ground::Drive(drive), store))
}

/// Loads the tree, and updates uniform keys.
pub(crate) fn play(play: TreePlay) -> Result<TreePlayed> {
    let (ground, mut store) = plant(play)?;
    let every = play.operations.div_ceil(play.frames as u64).max(1);
    let progress = Progress::new("flash-map");
    progress.expect(play.frames);
    let (began, ..) = ground.counted();
    let mut frames: Vec<TreeFrame> = Vec::with_capacity(play.frames + 1);
    let mut before: Vec<Seen> = vec![(Holds::Nothing, 0); GEOMETRY.pages() as usize];
    let mut look = |operations: u64| {
        progress.step("playing");
        let seen = ground.look()?;
        let pages = (0..).zip(seen.iter().zip(&before)).filter(|(_, (now, then))| now != then);
        let changed = pages.map(|(page, (now, _))| (page, now.0)).collect();
        before = seen;
        let (now, programs, erases) = ground.counted();
        frames.push(TreeFrame { changed, seconds: now - began, operations, programs, erases });
        Ok::<(), Failure>(())
    };
    look(0)?;
    for (done, key) in (1..).zip(Keys::Uniform.draw(play.records, play.operations)?) {
        if done % 256 == 0 && interrupt::pressed() {
            return Err(Failure::Interrupted);
        }
        store.update(key, done)?;
        if done == play.operations {
            store.flush()?;
        }
        if done % every == 0 || done == play.operations {
            look(done)?;
        }
    }
    Ok(TreePlayed { play, geometry: GEOMETRY, frames })
}

impl TreePlayed {
    /// What it is, in words.
    pub fn title(&self) -> String {
        let (tree, records) = (self.play.tree.name(), self.play.records);
        format!("The flash under {tree}: {records} records, {} uniform updates", self.play.operations)
    }

    /// What every page holds at the end, and in which frame it came there.
    pub fn at_the_end(&self) -> Vec<(Holds, usize)> {
        let mut pages = vec![(Holds::Nothing, 0); self.geometry.pages() as usize];
        for (number, frame) in self.frames.iter().enumerate() {
            for (page, holds) in &frame.changed {
                pages[*page as usize] = (*holds, number);
            }
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(tree: System) -> TreePlayed {
        play(TreePlay { tree, records: 20_000, operations: 600, frames: 6 }).unwrap()
    }

    fn count(played: &TreePlayed, holds: Holds) -> usize {
        played.at_the_end().iter().filter(|page| page.0 == holds).count()
    }

    #[test]
    fn a_tree_with_files_of_its_levels_shows_them() {
        let played = small(System::Pio);
        let (leaves, inner) = (count(&played, Holds::Leaf), count(&played, Holds::Inner));
        assert!(leaves > 50 && inner >= 1 && leaves > inner, "{leaves} leaves, {inner} inner");
        assert_eq!(played.frames.len(), 7);
        assert!(played.at_the_end().iter().any(|page| page.1 == 6), "the flush at the end wrote something");
        assert!(count(&small(System::BTree), Holds::Node) > 50);
    }

    #[test]
    fn trees_on_raw_flash_are_told_by_their_tags() {
        let played = small(System::Ipl);
        assert!(count(&played, Holds::Leaf) > 50 && count(&played, Holds::Inner) >= 1);
        assert!(count(&played, Holds::Beside) > 0, "logs");
        let played = small(System::Wandering);
        let (first, last) = (&played.frames[0], &played.frames[6]);
        assert!(last.programs >= first.programs + 600 && last.seconds > first.seconds);
        assert!(count(&played, Holds::Node) > 600);
    }

    #[test]
    fn every_page_that_holds_something_is_of_a_kind_with_a_colour() {
        let mut colours = Holds::ALL.map(Holds::colour).to_vec();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), Holds::ALL.len());
        assert_eq!(Holds::tagged(b"TrTg\x02", true), Holds::Beside);
        assert_eq!(Holds::tagged(&[0xff; 52], false), Holds::Nothing);
        assert_eq!(Holds::in_file("asbtree-0000000001"), Holds::Node);
        assert_eq!(Holds::in_file("pio-wal"), Holds::Beside);
    }
}
