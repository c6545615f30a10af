//! Encodes nodes: their header, the offsets of their entries, and the payloads that are no values.
//!
//! Invariant: what is encoded here decodes to the same node ([`super::decode`]).

#[cfg(any(fuzzing, test))]
use super::PIECE;
use super::{CRC_AT, HEADER, ID, LONE, MAGIC, Name, NodeId, PUT, REMOVED, checksum, kind_of};
use crate::storage::entries::Entries;

/// A child's id, and the mark if it is lone, as the payload of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChildPayload {
    bytes: [u8; ID + 1],
    len: usize,
}

impl ChildPayload {
    pub fn of(id: NodeId, is_lone: bool) -> Self {
        let mut bytes = [LONE; ID + 1];
        bytes[..ID].copy_from_slice(&id.0.to_le_bytes());
        Self { bytes, len: ID + usize::from(is_lone) }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The parts of a log piece's payload for a change.
pub(crate) fn change_payload(value: Option<&[u8]>) -> [&[u8]; 2] {
    value.map_or([&[REMOVED], &[]], |value| [&[PUT], value])
}

/// Encodes the first `count` entries (at least one, in key order) as a node into `out`, which is cleared first.
/// Returns the CRC.
pub(crate) fn encode(out: &mut Vec<u8>, name: Name, entries: &Entries, count: usize) -> u32 {
    debug_assert!(count > 0, "a node has entries");
    debug_assert!((1..count).all(|index| entries.key(index - 1) < entries.key(index)), "keys ascend");
    out.clear();
    let (bytes, starts) = entries.front(count);
    let first = HEADER + 4 * count;
    let len = first + bytes.len();
    out.reserve(len);
    out.resize(HEADER, 0);
    put_header(out, name, count as u32, len as u32);
    for start in starts {
        out.extend_from_slice(&((first + start) as u32).to_le_bytes());
    }
    out.extend_from_slice(bytes);
    put_checksum(out)
}

/// Writes a node's header, without the checksum, to the beginning of its bytes.
pub(crate) fn put_header(node: &mut [u8], name: Name, count: u32, len: u32) {
    let (magic, rest) = node[..HEADER].split_at_mut(4);
    magic.copy_from_slice(&MAGIC);
    rest[..4].copy_from_slice(&[kind_of(name.level), name.level, 0, 0]);
    rest[4..12].copy_from_slice(&name.id.0.to_le_bytes());
    rest[12..20].copy_from_slice(&name.epoch.to_le_bytes());
    rest[20..24].copy_from_slice(&name.keyspace.0.to_le_bytes());
    rest[24..28].copy_from_slice(&len.to_le_bytes());
    rest[28..32].copy_from_slice(&count.to_le_bytes());
    rest[32..].copy_from_slice(&[0; 4]);
}

/// Writes the checksum of all other bytes into a node's header, and returns it.
pub(crate) fn put_checksum(node: &mut [u8]) -> u32 {
    let crc = checksum(node);
    node[CRC_AT..HEADER].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// For fuzzing: makes the header consistent with the bytes after it.
#[cfg(any(fuzzing, test))]
pub(crate) fn seal(bytes: &mut [u8]) {
    if bytes.len() < HEADER {
        return;
    }
    let (level, len) = ([0, 1, 2, PIECE][usize::from(bytes[5] % 4)], bytes.len() as u32);
    let kind = kind_of(level);
    bytes[..4].copy_from_slice(&MAGIC);
    let codec = bytes[6] % 4;
    bytes[4..8].copy_from_slice(&[kind, level, codec, 0]);
    bytes[28..32].copy_from_slice(&len.to_le_bytes());
    let crc = checksum(bytes);
    bytes[CRC_AT..HEADER].copy_from_slice(&crc.to_le_bytes());
}
