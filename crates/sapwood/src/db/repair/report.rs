//! What a repair has saved and what it has not.
//!
//! Invariant: whatever is missing from the new database, or older there than in the damaged one, lies in a listed range. But what
//! nothing testifies to is not missed: a log or manifest that was cut off, or became zeros, right behind a record.

use crate::error::Error;
use crate::operation::KeyspaceId;
use std::collections::BTreeMap;

/// At most so many ranges of a keyspace are listed; then the last one becomes longer. Neighbours are one range, so there are as many
/// only where sound and damaged leaves take turns.
const RANGES_MAX: usize = 10_000;
/// At most so many places of damage are listed: those of a file of zeros would fill the memory.
const DAMAGE_MAX: usize = 1000;

/// What is known of the records in a range that a repair lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Records may be missing.
    Missing,
    /// Records may be missing, be as they once were, or be there although they were removed.
    Older,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Loss::Missing => "missing",
            Loss::Older => "older",
        })
    }
}

/// What is damaged, so that a range is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause {
    /// A leaf: its records are lost.
    Leaf,
    /// An inner node, and something below it.
    InnerNode,
    /// A piece of a block's log area: changes of records are lost.
    LogPiece,
    /// The log: commits are lost, which may have changed any record.
    Log,
    /// The manifest: which nodes belong to the trees is known of an older moment only.
    Manifest,
    /// The log or the manifest ends with what is no whole record: of a commit or an edit that was not finished when the process or
    /// the machine stopped, or of damage to the last one, which nothing testifies to.
    Unfinished,
    /// A chunk of a large value: the value is left out. Its chunks, of which some could be read, lie in the damaged database only.
    Chunk,
}

impl std::fmt::Display for LossCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            LossCause::Leaf => "a leaf is damaged",
            LossCause::InnerNode => "an inner node is damaged, and something below it",
            LossCause::LogPiece => "a log piece is damaged",
            LossCause::Log => "the log is damaged",
            LossCause::Manifest => "the manifest is damaged",
            LossCause::Unfinished => "the log or the manifest ends with what was not finished, or is damaged",
            LossCause::Chunk => "a chunk of the value is damaged",
        })
    }
}

/// A range of keys that a repair could not save, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostRange {
    /// The first key that may be lost; empty: from the first one of the keyspace.
    pub from: Vec<u8>,
    /// The first key behind it that is not lost; `None`: to the end of the keyspace.
    pub to: Option<Vec<u8>>,
    /// What is known of the records.
    pub loss: Loss,
    /// What is damaged.
    pub cause: LossCause,
}

impl LostRange {
    /// Whether this key is in the range.
    ///
    /// ```
    /// # fn first(range: &sapwood::repair::LostRange) -> bool {
    /// range.contains(b"fram")
    /// # }
    /// ```
    pub fn contains(&self, key: &[u8]) -> bool {
        self.from.as_slice() <= key && self.to.as_deref().is_none_or(|to| key < to)
    }

    /// Whether it is the whole keyspace.
    ///
    /// ```
    /// # fn first(range: &sapwood::repair::LostRange) -> bool {
    /// range.is_all() // its log or its manifest is damaged
    /// # }
    /// ```
    pub fn is_all(&self) -> bool {
        self.from.is_empty() && self.to.is_none()
    }
}

/// A keyspace of the new database.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairedKeyspace {
    /// Its name; `recovered-N` if no manifest tells it.
    pub name: String,
    /// Records in the trees of the new database (count); what the log has comes on top.
    pub records: u64,
    /// Bytes of the leaves of the new database.
    pub bytes: u64,
    /// What may be lost, in the order of keys. Ranges may overlap.
    pub lost: Vec<LostRange>,
}

/// What a repair did with the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairedLog {
    /// Records of the log in the new database (count). Each is a commit, or several.
    pub records: u64,
    /// Operations in them (count).
    pub operations: u64,
    /// Records that can be read, but lie behind the damage, and were left out (count): what they build on is not known.
    pub left_out: u64,
    /// Operations in them (count).
    pub operations_left_out: u64,
    /// Operations that could not be read, up to the last one that could (count).
    pub operations_unreadable: u64,
}

/// What a repair saved, and what is lost.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RepairReport {
    /// The keyspaces of the new database, with what is lost of each.
    pub keyspaces: Vec<RepairedKeyspace>,
    /// Whether there may have been keyspaces of which nothing is left, or whose names are lost: the manifest is damaged.
    pub may_lack_keyspaces: bool,
    /// What was done with the log.
    pub log: RepairedLog,
    /// Bytes behind the ends of log and manifest that are no whole records: see [`LossCause::Unfinished`].
    pub unfinished: u64,
    /// What was found to be damaged, at most a thousand places.
    pub damage: Vec<Error>,
    /// What else was, and is not listed (count of places).
    pub damage_left_out: u64,
    /// Bytes of nodes in the new database.
    pub bytes: u64,
}

impl RepairReport {
    /// Whether anything may be lost.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let (old, new) = (dir.path().join("ships.db"), dir.path().join("new.db"));
    /// # sapwood::Database::open(&old)?.close()?;
    /// let report = sapwood::repair::Repair::of(&old).into_directory(&new)?;
    /// assert!(!report.has_losses());
    /// # Ok(()) }
    /// ```
    pub fn has_losses(&self) -> bool {
        self.may_lack_keyspaces || self.keyspaces.iter().any(|keyspace| !keyspace.lost.is_empty())
    }

    /// The lists of a keyspace of this name that contain the key: why it may be lost.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let (old, new) = (dir.path().join("ships.db"), dir.path().join("new.db"));
    /// # sapwood::Database::open(&old)?.close()?;
    /// let report = sapwood::repair::Repair::of(&old).into_directory(&new)?;
    /// assert!(report.lost_of("ships", b"fram").next().is_none());
    /// # Ok(()) }
    /// ```
    pub fn lost_of<'r>(&'r self, keyspace: &'r str, key: &'r [u8]) -> impl Iterator<Item = &'r LostRange> {
        let of_name = self.keyspaces.iter().filter(move |one| one.name == keyspace);
        of_name.flat_map(|one| &one.lost).filter(move |range| range.contains(key))
    }
}

/// What is lost, as far as it is known.
#[derive(Default)]
pub(super) struct Losses {
    ranges: BTreeMap<KeyspaceId, Vec<LostRange>>,
    pub damage: Vec<Error>,
    /// Damage that is not listed (count of places).
    pub left_out: u64,
    /// That of a node that only this program cannot read: it is not lost.
    pub unsupported: Option<Error>,
}

impl Losses {
    /// Notes damage.
    pub fn note(&mut self, error: Error) {
        if error.is_unsupported() {
            self.unsupported.get_or_insert(error);
            return;
        }
        if self.damage.len() < DAMAGE_MAX {
            self.damage.push(error);
        } else {
            self.left_out += 1;
        }
    }

    /// Lists a range, unless it is empty.
    pub fn add(&mut self, id: KeyspaceId, (from, to): (&[u8], Option<&[u8]>), loss: Loss, cause: LossCause) {
        if to.is_some_and(|to| to <= from) {
            return;
        }
        let ranges = self.ranges.entry(id).or_default();
        let is_full = ranges.len() >= RANGES_MAX;
        if let Some(last) = ranges.last_mut() {
            let is_same = (last.loss, last.cause) == (loss, cause);
            let touches = last.from.as_slice() <= from && last.to.as_deref().is_none_or(|end| from <= end);
            if (is_same && touches) || is_full {
                last.from = std::mem::take(&mut last.from).min(from.to_vec());
                last.to = last.to.take().and_then(|end| Some(end.max(to?.to_vec())));
                if !is_same {
                    last.loss = Loss::Older;
                }
                return;
            }
        }
        ranges.push(LostRange { from: from.to_vec(), to: to.map(<[u8]>::to_vec), loss, cause });
    }

    /// The keys that lie in listed ranges.
    pub fn covered(&self) -> Covered {
        let mut covered = Covered::default();
        for (id, ranges) in &self.ranges {
            let mut ranges: Vec<_> =
                ranges.iter().map(|range| (range.from.clone(), range.to.clone())).collect();
            ranges.sort_unstable_by(|a, b| a.0.cmp(&b.0));
            let merged = covered.0.entry(*id).or_default();
            for (from, to) in ranges {
                match merged.last_mut() {
                    Some((_, None)) => {}
                    Some((_, Some(end))) if *end >= from => match to {
                        Some(to) => *end = to.max(std::mem::take(end)),
                        None => merged.last_mut().into_iter().for_each(|last| last.1 = None),
                    },
                    _ => merged.push((from, to)),
                }
            }
        }
        covered
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges of a keyspace, in the order of keys.
    pub fn take(&mut self, id: KeyspaceId) -> Vec<LostRange> {
        let mut ranges = self.ranges.remove(&id).unwrap_or_default();
        ranges.sort_by(|a, b| a.from.cmp(&b.from));
        ranges
    }
}

/// From a key up to another one, or to the end.
type Keys = (Vec<u8>, Option<Vec<u8>>);

/// Ranges of keys in which something may be lost, merged and in order.
#[derive(Default)]
pub(super) struct Covered(BTreeMap<KeyspaceId, Vec<Keys>>);

impl Covered {
    pub fn contains(&self, id: KeyspaceId, key: &[u8]) -> bool {
        let Some(ranges) = self.0.get(&id) else { return false };
        let next = ranges.partition_point(|(from, _)| from.as_slice() <= key);
        let last = next.checked_sub(1).and_then(|index| ranges.get(index));
        last.is_some_and(|(_, to)| to.as_deref().is_none_or(|to| key < to))
    }

    pub fn has(&self, id: KeyspaceId) -> bool {
        self.0.contains_key(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: KeyspaceId = KeyspaceId(1);

    proptest! {
        #[test]
        fn what_is_listed_is_covered_and_nothing_else(
            added in prop::collection::vec((0u8..30, prop::option::of(0u8..30), any::<bool>()), 0..12),
        ) {
            let mut losses = Losses::default();
            for (from, to, is_older) in &added {
                let loss = if *is_older { Loss::Older } else { Loss::Missing };
                let to = to.map(|to| [to]);
                losses.add(ONE, (&[*from], to.as_ref().map(|to| &to[..])), loss, LossCause::Leaf);
            }
            let covered = losses.covered();
            let ranges = losses.take(ONE);
            prop_assert!(ranges.is_sorted_by(|a, b| a.from <= b.from));
            for key in 0..31u8 {
                let is = added.iter().any(|(from, to, _)| *from <= key && to.is_none_or(|to| key < to));
                prop_assert_eq!(covered.contains(ONE, &[key]), is);
                prop_assert_eq!(ranges.iter().any(|range| range.contains(&[key])), is);
            }
            prop_assert!(!covered.contains(KeyspaceId(2), &[1]));
        }
    }

    #[test]
    fn a_list_that_is_full_has_longer_ranges() {
        let mut losses = Losses::default();
        for number in 0..3 * RANGES_MAX as u32 {
            let (from, to) = ((2 * number).to_be_bytes(), (2 * number + 1).to_be_bytes());
            losses.add(ONE, (&from, Some(&to)), Loss::Missing, LossCause::Leaf);
        }
        let ranges = losses.take(ONE);
        assert_eq!(ranges.len(), RANGES_MAX);
        let last = 6 * RANGES_MAX as u32 - 2;
        assert!(ranges.last().is_some_and(|range| range.contains(&last.to_be_bytes())));
    }
}
