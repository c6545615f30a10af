//! What is divided among its users: memory ([`memory`]), the device's time ([`write_throttle`]), and the length of
//! log areas ([`log_area_tuning`]); and what flushes share with the threads that wait for them
//! ([`flush_control`], [`low_space`]).
//!
//! Invariant: nothing in here reads or writes a file.

pub(crate) mod address_space;
pub(crate) mod flush_control;
pub(crate) mod flush_estimate;
pub(crate) mod flush_progress;
pub(crate) mod log_area_tuning;
pub(crate) mod low_space;
pub(crate) mod memory;
pub(crate) mod shares;
pub(crate) mod write_throttle;
