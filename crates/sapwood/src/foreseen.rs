//! What a flush will write, as far as that can be known before, and how much of it is written: its queue, what is due when that is in the trees, and what the collector
//! copies, which is on average what it has copied for the two flushes before.
//!
//! Invariant: there is never less to write than what is written.

/// See the module. In bytes.
#[derive(Debug, Default)]
pub(crate) struct Foreseen {
    /// What the flush writes itself, and of this what was due when its queue was in the trees.
    own: u64,
    due: u64,
    written: u64,
    /// What the collector will copy in all, what it has copied, and what it had in the flushes before.
    copies: u64,
    copied: u64,
    copied_before: [u64; 2],
}

impl Foreseen {
    /// A flush begins that will write so much itself.
    pub fn begin(&mut self, own: u64) {
        let copied_before = [self.copied, self.copied_before[0]];
        let copies = copied_before.iter().sum::<u64>() / 2;
        *self = Self { own, copies, copied_before, ..Self::default() };
    }

    pub fn wrote(&mut self, bytes: u64) {
        self.written += bytes;
    }

    pub fn copied(&mut self, bytes: u64) {
        self.copied += bytes;
    }

    /// The queue is in the trees, and the collector through with what that has set free; now so much is due.
    pub fn expect(&mut self, due: u64) {
        (self.own, self.due, self.copies) = (self.written + due, due, self.copied);
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.own.max(self.written) + self.copies.max(self.copied)
    }

    /// What is written of it.
    pub fn done(&self) -> u64 {
        self.written + self.copied
    }

    /// In thousandths, none of which is the first or the last.
    pub fn progress(&self) -> u64 {
        (self.done() * 1000).checked_div(self.total()).unwrap_or(0).clamp(1, 999)
    }

    /// As much as was foreseen of what was done in the end, if of what was due so many thousandths were left. That more or less than it was written for it is so for
    /// the next flush, too.
    pub fn foreseen_of_done(&self, undone: u64) -> u64 {
        self.own.saturating_sub(self.due / 1000 * undone) + self.copied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_collector_copies_is_foreseen_as_long_as_it_may_come() {
        let mut foreseen = Foreseen::default();
        foreseen.begin(1000);
        foreseen.wrote(1000);
        foreseen.copied(300);
        assert_eq!((foreseen.total(), foreseen.progress()), (1300, 999), "nobody foresaw it");
        foreseen.begin(2000);
        assert_eq!((foreseen.total(), foreseen.progress()), (2150, 1));
        foreseen.wrote(1900);
        foreseen.copied(100);
        assert_eq!((foreseen.total(), foreseen.done()), (2150, 2000));
        assert_eq!(foreseen.foreseen_of_done(0), 2100, "what did not come took no time");
        foreseen.expect(1000);
        assert_eq!(foreseen.total(), 3000, "it is through");
        assert_eq!(foreseen.foreseen_of_done(500), 2500, "a half of what was due is left");
        foreseen.begin(500);
        assert_eq!(foreseen.total(), 700);
    }
}
