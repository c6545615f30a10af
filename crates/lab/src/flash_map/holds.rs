//! What a page of flash holds, as a map of a tree shows it: where that is read from, its name, its colour.
//!
//! Invariants:
//! 1. What a page is follows from what it says itself (`trees::PageGlance`; in the engine's data file the first node that begins in
//!    it), else from the name of its file. Whether the tree needs it follows from the tree's own table.
//! 2. The root is the one page of the highest level; if there are several of that level, none is the root.

use crate::every_system::System;
use trees::PageGlance;

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holds {
    Erased,
    /// Nobody needs it; its block is not erased yet.
    Dead,
    /// The tree needs it no more, but it belongs to a file, so that a drive has to keep it.
    Stale,
    Log,
    /// Superblocks, tables, the drive's list of files.
    Table,
    /// Of a level that nothing tells.
    Untold,
    /// Of this height above the leaves; [`Holds::LEVEL_MAX`] stands for all above, too.
    Level(u8),
    Root,
}

const UNFINISHED_PATH: &str = "a leaf, and nodes above it of which no other page has a newer version";

impl Holds {
    const LEVEL_MAX: u8 = 3;
    /// All of them; the position is the number in the player, where a page that was never written has 0.
    pub const ALL: [Holds; 11] = [
        Holds::Erased,
        Holds::Root,
        Holds::Level(3),
        Holds::Level(2),
        Holds::Level(1),
        Holds::Level(0),
        Holds::Log,
        Holds::Table,
        Holds::Untold,
        Holds::Stale,
        Holds::Dead,
    ];

    /// In the order of legends: from the root down, and what is free last.
    pub fn in_legends() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().cycle().skip(1).take(Self::ALL.len())
    }

    /// Its place in [`Holds::ALL`].
    pub fn number(self) -> usize {
        Self::ALL.iter().position(|other| *other == self).unwrap_or_default()
    }

    pub fn level(level: u8) -> Self {
        Holds::Level(level.min(Self::LEVEL_MAX))
    }

    /// Whether somebody needs what it holds, or the drive has to take it for needed.
    pub fn is_kept(self) -> bool {
        !matches!(self, Holds::Erased | Holds::Dead)
    }

    /// Its name under a tree, and in a few words what that means.
    pub fn name(self, tree: System) -> (&'static str, &'static str) {
        let path = matches!(tree, System::Mu | System::MuStar);
        let run = matches!(tree, System::Fd | System::Lsm);
        match self {
            Holds::Erased => ("erased", "free: can be written"),
            Holds::Root if path => {
                ("path from the root", "the page written last: a leaf and all nodes above it")
            }
            Holds::Level(1) if path => ("path up to level 1", UNFINISHED_PATH),
            Holds::Level(2) if path => ("path up to level 2", UNFINISHED_PATH),
            Holds::Level(3..) if path => ("path up to level 3", UNFINISHED_PATH),
            Holds::Level(0) if path => ("leaf of a path", "of its path, the leaf alone is still needed"),
            Holds::Root | Holds::Level(1..) if run => {
                ("upper run", "a sorted run with fences into the one below")
            }
            Holds::Level(0) if run => ("lowest run", "the sorted run with the most records"),
            Holds::Level(0) if tree == System::Pio => ("leaf segment", "a page of a leaf, which has several"),
            Holds::Root => ("root", "where every search begins"),
            Holds::Level(0) => ("leaf", "records: keys and values"),
            Holds::Level(1) => ("inner node, level 1", "right above the leaves: says which leaf has a key"),
            Holds::Level(2) => ("inner node, level 2", "two levels above the leaves"),
            Holds::Level(_) => ("inner node, higher", "three levels above the leaves, or more"),
            Holds::Log if tree == System::Bftl => {
                ("shared sector", "small changes of many nodes: a node is read from several of these")
            }
            Holds::Log if tree == System::La => {
                ("buffer", "updates that wait beside the tree for their way down")
            }
            Holds::Log if tree == System::Lsb => ("log node", "what was done to a leaf since it was written"),
            Holds::Log => ("log", "changes beside the nodes that they are of"),
            Holds::Table => ("table", "superblocks, mapping tables, the drive's list of files"),
            Holds::Untold => ("level not told", "in use; nothing on the page tells for what"),
            Holds::Stale => {
                ("stale", "an old version: the tree needs it no more, the drive does not know and keeps it")
            }
            Holds::Dead => ("dead", "an old version that waits until its whole block is erased"),
        }
    }

    pub fn colour(self) -> (u8, u8, u8) {
        match self {
            Holds::Erased => (236, 239, 243),
            Holds::Root => (214, 0, 28),
            Holds::Level(0) => (0, 158, 115),
            Holds::Level(1) => (0, 90, 181),
            Holds::Level(2) => (122, 40, 160),
            Holds::Level(_) => (60, 20, 90),
            Holds::Log => (240, 150, 0),
            Holds::Table => (214, 120, 176),
            Holds::Untold => (86, 180, 233),
            Holds::Stale => (205, 190, 140),
            Holds::Dead => (160, 165, 170),
        }
    }

    /// A page that its tree needs, by what it says of itself; `None` if it says nothing.
    pub fn at_a_glance(page: &[u8]) -> Option<Self> {
        Some(match PageGlance::of(page)? {
            PageGlance::Node { level } => Holds::level(level),
            // Which of its nodes are needed, the tree knows.
            PageGlance::Path { height } => Holds::level(height.saturating_sub(1)),
            PageGlance::Run { lowest } => Holds::Level(u8::from(!lowest)),
            PageGlance::Units | PageGlance::Log => Holds::Log,
            PageGlance::Start => Holds::Table,
        })
    }

    /// Whether a page is of the list of files that the simulated drive keeps: drawn in `flash`, `ssd/journal.rs`.
    pub fn is_list_of_files(page: &[u8]) -> bool {
        page.starts_with(b"SWJ1")
    }

    /// A page that a drive keeps, but that is of no file with a name: its list of files, or of a file that was removed, and that
    /// the drive has not let go yet.
    pub fn in_no_file(says: Option<Self>) -> Self {
        if says == Some(Holds::Table) { Holds::Table } else { Holds::Stale }
    }

    /// A page of a file that says nothing of itself.
    pub fn in_file(name: &str) -> Self {
        match name {
            // Leaves have several pages each, of which the last may never have been written.
            "pio-leaves" => Holds::Level(0),
            _ if name.contains("log") || name.contains("wal") => Holds::Log,
            _ => Holds::Table,
        }
    }

    /// A page of the engine's data file, by the first node that begins in it: drawn in `sapwood`, `node.rs`.
    pub fn in_segment(page: &[u8]) -> Option<Self> {
        page.windows(8).find_map(|bytes| match bytes {
            [b'S', b'a', b'p', b'N', 3, u8::MAX, 0, 0] => Some(Holds::Log),
            [b'S', b'a', b'p', b'N', 1 | 2, level, 0, 0] => Some(Holds::level(*level)),
            _ => None,
        })
    }

    /// Makes the root of the one page of the highest level.
    pub fn find_root(pages: &mut [Self]) {
        let highest = pages.iter().filter_map(|holds| match holds {
            Holds::Level(level) => Some(*level),
            _ => None,
        });
        let Some(highest) = highest.max() else { return };
        let mut of_it = pages.iter_mut().filter(|holds| **holds == Holds::Level(highest));
        if let (Some(root), None) = (of_it.next(), of_it.next()) {
            *root = Holds::Root;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_colours_and_names_of_their_own() {
        let mut colours = Holds::ALL.map(Holds::colour).to_vec();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), Holds::ALL.len());
        for tree in [System::BTree, System::Fd, System::Bftl] {
            for (number, holds) in Holds::ALL.into_iter().enumerate() {
                assert_eq!(holds.number(), number);
                assert!(!holds.name(tree).0.is_empty() && holds.name(tree).1.len() > 10);
            }
        }
    }

    #[test]
    fn a_page_is_what_it_says_and_else_what_its_file_is() {
        let mut page = vec![0; 4096];
        assert_eq!(Holds::at_a_glance(&page), None);
        page[..6].copy_from_slice(b"Tree\x02\x01");
        assert_eq!(Holds::at_a_glance(&page), Some(Holds::Level(1)));
        page[..6].copy_from_slice(b"Tree\x02\x09");
        assert_eq!(Holds::at_a_glance(&page), Some(Holds::Level(3)), "all that is higher");
        page[4] = 42;
        assert_eq!(Holds::at_a_glance(&page), Some(Holds::Log));
        page[4] = 99;
        assert_eq!(Holds::at_a_glance(&page), None);
        assert_eq!(Holds::in_file("pio-wal"), Holds::Log);
        assert_eq!(Holds::in_file("CURRENT"), Holds::Table);
        assert!(Holds::is_list_of_files(b"SWJ1....") && !Holds::is_list_of_files(&page));
        assert_eq!(Holds::in_no_file(Some(Holds::Table)), Holds::Table);
        assert_eq!(Holds::in_no_file(Some(Holds::Level(0))), Holds::Stale, "of a removed file");
        assert_eq!(Holds::in_no_file(None), Holds::Stale);
        page[100..108].copy_from_slice(b"SapN\x02\x01\0\0");
        assert_eq!(Holds::in_segment(&page), Some(Holds::Level(1)));
        page[50..58].copy_from_slice(b"SapN\x03\xff\0\0");
        assert_eq!(Holds::in_segment(&page), Some(Holds::Log), "the first counts");
    }

    #[test]
    fn the_root_is_the_only_page_of_the_highest_level() {
        let mut pages = [Holds::Level(0), Holds::Level(1), Holds::Level(2), Holds::Log, Holds::Level(1)];
        Holds::find_root(&mut pages);
        assert_eq!(pages[2], Holds::Root);
        let mut pages = [Holds::Level(1), Holds::Level(1), Holds::Dead];
        Holds::find_root(&mut pages);
        assert_eq!(pages, [Holds::Level(1), Holds::Level(1), Holds::Dead]);
    }
}
