//! Garbage collection: keeps the space that is written within a share of the space that is live, by copying what still
//! lives out of the poorest segments. (The node validation manager of the AS B-tree, JISE 2014, section 3.4.)
//!
//! Choosing and doing are apart: [`victims`] is a pure function.

use crate::error::Result;
use crate::node::NodeId;
use crate::store::attempt::Attempt;
use crate::store::mapping_table::Address;
use crate::store::pager::Gather;
use crate::store::version::Version;
use std::collections::HashSet;

/// Space amplification that is aimed at: bytes in use per live byte.
const TARGET_PERCENT: u64 = 108;
/// Dead bytes below this much are not worth a collection.
const SLACK: u64 = 2 << 20;

/// What the choice looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub segment: u64,
    pub used: u64,
    pub live: u64,
}

/// How many bytes of segments a database with so many live bytes may have.
pub(crate) fn allowance(live: u64) -> u64 {
    (live / 100 * TARGET_PERCENT).max(live + SLACK)
}

/// And how many while others wait for whoever would collect them: twice as much that is dead.
pub(crate) fn bearable(live: u64) -> u64 {
    2 * allowance(live) - live
}

/// Whether a version has more than that.
pub(crate) fn is_due(version: &Version) -> bool {
    version.used_bytes() > allowance(version.live_bytes())
}

/// Segments to empty now, poorest first: as many as bring the space within its allowance, but no more than `budget`
/// live bytes of them (one at least), and none that is wholly alive.
pub(crate) fn victims(mut candidates: Vec<Candidate>, budget: u64) -> Vec<u64> {
    let (mut used, live) = candidates.iter().fold((0, 0), |(used, live), c| (used + c.used, live + c.live));
    // By live share, in thousandths, then oldest first.
    candidates.sort_by_key(|c| (c.live * 1000 / c.used.max(1), c.segment));
    let (mut chosen, mut copied) = (Vec::new(), 0);
    for candidate in candidates {
        let enough = used <= allowance(live) || (!chosen.is_empty() && copied + candidate.live > budget);
        if enough || candidate.live >= candidate.used {
            break;
        }
        used -= candidate.used - candidate.live;
        copied += candidate.live;
        chosen.push(candidate.segment);
    }
    chosen
}

/// Segments of `version` that should be emptied now; never the one that is being written.
pub(crate) fn choose(version: &Version, budget: u64) -> Vec<u64> {
    if !is_due(version) {
        return Vec::new();
    }
    let candidates = version
        .segments
        .iter()
        .filter(|entry| entry.segment.number < version.open_segment)
        .map(|entry| Candidate { segment: entry.segment.number, used: entry.used, live: entry.live })
        .collect();
    victims(candidates, budget)
}

/// Copies the live nodes of the segments, in the order in which they lie there, so that they die with the attempt's
/// edit.
pub(crate) fn evacuate(attempt: &mut Attempt<'_>, segments: &[u64]) -> Result<()> {
    let base = std::sync::Arc::clone(attempt.base());
    let chosen: HashSet<u64> = segments.iter().copied().collect();
    let mut nodes: Vec<(NodeId, Address)> =
        base.table.iter().filter(|(_, address)| chosen.contains(&(address.position.0 / base.span))).collect();
    nodes.sort_unstable_by_key(|(_, address)| address.position);
    let pager = attempt.pager();
    for group in nodes.chunks(pager.pio_max()) {
        for ((id, _), node) in group.iter().zip(pager.fetch(&base.segments, group, Gather::Staged)?) {
            attempt.relocate(*id, &node)?;
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
        // 64 + 64 + 64 + 64 used, 60 + 10 + 40 + 50 live: 160 live may take 172, so 84 of 256 must go.
        assert_eq!(victims(candidates(&[(64, 60), (64, 10), (64, 40), (64, 50)]), 1000 * MIB), [1, 2, 3]);
        assert_eq!(victims(candidates(&[(64, 60), (64, 10), (64, 58), (64, 64)]), 1000 * MIB), [1]);
    }

    #[test]
    fn nothing_to_do_within_the_allowance() {
        assert!(victims(candidates(&[(64, 60), (64, 64)]), 1000 * MIB).is_empty());
        assert!(victims(candidates(&[(1, 0), (1, 1)]), 1000 * MIB).is_empty(), "too little to matter");
    }

    #[test]
    fn a_budget_bounds_what_is_copied_but_one_segment_always_goes() {
        assert_eq!(victims(candidates(&[(64, 20), (64, 22), (64, 24)]), 10 * MIB), [0]);
        assert_eq!(victims(candidates(&[(64, 20), (64, 22), (64, 24)]), 43 * MIB), [0, 1]);
    }

    #[test]
    fn full_segments_are_left_alone() {
        assert_eq!(victims(candidates(&[(100, 100), (100, 1)]), 1000 * MIB), [1]);
    }
}
