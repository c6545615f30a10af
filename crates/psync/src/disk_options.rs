//! How to open a [`Disk`](crate::Disk), and which backend it uses.

use crate::{Error, Result};
use std::time::Duration;

/// How bytes are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The best that works here: io_uring, otherwise libaio, otherwise threads.
    #[default]
    Auto,
    /// io_uring (Linux).
    #[serde(rename = "io_uring")]
    Uring,
    /// libaio (Linux).
    Libaio,
    /// A pool of threads with positioned I/O (anywhere).
    Threads,
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Backend::Auto => "auto",
            Backend::Uring => "io_uring",
            Backend::Libaio => "libaio",
            Backend::Threads => "threads",
        })
    }
}

impl std::str::FromStr for Backend {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let all = [Backend::Auto, Backend::Uring, Backend::Libaio, Backend::Threads];
        all.into_iter().find(|backend| backend.to_string() == name).ok_or_else(|| {
            Error::Invalid(format!("there is no backend {name:?}; there are auto, io_uring, libaio, threads"))
        })
    }
}

/// How to open a [`Disk`](crate::Disk).
#[derive(Clone, Copy, Debug)]
pub struct DiskOptions {
    /// The backend.
    pub backend: Backend,
    /// PioMax: the maximum number of requests sent to the device as one set, 1 to 4096.
    pub pio_max: usize,
    /// Whether files opened with [`Access::direct`](crate::Access::direct) bypass the page cache.
    pub direct: bool,
    /// Whether to create the directory if it does not exist.
    pub create: bool,
    /// Whether a thread that waits for a few reads may poll for their completion instead of sleeping, for at
    /// most 0.2 ms and as long as there seems to be an idle processor. Where few threads read, this gives a
    /// third more reads per second, for one and a half times the processor time per read. Only with io_uring.
    pub busy_wait: bool,
    /// After this time without a completion, a set that is waited for is reported (a `tracing` event that lists what is
    /// outstanding) and counted ([`Counters::stalls`](crate::Counters::stalls)). The default is 5 seconds. Only with io_uring and libaio.
    pub stall_warning: Duration,
    /// After this time without a completion, a set that is waited for is cancelled, and carried out by ordinary calls.
    /// The default is 60 seconds. Only with io_uring and libaio; ordinary calls and syncs take as long as they take.
    ///
    /// If the kernel does not let go of the set after that, reads that were [begun](crate::Device::begin) fail with
    /// [`Error::Stalled`]. Other sets use memory of the caller, so their calls cannot return: they wait on. After three
    /// cancelled sets within an hour, the disk makes ordinary calls for an hour.
    pub io_timeout: Duration,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self {
            backend: Backend::Auto,
            pio_max: 64,
            direct: true,
            create: true,
            busy_wait: false,
            stall_warning: Duration::from_secs(5),
            io_timeout: Duration::from_secs(60),
        }
    }
}
