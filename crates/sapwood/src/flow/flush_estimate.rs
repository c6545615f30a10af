//! Predicts how much a flush will write, and tracks how much it has written: its queue, what becomes due once
//! that is in the trees, and what the collector copies. The last is expected as in previous flushes.
//!
//! Invariant: the predicted total is never less than what has been written.

use crate::estimator::Estimator;

/// See the module documentation. In bytes.
#[derive(Debug, Default)]
pub(crate) struct FlushEstimate {
    /// What the flush itself writes, and the part of it that was due when its queue was in the trees.
    own: u64,
    due: u64,
    written: u64,
    /// What the collector will copy in this flush, what it has copied, and what it copied in previous flushes.
    copies: u64,
    copied: u64,
    copied_before: Estimator<2>,
}

impl FlushEstimate {
    /// Starts a flush that will itself write `own` bytes.
    pub fn begin(&mut self, own: u64) {
        let mut copied_before = self.copied_before;
        copied_before.see(self.copied);
        *self = Self { own, copies: copied_before.or_zero(), copied_before, ..Self::default() };
    }

    pub fn wrote(&mut self, bytes: u64) {
        self.written += bytes;
    }

    pub fn copied(&mut self, bytes: u64) {
        self.copied += bytes;
    }

    /// The queue is in the trees, and the collector has finished with the space that this freed. Now `due`
    /// bytes of cleansing are due.
    pub fn expect(&mut self, due: u64) {
        (self.own, self.due, self.copies) = (self.written + due, due, self.copied);
    }

    /// The predicted total.
    pub fn total(&self) -> u64 {
        self.own.max(self.written) + self.copies.max(self.copied)
    }

    /// What has been written so far.
    pub fn done(&self) -> u64 {
        self.written + self.copied
    }

    /// Progress in thousandths, from 1 to 999.
    pub fn progress(&self) -> u64 {
        (self.done() * 1000).checked_div(self.total()).unwrap_or(0).clamp(1, 999)
    }

    /// The prediction for the work that was actually done, if `undone` thousandths of the due work were left.
    /// It differs from what was written; the next flush is expected to be off in the same way.
    pub fn estimate_of_done(&self, undone: u64) -> u64 {
        self.own.saturating_sub(self.due / 1000 * undone) + self.copied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_collector_copies_is_foreseen_as_long_as_it_may_come() {
        let mut estimate = FlushEstimate::default();
        estimate.begin(1000);
        estimate.wrote(1000);
        estimate.copied(300);
        assert_eq!((estimate.total(), estimate.progress()), (1300, 999), "none was expected");
        estimate.begin(2000);
        assert_eq!((estimate.total(), estimate.progress()), (2150, 1));
        estimate.wrote(1900);
        estimate.copied(100);
        assert_eq!((estimate.total(), estimate.done()), (2150, 2000));
        assert_eq!(estimate.estimate_of_done(0), 2100, "what did not come took no time");
        estimate.expect(1000);
        assert_eq!(estimate.total(), 3000, "it is through");
        assert_eq!(estimate.estimate_of_done(500), 2500, "a half of what was due is left");
        estimate.begin(500);
        assert_eq!(estimate.total(), 625, "half of the way from 150 to 100");
    }
}
