//! A disk that knows how many reads each thread has asked it for. What the flushing thread reads meanwhile is so told apart from what gets
//! read, which the database's own counts mix.
//!
//! Invariant: all else is the inner disk's, as if it were not in between: reads that are begun, and windows, too.

use psync::{
    Access, Counters, Device, Disk, DiskOptions, Entry, FileId, InFlight, Limits, Lock, LockKind, Read,
    ReadInto, Result, Volume, Window, Write,
};
use std::cell::Cell;
use std::ops::Range;
use std::path::Path;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

/// Read requests of this thread since it began, on all such disks.
pub fn of_this_thread() -> u64 {
    ASKED.get()
}

/// See the module.
pub struct Counted(Disk);

impl Counted {
    /// The directory `path`, created if there is none.
    pub fn open(path: &Path) -> Result<Self> {
        Disk::open(path, DiskOptions { create: true, ..DiskOptions::default() }).map(Self)
    }
}

impl Device for Counted {
    fn read(&self, set: &mut [Read<'_>]) -> Result<()> {
        ASKED.set(ASKED.get() + set.len() as u64);
        self.0.read(set)
    }

    fn begin(&self, reads: Vec<ReadInto>) -> InFlight {
        ASKED.set(ASKED.get() + reads.len() as u64);
        self.0.begin(reads)
    }

    fn write(&self, set: &[Write<'_>]) -> Result<()> {
        self.0.write(set)
    }

    fn sync(&self, file: FileId) -> Result<()> {
        self.0.sync(file)
    }

    fn sync_part(&self, written: Write<'_>) -> Result<()> {
        self.0.sync_part(written)
    }

    fn len(&self, file: FileId) -> Result<u64> {
        self.0.len(file)
    }

    fn resize(&self, file: FileId, len: u64) -> Result<()> {
        self.0.resize(file, len)
    }

    fn release(&self, file: FileId, range: Range<u64>) -> Result<()> {
        self.0.release(file, range)
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }
}

impl Volume for Counted {
    fn open(&self, name: &str, access: Access) -> Result<FileId> {
        self.0.open(name, access)
    }

    fn close(&self, file: FileId) -> Result<()> {
        self.0.close(file)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.0.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.0.rename(from, to)
    }

    fn list(&self) -> Result<Vec<Entry>> {
        self.0.list()
    }

    fn sync_directory(&self) -> Result<()> {
        self.0.sync_directory()
    }

    fn lock(&self, kind: LockKind, holder: &str) -> Result<Lock> {
        self.0.lock(kind, holder)
    }

    fn window(&self, file: FileId, range: Range<u64>) -> Result<Option<Box<dyn Window>>> {
        self.0.window(file, range)
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}
