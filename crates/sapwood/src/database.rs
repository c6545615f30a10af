//! The database as users hold it. All work is the engine's; this opens it, keeps its background thread, and closes it.

use crate::batch::Batch;
use crate::check::Checked;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::keyspace::Keyspace;
use crate::operation::KeyspaceId;
use crate::options::Builder;
use crate::publish::With;
use crate::recovery;
use crate::snapshot::Snapshot;
use crate::stats::Stats;
use crate::store::edit::{Edit, NAME_LEN_MAX};
use crate::store::version::Tree;
use parking_lot::Mutex;
use psync::{Lock, Volume};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// An open database: a directory with any number of [keyspaces](Keyspace). Cheap to clone, and usable from any thread;
/// the database is closed when the last clone, keyspace, snapshot and iterator is gone. After a `fork` it is the parent's: the child must
/// neither use nor drop what it inherited.
#[derive(Clone)]
pub struct Database {
    pub(crate) handle: Arc<Handle>,
}

/// What every clone shares.
pub(crate) struct Handle {
    pub engine: Arc<Engine>,
    thread: Mutex<Option<JoinHandle<()>>>,
    lock: Mutex<Option<Lock>>,
    /// One keyspace is created at a time.
    creation: Mutex<()>,
}

impl Database {
    /// Opens the database in the directory `path`, with the default options, and creates it if there is none.
    ///
    /// # Errors
    /// See [`Builder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::builder().open(path)
    }

    /// For other than the default options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn open_with(volume: Arc<dyn Volume>, options: &Builder) -> Result<Self> {
        let (engine, lock) = recovery::open(volume, options)?;
        let engine = Arc::new(engine);
        let handle = Arc::new(Handle {
            engine,
            thread: Mutex::new(None),
            lock: Mutex::new(Some(lock)),
            creation: Mutex::new(()),
        });
        if handle.engine.flush.in_background() && !handle.engine.read_only {
            let engine = Arc::clone(&handle.engine);
            let thread = std::thread::Builder::new()
                .name("sapwood-flush".into())
                .spawn(move || engine.flush_loop())
                .map_err(|error| psync::Error::from_io("start", "the flushing thread", None, error))?;
            *handle.thread.lock() = Some(thread);
        }
        Ok(Self { handle })
    }

    /// The keyspace `name`, which is created if there is none: 1 to 255 bytes, no control characters.
    ///
    /// # Errors
    /// [`Error::BadName`]; [`Error::NoKeyspace`] if it would have to be created in a database opened for reading only;
    /// I/O errors.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        let _one_at_a_time = self.handle.creation.lock();
        let engine = &self.handle.engine;
        if name.is_empty() || name.len() > NAME_LEN_MAX || name.chars().any(char::is_control) {
            let reason = "names have 1 to 255 bytes and no control characters";
            return Err(Error::BadName { name: name.into(), reason });
        }
        let state = engine.state.load_full();
        if let Some((id, tree)) = state.version.trees.iter().find(|(_, tree)| *tree.name == *name) {
            return Ok(Keyspace::new(Arc::clone(&self.handle), *id, Arc::clone(&tree.name)));
        }
        if engine.read_only {
            return Err(Error::NoKeyspace { name: name.into(), existing: self.keyspaces().join(", ") });
        }
        let id = KeyspaceId(state.version.trees.keys().next_back().map_or(1, |last| last.0 + 1));
        let tree = Tree { name: name.into(), root: None, height: 0, len: 0 };
        let keyspace = Keyspace::new(Arc::clone(&self.handle), id, Arc::clone(&tree.name));
        engine.publish(Edit { trees: vec![(id, tree)], ..Edit::default() }, With::default())?;
        Ok(keyspace)
    }

    /// Names of all keyspaces, in order.
    pub fn keyspaces(&self) -> Vec<String> {
        let state = self.handle.engine.state.load_full();
        let mut names: Vec<_> = state.version.trees.values().map(|tree| tree.name.to_string()).collect();
        names.sort_unstable();
        names
    }

    /// An empty batch.
    pub fn batch(&self) -> Batch {
        Batch::new(Arc::clone(&self.handle))
    }

    /// The database as it is now, for reading while others write.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(Arc::clone(&self.handle))
    }

    /// Takes everything that was committed to the trees, and returns when it is there, durably. Not needed for
    /// durability ([`sync`](Self::sync) is enough); it makes the next open faster, and frees the log's space.
    ///
    /// # Errors
    /// [`Error::DiskFull`] (nothing is lost), [`Error::ReadOnly`], [`Error::Poisoned`], I/O errors.
    pub fn flush(&self) -> Result<()> {
        self.handle.engine.flush_all()
    }

    /// Flushes, and brings everything that log areas hold to the leaves: good before a time of much reading, after a great
    /// removal, or before the database is archived. Rewrites the leaves of every block that has a log area, so it is not for
    /// every day. Others may read and write meanwhile.
    ///
    /// # Errors
    /// As [`Database::flush`].
    pub fn compact(&self) -> Result<()> {
        self.handle.engine.flush_all()?;
        self.handle.engine.cleanse_all()
    }

    /// Makes all commits so far durable, whatever durability they had.
    ///
    /// # Errors
    /// As [`Database::flush`].
    pub fn sync(&self) -> Result<()> {
        self.handle.engine.sync()
    }

    /// What the database has done, and what it takes.
    pub fn stats(&self) -> Stats {
        self.handle.engine.stats()
    }

    /// Reads everything from the device and verifies it. Can run while others read and write.
    ///
    /// # Errors
    /// [`Error::Damaged`] with everything that is wrong; I/O errors.
    pub fn check(&self) -> Result<Checked> {
        self.handle.engine.check()
    }

    /// Closes the database for all clones, after making all commits durable, and tells what went wrong, which a drop
    /// cannot.
    ///
    /// # Errors
    /// As [`Database::sync`].
    pub fn close(self) -> Result<()> {
        self.handle.close()
    }
}

impl Handle {
    fn close(&self) -> Result<()> {
        self.engine.flush.stop();
        if let Some(thread) = self.thread.lock().take() {
            // A panic of that thread was reported when it happened; what it left undone is in the log.
            let _ = thread.join();
        }
        // Space has time, commits have not. What is wrong with the log closing tells.
        let _ = self.engine.sync();
        // All that can be spared, since nobody looks for it later; whoever closes has been the last.
        self.engine.reclaim(self.engine.slots_to_keep(true));
        let result = self.engine.close();
        *self.lock.lock() = None;
        result
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, path = %self.engine.path, "closing the database failed; call close() to handle this");
        }
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Database({})", self.handle.engine.path)
    }
}
