//! What every bulk load asks of its input: a fill that nodes can have, and records in ascending order of key.

use crate::page::{Key, Value};
use crate::{Error, Result};

/// Refuses a fill that is not from 0.5 to 1.
pub(crate) fn check_fill(fill: f64) -> Result<()> {
    if (0.5..=1.0).contains(&fill) {
        return Ok(());
    }
    Err(Error::Invalid(format!("nodes filled to {fill}: 0.5 to 1")))
}

/// Gives out records as long as they ascend. What is wrong with the first that does not, [`Self::finish`] says.
pub(crate) struct InOrder<'a> {
    records: &'a mut dyn Iterator<Item = (Key, Value)>,
    last: Option<Key>,
    outcome: Result<()>,
}

impl<'a> InOrder<'a> {
    pub fn new(records: &'a mut dyn Iterator<Item = (Key, Value)>) -> Self {
        Self { records, last: None, outcome: Ok(()) }
    }

    /// Whether all records were in order. To be asked when they have been taken.
    pub fn finish(self) -> Result<()> {
        self.outcome
    }
}

impl Iterator for InOrder<'_> {
    type Item = (Key, Value);

    fn next(&mut self) -> Option<(Key, Value)> {
        if self.outcome.is_err() {
            return None;
        }
        let (key, value) = self.records.next()?;
        if self.last.is_some_and(|last| last >= key) {
            let last = self.last;
            self.outcome = Err(Error::Invalid(format!("records out of order: key {key} after {last:?}")));
            return None;
        }
        self.last = Some(key);
        Some((key, value))
    }
}
