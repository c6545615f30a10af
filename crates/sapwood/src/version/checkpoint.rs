//! A checkpoint: the edits that turn an empty version into a given one, each made on demand.
//!
//! Invariants:
//! 1. All edits together make the version as it was when the checkpoint began: tables are values.
//! 2. It keeps no segment alive: it has only their numbers, and reads no node. Of the tables it keeps what it
//!    has not returned yet.

use crate::compression::Compression;
use crate::expiring_bytes::ExpiringBytes;
use crate::log_area::LogArea;
use crate::operation::KeyspaceId;
use crate::storage::dictionary::Dictionaries;
use crate::storage::mapping_table::Address;
use crate::storage::node::NodeId;
use crate::version::edit::{Edit, NODE_IN_EDIT, NewRun};
use crate::version::trees::TreeName;
use crate::version::{Tree, Version};
use std::sync::Arc;

/// Addresses in one edit of a checkpoint; these take 64 KiB of memory on the way to the manifest. So many segments take four times as much at most, and
/// so many trees ten times ([`TREE`]). An edit of log areas ends with the area that makes it as long; with that area's hashes it can be 1 MiB and more.
const PORTION: usize = 2 << 10;

/// Bytes that names and metadata of trees in one edit take at most, for each of the trees that it could have: the longest name fits, and
/// of trees with metadata there are fewer.
const TREE: usize = 320;

/// See the module.
pub(crate) struct Checkpoint {
    portion: usize,
    first: Option<Edit>,
    /// Number, first granule, bytes used, and what expires of them.
    segments: std::vec::IntoIter<(u64, u32, u64, ExpiringBytes)>,
    trees: Box<dyn Iterator<Item = (KeyspaceId, Tree)> + Send>,
    dropped: Box<dyn Iterator<Item = (KeyspaceId, Tree)> + Send>,
    dictionaries: Dictionaries,
    addresses: Box<dyn Iterator<Item = (NodeId, Address)> + Send>,
    areas: Box<dyn Iterator<Item = (NodeId, Arc<LogArea>)> + Send>,
    last: Option<Edit>,
}

impl Checkpoint {
    pub fn of(version: &Version) -> Self {
        Self::in_portions(version, PORTION)
    }

    /// A checkpoint in edits of `portion` segments, trees or addresses each, or of log areas until they are at least as long (an
    /// area is not divided). All edits together are as long as the mapping table.
    pub fn in_portions(version: &Version, portion: usize) -> Self {
        let first = Edit {
            wal_low: Some(version.wal_low),
            wal_high: Some(version.wal_high),
            flushed_seq: Some(version.flushed_seq),
            begun_flushes: version.begun_flushes.clone(),
            open_segment: Some(0),
            clock: (version.clock > 0).then_some(version.clock),
            oldest_key: (version.oldest_key > 0).then_some(version.oldest_key),
            ..Edit::default()
        };
        let segments = version
            .segments
            .iter()
            .map(|entry| (entry.segment.number, entry.segment.start, entry.used, entry.expiring.clone()));
        let segments: Vec<_> = segments.collect();
        // Dead segments may be dropped only when all addresses are set.
        let last_keyspace = Some(version.last_keyspace);
        let change_log = version.change_log.as_ref();
        let last = Edit {
            open_segment: Some(version.open_segment),
            last_keyspace,
            keeping: change_log.map(|log| log.keeping),
            events: change_log.map(|log| log.events.clone()).unwrap_or_default(),
            ..Edit::default()
        };
        Self {
            portion,
            first: Some(first),
            segments: segments.into_iter(),
            trees: Box::new(version.trees.each_once()),
            dropped: Box::new(version.dropped.each_once()),
            dictionaries: version.segments.dictionaries.clone(),
            addresses: Box::new(version.table.told_once()),
            areas: Box::new(version.logs.told_once()),
            last: Some(last),
        }
    }

    fn segments(&mut self) -> Option<Edit> {
        let mut edit = Edit::default();
        for (number, start, used, expiring) in self.segments.by_ref().take(self.portion) {
            edit.segments.push((number, start));
            edit.used.push((number, used));
            if !expiring.is_empty() {
                edit.expiring.push((number, expiring));
            }
        }
        (!edit.segments.is_empty()).then_some(edit)
    }

    fn trees(&mut self) -> Option<Edit> {
        let trees = some_of(&mut self.trees, self.portion);
        let metadata = trees.iter().filter(|(_, tree): &&(_, Tree)| tree.metadata.is_some());
        let named = |(id, tree): &(_, Tree)| {
            let (name, metadata) = (Arc::clone(&tree.name), tree.metadata.clone());
            TreeName { id: *id, name, metadata }
        };
        let names = metadata.map(named).collect();
        let ttls = trees.iter().filter_map(|(id, tree)| Some((*id, tree.ttl?))).collect();
        let merges = trees.iter().filter_map(|(id, tree)| Some((*id, tree.merging.clone()?))).collect();
        let durabilities = trees.iter().filter_map(|(id, tree)| Some((*id, tree.durability?))).collect();
        let larges = trees.iter().filter_map(|(id, tree)| Some((*id, tree.chunks?))).collect();
        let compressed = trees.iter().filter(|(_, tree)| tree.compressor.compression != Compression::None);
        let compressions = compressed.map(|(id, tree)| (*id, tree.compressor.compression)).collect();
        (!trees.is_empty()).then(|| Edit {
            trees,
            names,
            ttls,
            merges,
            durabilities,
            larges,
            compressions,
            ..Edit::default()
        })
    }

    /// Dropped trees come behind all others: an id that is not above those before is that of a dropped one, or it is said to be.
    fn dropped(&mut self) -> Option<Edit> {
        let trees = some_of(&mut self.dropped, self.portion);
        let dropped = trees.iter().map(|(id, _)| *id).collect();
        (!trees.is_empty()).then(|| Edit { trees, dropped, ..Edit::default() })
    }

    /// One an edit: each is as long as many trees.
    fn dictionary(&mut self) -> Option<Edit> {
        let (id, dictionary) = self.dictionaries.iter().next()?;
        let dictionaries = vec![(id, Arc::clone(dictionary))];
        self.dictionaries.remove(id);
        Some(Edit { dictionaries, ..Edit::default() })
    }

    fn addresses(&mut self) -> Option<Edit> {
        let set: Vec<_> = self.addresses.by_ref().take(self.portion).collect();
        (!set.is_empty()).then(|| Edit { set, ..Edit::default() })
    }

    fn runs(&mut self) -> Option<Edit> {
        let mut edit = Edit::default();
        while edit.lists_len() < self.portion as u64 * NODE_IN_EDIT
            && let Some((block, area)) = self.areas.next()
        {
            // Each run gets the percentage of the whole area, so that their sum stays the same.
            let fresh = area.fresh_percent();
            for (run, hashes) in area.runs().zip(area.hashes()) {
                let (pieces, count) = (run.pieces.len() as u32, hashes.len() as u32);
                edit.runs.push((block, NewRun { pieces, count, removals: run.removals, fresh }));
                edit.pieces.extend(run.pieces.iter());
                edit.fences.extend_from_slice(run.fences.0);
                edit.hashes.extend(hashes);
            }
        }
        (!edit.runs.is_empty()).then_some(edit)
    }
}

/// The next trees, in the portion of so many.
fn some_of(trees: &mut impl Iterator<Item = (KeyspaceId, Tree)>, portion: usize) -> Vec<(KeyspaceId, Tree)> {
    let (mut some, mut bytes) = (Vec::new(), 0);
    while some.len() < portion
        && bytes < portion * TREE
        && let Some((id, tree)) = trees.next()
    {
        bytes += tree.name.len() + tree.metadata.as_ref().map_or(0, |metadata| metadata.len());
        some.push((id, tree));
    }
    some
}

impl Iterator for Checkpoint {
    type Item = Edit;

    fn next(&mut self) -> Option<Edit> {
        let first = self.first.take();
        first
            .or_else(|| self.segments())
            .or_else(|| self.trees())
            .or_else(|| self.dropped())
            .or_else(|| self.dictionary())
            .or_else(|| self.addresses())
            .or_else(|| self.runs())
            .or_else(|| self.last.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::compressed::Compressor;
    use crate::storage::segment::{Segment, SegmentUse};
    use crate::storage::slots::Slots;

    #[test]
    fn checkpoints_keep_durability_and_compression_of_keyspaces() {
        use crate::durability::Durability::{Buffered, Immediate, None as InMemory};
        let mut version = Version::empty(1 << 20);
        for (number, durability) in (1..).zip([Some(InMemory), None, Some(Buffered), Some(Immediate)]) {
            let compression =
                [Compression::None, Compression::Lz4, Compression::Zstd { level: 7 }][number as usize % 3];
            let compressor = Arc::new(Compressor::new(compression));
            let tree = Tree { durability, compressor, ..Tree::empty(format!("{number}").into()) };
            version.trees.insert(KeyspaceId(number), tree);
        }
        let mut found = Version::empty(1 << 20);
        for edit in Checkpoint::in_portions(&version, 3) {
            let mut bytes = Vec::new();
            edit.encode(&mut bytes);
            let edit = Edit::decode(&bytes).unwrap();
            found.apply(&edit, &mut |_, _| Err("there is no segment")).unwrap();
        }
        assert!(found.trees == version.trees);
    }

    /// All of them were in one edit, which had to be shorter than 64 MiB.
    #[test]
    fn trees_come_in_portions_too() {
        let mut version = Version::empty(1 << 20);
        for number in 1..10_001 {
            let name = format!("{number:0>255}").into();
            let tree = Tree::empty(name);
            version.trees.insert(KeyspaceId(number), tree);
        }
        let mut found = Version::empty(1 << 20);
        for edit in Checkpoint::of(&version) {
            assert!(edit.trees.len() <= PORTION);
            found.apply(&edit, &mut |_, _| Err("there is no segment")).unwrap();
        }
        assert!(found.trees == version.trees);
    }

    /// All of them were in one edit: with some hundred thousand of which records expire, it was longer than an edit may be.
    #[test]
    fn segments_come_in_portions_too() {
        let (mut version, slots) = (Version::empty(1 << 20), Arc::new(Slots::default()));
        let numbers = 0..30_000;
        let steps = [1, 2, 3, 4, 5, 6, 7, 8].map(|step| (1_800_000_000_000 + step, 1 << 20));
        let expiring = ExpiringBytes::of_steps(&steps).unwrap();
        let edit = Edit {
            segments: numbers.clone().map(|number| (number, 256 * number as u32)).collect(),
            used: numbers.clone().map(|number| (number, 1 << 19)).collect(),
            expiring: numbers.map(|number| (number, expiring.clone())).collect(),
            ..Edit::default()
        };
        let mut found = |number, start| Ok(Segment::found(number, start, &slots));
        version.apply(&edit, &mut found).unwrap();
        let mut copy = Version::empty(1 << 20);
        for edit in Checkpoint::of(&version) {
            let mut bytes = Vec::new();
            edit.encode(&mut bytes);
            assert!(bytes.len() < 1 << 20, "{}", bytes.len());
            copy.apply(&edit, &mut found).unwrap();
        }
        let all = |version: &Version| -> Vec<_> {
            let of = |entry: &SegmentUse| (entry.segment.start, entry.used, entry.expiring.clone());
            version.segments.iter().map(of).collect()
        };
        assert!(all(&copy).len() == 30_000 && all(&copy) == all(&version));
    }

    /// All of them were in one edit, which had to be shorter than 64 MiB: with some hundred thousand, none could be written any more.
    #[test]
    fn dropped_trees_come_in_portions_too() {
        let mut version = Version::empty(1 << 20);
        for number in 1..=15 {
            let root = Some(NodeId(number.into()));
            let tree = Tree { root, ..Tree::empty(format!("{number}").into()) };
            version.trees.insert(KeyspaceId(number), tree);
        }
        // Some below, some between, and some above those that are there.
        version.last_keyspace = 20;
        let gone = [1, 2, 5, 6, 9, 13, 14, 15].map(KeyspaceId);
        version
            .apply(&Edit { dropped: gone.to_vec(), ..Edit::default() }, &mut |_, _| Err("no segment"))
            .unwrap();
        assert_eq!((version.trees.len(), version.dropped.len()), (7, 8));
        let (mut found, mut edits) = (Version::empty(1 << 20), 0);
        for edit in Checkpoint::in_portions(&version, 2) {
            assert!(edit.trees.len() <= 2);
            edits += usize::from(!edit.dropped.is_empty());
            let mut bytes = Vec::new();
            edit.encode(&mut bytes);
            let edit = Edit::decode(&bytes).unwrap();
            found.apply(&edit, &mut |_, _| Err("there is no segment")).unwrap();
        }
        assert_eq!(edits, 4);
        assert!(found.trees == version.trees && found.dropped == version.dropped);
        assert_eq!(found.last_keyspace, 20);
    }

    /// Some thousand with 4 KiB each were in one edit.
    #[test]
    fn metadata_of_trees_count_in_their_portions() {
        let mut version = Version::empty(1 << 20);
        for number in 1..=3000 {
            let metadata = Some(vec![7; 4096].into());
            let tree = Tree { metadata, ..Tree::empty(format!("{number:0>255}").into()) };
            version.trees.insert(KeyspaceId(number), tree);
        }
        let mut found = Version::empty(1 << 20);
        for edit in Checkpoint::of(&version) {
            let mut bytes = Vec::new();
            edit.encode(&mut bytes);
            assert!(bytes.len() < 1 << 20, "{}", bytes.len());
            found.apply(&edit, &mut |_, _| Err("there is no segment")).unwrap();
        }
        assert!(found.trees == version.trees);
    }
}
