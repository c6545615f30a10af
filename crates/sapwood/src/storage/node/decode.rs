//! Decodes nodes: bytes from the device become a [`Node`] only if every one of them is as it should be.
//!
//! Invariant: bytes are untrusted. Decoding neither panics nor allocates more than an error message.

use super::refusal::{Fault, Refusal, refuse};
use super::{
    CRC_AT, ENCRYPTED_AT, HEADER, ID, LEVEL_MAX, LONE, MAGIC, NODE_LEN_MAX, Name, Node, NodeId, PIECE, PUT,
    REMOVED, checksum, kind_of,
};
use crate::bytecode::{Reader, compare_bytes};
use crate::operation::KeyspaceId;
use bytes::Bytes;
use std::cmp::Ordering;

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
}
