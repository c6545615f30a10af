//! What waits in the queue although it would free space: removals. Their records stay in the trees until the queue is
//! flushed, and a queue of a few removals is far from full. So while no writes come, and when the database is closed, a queue
//! is flushed that stands for much space.
//!
//! How much that is, is known without reading a leaf: the node above a long record says how long it is, and short records
//! are taken for as long as those of their keyspace are on the average. What removed ranges have is measured in inner nodes.

use crate::cache::pager::Pager;
use crate::current_state::CurrentState;
use crate::even_sample::EvenSample;
use crate::operation::{KeyRange, KeyspaceId};
use crate::opq::Opq;
use crate::tree::range_size::{Ends, range_size};
use crate::tree::view::TreeView;
use crate::version::{Tree, Version};

/// So many bytes of removed records are worth a flush, or this fraction (1/64) of the database if that is more.
const WORTH: u64 = 1 << 20;
const SHARE: u64 = 64;
/// So many ranges (count) are measured; each takes a descent to either end.
const RANGES: usize = 16;

/// Whether a flush of the active queue would free much space for what is removed in it.
pub(crate) fn waits_for_space(state: &CurrentState, pager: &Pager) -> bool {
    let state = state.load();
    let version = &state.version;
    let worth = WORTH.max(version.live_bytes() / SHARE);
    let removed =
        || removed_bytes(pager, &state.active, version) + bytes_in_ranges(pager, &state.active, version);
    state.active.removals() > 0 && removed() >= worth
}

/// About how many bytes of leaves lie in the ranges that a queue removes.
fn bytes_in_ranges(pager: &Pager, queue: &Opq, version: &Version) -> u64 {
    if queue.range_removals().is_empty() {
        return 0;
    }
    let mut sample = EvenSample::<_, RANGES>::default();
    queue.range_removals().all().into_iter().for_each(|range| sample.see(|| range));
    let bytes = sample.kept().iter().map(|(keyspace, from, to)| {
        let view = TreeView { pager, version, keyspace: *keyspace };
        let range = KeyRange { keyspace: *keyspace, from, to: to.as_deref() };
        range_size(view, range, Ends::Halves).map_or(0.0, |size| size.bytes)
    });
    (bytes.sum::<f64>() * sample.weight()) as u64
}

/// About how many bytes of records the removals in a queue stand for.
fn removed_bytes(pager: &Pager, queue: &Opq, version: &Version) -> u64 {
    let (removed, weight) = queue.sample_of_removed();
    let bytes = removed.iter().map(|(keyspace, key)| record_bytes(pager, version, *keyspace, key));
    (bytes.sum::<u64>() as f64 * weight) as u64
}

/// Bytes of the record that the key may have in the trees. What cannot be read now has none.
fn record_bytes(pager: &Pager, version: &Version, keyspace: KeyspaceId, key: &[u8]) -> u64 {
    let average = || version.trees.get(&keyspace).map_or(0, Tree::record_bytes);
    let view = TreeView { pager, version, keyspace };
    let node = view.block_at(key).and_then(|block| block.map(|block| view.node(block.id, 1)).transpose());
    match node {
        Ok(Some(node)) => {
            let child = node.child_for(key);
            match node.is_lone(child) {
                true if node.lacks(child, key) => 0,
                true => view.len_of(node.child(child)),
                false => average(),
            }
        }
        Ok(None) => average(),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::waits_for_space;
    use crate::{Database, Durability};
    use psync::{Simulated, Volume};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    const LONG: usize = 900 << 10;

    /// A database with 30 long records and many short ones, of which the long ones are removed, and what it took before.
    fn removed(volume: &Simulated, threads: usize) -> (Database, u64) {
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let db = Database::builder().memory(32 << 20).background_threads(threads).open_on(shared).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..100_000u32).map(|number| (number.to_be_bytes(), [7; 50]))).unwrap();
        let keys = (0..30u32).map(|number| (number * 3000).to_be_bytes());
        for key in keys.clone() {
            keyspace.insert(key, vec![8; LONG]).unwrap();
        }
        db.flush().unwrap();
        let used = volume.used();
        let mut batch = db.batch();
        for key in keys {
            batch.remove(&keyspace, key);
        }
        batch.durability(Durability::Immediate).commit().unwrap();
        (db, used)
    }

    /// Only what comes first in the queue was looked at, and in this one no removal did.
    #[test]
    fn removals_behind_many_other_changes_are_found() {
        let volume = Simulated::new(1);
        let (db, used) = removed(&volume, 0);
        let keyspace = db.keyspace("main").unwrap();
        let mut batch = db.batch();
        // Of one of the removed records, and before all others.
        for number in (0..3000u32).step_by(30) {
            batch.insert(&keyspace, number.to_be_bytes(), vec![9; 1 << 10]);
        }
        batch.commit().unwrap();
        assert!(waits_for_space(&db.handle.engine.state, &db.handle.engine.pager));
        db.close().unwrap();
        assert!(volume.used() + (24 * LONG as u64) < used, "{} of {used}", volume.used());
    }

    #[test]
    fn what_was_inserted_again_does_not_count_as_removed() {
        let volume = Simulated::new(1);
        let (db, _) = removed(&volume, 0);
        let keyspace = db.keyspace("main").unwrap();
        for number in 0..30u32 {
            keyspace.insert((number * 3000).to_be_bytes(), "short").unwrap();
        }
        assert!(!waits_for_space(&db.handle.engine.state, &db.handle.engine.pager));
    }

    fn holds_the_rest(db: &Database) {
        assert_eq!(db.keyspace("main").unwrap().iter().filter(Result::is_ok).count(), 100_000 - 30);
        db.check().unwrap();
    }

    #[test]
    fn space_of_removed_records_goes_back_when_the_database_is_closed() {
        let volume = Simulated::new(1);
        let (db, used) = removed(&volume, 0);
        assert!(waits_for_space(&db.handle.engine.state, &db.handle.engine.pager));
        db.close().unwrap();
        assert!(volume.used() + (25 * LONG as u64) < used, "{} of {used}", volume.used());
        let db = Database::builder().memory(32 << 20).open_on(Arc::new(volume)).unwrap();
        holds_the_rest(&db);
    }

    #[test]
    fn space_of_removed_records_goes_back_when_no_writes_come() {
        let volume = Simulated::new(1);
        let (db, used) = removed(&volume, 1);
        let began = Instant::now();
        while volume.used() + (25 * LONG as u64) > used {
            assert!(began.elapsed() < Duration::from_secs(30), "{} of {used}", volume.used());
            std::thread::sleep(Duration::from_millis(50));
        }
        holds_the_rest(&db);
    }

    /// A database with many records, nearly all of which are removed with a range or their keyspace, and what it took before.
    fn removed_at_once(volume: &Simulated, threads: usize, is_dropped: bool) -> (Database, u64) {
        let shared: Arc<dyn Volume> = Arc::new(volume.clone());
        let db = Database::builder().memory(32 << 20).background_threads(threads).open_on(shared).unwrap();
        let (keyspace, other) = (db.keyspace("main").unwrap(), db.keyspace("other").unwrap());
        for keyspace in [&keyspace, &other] {
            keyspace.ingest((0..100_000u32).map(|number| (number.to_be_bytes(), [7; 50]))).unwrap();
        }
        let used = volume.used();
        if is_dropped {
            db.drop_keyspace("other").unwrap();
        } else {
            other.remove_range(100u32.to_be_bytes()..).unwrap();
        }
        (db, used)
    }

    #[test]
    fn space_of_what_was_removed_at_once_goes_back_when_the_database_is_closed() {
        for is_dropped in [false, true] {
            let volume = Simulated::new(1);
            let (db, used) = removed_at_once(&volume, 0, is_dropped);
            db.close().unwrap();
            assert!(volume.used() + (5 << 20) < used, "{} of {used}, {is_dropped}", volume.used());
        }
    }

    #[test]
    fn space_of_what_was_removed_at_once_goes_back_when_no_writes_come() {
        for is_dropped in [false, true] {
            let volume = Simulated::new(1);
            let (db, used) = removed_at_once(&volume, 1, is_dropped);
            let began = Instant::now();
            while volume.used() + (5 << 20) > used {
                let waited = began.elapsed() < Duration::from_secs(30);
                assert!(waited, "{} of {used}, {is_dropped}", volume.used());
                std::thread::sleep(Duration::from_millis(50));
            }
            assert_eq!(db.keyspace("main").unwrap().iter().count(), 100_000);
            db.check().unwrap();
        }
    }

    /// A few short ones are not worth a flush each time.
    #[test]
    fn what_little_is_removed_waits_for_more() {
        let volume = Simulated::new(1);
        let shared: Arc<dyn Volume> = Arc::new(volume);
        let db = Database::builder().memory(32 << 20).background_threads(0).open_on(shared).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..100_000u32).map(|number| (number.to_be_bytes(), [7; 50]))).unwrap();
        keyspace.remove(7u32.to_be_bytes()).unwrap();
        assert!(!waits_for_space(&db.handle.engine.state, &db.handle.engine.pager));
        for number in 0..50_000u32 {
            keyspace.remove(number.to_be_bytes()).unwrap();
        }
        assert!(waits_for_space(&db.handle.engine.state, &db.handle.engine.pager));
    }

    /// It stayed as long as a checkpoint of what had been there, at twice the length, and the reserve with it.
    #[test]
    fn the_manifest_becomes_short_when_records_go() {
        let builder = Database::builder().memory(4 << 20).leaf_len(512).background_threads(0);
        let db = builder.open_on(Arc::new(Simulated::new(1))).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        for is_removal in [false, true] {
            for start in (0..60_000u32).step_by(500) {
                let mut batch = db.batch();
                for number in start..start + 500 {
                    let key = number.wrapping_mul(2_654_435_769).to_be_bytes();
                    let _ = if is_removal {
                        batch.remove(&keyspace, key)
                    } else {
                        batch.insert(&keyspace, key, [7; 150])
                    };
                }
                batch.durability(Durability::Buffered).commit().unwrap();
            }
            db.compact().unwrap();
            let (space, most) = (db.stats().space, if is_removal { 128 << 10 } else { u64::MAX });
            assert!(is_removal || space.manifest > 400 << 10, "{} bytes", space.manifest);
            assert!(space.manifest <= most, "{} bytes for {} nodes", space.manifest, space.nodes);
        }
    }
}
