//! What flash refuses and how it fails. Every error names the block and the page.

use crate::BlockId;

/// The answer of everything that touches flash.
pub type Result<T> = std::result::Result<T, Error>;

/// A rule was broken, or the flash failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Program of a page that holds something. A bug of the caller.
    #[error("page {index} of block {} was programmed already ({programs} of {programs_max} times); erase the block", .block.0)]
    NotFree {
        /// Where.
        block: BlockId,
        /// Which page of the block.
        index: u32,
        /// Programs since the block was erased.
        programs: u8,
        /// As many as [`Rules::programs_max`](crate::Rules) allows.
        programs_max: u8,
    },
    /// Pages of a block are programmed in ascending order. A bug of the caller.
    #[error("program of page {index} of block {} out of order: page {expected} is next", .block.0)]
    OutOfOrder {
        /// Where.
        block: BlockId,
        /// Which page of the block.
        index: u32,
        /// Which one it should have been (the least that it might have been, where pages may be skipped).
        expected: u32,
    },
    /// No such block or page, or data of another length than a page. A bug of the caller.
    #[error("block {}, page {index}: {what}", .block.0)]
    Misuse {
        /// Where.
        block: BlockId,
        /// Which page of the block.
        index: u32,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// The block was bad when the drive was made, or has failed since.
    #[error("block {} is bad", .block.0)]
    BadBlock {
        /// Which one.
        block: BlockId,
    },
    /// An erase of the block was interrupted by power loss; it must be erased again before it is programmed.
    #[error("block {} is half erased; erase it again", .block.0)]
    HalfErased {
        /// Which one.
        block: BlockId,
    },
    /// The block has been erased as often as it endures. It is bad from now on.
    #[error("block {} is worn out after {erases} erases", .block.0)]
    WornOut {
        /// Which one.
        block: BlockId,
        /// How often it was erased.
        erases: u32,
    },
    /// The program failed; the page is used up and unreadable. Write elsewhere, and retire the block.
    #[error("program of page {index} of block {} failed", .block.0)]
    ProgramFailed {
        /// Where.
        block: BlockId,
        /// Which page of the block.
        index: u32,
    },
    /// The erase failed. The block is bad from now on.
    #[error("erase of block {} failed", .block.0)]
    EraseFailed {
        /// Which one.
        block: BlockId,
    },
    /// More bits are wrong than can be corrected: the page was in flight when the power went, or its program failed.
    #[error("page {index} of block {} is unreadable", .block.0)]
    Unreadable {
        /// Where.
        block: BlockId,
        /// Which page of the block.
        index: u32,
    },
    /// The power is off. Nothing was done.
    #[error("the power is off")]
    PowerOff,
    /// No such logical page. A bug of the caller.
    #[error("logical page {page}: the drive has {pages}")]
    NoSuchPage {
        /// Asked for.
        page: u32,
        /// How many there are.
        pages: u32,
    },
    /// No block is left to write to: too many have gone bad.
    #[error(
        "no free block is left: {bad} of {blocks} blocks are bad; the drive is at its end, copy it while it can be read"
    )]
    NoBlocks {
        /// Bad blocks.
        bad: u32,
        /// All blocks.
        blocks: u32,
    },
    /// A drive that cannot be.
    #[error("impossible drive: {0}")]
    Geometry(String),
}
