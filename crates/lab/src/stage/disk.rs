//! A scratch directory on a real disk as a stage, timed by the wall clock.
//!
//! Invariants:
//! 1. One laboratory at a time measures in a directory: the scratch directory is locked.
//! 2. The scratch directory is gone when the stage is dropped; what an earlier run left there, which did not come to
//!    that, is removed at the beginning.

use super::Stage;
use crate::quantity::Wall;
use psync::{Backend, Disk, DiskOptions, Error, Lock, LockKind, Request, Volume};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub struct DiskStage {
    disk: Disk,
    path: PathBuf,
    began: Instant,
    _lock: Lock,
}

/// Name of the directory that measurements happen in.
const SCRATCH: &str = "sapwood-lab.scratch";

/// Deepest queue that any experiment asks for.
const PIO_MAX: usize = 256;

impl DiskStage {
    /// Sets up a scratch directory inside `dir`, which must be there.
    ///
    /// # Errors
    /// [`Error::Locked`] if another laboratory measures there; what the system says.
    pub fn open(dir: &Path, backend: Backend) -> psync::Result<Self> {
        let path = dir.join(SCRATCH);
        let probe = DiskOptions { create: false, ..DiskOptions::default() };
        drop(Disk::open(dir, probe)?);
        let disk = Disk::open(&path, DiskOptions { backend, pio_max: PIO_MAX, ..DiskOptions::default() })?;
        let holder = format!("sapwood-lab, process {}", std::process::id());
        let lock = disk.lock(LockKind::Exclusive, &holder)?;
        for entry in disk.list()? {
            if entry.name.starts_with(DATA) {
                disk.remove(&entry.name)?;
            }
        }
        Ok(Self { disk, path, began: Instant::now(), _lock: lock })
    }

    /// Where the file `name` is, for those who open it without psync.
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// What names of data files begin with.
pub(super) const DATA: &str = "data";

impl Stage for DiskStage {
    type Clock = Wall;
    type Volume = Disk;

    fn volume(&self) -> &Disk {
        &self.disk
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn mingled(&self, set: &mut [Request<'_>]) -> psync::Result<()> {
        self.disk.mingled(set)
    }
}

impl Drop for DiskStage {
    fn drop(&mut self) {
        match std::fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let error = Error::from_io("remove", &self.path.display().to_string(), None, error);
                crate::progress::tell(format_args!("{error}; it can be removed by hand"));
            }
            _ => {}
        }
    }
}
