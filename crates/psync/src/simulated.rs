//! A volume in memory that loses power, fails and lies on demand, reproducibly for the same seed.
//!
//! Invariants:
//! 1. between faults, it keeps the contract of [`Device`] and [`Volume`] like a real disk, alignment included;
//! 2. an image ([`Simulated::crash`], [`Simulated::power_loss`]) is a volume of its own, and taking it does not
//!    affect the original volume;
//! 3. its behaviour depends only on the seeds and the order of operations.

mod content;
mod damage;
mod directory;
mod faults;
mod node;
mod power;
mod state;
mod window;

pub use faults::{Fault, Filter, OperationKind, Repeat};

use crate::lock::Mutex;
use crate::{
    Access, Counters, Device, Entry, Error, FileId, Limits, Lock, LockKind, Read, Result, Volume, Window,
    Write,
};
use directory::NameChange;
use faults::Action;
use node::{Change, Node};
use state::{HeldLock, State};
use std::ops::Range;
use std::sync::Arc;

/// The maximum length of a file, as on a real disk.
const FILE_MAX: u64 = i64::MAX as u64;

/// A simulated volume; see the module documentation. A clone is another handle to the same volume.
///
/// ```
/// use psync::{Access, Device, Simulated, Volume, Write};
///
/// let volume = Simulated::new(1);
/// let file = volume.open("a", Access { write: true, create: true, ..Access::default() })?;
/// volume.sync_directory()?;
/// volume.write(&[Write { file, offset: 0, data: b"safe" }])?;
/// volume.sync(file)?;
/// volume.write(&[Write { file, offset: 4, data: b" or not" }])?;
/// for seed in 0..100 {
///     let found = volume.power_loss(seed).read_file("a")?;
///     assert!(found.starts_with(b"safe") && found.len() <= 11);
/// }
/// # Ok::<(), psync::Error>(())
/// ```
#[derive(Clone)]
pub struct Simulated {
    state: Arc<Mutex<State>>,
}

impl Simulated {
    /// An empty volume with an alignment of 512, a PioMax of 64 and unlimited space. All its random decisions
    /// follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::from_state(State::new(seed))
    }

    fn from_state(state: State) -> Self {
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Sets [`Limits::alignment`], which files opened for direct I/O enforce.
    ///
    /// # Panics
    /// If it is not a power of two from 1 to 4096.
    #[must_use]
    pub fn with_alignment(self, alignment: usize) -> Self {
        assert!(alignment.is_power_of_two() && alignment <= 4096, "alignment {alignment}");
        self.state.lock().alignment = alignment;
        self
    }

    /// Sets [`Limits::pio_max`].
    ///
    /// # Panics
    /// If it is not from 1 to 4096.
    #[must_use]
    pub fn with_pio_max(self, pio_max: usize) -> Self {
        assert!((1..=4096).contains(&pio_max), "pio_max {pio_max}");
        self.state.lock().pio_max = pio_max;
        self
    }

    /// Makes direct I/O unavailable, as on some file systems: [`Access::direct`] has no effect. Images inherit the
    /// setting.
    #[must_use]
    pub fn without_direct(self) -> Self {
        self.state.lock().direct = false;
        self
    }

    /// Enables [`Window`]s, which are off by default. Images inherit the setting.
    #[must_use]
    pub fn with_windows(self) -> Self {
        self.state.lock().windows = true;
        self
    }

    /// Sets the space available, like [`Simulated::set_capacity`].
    #[must_use]
    pub fn with_capacity(self, bytes: u64) -> Self {
        self.set_capacity(bytes);
        self
    }

    /// Sets the space available, in bytes. Only written data takes space, in blocks of 4096 bytes. A write that
    /// needs more fails with [`Error::Full`]. The capacity may be less than what is already used.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity = bytes;
    }

    /// Bytes of space in use, a multiple of 4096.
    pub fn used(&self) -> u64 {
        self.state.lock().used_bytes()
    }

    /// The volume as found after the process was killed. All finished writes are there (still not durable),
    /// nothing is open or locked, no faults are planned, counters are zero, the power is on.
    pub fn crash(&self) -> Self {
        Self::from_state(self.state.lock().after_crash())
    }

    /// The volume as found after a power failure: everything durable, and a part of the rest chosen by `seed`.
    /// Some seeds keep all of it, some nothing, most a part: single 512-byte sectors of a write, later writes
    /// without earlier ones, names without content, a length between the durable one and the one seen.
    /// Everything found is durable.
    pub fn power_loss(&self, seed: u64) -> Self {
        Self::from_state(self.state.lock().after_power_loss(seed))
    }

    /// Plans a fault. Among the operations from now on that match `filter` (an [`OperationKind`] is a filter
    /// too), the `n`-th, counted from 1, fails with `fault`; with [`Repeat::Sticky`] so does every later one.
    /// Each member of a read or write set is an operation. Plans add up; if two fire at once, the older one
    /// takes effect. Files are matched by the name under which they were opened.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn fail_nth(&self, filter: impl Into<Filter>, n: u64, fault: Fault, repeat: Repeat) {
        self.state.lock().plans.add(filter.into(), n, Action::Fail(fault), repeat);
    }

    /// Removes all planned faults and lies. If the power is off, it stays off.
    pub fn clear_faults(&self) {
        self.state.lock().plans.clear();
    }

    /// Number of operations since the volume or image was created. Operations after the power went off do not
    /// count.
    pub fn operations(&self) -> u64 {
        self.state.lock().plans.operations
    }

    /// Number of stores to windows since the volume or image was created.
    pub fn stores(&self) -> u64 {
        self.state.lock().stores
    }

    /// Number of planned faults and lies that have fired.
    pub fn fired(&self) -> u64 {
        self.state.lock().plans.fired
    }

    /// Whether [`Fault::PowerOff`] has fired. From then on everything fails, but images can still be taken.
    pub fn is_off(&self) -> bool {
        self.state.lock().off
    }
}

impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\', '\0']) {
        return Err(Error::Invalid(format!("{name:?} is not a plain file name")));
    }
    Ok(())
}

/// Refuses what a real disk would refuse.
fn check_request(state: &State, file: FileId, offset: u64, bytes: &[u8]) -> Result<()> {
    let handle = state.handle(file)?;
    let wrong = |what: String| Err(Error::Invalid(format!("{}: {what}", handle.name)));
    if bytes.is_empty() {
        return wrong("a request of 0 bytes".to_owned());
    }
    if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > FILE_MAX) {
        return wrong(format!("offset {offset} is beyond any file"));
    }
    let alignment = state.alignment;
    let (address, len) = (bytes.as_ptr() as usize, bytes.len());
    if handle.access.direct && state.direct && !(offset as usize | address | len).is_multiple_of(alignment) {
        return wrong(format!("offset {offset}, length {len} or address is not a multiple of {alignment}"));
    }
    Ok(())
}

/// The result of an operation that was carried out: an error if the power went off during it.
fn finish<T>(failed: Option<Error>, done: Result<T>) -> Result<T> {
    match failed {
        Some(error) => Err(error),
        None => done,
    }
}

impl Device for Simulated {
    fn read(&self, set: &mut [Read<'_>]) -> Result<()> {
        let mut state = self.state.lock();
        let mut members = Vec::with_capacity(set.len());
        for read in set {
            check_request(&state, read.file, read.offset, read.buffer)?;
            members.push((state.handle(read.file)?.clone(), read));
        }
        let pio_max = state.pio_max;
        members.chunks_mut(pio_max).try_for_each(|part| state.read_set(part))
    }

    fn write(&self, set: &[Write<'_>]) -> Result<()> {
        let mut state = self.state.lock();
        let mut members = Vec::with_capacity(set.len());
        for write in set {
            check_request(&state, write.file, write.offset, write.data)?;
            members.push((state.writable(write.file, "write")?, write));
        }
        crate::request::refuse_overlap(set)?;
        let pio_max = state.pio_max;
        members.chunks(pio_max).try_for_each(|part| state.write_set(part))
    }

    fn sync(&self, file: FileId) -> Result<()> {
        let mut state = self.state.lock();
        let handle = state.handle(file)?.clone();
        state.sync(&handle, 0..u64::MAX)
    }

    fn sync_part(&self, written: Write<'_>) -> Result<()> {
        let mut state = self.state.lock();
        let Write { file, offset, data } = written;
        check_request(&state, file, offset, data)?;
        let handle = state.writable(file, "sync")?;
        // A disk may write the data again.
        if !state.off {
            state.write_unchecked(&handle, offset, data);
        }
        state.sync(&handle, offset..offset + data.len() as u64)
    }

    fn len(&self, file: FileId) -> Result<u64> {
        let mut state = self.state.lock();
        let handle = state.handle(file)?.clone();
        let failed = state.begin(OperationKind::Len, "stat", &handle.name)?;
        finish(failed, Ok(state.node(handle.number).map_or(0, |node| node.seen.len())))
    }

    fn resize(&self, file: FileId, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        let handle = state.writable(file, "resize")?;
        if len > FILE_MAX {
            return Err(Error::Invalid(format!("{}: {len} bytes are beyond any file", handle.name)));
        }
        state.check_unmapped(file, &(len..u64::MAX))?;
        let failed = state.begin(OperationKind::Resize, "resize", &handle.name)?;
        state.edit(handle.number, |node| node.change(Change::Resize { len }));
        finish(failed, Ok(()))
    }

    fn release(&self, file: FileId, range: Range<u64>) -> Result<()> {
        let mut state = self.state.lock();
        let handle = state.writable(file, "release")?;
        if range.is_empty() || range.end > FILE_MAX {
            return Err(Error::Invalid(format!("{}: release of {range:?}", handle.name)));
        }
        state.check_unmapped(file, &range)?;
        let failed = state.begin(OperationKind::Release, "release", &handle.name)?;
        state.edit(handle.number, |node| node.change(Change::Release { range }));
        finish(failed, Ok(()))
    }

    fn allocate(&self, file: FileId, range: Range<u64>) -> Result<()> {
        let mut state = self.state.lock();
        let handle = state.writable(file, "allocate")?;
        if range.end > FILE_MAX {
            return Err(Error::Invalid(format!("{}: {} bytes are beyond any file", handle.name, range.end)));
        }
        let failed = state.begin(OperationKind::Allocate, "allocate", &handle.name)?;
        finish(failed, state.allocate(&handle, range))
    }

    fn limits(&self) -> Limits {
        let state = self.state.lock();
        let alignment = if state.direct { state.alignment } else { 1 };
        Limits { alignment, pio_max: state.pio_max, direct: state.direct }
    }

    fn counters(&self) -> Counters {
        self.state.lock().counters
    }
}

impl Volume for Simulated {
    fn open(&self, name: &str, access: Access) -> Result<FileId> {
        check_name(name)?;
        let mut state = self.state.lock();
        let failed = state.begin(OperationKind::Open, "open", name)?;
        let creates = access.write && (access.create || access.create_new);
        let number = match state.named(name) {
            Ok(_) if access.write && access.create_new => {
                return finish(failed, Err(Error::Exists { file: name.to_owned() }));
            }
            Ok(number) => number,
            Err(_) if creates => {
                let file = state.add_node(Node::default());
                state.directory.change(NameChange::Create { name: name.to_owned(), file });
                file
            }
            Err(error) => return finish(failed, Err(error)),
        };
        match failed {
            Some(error) => Err(error),
            None => Ok(state.add_handle(number, name, access)),
        }
    }

    fn close(&self, file: FileId) -> Result<()> {
        let mut state = self.state.lock();
        let number = state.handle(file)?.number;
        state.open.remove(&file);
        state.reap(number);
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let mut state = self.state.lock();
        let failed = state.begin(OperationKind::Remove, "remove", name)?;
        finish(failed, state.remove(name))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        let mut state = self.state.lock();
        let failed = state.begin(OperationKind::Rename, "rename", from)?;
        finish(failed, state.rename(from, to))
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let mut state = self.state.lock();
        let name = describe(&state);
        let failed = state.begin(OperationKind::List, "list", &name)?;
        let len = |number| state.node(number).map_or(0, |node| node.seen.len());
        let names = state.directory.seen.iter();
        let entries = names.map(|(name, number)| Entry { name: name.clone(), len: len(*number) }).collect();
        finish(failed, Ok(entries))
    }

    fn sync_directory(&self) -> Result<()> {
        let mut state = self.state.lock();
        let name = describe(&state);
        let failed = state.try_sync_directory(&name)?;
        state.counters.syncs += 1;
        finish(failed, Ok(()))
    }

    fn lock(&self, kind: LockKind, holder: &str) -> Result<Lock> {
        let mut state = self.state.lock();
        let volume = describe(&state);
        if let Some(error) = state.begin(OperationKind::Lock, "lock", &volume)? {
            return Err(error);
        }
        let against = |held: &&HeldLock| kind == LockKind::Exclusive || held.kind == LockKind::Exclusive;
        let holders: Vec<&str> =
            state.locks.iter().filter(against).map(|held| held.holder.as_str()).collect();
        if !holders.is_empty() {
            return Err(Error::Locked { volume, holder: holders.join(", ") });
        }
        // As a process does that opens the directory anew.
        state.directory_failed &= kind != LockKind::Exclusive;
        let id = state.next_lock;
        state.next_lock += 1;
        state.locks.push(HeldLock { id, kind, holder: holder.to_owned() });
        Ok(Lock::new(Unlock { state: Arc::clone(&self.state), id }))
    }

    fn window(&self, file: FileId, range: Range<u64>) -> Result<Option<Box<dyn Window>>> {
        window::window(&self.state, file, range)
    }

    fn boot_id(&self) -> [u8; 16] {
        u128::from(self.state.lock().boots).to_le_bytes()
    }

    fn describe(&self) -> String {
        describe(&self.state.lock())
    }
}

fn describe(state: &State) -> String {
    format!("simulated volume {}", state.seed)
}

/// Releases the lock when dropped.
struct Unlock {
    state: Arc<Mutex<State>>,
    id: u64,
}

impl Drop for Unlock {
    fn drop(&mut self) {
        self.state.lock().locks.retain(|held| held.id != self.id);
    }
}
