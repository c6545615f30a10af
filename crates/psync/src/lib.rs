//! **psync**: parallel synchronous I/O for flash.
//!
//! An SSD is many channels that work at the same time, but a program that asks for one block at a time
//! keeps all but one of them idle. psync hands the device an *array* of requests at once, blocks until all of
//! them are done, and gives the answer back as one: synchronous for the caller, parallel for the device. (After
//! Roh, Park, Kim, Shin and Lee, "B+-tree Index Optimization by Exploiting Internal Parallelism of Flash-based
//! Solid State Drives", VLDB 2011, section 2.3.)
//!
//! - [`Device`] is the boundary: eight methods that move bytes of open files.
//! - [`InFlight`] is a set of reads that was begun and is waited for later.
//! - [`Window`] is a part of a file that bytes are stored to without a system call, where that can be had.
//! - [`Profile`] measures what a disk gives by request size and depth.
//! - [`Volume`] adds the directory around them: open, rename, remove, list, make durable, lock.
//! - [`Disk`] is a real directory, through io_uring, libaio or threads; [`Simulated`] one in memory that loses power,
//!   fails and lies as it is told; [`PassThrough`] is for a volume that stands in front of another.
//!
//! After a `fork` all of this is the parent's: the child must neither use nor drop what it inherited.

mod buffer;
#[cfg(target_os = "linux")]
mod busy_wait;
mod completion;
mod device;
mod direct;
mod disk;
mod error;
mod in_flight;
#[cfg(target_os = "linux")]
mod libaio;
mod lock_file;
mod mapping;
mod nap;
mod page;
mod pass_through;
mod profile;
#[cfg(feature = "plot")]
mod profile_plot;
mod request;
mod simulated;
mod threads;
mod transfer;
#[cfg(target_os = "linux")]
mod uring;
mod volume;
mod window;

pub use buffer::{AlignedBuffer, BufferPool};
pub use device::{Counters, Device, Limits};
pub use disk::{Backend, Disk, DiskOptions};
pub use error::{Error, Result};
pub use in_flight::{InFlight, ReadInto};
pub use nap::nap;
pub use page::page_size;
pub use pass_through::PassThrough;
pub use profile::{Latency, Profile, ProfileOptions, ProfileStep, Rate};
pub use request::{FileId, Read, Request, Write};
pub use simulated::{Fault, Filter, OperationKind, Repeat, Simulated};
pub use volume::{Access, Entry, Lock, LockKind, Volume};
pub use window::Window;
