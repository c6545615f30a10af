//! The lock of a directory: an operating system lock on its file `LOCK`, which also names the holder.
//!
//! Invariants:
//! 1. The lock is the operating system's, so it ends with its process, however that ends. The text is only for
//!    people.
//! 2. Each attempt opens the file anew, so that two parts of one process exclude each other like two processes.
//! 3. The file's content is untrusted: it is bounded and made printable before it is shown.

use crate::{Error, Lock, LockKind, Result};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;

const NAME: &str = "LOCK";
/// The longest holder text shown, in bytes.
const HOLDER_MAX: u64 = 200;

/// Takes the lock of `directory`, without waiting.
pub(crate) fn take(directory: &Path, kind: LockKind, holder: &str) -> Result<Lock> {
    let path = directory.join(NAME);
    let wrap = |error| Error::from_io("lock", NAME, None, error);
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let file = match opened {
        Err(error) if kind == LockKind::Shared && is_read_only(&error) => match File::open(&path) {
            // There is no file to lock. A writer of another user who may write here, and comes later, is not kept out:
            // what it writes over is then told as damage.
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
                tracing::warn!(
                    "{} is read-only and has no file {NAME}: read without a lock",
                    directory.display()
                );
                return Ok(Lock::new(()));
            }
            other => other.map_err(wrap)?,
        },
        other => other.map_err(wrap)?,
    };
    let taken = match kind {
        LockKind::Exclusive => file.try_lock(),
        LockKind::Shared => file.try_lock_shared(),
    };
    match taken {
        Ok(()) => {
            let held = Held { file, kind };
            held.say(holder);
            Ok(Lock::new(held))
        }
        Err(TryLockError::WouldBlock) => {
            let holder = found_holder(&file);
            Err(Error::Locked { volume: directory.display().to_string(), holder })
        }
        Err(TryLockError::Error(error)) => Err(wrap(error)),
    }
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// A held lock. An exclusive one removes its holder's name on release.
struct Held {
    file: File,
    kind: LockKind,
}

impl Held {
    /// Writes the holder's name, for messages only: a failure does not affect the lock.
    fn say(&self, holder: &str) {
        if self.kind == LockKind::Shared {
            return;
        }
        let said = self.file.set_len(0).and_then(|()| (&self.file).write_all(holder.as_bytes()));
        if let Err(error) = said {
            tracing::debug!(%error, "the holder could not be written to {NAME}");
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.say("");
        // Closing the file is not enough: a child process that is just being started has a copy of the
        // descriptor until its exec.
        if let Err(error) = self.file.unlock() {
            tracing::debug!(%error, "{NAME} stays locked until every copy of its descriptor is closed");
        }
    }
}

/// The holder of the lock that we just failed to take on `file`.
fn found_holder(file: &File) -> String {
    // If the lock can be shared, only sharers hold it (or the holder has just let go), and the text is that of a writer
    // that died.
    if file.try_lock_shared().is_ok() {
        let _ = file.unlock();
        return "one or more readers".to_owned();
    }
    let mut text = Vec::new();
    let read = file.take(HOLDER_MAX).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    let shown: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match read {
        Ok(_) if !shown.is_empty() => shown,
        _ => "another process".to_owned(),
    }
}
