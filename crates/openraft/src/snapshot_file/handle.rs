//! A snapshot file as openraft reads, writes and sends it: from tasks, and never encrypted.
//!
//! A finished file that cannot be decrypted is removed by whoever finds that, so that another one is made.
//!
//! Invariants:
//! 1. A task does not wait for the device. The file goes to a thread that may, and comes back with the result.
//! 2. A write is taken whole, or not at all. openraft writes a chunk of a message where the one before it ended, and sends it again after a failure
//!    without a seek: one that was given up in its midst would be written behind its own beginning.
//! 3. After a write that failed there is no other one, and no end, before a seek to where that began, or before it: openraft is told by
//!    the next call, which may be given up as well.
//! 4. A file that is being received is empty after a write that failed, and is written from its beginning: its sender begins there, and until then the
//!    node's log wants the space on the same disk.

use super::bytes::{Bytes, SnapshotKey};
use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};
use tokio::task::{JoinHandle, spawn_blocking};

const FINISHED: &str = "snapshot";
pub(super) const UNFINISHED: &str = "partial";

/// Bytes that a thread reads at once, at most: four blocks of an encrypted file, and 1 % of the time is the way to the thread.
const AT_ONCE: usize = 256 << 10;

/// A snapshot: openraft's `SnapshotData`. It is a file, whether it is written here, received, or sent. The file is encrypted if the
/// database is; what is read and written through this handle is not.
///
/// ```
/// openraft::declare_raft_types!(
///     pub Config:
///         D = String,
///         R = String,
///         SnapshotData = sapwood_openraft::SnapshotFile,
/// );
/// # fn main() {}
/// ```
#[derive(Debug)]
pub struct SnapshotFile {
    state: State,
    /// What was read, and how much of it was given out.
    read: Vec<u8>,
    given: usize,
    /// Whether something was written since the file was flushed.
    is_written: bool,
    /// Where the last seek led.
    position: u64,
    /// Where a write began that failed, and how.
    failed: Option<(u64, io::ErrorKind, String)>,
    path: PathBuf,
    /// Whether the file goes with this handle.
    is_temporary: bool,
}

#[derive(Debug)]
enum State {
    /// `None`: the thread that had it panicked.
    Here(Option<Bytes>),
    Away(JoinHandle<(Bytes, Done)>),
}

#[derive(Debug)]
enum Done {
    Read(io::Result<Vec<u8>>),
    /// With where it began.
    Written(u64, io::Result<()>),
    Flushed(io::Result<()>),
    Sought(io::Result<u64>),
}

impl State {
    /// Gives the file to a thread.
    fn begin(&mut self, work: impl FnOnce(&mut Bytes) -> Done + Send + 'static) -> io::Result<()> {
        let Self::Here(bytes) = self else { return Err(io::Error::other("the file is in use")) };
        let mut bytes = bytes.take().ok_or_else(|| io::Error::other("an access before this one panicked"))?;
        *self = Self::Away(spawn_blocking(move || {
            let done = work(&mut bytes);
            (bytes, done)
        }));
        Ok(())
    }
}

impl SnapshotFile {
    /// A new file to receive into.
    pub(crate) fn receive(directory: &Path, group: u64, key: Option<&SnapshotKey>) -> Result<Self> {
        let path = directory.join(format!("{group:016x}-received-{:016x}.{UNFINISHED}", unique()));
        let mut how = File::options();
        how.create_new(true).read(true).write(true);
        Ok(Self::of(Bytes::create(&path, &how, key)?, true))
    }

    pub(crate) fn open(path: &Path, key: Option<&SnapshotKey>) -> Result<Self> {
        Ok(Self::of(Bytes::open(path, key)?, false))
    }

    fn of(bytes: Bytes, is_temporary: bool) -> Self {
        Self {
            path: bytes.path().to_owned(),
            state: State::Here(Some(bytes)),
            read: Vec::new(),
            given: 0,
            is_written: false,
            position: 0,
            failed: None,
            is_temporary,
        }
    }

    /// Moves a received file to where finished ones are, durably, and leaves it there.
    pub(crate) fn keep(&mut self, to: &Path) -> Result<()> {
        let handle = File::options().read(true).write(true).open(&self.path);
        handle.and_then(|file| file.sync_all()).map_err(Error::file("syncing", &self.path))?;
        if self.is_temporary {
            rename(&self.path, to)?;
            self.is_temporary = false;
        } else {
            let unfinished = to.with_extension(UNFINISHED);
            fs::copy(&self.path, &unfinished).map_err(Error::file("copying", &self.path))?;
            let copied = File::options().read(true).write(true).open(&unfinished);
            copied.and_then(|file| file.sync_all()).map_err(Error::file("syncing", &unfinished))?;
            rename(&unfinished, to)?;
        }
        self.path = to.to_owned();
        Ok(())
    }

    /// Waits for what is still written.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        let flushed = tokio::io::AsyncWriteExt::flush(self).await;
        flushed.map_err(Error::file("writing", &self.path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what a process that was killed has left.
    pub(crate) fn remove_unfinished(directory: &Path) -> Result<()> {
        remove_where(directory, |name| name.ends_with(UNFINISHED))
    }

    /// Removes all of a group, durably.
    pub(crate) fn remove_all(directory: &Path, group: u64) -> Result<()> {
        let prefix = format!("{group:016x}-");
        remove_where(directory, |name| name.starts_with(&prefix))?;
        sync_directory(directory).map_err(Error::file("syncing", directory))
    }

    /// Removes the finished snapshots of a group but one.
    pub(crate) fn remove_others(directory: &Path, group: u64, kept: &Path) -> Result<()> {
        let (prefix, kept) = (format!("{group:016x}-"), kept.file_name());
        remove_where(directory, |name| {
            name.starts_with(&prefix) && name.ends_with(FINISHED) && kept.is_none_or(|kept| kept != name)
        })
    }

    /// The finished snapshots of a group.
    pub(crate) fn finished(directory: &Path, group: u64) -> Result<Vec<PathBuf>> {
        let prefix = format!("{group:016x}-");
        let entries = fs::read_dir(directory).map_err(Error::file("listing", directory))?;
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(Error::file("listing", directory))?;
            let name = entry.file_name();
            let is_one =
                name.to_str().is_some_and(|name| name.starts_with(&prefix) && name.ends_with(FINISHED));
            if is_one {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    pub(crate) fn finished_path(directory: &Path, group: u64, snapshot_id: &str) -> PathBuf {
        directory.join(format!("{group:016x}-{snapshot_id}.{FINISHED}"))
    }
}

/// A number that no other file of this directory has.
pub(crate) fn unique() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // Keys of a hasher are random.
    std::hash::RandomState::new().build_hasher().finish()
}

fn remove_where(directory: &Path, is_removed: impl Fn(&str) -> bool) -> Result<()> {
    let entries = fs::read_dir(directory).map_err(Error::file("listing", directory))?;
    for entry in entries {
        let entry = entry.map_err(Error::file("listing", directory))?;
        if entry.file_name().to_str().is_some_and(&is_removed) {
            fs::remove_file(entry.path()).map_err(Error::file("removing", entry.path()))?;
        }
    }
    Ok(())
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(Error::file("renaming", from))?;
    let directory = to.parent().unwrap_or(to);
    sync_directory(directory).map_err(Error::file("syncing", directory))
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes a directory, and those above it that are missing, durably: what is synced in it would be lost with its name.
pub(crate) fn make_directory(path: &Path) -> Result<()> {
    let path = &std::path::absolute(path).map_err(Error::file("finding", path))?;
    let missing: Vec<_> = path.ancestors().take_while(|path| !path.exists()).collect();
    fs::create_dir_all(path).map_err(Error::file("creating", path))?;
    // One that is there may have been made by a process that was killed before it synced the one above.
    let made = if missing.is_empty() { vec![path.as_path()] } else { missing };
    for above in made.into_iter().filter_map(Path::parent) {
        match sync_directory(above) {
            // Only who may read a directory can sync it. Without its snapshot a state is as it was, and another is built.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            synced => synced.map_err(Error::file("syncing", above))?,
        }
    }
    Ok(())
}

impl Drop for SnapshotFile {
    fn drop(&mut self) {
        if self.is_temporary {
            // What cannot be removed now is removed when the store is opened.
            _ = fs::remove_file(&self.path);
        }
    }
}

impl SnapshotFile {
    /// Waits until the file is here. Returns whether something has just been read, be it nothing.
    fn poll_here(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let State::Away(task) = &mut self.state else { return Poll::Ready(Ok(false)) };
        let (bytes, done) = match ready!(Pin::new(task).poll(context)) {
            Ok((bytes, done)) => (Some(bytes), done),
            Err(error) => (None, Done::Flushed(Err(io::Error::other(error)))),
        };
        self.state = State::Here(bytes);
        let mut has_read = false;
        match done {
            Done::Read(read) => {
                (self.read, self.given, has_read) = (read?, 0, true);
            }
            Done::Written(_, Ok(())) | Done::Flushed(Ok(())) => {}
            // Told once more by whatever relies on it.
            Done::Written(at, Err(error)) => self.failed = Some((at, error.kind(), error.to_string())),
            // It may be of any of the writes before it.
            Done::Flushed(Err(error)) => self.failed = Some((0, error.kind(), error.to_string())),
            Done::Sought(sought) => {
                self.position = sought?;
                // What is written from here on takes the place of what was not.
                self.failed.take_if(|(at, ..)| self.position <= *at);
            }
        }
        Poll::Ready(Ok(has_read))
    }

    /// The error of a write that nothing has taken the place of.
    fn check(&self) -> io::Result<()> {
        let failed = self.failed.as_ref();
        failed.map_or(Ok(()), |(_, kind, reason)| Err(io::Error::new(*kind, reason.clone())))
    }

    /// Forgets what was read and not given out. Returns how far the file's place is ahead of the reader's by that.
    fn forget_read(&mut self) -> i64 {
        let ahead = self.read.len() - self.given;
        self.read.clear();
        self.given = 0;
        ahead as i64
    }
}

impl AsyncRead for SnapshotFile {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let has_read = ready!(this.poll_here(context))?;
            let left = &this.read[this.given..];
            if has_read || !left.is_empty() || buffer.remaining() == 0 {
                let given = left.len().min(buffer.remaining());
                buffer.put_slice(&left[..given]);
                this.given += given;
                return Poll::Ready(Ok(()));
            }
            let len = buffer.remaining().min(AT_ONCE);
            // One that is being received has no other copy here.
            let is_finished = !this.is_temporary;
            this.state.begin(move |bytes| {
                let mut read = Vec::with_capacity(len);
                let done = Read::take(&mut *bytes, len as u64).read_to_end(&mut read).map(|_| read);
                if let Err(error) = done.as_ref().map_err(io::Error::kind)
                    && error == io::ErrorKind::InvalidData
                    && is_finished
                {
                    // openraft stops the node, and takes the newest file when it starts: this one would stop it again.
                    tracing::error!("{} is damaged and is removed: another is made", bytes.path().display());
                    _ = fs::remove_file(bytes.path());
                }
                Done::Read(done)
            })?;
        }
    }
}

impl AsyncWrite for SnapshotFile {
    /// An error is that of a call before, as tokio's files have it.
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_here(context))?;
        this.check()?;
        let ahead = this.forget_read();
        let (all, len, is_received) = (bytes.to_vec(), bytes.len(), this.is_temporary);
        this.is_written = true;
        this.state.begin(move |bytes| {
            let there = if ahead > 0 { bytes.seek(SeekFrom::Current(-ahead)).map(|_| ()) } else { Ok(()) };
            let at = bytes.position();
            let written = there.and_then(|()| bytes.write_all(&all));
            let is_emptied = written.is_err() && is_received && bytes.clear().is_ok();
            Done::Written(if is_emptied { 0 } else { at }, written)
        })?;
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            ready!(this.poll_here(context))?;
            this.check()?;
            if !this.is_written {
                return Poll::Ready(Ok(()));
            }
            this.is_written = false;
            let is_received = this.is_temporary;
            this.state.begin(move |bytes| {
                let flushed = bytes.flush();
                if flushed.is_err() && is_received {
                    // If that fails, it is as long as it was, and is written from its beginning all the same.
                    _ = bytes.clear();
                }
                Done::Flushed(flushed)
            })?;
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

impl AsyncSeek for SnapshotFile {
    fn start_seek(self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        let this = self.get_mut();
        if matches!(this.state, State::Away(_)) {
            return Err(io::Error::other("the file is in use: wait for what was begun before"));
        }
        let ahead = this.forget_read();
        let to = match to {
            SeekFrom::Current(by) => SeekFrom::Current(by - ahead),
            to => to,
        };
        this.state.begin(move |bytes| Done::Sought(bytes.seek(to)))
    }

    fn poll_complete(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let this = self.get_mut();
        ready!(this.poll_here(context))?;
        Poll::Ready(Ok(this.position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

    #[test]
    fn directories_are_made_with_those_above_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a/b/snapshots");
        for _ in 0..2 {
            make_directory(&path).expect("is made");
            assert!(path.is_dir());
        }
        fs::write(dir.path().join("file"), "").expect("writes");
        let error = make_directory(&dir.path().join("file/snapshots")).expect_err("there is a file");
        assert!(error.to_string().starts_with("creating "), "{error}");
    }

    /// As openraft receives: pieces at offsets, of which one comes twice; then as it sends.
    #[tokio::test]
    async fn what_was_received_is_sent() {
        let dir = tempfile::tempdir().expect("a directory");
        let key = SnapshotKey::random().expect("random bytes");
        for key in [None, Some(&key)] {
            let content: Vec<u8> = (0..1_000_003u32).map(|number| (number / 7) as u8).collect();
            let mut file = SnapshotFile::receive(dir.path(), 1, key).expect("is created");
            for (number, piece) in content.chunks(300_000).enumerate() {
                for _ in 0..if number == 1 { 2 } else { 1 } {
                    let at = SeekFrom::Start(300_000 * number as u64);
                    assert_eq!(file.seek(at).await.expect("seeks"), 300_000 * number as u64);
                    file.write_all(piece).await.expect("writes");
                }
            }
            file.flush().await.expect("flushes");
            let kept = SnapshotFile::finished_path(dir.path(), 1, "1-1");
            file.keep(&kept).expect("is kept");
            drop(file);
            let mut file = SnapshotFile::open(&kept, key).expect("opens");
            let mut found = vec![0; 70_000];
            file.read_exact(&mut found).await.expect("reads");
            // It was read further than it was given out.
            assert_eq!(file.seek(SeekFrom::Current(-10_000)).await.expect("seeks"), 60_000);
            found.truncate(60_000);
            file.read_to_end(&mut found).await.expect("reads");
            assert!(found == content);
            assert_eq!(file.seek(SeekFrom::End(-3)).await.expect("seeks"), 1_000_000);
            assert_eq!(file.read(&mut [0; 10]).await.expect("reads"), 3);
            assert_eq!(file.read(&mut [0; 10]).await.expect("reads"), 0);
            fs::remove_file(&kept).expect("is removed");
        }
    }

    /// openraft sends a piece again where the one before it ended, without a seek.
    #[tokio::test]
    async fn a_write_that_is_given_up_is_taken_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let piece = vec![7; 1_000_000];
        for wakes in 0..8 {
            let mut file = SnapshotFile::receive(dir.path(), 1, None).expect("is created");
            file.write_all(b"first").await.expect("writes");
            let mut is_taken = false;
            {
                let mut writing = std::pin::pin!(file.write_all(&piece));
                for _ in 0..=wakes {
                    let polled = std::future::poll_fn(|context| {
                        Poll::Ready(Future::poll(writing.as_mut(), context).is_ready())
                    });
                    is_taken = polled.await;
                    if is_taken {
                        break;
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                }
            }
            if !is_taken {
                file.write_all(&piece).await.expect("writes");
            }
            file.flush().await.expect("flushes");
            assert_eq!(fs::metadata(file.path()).expect("is there").len(), 5 + 1_000_000, "{wakes}");
        }
    }

    /// What had been received of one for which the disk has no room kept that full.
    #[tokio::test]
    async fn a_received_file_whose_write_failed_is_empty() {
        let dir = tempfile::tempdir().expect("a directory");
        let key = SnapshotKey::random().expect("random bytes");
        let mut file = SnapshotFile::receive(dir.path(), 1, Some(&key)).expect("is created");
        let len = || {
            let mut files = fs::read_dir(dir.path()).expect("lists");
            files.next().expect("one").expect("an entry").metadata().expect("it is there").len()
        };
        let empty = len();
        let content: Vec<u8> = (0..300_000u32).map(|number| (number / 7) as u8).collect();
        file.write_all(&content).await.expect("writes");
        file.flush().await.expect("flushes");
        assert!(len() > 300_000);
        // Behind a hole it cannot be written.
        file.seek(SeekFrom::Start(400_000)).await.expect("seeks");
        file.write_all(b"more").await.expect("is taken");
        assert!(file.flush().await.is_err());
        assert_eq!(len(), empty);
        for place in [400_000, 300_000, 1] {
            file.seek(SeekFrom::Start(place)).await.expect("seeks");
            assert!(file.write_all(b"more").await.is_err(), "{place}");
        }
        file.seek(SeekFrom::Start(0)).await.expect("seeks");
        file.write_all(&content).await.expect("writes");
        file.flush().await.expect("flushes");
        let mut found = Vec::new();
        file.seek(SeekFrom::Start(0)).await.expect("seeks");
        file.read_to_end(&mut found).await.expect("reads");
        assert!(found == content);
    }

    /// Whoever was told may have gone, and the next piece must not be written behind what is missing.
    #[tokio::test]
    async fn behind_a_write_that_failed_nothing_is_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("full");
        std::os::unix::fs::symlink("/dev/full", &path).expect("links");
        let mut how = File::options();
        how.read(true).write(true);
        let mut file = SnapshotFile::of(Bytes::create(&path, &how, None).expect("opens"), false);
        file.write_all(b"first").await.expect("is taken");
        for _ in 0..2 {
            assert_eq!(
                file.write_all(b"next").await.expect_err("is told").kind(),
                io::ErrorKind::StorageFull
            );
            assert!(file.flush().await.is_err());
        }
        // From its beginning it may be written again.
        file.seek(SeekFrom::Start(3)).await.expect("seeks");
        assert!(file.write_all(b"next").await.is_err());
        file.seek(SeekFrom::Start(0)).await.expect("seeks");
        file.write_all(b"first").await.expect("is taken");
        assert!(file.shutdown().await.is_err());
    }
}
