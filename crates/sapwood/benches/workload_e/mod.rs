//! Short scans with few inserts among them, as YCSB's workload E: to places between records whose numbers lie [`GAP`] apart.

use crate::numbered::key;
use crate::zipfian::Zipfian;
use rand::Rng;
use rand::rngs::StdRng;
use sapwood::{Database, Durability, Keyspace};

/// Room between the keys of two neighbours, for inserts.
pub const GAP: u64 = 1 << 20;

/// Scans so many records from that of a number on.
pub fn scan(keyspace: &Keyspace, from: u64, len: usize) {
    let from = key(from * GAP);
    let mut found = 0;
    for item in keyspace.range(&from[..]..).take(len) {
        item.expect("reads");
        found += 1;
    }
    assert!(found > 0, "nothing is there");
}

/// One scan, or now and then an insert of a value of so many bytes. Says whether it was a scan.
pub fn scan_or_insert(
    db: &Database,
    keyspace: &Keyspace,
    zipfian: &Zipfian,
    value_len: usize,
    rng: &mut StdRng,
) -> bool {
    let is_scan = rng.random_range(0..20) > 0;
    if is_scan {
        scan(keyspace, zipfian.number(rng), rng.random_range(1..=100));
    } else {
        let mut value = vec![0; value_len];
        rng.fill(&mut value[..]);
        let mut batch = db.batch();
        let number = rng.random_range(0..zipfian.records()) * GAP + rng.random_range(1..GAP);
        batch.insert(keyspace, key(number), value);
        batch.durability(Durability::Buffered).commit().expect("commits");
    }
    is_scan
}
