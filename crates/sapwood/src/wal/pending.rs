//! Records that were appended to the log and are not written yet: they gather here, and leave as bytes.
//!
//! Invariants:
//! 1. Sequence numbers follow on without gaps, also after some were taken back.
//! 2. `len` is what the records take in the log.

use super::record::{BODY_LEN_MAX, HEAD_LEN, Head, Lsn, Place};
use crate::database_id::DatabaseId;
use crate::operation::SeqNo;
use bytes::Bytes;

/// A longer write is cut into pieces of about this many bytes.
const WRITE_LEN: usize = 4 << 20;

/// See the module.
pub(super) struct Pending {
    records: Vec<Waiting>,
    len: usize,
    next_seq: SeqNo,
    /// Bytes that are put together; kept from one time to the next.
    scratch: Vec<u8>,
}

struct Waiting {
    first_seq: SeqNo,
    count: u32,
    body: Bytes,
}

impl Waiting {
    fn len(&self) -> usize {
        HEAD_LEN + self.body.len()
    }
}

/// What all heads of a write have in common.
#[derive(Clone, Copy)]
pub(super) struct Heading {
    pub database: DatabaseId,
    pub generation: u64,
    pub epoch: u32,
    /// LSN below which everything is durable.
    pub durable: Lsn,
}

impl Pending {
    /// None. The first record is to have this sequence number.
    pub fn none(next_seq: SeqNo) -> Self {
        Self { records: Vec::new(), len: 0, next_seq, scratch: Vec::new() }
    }

    /// What the next record's first sequence number must be.
    pub fn next_seq(&self) -> SeqNo {
        self.next_seq
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// See [`WalWriter::append`](super::WalWriter::append).
    pub fn append(&mut self, first_seq: SeqNo, count: u32, body: Bytes) {
        assert!(body.len() <= BODY_LEN_MAX, "a record's body of {} bytes", body.len());
        assert!(count > 0, "a record has at least one operation");
        assert_eq!(first_seq, self.next_seq, "sequence numbers follow on");
        let record = Waiting { first_seq, count, body };
        self.next_seq = first_seq + SeqNo::from(count);
        self.len += record.len();
        self.records.push(record);
    }

    /// See [`WalWriter::retract`](super::WalWriter::retract).
    pub fn retract(&mut self, n: usize) {
        let keep = self.records.len().saturating_sub(n);
        for record in self.records.drain(keep..).rev() {
            self.len -= record.len();
            self.next_seq = record.first_seq;
        }
    }

    /// They were written.
    pub fn clear(&mut self) {
        self.records.clear();
        self.len = 0;
    }

    /// Gives out the records as they stand in the file from byte `at` on, in as few pieces as can be, and tells where they end.
    pub fn encode<E>(
        &mut self,
        heading: &Heading,
        mut at: u64,
        mut put: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<u64, E> {
        let &Heading { database, generation, epoch, durable } = heading;
        let scratch = &mut self.scratch;
        scratch.clear();
        for record in &self.records {
            let head = Head {
                len: record.body.len() as u32,
                body_crc: crc32c::crc32c(&record.body),
                count: record.count,
                epoch,
                first_seq: record.first_seq,
                durable,
            };
            let place = Place { database, generation, offset: at + scratch.len() as u64 };
            scratch.extend_from_slice(&head.encode(&place));
            scratch.extend_from_slice(&record.body);
            if scratch.len() >= WRITE_LEN {
                put(at, scratch)?;
                at += scratch.len() as u64;
                scratch.clear();
            }
        }
        if !scratch.is_empty() {
            put(at, scratch)?;
            at += scratch.len() as u64;
        }
        scratch.clear();
        scratch.shrink_to(2 * WRITE_LEN);
        Ok(at)
    }
}
