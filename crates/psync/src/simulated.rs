//! The simulated volume: a directory in memory that is deterministic by seed, and fails, tears, forgets and lies as it is
//! told, so that a whole store can run, crash and recover inside one test.
//!
//! What survives when the power goes ([`Simulated::power_loss`]):
//! 1. what a finished [`Device::sync`] covered, wholly;
//! 2. of other writes any sectors (512 bytes), in any order: they are lost, torn, reordered;
//! 3. of names made, changed and removed since [`Volume::sync_directory`], any part; a rename is never half done.
//!
//! When only the process dies ([`Simulated::crash`]) every finished write survives.
//!
//! Running out of space, and every other fault, can be ordered for the n-th operation: see [`Fault`].

mod fault;
mod image;

pub use fault::{Fault, Filter, Operation, Repeat};

use crate::{
    Access, Counters, Device, Entry, Error, FileId, Limits, Lock, LockKind, Read, Result, Volume, Write,
};
use fault::Plan;
use image::Image;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// See the module. A clone is another handle on the same volume.
#[derive(Clone)]
pub struct Simulated {
    inner: Arc<Mutex<Inner>>,
    locks: Arc<Mutex<Locks>>,
}

type Inode = u64;

struct Inner {
    rng: StdRng,
    images: HashMap<Inode, Image>,
    names: BTreeMap<String, Inode>,
    durable_names: BTreeMap<String, Inode>,
    pending_names: Vec<NameChange>,
    open: HashMap<FileId, OpenFile>,
    next_inode: Inode,
    next_file: u32,
    limits: Limits,
    capacity: u64,
    counters: Counters,
    plan: Plan,
    powered: bool,
}

#[derive(Clone)]
struct OpenFile {
    inode: Inode,
    name: String,
    direct: bool,
    write: bool,
}

#[derive(Clone)]
enum NameChange {
    Create(String, Inode),
    Rename(String, String, Inode),
    Remove(String),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, Inode>) {
        match self {
            NameChange::Create(name, inode) => {
                names.insert(name.clone(), *inode);
            }
            NameChange::Rename(from, to, inode) => {
                names.remove(from);
                names.insert(to.clone(), *inode);
            }
            NameChange::Remove(name) => {
                names.remove(name);
            }
        }
    }
}

#[derive(Default)]
struct Locks {
    holder: Option<String>,
    sharers: usize,
}

struct LockGuard {
    locks: Arc<Mutex<Locks>>,
    kind: LockKind,
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let mut locks = self.locks.lock();
        match self.kind {
            LockKind::Exclusive => locks.holder = None,
            LockKind::Shared => locks.sharers -= 1,
        }
    }
}

impl Simulated {
    /// An empty volume: alignment 512, PioMax 64, no end of space.
    pub fn new(seed: u64) -> Self {
        Self::with_limits(seed, Limits { alignment: 512, pio_max: 64, direct: true })
    }

    /// An empty volume that asks for other requests.
    pub fn with_limits(seed: u64, limits: Limits) -> Self {
        let inner = Inner {
            rng: StdRng::seed_from_u64(seed),
            images: HashMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            open: HashMap::new(),
            next_inode: 0,
            next_file: 0,
            limits,
            capacity: u64::MAX,
            counters: Counters::default(),
            plan: Plan::default(),
            powered: true,
        };
        Self { inner: Arc::new(Mutex::new(inner)), locks: Arc::default() }
    }

    fn image(&self, seed: u64, images: HashMap<Inode, Image>, names: BTreeMap<String, Inode>) -> Self {
        let inner = self.inner.lock();
        let next = Self::with_limits(seed, inner.limits);
        {
            let mut fresh = next.inner.lock();
            fresh.images = images;
            fresh.names = names.clone();
            fresh.durable_names = names;
            fresh.next_inode = inner.next_inode;
            fresh.capacity = inner.capacity;
        }
        next
    }

    /// The volume as it would be found if the power went now. This one goes on as if nothing had happened.
    pub fn power_loss(&self, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let (images, names) = {
            let inner = self.inner.lock();
            let mut names = inner.durable_names.clone();
            // A journal keeps the order and loses the end; without one, any of the changes may be missing.
            let journal = rng.random_bool(0.5);
            let kept = rng.random_range(0..=inner.pending_names.len());
            for (index, change) in inner.pending_names.iter().enumerate() {
                if if journal { index < kept } else { rng.random_bool(0.5) } {
                    change.apply(&mut names);
                }
            }
            let mut inodes: Vec<_> = names.values().copied().collect();
            inodes.sort_unstable();
            inodes.dedup();
            let images: HashMap<_, _> = inodes
                .into_iter()
                .filter_map(|inode| Some((inode, inner.images.get(&inode)?.after_power_loss(&mut rng))))
                .collect();
            (images, names)
        };
        self.image(seed, images, names)
    }

    /// The volume as it would be found if the process died now. This one goes on as if nothing had happened.
    pub fn crash(&self) -> Self {
        let (images, names) = {
            let inner = self.inner.lock();
            (inner.images.clone(), inner.names.clone())
        };
        let next = self.image(0, images, names);
        {
            // What is not durable is still not durable.
            let inner = self.inner.lock();
            let mut fresh = next.inner.lock();
            fresh.durable_names = inner.durable_names.clone();
            fresh.pending_names = inner.pending_names.clone();
        }
        next
    }

    /// Orders a fault at the `nth` operation from now (1 is the next) that matches the filter.
    pub fn fail_nth(&self, filter: Filter, nth: u64, fault: Fault, repeat: Repeat) {
        self.inner.lock().plan.add(filter, nth, fault, repeat);
    }

    /// Cancels all faults that were ordered.
    pub fn clear_faults(&self) {
        self.inner.lock().plan.clear();
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.inner.lock().plan.operations
    }

    /// Faults that happened so far.
    pub fn fired(&self) -> u64 {
        self.inner.lock().plan.fired
    }

    /// How many bytes (in pages of 4 KiB that were written) fit from now on.
    pub fn set_capacity(&self, bytes: u64) {
        self.inner.lock().capacity = bytes;
    }

    /// Bytes (in pages of 4 KiB) that all files take.
    pub fn allocated(&self) -> u64 {
        self.inner.lock().allocated()
    }

    /// Names of all files, in order.
    pub fn names(&self) -> Vec<String> {
        self.inner.lock().names.keys().cloned().collect()
    }

    /// The whole content of a file, past all faults. `None` if there is no such file.
    pub fn read_file(&self, name: &str) -> Option<Vec<u8>> {
        let inner = self.inner.lock();
        let image = inner.images.get(inner.names.get(name)?)?;
        let mut bytes = vec![0; image.now.len as usize];
        image.now.read(0, &mut bytes);
        Some(bytes)
    }

    /// Changes a file's content, past all faults and durably; creates the file if it is missing.
    pub fn edit_file(&self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.read_file(name).unwrap_or_default();
        edit(&mut bytes);
        let mut inner = self.inner.lock();
        let inode = match inner.names.get(name) {
            Some(inode) => *inode,
            None => {
                inner.next_inode += 1;
                let inode = inner.next_inode;
                inner.names.insert(name.into(), inode);
                inner.durable_names.insert(name.into(), inode);
                inode
            }
        };
        let image = inner.images.entry(inode).or_default();
        image.now.resize(0);
        image.now.write(0, &bytes);
        image.settle();
    }

    /// Removes a file, past all faults and durably.
    pub fn remove_file(&self, name: &str) {
        let mut inner = self.inner.lock();
        inner.names.remove(name);
        inner.durable_names.remove(name);
    }
}

impl Inner {
    fn allocated(&self) -> u64 {
        let mut inodes: Vec<_> = self.names.values().collect();
        inodes.sort_unstable();
        inodes.dedup();
        inodes.into_iter().filter_map(|inode| self.images.get(inode)).map(|image| image.now.allocated()).sum()
    }

    fn fault(&mut self, kind: Operation, file: &str) -> Result<Option<Fault>> {
        if !self.powered {
            return Err(failed("reach", file, None, "the power is off"));
        }
        let fault = self.plan.next(kind, file);
        if fault == Some(Fault::PowerOff) {
            self.powered = false;
        }
        Ok(fault)
    }

    fn file(&self, id: FileId) -> Result<OpenFile> {
        self.open.get(&id).cloned().ok_or_else(|| Error::Invalid(format!("file {} is not open", id.number())))
    }

    fn check(&self, file: &OpenFile, offset: u64, len: usize) -> Result<()> {
        let alignment = self.limits.alignment;
        if len == 0 || (file.direct && !(offset as usize | len).is_multiple_of(alignment)) {
            return Err(Error::Invalid(format!(
                "{}: {len} bytes at {offset} are not multiples of {alignment}",
                file.name
            )));
        }
        Ok(())
    }

    /// For operations other than reads and writes: fails as planned, before anything happened.
    fn plain(&mut self, kind: Operation, operation: &'static str, file: &str) -> Result<()> {
        match self.fault(kind, file)? {
            None => Ok(()),
            Some(Fault::NoSpace) => Err(full(operation, file)),
            Some(Fault::PowerOff) => Err(failed(operation, file, None, "the power went")),
            Some(_) => Err(failed(operation, file, None, "an error that was ordered")),
        }
    }

    fn write_one(&mut self, file: &OpenFile, offset: u64, data: &[u8]) -> Result<()> {
        let fault = self.fault(Operation::Write, &file.name)?;
        let whole = data.len();
        let part = self.rng.random_range(0..=whole);
        let bit = self.rng.random_range(0..whole * 8);
        let taken = self.allocated();
        let image = self.images.entry(file.inode).or_default();
        if taken.saturating_add(image.now.would_add(offset, whole)) > self.capacity {
            return Err(full("write", &file.name));
        }
        match fault {
            None => image.write(offset, data),
            Some(Fault::Lose) => {}
            Some(Fault::Misdirect(by)) => image.write(offset + by, data),
            Some(Fault::FlipBit) => {
                let mut flipped = data.to_vec();
                flipped[bit / 8] ^= 1 << (bit % 8);
                image.write(offset, &flipped);
            }
            Some(fault) => {
                if part > 0 {
                    image.write(offset, &data[..part]);
                }
                return Err(match fault {
                    Fault::NoSpace => full("write", &file.name),
                    Fault::Short => Error::Short {
                        operation: "write",
                        file: file.name.clone(),
                        offset,
                        expected: whole,
                        found: part,
                    },
                    Fault::PowerOff => failed("write", &file.name, Some(offset), "the power went"),
                    _ => failed("write", &file.name, Some(offset), "an error that was ordered"),
                });
            }
        }
        Ok(())
    }

    fn read_one(&mut self, file: &OpenFile, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let fault = self.fault(Operation::Read, &file.name)?;
        let expected = buffer.len();
        let bit = self.rng.random_range(0..expected * 8);
        let image = self.images.entry(file.inode).or_default();
        let available = image.now.len.saturating_sub(offset).min(expected as u64) as usize;
        let short =
            |found| Error::Short { operation: "read", file: file.name.clone(), offset, expected, found };
        match fault {
            None | Some(Fault::FlipBit) => {
                if available < expected {
                    return Err(short(available));
                }
                image.now.read(offset, buffer);
                if fault.is_some() {
                    buffer[bit / 8] ^= 1 << (bit % 8);
                }
                Ok(())
            }
            Some(Fault::Short) => Err(short(available / 2)),
            Some(_) => Err(failed("read", &file.name, Some(offset), "an error that was ordered")),
        }
    }
}

fn failed(operation: &'static str, file: &str, offset: Option<u64>, why: &str) -> Error {
    Error::Io { operation, file: file.into(), offset, source: io::Error::other(why.to_owned()) }
}

fn full(operation: &'static str, file: &str) -> Error {
    Error::Full { operation, file: file.into(), source: io::Error::from(io::ErrorKind::StorageFull) }
}

impl Device for Simulated {
    fn read(&self, set: &mut [Read<'_>]) -> Result<()> {
        let mut inner = self.inner.lock();
        let files = set.iter().map(|read| inner.file(read.file)).collect::<Result<Vec<_>>>()?;
        for (read, file) in set.iter().zip(&files) {
            inner.check(file, read.offset, read.buffer.len())?;
        }
        inner.counters.read_sets += set.len().div_ceil(inner.limits.pio_max) as u64;
        inner.counters.reads += set.len() as u64;
        inner.counters.bytes_read += set.iter().map(|read| read.buffer.len() as u64).sum::<u64>();
        let mut result = Ok(());
        for (read, file) in set.iter_mut().zip(&files) {
            let one = inner.read_one(file, read.offset, read.buffer);
            result = result.and(one);
        }
        result
    }

    fn write(&self, set: &[Write<'_>]) -> Result<()> {
        let mut inner = self.inner.lock();
        let files = set.iter().map(|write| inner.file(write.file)).collect::<Result<Vec<_>>>()?;
        for (write, file) in set.iter().zip(&files) {
            inner.check(file, write.offset, write.data.len())?;
            if !file.write {
                return Err(Error::Invalid(format!("{} is open for reading only", file.name)));
            }
        }
        crate::request::refuse_overlap(set)?;
        inner.counters.write_sets += set.len().div_ceil(inner.limits.pio_max) as u64;
        inner.counters.writes += set.len() as u64;
        inner.counters.bytes_written += set.iter().map(|write| write.data.len() as u64).sum::<u64>();
        let mut result = Ok(());
        for (write, file) in set.iter().zip(&files) {
            let one = inner.write_one(file, write.offset, write.data);
            result = result.and(one);
        }
        result
    }

    fn sync(&self, file: FileId) -> Result<()> {
        let mut inner = self.inner.lock();
        let file = inner.file(file)?;
        inner.counters.syncs += 1;
        let result = inner.plain(Operation::Sync, "sync", &file.name);
        let powered = inner.powered;
        let image = inner.images.entry(file.inode).or_default();
        match &result {
            Ok(()) => image.sync(),
            Err(_) if powered => image.doom(),
            Err(_) => {}
        }
        result
    }

    fn len(&self, file: FileId) -> Result<u64> {
        let mut inner = self.inner.lock();
        let inode = inner.file(file)?.inode;
        Ok(inner.images.entry(inode).or_default().now.len)
    }

    fn resize(&self, file: FileId, len: u64) -> Result<()> {
        let mut inner = self.inner.lock();
        let file = inner.file(file)?;
        inner.plain(Operation::Resize, "resize", &file.name)?;
        inner.images.entry(file.inode).or_default().resize(len);
        Ok(())
    }

    fn release(&self, file: FileId, range: Range<u64>) -> Result<()> {
        let mut inner = self.inner.lock();
        let file = inner.file(file)?;
        inner.plain(Operation::Release, "release", &file.name)?;
        inner.images.entry(file.inode).or_default().release(range.start, range.end);
        Ok(())
    }

    fn limits(&self) -> Limits {
        self.inner.lock().limits
    }

    fn counters(&self) -> Counters {
        self.inner.lock().counters
    }
}

impl Volume for Simulated {
    fn open(&self, name: &str, access: Access) -> Result<FileId> {
        let mut inner = self.inner.lock();
        inner.plain(Operation::Open, "open", name)?;
        let inode = match inner.names.get(name).copied() {
            Some(_) if access.create_new => return Err(Error::Exists { file: name.into() }),
            Some(inode) => inode,
            None if access.create || access.create_new => {
                inner.next_inode += 1;
                let inode = inner.next_inode;
                inner.images.insert(inode, Image::default());
                inner.names.insert(name.into(), inode);
                inner.pending_names.push(NameChange::Create(name.into(), inode));
                inode
            }
            None => return Err(Error::NotFound { file: name.into() }),
        };
        let id = FileId::new(inner.next_file);
        inner.next_file += 1;
        let file = OpenFile { inode, name: name.into(), direct: access.direct, write: access.write };
        inner.open.insert(id, file);
        Ok(id)
    }

    fn close(&self, file: FileId) -> Result<()> {
        let closed = self.inner.lock().open.remove(&file);
        closed.map(drop).ok_or_else(|| Error::Invalid(format!("file {} is not open", file.number())))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.plain(Operation::Remove, "remove", name)?;
        inner.names.remove(name).ok_or_else(|| Error::NotFound { file: name.into() })?;
        inner.pending_names.push(NameChange::Remove(name.into()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.plain(Operation::Rename, "rename", from)?;
        let inode = inner.names.get(from).copied().ok_or_else(|| Error::NotFound { file: from.into() })?;
        let change = NameChange::Rename(from.into(), to.into(), inode);
        change.apply(&mut inner.names);
        inner.pending_names.push(change);
        Ok(())
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let mut inner = self.inner.lock();
        inner.plain(Operation::List, "list", "the directory")?;
        let len = |inode| inner.images.get(inode).map_or(0, |image| image.now.len);
        Ok(inner.names.iter().map(|(name, inode)| Entry { name: name.clone(), len: len(inode) }).collect())
    }

    fn sync_directory(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.counters.syncs += 1;
        inner.plain(Operation::SyncDirectory, "sync", "the directory")?;
        inner.durable_names = inner.names.clone();
        inner.pending_names.clear();
        // Files that nobody can reach any more are gone.
        let Inner { images, names, open, .. } = &mut *inner;
        images.retain(|inode, _| {
            names.values().any(|n| n == inode) || open.values().any(|file| file.inode == *inode)
        });
        Ok(())
    }

    fn lock(&self, kind: LockKind, holder: &str) -> Result<Lock> {
        let mut locks = self.locks.lock();
        let locked = |holder: &str| Error::Locked { volume: self.describe(), holder: holder.into() };
        if let Some(other) = &locks.holder {
            return Err(locked(other));
        }
        match kind {
            LockKind::Exclusive if locks.sharers > 0 => return Err(locked("a reader")),
            LockKind::Exclusive => locks.holder = Some(holder.into()),
            LockKind::Shared => locks.sharers += 1,
        }
        drop(locks);
        Ok(Lock::new(LockGuard { locks: Arc::clone(&self.locks), kind }))
    }

    fn describe(&self) -> String {
        "a simulated volume".into()
    }
}

impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Simulated({:?})", self.names())
    }
}
