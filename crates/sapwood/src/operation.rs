//! One change to one key, and the encoding of a batch of changes. The log and the path to the operation queue
//! use the same encoding.
//!
//! ```text
//! body of a batch = operation*
//! operation       = 1 keyspace klen key vlen value      insert
//!                 | 2 keyspace klen key                 remove
//! ```
//! The kind is one byte; keyspace, klen and vlen are varints.
//!
//! Invariants: a decoded key has 1 to [`KEY_LEN_MAX`](crate::KEY_LEN_MAX) bytes; decoding never copies.

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

/// Numbers that are counted up are below this one in every manifest, so that they can be. A billion a second reach it in
/// 146 years.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// A change in the bytes of a batch, or in an operation queue. `value` is `None` for a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperationRef<'a> {
    pub keyspace: KeyspaceId,
    pub key: &'a [u8],
    pub value: Option<&'a [u8]>,
}

const INSERT: u8 = 1;
const REMOVE: u8 = 2;

pub(crate) fn put_insert(body: &mut Vec<u8>, keyspace: KeyspaceId, key: &[u8], value: &[u8]) {
    body.reserve(key.len() + value.len() + 12);
    body.push(INSERT);
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

/// The operations of a body, in order. Ends after the first error, which says what is wrong.
#[derive(Clone, Debug)]
pub(crate) struct Operations<'a> {
    rest: Reader<'a>,
}

impl<'a> Operations<'a> {
    pub fn new(body: &'a [u8]) -> Self {
        Self { rest: Reader::new(body) }
    }

    fn decode(&mut self) -> Result<OperationRef<'a>, &'static str> {
        let reader = &mut self.rest;
        let kind = reader.u8().ok_or("operation ends early")?;
        let keyspace = reader.varint().and_then(|id| u32::try_from(id).ok()).ok_or("bad keyspace id")?;
        let key_len = reader.length().ok_or("bad key length")?;
        let key = reader.bytes(key_len).ok_or("key ends early")?;
        if key.is_empty() || key.len() > crate::KEY_LEN_MAX {
            return Err("key length out of range");
        }
        let value = match kind {
            REMOVE => None,
            INSERT => {
                let value_len = reader.length().ok_or("bad value length")?;
                Some(reader.bytes(value_len).ok_or("value ends early")?)
            }
            _ => return Err("unknown kind of operation"),
        };
        Ok(OperationRef { keyspace: KeyspaceId(keyspace), key, value })
    }
}

impl<'a> Iterator for Operations<'a> {
    type Item = Result<OperationRef<'a>, &'static str>;

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

    proptest! {
        #[test]
        fn a_body_round_trips(operations in prop::collection::vec(
            (any::<u32>(), prop::collection::vec(any::<u8>(), 1..300), prop::option::of(prop::collection::vec(any::<u8>(), 0..300))), 0..20))
        {
            let mut body = Vec::new();
            for (keyspace, key, value) in &operations {
                match value {
                    Some(value) => put_insert(&mut body, KeyspaceId(*keyspace), key, value),
                    None => put_remove(&mut body, KeyspaceId(*keyspace), key),
                }
            }
            let back: Vec<_> = Operations::new(&body).map(|op| op.expect("sound")).collect();
            prop_assert_eq!(back.len(), operations.len());
            for (op, (keyspace, key, value)) in back.iter().zip(&operations) {
                prop_assert_eq!(op.keyspace.0, *keyspace);
                prop_assert_eq!(op.key, &key[..]);
                prop_assert_eq!(op.value, value.as_deref());
            }
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut refused = 0;
            for operation in Operations::new(&bytes) {
                match operation {
                    Ok(operation) => prop_assert!(!operation.key.is_empty()),
                    Err(_) => refused += 1,
                }
            }
            prop_assert!(refused <= 1);
        }
    }
}
