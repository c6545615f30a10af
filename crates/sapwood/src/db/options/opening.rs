//! Opens databases as the options say: in a directory or on a volume, waiting for the lock if need be.

use super::Builder;
use crate::db::database::Database;
use crate::error::{Error, Result};
use crate::version::current;
use psync::{Disk, DiskOptions, Volume};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two attempts to take the lock: the first soon, for a process that is just ending; later ones must not cost
/// processor time.
const LOCK_PAUSE_MIN: Duration = Duration::from_millis(1);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(50);

impl Builder {
    /// Opens the database in the directory `path`, or creates it.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// use sapwood::Database;
    ///
    /// let db = Database::builder().busy_wait(false).open(dir.path().join("ships.db"))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Locked`] if another process has it open (see [`Builder::wait_for_lock`]), [`Error::NotADatabase`], [`Error::NewerFormat`],
    /// [`Error::OlderFormat`], [`Error::Missing`], [`Error::Corrupt`], [`Error::BadOption`], and I/O errors.
    ///
    /// [`Error::DiskFull`] after a crash: opening for writing needs room for a copy of the manifest (some hundredth of
    /// the data at most) and a log file. Until there is some, the database can be opened
    /// [read-only](Builder::read_only); nothing is lost.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Database> {
        let path = path.as_ref();
        self.check()?;
        // From the directory on, which may be another one by the time that it is free.
        self.waiting(|| self.open_once(path))
    }

    fn open_once(&self, path: &Path) -> Result<Database> {
        if !path.as_os_str().is_empty() && matches!(path.try_exists(), Ok(false)) && !self.may_create() {
            return Err(Error::Missing { path: path.display().to_string() });
        }
        let create = self.may_create();
        let Self { pio_max, busy_wait, io_timeout, .. } = *self;
        let options = DiskOptions { pio_max, create, busy_wait, io_timeout, ..DiskOptions::default() };
        let disk = Disk::open(path, options);
        let disk = disk.map_err(|error| {
            let error = Error::of_opening(error, &path.display().to_string());
            if path.join(current::FILE).exists() { error } else { error.of_none() }
        })?;
        Database::open_with(Arc::new(disk), self)
    }

    /// Opens the database on any [`Volume`], for example a simulated one.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// use std::sync::Arc;
    ///
    /// let volume = Arc::new(psync::Simulated::new(1)); // in memory; can fail and lose power on order
    /// let db = sapwood::Database::builder().background_threads(0).open_on(volume)?;
    /// db.keyspace("ships")?.insert("fram", "1892")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub fn open_on(self, volume: Arc<dyn Volume>) -> Result<Database> {
        self.check()?;
        self.waiting(|| Database::open_with(Arc::clone(&volume), &self))
    }

    /// Opens with `open`, again and again while another process has the database open, for as long as the options say.
    fn waiting(&self, open: impl Fn() -> Result<Database>) -> Result<Database> {
        let began = Instant::now();
        let mut pause = LOCK_PAUSE_MIN;
        loop {
            let opened = open();
            let left = self.wait_for_lock.saturating_sub(began.elapsed());
            if left.is_zero() || !matches!(opened, Err(Error::Locked { .. })) {
                return opened;
            }
            std::thread::sleep(pause.min(left));
            pause = (2 * pause).min(LOCK_PAUSE_MAX);
        }
    }
}
