//! The write-ahead log: what makes a commit durable before it is in the tree.
//!
//! The log is a row of files, one a *generation*: `wal-0000000001` and so on. The engine starts a new one when its
//! queue in memory is frozen, and removes the old ones when that queue is in the tree. A position in the log is an
//! [`record::Lsn`]: bytes over all generations. The format is drawn in [`record`].
//!
//! ```text
//!             append     write, or store        sync
//!   pending  ------->  ...  ------>  page cache ------>  durable     (WalWriter)
//!                                     |                     |
//!   power loss: a prefix, perhaps <---+                     +---> all of it     (replay)
//! ```
//!
//! While commits are small, or durable one by one, the file of the newest generation is longer than what it holds: zeros are
//! written ahead of them, since a sync is cheaper if the file does not grow ([`reservation`]), and what is there can be
//! mapped, so that small commits are stored without a system call ([`stored`]).
//!
//! Invariants:
//! 1. A generation's header is durable, and its name too, before anything in it is promised to be, before the manifest notes it, and before
//!    the generation after it has a header. Until then a power loss may leave anything of it, and all of it is void.
//! 2. Records that were synced are never written again or cut off while the log needs them.
//! 3. The log ends at its first bad record. If anything valid further on testifies that this record was durable,
//!    it is damage ([`Error::Corrupt`](crate::Error::Corrupt)); else it is the torn tail of a power loss, of which
//!    nobody was promised anything, and it is dropped together with all that follows. Zeros are a bad record like any
//!    other, except where nobody says how far the file reaches, and nothing else follows in it: then they are what was
//!    reserved, the end is a clean one, and there is nothing to drop.
//! 4. After recovery nothing is appended to a file that holds records. The next generation's header says how many
//!    bytes of which generation are valid; what lies behind them, and generations in between, are void. (A closed
//!    generation is cut back to its length first, but only to save space: a crash may undo it.)
//! 5. What was refused for want of space never comes back: it is cut off, durably, before the refusal is reported,
//!    and what cannot be cut off is of an older epoch than whatever follows.
//! 6. After any other failed write, or any failed sync, the writer refuses to go on.
//!
//! What the engine owes to the log:
//! 1. The manifest names the oldest and the newest generation (`low`, `high`). The newest is begun ([`WalWriter::begin`]) and noted before a
//!    commit in it is acknowledged as durable; the oldest is noted, durably, before [`WalWriter::take_below`].
//! 2. Sequence numbers follow on without gaps, in the order of [`WalWriter::append`]; those of retracted records
//!    are given again.

mod ahead;
mod chain;
mod generation;
mod old_syncs;
mod pending;
mod reader;
mod record;
mod reservation;
mod settle;
mod stored;
mod succession;
#[cfg(test)]
mod tests;
mod verify;
mod walker;
mod window;
mod writer;

pub(crate) use reader::{Tail, replay};
#[cfg(any(fuzzing, test))]
pub(crate) use record::seal;
pub(crate) use settle::settle;
pub(crate) use writer::WalWriter;

use crate::operation::SeqNo;

/// What was appended as one, and is there as one or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The generation it was found in.
    pub generation: u64,
    /// Sequence number of its first operation.
    pub first_seq: SeqNo,
    /// Operations in it; the sequence numbers it takes.
    pub count: u32,
    /// What was appended.
    pub body: bytes::Bytes,
}

/// Name of the file of a generation.
pub(crate) fn file_name(generation: u64) -> String {
    format!("wal-{generation:010}")
}

/// The generation that a file's name stands for, if it is a log file's.
pub(crate) fn generation_of(name: &str) -> Option<u64> {
    let generation = name.strip_prefix("wal-")?.parse().ok()?;
    (generation > 0 && file_name(generation) == name).then_some(generation)
}
