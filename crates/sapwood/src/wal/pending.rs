//! Records that have been appended but not yet written. They are gathered in their file format. Their heads are
//! filled in when their position is known.
//!
//! ```text
//! bytes:    room for a head │ body │ room for a trailer │ room for a head │ body │ …
//! ```
//! There are trailers if the database is encrypted. Then what is written is made elsewhere: after a refusal the bodies are needed once more.
//!
//! Invariants:
//! 1. Sequence numbers are consecutive, also after records were retracted.
//! 2. `bytes` is exactly the space that the records take in the log.

use super::record::{BODY_LEN_MAX, HAS_TIME, HEAD_LEN, Lsn, RecordHeader, RecordPosition, TIME_LEN};
use crate::database_id::DatabaseId;
use crate::encryption::Encryption;
use crate::operation::SeqNo;

/// A longer write is split into pieces of about this many bytes, so that a full disk takes what fits.
const WRITE_LEN: usize = 4 << 20;

/// See the module documentation.
pub(super) struct Pending {
    records: Vec<PendingRecord>,
    /// The allocation is kept for reuse.
    bytes: Vec<u8>,
    next_seq: SeqNo,
    encryption: Encryption,
    /// What is being written, if it is encrypted.
    encrypted: Vec<u8>,
}

struct PendingRecord {
    first_seq: SeqNo,
    count: u32,
    has_time: bool,
    /// Bytes of the body, with its time and its trailer.
    body_len: u32,
}

impl PendingRecord {
    fn len(&self) -> usize {
        HEAD_LEN + self.body_len as usize
    }
}

/// The part that all heads of a write have in common.
#[derive(Clone, Copy)]
pub(super) struct Heading {
    pub database: DatabaseId,
    pub generation: u64,
    pub epoch: u32,
    /// The LSN below which everything is durable.
    pub durable: Lsn,
}

impl Pending {
    /// No pending records. The first record must have this sequence number.
    pub fn none(next_seq: SeqNo) -> Self {
        let (encryption, encrypted) = (Encryption::NONE, Vec::new());
        Self { records: Vec::new(), bytes: Vec::new(), next_seq, encryption, encrypted }
    }

    /// From now on bodies are encrypted.
    pub fn encrypt(&mut self, encryption: Encryption) {
        debug_assert!(self.is_empty(), "none was appended without room for a trailer");
        self.encryption = encryption;
    }

    pub fn encryption(&self) -> &Encryption {
        &self.encryption
    }

    /// The sequence number that the next record must start with.
    pub fn next_seq(&self) -> SeqNo {
        self.next_seq
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// See [`WalWriter::append`](super::WalWriter::append). `time`: some records have one ([`super::times`]).
    pub fn append(&mut self, first_seq: SeqNo, count: u32, time: Option<u64>, body: &[u8]) {
        let len = time.map_or(0, |_| TIME_LEN) + body.len();
        assert!(len <= BODY_LEN_MAX, "a record's body of {len} bytes");
        assert!((1..HAS_TIME).contains(&count), "a record of {count} operations");
        assert_eq!(first_seq, self.next_seq, "sequence numbers follow on");
        self.next_seq = first_seq + SeqNo::from(count);
        self.bytes.extend_from_slice(&[0; HEAD_LEN]);
        if let Some(time) = time {
            self.bytes.extend_from_slice(&time.to_le_bytes());
        }
        self.bytes.extend_from_slice(body);
        let added = self.encryption.added();
        self.bytes.resize(self.bytes.len() + added, 0);
        let (has_time, body_len) = (time.is_some(), (len + added) as u32);
        self.records.push(PendingRecord { first_seq, count, has_time, body_len });
    }

    /// See [`WalWriter::retract`](super::WalWriter::retract).
    pub fn retract(&mut self, n: usize) {
        let keep = self.records.len().saturating_sub(n);
        for record in self.records.drain(keep..).rev() {
            self.bytes.truncate(self.bytes.len() - record.len());
            self.next_seq = record.first_seq;
        }
        // A disk may stay full for long.
        self.bytes.shrink_to(2 * WRITE_LEN);
    }

    /// Removes all records, after they were written.
    pub fn clear(&mut self) {
        self.records.clear();
        self.bytes.clear();
        self.bytes.shrink_to(2 * WRITE_LEN);
        self.encrypted.clear();
        self.encrypted.shrink_to(WRITE_LEN);
    }

    /// Passes the records, as they stand in the file from byte `at` on, to `put`, in as few pieces as possible.
    /// Returns where they end.
    pub fn encode<E>(
        &mut self,
        heading: &Heading,
        mut at: u64,
        mut put: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<u64, E> {
        let &Heading { database, generation, epoch, durable } = heading;
        // The range that has its heads but was not passed on yet.
        let (mut begin, mut end) = (0, 0);
        let is_encrypted = self.encryption.is_on();
        self.encrypted.clear();
        for record in &self.records {
            let bytes = &mut self.bytes[end..][..record.len()];
            let bytes = if is_encrypted {
                let from = self.encrypted.len();
                self.encrypted.extend_from_slice(bytes);
                &mut self.encrypted[from..]
            } else {
                bytes
            };
            let (head_bytes, body) = bytes.split_at_mut(HEAD_LEN);
            let mut head = RecordHeader {
                len: record.body_len,
                body_crc: 0,
                count: record.count,
                has_time: record.has_time,
                epoch,
                first_seq: record.first_seq,
                durable,
            };
            let place = RecordPosition { database, generation, offset: at + (end - begin) as u64 };
            if is_encrypted {
                head.encrypt(&self.encryption, &place, body);
            } else {
                head.body_crc = crc32c::crc32c(body);
            }
            head_bytes.copy_from_slice(&head.encode(&place));
            end += record.len();
            if end - begin >= WRITE_LEN {
                put(at, if is_encrypted { &self.encrypted } else { &self.bytes[begin..end] })?;
                at += (end - begin) as u64;
                begin = end;
                self.encrypted.clear();
            }
        }
        if begin < end {
            put(at, if is_encrypted { &self.encrypted } else { &self.bytes[begin..end] })?;
            at += (end - begin) as u64;
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_back_gives_its_memory_back() {
        let mut pending = Pending::none(1);
        pending.append(1, 1, None, b"small");
        pending.append(2, 1, None, &vec![0; 8 * WRITE_LEN]);
        pending.retract(1);
        assert_eq!((pending.len(), pending.next_seq()), (HEAD_LEN + 5, 2));
        assert!(pending.bytes.capacity() <= 3 * WRITE_LEN, "{}", pending.bytes.capacity());
    }
}
