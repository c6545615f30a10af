//! A simulated SSD as a stage, timed by its own clock.

use super::Stage;
use crate::quantity::Simulated;
use flash::Ssd;
use psync::{Read, Request};
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub struct SsdStage {
    ssd: Ssd,
}

/// Deepest queue that any experiment asks for.
const PIO_MAX: usize = 256;

impl SsdStage {
    /// Plays on this drive.
    pub fn new(ssd: Ssd) -> Self {
        Self { ssd: ssd.with_pio_max(PIO_MAX) }
    }
}

impl Stage for SsdStage {
    type Clock = Simulated;
    type Volume = Ssd;

    fn volume(&self) -> &Ssd {
        &self.ssd
    }

    fn now(&self) -> Duration {
        self.ssd.now()
    }

    fn rest(&self) {
        self.ssd.drain();
    }

    fn tally(&self) -> Vec<(&'static str, u64)> {
        let counters = self.ssd.flash_counters();
        vec![
            ("host_reads", counters.host_reads),
            ("internal_reads", counters.internal_reads),
            ("host_programs", counters.host_programs),
            ("internal_programs", counters.internal_programs),
            ("erases", counters.erases),
        ]
    }

    fn mingled(&self, set: &mut [Request<'_>]) -> psync::Result<()> {
        let depth = set.len();
        self.stream(set, depth)
    }

    fn stream(&self, requests: &mut [Request<'_>], depth: usize) -> psync::Result<()> {
        let mut requests: Vec<_> = requests
            .iter_mut()
            .map(|request| match request {
                Request::Read(Read { file, offset, buffer }) => {
                    flash::Request::Read(Read { file: *file, offset: *offset, buffer })
                }
                Request::Write(write) => flash::Request::Write(*write),
            })
            .collect();
        self.ssd.stream(&mut requests, depth)
    }
}
