//! The always-sequential store: nodes are written once, at the end of the data, and found by their addresses. (AS
//! B-tree, JISE 2014.) This folder knows bytes, nodes and segments; which of them make a database is for
//! [`crate::version`] to say.
//!
//! Invariants:
//! 1. What is written is never changed in place.
//! 2. What is read is checked against its address before it is used.

pub(crate) mod compressed;
pub(crate) mod data_file;
pub(crate) mod dictionary;
pub(crate) mod encrypted;
pub(crate) mod entries;
pub(crate) mod frames;
pub(crate) mod mapping_table;
pub(crate) mod node;
pub(crate) mod packed;
pub(crate) mod reader;
pub(crate) mod sample_room;
pub(crate) mod segment;
pub(crate) mod slots;
pub(crate) mod striped;
pub(crate) mod unused;
pub(crate) mod write_behind;
pub(crate) mod writer;

/// Most bytes of working memory that a thread keeps after it has compressed or decrypted, since it is outside the budget: enough for leaves
/// of the most bytes that [`compressed`] lets one have; longer nodes are few.
const KEPT: usize = 64 << 10;
