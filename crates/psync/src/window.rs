//! A part of a file in memory: what is stored there is in the page cache at once, without a system call.
//!
//! ```text
//!   Volume::window ──▶ Window ──store──▶ page cache ──Device::sync──▶ durable
//! ```
//!
//! Contract:
//! 1. What was stored is what a finished write would be: every later read sees it, it outlives the process, and it is durable
//!    after a [`Device::sync`](crate::Device::sync) that began after it. Power loss tears it as it tears a write.
//! 2. A window neither makes its file longer nor takes space. A store cannot find the disk full, and it cannot fail half way: it is
//!    done, or refused with nothing stored, and then an ordinary write tells why.
//! 3. While there is a window, its part of the file is not cut off and its space is not given back: a processor that stores where
//!    the file has nothing stops the process. There is one window of an open file at a time. Both are kept for the [`FileId`](crate::FileId) that
//!    the window was opened by: whoever opens the file once more must neither cut it nor give back its space.

use crate::Result;
use std::ops::Range;

/// A part of a file that can be stored to: see the module, and [`Volume::window`](crate::Volume::window).
pub trait Window: Send {
    /// The bytes of the file that can be stored to.
    fn range(&self) -> Range<u64>;

    /// Copies `data` to byte `offset` of the file. `Ok(false)`: nothing was stored, and nothing will be: write instead.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for bytes outside of [`Window::range`].
    fn store(&mut self, offset: u64, data: &[u8]) -> Result<bool>;
}

/// Refuses what lies outside of a window.
pub(crate) fn check(file: &str, range: &Range<u64>, offset: u64, len: usize) -> Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if range.start <= offset && end <= range.end => Ok(()),
        _ => Err(crate::Error::Invalid(format!(
            "{file}: a store of {len} bytes at {offset}, but the window is {range:?}"
        ))),
    }
}
