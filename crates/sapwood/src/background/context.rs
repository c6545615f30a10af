//! What all background work needs: the parts of the database that it works on, and how it treats errors.

use crate::background::unreadable::Unreadable;
use crate::error::{Error, Result};
use crate::flow::memory::Need;
use crate::operation::KeyspaceId;
use crate::parts::Parts;
use crate::tree_writer::{TreeWriter, WriterAtWork};
use std::ops::Deref;

/// See the module documentation.
pub(crate) struct WorkContext {
    pub parts: Parts,
    pub writer: TreeWriter,
    pub unreadable_trees: Unreadable<KeyspaceId>,
}

impl Deref for WorkContext {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl WorkContext {
    /// Handles a failure of background work. On a full disk, gives back all space that can be spared. A node that could
    /// not be read, and a moment without descriptors, leave nothing unknown: the work is given up. Any other error poisons the engine.
    pub fn yield_to(&self, error: &Error) {
        if error.is_disk_full() {
            self.space.reclaim_space();
        } else if error.is_of_reading() || error.is_refusal() {
            tracing::error!(%error, path = %self.health.path(), "work on the trees was given up");
        } else {
            self.health.poison(error);
        }
    }

    /// Runs `work`, which is refused if writes are. If it fails, other than for a full disk or in reading, the engine
    /// is poisoned.
    pub fn or_poison<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.health.check_writable().and_then(|()| work()).inspect_err(|error| self.yield_to(error))
    }

    /// The writer, for a portion of what a caller has asked for. The thread that closes the database does not wait for the rest.
    ///
    /// # Errors
    /// [`Error::Closed`] once the database is being closed.
    pub fn writer_unless_closing(&self) -> Result<WriterAtWork<'_>> {
        if self.flush.stops() { Err(Error::Closed) } else { self.writer.lock(Need::default()) }
    }

    /// Whether a queue waits to be flushed, or the database is being closed.
    pub fn is_wanted(&self) -> bool {
        self.state.load().frozen.is_some() || self.flush.stops()
    }
}
