//! The log of a frozen queue. It becomes durable before a part of the queue does, and is removed when the whole
//! queue is in the trees. The log generation after it is durably begun before the manifest says that the log
//! starts there.
//!
//! Invariant: after a failed sync, writes are refused, whatever happens to the flush.

use super::CommitPipeline;
use crate::commit::log::Log;
use crate::current_state::State;
use crate::error::{Error, Result};
use crate::operation::SeqNo;
use crate::wal::{DurableEnd, KeptLog, Old};
use std::sync::Arc;

/// The files of the log, as they were at one moment, until dropped.
pub(crate) struct KeptFiles<'c> {
    pub log: KeptLog,
    commits: &'c CommitPipeline,
}

impl Drop for KeptFiles<'_> {
    fn drop(&mut self) {
        if let Some(log) = self.commits.log.lock().as_mut() {
            log.wal.let_go();
        }
        self.commits.shorten_log(self.commits.state.load().version.wal_low);
    }
}

impl CommitPipeline {
    /// Whether commits of the frozen queue are durable one by one: the next such commit would have to wait for the sync
    /// of this queue's log.
    pub(crate) fn has_durable_commits(&self, wal_low: u64) -> bool {
        let has_durable = |log: &Log| log.wal.has_synced_below(wal_low);
        self.log.lock().as_ref().is_some_and(has_durable)
    }

    /// Makes the log of the frozen queue durable.
    pub fn sync_log_below(&self, wal_low: u64) -> Result<()> {
        let unsynced = self.log.lock().as_ref().map(|log| log.wal.unsynced()).unwrap_or_default();
        // A check may have kept older ones, which are closed when it ends.
        let needed = self.state.load().version.wal_low..wal_low;
        for old in unsynced.into_iter().filter(|old| needed.contains(&old.generation())) {
            // Poison, whatever happens to the flush: no later sync would report this failure again.
            old.sync().inspect_err(|error| self.health.poison(error))?;
            if let Some(log) = self.log.lock().as_mut() {
                log.wal.mark_synced(old.generation());
                self.durable_waits.tell_watchers();
            }
        }
        if let Some(frozen) = &self.state.load().frozen
            && frozen.wal_low == wal_low
        {
            self.followers.note_durable_part(frozen.last_seq);
        }
        Ok(())
    }

    /// Durably begins the generation after the frozen queue's log, before the manifest says that the log starts
    /// there. The thread that froze the queue only wrote the header, because all writers waited for it.
    pub(crate) fn begin_log(&self, generation: u64) -> Result<()> {
        let guard = self.log.lock();
        let Some(log) = guard.as_ref() else {
            // During replay there is no log yet, and every noted generation has begun. But if the database is
            // being closed, the log has been taken away, and this cannot be known.
            let is_begun = self.state.load().version.wal_high >= generation;
            return if is_begun { Ok(()) } else { Err(Error::Closed) };
        };
        let unsynced_header = log.wal.unsynced_header(generation);
        drop(guard);
        let Some(unsynced_header) = unsynced_header else { return Ok(()) };
        unsynced_header.sync().inspect_err(|error| self.health.poison(error))?;
        if let Some(log) = self.log.lock().as_mut() {
            log.wal.mark_begun(generation);
        }
        Ok(())
    }

    /// Keeps the files of the log, so that they can be read back. `None` if the database is read-only or closed.
    pub(crate) fn keep_log(&self) -> Option<KeptFiles<'_>> {
        let log = self.log.lock().as_mut()?.wal.keep(self.state.load().version.wal_low);
        Some(KeptFiles { log, commits: self })
    }

    /// What a reader sees that begins now, and the log, which has all of it that is not in the trees. No commit is under way at that
    /// moment. `None` in place of the log if the database is read-only.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: commits without durability are not in the log, and there is no space for them. As for any writer.
    pub(crate) fn keep_view(&self) -> Result<(Arc<State>, SeqNo, Option<KeptFiles<'_>>)> {
        if self.health.is_read_only() {
            self.health.check_process()?;
            let (state, seq) = self.state.view();
            return Ok((state, seq, None));
        }
        self.health.check_writable()?;
        let mut guard = self.log_at_rest();
        let log = guard.as_mut().ok_or(Error::Closed)?;
        self.space.with_kept_space(|| log.wal.write()).inspect_err(|error| {
            if !error.is_refusal() {
                self.health.poison(error);
            }
        })?;
        let (state, seq) = self.state.view();
        // After the view: what it needs of the log is not removed without the log's lock.
        let kept = KeptFiles { log: log.wal.keep(state.version.wal_low), commits: self };
        Ok((state, seq, Some(kept)))
    }

    /// What a reader sees that begins now, all of which is durable, and up to where that is. No commit is under way at that
    /// moment, so it is what the log has up to there, and no more.
    pub(crate) fn durable_view(&self) -> Result<(Arc<State>, SeqNo, DurableEnd)> {
        let mut guard = self.log_at_rest();
        let end = self.make_log_durable(&mut guard)?.wal.durable_end();
        let (state, seq) = self.state.view();
        Ok((state, seq, end))
    }

    /// Makes all commits so far durable, and returns the number of the last one's last operation. Waits for the device alone: a thread
    /// that holds locks must not wait for a leader, who may wait for the turn of a thread that wants these locks.
    pub(crate) fn durable_seq(&self) -> Result<SeqNo> {
        let mut guard = self.log_at_rest();
        let seq = self.make_log_durable(&mut guard)?.next_seq - 1;
        drop(guard);
        // There may have been nothing to sync.
        self.volume.verify().map_err(Error::from).inspect_err(|error| self.health.poison(error))?;
        Ok(seq)
    }

    /// Makes the log durable, which no commit waits for the device with.
    fn make_log_durable<'l>(&self, log: &'l mut Option<Log>) -> Result<&'l mut Log> {
        self.health.check_writable()?;
        let log = log.as_mut().ok_or(Error::Closed)?;
        self.begin_for_promise(log)?;
        self.space.with_kept_space(|| log.wal.sync()).inspect_err(|error| {
            if !error.is_refusal() {
                self.health.poison(error);
            }
        })?;
        self.note_durable(log.next_seq - 1);
        Ok(log)
    }

    /// How far the log is durable.
    pub(crate) fn durable_end(&self) -> Result<DurableEnd> {
        self.log.lock().as_ref().map(|log| log.wal.durable_end()).ok_or(Error::Closed)
    }

    /// Keeps log generations for the change feed instead of removing them.
    fn keep(&self, old: Old, bytes_max: u64) -> (Vec<u64>, Result<()>) {
        let old = old.close(&*self.volume);
        match self.volume.list() {
            Ok(files) => {
                let is_old = |generation| old.contains(&generation);
                self.space.kept_log.keep(&*self.volume, &files, is_old, bytes_max);
                (Vec::new(), Ok(()))
            }
            // They are kept with the next ones.
            Err(error) => (old.into_iter().collect(), Err(error.into())),
        }
    }

    /// Removes log generations that are no longer needed, or keeps them for the change feed.
    pub(crate) fn shorten_log(&self, low: u64) {
        let Some(old) = self.log.lock().as_mut().map(|log| log.wal.take_below(low)) else { return };
        // Without the log lock: the files may have many unwritten pages, so removing them can take long.
        let kept_max = self.state.load().version.kept_log_max();
        let (left, result) = if kept_max == 0 { old.remove(&*self.volume) } else { self.keep(old, kept_max) };
        if let Some(log) = self.log.lock().as_mut() {
            log.wal.put_back(left);
            self.memory.note_log(log.wal.unsynced_bytes());
            self.space.reserve.note_log(log.wal.longest());
            self.space.reserve.note_flushed(low);
        }
        self.memory.try_balance_memory();
        if let Err(error) = result {
            tracing::warn!(%error, "an old part of the log was not removed; the next open does it");
        }
    }
}
