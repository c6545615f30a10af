//! One volume is opened again and again, as a program does that made it itself: each database closes what it has opened.

use crate::{builder, put, scratch};
use psync::{Access, Disk, DiskOptions, Fault, FileId, Filter, PassThrough, Repeat, Simulated, Volume};
use sapwood::{Builder, Database, Error};
use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};

/// Knows which of its files are open.
struct Watched {
    inner: Simulated,
    open: Mutex<BTreeMap<FileId, String>>,
}

impl Watched {
    fn open_files(&self) -> Vec<String> {
        self.open.lock().expect("no panic").values().cloned().collect()
    }
}

impl PassThrough for Watched {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn open(&self, name: &str, access: Access) -> psync::Result<FileId> {
        let file = self.inner().open(name, access)?;
        self.open.lock().expect("no panic").insert(file, name.to_owned());
        Ok(file)
    }

    fn close(&self, file: FileId) -> psync::Result<()> {
        self.inner().close(file)?;
        self.open.lock().expect("no panic").remove(&file);
        Ok(())
    }
}

const NONE: [&str; 0] = [];

/// `data` stayed open: a descriptor for each opening.
#[test]
fn a_closed_database_has_no_file_open() {
    let volume = Arc::new(Watched { inner: Simulated::new(1), open: Mutex::default() });
    let open = |builder: Builder| builder.open_on(Arc::clone(&volume) as Arc<dyn Volume>);
    for threads in [0, 2] {
        let db = open(builder().background_threads(threads)).expect("opens");
        let keyspace = db.keyspace("main").expect("a keyspace");
        (0..5_000).for_each(|number| put(&db, &keyspace, number).expect("durable"));
        assert!(volume.open_files().iter().any(|name| name == "data"));
        let follower = open(builder().follow(true)).expect("follows");
        assert!(follower.keyspace("main").unwrap().count(..).unwrap() > 0);
        follower.close().expect("closes");
        db.close().expect("closes");
        assert_eq!(volume.open_files(), NONE, "{threads} threads");
        assert!(matches!(keyspace.get([7]), Err(Error::Closed)));
    }
    // One that is dropped, with a range that outlives it.
    let db = open(builder().read_only(true)).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    let mut range = keyspace.iter();
    assert!(range.next().is_some());
    drop((db, keyspace, range));
    assert_eq!(volume.open_files(), NONE, "read-only");
}

/// At each of its operations.
#[test]
fn an_opening_that_fails_leaves_no_file_open() {
    let image = Simulated::new(1);
    let keep = builder().background_threads(0).open_on(Arc::new(image.clone())).expect("opens");
    let keyspace = keep.keyspace("main").expect("a keyspace");
    (0..5_000).for_each(|number| put(&keep, &keyspace, number).expect("durable"));
    for is_sealed in [false, true] {
        let image = if is_sealed {
            let image = image.crash();
            builder().background_threads(0).open_on(Arc::new(image.clone())).unwrap().close().unwrap();
            image
        } else {
            image.crash()
        };
        let mut failed = 0;
        for nth in 1.. {
            let volume = Arc::new(Watched { inner: image.crash(), open: Mutex::default() });
            volume.inner.fail_nth(Filter::any(), nth, Fault::Error, Repeat::Once);
            let opened = builder().background_threads(0).open_on(Arc::clone(&volume) as Arc<dyn Volume>);
            let is_done = volume.inner.fired() == 0;
            volume.inner.clear_faults();
            failed += u32::from(opened.is_err());
            drop(opened);
            assert_eq!(volume.open_files(), NONE, "operation {nth}, closed: {is_sealed}");
            if is_done {
                break;
            }
        }
        assert!(failed > 20, "{failed}");
    }
}

/// The volume was still told by the file of the database that had been there.
#[test]
fn a_volume_takes_another_database_when_the_first_is_gone() {
    let dir = scratch();
    let volume = Arc::new(Disk::open(dir.path(), DiskOptions::default()).expect("a directory"));
    let open = || -> Result<Database, Error> { builder().open_on(Arc::clone(&volume) as Arc<dyn Volume>) };
    for number in 0..3 {
        let db = open().expect("opens");
        let keyspace = db.keyspace("main").expect("a keyspace");
        assert!(keyspace.is_empty().expect("readable"), "{number}");
        put(&db, &keyspace, number).expect("durable");
        // Handles may live on.
        db.close().expect("closes");
        for entry in fs::read_dir(dir.path()).expect("a directory") {
            fs::remove_file(entry.expect("an entry").path()).expect("removed");
        }
    }
}

/// It was refused for the lock of its own writer, of which the volume then did not know any more.
#[test]
fn a_follower_on_the_volume_of_its_writer_leaves_it_as_it_is() {
    let dir = scratch();
    let volume = Arc::new(Disk::open(dir.path(), DiskOptions::default()).expect("a directory"));
    let open = |builder: Builder| builder.open_on(Arc::clone(&volume) as Arc<dyn Volume>);
    let db = open(builder()).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    for number in 0..3 {
        put(&db, &keyspace, number).expect("durable");
        let follower = open(builder().follow(true)).expect("follows");
        assert_eq!(follower.keyspace("main").unwrap().count(..).unwrap(), number + 1);
        follower.close().expect("closes");
    }
    for entry in fs::read_dir(dir.path()).expect("a directory") {
        fs::remove_file(entry.expect("an entry").path()).expect("removed");
    }
    let refused = put(&db, &keyspace, 3);
    assert!(matches!(refused, Err(Error::Gone { .. })), "{refused:?}");
}
