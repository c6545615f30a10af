//! What tables, work and the log take from the cache, and that it has it again.

use crate::Database;
use crate::db::engine::Engine;
use crate::flow::memory::Need;
use crate::log_area::maplet::KeyHash;
use crate::log_area::{DeltaRun, Fences, Size};
use crate::operation::KeyspaceId;
use crate::storage::entries::Entries;
use crate::storage::mapping_table::Position;
use crate::storage::node;
use crate::storage::node::{Name, Node, NodeId};
use crate::version::Version;
use psync::{Simulated, Volume};
use std::sync::Arc;

const PAGE: u64 = 4096;

/// Fills the cache with leaves.
fn fill(engine: &Engine) {
    for id in 0..3000 {
        let mut entries = Entries::default();
        entries.push(b"key", &[&[7; 4000]]);
        let name = Name { id: NodeId(id), level: 0, epoch: 1, keyspace: KeyspaceId(1) };
        let mut bytes = Vec::new();
        node::encode(&mut bytes, name, &entries, 1);
        let node = Node::decode(engine.pager.reader.frames().copy(&bytes)).unwrap();
        engine.pager.admit(Position(id * PAGE), node);
    }
}

#[test]
fn large_tables_leave_less_for_queues_and_the_least_for_the_cache() {
    let shares = Database::builder().memory(64 << 20).shares(64 << 20);
    let mut version = Version::empty(64 << 20);
    assert_eq!(shares.queue_beside(&version), shares.queue);
    let hashes: Vec<_> = (0..60u64).map(|key| KeyHash::of(&key.to_be_bytes())).collect();
    let (mut last, mut least) = (usize::MAX, 0);
    for number in 0..340_000 {
        let pieces = [NodeId(number + 10_000)];
        let run = DeltaRun { pieces: &pieces, fences: Fences::default(), removals: 0 };
        version.logs.push(NodeId(number % 8000), run, Size { bytes: 4096, fresh: 0 }, &hashes);
        let queue = shares.queue_beside(&version);
        // It leaps where runs that the next one makes another packed runs of become such that it does not.
        assert!(queue <= last.saturating_add(1 << 20) && queue >= shares.queue / 4);
        last = queue;
        let logs = version.logs.memory() + version.logs.unshared();
        let taken = (logs + 2 * queue) as u64 + shares.cache(&version, 2 * queue, 1);
        if queue > shares.queue / 4 {
            assert!(taken < shares.memory, "{taken}");
            least += 1;
        }
    }
    assert!(least > 20_000 && last == shares.queue / 4, "{least}, {last}");
}

#[test]
fn work_takes_from_the_cache_what_it_needs_and_keeps_as_frames_what_is_nodes() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(8 << 20).background_threads(0).open_on(volume).unwrap();
    let engine = &db.handle.engine;
    let cache = || engine.pager.cache.bytes();
    fill(engine);
    let ((before, _), (nodes_before, records_before)) = (engine.pager.reader.frames().pages(), cache());
    let need = engine.shares.work_max();
    let work = engine.memory.work(Need { rest: 0, ..need });
    let others = engine.memory.work(Need { nodes: 0, ..need });
    work.needs(Need { nodes: 0, ..need });
    let (nodes, records) = cache();
    // Never more than one needs, and each has its part.
    let given = nodes_before + records_before - nodes - records;
    assert!(given.abs_diff(need.bytes()) < 64 << 10, "{given} of {need:?}");
    let (used, idle) = engine.pager.reader.frames().pages();
    let evicted = (before - used) as u64 * PAGE;
    let idle = idle as u64 * PAGE;
    let most = need.nodes + engine.shares.spare_frames() as u64;
    // A node in the cache takes some bytes besides its frame.
    assert!(evicted > most + nodes / 25, "{evicted} of nodes");
    assert!((need.nodes..=most + nodes / 25).contains(&idle), "{idle} of {need:?}");
    drop(work);
    assert_eq!(engine.memory.taken.lock().need, Need { nodes: 0, ..need });
    drop(others);
    assert_eq!(engine.memory.taken.lock().need, Need::default());
    fill(engine);
    // What comes back is for nodes until it lasts.
    let (nodes, records) = cache();
    assert!((nodes + records).abs_diff(nodes_before + records_before) < 64 << 10);
    assert!(records < records_before, "{records} of {records_before}");
}

#[test]
fn the_log_counts_until_it_is_synced_or_not_needed() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(32 << 20).background_threads(0).open_on(volume).unwrap();
    let (engine, keyspace) = (&db.handle.engine, db.keyspace("main").unwrap());
    let capacity = || engine.pager.cache.capacity();
    let queues = || engine.state.load().queues().map(|queue| queue.memory() as u64).sum::<u64>();
    let whole = capacity() + queues();
    let write = |first: u64| {
        let mut batch = db.batch();
        for number in first..first + 1000 {
            batch.insert(&keyspace, number.to_be_bytes(), [1; 200]);
        }
        batch.durability(crate::Durability::Buffered).commit().unwrap();
    };
    (0..12).for_each(|round| write(1000 * round));
    let log = 12_000 * 208;
    let counted = whole - capacity() - queues();
    // It is counted when the queue takes memory, not with each commit.
    assert!((log - (512 << 10)..log + (512 << 10)).contains(&counted), "{counted} of {log}");
    db.sync().unwrap();
    assert!(capacity() + queues() + (16 << 10) > whole, "it is synced");
    (12..16).for_each(|round| write(1000 * round));
    assert!(capacity() + queues() + (512 << 10) < whole);
    db.flush().unwrap();
    assert!(
        capacity() + queues() + (64 << 10) > whole,
        "{} {} {whole}: it is not needed",
        capacity(),
        queues()
    );
}

/// They were counted nowhere: 100,000 of them took 29 MiB beside a budget of 16.
#[test]
fn keyspaces_take_their_memory_from_the_cache() {
    const COUNT: usize = 20_000;
    let volume = Simulated::new(1);
    let open = || {
        let builder = Database::builder().memory(64 << 20).background_threads(0);
        builder.open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).unwrap()
    };
    let db = open();
    let capacity = |db: &Database| db.handle.engine.pager.cache.capacity();
    let before = capacity(&db);
    db.create_keyspaces((0..COUNT).map(|number| format!("keyspace {number}"))).unwrap();
    let keyspaces = db.stats().memory.keyspaces;
    assert!(keyspaces > 200 * COUNT as u64, "{keyspaces}");
    assert!(capacity(&db) <= before - keyspaces, "{before} to {}", capacity(&db));
    for number in 0..100 {
        db.drop_keyspace(&format!("keyspace {number}")).unwrap();
    }
    let each = keyspaces / COUNT as u64;
    let left = db.stats().memory.keyspaces;
    assert!(left < keyspaces - 99 * each && left > keyspaces - 101 * each, "{keyspaces} to {left}");
    db.close().unwrap();
    let db = open();
    assert_eq!(db.stats().memory.keyspaces, left);
    assert!(capacity(&db) <= before - left, "{before} to {}", capacity(&db));
}
