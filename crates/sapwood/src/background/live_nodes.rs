//! The live nodes of segments that are emptied next. The mapping table is by node, so that finding those of a segment takes a walk over
//! all of it: one walk finds those of more segments than are emptied at once, so that its cost does not grow with the data for each byte that is
//! copied.
//!
//! Invariant: what is served is all that is live. A segment that is not written to any more only loses nodes; that it is such a one shows
//! in the sum of their bytes, which the version knows.

use crate::background::garbage_collection::live_nodes;
use crate::lock_order::{RankedMutex, rank};
use crate::storage::mapping_table::{Address, Position};
use crate::storage::node::NodeId;
use crate::version::Version;

/// A walk finds the nodes of so large a part (1/256) of the live bytes, which takes a percent of the memory that the mapping table does: it looks at 256 entries
/// for each node that is copied, where it would look at millions in a large database.
const AHEAD: u64 = 256;

/// See the module.
#[derive(Default)]
pub(crate) struct LiveNodes {
    found: RankedMutex<rank::LiveNodes, Found>,
    #[cfg(test)]
    pub walks: std::sync::atomic::AtomicU64,
}

#[derive(Default)]
struct Found {
    /// In order.
    segments: Vec<u64>,
    /// By position.
    nodes: Vec<(NodeId, Position)>,
}

impl LiveNodes {
    /// The live nodes of these segments, in their order on the device. `next` are the segments that will be asked for next, with about so many live
    /// bytes.
    pub fn of(
        &self,
        version: &Version,
        segments: &[u64],
        next: impl FnOnce(u64) -> Vec<u64>,
    ) -> Vec<(NodeId, Address)> {
        let mut found = self.found.lock();
        if let Some(nodes) = found.of(version, segments) {
            return nodes;
        }
        #[cfg(test)]
        self.walks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut all = next(version.live_bytes() / AHEAD);
        all.extend_from_slice(segments);
        all.sort_unstable();
        all.dedup();
        let nodes = live_nodes(version, &all);
        let is_asked = |address: &Address| segments.contains(&(address.position.0 / version.span));
        let asked = nodes.iter().filter(|(_, address)| is_asked(address)).copied().collect();
        let nodes = nodes.into_iter().map(|(id, address)| (id, address.position)).collect();
        *found = Found { segments: all, nodes };
        asked
    }
}

impl Found {
    /// Those of these segments, if they were looked for and all are known.
    fn of(&self, version: &Version, segments: &[u64]) -> Option<Vec<(NodeId, Address)>> {
        let mut segments = segments.to_vec();
        segments.sort_unstable();
        let mut all = Vec::new();
        for number in segments {
            self.segments.binary_search(&number).ok()?;
            let at =
                |number: u64| self.nodes.partition_point(|(_, position)| position.0 < number * version.span);
            let listed = &self.nodes[at(number)..at(number + 1)];
            let is_live = |&(id, position): &(NodeId, Position)| {
                let address = version.table.address(id)?;
                (address.position == position).then_some((id, address))
            };
            let before = all.len();
            all.extend(listed.iter().filter_map(is_live));
            let live: u64 = all[before..].iter().map(|(_, address)| u64::from(address.len())).sum();
            (version.segments.get(number)?.live == live).then_some(())?;
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use crate::background::cleanse::tests::cleansed;
    use crate::background::garbage_collection::live_nodes;
    use crate::background::live_nodes::LiveNodes;
    use std::sync::atomic::Ordering::Relaxed;

    /// Each portion went through the whole mapping table.
    #[test]
    fn one_walk_finds_the_nodes_of_many_portions() {
        let db = cleansed(80_000);
        let keyspace = db.keyspace("main").unwrap();
        let version = || db.handle.engine.state.version();
        let (live, begun) = (LiveNodes::default(), version());
        let numbers = begun.segments.iter().map(|entry| entry.segment.number);
        let segments: Vec<_> = numbers.filter(|number| *number < begun.open_segment).collect();
        assert!(segments.len() > 3 && live.of(&begun, &[], |_| segments.clone()).is_empty());
        for round in 0..4u32 {
            let now = version();
            for number in segments.iter().filter(|number| now.segments.get(**number).is_some()) {
                assert_eq!(live.of(&now, &[*number], |_| segments.clone()), live_nodes(&now, &[*number]));
            }
            assert_eq!(live.walks.load(Relaxed), 1, "in round {round}");
            // Some of them die.
            for number in (round * 10_000..).take(500) {
                keyspace.insert(number.to_be_bytes(), [round as u8; 100]).unwrap();
            }
            db.compact().unwrap();
        }
        // Of another it is not known.
        let now = version();
        let last = now.segments.last().unwrap().segment.number;
        assert!(!segments.contains(&last));
        assert_eq!(live.of(&now, &[last], |_| Vec::new()), live_nodes(&now, &[last]));
        assert_eq!(live.walks.load(Relaxed), 2);
    }
}
