//! The write-ahead log (WAL): makes a commit durable before its changes are in the trees.
//!
//! The log is a sequence of files, each a *generation*: `wal-0000000001` and so on. The engine starts a new
//! generation when it freezes its in-memory queue, and removes the old ones when that queue is in the trees. A
//! position in the log is an [`record::Lsn`]: bytes over all generations. [`record`] documents the format.
//!
//! ```text
//!             append     write, or store        sync
//!   pending  ------->  ...  ------>  page cache ------>  durable     (WalWriter)
//!                                     |                     |
//!   power loss: a prefix, perhaps <---+                     +---> all of it     (replay)
//! ```
//!
//! While commits are small, or durable one by one, the file of the newest generation is longer than its
//! content. Zeros are written ahead of the commits, because a sync is cheaper if the file does not grow
//! ([`zeroing`]). The written part can also be mapped, so that small commits are stored without a system
//! call ([`mmap_appender`]).
//!
//! Invariants:
//! 1. A generation's header and file name are durable before anything in it is promised to be durable, before
//!    the manifest notes it, and before the next generation has a header. Until then a power loss may leave any
//!    part of it, and all of it is void.
//! 2. Synced records are never overwritten or cut off while the log needs them.
//! 3. The log ends at its first bad record. If anything valid further on testifies that this record was
//!    durable, this is damage ([`Error::Corrupt`](crate::Error::Corrupt)). Otherwise it is the torn tail of a
//!    power loss: it was not promised to be durable, so it is dropped together with everything after it.
//!    Zeros are a bad record like any other, with one exception: if nothing tells how far the file reaches, and
//!    only zeros follow, then they are reserved space, the log ends cleanly, and nothing is dropped.
//! 4. After recovery nothing is appended to a file that holds records. The next generation's header says how
//!    many bytes of which generation are valid. Anything after them, and any generation in between, is void.
//! 5. Records refused for lack of space never come back. They are durably cut off before the refusal is
//!    reported; what cannot be cut off has an older epoch than whatever follows.
//! 6. After any other failed write, or any failed sync, the writer refuses to go on. What may have failed is never
//!    made durable in place: recovery replaces the file by a copy ([`rewrite`]).
//!
//! What the engine must do for the log:
//! 1. The manifest names the oldest and the newest generation (`low`, `high`). The newest is begun
//!    ([`WalWriter::begin`]) and noted before a commit in it is acknowledged as durable. The oldest is durably
//!    noted before [`WalWriter::take_below`]. (On a full disk the newest may be begun and not noted. Recovery finds
//!    what was synced there nevertheless, but would not miss the file if it were gone.)
//! 2. Sequence numbers are consecutive, in the order of [`WalWriter::append`]. Those of retracted records are
//!    reused.

mod chain;
mod closed_syncs;
mod cursor;
mod generation;
mod kept;
mod log_files;
mod mmap_appender;
mod pending;
mod reader;
mod record;
mod rewrite;
mod rotation;
mod salvage;
mod since;
mod tail_space;
#[cfg(test)]
mod tests;
mod times;
mod verify;
mod walker;
mod window;
mod writer;
mod zeroing;

pub(crate) use cursor::LogCursor;
pub(crate) use generation::Old;
pub(crate) use kept::{KeptGenerations, bytes_of as kept_bytes};
pub(crate) use log_files::{Generations, LogFiles};
pub(crate) use reader::Tail;
#[cfg(test)]
pub(crate) use record::sealed;
pub(crate) use record::{BODY_LEN_MAX, HAS_TIME, HEADER_LEN, TIME_LEN};
#[cfg(any(fuzzing, test))]
pub(crate) use record::{RecordPosition, seal, sealed_record};
pub(crate) use rewrite::{is_copy, rewrite_unsynced};
pub(crate) use salvage::{Salvage, database_of};
pub(crate) use since::{DurableEnd, LogSince, Since, oldest};
pub(crate) use verify::KeptLog;
pub(crate) use writer::WalWriter;

use crate::operation::SeqNo;

/// Bytes in the log of a record with a body of `body` bytes.
pub(crate) fn record_len(body: usize) -> u64 {
    (record::HEAD_LEN + body) as u64
}

/// A record of the log: appended as a unit, and present completely or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The generation that holds it.
    pub generation: u64,
    /// The sequence number of its first operation.
    pub first_seq: SeqNo,
    /// The number of operations, and of sequence numbers that it takes.
    pub count: u32,
    /// Not before this time it was written, in milliseconds since 1970; most records have none.
    pub time: Option<u64>,
    /// The appended body.
    pub body: bytes::Bytes,
}

/// The name of a generation's file.
pub(crate) fn file_name(generation: u64) -> String {
    format!("wal-{generation:010}")
}

/// The generation of a log file with this name; `None` if it is not a log file.
pub(crate) fn generation_of(name: &str) -> Option<u64> {
    let generation = name.strip_prefix("wal-")?.parse().ok()?;
    (generation > 0 && file_name(generation) == name).then_some(generation)
}
