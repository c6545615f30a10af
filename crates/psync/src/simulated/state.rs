//! The state behind a simulated volume's lock: nodes, names, open files, space, and sets in progress.
//!
//! Invariants:
//! 1. `used` is the sum of the seen pages of all live nodes, which are those that have a name or are open;
//! 2. a node that is not live is kept only while a power failure could bring its name back;
//! 3. ids of open files and numbers of nodes are never reused, images included;
//! 4. once the power is off, nothing changes any more.

use super::content::PAGE;
use super::directory::{Directory, NameChange, Number};
use super::faults::{Action, Fault, OperationKind, Plans};
use super::node::{Change, Node, pieces};
use super::power::{self, SECTOR, Severity, random};
use crate::{Access, Counters, Error, FileId, LockKind, Read, Result, Write};
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;

const EIO: i32 = 5;
const EMFILE: i32 = 24;

/// An open file.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    pub(super) number: Number,
    /// The name under which the file was opened. A rename does not change it.
    pub(super) name: String,
    pub(super) access: Access,
}

#[derive(Debug)]
pub(super) struct HeldLock {
    pub(super) id: u64,
    pub(super) kind: LockKind,
    pub(super) holder: String,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) seed: u64,
    /// So often was the machine started anew.
    pub(super) boots: u64,
    pub(super) alignment: usize,
    pub(super) pio_max: usize,
    pub(super) capacity: u64,
    /// Whether direct I/O is available.
    pub(super) direct: bool,
    /// Whether windows are available, and which parts of files have one.
    pub(super) windows: bool,
    pub(super) mapped: HashMap<FileId, Range<u64>>,
    pub(super) stores: u64,
    pub(super) directory: Directory,
    /// Whether a sync of the directory has failed since the lock was taken: see [`crate::Volume::sync_directory`].
    pub(super) directory_failed: bool,
    nodes: BTreeMap<Number, (Node, Live)>,
    next_number: Number,
    pub(super) open: HashMap<FileId, Handle>,
    next_file: u64,
    pub(super) locks: Vec<HeldLock>,
    pub(super) next_lock: u64,
    pub(super) plans: Plans,
    pub(super) off: bool,
    pub(super) counters: Counters,
    used: u64,
}

/// Whether a node counts as used space.
type Live = bool;

/// How an operation's failure is reported.
fn failure(fault: Fault, operation: &'static str, file: &str, offset: Option<u64>) -> Error {
    let source = match fault {
        Fault::Error | Fault::Short => io::Error::from_raw_os_error(EIO),
        Fault::NoSpace => io::ErrorKind::StorageFull.into(),
        Fault::Exhausted => io::Error::from_raw_os_error(EMFILE),
        Fault::PowerOff => io::Error::other("the power went off"),
    };
    Error::from_io(operation, file, offset, source)
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            boots: 1,
            alignment: 512,
            pio_max: 64,
            capacity: u64::MAX,
            direct: true,
            windows: false,
            mapped: HashMap::new(),
            stores: 0,
            directory: Directory::default(),
            nodes: BTreeMap::new(),
            next_number: 0,
            open: HashMap::new(),
            next_file: 0,
            locks: Vec::new(),
            directory_failed: false,
            next_lock: 0,
            plans: Plans::default(),
            off: false,
            counters: Counters::default(),
            used: 0,
        }
    }

    /// Bytes of space in use.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used * PAGE
    }

    /// The random generator for the running volume.
    fn chance(&self) -> StdRng {
        random([self.seed, self.plans.operations, 0])
    }

    /// The volume as others find it: nothing open, nothing locked, no faults planned.
    fn image(&self, directory: Directory, nodes: BTreeMap<Number, (Node, Live)>) -> Self {
        let mut image = Self {
            boots: self.boots,
            directory,
            nodes,
            alignment: self.alignment,
            pio_max: self.pio_max,
            capacity: self.capacity,
            direct: self.direct,
            windows: self.windows,
            next_number: self.next_number,
            next_file: self.next_file,
            ..Self::new(self.seed)
        };
        image.used =
            image.nodes.values().filter(|(_, live)| *live).map(|(node, _)| node.seen.page_count()).sum();
        let numbers: Vec<Number> = image.nodes.keys().copied().collect();
        for number in numbers {
            image.reap(number);
        }
        image
    }

    pub(super) fn after_crash(&self) -> Self {
        self.image(self.directory.found(), self.nodes.clone())
    }

    pub(super) fn after_power_loss(&self, seed: u64) -> Self {
        let mut chance = random([self.seed, seed, 1]);
        let severity = Severity::draw(&mut chance);
        let count = self.directory.pending_count();
        let directory = self.directory.after_loss(|index| severity.keeps(index, count, &mut chance));
        let mut nodes = BTreeMap::new();
        for number in directory.seen.values() {
            if let Some((node, _)) = self.nodes.get(number) {
                let mut chance = random([self.seed, seed, 2 + number]);
                nodes.insert(*number, (Node::durable(power::after_loss(node, severity, &mut chance)), true));
            }
        }
        Self { boots: self.boots + 1, ..self.image(directory, nodes) }
    }

    /// Counts an operation. An error if the power is off.
    fn count(
        &mut self,
        kind: OperationKind,
        operation: &'static str,
        file: &str,
        named: bool,
    ) -> Result<Option<Action>> {
        if self.off {
            return Err(Error::from_io(operation, file, None, io::Error::other("the power is off")));
        }
        Ok(self.plans.count(kind, named.then_some(file)))
    }

    /// Counts an operation other than a read or write. If it fails, nothing is changed; but if the power goes
    /// off, it may have been done after all: then `Ok(Some(error))` tells the caller to do it first.
    pub(super) fn begin(
        &mut self,
        kind: OperationKind,
        operation: &'static str,
        file: &str,
    ) -> Result<Option<Error>> {
        let named = !matches!(kind, OperationKind::List | OperationKind::SyncDirectory | OperationKind::Lock);
        let Some(Action::Fail(fault)) = self.count(kind, operation, file, named)? else { return Ok(None) };
        let error = failure(fault, operation, file, None);
        if fault != Fault::PowerOff {
            return Err(error);
        }
        self.off = true;
        if self.chance().random() { Ok(Some(error)) } else { Err(error) }
    }

    pub(super) fn handle(&self, file: FileId) -> Result<&Handle> {
        self.open.get(&file).ok_or_else(|| Error::Invalid(format!("file {} is not open", file.number())))
    }

    /// The handle of a file that is about to be changed.
    pub(super) fn writable(&self, file: FileId, operation: &'static str) -> Result<Handle> {
        let handle = self.handle(file)?;
        if handle.access.write {
            Ok(handle.clone())
        } else {
            Err(Error::Invalid(format!("{operation} of {}, which was opened for reading only", handle.name)))
        }
    }

    /// Refuses to take `range` from a file if it has a window there.
    pub(super) fn check_unmapped(&self, file: FileId, range: &Range<u64>) -> Result<()> {
        match self.mapped.get(&file) {
            Some(mapped) if range.start < mapped.end && mapped.start < range.end => {
                Err(Error::Invalid(format!("{range:?} is to go, but there is a window of {mapped:?}")))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn add_handle(&mut self, number: Number, name: &str, access: Access) -> FileId {
        let id = FileId::new(self.next_file);
        self.next_file += 1;
        self.open.insert(id, Handle { number, name: name.to_owned(), access });
        id
    }

    pub(super) fn node(&self, number: Number) -> Option<&Node> {
        self.nodes.get(&number).map(|(node, _)| node)
    }

    /// Applies `edit` to a node, and updates the space in use.
    pub(super) fn edit(&mut self, number: Number, edit: impl FnOnce(&mut Node)) {
        if let Some((node, live)) = self.nodes.get_mut(&number) {
            let before = node.seen.page_count();
            edit(node);
            if *live {
                self.used = self.used - before + node.seen.page_count();
            }
        }
    }

    /// Creates a file without a name.
    pub(super) fn add_node(&mut self, node: Node) -> Number {
        let number = self.next_number;
        self.next_number += 1;
        self.used += node.seen.page_count();
        self.nodes.insert(number, (node, true));
        number
    }

    pub(super) fn named(&self, name: &str) -> Result<Number> {
        let number = self.directory.seen.get(name).copied();
        number.ok_or_else(|| Error::NotFound { file: name.to_owned() })
    }

    /// Frees a file that can no longer be reached.
    pub(super) fn reap(&mut self, number: Number) {
        let reached = self.directory.seen.values().any(|other| *other == number)
            || self.open.values().any(|handle| handle.number == number);
        if reached {
            return;
        }
        if let Some((node, live)) = self.nodes.get_mut(&number)
            && std::mem::take(live)
        {
            self.used -= node.seen.page_count();
        }
        if !self.directory.can_name(number) {
            self.nodes.remove(&number);
        }
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let file = self.named(from)?;
        if from == to {
            return Ok(());
        }
        let replaced = self.directory.seen.get(to).copied();
        self.directory.change(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), file });
        if let Some(replaced) = replaced {
            self.reap(replaced);
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<()> {
        let file = self.named(name)?;
        self.directory.change(NameChange::Remove { name: name.to_owned(), file });
        self.reap(file);
        Ok(())
    }

    /// Makes all names durable, or fails: see [`State::begin`] and [`Directory::fail_sync`].
    pub(super) fn try_sync_directory(&mut self, volume: &str) -> Result<Option<Error>> {
        let failed = self.begin(OperationKind::SyncDirectory, "sync", volume);
        if failed.is_err() && !self.off {
            let mut chance = self.chance();
            self.directory.fail_sync(|_| chance.random());
            self.directory_failed = true;
            self.reap_dead();
        }
        let failed = failed?;
        if self.directory_failed {
            return Err(failure(Fault::Error, "sync", volume, None));
        }
        self.sync_directory();
        Ok(failed)
    }

    pub(super) fn sync_directory(&mut self) {
        self.directory.sync();
        self.reap_dead();
    }

    /// Forgets what no name can name any more.
    fn reap_dead(&mut self) {
        let dead: Vec<Number> =
            self.nodes.iter().filter(|(_, (_, live))| !live).map(|(number, _)| *number).collect();
        for number in dead {
            self.reap(number);
        }
    }

    /// Makes the content of `range` of the file durable, and nothing else unless the range is the whole file.
    pub(super) fn sync(&mut self, handle: &Handle, range: Range<u64>) -> Result<()> {
        let action = self.count(OperationKind::Sync, "sync", &handle.name, true)?;
        self.counters.syncs += 1;
        let mut chance = self.chance();
        let Some((node, _)) = self.nodes.get_mut(&handle.number) else { return Ok(()) };
        match action {
            Some(Action::Fail(fault)) => {
                if fault == Fault::PowerOff {
                    self.off = true;
                } else {
                    node.fail_sync(&range, &mut chance);
                }
                Err(failure(fault, "sync", &handle.name, None))
            }
            _ => {
                node.sync(&range);
                Ok(())
            }
        }
    }

    fn write_bytes(&mut self, handle: &Handle, offset: u64, data: &[u8]) -> Result<()> {
        self.check_space("write", handle, offset..offset + data.len() as u64)?;
        self.write_unchecked(handle, offset, data);
        Ok(())
    }

    /// Refuses what needs more space than there is.
    fn check_space(&self, operation: &'static str, handle: &Handle, range: Range<u64>) -> Result<()> {
        if let Some(node) = self.node(handle.number) {
            let offset = range.start;
            let missing = node.seen.missing_pages(range);
            if missing > 0 && (self.used + missing).saturating_mul(PAGE) > self.capacity {
                return Err(failure(Fault::NoSpace, operation, &handle.name, Some(offset)));
            }
        }
        Ok(())
    }

    /// Gives all of `range` space, or none of it.
    pub(super) fn allocate(&mut self, handle: &Handle, range: Range<u64>) -> Result<()> {
        self.check_space("allocate", handle, range.clone())?;
        self.edit(handle.number, |node| node.change(Change::Allocate { range }));
        Ok(())
    }

    /// Writes to a file that has the space.
    pub(super) fn write_unchecked(&mut self, handle: &Handle, offset: u64, data: &[u8]) {
        let change = Change::Write { offset, data: data.into() };
        let is_direct = handle.access.direct && self.direct;
        self.edit(
            handle.number,
            |node| {
                if is_direct { node.change_directly(change) } else { node.change(change) }
            },
        );
    }

    /// Writes a random part of `data`: all, nothing, or some of its sectors.
    fn write_some(&mut self, handle: &Handle, offset: u64, data: &[u8], chance: &mut impl Rng) {
        let share = [0, 0, 100, 100, 50][chance.random_range(0..5)];
        for (at, part) in pieces(offset, data, SECTOR) {
            if chance.random_range(0..100) < share {
                // Lack of space does not matter for a write that fails anyway.
                let _ = self.write_bytes(handle, at, part);
            }
        }
    }

    /// One set of at most `pio_max` checked writes.
    pub(super) fn write_set(&mut self, set: &[(Handle, &Write<'_>)]) -> Result<()> {
        self.counters.write_sets += 1;
        let mut actions = Vec::with_capacity(set.len());
        for (handle, _) in set {
            let action = self.count(OperationKind::Write, "write", &handle.name, true)?;
            actions.push(action);
            if matches!(action, Some(Action::Fail(Fault::PowerOff))) {
                break;
            }
        }
        let broken = actions.iter().any(|action| {
            matches!(action, Some(Action::Fail(Fault::Error | Fault::NoSpace | Fault::PowerOff)))
        });
        let mut chance = self.chance();
        let mut outcome = Ok(());
        let actions = actions.into_iter().chain(std::iter::repeat(None));
        for ((handle, write), action) in set.iter().zip(actions) {
            let (offset, data) = (write.offset, write.data);
            self.counters.writes += 1;
            self.counters.bytes_written += data.len() as u64;
            let done = match action {
                Some(Action::Fail(Fault::Short)) => {
                    let found = short(data.len(), &mut chance);
                    let _ = self.write_bytes(handle, offset, &data[..found]);
                    let (file, expected) = (handle.name.clone(), data.len());
                    Err(Error::Short { operation: "write", file, offset, expected, found })
                }
                Some(Action::Fail(fault)) => {
                    self.write_some(handle, offset, data, &mut chance);
                    self.off |= fault == Fault::PowerOff;
                    Err(failure(fault, "write", &handle.name, Some(offset)))
                }
                Some(Action::Misdirect(by)) => {
                    self.pretend(handle, offset, data);
                    self.write_bytes(handle, offset.saturating_add_signed(by), data)
                }
                Some(Action::Lose) => {
                    self.pretend(handle, offset, data);
                    Ok(())
                }
                Some(Action::CorruptRead) | None if broken => {
                    self.write_some(handle, offset, data, &mut chance);
                    Ok(())
                }
                Some(Action::CorruptRead) | None => self.write_bytes(handle, offset, data),
            };
            outcome = outcome.and(done);
        }
        outcome
    }

    /// The file grows as the write would make it grow, though the bytes go elsewhere.
    fn pretend(&mut self, handle: &Handle, offset: u64, data: &[u8]) {
        self.edit(handle.number, |node| {
            let len = offset + data.len() as u64;
            if len > node.seen.len() {
                node.change(Change::Resize { len });
            }
        });
    }

    /// A store to a window of the file. A fault makes it refuse the store.
    ///
    /// # Panics
    /// If a processor would not find the page: a real process would be killed by SIGBUS.
    pub(super) fn store(&mut self, handle: &Handle, offset: u64, data: &[u8]) -> Result<bool> {
        let action = self.count(OperationKind::Store, "store", &handle.name, true)?;
        let end = offset + data.len() as u64;
        let there = self
            .node(handle.number)
            .is_none_or(|node| end <= node.seen.len() && node.seen.missing_pages(offset..end) == 0);
        assert!(there, "SIGBUS: a store to {} at {offset}..{end}, which the file has not", handle.name);
        let Some(Action::Fail(fault)) = action else {
            self.stores += 1;
            return self.write_bytes(handle, offset, data).map(|()| true);
        };
        if fault != Fault::PowerOff {
            return Ok(false);
        }
        self.off = true;
        // Copying may stop anywhere; what was copied is written back regardless.
        let mut chance = self.chance();
        let copied = &data[..chance.random_range(0..=data.len())];
        self.write_some(handle, offset, copied, &mut chance);
        Err(failure(fault, "store", &handle.name, Some(offset)))
    }

    /// One set of at most `pio_max` checked reads.
    pub(super) fn read_set(&mut self, set: &mut [(Handle, &mut Read<'_>)]) -> Result<()> {
        self.counters.read_sets += 1;
        let mut outcome = Ok(());
        for (handle, read) in set {
            let action = self.count(OperationKind::Read, "read", &handle.name, true);
            let action = match action {
                Ok(action) => action,
                Err(error) => return outcome.and(Err(error)),
            };
            self.counters.reads += 1;
            self.counters.bytes_read += read.buffer.len() as u64;
            let expected = read.buffer.len();
            let mut wanted = expected;
            match action {
                Some(Action::Fail(Fault::Short)) => wanted = short(expected, &mut self.chance()),
                Some(Action::Fail(fault)) => {
                    self.off |= fault == Fault::PowerOff;
                    outcome = outcome.and(Err(failure(fault, "read", &handle.name, Some(read.offset))));
                    continue;
                }
                _ => {}
            }
            let Some(node) = self.node(handle.number) else { continue };
            let buffer = &mut read.buffer[..wanted];
            let found = if handle.access.direct && self.direct {
                node.read_directly(read.offset, buffer)
            } else {
                node.read(read.offset, buffer)
            };
            if found < expected {
                let (file, offset) = (handle.name.clone(), read.offset);
                outcome = outcome.and(Err(Error::Short { operation: "read", file, offset, expected, found }));
            } else if matches!(action, Some(Action::CorruptRead)) {
                let mut chance = self.chance();
                for _ in 0..chance.random_range(1..=8) {
                    // The flipped bits need not be distinct, but the result must differ: flip bit 0 of one byte
                    // an odd number of times.
                    let at = chance.random_range(0..expected);
                    read.buffer[at] ^= 1 << chance.random_range(1..8);
                }
                read.buffer[chance.random_range(0..expected)] ^= 1;
            }
        }
        outcome
    }
}

/// How much of `len` bytes a short transfer moves: less than all; whole sectors if there are several.
fn short(len: usize, chance: &mut impl Rng) -> usize {
    let found = chance.random_range(0..len);
    if len > SECTOR as usize { found - found % SECTOR as usize } else { found }
}
