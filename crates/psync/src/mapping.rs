//! [`Window`]s of real files: shared mappings.
//!
//! Storing to a mapped page can kill the process with SIGBUS where a write would return an error. The following
//! rules prevent this:
//!
//! - *No page behind the file's end.* The range lies inside the file, and [`Disk`](crate::Disk) refuses to cut
//!   the file within it through the `FileId` that the window was opened by. (Cutting it through another one, or
//!   from outside, kills the process.)
//! - *No page without space.* All pages are made writable before the first store (`MADV_POPULATE_WRITE`). This
//!   allocates what is not allocated, and returns an error where a store would have met SIGBUS; then there is
//!   no window.
//! - *No page that needs space again.* After the kernel has written a page back, the next store to it asks the
//!   file system again. A file system that writes in place then has nothing to allocate; one that copies on
//!   write has, and may find the disk full. So there are windows only on ext4 (ext2 and ext3 have the same
//!   number) and in tmpfs. XFS would do as long as no file shares extents, but anybody's `cp --reflink` makes
//!   it share them; other file systems are untested. There is also no window where ext4 keeps the data in its
//!   journal (`data=journal`, `chattr +j`): each store would need space there, and meets SIGBUS when the
//!   journal was aborted. Nor of files in the device's memory (DAX): a store to a bad block is a machine check.
//!   Linux reports both since 6.1; before that, ext4 has no windows.
//! - *No page that has to be read again.* A page that was written back can be reclaimed, and the device can
//!   fail to read it. Pages are populated again before a store after [`FRESH`], and the kernel leaves dirty
//!   pages alone for longer than that (30 s by default). The remaining case: a page written back early,
//!   reclaimed, and unreadable, all within that time. On a failing disk, a program can die of that at any of
//!   its instructions.
//! - *Not by existing flags.* The kernel does not let anyone open a file for writing that is immutable or
//!   append-only (`chattr +i`, `+a`). The remaining case: root sets `+i` on the file of an open log, and the
//!   next store to a clean page kills the process; or sets `+j`, and a store does so when the journal is
//!   aborted.
//! - *Not after an error of the file system.* ext4 that was shut down (`EXT4_IOC_SHUTDOWN`, its three kinds,
//!   Linux 6.18) accepts stores to pages that were mapped, although it no longer accepts writes, and fails the
//!   next sync.
//!
//! A page costs one fault, and another one each time after it was written back. Populating takes them all in
//! one call (with large folios in few faults: 64 pages that were written as one took 5). But a folio is written
//! back as a whole: after a sync, one store into zeros made by one write of 256 KiB cost the next sync 256 KiB,
//! of 1 MiB 1 MiB, where a write cost it 4 KiB (ext4, Linux 6.18, the sectors of a loop device, 2026-11-22).
//! Populating only what a store needs spares the pages of other folios. A program that syncs often is better
//! off with writes.
//!
//! Invariants: a mapping is unmapped once, by its owner. Nobody holds a reference into it: bytes are copied in,
//! and never out.

use crate::lock::Mutex;
use crate::window::{Window, check};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The part of the file that is mapped, if any. Operations that take space from the file check it, and hold its
/// lock meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Mapped(Mutex<Option<Range<u64>>>);

impl Mapped {
    /// Runs `work`, which takes space from `range` of the file, unless that is mapped.
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

/// How long populated pages are assumed to be present.
const FRESH: Duration = Duration::from_secs(1);

/// The pages assumed to be present: one contiguous stretch, and the time of its oldest page. Populating a page
/// makes it dirty, so only what a store needs is populated. If that continues the fresh stretch, the stretch is
/// doubled, so that a burst of stores needs few calls.
#[cfg_attr(not(all(target_os = "linux", not(miri))), allow(dead_code))]
#[derive(Debug)]
struct Fresh {
    page: u64,
    stretch: Range<u64>,
    since: Duration,
}

#[cfg_attr(not(all(target_os = "linux", not(miri))), allow(dead_code))]
impl Fresh {
    fn none(page: u64) -> Self {
        Self { page, stretch: 0..0, since: Duration::ZERO }
    }

    /// Returns what to populate at `now` before a store to `range`: from the start of a page, and not beyond
    /// `end`. It counts as fresh from then on; if populating fails, the caller begins anew, with none.
    fn missing(&mut self, range: &Range<u64>, end: u64, now: Duration) -> Option<Range<u64>> {
        let start = range.start - range.start % self.page;
        let until = range.end.next_multiple_of(self.page).min(end);
        let follows = !self.stretch.is_empty() && self.stretch.start <= start && start <= self.stretch.end;
        if !follows || now.saturating_sub(self.since) > FRESH {
            (self.stretch, self.since) = (start..until, now);
            return Some(start..until);
        }
        if until <= self.stretch.end {
            return None;
        }
        let as_much = self.stretch.end - self.stretch.start;
        let missing = self.stretch.end..until.saturating_add(as_much).min(end);
        self.stretch.end = missing.end;
        Some(missing)
    }
}

/// The window of `range` of the file; `None` if it is not available here.
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

    /// From <linux/magic.h>.
    const EXT4_SUPER_MAGIC: u32 = 0xef53;
    const TMPFS_MAGIC: u32 = 0x0102_1994;

    /// A window as a mapping; see the module documentation. Dropping it unmaps it. Stored data stays in the
    /// page cache.
    struct Mapping {
        name: Arc<str>,
        mapped: Arc<Mapped>,
        range: Range<u64>,
        /// The address of `origin`, which is the start of the page in which the range begins.
        memory: NonNull<u8>,
        origin: u64,
        len: usize,
        fresh: Fresh,
    }

    // SAFETY: the mapping is the owner's alone, like a `Box<[u8]>`; no thread has more to do with it than another.
    unsafe impl Send for Mapping {}

    pub(crate) fn window(
        mapped: &Arc<Mapped>,
        file: &File,
        name: &Arc<str>,
        range: Range<u64>,
    ) -> Result<Option<Box<dyn Window>>> {
        // Held until the mapping exists, so that nobody cuts the file in between.
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
        let Some(page) = crate::page_size().map(|page| page as u64) else { return Ok(None) };
        let origin = range.start - range.start % page;
        let Ok(len) = usize::try_from(range.end - origin) else { return Ok(None) };
        let Some(memory) = map(file, origin, len) else { return Ok(None) };
        *taken = Some(range.clone());
        drop(taken);
        let (name, mapped, fresh) = (Arc::clone(name), Arc::clone(mapped), Fresh::none(page));
        let mut mapping = Mapping { name, mapped, range, memory, origin, len, fresh };
        // All at once: they were just written, and are dirty.
        let all = origin..mapping.range.end;
        Ok(if mapping.populate(&all, now()) { Some(Box::new(mapping)) } else { None })
    }

    fn writes_in_place(file: &File) -> bool {
        // SAFETY: fstatfs fills the struct, for which all zeros is a valid value; the file is open.
        let (result, status) = unsafe {
            let mut status: libc::statfs = std::mem::zeroed();
            (libc::fstatfs(file.as_raw_fd(), &raw mut status), status)
        };
        result == 0
            && match status.f_type as u32 {
                TMPFS_MAGIC => true,
                EXT4_SUPER_MAGIC => is_plain(file),
                _ => false,
            }
    }

    /// Whether the file's pages are written back from the page cache to their place. That is so if the file
    /// also supports direct I/O, which ext4 refuses for data that goes through the journal, and if it is not
    /// the device's memory that is mapped. If the system does not tell, the answer is no.
    #[cfg(target_env = "gnu")]
    fn is_plain(file: &File) -> bool {
        let (wanted, of_the_file) = (libc::STATX_DIOALIGN, libc::AT_EMPTY_PATH);
        // SAFETY: statx fills the struct, for which all zeros is a valid value; the path is an empty string, and the file is open.
        let (result, status) = unsafe {
            let mut status: libc::statx = std::mem::zeroed();
            (libc::statx(file.as_raw_fd(), c"".as_ptr(), of_the_file, wanted, &raw mut status), status)
        };
        let dax = libc::STATX_ATTR_DAX as u64;
        result == 0
            && status.stx_mask & wanted != 0
            && status.stx_dio_mem_align != 0
            && status.stx_attributes_mask & dax != 0
            && status.stx_attributes & dax == 0
    }

    /// The libc crate has no `statx` for other environments.
    #[cfg(not(target_env = "gnu"))]
    fn is_plain(_: &File) -> bool {
        false
    }

    /// Maps the file; `None` if the system refuses.
    fn map(file: &File, origin: u64, len: usize) -> Option<NonNull<u8>> {
        let (access, origin) = (libc::PROT_READ | libc::PROT_WRITE, libc::off_t::try_from(origin).ok()?);
        let file = file.as_raw_fd();
        // SAFETY: a new mapping of an open file, wherever there is room: no memory that exists is touched. Nobody makes references
        // into it, so it does no harm that others change the file.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file, origin) };
        (memory != libc::MAP_FAILED).then_some(memory.cast()).and_then(NonNull::new)
    }

    /// Monotonic time as of the last tick of the clock: cheap enough for each store.
    fn now() -> Duration {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: fills the struct, which is ours.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    impl Mapping {
        /// Makes the pages of `range` writable, unless they are fresh. Returns whether they are writable.
        fn populate(&mut self, range: &Range<u64>, now: Duration) -> bool {
            let Some(missing) = self.fresh.missing(range, self.range.end, now) else { return true };
            let skip = (missing.start - self.origin) as usize;
            let len = (missing.end - missing.start) as usize;
            // SAFETY: within the mapping, which is ours, from the beginning of a page on; the content stays as it is.
            let populated = unsafe {
                let from = self.memory.as_ptr().add(skip);
                libc::madvise(from.cast(), len, libc::MADV_POPULATE_WRITE)
            };
            if populated != 0 {
                // Who tries again shall not find them fresh: a store to a page that is not there ends the process.
                self.fresh = Fresh::none(self.fresh.page);
            }
            populated == 0
        }
    }

    impl Window for Mapping {
        fn range(&self) -> Range<u64> {
            self.range.clone()
        }

        fn store(&mut self, offset: u64, data: &[u8]) -> Result<bool> {
            check(&self.name, &self.range, offset, data.len())?;
            if !self.populate(&(offset..offset + data.len() as u64), now()) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const END: u64 = 300;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Pages of 10 bytes.
    #[test]
    fn only_what_a_store_needs_is_populated_again() {
        let mut fresh = Fresh::none(10);
        let mut missing = |range: Range<u64>, millis| fresh.missing(&range, 95, at(millis));
        assert_eq!(missing(0..95, 1), Some(0..95), "all of the window, when it is opened");
        assert_eq!(missing(3..95, 1_001), None);
        assert_eq!(missing(33..38, 1_002), Some(30..40), "a second later one page");
        assert_eq!(missing(38..40, 1_100), None);
        assert_eq!(missing(40..42, 1_200), Some(40..60), "as much again");
        assert_eq!(missing(59..61, 1_300), Some(60..95), "and again, but not behind the end");
        assert_eq!(missing(90..95, 2_002), None);
        assert_eq!(missing(90..95, 2_003), Some(90..95), "the time is that of the oldest");
        assert_eq!(missing(5..12, 2_004), Some(0..20), "below what is fresh");
        assert_eq!(missing(41..42, 2_005), Some(40..50), "above it");
        assert_eq!(missing(5..12, 2_006), Some(0..20));
    }

    proptest! {
        /// In any order: no store goes to a page that was not populated within the last second.
        #[test]
        fn stores_go_to_fresh_pages(stores in prop::collection::vec((0..END, 1..40u64, 0..400u64), 1..200)) {
            let (mut fresh, mut populated, mut now) = (Fresh::none(10), BTreeMap::new(), 5_000);
            for (start, len, later) in stores {
                now += later;
                let range = start..(start + len).min(END);
                if let Some(missing) = fresh.missing(&range, END, at(now)) {
                    prop_assert!(missing.start % 10 == 0 && missing.end <= END && !missing.is_empty());
                    populated.extend((missing.start / 10..missing.end.div_ceil(10)).map(|page| (page, now)));
                }
                for page in range.start / 10..range.end.div_ceil(10) {
                    prop_assert!(populated.get(&page).is_some_and(|when| now - when <= 1_000), "page {page}");
                }
            }
        }
    }
}
