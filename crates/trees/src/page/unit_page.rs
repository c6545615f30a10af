//! A page of index units: single changes of nodes, of many nodes together.
//!
//! ```text
//! body, per unit
//! offset size
//!      0    1  what
//!      1    8  node
//!      9    8  key or fence
//!     17    8  value, child, level or next leaf
//! ```
//! The header's id is the number of the page, its count that of the units; its sequence tells pages written one after the
//! other apart.

use super::header::{HEADER, Header, Kind, bytes_at, open, seal};
use super::{Change, Key, NodeId, Value};
use crate::{Error, Result};

const UNIT: usize = 25;

/// What a unit does to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The node is empty now, and stands on this level.
    Begin(u8),
    /// The key has this value.
    Put(Value),
    /// The key is gone.
    Remove,
    /// This leaf follows.
    Next(Option<NodeId>),
    /// The child below all fences.
    First(NodeId),
    /// The child from the fence `key` on.
    Child(NodeId),
    /// The fence `key` and its child are gone.
    RemoveChild,
}

/// One change of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub node: NodeId,
    /// 0 where it has no meaning.
    pub key: Key,
    pub what: What,
}

impl Unit {
    /// What an update does to a key of the node.
    pub fn of(node: NodeId, key: Key, change: Change) -> Self {
        let what = match change {
            Change::Put(value) => What::Put(value),
            Change::Remove => What::Remove,
        };
        Self { node, key, what }
    }

    /// Its key and what becomes of it, if it is an update.
    pub fn change(&self) -> Option<(Key, Change)> {
        match self.what {
            What::Put(value) => Some((self.key, Change::Put(value))),
            What::Remove => Some((self.key, Change::Remove)),
            _ => None,
        }
    }
}

/// Units that fit on a page.
pub(crate) fn units_max(page_len: usize) -> usize {
    (page_len - HEADER) / UNIT
}

/// Fills page `id`. The units must fit: see [`units_max`].
pub(crate) fn encode(units: &[Unit], id: NodeId, sequence: u64, page: &mut [u8]) {
    page[HEADER..].fill(0);
    for (at, unit) in (HEADER..).step_by(UNIT).zip(units) {
        let (what, word) = match unit.what {
            What::Begin(level) => (1, u64::from(level)),
            What::Put(value) => (2, value),
            What::Remove => (3, 0),
            What::Next(next) => (4, next.map_or(0, |next| next.0)),
            What::First(child) => (5, child.0),
            What::Child(child) => (6, child.0),
            What::RemoveChild => (7, 0),
        };
        page[at] = what;
        for (at, word) in [(at + 1, unit.node.0), (at + 9, unit.key), (at + 17, word)] {
            page[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
    let count = units.len() as u16;
    seal(page, &Header { kind: Kind::Units, level: 0, count, id, sequence, extra: 0 });
}

/// Takes the units and the sequence number off a page that was read from `offset` of `file`.
pub(crate) fn decode(page: &[u8], file: &str, offset: u64, id: NodeId) -> Result<(Vec<Unit>, u64)> {
    let header = open(page, file, offset, id)?;
    let count = usize::from(header.count);
    if header.kind != Kind::Units || count > units_max(page.len()) {
        let expected = format!("at most {} units", units_max(page.len()));
        let found = format!("{:?} with {count}", header.kind);
        return Err(Error::corrupt(file, offset, "page of units", expected, found));
    }
    let units = page[HEADER..].chunks_exact(UNIT).take(count).map(|bytes| {
        let [node, key, word] = [1, 9, 17].map(|at| u64::from_le_bytes(bytes_at(bytes, at)));
        let wrong = |expected: &str| {
            Error::corrupt(file, offset, "index unit", expected, format!("{} with {word}", bytes[0]))
        };
        let what = match bytes[0] {
            1 => What::Begin(u8::try_from(word).map_err(|_| wrong("a level below 256"))?),
            2 => What::Put(word),
            3 => What::Remove,
            4 => What::Next(Some(NodeId(word)).filter(|next| next.0 != 0)),
            5 => What::First(NodeId(word)),
            6 => What::Child(NodeId(word)),
            7 => What::RemoveChild,
            _ => return Err(wrong("a known kind")),
        };
        Ok(Unit { node: NodeId(node), key, what })
    });
    Ok((units.collect::<Result<_>>()?, header.sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_come_back_and_unknown_ones_are_refused() {
        let whats = [
            What::Begin(2),
            What::Put(u64::MAX),
            What::Remove,
            What::Next(None),
            What::Next(Some(NodeId(5))),
            What::First(NodeId(6)),
            What::Child(NodeId(7)),
            What::RemoveChild,
        ];
        let units: Vec<Unit> = (0..units_max(512))
            .map(|index| Unit { node: NodeId(3), key: index as u64, what: whats[index % whats.len()] })
            .collect();
        assert_eq!(units.len(), 19);
        let mut page = vec![0xff; 512];
        encode(&units, NodeId(9), 4, &mut page);
        assert_eq!(decode(&page, "f", 0, NodeId(9)).unwrap(), (units, 4));
        for (what, word) in [(0, 0), (8, 0), (1, 256u64)] {
            page[HEADER] = what;
            page[HEADER + 17..HEADER + 25].copy_from_slice(&word.to_le_bytes());
            seal(
                &mut page,
                &Header { kind: Kind::Units, level: 0, count: 19, id: NodeId(9), sequence: 4, extra: 0 },
            );
            assert!(matches!(decode(&page, "f", 0, NodeId(9)), Err(Error::Corrupt { .. })), "{what} {word}");
        }
    }
}
