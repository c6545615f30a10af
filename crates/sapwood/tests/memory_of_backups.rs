//! The memory budget is kept while a backup is taken beside a writer, and a restore and a repair take little. A process of its own: what another
//! test has left in the allocator would count here.
#![cfg(target_os = "linux")]

mod resident;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use resident::{peak_while, resident};
use sapwood::backup::{Directory, Restore};
use sapwood::repair::Repair;
use sapwood::{Database, Durability, Keyspace};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const BUDGET: u64 = 32 << 20;
/// A tenth more, for the allocator.
const MOST: u64 = BUDGET / 10 * 11;
/// Four times the budget.
const RECORDS: u64 = 1_000_000;
const BATCH: u64 = 500;
/// A restore has no cache: a chunk, what it reads ahead, the log's records and the table.
const MOST_OF_RESTORE: u64 = 24 << 20;

fn write(db: &Database, keyspace: &Keyspace, rng: &mut StdRng) {
    let mut batch = db.batch();
    for _ in 0..BATCH {
        let mut value = [0; 100];
        rng.fill(&mut value[..]);
        batch.insert(keyspace, rng.random_range(0..RECORDS).to_be_bytes(), value);
    }
    batch.durability(Durability::Buffered).commit().expect("a commit");
}

#[test]
fn a_backup_beside_a_writer_stays_within_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let before = resident();
    let target = Directory::open(dir.path().join("backups")).expect("opens");
    let (peak, (taken, stats)) = peak_while(before, || {
        let db = Database::builder()
            .compression(sapwood::Compression::None)
            .memory(BUDGET)
            .open(dir.path().join("db"))
            .expect("opens");
        let keyspace = db.keyspace("records").expect("a keyspace");
        keyspace.ingest((0..RECORDS).map(|number| (number.to_be_bytes(), [7; 100]))).expect("ingests");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rng = StdRng::seed_from_u64(1);
                while !done.load(Relaxed) {
                    write(&db, &keyspace, &mut rng);
                }
            });
            let taken: Result<Vec<_>, _> = (0..4).map(|_| db.backup().run(&target)).collect();
            done.store(true, Relaxed);
            (taken.expect("backups"), db.stats())
        })
    });
    // How much is written beside one of them is the disk's affair.
    let later: u64 = taken[1..].iter().map(|backup| backup.copied).sum();
    assert!(taken[0].copied > 3 * BUDGET && later > BUDGET / 8, "{taken:?}");
    assert!(peak <= MOST, "{peak} bytes with a budget of {BUDGET}:\n{stats}");
    let before = resident();
    let (peak, ()) = peak_while(before, || {
        Restore::from(&target).into_directory(dir.path().join("copy")).expect("restores");
    });
    assert!(peak <= MOST_OF_RESTORE, "{peak} bytes for a restore");
    repairs_take_little(dir.path());
}

/// Of a database that is known, and of one without a manifest, whose nodes are searched.
fn repairs_take_little(dir: &Path) {
    let repair = |new: &str| {
        let before = resident();
        let repair = Repair::of(dir.join("copy")).memory(MOST_OF_RESTORE / 4);
        let (peak, report) = peak_while(before, || repair.into_directory(dir.join(new)).expect("repairs"));
        assert!(peak <= MOST_OF_RESTORE, "{peak} bytes for a repair");
        report
    };
    let known = repair("known");
    assert!(!known.has_losses() && known.keyspaces[0].records == RECORDS, "{known:?}");
    for entry in std::fs::read_dir(dir.join("copy")).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("manifest-")) {
            std::fs::remove_file(path).expect("removed");
        }
    }
    let searched = repair("searched");
    assert!(searched.has_losses() && searched.keyspaces[0].records == RECORDS, "{searched:?}");
}
