//! What a backend gets to do: one set of transfers that were checked already, each to be tried once. Boundary between
//! [`crate::Disk`], which knows names, limits and errors, and the backends, which only move bytes.

use crate::AlignedBuffer;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// One transfer. The memory is borrowed by whoever made the set and stays valid until the call returns.
pub(crate) struct Transfer<'a> {
    pub file: &'a File,
    pub offset: u64,
    pub memory: Memory<'a>,
    /// What came of it: bytes moved, possibly fewer than asked.
    pub outcome: io::Result<usize>,
}

/// Which way the bytes go.
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

/// Longest transfer that is handed to the kernel at once. It cuts what is over 2 GiB, or takes the length for a
/// smaller one; so this comes first, and the rest is continued like any short transfer.
#[cfg(target_os = "linux")]
pub(crate) const TRANSFER_MAX: usize = 1 << 30;

/// Moves bytes, many at a time.
pub(crate) trait Mover: Send + Sync {
    /// Tries every transfer of the set once and sets its outcome. Returns when none is in flight.
    fn run(&self, set: &mut [Transfer<'_>]);

    /// Begins the reads and returns while they are in flight; where that cannot be, gives them back untouched.
    fn begin(&self, set: Vec<Landing>) -> Result<Box<dyn Flying>, Vec<Landing>> {
        Err(set)
    }
}

/// A read that owns what it needs, since nobody waits for it yet.
pub(crate) struct Landing {
    pub file: Arc<File>,
    pub offset: u64,
    pub buffer: AlignedBuffer,
    /// What came of it, once it has ended: bytes moved, possibly fewer than asked.
    pub outcome: io::Result<usize>,
}

impl Landing {
    /// The same read with what came of it so far, for whoever waits.
    pub fn transfer(&mut self) -> Transfer<'_> {
        Transfer {
            file: &self.file,
            offset: self.offset,
            memory: Memory::Into(&mut self.buffer),
            outcome: std::mem::replace(&mut self.outcome, Ok(0)),
        }
    }
}

/// Reads in flight. Dropping them waits until none is, or leaves them to the mover, which ends them at last when it is dropped;
/// leaking them leaks their buffers.
pub(crate) trait Flying: Send + Sync {
    /// Waits until none is in flight, and gives them back, each tried once.
    fn land(self: Box<Self>) -> Vec<Landing>;
}

impl Transfer<'_> {
    /// Does it with one ordinary system call: best for a set of one.
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
