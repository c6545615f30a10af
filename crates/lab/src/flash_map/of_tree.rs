//! The flash under a tree while keys are updated: what every page holds, and how long it has been there.
//!
//! Invariants:
//! 1. What is looked at for the map is in nobody's time and in no count: flash is peeked at, not read.
//! 2. A page was written in the frame in which its block's erases or its own programs are others than in the frame before; its
//!    age is exact to a frame.
//! 3. In every frame each page is of one kind; with an owner or a need for it, it is kept, else dead or erased.

use super::holds::Holds;
use crate::every_system::{Store, System};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::progress::Progress;
use crate::wear_ground::{Keys, UPDATES};
use flash::{FtlOptions, Geometry, PageId, Profile, RawFlash, Ssd};
use psync::Volume;
use std::collections::HashSet;
use std::sync::Arc;
use trees::{Checked, PageUse};

/// What to play.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreePlay {
    pub tree: System,
    pub records: u64,
    pub operations: u64,
    pub frames: usize,
}

/// A page that is not as it was in the frame before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub page: u32,
    pub holds: Holds,
    /// Whether it was programmed since, or else only what it counts for has changed.
    pub written: bool,
}

/// The flash at a moment.
#[derive(Clone, Debug)]
pub(crate) struct TreeFrame {
    pub changes: Vec<Change>,
    /// Virtual time since the first update.
    pub seconds: f64,
    /// Updates so far.
    pub operations: u64,
    /// Pages programmed and blocks erased since the first update.
    pub programs: u64,
    pub erases: u64,
}

/// A whole play.
#[derive(Debug)]
pub(crate) struct TreePlayed {
    pub play: TreePlay,
    pub geometry: Geometry,
    pub frames: Vec<TreeFrame>,
    /// What the tree itself counts at the end; the engine does not.
    pub checked: Option<Checked>,
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
const PAGE: usize = GEOMETRY.page_bytes as usize;
/// Programs of a page that cannot be read.
const UNREADABLE: u8 = u8::MAX;

enum Ground {
    Drive(Ssd),
    Raw(Arc<RawFlash>),
}

impl Ground {
    /// By page: how often its block was erased, and how often it was programmed since.
    fn written(&self, page: u32, erases: &[u32], bytes: &mut [u8]) -> Result<(u32, u8)> {
        let programs = match self {
            Ground::Drive(drive) => {
                drive.peek(PageId(page), bytes).map_err(|error| Failure::Io(error.to_string()))
            }
            Ground::Raw(flash) => {
                flash.peek(PageId(page), bytes, &mut []).map_err(|error| Failure::Io(error.to_string()))
            }
        };
        Ok((erases[(page / GEOMETRY.pages_per_block) as usize], programs?))
    }

    fn erases(&self) -> Vec<u32> {
        match self {
            Ground::Drive(drive) => drive.blocks().iter().map(|block| block.erases).collect(),
            Ground::Raw(flash) => flash.erases(),
        }
    }

    /// Virtual time in seconds, programs and erases so far.
    fn counted(&self) -> (f64, u64, u64) {
        let (now, counters) = match self {
            Ground::Drive(drive) => (drive.now(), drive.nand_counters()),
            Ground::Raw(flash) => (flash.now(), flash.counters()),
        };
        (now.as_secs_f64(), counters.programs, counters.erases)
    }
}

/// A page as it was last seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Erases of its block, programs since.
    written: (u32, u8),
    /// What its bytes say.
    says: Option<Holds>,
    holds: Holds,
}

struct Camera {
    tree: System,
    pages: Vec<Seen>,
}

impl Camera {
    fn new(tree: System) -> Self {
        let blank = Seen { written: (0, 0), says: None, holds: Holds::Erased };
        Self { tree, pages: vec![blank; GEOMETRY.pages() as usize] }
    }

    /// Looks at all pages: which ones are not as they were.
    fn look(&mut self, ground: &Ground, needs: &PageUse) -> Result<Vec<Change>> {
        let erases = ground.erases();
        let mut bytes = vec![0; PAGE];
        let mut written = vec![false; self.pages.len()];
        for (page, seen) in self.pages.iter_mut().enumerate() {
            let now = ground.written(page as u32, &erases, &mut bytes)?;
            if now != seen.written {
                written[page] = now.1 > 0;
                seen.written = now;
                let readable = now.1 > 0 && now.1 != UNREADABLE;
                seen.says = match self.tree {
                    _ if !readable => None,
                    _ if Holds::is_list_of_files(&bytes) => Some(Holds::Table),
                    System::Engine | System::EngineDurable => Holds::in_segment(&bytes),
                    _ => Holds::at_a_glance(&bytes),
                };
            }
        }
        let mut holds = match ground {
            Ground::Drive(drive) => self.on_a_drive(drive, needs),
            Ground::Raw(_) => self.on_raw_flash(needs),
        };
        Holds::find_root(&mut holds);
        let pages = (0..).zip(self.pages.iter_mut().zip(holds).zip(written));
        let changes = pages.filter_map(|(page, ((seen, holds), written))| {
            let changed = written || holds != seen.holds;
            seen.holds = holds;
            changed.then_some(Change { page, holds, written })
        });
        Ok(changes.collect())
    }

    fn on_a_drive(&self, drive: &Ssd, needs: &PageUse) -> Vec<Holds> {
        let owners = drive.owners();
        let unused: HashSet<(&str, u64)> = match needs {
            PageUse::Unused(pages) => {
                pages.iter().map(|(name, offset)| (name.as_str(), offset / PAGE as u64)).collect()
            }
            _ => HashSet::new(),
        };
        let mut holds: Vec<Holds> = (self.pages.iter().zip(&owners))
            .map(|(seen, owner)| match owner {
                _ if seen.written.1 == 0 => Holds::Erased,
                None => Holds::Dead,
                Some((name, _)) if name.is_empty() => Holds::in_no_file(seen.says),
                Some((name, page)) if unused.contains(&(&**name, *page)) => Holds::Stale,
                Some((name, _)) if self.is_engine_data(name) => seen.says.unwrap_or(Holds::Untold),
                Some((name, _)) => seen.says.unwrap_or_else(|| Holds::in_file(name)),
            })
            .collect();
        // A page of the engine's data in which no node begins holds the middle of the one before it.
        let mut data: Vec<(u64, usize)> = (0..)
            .zip(&owners)
            .filter_map(|(at, owner)| {
                owner.as_ref().filter(|owner| self.is_engine_data(&owner.0)).map(|owner| (owner.1, at))
            })
            .collect();
        data.sort_unstable();
        for pair in data.windows(2) {
            let [(before, from), (page, to)] = [pair[0], pair[1]];
            if holds[to] == Holds::Untold && before + 1 == page {
                holds[to] = holds[from];
            }
        }
        holds
    }

    fn is_engine_data(&self, file: &str) -> bool {
        matches!(self.tree, System::Engine | System::EngineDurable) && file == "data"
    }

    fn on_raw_flash(&self, needs: &PageUse) -> Vec<Holds> {
        let all = |page: usize| match needs {
            PageUse::Needed(needed) => needed.get(page).copied().unwrap_or(0),
            _ => 1,
        };
        let is_path = matches!(self.tree, System::Mu | System::MuStar);
        let look = |(page, seen): (usize, &Seen)| match all(page) {
            _ if seen.written.1 == 0 => Holds::Erased,
            0 => Holds::Dead,
            needed if is_path => Holds::level(needed.ilog2() as u8),
            _ => seen.says.unwrap_or(Holds::Untold),
        };
        self.pages.iter().enumerate().map(look).collect()
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
    run(play).map_err(|failure| match failure {
        Failure::NoRoom(what) => Failure::NoRoom(format!(
            "{what}; the flash of the map has 64 MiB, so that every page can be seen: ask for fewer --records than {}",
            play.records
        )),
        other => other,
    })
}

fn run(play: TreePlay) -> Result<TreePlayed> {
    let (ground, mut store) = plant(play)?;
    let every = play.operations.div_ceil(play.frames as u64).max(1);
    let progress = Progress::new("flash-map");
    progress.expect(play.operations.div_ceil(every) as usize + 1);
    let (began, programmed, erased) = ground.counted();
    let mut frames: Vec<TreeFrame> = Vec::with_capacity(play.frames + 1);
    let mut camera = Camera::new(play.tree);
    let mut look = |operations: u64, needs: PageUse| {
        progress.step("playing");
        let changes = camera.look(&ground, &needs)?;
        let (now, programs, erases) = ground.counted();
        frames.push(TreeFrame {
            changes,
            seconds: now - began,
            operations,
            programs: programs - programmed,
            erases: erases - erased,
        });
        Ok::<(), Failure>(())
    };
    look(0, store.page_use())?;
    for (done, key) in (1..).zip(Keys::Uniform.draw(play.records, play.operations, UPDATES)?) {
        if done % 256 == 0 && interrupt::pressed() {
            return Err(Failure::Interrupted);
        }
        store.update(key, done)?;
        if done == play.operations {
            store.flush()?;
        }
        if done % every == 0 || done == play.operations {
            look(done, store.page_use())?;
        }
    }
    let checked = store.check()?;
    Ok(TreePlayed { play, geometry: GEOMETRY, frames, checked })
}

impl TreePlayed {
    /// What it is, in words.
    pub fn title(&self) -> String {
        let TreePlay { tree, records, operations, .. } = self.play;
        let (tree, records, operations) = (tree.name(), grouped(records), grouped(operations));
        format!("Flash map, {tree}: {records} records, {operations} updates of random keys")
    }

    /// What the tree itself counts.
    pub fn counted(&self) -> Option<String> {
        let Checked { leaves, inner, height, .. } = self.checked?;
        let (leaves, inner) = (grouped(leaves), grouped(inner));
        Some(format!("The tree itself counts {leaves} leaves and {inner} inner nodes, in {height} levels."))
    }

    /// How many pages hold what at the end, in words.
    pub fn told(&self) -> String {
        let counts = self.counts();
        let kinds = Holds::in_legends().map(|holds| (holds, counts[holds.number()]));
        let kinds = kinds.filter(|(_, count)| *count > 0);
        let kinds: Vec<_> = kinds
            .map(|(holds, count)| format!("{}: {}", holds.name(self.play.tree).0, grouped(count as u64)))
            .collect();
        let counted = self.counted().map(|counted| format!("\n{counted}"));
        format!("Pages: {}.{}", kinds.join("; "), counted.unwrap_or_default())
    }

    /// What every page holds at the end, and in which frame it was written.
    pub fn at_the_end(&self) -> Vec<(Holds, usize)> {
        let mut pages = vec![(Holds::Erased, 0); self.geometry.pages() as usize];
        for (number, frame) in self.frames.iter().enumerate() {
            for Change { page, holds, written } in &frame.changes {
                let page = &mut pages[*page as usize];
                *page = (*holds, if *written { number } else { page.1 });
            }
        }
        pages
    }

    /// How many pages hold what at the end, in the order of [`Holds::ALL`].
    pub fn counts(&self) -> [usize; Holds::ALL.len()] {
        let mut counts = [0; Holds::ALL.len()];
        self.at_the_end().iter().for_each(|(holds, _)| counts[holds.number()] += 1);
        counts
    }
}

/// A number with commas.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(tree: System, operations: u64) -> TreePlayed {
        play(TreePlay { tree, records: 20_000, operations, frames: 4 }).unwrap()
    }

    fn count(played: &TreePlayed, holds: Holds) -> u64 {
        played.counts()[holds.number()] as u64
    }

    /// Pages of leaves and of nodes above them, the root included.
    fn nodes(played: &TreePlayed) -> (u64, u64) {
        let above = [Holds::Level(1), Holds::Level(2), Holds::Level(3), Holds::Root];
        (count(played, Holds::Level(0)), above.iter().map(|holds| count(played, *holds)).sum())
    }

    /// What is wrong with the pages of a tree, as it counts itself.
    fn fault(tree: System, played: &TreePlayed) -> Option<String> {
        let counts = played.counts();
        let ((leaves, above), roots) = (nodes(played), count(played, Holds::Root));
        let all = counts.iter().sum::<usize>() == GEOMETRY.pages() as usize;
        let right = match (tree, played.checked) {
            // Sectors with parts of many nodes.
            (System::Bftl, _) => (leaves, above) == (0, 0) && count(played, Holds::Log) > 100,
            // Nodes of no fixed size.
            (System::Engine | System::EngineDurable, _) => leaves > 50,
            // The root is in memory.
            (System::Fd | System::Lsm, Some(checked)) => (leaves, above) == (checked.leaves, checked.inner),
            // A path is on one page with its leaf.
            (System::Mu | System::MuStar, Some(checked)) => leaves + above == checked.leaves && roots == 1,
            // Leaves of several pages.
            (System::Pio, Some(checked)) => {
                above == checked.inner && roots == 1 && leaves > 0 && leaves.is_multiple_of(checked.leaves)
            }
            (_, Some(checked)) => (leaves, above) == (checked.leaves, checked.inner) && roots == 1,
            (_, None) => false,
        };
        (!all || !right).then(|| {
            format!(
                "{tree:?}: {leaves} leaves, {above} above, {roots} roots, {counts:?}, {:?}",
                played.checked
            )
        })
    }

    #[test]
    fn the_pages_of_every_level_are_those_that_the_tree_counts() {
        let trees = System::ON_A_VOLUME.into_iter().chain(System::ON_RAW_FLASH);
        let faults: Vec<_> = trees.filter_map(|tree| fault(tree, &small(tree, 400))).collect();
        assert_eq!(faults, [""; 0]);
    }

    #[test]
    fn in_page_logging_shows_its_logs_once_it_has_some() {
        // IPL's log is the last slot of a block, here one page; d-IPL's is what the nodes leave.
        for (tree, least) in [(System::Ipl, 6), (System::Dipl, 40)] {
            let short = TreePlay { tree, records: 100_000, operations: 1, frames: 1 };
            let before = count(&play(short).unwrap(), Holds::Log);
            let played = play(TreePlay { operations: 3_000, frames: 6, ..short }).unwrap();
            let logs = count(&played, Holds::Log);
            let found =
                format!("{tree:?}: {before} log pages at first, then {logs}, at least {least} expected");
            // The flush at the end alone writes a log unit.
            assert!(before <= 1 && logs >= least, "{found}");
            // A page of the log takes several units, so that it is written more than once.
            let written = played.frames.iter().flat_map(|frame| &frame.changes);
            let written =
                written.filter(|change| change.written && change.holds == Holds::Log).count() as u64;
            assert!(written > logs, "{tree:?}: log pages written {written} times, {logs} pages");
        }
    }

    #[test]
    fn what_is_old_is_dead_on_raw_flash_and_stale_in_files_that_only_grow() {
        for tree in [System::Wandering, System::Mu, System::Lsb] {
            let played = small(tree, 400);
            assert!(count(&played, Holds::Dead) > 200, "{tree:?} {:?}", played.counts());
        }
        assert!(count(&small(System::As, 2_000), Holds::Stale) > 50);
        let played = small(System::BTree, 2_000);
        assert!(
            count(&played, Holds::Dead) > 500 && count(&played, Holds::Stale) == 0,
            "{:?}",
            played.counts()
        );
    }

    #[test]
    fn looking_takes_no_time_and_tells_when_pages_were_written() {
        let often = small(System::Wandering, 400);
        let once = play(TreePlay { frames: 1, ..often.play }).unwrap();
        let end =
            |played: &TreePlayed| played.frames.last().map(|frame| (frame.seconds, frame.programs)).unwrap();
        assert_eq!(end(&often), end(&once));
        assert_eq!(
            often.frames.iter().map(|frame| frame.operations).collect::<Vec<_>>(),
            [0, 100, 200, 300, 400]
        );
        let kinds = |played: &TreePlayed| played.at_the_end().iter().map(|page| page.0).collect::<Vec<_>>();
        assert_eq!(kinds(&often), kinds(&once));
        let pages = often.at_the_end();
        let written =
            |number: usize| pages.iter().filter(|page| page.0.is_kept() && page.1 == number).count();
        assert!((0..5).all(|number| written(number) > 0), "of every frame, some are left");
        let root = pages.iter().find(|page| page.0 == Holds::Root).unwrap();
        assert_eq!(root.1, 4, "each update writes the root");
    }

    #[test]
    fn more_than_fits_says_what_to_do() {
        let much = TreePlay { tree: System::Mu, records: 1_500_000, operations: 1, frames: 2 };
        let Err(failure) = play(much) else { panic!("17,442 paths on 16,384 pages") };
        assert!(matches!(&failure, Failure::NoRoom(what) if what.contains("fewer --records")), "{failure}");
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
