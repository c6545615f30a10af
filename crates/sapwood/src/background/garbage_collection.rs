//! Garbage collection: bounds the used space by the live space, by copying the live nodes out of the segments
//! that have the smallest share of them. (The node validation manager of the AS B-tree, JISE 2014, section
//! 3.4.)
//!
//! Choosing and copying are separate: [`victims`] is a pure function.
//!
//! Two kinds of segments are [spared](Spared): what could not be read, and, within bounds, what snapshots hold. A copy
//! of the latter takes space and frees none until the snapshot goes.

use crate::error::Error;
use crate::storage::mapping_table::Address;
use crate::storage::node::NodeId;
use crate::storage::segment::SegmentUse;
use crate::version::Version;
use crate::version::builder::VersionBuilder;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Dead bytes allowed per hundred live ones when no thread writes: collection then delays no write, but writes the
/// live bytes around them again.
const AT_REST: u64 = 8;
/// Used bytes allowed per hundred bytes of leaves while writers wait, if that is more: where log areas are
/// short, dead nodes may take their room. Leaves that die one by one, as those of long records do, would
/// otherwise be copied many times.
const BESIDE_LEAVES: u64 = 121;
/// Fewer dead bytes than these are not worth a collection.
const SLACK: u64 = 2 << 20;
/// Dead bytes per hundred live ones that may be in segments that snapshots hold. There has to be a limit: there may be
/// an older snapshot at any time, each pinned for a short while.
const PINNED_PERCENT: u64 = 50;

/// The data file may be longer than its segments by this part (1/2) and by so many granules (4 MiB) before its end is
/// moved. The lowest place comes first then (`storage/slots.rs`). While a thread waits, by so many (48 MiB).
const LONGER: u32 = 2;
const LONGER_SLACK: u32 = 64;
const LONGER_BEARABLE: u32 = 768;

/// How urgent it is to collect dead space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GcUrgency {
    /// No writes come.
    AtRest,
    /// Flushes follow one another.
    AtWork,
    /// Other threads wait for the one that would collect.
    InAHurry,
}

/// A segment to choose from, and its used and live bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub segment: u64,
    pub used: u64,
    pub live: u64,
}

/// Bytes that the segments of a database may have in all, with so many live bytes, of which `logged` are log
/// pieces.
pub(crate) fn allowance(live: u64, logged: u64, urgency: GcUrgency) -> u64 {
    let dead = (live / 100 * AT_REST).max(SLACK);
    let beside_leaves = live.saturating_sub(logged) / 100 * BESIDE_LEAVES;
    // The cleansing cursor leaves segments behind that will die whole: an early collection copies nodes that were about
    // to die.
    match urgency {
        GcUrgency::AtRest => live + dead,
        GcUrgency::AtWork => live + 2 * dead,
        GcUrgency::InAHurry => (live + 2 * dead).max(beside_leaves),
    }
}

/// The allowance of a version.
pub(crate) fn allowance_of(version: &Version, urgency: GcUrgency) -> u64 {
    allowance(version.live_bytes(), version.logs.totals().bytes, urgency)
}

/// What the collector leaves alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spared {
    /// Segments with a node that could not be read. Copying what is left of them would free nothing.
    pub unreadable: BTreeSet<u64>,
    /// Whether to spare segments that older versions hold too.
    pub pinned: bool,
}

/// Bytes that a version has beyond its allowance, and the segments to empty for them; never the open one.
fn excess_among(version: &Version, urgency: GcUrgency, spared: &Spared) -> (u64, Vec<Candidate>) {
    let (mut free, mut pinned) = (Vec::new(), Vec::new());
    let (mut dead_pinned, mut dead_unreadable) = (0, 0);
    for entry in version.segments.iter().filter(|entry| entry.segment.number < version.open_segment) {
        let candidate = Candidate { segment: entry.segment.number, used: entry.used, live: entry.live };
        if spared.unreadable.contains(&candidate.segment) {
            dead_unreadable += candidate.used - candidate.live;
        } else if spared.pinned && Arc::strong_count(&entry.segment) > 1 {
            dead_pinned += candidate.used - candidate.live;
            pinned.push(candidate);
        } else {
            free.push(candidate);
        }
    }
    let used = version.used_bytes() - dead_unreadable;
    let excess = used.saturating_sub(allowance_of(version, urgency));
    if excess > dead_pinned {
        (excess - dead_pinned, free)
    } else {
        (excess.saturating_sub(version.live_bytes() / 100 * PINNED_PERCENT), pinned)
    }
}

/// Bytes that a version has beyond its allowance.
pub(crate) fn excess(version: &Version, urgency: GcUrgency, spared: &Spared) -> u64 {
    excess_among(version, urgency, spared).0
}

/// Segments to empty now, poorest first: as many as reduce the space by `excess` bytes, but with at most
/// `budget` live bytes together (or a single segment), and none that is wholly alive.
pub(crate) fn victims(mut candidates: Vec<Candidate>, excess: u64, budget: u64) -> Vec<u64> {
    // By live share, in thousandths, then oldest first.
    candidates.sort_by_key(|c| (c.live * 1000 / c.used.max(1), c.segment));
    let mut won = 0;
    let wanted = candidates.into_iter().take_while(|candidate| {
        let is_wanted = won < excess && candidate.live < candidate.used;
        won += candidate.used.saturating_sub(candidate.live);
        is_wanted
    });
    within(budget, wanted.map(|candidate| (candidate.segment, candidate.live)))
}

/// The first of these segments, given with their live bytes: as many as have at most `budget` together, or a single one.
fn within(budget: u64, segments: impl Iterator<Item = (u64, u64)>) -> Vec<u64> {
    let (mut chosen, mut copied) = (Vec::new(), 0);
    for (segment, live) in segments {
        copied += live;
        if copied > budget && !chosen.is_empty() {
            break;
        }
        chosen.push(segment);
    }
    chosen
}

/// Segments of these numbers, oldest first, with at most `budget` live bytes together (or a single one).
pub(crate) fn oldest(version: &Version, numbers: RangeInclusive<u64>, budget: u64) -> Vec<u64> {
    let entries = version.segments.iter().filter(|entry| numbers.contains(&entry.segment.number));
    let mut segments: Vec<_> = entries.map(|entry| (entry.segment.number, entry.live)).collect();
    segments.sort_unstable();
    within(budget, segments.into_iter())
}

/// Segments of `version` to empty now; never the open one.
pub(crate) fn choose(version: &Version, urgency: GcUrgency, budget: u64, spared: &Spared) -> Vec<u64> {
    match excess_among(version, urgency, spared) {
        (0, _) => Vec::new(),
        (excess, candidates) => victims(candidates, excess, budget),
    }
}

/// The poorest segments, with at most `budget` live bytes together (or a single one), whether they are to be emptied now or not; never the open one.
pub(crate) fn poorest(version: &Version, urgency: GcUrgency, budget: u64, spared: &Spared) -> Vec<u64> {
    victims(excess_among(version, urgency, spared).1, u64::MAX, budget)
}

/// Granules that the data file may have, with so many in use, without its end being moved.
pub(crate) fn length_allowed(used: usize, urgency: GcUrgency) -> u32 {
    let used = u32::try_from(used).unwrap_or(u32::MAX);
    let slack = if urgency == GcUrgency::InAHurry { LONGER_BEARABLE } else { LONGER_SLACK };
    used.saturating_add(used / LONGER).saturating_add(slack)
}

/// Segments to move because the data file is far longer than what is in it: those that begin behind the `allowed` granules,
/// last first, with at most `budget` live bytes together (or a single one); never the open one.
pub(crate) fn at_the_end(version: &Version, allowed: u32, budget: u64, spared: &Spared) -> Vec<u64> {
    let is_spared = |entry: &SegmentUse| {
        entry.segment.number >= version.open_segment
            || spared.unreadable.contains(&entry.segment.number)
            || (spared.pinned && Arc::strong_count(&entry.segment) > 1)
    };
    let mut last: Vec<_> = version.segments.iter().filter(|entry| entry.segment.start >= allowed).collect();
    last.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.segment.start));
    let free = last.into_iter().filter(|entry| !is_spared(entry));
    within(budget, free.map(|entry| (entry.segment.number, entry.live)))
}

/// The live nodes of the segments, in their order on the device.
pub(super) fn live_nodes(version: &Version, segments: &[u64]) -> Vec<(NodeId, Address)> {
    let mut chosen = segments.to_vec();
    chosen.sort_unstable();
    let is_chosen = |address: &Address| chosen.binary_search(&(address.position.0 / version.span)).is_ok();
    let mut nodes: Vec<_> = version.table.iter().filter(|(_, address)| is_chosen(address)).collect();
    nodes.sort_unstable_by_key(|(_, address)| address.position);
    nodes
}

/// How many of these nodes to read at once: at least one, at most `most`, and as many as have at most `bytes_max` together.
pub(super) fn group_len(
    nodes: &[(NodeId, Address)],
    most: usize,
    bytes_max: usize,
    len: impl Fn(&Address) -> usize,
) -> usize {
    let mut bytes = 0;
    let fits = |(_, address): &&(NodeId, Address)| {
        bytes += len(address);
        bytes <= bytes_max
    };
    nodes.iter().take(most).take_while(fits).count().max(1)
}

/// Most bytes of nodes that are read at once, unless a single one is longer. Otherwise many long records would be in memory
/// together.
const GROUP_MAX: usize = 512 << 10;

/// How nodes are read to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Many together, with what lies between them.
    Together,
    /// Each by itself: there may be nothing wrong but with what lies between.
    OneByOne,
}

/// Why nodes could not be copied.
#[derive(Debug)]
pub(crate) enum Failed {
    /// A node, or one of those read together, could not be read. The first one is in this segment.
    Reading(u64, Error),
    /// Anything else.
    Other(Error),
}

/// Copies the live nodes of the segments, so that the segments die with the version builder's edit.
#[cfg(test)]
pub(crate) fn evacuate(
    builder: &mut VersionBuilder<'_>,
    segments: &[u64],
    reading: Reading,
) -> std::result::Result<(), Failed> {
    let nodes = live_nodes(builder.base(), segments);
    copy(builder, &nodes, reading)
}

/// Copies these nodes, all that are live of some segments, in their order on the device. The segments die with the version builder's edit.
pub(crate) fn copy(
    builder: &mut VersionBuilder<'_>,
    nodes: &[(NodeId, Address)],
    reading: Reading,
) -> std::result::Result<(), Failed> {
    let base = Arc::clone(builder.base());
    let pager = Arc::clone(builder.pager());
    let most = if reading == Reading::OneByOne { 1 } else { pager.pio_max() };
    let mut rest = nodes;
    while !rest.is_empty() {
        let group;
        (group, rest) = rest.split_at(group_len(rest, most, GROUP_MAX, |address| address.len() as usize));
        let failed = |address: Address, error: Error| {
            let segment = address.position.0 / base.span;
            if error.is_of_reading() { Failed::Reading(segment, error) } else { Failed::Other(error) }
        };
        let read =
            pager.reader.read_stored(&base.segments, group).map_err(|error| failed(group[0].1, error))?;
        for ((id, address), node) in group.iter().zip(read) {
            builder.relocate(*id, &node).map_err(|error| failed(*address, error))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn candidates(list: &[(u64, u64)]) -> Vec<Candidate> {
        list.iter()
            .enumerate()
            .map(|(index, (used, live))| Candidate {
                segment: index as u64,
                used: used * MIB,
                live: live * MIB,
            })
            .collect()
    }

    #[test]
    fn the_poorest_go_first_until_the_space_is_within_its_allowance() {
        let list = [(64, 60), (64, 10), (64, 40), (64, 50)];
        assert_eq!(victims(candidates(&list), 92 * MIB, 1000 * MIB), [1, 2, 3]);
        assert_eq!(victims(candidates(&list), 78 * MIB, 1000 * MIB), [1, 2]);
        assert_eq!(victims(candidates(&list), 54 * MIB, 1000 * MIB), [1]);
    }

    #[test]
    fn nothing_to_do_within_the_allowance() {
        assert!(victims(candidates(&[(64, 60), (64, 64)]), 0, 1000 * MIB).is_empty());
    }

    #[test]
    fn a_budget_bounds_what_is_copied_but_one_segment_always_goes() {
        assert_eq!(victims(candidates(&[(64, 20), (64, 22), (64, 24)]), 1000 * MIB, 10 * MIB), [0]);
        assert_eq!(victims(candidates(&[(64, 20), (64, 22), (64, 24)]), 1000 * MIB, 43 * MIB), [0, 1]);
    }

    #[test]
    fn full_segments_are_left_alone() {
        assert_eq!(victims(candidates(&[(100, 100), (100, 1)]), 1000 * MIB, 1000 * MIB), [1]);
    }

    /// Where log areas take much of the space, less of it is left for what is dead.
    #[test]
    fn there_is_room_for_what_is_dead_where_log_areas_are_short() {
        let of = |logged| {
            [GcUrgency::AtRest, GcUrgency::AtWork, GcUrgency::InAHurry]
                .map(|urgency| allowance(1000 * MIB, logged * MIB, urgency) >> 20)
        };
        assert_eq!(of(0), [1080, 1160, 1210]);
        assert_eq!(of(120), [1080, 1160, 1160]);
        assert_eq!(allowance(MIB, MIB, GcUrgency::AtRest), MIB + SLACK, "too little to matter");
    }
}
