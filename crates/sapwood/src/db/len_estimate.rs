//! Estimates how many records a keyspace or a range of it has, and how many bytes. The leaves' records are counted exactly;
//! of the changes in the queues and in log areas a sample is looked up beneath them, to find how many records each change
//! adds or takes away. Where a queue removes a range, what lies beneath it does not count: a sample of these ranges is
//! measured in the inner nodes.
//!
//! Invariants:
//! 1. At most [`PIECES`] log pieces are read, and a leaf for each sampled change; those of one kind go to the device
//!    together.
//! 2. The estimate is exact where all waiting changes are in the samples.

use crate::cache::pager::{Pager, ReadMode};
use crate::conflict::key_ranges::KeyRanges;
use crate::current_state::State;
use crate::error::Result;
use crate::even_sample::EvenSample;
use crate::operation::{KeyRange, KeyspaceId, SeqNo};
use crate::storage::node::PIECE;
use crate::tree::lookup::{multi_get, multi_get_in_leaves};
use crate::tree::range_size::{Ends, range_size};
use crate::tree::view::TreeView;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Log pieces in a sample (count): as many reads as a device needs to be busy.
const PIECES: usize = 64;
/// Changes that are looked up of each sampled piece (count): one of another piece would tell more than a ninth, which
/// is likely to resemble these.
const OF_A_PIECE: usize = 8;
/// Changes of a range in queues that are all looked up (count): as many as a queue's sample has of all keyspaces.
const FEW: usize = 256;
/// Chunks of a queue that are looked through for them (count): each copies 32 KiB of values, or one.
const CHUNKS: usize = 8;
/// Removed ranges that are measured (count).
const RANGES: usize = 64;

/// The newest change to a key in the place where it waits.
struct WaitingChange {
    key: Bytes,
    /// Whether it is no removal.
    is_value: bool,
    /// How many changes it stands for.
    weight: f64,
}

/// Is called with the index of each key that was found, and its value.
type Found<'f> = &'f mut dyn FnMut(usize, Bytes);

/// The number of records that the changes add to those beneath them, which `look_up` finds for keys in order.
fn added(
    mut waiting: Vec<WaitingChange>,
    look_up: impl FnOnce(&[&Bytes], Found<'_>) -> Result<()>,
) -> Result<f64> {
    waiting.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    waiting.dedup_by(|a, b| a.key == b.key);
    let mut exist = vec![false; waiting.len()];
    let keys: Vec<_> = waiting.iter().map(|change| &change.key).collect();
    look_up(&keys, &mut |index, _| exist[index] = true)?;
    let effect = |(change, exists): (&WaitingChange, &bool)| match (change.is_value, *exists) {
        (true, false) => change.weight,
        (false, true) => -change.weight,
        _ => 0.0,
    };
    Ok(waiting.iter().zip(&exist).map(effect).sum())
}

/// The estimated size of a range of keys.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let plain = sapwood::KeyspaceOptions::new().compression(sapwood::Compression::None);
/// # let ships = db.keyspace_with("ships", plain)?;
/// ships.ingest((0..1000u32).map(|number| (number.to_be_bytes(), [0; 100])))?;
/// let tenth = ships.range_estimate(300u32.to_be_bytes()..400u32.to_be_bytes())?;
/// assert!((95..105).contains(&tenth.records) && (9_500..12_500).contains(&tenth.bytes)); // fewer bytes if they compress
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeEstimate {
    /// Records.
    pub records: u64,
    /// Bytes that these records take in leaves on the device.
    pub bytes: u64,
}

/// The estimated size of a range.
pub(crate) fn range_estimate(pager: &Pager, state: &State, range: KeyRange<'_>) -> Result<RangeEstimate> {
    let view = TreeView { pager, version: &state.version, keyspace: range.keyspace };
    let in_leaves = range_size(view, range, Ends::CountedBySample)?;
    let left = (in_leaves.records - removed_with_ranges(view, state, range)?).max(0.0);
    let added = added_in_log_areas(view, state, range)? + added_in_queues(view, state, range)?;
    let records = (left + added).max(0.0);
    let of_a_record = if in_leaves.records >= 1.0 {
        in_leaves.bytes / in_leaves.records
    } else {
        let queues = || state.queues();
        let (bytes, count) = (queues().map(|queue| queue.bytes()), queues().map(|queue| queue.count()));
        bytes.sum::<u64>() as f64 / count.sum::<u64>().max(1) as f64
    };
    Ok(RangeEstimate { records: records.round() as u64, bytes: (records * of_a_record).round() as u64 })
}

/// The estimated number of records in `keyspace`.
pub(crate) fn len_estimate(pager: &Pager, state: &State, keyspace: KeyspaceId) -> Result<u64> {
    Ok(range_estimate(pager, state, KeyRange { keyspace, from: &[], to: None })?.records)
}

/// Whether a queue removes a range that has this key: what is beneath the queues does not count then.
fn is_removed(state: &State, keyspace: KeyspaceId, key: &[u8]) -> bool {
    state.queues().any(|queue| queue.range_removals().newest(keyspace, key, SeqNo::MAX).is_some())
}

/// The number of records in leaves that lie in this range and in one that queues remove.
fn removed_with_ranges(view: TreeView<'_>, state: &State, range: KeyRange<'_>) -> Result<f64> {
    if state.queues().all(|queue| queue.range_removals().is_empty()) {
        return Ok(0.0);
    }
    // Those of two queues may overlap.
    let mut all = KeyRanges::default();
    for (keyspace, from, to) in state.queues().flat_map(|queue| queue.range_removals().all()) {
        if keyspace == view.keyspace {
            let from = from.max(Bytes::copy_from_slice(range.from));
            let end = range.to.map(Bytes::copy_from_slice);
            all.add(from, to.into_iter().chain(end).min());
        }
    }
    let mut sample = EvenSample::<_, RANGES>::default();
    all.iter().for_each(|part| sample.see(|| part));
    let mut records = 0.0;
    for (from, to) in sample.kept() {
        let part = KeyRange { keyspace: view.keyspace, from, to: to.map(|to| &to[..]) };
        records += sample.weight() * range_size(view, part, Ends::Counted)?.records;
    }
    Ok(records)
}

/// All changes of the range that wait in queues, if they are few: in the samples there are fewer of them, or none, beside many others.
fn few_in_queues(state: &State, range: KeyRange<'_>) -> Option<Vec<WaitingChange>> {
    let mut few = BTreeMap::new();
    // The newest last: it counts.
    let (queues, mut chunks): (Vec<_>, _) = (state.queues().collect(), 0);
    for queue in queues.into_iter().rev() {
        few.retain(|key: &Bytes, _| queue.range_removals().newest(range.keyspace, key, SeqNo::MAX).is_none());
        let (mut from, mut has_more) = (Bound::Included(Bytes::copy_from_slice(range.from)), true);
        while has_more {
            let mut chunk = Vec::new();
            let at = from.as_ref().map(|from| &from[..]);
            has_more = queue.chunk(range.keyspace, at, SeqNo::MAX, FEW + 1, &mut chunk, None);
            let Some((last, _)) = chunk.last() else { break };
            from = Bound::Excluded(last.clone());
            has_more &= range.contains(range.keyspace, last);
            let within = chunk.into_iter().filter(|(key, _)| range.contains(range.keyspace, key));
            few.extend(within.map(|(key, change)| (key, change.is_some())));
            chunks += 1;
            if few.len() > FEW || (has_more && chunks >= CHUNKS) {
                return None;
            }
        }
    }
    Some(few.into_iter().map(|(key, is_value)| WaitingChange { key, is_value, weight: 1.0 }).collect())
}

fn added_in_queues(view: TreeView<'_>, state: &State, range: KeyRange<'_>) -> Result<f64> {
    let newest = |key: &[u8]| state.queues().find_map(|queue| queue.newest_seq(view.keyspace, key));
    // A key's older changes count for nothing: each change is in the sample with the same probability.
    let sampled = || {
        let sampled = state.queues().flat_map(|queue| queue.sample(view.keyspace));
        let counts = sampled.filter(|change| {
            range.contains(view.keyspace, &change.key) && newest(&change.key) == Some(change.seq)
        });
        let waiting = counts.map(|change| WaitingChange {
            key: change.key,
            is_value: change.is_value,
            weight: change.weight,
        });
        waiting.collect()
    };
    let waiting = few_in_queues(state, range).unwrap_or_else(sampled);
    added(waiting, |keys, found| {
        let mut beneath = |index: usize, value: Bytes| {
            if !is_removed(state, view.keyspace, keys[index]) {
                found(index, value);
            }
        };
        multi_get(view, None, keys, &mut beneath)
    })
}

fn added_in_log_areas(view: TreeView<'_>, state: &State, range: KeyRange<'_>) -> Result<f64> {
    let mut sample = EvenSample::<_, PIECES>::default();
    for (_, area) in view.version.logs.iter() {
        area.pieces().for_each(|piece| sample.see(|| (area, piece)));
    }
    let address = |id| view.version.table.address(id).map(|address| (id, address));
    let (areas, wanted): (Vec<_>, Vec<_>) =
        sample.kept().iter().filter_map(|(area, piece)| Some((*area, address(*piece)?))).unzip();
    // Nothing tells which keyspace a log area belongs to before a piece of it is read.
    let pieces = view.pager.fetch(&view.version.segments, &wanted, ReadMode::Runs)?;
    let mut waiting = Vec::new();
    for ((area, (id, _)), piece) in areas.into_iter().zip(&wanted).zip(&pieces) {
        if piece.name().keyspace != view.keyspace || piece.level() != PIECE {
            continue;
        }
        let mut changes = EvenSample::<usize, OF_A_PIECE>::default();
        (0..piece.count()).for_each(|index| changes.see(|| index));
        let weight = sample.weight() * changes.weight();
        let newest =
            |key: &[u8]| area.candidates(key).next() == Some(*id) && !is_removed(state, view.keyspace, key);
        let is_in_it = |key: &[u8]| range.contains(view.keyspace, key) && newest(key);
        let of_it = changes.kept().iter().filter(|index| is_in_it(piece.key(**index)));
        waiting.extend(of_it.map(|index| WaitingChange {
            key: Bytes::copy_from_slice(piece.key(*index)),
            is_value: piece.logged_value(*index).is_some(),
            weight,
        }));
    }
    added(waiting, |keys, found| multi_get_in_leaves(view, keys, found))
}
