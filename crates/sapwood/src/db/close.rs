//! Closes a database: all commits become durable, and the end of the log and of the manifest is marked.
//!
//! Invariant: without the mark, because there was no space or time for it, the database is as after a crash: complete.

use crate::commit::log::Log;
use crate::db::engine::Engine;
use crate::error::{Error, Result};
use std::time::Duration;

impl Engine {
    /// Makes all commits durable, and marks the end of the log, so that every missing byte of it is noticed
    /// from now on.
    pub fn close(&self) -> Result<()> {
        let result = self.close_log();
        *self.commits.log_at_rest() = None;
        self.writer().close();
        self.publisher.close();
        self.followers.close();
        self.space.reserve.close();
        self.pager.reader.close();
        self.health.poison(&Error::Closed);
        self.memory.give_back_free_list(Duration::ZERO);
        result
    }

    fn close_log(&self) -> Result<()> {
        if self.health.is_read_only() || !self.commits.has_log() {
            return Ok(());
        }
        self.commits.sync()?;
        let mut guard = self.commits.log_at_rest();
        let Some(mut log) = guard.take() else { return Ok(()) };
        // Another thread may have committed since; from here on its commits are refused.
        self.space.with_kept_space(|| log.wal.sync_for_rest())?;
        self.commits.note_durable(log.next_seq - 1);
        // The header of the next generation says how far this one reaches, and CURRENT how far the manifest
        // does. If that is refused, both are as after a crash: complete, but without the mark.
        let sealed = match self.seal(&mut log) {
            Err(error) if !error.is_refusal() => Err(error),
            _ => Ok(()),
        };
        self.space.restore_reserve();
        self.space.reserve.shrink();
        sealed
    }

    fn seal(&self, log: &mut Log) -> Result<()> {
        if !log.wal.is_empty() {
            self.commits.seal_log(log)?;
        } else {
            // What has expired stays so, whatever the clock says at the next opening.
            self.background.cleanser.collector.expirer.tell_time()?;
        }
        self.publisher.seal()
    }
}
