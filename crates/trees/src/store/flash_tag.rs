//! What the spare area of a flash page says: enough to find a tree again by reading spare areas alone.
//!
//! ```text
//! offset size
//!      0    4  magic "TrTg"
//!      4    1  kind: 1 node, 2 log of operations, 3 commit record
//!      5    1  1 if this page ends what belongs together (see the store that wrote it), else 0
//!      6    1  level of the root
//!      7    1  zero
//!      8    8  sequence number: grows with every page written; a copy keeps that of its source
//!     16    8  id of the node
//!     24    8  id of the root, or what the kind makes of it
//!     32    8  digest of the store's table, or 0
//!     40    8  serial number: grows with every program, copies included; of a page and its copies the newest counts
//!     48    4  CRC-32C of the bytes before
//! ```
//! Little-endian. What the spare area has beyond is left erased.
//!
//! Invariant: nothing of a tag is believed before its checksum.

use crate::page::header::bytes_at;

const MAGIC: &[u8; 4] = b"TrTg";
/// Bytes of a tag.
pub(crate) const TAG: usize = 52;
const CRC_AT: usize = TAG - 4;

/// What a page is. Numbers are on flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TagKind {
    Node = 1,
    OperationLog = 2,
    Commit = 3,
}

/// See the drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub kind: TagKind,
    pub last: bool,
    pub root_level: u8,
    pub sequence: u64,
    pub id: u64,
    pub root: u64,
    pub digest: u64,
    pub serial: u64,
}

impl Tag {
    /// A node that ends nothing.
    pub fn node(id: u64) -> Self {
        Self {
            kind: TagKind::Node,
            last: false,
            root_level: 0,
            sequence: 0,
            id,
            root: 0,
            digest: 0,
            serial: 0,
        }
    }

    pub fn encode(&self) -> [u8; TAG] {
        let mut bytes = [0; TAG];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..7].copy_from_slice(&[self.kind as u8, u8::from(self.last), self.root_level]);
        for (index, word) in
            [self.sequence, self.id, self.root, self.digest, self.serial].into_iter().enumerate()
        {
            bytes[8 + 8 * index..16 + 8 * index].copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// What the bytes say, if they are a tag.
    pub fn decode(bytes: &[u8; TAG]) -> Option<Self> {
        let crc = u32::from_le_bytes(bytes_at(bytes, CRC_AT));
        if &bytes[..4] != MAGIC || crc != crc32c::crc32c(&bytes[..CRC_AT]) || bytes[5] > 1 {
            return None;
        }
        let kind = [TagKind::Node, TagKind::OperationLog, TagKind::Commit]
            .into_iter()
            .find(|kind| *kind as u8 == bytes[4])?;
        let word = |index: usize| u64::from_le_bytes(bytes_at(bytes, 8 + 8 * index));
        Some(Self {
            kind,
            last: bytes[5] == 1,
            root_level: bytes[6],
            sequence: word(0),
            id: word(1),
            root: word(2),
            digest: word(3),
            serial: word(4),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_noticed() {
        let tag = Tag {
            kind: TagKind::OperationLog,
            last: true,
            root_level: 3,
            sequence: 17,
            id: 5,
            root: 9,
            digest: 1 << 60,
            serial: 4,
        };
        let mut bytes = tag.encode();
        assert_eq!(Tag::decode(&bytes), Some(tag));
        for bit in 0..8 * TAG {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Tag::decode(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(Tag::decode(&[0xff; TAG]), None, "an erased page");
    }
}
