//! How many of the changes that come to log areas insert new records: those hide no older ones.

use crate::operation::KeyspaceId;

/// Fraction of the changes that insert new records.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NewShare {
    /// In percent of all changes.
    pub all: u64,
    /// Of each sampled keyspace.
    pub each: Vec<(KeyspaceId, SampledChanges)>,
}

/// Sampled changes of a keyspace: those that insert new records, and all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SampledChanges {
    pub new: u64,
    pub of: u64,
}
