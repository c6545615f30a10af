//! Undo of a batch update that was cut off (VLDB 2011, section 3.4): its pages become what they were, by sets of PioMax.
//!
//! ```text
//! records, newest first ─▶ rounds: no page twice in one ─▶ sets ─▶ read what was appended to ─▶ write all
//! ```
//! Invariants:
//! 1. Of two records of a page the older one is applied later, so that it counts; nearly always there is one round.
//! 2. Doing it twice does no harm, nor does doing a part of it once more.

use super::flush_log::{LogRecord, entry, page_crc};
use super::{LEAVES, PioOptions};
use crate::page::NodeId;
use crate::page::header::{HEADER, bytes_at};
use crate::page::leaf_segments::{ENTRY, Entry, Segment};
use crate::page::node::{Inner, Node};
use crate::store::in_place::InPlaceStore;
use crate::store::leaf_extents::LeafExtents;
use crate::{Error, Result};
use std::collections::HashMap;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Page {
    Inner(u64),
    /// Of a leaf, and which segment.
    Segment(u64, usize),
}

impl Page {
    fn of(record: &LogRecord) -> Option<Self> {
        match record {
            LogRecord::UndoInner { id, .. } => Some(Self::Inner(*id)),
            LogRecord::UndoSegment { leaf, number, .. }
            | LogRecord::UndoAppend { leaf, number, .. }
            | LogRecord::UndoUnused { leaf, number } => Some(Self::Segment(*leaf, *number)),
            LogRecord::Redo { .. }
            | LogRecord::FlushStart { .. }
            | LogRecord::FlushEnd { .. }
            | LogRecord::Commit { .. }
            | LogRecord::Abort { .. } => None,
        }
    }
}

/// Records of which no two are about the same page: of inner nodes, and of leaves.
#[derive(Debug, Default)]
struct Round<'a> {
    inner: Vec<&'a LogRecord>,
    leaves: Vec<&'a LogRecord>,
}

/// Puts back what the unfinished batch has overwritten: `records` are its undo records, oldest first.
pub(super) fn undo(
    inner: &InPlaceStore,
    leaves: &LeafExtents,
    records: &[LogRecord],
    options: &PioOptions,
) -> Result<()> {
    for round in rounds(records) {
        for set in round.inner.chunks(options.pio_max) {
            undo_inner(inner, set)?;
        }
        for set in round.leaves.chunks(options.pio_max) {
            undo_leaves(leaves, set, options.page_len)?;
        }
    }
    if !records.is_empty() {
        inner.sync_pages()?;
        leaves.sync()?;
    }
    Ok(())
}

/// The n-th record of a page, from the newest on, is in the n-th round.
fn rounds(records: &[LogRecord]) -> Vec<Round<'_>> {
    let mut rounds: Vec<Round<'_>> = Vec::new();
    let mut seen: HashMap<Page, usize> = HashMap::new();
    for record in records.iter().rev() {
        let Some(page) = Page::of(record) else { continue };
        let times = seen.entry(page).or_default();
        if *times == rounds.len() {
            rounds.push(Round::default());
        }
        match page {
            Page::Inner(_) => rounds[*times].inner.push(record),
            Page::Segment(..) => rounds[*times].leaves.push(record),
        }
        *times += 1;
    }
    rounds
}

/// Inner nodes, with one write.
fn undo_inner(store: &InPlaceStore, records: &[&LogRecord]) -> Result<()> {
    let nodes: Vec<(NodeId, Node)> = records
        .iter()
        .filter_map(|record| match record {
            LogRecord::UndoInner { id, level, fences, children } => {
                let children = children.iter().copied().map(NodeId).collect();
                let inner = Inner { level: *level, fences: fences.clone(), children };
                Some((NodeId(*id), Node::Inner(inner)))
            }
            _ => None,
        })
        .collect();
    store.write_pages(nodes.iter().map(|(id, node)| (*id, node)))
}

/// Segments, with one read of those that were appended to, and one write of all.
fn undo_leaves(leaves: &LeafExtents, records: &[&LogRecord], page_len: usize) -> Result<()> {
    let appended: Vec<(NodeId, usize)> = records
        .iter()
        .filter_map(|record| match record {
            LogRecord::UndoAppend { leaf, number, .. } => Some((NodeId(*leaf), *number)),
            _ => None,
        })
        .collect();
    let mut pages =
        if appended.is_empty() { Vec::new() } else { leaves.read_raw_segments(&appended)? }.into_iter();
    let (mut segments, mut unused) = (Vec::new(), Vec::new());
    for record in records {
        match record {
            LogRecord::UndoSegment { leaf, number, version, sequence, entries } => {
                let entries =
                    entries.iter().map(|(key, value, op)| entry(*key, *value, *op)).collect::<Result<_>>()?;
                let (leaf, number, version, sequence) = (NodeId(*leaf), *number, *version, *sequence);
                segments.push(Segment { leaf, number, version, sequence, entries });
            }
            LogRecord::UndoAppend { leaf, number, version, sequence, count, crc } => {
                let page = pages.next().ok_or_else(|| Error::broken("a page that was read is missing"))?;
                let (leaf, number, version, sequence) = (NodeId(*leaf), *number, *version, *sequence);
                // However torn the page is: entries are only ever added behind these, so these bytes are the same in the
                // old page and in the new one.
                let entries = first_entries(&page, *count)?;
                let segment = Segment { leaf, number, version, sequence, entries };
                let found = page_crc(&segment, page_len);
                if found != *crc {
                    let what =
                        format!("segment {number} of leaf {leaf}, which a batch update was appending to");
                    let (expected, found) = (format!("{crc:08x}"), format!("{found:08x}"));
                    return Err(Error::corrupt(LEAVES, 0, what, expected, found));
                }
                segments.push(segment);
            }
            LogRecord::UndoUnused { leaf, number } => unused.push((NodeId(*leaf), *number)),
            _ => {}
        }
    }
    // Neighbours go in one request.
    segments.sort_unstable_by_key(|segment| (segment.leaf.0, segment.number));
    leaves.put_back(&segments, &unused)
}

fn first_entries(page: &[u8], count: usize) -> Result<Vec<Entry>> {
    let entries = page.get(HEADER..).unwrap_or_default().chunks_exact(ENTRY).take(count);
    entries
        .map(|bytes| {
            let word = |at: usize| u64::from_le_bytes(bytes_at(bytes, at));
            entry(word(0), word(8), bytes[16])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::INNER;
    use super::*;
    use crate::page::leaf_segments::Op;
    use psync::{Counters, Device, Simulated};
    use std::sync::Arc;

    const PAGE: usize = 4096;
    /// Leaves of the batch, more than go into one set.
    const BATCH: u64 = 100;
    const PIO_MAX: usize = 64;

    fn segment(leaf: u64, number: usize, keys: std::ops::Range<u64>) -> Segment {
        let entries = keys.map(|key| Entry { key, value: leaf, op: Op::Insert }).collect();
        Segment { leaf: NodeId(leaf), number, version: 1, sequence: 5, entries }
    }

    fn append(old: &Segment) -> LogRecord {
        LogRecord::UndoAppend {
            leaf: old.leaf.0,
            number: old.number,
            version: old.version,
            sequence: old.sequence,
            count: old.entries.len(),
            crc: page_crc(old, PAGE),
        }
    }

    fn whole(old: &Segment) -> LogRecord {
        let entries = old.entries.iter().map(|entry| (entry.key, entry.value, entry.op as u8)).collect();
        let Segment { leaf, number, version, sequence, .. } = *old;
        LogRecord::UndoSegment { leaf: leaf.0, number, version, sequence, entries }
    }

    /// Undoes records of leaves that hold `now`; the first segments of the leaves afterwards, and what it took.
    fn undone(now: &[Segment], records: &[LogRecord]) -> (Vec<Segment>, Counters) {
        let volume = Simulated::new(1).with_alignment(PAGE).with_pio_max(PIO_MAX);
        let inner = InPlaceStore::create(Arc::new(volume.clone()), INNER, PAGE).unwrap();
        let mut leaves = LeafExtents::open(Arc::new(volume.clone()), LEAVES, PAGE, 2, true).unwrap();
        leaves.set_next(BATCH);
        leaves.write_segments(now).unwrap();
        let options = PioOptions { page_len: PAGE, pio_max: PIO_MAX, ..PioOptions::default() };
        let before = volume.counters();
        undo(&inner, &leaves, records, &options).unwrap();
        let took = volume.counters() - before;
        undo(&inner, &leaves, records, &options).unwrap();
        let firsts: Vec<_> = (0..BATCH).map(|leaf| (NodeId(leaf), 0)).collect();
        (leaves.read_tails(&firsts, &[]).unwrap().0, took)
    }

    #[test]
    fn a_batch_is_undone_by_sets_of_pio_max() {
        let old: Vec<_> = (0..BATCH).map(|leaf| segment(leaf, 0, 10 * leaf..10 * leaf + 3)).collect();
        let new: Vec<_> = (0..BATCH).map(|leaf| segment(leaf, 0, 10 * leaf..10 * leaf + 7)).collect();
        let records: Vec<_> = old.iter().map(append).collect();
        let (found, took) = undone(&new, &records);
        assert_eq!(found, old);
        assert_eq!((took.reads, took.read_sets, took.write_sets), (BATCH, 2, 2), "two sets of 64 and 36");
    }

    #[test]
    fn of_two_records_of_a_page_the_older_one_counts() {
        let mut now: Vec<_> = (0..BATCH).map(|leaf| segment(leaf, 0, 0..1)).collect();
        let (oldest, between) = (segment(7, 0, 100..103), segment(7, 0, 100..105));
        now[7] = segment(7, 0, 500..509);
        // The page was appended to, then written anew: what the older record reads is what the newer one has put back.
        let (found, took) = undone(&now, &[append(&oldest), whole(&between)]);
        assert_eq!(found[7], oldest);
        assert_eq!((took.read_sets, took.write_sets), (1, 2), "two rounds");
        let records = [whole(&oldest), whole(&between)];
        assert_eq!(undone(&now, &records).0[7], oldest);
    }

    #[test]
    fn what_did_not_count_becomes_what_was_never_written() {
        let now: Vec<_> =
            (0..BATCH).flat_map(|leaf| [segment(leaf, 0, 0..1), segment(leaf, 1, 1..2)]).collect();
        let records: Vec<_> = (0..BATCH).map(|leaf| LogRecord::UndoUnused { leaf, number: 1 }).collect();
        let volume = Simulated::new(1).with_alignment(PAGE).with_pio_max(PIO_MAX);
        let inner = InPlaceStore::create(Arc::new(volume.clone()), INNER, PAGE).unwrap();
        let mut leaves = LeafExtents::open(Arc::new(volume.clone()), LEAVES, PAGE, 2, true).unwrap();
        leaves.set_next(BATCH);
        leaves.write_segments(&now).unwrap();
        let before = volume.counters();
        let options = PioOptions { page_len: PAGE, pio_max: PIO_MAX, ..PioOptions::default() };
        undo(&inner, &leaves, &records, &options).unwrap();
        let took = volume.counters() - before;
        assert_eq!((took.read_sets, took.write_sets, took.writes), (0, 2, BATCH));
        let all: Vec<_> = (0..BATCH).map(NodeId).collect();
        assert!(leaves.read_leaves(&all).unwrap().iter().all(|leaf| leaf.entries.len() == 1));
    }
}
