//! The io_uring backend. A set goes to the kernel some requests at a time ([`PIECE`]), and the last of these system
//! calls waits for all of it; or returns, and another one waits.
//!
//! Invariants:
//! 1. [`Uring::run`] returns only when every request that the kernel took has completed, or is gone with its ring: no
//!    buffer is touched later.
//! 2. A [`RingReads`] owns its buffers, its files and its ring until the same. Dropping a [`Begun`] leaves it to the rings,
//!    up to a limit. It is freed after another set has been carried out, or at the latest with the [`Uring`].
//! 3. A ring is used by one set at a time. A ring that failed, was cancelled, or reported a completion that nobody
//!    waits for, is not used by another set.
//! 4. A request counts as completed once, whatever the ring reports.
//!
//! A set that stalls ([`stall`](crate::stall)) ends like this:
//!
//! ```text
//! timeout ─▶ cancel ─▶ all completed ─────────────▶ ordinary calls for what was cancelled
//!                  └─▶ close the ring ─▶ it is freed ─▶ ordinary calls for what has not completed
//!                                    └─▶ it is not ─▶ owned buffers: the error `Stalled`; they are pinned until it is
//!                                                └─▶ borrowed buffers: waits on, and reports it
//! ```
//! The kernel frees a ring when none of its requests is in flight. If it does not, the device itself hangs (or a forked
//! child process has the ring open). Memory that the caller lent cannot be given back then. An ordinary call would
//! hang in the same way.
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

mod in_flight;
mod progress;

use crate::busy_wait::{PollPermit, Waiting, is_short};
use crate::lock::Mutex;
use crate::ring::Ring;
use crate::stall::Stalls;
use crate::transfer::{Memory, Mover, OwnedRead, OwnedReads, TRANSFER_MAX, Transfer};
use in_flight::{Begun, Permit, Pinned, RingReads};
use io_uring::{opcode, types};
use progress::{Progress, is_sent_back};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(crate) struct Uring {
    rings: Arc<Rings>,
    busy_wait: bool,
}

struct Rings {
    idle: Mutex<Vec<Ring>>,
    entries: u32,
    stalls: Arc<Stalls>,
    /// Number of started sets that hold a ring.
    begun: AtomicUsize,
    /// Sets in flight that nobody waits for. `None` when the [`Uring`] is gone.
    left: Mutex<Option<Vec<RingReads>>>,
    /// The number of these sets, for checks that need not be exact.
    left_count: AtomicUsize,
    /// Buffers that the kernel does not let go of.
    pinned: Mutex<Vec<Pinned>>,
    pinned_count: AtomicUsize,
    /// What a test does to completions of all rings.
    #[cfg(test)]
    faults: Mutex<Option<Arc<crate::completion_faults::Faults>>>,
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

impl Uring {
    /// Creates the backend. Fails if the kernel has no io_uring or forbids it.
    pub fn new(pio_max: usize, busy_wait: bool, stalls: Arc<Stalls>) -> io::Result<Self> {
        let rings = Rings {
            idle: Mutex::default(),
            entries: pio_max.next_power_of_two() as u32,
            stalls,
            begun: AtomicUsize::new(0),
            left: Mutex::new(Some(Vec::new())),
            left_count: AtomicUsize::new(0),
            pinned: Mutex::default(),
            pinned_count: AtomicUsize::new(0),
            #[cfg(test)]
            faults: Mutex::default(),
        };
        let first = rings.take()?;
        if !first.is_capable()? {
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
    fn take(&self) -> io::Result<Ring> {
        self.end_left();
        let idle = self.idle.lock().pop();
        let taken = idle.map_or_else(|| Ring::new(self.entries), Ok);
        #[cfg(test)]
        let taken = taken.map(|ring| ring.with(self.faults.lock().clone()));
        taken
    }

    /// `None` if rings have lost too many sets.
    fn usable(&self) -> Option<()> {
        (!self.stalls.are_too_many()).then_some(())
    }

    /// Frees those abandoned sets that have completed, and pinned buffers that the kernel has let go of.
    fn end_left(&self) {
        if self.pinned_count.load(Relaxed) > 0 {
            self.unpin();
        }
        if self.left_count.load(Relaxed) == 0 {
            return;
        }
        let Some(mut left) = self.left.try_lock() else { return };
        let Some(left_sets) = left.as_mut() else { return };
        let completed: Vec<_> = left_sets.extract_if(.., RingReads::has_completed).collect();
        self.left_count.store(left_sets.len(), Relaxed);
        // Dropping them gives their rings back.
        drop(left);
        drop(completed);
    }

    fn pin(&self, pinned: Pinned) {
        let mut all = self.pinned.lock();
        all.push(pinned);
        self.pinned_count.store(all.len(), Relaxed);
    }

    fn unpin(&self) {
        let Some(mut all) = self.pinned.try_lock() else { return };
        let freed: Vec<_> = all.extract_if(.., |pinned| pinned.is_free()).collect();
        self.pinned_count.store(all.len(), Relaxed);
        drop(all);
        drop(freed);
    }

    /// Takes back a ring that can be reused.
    fn give(&self, ring: Ring) {
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

impl Mover for Uring {
    fn run(&self, set: &mut [Transfer<'_>]) {
        let are_reads = set.iter().all(|transfer| matches!(transfer.memory, Memory::Into(_)));
        let lens = set.iter().map(|transfer| transfer.memory.len());
        let waiting = (self.busy_wait && are_reads && is_short(lens)).then(Waiting::begin);
        let mut permit = waiting.as_ref().and_then(Waiting::permit);
        if let ([one], None) = (&mut *set, &permit) {
            // A single pread is as fast as a trip through a ring (54.5 against 54.9 us for 4 KiB), and takes no
            // ring.
            one.run_alone();
            return self.rings.end_left();
        }
        let mut ring = self.rings.usable().and_then(|()| self.rings.take().ok());
        for part in set.chunks_mut(self.rings.entries as usize) {
            match ring.take() {
                Some(taken) => ring = run_part(taken, part, permit.take(), &self.rings.stalls),
                // There is no memory for a ring, or it broke: slower, but correct.
                None => part.iter_mut().for_each(Transfer::run_alone),
            }
        }
        if let Some(ring) = ring {
            self.rings.give(ring);
        }
    }

    fn begin(&self, set: Vec<OwnedRead>) -> Result<Box<dyn OwnedReads>, Vec<OwnedRead>> {
        if set.len() > self.rings.entries as usize {
            return Err(set);
        }
        let permit = self.rings.usable().and_then(|()| Permit::among(&self.rings));
        let Some((permit, ring)) = permit.and_then(|permit| Some((permit, self.rings.take().ok()?))) else {
            return Err(set);
        };
        Ok(Box::new(Begun::new(RingReads::begin(permit, ring, set))))
    }
}

/// Runs at most as many transfers as the ring has entries. Returns the ring if it can be used again.
fn run_part(
    mut ring: Ring,
    part: &mut [Transfer<'_>],
    permit: Option<PollPermit<'_>>,
    stalls: &Stalls,
) -> Option<Ring> {
    let mut progress = Progress::default();
    ring.begin_set();
    for transfer in part.iter_mut() {
        progress.submit_piece(&mut ring);
        // SAFETY: the buffer behind the entry is borrowed by `part` until this function returns. It returns only when every
        // entry that was submitted has completed, or when the kernel has freed the ring with all of them (`finish`, `cancel`
        // and `outlast`). The others go with the ring, which is not entered again: it is returned only if all have completed.
        // The file is open as long.
        if !unsafe { progress.queue(&mut ring, entry(transfer)) } {
            break;
        }
    }
    let mut watch = stalls.watch();
    let mut ring = Some(ring);
    if !ring.as_mut().is_some_and(|ring| progress.finish(ring, permit, &mut watch, part))
        && let Some(ring) = ring.take()
    {
        let held = progress.cancel(ring, stalls, &watch, part);
        progress.outlast(held, &mut watch, part);
        progress.end_pending(part);
    }
    // Transfers that the kernel did not take, or returned without having carried them out, are done by ordinary calls.
    for (index, transfer) in part.iter_mut().enumerate() {
        if index >= progress.submitted || is_sent_back(&transfer.outcome) {
            transfer.run_alone();
        }
    }
    ring.filter(|_| progress.is_sound(part.len()))
}

impl Drop for Uring {
    fn drop(&mut self) {
        let left = self.rings.left.lock().take();
        drop(left);
    }
}

#[cfg(test)]
mod stalls;

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

    fn patient() -> Arc<Stalls> {
        Arc::new(Stalls::new(Duration::from_secs(5), Duration::from_secs(60)))
    }

    /// What it waits for comes when the thread has ended, and the kernel has nobody to go on for. It is tried again by `pread`, which pipes refuse.
    #[test]
    fn what_comes_back_since_its_thread_has_ended_is_tried_again() {
        let Ok(uring) = Uring::new(4, true, patient()) else {
            eprintln!("SKIPPED: no io_uring here");
            return;
        };
        let (reader, mut writer) = io::pipe().unwrap();
        let file = Arc::new(File::from(OwnedFd::from(reader)));
        let read = OwnedRead { file, offset: 0, buffer: AlignedBuffer::new(1), outcome: Ok(0) };
        let begun = std::thread::scope(|scope| scope.spawn(|| uring.begin(vec![read]).ok()).join());
        writer.write_all(&[7]).unwrap();
        let reads = begun.unwrap().expect("a ring").wait();
        match &reads[0].outcome {
            Ok(_) => eprintln!("SKIPPED: this kernel goes on without the thread"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESPIPE), "{error}"),
        }
    }

    /// Of a pipe, in which nothing is until somebody writes: so what is in flight stays there.
    #[test]
    fn a_few_sets_are_left_to_the_rings_and_no_more() {
        let Ok(uring) = Uring::new(4, true, patient()) else {
            eprintln!("SKIPPED: no io_uring here");
            return;
        };
        let (reader, mut writer) = io::pipe().unwrap();
        let file = Arc::new(File::from(OwnedFd::from(reader)));
        let stays_open = writer.try_clone().unwrap();
        let begun = |_| {
            let (file, buffer) = (Arc::clone(&file), AlignedBuffer::new(1));
            uring.begin(vec![OwnedRead { file, offset: 0, buffer, outcome: Ok(0) }]).ok().unwrap()
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
