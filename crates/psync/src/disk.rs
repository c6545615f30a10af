//! A real directory as a [`Volume`]: names, checks, limits, counters and errors; the bytes are moved by a backend.
//!
//! Invariants:
//! 1. A request reaches the backend only after it was checked against the contract of [`Device`].
//! 2. Short transfers are continued, so that a backend's "part of it" never looks like success or like an error.
//! 3. A file id is never given out twice.

use crate::transfer::{Memory, Mover, Transfer};
use crate::{
    Access, Counters, Device, Entry, Error, FileId, Limits, Lock, LockKind, Read, Result, Volume, Write,
    threads,
};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// How bytes are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The best that works here: io_uring, else libaio, else threads.
    #[default]
    Auto,
    /// io_uring (Linux).
    Uring,
    /// libaio (Linux).
    Libaio,
    /// A pool of threads with positioned I/O (anywhere).
    Threads,
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Backend::Auto => "auto",
            Backend::Uring => "io_uring",
            Backend::Libaio => "libaio",
            Backend::Threads => "threads",
        })
    }
}

/// How to open a [`Disk`].
#[derive(Clone, Copy, Debug)]
pub struct DiskOptions {
    /// Which backend.
    pub backend: Backend,
    /// PioMax: the most requests that go to the device as one set, 1 to 4096.
    pub pio_max: usize,
    /// Whether files that ask for it bypass the page cache.
    pub direct: bool,
    /// Whether to create the directory.
    pub create: bool,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { backend: Backend::Auto, pio_max: 64, direct: true, create: true }
    }
}

/// See the module.
pub struct Disk {
    path: PathBuf,
    mover: Box<dyn Mover>,
    backend: Backend,
    limits: Limits,
    notes: Vec<String>,
    files: RwLock<HashMap<FileId, Arc<OpenFile>>>,
    next: AtomicU32,
    counted: Counted,
}

struct OpenFile {
    name: String,
    file: File,
    direct: bool,
}

#[derive(Default)]
struct Counted {
    read_sets: AtomicU64,
    reads: AtomicU64,
    bytes_read: AtomicU64,
    write_sets: AtomicU64,
    writes: AtomicU64,
    bytes_written: AtomicU64,
    syncs: AtomicU64,
}

/// No single request is longer; the kernel would cut it.
const REQUEST_MAX: usize = 1 << 30;
const LOCK_FILE: &str = "LOCK";

impl Disk {
    /// Opens the directory `path`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Invalid`] for options out of range, or what the system says.
    pub fn open(path: impl AsRef<Path>, options: DiskOptions) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let shown = path.display().to_string();
        if !(1..=4096).contains(&options.pio_max) {
            return Err(Error::Invalid(format!("pio_max is {}, but must be 1 to 4096", options.pio_max)));
        }
        if options.create {
            std::fs::create_dir_all(&path).map_err(|error| Error::from_io("create", &shown, None, error))?;
        }
        let metadata =
            std::fs::metadata(&path).map_err(|error| Error::from_io("open", &shown, None, error))?;
        if !metadata.is_dir() {
            return Err(Error::Invalid(format!("{shown} is a file, but a directory is needed")));
        }
        let mut notes = Vec::new();
        let (mover, backend) = choose(options.backend, options.pio_max, &mut notes)
            .map_err(|error| Error::from_io("set up I/O for", &shown, None, error))?;
        let alignment = if options.direct { direct_alignment(&path) } else { None };
        if options.direct && alignment.is_none() {
            notes.push(format!("direct I/O is not to be had in {shown}: the page cache is used"));
        }
        for note in &notes {
            tracing::info!("{note}");
        }
        let limits = Limits {
            alignment: alignment.unwrap_or(1),
            pio_max: options.pio_max,
            direct: alignment.is_some(),
        };
        Ok(Self {
            path,
            mover,
            backend,
            limits,
            notes,
            files: RwLock::default(),
            next: AtomicU32::new(0),
            counted: Counted::default(),
        })
    }

    /// What could not be had here, and why, for people.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The backend in use (never [`Backend::Auto`]).
    pub fn backend(&self) -> Backend {
        self.backend
    }

    fn file(&self, id: FileId) -> Result<Arc<OpenFile>> {
        let files = self.files.read();
        files.get(&id).cloned().ok_or_else(|| Error::Invalid(format!("file {} is not open", id.number())))
    }

    fn member(&self, name: &str) -> Result<PathBuf> {
        let plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0']);
        if plain {
            Ok(self.path.join(name))
        } else {
            Err(Error::Invalid(format!("{name:?} is not a plain file name")))
        }
    }

    fn check(&self, file: &OpenFile, offset: u64, address: usize, len: usize) -> Result<()> {
        let wrong = |what: String| Err(Error::Invalid(format!("{}: {what}", file.name)));
        if len == 0 || len > REQUEST_MAX {
            return wrong(format!("a request of {len} bytes; 1 to {REQUEST_MAX} are possible"));
        }
        if offset.checked_add(len as u64).is_none_or(|end| end > i64::MAX as u64) {
            return wrong(format!("offset {offset} is beyond any file"));
        }
        let alignment = self.limits.alignment;
        if file.direct && !(offset as usize | address | len).is_multiple_of(alignment) {
            return wrong(format!(
                "offset {offset}, length {len} or address is not a multiple of {alignment}"
            ));
        }
        Ok(())
    }

    /// Runs a checked set to its end, continuing what came up short.
    fn run(
        &self,
        mut set: Vec<Transfer<'_>>,
        operation: &'static str,
        files: &[Arc<OpenFile>],
    ) -> Result<()> {
        let mut failed = None;
        // Which file a transfer belongs to, by its place in the original set.
        let mut origin: Vec<usize> = (0..set.len()).collect();
        let mut done = vec![0usize; set.len()];
        let total: Vec<(u64, usize)> = set.iter().map(|t| (t.offset, t.memory.len())).collect();
        while !set.is_empty() {
            self.mover.run(&mut set);
            let mut rest = Vec::new();
            let mut rest_origin = Vec::new();
            for (transfer, index) in set.into_iter().zip(origin) {
                let (offset, expected) = total[index];
                let name = &files[index].name;
                match transfer.outcome {
                    Ok(moved) if moved == transfer.memory.len() => {}
                    Ok(0) => {
                        let short = Error::Short {
                            operation,
                            file: name.clone(),
                            offset,
                            expected,
                            found: done[index],
                        };
                        failed.get_or_insert(short);
                    }
                    Ok(moved) => {
                        done[index] += moved;
                        rest.push(Transfer {
                            file: transfer.file,
                            offset: transfer.offset + moved as u64,
                            memory: match transfer.memory {
                                Memory::Into(buffer) => Memory::Into(&mut buffer[moved..]),
                                Memory::From(data) => Memory::From(&data[moved..]),
                            },
                            outcome: Ok(0),
                        });
                        rest_origin.push(index);
                    }
                    Err(error) if error.raw_os_error() == Some(EINTR) => {
                        rest.push(Transfer { outcome: Ok(0), ..transfer });
                        rest_origin.push(index);
                    }
                    // A direct transfer that ended at an odd place (the end of a file) cannot be continued there.
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput && done[index] > 0 => {
                        let short = Error::Short {
                            operation,
                            file: name.clone(),
                            offset,
                            expected,
                            found: done[index],
                        };
                        failed.get_or_insert(short);
                    }
                    Err(error) => {
                        failed.get_or_insert(Error::from_io(operation, name, Some(offset), error));
                    }
                }
            }
            set = rest;
            origin = rest_origin;
        }
        failed.map_or(Ok(()), Err)
    }
}

const EINTR: i32 = 4;

/// The backend asked for, or for `Auto` the first that works.
fn choose(wanted: Backend, pio_max: usize, notes: &mut Vec<String>) -> io::Result<(Box<dyn Mover>, Backend)> {
    let candidates: &[Backend] = match &wanted {
        Backend::Auto if cfg!(target_os = "linux") => &[Backend::Uring, Backend::Libaio, Backend::Threads],
        Backend::Auto => &[Backend::Threads],
        one => std::slice::from_ref(one),
    };
    let mut last = io::Error::from(io::ErrorKind::Unsupported);
    for candidate in candidates {
        match make(*candidate, pio_max) {
            Ok(mover) => return Ok((mover, *candidate)),
            Err(error) => {
                notes.push(format!("{candidate} cannot be used here ({error})"));
                last = error;
            }
        }
    }
    Err(last)
}

#[cfg(target_os = "linux")]
fn make(backend: Backend, pio_max: usize) -> io::Result<Box<dyn Mover>> {
    Ok(match backend {
        Backend::Uring => Box::new(crate::uring::Uring::new(pio_max)?),
        Backend::Libaio => Box::new(crate::libaio::Libaio::new(pio_max)?),
        Backend::Threads | Backend::Auto => Box::new(threads::Threads::new(pio_max)?),
    })
}

#[cfg(not(target_os = "linux"))]
fn make(backend: Backend, pio_max: usize) -> io::Result<Box<dyn Mover>> {
    match backend {
        Backend::Uring | Backend::Libaio => Err(io::Error::from(io::ErrorKind::Unsupported)),
        Backend::Threads | Backend::Auto => Ok(Box::new(threads::Threads::new(pio_max)?)),
    }
}

/// What direct I/O must be aligned to in the directory; `None` if it cannot be had.
#[cfg(target_os = "linux")]
fn direct_alignment(path: &Path) -> Option<usize> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    let nameless =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE | libc::O_DIRECT).open(path);
    // Where nothing can be created, any file that is there tells.
    let file = nameless.or_else(|error| {
        let mut files = std::fs::read_dir(path)?.flatten().filter(|entry| entry.path().is_file());
        let first = files.next().ok_or(error)?;
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(first.path())
    });
    let file = file.ok()?;
    // SAFETY: statx fills the struct, for which all zeros is a valid value; path "" with AT_EMPTY_PATH is the file itself.
    let (result, status) = unsafe {
        let mut status: libc::statx = std::mem::zeroed();
        let result = libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &raw mut status,
        );
        (result, status)
    };
    if result != 0 || status.stx_mask & libc::STATX_DIOALIGN == 0 {
        // An older kernel does not tell. This much has always been enough.
        return Some(crate::AlignedBuffer::ALIGNMENT);
    }
    let alignment = status.stx_dio_mem_align.max(status.stx_dio_offset_align) as usize;
    (alignment > 0 && alignment <= crate::AlignedBuffer::ALIGNMENT).then_some(alignment.max(512))
}

#[cfg(not(target_os = "linux"))]
fn direct_alignment(_: &Path) -> Option<usize> {
    None
}

#[cfg(target_os = "linux")]
fn ask_direct(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags(libc::O_DIRECT);
}

#[cfg(not(target_os = "linux"))]
fn ask_direct(_: &mut OpenOptions) {}

impl Device for Disk {
    fn read(&self, set: &mut [Read<'_>]) -> Result<()> {
        let files = set.iter().map(|read| self.file(read.file)).collect::<Result<Vec<_>>>()?;
        for (read, file) in set.iter().zip(&files) {
            self.check(file, read.offset, read.buffer.as_ptr() as usize, read.buffer.len())?;
        }
        let pio_max = self.limits.pio_max;
        for (part, files) in set.chunks_mut(pio_max).zip(files.chunks(pio_max)) {
            self.counted.read_sets.fetch_add(1, Relaxed);
            self.counted.reads.fetch_add(part.len() as u64, Relaxed);
            self.counted
                .bytes_read
                .fetch_add(part.iter().map(|read| read.buffer.len() as u64).sum(), Relaxed);
            let transfers = part
                .iter_mut()
                .zip(files)
                .map(|(read, file)| Transfer {
                    file: &file.file,
                    offset: read.offset,
                    memory: Memory::Into(read.buffer),
                    outcome: Ok(0),
                })
                .collect();
            self.run(transfers, "read", files)?;
        }
        Ok(())
    }

    fn write(&self, set: &[Write<'_>]) -> Result<()> {
        let files = set.iter().map(|write| self.file(write.file)).collect::<Result<Vec<_>>>()?;
        for (write, file) in set.iter().zip(&files) {
            self.check(file, write.offset, write.data.as_ptr() as usize, write.data.len())?;
        }
        crate::request::refuse_overlap(set)?;
        let pio_max = self.limits.pio_max;
        for (part, files) in set.chunks(pio_max).zip(files.chunks(pio_max)) {
            self.counted.write_sets.fetch_add(1, Relaxed);
            self.counted.writes.fetch_add(part.len() as u64, Relaxed);
            self.counted
                .bytes_written
                .fetch_add(part.iter().map(|write| write.data.len() as u64).sum(), Relaxed);
            let transfers = part
                .iter()
                .zip(files)
                .map(|(write, file)| Transfer {
                    file: &file.file,
                    offset: write.offset,
                    memory: Memory::From(write.data),
                    outcome: Ok(0),
                })
                .collect();
            self.run(transfers, "write", files)?;
        }
        Ok(())
    }

    fn sync(&self, file: FileId) -> Result<()> {
        let file = self.file(file)?;
        self.counted.syncs.fetch_add(1, Relaxed);
        file.file.sync_data().map_err(|error| Error::from_io("sync", &file.name, None, error))
    }

    fn len(&self, file: FileId) -> Result<u64> {
        let file = self.file(file)?;
        let metadata =
            file.file.metadata().map_err(|error| Error::from_io("stat", &file.name, None, error))?;
        Ok(metadata.len())
    }

    fn resize(&self, file: FileId, len: u64) -> Result<()> {
        let file = self.file(file)?;
        file.file.set_len(len).map_err(|error| Error::from_io("resize", &file.name, None, error))
    }

    fn release(&self, file: FileId, range: Range<u64>) -> Result<()> {
        let file = self.file(file)?;
        punch_hole(&file.file, &range)
            .map_err(|error| Error::from_io("release", &file.name, Some(range.start), error))
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn counters(&self) -> Counters {
        let counted = &self.counted;
        Counters {
            read_sets: counted.read_sets.load(Relaxed),
            reads: counted.reads.load(Relaxed),
            bytes_read: counted.bytes_read.load(Relaxed),
            write_sets: counted.write_sets.load(Relaxed),
            writes: counted.writes.load(Relaxed),
            bytes_written: counted.bytes_written.load(Relaxed),
            syncs: counted.syncs.load(Relaxed),
        }
    }
}

#[cfg(target_os = "linux")]
fn punch_hole(file: &File, range: &Range<u64>) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let len = range.end.saturating_sub(range.start);
    // SAFETY: no memory is passed; the file is open.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, range.start as i64, len as i64) };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // A hint that this file system does not take.
        error if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => Ok(()),
        error => Err(error),
    }
}

#[cfg(not(target_os = "linux"))]
fn punch_hole(_: &File, _: &Range<u64>) -> io::Result<()> {
    Ok(())
}

impl Volume for Disk {
    fn open(&self, name: &str, access: Access) -> Result<FileId> {
        let path = self.member(name)?;
        let mut options = OpenOptions::new();
        options.read(true).write(access.write).create(access.create && access.write);
        options.create_new(access.create_new && access.write);
        let direct = access.direct && self.limits.direct;
        if direct {
            ask_direct(&mut options);
        }
        let file = options.open(path).map_err(|error| Error::from_io("open", name, None, error))?;
        let id = FileId::new(self.next.fetch_add(1, Relaxed));
        self.files.write().insert(id, Arc::new(OpenFile { name: name.to_owned(), file, direct }));
        Ok(id)
    }

    fn close(&self, file: FileId) -> Result<()> {
        let closed = self.files.write().remove(&file);
        closed.map(drop).ok_or_else(|| Error::Invalid(format!("file {} is not open", file.number())))
    }

    fn remove(&self, name: &str) -> Result<()> {
        std::fs::remove_file(self.member(name)?).map_err(|error| Error::from_io("remove", name, None, error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let result = std::fs::rename(self.member(from)?, self.member(to)?);
        result.map_err(|error| Error::from_io("rename", from, None, error))
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let wrap = |error| Error::from_io("list", &self.describe(), None, error);
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(wrap)? {
            let entry = entry.map_err(wrap)?;
            match entry.metadata() {
                Ok(metadata) if metadata.is_file() => {
                    entries.push(Entry {
                        name: entry.file_name().to_string_lossy().into_owned(),
                        len: metadata.len(),
                    });
                }
                Ok(_) => {}
                // Removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(wrap(error)),
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    #[cfg(unix)]
    fn sync_directory(&self) -> Result<()> {
        self.counted.syncs.fetch_add(1, Relaxed);
        let directory = File::open(&self.path).and_then(|directory| directory.sync_all());
        directory.map_err(|error| Error::from_io("sync", &self.describe(), None, error))
    }

    #[cfg(not(unix))]
    fn sync_directory(&self) -> Result<()> {
        Ok(())
    }

    fn lock(&self, kind: LockKind, holder: &str) -> Result<Lock> {
        let path = self.path.join(LOCK_FILE);
        let wrap = |error| Error::from_io("lock", LOCK_FILE, None, error);
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = match opened {
            Err(error) if kind == LockKind::Shared && is_read_only(&error) => match File::open(&path) {
                Ok(file) => file,
                // Nobody can write here, so nobody needs to be kept away.
                Err(_) => return Ok(Lock::new(())),
            },
            other => other.map_err(wrap)?,
        };
        let taken = if kind == LockKind::Exclusive { file.try_lock() } else { file.try_lock_shared() };
        match taken {
            Ok(()) => {
                if kind == LockKind::Exclusive {
                    use std::io::Write as _;
                    // For the message only: a holder that cannot be named still holds.
                    let _ = file.set_len(0).and_then(|()| (&file).write_all(holder.as_bytes()));
                }
                Ok(Lock::new(file))
            }
            Err(TryLockError::WouldBlock) => {
                let holder = std::fs::read_to_string(&path).unwrap_or_default();
                let holder = if holder.is_empty() { "another process".to_owned() } else { holder };
                Err(Error::Locked { volume: self.describe(), holder })
            }
            Err(TryLockError::Error(error)) => Err(wrap(error)),
        }
    }

    fn describe(&self) -> String {
        self.path.display().to_string()
    }
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Disk({}, {})", self.path.display(), self.backend)
    }
}
