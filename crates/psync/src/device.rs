//! The device boundary: eight methods that move bytes, and nothing else.
//!
//! Contract, the same for io_uring, libaio, threads and the simulated device:
//! 1. [`Device::read`] and [`Device::write`] return when *every* member of the set has ended, whether well or not:
//!    never with a request in flight, not even while unwinding. That is why borrowed buffers are safe here.
//!    [`Device::begin`] returns earlier, if it can, and therefore owns its buffers.
//! 2. A member that fails or comes up short fails the whole call, after all the others have ended. Which bytes of
//!    a failed set reached the device is unknown.
//! 3. A finished write is visible to every later read, and durable only after a [`Device::sync`] that began after it, or a
//!    [`Device::sync_part`] of it.
//! 4. Sets larger than [`Limits::pio_max`] are cut into consecutive sets of at most that many; each counts.
//! 5. After a failed sync, of a part too, nothing is known of the writes before it. Callers must not retry and believe.

use crate::{FileId, InFlight, Read, ReadInto, Result, Write};
use std::ops::Range;

/// Moves bytes between memory and open files, many requests at a time.
pub trait Device: Send + Sync {
    /// Reads a whole set and returns when all of it is done.
    fn read(&self, set: &mut [Read<'_>]) -> Result<()>;

    /// Begins to read a set and returns while it is in flight: as [`Device::read`], but whoever wants the result waits for it with
    /// [`InFlight::wait`] and can do something else before. A read sees what was written before it began; whether it sees
    /// what is written before it is waited for is unknown.
    ///
    /// How much is in flight is for the device to say: io_uring has all of a set in flight, of one larger than
    /// [`Limits::pio_max`] the last part; others, and io_uring with very many sets in flight already, carry the reads out before
    /// they return, as this default does.
    fn begin(&self, reads: Vec<ReadInto>) -> InFlight {
        InFlight::at_once(reads, |set| self.read(set))
    }

    /// Writes a whole set and returns when all of it is done. Gives no durability: see [`Device::sync`].
    fn write(&self, set: &[Write<'_>]) -> Result<()>;

    /// Makes finished writes of `file` survive power loss, with as much of its metadata (length, extents) as it
    /// takes to read them back. (`fdatasync`.)
    fn sync(&self, file: FileId) -> Result<()>;

    /// Makes one finished write survive power loss, as [`Device::sync`] does it, but of the file's other writes as little as the device can:
    /// whoever syncs a file pays for all that was written to it, by others too. They are as durable afterwards as before, or more.
    ///
    /// `written` says what was written, and must be what the file holds there still: it may be written once more. (`RWF_DSYNC`.)
    /// A device that cannot do so syncs the file, as this default does. Counts as a sync.
    fn sync_part(&self, written: Write<'_>) -> Result<()> {
        self.sync(written.file)
    }

    /// Length of `file` in bytes.
    fn len(&self, file: FileId) -> Result<u64>;

    /// Cuts or grows `file` to `len` bytes. What is added reads as zeros.
    fn resize(&self, file: FileId, len: u64) -> Result<()>;

    /// Gives the space of `range` back to the file system (a hole; reads as zeros afterwards), as a hint: a device
    /// that cannot does nothing. The length of the file stays.
    fn release(&self, file: FileId, range: Range<u64>) -> Result<()>;

    /// What requests must look like here.
    fn limits(&self) -> Limits;

    /// What has been done so far.
    fn counters(&self) -> Counters;
}

/// What a device asks of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Offsets, lengths and buffer addresses of requests to files opened with [`Access::direct`](crate::Access) are
    /// multiples of this many bytes (a power of two, 512 to 4096). 1 where direct I/O is not to be had.
    pub alignment: usize,
    /// PioMax: the most requests that go to the device as one set, 1 to 4096. Larger sets are cut.
    pub pio_max: usize,
    /// Whether files opened with `direct` really bypass the page cache.
    pub direct: bool,
}

/// Totals since the device was made, of what was read and written; stores to a [`Window`](crate::Window) change what was written already, and
/// do not count. Subtract two of them for what happened in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// psync read calls after cutting to PioMax.
    pub read_sets: u64,
    /// Requests in them.
    pub reads: u64,
    /// Bytes in them.
    pub bytes_read: u64,
    /// psync write calls after cutting to PioMax.
    pub write_sets: u64,
    /// Requests in them.
    pub writes: u64,
    /// Bytes in them.
    pub bytes_written: u64,
    /// Syncs of files and of the directory.
    pub syncs: u64,
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
        }
    }
}
