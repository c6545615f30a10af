//! System-specific file operations beyond the standard library: bypass the page cache, sync a part of a file,
//! and give space back.

use crate::directory::Directory;
use std::fs::File;
use std::io;
use std::ops::Range;

/// The alignment in bytes that direct I/O needs in the directory. The error says why direct I/O is not
/// available.
#[cfg(target_os = "linux")]
pub(crate) fn alignment(directory: &Directory) -> io::Result<usize> {
    use crate::AlignedBuffer;
    use std::os::fd::AsRawFd;

    let file = probe(directory)?;
    if is_in_memory(&file) {
        // Linux accepts O_DIRECT there since 6.6, but ignores it.
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the directory is in memory"));
    }
    // SAFETY: statx fills the struct, for which all zeros is a valid value; the path is a C string, and "" with
    // AT_EMPTY_PATH is the file itself, which is open.
    let (result, status) = unsafe {
        let mut status: libc::statx = std::mem::zeroed();
        let result = libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &raw mut status,
        );
        (result, status)
    };
    if result != 0 || status.stx_mask & libc::STATX_DIOALIGN == 0 {
        // Linux before 6.1, or a file system that does not tell. A trial would not be reliable (an empty file
        // accepts reads that a full one refuses), and this alignment is enough everywhere.
        return Ok(AlignedBuffer::ALIGNMENT);
    }
    match status.stx_dio_mem_align.max(status.stx_dio_offset_align) as usize {
        0 => Err(io::Error::new(io::ErrorKind::Unsupported, "the file system has no direct I/O")),
        asked if asked <= AlignedBuffer::ALIGNMENT => Ok(asked.max(512)),
        asked => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("it would have to be aligned to {asked} bytes"),
        )),
    }
}

/// A file in the directory that is open for direct I/O: one without a name, else an existing one, else one that
/// is created and removed for this purpose.
#[cfg(target_os = "linux")]
fn probe(directory: &Directory) -> io::Result<File> {
    use crate::Access;
    let refused = match directory.nameless() {
        Ok(file) => return Ok(file),
        Err(error) => error,
    };
    // Symbolic links are not followed: their target may be on another disk.
    let is_opened = |name: &str| directory.open_file(name, Access::default(), true);
    if let Some(file) = directory.list()?.iter().find_map(|entry| is_opened(&entry.name).ok()) {
        return Ok(file);
    }
    // If nothing can be created, the first refusal tells the reason.
    named_probe(directory).map_err(|_| refused)
}

/// A new file, already removed from its directory. It is created in a folder of its own, which does no harm: a
/// volume lists only files.
#[cfg(target_os = "linux")]
fn named_probe(directory: &Directory) -> io::Result<File> {
    use crate::Access;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Relaxed);
    let name = format!("psync-probe-{}-{number}", std::process::id());
    let folder = directory.make_folder(&name)?;
    let new = Access { write: true, create_new: true, ..Access::default() };
    let file = folder.open_file("probe", new, true);
    // The file may have been created although opening it was refused.
    let _ = folder.remove("probe");
    directory.remove_folder(&name)?;
    file
}

#[cfg(target_os = "linux")]
fn is_in_memory(file: &File) -> bool {
    /// `TMPFS_MAGIC` and `RAMFS_MAGIC` of <linux/magic.h>.
    const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];
    kind(file).is_some_and(|kind| IN_MEMORY.contains(&kind))
}

/// The number of the file system's type; `None` if it is unknown.
#[cfg(target_os = "linux")]
fn kind(file: &File) -> Option<u32> {
    use std::os::fd::AsRawFd;
    // SAFETY: fstatfs fills the struct, for which all zeros is a valid value; the file is open.
    let (result, status) = unsafe {
        let mut status: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(file.as_raw_fd(), &raw mut status), status)
    };
    (result == 0).then_some(status.f_type as u32)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn alignment(_: &Directory) -> io::Result<usize> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "it is known on Linux only"))
}

/// Makes `data`, which was written at `offset`, durable, and nothing else of the file. Returns whether this is
/// possible here; if not, nothing was done.
///
/// It writes the data again with a flag that makes the kernel sync what was written: the pages that hold these
/// bytes, and the part of the inode needed to find them; of a new file that has grown meanwhile, the length up
/// to these pages. Bytes to the device for a header of 80 bytes with 8 MiB behind it that were not synced
/// (Linux 6.18, the sectors of a loop device, 2026-11-22): ext4 12 KiB without a journal and 32 KiB with one,
/// XFS 7 KiB, where `fdatasync` took 8,204, 8,224 and 8,199. A copy of the device at that moment had a file of
/// 4,096 bytes, with the header. A journal of ext4 includes data that has its blocks already: with `nodelalloc`
/// that is all of it.
///
/// Only on file systems that overwrite in place, so that writing again needs no space: a full disk is no reason
/// for a sync to fail. Btrfs does not, and would also sync the whole file. (XFS does, but for blocks that a reflink shares:
/// on a full disk that is an error here, where a sync might have succeeded.)
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn sync_part(file: &File, data: &[u8], offset: u64) -> io::Result<bool> {
    /// `EXT4_SUPER_MAGIC`, `XFS_SUPER_MAGIC` and `TMPFS_MAGIC` of <linux/magic.h>.
    const IN_PLACE: [u32; 3] = [0xef53, 0x5846_5342, 0x0102_1994];
    if kind(file).is_some_and(|kind| IN_PLACE.contains(&kind)) {
        write_through(file, data, offset)
    } else {
        Ok(false)
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn sync_part(_: &File, _: &[u8], _: u64) -> io::Result<bool> {
    Ok(false)
}

/// Writes `data` and syncs it. `false`: nothing was done, since the kernel or the file system does not support
/// it.
#[cfg(all(target_os = "linux", not(miri)))]
fn write_through(file: &File, data: &[u8], offset: u64) -> io::Result<bool> {
    use std::os::fd::AsRawFd;
    let mut done = 0;
    while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
        let at = offset.saturating_add(done as u64);
        // Of 32 bits on some systems: there the whole file is synced.
        let Ok(at) = libc::off_t::try_from(at) else { return Ok(false) };
        let part = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
        // SAFETY: the one part is of memory that is borrowed until the call returns, and only read; the file is open.
        let moved = unsafe { libc::pwritev2(file.as_raw_fd(), &raw const part, 1, at, libc::RWF_DSYNC) };
        match usize::try_from(moved) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(moved) => done += moved,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                // Linux before 4.7, a file system that does not support these flags, or a filter of system calls.
                error
                    if done == 0
                        && matches!(
                            error.raw_os_error(),
                            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM)
                        ) =>
                {
                    return Ok(false);
                }
                error => return Err(error),
            },
        }
    }
    Ok(true)
}

/// Gives the space of the range back, if the file system can. The length does not change.
#[cfg(target_os = "linux")]
pub(crate) fn release(file: &File, range: &Range<u64>) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let start = i64::try_from(range.start).unwrap_or(i64::MAX);
    let end = i64::try_from(range.end).unwrap_or(i64::MAX);
    if start >= end {
        return Ok(());
    }
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    loop {
        // SAFETY: no memory is passed; the file is open.
        if unsafe { libc::fallocate64(file.as_raw_fd(), mode, start, end - start) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => {}
            // This file system does not support the hint.
            error if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => return Ok(()),
            // Beyond the largest file here, so there is nothing to give back.
            error if error.raw_os_error() == Some(libc::EFBIG) => return Ok(()),
            error => return Err(error),
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn release(_: &File, _: &Range<u64>) -> io::Result<()> {
    Ok(())
}

/// Gives the range space of its own. Returns whether the file system can do so.
#[cfg(target_os = "linux")]
pub(crate) fn allocate(file: &File, range: &Range<u64>) -> io::Result<bool> {
    use std::os::fd::AsRawFd;
    let start = i64::try_from(range.start).unwrap_or(i64::MAX);
    let end = i64::try_from(range.end).unwrap_or(i64::MAX);
    if start >= end {
        return Ok(true);
    }
    loop {
        // SAFETY: no memory is passed; the file is open.
        if unsafe { libc::fallocate64(file.as_raw_fd(), 0, start, end - start) } == 0 {
            return Ok(true);
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                return Ok(false);
            }
            error => return Err(error),
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn allocate(_: &File, _: &Range<u64>) -> io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    #[test]
    fn a_probe_with_a_name_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        // At the same time, as when two parts of a program open their directories.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| match named_probe(&directory) {
                    Ok(file) => assert_eq!(file.metadata().unwrap().len(), 0),
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                        eprintln!("SKIPPED: no direct I/O in the system's temporary directory");
                    }
                    Err(error) => panic!("{error}"),
                });
            }
        });
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// Files that the kernel makes up take no flags.
    #[test]
    #[cfg(not(miri))]
    fn a_file_that_cannot_be_written_through_is_left_alone() {
        let path = "/proc/self/oom_score_adj";
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        assert!(!write_through(&file, &std::fs::read(path).unwrap(), 0).unwrap());
        assert!(!sync_part(&file, &std::fs::read(path).unwrap(), 0).unwrap());
    }
}
