//! The portable backend: a pool of threads, each of which does one positioned read or write at a time.

use crate::transfer::{Mover, Transfer};
use std::io;

pub(crate) struct Threads {
    pool: rayon_core::ThreadPool,
}

/// More threads than this gain nothing on any device that we measured.
const THREADS_MAX: usize = 64;

impl Threads {
    pub fn new(pio_max: usize) -> io::Result<Self> {
        let pool = rayon_core::ThreadPoolBuilder::new()
            .num_threads(pio_max.clamp(1, THREADS_MAX))
            .thread_name(|index| format!("psync-{index}"))
            .build()
            .map_err(io::Error::other)?;
        Ok(Self { pool })
    }
}

impl Mover for Threads {
    fn run(&self, set: &mut [Transfer<'_>]) {
        if let [one] = set {
            return one.run_alone();
        }
        // A scope returns, or unwinds, only when every transfer has ended.
        self.pool.in_place_scope(|scope| {
            for transfer in set {
                scope.spawn(move |_| transfer.run_alone());
            }
        });
    }
}
