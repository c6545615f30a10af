//! Syncs of the log's files, which two may want at the same time: a durable commit, with the log in its hands, and a flush,
//! without, so that commits need not wait for it.
//!
//! Invariants:
//! 1. There is one at a time, and none of an older generation after one that succeeded. An operating system tells of a write that failed
//!    behind one's back only once: of two syncs at the same time one would fail, and the other would be believed.
//! 2. After one that failed all others fail, and no device is asked. That of a header is one of them.
//! 3. A generation with records is synced after all that are older, and what is said to be durable is a prefix. Only the newest may be begun before: its
//!    header says no more than what was durable when it was written.

use super::record::HEADER_LEN;
use crate::error::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use psync::{FileId, Volume, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What all who sync the older generations of a log share.
#[derive(Default)]
pub(super) struct OldSyncs {
    state: Mutex<State>,
    made: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Generations below this one are synced, or gone.
    below: u64,
    /// Why no sync is to be believed any more.
    failure: Option<String>,
}

impl OldSyncs {
    /// Makes an older generation durable, if it is not. Those before it are durable.
    pub fn sync(&self, volume: &dyn Volume, generation: u64, file: FileId) -> Result<()> {
        let mut state = self.usable()?;
        if generation < state.below {
            return Ok(());
        }
        self.done(&mut state, volume.sync(file))?;
        state.below = generation + 1;
        Ok(())
    }

    /// Makes what the newest generation holds durable, and its name, if it is to begin.
    pub fn sync_newest(&self, volume: &dyn Volume, file: FileId, begins: bool) -> Result<()> {
        let mut state = self.usable()?;
        self.done(&mut state, volume.sync(file))?;
        if begins {
            self.done(&mut state, volume.sync_directory())?;
        }
        Ok(())
    }

    /// Makes the written header of the newest generation durable, and its name. Not the records behind it: nobody was promised them, they may be
    /// many, and mostly the file is removed before anybody wants them on the device.
    pub fn begin_newest(&self, volume: &dyn Volume, file: FileId, header: &[u8]) -> Result<()> {
        let mut state = self.usable()?;
        self.done(&mut state, volume.sync_part(Write { file, offset: 0, data: header }))?;
        self.done(&mut state, volume.sync_directory())
    }

    fn usable(&self) -> Result<MutexGuard<'_, State>> {
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

    /// Syncs so far.
    pub fn made(&self) -> u64 {
        self.made.load(Relaxed)
    }
}

/// A generation that is not durable yet, for a caller that does not hold the log: an older one, or the newest, which is to begin, and of which
/// only the header is to be durable.
pub(crate) struct Unsynced {
    pub(super) generation: u64,
    pub(super) file: FileId,
    /// Of one that is to begin.
    pub(super) header: Option<[u8; HEADER_LEN]>,
    pub(super) syncs: Arc<OldSyncs>,
    pub(super) volume: Arc<dyn Volume>,
}

impl Unsynced {
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Makes it durable, or has it begun. Those before it are to be durable, and the log is to be told
    /// ([`WalWriter::mark_synced`](super::WalWriter::mark_synced), or [`WalWriter::mark_begun`](super::WalWriter::mark_begun)).
    ///
    /// # Errors
    /// As [`WalWriter::sync`](super::WalWriter::sync): nobody knows what is on the disk.
    pub fn sync(&self) -> Result<()> {
        match &self.header {
            Some(header) => self.syncs.begin_newest(&*self.volume, self.file, header),
            None => self.syncs.sync(&*self.volume, self.generation, self.file),
        }
    }
}
