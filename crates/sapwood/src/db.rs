//! A database as its users hold it: handles, batches and snapshots, and what their calls lead to: ingestion, checks,
//! the creation of keyspaces. [`engine`] puts the parts of an open database together, and [`open`] fills them.
//!
//! Invariants:
//! 1. A user's call that returns `Ok` has done what its documentation says; what is refused has changed nothing.
//! 2. Readers never wait for writers: a reader holds a state, and no state is ever changed.

#[cfg(feature = "async")]
pub(crate) mod asynchronous;
mod backup;
pub(crate) mod batch;
mod change_key;
pub(crate) mod changes;
pub(crate) mod check;
mod close;
mod conditions;
mod counting;
pub(crate) mod create_keyspaces;
pub(crate) mod cursor;
pub(crate) mod database;
mod drop_keyspace;
pub(crate) mod engine;
mod expiring;
pub(crate) mod explain;
mod extend;
pub(crate) mod follow;
pub(crate) mod handle;
pub(crate) mod ingest;
pub(crate) mod key_bounds;
pub(crate) mod keyspace;
mod keyspace_events;
pub(crate) mod keyspace_options;
mod keyspace_with;
pub(crate) mod large_values;
pub(crate) mod len_estimate;
mod merging;
mod multi_range;
pub(crate) mod open;
pub(crate) mod options;
pub(crate) mod pending;
pub(crate) mod range_removals;
pub mod repair;
pub(crate) mod replay;
pub(crate) mod segment_info;
pub(crate) mod snapshot;
mod stats_of_engine;
pub(crate) mod transaction;
