//! **Sapwood**: an embedded, ordered, transactional key-value store that is built around what an SSD is: many
//! channels that work at the same time.

// Pieces land one by one; what waits for its user is listed by removing this line.
#![allow(dead_code)]

mod bytecode;
mod database_id;
mod error;
mod node;
mod operation;
mod queue;
mod store;
mod tree;
mod value;

pub use error::{Error, Result};
pub use value::{Key, Value};

/// Keys have 1 to this many bytes.
pub const KEY_LEN_MAX: usize = 64 << 10;
