//! Closes a database: all commits become durable, and the end of the log and of the manifest is marked.
//!
//! Invariants:
//! 1. Without the mark, because there was no space or time for it, the database is as after a crash: complete.
//! 2. The end is marked when nothing is being written any more: the mark also says that no sync of nodes has failed, after which free places
//!    must not be written through the page cache again (ADR 12). And the log goes behind the last flush, which has to know that its
//!    queue's log is durable.

use crate::commit::log::Log;
use crate::db::engine::Engine;
use crate::error::{Error, Result};
use crate::reserve::Work;
use std::time::Duration;

impl Engine {
    /// Makes all commits durable, and marks the end of the log, so that every missing byte of it is noticed
    /// from now on.
    pub fn close(&self) -> Result<()> {
        // The queue of commits must not wait with the writer held: one of those that are waiting may have to flush first.
        let synced = self.sync_commits();
        let result = self.writer().close_behind(|| {
            let result = synced.and_then(|()| self.close_log());
            *self.commits.log_at_rest() = None;
            // Those that wait for a turn, perhaps of this thread, find the log gone.
            self.commits.queues.blocker_ended.notify_all();
            result
        });
        self.publisher.close();
        self.followers.close();
        self.pager.reader.close();
        // Its last user is gone, also while handles are held: the volume may be another database's from now on.
        self.close_files();
        self.health.poison(&Error::Closed);
        self.memory.give_back_free_list(Duration::ZERO);
        result
    }

    /// Closes what is open as long as the database is. Calling it again does nothing.
    pub(super) fn close_files(&self) {
        self.space.reserve.close();
        // What counts was synced.
        let _ = self.volume.close(self.data);
    }

    fn has_log(&self) -> bool {
        !self.health.is_read_only() && self.commits.has_log()
    }

    fn sync_commits(&self) -> Result<()> {
        match if self.has_log() { self.commits.sync() } else { Ok(()) } {
            // Perhaps only that of a commit which shared the sync: it is tried once more below.
            Err(error) if error.is_refusal() => Ok(()),
            synced => synced,
        }
    }

    fn close_log(&self) -> Result<()> {
        if !self.has_log() {
            return Ok(());
        }
        // Whoever had the writer until now may have found that a sync had failed.
        self.health.check_writable()?;
        let mut guard = self.commits.log_at_rest();
        let Some(mut log) = guard.take() else { return Ok(()) };
        // Another thread may have committed since; from here on its commits are refused. As when a queue is frozen, the reserve has space for what waits in memory.
        self.space.with_space_for(Work::NextLog, || log.wal.sync_for_rest(), || true)?;
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

#[cfg(test)]
mod tests {
    use crate::flow::memory::Need;
    use crate::version::current::Current;
    use crate::{Database, Durability, Error};
    use psync::Simulated;
    use std::sync::Arc;
    use std::time::Duration;

    /// What waits in memory was thrown away, though a flush would have had the reserve for it.
    #[test]
    fn commits_without_durability_survive_closing_on_a_full_disk() {
        for threads in [0, 1] {
            let volume = Simulated::new(1);
            let open = |volume: &Simulated| {
                let db = Database::builder().memory(4 << 20).background_threads(threads);
                db.open_on(Arc::new(volume.clone())).unwrap()
            };
            let db = open(&volume);
            let keyspace = db.keyspace("main").unwrap();
            let put = |number: u32, len: usize, durability| {
                let mut batch = db.batch();
                batch.insert(&keyspace, number.to_be_bytes(), vec![7; len]);
                batch.durability(durability).commit()
            };
            put(0, 100, Durability::Immediate).unwrap();
            volume.set_capacity(volume.used());
            // Until there is no room in the log's file either.
            let durable = (1..).find(|number| put(*number, 20_000, Durability::Immediate).is_err()).unwrap();
            let waiting = durable..durable + 3;
            waiting.clone().for_each(|number| put(number, 100, Durability::None).unwrap());
            volume.set_capacity(volume.used());
            // As if they had come behind the first sync of closing, or that had been refused.
            db.handle.engine.close_log().unwrap();
            drop(keyspace);
            db.close().unwrap();
            volume.set_capacity(u64::MAX);
            let keyspace = open(&volume.crash()).keyspace("main").unwrap();
            for number in 0..waiting.end {
                assert!(keyspace.contains(number.to_be_bytes()).unwrap(), "{number} with {threads} threads");
            }
        }
    }

    /// Another thread's sync of nodes failed after the end had been marked: the next writer went on as if all were durable.
    #[test]
    fn the_end_is_marked_when_the_last_sync_is_known() {
        for fails in [false, true] {
            let volume = Simulated::new(1);
            let db = Database::builder().memory(4 << 20).background_threads(0);
            let db = db.open_on(Arc::new(volume.clone())).unwrap();
            db.keyspace("main").unwrap().insert("k", "v").unwrap();
            let engine = &db.handle.engine;
            let guard = engine.writer().lock(Need::default()).unwrap();
            std::thread::scope(|scope| {
                let closing = scope.spawn(|| db.clone().close());
                std::thread::sleep(Duration::from_millis(100));
                assert!(engine.commits.has_log() && !closing.is_finished());
                if fails {
                    engine.health.poison(&Error::corrupt("data", 0, "a sync that failed", "", ""));
                }
                drop(guard);
                assert_eq!(closing.join().unwrap().is_err(), fails);
            });
            let is_marked = Current::read(&volume).unwrap().manifest_len > 0;
            assert_eq!(is_marked, !fails);
        }
    }
}
