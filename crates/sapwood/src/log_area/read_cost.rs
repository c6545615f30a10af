//! Read cost: accounts for what the log pieces of a block cost range searches, and lists the blocks that were
//! charged enough for their cleansing.
//!
//! A search through a block reads those of its pieces that its range touches, from the device or from the
//! cache, and merges them: that cost is its read cost. Cleansing the block costs its price once, and ends the
//! read cost. Buying when the read cost charged so far has reached the price never costs more than twice the best choice,
//! however many searches follow (the rule of ski rental). Each block has an account of its own, so that
//! blocks with many searches are cleansed first, and blocks without any never. (d-IPL B+-tree: eager
//! cleansing, there begun by a threshold of reads.)
//!
//! A block with many runs has a cheaper option: merging them into one, so that a search reads one piece in
//! place of one of each run. The leaves stay as they are, so merging costs a half to a tenth of a
//! cleansing. It comes first, even if the charge is enough for both when the block is handled between two flushes: it saves
//! the most for its price. Then the account restarts at 0 and rises slowly, with the read cost of one run. As
//! long as no flush adds runs, both together cost no more than three times what a cleansing at the
//! beginning would have cost.
//!
//! ```text
//! 0 ── read cost of many runs ──▶ price of merging, and 0 again ── read cost of one run ──▶ price of cleansing
//! ```
//!
//! Invariant: the list of blocks that were charged enough is bounded. A block that finds it full is listed when it was
//! charged its price once more.

use crate::lock_order::{RankedMutex, rank};
use crate::storage::mapping_table::Position;
use crate::storage::node::NodeId;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that a device moves in long requests while it reads one log piece by itself among many (14
/// microseconds for 4.5 KiB and 1 GB/s where we measured, see docs/benchmarks.md). A piece that comes with
/// its neighbour's request is charged its length only.
pub(crate) const BYTES_A_PIECE: u64 = 14 << 10;
/// Of these bytes, the cost of the request without its length.
pub(crate) const BYTES_A_REQUEST: u64 = BYTES_A_PIECE - (4 << 10);
/// Cost of a piece in the cache, in such bytes: merging it takes 1 microsecond, and it takes the place of a leaf.
const BYTES_A_CACHED_PIECE: u64 = 1 << 10;

/// Most blocks that wait for their cleansing: one and a half GiB of leaves.
const LISTED_MAX: usize = 8192;

/// Fewer runs are not merged: merging has to save three quarters of the read cost.
const MERGED_MIN: usize = 4;

/// Cost of reading pieces, in bytes that a device could have moved: the pieces of a run lie together.
fn reading(pieces: u64, runs: usize) -> u64 {
    pieces + runs as u64 * BYTES_A_REQUEST
}

/// Cost of cleansing a block, in the same unit: leaves are read and written, pieces in so many runs are
/// read.
pub(crate) fn price(leaves: u64, pieces: u64, runs: usize) -> u64 {
    2 * leaves + reading(pieces, runs)
}

/// What a block's read cost buys next, and its price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    Merging(u64),
    Cleansing(u64),
}

impl Remedy {
    /// What to buy for a block with so many bytes of leaves, and of pieces in so many runs. Merging reads
    /// the pieces and writes them; it comes first if it costs at most half as much as a cleansing.
    pub fn of(leaves: u64, pieces: u64, runs: usize) -> Self {
        let cleansing = price(leaves, pieces, runs);
        let merging = reading(pieces, runs) + pieces;
        if runs >= MERGED_MIN && 2 * merging <= cleansing {
            Self::Merging(merging)
        } else {
            Self::Cleansing(cleansing)
        }
    }

    pub fn price(self) -> u64 {
        match self {
            Self::Merging(price) | Self::Cleansing(price) => price,
        }
    }
}

/// The account of one block.
#[derive(Debug, Default)]
pub(crate) struct ReadCost {
    charged: AtomicU64,
    /// Price of what is bought next; looked up by the first that charges it.
    price: OnceLock<u64>,
}

impl ReadCost {
    /// The account after the block got one more run: the same read cost, and a new price.
    pub fn carried_over(&self) -> Self {
        Self { charged: AtomicU64::new(self.charged()), price: OnceLock::new() }
    }

    /// Read cost charged, in bytes that a device could have moved instead.
    pub fn charged(&self) -> u64 {
        self.charged.load(Relaxed)
    }

    /// Whether the read cost has reached a price.
    pub fn has_reached(&self, price: u64) -> bool {
        self.charged() >= price
    }

    /// Charges. Returns whether this reached the price, or a multiple of it.
    fn charge(&self, bytes: u64, price: impl FnOnce() -> u64) -> bool {
        let price = (*self.price.get_or_init(price)).max(1);
        let before = self.charged.fetch_add(bytes, Relaxed);
        (before + bytes) / price > before / price
    }
}

/// All accounts together: sums, and the list of blocks that were charged enough.
#[derive(Debug, Default)]
pub(crate) struct ReadCosts {
    /// Pieces read from the device, pieces found in the cache, and what was charged for both.
    read: AtomicU64,
    cached: AtomicU64,
    charged: AtomicU64,
    /// Read cost of blocks that were cleansed or merged because of it.
    discharged: AtomicU64,
    /// Blocks that were charged enough, with the position of their first leaf.
    listed: RankedMutex<rank::ReadCosts, Vec<(Position, NodeId)>>,
}

/// Pieces of one block that a search needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needed {
    pub read: u64,
    pub cached: u64,
    /// Their cost.
    pub bytes: u64,
}

impl Needed {
    /// Adds one that was found in the cache.
    pub fn add_cached(&mut self) {
        self.cached += 1;
        self.bytes += BYTES_A_CACHED_PIECE;
    }

    /// Adds one of `len` bytes that is read, beside its neighbour or by itself.
    pub fn add_read(&mut self, len: u64, is_beside: bool) {
        self.read += 1;
        self.bytes += if is_beside { len } else { BYTES_A_PIECE };
    }
}

impl ReadCosts {
    /// Charges a block for its pieces that a search needs, and lists it when the charge reaches its price.
    pub fn charge(
        &self,
        read_cost: &ReadCost,
        needed: Needed,
        price: impl FnOnce() -> u64,
        place: (Option<Position>, NodeId),
    ) {
        self.read.fetch_add(needed.read, Relaxed);
        self.cached.fetch_add(needed.cached, Relaxed);
        self.charged.fetch_add(needed.bytes, Relaxed);
        let (Some(position), block) = place else { return };
        if read_cost.charge(needed.bytes, price) {
            let mut listed = self.listed.lock();
            if listed.len() < LISTED_MAX {
                listed.push((position, block));
            }
        }
    }

    /// Pieces read from the device, and found in the cache.
    pub fn pieces(&self) -> (u64, u64) {
        (self.read.load(Relaxed), self.cached.load(Relaxed))
    }

    /// Discharges the read cost of a block that was cleansed, or whose runs were merged, because of it.
    pub fn discharge(&self, read_cost: &ReadCost) {
        self.discharged.fetch_add(read_cost.charged(), Relaxed);
    }

    /// Read cost that was charged without any cleansing or merging for it yet, in bytes.
    pub fn outstanding(&self) -> u64 {
        self.charged.load(Relaxed).saturating_sub(self.discharged.load(Relaxed))
    }

    /// Takes the list of blocks that were charged enough, sorted by where their leaves lie on the device: so these die
    /// side by side, and whole segments with them.
    pub fn take_listed(&self) -> Vec<(Position, NodeId)> {
        let mut listed = std::mem::take(&mut *self.listed.lock());
        listed.sort_unstable();
        listed.dedup();
        listed
    }

    /// Whether any block was charged enough.
    pub fn has_listed(&self) -> bool {
        !self.listed.lock().is_empty()
    }

    /// Lists blocks again that could not be cleansed now.
    pub fn put_back(&self, blocks: impl Iterator<Item = (Position, NodeId)>) {
        let mut listed = self.listed.lock();
        let room = LISTED_MAX.saturating_sub(listed.len());
        listed.extend(blocks.take(room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICE: u64 = 10 * BYTES_A_PIECE;

    fn needed(read: u64, cached: u64) -> Needed {
        let mut needed = Needed::default();
        (0..read).for_each(|_| needed.add_read(4096, false));
        (0..cached).for_each(|_| needed.add_cached());
        needed
    }

    #[test]
    fn a_block_that_has_paid_is_listed_once_and_again_after_another_price() {
        let (read_costs, read_cost) = (ReadCosts::default(), ReadCost::default());
        let charge = |read, cached| {
            read_costs.charge(&read_cost, needed(read, cached), || PRICE, (Some(Position(7)), NodeId(1)))
        };
        charge(9, 0);
        assert!(read_costs.take_listed().is_empty() && !read_cost.has_reached(PRICE));
        charge(0, 14);
        assert!(read_cost.has_reached(PRICE));
        charge(5, 0);
        assert_eq!(read_costs.take_listed(), [(Position(7), NodeId(1))]);
        charge(4, 0);
        assert!(read_costs.take_listed().is_empty(), "not before it was charged once more");
        charge(1, 0);
        assert_eq!(read_costs.take_listed().len(), 1);
        assert_eq!(read_costs.outstanding(), 19 * BYTES_A_PIECE + 14 * BYTES_A_CACHED_PIECE);
        read_costs.discharge(&read_cost);
        assert_eq!(read_costs.outstanding(), 0);
        assert_eq!(read_cost.carried_over().charged(), read_cost.charged());
    }

    #[test]
    fn layers_are_merged_where_they_are_many_and_short() {
        let next = |pieces, runs| Remedy::of(400 << 10, pieces, runs);
        let cleansing = |pieces, runs| Remedy::Cleansing(price(400 << 10, pieces, runs));
        let requests = MERGED_MIN as u64 * BYTES_A_REQUEST;
        assert_eq!(
            next(40 << 10, MERGED_MIN),
            Remedy::Merging((80 << 10) + requests),
            "a tenth of the leaves"
        );
        let few = MERGED_MIN - 1;
        assert_eq!(next(40 << 10, few), cleansing(40 << 10, few));
        assert_eq!(next(400 << 10, MERGED_MIN), cleansing(400 << 10, MERGED_MIN), "as long as the leaves");
    }

    #[test]
    fn the_list_is_bounded_and_in_the_order_of_the_device() {
        let read_costs = ReadCosts::default();
        for block in 0..2 * LISTED_MAX as u64 {
            let place = (Some(Position(1 << 30 >> (block % 20))), NodeId(block));
            read_costs.charge(&ReadCost::default(), needed(10, 0), || PRICE, place);
        }
        let listed = read_costs.take_listed();
        assert!(listed.len() == LISTED_MAX && listed.is_sorted());
        read_costs.put_back(listed.iter().chain(&listed).copied());
        assert_eq!(read_costs.take_listed(), listed);
    }
}
