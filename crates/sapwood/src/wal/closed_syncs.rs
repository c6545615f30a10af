//! Coordinates syncs of log files, which two threads may want at the same time: a durable commit, and a flush. Neither
//! holds the log meanwhile, so that other commits need not wait for it.
//!
//! Invariants:
//! 1. Only one sync runs at a time. An operating system reports a failed write-back only once: of two concurrent
//!    syncs, one would fail and the other would be believed.
//! 2. After a failed sync all further ones fail without asking the device. This includes the sync of a header.
//! 3. What counts as durable is a prefix: everything before the oldest generation with something unsynced, and what of
//!    that was synced. When the newest generation is begun, its first records may be synced before older ones, and do
//!    not count until then. Its header claims no more than what was durable when it was written.

use super::record::HEADER_LEN;
use crate::error::{Error, Result};
use crate::lock_order::{RankedGuard, RankedMutex, rank};
use psync::{FileId, Volume, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// State shared by all threads that sync the older generations of a log.
#[derive(Default)]
pub(super) struct ClosedSyncs {
    state: RankedMutex<rank::LogSyncs, State>,
    made: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Generations below this one are synced or gone.
    below: u64,
    /// Why no further sync can be trusted.
    failure: Option<String>,
}

impl ClosedSyncs {
    /// Makes an older generation durable, if it is not yet. All generations before it must be durable.
    pub fn sync(&self, volume: &dyn Volume, generation: u64, file: FileId) -> Result<()> {
        let mut state = self.usable()?;
        if generation < state.below {
            return Ok(());
        }
        self.done(&mut state, volume.sync(file))?;
        state.below = generation + 1;
        Ok(())
    }

    /// Makes the content of the newest generation durable; if it is to begin, its name too.
    pub fn sync_newest(&self, volume: &dyn Volume, file: FileId, begins: bool) -> Result<()> {
        let mut state = self.usable()?;
        self.done(&mut state, volume.sync(file))?;
        if begins {
            self.done(&mut state, volume.sync_directory())?;
        }
        Ok(())
    }

    /// Makes the written header of the newest generation and its name durable. Leaves out the records behind
    /// the header: they were not promised, there may be many, and usually the file is removed before
    /// they are needed on the device.
    pub fn begin_newest(&self, volume: &dyn Volume, file: FileId, header: &[u8]) -> Result<()> {
        let mut state = self.usable()?;
        self.done(&mut state, volume.sync_part(Write { file, offset: 0, data: header }))?;
        self.done(&mut state, volume.sync_directory())
    }

    fn usable(&self) -> Result<RankedGuard<'_, rank::LogSyncs, State>> {
        let state = self.state.lock();
        match &state.failure {
            Some(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            None => Ok(state),
        }
    }

    fn done(&self, state: &mut State, result: psync::Result<()>) -> Result<()> {
        match result {
            Ok(()) => {
                self.made.fetch_add(1, Relaxed);
                Ok(())
            }
            Err(error) => {
                let error = Error::undecided(error);
                state.failure = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// Number of syncs so far.
    pub fn made(&self) -> u64 {
        self.made.load(Relaxed)
    }
}

/// What of a generation is to become durable.
pub(super) enum What {
    /// All of an older one.
    All,
    /// The header of the newest one, which is to begin.
    Header([u8; HEADER_LEN]),
    /// The newest one up to this length, and its name if it is to begin. More may be written meanwhile.
    Written { len: u64, begins: bool },
}

/// A generation that is not durable yet, for a caller that does not hold the log.
pub(crate) struct Unsynced {
    pub(super) generation: u64,
    pub(super) file: FileId,
    pub(super) what: What,
    pub(super) syncs: Arc<ClosedSyncs>,
    pub(super) volume: Arc<dyn Volume>,
}

impl Unsynced {
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Makes the generation durable, or begins it. All generations before it must be durable. The caller then
    /// tells the log ([`WalWriter::mark_synced`](super::WalWriter::mark_synced),
    /// [`WalWriter::mark_begun`](super::WalWriter::mark_begun), or [`WalWriter::synced`](super::WalWriter::synced)).
    ///
    /// # Errors
    /// As [`WalWriter::sync`](super::WalWriter::sync): it is unknown what is on the disk.
    pub fn sync(&self) -> Result<()> {
        match &self.what {
            What::Header(header) => self.syncs.begin_newest(&*self.volume, self.file, header),
            What::All => self.syncs.sync(&*self.volume, self.generation, self.file),
            What::Written { begins, .. } => self.syncs.sync_newest(&*self.volume, self.file, *begins),
        }
    }
}
