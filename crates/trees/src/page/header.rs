//! The beginning of every page, by which a page that is somebody else's, or torn, is told.
//!
//! ```text
//! offset size
//!      0    4  magic "Tree"
//!      4    1  kind
//!      5    1  level: 0 for leaves
//!      6    2  count: entries on this page
//!      8    8  id of the node
//!     16    8  sequence number: grows with every write of the node
//!     24    4  what the kind makes of it
//!     28    4  CRC-32C of all other bytes of the page
//!     32       body
//! ```
//! Little-endian.
//!
//! Invariant: nothing of a page is believed before [`open`] has seen its checksum, kind and id.

use super::NodeId;
use crate::{Error, Result};

pub(super) const MAGIC: &[u8; 4] = b"Tree";
/// Bytes before the body.
pub(crate) const HEADER: usize = 32;
const CRC_AT: usize = 28;

/// What a page is. Numbers are on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Superblock = 1,
    Inner = 2,
    Leaf = 3,
    LeafSegment = 4,
    Blink = 5,
    /// See `store/anchor.rs`.
    Anchor = 32,
    /// See `page/run_page.rs`.
    Run = 33,
    /// See `page/unit_page.rs`.
    Units = 34,
    /// See `log/unit_log.rs`.
    Log = 35,
    /// See `page/filter_page.rs`.
    Filter = 36,
    /// See `page/buffered_node.rs`.
    Buffered = 37,
    /// See `page/flash_node.rs`.
    FlashInner = 40,
    /// See `page/flash_node.rs`.
    FlashLeaf = 41,
    /// See `page/log_unit.rs`.
    FlashLog = 42,
    /// See `page/path_page.rs`.
    Path = 43,
    /// See `page/log_node.rs`.
    LogNode = 44,
}

impl Kind {
    const ALL: &[Self] = &[
        Self::Superblock,
        Self::Inner,
        Self::Leaf,
        Self::LeafSegment,
        Self::Blink,
        Self::Anchor,
        Self::Run,
        Self::Units,
        Self::Log,
        Self::Filter,
        Self::Buffered,
        Self::FlashInner,
        Self::FlashLeaf,
        Self::FlashLog,
        Self::Path,
        Self::LogNode,
    ];

    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| *kind as u8 == number)
    }
}

/// See the drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
    pub level: u8,
    pub count: u16,
    pub id: NodeId,
    pub sequence: u64,
    pub extra: u32,
}

/// Writes the header and the checksum over the finished body.
pub(crate) fn seal(page: &mut [u8], header: &Header) {
    page[..4].copy_from_slice(MAGIC);
    page[4] = header.kind as u8;
    page[5] = header.level;
    page[6..8].copy_from_slice(&header.count.to_le_bytes());
    page[8..16].copy_from_slice(&header.id.0.to_le_bytes());
    page[16..24].copy_from_slice(&header.sequence.to_le_bytes());
    page[24..CRC_AT].copy_from_slice(&header.extra.to_le_bytes());
    let crc = checksum(page);
    page[CRC_AT..HEADER].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(page: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&page[..CRC_AT]), &page[HEADER..])
}

/// Reads `N` bytes at `at`. The caller has seen that they are there.
pub(crate) fn bytes_at<const N: usize>(page: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&page[at..at + N]);
    bytes
}

/// Verifies a page that was read from `offset` of `file` for node `id`.
pub(crate) fn open(page: &[u8], file: &str, offset: u64, id: NodeId) -> Result<Header> {
    if page.len() < HEADER || &page[..4] != MAGIC {
        let found = format!("{:02x?}", &page[..page.len().min(4)]);
        return Err(Error::corrupt(file, offset, "magic of a page", "\"Tree\"", found));
    }
    let (expected, found) = (u32::from_le_bytes(bytes_at(page, CRC_AT)), checksum(page));
    if expected != found {
        return Err(Error::corrupt(
            file,
            offset,
            "checksum of a page",
            format!("{expected:08x}"),
            format!("{found:08x}"),
        ));
    }
    let found = NodeId(u64::from_le_bytes(bytes_at(page, 8)));
    if found != id {
        return Err(Error::corrupt(file, offset, "id of a node", id, found));
    }
    let kind = Kind::of(page[4])
        .ok_or_else(|| Error::corrupt(file, offset, "kind of a page", "a known one", page[4]))?;
    Ok(Header {
        kind,
        level: page[5],
        count: u16::from_le_bytes(bytes_at(page, 6)),
        id,
        sequence: u64::from_le_bytes(bytes_at(page, 16)),
        extra: u32::from_le_bytes(bytes_at(page, 24)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_another_id_are_noticed() {
        let mut page = vec![7; 128];
        let header = Header { kind: Kind::Leaf, level: 0, count: 3, id: NodeId(9), sequence: 5, extra: 6 };
        seal(&mut page, &header);
        assert_eq!(open(&page, "f", 0, NodeId(9)).unwrap(), header);
        assert!(matches!(open(&page, "f", 0, NodeId(8)), Err(Error::Corrupt { .. })));
        for bit in 0..8 * page.len() {
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(open(&page, "f", 0, NodeId(9)), Err(Error::Corrupt { .. })), "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(open(&page[..10], "f", 0, NodeId(9)).is_err());
    }
}
