//! The libaio backend: Linux's older asynchronous I/O, as the PIO B-tree's authors used it (VLDB 2011, section 2.3:
//! `io_submit` and `io_getevents` make a psync call). Really asynchronous for direct I/O only.
//!
//! Invariants:
//! 1. As for io_uring, a call returns only when nothing that the kernel took is in flight.
//! 2. A request counts as completed once, whatever the context reports.
//!
//! A set that stalls ([`stall`](crate::stall)) is cancelled, and its context destroyed. `io_destroy` returns when none of
//! its requests is in flight; since this may take for ever, a thread of its own makes the call. The memory belongs to the
//! caller: so the caller waits for that thread, and reports it.

use crate::lock::Mutex;
use crate::stall::{Pending, Stalls, Watch, described, quietly};
use crate::transfer::{Memory, Mover, TRANSFER_MAX, Transfer};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// `struct iocb` of <linux/aio_abi.h> (little-endian layout of its first fields).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const IDLE_MAX: usize = 16;

/// How long to wait before asking again when the kernel refused to report completions.
const RETRY: Duration = Duration::from_micros(200);

/// Marks completions of earlier sets, which do not count: the number of the set above that of the member.
const INDEX_BITS: u32 = 32;

/// A kernel context for a number of concurrent requests.
struct Context {
    id: libc::c_ulong,
    /// The number of the set that uses it.
    set: u32,
    /// What a test does to completions.
    #[cfg(test)]
    faults: Option<Arc<crate::completion_faults::Faults>>,
}

impl Context {
    fn new(entries: usize) -> io::Result<Self> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: io_setup writes one context id to the address, which is valid and zeroed as it asks.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, entries as libc::c_uint, &raw mut id) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            id,
            set: 0,
            #[cfg(test)]
            faults: None,
        })
    }

    /// Waits for completions, but no longer than `time`, and writes them to `events`. Returns their number.
    fn completed(&self, events: &mut [Event], time: Duration) -> io::Result<usize> {
        let mut time = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos() as libc::c_long,
        };
        // SAFETY: there is room for as many events as are asked for; the time is valid during the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.id,
                1 as libc::c_long,
                events.len() as libc::c_long,
                events.as_mut_ptr(),
                &raw mut time,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
    }

    /// Asks for a request to be cancelled. Its completion is reported as usual.
    fn cancel(&self, block: &Iocb) {
        let mut event = Event::default();
        // SAFETY: both addresses are valid during the call. The kernel only compares the first one.
        unsafe { libc::syscall(libc::SYS_io_cancel, self.id, std::ptr::from_ref(block), &raw mut event) };
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was made by io_setup and is destroyed once. It returns when nothing is in flight.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}

pub(crate) struct Libaio {
    idle: Mutex<Vec<Context>>,
    entries: usize,
    stalls: Arc<Stalls>,
    #[cfg(test)]
    faults: Mutex<Option<Arc<crate::completion_faults::Faults>>>,
}

impl Libaio {
    pub fn new(pio_max: usize, stalls: Arc<Stalls>) -> io::Result<Self> {
        Ok(Self {
            idle: Mutex::new(vec![Context::new(pio_max)?]),
            entries: pio_max,
            stalls,
            #[cfg(test)]
            faults: Mutex::default(),
        })
    }

    /// An idle context, or a new one. `None` if there is none to be had, or contexts have lost too many sets.
    fn take(&self) -> Option<Context> {
        if self.stalls.are_too_many() {
            return None;
        }
        let idle = self.idle.lock().pop();
        let taken = idle.or_else(|| Context::new(self.entries).ok());
        #[cfg(test)]
        let taken = taken.map(|mut context| {
            context.faults.clone_from(&self.faults.lock());
            context
        });
        taken
    }
}

impl Mover for Libaio {
    fn run(&self, set: &mut [Transfer<'_>]) {
        if let [one] = set {
            return one.run_alone();
        }
        let mut context = self.take();
        for part in set.chunks_mut(self.entries) {
            match context.take() {
                Some(taken) => context = run_part(taken, part, &self.stalls),
                None => part.iter_mut().for_each(Transfer::run_alone),
            }
        }
        let Some(context) = context else { return };
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(context);
        }
    }
}

/// A set in flight.
struct SetInFlight<'a> {
    context: Context,
    blocks: Vec<Iocb>,
    events: Vec<Event>,
    submitted: usize,
    /// Whether the kernel takes no further requests.
    refused: bool,
    pending: Pending,
    /// Whether there was a completion that nobody waited for.
    is_suspect: bool,
    watch: Watch<'a>,
}

impl SetInFlight<'_> {
    fn is_waiting(&self) -> bool {
        self.pending.count() > 0 || (self.submitted < self.blocks.len() && !self.refused)
    }

    /// Submits what the kernel has not taken. Must not unwind, like all that follows: there are requests in flight.
    fn submit(&mut self) {
        if self.submitted == self.blocks.len() || self.refused {
            return;
        }
        let pointers: Vec<*const Iocb> =
            self.blocks[self.submitted..].iter().map(std::ptr::from_ref).collect();
        // SAFETY: the kernel copies the blocks, which are valid during the call. Their buffers are borrowed by the set
        // that `run_part` carries out. It returns only when all that were submitted have completed, or the context is
        // destroyed.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_submit,
                self.context.id,
                pointers.len() as libc::c_long,
                pointers.as_ptr(),
            )
        };
        if result >= 0 {
            for index in self.submitted..self.submitted + result as usize {
                self.pending.insert(index);
            }
            self.submitted += result as usize;
            return;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN) if self.pending.count() > 0 => {}
            _ => self.refused = true,
        }
    }

    /// Waits for completions, but no longer than `time`, and records them. Returns whether there was one.
    fn collect(&mut self, part: &mut [Transfer<'_>], time: Duration) -> bool {
        if self.pending.count() == 0 {
            return false;
        }
        let count = match self.context.completed(&mut self.events, time) {
            Ok(count) => count,
            Err(error) => {
                if error.kind() != io::ErrorKind::Interrupted {
                    std::thread::sleep(RETRY);
                }
                0
            }
        };
        let before = self.pending.count();
        for place in 0..count {
            self.record(part, self.events[place]);
        }
        #[cfg(test)]
        if let Some(faults) = self.context.faults.clone() {
            // Those that were held back, and have not come with others.
            while let Some(event) = faults.next(|| None) {
                self.accept(part, event);
            }
        }
        self.pending.count() < before
    }

    #[cfg(not(test))]
    fn record(&mut self, part: &mut [Transfer<'_>], event: Event) {
        self.accept(part, event);
    }

    #[cfg(test)]
    fn record(&mut self, part: &mut [Transfer<'_>], event: Event) {
        let Some(faults) = self.context.faults.clone() else { return self.accept(part, event) };
        let mut arrived = Some(event);
        while let Some(event) = faults.next(|| arrived.take()) {
            self.accept(part, event);
        }
    }

    /// Records a completion; of each request the first.
    fn accept(&mut self, part: &mut [Transfer<'_>], event: Event) {
        let (set, index) = (event.data >> INDEX_BITS, event.data as u32 as usize);
        if set != u64::from(self.context.set) || !self.pending.remove(index) {
            self.is_suspect = true;
            return;
        }
        if let Some(transfer) = part.get_mut(index) {
            transfer.outcome = if event.result >= 0 {
                Ok(event.result as usize)
            } else {
                Err(io::Error::from_raw_os_error(-event.result as i32))
            };
        }
    }

    /// Waits for everything. Returns false if it stalls for too long.
    fn finish(&mut self, part: &mut [Transfer<'_>]) -> bool {
        while self.is_waiting() {
            let before = self.submitted;
            self.submit();
            let time = self.watch.slice();
            if self.collect(part, time) || self.submitted > before {
                self.watch.has_progressed();
            } else if self.is_waiting() && self.watch.has_timed_out(|| outstanding(&self.pending, part)) {
                return false;
            }
        }
        true
    }

    /// Cancels a set that has stalled. Returns when the kernel holds none of it.
    fn cancel(mut self, part: &mut [Transfer<'_>], stalls: &Stalls) {
        self.watch.cancels(|| outstanding(&self.pending, part));
        let until = Instant::now() + stalls.grace();
        self.pending.iter().for_each(|index| self.context.cancel(&self.blocks[index]));
        while self.pending.count() > 0 && Instant::now() < until {
            self.collect(part, self.watch.slice());
        }
        let Self { mut context, pending, mut watch, .. } = self;
        if pending.count() > 0 {
            // The kernel may refuse a thread: then with another attempt.
            let destroyed = loop {
                match destroy(context) {
                    Ok(destroyed) => break destroyed,
                    Err(back) => context = back,
                }
                watch.has_timed_out(|| outstanding(&pending, part));
                std::thread::sleep(watch.slice());
            };
            while destroyed.recv_timeout(watch.slice()) == Err(RecvTimeoutError::Timeout) {
                watch.has_timed_out(|| outstanding(&pending, part));
            }
        }
        // Nobody has seen these end.
        for index in pending.iter() {
            if let Some(transfer) = part.get_mut(index) {
                transfer.outcome = Err(io::Error::from_raw_os_error(libc::ECANCELED));
            }
        }
    }
}

/// The requests in flight, for reports.
fn outstanding(pending: &Pending, part: &[Transfer<'_>]) -> Vec<String> {
    pending.iter().filter_map(|index| part.get(index)).map(described).collect()
}

/// Destroys the context in a thread of its own. The receiver is disconnected when that is done. Returns the context if
/// there is no thread to be had.
fn destroy(context: Context) -> Result<Receiver<()>, Context> {
    let (done, is_done) = sync_channel(0);
    let shared = Arc::new(Mutex::new(Some(context)));
    let theirs = Arc::clone(&shared);
    let thread = std::thread::Builder::new().name("psync-destroy".to_owned()).spawn(move || {
        let context = theirs.lock().take();
        drop(context);
        drop(done);
    });
    match thread {
        Ok(_) => Ok(is_done),
        Err(_) => shared.lock().take().map_or(Ok(is_done), Err),
    }
}

/// Runs at most as many transfers as the context takes. Returns the context if it can be used again.
fn run_part(mut context: Context, part: &mut [Transfer<'_>], stalls: &Stalls) -> Option<Context> {
    context.set = context.set.wrapping_add(1);
    let blocks: Vec<Iocb> = part
        .iter_mut()
        .enumerate()
        .map(|(index, transfer)| {
            let (opcode, buffer) = match &mut transfer.memory {
                Memory::Into(buffer) => (PREAD, buffer.as_mut_ptr() as u64),
                Memory::From(data) => (PWRITE, data.as_ptr() as u64),
            };
            Iocb {
                data: u64::from(context.set) << INDEX_BITS | index as u64,
                opcode,
                fd: transfer.file.as_raw_fd() as u32,
                buffer,
                bytes: transfer.memory.len().min(TRANSFER_MAX) as u64,
                offset: transfer.offset as i64,
                ..Iocb::default()
            }
        })
        .collect();
    let events = vec![Event::default(); blocks.len()];
    let mut set = SetInFlight {
        context,
        blocks,
        events,
        submitted: 0,
        refused: false,
        pending: Pending::default(),
        is_suspect: false,
        watch: stalls.watch(),
    };
    let is_complete = set.finish(part);
    let submitted = set.submitted;
    let context = if !is_complete {
        set.cancel(part, stalls);
        None
    } else if set.is_suspect {
        quietly(|| tracing::error!("libaio reported what nobody waited for: the context is destroyed"));
        None
    } else {
        Some(set.context)
    };
    // Transfers that the kernel did not take are done with ordinary calls, which also report what is wrong with them, if
    // anything; so are those that were cancelled.
    for (index, transfer) in part.iter_mut().enumerate() {
        let is_cancelled =
            transfer.outcome.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ECANCELED));
        if index >= submitted || is_cancelled {
            transfer.run_alone();
        }
    }
    context
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion_faults::{Fate, Faults, events_of};
    use std::fs::File;

    const LEN: usize = 4096;
    const WARNING: Duration = Duration::from_millis(50);
    const LATE: Duration = Duration::from_millis(300);

    /// `None` if there is no libaio here.
    fn libaio(timeout: Duration, fate: impl Fn(usize) -> Fate + Send + Sync + 'static) -> Option<Libaio> {
        let Ok(libaio) = Libaio::new(4, Arc::new(Stalls::new(WARNING, timeout))) else {
            eprintln!("SKIPPED: no libaio here");
            return None;
        };
        *libaio.faults.lock() = Some(Arc::new(Faults::new(fate)));
        Some(libaio)
    }

    /// Writes and reads seven blocks, and checks them.
    fn write_and_read(libaio: &Libaio, file: &File, seed: u8, len: usize) {
        let transfer = |n: usize, memory| Transfer { file, offset: (n * LEN) as u64, memory, outcome: Ok(0) };
        let data: Vec<_> = (0..7).map(|n| vec![seed + n; len]).collect();
        let mut writes: Vec<_> =
            data.iter().enumerate().map(|(n, data)| transfer(n, Memory::From(data))).collect();
        libaio.run(&mut writes);
        assert!(writes.iter().all(|write| matches!(write.outcome, Ok(moved) if moved == len)));
        let mut buffers = vec![vec![0; len]; 7];
        let mut reads: Vec<_> =
            buffers.iter_mut().enumerate().map(|(n, buffer)| transfer(n, Memory::Into(buffer))).collect();
        libaio.run(&mut reads);
        assert!(reads.iter().all(|read| matches!(read.outcome, Ok(moved) if moved == len)));
        assert!(buffers == data);
    }

    #[test]
    fn a_set_whose_completions_are_lost_is_carried_out_by_ordinary_calls() {
        for lost in [0, 5, 9] {
            let fate = move |n| if n == lost { Fate::Lost } else { Fate::Come };
            let Some(libaio) = libaio(LATE, fate) else { return };
            let file = tempfile::tempfile().unwrap();
            let events = events_of(|| write_and_read(&libaio, &file, 1, LEN));
            assert_eq!((libaio.stalls.count(), libaio.stalls.timeouts()), (1, 1), "{lost}");
            let named =
                |event: &String| event.starts_with("ERROR") && event.contains(" of 4096 bytes at byte ");
            assert!(events.iter().any(named), "{events:?}");
            write_and_read(&libaio, &file, 2, LEN);
            assert_eq!(libaio.stalls.timeouts(), 1);
        }
    }

    #[test]
    fn a_set_whose_completions_are_late_is_told_of_and_waited_for() {
        let fate = |n| if n == 1 { Fate::Late(LATE) } else { Fate::Come };
        let Some(libaio) = libaio(Duration::from_secs(60), fate) else { return };
        let began = Instant::now();
        let events = events_of(|| write_and_read(&libaio, &tempfile::tempfile().unwrap(), 3, LEN));
        assert!(began.elapsed() >= LATE && began.elapsed() < Duration::from_secs(20));
        assert_eq!((libaio.stalls.count(), libaio.stalls.timeouts()), (1, 0));
        assert!(events.iter().any(|event| event.starts_with("WARN")), "{events:?}");
        assert_eq!(libaio.idle.lock().len(), 1, "nothing is wrong with the context");
    }

    #[test]
    fn a_completion_that_comes_twice_counts_once() {
        // In its own set, and while the next one uses the context.
        for again in [Duration::ZERO, LATE / 3] {
            let fate = move |n| match n {
                0 => Fate::Twice(again),
                1 | 4 => Fate::Late(LATE / 2),
                _ => Fate::Come,
            };
            let Some(libaio) = libaio(Duration::from_secs(60), fate) else { return };
            let file = tempfile::tempfile().unwrap();
            write_and_read(&libaio, &file, 4, LEN);
            write_and_read(&libaio, &file, 5, 512);
        }
    }
}
