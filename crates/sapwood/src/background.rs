//! Work that no caller asked for: the flush of frozen queues, cleansing of log areas, garbage collection, and what is
//! done while the database is idle.
//!
//! Invariants:
//! 1. All of it leaves the records as they are: each piece of work is an edit that readers do not notice.
//! 2. One thread flushes at a time, and cleansing and collection run on that thread.

pub(crate) mod cleanse;
pub(crate) mod collect;
pub(crate) mod flush;
pub(crate) mod garbage_collection;
pub(crate) mod idle;
pub(crate) mod pacing;
pub(crate) mod prefetch_memory;
pub(crate) mod removals;
pub(crate) mod space;
