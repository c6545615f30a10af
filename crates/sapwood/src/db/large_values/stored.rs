//! What is stored of large values: a record for each in the keyspace that users know, and chunks in another one.
//!
//! ```text
//! keyspace of large values   key        → 0 value            short: as it is
//!                                       | 1 id len           id: 16 bytes; len, a varint: bytes of the value
//! keyspace of their chunks   1 id       → key                a value that is being written, or was when its process ended
//!                            2 id number → bytes             a chunk; number: 4 bytes, big-endian. All but the last have 130,944 bytes
//! ```
//! An id is the time at which the value was begun, in microseconds since 1970, and a random number of the process that did: 8 bytes
//! each, big-endian. So chunks are appended behind all others, and no id is used twice, also after a crash.
//!
//! Invariants:
//! 1. A key's record names chunks that are all there: both change in one commit, but for chunks that no record names yet.
//! 2. Chunks that no record names have a record of their id (1 id).

use crate::bytecode::{Reader, put_varint};
use crate::error::{DATA, Error, Result};
use crate::random::random;
use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

/// Tags of the format: the first byte of a value ...
const SHORT: u8 = 0;
const LONG: u8 = 1;
/// ... and tags of the format in keys: the first byte of a key in the keyspace of chunks.
const BEGUN: u8 = 1;
const CHUNK: u8 = 2;

/// Bytes of a chunk: a leaf of its own with 32 pages of 4 KiB.
pub(crate) const CHUNK_LEN: usize = (128 << 10) - 128;

/// Longest value in bytes that is a record like any other: what it takes twice, in the log and in a leaf, costs less than the
/// syncs of a value in chunks.
pub(crate) const SHORT_MAX: usize = 64 << 10;

/// Longest value: 1 TiB, far fewer chunks than their numbers count.
pub(crate) const LEN_MAX: u64 = 1 << 40;

/// Identifies a value in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LargeId(pub [u8; 16]);

/// Makes ids: one an open database.
pub(crate) struct LargeIds {
    process: u64,
    last: AtomicU64,
}

impl LargeIds {
    pub fn new() -> Result<Self> {
        Ok(Self { process: u64::from_le_bytes(random()?), last: AtomicU64::new(0) })
    }

    pub fn next(&self) -> LargeId {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
        let later = |last: u64| last.saturating_add(1).max(now);
        let last = self.last.fetch_update(Relaxed, Relaxed, |last| Some(later(last))).unwrap_or_default();
        let mut id = [0; 16];
        id[..8].copy_from_slice(&later(last).to_be_bytes());
        id[8..].copy_from_slice(&self.process.to_be_bytes());
        LargeId(id)
    }

    /// Whether this process made the id.
    pub fn made(&self, id: LargeId) -> bool {
        id.0[8..] == self.process.to_be_bytes()
    }
}

impl LargeId {
    /// The key that says that the value is being written.
    pub fn begun(self) -> [u8; 17] {
        let mut key = [BEGUN; 17];
        key[1..].copy_from_slice(&self.0);
        key
    }

    pub fn chunk(self, number: u32) -> [u8; 21] {
        let mut key = [CHUNK; 21];
        key[1..17].copy_from_slice(&self.0);
        key[17..].copy_from_slice(&number.to_be_bytes());
        key
    }

    /// The id in the key of a chunk.
    pub fn of_chunk(key: &[u8]) -> Option<Self> {
        let (tag, rest) = key.split_first()?;
        let (id, _number) = rest.split_first_chunk::<16>()?;
        (*tag == CHUNK).then_some(Self(*id))
    }

    /// The next one in the order of keys.
    pub fn next(self) -> Option<Self> {
        Some(Self(u128::from_be_bytes(self.0).checked_add(1)?.to_be_bytes()))
    }

    /// The prefix of all keys of values that are being written.
    pub fn all_begun() -> [u8; 1] {
        [BEGUN]
    }

    /// The id in a key that says that its value is being written.
    pub fn of_begun(key: &[u8]) -> Option<Self> {
        let (tag, id) = key.split_first()?;
        (*tag == BEGUN).then_some(Self(id.try_into().ok()?))
    }
}

/// What a record says of its value, borrowed.
pub(crate) enum HeadRef<'a> {
    Short(&'a [u8]),
    Long { id: LargeId, len: u64 },
}

impl<'a> HeadRef<'a> {
    /// `None`: damage.
    pub fn decode(stored: &'a [u8]) -> Option<Self> {
        let (tag, rest) = stored.split_first()?;
        match *tag {
            SHORT => Some(Self::Short(rest)),
            LONG => {
                let mut reader = Reader::new(rest);
                let (id, len) = (LargeId(reader.array()?), reader.varint()?);
                let is_sound = reader.remaining() == 0 && (1..=LEN_MAX).contains(&len);
                is_sound.then_some(Self::Long { id, len })
            }
            _ => None,
        }
    }
}

/// What a record says of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Short(Bytes),
    Long { id: LargeId, len: u64 },
}

impl Head {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Short(value) => {
                out.reserve_exact(value.len() + 1);
                out.push(SHORT);
                out.extend_from_slice(value);
            }
            Self::Long { id, len } => {
                out.push(LONG);
                out.extend_from_slice(&id.0);
                put_varint(&mut out, *len);
            }
        }
        out
    }

    pub fn decode(stored: &Bytes) -> Result<Self> {
        Self::decoded(stored).ok_or_else(|| {
            let what = "the record of a large value";
            Error::corrupt(DATA, 0, what, "a value, or an id and a length", format!("{} bytes", stored.len()))
        })
    }

    fn decoded(stored: &Bytes) -> Option<Self> {
        Some(match HeadRef::decode(stored)? {
            HeadRef::Short(value) => Self::Short(stored.slice_ref(value)),
            HeadRef::Long { id, len } => Self::Long { id, len },
        })
    }

    /// Bytes of the value.
    pub fn len(&self) -> u64 {
        match self {
            Self::Short(value) => value.len() as u64,
            Self::Long { len, .. } => *len,
        }
    }

    /// The id of its chunks, if it has any.
    pub fn id(&self) -> Option<LargeId> {
        match self {
            Self::Short(_) => None,
            Self::Long { id, .. } => Some(*id),
        }
    }
}

/// Chunks of a value of so many bytes.
pub(crate) fn chunks(len: u64) -> u32 {
    u32::try_from(len.div_ceil(CHUNK_LEN as u64)).unwrap_or(u32::MAX)
}

/// Bytes of this chunk of a value of so many bytes.
pub(crate) fn chunk_len(len: u64, number: u32) -> usize {
    let before = u64::from(number) * CHUNK_LEN as u64;
    len.saturating_sub(before).min(CHUNK_LEN as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn heads_round_trip(value in prop::collection::vec(any::<u8>(), 0..9), id in any::<[u8; 16]>(), len in 1..=LEN_MAX) {
            for head in [Head::Short(value.into()), Head::Long { id: LargeId(id), len }] {
                prop_assert_eq!(Head::decode(&head.encode().into()).unwrap(), head);
            }
        }

        #[test]
        fn any_bytes_are_a_head_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..30)) {
            if let Ok(head) = Head::decode(&bytes.clone().into()) {
                prop_assert_eq!(head.encode(), bytes);
            }
        }
    }

    #[test]
    fn chunks_make_the_value() {
        for len in [1, CHUNK_LEN as u64 - 1, CHUNK_LEN as u64, CHUNK_LEN as u64 + 1, 1 << 30, LEN_MAX] {
            let count = chunks(len);
            assert!(count > 0 && chunk_len(len, count - 1) > 0 && chunk_len(len, count) == 0);
            assert_eq!(u64::from(count - 1) * CHUNK_LEN as u64 + chunk_len(len, count - 1) as u64, len);
        }
    }

    #[test]
    fn ids_ascend_and_tell_their_process() {
        let (one, other) = (LargeIds::new().unwrap(), LargeIds::new().unwrap());
        let ids: Vec<_> = (0..1000).map(|_| one.next()).collect();
        assert!(ids.is_sorted_by(|a, b| a < b));
        assert!(one.made(ids[7]) && !other.made(ids[7]));
        assert_eq!(LargeId::of_begun(&ids[7].begun()), Some(ids[7]));
        assert_eq!(LargeId::of_begun(&ids[7].chunk(7)), None);
        assert_eq!(LargeId::of_chunk(&ids[7].chunk(7)), Some(ids[7]));
        assert_eq!(LargeId::of_chunk(&ids[7].begun()), None);
        let behind = ids[7].next().unwrap();
        assert!(ids[7].chunk(u32::MAX) < behind.chunk(0) && behind <= ids[8]);
        assert_eq!(LargeId([0xff; 16]).next(), None);
    }
}
