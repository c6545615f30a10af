//! Applies a frozen queue to the trees, portion by portion, each as an edit of its own.
//!
//! Portions bound the space that new copies take before the old ones die. A crash needs no undo: a portion is
//! either published or it never happened, and the log still holds the whole queue.
//!
//! Where operands are merged, a portion that is not the whole queue notes where the queue ends: after a crash its operations come
//! once more, and operands up to there must not be combined with later ones ([`crate::opq::operands`]).
//!
//! Invariant: a portion that is not the whole queue is published only when the queue's log is durable.
//! Otherwise a power loss could leave one part of a batch in the trees after the log has lost the other part. A
//! queue applied with a single edit does not need this. If the edit survives a crash, the whole queue does; if
//! not, the log ends where it ends, as if nothing had been flushed. The log file is then removed, usually
//! before the operating system has written any of it, so such a load writes each byte once.

use super::Flusher;
use super::append_ahead::{Ahead, changes_in};
use super::leaves_ahead::LeavesAhead;
use crate::background::garbage_collection::GcUrgency;
use crate::background::portions::{flush_portion, portion};
use crate::current_state::Frozen;
use crate::error::Result;
use crate::flow::memory::Reservation;
use crate::operation::{KeyRange, KeyspaceId, OperationRef};
use crate::pool::Task;
use crate::publish::TreesChange;
use crate::storage::node::entry_len;
use crate::storage::writer::Writer;
use crate::tree::bupdate::bupdate;
use crate::tree::change::Either;
use crate::tree::cleansing_cursor::{CleansingCursor, CursorPosition};
use crate::tree::remove_blocks::{Remainder, drop_blocks};
use crate::tree::route::deferred::KeyInterval;
use crate::tree::route::{Budget, Grounds, bytes_of, route};
use crate::tree::sample::Sample;
use crate::tree::view::TreeView;
use crate::tree_writer::WriterAtWork;
use crate::version::builder::VersionBuilder;
use bytes::Bytes;
use std::cmp::Ordering;
use std::iter::Peekable;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What a portion has taken from the queue.
#[derive(Default)]
struct FlushBatch {
    changes: u64,
    /// Bytes of their keys and values.
    bytes: u64,
    /// Blocks whose log areas got some of them, and blocks that were cleansed.
    appended: u64,
    cleansed: u64,
    /// Where the next portion begins; `None` if this was the last one.
    next: Option<(KeyspaceId, Bytes)>,
}

/// The state of the sync of the frozen queue's log.
pub(crate) enum SyncLog {
    /// In progress; must be waited for.
    Begun(Task<()>),
    /// Needed only before a portion that is not the whole queue.
    IfNeeded,
    Done,
}

impl SyncLog {
    /// Waits for a sync that is in progress, and syncs by `sync` if that is needed now: a portion that needs none may be replaced by a
    /// smaller one, which does.
    fn finish(&mut self, is_needed: bool, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        match std::mem::replace(self, Self::Done) {
            Self::Begun(task) => task.wait(),
            Self::IfNeeded if is_needed => sync(),
            Self::IfNeeded => {
                *self = Self::IfNeeded;
                Ok(())
            }
            Self::Done => Ok(()),
        }
    }
}

impl Flusher {
    /// Applies the queue to the trees. The last portion first waits for `is_ready`.
    pub(super) fn flush_portions(
        &self,
        at_work: &mut WriterAtWork<'_>,
        frozen: &Frozen,
        mut ahead: Option<Ahead>,
        cursor: &mut CleansingCursor,
        mut sync_log: SyncLog,
        is_ready: Box<dyn FnOnce() -> Result<()>>,
    ) -> Result<()> {
        let (writer, work) = at_work.parts()?;
        // An interrupted flush has already published something.
        self.in_portions.store(!frozen.is_whole(), Relaxed);
        let mut is_ready = Some(is_ready);
        // What is not in the trees yet.
        let from = frozen.resumes_at().unwrap_or_default();
        let mut left = vec![KeyInterval { from, to: None }];
        let removed = frozen.queue.range_removals().all();
        if !removed.is_empty() {
            self.in_portions.store(true, Relaxed);
            sync_log.finish(true, || self.commits.sync_log_below(frozen.wal_low))?;
            self.drop_removed_blocks(writer, frozen, &removed)?;
        }
        // What is listed stays true: nothing comes to the trees but from the portions, and collector and expirer only remove.
        let mut remainder = Remainder::of(&removed);
        loop {
            let base = self.ctx.state.version();
            let limit = self.ctx.flush.low_space.limit();
            let (live, is_careful) = (base.live_bytes(), self.ctx.flush.low_space.is_careful());
            let most = if is_careful { portion(live) } else { flush_portion(live) };
            let budget =
                most.min(limit).min(self.ctx.nodes_max() * self.ctx.memory.shares.node_len.leaf as u64);
            let ahead = match ahead.take() {
                Some(ahead) if !ahead.still_fits(&base)? => {
                    cursor.back_to(ahead.cursor_before);
                    None
                }
                ahead => ahead,
            };
            // If there is no space for a large portion, there may be for a small one.
            let is_large = budget > portion(live) || ahead.is_some();
            let cursor_before =
                ahead.as_ref().map_or_else(|| cursor.position(), |ahead| ahead.cursor_before.clone());
            let (builder, parts, mut sample, begun, _work) = match ahead {
                Some(Ahead { mut builder, passed, sample, changes, bytes, appended, work, .. }) => {
                    builder.go_on_at(base);
                    let begun = FlushBatch { changes, bytes, appended, ..FlushBatch::default() };
                    (builder, passed, sample, begun, Some(work))
                }
                None => {
                    // Work done ahead may have been discarded; its memory has then been given back.
                    work.needs(self.flushing(frozen.queue.bytes()));
                    let builder = VersionBuilder::begin(base, &self.ctx.pager, &mut *writer);
                    (builder, left.clone(), Sample::default(), FlushBatch::default(), None)
                }
            };
            let went_ahead = begun.changes;
            let report = |bytes| self.ctx.progress.wrote(bytes);
            let mut builder = builder.reporting(&report);
            if let Some(KeyInterval { from, .. }) = left.first() {
                let trees = (&self.ctx.pager, builder.base());
                remainder.list(trees, &removed, from, self.ctx.memory.shares.hold as usize)?;
            }
            let changes = changes_in(&frozen.queue, parts.clone());
            let mut changes = with_remainder(changes, &remainder).peekable();
            let filled = self.fill_portion(
                &mut builder,
                work,
                &mut changes,
                &mut LeavesAhead::new(&self.ctx.pager, &frozen.queue),
                (begun, cursor, &mut sample),
                [budget, limit],
            );
            drop(changes);
            let filled = filled.map(|batch| {
                let next = batch.next.or_else(|| remainder.next.clone());
                FlushBatch { next, ..batch }
            });
            let batch = match filled {
                Err(error) if error.is_disk_full() && is_large => {
                    drop(builder);
                    self.try_smaller_portion(cursor, cursor_before);
                    continue;
                }
                filled => filled?,
            };
            let next = &batch.next;
            self.note_fresh(&mut builder, &sample, next.is_none());
            if next.is_none() {
                is_ready.take().map_or(Ok(()), |wait| wait())?;
            } else {
                self.in_portions.store(true, Relaxed);
            }
            say_how_far(&mut builder, frozen, next.is_none());
            // What is kept of the log for the change feed must not end before the trees do.
            let needs_sync = next.is_some() || builder.base().kept_log_max() > 0;
            sync_log.finish(needs_sync, || self.commits.sync_log_below(frozen.wal_low))?;
            let trees = if next.is_none() { TreesChange::Flushed } else { TreesChange::Same };
            match self.ctx.publisher.commit_version(builder, trees) {
                Err(error) if error.is_disk_full() && is_large => {
                    self.try_smaller_portion(cursor, cursor_before);
                    continue;
                }
                committed => committed?,
            }
            self.count(&batch, went_ahead);
            let Some(next) = batch.next else { return Ok(()) };
            left = parts.into_iter().filter_map(|part| part.behind(&next)).collect();
            frozen.set_resume(next);
            self.ctx.flush.low_space.eased();
            match self.collector.tidy_up(writer, GcUrgency::AtWork) {
                // There may be space for what is waiting.
                Err(error) if error.is_disk_full() => self.ctx.space.reclaim_space(),
                tidied => tidied?,
            }
        }
    }

    /// Learns from a portion's sample how many of its changes are new records, and passes on what is known of each keyspace.
    fn note_fresh(&self, builder: &mut VersionBuilder<'_>, sample: &Sample, is_last: bool) {
        let base = builder.base();
        // Before the next portion is sampled, the trees have this portion's changes, so each portion has a
        // sample of its own. At the end of the queue a small sample is better than none: there are never
        // many long records.
        if (sample.is_enough() || is_last)
            && let Ok(Some(fresh)) = sample.fresh(&self.ctx.pager, base)
        {
            self.tuning.lock().note_fresh(fresh, |keyspace| base.trees.contains(&keyspace));
        }
        let tuning = self.tuning.lock();
        builder.set_fresh(|keyspace| tuning.fresh_of(keyspace));
    }

    /// Counts a portion that was published.
    fn count(&self, batch: &FlushBatch, went_ahead: u64) {
        let counters = &self.ctx.flush.counters;
        counters.portions.fetch_add(1, Relaxed);
        counters.changes.fetch_add(batch.changes, Relaxed);
        counters.changes_ahead.fetch_add(went_ahead, Relaxed);
        counters.change_bytes.fetch_add(batch.bytes, Relaxed);
        counters.blocks_appended.fetch_add(batch.appended, Relaxed);
        counters.blocks_cleansed.fetch_add(batch.cleansed, Relaxed);
    }

    /// Drops the blocks that lie wholly in ranges that the queue removes.
    fn drop_removed_blocks(
        &self,
        writer: &mut Writer,
        frozen: &Frozen,
        removed: &[(KeyspaceId, Bytes, Option<Bytes>)],
    ) -> Result<()> {
        if frozen.has_dropped_blocks.load(Relaxed) {
            return Ok(());
        }
        let ranges = removed.iter();
        let ranges =
            ranges.map(|(keyspace, from, to)| KeyRange { keyspace: *keyspace, from, to: to.as_deref() });
        let ranges: Vec<_> = ranges.collect();
        let mut of_trees = ranges.chunk_by(|a, b| a.keyspace == b.keyspace).peekable();
        // One edit for all, unless it becomes long.
        while of_trees.peek().is_some() {
            let base = self.ctx.state.version();
            let mut builder = VersionBuilder::begin(Arc::clone(&base), &self.ctx.pager, &mut *writer);
            while let Some(ranges) = of_trees.peek()
                && !builder.is_long()
            {
                let tree = base.trees.get(&ranges[0].keyspace);
                let node_len = self.ctx.memory.shares.node_len;
                // What was dropped is taken apart as it is.
                if tree.map_or(Ok(false), |tree| drop_blocks(&mut builder, tree, ranges, node_len))? {
                    break;
                }
                of_trees.next();
            }
            if !builder.edit_mut().trees.is_empty() {
                self.ctx.publisher.commit_version(builder, TreesChange::Same)?;
            }
        }
        frozen.has_dropped_blocks.store(true, Relaxed);
        Ok(())
    }

    /// There was no space for a large portion: a smaller one replaces it, starting with the same blocks.
    fn try_smaller_portion(&self, cursor: &mut CleansingCursor, position: CursorPosition) {
        cursor.back_to(position);
        self.ctx.flush.low_space.be_careful();
        self.ctx.space.reclaim_space();
    }

    /// Applies changes from the front of the queue, in addition to those already in the begun portion. Stops at
    /// the budget of rewritten bytes, or at the limit of written bytes.
    fn fill_portion<'q>(
        &self,
        builder: &mut VersionBuilder<'_>,
        work: &Reservation,
        changes: &mut Peekable<impl Iterator<Item = OperationRef<'q>>>,
        leaves_ahead: &mut LeavesAhead<'_>,
        (mut portion, cursor, sample): (FlushBatch, &mut CleansingCursor, &mut Sample),
        [budget, limit]: [u64; 2],
    ) -> Result<FlushBatch> {
        let nodes = self.ctx.nodes_max();
        let (mut tail_left, mut rewrite) =
            ((nodes * self.ctx.memory.shares.node_len.leaf as u64).min(limit), budget);
        let mut last_keyspace = None;
        // A version builder touches each tree only once.
        while portion.next.is_none()
            && let Some(keyspace) = changes.peek().map(|next| next.keyspace)
            && last_keyspace.replace(keyspace) != Some(keyspace)
        {
            let is_full = rewrite == 0
                || builder.bytes() >= limit
                || builder.nodes() >= nodes as usize
                || builder.is_long();
            if portion.changes > 0 && is_full {
                break;
            }
            if !builder.base().trees.contains(&keyspace) {
                // It was dropped.
                while changes.next_if(|next| next.keyspace == keyspace).is_some() {}
                continue;
            }
            let view = TreeView { pager: &self.ctx.pager, version: builder.base(), keyspace };
            // The only leaf of a tree is rewritten with the first change.
            let only_leaf =
                view.root().filter(|(_, height)| *height == 0).map_or(0, |(leaf, _)| view.len_of(leaf));
            if only_leaf > 0 {
                leaves_ahead.reach(builder.base(), keyspace);
            }
            let fresh = self.tuning.lock().fresh_of(keyspace);
            let limits =
                Budget { rewrite, write: limit, hold: self.ctx.memory.shares.hold, nodes: nodes as usize };
            let leaf_len = self.ctx.memory.shares.node_len.leaf;
            let grounds = Grounds { cursor, sample, fresh, leaf_len, ahead: None };
            let routed = route(builder, keyspace, changes, grounds, limits)?;
            // More than estimated, if areas of many tiny pieces become full at the same time.
            work.needs(self.ctx.memory.shares.work(routed.rewrite.bytes(), routed.promised));
            portion.changes += routed.changes;
            portion.bytes += routed.bytes;
            rewrite = rewrite.saturating_sub(routed.promised + only_leaf);
            portion.appended += routed.appended;
            portion.cleansed += routed.cleansed;
            portion.next = routed.left.map(|key| (keyspace, key));
            let tail = std::iter::from_fn(|| {
                let is_next = |next: &OperationRef<'_>| next.keyspace == keyspace && tail_left > 0;
                let change = changes.next_if(|next| routed.is_tail && is_next(next))?;
                let value = change.value.map_or(0, <[u8]>::len);
                tail_left = tail_left.saturating_sub(entry_len(change.key.len(), value) as u64);
                portion.changes += 1;
                portion.bytes += bytes_of(&change);
                Some(Either::Other(change))
            });
            let mut to_leaves = routed.rewrite.into_iter().map(Either::One).chain(tail).peekable();
            if to_leaves.peek().is_some() {
                bupdate(builder, keyspace, &mut to_leaves, self.ctx.memory.shares.node_len)?;
            }
        }
        let rest = || changes.peek().map(|next| (next.keyspace, Bytes::copy_from_slice(next.key)));
        portion.next = portion.next.or_else(rest);
        Ok(portion)
    }
}

/// The edit of a portion says that the queue is in the trees, or that its flush has begun.
fn say_how_far(builder: &mut VersionBuilder<'_>, frozen: &Frozen, is_last: bool) {
    let (base_high, has_merging) = (builder.base().wal_high, builder.base().has_merging);
    let edit = builder.edit_mut();
    if !is_last {
        if has_merging {
            edit.begun_flushes.push(frozen.last_seq);
        }
        return;
    }
    edit.flushed_seq = Some(frozen.last_seq);
    edit.wal_low = Some(frozen.wal_low);
    if base_high < frozen.wal_low {
        edit.wal_high = Some(frozen.wal_low);
    }
}

/// The changes of a queue, and removals of the keys that are left in removed ranges, in key order. Of a key that comes in both the
/// queue's change counts. Ends where the listed keys do, if there may be more.
fn with_remainder<'q>(
    changes: impl Iterator<Item = OperationRef<'q>>,
    remainder: &'q Remainder,
) -> impl Iterator<Item = OperationRef<'q>> {
    let is_plain = remainder.next.is_none() && remainder.keys.is_empty();
    let is_listed = |change: &OperationRef<'_>| {
        remainder
            .next
            .as_ref()
            .is_none_or(|(keyspace, key)| (change.keyspace, change.key) < (*keyspace, &key[..]))
    };
    let mut changes = changes.take_while(is_listed).peekable();
    let removal =
        |(keyspace, key): &'q (KeyspaceId, Bytes)| OperationRef { keyspace: *keyspace, key, value: None };
    let mut removals = remainder.keys.iter().map(removal).peekable();
    std::iter::from_fn(move || {
        if is_plain {
            return changes.next();
        }
        let place = |change: &OperationRef<'q>| (change.keyspace, change.key);
        let order = match (changes.peek(), removals.peek()) {
            (Some(change), Some(removal)) => place(change).cmp(&place(removal)),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        if order.is_eq() {
            removals.next();
        }
        if order.is_le() { changes.next() } else { removals.next() }
    })
}

#[cfg(test)]
mod tests {
    use crate::background::cleanse::tests::damage;
    use crate::flow::memory::Need;
    use crate::operation::{KeyRange, KeyspaceId};
    use crate::storage::node::NodeId;
    use crate::tree::remove_blocks::{DROPPED_MAX, Remainder, drop_blocks, listed_len};
    use crate::tree::view::TreeView;
    use crate::version::builder::VersionBuilder;
    use crate::{Database, Durability, Keyspace};
    use bytes::Bytes;
    use psync::{Device, Simulated};
    use std::sync::Arc;

    fn filled(records: u32) -> (Database, Keyspace) {
        let builder = Database::builder().memory(4 << 20).leaf_len(512).background_threads(0);
        let db = builder.durability(Durability::Buffered).open_on(Arc::new(Simulated::new(1))).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..records).map(|number| (number.to_be_bytes(), [7; 100]))).unwrap();
        (db, keyspace)
    }

    /// Each range that drops a block had one, and nothing else came to the trees until the last.
    #[test]
    fn the_blocks_of_many_removed_ranges_go_with_one_edit() {
        let (db, keyspace) = filled(100_000);
        let engine = &db.handle.engine;
        let version = engine.state.version();
        let view = TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
        let mut blocks = vec![Bytes::new()];
        while let Some(next) = view.block_at(&blocks[blocks.len() - 1]).unwrap().unwrap().fence {
            blocks.push(next);
        }
        let mut batch = db.batch();
        // Every second block.
        let ranges = blocks[1..].chunks_exact(2);
        let count = ranges.len() as u64;
        ranges.for_each(|range| {
            batch.remove_range(&keyspace, range[0].clone()..range[1].clone());
        });
        let before = db.stats().writes.portions;
        batch.commit().unwrap();
        let left = keyspace.iter().count() as u64;
        let epoch = version.epoch;
        db.flush().unwrap();
        let portions = db.stats().writes.portions - before;
        let edits = engine.state.load().version.epoch - epoch;
        assert!(count > 50 && edits < count / 4, "{edits} edits, {portions} portions, {count} ranges");
        let checked = db.check().unwrap();
        assert_eq!((checked.records, keyspace.iter().count() as u64), (left, left));
    }

    /// Each portion of a flush listed what was left of all ranges once more.
    #[test]
    fn what_is_left_of_ranges_is_read_once_however_many_portions_there_are() {
        const RANGES: u32 = 400;
        let key = |number: u32| Bytes::copy_from_slice(&number.to_be_bytes());
        let read = |keys_of_portion: usize, bytes_max: usize| {
            let builder = Database::builder().memory(4 << 20).leaf_len(512).background_threads(0);
            let db = builder.open_on(Arc::new(Simulated::new(1))).unwrap();
            let keyspace = db.keyspace("main").unwrap();
            keyspace.ingest((0..40_000u32).map(|number| (number.to_be_bytes(), [7; 100]))).unwrap();
            let engine = &db.handle.engine;
            let version = engine.state.version();
            let first = |range: u32| 50 + 100 * range;
            let ranges: Vec<_> = (0..RANGES)
                .map(|range| (keyspace.id(), key(first(range)), Some(key(first(range) + 2))))
                .collect();
            let (mut listed, mut from) = (Vec::new(), (keyspace.id(), Bytes::new()));
            let mut remainder = Remainder::of(&ranges);
            loop {
                remainder.list((&engine.pager, &version), &ranges, &from, bytes_max).unwrap();
                let bytes: usize = remainder.keys.iter().map(listed_len).sum();
                assert!(bytes < bytes_max + 100 && remainder.keys.is_sorted());
                let count = keys_of_portion.min(remainder.keys.len());
                listed.extend_from_slice(&remainder.keys[..count]);
                let next = remainder.keys.get(count).cloned().or_else(|| remainder.next.clone());
                let Some(next) = next else { break };
                from = next;
            }
            let all = (0..RANGES).flat_map(|range| [key(first(range)), key(first(range) + 1)]);
            assert!(listed.into_iter().map(|(_, key)| key).eq(all));
            let reads = db.stats().reads;
            reads.cache_hits + reads.cache_misses
        };
        let at_once = read(usize::MAX, usize::MAX >> 1);
        let in_portions = read(10, 100 * listed_len(&(KeyspaceId(1), key(1))));
        assert!(in_portions < at_once + at_once / 2, "{in_portions} nodes, and {at_once} at once");
    }

    /// Only the bytes of the changes were looked at: all of these trees were rewritten with one portion, for which there was no space.
    #[test]
    fn a_full_disk_lets_records_be_removed_from_many_trees_of_one_leaf() {
        let volume = Simulated::new(1);
        let builder = Database::builder().memory(4 << 20).background_threads(0);
        let db = builder.durability(Durability::Buffered).open_on(Arc::new(volume.clone())).unwrap();
        let names: Vec<_> = (0..4000).map(|number| format!("small {number}")).collect();
        let mut keyspaces: Vec<Keyspace> = Vec::new();
        for names in names.chunks(200) {
            let made = names.iter().map(|name| db.keyspace(name).unwrap());
            let made: Vec<_> = made.collect();
            let mut batch = db.batch();
            for keyspace in &made {
                (0..30u8).for_each(|number| _ = batch.insert(keyspace, [number], [7; 100]));
            }
            batch.commit().unwrap();
            keyspaces.extend(made);
        }
        db.compact().unwrap();
        let live = db.handle.engine.state.load().version.live_bytes();
        assert!(live > 10 << 20, "{live} bytes");
        volume.set_capacity(volume.used());
        let mut batch = db.batch();
        keyspaces.iter().for_each(|keyspace| _ = batch.remove(keyspace, [7]));
        batch.commit().unwrap();
        db.flush().unwrap();
        assert!(keyspaces.iter().all(|keyspace| keyspace.iter().count() == 29));
    }

    /// What a version builder drops was bounded within a tree, and not over many.
    #[test]
    fn what_is_dropped_with_one_edit_is_bounded_over_trees() {
        let (db, keyspace) = filled(100);
        let engine = &db.handle.engine;
        let version = engine.state.version();
        let tree = version.trees.get(&keyspace.id()).unwrap();
        assert_eq!(tree.height, 1, "a block");
        let mut guard = engine.writer().lock(Need::default()).unwrap();
        let mut builder = VersionBuilder::begin(Arc::clone(&version), &engine.pager, guard.get().unwrap());
        let range = KeyRange { keyspace: keyspace.id(), from: &[], to: None };
        builder.edit_mut().freed.resize(DROPPED_MAX, NodeId(u64::MAX));
        assert!(drop_blocks(&mut builder, tree, &[range], engine.shares.node_len).unwrap());
        assert!(builder.edit_mut().trees.is_empty());
        builder.edit_mut().freed.clear();
        assert!(!drop_blocks(&mut builder, tree, &[range], engine.shares.node_len).unwrap());
        assert_eq!(builder.edit_mut().trees.len(), 1);
        let is_long = |builder: &mut VersionBuilder<'_>, trees| {
            let tree = builder.edit_mut().trees[0].clone();
            builder.edit_mut().trees.resize(trees, tree);
            builder.is_long()
        };
        assert!(!is_long(&mut builder, 1000) && is_long(&mut builder, 100_000), "names are in the edit");
    }

    /// Each leaf was read only to learn its key, which its block has; and one that could not be read ended all writing.
    #[test]
    fn long_records_of_a_removed_range_are_not_read() {
        let volume = Simulated::new(1);
        let open = || {
            let builder = Database::builder().memory(4 << 20).background_threads(0);
            builder.open_on(Arc::new(volume.clone())).unwrap()
        };
        let db = open();
        let keyspace = db.keyspace("main").unwrap();
        let long = (0..200u32).map(|number| (number.to_be_bytes(), vec![number as u8; 60_000]));
        let short = (200..300u32).map(|number| (number.to_be_bytes(), vec![0; 100]));
        keyspace.ingest(long.chain(short)).unwrap();
        drop((keyspace, db));
        let db = open();
        let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
        let version = engine.state.version();
        let view = TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
        let block = view.node(view.block_at(&30u32.to_be_bytes()).unwrap().unwrap().id, 1).unwrap();
        let leaf = block.child(block.child_for(&30u32.to_be_bytes()));
        damage(&volume, &db, version.table.address(leaf).unwrap());
        assert!(keyspace.get(30u32.to_be_bytes()).is_err());
        let before = volume.counters().bytes_read;
        for bounds in [[20u32, 50], [100, 250]] {
            keyspace.remove_range(bounds[0].to_be_bytes()..bounds[1].to_be_bytes()).unwrap();
        }
        db.flush().unwrap();
        let read = volume.counters().bytes_read - before;
        assert!(read < 1 << 20, "{read} bytes");
        let left = (0..20u32).chain(50..100).chain(250..300).map(u32::to_be_bytes);
        assert!(keyspace.iter().of_keys().map(|key| key.unwrap().0.to_vec()).eq(left.map(Vec::from)));
        db.compact().unwrap();
        db.check().unwrap();
        drop((keyspace, db));
        open().check().unwrap();
    }
}
