//! The window at the log's end: small buffered commits are stored into the page cache by memory copy, without a
//! system call.
//!
//! A buffered commit must survive the process, so it must be in the page cache. Writing a record of 180 bytes
//! there with `pwrite` takes 730 ns, most of which is overhead per call (the file system's checks, finding the
//! page, the file's time). With a part of the file mapped, the record is just copied; the remaining cost is per
//! page: writing zeros, and a fault. For each of 64 MiB of records, on ext4, everything included (a C program,
//! `chrt -f 20 taskset -c 1`, best of two while others worked, 2026-11-22):
//!
//! ```text
//! bytes a record           180    4,136   16,000   32,000   65,000   120,000
//! written            ns    735    3,360    9,050   14,200   21,800    37,500
//! mapped, 64 KiB     ns    107    1,950    7,530
//! mapped, 256 KiB    ns     54    1,190    4,580    9,370   18,900    37,400
//! ```
//!
//! So groups of up to [`Sizes::USUAL`]`.small` bytes are stored; longer and durable ones are written. (The sync
//! of a durable one would clean the pages, and the next store would fault again, for the cost of a write.) Both
//! ways use the page cache, and see each other's data.
//!
//! The guarantees do not change:
//!
//! - *The process dies.* Copied data is in the page cache. An interrupted copy is a torn tail, which the
//!   checksums reveal, and no commit in it was acknowledged.
//! - *The power goes.* The kernel writes pages back whenever it likes, in any order, as for writes.
//! - *I/O errors* are reported by the next sync of the file, as for buffered writes; the writer then refuses to
//!   go on.
//! - *A full disk* is noticed while zeros are written ahead ([`zeroing`](super::zeroing)). This file
//!   then does without window and zeros: its records are written, and a full disk is reported as always. A
//!   store never needs space; psync's `mapping.rs` explains why, and on which file systems. Other file systems
//!   have no windows, and everything is written.
//!
//! The zeros are written by `pwrite` and not by `fallocate`: the page cache then has large folios, of which one
//! fault maps all pages. With merely allocated blocks each page faults (256 faults for each of 256 windows
//! instead of 5, 5.2 us a page instead of 1.1). The kernel is asked for all pages of a window in one call. The
//! leader pays some 70 us for 256 KiB, or 1,450 records: less than a tenth of what it saves. Windows grow to 1
//! MiB, so that one commit in 5,800 pays and not one in 1,450, which together with other delays was more than one
//! in a thousand, and so p99.9 (research/docs/notebook.md, "Short commits sleep seldom").
//!
//! A sync makes the pages clean, and the first store into a folio makes the whole folio dirty, up to 1 MiB of
//! zeros (psync's `mapping.rs`). With one small commit between two syncs, the second sync would write all of
//! that instead of a block. So a sync closes the window, and the file gets another one only after
//! [`Sizes`]`.dirty` bytes of small groups without one.
//!
//! A window is opened only where it pays: after a few small groups in a row. The first window is short, later
//! ones are longer. A long group that does not fit into the window ends the series. Mapped pages count as
//! memory of the process, so there is only one window, of at most `most` bytes.
//!
//! Invariants:
//! 1. Every part of a window was written before, as records or zeros, and is inside the file. The window is
//!    closed before the file is cut or the next one begun.
//! 2. A group is either stored as a whole or written as a whole.

use psync::Window;

/// The sizes of windows, and the groups that use them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Groups of at most this many bytes are small. A window is opened
    pub small: u64,
    /// after this many in a row.
    pub after: u32,
    /// Bytes of the first window. Each following one is twice as long,
    pub first: u64,
    /// but never more than this.
    pub most: u64,
    /// Windows end at multiples of this.
    pub unit: u64,
    /// Bytes of small groups that must be written after a sync before there is a window again.
    pub dirty: u64,
}

impl Sizes {
    pub const USUAL: Self =
        Self { small: 16 << 10, after: 8, first: 16 << 10, most: 1 << 20, unit: 4 << 10, dirty: 256 << 10 };
}

/// The window, if one is open, and the state that decides when to open the next one.
pub(super) struct MmapAppender {
    window: Option<Box<dyn Window>>,
    sizes: Sizes,
    /// Small groups in a row.
    run: u32,
    /// The length of the next window.
    next: u64,
    /// Bytes of small groups still to be written before the next window, after a sync of the file.
    owed: u64,
    /// This file has no windows.
    refused: bool,
    #[cfg(test)]
    pub stores: u64,
}

impl MmapAppender {
    pub fn none(sizes: Sizes) -> Self {
        Self {
            window: None,
            sizes,
            run: 0,
            next: sizes.first,
            owed: 0,
            refused: false,
            #[cfg(test)]
            stores: 0,
        }
    }

    /// Another file begins. A series of small groups continues in it.
    pub fn begin(&mut self) {
        (self.window, self.refused, self.owed) = (None, false, 0);
    }

    /// The file was synced, so its pages are clean.
    pub fn synced(&mut self) {
        (self.window, self.next, self.owed) = (None, self.sizes.first, self.sizes.dirty);
    }

    /// Whether a group of `adds` bytes at `at` is inside the window.
    pub fn covers(&self, at: u64, adds: u64) -> bool {
        self.window.as_ref().is_some_and(|window| {
            let range = window.range();
            range.start <= at && at.saturating_add(adds) <= range.end
        })
    }

    /// Notes a group of `adds` bytes at `at`. Returns where the window to open for it should end; `None` if the
    /// open window covers it, or if it should be written. Closes a window that the group does not fit into.
    pub fn wanted(&mut self, at: u64, adds: u64) -> Option<u64> {
        if self.covers(at, adds) {
            return None;
        }
        self.window = None;
        if adds > self.sizes.small {
            (self.run, self.next) = (0, self.sizes.first);
            return None;
        }
        self.run = self.run.saturating_add(1);
        let owed = self.owed;
        self.owed = owed.saturating_sub(adds);
        if owed > 0 || self.refused || self.run < self.sizes.after {
            return None;
        }
        let until = at.saturating_add(self.next.max(adds)).next_multiple_of(self.sizes.unit);
        self.next = (self.next * 2).min(self.sizes.most);
        Some(until)
    }

    /// Sets the requested window. `None`: it is not available, and this file does without.
    pub fn open(&mut self, window: Option<Box<dyn Window>>) {
        self.refused = window.is_none();
        self.window = window;
    }

    /// Stores a group if it is inside the window. Returns whether it did.
    pub fn store(&mut self, at: u64, bytes: &[u8]) -> psync::Result<bool> {
        if bytes.len() as u64 > self.sizes.small || !self.covers(at, bytes.len() as u64) {
            return Ok(false);
        }
        let Some(window) = &mut self.window else { return Ok(false) };
        let stored = window.store(at, bytes)?;
        if !stored {
            self.open(None);
        }
        #[cfg(test)]
        {
            self.stores += u64::from(stored);
        }
        Ok(stored)
    }

    /// Closes the window, before the part of the file that it shows may go.
    pub fn close(&mut self) {
        self.window = None;
    }
}
