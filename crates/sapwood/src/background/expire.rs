//! Removes expired records from leaves, so that their space comes back. (What has expired in queues and log areas goes when it
//! comes to the leaves, and what lies beside other changes goes with those: [`crate::tree::bupdate`].)
//!
//! ```text
//! segment    written ………………… half of what expires in its leaves has ─▶ read once: expired keys ─▶ their blocks cleansed with
//!            by when is kept with it                                                            removals of them
//! ```
//! A segment's leaves were written together, so that much of it often expires together. No keyspace is walked through. Waiting for
//! half of it bounds the space, as a multiple of what is alive, and what is written for those that stay.
//!
//! Invariants:
//! 1. The removal of a key is older than what the log area of its block has for the key.
//! 2. A segment counts as done only with the edit that removes its last expired records.

use crate::background::context::WorkContext;
use crate::background::garbage_collection::{Failed, GcUrgency, Spared, group_len};
use crate::background::live_nodes::LiveNodes;
use crate::cache::pager::ReadMode;
use crate::error::Result;
use crate::expiry::is_expired;
use crate::operation::{KeyspaceId, OperationRef};
use crate::publish::{PublishContext, TreesChange};
use crate::storage::mapping_table::Address;
use crate::storage::node::{Node, NodeId};
use crate::storage::segment::SegmentUse;
use crate::storage::writer::Writer;
use crate::tree::bupdate::bupdate;
use crate::tree::change_buffer::LeafChangeBuffer;
use crate::tree::cleanse::{Cleansing, cleanse};
use crate::tree::view::{Block, TreeView};
use crate::version::Version;
use crate::version::builder::VersionBuilder;
use crate::version::edit::Edit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of nodes that are read together, and at least one: enough requests for the device, and little memory.
const READ: usize = 256 << 10;

/// While writes come a segment is not read for less than this part (1/8) of its live bytes.
const MUCH: u64 = 8;

/// Writers are not delayed before this part (1/8) of the live bytes has expired.
const PRESSING: u64 = 8;

/// See the module documentation.
pub(crate) struct Expirer {
    ctx: Arc<WorkContext>,
    /// The position up to which the segment in work was done.
    done_to: AtomicU64,
    /// The time when the first portion of that was read: what expires later may be left in it.
    begun_at: AtomicU64,
    live: LiveNodes,
}

/// Keys of expired records, one behind the other in one allocation.
#[derive(Default)]
struct ExpiredKeys {
    bytes: Vec<u8>,
    /// Keyspace, and where the key begins and ends.
    keys: Vec<(KeyspaceId, u32, u32)>,
}

impl ExpiredKeys {
    /// Adds those of a leaf.
    fn add(&mut self, leaf: &Node, now: u64) {
        for index in 0..leaf.count() {
            let (key, stored) = leaf.record(index);
            if is_expired(stored, now) {
                let start = self.bytes.len();
                self.bytes.extend_from_slice(key);
                self.keys.push((leaf.name().keyspace, start as u32, self.bytes.len() as u32));
            }
        }
    }

    fn key(&self, (_, start, end): (KeyspaceId, u32, u32)) -> &[u8] {
        &self.bytes[start as usize..end as usize]
    }

    /// The keys of one keyspace after the other, in order.
    fn sorted(&mut self) -> Vec<(KeyspaceId, Vec<&[u8]>)> {
        let mut keys = std::mem::take(&mut self.keys);
        keys.sort_unstable_by(|a, b| (a.0, self.key(*a)).cmp(&(b.0, self.key(*b))));
        let of_keyspace = keys.chunk_by(|a, b| a.0 == b.0);
        of_keyspace.map(|keys| (keys[0].0, keys.iter().map(|key| self.key(*key)).collect())).collect()
    }
}

fn removals_of<'k>(keyspace: KeyspaceId, keys: impl Iterator<Item = &'k &'k [u8]>) -> Vec<OperationRef<'k>> {
    keys.map(|key| OperationRef { keyspace, key, value: None }).collect()
}

/// Whether removing what had expired by `now` is worth reading the segment. Without an urgency it always is.
fn is_worth_reading(entry: &SegmentUse, now: u64, urgency: Option<GcUrgency>) -> bool {
    let expired = entry.expiring.expired(now);
    let is_half = expired >= entry.expiring.expired(u64::MAX) / 2;
    let is_much = expired >= entry.live / MUCH;
    expired > 0
        && match urgency {
            None => true,
            Some(GcUrgency::AtRest) => is_half,
            Some(GcUrgency::AtWork | GcUrgency::InAHurry) => is_half && is_much,
        }
}

/// The segments, oldest first, that are worth reading, but for those that could not be read.
fn worth_reading<'v>(
    version: &'v Version,
    now: u64,
    urgency: Option<GcUrgency>,
    spared: &Spared,
) -> impl Iterator<Item = &'v SegmentUse> {
    let is_left = |entry: &&SegmentUse| !spared.unreadable.contains(&entry.segment.number);
    version.segments.iter().filter(move |entry| is_worth_reading(entry, now, urgency)).filter(is_left)
}

impl Expirer {
    pub fn new(ctx: Arc<WorkContext>) -> Self {
        Self { ctx, done_to: AtomicU64::new(0), begun_at: AtomicU64::new(0), live: LiveNodes::default() }
    }

    /// Whether there are records to remove, as far as that is worth it now.
    pub fn has_expired(&self, version: &Version, urgency: Option<GcUrgency>, spared: &Spared) -> bool {
        if version.clock == 0 {
            return false;
        }
        let now = self.ctx.clock.now();
        let mut bytes =
            worth_reading(version, now, urgency, spared).map(|entry| entry.expiring.expired(now)).peekable();
        bytes.peek().is_some()
            && (urgency != Some(GcUrgency::InAHurry) || bytes.sum::<u64>() >= version.live_bytes() / PRESSING)
    }

    /// The manifest learns what time it is, before anything goes that has expired by then.
    pub fn tell_time(&self) -> Result<()> {
        let told = self.ctx.state.load().version.clock;
        if told == 0 || told == self.ctx.clock.now() {
            return Ok(());
        }
        // The publisher adds the time.
        self.ctx.publisher.publish(Edit::default(), PublishContext::default())
    }

    /// Removes some of the expired records. Returns whether it has.
    pub fn expire_some(
        &self,
        writer: &mut Writer,
        urgency: Option<GcUrgency>,
        spared: &Spared,
    ) -> std::result::Result<bool, Failed> {
        let version = || self.ctx.state.version();
        let mut base = version();
        if !self.has_expired(&base, urgency, spared) {
            return Ok(false);
        }
        let oldest = |base: &Version| {
            worth_reading(base, base.clock, urgency, spared).next().map(|entry| entry.segment.number)
        };
        let segment = match oldest(&base) {
            Some(segment) => segment,
            // It has expired since the last edit.
            None => {
                self.tell_time().map_err(Failed::Other)?;
                base = version();
                let Some(segment) = oldest(&base) else { return Ok(false) };
                segment
            }
        };
        self.expire_in(writer, &base, segment).map(|()| true)
    }

    /// Removes some of the records that had expired by a time which the manifest knows. Returns whether it has.
    pub fn expire_by(
        &self,
        writer: &mut Writer,
        time: u64,
        spared: &Spared,
    ) -> std::result::Result<bool, Failed> {
        let base = self.ctx.state.version();
        let oldest = worth_reading(&base, time, None, spared).next().map(|entry| entry.segment.number);
        let Some(segment) = oldest else { return Ok(false) };
        self.expire_in(writer, &base, segment).map(|()| true)
    }

    /// Removes expired records of a segment: all, or as many as go at once.
    fn expire_in(
        &self,
        writer: &mut Writer,
        base: &Arc<Version>,
        segment: u64,
    ) -> std::result::Result<(), Failed> {
        self.expire_portion(writer, base, segment).map_err(|error| match error.is_of_reading() {
            true => Failed::Reading(segment, error),
            false => Failed::Other(error),
        })
    }

    fn expire_portion(&self, writer: &mut Writer, base: &Arc<Version>, segment: u64) -> Result<()> {
        let now = base.clock;
        let nodes = self.live.of(base, &[segment], |budget| {
            let (mut bytes, spared) = (0, Spared::default());
            let is_next = |entry: &&SegmentUse| {
                bytes += entry.live;
                bytes <= budget
            };
            let next = worth_reading(base, now, None, &spared).take_while(is_next);
            next.map(|entry| entry.segment.number).collect()
        });
        let left = nodes.partition_point(|(_, address)| address.position.0 < self.done_to.load(Relaxed));
        let is_this = nodes.get(left).is_some_and(|_| self.done_to.load(Relaxed) / base.span == segment);
        let nodes = if is_this { &nodes[left..] } else { &nodes[..] };
        let begun = if is_this { self.begun_at.load(Relaxed) } else { base.clock };
        let budget = self.ctx.cleansing_portion(base.live_bytes());
        let mut expired = ExpiredKeys::default();
        let read = self.read(base, nodes, budget, &mut expired)?;
        let report = |bytes| self.ctx.progress.copied(bytes);
        let mut builder = VersionBuilder::begin(Arc::clone(base), &self.ctx.pager, writer).reporting(&report);
        for (keyspace, keys) in expired.sorted() {
            self.remove(&mut builder, keyspace, &keys)?;
        }
        let behind = nodes.get(read).map(|(_, address)| address.position.0);
        if behind.is_none() {
            builder.clear_expired(segment, begun);
        }
        self.ctx.publisher.commit_version(builder, TreesChange::Same)?;
        // Together: another segment may be tried in between, and fail.
        self.done_to.store(behind.unwrap_or(0), Relaxed);
        self.begun_at.store(begun, Relaxed);
        self.ctx.reclaim_by_steps(false);
        Ok(())
    }

    /// Reads nodes until their leaves have so many bytes, and finds what has expired in them. Returns how many were read.
    fn read(
        &self,
        base: &Version,
        nodes: &[(NodeId, Address)],
        budget: u64,
        expired: &mut ExpiredKeys,
    ) -> Result<usize> {
        let (mut read, mut taken) = (0, 0);
        while taken < budget && read < nodes.len() {
            let rest = &nodes[read..];
            let count = group_len(rest, self.ctx.pager.pio_max(), READ, Address::memory_len);
            for node in self.ctx.pager.fetch(&base.segments, &rest[..count], ReadMode::Prefetched)? {
                let tree = || base.trees.get(&node.name().keyspace);
                if node.level() == 0 && tree().is_some_and(|tree| tree.ttl.is_some()) {
                    taken += node.bytes().len() as u64;
                    expired.add(&node, base.clock);
                }
            }
            read += count;
        }
        Ok(read)
    }

    /// Removes the records of these keys from the leaves, together with what the log areas of their blocks have.
    fn remove(&self, builder: &mut VersionBuilder<'_>, keyspace: KeyspaceId, keys: &[&[u8]]) -> Result<()> {
        let (base, pager) = (Arc::clone(builder.base()), Arc::clone(&self.ctx.pager));
        let view = TreeView { pager: &pager, version: &base, keyspace };
        let mut removals = LeafChangeBuffer::new(pager.reader.buffers().clone());
        let mut rest = keys;
        while let Some(first) = rest.first() {
            let Some(Block { id: block, fence }) = view.block_at(first)? else {
                // The tree is one leaf, without a log area.
                removals.lend(removals_of(keyspace, rest.iter()));
                break;
            };
            let count = fence.map_or(rest.len(), |fence| rest.partition_point(|key| *key < &fence[..]));
            let (of_block, others) = rest.split_at(count);
            rest = others;
            let area = view.log(block).cloned();
            // What the area has for a key is newer than the leaf's record.
            let is_newest =
                |key: &&&[u8]| area.as_ref().is_none_or(|area| area.candidates(key).next().is_none());
            let changes = removals_of(keyspace, of_block.iter().filter(is_newest));
            cleanse(view, builder, vec![Cleansing { block, area, changes }], &mut removals)?;
        }
        bupdate(builder, keyspace, &mut removals.into_iter().peekable(), self.ctx.memory.shares.node_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Database, KeyspaceOptions};
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
    use std::time::{Duration, UNIX_EPOCH};

    /// What expires while a segment is worked through, in the part of it that was, is removed later.
    #[test]
    fn records_that_expire_between_two_portions_are_not_forgotten() {
        let seconds = Arc::new(AtomicU64::new(1000));
        let clock = Arc::clone(&seconds);
        let builder = Database::builder().memory(4 << 20).segment_span(4 << 20).background_threads(0);
        let builder = builder.clock(move || UNIX_EPOCH + Duration::from_secs(clock.load(Relaxed)));
        let db = builder.open_on(Arc::new(Simulated::new(1)) as Arc<dyn Volume>).unwrap();
        let options = KeyspaceOptions::new().expiring().compression(crate::Compression::Lz4);
        let keyspace = db.keyspace_with("main", options).unwrap();
        // The first leaves have what expires later, and all are one segment, which is read in portions.
        let mut batch = db.batch();
        for number in 0..60_000u32 {
            let at = UNIX_EPOCH + Duration::from_secs(if number < 2000 { 1020 } else { 1010 });
            batch.insert_expiring(&keyspace, number.to_be_bytes(), [7; 400], crate::Expiry::At(at));
            if batch.byte_len() > 200_000 {
                batch.durability(crate::Durability::Buffered).commit().unwrap();
            }
        }
        batch.commit().unwrap();
        db.compact().unwrap();
        let engine = &db.handle.engine;
        let expirer = &engine.background.cleanser.collector.expirer;
        let spared = Spared::default();
        let some = || {
            let mut guard = engine.writer().lock(Default::default()).unwrap();
            expirer.expire_some(guard.get().unwrap(), None, &spared).map_err(|_| "it fails").unwrap()
        };
        seconds.store(1010, Relaxed);
        assert!(some() && expirer.done_to.load(Relaxed) > 0, "there is a second portion");
        seconds.store(1020, Relaxed);
        expirer.tell_time().unwrap();
        while some() {}
        db.compact().unwrap();
        assert_eq!(db.check().unwrap().records, 0);
    }

    /// The segment in work counted as begun when the other one was, which could not be read.
    #[test]
    fn a_segment_that_fails_between_two_portions_of_another_makes_none_forgotten() {
        let (volume, seconds) = (Simulated::new(1), Arc::new(AtomicU64::new(1000)));
        let clock = Arc::clone(&seconds);
        let builder = Database::builder().memory(4 << 20).segment_span(4 << 20).background_threads(0);
        let builder = builder.clock(move || UNIX_EPOCH + Duration::from_secs(clock.load(Relaxed)));
        let db = builder.open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).unwrap();
        let fill = |name: &str, options: KeyspaceOptions, count: u32, expires: &dyn Fn(u32) -> u64| {
            let keyspace = db.keyspace_with(name, options.expiring()).unwrap();
            let mut batch = db.batch();
            for number in 0..count {
                let at = UNIX_EPOCH + Duration::from_secs(expires(number));
                batch.insert_expiring(&keyspace, number.to_be_bytes(), [7; 400], crate::Expiry::At(at));
                if batch.byte_len() > 200_000 {
                    batch.durability(crate::Durability::Buffered).commit().unwrap();
                }
            }
            batch.commit().unwrap();
            db.compact().unwrap();
        };
        let engine = &db.handle.engine;
        fill("older", KeyspaceOptions::new(), 15_000, &|_| 1015);
        // The first leaves have what expires later.
        let options = KeyspaceOptions::new().compression(crate::Compression::Lz4);
        fill("main", options, 60_000, &|number| if number < 2000 { 1020 } else { 1010 });
        let expirer = &engine.background.cleanser.collector.expirer;
        let mut spared = Spared::default();
        let some = |spared: &Spared| {
            let mut guard = engine.writer().lock(Default::default()).unwrap();
            expirer.expire_some(guard.get().unwrap(), None, spared)
        };
        // Behind these leaves the rest of their segment is another portion.
        let version = engine.state.version();
        let main = db.keyspace("main").unwrap().id();
        let view = TreeView { pager: &engine.pager, version: &version, keyspace: main };
        let position = |number: u32| {
            let key = number.to_be_bytes();
            let block = view.node(view.block_at(&key).unwrap().unwrap().id, 1).unwrap();
            version.table.address(block.child(block.child_for(&key))).unwrap().position.0
        };
        let last = (0..2000).map(position).max().unwrap();
        drop(version);
        seconds.store(1010, Relaxed);
        while expirer.done_to.load(Relaxed) <= last {
            assert!(matches!(some(&spared), Ok(true)));
        }
        seconds.store(1020, Relaxed);
        expirer.tell_time().unwrap();
        let reads = Filter::kinds([OperationKind::Read]).file("data");
        volume.fail_nth(reads, 1, Fault::Error, Repeat::Once);
        let Err(Failed::Reading(first, _)) = some(&spared) else { panic!("it cannot be read") };
        let version = engine.state.version();
        let in_work = expirer.done_to.load(Relaxed) / version.span;
        assert!(first < in_work, "another one is in work");
        // It goes on before any other.
        let others = version.segments.iter().map(|entry| entry.segment.number);
        spared.unreadable.extend(others.filter(|segment| *segment != in_work));
        drop(version);
        while matches!(some(&spared), Ok(true)) {}
        while matches!(some(&Spared::default()), Ok(true)) {}
        let version = engine.state.version();
        assert_eq!(version.trees.iter().map(|(_, tree)| tree.len).sum::<u64>(), 0);
    }

    /// It went on as long as anything expired, so for ever if that was written meanwhile.
    #[test]
    fn compaction_removes_what_had_expired_when_it_began_and_ends() {
        let (seconds, step) = (Arc::new(AtomicU64::new(1000)), Arc::new(AtomicU64::new(0)));
        let clock = (Arc::clone(&seconds), Arc::clone(&step));
        let builder = Database::builder().memory(4 << 20).segment_span(1 << 20).background_threads(0);
        // Time goes on with each look at the clock.
        let now = move || clock.0.fetch_add(clock.1.load(Relaxed), Relaxed);
        let builder = builder.clock(move || UNIX_EPOCH + Duration::from_secs(now()));
        let db = builder.open_on(Arc::new(Simulated::new(1)) as Arc<dyn Volume>).unwrap();
        let keyspace = db.keyspace_with("main", KeyspaceOptions::new().expiring()).unwrap();
        let mut batch = db.batch();
        for number in 0..20_000u32 {
            let at = UNIX_EPOCH + Duration::from_secs(1100 + u64::from(number));
            batch.insert_expiring(&keyspace, number.to_be_bytes(), [7; 400], crate::Expiry::At(at));
            if batch.byte_len() > 200_000 {
                batch.durability(crate::Durability::Buffered).commit().unwrap();
            }
        }
        batch.commit().unwrap();
        db.compact().unwrap();
        let version = || db.handle.engine.state.version();
        let left = || version().trees.get(&keyspace.id()).unwrap().len;
        assert_eq!(left(), 20_000);
        seconds.store(6000, Relaxed);
        step.store(400, Relaxed);
        db.compact().unwrap();
        assert!((5000..=15_100).contains(&left()), "{} records are left", left());
    }

    /// A segment that cannot be read is left alone, and all else goes; a full disk keeps nothing from being collected.
    #[test]
    fn what_cannot_be_removed_now_keeps_nothing_else() {
        for fault in [None, Some(Fault::Error), Some(Fault::NoSpace)] {
            let (volume, seconds) = (Simulated::new(1), Arc::new(AtomicU64::new(1000)));
            let clock = Arc::clone(&seconds);
            let builder = Database::builder().memory(4 << 20).segment_span(1 << 20).background_threads(0);
            let builder = builder.clock(move || UNIX_EPOCH + Duration::from_secs(clock.load(Relaxed)));
            let db = builder.open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).unwrap();
            let life = KeyspaceOptions::new().time_to_live(Duration::from_secs(10));
            let keyspace = db.keyspace_with("main", life).unwrap();
            keyspace.ingest((0..60_000u32).map(|number| (number.to_be_bytes(), [7; 100]))).unwrap();
            let engine = &db.handle.engine;
            let full = engine.state.load().version.live_bytes();
            seconds.store(1010, Relaxed);
            match fault {
                None => {}
                Some(Fault::NoSpace) => {
                    let writes = Filter::kinds([OperationKind::Write]).file("data");
                    volume.fail_nth(writes, 1, Fault::NoSpace, Repeat::Once);
                }
                Some(fault) => {
                    let reads = Filter::kinds([OperationKind::Read]).file("data");
                    volume.fail_nth(reads, 1, fault, Repeat::Once);
                }
            }
            let collector = &engine.background.cleanser.collector;
            let tidied = engine.writer().lock(Default::default()).and_then(|mut guard| {
                collector.tidy_up(guard.get()?, GcUrgency::AtRest)?;
                collector.tidy_up(guard.get()?, GcUrgency::AtRest)
            });
            tidied.unwrap();
            engine.health.check_writable().unwrap();
            let left = engine.state.load().version.live_bytes();
            let most = if fault == Some(Fault::Error) { full / 4 } else { full / 100 };
            assert!(left <= most, "{fault:?}: {left} of {full} bytes");
            assert_eq!(left > full / 100, fault == Some(Fault::Error), "{fault:?}");
            assert_eq!(keyspace.iter().count(), 0);
            db.check().unwrap();
            keyspace.insert("key", "value").unwrap();
            db.compact().unwrap();
            assert_eq!(keyspace.iter().count(), 1);
        }
    }
}
