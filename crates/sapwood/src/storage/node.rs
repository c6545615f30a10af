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

use crate::bytecode::{Reader, compare_bytes, varint_len};
use crate::operation::KeyspaceId;
use crate::storage::entries::Entries;
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

/// Bytes that an entry adds to its node.
pub(crate) fn entry_len(key_len: usize, payload_len: usize) -> usize {
    4 + varint_len(key_len as u64) + key_len + payload_len
}

/// Bytes of a child's id, as the format has it.
const ID: usize = 8;
/// The tag after the id of a lone leaf (format).
const LONE: u8 = 1;

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

/// Why some bytes are not a valid node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Offset in the node.
    pub at: usize,
    pub what: &'static str,
    pub expected: String,
    pub found: String,
}

/// What can be wrong with an entry.
#[derive(Clone, Copy)]
enum Fault {
    Offset,
    Key,
    KeyLength,
    Order,
    Child,
    Change,
}

pub(crate) fn refuse<T>(
    at: usize,
    what: &'static str,
    expected: impl ToString,
    found: impl ToString,
) -> Result<T, Refusal> {
    Err(Refusal { at, what, expected: expected.to_string(), found: found.to_string() })
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

/// What the header of a node says.
pub(crate) struct Header {
    pub name: Name,
    pub count: u32,
    pub crc: u32,
    pub is_encrypted: bool,
}

/// Bytes of the stored node, compressed or not, that begins with this header, if that may be one.
pub(crate) fn stored_len(header: &[u8]) -> Option<usize> {
    let len = u32::from_le_bytes(*header.get(28..HEADER)?.first_chunk()?) as usize;
    (header.starts_with(&MAGIC) && (HEADER..=NODE_LEN_MAX).contains(&len)).then_some(len)
}

/// Decodes the header of a stored node, compressed or not, and checks the checksum of all its bytes.
pub(crate) fn decode_header(bytes: &[u8]) -> Result<Header, Refusal> {
    if bytes.len() < HEADER || bytes.len() > NODE_LEN_MAX {
        return refuse(0, "length of a node", format!("{HEADER} to {NODE_LEN_MAX} bytes"), bytes.len());
    }
    let mut head = Reader::new(&bytes[..HEADER]);
    let mut parse = || {
        Some((
            head.array::<4>()?,
            (head.u8()?, head.u8()?),
            (head.u8()?, head.u8()?),
            head.u64()?,
            head.u64()?,
            head.u32()?,
            head.u32()?,
            head.u32()?,
            head.u32()?,
        ))
    };
    let Some((magic, (kind, level), (_, encrypted), id, epoch, keyspace, len, count, crc)) = parse() else {
        return refuse(0, "header", "40 bytes", "fewer");
    };
    if magic != MAGIC {
        return refuse(0, "magic of a node", format!("{MAGIC:02x?}"), format!("{magic:02x?}"));
    }
    if len as usize != bytes.len() {
        return refuse(28, "length in a node's header", bytes.len(), len);
    }
    let actual = checksum(bytes);
    if actual != crc {
        return refuse(CRC_AT, "checksum of a node", format!("{crc:08x}"), format!("{actual:08x}"));
    }
    if kind != kind_of(level) || encrypted > 1 || (level > LEVEL_MAX && level != PIECE) {
        return refuse(4, "kind and level of a node", "a known kind", format!("kind {kind}, level {level}"));
    }
    let name = Name { id: NodeId(id), level, epoch, keyspace: KeyspaceId(keyspace) };
    Ok(Header { name, count, crc, is_encrypted: encrypted == 1 })
}

impl Header {
    /// Refuses an encrypted node: there is no key here.
    pub fn unencrypted(self) -> Result<Self, Refusal> {
        if self.is_encrypted {
            refuse(ENCRYPTED_AT, "mark of an encrypted node", "0: the database is not encrypted", 1)
        } else {
            Ok(self)
        }
    }
}

impl Node {
    /// Decodes a node that is not compressed, and checks every byte.
    pub fn decode(bytes: Bytes) -> Result<Self, Refusal> {
        let Header { name, count, crc, .. } = decode_header(&bytes)?.unencrypted()?;
        if bytes[6] != 0 {
            return refuse(6, "codec of a node", 0, bytes[6]);
        }
        let stored_len = bytes.len() as u32;
        let node = Self { bytes, count, name, crc, stored_len };
        node.check_entries()?;
        Ok(node)
    }

    /// A node that was stored compressed, in `stored_len` bytes with the checksum `crc`. Checks its entries.
    pub fn decompressed(
        bytes: Bytes,
        name: Name,
        count: u32,
        crc: u32,
        stored_len: usize,
    ) -> Result<Self, Refusal> {
        let node = Self { bytes, count, name, crc, stored_len: stored_len as u32 };
        node.check_entries()?;
        Ok(node)
    }

    fn check_entries(&self) -> Result<(), Refusal> {
        let len = self.bytes.len();
        let Some(first) = (self.count as usize)
            .checked_mul(4)
            .and_then(|offsets| offsets.checked_add(HEADER))
            .filter(|first| self.count > 0 && *first <= len)
        else {
            return refuse(32, "number of entries", format!("1 to {}", len / 4), self.count);
        };
        if self.offset(0) != first {
            return refuse(HEADER, "offset of the first entry", first, self.offset(0));
        }
        let checked = match self.name.level {
            PIECE => self.check_each(first, |_, payload| match payload.split_first() {
                Some((&REMOVED, [])) | Some((&PUT, _)) => None,
                _ => Some(Fault::Change),
            }),
            0 => self.check_each(first, |_, _| None),
            level => self.check_each(first, |index, payload| match payload.get(ID..) {
                Some([]) => None,
                Some([LONE]) if level == 1 && index > 0 => None,
                _ => Some(Fault::Child),
            }),
        };
        checked.or_else(|(fault, index, start)| self.refuse_entry(fault, index, start))
    }

    /// Checks the entries in one pass. [`Node::refuse_entry`] builds the error message, so that only a number
    /// is carried from entry to entry.
    #[inline(always)]
    fn check_each(
        &self,
        first: usize,
        wrong_payload: impl Fn(usize, &[u8]) -> Option<Fault>,
    ) -> Result<(), (Fault, usize, usize)> {
        let bytes = &self.bytes[..];
        let offsets = bytes[HEADER..first].as_chunks::<4>().0;
        let is_inner = self.name.is_inner();
        let mut last_key: &[u8] = &[];
        let mut start = first;
        for index in 0..offsets.len() {
            let end = offsets.get(index + 1).map_or(bytes.len(), |end| u32::from_le_bytes(*end) as usize);
            let fault = |fault| Err((fault, index, start));
            let Some((&byte, rest)) = bytes.get(start..end).and_then(<[u8]>::split_first) else {
                return fault(Fault::Offset);
            };
            // Nearly all keys are shorter than 128 bytes.
            let parts = if byte < 0x80 {
                rest.split_at_checked(usize::from(byte))
            } else {
                let mut entry = Reader::new(&bytes[start..end]);
                let key = entry.length().and_then(|len| entry.bytes(len));
                key.map(|key| (key, &bytes[end - entry.remaining()..end]))
            };
            let Some((key, payload)) = parts else { return fault(Fault::Key) };
            if key.len() > crate::KEY_LEN_MAX || key.is_empty() != (is_inner && index == 0) {
                return fault(Fault::KeyLength);
            }
            // Only the first key of an inner node is empty, and the first key needs no comparison.
            if index > 0 && compare_bytes(last_key, key) != Ordering::Less {
                return fault(Fault::Order);
            }
            if let Some(wrong) = wrong_payload(index, payload) {
                return fault(wrong);
            }
            last_key = key;
            start = end;
        }
        Ok(())
    }

    /// The error message for an invalid entry.
    #[cold]
    fn refuse_entry(&self, fault: Fault, index: usize, start: usize) -> Result<(), Refusal> {
        let end = self.end(index);
        let entry = self.bytes.get(start..end).unwrap_or_default();
        match fault {
            Fault::Offset => {
                let found = format!("{start}..{end}");
                refuse(HEADER + 4 * index, "offset of an entry", "ascending offsets", found)
            }
            Fault::Key => {
                refuse(start, "key of an entry", "a key within the entry", "one that runs over its end")
            }
            Fault::KeyLength => {
                let expected = format!("1 to {}", crate::KEY_LEN_MAX);
                refuse(start, "length of a key", expected, key_len(entry).0)
            }
            Fault::Order => {
                refuse(start, "order of keys", "ascending keys", "a key not above the one before it")
            }
            Fault::Child => {
                let found = format!("{:02x?}", payload_of(entry));
                refuse(
                    start,
                    "child of an inner node",
                    format!("{ID} bytes, and {LONE} if it is lone"),
                    found,
                )
            }
            Fault::Change => refuse(start, "change in a log piece", "a value or a removal", "neither"),
        }
    }

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
