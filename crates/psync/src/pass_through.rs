//! Wrapping volumes: forward most calls to another volume, to watch it, to rename its files, or to cut its
//! power.
//!
//! Invariant: a call that the wrapper does not implement itself is forwarded to the inner volume unchanged,
//! once. There are four exceptions, so that nothing bypasses the wrapper's own `read`, `write`, `sync` and `list`:
//! reads started with [`Device::begin`] are completed at once, [`Device::sync_part`] is a full sync, [`Volume::names`] are those
//! that are listed, and there is no [`Window`] unless the wrapper provides one.

use crate::{
    Access, Counters, Device, Entry, FileId, Limits, Lock, LockKind, Read, Result, Volume, Window, Write,
};
use std::ops::Range;

/// Makes the trait and both implementations from a line for each method, so that none has a method that another lacks. Behind `=>` is
/// what a method does by itself in place of being forwarded.
macro_rules! pass_through {
    ($($of:ident {
        $(fn $name:ident(&$this:ident $(, $argument:ident: $kind:ty)*) -> $result:ty $(=> $own:expr)?;)*
    })*) => {
        /// A [`Volume`] that wraps another. Implement [`PassThrough::inner`], and override what should differ.
        ///
        /// Its methods are those of [`Device`] and [`Volume`]. In a file that imports all three traits, call them on a
        /// `&dyn Volume`.
        pub trait PassThrough: Send + Sync {
            /// The inner volume, to which calls are forwarded.
            fn inner(&self) -> &dyn Volume;

            $($(
                #[doc = concat!("[`", stringify!($of), "::", stringify!($name), "`].")]
                fn $name(&$this $(, $argument: $kind)*) -> $result {
                    pass_through!(@ $this.inner().$name($($argument),*) $(, $own)?)
                }
            )*)*
        }

        $(
            impl<P: PassThrough> $of for P {
                $(
                    fn $name(&self $(, $argument: $kind)*) -> $result {
                        PassThrough::$name(self $(, $argument)*)
                    }
                )*
            }
        )*
    };
    (@ $forwarded:expr) => { $forwarded };
    (@ $forwarded:expr, $own:expr) => { $own };
}

pass_through! {
    Device {
        fn read(&self, set: &mut [Read<'_>]) -> Result<()>;
        fn write(&self, set: &[Write<'_>]) -> Result<()>;
        fn sync(&self, file: FileId) -> Result<()>;
        fn sync_part(&self, written: Write<'_>) -> Result<()> => self.sync(written.file);
        fn len(&self, file: FileId) -> Result<u64>;
        fn resize(&self, file: FileId, len: u64) -> Result<()>;
        fn release(&self, file: FileId, range: Range<u64>) -> Result<()>;
        fn allocate(&self, file: FileId, range: Range<u64>) -> Result<()>;
        fn limits(&self) -> Limits;
        fn counters(&self) -> Counters;
    }
    Volume {
        fn open(&self, name: &str, access: Access) -> Result<FileId>;
        fn close(&self, file: FileId) -> Result<()>;
        fn remove(&self, name: &str) -> Result<()>;
        fn rename(&self, from: &str, to: &str) -> Result<()>;
        fn list(&self) -> Result<Vec<Entry>>;
        fn names(&self) -> Result<Vec<String>> => Ok(self.list()?.into_iter().map(|entry| entry.name).collect());
        fn sync_directory(&self) -> Result<()>;
        fn lock(&self, kind: LockKind, holder: &str) -> Result<Lock>;
        fn window(&self, file: FileId, range: Range<u64>) -> Result<Option<Box<dyn Window>>> => {
            let _ = (file, range);
            Ok(None)
        };
        fn identify_by(&self, file: FileId) -> Result<()>;
        fn verify(&self) -> Result<()>;
        fn boot_id(&self) -> [u8; 16];
        fn describe(&self) -> String;
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
        told.push(format!("{:?} {:?} {:?}", volume.names(), volume.verify(), volume.boot_id()));
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
