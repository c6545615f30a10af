//! The lock of a directory: operating system locks on the directory itself, on its file `LOCK`, and on the file that
//! the volume is known by. `LOCK` also names the holder.
//!
//! Invariants:
//! 1. The locks are the operating system's, so they end with their process, however that ends. The text is only for
//!    people.
//! 2. Each attempt opens the directory and the file anew, so that two parts of one process exclude each other like two
//!    processes.
//! 3. Whoever removes `LOCK`, copies it back or creates it anew lets nobody in: the lock on the directory ends only with
//!    its holder. The lock on the file that the volume is known by keeps others out who reach that file through another
//!    directory (a hard link, a file that was moved). `LOCK` is locked for programs that know of no other lock, and where
//!    directories cannot be locked.
//! 4. A lock belongs to what was opened, which a forked child shares with its parent: the child never releases it, and if the parent is killed, it ends
//!    with the child.
//! 5. The file's content is untrusted: it is bounded and made printable before it is shown.

use crate::directory::{Directory, Identity};
use crate::forked::Process;
use crate::lock::Mutex;
use crate::{Access, Error, LockKind, Result};
use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

const NAME: &str = "LOCK";
/// The longest holder text shown, in bytes.
const HOLDER_MAX: u64 = 200;
/// How many times a `LOCK` is opened that somebody removes at once.
const ATTEMPTS_MAX: usize = 100;

/// How often (count), and after how long each time, `LOCK` is tried again by who has the directory: longer than anybody needs who only looks.
const LOOKS_MAX: u32 = 20;
const LOOK: Duration = Duration::from_millis(5);

/// What came of an attempt to lock a file.
enum Taken {
    Yes,
    /// Somebody else has it.
    Busy,
    /// Such files cannot be locked here.
    Unsupported(io::Error),
}

fn try_lock(file: &File, kind: LockKind) -> io::Result<Taken> {
    let taken = match kind {
        LockKind::Exclusive => file.try_lock(),
        LockKind::Shared => file.try_lock_shared(),
    };
    match taken {
        Ok(()) => Ok(Taken::Yes),
        Err(TryLockError::WouldBlock) => Ok(Taken::Busy),
        Err(TryLockError::Error(error)) if is_unsupported(&error) => Ok(Taken::Unsupported(error)),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether this kind of file cannot be locked here. (`EBADF`: NFS wants a file that is open for writing.)
#[cfg(unix)]
fn is_unsupported(error: &io::Error) -> bool {
    const KNOWN: [i32; 6] =
        [libc::ENOLCK, libc::EOPNOTSUPP, libc::ENOTSUP, libc::ENOSYS, libc::EINVAL, libc::EBADF];
    error.raw_os_error().is_some_and(|number| KNOWN.contains(&number))
}

#[cfg(not(unix))]
fn is_unsupported(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}

/// Takes the lock of `directory`, without waiting. `path` is for messages.
pub(crate) fn take(directory: &Directory, path: &Path, kind: LockKind, holder: &str) -> Result<Held> {
    let itself = match lock_itself(directory, kind) {
        Ok((file, Taken::Yes)) => Ok(file),
        Ok((file, Taken::Busy)) => {
            return Err(locked(path, found_holder(&file, open_note(directory, false).ok().as_ref())));
        }
        Ok((_, Taken::Unsupported(error))) => Err(error),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Err(error),
        Err(error) => return Err(Error::from_io("lock", &path.display().to_string(), None, error)),
    };
    take_note(directory, path, (kind, holder), itself, &mut || std::thread::sleep(LOOK))
}

fn locked(path: &Path, holder: String) -> Error {
    Error::Locked { volume: path.display().to_string(), holder }
}

/// Takes the lock of the file `LOCK`. `itself`: the locked directory, or why it cannot be locked. `pause` waits before `LOCK` is tried again.
fn take_note(
    directory: &Directory,
    path: &Path,
    (kind, holder): (LockKind, &str),
    itself: io::Result<File>,
    pause: &mut dyn FnMut(),
) -> Result<Held> {
    let (itself, refusal) = itself.map_or_else(|error| (None, Some(error)), |file| (Some(file), None));
    let mut held = Held { process: Process::this(), kind, itself, note: None, more: Mutex::default() };
    let wrap = |error| Error::from_io("lock", NAME, None, error);
    let mut looks = 0;
    for _ in 0..ATTEMPTS_MAX {
        let opened = match open_note(directory, true) {
            Err(error) if kind == LockKind::Shared && is_read_only(&error) => open_note(directory, false),
            other => other,
        };
        let note = match opened {
            Err(missing) if kind == LockKind::Shared && missing.kind() == io::ErrorKind::NotFound => {
                // A writer who may write here and knows only of `LOCK` is not kept out: what it writes over is then
                // told as damage.
                if held.itself.is_none() {
                    tracing::warn!(
                        "{} is read-only and has no file {NAME}: read without a lock",
                        path.display()
                    );
                }
                return Ok(held);
            }
            opened => opened.map_err(wrap)?,
        };
        match try_lock(&note, kind).map_err(wrap)? {
            Taken::Yes => {}
            // Who has the file and not the directory looks for a moment whether somebody has it, or is a program that knows of no other lock.
            Taken::Busy if held.itself.is_some() && looks < LOOKS_MAX => {
                looks += 1;
                pause();
                continue;
            }
            Taken::Busy => return Err(locked(path, found_holder(&note, Some(&note)))),
            Taken::Unsupported(_) if held.itself.is_some() => {}
            Taken::Unsupported(error) => {
                let source = refusal.unwrap_or(error);
                return Err(Error::NoLocks { volume: path.display().to_string(), source });
            }
        }
        let identity = Identity::of(&note).map_err(wrap)?;
        held.note = Some(note);
        // Somebody may have removed it before it was locked.
        if held.itself.is_some() || directory.has(NAME, &identity).map_err(wrap)? {
            held.say(holder);
            return Ok(held);
        }
    }
    Err(locked(path, format!("somebody who keeps removing its file {NAME}")))
}

/// Locks the directory itself.
fn lock_itself(directory: &Directory, kind: LockKind) -> io::Result<(File, Taken)> {
    let file = directory.reopened()?;
    let taken = try_lock(&file, kind)?;
    Ok((file, taken))
}

fn open_note(directory: &Directory, write: bool) -> io::Result<File> {
    directory.open_file(NAME, Access { write, create: write, ..Access::default() }, false)
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// A held lock. An exclusive one removes its holder's name on release.
pub(crate) struct Held {
    process: Process,
    kind: LockKind,
    /// The directory; `None` where directories cannot be locked.
    itself: Option<File>,
    /// The file `LOCK`.
    note: Option<File>,
    /// Files that were locked later.
    more: Mutex<Vec<File>>,
}

impl Held {
    /// Locks another file of the directory, until this lock is released.
    ///
    /// The file is opened anew: of a process that is killed, the kernel closes a file in which there are still
    /// requests of its io_uring a moment after the process is gone.
    pub fn lock_too(&self, directory: &Directory, name: &str) -> Result<()> {
        let wrap = |error| Error::from_io("lock", name, None, error);
        let access = Access { write: self.kind == LockKind::Exclusive, ..Access::default() };
        let file = directory.open_file(name, access, false).map_err(wrap)?;
        let identity = Identity::of(&file).map_err(wrap)?;
        let is_it = |other: &File| Identity::of(other).is_ok_and(|other| other == identity);
        if self.more.lock().iter().any(is_it) {
            // By another database on this volume.
            return Ok(());
        }
        match try_lock(&file, self.kind).map_err(wrap)? {
            Taken::Yes => self.more.lock().push(file),
            Taken::Busy => {
                let holder = "another process, which has it in another directory".to_owned();
                return Err(Error::Locked { volume: name.to_owned(), holder });
            }
            Taken::Unsupported(error) => tracing::debug!(%error, "{name} is not locked"),
        }
        Ok(())
    }

    /// Writes the holder's name, for messages only: a failure does not affect the lock.
    fn say(&self, holder: &str) {
        let Some(mut note) = self.note.as_ref().filter(|_| self.kind == LockKind::Exclusive) else { return };
        let said = note.set_len(0).and_then(|()| note.write_all(holder.as_bytes()));
        if let Err(error) = said {
            tracing::debug!(%error, "the holder could not be written to {NAME}");
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.process.is_forked() {
            return;
        }
        self.say("");
        // Closing the files is not enough: a child process that is just being started has a copy of each
        // descriptor until its exec.
        for file in self.more.get_mut().iter().chain(&self.note).chain(&self.itself) {
            if let Err(error) = file.unlock() {
                tracing::debug!(%error, "a lock stays until every copy of its descriptor is closed");
            }
        }
    }
}

/// The holder of the lock that we just failed to take on `file`, as the note says.
fn found_holder(file: &File, note: Option<&File>) -> String {
    // If the lock can be shared, only sharers hold it (or the holder has just let go), and the text is that of a writer
    // that died.
    if file.try_lock_shared().is_ok() {
        let _ = file.unlock();
        return "one or more readers".to_owned();
    }
    let mut text = Vec::new();
    let read = note.map(|note| note.take(HOLDER_MAX).read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    let shown: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match read {
        Some(Ok(_)) if !shown.is_empty() => shown,
        _ => "another process".to_owned(),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// A file system that locks files, but no directories.
    fn take_without_directory(directory: &Directory, kind: LockKind) -> Result<Held> {
        let refusal = Err(io::Error::from_raw_os_error(libc::EBADF));
        take_note(directory, Path::new("here"), (kind, "a holder"), refusal, &mut || panic!("nobody waits"))
    }

    #[test]
    fn where_directories_cannot_be_locked_the_files_are() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let new = Access { write: true, create: true, ..Access::default() };
        directory.open_file("data", new, false).unwrap();
        let held = take_without_directory(&directory, LockKind::Exclusive).unwrap();
        held.lock_too(&directory, "data").unwrap();
        for kind in [LockKind::Exclusive, LockKind::Shared] {
            let refused = take_without_directory(&directory, kind).map(drop);
            assert!(
                matches!(&refused, Err(Error::Locked { holder, .. }) if holder == "a holder"),
                "{refused:?}"
            );
        }
        // Without `LOCK`, whoever comes finds the other file locked.
        directory.remove(NAME).unwrap();
        let second = take_without_directory(&directory, LockKind::Exclusive).unwrap();
        let refused = second.lock_too(&directory, "data");
        assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
        drop(held);
        second.lock_too(&directory, "data").unwrap();
    }

    /// A writer that came while a program looked whether there is one was told that there is.
    #[test]
    fn who_looks_for_a_moment_keeps_no_writer_out() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        std::fs::write(dir.path().join(NAME), "of a writer that was killed").unwrap();
        let other = File::open(dir.path().join(NAME)).unwrap();
        let take = |pause: &mut dyn FnMut()| {
            let (itself, _) = lock_itself(&directory, LockKind::Exclusive).unwrap();
            take_note(&directory, Path::new("here"), (LockKind::Exclusive, "a holder"), Ok(itself), pause)
        };
        other.lock_shared().unwrap();
        let mut pauses = 0;
        drop(take(&mut || (pauses, _) = (pauses + 1, other.unlock().unwrap())).unwrap());
        assert_eq!(pauses, 1);
        // A program that knows of no other lock stays.
        other.lock().unwrap();
        let mut pauses = 0;
        let refused = take(&mut || pauses += 1).map(drop);
        assert!(matches!(refused, Err(Error::Locked { .. })) && pauses == LOOKS_MAX, "{refused:?}, {pauses}");
    }

    #[test]
    fn what_cannot_be_locked_is_told_from_what_failed() {
        let unsupported = |number| is_unsupported(&io::Error::from_raw_os_error(number));
        assert!([libc::ENOLCK, libc::ENOSYS, libc::EOPNOTSUPP, libc::EBADF].into_iter().all(unsupported));
        assert!(![libc::EIO, libc::EINTR, libc::EACCES, libc::EROFS].into_iter().any(unsupported));
    }
}
