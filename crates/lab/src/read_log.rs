//! A volume that notes which places are read together, in front of another.

use parking_lot::Mutex;
use psync::{Access, Counters, Device, Entry, FileId, Limits, Lock, LockKind, Read, Result, Volume, Write};
use std::ops::Range;
use std::sync::Arc;

/// A place in a file: its name, and the offset.
pub(crate) type Place = (String, u64);

/// See the module.
pub(crate) struct ReadLog {
    volume: Arc<dyn Volume>,
    names: Mutex<Vec<(FileId, String)>>,
    sets: Mutex<Vec<Vec<Place>>>,
}

impl ReadLog {
    pub fn new(volume: Arc<dyn Volume>) -> Self {
        Self { volume, names: Mutex::new(Vec::new()), sets: Mutex::new(Vec::new()) }
    }

    /// The sets read since this was last asked.
    pub fn take(&self) -> Vec<Vec<Place>> {
        std::mem::take(&mut *self.sets.lock())
    }

    fn name(&self, file: FileId) -> String {
        let names = self.names.lock();
        names.iter().rev().find(|(id, _)| *id == file).map(|(_, name)| name.clone()).unwrap_or_default()
    }
}

impl Device for ReadLog {
    fn read(&self, set: &mut [Read<'_>]) -> Result<()> {
        let places = set.iter().map(|read| (self.name(read.file), read.offset)).collect();
        self.sets.lock().push(places);
        self.volume.read(set)
    }

    fn write(&self, set: &[Write<'_>]) -> Result<()> {
        self.volume.write(set)
    }

    fn sync(&self, file: FileId) -> Result<()> {
        self.volume.sync(file)
    }

    fn len(&self, file: FileId) -> Result<u64> {
        self.volume.len(file)
    }

    fn resize(&self, file: FileId, len: u64) -> Result<()> {
        self.volume.resize(file, len)
    }

    fn release(&self, file: FileId, range: Range<u64>) -> Result<()> {
        self.volume.release(file, range)
    }

    fn limits(&self) -> Limits {
        self.volume.limits()
    }

    fn counters(&self) -> Counters {
        self.volume.counters()
    }
}

impl Volume for ReadLog {
    fn open(&self, name: &str, access: Access) -> Result<FileId> {
        let file = self.volume.open(name, access)?;
        self.names.lock().push((file, name.to_owned()));
        Ok(file)
    }

    fn close(&self, file: FileId) -> Result<()> {
        self.volume.close(file)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.volume.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.volume.rename(from, to)
    }

    fn list(&self) -> Result<Vec<Entry>> {
        self.volume.list()
    }

    fn sync_directory(&self) -> Result<()> {
        self.volume.sync_directory()
    }

    fn lock(&self, kind: LockKind, holder: &str) -> Result<Lock> {
        self.volume.lock(kind, holder)
    }

    fn describe(&self) -> String {
        self.volume.describe()
    }
}
