//! Records that take less than a byte each on the device: nothing may take their number for damage.

use psync::{Simulated, Volume};
use sapwood::backup::{Directory, Restore};
use sapwood::{Builder, Compression, Database, KeyspaceOptions};
use std::sync::Arc;

const RECORDS: u32 = 400_000;

fn builder() -> Builder {
    Database::builder().memory(4 << 20).background_threads(0)
}

fn check(db: &Database) {
    let keyspace = db.keyspace("main").expect("a keyspace");
    assert_eq!(keyspace.len_estimate(), u64::from(RECORDS));
    assert_eq!(keyspace.get((RECORDS / 2).to_be_bytes()).expect("reads").as_deref(), Some(&b"v"[..]));
    let checked = db.check().expect("sound");
    assert_eq!(checked.records, u64::from(RECORDS));
    assert!((50.0..110.0).contains(&checked.leaf_fill_percent), "{checked}");
}

#[test]
fn records_may_be_more_than_the_bytes_they_take() {
    let mut codecs = vec![Compression::Lz4];
    if cfg!(feature = "zstd") {
        codecs.extend([Compression::Zstd { level: 19 }, Compression::ZstdDictionary { level: 3 }]);
    }
    for compression in codecs {
        let volume = Simulated::new(1);
        let open = || builder().open_on(Arc::new(volume.clone()) as Arc<dyn Volume>).expect("opens");
        let db = open();
        let keyspace = db.keyspace_with("main", KeyspaceOptions::new().compression(compression));
        let keyspace = keyspace.expect("a keyspace");
        for first in (0..RECORDS).step_by(1000) {
            let mut batch = db.batch();
            (first..first + 1000).for_each(|number| _ = batch.insert(&keyspace, number.to_be_bytes(), "v"));
            batch.commit().expect("commits");
        }
        db.compact().expect("compacts");
        let live = db.stats().space.live;
        assert!(live < u64::from(RECORDS), "{compression:?}: {live} bytes are not few enough to ask");
        let dir = tempfile::tempdir().expect("a directory");
        let target = Directory::open(dir.path().join("copies")).expect("a target");
        db.backup().run(&target).expect("a backup");
        db.close().expect("closes");
        check(&open());
        let copy = dir.path().join("copy");
        Restore::from(&target).into_directory(&copy).expect("restored");
        check(&builder().open(&copy).expect("opens"));
    }
}
