//! The libaio backend: Linux's older asynchronous I/O, as the PIO B-tree's authors used it (VLDB 2011, section 2.3:
//! `io_submit` and `io_getevents` make a psync call). Really asynchronous for direct I/O only.
//!
//! Invariants: as for io_uring, a call returns only when nothing that the kernel took is in flight.

use crate::transfer::{Memory, Mover, TRANSFER_MAX, Transfer};
use parking_lot::Mutex;
use std::io;
use std::os::fd::AsRawFd;

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

/// A kernel context for a number of concurrent requests.
struct Context(libc::c_ulong);

impl Context {
    fn new(entries: usize) -> io::Result<Self> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: io_setup writes one context id to the address, which is valid and zeroed as it asks.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, entries as libc::c_uint, &raw mut id) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(id)) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was made by io_setup and is destroyed once; nothing is in flight (invariant).
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

pub(crate) struct Libaio {
    idle: Mutex<Vec<Context>>,
    entries: usize,
}

impl Libaio {
    pub fn new(pio_max: usize) -> io::Result<Self> {
        Ok(Self { idle: Mutex::new(vec![Context::new(pio_max)?]), entries: pio_max })
    }
}

impl Mover for Libaio {
    fn run(&self, set: &mut [Transfer<'_>]) {
        if let [one] = set {
            return one.run_alone();
        }
        let idle = self.idle.lock().pop();
        let Ok(context) = idle.map_or_else(|| Context::new(self.entries), Ok) else {
            set.iter_mut().for_each(Transfer::run_alone);
            return;
        };
        for part in set.chunks_mut(self.entries) {
            run_part(&context, part);
        }
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(context);
        }
    }
}

fn run_part(context: &Context, part: &mut [Transfer<'_>]) {
    let blocks: Vec<Iocb> = part
        .iter_mut()
        .enumerate()
        .map(|(index, transfer)| {
            let (opcode, buffer) = match &mut transfer.memory {
                Memory::Into(buffer) => (PREAD, buffer.as_mut_ptr() as u64),
                Memory::From(data) => (PWRITE, data.as_ptr() as u64),
            };
            Iocb {
                data: index as u64,
                opcode,
                fd: transfer.file.as_raw_fd() as u32,
                buffer,
                bytes: transfer.memory.len().min(TRANSFER_MAX) as u64,
                offset: transfer.offset as i64,
                ..Iocb::default()
            }
        })
        .collect();
    let pointers: Vec<*const Iocb> = blocks.iter().map(std::ptr::from_ref).collect();
    let mut events = vec![Event::default(); blocks.len()];
    let (mut submitted, mut completed) = (0, 0);
    let mut refused = false;
    // Nothing in this loop may unwind: there are requests in flight.
    while completed < submitted || (submitted < blocks.len() && !refused) {
        if submitted < blocks.len() && !refused {
            let rest = &pointers[submitted..];
            // SAFETY: `rest` points to iocbs that live until the loop ends, and their buffers are borrowed by `part`;
            // the loop ends only when all that were submitted have completed.
            let result = unsafe {
                libc::syscall(libc::SYS_io_submit, context.0, rest.len() as libc::c_long, rest.as_ptr())
            };
            if result >= 0 {
                submitted += result as usize;
            } else {
                match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => continue,
                    Some(libc::EAGAIN) if completed < submitted => {}
                    _ => refused = true,
                }
            }
        }
        let waiting = submitted - completed;
        if waiting == 0 {
            continue;
        }
        // SAFETY: `events` has room for as many events as can be waiting.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                context.0,
                1 as libc::c_long,
                waiting as libc::c_long,
                events.as_mut_ptr(),
                std::ptr::null_mut::<libc::timespec>(),
            )
        };
        for event in events.iter().take(result.max(0) as usize) {
            completed += 1;
            if let Some(transfer) = part.get_mut(event.data as usize) {
                transfer.outcome = if event.result >= 0 {
                    Ok(event.result as usize)
                } else {
                    Err(io::Error::from_raw_os_error(-event.result as i32))
                };
            }
        }
    }
    // Transfers that the kernel did not take are done with ordinary calls, which also report what is wrong with
    // them, if anything.
    part[submitted..].iter_mut().for_each(Transfer::run_alone);
}
