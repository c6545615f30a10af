//! What a backend gets to do: one set of transfers that were checked already, each to be tried once. Boundary between
//! [`crate::Disk`], which knows names, limits and errors, and the backends, which only move bytes.

use std::fs::File;
use std::io;

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
