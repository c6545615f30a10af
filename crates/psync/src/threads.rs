//! The portable backend: a pool of threads, each of which does one positioned read or write at a time.

use crate::lock::Mutex;
use crate::transfer::{Mover, Transfer};
use std::io;
use std::panic::resume_unwind;
use std::thread::Builder;

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

impl Threads {
    /// Returns, or unwinds, only when every transfer has ended.
    fn run_all(&self, set: &mut [Transfer<'_>]) {
        self.pool.in_place_scope(|scope| {
            for transfer in set {
                scope.spawn(move |_| transfer.run_alone());
            }
        });
    }
}

impl Mover for Threads {
    fn run(&self, set: &mut [Transfer<'_>]) {
        if let [one] = set {
            return one.run_alone();
        }
        if rayon_core::current_thread_index().is_none() {
            return self.run_all(set);
        }
        // A worker of the caller's own pool does other jobs of that pool while it waits in a scope. Such a job may
        // wait for a lock that our caller holds: so another thread waits in the scope.
        let set = Mutex::new(set);
        std::thread::scope(|scope| {
            match Builder::new().spawn_scoped(scope, || self.run_all(&mut set.lock())) {
                Ok(waits) => waits.join().unwrap_or_else(|panic| resume_unwind(panic)),
                Err(_) => set.lock().iter_mut().for_each(|transfer| transfer.run_alone()),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::Memory;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// It may hold a lock that the other job waits for.
    #[test]
    fn a_caller_that_is_a_worker_of_a_pool_does_no_other_job_meanwhile() {
        let file = tempfile::tempfile().unwrap();
        let data = vec![7; 1 << 20];
        let mut set: Vec<_> = (0..64)
            .map(|index| Transfer {
                file: &file,
                offset: index << 20,
                memory: Memory::From(&data),
                outcome: Ok(0),
            })
            .collect();
        let (threads, other) = (Threads::new(4).unwrap(), AtomicBool::new(false));
        let pool = rayon_core::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        pool.scope(|scope| {
            scope.spawn(|_| other.store(true, Relaxed));
            threads.run(&mut set);
            assert!(!other.load(Relaxed), "it did another job");
        });
        assert!(set.iter().all(|transfer| matches!(transfer.outcome, Ok(len) if len == data.len())));
    }
}
