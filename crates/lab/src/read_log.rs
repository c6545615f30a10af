//! A volume that notes which places are read together, in front of another.

use parking_lot::Mutex;
use psync::{Access, FileId, PassThrough, Read, Result, Volume};
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

impl PassThrough for ReadLog {
    fn inner(&self) -> &dyn Volume {
        &*self.volume
    }

    fn read(&self, set: &mut [Read<'_>]) -> Result<()> {
        let places = set.iter().map(|read| (self.name(read.file), read.offset)).collect();
        self.sets.lock().push(places);
        self.volume.read(set)
    }

    fn open(&self, name: &str, access: Access) -> Result<FileId> {
        let file = self.volume.open(name, access)?;
        self.names.lock().push((file, name.to_owned()));
        Ok(file)
    }
}
