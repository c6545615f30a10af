//! What a transaction hands over with its changes, so that its commit can be validated.

use crate::conflict::read_set::ReadSet;
use crate::operation::{KeyspaceId, Operation, SeqNo};

/// What a transaction has read, and of when.
#[derive(Debug)]
pub(crate) struct Validation {
    pub reads: ReadSet,
    /// Operations up to this number were seen, or are known not to conflict.
    pub since: SeqNo,
    /// How many ingestions were seen.
    pub ingested: u64,
}

impl Validation {
    /// Whether this operation changes what was read.
    pub fn concerns(&self, operation: &Operation<'_>) -> bool {
        match operation {
            Operation::Change(change) | Operation::Merge(change) => {
                self.reads.contains(change.keyspace, change.key)
            }
            Operation::RemoveRange(range) => self.reads.first_in(*range).is_some(),
        }
    }

    /// Whether records in this keyspace may change what was read.
    pub fn concerns_keyspace(&self, keyspace: KeyspaceId) -> bool {
        self.reads.has_read_of(keyspace)
    }
}
