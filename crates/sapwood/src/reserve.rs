//! The reserve: disk space that is set aside in the file [`FILE`], so that a full disk can be emptied. Whatever frees
//! space needs some first: removals go to the log, flushes and compaction copy before the old copies die, and opening
//! writes a new manifest and a copy of the log.
//!
//! ```text
//! puts ──── only while the reserve is whole for the log that results ────▶ otherwise refused, after a flush
//! removals ─────────────── disk full ─▶ cut off a part; what a flush needs stays
//! flush, compact, open ─── disk full ─▶ give it up, try again ─▶ whole again when there is space
//! ```
//! The file is allocated and never written. It is made after `CURRENT` when the database is opened for writing, grows
//! before the log does, and shrinks when the database is at rest or closed. Nothing else depends on it: it may be
//! deleted at any time, and a file of this name that is not ours is left alone.
//!
//! Invariants:
//! 1. Apart from [`Work`], nothing takes from the reserve. No put is appended to the log unless the reserve can flush
//!    the queue that results, and copy its log. A writer is admitted with its bytes counted ([`Reserve::admit`]), and its
//!    group asks again with the log locked ([`Reserve::check_group`]), since work may have taken from the reserve meanwhile.
//! 2. A failure to allocate it, other than for want of space, never fails any other call.

use crate::error::{Error, Result};
use crate::lock_order::{RankedMutex, rank};
use psync::{Access, FileId, Read, Volume};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

pub(crate) const FILE: &str = "reserve";

/// Bytes that the smallest database sets aside: for a log file, a manifest and a `CURRENT` in blocks of their own, and
/// the first and last pages of some segments.
const BASE: u64 = 128 << 10;
/// Bytes of a block with its log area, with short keys and leaves of usual length: the least that cleansing copies
/// before it frees anything. A log area has at most about four times the bytes of its leaves.
const BLOCK_MAX: u64 = 4 << 20;
/// Bytes that are set aside at most for portions of flushes and of the collector: an eighth of the live bytes, as
/// `background/portions.rs` makes them, but no more than this.
const PORTIONS_MAX: u64 = 4 << 20;
/// Bytes that it grows by at least, so that puts seldom have to extend it, and that removals take at a time.
const STEP: u64 = 64 << 10;
/// Bytes of a block of the file system: space is taken in whole ones.
const BLOCK: u64 = 4 << 10;

/// What the reserve is there for, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Live data.
    pub live: u64,
    /// The manifest: opening begins another.
    pub manifest: u64,
    /// The part of the log that one flush brings to the trees, and that opening copies: the longest log file.
    pub log: u64,
}

impl Needs {
    fn portions(self) -> u64 {
        self.live.min(BLOCK_MAX) + (self.live / 8).min(PORTIONS_MAX)
    }

    /// A queue takes a little more space in the trees than in the log: the ends of pages and nodes, and what is
    /// rewritten with it.
    fn of_log(self) -> u64 {
        self.log.saturating_add(self.log / 4)
    }

    /// The length of a reserve that is whole.
    pub fn whole(self) -> u64 {
        (BASE + self.portions() + self.manifest).saturating_add(self.of_log()).next_multiple_of(BLOCK)
    }
}

/// Work that may take from the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Opening, flushes and compaction: whatever they free comes after them.
    Frees,
    /// Removals, which go to the log and free space with the flush after them.
    Removals,
    /// The next log file, without which no queue can be flushed.
    NextLog,
}

/// How many of the `len` bytes of the reserve such work may take.
pub(crate) fn may_take(work: Work, len: u64, needs: Needs) -> u64 {
    let kept = match work {
        Work::Frees | Work::NextLog => 0,
        // Enough for the flush that follows, which writes the removals to the trees as well.
        Work::Removals => BASE / 2 + needs.portions() / 4 * 3 + needs.of_log(),
    };
    len.saturating_sub(kept)
}

/// The file, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum File {
    Closed,
    Open(FileId),
    /// Another's, or it cannot be had.
    Absent,
}

/// The refusal of puts while work has taken from the reserve.
fn in_use() -> Error {
    let why = "it is in use until there is space again";
    let full = std::io::Error::new(std::io::ErrorKind::StorageFull, why);
    psync::Error::from_io("allocate", FILE, None, full).into()
}

/// See the module documentation.
pub(crate) struct Reserve {
    volume: Arc<dyn Volume>,
    file: RankedMutex<rank::Reserve, File>,
    /// Bytes that are set aside.
    len: AtomicU64,
    /// Whether they are known to have space: a file that was found may have been copied as a hole.
    is_allocated: AtomicBool,
    /// Whether there can be none: then the database does without.
    is_absent: AtomicBool,
    /// Whether there was no descriptor or memory to extend it when that was last tried.
    is_excused: AtomicBool,
    /// How often some of it was given up.
    given: AtomicU64,
    /// Works that have given it up and are not done.
    users: AtomicUsize,
    live: AtomicU64,
    manifest: AtomicU64,
    /// The longest log file.
    log: AtomicU64,
    /// Bytes of the log that was there at opening, until they are in the trees; and the first generation after them.
    replayed: AtomicU64,
    first: AtomicU64,
    /// Bytes of puts that were admitted and are not in the log yet.
    admitted: AtomicU64,
    /// How many groups were refused with the log locked.
    refusals: AtomicU64,
    /// How many versions are published between admissions and the groups after them.
    #[cfg(test)]
    published_for_test: AtomicUsize,
}

/// Puts whose bytes are counted until they are in the log, or are refused.
pub(crate) struct Admitted<'r> {
    reserve: &'r Reserve,
    bytes: u64,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let left = |admitted: u64| Some(admitted.saturating_sub(self.bytes));
        let _ = self.reserve.admitted.fetch_update(SeqCst, SeqCst, left);
    }
}

/// Work that may give up the whole reserve. Until it ends, no thread takes the space for another reserve.
pub(crate) struct User<'r> {
    reserve: &'r Reserve,
    seen: u64,
    has: bool,
}

impl User<'_> {
    /// The disk is full. Returns whether there is more space than when this was called last: from the reserve, which
    /// this work or another has given up.
    pub fn gets_space(&mut self) -> bool {
        if !std::mem::replace(&mut self.has, true) {
            self.reserve.users.fetch_add(1, SeqCst);
        }
        let gave = self.reserve.give(Work::Frees, u64::MAX);
        let given = self.reserve.given.load(SeqCst);
        std::mem::replace(&mut self.seen, given) != given || gave
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        if self.has {
            self.reserve.users.fetch_sub(1, SeqCst);
        }
    }
}

impl Reserve {
    pub fn new(volume: Arc<dyn Volume>) -> Self {
        Self {
            volume,
            file: RankedMutex::new(File::Closed),
            len: AtomicU64::new(0),
            is_allocated: AtomicBool::new(true),
            is_absent: AtomicBool::new(false),
            is_excused: AtomicBool::new(false),
            given: AtomicU64::new(0),
            users: AtomicUsize::new(0),
            live: AtomicU64::new(0),
            manifest: AtomicU64::new(0),
            log: AtomicU64::new(0),
            replayed: AtomicU64::new(0),
            first: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            #[cfg(test)]
            published_for_test: AtomicUsize::new(0),
        }
    }

    /// Opens the file if it is there. What it has can be given up from now on.
    pub fn find(&self) {
        let mut file = self.file.lock();
        match self.open(false) {
            Ok(Some((found, len))) => {
                *file = File::Open(found);
                self.len.store(len, SeqCst);
                self.is_allocated.store(len == 0, SeqCst);
            }
            Ok(None) | Err(psync::Error::NotFound { .. }) => {}
            Err(error) => self.do_without(&mut file, &error.into()),
        }
    }

    /// Opens the file, and returns its length; `None` if it is another's.
    fn open(&self, create: bool) -> psync::Result<Option<(FileId, u64)>> {
        let file = self.volume.open(FILE, Access { write: true, create, ..Access::default() })?;
        let looked = self.volume.len(file).and_then(|len| {
            let mut head = vec![0; len.min(BLOCK) as usize];
            if !head.is_empty() {
                self.volume.read(&mut [Read { file, offset: 0, buffer: &mut head }])?;
            }
            Ok((len, head.iter().all(|byte| *byte == 0)))
        });
        if let Ok((len, true)) = looked {
            return Ok(Some((file, len)));
        }
        let _ = self.volume.close(file);
        let (len, _) = looked?;
        tracing::warn!(file = FILE, len, "it is not this database's, and is left alone: there is no reserve");
        self.is_absent.store(true, SeqCst);
        Ok(None)
    }

    fn do_without(&self, file: &mut File, error: &Error) {
        tracing::warn!(%error, "there is no reserve: a full disk may refuse removals as well");
        self.is_absent.store(true, SeqCst);
        if let File::Open(open) = std::mem::replace(file, File::Absent) {
            let _ = self.volume.close(open);
        }
        self.len.store(0, SeqCst);
    }

    pub fn needs(&self) -> Needs {
        Needs {
            live: self.live.load(Relaxed),
            manifest: self.manifest.load(Relaxed),
            log: self.log.load(Relaxed) + self.replayed.load(Relaxed),
        }
    }

    /// Bytes that are set aside.
    pub fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    /// There is another version, and so much manifest.
    pub fn note_version(&self, live: u64, manifest: u64) {
        self.live.store(live, Relaxed);
        self.manifest.store(manifest, Relaxed);
    }

    /// The longest log file has so many bytes.
    pub fn note_log(&self, longest: u64) {
        self.log.store(longest, Relaxed);
    }

    /// Opening has read so many bytes of log, which end before the generation `first`.
    pub fn note_replayed(&self, bytes: u64, first: u64) {
        self.first.store(first, Relaxed);
        self.replayed.store(bytes, Relaxed);
    }

    /// What the log has below this generation is in the trees.
    pub fn note_flushed(&self, low: u64) {
        if low >= self.first.load(Relaxed) {
            self.replayed.store(0, Relaxed);
        }
    }

    /// Whether it is enough for `bytes` more in the log, beside all that was admitted.
    pub fn covers(&self, bytes: u64) -> bool {
        self.len() >= self.needed_for(bytes) && self.is_allocated.load(SeqCst) && !self.is_in_use()
    }

    fn needed_for(&self, bytes: u64) -> u64 {
        self.needed_beside(self.admitted.load(SeqCst).saturating_add(bytes))
    }

    fn needed_beside(&self, bytes: u64) -> u64 {
        let needs = self.needs();
        Needs { log: needs.log.saturating_add(bytes), ..needs }.whole()
    }

    /// Admits puts of `bytes` if it is enough for them. They count until [`Reserve::leaves`].
    pub fn admit(&self, bytes: u64) -> bool {
        // Not to be in the way of others.
        if !self.covers(bytes) && self.can_grow() {
            return false;
        }
        let before = self.admitted.fetch_add(bytes, SeqCst);
        let is_enough = self.len() >= self.needed_beside(before.saturating_add(bytes)) || !self.can_grow();
        if !is_enough {
            drop(self.leaves(bytes));
        }
        is_enough
    }

    /// The admitted `bytes` come to the log, or are refused, before the result is dropped.
    pub fn leaves(&self, bytes: u64) -> Admitted<'_> {
        Admitted { reserve: self, bytes }
    }

    /// Whether it is enough for a group with so many `bytes` of puts, which the holder of the log is about to append.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: work has taken from it after they were admitted.
    pub fn check_group(&self, bytes: u64) -> Result<()> {
        #[cfg(test)]
        if bytes > 0
            && self.published_for_test.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
        {
            self.manifest.store(self.len(), Relaxed);
        }
        if bytes == 0 || !self.can_grow() || (self.len() >= self.needed_beside(bytes) && !self.is_in_use()) {
            return Ok(());
        }
        self.refusals.fetch_add(1, SeqCst);
        Err(in_use())
    }

    /// How many groups were refused so.
    pub fn refusals(&self) -> u64 {
        self.refusals.load(SeqCst)
    }

    fn can_grow(&self) -> bool {
        !self.is_absent.load(Relaxed) && !self.is_excused.load(Relaxed)
    }

    pub fn is_whole(&self) -> bool {
        self.covers(0) || self.is_absent.load(Relaxed)
    }

    /// Bytes that are missing for the log that there is.
    pub fn lacks(&self) -> u64 {
        self.needs().whole().saturating_sub(self.len())
    }

    /// Whether work has given it up and is not done.
    pub fn is_in_use(&self) -> bool {
        self.users.load(SeqCst) > 0
    }

    pub fn user(&self) -> User<'_> {
        User { reserve: self, seen: self.given.load(SeqCst), has: false }
    }

    /// Extends it so that it is enough for `bytes` more in the log.
    ///
    /// # Errors
    /// [`Error::DiskFull`], also while some work has given it up; then it has grown as far as there was space. After any other
    /// failure there is none.
    pub fn grow(&self, bytes: u64) -> Result<()> {
        let mut file = self.file.lock();
        if self.covers(bytes) {
            return Ok(());
        }
        let needed = self.needed_for(bytes).max(self.len());
        if self.is_absent.load(SeqCst) {
            return Ok(());
        }
        if self.is_in_use() {
            return Err(in_use());
        }
        let grown = self.opened(&mut file).and_then(|open| match open {
            Some(open) => {
                // What is long enough already is only given space.
                let is_long = self.len() >= self.needed_for(bytes);
                let ample = if is_long { needed } else { needed + (needed / 8).max(STEP) };
                match self.extend(open, ample) {
                    Err(error) if error.is_full() => self.extend(open, needed),
                    extended => extended,
                }
            }
            None => Ok(()),
        });
        self.is_excused.store(matches!(grown, Err(psync::Error::Exhausted { .. })), SeqCst);
        match grown {
            Err(error) if error.is_full() => {
                if let File::Open(open) = *file
                    && !self.is_allocated.load(SeqCst)
                {
                    self.keep_what_has_space(open);
                }
                self.take_what_there_is(&file, needed);
                Err(error.into())
            }
            // Perhaps the next time.
            Err(psync::Error::Exhausted { .. }) | Ok(()) => Ok(()),
            Err(error) => {
                self.do_without(&mut file, &error.into());
                Ok(())
            }
        }
    }

    /// The disk is full, and the file may be a hole: then there is nothing to keep, and otherwise all of it.
    fn keep_what_has_space(&self, file: FileId) {
        match self.volume.allocate(file, 0..self.len()) {
            Ok(()) => self.is_allocated.store(true, SeqCst),
            Err(_) if self.volume.resize(file, 0).is_ok() => {
                self.len.store(0, SeqCst);
                self.is_allocated.store(true, SeqCst);
            }
            // It stays unknown.
            Err(_) => {}
        }
    }

    /// There is not enough space for `needed` bytes: takes nearly all that there is, before something else does. Removals and
    /// flushes may do with less than puts ask for.
    fn take_what_there_is(&self, file: &File, needed: u64) {
        let File::Open(open) = *file else { return };
        let (mut has, mut lacks) = (self.len(), needed);
        while lacks.saturating_sub(has) > STEP {
            let middle = has.midpoint(lacks).next_multiple_of(BLOCK);
            match self.extend(open, middle) {
                Ok(()) => has = middle,
                Err(error) if error.is_full() => lacks = middle,
                Err(_) => return,
            }
        }
    }

    fn opened(&self, file: &mut File) -> psync::Result<Option<FileId>> {
        match *file {
            File::Open(open) => Ok(Some(open)),
            File::Absent => Ok(None),
            File::Closed => {
                let found = self.open(true)?;
                *file = found.map_or(File::Absent, |(open, _)| File::Open(open));
                Ok(found.map(|(open, _)| open))
            }
        }
    }

    /// Gives all of the file space, also the part that it has: it may have been copied as a hole.
    fn extend(&self, file: FileId, len: u64) -> psync::Result<()> {
        let before = self.len();
        let allocated = self.volume.allocate(file, 0..len.next_multiple_of(BLOCK));
        match &allocated {
            Ok(()) => {
                self.len.store(len.next_multiple_of(BLOCK), SeqCst);
                self.is_allocated.store(true, SeqCst);
            }
            // A part may have been added.
            Err(_) => {
                let _ = self.volume.resize(file, before);
            }
        }
        allocated
    }

    /// The disk is full: gives up to `most` bytes to this work. Returns whether there were any.
    pub fn give(&self, work: Work, most: u64) -> bool {
        let file = self.file.lock();
        let File::Open(open) = *file else { return false };
        let len = self.len();
        let part = may_take(work, len, self.needs()).min(most) / BLOCK * BLOCK;
        if part == 0 {
            return false;
        }
        if let Err(error) = self.volume.resize(open, len - part) {
            tracing::warn!(%error, "the reserve could not be given up");
            return false;
        }
        self.len.store(len - part, SeqCst);
        self.given.fetch_add(1, SeqCst);
        tracing::debug!(part, left = len - part, ?work, "the disk is full: the reserve is used");
        true
    }

    /// The same, as much as such work takes at a time.
    pub fn give_some(&self, work: Work) -> bool {
        self.give(work, STEP)
    }

    /// Gives back what is more than enough at rest.
    pub fn shrink(&self) {
        let file = self.file.lock();
        let (len, whole) = (self.len(), self.needs().whole());
        if let File::Open(open) = *file
            && len > whole + whole / 4 + STEP
            && self.volume.resize(open, whole).is_ok()
        {
            self.len.store(whole, SeqCst);
        }
    }

    /// Closes the file.
    pub fn close(&self) {
        if let File::Open(open) = std::mem::replace(&mut *self.file.lock(), File::Absent) {
            let _ = self.volume.close(open);
        }
    }
}

#[cfg(test)]
mod tests;
