//! Backups of a database that a repair has made: its segments end anywhere in a page.

use crate::ground::{directory, hash, open};
use psync::Simulated;
use sapwood::backup::Restore;
use sapwood::repair::Repair;
use std::sync::Arc;

/// The last page of the restored data file was cut off, and no direct read brought it.
#[test]
fn a_repaired_database_comes_back_from_its_backup() {
    for records in [3u32, 2000, 2001] {
        let (damaged, repaired, target, copy) =
            (Simulated::new(1), Simulated::new(2), Simulated::new(3), Simulated::new(4));
        let db = open(&damaged).expect("opens");
        let ships = db.keyspace("ships").expect("a keyspace");
        ships.ingest((0..records).map(|number| (number.to_be_bytes(), [7; 101]))).expect("ingests");
        let before = hash(&db);
        drop(ships);
        db.close().expect("closes");
        Repair::of_volume(Arc::new(damaged)).onto(Arc::new(repaired.clone())).expect("repairs");
        let db = sapwood::Database::builder().read_only(true).open_on(Arc::new(repaired)).expect("opens");
        db.backup().run(&directory(&target)).expect("a backup");
        Restore::from(&directory(&target)).onto(Arc::new(copy.clone())).expect("restores");
        let copy = open(&copy).expect("opens");
        assert_eq!(hash(&copy), before, "{records} records");
        copy.check().expect("sound");
    }
}
