//! Drives ready to use: geometry, timing and rules of flash of some years, of the default simulation, and of a measured disk.
//!
//! docs/flash.md names a source for each figure.

use crate::{Error, Geometry, Order, Result, Rules};
use std::time::Duration;

/// How long things take. See docs/flash.md for what waits for what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Sensing a page, without its transfer.
    pub read: Duration,
    /// Programming a page, without its transfer.
    pub program: Duration,
    /// Erasing a block.
    pub erase: Duration,
    /// What a channel moves in a second, in bytes; at least 1,000,000.
    pub bus_bytes_per_second: u64,
    /// Commands and addresses before each transfer.
    pub bus_command: Duration,
    /// What it costs a channel to turn from moving in to moving out, or back.
    pub bus_turn: Duration,
    /// The controller's time for a read (or a command), during which it does nothing else.
    pub controller_read: Duration,
    /// The controller's time for a write, during which it does nothing else.
    pub controller_write: Duration,
    /// What each request costs besides, at the host and on the way, side by side with others.
    pub host_overhead: Duration,
    /// What the host link moves in a second, in bytes; at least 1,000,000. Counts as the controller's time.
    pub host_bytes_per_second: u64,
    /// Requests that the drive takes at a time, at least 1.
    pub queue_depth: u32,
}

impl Timing {
    /// Refuses what cannot be.
    ///
    /// # Errors
    /// [`Error::Geometry`].
    pub fn check(&self) -> Result<()> {
        if self.bus_bytes_per_second < 1_000_000 || self.host_bytes_per_second < 1_000_000 {
            return Err(Error::Geometry("a bus or link of less than 1 MB/s".to_owned()));
        }
        if self.queue_depth == 0 {
            return Err(Error::Geometry("a queue without slots".to_owned()));
        }
        let durations = [
            self.read,
            self.program,
            self.erase,
            self.bus_command,
            self.bus_turn,
            self.controller_read,
            self.controller_write,
            self.host_overhead,
        ];
        if durations.iter().any(|duration| *duration > Duration::from_secs(10)) {
            return Err(Error::Geometry("an operation of more than 10 seconds".to_owned()));
        }
        Ok(())
    }
}

/// A drive before it is built.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// What it is called.
    pub name: String,
    /// What it is made of.
    pub geometry: Geometry,
    /// How long things take.
    pub timing: Timing,
    /// What the flash demands.
    pub rules: Rules,
}

const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

impl Profile {
    fn named(name: &str, geometry: Geometry, timing: Timing) -> Self {
        Self { name: name.to_owned(), geometry, timing, rules: Rules::default() }
    }

    /// The default: a drive of about 2010 as the PIO B-tree's authors had them, with 8 channels of 4 dies and 4 GiB.
    pub fn ssdsim() -> Self {
        let geometry = Geometry {
            channels: 8,
            dies_per_channel: 4,
            planes: 2,
            blocks_per_plane: 128,
            pages_per_block: 128,
            page_bytes: 4096,
            spare_bytes: 128,
        };
        let timing = Timing {
            read: micros(50),
            program: micros(250),
            erase: micros(1500),
            bus_bytes_per_second: 166_000_000,
            bus_command: Duration::from_nanos(300),
            bus_turn: micros(15),
            controller_read: Duration::from_nanos(500),
            controller_write: Duration::from_nanos(500),
            host_overhead: micros(5),
            host_bytes_per_second: 3_000_000_000,
            queue_depth: 256,
        };
        Self::named("ssdsim", geometry, timing)
    }

    /// Single-level flash of 2007, as the papers on in-page logging have it: pages of 2 KiB, programmed in parts and in any
    /// order.
    pub fn slc_2007() -> Self {
        let geometry = Geometry {
            channels: 1,
            dies_per_channel: 1,
            planes: 1,
            blocks_per_plane: 4096,
            pages_per_block: 64,
            page_bytes: 2048,
            spare_bytes: 64,
        };
        let timing = Timing {
            // 80 us with its transfer at 40 MB/s.
            read: micros(25),
            program: micros(145),
            erase: micros(1500),
            bus_bytes_per_second: 40_000_000,
            bus_command: Duration::from_nanos(300),
            bus_turn: Duration::ZERO,
            controller_read: Duration::ZERO,
            controller_write: Duration::ZERO,
            host_overhead: micros(5),
            host_bytes_per_second: 300_000_000,
            queue_depth: 1,
        };
        let rules = Rules { order: Order::Ascending, programs_max: 4, ..Rules::default() };
        Self { rules, ..Self::named("slc-2007", geometry, timing) }
    }
}
