//! What a tree notes of its updates before they are where they belong.

pub(crate) mod unit_log;
pub(crate) mod wal;
