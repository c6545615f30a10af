//! The io_uring backend. A set goes to the kernel some requests at a time ([`PIECE`]), and the last of these system
//! calls waits for all of it; or returns, and another one waits.
//!
//! Invariants:
//! 1. [`Uring::run`] returns only when every request that the kernel took has completed: no buffer is touched
//!    later.
//! 2. An [`Aloft`] owns its buffers, its files and its ring until every request that the kernel took has
//!    completed. Dropping a [`Begun`] leaves it to the rings, up to a limit. It is freed after another set has
//!    been carried out, or at the latest with the [`Uring`].
//! 3. A ring is used by one set at a time. A ring that failed is not used by another set.
//!
//! Neither buffers nor files are registered. Random reads a second on a virtual disk, one thread, eight rounds
//! taken in turn: of 4 KiB at depth 64 82,300 without, 84,000 with registered buffers, 85,900 with files too;
//! of 8 KiB 62,000, 63,100 and 61,500; less than the noise at depths 1 and 8. Registration would pin memory
//! that counts against the process's limit. Deferred task work (79,900 and 58,100) gains nothing either, and
//! would tie a ring to one thread.
//!
//! If enabled, a thread that waits for a few reads polls before it sleeps ([`busy_wait`](crate::busy_wait)). A
//! single read then uses a ring too.
//!
//! Any thread may wait for a set that another thread started: rings have no single issuer. But cooperative task
//! work is done by the thread that started the set, when it next enters the kernel or is interrupted (while it
//! computes, by the next tick; while it sleeps, at once); or by the kernel if that thread has ended.

use crate::busy_wait::{Turn, Waiting, is_short};
use crate::transfer::{Flying, Landing, Memory, Mover, TRANSFER_MAX, Transfer};
use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

pub(crate) struct Uring {
    rings: Arc<Rings>,
    busy_wait: bool,
}

struct Rings {
    idle: Mutex<Vec<IoUring>>,
    entries: u32,
    /// Number of started sets that hold a ring.
    begun: AtomicUsize,
    /// Sets in flight that nobody waits for. `None` when the [`Uring`] is gone.
    left: Mutex<Option<Vec<Aloft>>>,
    /// The number of these sets, for checks that need not be exact.
    left_count: AtomicUsize,
}

/// A set is submitted in pieces of so many requests. Preparing a request takes the kernel 2 to 3 us, and none of
/// those that are submitted together reaches the device before half of a long set is prepared.
const PIECE: usize = 4;

/// Idle rings that are kept. More are created when more threads call at the same time. (Of 64 threads, each
/// with sets of eight, keeping 64 made none faster: the disk was the limit.)
const IDLE_MAX: usize = 16;

/// Sets in flight without a thread that waits for them. Each has a ring, which is an open file, for as long as
/// its owner likes.
const BEGUN_MAX: usize = 64;

/// Sets that were dropped while in flight. Beyond this number, dropping one waits. This saves a round trip to
/// the device. One walk has four of them.
const LEFT_MAX: usize = 8;
/// Bytes of memory of these sets together, unless it is a single one.
const LEFT_BYTES: usize = 1 << 20;
/// How long to wait before retrying when the kernel had no memory for a request.
const RETRY: Duration = Duration::from_micros(200);

impl Uring {
    /// Creates the backend. Fails if the kernel has no io_uring or forbids it.
    pub fn new(pio_max: usize, busy_wait: bool) -> io::Result<Self> {
        let entries = pio_max.next_power_of_two() as u32;
        let left = Mutex::new(Some(Vec::new()));
        let (idle, begun, left_count) = (Mutex::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        let rings = Rings { idle, entries, begun, left, left_count };
        let first = rings.take()?;
        let mut probe = io_uring::Probe::new();
        first.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's io_uring cannot read and write",
            ));
        }
        rings.give(first);
        Ok(Self { rings: Arc::new(rings), busy_wait })
    }
}

impl Rings {
    /// An idle ring, or a new one.
    fn take(&self) -> io::Result<IoUring> {
        self.end_left();
        let idle = self.idle.lock().pop();
        // Avoids interrupts for completions that nobody waits for yet, if the kernel supports this.
        let new = || IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(self.entries);
        idle.map_or_else(|| new().or_else(|_| IoUring::new(self.entries)), Ok)
    }

    /// Frees those abandoned sets that have completed.
    fn end_left(&self) {
        if self.left_count.load(Relaxed) == 0 {
            return;
        }
        let Some(mut left) = self.left.try_lock() else { return };
        let Some(left_sets) = left.as_mut() else { return };
        let completed: Vec<_> = left_sets.extract_if(.., Aloft::has_completed).collect();
        self.left_count.store(left_sets.len(), Relaxed);
        // Dropping them gives their rings back.
        drop(left);
        drop(completed);
    }

    /// Takes back a ring that can be reused.
    fn give(&self, ring: IoUring) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(ring);
        }
    }
}

fn entry(transfer: &mut Transfer<'_>) -> io_uring::squeue::Entry {
    let fd = types::Fd(transfer.file.as_raw_fd());
    let len = transfer.memory.len().min(TRANSFER_MAX) as u32;
    match &mut transfer.memory {
        Memory::Into(buffer) => {
            opcode::Read::new(fd, buffer.as_mut_ptr(), len).offset(transfer.offset).build()
        }
        Memory::From(data) => opcode::Write::new(fd, data.as_ptr(), len).offset(transfer.offset).build(),
    }
}

/// The progress of a set that was queued in a ring.
#[derive(Default)]
struct Progress {
    queued: usize,
    /// How many of the queued requests the kernel has taken.
    submitted: usize,
    completed: usize,
    broken: Option<io::Error>,
}

impl Progress {
    /// Called before another request is queued: submits those that are, if they make a piece.
    fn submit_piece(&mut self, ring: &mut IoUring) {
        if self.queued - self.submitted >= PIECE {
            self.call(ring, 0);
        }
    }

    /// One system call: submits what is queued, and waits for `wanted` completions. Then updates `submitted`.
    fn call(&mut self, ring: &mut IoUring, wanted: usize) {
        match ring.submit_and_wait(wanted) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            // The kernel has no memory for a request, or too many unreported completions. A thread that could
            // change this may have lower priority, and yielding would not let it run; so sleep.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                std::thread::sleep(RETRY);
            }
            Err(error) => {
                self.broken = Some(error);
                std::thread::sleep(RETRY);
            }
        }
        // The kernel took whatever left the queue, whatever the call returned.
        self.submitted = self.queued - ring.submission().len();
    }

    /// Records the completions that have arrived.
    fn collect(&mut self, ring: &mut IoUring, mut outcome: impl FnMut(usize, io::Result<usize>)) {
        for completion in ring.completion() {
            self.completed += 1;
            let result = match completion.result() {
                moved if moved >= 0 => Ok(moved as usize),
                error => Err(io::Error::from_raw_os_error(-error)),
            };
            outcome(completion.user_data() as usize, result);
        }
    }

    /// Submits the rest, and polls for completions as long as `turn` allows.
    fn look(
        &mut self,
        ring: &mut IoUring,
        turn: Turn<'_>,
        mut outcome: impl FnMut(usize, io::Result<usize>),
    ) {
        if self.submitted < self.queued {
            self.call(ring, 0);
        }
        turn.look_until(|| {
            // The kernel needs this thread to do task work before it can report a completion. Any system call
            // does it.
            if ring.submission().taskrun() {
                self.call(ring, 0);
            }
            self.collect(ring, &mut outcome);
            self.completed >= self.submitted || self.broken.is_some()
        });
    }

    /// Submits the rest and waits for everything, polling if allowed. Must not unwind: there are requests in
    /// flight.
    fn finish(
        &mut self,
        ring: &mut IoUring,
        turn: Option<Turn<'_>>,
        mut outcome: impl FnMut(usize, io::Result<usize>),
    ) {
        self.collect(ring, &mut outcome);
        if let Some(turn) = turn
            && self.completed < self.queued
        {
            self.look(ring, turn, &mut outcome);
        }
        while self.completed < self.submitted || (self.broken.is_none() && self.submitted < self.queued) {
            let wanted = if self.broken.is_none() { self.queued - self.completed } else { 1 };
            self.call(ring, wanted);
            self.collect(ring, &mut outcome);
        }
        if let Some(error) = &self.broken {
            tracing::error!(%error, "io_uring failed; the set is carried out otherwise");
        }
    }

    /// Whether the whole set went through the ring, so that the ring can be reused.
    fn is_sound(&self, len: usize) -> bool {
        self.broken.is_none() && self.submitted == len && self.completed == len
    }
}

impl Mover for Uring {
    fn run(&self, set: &mut [Transfer<'_>]) {
        let are_reads = set.iter().all(|transfer| matches!(transfer.memory, Memory::Into(_)));
        let lens = set.iter().map(|transfer| transfer.memory.len());
        let waiting = (self.busy_wait && are_reads && is_short(lens)).then(Waiting::begin);
        let mut turn = waiting.as_ref().and_then(Waiting::turn);
        if let ([one], None) = (&mut *set, &turn) {
            // A single pread is as fast as a trip through a ring (54.5 against 54.9 us for 4 KiB), and takes no
            // ring.
            one.run_alone();
            return self.rings.end_left();
        }
        let Ok(mut ring) = self.rings.take() else {
            // There is no memory for another ring: slower, but correct.
            set.iter_mut().for_each(Transfer::run_alone);
            return;
        };
        let mut sound = true;
        for part in set.chunks_mut(self.rings.entries as usize) {
            match sound {
                true => sound = run_part(&mut ring, part, turn.take()),
                // A broken ring may still have entries of the part before.
                false => part.iter_mut().for_each(Transfer::run_alone),
            }
        }
        if sound {
            self.rings.give(ring);
        }
    }

    fn begin(&self, set: Vec<Landing>) -> Result<Box<dyn Flying>, Vec<Landing>> {
        if set.len() > self.rings.entries as usize {
            return Err(set);
        }
        let place = Place::among(&self.rings);
        let Some((place, ring)) = place.and_then(|place| Some((place, self.rings.take().ok()?))) else {
            return Err(set);
        };
        let mut aloft = Aloft { ring: Some(ring), set, progress: Progress::default(), place };
        aloft.begin();
        Ok(Box::new(Begun(Some(aloft))))
    }
}

/// Runs at most as many transfers as the ring has entries. Returns false if the ring should not be used again.
fn run_part(ring: &mut IoUring, part: &mut [Transfer<'_>], turn: Option<Turn<'_>>) -> bool {
    let mut progress = Progress::default();
    for (index, transfer) in part.iter_mut().enumerate() {
        let entry = entry(transfer).user_data(index as u64);
        progress.submit_piece(ring);
        // SAFETY: the buffer behind the entry is borrowed by `part` until this function returns, and it returns only
        // when every entry that was submitted has completed (`finish`). The file is open as long.
        if unsafe { ring.submission().push(&entry) }.is_err() {
            break;
        }
        progress.queued += 1;
    }
    progress.finish(ring, turn, |index, outcome| {
        if let Some(transfer) = part.get_mut(index) {
            transfer.outcome = outcome;
        }
    });
    // Transfers that the kernel did not take, or returned for lack of memory, are done by ordinary calls.
    for (index, transfer) in part.iter_mut().enumerate() {
        let sent_back =
            transfer.outcome.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN));
        if index >= progress.submitted || sent_back {
            transfer.run_alone();
        }
    }
    progress.is_sound(part.len())
}

/// Permission to have a set in flight.
struct Place(Arc<Rings>);

impl Place {
    fn among(rings: &Arc<Rings>) -> Option<Self> {
        let place = Self(Arc::clone(rings));
        // The drop gives the place back, even if it was one too many.
        (rings.begun.fetch_add(1, Relaxed) < BEGUN_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.begun.fetch_sub(1, Relaxed);
    }
}

/// Reads in flight. Dropping it waits for them.
struct Aloft {
    /// `None` once nothing is in flight any more.
    ring: Option<IoUring>,
    set: Vec<Landing>,
    progress: Progress,
    place: Place,
}

impl Aloft {
    fn begin(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        for (index, landing) in self.set.iter_mut().enumerate() {
            let entry = entry(&mut landing.transfer()).user_data(index as u64);
            self.progress.submit_piece(ring);
            // SAFETY: the buffer behind the entry and the file belong to this member of `self.set`, which is neither touched nor dropped
            // before every entry that was submitted has completed (this loop goes on to the next members; `land` and `drop` call `end` first;
            // `has_completed` sets outcomes and looks at no buffer). If `self` is leaked, so are buffer and file: both are on the heap. Moving `self` does not move what an `AlignedBuffer` points to.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                break;
            }
            self.progress.queued += 1;
        }
        self.progress.call(ring, 0);
    }

    /// Bytes of memory that it holds.
    fn bytes(&self) -> usize {
        self.set.iter().map(|landing| landing.buffer.capacity()).sum()
    }

    /// Whether nothing is in flight any more.
    fn has_completed(&mut self) -> bool {
        let Some(ring) = &mut self.ring else { return true };
        let set = &mut self.set;
        self.progress.collect(ring, |index, outcome| {
            if let Some(landing) = set.get_mut(index) {
                landing.outcome = outcome;
            }
        });
        self.progress.completed >= self.progress.queued
    }

    /// Waits until nothing is in flight.
    fn end(&mut self) {
        let Some(mut ring) = self.ring.take() else { return };
        let set = &mut self.set;
        self.progress.finish(&mut ring, None, |index, outcome| {
            if let Some(landing) = set.get_mut(index) {
                landing.outcome = outcome;
            }
        });
        if self.progress.is_sound(self.set.len()) {
            self.place.0.give(ring);
        }
    }

    /// Waits until nothing is in flight, and returns the reads, each tried once.
    fn land(mut self) -> Vec<Landing> {
        self.end();
        let submitted = self.progress.submitted;
        for (index, landing) in self.set.iter_mut().enumerate() {
            // If the submitting thread ended before its reads, they may have been cancelled, or returned for
            // lack of its memory.
            let sent_back = landing.outcome.as_ref().is_err_and(|error| {
                matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ECANCELED | libc::EFAULT))
            });
            if index >= submitted || sent_back {
                let mut transfer = landing.transfer();
                transfer.run_alone();
                landing.outcome = transfer.outcome;
            }
        }
        std::mem::take(&mut self.set)
    }
}

impl Drop for Aloft {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads in flight, whether they are waited for or dropped.
struct Begun(Option<Aloft>);

impl Flying for Begun {
    fn land(mut self: Box<Self>) -> Vec<Landing> {
        self.0.take().map_or_else(Vec::new, Aloft::land)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let Some(mut aloft) = self.0.take() else { return };
        // Requests that the kernel has not taken would never be submitted by anyone else.
        if aloft.has_completed() || aloft.progress.submitted < aloft.progress.queued {
            return;
        }
        let rings = Arc::clone(&aloft.place.0);
        let mut left = rings.left.lock();
        let has_room = |sets: &[Aloft]| {
            let bytes: usize = sets.iter().map(Aloft::bytes).sum();
            sets.is_empty() || (sets.len() < LEFT_MAX && bytes + aloft.bytes() <= LEFT_BYTES)
        };
        match left.as_mut().filter(|sets| has_room(sets)) {
            Some(sets) => {
                sets.push(aloft);
                rings.left_count.store(sets.len(), Relaxed);
            }
            None => {
                drop(left);
                drop(aloft);
            }
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        let left = self.rings.left.lock().take();
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuffer;
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;
    use std::time::Duration;

    /// What it waits for comes when the thread has ended, and the kernel has nobody to go on for. It is tried again by `pread`, which pipes refuse.
    #[test]
    fn what_comes_back_since_its_thread_has_ended_is_tried_again() {
        let Ok(uring) = Uring::new(4, true) else {
            eprintln!("SKIPPED: no io_uring here");
            return;
        };
        let (reader, mut writer) = io::pipe().unwrap();
        let file = Arc::new(File::from(OwnedFd::from(reader)));
        let landing = Landing { file, offset: 0, buffer: AlignedBuffer::new(1), outcome: Ok(0) };
        let begun = std::thread::scope(|scope| scope.spawn(|| uring.begin(vec![landing]).ok()).join());
        writer.write_all(&[7]).unwrap();
        let landed = begun.unwrap().expect("a ring").land();
        match &landed[0].outcome {
            Ok(_) => eprintln!("SKIPPED: this kernel goes on without the thread"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESPIPE), "{error}"),
        }
    }

    /// Of a pipe, in which nothing is until somebody writes: so what is in flight stays there.
    #[test]
    fn a_few_sets_are_left_to_the_rings_and_no_more() {
        let Ok(uring) = Uring::new(4, true) else {
            eprintln!("SKIPPED: no io_uring here");
            return;
        };
        let (reader, mut writer) = io::pipe().unwrap();
        let file = Arc::new(File::from(OwnedFd::from(reader)));
        let stays_open = writer.try_clone().unwrap();
        let begun = |_| {
            let (file, buffer) = (Arc::clone(&file), AlignedBuffer::new(1));
            uring.begin(vec![Landing { file, offset: 0, buffer, outcome: Ok(0) }]).ok().unwrap()
        };
        let mut sets: Vec<_> = (0..=LEFT_MAX).map(begun).collect();
        let (is_written, (go, wait)) = (AtomicBool::new(false), mpsc::channel());
        std::thread::scope(|scope| {
            let is_written = &is_written;
            scope.spawn(move || {
                _ = wait.recv_timeout(Duration::from_secs(10));
                std::thread::sleep(Duration::from_millis(100));
                is_written.store(true, Relaxed);
                writer.write_all(&[7; LEFT_MAX + 1]).unwrap();
            });
            let last = sets.pop();
            drop(sets);
            assert!(!is_written.load(Relaxed), "who dropped a few sets had to wait");
            go.send(()).unwrap();
            drop(last);
            assert!(is_written.load(Relaxed), "one more was not waited for");
        });
        let rings = Arc::clone(&uring.rings);
        // Whoever reads lets them go, also who needs no ring.
        let file = File::open("/dev/zero").unwrap();
        for _ in 0..1000 {
            let memory = Memory::Into(&mut [0]);
            uring.run(&mut [Transfer { file: &file, offset: 0, memory, outcome: Ok(0) }]);
            if rings.begun.load(Relaxed) == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(rings.begun.load(Relaxed), 0, "they stay for good");
        drop(begun(0));
        assert_eq!((rings.begun.load(Relaxed), rings.left_count.load(Relaxed)), (1, 1));
        // At its end the read ends.
        drop(stays_open);
        drop(uring);
        assert_eq!(rings.begun.load(Relaxed), 0, "nothing is in flight without the disk");
    }
}
