//! A volume that goes on, and leaves images behind of what it would have been if the power had gone: so that a workload need not
//! run anew for each cut.
//!
//! Invariants:
//! 1. Operations are counted one by one, members of sets too, as [`Simulated`] counts them for its faults.
//! 2. An operation that is cut is done on the image alone, with [`Fault::PowerOff`] in the midst of it.

use parking_lot::Mutex;
use psync::{
    Access, Device, Entry, Fault, FileId, Filter, Lock, LockKind, PassThrough, Read, Repeat, Result,
    Simulated, Volume, Write,
};
use std::collections::HashMap;
use std::ops::Range;

/// Which operations are cut.
pub(super) struct Wanted {
    /// Whether reads and questions count.
    pub(super) reads: bool,
    /// Whether the so many-th operation that counts is cut.
    pub(super) nth: Box<dyn Fn(u64) -> bool + Send>,
}

/// See the module.
pub(super) struct Forks {
    volume: Simulated,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    wanted: Option<Wanted>,
    names: HashMap<FileId, String>,
    count: u64,
    images: Vec<(u64, Simulated)>,
}

impl Forks {
    pub(super) fn new(volume: Simulated) -> Self {
        Self { volume, kept: Mutex::default() }
    }

    /// From now on operations count, and those that are wanted are cut.
    pub(super) fn cut(&self, wanted: Wanted) {
        let mut kept = self.kept.lock();
        kept.wanted = Some(wanted);
        kept.count = 0;
    }

    /// The numbers of the operations that were cut since this was asked last, and what their cuts left.
    pub(super) fn take(&self) -> Vec<(u64, Simulated)> {
        std::mem::take(&mut self.kept.lock().images)
    }

    /// Operations that counted.
    pub(super) fn count(&self) -> u64 {
        self.kept.lock().count
    }

    /// Counts `members` operations; does `operation` on an image for each that is cut.
    fn fork(
        &self,
        changes: bool,
        members: usize,
        operation: impl Fn(&Simulated, &dyn Fn(FileId) -> Result<FileId>) -> Result<()>,
    ) {
        let mut kept = self.kept.lock();
        let Kept { wanted: Some(wanted), names, count, images } = &mut *kept else { return };
        if !changes && !wanted.reads {
            return;
        }
        for member in 1..=members as u64 {
            *count += 1;
            if !(wanted.nth)(*count) {
                continue;
            }
            let image = self.volume.crash();
            // What is done of the operation follows from how many there were before.
            for _ in 0..*count % 61 {
                let _ = image.list();
            }
            if changes {
                // One member after the other: files are opened first, so that they do not count.
                let opened = |file: FileId| {
                    let name = names.get(&file).cloned().unwrap_or_default();
                    image.open(&name, Access { write: true, ..Access::default() })
                };
                let files: HashMap<FileId, Result<FileId>> =
                    names.keys().map(|file| (*file, opened(*file))).collect();
                image.fail_nth(Filter::changes(), member, Fault::PowerOff, Repeat::Once);
                // It fails; and one on a file without a name leaves nothing behind.
                let _ = operation(&image, &|file| match files.get(&file) {
                    Some(Ok(file)) => Ok(*file),
                    _ => Err(psync::Error::Invalid("a file without a name".to_owned())),
                });
            }
            images.push((*count, image));
        }
    }
}

impl PassThrough for Forks {
    fn inner(&self) -> &dyn Volume {
        &self.volume
    }

    fn read(&self, set: &mut [Read<'_>]) -> Result<()> {
        self.fork(false, set.len(), |_, _| Ok(()));
        self.volume.read(set)
    }

    fn write(&self, set: &[Write<'_>]) -> Result<()> {
        self.fork(true, set.len(), |image, file| {
            let set = set.iter().map(|write| Ok(Write { file: file(write.file)?, ..*write }));
            image.write(&set.collect::<Result<Vec<_>>>()?)
        });
        self.volume.write(set)
    }

    fn sync(&self, file: FileId) -> Result<()> {
        self.fork(true, 1, |image, of| image.sync(of(file)?));
        self.volume.sync(file)
    }

    fn len(&self, file: FileId) -> Result<u64> {
        self.fork(false, 1, |_, _| Ok(()));
        self.volume.len(file)
    }

    fn resize(&self, file: FileId, len: u64) -> Result<()> {
        self.fork(true, 1, |image, of| image.resize(of(file)?, len));
        self.volume.resize(file, len)
    }

    fn release(&self, file: FileId, range: Range<u64>) -> Result<()> {
        self.fork(true, 1, |image, of| image.release(of(file)?, range.clone()));
        self.volume.release(file, range)
    }

    fn open(&self, name: &str, access: Access) -> Result<FileId> {
        self.fork(true, 1, |image, _| image.open(name, access).map(|_| ()));
        let file = self.volume.open(name, access)?;
        self.kept.lock().names.insert(file, name.to_owned());
        Ok(file)
    }

    fn close(&self, file: FileId) -> Result<()> {
        self.kept.lock().names.remove(&file);
        self.volume.close(file)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.fork(true, 1, |image, _| image.remove(name));
        self.volume.remove(name)?;
        self.kept.lock().names.retain(|_, other| other != name);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.fork(true, 1, |image, _| image.rename(from, to));
        self.volume.rename(from, to)?;
        let mut kept = self.kept.lock();
        kept.names.retain(|_, name| name != to);
        kept.names.values_mut().filter(|name| *name == from).for_each(|name| to.clone_into(name));
        Ok(())
    }

    fn list(&self) -> Result<Vec<Entry>> {
        self.fork(false, 1, |_, _| Ok(()));
        self.volume.list()
    }

    fn sync_directory(&self) -> Result<()> {
        self.fork(true, 1, |image, _| image.sync_directory());
        self.volume.sync_directory()
    }

    fn lock(&self, kind: LockKind, holder: &str) -> Result<Lock> {
        self.fork(false, 1, |_, _| Ok(()));
        self.volume.lock(kind, holder)
    }
}
