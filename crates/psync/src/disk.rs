//! A real directory as a [`Volume`]: names, checks, limits, counters and errors. A backend moves the bytes.
//!
//! Invariants:
//! 1. A request reaches the backend only after its whole set has been checked against the contract of
//!    [`Device`].
//! 2. A file id is never reused.
//! 3. No call with a file's id can cut or release the part of that file that a window of this id shows.
//! 4. Names are those of the directory that was opened ([`directory`](crate::directory)). Once the volume is
//!    identified by a file ([`Volume::identify_by`]), nothing is created, renamed or removed, and no sync
//!    succeeds, where that file's name no longer leads to it.
//! 5. A sync of a file whose last name somebody else has removed fails: nobody would find the file again.

mod open_files;

use crate::boot;
use crate::completion::{complete, complete_one};
use crate::directory::{Directory, Identity, cannot_sync, is_removed};
use crate::disk_options::{Backend, DiskOptions};
use crate::forked::{OfProcess, Process};
use crate::in_flight::DiskReads;
use crate::lock::{Mutex, RwLock};
use crate::lock_file::{self, Held};
use crate::make_directory::make_directory;
use crate::mapping;
use crate::stall::Stalls;
use crate::transfer::{Memory, Mover, OwnedRead, Transfer};
use crate::{
    Access, Counters, Device, Entry, Error, FileId, InFlight, Limits, Lock, LockKind, Read, ReadInto,
    Request, Result, Volume, Window, Write, direct, threads,
};
use open_files::{Files, OpenFile};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// See the module documentation.
pub struct Disk {
    /// Where it was when it was opened, for messages.
    path: PathBuf,
    directory: Directory,
    process: Process,
    /// The file that the volume is known by.
    identified_by: RwLock<Option<Arc<OpenFile>>>,
    /// The lock that was taken last, if it is still held.
    locked: Mutex<Weak<Held>>,
    /// How the first sync of the directory failed that did. Held during a sync: two threads must not share a failure so that one is not
    /// told.
    directory_failed: Mutex<Option<io::ErrorKind>>,
    mover: Arc<dyn Mover>,
    backend: Backend,
    limits: Limits,
    notes: Vec<String>,
    files: RwLock<Files>,
    next: AtomicU64,
    counted: Counted,
    stalls: Arc<Stalls>,
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

impl Disk {
    /// Opens the directory `path`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Invalid`] for options out of range, or the system's error.
    pub fn open(path: impl AsRef<Path>, options: DiskOptions) -> Result<Self> {
        let shown = path.as_ref().display().to_string();
        if path.as_ref().as_os_str().is_empty() {
            return Err(Error::NotADirectory { path: shown, what: "the path is empty: name a directory" });
        }
        // For messages, when the process may be in another directory.
        let path = std::path::absolute(path).map_err(|error| Error::from_io("open", &shown, None, error))?;
        if !(1..=4096).contains(&options.pio_max) {
            return Err(Error::Invalid(format!("pio_max is {}, but must be 1 to 4096", options.pio_max)));
        }
        if options.io_timeout < Duration::from_millis(1) {
            let time = options.io_timeout;
            return Err(Error::Invalid(format!("io_timeout is {time:?}, but must be at least 1 ms")));
        }
        refuse_other_than_directory(&path)?;
        if options.create {
            make_directory(&path)?;
        }
        let directory =
            Directory::open(&path).map_err(|error| Error::from_io("open", &shown, None, error))?;
        let mut notes = Vec::new();
        let stalls = Arc::new(Stalls::new(options.stall_warning, options.io_timeout));
        let (mover, backend) = choose(&options, &stalls, &mut notes)
            .map_err(|error| Error::from_io("set up I/O for", &shown, None, error))?;
        let alignment = match options.direct.then(|| direct::alignment(&directory)) {
            None => None,
            Some(Ok(alignment)) => Some(alignment),
            Some(Err(error)) => {
                notes.push(format!("direct I/O is not to be had in {shown} ({error}): using the page cache"));
                None
            }
        };
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
            directory,
            process: Process::this(),
            identified_by: RwLock::default(),
            locked: Mutex::default(),
            directory_failed: Mutex::default(),
            mover,
            backend,
            limits,
            notes,
            files: RwLock::default(),
            next: AtomicU64::new(0),
            counted: Counted::default(),
            stalls,
        })
    }

    /// Notes for people: what is not available here, and why.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The backend in use (never [`Backend::Auto`]).
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Reads and writes at the same time, in the order of the set. A store does not need this: sets of a
    /// [`Device`] are all reads or all writes, since flash is slower with a mixture. This serves to measure how
    /// much slower.
    ///
    /// Counts as one set of each kind in it. A read and a write of the same bytes may or may not see each
    /// other.
    ///
    /// # Errors
    /// As [`Device::read`] and [`Device::write`], and [`Error::Invalid`] for more than [`Limits::pio_max`]
    /// requests: split sets would not measure what was intended.
    pub fn mingled(&self, set: &mut [Request<'_>]) -> Result<()> {
        let pio_max = self.limits.pio_max;
        if set.len() > pio_max {
            return Err(Error::Invalid(format!("a mingled set of {}, but pio_max is {pio_max}", set.len())));
        }
        let mut files = Vec::with_capacity(set.len());
        let mut writes = Vec::new();
        for request in &*set {
            let (file, offset, memory) = match request {
                Request::Read(read) => (self.file(read.file)?, read.offset, &*read.buffer),
                Request::Write(write) => {
                    writes.push(*write);
                    (self.writable(write.file)?, write.offset, write.data)
                }
            };
            self.check(&file, offset, memory.as_ptr() as usize, memory.len())?;
            files.push(file);
        }
        crate::request::refuse_overlap(&writes)?;
        let reads = set.len() - writes.len();
        let bytes_written = writes.iter().map(|write| write.data.len()).sum::<usize>() as u64;
        let transfers: Vec<_> = set
            .iter_mut()
            .zip(&files)
            .map(|(request, file)| {
                let (offset, memory) = match request {
                    Request::Read(read) => (read.offset, Memory::Into(read.buffer)),
                    Request::Write(write) => (write.offset, Memory::From(write.data)),
                };
                Transfer { file: &file.file, offset, memory, outcome: Ok(0) }
            })
            .collect();
        let bytes = transfers.iter().map(|transfer| transfer.memory.len()).sum::<usize>() as u64;
        self.counted.read_sets.fetch_add(u64::from(reads > 0), Relaxed);
        self.counted.reads.fetch_add(reads as u64, Relaxed);
        self.counted.bytes_read.fetch_add(bytes - bytes_written, Relaxed);
        self.counted.write_sets.fetch_add(u64::from(!writes.is_empty()), Relaxed);
        self.counted.writes.fetch_add(writes.len() as u64, Relaxed);
        self.counted.bytes_written.fetch_add(bytes_written, Relaxed);
        complete(&*self.mover, transfers, "mingled transfer", |index| &files[index].name)
    }

    fn file(&self, id: FileId) -> Result<Arc<OpenFile>> {
        self.process.check()?;
        self.files.read().get(id).cloned()
    }

    /// The files of a set of reads, if all of them may be carried out.
    fn readable<'a>(&self, set: impl Iterator<Item = (FileId, u64, &'a [u8])>) -> Result<Vec<Arc<OpenFile>>> {
        let mut last: Option<(FileId, Arc<OpenFile>)> = None;
        let checked = set.map(|(id, offset, buffer)| {
            // Mostly all reads of a set are of one file.
            let file = match &last {
                Some((last_id, file)) if *last_id == id => Arc::clone(file),
                _ => Arc::clone(&last.insert((id, self.file(id)?)).1),
            };
            self.check(&file, offset, buffer.as_ptr() as usize, buffer.len())?;
            Ok(file)
        });
        checked.collect()
    }

    /// A set of one read, as [`Device::read`] does it, without a list of anything.
    fn read_one(&self, read: &mut Read<'_>) -> Result<()> {
        let file = self.file(read.file)?;
        self.check(&file, read.offset, read.buffer.as_ptr() as usize, read.buffer.len())?;
        self.count_reads([read.buffer.len()].into_iter());
        let memory = Memory::Into(read.buffer);
        let transfer = Transfer { file: &file.file, offset: read.offset, memory, outcome: Ok(0) };
        complete_one(&*self.mover, transfer, "read", &file.name)
    }

    /// Counts a set of reads of the given lengths.
    fn count_reads(&self, lens: impl ExactSizeIterator<Item = usize>) {
        self.counted.read_sets.fetch_add(1, Relaxed);
        self.counted.reads.fetch_add(lens.len() as u64, Relaxed);
        self.counted.bytes_read.fetch_add(lens.map(|len| len as u64).sum(), Relaxed);
    }

    /// Starts as many of the checked reads as fit into one set, namely the last ones. Completes the others
    /// first.
    fn begin_checked(&self, mut reads: Vec<ReadInto>, files: &[Arc<OpenFile>]) -> Result<InFlight> {
        let pio_max = self.limits.pio_max;
        let first = reads.len().saturating_sub(1) / pio_max * pio_max;
        let last = reads.split_off(first);
        let mut filled = InFlight::at_once(reads, |set| self.read(set)).wait()?;
        if last.is_empty() {
            return Ok(InFlight::ended(Ok(filled)));
        }
        self.count_reads(last.iter().map(|read| read.buffer.len()));
        let files = &files[first..];
        let owned = last.into_iter().zip(files).map(|(ReadInto { offset, buffer, .. }, file)| OwnedRead {
            file: Arc::clone(&file.file),
            offset,
            buffer,
            outcome: Ok(0),
        });
        match self.mover.begin(owned.collect()) {
            Ok(begun) => {
                let names = files.iter().map(|file| Arc::clone(&file.name)).collect();
                let begun = OfProcess::new(begun);
                Ok(InFlight::begun(DiskReads { filled, begun, names, mover: Arc::clone(&self.mover) }))
            }
            Err(mut owned) => {
                let transfers = owned.iter_mut().map(OwnedRead::transfer).collect();
                complete(&*self.mover, transfers, "read", |index| &files[index].name)?;
                filled.extend(owned.into_iter().map(|read| read.buffer));
                Ok(InFlight::ended(Ok(filled)))
            }
        }
    }

    /// Like `file`, but refuses files that are open read-only.
    fn writable(&self, id: FileId) -> Result<Arc<OpenFile>> {
        let file = self.file(id)?;
        if file.write {
            Ok(file)
        } else {
            Err(Error::Invalid(format!("{} is open for reading only", file.name)))
        }
    }

    /// Sees to it that this process may ask, and that the volume is still the one that was opened.
    fn check_identity(&self) -> Result<()> {
        self.process.check()?;
        let Some(file) = self.identified_by.read().clone() else { return Ok(()) };
        let found = self.directory.has(&file.name, &file.identity);
        if found.map_err(|error| Error::from_io("stat", &file.name, None, error))? {
            return Ok(());
        }
        Err(self.gone(format!("its file {} was removed, or is another file now", file.name)))
    }

    fn gone(&self, what: String) -> Error {
        Error::Gone { volume: self.describe(), what }
    }

    /// Whether what was synced can be found again.
    fn check_synced(&self, file: &OpenFile) -> Result<()> {
        let wrap = |error| Error::from_io("stat", &file.name, None, error);
        if is_removed(&file.file).map_err(wrap)? && !file.lost_name.load(Relaxed) {
            return Err(self.gone(format!("its file {} was removed", file.name)));
        }
        self.check_identity()
    }

    /// Does something that takes its name from whatever file has `name`.
    fn taking_name<T>(&self, name: &str, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        // Beforehand: another thread may be about to sync it.
        let taken = self.directory.identity(name)?;
        // The lock is not held while the name is taken: removing a long file takes long, and all others would wait.
        let losers: Vec<_> =
            self.files.read().all().filter(|file| Some(file.identity) == taken).cloned().collect();
        losers.iter().for_each(|file| file.lost_name.store(true, Relaxed));
        let done = work();
        if done.is_err() {
            losers.iter().for_each(|file| file.lost_name.store(false, Relaxed));
        }
        done
    }

    fn check(&self, file: &OpenFile, offset: u64, address: usize, len: usize) -> Result<()> {
        let wrong = |what: String| Err(Error::Invalid(format!("{}: {what}", file.name)));
        if len == 0 {
            return wrong(format!("a request of no bytes at {offset}"));
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
}

/// Refuses a path that leads to a file, or through one, or nowhere by a link.
fn refuse_other_than_directory(path: &Path) -> Result<()> {
    let Some(found) = path.ancestors().find(|path| path.symlink_metadata().is_ok()) else { return Ok(()) };
    let what = match found.metadata() {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => "it is a file, where a directory is needed",
        Err(error) if error.kind() == io::ErrorKind::NotFound => "it is a symbolic link that leads nowhere",
        Err(error) => return Err(Error::from_io("open", &found.display().to_string(), None, error)),
    };
    Err(Error::NotADirectory { path: found.display().to_string(), what })
}

/// Refuses what is not a name in a directory.
fn check_name(name: &str) -> Result<()> {
    let plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0']);
    if plain { Ok(()) } else { Err(Error::Invalid(format!("{name:?} is not a plain file name"))) }
}

/// The requested backend; for `Auto`, the first one that works.
fn choose(
    options: &DiskOptions,
    stalls: &Arc<Stalls>,
    notes: &mut Vec<String>,
) -> io::Result<(Arc<dyn Mover>, Backend)> {
    let candidates: &[Backend] = match &options.backend {
        Backend::Auto if cfg!(target_os = "linux") => &[Backend::Uring, Backend::Libaio, Backend::Threads],
        Backend::Auto => &[Backend::Threads],
        one => std::slice::from_ref(one),
    };
    let mut last = io::Error::from(io::ErrorKind::Unsupported);
    for candidate in candidates {
        match make(*candidate, options, stalls) {
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
fn make(
    backend: Backend,
    &DiskOptions { pio_max, busy_wait, .. }: &DiskOptions,
    stalls: &Arc<Stalls>,
) -> io::Result<Arc<dyn Mover>> {
    Ok(match backend {
        Backend::Uring => Arc::new(crate::uring::Uring::new(pio_max, busy_wait, Arc::clone(stalls))?),
        Backend::Libaio => Arc::new(crate::libaio::Libaio::new(pio_max, Arc::clone(stalls))?),
        Backend::Threads | Backend::Auto => Arc::new(threads::Threads::new(pio_max)?),
    })
}

#[cfg(not(target_os = "linux"))]
fn make(
    backend: Backend,
    &DiskOptions { pio_max, .. }: &DiskOptions,
    _: &Arc<Stalls>,
) -> io::Result<Arc<dyn Mover>> {
    match backend {
        Backend::Uring | Backend::Libaio => Err(io::Error::from(io::ErrorKind::Unsupported)),
        Backend::Threads | Backend::Auto => Ok(Arc::new(threads::Threads::new(pio_max)?)),
    }
}

impl Device for Disk {
    fn read(&self, set: &mut [Read<'_>]) -> Result<()> {
        if let [one] = set {
            return self.read_one(one);
        }
        let files = self.readable(set.iter().map(|read| (read.file, read.offset, &*read.buffer)))?;
        let pio_max = self.limits.pio_max;
        for (part, files) in set.chunks_mut(pio_max).zip(files.chunks(pio_max)) {
            self.count_reads(part.iter().map(|read| read.buffer.len()));
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
            complete(&*self.mover, transfers, "read", |index| &files[index].name)?;
        }
        Ok(())
    }

    fn begin(&self, reads: Vec<ReadInto>) -> InFlight {
        let files = self.readable(reads.iter().map(|read| (read.file, read.offset, &*read.buffer)));
        let begun = files.and_then(|files| self.begin_checked(reads, &files));
        begun.unwrap_or_else(|error| InFlight::ended(Err(error)))
    }

    fn write(&self, set: &[Write<'_>]) -> Result<()> {
        let files = set.iter().map(|write| self.writable(write.file)).collect::<Result<Vec<_>>>()?;
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
            complete(&*self.mover, transfers, "write", |index| &files[index].name)?;
        }
        Ok(())
    }

    fn sync(&self, file: FileId) -> Result<()> {
        let file = self.file(file)?;
        self.counted.syncs.fetch_add(1, Relaxed);
        file.file.sync_data().map_err(|error| Error::from_io("sync", &file.name, None, error))?;
        self.check_synced(&file)
    }

    fn sync_part(&self, written: Write<'_>) -> Result<()> {
        let Write { file: id, offset, data } = written;
        let file = self.writable(id)?;
        self.check(&file, offset, data.as_ptr() as usize, data.len())?;
        match direct::sync_part(&file.file, data, offset) {
            Ok(false) => self.sync(id),
            done => {
                self.counted.syncs.fetch_add(1, Relaxed);
                done.map_err(|error| Error::from_io("sync", &file.name, Some(offset), error))?;
                self.check_synced(&file)
            }
        }
    }

    fn len(&self, file: FileId) -> Result<u64> {
        let file = self.file(file)?;
        let metadata =
            file.file.metadata().map_err(|error| Error::from_io("stat", &file.name, None, error))?;
        Ok(metadata.len())
    }

    fn resize(&self, file: FileId, len: u64) -> Result<()> {
        let file = self.writable(file)?;
        file.mapped.unless(&file.name, len..u64::MAX, || {
            file.file.set_len(len).map_err(|error| Error::from_io("resize", &file.name, None, error))
        })
    }

    fn release(&self, file: FileId, range: Range<u64>) -> Result<()> {
        let file = self.writable(file)?;
        file.mapped.unless(&file.name, range.clone(), || {
            direct::release(&file.file, &range)
                .map_err(|error| Error::from_io("release", &file.name, Some(range.start), error))
        })
    }

    fn allocate(&self, file: FileId, range: Range<u64>) -> Result<()> {
        let opened = self.writable(file)?;
        let allocated = direct::allocate(&opened.file, &range)
            .map_err(|error| Error::from_io("allocate", &opened.name, Some(range.start), error))?;
        if allocated { Ok(()) } else { crate::device::write_zeros(self, file, range) }
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
            stalls: self.stalls.count(),
            longest_stall_ms: self.stalls.longest_ms(),
            timeouts: self.stalls.timeouts(),
        }
    }
}

impl Volume for Disk {
    fn open(&self, name: &str, access: Access) -> Result<FileId> {
        check_name(name)?;
        if access.write && (access.create || access.create_new) {
            self.check_identity()?;
        }
        self.process.check()?;
        let direct = access.direct && self.limits.direct;
        let wrap = |error| Error::from_io("open", name, None, error);
        let file = self.directory.open_file(name, access, direct).map_err(wrap)?;
        if !file.metadata().map_err(wrap)?.is_file() {
            return Err(Error::Invalid(format!("{name} is not a plain file")));
        }
        let identity = Identity::of(&file).map_err(wrap)?;
        let id = FileId::new(self.next.fetch_add(1, Relaxed));
        let opened = OpenFile {
            name: name.into(),
            file: Arc::new(file),
            direct,
            write: access.write,
            mapped: Arc::default(),
            identity,
            lost_name: AtomicBool::new(false),
        };
        self.files.write().insert(id, opened);
        Ok(id)
    }

    fn close(&self, file: FileId) -> Result<()> {
        // The system closes the file after the lock on `files` is released.
        let closed = self.files.write().remove(file)?;
        let mut identified_by = self.identified_by.write();
        if identified_by.as_ref().is_some_and(|file| Arc::ptr_eq(file, &closed)) {
            // Another database on this volume, a follower say, may have opened it too.
            *identified_by = self.files.read().of_identity(closed.identity);
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        self.check_identity()?;
        let removed = self.taking_name(name, || self.directory.remove(name));
        removed.map_err(|error| Error::from_io("remove", name, None, error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        self.check_identity()?;
        let renamed = self.taking_name(to, || self.directory.rename(from, to));
        renamed.map_err(|error| Error::from_io("rename", from, None, error))
    }

    fn list(&self) -> Result<Vec<Entry>> {
        self.process.check()?;
        let listed = self.directory.list();
        let mut entries = listed.map_err(|error| Error::from_io("list", &self.describe(), None, error))?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn names(&self) -> Result<Vec<String>> {
        self.process.check()?;
        self.directory.names().map_err(|error| Error::from_io("list", &self.describe(), None, error))
    }

    fn sync_directory(&self) -> Result<()> {
        self.process.check()?;
        let mut failed = self.directory_failed.lock();
        if let Some(kind) = *failed {
            let source = io::Error::new(kind, "an earlier sync of the directory has failed");
            return Err(Error::Io { operation: "sync", file: self.describe(), offset: None, source });
        }
        self.counted.syncs.fetch_add(1, Relaxed);
        self.directory.sync().map_err(|error| {
            if cannot_sync(&error) {
                return Error::NotSynced { directory: self.describe(), source: error };
            }
            *failed = Some(error.kind());
            Error::from_io("sync", &self.describe(), None, error)
        })?;
        drop(failed);
        self.check_identity()
    }

    fn lock(&self, kind: LockKind, holder: &str) -> Result<Lock> {
        self.process.check()?;
        let held = Arc::new(lock_file::take(&self.directory, &self.path, kind, holder)?);
        *self.locked.lock() = Arc::downgrade(&held);
        Ok(Lock::new(held))
    }

    fn identify_by(&self, file: FileId) -> Result<()> {
        let file = self.file(file)?;
        if let Some(held) = self.locked.lock().upgrade() {
            held.lock_too(&self.directory, &file.name)?;
        }
        *self.identified_by.write() = Some(file);
        self.check_identity()
    }

    fn verify(&self) -> Result<()> {
        self.check_identity()
    }

    fn window(&self, file: FileId, range: Range<u64>) -> Result<Option<Box<dyn Window>>> {
        let file = self.writable(file)?;
        if file.direct {
            // Direct I/O bypasses the page cache, in which a window lies.
            return Ok(None);
        }
        mapping::window(&file.mapped, &file.file, &file.name, range)
    }

    fn boot_id(&self) -> [u8; 16] {
        boot::id()
    }

    fn describe(&self) -> String {
        self.path.display().to_string()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.process.is_forked() {
            // The threads and rings behind it are the parent's.
            std::mem::forget(Arc::clone(&self.mover));
        }
    }
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Disk({}, {})", self.path.display(), self.backend)
    }
}
