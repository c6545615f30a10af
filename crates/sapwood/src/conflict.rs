//! Conflicts between transactions and other commits: what a transaction has read, and what was changed since it began.
//!
//! Invariant: a commit that changed what an open transaction has read is found, whether it was a key, an absent key, or a key in a
//! range. A transaction may conflict without need, but never the other way round.

pub(crate) mod history;
pub(crate) mod key_ranges;
pub(crate) mod read_set;
pub(crate) mod validation;
