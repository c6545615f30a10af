//! What all clones of a database, its keyspaces and its iterators hold together: opening, background work, closing.
//!
//! Invariant: the lock on the directory is given up last, when nothing of the database is written any more.

use crate::background::removals::waits_for_space;
use crate::db::create_keyspaces::{Creation, Named};
use crate::db::engine::Engine;
use crate::db::follow::{self, Follower};
use crate::db::large_values::stored::LargeIds;
use crate::db::open;
use crate::db::options::Builder;
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::health::quietly;
use crate::iter::Host;
use crate::lock_order::{RankedMutex, rank};
use crate::pool::Task;
use crate::version::Version;
use psync::{Lock, Volume};
use std::sync::Arc;

/// State shared by all clones.
pub(crate) struct Handle {
    pub engine: Arc<Engine>,
    /// The background work, until the database is closed.
    background: RankedMutex<rank::Background, Option<Task<()>>>,
    lock: RankedMutex<rank::Close, Option<Lock>>,
    /// If it follows another process.
    pub(super) follower: Option<Arc<Follower>>,
    /// Of commits that are not told another.
    pub durability: Durability,
    pub(super) creation: Creation,
    pub(super) large_ids: LargeIds,
}

/// The system gives no thread.
fn no_thread() -> Error {
    let refused =
        std::io::Error::other("the system provides no thread; with background_threads(0) none is needed");
    psync::Error::from_io("start", "the background work", None, refused).into()
}

impl Handle {
    /// Opens a database, and starts its background work.
    pub fn open(volume: Arc<dyn Volume>, options: &Builder) -> Result<Arc<Self>> {
        let (engine, lock, follower) = if options.is_follower() {
            let (engine, follower) = follow::open(volume, options)?;
            (engine, None, Some(follower))
        } else {
            let (engine, lock) = open::open(volume, options)?;
            (engine, Some(lock), None)
        };
        let handle = Arc::new(Self {
            engine,
            background: RankedMutex::new(None),
            lock: RankedMutex::new(lock),
            follower,
            durability: options.default_durability(),
            creation: Creation::new(options.default_compression()),
            large_ids: LargeIds::new()?,
        });
        if let Some(follower) = handle.follower.clone()
            && handle.engine.pool.has_threads()
        {
            let task = handle.engine.pool.submit_resident("the follower's renewals", move || {
                follower.renew();
                Ok(())
            });
            *handle.background.lock() = Some(task.ok_or_else(no_thread)?);
        }
        if handle.engine.pool.has_threads() && !handle.engine.health.is_read_only() {
            let engine = Arc::clone(&handle.engine);
            let task = handle.engine.pool.submit_resident("the background work", move || {
                engine.background.run();
                Ok(())
            });
            *handle.background.lock() = Some(task.ok_or_else(no_thread)?);
        }
        Ok(handle)
    }

    /// Of an engine that only reads, without a lock: the files are its opener's.
    pub(super) fn of(engine: Arc<Engine>) -> Result<Self> {
        Ok(Self {
            engine,
            background: RankedMutex::new(None),
            lock: RankedMutex::new(None),
            follower: None,
            durability: Durability::default(),
            creation: Creation::default(),
            large_ids: LargeIds::new()?,
        })
    }

    /// Keyspaces that `find` finds, and a version that has all of them: it is asked again if one was dropped or replaced meanwhile.
    pub(super) fn find_there(
        &self,
        find: impl Fn() -> Result<Vec<Named>>,
    ) -> Result<(Arc<Version>, Vec<Named>)> {
        let mut gone = None;
        loop {
            let named = find()?;
            let version = self.engine.state.version();
            let Some((id, name)) = named.iter().find(|(id, _)| !version.trees.contains(id)) else {
                return Ok((version, named));
            };
            if gone.replace(*id) == Some(*id) {
                return Err(Error::KeyspaceDropped { name: name.to_string() });
            }
            // Until whoever drops it has forgotten its name too.
            drop(self.creation.catalog.lock());
        }
    }

    /// Closes the database for all clones.
    pub fn close(&self) -> Result<()> {
        self.engine.health.check_process()?;
        // Held until the end: of two that close at the same time, the second must not let others open the
        // database while the first still gives space back that they would take.
        let mut lock = match self.lock.try_lock() {
            Some(lock) => lock,
            // A callback, say: whoever is closing it waits for this thread.
            None if self.engine.is_own_thread() => return Ok(()),
            None => self.lock.lock(),
        };
        self.engine.flush.stop();
        if let Some(follower) = &self.follower {
            follower.stop();
        }
        if let Some(task) = self.background.lock().take() {
            // A panic of the background work was reported when it happened. The log holds whatever it left undone.
            let _ = task.wait();
        }
        // Commits must be durable; giving back space can wait. `engine.close()` below returns the log's error,
        // if any.
        let synced = self.engine.commits.sync();
        // If this fails, the log has it all the same; but for what waits in memory, for which there was no space: a flush has the reserve.
        if self.engine.health.check_writable().is_ok()
            && (synced.is_err_and(|error| error.is_disk_full())
                || waits_for_space(&self.engine.state, &self.engine.pager))
        {
            let _ = self.engine.flush_inline();
        }
        // As far as there is space for that; what is left goes on after opening.
        if self.engine.health.check_writable().is_ok() {
            let _ = self.engine.background.ctx.take_dropped_apart();
        }
        // Give back all space that can be spared: it does not happen later.
        self.engine.space.reclaim(self.engine.space.granules_to_keep(true));
        self.engine.space.cut_data();
        let result = self.engine.close();
        if let Some(follower) = &self.follower {
            follower.close();
        }
        self.engine.pool.close();
        #[cfg(feature = "async")]
        self.engine.tasks.close();
        *lock = None;
        result
    }
}

impl Host for Handle {
    fn memory(&self) -> u64 {
        self.engine.shares.memory
    }

    fn note_iterators(&self) {
        self.engine.memory.note_iterators();
    }

    #[cfg(feature = "async")]
    fn readers(&self) -> Result<&crate::pool::Pool> {
        self.engine.health.check_process().map(|()| &*self.engine.tasks.readers)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.engine.health.is_forked() {
            // Threads, rings and locks are the parent's.
            std::mem::forget((
                Arc::clone(&self.engine),
                self.background.get_mut().take(),
                self.lock.get_mut().take(),
            ));
            return;
        }
        if let Err(error) = self.close() {
            let path = self.engine.health.path();
            quietly(
                || tracing::error!(%error, %path, "closing the database failed; call close() to handle this"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::storage::slots::Extent;
    use crate::{Database, Error};
    use psync::{FileId, PassThrough, Simulated, Volume};
    use std::ops::Range;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    /// Takes its time to give space back.
    struct Slow {
        inner: Simulated,
        is_closing: Arc<AtomicBool>,
        releasing: Arc<AtomicUsize>,
    }

    impl PassThrough for Slow {
        fn inner(&self) -> &dyn Volume {
            &self.inner
        }

        fn release(&self, file: FileId, range: Range<u64>) -> psync::Result<()> {
            self.releasing.fetch_add(1, SeqCst);
            if self.is_closing.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(100));
            }
            let released = self.inner().release(file, range);
            self.releasing.fetch_sub(1, SeqCst);
            released
        }
    }

    /// Others may have written there.
    #[test]
    fn when_it_is_closed_nothing_is_read_any_more() {
        let builder = Database::builder().memory(4 << 20).background_threads(0);
        let db = builder.open_on(Arc::new(Simulated::new(1))).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..20_000u32).map(|number| (number.to_be_bytes(), [0; 90]))).unwrap();
        let (snapshot, mut walk) = (db.snapshot(), keyspace.iter());
        walk.next().unwrap().unwrap();
        db.close().unwrap();
        let key = 10_000u32.to_be_bytes();
        assert!(matches!(keyspace.get(key), Err(Error::Closed)));
        assert!(matches!(snapshot.multi_get(&keyspace, [key]), Err(Error::Closed)));
        assert!(matches!(walk.find(Result::is_err), Some(Err(Error::Closed))));
    }

    /// Another process could open the database then, and write to what the first gives back.
    #[test]
    fn it_is_not_closed_while_another_thread_still_gives_space_back() {
        let (is_closing, releasing) = (Arc::default(), Arc::default());
        let inner = Simulated::new(1);
        let volume = Slow { inner, is_closing: Arc::clone(&is_closing), releasing: Arc::clone(&releasing) };
        let builder = Database::builder().memory(4 << 20).segment_span(1 << 20).background_threads(0);
        let db = builder.open_on(Arc::new(volume)).unwrap();
        let keyspace = db.keyspace("main").unwrap();
        for round in 0..3u8 {
            for number in 0..20_000u32 {
                keyspace.insert(number.to_be_bytes(), [round; 100]).unwrap();
            }
            db.compact().unwrap();
        }
        db.handle.engine.space.slots.still_dirty(vec![Extent { start: 10_000, len: 8 }]);
        drop(keyspace);
        is_closing.store(true, SeqCst);
        let closers: Vec<_> = (0..2)
            .map(|_| {
                let (db, releasing) = (db.clone(), Arc::clone(&releasing));
                std::thread::spawn(move || {
                    let _ = db.close();
                    releasing.load(SeqCst)
                })
            })
            .collect();
        let releasing: Vec<_> = closers.into_iter().map(|closer| closer.join().unwrap()).collect();
        assert_eq!(releasing, [0, 0]);
    }
}
