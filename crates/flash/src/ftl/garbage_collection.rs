//! Which block to empty next: pure choosing, no moving.
//!
//! - Greedy: the block with the fewest valid pages. Best while all pages are overwritten equally often (Desnoyers,
//!   "Analytic Modeling of SSD Write Performance", SYSTOR 2012, section 4).
//! - Cost-benefit: the block with the greatest `age * (1 - u) / 2u`, where `u` is the share of valid pages and age is the
//!   time since the block was last written to (Kawaguchi, Nishioka and Motoda, "A Flash-Memory Based File System",
//!   USENIX 1995, section 4.3; after Rosenblum and Ousterhout's LFS). Better where some pages are hot.
//!
//! Invariants:
//! 1. valid pages are counted for every block, candidates are only those that were offered;
//! 2. candidates hang in one list for each count of valid pages, so that greedy choosing takes constant time; of equals it
//!    takes the one that came to its count first, or some would never be taken and others wear out.

use crate::BlockId;

/// How the next victim is chosen. See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Victims {
    /// Fewest valid pages first.
    #[default]
    Greedy,
    /// Age and gain weighed against cost.
    CostBenefit,
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct State {
    valid: u32,
    listed: bool,
    next: u32,
    previous: u32,
    /// When it was offered, as counted by the caller.
    since: u64,
}

/// Counts of valid pages, and the blocks that may be emptied.
#[derive(Clone, Debug)]
pub(crate) struct Candidates {
    blocks: Vec<State>,
    /// By count of valid pages: the first candidate.
    heads: Vec<u32>,
    /// And the last one, which came first.
    tails: Vec<u32>,
    /// No candidate has fewer valid pages.
    lowest: usize,
}

impl Candidates {
    pub(crate) fn new(blocks: u32, pages_per_block: u32) -> Self {
        let state = State { valid: 0, listed: false, next: NONE, previous: NONE, since: 0 };
        Self {
            blocks: vec![state; blocks as usize],
            heads: vec![NONE; pages_per_block as usize + 1],
            tails: vec![NONE; pages_per_block as usize + 1],
            lowest: pages_per_block as usize + 1,
        }
    }

    pub(crate) fn valid(&self, block: BlockId) -> u32 {
        self.blocks[block.0 as usize].valid
    }

    /// One more page of the block is valid.
    pub(crate) fn gain(&mut self, block: BlockId) {
        self.set_valid(block, self.valid(block) + 1);
    }

    /// One page of the block less is valid.
    pub(crate) fn lose(&mut self, block: BlockId) {
        debug_assert!(self.valid(block) > 0, "block {} has no valid page to lose", block.0);
        self.set_valid(block, self.valid(block) - 1);
    }

    fn set_valid(&mut self, block: BlockId, valid: u32) {
        if self.blocks[block.0 as usize].listed {
            self.unlink(block);
            self.blocks[block.0 as usize].valid = valid;
            self.link(block);
        } else {
            self.blocks[block.0 as usize].valid = valid;
        }
    }

    fn link(&mut self, block: BlockId) {
        let valid = self.blocks[block.0 as usize].valid as usize;
        let head = self.heads[valid];
        match head {
            NONE => self.tails[valid] = block.0,
            _ => self.blocks[head as usize].previous = block.0,
        }
        let state = &mut self.blocks[block.0 as usize];
        (state.next, state.previous) = (head, NONE);
        self.heads[valid] = block.0;
        self.lowest = self.lowest.min(valid);
    }

    fn unlink(&mut self, block: BlockId) {
        let State { valid, next, previous, .. } = self.blocks[block.0 as usize];
        match previous {
            NONE => self.heads[valid as usize] = next,
            _ => self.blocks[previous as usize].next = next,
        }
        match next {
            NONE => self.tails[valid as usize] = previous,
            _ => self.blocks[next as usize].previous = previous,
        }
    }

    /// The block may be emptied from now on. `now` is any count that grows with writes.
    pub(crate) fn offer(&mut self, block: BlockId, now: u64) {
        debug_assert!(!self.blocks[block.0 as usize].listed, "block {} offered twice", block.0);
        let state = &mut self.blocks[block.0 as usize];
        state.listed = true;
        state.since = now;
        self.link(block);
    }

    /// Chooses a block that would gain something, and takes it off the list.
    pub(crate) fn take(&mut self, victims: Victims, now: u64) -> Option<BlockId> {
        let block = match victims {
            Victims::Greedy => self.fewest_valid(),
            Victims::CostBenefit => self.best_ratio(now),
        }?;
        self.unlink(block);
        self.blocks[block.0 as usize].listed = false;
        Some(block)
    }

    fn fewest_valid(&mut self) -> Option<BlockId> {
        let full = self.heads.len() - 1;
        while self.lowest < full && self.heads[self.lowest] == NONE {
            self.lowest += 1;
        }
        (self.lowest < full).then(|| BlockId(self.tails[self.lowest]))
    }

    fn best_ratio(&self, now: u64) -> Option<BlockId> {
        let full = self.heads.len() as u32 - 1;
        let ratio = |state: &State| {
            let used = f64::from(state.valid) / f64::from(full);
            // An empty block costs nothing at all.
            (now - state.since + 1) as f64 * (1.0 - used) / (2.0 * used).max(1e-9)
        };
        let candidates =
            self.blocks.iter().enumerate().filter(|(_, state)| state.listed && state.valid < full);
        let best = candidates.max_by(|(_, one), (_, other)| ratio(one).total_cmp(&ratio(other)));
        best.map(|(block, _)| BlockId(block as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(valid: &[u32]) -> Candidates {
        let mut candidates = Candidates::new(valid.len() as u32, 4);
        for (block, count) in valid.iter().enumerate() {
            let block = BlockId(block as u32);
            candidates.offer(block, u64::from(block.0));
            (0..*count).for_each(|_| candidates.gain(block));
        }
        candidates
    }

    #[test]
    fn greedy_takes_the_emptiest_and_never_a_full_one() {
        let mut list = candidates(&[3, 1, 4, 2]);
        list.lose(BlockId(0));
        list.lose(BlockId(0));
        list.lose(BlockId(0));
        let order: Vec<_> = std::iter::from_fn(|| list.take(Victims::Greedy, 9)).collect();
        assert_eq!(order, [BlockId(0), BlockId(1), BlockId(3)]);
        list.lose(BlockId(2));
        assert_eq!(list.take(Victims::Greedy, 9), Some(BlockId(2)));
        assert_eq!(list.take(Victims::Greedy, 9), None);
    }

    #[test]
    fn of_equals_the_first_is_taken() {
        let mut list = candidates(&[1, 2, 2, 1, 1]);
        list.lose(BlockId(1));
        let order: Vec<_> =
            std::iter::from_fn(|| list.take(Victims::Greedy, 9)).map(|block| block.0).collect();
        assert_eq!(order, [0, 3, 4, 1, 2]);
    }

    #[test]
    fn cost_benefit_prefers_the_old_to_the_slightly_emptier() {
        // Offered at 0 and 1; the younger one is emptier.
        assert_eq!(candidates(&[3, 2]).take(Victims::CostBenefit, 1), Some(BlockId(1)), "2 * 1/6 < 1 * 1/2");
        assert_eq!(candidates(&[2, 2]).take(Victims::CostBenefit, 100), Some(BlockId(0)));
        let mut list = candidates(&[4, 0]);
        assert_eq!(list.take(Victims::CostBenefit, 100), Some(BlockId(1)));
        assert_eq!(list.take(Victims::CostBenefit, 100), None, "a full block gains nothing");
    }
}
