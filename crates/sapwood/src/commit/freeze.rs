//! The end of a queue: it is frozen, and the log goes on in its next generation.
//!
//! Invariants:
//! 1. Only a holder of the log lock replaces the active queue, so each queue has exactly the operations of its part of the log.
//! 2. The manifest knows of a generation before any record in it is promised to be durable, unless there is no space for that.

use super::CommitPipeline;
use crate::commit::log::Log;
use crate::current_state::{Frozen, State};
use crate::error::Result;
use crate::operation::SeqNo;
use crate::opq::Opq;
use crate::publish::PublishContext;
use crate::reserve::Work;
use crate::version::edit::Edit;
use std::sync::Arc;

impl CommitPipeline {
    /// Freezes the active queue and starts a new log generation. It does not sync, since all writers wait for
    /// the log lock. No queue may be frozen already, and no commit may wait for the device. Any error other than a
    /// refusal poisons the engine.
    pub fn freeze(&self, log: &mut Log) -> Result<()> {
        // If the log is empty, an earlier attempt has already rotated it.
        let next = || if log.wal.is_empty() { Ok(()) } else { log.wal.rotate() };
        self.space.with_space_for(Work::NextLog, next, || true).inspect_err(|error| {
            if !error.is_refusal() {
                self.health.poison(error);
            }
        })?;
        self.freeze_queue(log.wal.generation(), log.next_seq - 1);
        Ok(())
    }

    /// Starts a new log generation, durably.
    pub fn seal_log(&self, log: &mut Log) -> Result<()> {
        self.begin_generation(log)?;
        // If the log is empty, an earlier attempt may have rotated it already.
        if !log.wal.is_empty() {
            log.wal.rotate()?;
        }
        self.begin_generation(log)
    }

    /// Begins the newest log generation, and notes it in the manifest if there is space. Recovery finds synced
    /// records even without the note; but then it would not notice if the file were lost.
    pub(super) fn begin_for_promise(&self, log: &mut Log) -> Result<()> {
        match self.space.with_kept_space(|| self.begin_generation(log)) {
            Err(error) if error.is_disk_full() => Ok(()),
            begun => begun,
        }
    }

    /// Begins the newest log generation and notes it in the manifest, before any record in it is promised to be
    /// durable. A flush does so as well; where commits are durable one by one, the first after each freeze does.
    fn begin_generation(&self, log: &mut Log) -> Result<()> {
        let generation = log.wal.generation();
        if self.state.load().version.wal_high == generation {
            return Ok(());
        }
        log.wal.begin().inspect_err(|error| self.health.poison(error))?;
        // With this note, recovery notices if the file is lost.
        self.publisher
            .publish(Edit { wal_high: Some(generation), ..Edit::default() }, PublishContext::default())
    }

    /// Freezes the active queue and installs a new one, without touching the log.
    pub fn freeze_queue(&self, wal_low: u64, last_seq: SeqNo) {
        self.memory.keep_free_list();
        let fresh = Arc::new(Opq::new(&self.memory.free_list, &self.state.load().version.begun_flushes));
        self.state.replace(|state| {
            // Before any thread can flush the queue: from now on no reader may cache what it read from older
            // trees.
            let number = state.number + 1;
            self.pager.cache.records().serve(number);
            let queue = Arc::clone(&state.active);
            let frozen = Frozen::new(queue, wal_low, last_seq);
            State {
                number,
                ingested: state.ingested,
                active: Arc::clone(&fresh),
                frozen: Some(Arc::new(frozen)),
                version: Arc::clone(&state.version),
            }
        });
        self.flush.notify();
    }
}
