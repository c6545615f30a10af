//! A full file system that copies on write (btrfs) refuses everything that changes it: writes, also of bytes that a file
//! has, cuts and removals. What wrote nothing is refused, and poisons nothing.

use psync::{Error, FileId, PassThrough, Result, Simulated, Volume, Write};
use sapwood::{Database, Durability};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Refuses all changes while it is full; what it refuses has not happened.
struct CopyOnWrite {
    inner: Simulated,
    is_full: AtomicBool,
}

impl CopyOnWrite {
    fn changes(&self, operation: &'static str) -> Result<()> {
        if self.is_full.load(SeqCst) {
            return Err(Error::from_io(operation, "file", None, ErrorKind::StorageFull.into()));
        }
        Ok(())
    }
}

impl PassThrough for CopyOnWrite {
    fn inner(&self) -> &dyn Volume {
        &self.inner
    }

    fn write(&self, set: &[Write<'_>]) -> Result<()> {
        self.changes("write").and_then(|()| psync::Device::write(&self.inner, set))
    }

    fn resize(&self, file: FileId, len: u64) -> Result<()> {
        self.changes("resize").and_then(|()| psync::Device::resize(&self.inner, file, len))
    }

    fn allocate(&self, file: FileId, range: Range<u64>) -> Result<()> {
        self.changes("allocate").and_then(|()| psync::Device::allocate(&self.inner, file, range))
    }

    fn release(&self, file: FileId, range: Range<u64>) -> Result<()> {
        self.changes("release").and_then(|()| psync::Device::release(&self.inner, file, range))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.changes("remove").and_then(|()| self.inner.remove(name))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.changes("rename").and_then(|()| self.inner.rename(from, to))
    }
}

#[test]
fn a_full_disk_that_refuses_to_cut_and_to_remove_poisons_nothing() {
    for threads in [0, 1] {
        for before in [Durability::None, Durability::Buffered, Durability::Immediate] {
            for durability in [Durability::Buffered, Durability::Immediate] {
                let inner = Simulated::new(1);
                let volume = Arc::new(CopyOnWrite { inner: inner.clone(), is_full: AtomicBool::new(false) });
                let builder = Database::builder().memory(4 << 20).background_threads(threads);
                let db = builder.clone().open_on(Arc::clone(&volume) as Arc<dyn Volume>).expect("opens");
                let keyspace = db.keyspace("main").expect("a keyspace");
                let put = |number: u32, durability| {
                    let mut batch = db.batch();
                    batch.insert(&keyspace, number.to_be_bytes(), [7; 100]);
                    batch.durability(durability).commit()
                };
                (0..3000).for_each(|number| put(number, before).expect("there is space"));
                volume.is_full.store(true, SeqCst);
                let mut refused = 0;
                let mut look = |what: &str, result: sapwood::Result<()>| {
                    if let Err(error) = result {
                        assert!(
                            error.is_disk_full(),
                            "{what} after {before:?}, then {durability:?}: {error}"
                        );
                        refused += 1;
                    }
                };
                for number in 3000..3010 {
                    look("a put", put(number, durability));
                    look("a flush", db.flush());
                    look("a removal", keyspace.remove(number.to_be_bytes()));
                    look("another keyspace", db.keyspace(&format!("{number}")).map(drop));
                    look("a compaction", db.compact());
                }
                assert!(refused > 30, "{refused}");
                volume.is_full.store(false, SeqCst);
                put(3000, durability).expect("there is space again");
                db.flush().expect("there is space again");
                assert_eq!(keyspace.iter().count(), 3001);
                drop((keyspace, db));
                let found = builder.open_on(Arc::new(inner.power_loss(1))).expect("opens");
                assert_eq!(found.keyspace("main").expect("it is there").iter().count(), 3001);
                found.check().expect("sound");
            }
        }
    }
}
