//! Raw flash as a log of pages: what is written goes to the next free page; blocks in which nothing lives any more are
//! erased and used again. Which pages live, and what to do with those of a block that is to be emptied, the store above
//! knows.
//!
//! ```text
//!          append                     every page dead            erase, when it is needed
//! free ───────────▶ being filled ──▶ used ─────────────▶ free ─────────────────────────────▶ free and erased
//!                                     │ a program failed
//!                                     ▼
//!                                  retired: read, never programmed again
//! ```
//! Invariants:
//! 1. Pages are programmed one after the other, each when the one before has ended: what power loss leaves of pages that were
//!    appended together is a first part of them.
//! 2. A block is erased only when no page of it lives; so an interrupted erase damages nothing.
//! 3. Sequence numbers grow with the pages appended, over recoveries too; a copy keeps its own. Serial numbers grow with copies
//!    as well: of a page and its copies, which dead blocks may still have, the one with the highest is the newest.
//! 4. A block whose first page is erased is taken to be erased. One whose erase was interrupted may look so; programming it is
//!    refused by the flash, and then it is erased first.

use crate::store::flash_tag::{TAG, Tag};
use crate::{Error, PageUse, Result};
use flash::{BlockId, Geometry, PageId, PageProgram, PageRead, RawFlash};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Times that a group of pages is begun anew, because blocks fail under it.
const ATTEMPTS: usize = 16;

/// A page to be appended.
pub(crate) struct NewPage {
    /// As many bytes as [`FlashLog::page_len`] says.
    pub data: Vec<u8>,
    pub tag: Tag,
    /// Parts of it that live, a bit each; at least one.
    pub live: u16,
}

/// A page that was found on flash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub page: u64,
    pub tag: Tag,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Erased, as far as is known.
    Blank,
    /// Dead, to be erased before it is used.
    Dirty,
    /// Being filled.
    Open,
    Used,
    Retired,
}

/// Totals of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogCounts {
    pub reads: u64,
    pub programs: u64,
    pub erases: u64,
    /// Blocks that were emptied by moving what lived in them.
    pub collected: u64,
    /// Pages that were moved for that.
    pub moved: u64,
}

/// See the module.
pub(crate) struct FlashLog {
    flash: Arc<RawFlash>,
    geometry: Geometry,
    page_len: usize,
    /// By page: which parts live.
    live: Vec<u16>,
    /// By block: pages with a part that lives.
    block_live: Vec<u32>,
    states: Vec<State>,
    free: VecDeque<u32>,
    /// Erased and about to be filled; the first one is being filled.
    open: VecDeque<u32>,
    next_index: u32,
    sequence: u64,
    serial: u64,
    reads: AtomicU64,
    programs: u64,
    erases: u64,
    collected: u64,
    moved: u64,
}

impl FlashLog {
    /// All of the flash, erased. `page_len`: bytes of a page that are used.
    pub fn create(flash: Arc<RawFlash>, page_len: usize) -> Result<Self> {
        let mut log = Self::new(flash, page_len)?;
        for block in 0..log.geometry.blocks() {
            let mut spare = [0; TAG];
            let page = log.geometry.page(BlockId(block), 0);
            let is_blank =
                log.read_raw(page, &mut [], &mut spare).is_ok() && spare.iter().all(|byte| *byte == 0xff);
            if log.flash.is_bad(BlockId(block)) {
                log.states[block as usize] = State::Retired;
            } else if is_blank || log.erase(block)? {
                log.free.push_back(block);
            }
        }
        Ok(log)
    }

    /// The flash as it is found, and all pages with sound tags. Until [`Self::settle`], nothing may be appended.
    pub fn open(flash: Arc<RawFlash>, page_len: usize) -> Result<(Self, Vec<Found>)> {
        let mut log = Self::new(flash, page_len)?;
        let mut found = Vec::new();
        for block in 0..log.geometry.blocks() {
            for index in 0..log.geometry.pages_per_block {
                let page = log.geometry.page(BlockId(block), index);
                let mut spare = [0; TAG];
                match log.read_raw(page, &mut [], &mut spare) {
                    // The pages behind are erased, or of a block whose erase was interrupted.
                    Ok(()) if spare.iter().all(|byte| *byte == 0xff) => break,
                    // A page without a sound tag is dead: its program was cut, or failed.
                    Ok(()) => found.extend(Tag::decode(&spare).map(|tag| Found { page: page.0.into(), tag })),
                    Err(Error::Flash(flash::Error::Unreadable { .. })) => {}
                    Err(error) => return Err(error),
                }
                log.states[block as usize] = State::Used;
            }
        }
        log.sequence = found.iter().map(|found| found.tag.sequence + 1).max().unwrap_or(0);
        log.serial = found.iter().map(|found| found.tag.serial + 1).max().unwrap_or(0);
        Ok((log, found))
    }

    fn new(flash: Arc<RawFlash>, page_len: usize) -> Result<Self> {
        let geometry = flash.geometry();
        if !page_len.is_power_of_two() || !(128..=geometry.page_bytes as usize).contains(&page_len) {
            let most = geometry.page_bytes;
            return Err(Error::Invalid(format!(
                "pages of {page_len} bytes: a power of two from 128 to {most}, which a page of this flash has"
            )));
        }
        if (geometry.spare_bytes as usize) < TAG {
            let found = geometry.spare_bytes;
            return Err(Error::Invalid(format!(
                "spare areas of {found} bytes: the tree notes {TAG} bytes in each"
            )));
        }
        Ok(Self {
            page_len,
            live: vec![0; geometry.pages() as usize],
            block_live: vec![0; geometry.blocks() as usize],
            states: vec![State::Blank; geometry.blocks() as usize],
            flash,
            geometry,
            free: VecDeque::new(),
            open: VecDeque::new(),
            next_index: 0,
            sequence: 0,
            serial: 0,
            reads: AtomicU64::new(0),
            programs: 0,
            erases: 0,
            collected: 0,
            moved: 0,
        })
    }

    /// After [`Self::open`], when all that lives is marked: the rest is free.
    pub fn settle(&mut self) {
        for block in 0..self.geometry.blocks() {
            let at = block as usize;
            match self.states[at] {
                _ if self.flash.is_bad(BlockId(block)) => self.states[at] = State::Retired,
                State::Used if self.block_live[at] == 0 => {
                    self.states[at] = State::Dirty;
                    self.free.push_back(block);
                }
                State::Blank => self.free.push_back(block),
                _ => {}
            }
        }
    }

    pub fn page_len(&self) -> usize {
        self.page_len
    }

    fn read_raw(&self, page: PageId, buffer: &mut [u8], spare: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Relaxed);
        Ok(self.flash.read(&mut [PageRead { page, offset: 0, buffer, spare }])?)
    }

    fn page_id(&self, page: u64) -> Result<PageId> {
        let pages = self.geometry.pages();
        let number = u32::try_from(page).ok().filter(|number| *number < pages);
        number
            .map(PageId)
            .ok_or_else(|| Error::corrupt("flash", page, "address of a page", format!("below {pages}"), page))
    }

    /// The bytes of a page that are used.
    pub fn read(&self, page: u64) -> Result<Vec<u8>> {
        let mut data = vec![0; self.page_len];
        self.read_raw(self.page_id(page)?, &mut data, &mut [])?;
        Ok(data)
    }

    /// The same, and the tag.
    pub fn read_tagged(&self, page: u64) -> Result<(Vec<u8>, Tag)> {
        let (mut data, mut spare) = (vec![0; self.page_len], [0; TAG]);
        self.read_raw(self.page_id(page)?, &mut data, &mut spare)?;
        let tag = Tag::decode(&spare).ok_or_else(|| {
            Error::corrupt("flash", self.offset(page), "tag of a page", "a sound one", "none")
        })?;
        Ok((data, tag))
    }

    /// Byte of the flash at which a page begins, for error messages.
    pub fn offset(&self, page: u64) -> u64 {
        page * u64::from(self.geometry.page_bytes)
    }

    /// Erases a block now. Whether it can be used.
    fn erase(&mut self, block: u32) -> Result<bool> {
        self.erases += 1;
        match self.flash.erase(&[BlockId(block)]) {
            Ok(()) => {
                self.states[block as usize] = State::Blank;
                Ok(true)
            }
            Err(
                flash::Error::EraseFailed { .. }
                | flash::Error::WornOut { .. }
                | flash::Error::BadBlock { .. },
            ) => {
                self.states[block as usize] = State::Retired;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Pages that can be appended before anything is collected.
    pub fn room(&self) -> usize {
        let blocks = self.free.len() + self.open.len();
        blocks * self.geometry.pages_per_block as usize - self.next_index as usize
    }

    /// Pages that could be appended at most, if all blocks were emptied of what is dead. The block that is being filled may have
    /// dead pages too, of which nothing comes back before it is full.
    pub fn room_at_most(&self) -> usize {
        let per_block = self.geometry.pages_per_block as usize;
        let usable = self.states.iter().zip(&self.block_live).filter(|(state, _)| **state != State::Retired);
        let room: usize = usable.map(|(_, live)| per_block - *live as usize).sum();
        room.saturating_sub(per_block)
    }

    /// Pages that should stay free: two blocks, so that one can be emptied, and what one operation may write.
    pub fn reserve(&self, operation: usize) -> usize {
        2 * self.geometry.pages_per_block as usize + operation
    }

    /// The pages that the next ones appended get.
    fn addresses(&mut self, count: usize) -> Result<Vec<PageId>> {
        let per_block = self.geometry.pages_per_block as usize;
        while self.open.len() * per_block - (self.next_index as usize) < count {
            let Some(block) = self.free.pop_front() else {
                return Err(self.full(count));
            };
            if self.states[block as usize] == State::Blank || self.erase(block)? {
                self.states[block as usize] = State::Open;
                self.open.push_back(block);
            }
        }
        let first = self.next_index as usize;
        let address = |at: usize| {
            let block = BlockId(self.open[at / per_block]);
            self.geometry.page(block, (at % per_block) as u32)
        };
        Ok((first..first + count).map(address).collect())
    }

    /// That there is no room.
    pub fn full(&self, wanted: usize) -> Error {
        let live: u32 = self.block_live.iter().sum();
        let retired = self.states.iter().filter(|state| **state == State::Retired).count();
        Error::Full(format!(
            "the flash has no room for {wanted} more pages: {live} of {} pages hold what lives, {retired} of {} blocks have \
             failed; delete records, or take a flash with more blocks",
            self.geometry.pages(),
            self.geometry.blocks()
        ))
    }

    /// Appends pages, whose addresses `encode` is told; their sequence numbers are given here. Where they are.
    pub fn append(
        &mut self,
        count: usize,
        encode: &mut dyn FnMut(&[u64], u64) -> Vec<NewPage>,
    ) -> Result<Vec<u64>> {
        for _ in 0..ATTEMPTS {
            let pages = self.addresses(count)?;
            let addresses: Vec<u64> = pages.iter().map(|page| u64::from(page.0)).collect();
            let first = self.sequence;
            let mut new = encode(&addresses, first);
            for (page, sequence) in new.iter_mut().zip(first..) {
                page.tag.sequence = sequence;
            }
            self.sequence += count as u64;
            if self.program(&pages, &new)? {
                return Ok(addresses);
            }
        }
        Err(self.full(count))
    }

    /// Appends copies of pages: their tags stay as they are. Where they are.
    pub fn append_copies(&mut self, copies: &[(Vec<u8>, Tag, u16)]) -> Result<Vec<u64>> {
        for _ in 0..ATTEMPTS {
            let pages = self.addresses(copies.len())?;
            let copy = |(data, tag, live): &(Vec<u8>, Tag, u16)| NewPage {
                data: data.clone(),
                tag: *tag,
                live: *live,
            };
            let new: Vec<_> = copies.iter().map(copy).collect();
            if self.program(&pages, &new)? {
                self.moved += copies.len() as u64;
                return Ok(pages.iter().map(|page| u64::from(page.0)).collect());
            }
        }
        Err(self.full(copies.len()))
    }

    /// Programs pages, one after the other. Whether all of them could be; if not, none lives.
    fn program(&mut self, pages: &[PageId], new: &[NewPage]) -> Result<bool> {
        for (done, (page, NewPage { data, tag, live })) in pages.iter().zip(new).enumerate() {
            let block = self.geometry.block_of(*page);
            let spare = Tag { serial: self.serial, ..*tag }.encode();
            self.serial += 1;
            let program = PageProgram { page: *page, offset: 0, data, spare: &spare, spare_offset: 0 };
            let state = match self.flash.program(&[program]) {
                Ok(()) => {
                    self.programs += 1;
                    self.mark(page.0.into(), *live);
                    self.advance();
                    continue;
                }
                Err(flash::Error::HalfErased { .. }) => State::Dirty,
                Err(flash::Error::ProgramFailed { .. } | flash::Error::BadBlock { .. }) => State::Retired,
                Err(error) => return Err(error.into()),
            };
            // Nothing of the group counts, and its block is left.
            self.open.pop_front();
            self.next_index = 0;
            self.states[block.0 as usize] = state;
            if state == State::Dirty {
                self.free.push_back(block.0);
            }
            for (page, NewPage { live, .. }) in pages[..done].iter().zip(new) {
                self.kill(page.0.into(), *live);
            }
            return Ok(false);
        }
        Ok(true)
    }

    /// The page at which the block stands has been programmed.
    fn advance(&mut self) {
        self.next_index += 1;
        if self.next_index < self.geometry.pages_per_block {
            return;
        }
        self.next_index = 0;
        if let Some(block) = self.open.pop_front() {
            self.states[block as usize] = State::Used;
            self.free_if_dead(block);
        }
    }

    fn free_if_dead(&mut self, block: u32) {
        let at = block as usize;
        if self.states[at] == State::Used && self.block_live[at] == 0 {
            self.states[at] = State::Dirty;
            self.free.push_back(block);
        }
    }

    fn block_of(&self, page: u64) -> u32 {
        (page / u64::from(self.geometry.pages_per_block)) as u32
    }

    /// Parts of a page live.
    pub fn mark(&mut self, page: u64, parts: u16) {
        let block = self.block_of(page) as usize;
        let live = &mut self.live[page as usize];
        self.block_live[block] += u32::from(*live == 0 && parts != 0);
        *live |= parts;
    }

    /// Parts of a page are needed no more.
    pub fn kill(&mut self, page: u64, parts: u16) {
        let block = self.block_of(page);
        let live = &mut self.live[page as usize];
        let was = *live;
        *live &= !parts;
        if was != 0 && *live == 0 {
            self.block_live[block as usize] -= 1;
            self.free_if_dead(block);
        }
    }

    /// Which parts of a page live.
    pub fn parts(&self, page: u64) -> u16 {
        self.live[page as usize]
    }

    /// Which parts live, by page.
    pub fn page_use(&self) -> PageUse {
        PageUse::Needed(self.live.clone())
    }

    /// Pages of which something lives.
    pub fn live_pages(&self) -> u64 {
        self.block_live.iter().map(|count| u64::from(*count)).sum()
    }

    /// The used block with the least that lives: its pages that do. An error if emptying it would gain nothing.
    pub fn victim(&mut self) -> Result<Vec<u64>> {
        let used = (0..self.geometry.blocks()).filter(|block| self.states[*block as usize] == State::Used);
        let victim = used.min_by_key(|block| self.block_live[*block as usize]);
        match victim {
            Some(block) if self.block_live[block as usize] < self.geometry.pages_per_block => {
                self.collected += 1;
                Ok(self.live_in(block))
            }
            _ => Err(self.full(1)),
        }
    }

    /// The pages of a block that live.
    pub fn live_in(&self, block: u32) -> Vec<u64> {
        let pages = u64::from(self.geometry.pages_per_block);
        let first = u64::from(block) * pages;
        (first..first + pages).filter(|page| self.live[*page as usize] != 0).collect()
    }

    /// The block of a page.
    pub fn block(&self, page: u64) -> u32 {
        self.block_of(page)
    }

    /// Erases free blocks now that are not erased, among these.
    pub fn erase_dead(&mut self, blocks: &[u32]) -> Result<()> {
        for block in blocks {
            if self.states[*block as usize] == State::Dirty && !self.erase(*block)? {
                self.free.retain(|free| free != block);
            }
        }
        Ok(())
    }

    /// Verifies that what the log counts is what it has.
    pub fn check(&self) -> Result<()> {
        let broken = |what: String| Err(Error::broken(what));
        for block in 0..self.geometry.blocks() {
            let live = self.live_in(block).len() as u32;
            let state = self.states[block as usize];
            if live != self.block_live[block as usize] {
                return broken(format!(
                    "block {block}: {live} pages live, not {}",
                    self.block_live[block as usize]
                ));
            }
            let is_free = self.free.contains(&block);
            if is_free != matches!(state, State::Blank | State::Dirty) || (is_free && live > 0) {
                return broken(format!(
                    "block {block} is {state:?}, with {live} pages alive; free: {is_free}"
                ));
            }
            if (state == State::Open) != self.open.contains(&block) {
                return broken(format!("block {block} is {state:?}, and not so filled"));
            }
        }
        Ok(())
    }

    pub fn counts(&self) -> LogCounts {
        LogCounts {
            reads: self.reads.load(Relaxed),
            programs: self.programs,
            erases: self.erases,
            collected: self.collected,
            moved: self.moved,
        }
    }

    /// Bytes in memory.
    pub fn memory(&self) -> u64 {
        2 * self.live.len() as u64 + 9 * self.states.len() as u64
    }

    /// Bytes of pages of which something lives.
    pub fn space(&self) -> u64 {
        self.live_pages() * self.page_len as u64
    }
}
