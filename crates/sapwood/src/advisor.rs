//! The advisor: how long log areas may become, by what the workload of late has paid for them.
//!
//! Each byte of update is written to the log and to a log piece, whatever is decided. When a block's pieces have reached the share
//! `s` of its leaves, the leaves are read and written again, `1/s` bytes of each for each byte of update. A range search pays rent for the
//! pieces on its way ([`crate::store::rent`]), and of these there are in proportion to `s`. Blocks whose rent has reached its price are cleansed by
//! themselves, whatever the share is. So between two flushes, with `F` bytes of updates and `R` bytes of rent in all other blocks
//! while the share was `s₀`, bytes moved because of the share are
//!
//! ```text
//! cost(s) = 2 F / s  +  R s / s₀            least at  s = √(2 F s₀ / R)
//! ```
//! Space grows by `s/2`, which bounds it from above. A new record takes no space twice while it lies in a piece, and so weighs less there than a record that
//! hides another ([`crate::tree::sweep::weight`]): where a database grows, log areas become two and a half times as long, and later changes to it find room
//! beside what is new. That it grows is found out from a sample of each queue ([`crate::tree::sample`]).
//! (The cost model of the PIO B-tree, VLDB 2011, section 4, which weighs searches against batch updates, extended by log
//! areas; docs/cost-model.md has prediction and measurement.)

/// Shares in percent, of bytes as they weigh: more would take too much space,
const SHARE_MAX: u64 = 26;
/// ... less would be no log area.
const SHARE_MIN: u64 = 6;

/// Follows the workload from flush to flush.
#[derive(Debug)]
pub(crate) struct Advisor {
    share: u64,
    /// How many in a hundred of the last flush's changes were new records.
    fresh: u64,
    /// Rent that nothing was cleansed for when it was asked last.
    rent: u64,
}

impl Default for Advisor {
    fn default() -> Self {
        // Until something is known: a young database grows.
        Self { share: SHARE_MAX, fresh: 100, rent: 0 }
    }
}

impl Advisor {
    /// The share in percent for a flush of `flushed` bytes, when range searches have paid so much rent since the database was
    /// opened that nothing was cleansed for. It goes half of the way at a time, since one flush says little.
    pub fn share(&mut self, flushed: u64, rent: u64) -> u64 {
        // What was paid before may have been settled since.
        let paid = rent.saturating_sub(std::mem::replace(&mut self.rent, rent));
        let best = best(flushed, paid, self.share);
        // Rounded towards the new one.
        self.share = (self.share + best + u64::from(best > self.share)) / 2;
        self.share
    }

    /// So many percent of a flush's changes were new records.
    pub fn note_fresh(&mut self, percent: u64) {
        self.fresh = percent.min(100);
    }

    /// How many in a hundred of the next flush's changes are new records, as far as the last one says.
    pub fn fresh(&self) -> u64 {
        self.fresh
    }
}

/// The share that would have cost least, within what space allows.
fn best(flushed: u64, rent: u64, share: u64) -> u64 {
    let square = (u128::from(2 * flushed) * u128::from(share) * 100).checked_div(u128::from(rent));
    let share = square.map_or(SHARE_MAX, |square| square.isqrt().min(u128::from(SHARE_MAX)) as u64);
    share.max(SHARE_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_other_share_costs_less(flushed in 1u64..1 << 30, rent in 0u64..1 << 38, before in SHARE_MIN..=SHARE_MAX) {
            let cost = |share: u64| {
                let share = share as f64 / 100.0;
                2.0 * flushed as f64 / share + rent as f64 * share / (before as f64 / 100.0)
            };
            let chosen = best(flushed, rent, before);
            let least = (SHARE_MIN..=SHARE_MAX).map(cost).fold(f64::INFINITY, f64::min);
            // Whole percents, of at least six.
            prop_assert!(cost(chosen) <= 1.02 * least, "{chosen}: {} and not {least}", cost(chosen));
        }
    }

    #[test]
    fn it_follows_a_workload_that_changes() {
        let mut advisor = Advisor::default();
        let (mut rent, flushed) = (0, 16 << 20);
        assert_eq!(advisor.share(flushed, rent), SHARE_MAX, "nobody scans");
        for _ in 0..12 {
            rent += 1 << 30;
            advisor.share(flushed, rent);
        }
        assert_eq!(advisor.share, SHARE_MIN, "everybody does");
        for _ in 0..12 {
            advisor.share(flushed, rent);
        }
        assert_eq!(advisor.share, SHARE_MAX, "nobody does any more");
    }
}
