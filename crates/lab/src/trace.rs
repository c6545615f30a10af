//! Traces in the laboratory: where they come from, and how they are counted, hashed and replayed. What a step is, and how traces
//! are written down, is the crate `traces`.
//!
//! ```text
//! tpcc, block_synthesis ──▶ Step ◀── source ◀── a file
//!                            │
//!              account (mix, SHA-256), replay (on trees)
//! ```
//! Invariants:
//! 1. Nothing holds a whole trace: generators and decoders give one step after the other, in bounded memory.
//! 2. What is generated is called synthetic wherever it is named.
//! 3. A trace's identity is the SHA-256 of its steps as [`plain`] writes them, without comments.

pub mod account;
pub mod block_synthesis;
pub(crate) mod replay;
pub mod source;
pub mod tpcc;

pub use ::traces::{Op, Step, error, msr_csv, plain};
