//! Which pages a tree still needs, as its own tables say: for maps of what lies under it.
//!
//! Invariant: this is about the moment; a page that is not needed may be needed again after the next operation, as another
//! node's.

/// Pages that a tree still needs, or does not need any more though they are still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageUse {
    /// The tree has no table of this. One that overwrites its pages in place needs all of its files.
    NotTold,
    /// On a volume: pages that are needed no more, file and offset in bytes; the others are needed. As long as a page that the
    /// last commit speaks of is kept for a recovery, it counts as not needed if the tree has a newer one.
    Unused(Vec<(String, u64)>),
    /// On raw flash, by the number of the page: what of it is needed, a bit for each part. Where a page holds a path, bit `l` stands
    /// for its node of level `l`, else the whole page is bit 0. 0: dead, or never written.
    Needed(Vec<u16>),
}
