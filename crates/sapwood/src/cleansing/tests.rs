//! Cleansing of an open database: what is left to do after a full disk, and what reading ahead leaves in memory.

use crate::budget::Need;
use crate::store::attempt::Attempt;
use crate::tree::cleanse::to_leaves;
use crate::tree::logged;
use crate::tree::sweep::Due;
use crate::tree::sweep_ahead::sweep_ahead;
use crate::tree::view::TreeView;
use crate::{Database, Keyspace};
use bytes::Bytes;
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Records in blocks that all have log pieces, for a third of their leaves, and all of the blocks as due.
pub(crate) fn with_due(volume: &Simulated, threads: usize, records: u32) -> (Database, Keyspace, Vec<Due>) {
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let db = Database::builder().memory(8 << 20).background_threads(threads).open_on(shared).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    keyspace.ingest((0..records).map(|number| (number.to_be_bytes(), [0; 100]))).unwrap();
    let mut batch = db.batch();
    for number in (0..records).step_by(105) {
        batch.insert(&keyspace, number.to_be_bytes(), [1; 100]);
    }
    batch.commit().unwrap();
    db.flush().unwrap();
    let engine = &db.handle.engine;
    let version = Arc::clone(&engine.state.load().version);
    let view = TreeView { pager: &engine.pager, version: &version, keyspace: keyspace.id() };
    let (mut due, mut low) = (Vec::new(), Some(Bytes::new()));
    while let Some(at) = low.take() {
        let block = view.block_at(&at).unwrap().unwrap();
        assert!(view.log(block.id).is_some());
        due.push(Due::new(keyspace.id(), at, 200 << 10, false));
        low = block.fence;
    }
    assert!(due.len() > 15, "{} blocks", due.len());
    (db, keyspace, due)
}

/// The same without a background thread, and cleansed: more is dead than is left to later flushes.
pub(crate) fn cleansed(records: u32) -> Database {
    let (db, _, due) = with_due(&Simulated::new(1), 0, records);
    let engine = &db.handle.engine;
    let mut guard = engine.writer(Need::default()).unwrap();
    let mut left = &due[..];
    while !left.is_empty() {
        left = engine.cleanse_portion(guard.get().unwrap(), left, u64::MAX).unwrap().1;
    }
    drop(guard);
    assert!(engine.has_to_collect());
    db
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
        let mut guard = engine.writer(Need::default()).unwrap();
        let result = engine.cleanse_due(guard.get().unwrap(), &mut left, 0);
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
    let version = Arc::clone(&engine.state.load().version);
    let keyspace = *version.trees.keys().next_back().unwrap();
    let view = TreeView { pager: &engine.pager, version: &version, keyspace };
    let (mut due, mut from) = (Vec::new(), Some(Bytes::new()));
    while let Some(low) = from.take() {
        from = view.block_at(&low).unwrap().unwrap().fence;
        due.push(Due::new(keyspace, low, 0, false));
    }
    let (blocks, _) = logged::next(view, Bytes::new(), u64::MAX).unwrap();
    assert!(blocks.len() >= 5 && blocks.len() == due.len(), "{} of {}", blocks.len(), due.len());
    let stage = &engine.pager.stage;
    let _open = stage.open(64 << 20);
    sweep_ahead(stage, &engine.pager, &due, || Arc::clone(&version), 16 << 20);
    let all = stage.bytes();
    let mut guard = engine.writer(Need::default()).unwrap();
    let mut attempt = Attempt::begin(Arc::clone(&version), &engine.pager, guard.get().unwrap());
    to_leaves(view, &mut attempt, blocks, engine.shares.node_len).unwrap();
    assert!(stage.bytes() > 0, "those of the last block");
    assert!(stage.bytes() * 3 < all, "{} of {all} bytes are left", stage.bytes());
}
