//! One change to one key, and the encoding of a batch of changes. The log and the path to the operation queue
//! use the same encoding.
//!
//! ```text
//! body of a batch = operation*
//! operation       = 1 keyspace klen key vlen value      insert
//!                 | 2 keyspace klen key                 remove
//!                 | 3 keyspace flen from tlen+1 to      remove a range (format 8): all keys from `from` up to `to`, without
//!                                                         it; without `to` (tlen+1 = 0) to the keyspace's end
//!                 | 4 keyspace klen key olen operand    merge (format 10): the operand goes into the record
//! ```
//! The kind is one byte; keyspace and lengths are varints.
//!
//! Invariants: a decoded key has 1 to [`KEY_LEN_MAX`](crate::KEY_LEN_MAX) bytes, and a decoded range has `from` below `to`, each
//! at most one byte longer than a key; decoding never copies.

use crate::bytecode::{Reader, put_varint};

/// Identifies a keyspace in files. Never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyspaceId(pub u32);

impl KeyspaceId {
    /// The greatest one: there is a number behind it.
    pub const LAST: Self = Self(u32::MAX - 1);
}

/// Counts operations since the database was created; the newest operation on a key wins.
pub(crate) type SeqNo = u64;

/// No number that is counted up is as large as this in any manifest, so that it can be counted further. A billion a second reach it in
/// 146 years.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// A change in the bytes of a batch, or in an operation queue. `value` is `None` for a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperationRef<'a> {
    pub keyspace: KeyspaceId,
    pub key: &'a [u8],
    pub value: Option<&'a [u8]>,
}

/// The keys of a keyspace from `from` (empty: from the first one) up to `to`, without it (`None`: to the end).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange<'a> {
    pub keyspace: KeyspaceId,
    pub from: &'a [u8],
    pub to: Option<&'a [u8]>,
}

impl KeyRange<'_> {
    pub fn contains(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        self.keyspace == keyspace && self.from <= key && self.to.is_none_or(|to| key < to)
    }
}

/// An operation of a batch: one change to one key, or the removal of all records in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    Change(OperationRef<'a>),
    /// What is to be merged into a record, in the place of a value.
    Merge(OperationRef<'a>),
    RemoveRange(KeyRange<'a>),
}

impl<'a> From<OperationRef<'a>> for Operation<'a> {
    fn from(change: OperationRef<'a>) -> Self {
        Self::Change(change)
    }
}

impl<'a> Operation<'a> {
    pub fn keyspace(&self) -> KeyspaceId {
        match self {
            Self::Change(change) | Self::Merge(change) => change.keyspace,
            Self::RemoveRange(range) => range.keyspace,
        }
    }

    /// Whether it may add a record.
    pub fn adds(&self) -> bool {
        matches!(self, Self::Change(OperationRef { value: Some(_), .. }) | Self::Merge(_))
    }

    /// The change to one key, if it is one; its value may be an operand.
    pub fn as_change(self) -> Option<OperationRef<'a>> {
        match self {
            Self::Change(change) | Self::Merge(change) => Some(change),
            Self::RemoveRange(_) => None,
        }
    }
}

/// Tags of the format: the first byte of an operation.
const INSERT: u8 = 1;
const REMOVE: u8 = 2;
const REMOVE_RANGE: u8 = 3;
const MERGE: u8 = 4;

/// Longest end of a range in bytes: the smallest key above the longest key.
const RANGE_END_MAX: usize = crate::KEY_LEN_MAX + 1;

pub(crate) fn put_insert(body: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], value: &[u8]) {
    put_with_value(body, INSERT, keyspace, key, value);
}

pub(crate) fn put_merge(body: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], operand: &[u8]) {
    put_with_value(body, MERGE, keyspace, key, operand);
}

fn put_with_value(body: &mut Vec<u8>, kind: u8, keyspace: KeyspaceId, key: &[u8], value: &[u8]) {
    body.reserve(key.len() + value.len() + 12);
    body.push(kind);
    put_varint(body, u64::from(keyspace.0));
    put_varint(body, key.len() as u64);
    body.extend_from_slice(key);
    put_varint(body, value.len() as u64);
    body.extend_from_slice(value);
}

pub(crate) fn put_remove(body: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8]) {
    body.push(REMOVE);
    put_varint(body, u64::from(keyspace.0));
    put_varint(body, key.len() as u64);
    body.extend_from_slice(key);
}

pub(crate) fn put_remove_range(body: &mut Vec<u8>, range: KeyRange<'_>) {
    body.push(REMOVE_RANGE);
    put_varint(body, u64::from(range.keyspace.0));
    put_varint(body, range.from.len() as u64);
    body.extend_from_slice(range.from);
    put_varint(body, range.to.map_or(0, |to| to.len() as u64 + 1));
    body.extend_from_slice(range.to.unwrap_or_default());
}

/// Whether a body has anything but removals.
pub(crate) fn adds(body: &[u8]) -> bool {
    // Mostly the first operation tells.
    matches!(body.first(), Some(&(INSERT | MERGE)))
        || Operations::new(body).any(|operation| operation.is_ok_and(|operation| operation.adds()))
}

/// The operations of a body, in order. Ends after the first error, which says what is wrong.
#[derive(Clone, Debug)]
pub(crate) struct Operations<'a> {
    rest: Reader<'a>,
}

impl<'a> Operations<'a> {
    pub fn new(body: &'a [u8]) -> Self {
        Self { rest: Reader::new(body) }
    }

    #[inline]
    fn decode(&mut self) -> Result<Operation<'a>, &'static str> {
        let reader = &mut self.rest;
        let kind = reader.u8().ok_or("operation ends early")?;
        let keyspace = reader.varint().and_then(|id| u32::try_from(id).ok()).ok_or("bad keyspace id")?;
        let key_len = reader.length().ok_or("bad key length")?;
        let key = reader.bytes(key_len).ok_or("key ends early")?;
        if kind == REMOVE_RANGE {
            let to = match reader.length().ok_or("bad length of the end of a range")?.checked_sub(1) {
                Some(len) => Some(reader.bytes(len).ok_or("range ends early")?),
                None => None,
            };
            if key.len() > RANGE_END_MAX || to.is_some_and(|to| to.len() > RANGE_END_MAX || to <= key) {
                return Err("bad range");
            }
            return Ok(Operation::RemoveRange(KeyRange { keyspace: KeyspaceId(keyspace), from: key, to }));
        }
        if key.is_empty() || key.len() > crate::KEY_LEN_MAX {
            return Err("key length out of range");
        }
        let value = match kind {
            REMOVE => None,
            INSERT | MERGE => {
                let value_len = reader.length().ok_or("bad value length")?;
                Some(reader.bytes(value_len).ok_or("value ends early")?)
            }
            _ => return Err("unknown kind of operation"),
        };
        let change = OperationRef { keyspace: KeyspaceId(keyspace), key, value };
        Ok(if kind == MERGE { Operation::Merge(change) } else { Operation::Change(change) })
    }
}

impl<'a> Iterator for Operations<'a> {
    type Item = Result<Operation<'a>, &'static str>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.remaining() == 0 {
            return None;
        }
        let decoded = self.decode();
        if decoded.is_err() {
            self.rest = Reader::new(&[]);
        }
        Some(decoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Bytes = Vec<u8>;

    /// A key with a value or none, or the ends of a range.
    #[derive(Clone, Debug)]
    enum Plain {
        Change(Bytes, Option<Bytes>),
        Merge(Bytes, Bytes),
        Range(Bytes, Option<Bytes>),
    }

    fn plain() -> impl Strategy<Value = Plain> {
        let bytes = |len| prop::collection::vec(any::<u8>(), len);
        prop_oneof![
            (bytes(1..300), prop::option::of(bytes(0..300)))
                .prop_map(|(key, value)| Plain::Change(key, value)),
            (bytes(1..300), bytes(0..300)).prop_map(|(key, operand)| Plain::Merge(key, operand)),
            (bytes(0..4), prop::option::of(bytes(1..4)))
                .prop_filter("a range", |(from, to)| to.as_ref().is_none_or(|to| from < to))
                .prop_map(|(from, to)| Plain::Range(from, to)),
        ]
    }

    proptest! {
        #[test]
        fn a_body_round_trips(operations in prop::collection::vec((any::<u32>(), plain()), 0..20)) {
            let mut body = Vec::new();
            let mut expected = Vec::new();
            for (id, operation) in &operations {
                let keyspace = KeyspaceId(*id);
                match operation {
                    Plain::Change(key, Some(value)) => put_insert(&mut body, keyspace, key, value),
                    Plain::Change(key, None) => put_remove(&mut body, keyspace, key),
                    Plain::Merge(key, operand) => put_merge(&mut body, keyspace, key, operand),
                    Plain::Range(from, to) => {
                        put_remove_range(&mut body, KeyRange { keyspace, from, to: to.as_deref() });
                    }
                }
                expected.push(match operation {
                    Plain::Change(key, value) => {
                        Operation::Change(OperationRef { keyspace, key, value: value.as_deref() })
                    }
                    Plain::Merge(key, operand) => {
                        Operation::Merge(OperationRef { keyspace, key, value: Some(operand) })
                    }
                    Plain::Range(from, to) => {
                        Operation::RemoveRange(KeyRange { keyspace, from, to: to.as_deref() })
                    }
                });
            }
            let back: Vec<_> = Operations::new(&body).map(|op| op.expect("sound")).collect();
            prop_assert_eq!(back, expected);
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut refused = 0;
            for operation in Operations::new(&bytes) {
                match operation {
                    Ok(Operation::Change(change) | Operation::Merge(change)) => {
                        prop_assert!(!change.key.is_empty());
                    }
                    Ok(Operation::RemoveRange(range)) => {
                        prop_assert!(range.to.is_none_or(|to| range.from < to));
                    }
                    Err(_) => refused += 1,
                }
            }
            prop_assert!(refused <= 1);
        }
    }

    #[test]
    fn a_range_that_holds_nothing_is_refused() {
        for to in [&b""[..], b"a", b"b"] {
            let mut body = Vec::new();
            put_remove_range(&mut body, KeyRange { keyspace: KeyspaceId(1), from: b"b", to: Some(to) });
            assert_eq!(Operations::new(&body).next(), Some(Err("bad range")));
        }
    }
}
