//! **Sapwood**: an embedded, ordered, transactional key-value store that is built around what an SSD is: many
//! channels that work at the same time.

// Pieces land one by one; what waits for its user is listed by removing this line.
#![allow(dead_code)]

mod bytecode;
mod error;
mod operation;
mod queue;
mod store;

pub use error::{Error, Result};

/// Keys have 1 to this many bytes.
pub const KEY_LEN_MAX: usize = 64 << 10;
