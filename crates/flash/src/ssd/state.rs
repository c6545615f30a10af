//! What a simulated SSD is: the drive, its files, who has what open, and the ways of bytes between them.

use super::files::{Files, Number};
use super::journal::{Journal, Pages};
use super::latency::Latencies;
use super::{FILE_MAX, Request};
use crate::{Batch, Clock, Content, Error as FlashError, Flash, Ftl, LogicalPage, Profile, RequestKind};
use psync::{Access, Counters, Error, FileId, LockKind, Read, Result, Write};
use std::collections::HashMap;
use std::io;
use std::ops::Range;

/// Changes of files after which the journal is committed without being asked.
const CHANGES_MAX: usize = 16_384;

/// An open file.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    pub number: Number,
    pub name: String,
    pub access: Access,
}

pub(super) struct HeldLock {
    pub id: u64,
    pub kind: LockKind,
    pub holder: String,
}

/// See the module.
pub(super) struct State {
    pub profile: Profile,
    seed: u64,
    pub flash: Flash,
    pub layer: Box<dyn Ftl>,
    pub clock: Clock,
    pub files: Files,
    journal: Journal,
    /// A commit failed: what is durable is not known.
    broken: bool,
    pub open: HashMap<FileId, Handle>,
    next_file: u64,
    pub locks: Vec<HeldLock>,
    pub next_lock: u64,
    pub pio_max: usize,
    pub counters: Counters,
    pub latencies: Latencies,
    /// One page, for writes of less.
    page: Vec<u8>,
    /// For finding overlaps.
    ranges: Vec<(FileId, u64, u64)>,
    /// While time stands still: what was done since, set by set.
    pub deferred: Option<Vec<Batch>>,
}

/// A failure of flash as the host sees it.
fn failure(error: FlashError, operation: &'static str, file: &str, offset: Option<u64>) -> Error {
    Error::from_io(operation, file, offset, io::Error::other(error))
}

/// A part of a range of a file that lies in one page: which page, where in the page, where in the range.
fn by_page(
    offset: u64,
    len: usize,
    page_bytes: u64,
) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let page = at / page_bytes;
        let part_end = end.min((page + 1) * page_bytes);
        let within = (at - page * page_bytes) as usize..(part_end - page * page_bytes) as usize;
        let of_range = (at - offset) as usize..(part_end - offset) as usize;
        at = part_end;
        Some((page, within, of_range))
    })
}

impl State {
    pub(super) fn new(
        profile: Profile,
        seed: u64,
        layer: impl FnOnce(&Flash) -> crate::Result<Box<dyn Ftl>>,
    ) -> crate::Result<Self> {
        let flash = Flash::new(profile.geometry, profile.rules, seed)?;
        let layer = layer(&flash)?;
        let clock = Clock::new(profile.geometry, &profile.timing)?;
        let mut state = Self::on(profile, seed, flash, layer, clock);
        if state.files.free_pages() == 0 {
            let what = "too few pages for files besides the journal's; take more blocks".to_owned();
            return Err(FlashError::Geometry(what));
        }
        match state.journal.checkpoint(&[]) {
            Some(pages) => state.write_pages(&pages)?,
            None => return Err(FlashError::Geometry("pages too small for a journal".to_owned())),
        }
        Ok(state)
    }

    fn on(profile: Profile, seed: u64, flash: Flash, layer: Box<dyn Ftl>, clock: Clock) -> Self {
        let page_bytes = profile.geometry.page_bytes;
        let journal = Journal::new(layer.logical_pages(), page_bytes);
        let files = Files::new(journal.data(layer.logical_pages()));
        Self {
            profile,
            seed,
            flash,
            layer,
            clock,
            files,
            journal,
            broken: false,
            open: HashMap::new(),
            next_file: 0,
            locks: Vec::new(),
            next_lock: 0,
            pio_max: 64,
            counters: Counters::default(),
            latencies: Latencies::new(),
            page: vec![0; page_bytes as usize],
            ranges: Vec::new(),
            deferred: None,
        }
    }

    pub(super) fn after_power_loss(&self, seed: u64) -> Result<Self> {
        if self.profile.rules.content == Content::Tags {
            let what = "the journal of files is not kept with Content::Tags; power loss needs Content::Full";
            return Err(Error::Invalid(format!("{}: {what}", self.describe())));
        }
        if self.profile.timing.write_cache_bytes > 0 {
            let what = "what a write cache loses with the power is not simulated";
            return Err(Error::Invalid(format!("{}: {what}", self.describe())));
        }
        let mut flash = self.flash.clone();
        flash.nand_mut().power_loss(seed);
        flash.settle();
        let mut clock = self.clock.clone();
        clock.restart();
        let what = self.describe();
        let layer = self.layer.recovered(&mut flash).map_err(|error| failure(error, "mount", &what, None))?;
        let mut state = Self::on(self.profile.clone(), self.seed, flash, layer, clock);
        state.pio_max = self.pio_max;
        state.next_file = self.next_file;
        state.recover().map_err(|error| failure(error, "mount", &what, None))?;
        Ok(state)
    }

    /// Brings back the files from the journal.
    fn recover(&mut self) -> crate::Result<()> {
        let page_bytes = self.profile.geometry.page_bytes;
        // The layer first, and then what it gives to read.
        self.pass_time();
        let (flash, layer) = (&mut self.flash, &mut self.layer);
        let changes = self.journal.recover(|page| {
            let mut bytes = vec![0; page_bytes as usize];
            flash.begin_request(RequestKind::Read, page_bytes);
            match layer.read(flash, page, 0, &mut bytes) {
                Ok(()) => Ok(Some(bytes)),
                Err(FlashError::Unreadable { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        })?;
        // A drive that lost power before its first checkpoint is an empty one.
        changes.into_iter().flatten().for_each(|change| self.files.apply(change));
        self.files.recovered(u64::from(page_bytes));
        if let Some(pages) = self.journal.checkpoint(&self.files.everything()) {
            self.write_pages(&pages)?;
        }
        self.pass_time();
        self.latencies.clear();
        Ok(())
    }

    pub(super) fn describe(&self) -> String {
        format!("simulated drive {} {}", self.profile.name, self.seed)
    }

    pub(super) fn alignment(&self) -> usize {
        self.page.len().min(4096)
    }

    pub(super) fn capacity(&self) -> u64 {
        self.journal.data(self.layer.logical_pages()).len() as u64 * self.page.len() as u64
    }

    pub(super) fn check_power(&self, operation: &'static str, file: &str) -> Result<()> {
        if self.flash.nand().is_off() {
            return Err(failure(FlashError::PowerOff, operation, file, None));
        }
        Ok(())
    }

    pub(super) fn handle(&self, file: FileId) -> Result<&Handle> {
        self.open.get(&file).ok_or_else(|| Error::Invalid(format!("file {} is not open", file.number())))
    }

    fn name(&self, file: FileId) -> &str {
        self.open.get(&file).map_or("", |handle| &handle.name)
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

    pub(super) fn add_handle(&mut self, number: Number, name: &str, access: Access) -> FileId {
        let id = FileId::new(self.next_file);
        self.next_file += 1;
        self.files.opened(number);
        self.open.insert(id, Handle { number, name: name.to_owned(), access });
        id
    }

    /// What a real disk refuses.
    pub(super) fn check_request(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<()> {
        let handle = self.handle(file)?;
        let wrong = |what: String| Err(Error::Invalid(format!("{}: {what}", handle.name)));
        if bytes.is_empty() {
            return wrong("a request of 0 bytes".to_owned());
        }
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > FILE_MAX) {
            return wrong(format!("offset {offset} is beyond any file"));
        }
        let (address, len, alignment) = (bytes.as_ptr() as usize, bytes.len(), self.alignment());
        if handle.access.direct && !(offset as usize | address | len).is_multiple_of(alignment) {
            return wrong(format!(
                "offset {offset}, length {len} or address is not a multiple of {alignment}"
            ));
        }
        Ok(())
    }

    /// Refuses two writes of a set that touch the same bytes: nobody could say which would win.
    pub(super) fn refuse_overlap(&mut self, set: &[Write<'_>]) -> Result<()> {
        self.ranges.clear();
        let ranges =
            set.iter().map(|write| (write.file, write.offset, write.offset + write.data.len() as u64));
        self.ranges.extend(ranges);
        self.ranges.sort_unstable();
        for pair in self.ranges.windows(2) {
            if pair[0].0 == pair[1].0 && pair[0].2 > pair[1].1 {
                return Err(Error::Invalid(format!("two writes of one set overlap at byte {}", pair[1].1)));
            }
        }
        Ok(())
    }

    /// All that was done to flash takes its time, and has ended then.
    fn pass_time(&mut self) {
        if let Some(deferred) = &mut self.deferred {
            if !self.flash.batch().is_empty() {
                deferred.push(self.flash.batch().clone());
            }
            self.flash.settle();
            return;
        }
        let latencies = &mut self.latencies;
        self.clock.run(self.flash.batch(), |kind, latency| latencies.note(kind, latency));
        // What was under way when the power went stays in flight.
        if !self.flash.nand().is_off() {
            self.flash.settle();
        }
    }

    /// Lets time pass until some caller is answered.
    pub(super) fn next_answered(&mut self) -> Option<u64> {
        let latencies = &mut self.latencies;
        self.clock.next_answered(|kind, latency| latencies.note(kind, latency))
    }

    pub(super) fn read_set(&mut self, set: &mut [Read<'_>]) -> Result<()> {
        self.counters.read_sets += 1;
        let mut outcome = Ok(());
        for read in set {
            let done = self.read_one(read);
            outcome = outcome.and(done);
        }
        self.pass_time();
        outcome
    }

    fn read_one(&mut self, read: &mut Read<'_>) -> Result<()> {
        let State { open, files, flash, layer, .. } = self;
        let Some(handle) = open.get(&read.file) else { return Ok(()) };
        let (offset, expected) = (read.offset, read.buffer.len());
        self.counters.reads += 1;
        self.counters.bytes_read += expected as u64;
        if flash.nand().is_off() {
            return Err(failure(FlashError::PowerOff, "read", &handle.name, Some(offset)));
        }
        flash.begin_request(RequestKind::Read, expected as u32);
        let Some(node) = files.node(handle.number) else { return Ok(()) };
        let found = node.len.saturating_sub(offset).min(expected as u64) as usize;
        for (page, within, part) in by_page(offset, found, self.page.len() as u64) {
            let buffer = &mut read.buffer[part];
            match node.at(page) {
                None => buffer.fill(0),
                Some(at) => {
                    flash.begin_task();
                    layer
                        .read(flash, at, within.start, buffer)
                        .map_err(|error| failure(error, "read", &handle.name, Some(offset)))?;
                }
            }
        }
        if found < expected {
            let file = handle.name.clone();
            return Err(Error::Short { operation: "read", file, offset, expected, found });
        }
        Ok(())
    }

    pub(super) fn write_set(&mut self, set: &[Write<'_>]) -> Result<()> {
        self.counters.write_sets += 1;
        let mut outcome = Ok(());
        for write in set {
            let done = self.write_one(write);
            outcome = outcome.and(done);
        }
        self.pass_time();
        outcome?;
        if self.files.pending() > CHANGES_MAX {
            self.commit_journal().map_err(|error| error.told("write", "the journal", None))?;
        }
        Ok(())
    }

    fn write_one(&mut self, write: &Write<'_>) -> Result<()> {
        let Write { file, offset, data } = *write;
        let (number, end) = (self.handle(file)?.number, offset + data.len() as u64);
        self.counters.writes += 1;
        self.counters.bytes_written += data.len() as u64;
        let done = self.put(number, offset, data);
        if done.is_err() && self.files.node(number).is_some_and(|node| node.len < end) {
            self.files.forget_tail(number, self.page.len() as u64);
        }
        done.map_err(|error| error.told("write", self.name(file), Some(offset)))?;
        if self.files.node(number).is_some_and(|node| node.len < end) {
            self.files.set_len(number, end);
        }
        Ok(())
    }

    /// Begins a request that puts bytes into a file, which does not grow by that.
    fn put(&mut self, file: Number, offset: u64, data: &[u8]) -> std::result::Result<(), PutError> {
        if self.flash.nand().is_off() {
            return Err(PutError::Flash(FlashError::PowerOff));
        }
        self.flash.begin_request(RequestKind::Write, data.len() as u32);
        let len = self.files.node(file).map_or(0, |node| node.len);
        if offset + data.len() as u64 > len {
            self.clear_tail(file, len)?;
        }
        for (page, within, part) in by_page(offset, data.len(), self.page.len() as u64) {
            self.flash.begin_task();
            let left = data.len() - part.start;
            self.put_in_page(file, page, within, &data[part], left)?;
        }
        Ok(())
    }

    /// Before a file grows: what power loss may have left behind its end becomes zeros.
    fn clear_tail(&mut self, file: Number, len: u64) -> std::result::Result<(), PutError> {
        let unknown = self.files.node(file).is_some_and(|node| node.tail_unknown);
        if unknown {
            let page_bytes = self.page.len() as u64;
            let within = (len % page_bytes) as usize;
            let zeros = vec![0; self.page.len() - within];
            let page = len / page_bytes;
            if within > 0 && self.files.node(file).is_some_and(|node| node.at(page).is_some()) {
                self.flash.begin_task();
                self.put_in_page(file, page, within..self.page.len(), &zeros, 0)?;
            }
            self.files.tail_known(file);
        }
        Ok(())
    }

    fn put_in_page(
        &mut self,
        file: Number,
        page: u64,
        within: Range<usize>,
        data: &[u8],
        left: usize,
    ) -> std::result::Result<(), PutError> {
        let known = self.files.node(file).and_then(|node| node.at(page));
        let whole = within.len() == self.page.len();
        if !whole {
            match known {
                Some(at) => {
                    self.layer.read(&mut self.flash, at, 0, &mut self.page)?;
                    self.flash.wait();
                }
                None => self.page.fill(0),
            }
            self.page[within].copy_from_slice(data);
        }
        let fresh = if known.is_none() { Some(self.take_free(left)?) } else { None };
        let data = if whole { data } else { &self.page };
        let written = match known.or(fresh) {
            Some(at) => self.layer.write(&mut self.flash, at, data),
            None => Ok(()),
        };
        Ok(self.keep(file, page, fresh, written)?)
    }

    /// The file gets the `fresh` page that was written for it, or has what it had if that failed.
    fn keep(
        &mut self,
        file: Number,
        page: u64,
        fresh: Option<LogicalPage>,
        written: crate::Result<()>,
    ) -> crate::Result<()> {
        match (fresh, &written) {
            (Some(at), Ok(())) => self.files.map(file, page, at),
            (Some(at), Err(_)) => self.files.give_back(at),
            (None, _) => {}
        }
        written
    }

    /// A logical page for a page of a file. Takes back what was freed if nothing else is free: then the write under way is
    /// two requests, and what is still to be written, `left` bytes, belongs to the second.
    fn take_free(&mut self, left: usize) -> std::result::Result<LogicalPage, PutError> {
        if self.files.free_pages() == 0 && self.files.has_freed() {
            self.flash.shorten_request(left as u32);
            self.commit_journal()?;
            self.flash.begin_request(RequestKind::Write, left as u32);
        }
        self.files.take_free().ok_or(PutError::Full)
    }

    pub(super) fn resize(&mut self, handle: &Handle, len: u64) -> Result<()> {
        let done = self.resize_node(handle.number, len);
        self.pass_time();
        done.map_err(|error| error.told("resize", &handle.name, None))
    }

    fn resize_node(&mut self, file: Number, len: u64) -> std::result::Result<(), PutError> {
        let Some(node) = self.files.node(file) else { return Ok(()) };
        let (old, page_bytes) = (node.len, self.page.len() as u64);
        if len < old {
            let tail = (len % page_bytes) as usize;
            if tail > 0
                && let Some(at) = node.at(len / page_bytes)
            {
                // Elsewhere, so that the old content is there until the new length is.
                self.flash.begin_request(RequestKind::Write, page_bytes as u32);
                self.layer.read(&mut self.flash, at, 0, &mut self.page)?;
                self.flash.wait();
                self.page[tail..].fill(0);
                let fresh = self.take_free(page_bytes as usize)?;
                let written = self.layer.write(&mut self.flash, fresh, &self.page);
                self.keep(file, len / page_bytes, Some(fresh), written)?;
            }
            self.files.unmap(file, len.div_ceil(page_bytes)..FILE_MAX / page_bytes + 1);
            self.files.tail_known(file);
        } else if len > old {
            self.flash.begin_request(RequestKind::Command, 0);
            self.clear_tail(file, old)?;
        }
        self.files.set_len(file, len);
        Ok(())
    }

    pub(super) fn release(&mut self, handle: &Handle, range: Range<u64>) -> Result<()> {
        let Some(node) = self.files.node(handle.number) else { return Ok(()) };
        let page_bytes = self.page.len() as u64;
        let end = range.end.min(node.len.next_multiple_of(page_bytes));
        if range.start >= end {
            return Ok(());
        }
        let whole = range.start.div_ceil(page_bytes)..end / page_bytes;
        let mut edges = vec![];
        if whole.start > whole.end {
            edges.push(range.start..end);
        } else {
            edges.push(range.start..whole.start * page_bytes);
            edges.push(whole.end * page_bytes..end);
        }
        edges.retain(|edge| !edge.is_empty() && node.at(edge.start / page_bytes).is_some());
        let mut done = Ok(());
        for edge in edges {
            let zeros = vec![0; (edge.end - edge.start) as usize];
            self.flash.begin_request(RequestKind::Write, zeros.len() as u32);
            let within = (edge.start % page_bytes) as usize;
            let page = edge.start / page_bytes;
            let put =
                self.put_in_page(handle.number, page, within..within + zeros.len(), &zeros, zeros.len());
            done = done.and(put);
        }
        if !whole.is_empty() {
            self.files.unmap(handle.number, whole);
        }
        self.pass_time();
        done.map_err(|error| error.told("release", &handle.name, Some(range.start)))
    }

    pub(super) fn sync(&mut self, name: &str) -> Result<()> {
        self.check_power("sync", name)?;
        self.counters.syncs += 1;
        self.flash.begin_request(RequestKind::Command, 0);
        self.pass_time();
        self.commit_journal().map_err(|error| error.told("sync", name, None))?;
        if self.deferred.is_none() {
            let latencies = &mut self.latencies;
            self.clock.empty_cache(|kind, latency| latencies.note(kind, latency));
        }
        Ok(())
    }

    /// All changes of files so far become durable.
    fn commit_journal(&mut self) -> std::result::Result<(), PutError> {
        // Data first: what the journal refers to is there.
        self.pass_time();
        if self.broken {
            return Err(PutError::Broken);
        }
        if self.files.pending() == 0 {
            // What was freed then belonged to files that had lost their names before, and were closed since.
            return if self.files.has_freed() { Ok(self.give_back_freed()?) } else { Ok(()) };
        }
        let changes = self.files.take_changes();
        let pages = match self.journal.transaction(&changes) {
            Some(pages) => Some(pages),
            None => self.journal.checkpoint(&self.files.everything()),
        };
        self.broken = true;
        let Some(pages) = pages else { return Err(PutError::Full) };
        self.write_pages(&pages)?;
        self.broken = false;
        Ok(self.give_back_freed()?)
    }

    /// What was freed may be used again: all changes so far are durable.
    fn give_back_freed(&mut self) -> crate::Result<()> {
        self.flash.begin_request(RequestKind::Command, 0);
        for page in self.files.release_freed() {
            if self.profile.trim {
                self.layer.trim(&mut self.flash, page)?;
            }
        }
        self.pass_time();
        Ok(())
    }

    fn write_pages(&mut self, pages: &Pages) -> crate::Result<()> {
        self.flash.begin_request(RequestKind::Write, (pages.len() * self.page.len()) as u32);
        let mut done = Ok(());
        for (page, bytes) in pages {
            self.flash.begin_task();
            done = self.layer.write(&mut self.flash, *page, bytes);
            if done.is_err() {
                break;
            }
        }
        self.pass_time();
        done
    }

    pub(super) fn stream(&mut self, requests: &mut [Request<'_>], depth: usize) -> Result<()> {
        self.ranges.clear();
        let mut writes = Vec::new();
        for request in requests.iter() {
            match request {
                Request::Read(read) => self.check_request(read.file, read.offset, read.buffer)?,
                Request::Write(write) => {
                    self.check_request(write.file, write.offset, write.data)?;
                    self.writable(write.file, "write")?;
                    writes.push(*write);
                }
            }
        }
        self.refuse_overlap(&writes)?;
        let mut outcome = Ok(());
        for request in requests {
            let done = match request {
                Request::Read(read) => self.read_one(read),
                Request::Write(write) => self.write_one(write),
            };
            outcome = outcome.and(done);
        }
        let latencies = &mut self.latencies;
        self.clock.run_at_depth(self.flash.batch(), depth, |kind, latency| latencies.note(kind, latency));
        if !self.flash.nand().is_off() {
            self.flash.settle();
        }
        outcome
    }
}

/// Why bytes could not be put into a file.
enum PutError {
    Full,
    Broken,
    Flash(FlashError),
}

impl PutError {
    fn told(self, operation: &'static str, file: &str, offset: Option<u64>) -> Error {
        match self {
            Self::Full => Error::from_io(operation, file, offset, io::ErrorKind::StorageFull.into()),
            Self::Broken => {
                let what = "an earlier commit failed, and what is durable is not known; open the drive again";
                Error::from_io(operation, file, offset, io::Error::other(what))
            }
            Self::Flash(error) => failure(error, operation, file, offset),
        }
    }
}

impl From<FlashError> for PutError {
    fn from(error: FlashError) -> Self {
        Self::Flash(error)
    }
}
