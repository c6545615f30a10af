//! [`Window`]s of real files: shared mappings.
//!
//! A store to a mapped page can end the process with SIGBUS where a write would answer with an error. So that it cannot happen here:
//!
//! - *No page behind the file's end.* The range lies inside the file's length, and [`Disk`](crate::Disk) refuses to cut the file within it.
//!   (Whoever cuts the file from outside of this volume kills the process.)
//! - *No page without space.* All pages are made writable before the first store (`MADV_POPULATE_WRITE`), which allocates what is
//!   not allocated, and answers with an error where a store would have met SIGBUS: then there is no window.
//! - *No page that needs space again.* When the kernel has written a page back, the next store to it asks the file system anew. One that
//!   writes in place has nothing to allocate then; one that copies on write has, and may find the disk full. So there are windows on
//!   ext4 (ext2 and ext3 have the same number) and in tmpfs only. XFS would do as long as no file shares extents, but anybody's
//!   `cp --reflink` makes it share them; nobody has tried others.
//! - *No page that has to be read again.* A page that was written back can be reclaimed, and the device can fail to read it. Pages
//!   are populated again after [`FRESH`], and the kernel leaves dirty pages alone for longer than that (30 s by default). What is left: written
//!   back early, reclaimed, and unreadable, all within that time. A program on a failing disk can die of that at each of its instructions.
//!
//! - *Not after an error of the file system.* ext4 that was shut down (`EXT4_IOC_SHUTDOWN`, its three kinds, Linux 6.18) takes stores to pages
//!   that were mapped, as it takes no writes any more, and fails the next sync.
//!
//! A page costs one fault, and one more after each time it was written back; populating takes them all in one call (with large folios
//! in few faults: 64 pages that were written as one took 5).
//!
//! Invariants: a mapping is unmapped once, by its owner; nobody has a reference into it: bytes go in by copying, and none come out.

use crate::window::{Window, check};
use crate::{Error, Result};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// The part of a file that is mapped, if one is. Whoever takes space from the file looks here, and holds it meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Mapped(Mutex<Option<Range<u64>>>);

impl Mapped {
    /// Does what takes space from `range` of the file, unless that is mapped.
    pub fn unless<T>(&self, file: &str, range: Range<u64>, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let mapped = self.0.lock();
        match &*mapped {
            Some(mapped) if range.start < mapped.end && mapped.start < range.end => Err(Error::Invalid(
                format!("{file}: {range:?} is to go, but there is a window of {mapped:?}"),
            )),
            _ => work(),
        }
    }
}

/// The window of `range` of the file; `None` if it cannot be had here.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn window(
    _: &Arc<Mapped>,
    _: &std::fs::File,
    _: &Arc<str>,
    _: Range<u64>,
) -> Result<Option<Box<dyn Window>>> {
    Ok(None)
}

#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) use linux::window;

#[cfg(all(target_os = "linux", not(miri)))]
mod linux {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::ptr::NonNull;
    use std::time::Duration;

    /// `EXT4_SUPER_MAGIC` and `TMPFS_MAGIC` of <linux/magic.h>.
    const IN_PLACE: [u32; 2] = [0xef53, 0x0102_1994];

    /// How long populated pages are taken to be there.
    const FRESH: Duration = Duration::from_secs(1);

    /// See the module. Dropped, it is unmapped; what was stored stays in the page cache.
    struct Mapping {
        name: Arc<str>,
        mapped: Arc<Mapped>,
        range: Range<u64>,
        /// Where `origin` is mapped, a page's beginning at or below the range's.
        memory: NonNull<u8>,
        origin: u64,
        len: usize,
        page: u64,
        populated: Duration,
    }

    // SAFETY: the mapping is the owner's alone, like a `Box<[u8]>`; no thread has more to do with it than another.
    unsafe impl Send for Mapping {}

    pub(crate) fn window(
        mapped: &Arc<Mapped>,
        file: &File,
        name: &Arc<str>,
        range: Range<u64>,
    ) -> Result<Option<Box<dyn Window>>> {
        // Held until the mapping is there, so that nobody cuts the file in between.
        let mut taken = mapped.0.lock();
        let file_len = file.metadata().map_err(|error| Error::from_io("stat", name, None, error))?.len();
        if range.is_empty() || range.end > file_len || taken.is_some() {
            return Err(Error::Invalid(format!(
                "{name}: a window of {range:?}, but the file has {file_len} bytes, and a window of {taken:?}"
            )));
        }
        if !writes_in_place(file) {
            return Ok(None);
        }
        // SAFETY: asks for a number, and touches nothing.
        let page = match unsafe { libc::sysconf(libc::_SC_PAGESIZE) } {
            page if page > 0 => page as u64,
            _ => return Ok(None),
        };
        let origin = range.start - range.start % page;
        let Ok(len) = usize::try_from(range.end - origin) else { return Ok(None) };
        let Some(memory) = map(file, origin, len) else { return Ok(None) };
        *taken = Some(range.clone());
        drop(taken);
        let (name, mapped, populated) = (Arc::clone(name), Arc::clone(mapped), Duration::ZERO);
        let mut mapping = Mapping { name, mapped, range, memory, origin, len, page, populated };
        Ok(if mapping.populate(mapping.range.start) { Some(Box::new(mapping)) } else { None })
    }

    fn writes_in_place(file: &File) -> bool {
        // SAFETY: fstatfs fills the struct, for which all zeros is a valid value; the file is open.
        let (result, status) = unsafe {
            let mut status: libc::statfs = std::mem::zeroed();
            (libc::fstatfs(file.as_raw_fd(), &raw mut status), status)
        };
        result == 0 && IN_PLACE.contains(&(status.f_type as u32))
    }

    /// `None` if the system will not.
    fn map(file: &File, origin: u64, len: usize) -> Option<NonNull<u8>> {
        let (access, origin) = (libc::PROT_READ | libc::PROT_WRITE, libc::off_t::try_from(origin).ok()?);
        let file = file.as_raw_fd();
        // SAFETY: a new mapping of an open file, wherever there is room: no memory that exists is touched. Nobody makes references
        // into it, so it does no harm that others change the file.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file, origin) };
        (memory != libc::MAP_FAILED).then_some(memory.cast()).and_then(NonNull::new)
    }

    /// Time since some moment, as of the last tick of the clock: cheap enough for each store.
    fn now() -> Duration {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: fills the struct, which is ours.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    impl Mapping {
        /// Makes all pages from `offset` on writable. Says whether they are.
        fn populate(&mut self, offset: u64) -> bool {
            let skip = (offset - offset % self.page - self.origin) as usize;
            // SAFETY: within the mapping, which is ours, from the beginning of a page on; the content stays as it is.
            let populated = unsafe {
                let from = self.memory.as_ptr().add(skip);
                libc::madvise(from.cast(), self.len - skip, libc::MADV_POPULATE_WRITE)
            };
            self.populated = now();
            populated == 0
        }
    }

    impl Window for Mapping {
        fn range(&self) -> Range<u64> {
            self.range.clone()
        }

        fn store(&mut self, offset: u64, data: &[u8]) -> Result<bool> {
            check(&self.name, &self.range, offset, data.len())?;
            if now().saturating_sub(self.populated) > FRESH && !self.populate(offset) {
                return Ok(false);
            }
            // SAFETY: checked to be inside the range, and so inside the mapping, which is as long as that; nobody has a reference
            // into it, so `data` is elsewhere. That its pages are there is explained above.
            unsafe {
                let at = self.memory.as_ptr().add((offset - self.origin) as usize);
                std::ptr::copy_nonoverlapping(data.as_ptr(), at, data.len());
            }
            Ok(true)
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: mapped by `map` with this length, and owned by this alone, which is no more.
            unsafe { libc::munmap(self.memory.as_ptr().cast(), self.len) };
            *self.mapped.0.lock() = None;
        }
    }
}
