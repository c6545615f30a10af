//! What an experiment plays on: a volume together with the clock that times it.
//!
//! Invariant: the clock belongs to the volume. What a simulated drive does is timed by the drive's own clock, which
//! stands still while the host computes; what a disk does is timed by the machine's.

mod disk;
mod ground;
mod ssd;

pub use disk::DiskStage;
pub use ground::Ground;
pub use ssd::SsdStage;

use crate::quantity::{Clock, Lapse};
use psync::{Request, Volume};
use std::time::Duration;

/// See the module.
pub trait Stage {
    /// Which clock times this.
    type Clock: Clock;
    /// What holds the files.
    type Volume: Volume;

    /// Where files are, and bytes are moved.
    fn volume(&self) -> &Self::Volume;

    /// Time since some moment before the stage was first used.
    fn now(&self) -> Duration;

    /// What a drive still does in the background comes to its end, so that the next measurement begins at rest. What a
    /// disk does there nobody can tell.
    fn rest(&self) {}

    /// What the device counts of itself, ever rising, by name.
    fn tally(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Reads and writes at the same time, which [`psync::Device`] does not have.
    ///
    /// # Errors
    /// As the volume's.
    fn mingled(&self, set: &mut [Request<'_>]) -> psync::Result<()>;

    /// Requests in this order from a host that hands over the next as soon as one of `depth` has ended, which
    /// [`psync::Device`] does not have.
    ///
    /// # Errors
    /// [`psync::Error::Invalid`] where there is no such thing; else as the volume's.
    fn stream(&self, requests: &mut [Request<'_>], depth: usize) -> psync::Result<()> {
        let (many, name) = (requests.len(), self.volume().describe());
        Err(psync::Error::Invalid(format!("{name} takes sets, not a stream of {many} at depth {depth}")))
    }

    /// How long `work` takes.
    ///
    /// # Errors
    /// Those of `work`.
    fn time<E>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<Lapse<Self::Clock>, E> {
        let began = self.now();
        work()?;
        Ok(Lapse::from(self.now() - began))
    }
}

impl<S: Stage> Stage for &S {
    type Clock = S::Clock;
    type Volume = S::Volume;

    fn volume(&self) -> &S::Volume {
        (*self).volume()
    }

    fn now(&self) -> Duration {
        (*self).now()
    }

    fn rest(&self) {
        (*self).rest();
    }

    fn tally(&self) -> Vec<(&'static str, u64)> {
        (*self).tally()
    }

    fn mingled(&self, set: &mut [Request<'_>]) -> psync::Result<()> {
        (*self).mingled(set)
    }

    fn stream(&self, requests: &mut [Request<'_>], depth: usize) -> psync::Result<()> {
        (*self).stream(requests, depth)
    }
}
