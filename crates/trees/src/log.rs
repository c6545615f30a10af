//! Logs.

pub(crate) mod wal;
