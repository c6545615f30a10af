//! A window: a part of a file in memory. A store to it reaches the page cache at once, without a system call.
//!
//! ```text
//!   Volume::window ──▶ Window ──store──▶ page cache ──Device::sync──▶ durable
//! ```
//!
//! Contract:
//! 1. A store has the effect of a finished write: every later read sees it, it survives the death of the
//!    process, and it is durable after a [`Device::sync`](crate::Device::sync) that began after it. A power
//!    failure can tear it as it can tear a write.
//! 2. A window neither extends its file nor allocates space. A store cannot find the disk full, and cannot fail
//!    half way: it is either done, or refused with nothing stored. In that case an ordinary write reports the
//!    reason.
//! 3. While a window exists, its part of the file is not cut off, and its space is not given back: storing to a
//!    page without backing would kill the process. A file has at most one window per open. Both rules are
//!    enforced only for the [`FileId`](crate::FileId) that the window was opened by: anyone who opens the file
//!    again must neither cut it nor give back its space.

use crate::Result;
use std::ops::Range;

/// A part of a file that can be stored to: see the module documentation, and
/// [`Volume::window`](crate::Volume::window).
pub trait Window: Send {
    /// The range of the file that can be stored to.
    fn range(&self) -> Range<u64>;

    /// Copies `data` to byte `offset` of the file. `Ok(false)`: nothing was stored, and further stores are likely to
    /// be refused too; write instead.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for bytes outside [`Window::range`].
    fn store(&mut self, offset: u64, data: &[u8]) -> Result<bool>;
}

/// Refuses a store outside the window.
pub(crate) fn check(file: &str, range: &Range<u64>, offset: u64, len: usize) -> Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if range.start <= offset && end <= range.end => Ok(()),
        _ => Err(crate::Error::Invalid(format!(
            "{file}: a store of {len} bytes at {offset}, but the window is {range:?}"
        ))),
    }
}
