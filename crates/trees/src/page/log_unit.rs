//! Log units: what trees with in-page logging write behind the data of a flash block, a flash page or a part of one each.
//!
//! ```text
//! header of a page (kind 42, level = which unit of its group, count = records, id = logical block, sequence = number of the
//!                   unit, extra = units of the group | bytes of records << 16), then records:
//! offset size
//!      0    1  type
//!      1    1  slot: the node, as its block numbers it
//!      2       1 put     8 key  8 value, or 8 fence  8 child
//!              2 remove  8 key
//!              3 split   8 key  4 id of the new node  1 its slot
//!              4 merge   8 fence  1 slot of the node that is taken in
//!              5 create  8 lowest key  4 id  1 level  4 first child
//!              6 cut     8 first key that is not the node's any more
//!              7 drop
//! ```
//! Little-endian. Records have no sequence numbers of their own: units of a block are written in order, and a node's records
//! are, too, so that the order in the block is the order in which things happened.
//!
//! Invariants:
//! 1. A group of units is believed whole or not at all; its units follow one another in one block.
//! 2. What is decoded fits its unit to the last byte; anything else is an error.

use super::header::{HEADER, Header, Kind, bytes_at, open, seal};
use super::{Key, NodeId};
use crate::{Error, Result};

/// A change of one node. What is put is a record of a leaf, or a fence and the child to the right of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Put { slot: u8, key: Key, word: u64 },
    Remove { slot: u8, key: Key },
    Split { slot: u8, key: Key, id: NodeId, new: u8 },
    Merge { slot: u8, fence: Key, taken: u8 },
    Create { slot: u8, low: Key, id: NodeId, level: u8, first: NodeId },
    Cut { slot: u8, key: Key },
    Drop { slot: u8 },
}

/// Bytes of the longest record.
pub(crate) const RECORD_MAX: usize = 19;

impl Record {
    /// Bytes that it takes.
    pub fn len(&self) -> usize {
        2 + match self {
            Self::Put { .. } => 16,
            Self::Remove { .. } | Self::Cut { .. } => 8,
            Self::Split { .. } => 13,
            Self::Merge { .. } => 9,
            Self::Create { .. } => 17,
            Self::Drop { .. } => 0,
        }
    }

    /// The node that is changed, and the other one that takes part.
    pub fn slots(&self) -> (u8, Option<u8>) {
        match *self {
            Self::Split { slot, new, .. } => (slot, Some(new)),
            Self::Merge { slot, taken, .. } => (slot, Some(taken)),
            Self::Put { slot, .. }
            | Self::Remove { slot, .. }
            | Self::Create { slot, .. }
            | Self::Cut { slot, .. }
            | Self::Drop { slot } => (slot, None),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let mut put = |number: u8, slot: u8, key: &[u8], rest: &[u8]| {
            out.extend_from_slice(&[number, slot]);
            out.extend_from_slice(key);
            out.extend_from_slice(rest);
        };
        let short = |id: NodeId| (id.0 as u32).to_le_bytes();
        match *self {
            Self::Put { slot, key, word } => put(1, slot, &key.to_le_bytes(), &word.to_le_bytes()),
            Self::Remove { slot, key } => put(2, slot, &key.to_le_bytes(), &[]),
            Self::Split { slot, key, id, new } => {
                let [a, b, c, d] = short(id);
                put(3, slot, &key.to_le_bytes(), &[a, b, c, d, new]);
            }
            Self::Merge { slot, fence, taken } => put(4, slot, &fence.to_le_bytes(), &[taken]),
            Self::Create { slot, low, id, level, first } => {
                let ([a, b, c, d], [e, f, g, h]) = (short(id), short(first));
                put(5, slot, &low.to_le_bytes(), &[a, b, c, d, level, e, f, g, h]);
            }
            Self::Cut { slot, key } => put(6, slot, &key.to_le_bytes(), &[]),
            Self::Drop { slot } => put(7, slot, &[], &[]),
        }
    }

    /// The record at the beginning of `bytes`, if there is a whole one.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (number, slot) = (*bytes.first()?, *bytes.get(1)?);
        let word = |at: usize| bytes.get(at..at + 8).map(|_| u64::from_le_bytes(bytes_at(bytes, at)));
        let short = |at: usize| {
            let there = bytes.get(at..at + 4);
            there.map(|_| NodeId(u64::from(u32::from_le_bytes(bytes_at(bytes, at)))))
        };
        let byte = |at: usize| bytes.get(at).copied();
        Some(match number {
            1 => Self::Put { slot, key: word(2)?, word: word(10)? },
            2 => Self::Remove { slot, key: word(2)? },
            3 => Self::Split { slot, key: word(2)?, id: short(10)?, new: byte(14)? },
            4 => Self::Merge { slot, fence: word(2)?, taken: byte(10)? },
            5 => Self::Create { slot, low: word(2)?, id: short(10)?, level: byte(14)?, first: short(15)? },
            6 => Self::Cut { slot, key: word(2)? },
            7 => Self::Drop { slot },
            _ => return None,
        })
    }
}

/// A unit as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogUnit {
    pub sequence: u64,
    /// Which of its group it is, from 0 on.
    pub member: u8,
    /// Units of the group.
    pub members: u8,
    pub records: Vec<Record>,
}

/// Bytes of records that a unit of `unit_len` bytes holds.
pub(crate) const fn capacity(unit_len: usize) -> usize {
    unit_len - HEADER
}

/// Divides records among units, in order.
pub(crate) fn pack(records: &[Record], unit_len: usize) -> Vec<&[Record]> {
    let mut units = Vec::new();
    let (mut first, mut len) = (0, 0);
    for (at, record) in records.iter().enumerate() {
        if len + record.len() > capacity(unit_len) {
            units.push(&records[first..at]);
            (first, len) = (at, 0);
        }
        len += record.len();
    }
    if first < records.len() {
        units.push(&records[first..]);
    }
    units
}

/// Fills a unit. The records must fit.
pub(crate) fn encode(records: &[Record], block: u32, sequence: u64, group: (u8, u8), unit: &mut [u8]) {
    let mut bytes = Vec::with_capacity(unit.len());
    records.iter().for_each(|record| record.encode(&mut bytes));
    unit[HEADER..].fill(0xff);
    unit[HEADER..HEADER + bytes.len()].copy_from_slice(&bytes);
    let (member, members) = group;
    let extra = u32::from(members) | (bytes.len() as u32) << 16;
    let (count, id) = (records.len() as u16, NodeId(u64::from(block)));
    seal(unit, &Header { kind: Kind::FlashLog, level: member, count, id, sequence, extra });
}

/// Takes a unit of logical block `block` off what was read from `offset` of `place`.
pub(crate) fn decode(unit: &[u8], place: &str, offset: u64, block: u32) -> Result<LogUnit> {
    let header = open(unit, place, offset, NodeId(u64::from(block)))?;
    if header.kind != Kind::FlashLog {
        let found = format!("{:?}", header.kind);
        return Err(Error::corrupt(place, offset, "kind of a page", "a log unit", found));
    }
    let wrong = |what: &str, found: u32| Error::corrupt(place, offset, what, "records that fit", found);
    let (member, members, len) = (header.level, header.extra as u8, header.extra >> 16);
    let mut rest = unit.get(HEADER..HEADER + len as usize).ok_or_else(|| wrong("bytes of records", len))?;
    let mut records = Vec::with_capacity(usize::from(header.count).min(unit.len()));
    for _ in 0..header.count {
        let record =
            Record::decode(rest).ok_or_else(|| wrong("a record of a log unit", header.count.into()))?;
        rest = &rest[record.len()..];
        records.push(record);
    }
    if !rest.is_empty() || members == 0 || member >= members {
        return Err(wrong("shape of a log unit", header.extra));
    }
    Ok(LogUnit { sequence: header.sequence, member, members, records })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> Vec<Record> {
        let (slot, key, id) = (3, u64::MAX - 5, NodeId(77));
        vec![
            Record::Put { slot, key, word: 1 },
            Record::Remove { slot, key },
            Record::Split { slot, key, id, new: 9 },
            Record::Merge { slot, fence: key, taken: 200 },
            Record::Create { slot, low: key, id, level: 2, first: NodeId(u64::from(u32::MAX)) },
            Record::Cut { slot, key },
            Record::Drop { slot },
        ]
    }

    #[test]
    fn what_is_written_is_read_again() {
        let records = all();
        assert!(records.iter().all(|record| record.len() <= RECORD_MAX));
        let mut unit = vec![0; 512];
        encode(&records, 5, 9, (1, 3), &mut unit);
        let found = decode(&unit, "f", 0, 5).unwrap();
        assert_eq!(found, LogUnit { sequence: 9, member: 1, members: 3, records });
        assert!(decode(&unit, "f", 0, 6).is_err(), "of another block");
    }

    #[test]
    fn a_unit_of_512_bytes_holds_26_insertions_and_one_of_2_kib_112() {
        let many = vec![Record::Put { slot: 1, key: 1, word: 1 }; 255];
        let lens = |len| pack(&many, len).iter().map(|unit| unit.len()).collect::<Vec<_>>();
        assert_eq!(lens(512), [26, 26, 26, 26, 26, 26, 26, 26, 26, 21]);
        assert_eq!(lens(2048), [112, 112, 31]);
        assert!(pack(&[], 512).is_empty());
    }

    proptest! {
        /// Behind a sound checksum, too, anything is decoded or refused.
        #[test]
        fn any_unit_is_decoded_or_refused(
            count in 0u16..9, extra: u32, body in prop::collection::vec(0u8..9, 96),
        ) {
            let mut unit = vec![0; HEADER];
            unit.extend(body);
            let extra = extra % (100 << 16);
            seal(&mut unit, &Header { kind: Kind::FlashLog, level: 0, count, id: NodeId(1), sequence: 0, extra });
            let _ = decode(&unit, "f", 0, 1);
        }
    }
}
