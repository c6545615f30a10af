//! What a page says of itself at first sight: for maps of a device, not for reading a tree.
//!
//! Invariant: nothing is verified but magic and kind; whoever needs what a page says opens it (see [`super::header::open`]).

use super::header::{HEADER, Kind, MAGIC, bytes_at};
use super::run_page;

const LOG_PAGE: &[u8; 8] = b"SapwdLog";

/// What a page of any of the trees here is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageGlance {
    /// A node, or a part of one. The level is 0 for leaves.
    Node {
        /// Height above the leaves.
        level: u8,
    },
    /// A leaf together with the nodes above it, up to the root.
    Path {
        /// Levels of the tree when it was written.
        height: u8,
    },
    /// Of a sorted run, with fences into a run below if it is not the lowest.
    Run {
        /// Whether nothing lies below it.
        lowest: bool,
    },
    /// Single changes of nodes, of many nodes together.
    Units,
    /// What was done to a node since it was written, or a log of operations.
    Log,
    /// Where the tree begins: superblock, anchor or commit record.
    Start,
}

impl PageGlance {
    /// What a whole page says; `None` if it is not one of these trees'.
    ///
    /// ```
    /// use trees::PageGlance;
    ///
    /// let mut page = [0; 4096];
    /// assert_eq!(PageGlance::of(&page), None);
    /// page[..6].copy_from_slice(b"Tree\x02\x01");
    /// assert_eq!(PageGlance::of(&page), Some(PageGlance::Node { level: 1 }));
    /// ```
    pub fn of(page: &[u8]) -> Option<Self> {
        if page.starts_with(LOG_PAGE) {
            return Some(Self::Log);
        }
        if page.len() < HEADER || !page.starts_with(MAGIC) {
            return None;
        }
        let (level, count) = (page[5], u16::from_le_bytes(bytes_at(page, 6)));
        Some(match Kind::of(page[4])? {
            Kind::Superblock | Kind::Anchor => Self::Start,
            Kind::Inner | Kind::Leaf | Kind::Blink | Kind::Buffered | Kind::FlashInner | Kind::FlashLeaf => {
                Self::Node { level }
            }
            Kind::LeafSegment => Self::Node { level: 0 },
            Kind::Path => Self::Path { height: level },
            Kind::Run => Self::Run { lowest: !run_page::begins_with_fence(page, count.into()) },
            Kind::Filter => Self::Run { lowest: false },
            Kind::Units => Self::Units,
            Kind::Log | Kind::FlashLog | Kind::LogNode => Self::Log,
        })
    }
}
