//! **flash**: simulated NAND and the drives that are made of it, in virtual time.
//!
//! - [`Nand`] keeps the rules of flash: pages are programmed once, in order, and erased by the block; it wears out, fails
//!   and loses power as it is told.
//! - [`Clock`] says how long it takes: channels are shared, dies are busy, and what does not collide goes on at the same
//!   time. Nothing sleeps, and nothing is random: parallelism is an outcome.
//! - [`Ftl`] makes logical pages out of physical ones; each way of doing so is one file in `ftl`.
//! - [`Ssd`] puts these together and keeps files: a `psync` device and volume, on which stores run unchanged.
//! - [`RawFlash`] is NAND and clock alone, for trees that manage flash themselves.
//! - [`Flash`] is what a translation layer works on: the NAND, and the record of what was done to it, for the clock.

pub mod ftl;

mod batch;
mod clock;
mod error;
mod flash;
mod geometry;
mod nand;
mod profile;
mod raw;
mod ssd;

pub use batch::{Batch, Operation, OperationKind, RequestKind};
pub use clock::Clock;
pub use error::{Error, Result};
pub use flash::{Done, Flash, FlashCounters, Origin};
pub use ftl::{Ftl, FtlOptions, LogicalPage};
pub use geometry::{BlockId, Geometry, PageId};
pub use nand::{Content, Faults, Nand, NandCounters, Order, Rules, Wear};
pub use profile::{Profile, ReadPriority, Timing, X25_E_OVER_PROVISION};
pub use raw::{PageProgram, PageRead, PowerCut, RawFlash};
pub use ssd::{BlockState, Latency, Request, Ssd};
