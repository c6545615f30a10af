//! How ingested records, which are not in the log, become visible beside commits.
//!
//! Invariant: a transaction that has read of the keyspace is validated before that or after it; it waits meanwhile.

use super::CommitPipeline;
use crate::operation::KeyspaceId;

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
            log.ingested.insert(self.keyspace, self.commits.state.load().ingested);
        }
        self.commits.queues.blocker_ended.notify_all();
    }
}
