//! Read buffers for due blocks that are read ahead: how long they are kept, and that they count as long.

use crate::Database;
use crate::background::cleanse::tests::with_due;
use crate::background::portions::PORTION;
use crate::flow::memory::Need;
use crate::tree::cleansing_cursor::CleansingTask;
use crate::{Keyspace, Result};
use psync::{Fault, Filter, OperationKind, Repeat, Simulated, Volume};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn keys(round: u32) -> impl Iterator<Item = u32> {
    (0..500).map(move |number| (round * 500 + number).wrapping_mul(0x9E37_79B1) % 100_000)
}

fn write(db: &Database, keyspace: &Keyspace, round: u32) -> Result<()> {
    let mut batch = db.batch();
    keys(round).for_each(|key| _ = batch.insert(keyspace, key.to_be_bytes(), [round as u8; 200]));
    batch.commit()
}

#[test]
fn buffers_stay_and_count_until_they_are_let_go() {
    let volume = Simulated::new(1);
    let (db, _, due) = with_due(&volume, 4, 200_000);
    let engine = &db.handle.engine;
    let due: Vec<_> = due.into_iter().map(|due| CleansingTask { leaves: 1 << 20, ..due }).collect();
    let pool = engine.pager.reader.buffers();
    let mut guard = engine.writer().lock(Need::default()).unwrap();
    let mut buffers = None;
    let cleanser = &engine.background.cleanser;
    let mut blocks = cleanser.begin_due(due, *PORTION.end(), &mut buffers);
    while !blocks.left().is_empty() {
        cleanser.cleanse_next(guard.get().unwrap(), &mut blocks).unwrap();
    }
    drop((blocks, guard));
    let kept = buffers.as_ref().unwrap().bytes();
    assert_eq!((pool.allowed() as u64, kept), (kept, engine.shares.read_ahead(u64::MAX).bytes()));
    let always = engine.shares.read_buffers;
    assert!(pool.idle_bytes() > always, "{} of {always}", pool.idle_bytes());
    drop(buffers);
    assert!(pool.allowed() == 0 && pool.idle_bytes() <= always);
}

#[test]
fn repeated_flushes_let_go_of_them_in_the_end() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(8 << 20).open_on(volume).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let engine = &db.handle.engine;
    let pool = engine.pager.reader.buffers();
    let mut seen = 0;
    for round in 0..400u32 {
        write(&db, &keyspace, round).unwrap();
        seen = seen.max(pool.allowed());
    }
    assert!(seen > 0, "nothing was read ahead");
    db.flush().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while pool.allowed() > 0 || pool.idle_bytes() > engine.shares.read_buffers {
        assert!(Instant::now() < until, "{} bytes are still kept", pool.allowed());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The queue that found the disk full may be there for long, and its flush is tried again and again.
#[test]
fn a_flush_lets_go_of_them_when_the_disk_is_full() {
    let volume = Simulated::new(1);
    let shared: Arc<dyn Volume> = Arc::new(volume.clone());
    let db = Database::builder().memory(8 << 20).open_on(shared).unwrap();
    let keyspace = db.keyspace("main").unwrap();
    let engine = &db.handle.engine;
    let pool = engine.pager.reader.buffers();
    let mut rounds = 0..4000;
    // With a frozen queue, whose flush gets them.
    while pool.allowed() == 0 || engine.state.load().frozen.is_none() {
        write(&db, &keyspace, rounds.next().expect("something is read ahead")).unwrap();
    }
    let writes = Filter::kinds([OperationKind::Write]).file("data");
    volume.fail_nth(writes, 1, Fault::NoSpace, Repeat::Sticky);
    let refused = rounds.find_map(|round| write(&db, &keyspace, round).err());
    assert!(refused.is_some_and(|error| error.is_disk_full()));
    let until = Instant::now() + Duration::from_secs(20);
    while pool.allowed() > 0 {
        assert!(Instant::now() < until, "{} bytes are still kept", pool.allowed());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(engine.state.load().frozen.is_some());
    volume.clear_faults();
    db.flush().unwrap();
    let written: HashSet<_> = (0..rounds.start - 1).flat_map(keys).collect();
    assert_eq!(keyspace.iter().filter(Result::is_ok).count(), written.len());
    db.check().unwrap();
}
