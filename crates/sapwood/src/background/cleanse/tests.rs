//! Cleansing of an open database: what is left to do after a full disk, and what reading ahead leaves in memory.

use crate::background::cleanse::Growth;
use crate::cache::pager::{FILE, ReadMode};
use crate::flow::memory::Need;
use crate::log_area::RUNS_MAX;
use crate::operation::KeyspaceId;
use crate::storage::mapping_table::Address;
use crate::storage::reader::InFlightLimit;
use crate::tree::candidates;
use crate::tree::cleanse::to_leaves;
use crate::tree::cleansing_cursor::CleansingTask;
use crate::tree::cleansing_prefetch::prefetch_for_cleansing;
use crate::tree::view::TreeView;
use crate::version::builder::VersionBuilder;
use crate::{Database, Error, Keyspace};
use bytes::Bytes;
use psync::{Disk, DiskOptions, Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// Records in blocks that all have log pieces, for a third of their leaves, and all of the blocks as due.
pub(crate) fn with_due(
    volume: &Simulated,
    threads: usize,
    records: u32,
) -> (Database, Keyspace, Vec<CleansingTask>) {
    with_due_on(Arc::new(volume.clone()), threads, records)
}

fn with_due_on(
    volume: Arc<dyn Volume>,
    threads: usize,
    records: u32,
) -> (Database, Keyspace, Vec<CleansingTask>) {
    let db = Database::builder().memory(8 << 20).background_threads(threads).open_on(volume).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    keyspace.ingest((0..records).map(|number| (number.to_be_bytes(), [0; 100]))).unwrap();
    let mut batch = db.batch();
    for number in (0..records).step_by(105) {
        batch.insert(&keyspace, number.to_be_bytes(), [1; 100]);
    }
    batch.commit().unwrap();
    db.flush().unwrap();
    let due = all_due(&db, &keyspace);
    assert!(due.len() > 15, "{} blocks", due.len());
    (db, keyspace, due)
}

/// All blocks of a keyspace, which all have log pieces.
pub(crate) fn all_due(db: &Database, keyspace: &Keyspace) -> Vec<CleansingTask> {
    let engine = &db.handle.engine;
    let version = engine.state.version();
    let view = TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
    let (mut due, mut low) = (Vec::new(), Some(Bytes::new()));
    while let Some(at) = low.take() {
        let block = view.block_at(&at).unwrap().unwrap();
        assert!(view.log(block.id).is_some());
        due.push(CleansingTask::new(keyspace.id(), at, 200 << 10, false));
        low = block.fence;
    }
    due
}

/// The same without a background thread, and cleansed: more is dead than is left to later flushes.
pub(crate) fn cleansed(records: u32) -> Database {
    cleansed_on(&Simulated::new(1), records)
}

pub(crate) fn cleansed_on(volume: &Simulated, records: u32) -> Database {
    let (db, _, due) = with_due(volume, 0, records);
    let engine = &db.handle.engine;
    let mut guard = engine.writer().lock(Need::default()).unwrap();
    let mut left = &due[..];
    while !left.is_empty() {
        left = engine.background.cleanser.cleanse_portion(guard.get().unwrap(), left, u64::MAX).unwrap();
    }
    drop(guard);
    assert!(
        engine
            .background
            .cleanser
            .collector
            .has_to_collect(crate::background::garbage_collection::GcUrgency::AtRest)
    );
    db
}

/// Flips a bit of a node on the device, and drops it from the cache.
pub(crate) fn damage(volume: &Simulated, db: &Database, node: Address) {
    let engine = &db.handle.engine;
    let version = engine.state.version();
    let at = version.segments.file_offset(node.position, node.len() as usize, version.span).unwrap();
    volume.flip_bit(FILE, at + u64::from(node.len()) / 2, 1).unwrap();
    engine.pager.forget(node.position);
}

/// Each flush came to that block first, failed there, and left all the others.
#[test]
fn a_block_that_cannot_be_read_is_stepped_over() {
    let volume = Simulated::new(1);
    let (db, keyspace, due) = with_due(&volume, 0, 80_000);
    let engine = &db.handle.engine;
    let version = engine.state.version();
    let view = TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
    let damaged = view.block_at(&due[3].low).unwrap().unwrap().id;
    let block = view.node(damaged, 1).unwrap();
    let (_, leaf) = view.leaves_of(&block).next().unwrap();
    damage(&volume, &db, leaf);
    let mut left = &due[..];
    let mut guard = engine.writer().lock(Need::default()).unwrap();
    engine
        .background
        .ctx
        .or_poison(|| engine.background.cleanser.cleanse_due(guard.get()?, &mut left))
        .unwrap();
    drop(guard);
    assert!(left.is_empty());
    let version = engine.state.version();
    assert_eq!(version.logs.iter().map(|(block, _)| block).collect::<Vec<_>>(), [damaged]);
    keyspace.insert(u32::MAX.to_be_bytes(), "behind all").unwrap();
    db.flush().unwrap();
    assert!(db.check().unwrap_err().is_damage());
}

/// All of them were counted as work undone.
#[test]
fn on_a_full_disk_only_what_was_not_cleansed_is_left() {
    let mut seen = Vec::new();
    for nth in 1..100 {
        let volume = Simulated::new(1);
        let (db, _, due) = with_due(&volume, 0, 80_000);
        let engine = &db.handle.engine;
        let writes = Filter::kinds([OperationKind::Write]).file("data");
        volume.fail_nth(writes, nth, Fault::NoSpace, Repeat::Sticky);
        let mut left = &due[..];
        let mut guard = engine.writer().lock(Need::default()).unwrap();
        let result = engine.background.cleanser.cleanse_due(guard.get().unwrap(), &mut left);
        let cleansed = engine.flush.counters.blocks_cleansed.load(Relaxed) as usize;
        assert_eq!(left.len(), due.len() - cleansed);
        match result {
            Ok(()) => break,
            Err(error) => assert!(error.is_disk_full(), "{error}"),
        }
        seen.push(cleansed);
    }
    assert!(seen.first() == Some(&0) && seen.iter().any(|cleansed| *cleansed > 0), "{seen:?}");
}

/// Leaves that one knows by heart.
#[test]
fn what_areas_say_of_their_leaves_is_so() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let mut seen = 0;
    for round in 0..60u32 {
        let mut batch = db.batch();
        for at in 0..1500u32 {
            let number = (round * 1500 + at).wrapping_mul(2_654_435_761) % 40_000;
            match number % 7 {
                0 if round > 30 => batch.remove(&keyspace, number.to_be_bytes()),
                _ => batch.insert(&keyspace, number.to_be_bytes(), vec![8; 60 + number as usize % 80]),
            };
        }
        batch.commit().unwrap();
        db.flush().unwrap();
        let engine = &db.handle.engine;
        let version = engine.state.version();
        let view = TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
        for (block, area) in version.logs.iter() {
            let block = view.node(block, 1).unwrap();
            let counted: u64 = view.leaves_of(&block).map(|(_, leaf)| u64::from(leaf.len())).sum();
            assert_eq!(view.leaf_bytes(&block), counted, "round {round}");
            seen += usize::from(area.run_count() > 3);
        }
        let behind = 1_000_000 * (round + 1);
        if round % 10 == 9 {
            keyspace.ingest((behind..behind + 3000).map(|number| (number.to_be_bytes(), [3; 100]))).unwrap();
        }
    }
    assert!(seen > 50, "{seen}");
    assert!(db.stats().writes.blocks_cleansed > 50);
}

/// At 64 runs a block had to be cleansed within the flush, and all that were loaded together had as many at the same time.
#[test]
fn blocks_are_cleansed_before_they_have_all_the_layers_they_may_have() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(4 << 20).background_threads(0).open_on(volume).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    keyspace.ingest((0..40_000u32).map(|number| (number.to_be_bytes(), [0; 100]))).unwrap();
    let (mut most, mut cleansed) = (0, Vec::new());
    for flush in 0..2 * RUNS_MAX as u32 {
        let mut batch = db.batch();
        // One or two for a block: their logs are far from being a good share of their leaves.
        for number in (flush..40_000).step_by(1000) {
            batch.insert(&keyspace, number.to_be_bytes(), [1; 100]);
        }
        batch.commit().unwrap();
        let before = db.stats().writes.blocks_cleansed;
        db.flush().unwrap();
        cleansed.push(db.stats().writes.blocks_cleansed - before);
        let version = db.handle.engine.state.version();
        most = version.logs.iter().map(|(_, area)| area.run_count()).max().unwrap_or(0).max(most);
    }
    assert!((RUNS_MAX / 2..RUNS_MAX).contains(&most), "{most}");
    assert!(cleansed.iter().filter(|blocks| **blocks > 0).count() > 10, "not all at once: {cleansed:?}");
}

/// The read-ahead waits for room only when the flush waits for nothing that he has in flight.
#[test]
fn reading_ahead_and_the_flush_do_not_wait_for_one_another() {
    let directory = tempfile::tempdir().unwrap();
    // A simulated disk has read when it has begun.
    let disk = Disk::open(directory.path(), DiskOptions { create: true, ..DiskOptions::default() }).unwrap();
    let (db, _, due) = with_due_on(Arc::new(disk), 0, 80_000);
    let engine = &db.handle.engine;
    let version = engine.state.version();
    let keyspace = due[0].keyspace;
    let view = TreeView { pager: &engine.pager, version: &version, keyspace };
    for (limit, ahead) in [(200 << 10, 3200 << 10), (600 << 10, 3200 << 10), (8 << 20, 8 << 20)] {
        let (blocks, _) = candidates::next(view, Bytes::new(), &mut candidates::Limits::none()).unwrap();
        let prefetch = &engine.pager.prefetch;
        let ahead_count = || engine.pager.counters.total(|counters| &counters.ahead);
        let before = ahead_count();
        std::thread::scope(|scope| {
            let open = prefetch.open(limit);
            let reader = scope.spawn(|| {
                prefetch_for_cleansing(prefetch, &engine.pager, &due, || Arc::clone(&version), ahead);
            });
            let mut guard = engine.writer().lock(Need::default()).unwrap();
            let mut builder =
                VersionBuilder::begin(Arc::clone(&version), &engine.pager, guard.get().unwrap());
            // So that something is here, and the rest has no room.
            while prefetch.bytes() == 0 {
                assert!(!reader.is_finished(), "{limit}");
                std::thread::yield_now();
            }
            to_leaves(view, &mut builder, blocks, engine.shares.node_len).unwrap();
            drop(open);
            reader.join().unwrap();
        });
        assert!(ahead_count() > before, "{limit}");
        assert_eq!(prefetch.bytes(), 0);
    }
}

/// Of blocks that few changes go to most leaves are read ahead for nothing, and were kept until the portion was done.
#[test]
fn what_is_read_ahead_for_nothing_goes_with_its_block() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let options = Database::builder().memory(16 << 20).segment_span(1 << 20).background_threads(0);
    let db = options.open_on(volume).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    for every in [1, 200] {
        for from in (0..16_000u32).step_by(2000) {
            let mut batch = db.batch();
            for number in (from..from + 2000).step_by(every) {
                batch.insert(&keyspace, number.to_be_bytes(), [every as u8; 200]);
            }
            batch.commit().unwrap();
        }
        db.flush().unwrap();
    }
    let engine = &db.handle.engine;
    let version = engine.state.version();
    let keyspace = KeyspaceId(version.last_keyspace);
    let view = TreeView { pager: &engine.pager, version: &version, keyspace };
    let (mut due, mut from) = (Vec::new(), Some(Bytes::new()));
    while let Some(low) = from.take() {
        from = view.block_at(&low).unwrap().unwrap().fence;
        due.push(CleansingTask::new(keyspace, low, 0, false));
    }
    let (blocks, _) = candidates::next(view, Bytes::new(), &mut candidates::Limits::none()).unwrap();
    assert!(blocks.len() >= 5 && blocks.len() == due.len(), "{} of {}", blocks.len(), due.len());
    let prefetch = &engine.pager.prefetch;
    let _open = prefetch.open(64 << 20);
    prefetch_for_cleansing(prefetch, &engine.pager, &due, || Arc::clone(&version), 64 << 20);
    let all = prefetch.bytes();
    let mut guard = engine.writer().lock(Need::default()).unwrap();
    let mut builder = VersionBuilder::begin(Arc::clone(&version), &engine.pager, guard.get().unwrap());
    to_leaves(view, &mut builder, blocks, engine.shares.node_len).unwrap();
    assert!(prefetch.bytes() > 0, "those of the last block");
    assert!(prefetch.bytes() * 3 < all, "{} of {all} bytes are left", prefetch.bytes());
}

/// What is read ahead lies where it was read, and its buffer goes back with the last of it; but few nodes do not keep much that is not wanted.
#[test]
fn what_is_read_ahead_keeps_its_buffers_if_most_of_them_is_wanted() {
    let (db, _) = with_long_areas(false);
    let engine = &db.handle.engine;
    let version = engine.state.version();
    let view =
        TreeView { pager: &engine.pager, version: &version, keyspace: KeyspaceId(version.last_keyspace) };
    let block = view.block_at(&[]).unwrap().unwrap().id;
    let leaves: Vec<_> = view.leaves_of(&view.node(block, 1).unwrap()).collect();
    let pool = engine.pager.reader.buffers();
    pool.allow(64 << 20);
    for (step, is_kept) in [(1, true), (5, false)] {
        let wanted: Vec<_> = leaves.iter().copied().step_by(step).collect();
        let bytes: usize = wanted.iter().map(|(_, address)| address.len() as usize).sum();
        let mut asked = engine.pager.ask(&version.segments, wanted, ReadMode::Ahead).unwrap();
        assert!(
            engine.pager.begin(&mut asked, &mut Vec::new(), InFlightLimit::Own)
                || asked.bytes_in_flight() > 0
        );
        let idle = pool.idle_bytes();
        let nodes = engine.pager.bring(asked, &mut Vec::new()).unwrap();
        assert_eq!(pool.idle_bytes() == idle, is_kept, "each {step} of {} leaves", leaves.len());
        drop(nodes);
        assert!(pool.idle_bytes() >= idle + bytes);
    }
}

/// Records in blocks with log areas beside them, for half of their leaves: new ones, or changes of what is there.
pub(crate) fn with_long_areas(is_new: bool) -> (Database, Keyspace) {
    with_long_areas_on(Arc::new(Simulated::new(1)), is_new)
}

fn with_long_areas_on(volume: Arc<dyn Volume>, is_new: bool) -> (Database, Keyspace) {
    let options = Database::builder().memory(16 << 20).background_threads(0);
    let db = options.open_on(volume).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let odd = u32::from(is_new);
    keyspace.ingest((0..60_000u32).map(|number| ((2 * number).to_be_bytes(), [0; 100]))).unwrap();
    // By flushes that are not dense, and of which none makes the cleansing cursor go far.
    for round in 0..10u32 {
        let mut batch = db.batch();
        for number in (round..60_000).step_by(20) {
            batch.insert(&keyspace, (2 * number + odd).to_be_bytes(), [1; 100]);
        }
        batch.commit().unwrap();
        db.flush().unwrap();
    }
    (db, keyspace)
}

#[test]
fn what_has_grown_is_cleansed_once_and_not_what_has_changed() {
    for is_new in [true, false] {
        let (db, keyspace) = with_long_areas(is_new);
        let engine = &db.handle.engine;
        let totals = || engine.state.load().version.logs.totals();
        let before = totals();
        assert_eq!(before.fresh > 2 << 20, is_new, "{before:?}");
        let (mut growth, mut work) = (Growth::default(), None);
        // Its first portion, and then a queue is frozen.
        if is_new {
            keyspace.insert("key", "value").unwrap();
            engine.commits.freeze(engine.commits.log.lock_for_test().as_mut().unwrap()).unwrap();
            assert!(!engine.background.cleanser.cleanse_grown(&mut growth, &mut work).unwrap());
            assert_eq!(totals(), before, "the queue comes first");
            db.flush().unwrap();
        }
        while engine.background.cleanser.cleanse_grown(&mut growth, &mut work).unwrap() {}
        let after = totals();
        assert_eq!(after.fresh * 10 < before.fresh, is_new, "{after:?}");
        assert_eq!(after.areas == before.areas, !is_new);
        let cleansed = || engine.flush.counters.blocks_cleansed.load(Relaxed);
        let count = cleansed();
        assert!(!engine.background.cleanser.cleanse_grown(&mut growth, &mut work).unwrap());
        assert_eq!(cleansed(), count);
        let records = 60_000 + u64::from(is_new) * 30_001;
        assert_eq!(db.check().unwrap().records, records);
        assert_eq!(keyspace.iter().count() as u64, records);
    }
}

#[test]
fn on_a_full_disk_what_has_grown_waits_for_more() {
    let (volume, (db, _)) = {
        let volume = Simulated::new(1);
        (volume.clone(), with_long_areas_on(Arc::new(volume), true))
    };
    let engine = &db.handle.engine;
    let mut growth = Growth::default();
    let writes = || Filter::kinds([OperationKind::Write]).file("data");
    volume.fail_nth(writes(), 1, Fault::NoSpace, Repeat::Sticky);
    assert!(engine.background.cleanser.cleanse_grown(&mut growth, &mut None).unwrap_err().is_disk_full());
    assert!(
        !engine.background.cleanser.cleanse_grown(&mut growth, &mut None).unwrap(),
        "it is not tried again"
    );
    volume.clear_faults();
    let keyspace = db.keyspace("main").unwrap();
    keyspace.insert("writes", "go on").unwrap();
    db.flush().unwrap();
    db.check().unwrap();
}

/// A snapshot would keep the old copies of all of it, on a disk that may have no room for both.
#[test]
fn what_has_grown_waits_for_holders_of_much_that_is_old() {
    let (db, keyspace) = with_long_areas(true);
    let engine = &db.handle.engine;
    let fresh = || engine.state.load().version.logs.totals().fresh;
    let snapshot = db.snapshot();
    keyspace.insert("key", "value").unwrap();
    db.compact().unwrap();
    let mut growth = Growth::default();
    for number in 0..30_000u32 {
        keyspace.insert([(4 * number + 1).to_be_bytes(), [0; 4]].concat(), [1; 100]).unwrap();
    }
    db.flush().unwrap();
    let before = fresh();
    assert!(before > engine.state.load().version.live_bytes() / 16, "{before}");
    while engine.background.cleanser.cleanse_grown(&mut growth, &mut None).unwrap() {}
    assert_eq!(fresh(), before);
    drop(snapshot);
    while engine.background.cleanser.cleanse_grown(&mut growth, &mut None).unwrap() {}
    assert!(fresh() < before / 4, "{}", fresh());
    db.check().unwrap();
}

/// Little that is new is not worth a walk, and after one as much has to come again.
#[test]
fn a_walk_begins_when_much_is_new() {
    let (db, keyspace) = with_long_areas(true);
    let engine = &db.handle.engine;
    let live = || engine.state.load().version.live_bytes();
    let fresh = || engine.state.load().version.logs.totals().fresh;
    let mut growth = Growth::default();
    while engine.background.cleanser.cleanse_grown(&mut growth, &mut None).unwrap() {}
    let mut left = fresh();
    let put = |round: u32| {
        let mut batch = db.batch();
        for number in (round..60_000).step_by(40) {
            batch.insert(&keyspace, [(2 * number).to_be_bytes(), [1; 4]].concat(), [1; 100]);
        }
        batch.commit().unwrap();
        db.flush().unwrap();
    };
    let mut begun = 0;
    for round in 0..12 {
        put(round);
        let (before, live) = (fresh(), live());
        let mut calls = 0;
        while engine.background.cleanser.cleanse_grown(&mut growth, &mut None).unwrap() {
            calls += 1;
        }
        assert_eq!(calls > 0, before > left + live / 16, "{before} of {live}, of it {left} left");
        if calls > 0 {
            (left, begun) = (fresh(), begun + 1);
        }
    }
    assert!((1..6).contains(&begun), "{begun}");
}

/// Each had an edit of its own, with its syncs.
#[test]
fn blocks_of_many_small_keyspaces_are_cleansed_with_one_edit() {
    const KEYSPACES: usize = 60;
    let small = || {
        let builder = Database::builder().memory(32 << 20).background_threads(0);
        let db = builder.open_on(Arc::new(Simulated::new(1))).unwrap();
        let names = (0..KEYSPACES).map(|number| format!("small {number}"));
        let keyspaces: Vec<_> = names.map(|name| db.keyspace(&name).unwrap()).collect();
        for keyspace in &keyspaces {
            keyspace.ingest((0..400u32).map(|number| (number.to_be_bytes(), [0; 100]))).unwrap();
        }
        let mut batch = db.batch();
        for keyspace in &keyspaces {
            batch.insert(keyspace, 200u32.to_be_bytes(), [1; 100]);
        }
        batch.commit().unwrap();
        db.flush().unwrap();
        (db, keyspaces)
    };
    let edits = |db: &Database, work: &dyn Fn()| {
        let epoch = || db.handle.engine.state.load().version.epoch;
        let before = epoch();
        work();
        assert_eq!(db.stats().space.logged_changes, 0);
        db.check().unwrap();
        epoch() - before
    };
    let (db, keyspaces) = small();
    let due = keyspaces.iter().flat_map(|keyspace| all_due(&db, keyspace));
    let due: Vec<_> = due.map(|due| CleansingTask { leaves: 45 << 10, ..due }).collect();
    assert_eq!(due.len(), KEYSPACES);
    let of_due = edits(&db, &|| {
        let engine = &db.handle.engine;
        let mut guard = engine.writer().lock(Need::default()).unwrap();
        engine.background.cleanser.cleanse_due(guard.get().unwrap(), &mut &due[..]).unwrap();
    });
    let (db, _) = small();
    let of_all = edits(&db, &|| db.compact().unwrap());
    // A few for portions, and for the collector.
    assert!(of_due <= 15 && of_all <= 15, "{of_due} edits for those that are due, {of_all} for all");
}

/// What was to be written was looked at, which is nothing where records are removed; and blocks without log areas were not counted.
#[test]
fn blocks_that_are_looked_at_and_what_they_have_is_bounded() {
    let (db, keyspace, _) = with_due(&Simulated::new(1), 0, 80_000);
    let (engine, other) = (&db.handle.engine, db.keyspace("other").unwrap());
    other.ingest((0..20_000u32).map(|number| (number.to_be_bytes(), [0; 100]))).unwrap();
    let version = engine.state.version();
    let view =
        |keyspace: &Keyspace| TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
    let next = |keyspace: &Keyspace, mut left: candidates::Limits| {
        let (blocks, behind) = candidates::next(view(keyspace), Bytes::new(), &mut left).unwrap();
        (blocks.len(), behind.is_some(), left)
    };
    let none = candidates::Limits::none();
    let (found, goes_on, left) = next(&keyspace, none);
    let bytes = none.bytes - left.bytes;
    assert!(found > 3 && !goes_on && none.blocks - left.blocks == found && bytes > 4 << 20);
    let (some, goes_on, left) = next(&keyspace, candidates::Limits { bytes: bytes / 2, ..none });
    assert!((2..found).contains(&some) && goes_on && left.are_reached());
    let few = candidates::Limits { blocks: 2, ..none };
    assert!(matches!(next(&other, few), (0, true, left) if left.are_reached()));
}

/// It went on to the end, and closing waited.
#[test]
fn compaction_ends_when_the_database_is_closed() {
    let (db, keyspace, _) = with_due(&Simulated::new(1), 0, 80_000);
    let dropped = db.keyspace("dropped").unwrap();
    dropped.ingest((0..1000u32).map(|number| (number.to_be_bytes(), [0; 100]))).unwrap();
    db.drop_keyspace("dropped").unwrap();
    let engine = &db.handle.engine;
    engine.flush.stop();
    assert!(matches!(engine.background.cleanser.cleanse_all(), Err(Error::Closed)));
    assert!(matches!(engine.background.ctx.take_all_apart(), Err(Error::Closed)));
    assert!(matches!(engine.background.cleanser.collector.expire_all(0), Err(Error::Closed)));
    assert!(!all_due(&db, &keyspace).is_empty());
    engine.health.check_writable().unwrap();
}

/// One that works in portions had it again before the others were awake, until its work ended.
#[test]
fn a_thread_that_works_in_portions_lets_others_have_the_writer() {
    const PORTIONS: u32 = 2000;
    let db = Database::builder().memory(4 << 20).background_threads(0).open_on(Arc::new(Simulated::new(1)));
    let db = db.unwrap();
    let engine = &db.handle.engine;
    let begun = AtomicU32::new(0);
    let passed_by = std::thread::scope(|scope| {
        scope.spawn(|| {
            while begun.fetch_add(1, SeqCst) < PORTIONS {
                let _guard = engine.writer().lock_fairly();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let passed_by = (0..5).map(|_| {
            let before = begun.load(SeqCst);
            while begun.load(SeqCst) == before && before < PORTIONS {
                std::thread::yield_now();
            }
            let before = begun.load(SeqCst);
            if before >= PORTIONS {
                return PORTIONS;
            }
            drop(engine.writer().lock_fairly());
            begun.load(SeqCst) - before
        });
        let mut passed_by: Vec<_> = passed_by.collect();
        begun.store(PORTIONS, SeqCst);
        passed_by.sort_unstable();
        passed_by
    });
    // It may sleep before it waits, and before it counts: but not each time.
    assert!(passed_by[2] < 100, "{passed_by:?} portions came first");
}
