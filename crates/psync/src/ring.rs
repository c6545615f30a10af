//! One io_uring ring: its system calls, with waits that end, and its end.
//!
//! Invariants:
//! 1. No call waits for longer than it was asked to.
//! 2. [`Exit::wait`] returns true only when the kernel has freed the ring with all its requests: none of them touches
//!    memory or files later.
//!
//! A request that never completed may still be somewhere in the kernel, or only its completion was lost. Closing the
//! ring tells: the kernel then cancels what it can, and frees the ring when the last request has ended. This happens
//! in the background, and there is no call to wait for it. So the ring is first given a reference to the writing end
//! of a pipe, which nobody else keeps. The pipe ends when the ring is freed.

#[cfg(test)]
use crate::completion_faults::Faults;
use io_uring::{IoUring, opcode, squeue, types};
use std::io;
use std::io::PipeReader;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// How long to wait before retrying when the kernel had no memory for a request.
const RETRY: Duration = Duration::from_micros(200);

pub(crate) struct Ring {
    inner: IoUring,
    /// The number of the set that uses it, so that no completion counts for another set.
    set: u32,
    /// Whether the kernel cannot limit the time of a wait itself (before 5.11).
    waits_by_polling: bool,
    /// What a test does to completions.
    #[cfg(test)]
    faults: Option<std::sync::Arc<Faults>>,
}

/// A completion: what the request was marked with, and its result.
pub(crate) type Completion = (u64, i32);

/// Marks requests that cancel others.
const CANCELS: u64 = 1 << 31;

impl Ring {
    pub fn new(entries: u32) -> io::Result<Self> {
        // Avoids interrupts for completions that nobody waits for yet, if the kernel supports this.
        let new = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(entries);
        let inner = new.or_else(|_| IoUring::new(entries))?;
        Ok(Self {
            waits_by_polling: !inner.params().is_feature_ext_arg(),
            inner,
            set: 0,
            #[cfg(test)]
            faults: None,
        })
    }

    /// Whether the kernel can read and write by rings.
    pub fn is_capable(&self) -> io::Result<bool> {
        let mut probe = io_uring::Probe::new();
        self.inner.submitter().register_probe(&mut probe)?;
        Ok(probe.is_supported(opcode::Read::CODE) && probe.is_supported(opcode::Write::CODE))
    }

    /// A new set begins. Late completions of the sets before do not count.
    pub fn begin_set(&mut self) {
        self.set = self.set.wrapping_add(1);
    }

    fn mark(&self, index: usize) -> u64 {
        u64::from(self.set) << 32 | index as u64
    }

    /// The member of the set that a completion is for.
    pub fn member(&self, mark: u64) -> Option<usize> {
        let index = mark & 0xffff_ffff;
        (mark >> 32 == u64::from(self.set) && index < CANCELS).then_some(index as usize)
    }

    /// Whether it is the completion of an attempt to cancel.
    pub fn is_of_cancel(mark: u64) -> bool {
        mark & CANCELS != 0
    }

    /// Queues the request of a member of the set. Returns false if there is no room.
    ///
    /// # Safety
    /// The memory and the file of the request stay valid, and the memory is not used otherwise, until the request has
    /// completed, [`Exit::wait`] has returned true, or the ring is dropped without having been entered since.
    pub unsafe fn push(&mut self, index: usize, entry: squeue::Entry) -> bool {
        let entry = entry.user_data(self.mark(index));
        // SAFETY: by the contract of this function.
        unsafe { self.inner.submission().push(&entry) }.is_ok()
    }

    /// Queues an attempt to cancel the request of a member of the set. Returns false if there is no room.
    pub fn push_cancel(&mut self, index: usize) -> bool {
        let mark = self.mark(index);
        let entry = opcode::AsyncCancel::new(mark).build().user_data(mark | CANCELS);
        // SAFETY: the entry refers to neither memory nor a file.
        unsafe { self.inner.submission().push(&entry) }.is_ok()
    }

    /// How many queued requests the kernel has not taken.
    pub fn unsubmitted(&mut self) -> usize {
        self.inner.submission().len()
    }

    /// Whether the kernel needs this thread to do task work before it can report a completion. Any system call does
    /// it.
    pub fn needs_task_work(&mut self) -> bool {
        self.inner.submission().taskrun()
    }

    /// One system call: submits what is queued, and waits for `wanted` completions, but no longer than `time`.
    pub fn enter(&mut self, wanted: usize, time: Duration) -> io::Result<()> {
        let entered = if wanted == 0 {
            self.inner.submit()
        } else if self.waits_by_polling {
            self.enter_and_poll(time)
        } else {
            let time = types::Timespec::from(time);
            self.inner.submitter().submit_with_args(wanted, &types::SubmitArgs::new().timespec(&time))
        };
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::ETIME) => Ok(()),
                // The kernel has no memory for a request, or too many unreported completions. A thread that could
                // change this may have lower priority, and yielding would not let it run; so sleep.
                Some(libc::EAGAIN | libc::EBUSY) => {
                    std::thread::sleep(RETRY);
                    Ok(())
                }
                _ => {
                    std::thread::sleep(RETRY);
                    Err(error)
                }
            },
        }
    }

    /// The same on kernels whose rings can wait only without a limit. Waits for one completion.
    fn enter_and_poll(&mut self, time: Duration) -> io::Result<usize> {
        let submitted = self.inner.submit()?;
        if self.inner.completion().is_empty() {
            poll(self.inner.as_raw_fd(), time)?;
        }
        Ok(submitted)
    }

    /// The next completion, if one has arrived.
    #[cfg(not(test))]
    pub fn completed(&mut self) -> Option<Completion> {
        self.arrived()
    }

    #[cfg(test)]
    pub fn completed(&mut self) -> Option<Completion> {
        match self.faults.clone() {
            Some(faults) => faults.next(|| self.arrived()),
            None => self.arrived(),
        }
    }

    fn arrived(&mut self) -> Option<Completion> {
        self.inner.completion().next().map(|completion| (completion.user_data(), completion.result()))
    }

    /// Closes the ring, and returns something to wait for its end with. If that is not to be had (old kernels, no file
    /// descriptors left), returns the ring as it is.
    pub fn close(self: Box<Self>) -> Result<Exit, Box<Self>> {
        // Earlier kernels wait for all requests before they give a file to a ring. This feature of 5.17 is newer.
        if !self.inner.params().is_feature_skip_cqe_on_success() {
            return Err(self);
        }
        let Ok((reader, writer)) = io::pipe() else { return Err(self) };
        match self.inner.submitter().register_files(&[writer.as_raw_fd()]) {
            Ok(()) => Ok(Exit(reader)),
            Err(_) => Err(self),
        }
    }

    #[cfg(test)]
    pub fn with(self, faults: Option<std::sync::Arc<Faults>>) -> Self {
        let waits_by_polling = self.waits_by_polling || faults.as_ref().is_some_and(|faults| faults.polls);
        Self { faults, waits_by_polling, ..self }
    }

    /// A second descriptor of the ring: as long as it is open, closing the ring does not end it.
    #[cfg(test)]
    pub fn held_open(&self) -> std::os::fd::OwnedFd {
        use std::os::fd::BorrowedFd;
        // SAFETY: the ring has its descriptor open during this call.
        let ring = unsafe { BorrowedFd::borrow_raw(self.inner.as_raw_fd()) };
        ring.try_clone_to_owned().unwrap()
    }
}

/// The end of a ring that was closed.
pub(crate) struct Exit(PipeReader);

impl Exit {
    /// Waits for it, but no longer than `time`. Returns whether it has come.
    pub fn wait(&self, time: Duration) -> bool {
        // Nobody writes to the pipe: it is ready when it has ended.
        poll(self.0.as_raw_fd(), time).is_ok_and(|ready| ready)
    }
}

/// Waits until the descriptor is ready to be read from. An interrupted wait ends early.
fn poll(descriptor: RawFd, time: Duration) -> io::Result<bool> {
    let mut polled = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    let time = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one entry, valid during the call.
    match unsafe { libc::poll(&raw mut polled, 1, time) } {
        0 => Ok(false),
        1 => Ok(polled.revents & (libc::POLLIN | libc::POLLHUP) != 0),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
    }
}
