//! The interface between [`crate::Disk`], which knows names, limits and errors, and the backends, which only
//! move bytes. A backend gets one set of checked transfers, and tries each once.

use crate::AlignedBuffer;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// One transfer. The caller of the set lends the memory, which stays valid until the call returns.
pub(crate) struct Transfer<'a> {
    pub file: &'a File,
    pub offset: u64,
    pub memory: Memory<'a>,
    /// The result: bytes moved, possibly fewer than requested.
    pub outcome: io::Result<usize>,
}

/// The direction of the transfer.
pub(crate) enum Memory<'a> {
    Into(&'a mut [u8]),
    From(&'a [u8]),
}

impl Memory<'_> {
    pub fn len(&self) -> usize {
        match self {
            Memory::Into(buffer) => buffer.len(),
            Memory::From(data) => data.len(),
        }
    }
}

/// The longest transfer handed to the kernel at once. The kernel cuts transfers over 2 GiB, or misreads their
/// length. So this limit applies first, and the rest is continued like any short transfer.
#[cfg(target_os = "linux")]
pub(crate) const TRANSFER_MAX: usize = 1 << 30;

/// Moves bytes, many at a time.
pub(crate) trait Mover: Send + Sync {
    /// Tries every transfer of the set once, and sets its outcome. Returns when none is in flight.
    fn run(&self, set: &mut [Transfer<'_>]);

    /// Starts the reads, and returns while they are in flight. If that is not possible, returns them untouched.
    fn begin(&self, set: Vec<OwnedRead>) -> Result<Box<dyn OwnedReads>, Vec<OwnedRead>> {
        Err(set)
    }
}

/// A read that owns its resources, since nobody waits for it yet.
pub(crate) struct OwnedRead {
    pub file: Arc<File>,
    pub offset: u64,
    pub buffer: AlignedBuffer,
    /// The result, once it has ended: bytes moved, possibly fewer than requested.
    pub outcome: io::Result<usize>,
}

impl OwnedRead {
    /// The same read, with its result so far, for the caller that waits.
    pub fn transfer(&mut self) -> Transfer<'_> {
        Transfer {
            file: &self.file,
            offset: self.offset,
            memory: Memory::Into(&mut self.buffer),
            outcome: std::mem::replace(&mut self.outcome, Ok(0)),
        }
    }
}

/// Reads in flight. Dropping them waits until none is, or leaves them to the mover, which ends them at the
/// latest when it is dropped. Leaking them leaks their buffers.
pub(crate) trait OwnedReads: Send + Sync {
    /// Waits until no read is in flight, and returns the reads, each tried once.
    fn wait(self: Box<Self>) -> Vec<OwnedRead>;
}

impl Transfer<'_> {
    /// Runs the transfer with one ordinary system call, which is best for a set of one.
    pub fn run_alone(&mut self) {
        self.outcome = loop {
            let result = match &mut self.memory {
                Memory::Into(buffer) => read_at(self.file, buffer, self.offset),
                Memory::From(data) => write_at(self.file, data, self.offset),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
    }
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset)
}

#[cfg(unix)]
fn write_at(file: &File, data: &[u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::write_at(file, data, offset)
}

#[cfg(windows)]
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset)
}

#[cfg(windows)]
fn write_at(file: &File, data: &[u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_write(file, data, offset)
}
