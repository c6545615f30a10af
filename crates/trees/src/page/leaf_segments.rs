//! The append-only leaf of the PIO B-tree (VLDB 2011, section 3.2.2): L pages, the *leaf segments*, which fill up one after the
//! other with operations in the order of their arrival.
//!
//! ```text
//! segment: header of a page (kind 4, level = segment 0..L, id = leaf, extra = version of the leaf), then
//! offset size
//!      0   17  × count: key (8), value (8), operation (1)
//! ```
//! The version changes whenever the leaf is written as a whole, so that segments which a shorter new version leaves behind
//! are told from its own.
//!
//! Invariants:
//! 1. Segments before the last are full; the first is never absent.
//! 2. A page behind the last segment is sound and of another version, or all zeros. Anything else is damage.

use super::header::{HEADER, Header, Kind, bytes_at, open, seal};
use super::{Key, NodeId, Value};
use crate::{Error, Result};

/// What happens to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    Insert = b'i',
    Delete = b'd',
    Update = b'u',
}

impl Op {
    pub fn of(byte: u8) -> Option<Self> {
        match byte {
            b'i' => Some(Self::Insert),
            b'd' => Some(Self::Delete),
            b'u' => Some(Self::Update),
            _ => None,
        }
    }
}

/// An operation as it stands in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub key: Key,
    pub value: Value,
    pub op: Op,
}

impl Entry {
    /// What the key stands for after this.
    pub fn outcome(&self) -> Option<Value> {
        (self.op != Op::Delete).then_some(self.value)
    }
}

/// Bytes of an entry.
pub(crate) const ENTRY: usize = 17;

/// Entries of a segment.
pub(crate) fn per_segment(page_len: usize) -> usize {
    (page_len - HEADER) / ENTRY
}

/// A segment in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub leaf: NodeId,
    /// From 0 on.
    pub number: usize,
    pub version: u32,
    pub sequence: u64,
    pub entries: Vec<Entry>,
}

/// What a segment says besides its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub version: u32,
    pub sequence: u64,
}

impl Segment {
    pub fn encode(&self, page: &mut [u8]) {
        page.fill(0);
        for (index, entry) in self.entries.iter().enumerate() {
            let at = HEADER + index * ENTRY;
            page[at..at + 8].copy_from_slice(&entry.key.to_le_bytes());
            page[at + 8..at + 16].copy_from_slice(&entry.value.to_le_bytes());
            page[at + 16] = entry.op as u8;
        }
        let header = Header {
            kind: Kind::LeafSegment,
            level: self.number as u8,
            count: self.entries.len() as u16,
            id: self.leaf,
            sequence: self.sequence,
            extra: self.version,
        };
        seal(page, &header);
    }

    /// The segment on a page; `None` on a page that was never written or was wiped.
    pub fn decode(page: &[u8], file: &str, offset: u64, leaf: NodeId, number: usize) -> Result<Option<Self>> {
        let mut entries = Vec::new();
        let Some(head) = Self::decode_into(&mut entries, page, file, offset, leaf, number)? else {
            return Ok(None);
        };
        let Head { version, sequence } = head;
        Ok(Some(Self { leaf, number, version, sequence, entries }))
    }

    /// As [`Segment::decode`], with the entries behind others. Most of the processor's time of a search goes into this.
    pub fn decode_into(
        entries: &mut Vec<Entry>,
        page: &[u8],
        file: &str,
        offset: u64,
        leaf: NodeId,
        number: usize,
    ) -> Result<Option<Head>> {
        if page.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let header = open(page, file, offset, leaf)?;
        let count = usize::from(header.count);
        if header.kind != Kind::LeafSegment
            || usize::from(header.level) != number
            || count > per_segment(page.len())
        {
            let expected = format!("segment {number} of leaf {leaf}");
            let found = format!("{:?} {} with {count} entries", header.kind, header.level);
            return Err(Error::corrupt(file, offset, "a segment of a leaf", expected, found));
        }
        let body = &page[HEADER..HEADER + count * ENTRY];
        if let Some(bytes) = body.chunks_exact(ENTRY).find(|bytes| Op::of(bytes[16]).is_none()) {
            return Err(Error::corrupt(file, offset, "operation in a leaf", "i, d or u", bytes[16]));
        }
        entries.extend(body.chunks_exact(ENTRY).map(|bytes| Entry {
            key: u64::from_le_bytes(bytes_at(bytes, 0)),
            value: u64::from_le_bytes(bytes_at(bytes, 8)),
            // It was looked at above.
            op: Op::of(bytes[16]).unwrap_or(Op::Insert),
        }));
        Ok(Some(Head { version: header.extra, sequence: header.sequence }))
    }
}

/// Replays operations in the order of their arrival: what lives, in order of key.
pub(crate) fn replay(entries: impl IntoIterator<Item = Entry>) -> Vec<(Key, Value)> {
    let mut all: Vec<Entry> = entries.into_iter().collect();
    // Stable: the last of a key stays the last.
    all.sort_by_key(|entry| entry.key);
    let mut live: Vec<(Key, Value)> = Vec::with_capacity(all.len());
    for (index, entry) in all.iter().enumerate() {
        let is_last = all.get(index + 1).is_none_or(|next| next.key != entry.key);
        if let Some(value) = entry.outcome()
            && is_last
        {
            live.push((entry.key, value));
        }
    }
    live
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(op: Op, key: Key, value: Value) -> Entry {
        Entry { key, value, op }
    }

    #[test]
    fn golden_segment() {
        let segment = Segment {
            leaf: NodeId(5),
            number: 2,
            version: 9,
            sequence: 77,
            entries: vec![entry(Op::Insert, 1, 2), entry(Op::Delete, 3, 0), entry(Op::Update, 1, 4)],
        };
        let mut page = vec![0xee; 128];
        segment.encode(&mut page);
        assert_eq!(&page[..8], b"Tree\x04\x02\x03\0");
        assert_eq!((page[HEADER + 16], page[HEADER + 33]), (b'i', b'd'));
        let decode = |page: &[u8], leaf, number| Segment::decode(page, "f", 0, NodeId(leaf), number);
        assert_eq!(decode(&page, 5, 2).unwrap(), Some(segment));
        assert!(decode(&page, 5, 1).is_err() && decode(&page, 4, 2).is_err());
        assert_eq!(decode(&[0; 128], 5, 2).unwrap(), None);
        page[HEADER + 100 - HEADER] ^= 1;
        assert!(decode(&page, 5, 2).is_err());
        assert_eq!(per_segment(4096), 239);
    }

    #[test]
    fn the_last_operation_on_a_key_counts() {
        let entries = [
            entry(Op::Insert, 7, 1),
            entry(Op::Insert, 3, 1),
            entry(Op::Delete, 7, 0),
            entry(Op::Update, 3, 2),
            entry(Op::Insert, 9, 1),
            entry(Op::Delete, 9, 0),
            entry(Op::Insert, 9, 5),
        ];
        assert_eq!(replay(entries), [(3, 2), (9, 5)]);
    }
}
