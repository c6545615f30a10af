//! Wrapping volumes: forward most calls to another volume, to watch it, to rename its files, or to cut its
//! power.
//!
//! Invariant: a call that the wrapper does not implement itself is forwarded to the inner volume unchanged,
//! once. There are three exceptions, so that nothing bypasses the wrapper's own `read`, `write` and `sync`:
//! reads started with [`Device::begin`] are completed at once, [`Device::sync_part`] is a full sync, and there
//! is no [`Window`] unless the wrapper provides one.

use crate::{
    Access, Counters, Device, Entry, FileId, Limits, Lock, LockKind, Read, Result, Volume, Window, Write,
};
use std::ops::Range;

/// A [`Volume`] that wraps another. Implement [`PassThrough::inner`], and override what should differ.
///
/// Its methods are those of [`Device`] and [`Volume`]. In a file that imports all three traits, call them on a
/// `&dyn Volume`.
pub trait PassThrough: Send + Sync {
    /// The inner volume, to which calls are forwarded.
    fn inner(&self) -> &dyn Volume;

    /// [`Device::read`].
    fn read(&self, set: &mut [Read<'_>]) -> Result<()> {
        self.inner().read(set)
    }

    /// [`Device::write`].
    fn write(&self, set: &[Write<'_>]) -> Result<()> {
        self.inner().write(set)
    }

    /// [`Device::sync`].
    fn sync(&self, file: FileId) -> Result<()> {
        self.inner().sync(file)
    }

    /// [`Device::sync_part`].
    fn sync_part(&self, written: Write<'_>) -> Result<()> {
        self.sync(written.file)
    }

    /// [`Device::len`].
    fn len(&self, file: FileId) -> Result<u64> {
        self.inner().len(file)
    }

    /// [`Device::resize`].
    fn resize(&self, file: FileId, len: u64) -> Result<()> {
        self.inner().resize(file, len)
    }

    /// [`Device::release`].
    fn release(&self, file: FileId, range: Range<u64>) -> Result<()> {
        self.inner().release(file, range)
    }

    /// [`Device::allocate`].
    fn allocate(&self, file: FileId, range: Range<u64>) -> Result<()> {
        self.inner().allocate(file, range)
    }

    /// [`Device::limits`].
    fn limits(&self) -> Limits {
        self.inner().limits()
    }

    /// [`Device::counters`].
    fn counters(&self) -> Counters {
        self.inner().counters()
    }

    /// [`Volume::open`].
    fn open(&self, name: &str, access: Access) -> Result<FileId> {
        self.inner().open(name, access)
    }

    /// [`Volume::close`].
    fn close(&self, file: FileId) -> Result<()> {
        self.inner().close(file)
    }

    /// [`Volume::remove`].
    fn remove(&self, name: &str) -> Result<()> {
        self.inner().remove(name)
    }

    /// [`Volume::rename`].
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.inner().rename(from, to)
    }

    /// [`Volume::list`].
    fn list(&self) -> Result<Vec<Entry>> {
        self.inner().list()
    }

    /// [`Volume::sync_directory`].
    fn sync_directory(&self) -> Result<()> {
        self.inner().sync_directory()
    }

    /// [`Volume::lock`].
    fn lock(&self, kind: LockKind, holder: &str) -> Result<Lock> {
        self.inner().lock(kind, holder)
    }

    /// [`Volume::window`].
    fn window(&self, file: FileId, range: Range<u64>) -> Result<Option<Box<dyn Window>>> {
        let _ = (file, range);
        Ok(None)
    }

    /// [`Volume::identify_by`].
    fn identify_by(&self, file: FileId) -> Result<()> {
        self.inner().identify_by(file)
    }

    /// [`Volume::verify`].
    fn verify(&self) -> Result<()> {
        self.inner().verify()
    }

    /// [`Volume::boot_id`].
    fn boot_id(&self) -> [u8; 16] {
        self.inner().boot_id()
    }

    /// [`Volume::describe`].
    fn describe(&self) -> String {
        self.inner().describe()
    }
}

impl<P: PassThrough> Device for P {
    fn read(&self, set: &mut [Read<'_>]) -> Result<()> {
        PassThrough::read(self, set)
    }

    fn write(&self, set: &[Write<'_>]) -> Result<()> {
        PassThrough::write(self, set)
    }

    fn sync(&self, file: FileId) -> Result<()> {
        PassThrough::sync(self, file)
    }

    fn sync_part(&self, written: Write<'_>) -> Result<()> {
        PassThrough::sync_part(self, written)
    }

    fn len(&self, file: FileId) -> Result<u64> {
        PassThrough::len(self, file)
    }

    fn resize(&self, file: FileId, len: u64) -> Result<()> {
        PassThrough::resize(self, file, len)
    }

    fn release(&self, file: FileId, range: Range<u64>) -> Result<()> {
        PassThrough::release(self, file, range)
    }

    fn allocate(&self, file: FileId, range: Range<u64>) -> Result<()> {
        PassThrough::allocate(self, file, range)
    }

    fn limits(&self) -> Limits {
        PassThrough::limits(self)
    }

    fn counters(&self) -> Counters {
        PassThrough::counters(self)
    }
}

impl<P: PassThrough> Volume for P {
    fn open(&self, name: &str, access: Access) -> Result<FileId> {
        PassThrough::open(self, name, access)
    }

    fn close(&self, file: FileId) -> Result<()> {
        PassThrough::close(self, file)
    }

    fn remove(&self, name: &str) -> Result<()> {
        PassThrough::remove(self, name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        PassThrough::rename(self, from, to)
    }

    fn list(&self) -> Result<Vec<Entry>> {
        PassThrough::list(self)
    }

    fn sync_directory(&self) -> Result<()> {
        PassThrough::sync_directory(self)
    }

    fn lock(&self, kind: LockKind, holder: &str) -> Result<Lock> {
        PassThrough::lock(self, kind, holder)
    }

    fn window(&self, file: FileId, range: Range<u64>) -> Result<Option<Box<dyn Window>>> {
        PassThrough::window(self, file, range)
    }

    fn identify_by(&self, file: FileId) -> Result<()> {
        PassThrough::identify_by(self, file)
    }

    fn verify(&self) -> Result<()> {
        PassThrough::verify(self)
    }

    fn boot_id(&self) -> [u8; 16] {
        PassThrough::boot_id(self)
    }

    fn describe(&self) -> String {
        PassThrough::describe(self)
    }
}

#[cfg(test)]
mod tests {
    use super::PassThrough;
    use crate::{Access, AlignedBuffer, FileId, LockKind, Read, ReadInto, Result, Simulated, Volume, Write};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Counts syncs and reads; all else is the inner volume's.
    struct Counting(Simulated, AtomicU64, AtomicU64);

    impl PassThrough for Counting {
        fn inner(&self) -> &dyn Volume {
            &self.0
        }

        fn sync(&self, file: FileId) -> Result<()> {
            self.1.fetch_add(1, Relaxed);
            self.inner().sync(file)
        }

        fn read(&self, set: &mut [Read<'_>]) -> Result<()> {
            self.2.fetch_add(1, Relaxed);
            self.inner().read(set)
        }
    }

    /// Does one of everything, and tells what came of it.
    fn story(volume: &dyn Volume) -> Vec<String> {
        let mut told = Vec::new();
        let file = volume.open("one", Access { write: true, create: true, ..Access::default() }).unwrap();
        let mut page = AlignedBuffer::new(4096);
        page.fill(7);
        volume.write(&[Write { file, offset: 4096, data: &page }]).unwrap();
        page.fill(0);
        volume.read(&mut [Read { file, offset: 4096, buffer: &mut page }]).unwrap();
        let begun = volume.begin(vec![ReadInto { file, offset: 4096, buffer: AlignedBuffer::new(4096) }]);
        told.push(format!("{} {:?}", page[17], begun.wait().map(|found| found[0][17])));
        volume.sync(file).unwrap();
        volume.sync_part(Write { file, offset: 4096, data: &[7; 10] }).unwrap();
        volume.resize(file, 12_288).unwrap();
        volume.release(file, 4096..8192).unwrap();
        volume.allocate(file, 8192..16_384).unwrap();
        told.push(format!("{:?} {:?}", volume.len(file), volume.limits()));
        volume.close(file).unwrap();
        told.push(format!("{:?}", volume.len(file).is_err()));
        volume.rename("one", "two").unwrap();
        volume.open("three", Access { write: true, create: true, ..Access::default() }).unwrap();
        volume.remove("three").unwrap();
        volume.sync_directory().unwrap();
        let lock = volume.lock(LockKind::Exclusive, "first").unwrap();
        told.push(format!("{:?}", volume.lock(LockKind::Exclusive, "second")));
        drop(lock);
        told.push(format!("{:?} {:?} {}", volume.list(), volume.counters(), volume.describe()));
        told
    }

    #[test]
    fn what_is_not_written_anew_is_what_the_inner_volume_does() {
        let (alone, inner) = (Simulated::new(1), Simulated::new(1));
        let front = Counting(inner.clone(), AtomicU64::new(0), AtomicU64::new(0));
        let told = story(&front);
        assert_eq!(told, story(&alone));
        assert_eq!(Volume::list(&inner).unwrap()[0].name, "two", "{told:?}");
        assert_eq!(
            (front.1.load(Relaxed), front.2.load(Relaxed)),
            (2, 2),
            "what is begun is read through it too, and what is synced in part by its sync"
        );
    }
}
