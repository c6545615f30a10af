//! The format of nodes: leaves, inner nodes and log pieces share one format, and differ in the payload of their
//! entries.
//!
//! ```text
//! offset size
//!      0    4  magic "SapN"
//!      4    1  kind: 1 leaf, 2 inner, 3 log piece
//!      5    1  level: 0 for leaves, 255 for log pieces, else the height above the leaves
//!      6    1  0: not compressed (else see [`crate::storage::compressed`])
//!      7    1  0: not encrypted (else see [`crate::storage::encrypted`])
//!      8    8  node id
//!     16    8  epoch: of the version that this node was written for
//!     24    4  keyspace
//!     28    4  len: bytes of the whole node
//!     32    4  count: entries, at least 1
//!     36    4  CRC-32C of bytes 0..36 and 40..len
//!     40  4×n  offset of each entry from the beginning of the node, ascending
//!      …    …  entries, each:  klen (varint)  key  payload
//! ```
//! All integers are little-endian. The payload of a leaf's entry is the value, which ends where the next entry
//! begins. The payload of an inner node's entry is a child's id (8 bytes), and its key is the smallest key that
//! may be below that child. The first entry's key is empty, since all keys below the first separator belong
//! there. A byte 1 after the id marks a *lone* leaf: it has one record, whose key is the entry's key, so the
//! key is known without reading the leaf (level 1 only, and not in the first entry). The payload of a log
//! piece's entry is a change: a byte 1 and the new value, or a byte 0 for a removal (see
//! [`crate::log_area`]).
//!
//! Nodes have no fixed size and are packed without padding, because they are never changed in place.
//!
//! Invariants of a decoded node: entries lie in order without gap or overlap, keys ascend strictly, leaves have
//! keys of 1 to `KEY_LEN_MAX` bytes. Every byte has been checked, so access cannot fail afterwards.

mod decode;
mod encode;
mod refusal;

pub(crate) use decode::{Header, decode_header, stored_len};
#[cfg(any(fuzzing, test))]
pub(crate) use encode::seal;
pub(crate) use encode::{ChildPayload, change_payload, encode, put_checksum, put_header};
pub(crate) use refusal::{Refusal, refuse};

use crate::bytecode::{Reader, compare_bytes, varint_len};
use crate::operation::KeyspaceId;
use bytes::Bytes;
use std::cmp::Ordering;

/// Identifies a node, across the trees of all keyspaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub u64);

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {}", self.0)
    }
}

pub(crate) const MAGIC: [u8; 4] = *b"SapN";
/// Tags of the format: the kind of a node.
const KIND_LEAF: u8 = 1;
const KIND_INNER: u8 = 2;
const KIND_PIECE: u8 = 3;
/// The level of log pieces.
pub(crate) const PIECE: u8 = u8::MAX;
/// Tags of the format: the first byte of a log piece's payload.
const REMOVED: u8 = 0;
const PUT: u8 = 1;
/// Bytes of a value that shares its node's memory; shorter ones are copied for users, since a short value would keep a
/// whole leaf. No node of at most this length has a value that is shared.
pub(crate) const SHARED_FROM: usize = 4096;
/// Bytes before the first offset, and the offset of the checksum, as the format has it.
pub(crate) const HEADER: usize = 40;
pub(crate) const CRC_AT: usize = 36;
/// Offsets of the mark of encrypted nodes and of the length, as the format has it.
pub(crate) const ENCRYPTED_AT: usize = 7;
pub(crate) const LEN_AT: usize = 28;
/// Bytes that a node is long at most: longer ones are never written, and are refused when read, so that damage costs no
/// memory.
pub(crate) const NODE_LEN_MAX: usize = 32 << 20;
/// The maximum height of a tree: with two children per node, 2^40 leaves.
pub(crate) const LEVEL_MAX: u8 = 40;

/// Target lengths of nodes, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeLen {
    pub leaf: usize,
    /// Nodes of level 1; their length decides how many leaves a block has.
    pub block: usize,
    pub inner: usize,
}

impl NodeLen {
    pub fn at(self, level: u8) -> usize {
        match level {
            0 => self.leaf,
            1 => self.block,
            _ => self.inner,
        }
    }
}

/// Bytes that an entry adds to its node.
pub(crate) fn entry_len(key_len: usize, payload_len: usize) -> usize {
    4 + varint_len(key_len as u64) + key_len + payload_len
}

/// Bytes of a child's id, as the format has it.
const ID: usize = 8;
/// The tag after the id of a lone leaf (format).
const LONE: u8 = 1;

/// The identity of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub id: NodeId,
    pub level: u8,
    pub epoch: u64,
    pub keyspace: KeyspaceId,
}

impl Name {
    /// Whether the node has children.
    pub fn is_inner(&self) -> bool {
        self.level > 0 && self.level != PIECE
    }
}

fn kind_of(level: u8) -> u8 {
    match level {
        0 => KIND_LEAF,
        PIECE => KIND_PIECE,
        _ => KIND_INNER,
    }
}

/// The length of an entry's key, and the length of its length prefix.
fn key_len(entry: &[u8]) -> (usize, usize) {
    // Nearly all keys are shorter than 128 bytes.
    if entry[0] < 0x80 {
        return (usize::from(entry[0]), 1);
    }
    let len = Reader::new(entry).length().unwrap_or(0);
    (len, varint_len(len as u64))
}

/// The payload of an entry, which follows its key.
pub(crate) fn payload_of(entry: &[u8]) -> &[u8] {
    let (len, width) = key_len(entry);
    &entry[width + len..]
}

/// The payload of a child when it becomes the first entry of a node: the id without the mark.
pub(crate) fn first_child(payload: &[u8]) -> &[u8] {
    &payload[..ID.min(payload.len())]
}

/// The key of an entry.
pub(crate) fn key_of(entry: &[u8]) -> &[u8] {
    let (len, width) = key_len(entry);
    &entry[width..width + len]
}

fn checksum(node: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&node[..CRC_AT]), &node[HEADER..])
}

/// A decoded and checked node. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    bytes: Bytes,
    count: u32,
    name: Name,
    /// Checksum and length of the node as it is stored, perhaps compressed.
    crc: u32,
    stored_len: u32,
}

impl Node {
    pub fn name(&self) -> Name {
        self.name
    }

    pub fn level(&self) -> u8 {
        self.name.level
    }

    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Bytes of the node as it is stored, perhaps compressed.
    pub fn stored_len(&self) -> usize {
        self.stored_len as usize
    }

    /// The same node, which is stored with this checksum in so many bytes.
    pub fn stored_as(self, crc: u32, stored_len: usize) -> Self {
        Self { crc, stored_len: stored_len as u32, ..self }
    }

    /// The node's bytes, as in memory.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The number of entries, at least 1.
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// Where an entry begins.
    pub fn offset(&self, index: usize) -> usize {
        let at = HEADER + 4 * index;
        let bytes = &self.bytes[at..at + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
    }

    fn end(&self, index: usize) -> usize {
        if index + 1 < self.count() { self.offset(index + 1) } else { self.bytes.len() }
    }

    /// The offsets of an entry's key, of its payload, and of its end.
    #[inline]
    fn parts(&self, index: usize) -> (usize, usize, usize) {
        let start = self.offset(index);
        let (key_len, width) = key_len(&self.bytes[start..]);
        let key = start + width;
        (key, key + key_len, self.end(index))
    }

    /// The key of an entry (for an inner node: its separator).
    #[inline]
    pub fn key(&self, index: usize) -> &[u8] {
        // Unlike `parts`, this does not look up the entry's end, which a search does not need.
        key_of(&self.bytes[self.offset(index)..])
    }

    /// The key of an entry, sharing the node's memory.
    pub fn key_bytes(&self, index: usize) -> Bytes {
        let (key, payload, _) = self.parts(index);
        self.bytes.slice(key..payload)
    }

    /// The value of a leaf's entry (or the bytes of a child's id), sharing the node's memory.
    pub fn payload(&self, index: usize) -> Bytes {
        let (_, payload, end) = self.parts(index);
        self.bytes.slice(payload..end)
    }

    /// A part of the node's bytes for a user, which may be kept for long: copied if it is short, so that it does
    /// not keep the whole node in memory.
    pub fn lasting(&self, part: &[u8]) -> Bytes {
        if part.len() < SHARED_FROM { Bytes::copy_from_slice(part) } else { self.bytes.slice_ref(part) }
    }

    /// The same node with its bytes in another place.
    pub fn moved_to(&self, bytes: Bytes) -> Self {
        debug_assert_eq!(bytes, self.bytes);
        Self { bytes, ..self.clone() }
    }

    /// The encoded bytes of some entries, and the offset where they begin.
    pub fn raw(&self, entries: std::ops::Range<usize>) -> (&[u8], usize) {
        if entries.is_empty() {
            return (&[], 0);
        }
        let from = self.offset(entries.start);
        (&self.bytes[from..self.end(entries.end - 1)], from)
    }

    /// The change of a log piece's entry, sharing the node's memory; `None` for a removal.
    pub fn change(&self, index: usize) -> Option<Bytes> {
        let (_, payload, end) = self.parts(index);
        (self.bytes[payload] == PUT).then(|| self.bytes.slice(payload + 1..end))
    }

    /// The value that a log piece's entry sets; `None` for a removal.
    pub fn logged_value(&self, index: usize) -> Option<&[u8]> {
        let (_, payload, end) = self.parts(index);
        (self.bytes[payload] == PUT).then(|| &self.bytes[payload + 1..end])
    }

    /// Key and payload of an entry.
    #[inline]
    pub fn record(&self, index: usize) -> (&[u8], &[u8]) {
        let (key, payload, end) = self.parts(index);
        (&self.bytes[key..payload], &self.bytes[payload..end])
    }

    /// Key and payload of an entry, sharing the node's memory.
    // Always: a call for each record of a scan would cost some 20 instructions more.
    #[inline(always)]
    pub fn entry(&self, index: usize) -> (Bytes, Bytes) {
        let (key, payload, end) = self.parts(index);
        (self.bytes.slice(key..payload), self.bytes.slice(payload..end))
    }

    /// The child of an inner node's entry.
    pub fn child(&self, index: usize) -> NodeId {
        let (_, payload, end) = self.parts(index);
        let mut id = [0; ID];
        id.copy_from_slice(&self.bytes[payload..end.min(payload + ID)]);
        NodeId(u64::from_le_bytes(id))
    }

    /// Whether the child of an inner node's entry is a leaf with one record, whose key is that of the entry.
    pub fn is_lone(&self, index: usize) -> bool {
        let (_, payload, end) = self.parts(index);
        end - payload > ID
    }

    /// Whether the parent alone shows that `key`, which belongs below this child, does not exist.
    pub fn lacks(&self, child: usize, key: &[u8]) -> bool {
        self.is_lone(child) && self.key(child) != key
    }

    /// The index of the first entry with a key at or above `key`. `Ok` if the key is equal.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low + (high - low) / 2;
            match compare_bytes(self.key(middle), key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The index of the child of an inner node below which `key` belongs.
    pub fn child_for(&self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests;
