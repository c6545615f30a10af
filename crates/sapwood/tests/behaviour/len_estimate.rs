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
        let db = Database::builder().memory(memory).background_threads(0).open_on(volume).expect("opens");
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
