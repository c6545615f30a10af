//! **psync**: parallel synchronous I/O for flash.
//!
//! An SSD has many channels that work in parallel, but a program that requests one block at a time keeps all
//! but one of them idle. psync hands the device an *array* of requests at once, blocks until all of them are
//! done, and returns one result: synchronous for the caller, parallel for the device. (After Roh, Park, Kim,
//! Shin and Lee, "B+-tree Index Optimization by Exploiting Internal Parallelism of Flash-based Solid State
//! Drives", VLDB 2011, section 2.3.)
//!
//! - [`Device`] is the boundary: eleven methods, three of them with defaults, that move bytes of open files.
//! - [`InFlight`] is a set of reads that has been started and is waited for later.
//! - [`Window`] is a part of a file to which bytes are stored without a system call, where available.
//! - [`Volume`] adds the directory: open, rename, remove, list, sync, lock.
//! - [`Disk`] is a real directory, accessed through io_uring, libaio or threads. [`Simulated`] is one in memory
//!   that loses power, fails and lies on demand. [`PassThrough`] helps to write a volume that wraps another.
//!
//! After a `fork`, all of this belongs to the parent process. In the child, calls return [`Error::Forked`], and
//! dropping it does nothing.

mod boot;
mod buffer;
#[cfg(target_os = "linux")]
mod busy_wait;
mod completion;
#[cfg(all(test, target_os = "linux"))]
mod completion_faults;
mod device;
mod direct;
mod directory;
mod disk;
mod disk_options;
mod error;
mod forked;
mod in_flight;
#[cfg(target_os = "linux")]
mod libaio;
mod lock;
mod lock_file;
mod make_directory;
mod mapping;
mod nap;
mod page;
mod pass_through;
mod request;
#[cfg(target_os = "linux")]
mod ring;
mod simulated;
mod stall;
mod threads;
mod transfer;
#[cfg(target_os = "linux")]
mod uring;
mod volume;
mod window;

pub use buffer::{AlignedBuffer, BufferPool};
pub use device::{Counters, Device, Limits};
pub use disk::Disk;
pub use disk_options::{Backend, DiskOptions};
pub use error::{Error, Result};
pub use forked::Process;
pub use in_flight::{InFlight, ReadInto};
pub use nap::nap;
pub use page::page_size;
pub use pass_through::PassThrough;
pub use request::{FileId, Read, Request, Write};
pub use simulated::{Fault, Filter, OperationKind, Repeat, Simulated};
pub use volume::{Access, Entry, Lock, LockKind, Volume};
pub use window::Window;
