//! Copies of changes that go to the leaves one by one, as they are taken from the queue: many in one allocation. (What waits for the
//! leaves is [`Held`](crate::tree::held::Held).)
//!
//! Invariant: an allocation goes back when the last change in it is let go.

use crate::operation::{Operation, OperationRef};
use bytes::BytesMut;

/// See the module.
#[derive(Default)]
pub(crate) struct Copies {
    room: BytesMut,
}

impl Copies {
    /// Bytes of an allocation.
    const LEN: usize = 16 << 10;

    pub fn copy(&mut self, OperationRef { keyspace, key, value }: OperationRef<'_>) -> Operation {
        let len = key.len() + value.map_or(0, <[u8]>::len);
        if self.room.capacity() < len {
            self.room = BytesMut::with_capacity(len.max(Self::LEN));
        }
        let mut take = |bytes: &[u8]| {
            self.room.extend_from_slice(bytes);
            self.room.split().freeze()
        };
        Operation { keyspace, key: take(key), value: value.map(take) }
    }
}
