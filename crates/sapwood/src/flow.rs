//! What is divided among those who want it: memory ([`memory`]), the device's time ([`throttle`]), and the length of
//! queues and log areas ([`opq_size`], [`tuning`]).
//!
//! Invariant: nothing in here reads or writes a file.

pub(crate) mod address_space;
pub(crate) mod delay;
pub(crate) mod flush_estimate;
pub(crate) mod memory;
pub(crate) mod opq_size;
pub(crate) mod throttle;
pub(crate) mod tuning;
