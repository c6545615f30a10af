//! How ingested records, which are not in the log, become visible beside commits.
//!
//! Invariant: a transaction that has read of the keyspace is validated before that or after it; it waits meanwhile.

use super::CommitPipeline;
use crate::operation::{KeyspaceId, SeqNo};
use std::collections::BTreeMap;

/// The last ingestion into each keyspace, as far as a transaction may be older.
#[derive(Debug, Default)]
pub(super) struct Ingested {
    /// [`State::ingested`](crate::current_state::State::ingested) and the newest visible operation, as soon as it was visible.
    last: BTreeMap<KeyspaceId, (u64, SeqNo)>,
    /// How many there were when they were last looked through (count).
    were: usize,
}

/// So many more are noted before they are looked through again (count): a few KiB.
const MORE: usize = 100;

impl Ingested {
    /// Whether there was one into this keyspace after a view that has so many.
    pub fn is_behind(&self, keyspace: KeyspaceId, ingested: u64) -> bool {
        self.last.get(&keyspace).is_some_and(|(last, _)| *last > ingested)
    }

    /// Notes one. `oldest` is the oldest snapshot of an open transaction: keyspaces come and go, and nobody else asks for what was before.
    fn note(&mut self, keyspace: KeyspaceId, last: (u64, SeqNo), oldest: impl FnOnce() -> Option<SeqNo>) {
        if self.last.len() >= 2 * self.were + MORE {
            let oldest = oldest();
            self.last.retain(|_, (_, seq)| oldest.is_some_and(|oldest| oldest <= *seq));
            self.were = self.last.len();
        }
        self.last.insert(keyspace, last);
    }
}

/// Records that are about to become visible, until dropped.
pub(crate) struct ShowsIngested<'c> {
    commits: &'c CommitPipeline,
    keyspace: KeyspaceId,
}

impl CommitPipeline {
    /// Records ingested into this keyspace become visible before the result is dropped.
    pub fn show_ingested(&self, keyspace: KeyspaceId) -> ShowsIngested<'_> {
        // A transaction that is in the log comes before these records, and has to be visible before them.
        let mut guard = self.queues.wait(self.log.lock(), |log| {
            log.syncing.as_ref().is_some_and(|syncing| syncing.has_read_of(keyspace))
        });
        if let Some(log) = guard.as_mut() {
            log.ingesting.push(keyspace);
        }
        ShowsIngested { commits: self, keyspace }
    }
}

impl Drop for ShowsIngested<'_> {
    fn drop(&mut self) {
        let mut guard = self.commits.log.lock();
        if let Some(log) = guard.as_mut() {
            // There may be two of one keyspace: it is replaced while records come to it.
            if let Some(index) = log.ingesting.iter().position(|keyspace| *keyspace == self.keyspace) {
                log.ingesting.swap_remove(index);
            }
            let (state, history) = (&self.commits.state, &self.commits.history);
            log.ingested.note(self.keyspace, (state.load().ingested, state.visible()), || history.oldest());
        }
        self.commits.queues.blocker_ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ingestions_are_forgotten_that_no_transaction_is_older_than() {
        let mut ingested = Ingested::default();
        let keyspace = |number: u64| KeyspaceId(number as u32);
        for number in 1..10_000 {
            let oldest = u64::max(number, 1000) - 999;
            ingested.note(keyspace(number), (number, number), || Some(oldest));
            assert!(ingested.last.len() <= 2200, "{number}");
            assert!(!ingested.is_behind(keyspace(number), number));
            for since in (oldest..=number).step_by(100) {
                assert!(ingested.is_behind(keyspace(since), since - 1), "{since} of {number}");
            }
        }
        for number in 10_000..20_000 {
            ingested.note(keyspace(number), (number, number), || None);
        }
        assert!(ingested.last.len() <= MORE, "there is no transaction");
    }
}
