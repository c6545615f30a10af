//! The device boundary: the methods that move bytes, and nothing else.
//!
//! Contract, the same for io_uring, libaio, threads and the simulated device:
//! 1. [`Device::read`] and [`Device::write`] return when *every* member of the set has ended, successfully or
//!    not. They never return with a request in flight, not even while unwinding. That is why borrowed buffers
//!    are safe here. [`Device::begin`] can return earlier, and therefore owns its buffers. (So if a device hangs and
//!    its requests can be neither completed nor cancelled, `read` and `write` hang too, and report it;
//!    [`InFlight::wait`] fails with [`Error::Stalled`](crate::Error::Stalled).)
//! 2. If a member fails or is short, the whole call fails, after all other members have ended. It is unknown
//!    which bytes of a failed set reached the device.
//! 3. A finished write is visible to every later read. It is durable only after a [`Device::sync`] that began
//!    after it, or a [`Device::sync_part`] of it.
//! 4. Sets larger than [`Limits::pio_max`] are split into consecutive sets of at most that size; each one
//!    counts.
//! 5. After a failed sync, also of a part, nothing is known about the writes before it. A retry that succeeds
//!    proves nothing.

use crate::{AlignedBuffer, FileId, InFlight, Read, ReadInto, Result, Write};
use std::ops::Range;

/// A device that moves bytes between memory and open files, many requests at a time.
pub trait Device: Send + Sync {
    /// Reads a set, and returns when all of it is done.
    fn read(&self, set: &mut [Read<'_>]) -> Result<()>;

    /// Starts reading a set, and returns while it is in flight. Works like [`Device::read`], but the caller can
    /// do something else before it waits for the result with [`InFlight::wait`]. A read sees what was written
    /// before it began. Whether it sees what is written before it is waited for is unspecified.
    ///
    /// How much is in flight depends on the device. io_uring has the whole set in flight, or the last part of a
    /// set larger than [`Limits::pio_max`]. Other devices, and io_uring with very many sets already in flight,
    /// complete the reads before they return, as this default does.
    fn begin(&self, reads: Vec<ReadInto>) -> InFlight {
        InFlight::at_once(reads, |set| self.read(set))
    }

    /// Writes a set, and returns when all of it is done. Gives no durability: see [`Device::sync`].
    fn write(&self, set: &[Write<'_>]) -> Result<()>;

    /// Makes finished writes of `file` survive a power failure, with the metadata (length, extents) needed to
    /// read them back. (`fdatasync`.)
    fn sync(&self, file: FileId) -> Result<()>;

    /// Makes one finished write survive a power failure, like [`Device::sync`], but syncs as little as possible
    /// of the file's other writes. (A full sync pays for everything written to the file, also by others.) The
    /// other writes are at least as durable afterwards as before.
    ///
    /// `written` is the write. The file must still hold this data there, because it may be written once more.
    /// (`RWF_DSYNC`.) A device that cannot do this syncs the file, as this default does. Counts as a sync.
    fn sync_part(&self, written: Write<'_>) -> Result<()> {
        self.sync(written.file)
    }

    /// The length of `file` in bytes.
    fn len(&self, file: FileId) -> Result<u64>;

    /// Cuts or extends `file` to `len` bytes. Added bytes read as zeros.
    fn resize(&self, file: FileId, len: u64) -> Result<()>;

    /// Gives the space of `range` back to the file system. It becomes a hole that reads as zeros; the file's
    /// length does not change. This is a hint: a device that cannot do it does nothing.
    fn release(&self, file: FileId, range: Range<u64>) -> Result<()>;

    /// Extends `file` to the end of `range` if it is shorter, and gives `range` space of its own: later writes there
    /// need none. Bytes that were not there read as zeros. If it fails, the file may have got a part of it.
    /// (`fallocate`.) A device that cannot do this writes zeros behind the file's end, as this default does.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full): there is not as much space.
    fn allocate(&self, file: FileId, range: Range<u64>) -> Result<()> {
        write_zeros(self, file, range)
    }

    /// The device's limits for requests.
    fn limits(&self) -> Limits;

    /// The totals so far.
    fn counters(&self) -> Counters;
}

/// Bytes of zeros in one write.
const ZEROS: usize = 1 << 20;

/// Writes zeros in the part of `range` that is behind the end of `file`.
pub(crate) fn write_zeros(device: &(impl Device + ?Sized), file: FileId, range: Range<u64>) -> Result<()> {
    let mut at = range.start.max(device.len(file)?);
    let zeros = AlignedBuffer::new(range.end.saturating_sub(at).min(ZEROS as u64) as usize);
    while at < range.end {
        let data = &zeros[..(range.end - at).min(ZEROS as u64) as usize];
        device.write(&[Write { file, offset: at, data }])?;
        at += data.len() as u64;
    }
    Ok(())
}

/// A device's limits for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Offsets, lengths and buffer addresses of requests to files opened with [`Access::direct`](crate::Access)
    /// must be multiples of this many bytes (a power of two, 512 to 4096). 1 if direct I/O is not available.
    pub alignment: usize,
    /// PioMax: the maximum number of requests sent to the device as one set, 1 to 4096. Larger sets are split.
    pub pio_max: usize,
    /// Whether files opened with `direct` really bypass the page cache.
    pub direct: bool,
}

/// Totals of reads and writes since the device was created. Subtract two values to get what happened in
/// between. Stores to a [`Window`](crate::Window) are not counted, because they change bytes that were already
/// written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// psync read calls, after splitting at PioMax.
    pub read_sets: u64,
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// psync write calls, after splitting at PioMax.
    pub write_sets: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Syncs of files and of the directory.
    pub syncs: u64,
    /// Waits for requests that the kernel did not complete for longer than
    /// [`DiskOptions::stall_warning`](crate::DiskOptions::stall_warning).
    #[serde(default)]
    pub stalls: u64,
    /// The longest of these waits so far, in milliseconds. Includes those that go on. In a difference: 0 if there were
    /// no new ones.
    #[serde(default)]
    pub longest_stall_ms: u64,
    /// Sets that were cancelled after [`DiskOptions::io_timeout`](crate::DiskOptions::io_timeout).
    #[serde(default)]
    pub timeouts: u64,
}

impl std::ops::Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            read_sets: self.read_sets - earlier.read_sets,
            reads: self.reads - earlier.reads,
            bytes_read: self.bytes_read - earlier.bytes_read,
            write_sets: self.write_sets - earlier.write_sets,
            writes: self.writes - earlier.writes,
            bytes_written: self.bytes_written - earlier.bytes_written,
            syncs: self.syncs - earlier.syncs,
            stalls: self.stalls - earlier.stalls,
            longest_stall_ms: if self.stalls > earlier.stalls { self.longest_stall_ms } else { 0 },
            timeouts: self.timeouts - earlier.timeouts,
        }
    }
}
