//! A page of a sorted run: records, filters that hide records of older runs, and fences into the next run.
//!
//! ```text
//! body: n = count of the header
//!  offset  size
//!       0  16 n  key, word: the value of a record, the page of a fence, 0 for a filter
//!    16 n   n/4  kinds, two bits each, the first in the lowest bits; rounded up to bytes
//! ```
//! The header's id is the number of the page in its file, its sequence the number of the run.
//!
//! Invariants:
//! 1. Entries ascend by key; of one key, fences come first, and there is one record or filter at most.
//! 2. What is decoded obeys 1; anything else is an error.
//!
//! (Li, He, Yang, Luo and Yi, "Tree Indexing on Solid State Drives", VLDB 2010.)

use super::header::{HEADER, Header, Kind, bytes_at, open, seal};
use super::{Change, Key, NodeId};
use crate::{Error, Result};

/// What an entry is. Numbers are on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum EntryKind {
    /// Where the keys from here on continue in the next run: its key is the first one of that page.
    External = 0,
    /// Repeats the last external fence, so that a page begins with a fence.
    Internal = 1,
    Record = 2,
    /// The key was deleted.
    Filter = 3,
}

/// An entry of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub key: Key,
    pub kind: EntryKind,
    pub word: u64,
}

impl Entry {
    pub fn of(key: Key, change: Change) -> Self {
        match change {
            Change::Put(value) => Self { key, kind: EntryKind::Record, word: value },
            Change::Remove => Self { key, kind: EntryKind::Filter, word: 0 },
        }
    }

    /// A fence to page `page` of the next run.
    pub fn fence(key: Key, page: u64) -> Self {
        Self { key, kind: EntryKind::External, word: page }
    }

    pub fn is_fence(&self) -> bool {
        matches!(self.kind, EntryKind::External | EntryKind::Internal)
    }

    /// What it does to its key; nothing if it is a fence.
    pub fn change(&self) -> Option<Change> {
        match self.kind {
            EntryKind::Record => Some(Change::Put(self.word)),
            EntryKind::Filter => Some(Change::Remove),
            EntryKind::External | EntryKind::Internal => None,
        }
    }
}

/// Most entries that fit on a page.
pub(crate) fn entries_max(page_len: usize) -> usize {
    // 16 bytes and a quarter each.
    (page_len - HEADER) * 4 / 65
}

/// Whether the first of `count` entries of a page is a fence.
pub(super) fn begins_with_fence(page: &[u8], count: usize) -> bool {
    let kind = page.get(HEADER + 16 * count).map(|kinds| kinds & 3);
    kind.is_some_and(|kind| kind == EntryKind::External as u8 || kind == EntryKind::Internal as u8)
}

/// A page of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunPage {
    pub entries: Vec<Entry>,
}

impl RunPage {
    /// What the page knows of a key: a change, or the page of the next run where to go on.
    pub fn find(&self, key: Key) -> (Option<Change>, Option<u64>) {
        let end = self.entries.partition_point(|entry| entry.key <= key);
        let found = self.entries[..end].last().filter(|last| last.key == key).and_then(Entry::change);
        let fence = self.entries[..end].iter().rfind(|entry| entry.is_fence()).map(|fence| fence.word);
        (found, fence)
    }

    pub fn encode(entries: &[Entry], id: NodeId, sequence: u64, page: &mut [u8]) {
        page[HEADER..].fill(0);
        let kinds_at = HEADER + 16 * entries.len();
        for (index, entry) in entries.iter().enumerate() {
            let at = HEADER + 16 * index;
            page[at..at + 8].copy_from_slice(&entry.key.to_le_bytes());
            page[at + 8..at + 16].copy_from_slice(&entry.word.to_le_bytes());
            page[kinds_at + index / 4] |= (entry.kind as u8) << (2 * (index % 4));
        }
        let count = entries.len() as u16;
        seal(page, &Header { kind: Kind::Run, level: 0, count, id, sequence, extra: 0 });
    }

    /// Takes the entries off a page that was read from `offset` of `file`, for run `sequence`.
    pub fn decode(page: &[u8], file: &str, offset: u64, id: NodeId, sequence: u64) -> Result<Self> {
        let header = open(page, file, offset, id)?;
        let wrong = |what: &str, expected: String, found: String| {
            Err(Error::corrupt(file, offset, what, expected, found))
        };
        if header.kind != Kind::Run || header.sequence != sequence {
            return wrong(
                "page of a run",
                format!("a page of run {sequence}"),
                format!("{:?} of run {}", header.kind, header.sequence),
            );
        }
        let count = usize::from(header.count);
        if count == 0 || count > entries_max(page.len()) {
            return wrong(
                "entries of a page",
                format!("1 to {}", entries_max(page.len())),
                count.to_string(),
            );
        }
        let kinds_at = HEADER + 16 * count;
        let entries: Vec<Entry> = (0..count)
            .map(|index| {
                let at = HEADER + 16 * index;
                let kind = match page[kinds_at + index / 4] >> (2 * (index % 4)) & 3 {
                    0 => EntryKind::External,
                    1 => EntryKind::Internal,
                    2 => EntryKind::Record,
                    _ => EntryKind::Filter,
                };
                let [key, word] = [at, at + 8].map(|at| u64::from_le_bytes(bytes_at(page, at)));
                Entry { key, kind, word }
            })
            .collect();
        let ordered = |one: &Entry, two: &Entry| {
            one.key < two.key || (one.key == two.key && one.is_fence() && !two.is_fence())
        };
        if !entries.is_sorted_by(ordered) {
            return wrong("order of a page", "ascending entries".to_owned(), "others".to_owned());
        }
        Ok(Self { entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Entry> {
        (0..entries_max(512) as u64)
            .map(|index| match index % 4 {
                0 => Entry::fence(10 * index, index),
                1 => Entry { key: 10 * index, kind: EntryKind::Internal, word: 9 },
                2 => Entry::of(10 * index, Change::Put(index)),
                _ => Entry::of(10 * index, Change::Remove),
            })
            .collect()
    }

    #[test]
    fn a_page_of_4_kib_holds_250_entries() {
        assert_eq!(entries_max(4096), 250);
        let entries = sample();
        let mut page = vec![0xff; 512];
        RunPage::encode(&entries, NodeId(7), 5, &mut page);
        let decode = |run| RunPage::decode(&page, "f", 0, NodeId(7), run);
        assert_eq!(decode(5).unwrap().entries, entries);
        assert!(decode(4).is_err());
    }

    #[test]
    fn disorder_is_refused() {
        for (one, two) in [
            (Entry::of(5, Change::Remove), Entry::of(5, Change::Put(1))),
            (Entry::of(5, Change::Remove), Entry::fence(5, 1)),
            (Entry::of(6, Change::Remove), Entry::of(5, Change::Remove)),
        ] {
            let mut page = vec![0; 512];
            RunPage::encode(&[one, two], NodeId(7), 5, &mut page);
            assert!(RunPage::decode(&page, "f", 0, NodeId(7), 5).is_err());
        }
    }

    #[test]
    fn a_key_is_found_behind_its_fence() {
        let entries = vec![
            Entry::fence(0, 3),
            Entry::of(4, Change::Remove),
            Entry::fence(6, 4),
            Entry::of(6, Change::Put(1)),
        ];
        let page = RunPage { entries };
        assert_eq!(page.find(3), (None, Some(3)));
        assert_eq!(page.find(4), (Some(Change::Remove), Some(3)));
        assert_eq!(page.find(6), (Some(Change::Put(1)), Some(4)));
        assert_eq!(page.find(9), (None, Some(4)));
    }
}
