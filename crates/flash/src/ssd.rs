//! A simulated SSD: NAND, a translation layer and a clock, and files on top, so that a store runs on it unchanged.
//!
//! What is durable when:
//! - the drive has no volatile write cache: a write that has returned is on flash, page by page whole, at the place in
//!   the file where it belongs, and an overwrite of bytes that were durable before is durable with it;
//! - names, lengths, and pages that a file did not have before are durable after [`Device::sync`] of any file or
//!   [`Volume::sync_directory`]: one journal holds them all, and all changes since the last commit become durable together or
//!   not at all. It is also committed when many changes have come together, and when space that was freed is needed;
//! - when the power goes while a set of writes is under way, each page of it is found old or new.
//!
//! Invariants:
//! 1. a set is handed over at one virtual time, and the call returns at the virtual time when its last member has ended;
//!    calls of several threads come one after the other in virtual time;
//! 2. what happens depends on the seeds and the order of calls alone: no real time, no real disk;
//! 3. after a failed commit of the journal every later sync fails.

mod files;
mod journal;
mod latency;
mod map;
mod space;
mod state;

pub use latency::Latency;
pub use map::BlockState;

use crate::{
    Batch, Faults, Flash, FlashCounters, Ftl, FtlOptions, NandCounters, PageId, Profile, RequestKind, Result,
    Wear,
};
use parking_lot::Mutex;
use psync::{Access, Counters, Device, Entry, Error, FileId, Limits, Lock, LockKind, Read, Volume, Write};
use state::{HeldLock, State};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// No file is longer, as on a real disk.
const FILE_MAX: u64 = i64::MAX as u64;

/// See the module. A clone is another handle on the same drive.
///
/// ```
/// use flash::{FtlOptions, Profile, Ssd};
/// use psync::{Access, Device, Read, Volume, Write};
///
/// let ssd = Ssd::new(Profile::ssdsim(), FtlOptions::default(), 1)?;
/// let file = ssd.open("a", Access { write: true, create: true, ..Access::default() })?;
/// ssd.write(&[Write { file, offset: 0, data: &[7; 1 << 20] }])?;
/// ssd.sync(file)?;
/// let (mut one, mut other) = ([0; 4096], [0; 4096]);
/// let before = ssd.now();
/// ssd.read(&mut [
///     Read { file, offset: 0, buffer: &mut one },
///     Read { file, offset: 4096, buffer: &mut other },
/// ])?;
/// // Two channels at the same time: hardly longer than one read.
/// assert!((ssd.now() - before).as_micros() < 120);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Ssd {
    state: Arc<Mutex<State>>,
}

/// One member of a mixed stream.
#[derive(Debug)]
pub enum Request<'a> {
    /// Fill a buffer.
    Read(Read<'a>),
    /// Put bytes into a file.
    Write(Write<'a>),
}

impl Ssd {
    /// A new, empty drive with page mapping. All that chance decides in it follows from `seed`.
    ///
    /// # Errors
    /// [`crate::Error::Geometry`] if there cannot be such a drive.
    pub fn new(profile: Profile, options: FtlOptions, seed: u64) -> Result<Self> {
        Self::with_ftl(profile, seed, |flash| {
            Ok(Box::new(crate::ftl::page_map::PageMap::new(flash, options)?))
        })
    }

    /// A new, empty drive with any translation layer.
    ///
    /// # Errors
    /// As [`Ssd::new`].
    pub fn with_ftl(
        profile: Profile,
        seed: u64,
        layer: impl FnOnce(&Flash) -> Result<Box<dyn Ftl>>,
    ) -> Result<Self> {
        Ok(Self::from_state(State::new(profile, seed, layer)?))
    }

    fn from_state(state: State) -> Self {
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Sets [`Limits::pio_max`], 64 at first.
    ///
    /// # Panics
    /// If it is not from 1 to 4096.
    #[must_use]
    pub fn with_pio_max(self, pio_max: usize) -> Self {
        assert!((1..=4096).contains(&pio_max), "pio_max {pio_max}");
        self.state.lock().pio_max = pio_max;
        self
    }

    /// What it was made from.
    pub fn profile(&self) -> Profile {
        self.state.lock().profile.clone()
    }

    /// Virtual time since the drive was made.
    pub fn now(&self) -> Duration {
        self.state.lock().clock.now()
    }

    /// Virtual time passes in which nothing is asked for: the host computes, or waits.
    pub fn advance(&self, duration: Duration) {
        self.state.lock().clock.advance(duration);
    }

    /// Virtual time passes until nothing is left in the background.
    pub fn drain(&self) {
        self.state.lock().clock.drain();
    }

    /// Flash operations so far, by who asked for them.
    pub fn flash_counters(&self) -> FlashCounters {
        self.state.lock().flash.counters()
    }

    /// Flash operations so far, in all.
    pub fn nand_counters(&self) -> NandCounters {
        self.state.lock().flash.nand().counters()
    }

    /// How evenly blocks have been erased.
    pub fn wear(&self) -> Wear {
        self.state.lock().flash.nand().wear()
    }

    /// What is in each block, by number: live, dead and free pages, and how often it was erased.
    pub fn blocks(&self) -> Vec<BlockState> {
        let state = self.state.lock();
        map::blocks(&state.flash, &*state.layer)
    }

    /// What a physical page holds, without a read: no time passes and nothing is counted. See
    /// [`Nand::peek`](crate::Nand::peek).
    ///
    /// # Errors
    /// As [`Nand::peek`](crate::Nand::peek).
    pub fn peek(&self, page: PageId, buffer: &mut [u8]) -> Result<u8> {
        self.state.lock().flash.nand().peek(page, buffer, &mut [])
    }

    /// By physical page: the name of the file whose page stands there, and which page of it; nothing if the page is free or dead. An
    /// empty name is the drive's own list of files, or of a file that has no name any more. Only page mapping tells; with
    /// other layers there is none.
    pub fn owners(&self) -> Vec<Option<(Arc<str>, u64)>> {
        let state = self.state.lock();
        map::owners(&state.flash, &*state.layer, &state.files)
    }

    /// Bytes of memory that the drive would need for its mapping.
    pub fn mapping_bytes(&self) -> usize {
        self.state.lock().layer.mapping_bytes()
    }

    /// Bytes of files that fit in all.
    pub fn capacity(&self) -> u64 {
        self.state.lock().capacity()
    }

    /// How long requests of one kind took, in virtual time, since the drive was made or [`Ssd::reset_latencies`].
    pub fn latency(&self, kind: RequestKind) -> Latency {
        self.state.lock().latencies.get(kind)
    }

    /// Forgets all latencies.
    pub fn reset_latencies(&self) {
        self.state.lock().latencies.clear();
    }

    /// From now on flash fails as often as `faults` says.
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().flash.nand_mut().set_faults(faults);
    }

    /// The power goes in the midst of the `n`-th flash operation from now, counted from 1. Everything fails from then on;
    /// [`Ssd::power_loss`] says what is found.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn cut_power_at(&self, n: u64) {
        self.state.lock().flash.nand_mut().cut_power_at(n);
    }

    /// Whether the power has gone.
    pub fn is_off(&self) -> bool {
        self.state.lock().flash.nand().is_off()
    }

    /// The drive as it is found after power loss, recovered from its flash alone: an image of its own, while this
    /// one goes on as if nothing had been taken. What of the operations in flight had ended, `seed` says.
    ///
    /// # Errors
    /// What keeps the drive from coming back: [`crate::Error::NoBlocks`], or a fault that was planned.
    /// [`Error::Invalid`] with [`Content::Tags`](crate::Content::Tags), which keeps too little of the files' journal.
    pub fn power_loss(&self, seed: u64) -> psync::Result<Self> {
        Ok(Self::from_state(self.state.lock().after_power_loss(seed)?))
    }

    /// Does `work` while time stands still: all that it asks of the drive is carried out at once, and what the drive has to do for
    /// it is given back, a batch for each set, to be [submitted](Ssd::submit). So one thread plays several callers who share a
    /// drive: each does its work in no time, then waits for its batches, one after the other, while others go on.
    ///
    /// A sync in `work` does not wait for the write cache, if the drive has one: nobody waits for what others have in it.
    pub fn deferring<T>(&self, work: impl FnOnce() -> T) -> (T, Vec<Batch>) {
        self.state.lock().deferred = Some(Vec::new());
        let result = work();
        (result, self.state.lock().deferred.take().unwrap_or_default())
    }

    /// Hands over a batch for a caller who waits for it; no time passes. The answer is a ticket for [`Ssd::next_answered`].
    pub fn submit(&self, batch: Batch) -> u64 {
        self.state.lock().clock.submit(batch)
    }

    /// Lets virtual time pass until some submitted batch is through, and says which one; `None` if there is none.
    pub fn next_answered(&self) -> Option<u64> {
        self.state.lock().next_answered()
    }

    /// A stream of reads and writes in this order, from a host that keeps `depth` requests outstanding (no more than
    /// the drive's queue takes): as soon as one has ended the next is handed over. Returns when all have ended.
    ///
    /// # Errors
    /// As [`Device::read`] and [`Device::write`]; writes that overlap other requests are refused.
    pub fn stream(&self, requests: &mut [Request<'_>], depth: usize) -> psync::Result<()> {
        self.state.lock().stream(requests, depth)
    }
}

impl std::fmt::Debug for Ssd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

fn check_name(name: &str) -> psync::Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\', '\0']) {
        return Err(Error::Invalid(format!("{name:?} is not a plain file name")));
    }
    Ok(())
}

impl Device for Ssd {
    fn read(&self, set: &mut [Read<'_>]) -> psync::Result<()> {
        let mut state = self.state.lock();
        for read in set.iter() {
            state.check_request(read.file, read.offset, read.buffer)?;
        }
        let pio_max = state.pio_max;
        set.chunks_mut(pio_max).try_for_each(|part| state.read_set(part))
    }

    fn write(&self, set: &[Write<'_>]) -> psync::Result<()> {
        let mut state = self.state.lock();
        for write in set {
            state.check_request(write.file, write.offset, write.data)?;
            state.writable(write.file, "write")?;
        }
        state.refuse_overlap(set)?;
        let pio_max = state.pio_max;
        set.chunks(pio_max).try_for_each(|part| state.write_set(part))
    }

    fn sync(&self, file: FileId) -> psync::Result<()> {
        let mut state = self.state.lock();
        let name = state.handle(file)?.name.clone();
        state.sync(&name)
    }

    fn len(&self, file: FileId) -> psync::Result<u64> {
        let state = self.state.lock();
        state.check_power("stat", &state.handle(file)?.name)?;
        let number = state.handle(file)?.number;
        Ok(state.files.node(number).map_or(0, |node| node.len))
    }

    fn resize(&self, file: FileId, len: u64) -> psync::Result<()> {
        let mut state = self.state.lock();
        let handle = state.writable(file, "resize")?;
        if len > FILE_MAX {
            return Err(Error::Invalid(format!("{}: {len} bytes are beyond any file", handle.name)));
        }
        state.check_power("resize", &handle.name)?;
        state.resize(&handle, len)
    }

    fn release(&self, file: FileId, range: Range<u64>) -> psync::Result<()> {
        let mut state = self.state.lock();
        let handle = state.writable(file, "release")?;
        if range.is_empty() || range.end > FILE_MAX {
            return Err(Error::Invalid(format!("{}: release of {range:?}", handle.name)));
        }
        state.check_power("release", &handle.name)?;
        state.release(&handle, range)
    }

    fn limits(&self) -> Limits {
        let state = self.state.lock();
        let alignment = state.alignment();
        Limits { alignment, pio_max: state.pio_max, direct: true }
    }

    fn counters(&self) -> Counters {
        self.state.lock().counters
    }
}

impl Volume for Ssd {
    fn open(&self, name: &str, access: Access) -> psync::Result<FileId> {
        check_name(name)?;
        let mut state = self.state.lock();
        state.check_power("open", name)?;
        let creates = access.write && (access.create || access.create_new);
        let number = match state.files.named(name) {
            Some(_) if access.write && access.create_new => {
                return Err(Error::Exists { file: name.to_owned() });
            }
            Some(number) => number,
            None if creates => state.files.create(name),
            None => return Err(Error::NotFound { file: name.to_owned() }),
        };
        Ok(state.add_handle(number, name, access))
    }

    fn close(&self, file: FileId) -> psync::Result<()> {
        let mut state = self.state.lock();
        let number = state.handle(file)?.number;
        state.open.remove(&file);
        state.files.closed(number);
        Ok(())
    }

    fn remove(&self, name: &str) -> psync::Result<()> {
        check_name(name)?;
        let mut state = self.state.lock();
        state.check_power("remove", name)?;
        if state.files.remove(name) { Ok(()) } else { Err(Error::NotFound { file: name.to_owned() }) }
    }

    fn rename(&self, from: &str, to: &str) -> psync::Result<()> {
        check_name(from)?;
        check_name(to)?;
        let mut state = self.state.lock();
        state.check_power("rename", from)?;
        if state.files.rename(from, to) { Ok(()) } else { Err(Error::NotFound { file: from.to_owned() }) }
    }

    fn list(&self) -> psync::Result<Vec<Entry>> {
        let state = self.state.lock();
        state.check_power("list", &state.describe())?;
        Ok(state.files.list().map(|(name, len)| Entry { name: name.to_owned(), len }).collect())
    }

    fn sync_directory(&self) -> psync::Result<()> {
        let mut state = self.state.lock();
        let name = state.describe();
        state.sync(&name)
    }

    fn lock(&self, kind: LockKind, holder: &str) -> psync::Result<Lock> {
        let mut state = self.state.lock();
        let volume = state.describe();
        state.check_power("lock", &volume)?;
        let against = |held: &&HeldLock| kind == LockKind::Exclusive || held.kind == LockKind::Exclusive;
        let holders: Vec<&str> =
            state.locks.iter().filter(against).map(|held| held.holder.as_str()).collect();
        if !holders.is_empty() {
            return Err(Error::Locked { volume, holder: holders.join(", ") });
        }
        let id = state.next_lock;
        state.next_lock += 1;
        state.locks.push(HeldLock { id, kind, holder: holder.to_owned() });
        Ok(Lock::new(Unlock { state: Arc::clone(&self.state), id }))
    }

    fn describe(&self) -> String {
        self.state.lock().describe()
    }
}

/// Gives the lock back when dropped.
struct Unlock {
    state: Arc<Mutex<State>>,
    id: u64,
}

impl Drop for Unlock {
    fn drop(&mut self) {
        self.state.lock().locks.retain(|held| held.id != self.id);
    }
}
