//! The entries of a node in columns, as they are compressed: what is alike lies together, a key lacks what it shares with the
//! one before (the prefix truncation of LevelDB's blocks), and where entries begin need not be stored, since it follows from their lengths.
//!
//! ```text
//! packed = llen klen lens keys payloads
//! llen   = bytes of lens, klen = bytes of keys: 4 bytes each, little-endian
//! lens   = (shared rest plen)*count       of each entry: bytes that its key shares with the key before it, bytes of the rest of
//!                                         the key, bytes of the payload; varints
//! keys   = rest*count                     the rest of each key
//! ```
//!
//! Invariant: all bytes are untrusted. What is unpacked fills its place exactly, or nothing is unpacked.

use crate::bytecode::{Reader, put_varint, varint_len};
use crate::storage::node::HEADER;

/// Packs entries, in key order, into `out`, which is cleared first.
pub(crate) fn pack<'a>(out: &mut Vec<u8>, entries: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone) {
    out.clear();
    out.extend_from_slice(&[0; 8]);
    let rests = |entries: &mut dyn Iterator<Item = (&'a [u8], &'a [u8])>,
                 each: &mut dyn FnMut(usize, &'a [u8], &'a [u8])| {
        let mut before: &[u8] = &[];
        for (key, payload) in entries {
            let shared = before.iter().zip(key).take_while(|(a, b)| a == b).count();
            each(shared, &key[shared..], payload);
            before = key;
        }
    };
    rests(&mut entries.clone(), &mut |shared, rest, payload| {
        [shared, rest.len(), payload.len()].into_iter().for_each(|len| put_varint(out, len as u64));
    });
    let lens = out.len() - 8;
    rests(&mut entries.clone(), &mut |_, rest, _| out.extend_from_slice(rest));
    let keys = out.len() - 8 - lens;
    entries.for_each(|(_, payload)| out.extend_from_slice(payload));
    out[..4].copy_from_slice(&(lens as u32).to_le_bytes());
    out[4..8].copy_from_slice(&(keys as u32).to_le_bytes());
}

/// Unpacks `count` entries into `node`, behind its header. Returns `None` if they do not fill it exactly.
pub(crate) fn unpack(packed: &[u8], count: usize, node: &mut [u8]) -> Option<()> {
    let mut head = Reader::new(packed);
    let (lens_len, keys_len) = (head.u32()? as usize, head.u32()? as usize);
    let mut lens = Reader::new(head.bytes(lens_len)?);
    let (mut keys, mut payloads) = (head.bytes(keys_len)?, head);
    let mut at = count.checked_mul(4)?.checked_add(HEADER)?;
    if at > node.len() {
        return None;
    }
    // Where the key before begins, and its length.
    let (mut before, mut before_len) = (0, 0);
    for index in 0..count {
        let (shared, rest, payload) = (lens.length()?, lens.length()?, lens.length()?);
        if shared > before_len || rest > keys.len() || payload > payloads.remaining() {
            return None;
        }
        let (key_len, start) = (shared + rest, at);
        let key = start + varint_len(key_len as u64);
        at = key + key_len + payload;
        if at > node.len() {
            return None;
        }
        node[HEADER + 4 * index..HEADER + 4 * index + 4].copy_from_slice(&(start as u32).to_le_bytes());
        put_varint_at(&mut node[start..key], key_len);
        node.copy_within(before..before + shared, key);
        let own;
        (own, keys) = keys.split_at(rest);
        node[key + shared..key + key_len].copy_from_slice(own);
        node[key + key_len..at].copy_from_slice(payloads.bytes(payload)?);
        (before, before_len) = (key, key_len);
    }
    let is_whole = at == node.len() && lens.remaining() == 0 && keys.is_empty() && payloads.remaining() == 0;
    is_whole.then_some(())
}

/// Writes a varint that fills its place.
fn put_varint_at(place: &mut [u8], mut value: usize) {
    let last = place.len() - 1;
    for (index, byte) in place.iter_mut().enumerate() {
        *byte = value as u8 & 0x7f | if index < last { 0x80 } else { 0 };
        value >>= 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::KeyspaceId;
    use crate::storage::entries::Entries;
    use crate::storage::node::{Name, NodeId, encode};
    use proptest::prelude::*;

    fn node_of(records: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        let mut entries = Entries::default();
        records.iter().for_each(|(key, payload)| entries.push(key, &[payload]));
        let mut node = Vec::new();
        let name = Name { id: NodeId(42), level: 0, epoch: 7, keyspace: KeyspaceId(3) };
        encode(&mut node, name, &entries, records.len());
        node
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(records in prop::collection::btree_map(
            prop::collection::vec(prop::sample::select(&b"ab\xff"[..]), 1..200), prop::collection::vec(any::<u8>(), 0..300), 1..60))
        {
            let records: Vec<_> = records.into_iter().collect();
            let node = node_of(&records);
            let mut packed = Vec::new();
            pack(&mut packed, records.iter().map(|(key, payload)| (&key[..], &payload[..])));
            let mut unpacked = vec![0xaa; node.len()];
            prop_assert!(unpack(&packed, records.len(), &mut unpacked).is_some());
            prop_assert_eq!(&unpacked[HEADER..], &node[HEADER..]);
            // A place that is too short or too long, another number of entries, and a byte less or more.
            for len in [0, HEADER, node.len() - 1, node.len() + 1] {
                prop_assert!(unpack(&packed, records.len(), &mut vec![0; len]).is_none());
            }
            prop_assert!(unpack(&packed, records.len() - 1, &mut unpacked).is_none());
            prop_assert!(unpack(&packed, records.len() + 1, &mut unpacked).is_none());
            packed.push(0);
            prop_assert!(unpack(&packed, records.len(), &mut unpacked).is_none());
            packed.truncate(packed.len() - 2);
            prop_assert!(unpack(&packed, records.len(), &mut unpacked).is_none());
        }

        /// Garbage is refused, or fills its place.
        #[test]
        fn garbage_does_no_harm(
            lens in 0u32..20, keys in 0u32..20, rest in prop::collection::vec(0u8..20, 0..60), count in 0usize..9, len in 0usize..200,
        ) {
            let mut packed = lens.to_le_bytes().to_vec();
            packed.extend(keys.to_le_bytes());
            packed.extend(rest);
            let _ = unpack(&packed, count, &mut vec![0; len]);
        }
    }
}
