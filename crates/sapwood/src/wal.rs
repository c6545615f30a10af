//! WAL, the write-ahead log: every commit is here before anyone sees it, until a flush has taken it to the trees.
//!
//! One file a *generation*: a new one begins when the operation queue is frozen, and the old ones go when that queue is
//! in the trees. (PIO B-tree, VLDB 2011, section 3.4, for what a log of an operation queue must hold. Flush events and
//! undo are not needed here, since a flush overwrites nothing.)

mod reader;
mod record;
mod settle;
mod writer;

pub(crate) use reader::{Record, Tail, list, replay};
pub(crate) use record::{file_name, generation_of};
pub(crate) use settle::settle;
pub(crate) use writer::WalWriter;

#[cfg(any(fuzzing, test))]
pub(crate) use record::seal;
