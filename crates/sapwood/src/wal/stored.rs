//! The window at the log's end: small buffered commits are stored into the page cache, not written to it.
//!
//! A buffered commit is to outlive the process, and the page cache is where things outlive it. A `pwrite` of a record of 180 bytes into it takes
//! 730 ns, most of which is the way there (the file system's checks, finding the page, the file's time), which is paid anew for each record.
//! Into a part of the file that is mapped, the record is copied; what remains is paid once a page: zeros, and a fault. For each of 64 MiB
//! of records, on ext4, everything included (a C program, `chrt -f 20 taskset -c 1`, best of two while others worked, 2026-11-22):
//!
//! ```text
//! bytes a record           180    4,136   16,000   32,000   65,000   120,000
//! written            ns    735    3,360    9,050   14,200   21,800    37,500
//! mapped, 64 KiB     ns    107    1,950    7,530
//! mapped, 256 KiB    ns     54    1,190    4,580    9,370   18,900    37,400
//! ```
//!
//! So groups of up to [`Sizes::USUAL`]`.small` bytes are stored, longer ones written, durable ones too (their sync would clean the
//! pages, and the next store would have to fault again for what a write costs). Both go through the page cache, and see each other.
//!
//! What is promised stays what it was:
//!
//! - *The process dies.* What was copied is in the page cache. A copy that was cut short is a torn tail, which its checksums tell, and
//!   nobody was answered.
//! - *The power goes.* The kernel writes pages back whenever it likes, in any order, as those of writes.
//! - *I/O errors* are told by the next sync of the file, as those of buffered writes are, and then the writer refuses to go on.
//! - *A full disk* is met while zeros are written ahead ([`reservation`](super::reservation)), and then this file does without window and
//!   zeros: its records are written, and a full disk is told as always. A store never needs space; why, and where, is told in psync's
//!   `mapping.rs`. Other file systems have no windows, and all is written there.
//!
//! Zeros by `pwrite` and not by `fallocate`: the page cache then has large folios, of which one fault maps all pages; of merely allocated blocks each
//! page faults (256 faults for each of 256 windows instead of 5, 5.2 us a page instead of 1.1). The kernel is asked for a window's
//! pages in one call. The leader pays, some 70 us for 256 KiB, or 1,450 records: less than a tenth of what it saves. Windows grow to 1 MiB, so that
//! fewer than one commit in a thousand pays: with 256 KiB it was two in three thousand, and with whatever else came in the way that was p99.9
//! of a log alone (docs/notebook.md, "Short commits sleep seldom").
//!
//! A sync makes the pages clean, and the first store into a folio makes all of it dirty, up to 1 MiB of zeros (psync's `mapping.rs`): one small
//! commit between two syncs would have the second write that, not a block. So a sync ends a window, and in that file there is another only
//! once [`Sizes`]`.dirty` bytes of small groups came without one.
//!
//! A window is opened only where it pays: when a few small groups came in a row, first a short one, then longer ones; a long group
//! that leads out of it ends that. The mapped pages count as the process's memory, so it is one window, and never more than `most`.
//!
//! Invariants:
//! 1. All of a window was written before, as records or zeros, and is inside the file. Before the file is cut, or another begun, it is closed.
//! 2. A group is stored whole, or written whole.

use psync::Window;

/// How large windows are, and what goes to them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Groups of at most so many bytes,
    pub small: u64,
    /// after so many in a row.
    pub after: u32,
    /// Bytes of the first window; each that follows has twice as many,
    pub first: u64,
    /// but never more than this.
    pub most: u64,
    /// Windows end at multiples of this.
    pub unit: u64,
    /// Bytes of small groups that are written after a sync before there is a window again.
    pub dirty: u64,
}

impl Sizes {
    pub const USUAL: Self =
        Self { small: 16 << 10, after: 8, first: 16 << 10, most: 1 << 20, unit: 4 << 10, dirty: 256 << 10 };
}

/// The window, if one is open, and whether the next one would pay.
pub(super) struct Stored {
    window: Option<Box<dyn Window>>,
    sizes: Sizes,
    /// Small groups in a row.
    run: u32,
    /// How long the next one is to be.
    next: u64,
    /// Bytes of small groups that are to be written before there is one: the file was synced.
    owed: u64,
    /// There are none in this file.
    refused: bool,
    #[cfg(test)]
    pub stores: u64,
}

impl Stored {
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

    /// Another file begins. What small groups there are goes on in it.
    pub fn begin(&mut self) {
        (self.window, self.refused, self.owed) = (None, false, 0);
    }

    /// The file was synced, and its pages are clean.
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

    /// Notes a group of `adds` bytes that comes to `at`. Where the window is to end that should be opened for it; `None`: there is one, or the
    /// group is to be written. Closes the window that it does not fit into.
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

    /// The window that was wanted. `None`: it cannot be had, and this file does without.
    pub fn open(&mut self, window: Option<Box<dyn Window>>) {
        self.refused = window.is_none();
        self.window = window;
    }

    /// Stores a group, if it is inside the window. Says whether it did.
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

    /// What it shows may go.
    pub fn close(&mut self) {
        self.window = None;
    }
}
