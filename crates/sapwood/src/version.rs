//! A version: the addresses of all nodes and the list of trees at one moment. Immutable once published; the
//! next version is a changed clone that shares nearly everything.
//!
//! Invariants:
//! 1. `segments[..].live` is the sum of the lengths of the addresses in the mapping table, by segment.
//! 2. Every address lies within the used part of a segment of the version.
//! 3. Every log area belongs to a node that has an address, and its pieces have addresses.
//! 4. Epochs count the edits since the database was created, one each.

pub(crate) mod builder;
pub(crate) mod change_log;
pub(crate) mod checkpoint;
pub(crate) mod current;
pub(crate) mod edit;
pub(crate) mod manifest;
pub(crate) mod trees;

pub(crate) use trees::Tree;

use crate::error::Error;
use crate::expiring_bytes::ExpiringBytes;
use crate::log_area::{DeltaRun, Fences, LogAreas, RUNS_MAX, Size};
use crate::merging::Merging;
use crate::operation::{KeyspaceId, SeqNo};
use crate::storage::mapping_table::{Address, MappingTable, Position};
use crate::storage::segment::{Segment, SegmentUse, Segments};
use crate::version::change_log::ChangeLog;
use crate::version::edit::{Edit, NewRun};
use crate::version::trees::{TreeName, Trees};
use std::sync::Arc;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub epoch: u64,
    /// Bytes of a slot of the data file.
    pub span: u64,
    pub table: MappingTable,
    pub logs: LogAreas,
    pub segments: Segments,
    pub trees: Trees,
    /// Trees of dropped keyspaces whose nodes are not all dropped yet.
    pub dropped: Trees,
    /// The greatest id that a keyspace ever had.
    pub last_keyspace: u32,
    /// The first generation of the log that is still needed ...
    pub wal_low: u64,
    /// ... and the last one that exists.
    pub wal_high: u64,
    /// All operations up to this one are in the trees; some later ones may be.
    pub flushed_seq: SeqNo,
    /// Up to where queues go of which some keys are in the trees and some may not be, ascending: one, unless flushes of several
    /// processes were interrupted.
    pub begun_flushes: Vec<SeqNo>,
    /// Whether any keyspace ever had a merge operator: reads of others ask for nothing else.
    pub has_merging: bool,
    /// Number of the segment that the writer appends to.
    pub open_segment: u64,
    /// The latest time that the database's clock has said, in milliseconds since 1970; 0 if no keyspace needs one, nor the log.
    pub clock: u64,
    /// The oldest data key that nodes may be encrypted with, if that is known: 0 and 1 say the same.
    pub oldest_key: u64,
    /// Set if the log is kept for the change feed, or once was.
    pub change_log: Option<Arc<ChangeLog>>,
}

impl Version {
    /// The version of a new database, before its first edit.
    pub fn empty(span: u64) -> Self {
        Self {
            epoch: 0,
            span,
            table: MappingTable::default(),
            logs: LogAreas::default(),
            segments: Segments::default(),
            trees: Trees::default(),
            dropped: Trees::default(),
            last_keyspace: 0,
            wal_low: 1,
            wal_high: 0,
            flushed_seq: 0,
            begun_flushes: Vec::new(),
            has_merging: false,
            open_segment: 0,
            clock: 0,
            oldest_key: 0,
            change_log: None,
        }
    }

    fn segment_of(&mut self, position: Position) -> Option<&mut SegmentUse> {
        self.segments.get_mut(position.0 / self.span)
    }

    fn retire(&mut self, old: Option<Address>) -> Result<(), &'static str> {
        let Some(old) = old else { return Ok(()) };
        let segment = self.segment_of(old.position).ok_or("a node was in a segment that does not exist")?;
        segment.live = segment
            .live
            .checked_sub(u64::from(old.len()))
            .ok_or("a segment would hold fewer than no live bytes")?;
        Ok(())
    }

    /// Turns this version into the one after `edit`. `handle` returns the segment with a number and slot. The
    /// error says what does not fit; the version must not be used after it.
    pub fn apply(
        &mut self,
        edit: &Edit,
        handle: &mut dyn FnMut(u64, u32) -> Result<Arc<Segment>, &'static str>,
    ) -> Result<(), &'static str> {
        self.epoch += 1;
        for (number, slot) in &edit.segments {
            if self.segments.get(*number).is_some() {
                return Err("a segment was begun twice");
            }
            self.segments.insert(SegmentUse {
                segment: handle(*number, *slot)?,
                used: 0,
                live: 0,
                expiring: ExpiringBytes::default(),
            });
        }
        for (number, used) in &edit.used {
            let segment = self.segments.get_mut(*number).ok_or("a segment that does not exist was used")?;
            if *used < segment.used || *used > self.span {
                return Err("the used part of a segment shrank or outgrew the span");
            }
            segment.used = *used;
        }
        for (number, expiring) in &edit.expiring {
            let segment = self.segments.get_mut(*number).ok_or("a segment that does not exist expires")?;
            segment.expiring = expiring.clone();
        }
        for (id, address) in &edit.set {
            let span = self.span;
            let segment =
                self.segment_of(address.position).ok_or("a node is in a segment that does not exist")?;
            if address.position.0 % span + u64::from(address.len()) > segment.used {
                return Err("a node reaches beyond the used part of its segment");
            }
            segment.live += u64::from(address.len());
            let old = self.table.set(*id, *address);
            self.retire(old)?;
        }
        for block in &edit.emptied {
            self.logs.remove(*block).ok_or("a log area was emptied that does not exist")?;
        }
        for id in &edit.freed {
            if self.logs.get(*id).is_some() {
                return Err("a block was set free with its log area");
            }
            let old = self.table.remove(*id);
            self.retire(old)?;
        }
        self.apply_runs(edit)?;
        self.apply_trees(edit)?;
        self.wal_low = edit.wal_low.unwrap_or(self.wal_low);
        // Two threads may note this concurrently.
        self.wal_high = edit.wal_high.map_or(self.wal_high, |high| high.max(self.wal_high));
        self.flushed_seq = edit.flushed_seq.unwrap_or(self.flushed_seq);
        self.begun_flushes.extend(&edit.begun_flushes);
        self.begun_flushes.sort_unstable();
        self.begun_flushes.dedup();
        self.begun_flushes.retain(|end| *end > self.flushed_seq);
        self.open_segment = edit.open_segment.unwrap_or(self.open_segment);
        // What makes keyspaces again, after a restore to a moment, says no time.
        let least = u64::from(!edit.ttls.is_empty());
        self.clock = edit.clock.unwrap_or(least).max(self.clock);
        self.oldest_key = edit.oldest_key.unwrap_or(0).max(self.oldest_key);
        if let Some(keeping) = edit.keeping {
            self.change_log = Some(ChangeLog::kept(self.change_log.take(), keeping));
        }
        if let Some(log) = self.change_log.as_mut().filter(|_| !edit.events.is_empty()) {
            Arc::make_mut(log).note(&edit.events);
        }
        self.segments.drop_dead(self.open_segment);
        Ok(())
    }

    fn apply_trees(&mut self, edit: &Edit) -> Result<(), &'static str> {
        for (id, tree) in &edit.trees {
            if let Some(before) = self.trees.get(id) {
                // The change of the tree may have begun when it had another name.
                let (name, metadata) = (Arc::clone(&before.name), before.metadata.clone());
                let (ttl, merging, durability) = (before.ttl, before.merging.clone(), before.durability);
                let (chunks, compressor) = (before.chunks, Arc::clone(&before.compressor));
                let tree =
                    Tree { name, metadata, ttl, merging, durability, chunks, compressor, ..tree.clone() };
                self.trees.insert(*id, tree);
            } else if id.0 > self.last_keyspace {
                self.trees.insert(*id, tree.clone());
                self.last_keyspace = id.0;
            } else if tree.root.is_some() {
                self.dropped.insert(*id, tree.clone());
            } else {
                self.dropped.remove(id);
                self.segments.dictionaries.remove(*id);
            }
        }
        for TreeName { id, name, metadata } in &edit.names {
            let tree = self.trees.get(id).ok_or("a keyspace was named that does not exist")?.clone();
            self.trees.insert(*id, Tree { name: Arc::clone(name), metadata: metadata.clone(), ..tree });
        }
        for (id, ttl) in &edit.ttls {
            let tree = self.trees.get(id).ok_or("records of a keyspace expire that does not exist")?.clone();
            self.trees.insert(*id, Tree { ttl: Some(*ttl), ..tree });
        }
        for (id, merging) in &edit.merges {
            let tree = self.trees.get(id).ok_or("values of a keyspace merge that does not exist")?.clone();
            self.trees.insert(*id, Tree { merging: Some(merging.clone()), ..tree });
            self.has_merging = true;
        }
        for (id, durability) in &edit.durabilities {
            let tree = self.trees.get(id).ok_or("a durability is that of no keyspace")?.clone();
            self.trees.insert(*id, Tree { durability: Some(*durability), ..tree });
        }
        for (id, chunks) in &edit.larges {
            let tree = self.trees.get(id).ok_or("a keyspace has large values that does not exist")?.clone();
            self.trees.insert(*id, Tree { chunks: Some(*chunks), ..tree });
        }
        for (id, compression) in &edit.compressions {
            let tree = self.trees.get(id).ok_or("a compression is that of no keyspace")?.clone();
            self.trees
                .insert(*id, Tree { compressor: Arc::new(tree.compressor.changed_to(*compression)), ..tree });
        }
        for (id, dictionary) in &edit.dictionaries {
            let is_there = self.trees.contains(id) || self.dropped.contains(id);
            if is_there && !self.segments.dictionaries.insert(*id, Arc::clone(dictionary)) {
                return Err("a keyspace gets a second dictionary");
            }
        }
        for id in &edit.dropped {
            let tree = self.trees.remove(id).or_else(|| self.dropped.get(id).cloned());
            let tree = tree.ok_or("a keyspace was dropped that does not exist")?;
            if tree.root.is_some() {
                self.dropped.insert(*id, tree);
            } else {
                self.segments.dictionaries.remove(*id);
            }
        }
        self.last_keyspace = edit.last_keyspace.unwrap_or(0).max(self.last_keyspace);
        Ok(())
    }

    /// Bytes of memory of the keyspaces' names and options, whatever they have.
    pub fn keyspaces_memory(&self) -> usize {
        self.trees.memory() + self.dropped.memory()
    }

    /// How the values of a keyspace are merged, if they are.
    pub fn merging(&self, id: KeyspaceId) -> Option<Merging> {
        self.merging_of(id).cloned()
    }

    /// The same, borrowed.
    #[inline]
    pub fn merging_of(&self, id: KeyspaceId) -> Option<&Merging> {
        if self.has_merging { self.trees.get(&id)?.merging.as_ref() } else { None }
    }

    /// Returns an error if a keyspace is compressed in a way that this program was built without: what cannot be read because of that is not
    /// damaged.
    pub fn check_compression(&self) -> crate::error::Result<()> {
        self.trees.iter().try_for_each(|(_, tree)| tree.compressor.compression.check())
    }

    /// Returns an error if the keyspace of this id was dropped. One that comes later is there, and empty.
    pub fn check_there(&self, id: KeyspaceId) -> crate::error::Result<()> {
        if !self.has_dropped() || self.trees.contains(&id) || id.0 > self.last_keyspace {
            return Ok(());
        }
        let name =
            self.dropped.get(&id).map_or_else(|| format!("number {}", id.0), |tree| tree.name.to_string());
        Err(Error::KeyspaceDropped { name })
    }

    /// Whether any keyspace was ever dropped, so that an id may have none.
    pub fn has_dropped(&self) -> bool {
        self.trees.len() != self.last_keyspace as usize
    }

    fn apply_runs(&mut self, edit: &Edit) -> Result<(), &'static str> {
        let (mut pieces, mut fences, mut hashes) = (&edit.pieces[..], Fences(&edit.fences), &edit.hashes[..]);
        for (block, NewRun { pieces: count, count: changes, removals, fresh }) in &edit.runs {
            self.table.address(*block).ok_or("a run belongs to a block that does not exist")?;
            if self.logs.get(*block).is_some_and(|area| area.run_count() >= RUNS_MAX) {
                return Err("a log area has too many runs");
            }
            let count = *count as usize;
            let split = pieces.split_at_checked(count).filter(|(of_run, _)| !of_run.is_empty());
            let (of_run, others) = split.ok_or("a run has more pieces than there are")?;
            pieces = others;
            let mut len = 0;
            for id in of_run {
                let address = self.table.address(*id).ok_or("a log piece is not in the mapping table")?;
                len += u64::from(address.len());
            }
            let fences = fences.split(count - 1).ok_or("a run has more pieces than fences")?;
            let split = hashes.split_at_checked(*changes as usize);
            let (of_keys, others) = split.ok_or("a run has more keys than hashes")?;
            hashes = others;
            let run = DeltaRun { pieces: of_run, fences, removals: *removals };
            let fresh = (len * u64::from(*fresh) + 50) / 100;
            self.logs.push(*block, run, Size { bytes: len, fresh }, of_keys);
        }
        match (pieces.is_empty(), fences.0.is_empty(), hashes.is_empty()) {
            (true, true, true) => Ok(()),
            _ => Err("runs have fewer pieces, fences or keys than there are"),
        }
    }

    /// Most bytes of the log that are kept after their flush, for the change feed; 0: none are.
    pub fn kept_log_max(&self) -> u64 {
        self.change_log.as_ref().map_or(0, |log| log.keeping.bytes)
    }

    /// Live bytes of nodes.
    pub fn live_bytes(&self) -> u64 {
        self.segments.live_bytes()
    }

    /// Bytes written into segments that still exist.
    pub fn used_bytes(&self) -> u64 {
        self.segments.used_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_area::maplet::KeyHash;
    use crate::storage::mapping_table::NodeLengths;
    use crate::storage::node::NodeId;
    use crate::storage::slots::Slots;
    use crate::version::checkpoint::Checkpoint;

    #[test]
    fn how_much_of_a_log_area_is_new_stays_so_through_checkpoints() {
        let address = |number: u64, len| {
            (NodeId(number), Address::new(Position(number * 5000), NodeLengths::of(len, len), 0))
        };
        let pieces = [(1, 4111), (2, 333), (3, 4999)];
        for percent in [0, 1, 7, 40, 63, 99, 100] {
            let edit = Edit {
                segments: vec![(0, 0)],
                used: vec![(0, 20_000)],
                set: [(0, 10)].into_iter().chain(pieces).map(|(number, len)| address(number, len)).collect(),
                runs: pieces
                    .map(|_| (NodeId(0), NewRun { pieces: 1, count: 1, removals: 0, fresh: percent }))
                    .into(),
                pieces: pieces.map(|(number, _)| NodeId(number)).into(),
                hashes: vec![KeyHash::of(b"kale"); 3],
                ..Edit::default()
            };
            let mut edits = vec![edit];
            for _ in 0..20 {
                let slots = Arc::new(Slots::default());
                let mut version = Version::empty(1 << 20);
                for edit in &edits {
                    let begin = &mut |number, start| Ok(Segment::found(number, start, &slots));
                    version.apply(edit, begin).expect("an edit that fits");
                }
                edits = Checkpoint::in_portions(&version, 100).collect();
            }
            let told = edits.iter().flat_map(|edit| &edit.runs).map(|(_, run)| run.fresh);
            assert_eq!(told.collect::<Vec<_>>(), [percent; 3]);
        }
    }

    /// Without a time nothing that has expired is ever removed.
    #[test]
    fn where_records_expire_there_is_a_time() {
        let mut version = Version::empty(1 << 20);
        let id = KeyspaceId(1);
        version.trees.insert(id, Tree::empty("sessions".into()));
        let mut apply = |clock, ttls| {
            let edit = Edit { clock, ttls, ..Edit::default() };
            version.apply(&edit, &mut |_, _| Err("no segments")).unwrap();
            version.clock
        };
        assert_eq!(apply(None, Vec::new()), 0);
        assert_eq!(apply(None, vec![(id, Default::default())]), 1);
        assert_eq!(apply(Some(1000), Vec::new()), 1000);
        assert_eq!(apply(None, vec![(id, Default::default())]), 1000);
    }
}
