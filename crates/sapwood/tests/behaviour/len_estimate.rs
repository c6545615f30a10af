//! The estimated number of records, wherever their changes wait.

use psync::{Simulated, Volume};
use sapwood::{Database, Durability, Keyspace};
use std::sync::Arc;

const RECORDS: u32 = 200_000;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn commit(db: &Database, keyspace: &Keyspace, numbers: impl Iterator<Item = u32>, value: Option<&[u8]>) {
    let mut batch = db.batch();
    for number in numbers {
        match value {
            Some(value) => batch.insert(keyspace, key(number), value),
            None => batch.remove(keyspace, key(number)),
        };
        if batch.len() == 1000 {
            batch.durability(Durability::Buffered).commit().expect("commits");
        }
    }
    batch.durability(Durability::Buffered).commit().expect("commits");
}

/// Counting every waiting change as a record was off by 90 percent after removals, and by as much after updates; with several
/// keyspaces, waiting changes did not count at all.
#[test]
fn it_is_close_whatever_waits_in_queues_and_log_areas() {
    for memory in [4 << 20, 64 << 20] {
        let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let db = Database::builder()
            .compression(sapwood::Compression::None)
            .memory(memory)
            .background_threads(0)
            .open_on(volume)
            .expect("opens");
        let (keyspace, other) = (db.keyspace("one").expect("made"), db.keyspace("two").expect("made"));
        let close = |what: &str| {
            for keyspace in [&keyspace, &other] {
                let (count, estimate) = (keyspace.iter().count() as f64, keyspace.len_estimate() as f64);
                assert!(
                    (estimate - count).abs() <= count / 20.0 + 5.0,
                    "{memory}, {what}: {estimate} for {count}"
                );
            }
        };
        close("empty");
        commit(&db, &other, 0..50, Some(&[1; 50]));
        close("a few");
        commit(&db, &keyspace, 0..RECORDS, Some(&[1; 50]));
        close("loaded");
        commit(&db, &other, 0..RECORDS, Some(&[1; 50]));
        close("both loaded");
        db.flush().expect("flushes");
        close("flushed");
        commit(&db, &keyspace, (0..RECORDS).step_by(3), Some(&[2; 50]));
        close("updated");
        (0..20).for_each(|_| commit(&db, &keyspace, std::iter::repeat_n(7, 1000), Some(&[3; 50])));
        close("a hot record");
        db.flush().expect("flushes");
        commit(&db, &other, (0..RECORDS).filter(|number| number % 10 != 0), None);
        close("nine of ten removed");
        db.flush().expect("flushes");
        close("and flushed");
        commit(&db, &keyspace, (0..RECORDS).filter(|number| number % 7 == 0), None);
        db.flush().expect("flushes");
        commit(&db, &keyspace, (0..RECORDS).filter(|number| number % 14 == 0), Some(&[4; 50]));
        close("some of them there again");
        commit(&db, &keyspace, (0..RECORDS).filter(|number| number % 7 == 0), None);
        close("removed twice");
        db.compact().expect("compacts");
        for keyspace in [&keyspace, &other] {
            assert_eq!(keyspace.len_estimate(), keyspace.iter().count() as u64);
        }
    }
}

/// A range has the share of the waiting changes that lies in it, not that of the whole keyspace.
#[test]
fn ranges_are_estimated_wherever_their_changes_wait() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder()
        .compression(sapwood::Compression::None)
        .memory(64 << 20)
        .background_threads(0)
        .open_on(volume)
        .expect("opens");
    let keyspace = db.keyspace("one").expect("made");
    let close = |what: &str| {
        let share = RECORDS / 10;
        let ranges = (0..10).map(|part| (part * share, (part + 1) * share)).chain([(0, 2 * RECORDS)]);
        for (from, to) in
            ranges.chain([(share / 2, share / 2 + 100), (7, 8), (9, 9), (RECORDS / 3, RECORDS / 2)])
        {
            let (from, to) = (key(from), key(to));
            let (mut count, mut bytes) = (0.0, 0.0);
            for record in keyspace.range(from..to) {
                let (key, value) = record.expect("reads");
                (count, bytes) = (count + 1.0, bytes + (key.len() + value.len()) as f64);
            }
            let found = keyspace.range_estimate(from..to).expect("estimates");
            let waiting = db.stats().space.logged_changes + db.stats().writes.changes_queued;
            let allowed = count / 20.0 + waiting as f64 / 50.0 + 5.0;
            let story = format!("{what}, {from:?}..{to:?}: {found:?} for {count} of {bytes} bytes");
            assert!((found.records as f64 - count).abs() <= allowed, "{story}");
            if count > 1000.0 && waiting == 0 {
                // Nodes and records have a few bytes of their own.
                assert!((0.95..1.3).contains(&(found.bytes as f64 / bytes)), "{story}");
            }
        }
    };
    close("empty");
    commit(&db, &keyspace, (0..RECORDS).filter(|number| number % 7 != 0), Some(&[1; 50]));
    close("queued");
    db.compact().expect("compacts");
    close("in leaves");
    commit(&db, &keyspace, RECORDS / 2..RECORDS / 2 + 9000, Some(&[1; 90]));
    close("a part is queued");
    db.flush().expect("flushes");
    close("a part is in log areas");
    commit(&db, &keyspace, (RECORDS / 2..RECORDS).filter(|number| number % 35 == 0), Some(&[1; 50]));
    db.flush().expect("flushes");
    assert!(db.stats().space.logged_changes > 2000, "{}", db.stats());
    close("new ones are in log areas");
    commit(&db, &keyspace, RECORDS / 5..RECORDS / 4, None);
    close("a part is removed");
    keyspace.remove_range(key(RECORDS / 30)..key(RECORDS / 6)).expect("removes");
    close("a range is removed");
    db.compact().expect("compacts");
    close("compacted");
}

/// A sample of all changes that wait in memory seldom had one of a small keyspace's.
#[test]
fn a_few_changes_in_memory_count_beside_many_of_another_keyspace() {
    let volume: Arc<dyn Volume> = Arc::new(Simulated::new(1));
    let db = Database::builder().memory(64 << 20).background_threads(0).open_on(volume).expect("opens");
    let (small, large) = (db.keyspace("small").expect("made"), db.keyspace("large").expect("made"));
    commit(&db, &small, 0..20, Some(&[1; 50]));
    commit(&db, &large, 0..50_000, Some(&[1; 50]));
    assert_eq!(small.len_estimate(), 20);
    commit(&db, &small, 0..5, None);
    commit(&db, &small, 3..4, Some(&[2; 50]));
    assert_eq!((small.len_estimate(), small.iter().count()), (16, 16));
    small.remove_range(key(10)..key(15)).expect("removes");
    commit(&db, &small, 12..13, Some(&[2; 50]));
    assert_eq!((small.len_estimate(), small.iter().count()), (12, 12));
    assert_eq!(small.range_estimate(key(5)..key(10)).expect("estimates").records, 5);
}
