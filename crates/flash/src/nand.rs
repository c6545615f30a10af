//! NAND flash: its rules, its wear, its failures, its power.
//!
//! Invariants (whoever breaks them gets an [`Error`] that names block and page, and nothing has happened):
//! 1. a page is programmed only while it is free, or [`Rules::programs_max`] times in parts; a part only clears bits;
//! 2. the pages of a block are programmed in the order that [`Rules::order`] says;
//! 3. only whole blocks are erased, and only erasing frees pages; an erased page reads as 0xFF;
//! 4. a page that was in flight when the power went is unreadable or as it was before, never half new; a block whose erase
//!    was interrupted is half erased until it is erased again;
//! 5. what happens depends on the seeds and the order of operations alone.
//!
//! State changes at once, in the order of the calls; [`Clock`](crate::Clock) says when each operation would have ended.
//! What was done since the last [`Nand::settle`] counts as in flight: power loss may find any part of it undone, in
//! order within each unit, unordered between units.

mod content;
mod power;
mod rules;

pub use content::Content;
pub use rules::{Faults, Order, Rules};

use crate::{BlockId, Error, Geometry, PageId, Result};
use content::Contents;
use power::{InFlight, Power};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A page's count of programs when it cannot be read.
const UNREADABLE: u8 = u8::MAX;

/// What has been done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NandCounters {
    /// Pages read, in whole or part, spare areas alone included.
    pub reads: u64,
    /// Pages programmed.
    pub programs: u64,
    /// Blocks erased.
    pub erases: u64,
}

/// How evenly blocks have been erased.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wear {
    /// Erases of the block erased least, bad blocks not counted.
    pub min: u32,
    /// Erases of the block erased most.
    pub max: u32,
    /// Mean over all blocks that are not bad.
    pub mean: f64,
    /// Blocks that are bad.
    pub bad: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct BlockState {
    /// One more than the highest page programmed since the erase.
    next: u16,
    erases: u32,
    bad: bool,
    half_erased: bool,
}

/// See the module. A clone is an image: it shares the bytes until one of the two changes them.
#[derive(Clone, Debug)]
pub struct Nand {
    geometry: Geometry,
    rules: Rules,
    faults: Faults,
    blocks: Vec<BlockState>,
    /// By page: programs since the erase, or `UNREADABLE`.
    programs: Vec<u8>,
    contents: Contents,
    counters: NandCounters,
    power: Power,
    chance: SmallRng,
}

impl Nand {
    /// Erased flash without bad blocks or faults. All that chance decides in it follows from `seed`.
    ///
    /// # Errors
    /// [`Error::Geometry`].
    pub fn new(geometry: Geometry, rules: Rules, seed: u64) -> Result<Self> {
        geometry.check()?;
        rules.check()?;
        Ok(Self {
            geometry,
            rules,
            faults: Faults::default(),
            blocks: vec![BlockState::default(); geometry.blocks() as usize],
            programs: vec![0; geometry.pages() as usize],
            contents: Contents::new(&geometry, rules.content),
            counters: NandCounters::default(),
            power: Power::default(),
            chance: SmallRng::seed_from_u64(seed),
        })
    }

    /// What it is made of.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What it demands.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What has been done so far.
    pub fn counters(&self) -> NandCounters {
        self.counters
    }

    /// From now on operations fail as often as `faults` says.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Marks a block bad, for good.
    ///
    /// # Errors
    /// [`Error::Misuse`] if there is no such block.
    pub fn mark_bad(&mut self, block: BlockId) -> Result<()> {
        self.check_block(block)?;
        self.blocks[block.0 as usize].bad = true;
        Ok(())
    }

    /// Makes what a page holds unreadable, as leaking charge would.
    ///
    /// # Errors
    /// [`Error::Misuse`] if there is no such page, or nothing in it.
    pub fn spoil(&mut self, page: PageId) -> Result<()> {
        self.check_page(page)?;
        match &mut self.programs[page.0 as usize] {
            0 => self.misuse(page, || "a free page cannot be spoilt".to_owned()),
            programs => {
                *programs = UNREADABLE;
                Ok(())
            }
        }
    }

    /// Whether a block is bad (or does not exist).
    pub fn is_bad(&self, block: BlockId) -> bool {
        self.blocks.get(block.0 as usize).is_none_or(|state| state.bad)
    }

    /// How often a block was erased; 0 if there is none such.
    pub fn erases(&self, block: BlockId) -> u32 {
        self.blocks.get(block.0 as usize).map_or(0, |state| state.erases)
    }

    /// How evenly blocks have been erased.
    pub fn wear(&self) -> Wear {
        let good = self.blocks.iter().filter(|state| !state.bad).map(|state| state.erases);
        let count = good.clone().count();
        let total: u64 = good.clone().map(u64::from).sum();
        Wear {
            min: good.clone().min().unwrap_or(0),
            max: good.max().unwrap_or(0),
            mean: total as f64 / count.max(1) as f64,
            bad: (self.blocks.len() - count) as u32,
        }
    }

    /// The lowest page of the block that may be programmed next; `pages_per_block` if it is full. Says nothing of a
    /// half-erased block.
    pub fn next_page(&self, block: BlockId) -> u32 {
        self.blocks.get(block.0 as usize).map_or(0, |state| u32::from(state.next))
    }

    /// Bytes of memory that the simulation takes for what the pages hold.
    pub fn memory_bytes(&self) -> usize {
        self.contents.memory_bytes()
    }

    fn check_block(&self, block: BlockId) -> Result<()> {
        if (block.0 as usize) < self.blocks.len() {
            return Ok(());
        }
        let what = format!("there are {} blocks", self.blocks.len());
        Err(Error::Misuse { block, index: 0, what })
    }

    fn check_page(&self, page: PageId) -> Result<(BlockId, u32)> {
        let place = (self.geometry.block_of(page), self.geometry.index_in_block(page));
        self.check_block(place.0)?;
        Ok(place)
    }

    fn misuse<T>(&self, page: PageId, what: impl FnOnce() -> String) -> Result<T> {
        let (block, index) = (self.geometry.block_of(page), self.geometry.index_in_block(page));
        Err(Error::Misuse { block, index, what: what() })
    }

    /// Counts an operation that may come true; whether the power goes while it is under way.
    fn begin(&mut self, change: bool) -> Result<bool> {
        self.power.count(change)
    }

    /// Reads part of a page: `buffer.len()` bytes from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::Unreadable`], [`Error::PowerOff`]; [`Error::Misuse`] if the page does not have these bytes.
    pub fn read(&mut self, page: PageId, offset: usize, buffer: &mut [u8]) -> Result<()> {
        self.read_with_spare(page, offset, buffer, &mut [])
    }

    /// Reads part of a page and the first bytes of its spare area: one read.
    ///
    /// # Errors
    /// As [`Nand::read`].
    pub fn read_with_spare(
        &mut self,
        page: PageId,
        offset: usize,
        buffer: &mut [u8],
        spare: &mut [u8],
    ) -> Result<()> {
        let (block, index) = self.check_page(page)?;
        let page_bytes = self.geometry.page_bytes as usize;
        if offset > page_bytes || buffer.len() > page_bytes - offset {
            let len = buffer.len();
            return self.misuse(page, || format!("bytes {offset} + {len} of a page of {page_bytes}"));
        }
        if spare.len() > self.geometry.spare_bytes as usize {
            return self.too_much_spare(page, spare.len());
        }
        if self.begin(false)? {
            return Err(Error::PowerOff);
        }
        self.counters.reads += 1;
        match self.programs[page.0 as usize] {
            0 => {
                buffer.fill(0xff);
                spare.fill(0xff);
            }
            UNREADABLE => return Err(Error::Unreadable { block, index }),
            _ => {
                self.contents.read(block, index, offset, buffer);
                self.contents.read_spare(block, index, spare);
            }
        }
        self.disturb(if buffer.is_empty() { spare } else { buffer });
        Ok(())
    }

    /// What a page holds, without a read: for maps and tests, nothing is counted and no fault strikes. How often the page was
    /// programmed since its block was erased, 0 if it is free; [`Rules::programs_max`] at most, or 255 if it cannot be read.
    /// Both buffers are filled from the beginning, with 0xFF if the page is free, or cannot be read.
    ///
    /// # Errors
    /// [`Error::Misuse`] if there is no such page, or it has fewer bytes.
    pub fn peek(&self, page: PageId, buffer: &mut [u8], spare: &mut [u8]) -> Result<u8> {
        let (block, index) = self.check_page(page)?;
        if buffer.len() > self.geometry.page_bytes as usize {
            let (len, page_bytes) = (buffer.len(), self.geometry.page_bytes);
            return self.misuse(page, || format!("{len} bytes of a page of {page_bytes}"));
        }
        if spare.len() > self.geometry.spare_bytes as usize {
            self.too_much_spare(page, spare.len())?;
        }
        let programs = self.programs[page.0 as usize];
        if programs == 0 || programs == UNREADABLE {
            buffer.fill(0xff);
            spare.fill(0xff);
        } else {
            self.contents.read(block, index, 0, buffer);
            self.contents.read_spare(block, index, spare);
        }
        Ok(programs)
    }

    /// Reads the first bytes of a page's spare area.
    ///
    /// # Errors
    /// As [`Nand::read`].
    pub fn read_spare(&mut self, page: PageId, buffer: &mut [u8]) -> Result<()> {
        self.read_with_spare(page, 0, &mut [], buffer)
    }

    /// Flips bits, as often as the faults say.
    fn disturb(&mut self, buffer: &mut [u8]) {
        if self.faults.bits > 0.0 && !buffer.is_empty() && self.chance.random_bool(self.faults.bits) {
            // An odd number of flips of one bit of one byte, so that a difference is sure.
            for _ in 0..self.chance.random_range(0..8) {
                let at = self.chance.random_range(0..buffer.len());
                buffer[at] ^= 1 << self.chance.random_range(1..8);
            }
            let at = self.chance.random_range(0..buffer.len());
            buffer[at] ^= 1;
        }
    }

    /// Whether a page may be programmed now, and how often it was.
    fn admit(&self, page: PageId) -> Result<(BlockId, u32, u8)> {
        let (block, index) = self.check_page(page)?;
        let state = &self.blocks[block.0 as usize];
        if state.bad {
            return Err(Error::BadBlock { block });
        }
        if state.half_erased {
            return Err(Error::HalfErased { block });
        }
        let programs = self.programs[page.0 as usize];
        let programs_max = self.rules.programs_max;
        if programs >= programs_max {
            return Err(Error::NotFree { block, index, programs, programs_max });
        }
        let next = u32::from(state.next);
        // A page in parts may go on while it is the last one.
        let expected = if programs > 0 { next - 1 } else { next };
        let in_order = match self.rules.order {
            Order::Consecutive => index == expected,
            Order::Ascending => index >= expected,
            Order::Any => true,
        };
        if in_order {
            Ok((block, index, programs))
        } else {
            Err(Error::OutOfOrder { block, index, expected })
        }
    }

    /// What every program does to the state. `Err` if the power goes meanwhile, or chance makes it fail.
    fn put(&mut self, page: PageId, block: BlockId, index: u32, programs: u8, cut: bool) -> Result<()> {
        let state = &mut self.blocks[block.0 as usize];
        let next_before = state.next;
        state.next = state.next.max(index as u16 + 1);
        self.programs[page.0 as usize] = programs + 1;
        self.counters.programs += 1;
        self.power.fly(InFlight::Program { page, first: programs == 0, next_before, cut });
        if cut {
            return Err(Error::PowerOff);
        }
        if self.faults.program > 0.0 && self.chance.random_bool(self.faults.program) {
            self.programs[page.0 as usize] = UNREADABLE;
            return Err(Error::ProgramFailed { block, index });
        }
        Ok(())
    }

    /// Programs a whole page, and its spare area with `spare` (what that leaves stays 0xFF).
    ///
    /// # Errors
    /// [`Error::NotFree`], [`Error::OutOfOrder`], [`Error::BadBlock`], [`Error::HalfErased`], [`Error::ProgramFailed`],
    /// [`Error::PowerOff`]; [`Error::Misuse`] if the lengths are not the page's.
    pub fn program(&mut self, page: PageId, data: &[u8], spare: &[u8]) -> Result<()> {
        if data.len() != self.geometry.page_bytes as usize {
            let (len, page_bytes) = (data.len(), self.geometry.page_bytes);
            return self.misuse(page, || format!("{len} bytes for a page of {page_bytes}"));
        }
        if spare.len() > self.geometry.spare_bytes as usize {
            return self.too_much_spare(page, spare.len());
        }
        let (block, index, programs) = self.admit(page)?;
        let cut = self.begin(true)?;
        if programs == 0 {
            self.contents.put(block, index, data, spare);
        } else {
            self.contents.clear_bits(block, index, 0, data);
            self.contents.clear_spare_bits(block, index, 0, spare);
        }
        self.put(page, block, index, programs, cut)
    }

    /// Programs a part of a page: `data` from byte `offset` on, `spare` from byte `spare_offset` of the spare area on.
    /// Bits can only be cleared: what was programmed there before and `data` are combined by AND.
    ///
    /// # Errors
    /// As [`Nand::program`]; [`Error::NotFree`] also if the page has had all its programs.
    pub fn program_part(
        &mut self,
        page: PageId,
        offset: usize,
        data: &[u8],
        spare_offset: usize,
        spare: &[u8],
    ) -> Result<()> {
        let page_bytes = self.geometry.page_bytes as usize;
        if offset > page_bytes || data.len() > page_bytes - offset {
            let len = data.len();
            return self.misuse(page, || format!("bytes {offset} + {len} of a page of {page_bytes}"));
        }
        let spare_bytes = self.geometry.spare_bytes as usize;
        if spare_offset > spare_bytes || spare.len() > spare_bytes - spare_offset {
            return self.too_much_spare(page, spare_offset.saturating_add(spare.len()));
        }
        let (block, index, programs) = self.admit(page)?;
        let cut = self.begin(true)?;
        if programs == 0 {
            self.contents.erase_page(block, index);
        }
        self.contents.clear_bits(block, index, offset, data);
        self.contents.clear_spare_bits(block, index, spare_offset, spare);
        self.put(page, block, index, programs, cut)
    }

    fn too_much_spare(&self, page: PageId, len: usize) -> Result<()> {
        let spare_bytes = self.geometry.spare_bytes;
        self.misuse(page, || format!("{len} bytes for a spare area of {spare_bytes}"))
    }

    /// Reads a page and programs another with the same bytes, spare area included: a read and a program, which count as
    /// such.
    ///
    /// # Errors
    /// As [`Nand::read`] of `from` and [`Nand::program`] of `to`.
    pub fn copy(&mut self, from: PageId, to: PageId) -> Result<()> {
        let (source, source_index) = self.check_page(from)?;
        let (block, index, programs) = self.admit(to)?;
        if self.programs[from.0 as usize] == UNREADABLE {
            return Err(Error::Unreadable { block: source, index: source_index });
        }
        if programs > 0 || self.programs[from.0 as usize] == 0 {
            return self.misuse(from, || "copies go from a programmed page to a free one".to_owned());
        }
        if self.begin(false)? {
            return Err(Error::PowerOff);
        }
        self.counters.reads += 1;
        let cut = self.begin(true)?;
        self.contents.copy((source, source_index), (block, index));
        if self.faults.bits > 0.0 && self.chance.random_bool(self.faults.bits) {
            let at = self.chance.random_range(0..self.contents.kept_bytes());
            self.contents.flip(block, index, at, self.chance.random_range(0..8));
        }
        self.put(to, block, index, programs, cut)
    }

    /// Erases a block. Everything before it is settled: whoever erases has made sure that nothing is needed any more.
    ///
    /// # Errors
    /// [`Error::BadBlock`], [`Error::WornOut`], [`Error::EraseFailed`], [`Error::PowerOff`], [`Error::Misuse`].
    pub fn erase(&mut self, block: BlockId) -> Result<()> {
        self.check_block(block)?;
        let state = &mut self.blocks[block.0 as usize];
        if state.bad {
            return Err(Error::BadBlock { block });
        }
        let erases = state.erases;
        if self.rules.endurance.is_some_and(|endurance| erases >= endurance) {
            state.bad = true;
            return Err(Error::WornOut { block, erases });
        }
        let cut = self.begin(true)?;
        self.settle();
        self.power.fly(InFlight::Erase { block, cut });
        let state = &mut self.blocks[block.0 as usize];
        state.erases += 1;
        self.counters.erases += 1;
        if cut {
            state.half_erased = true;
            return Err(Error::PowerOff);
        }
        if self.faults.erase > 0.0 && self.chance.random_bool(self.faults.erase) {
            state.bad = true;
            return Err(Error::EraseFailed { block });
        }
        state.next = 0;
        state.half_erased = false;
        self.programs_of(block).fill(0);
        Ok(())
    }

    fn programs_of(&mut self, block: BlockId) -> &mut [u8] {
        let first = self.geometry.page(block, 0).0 as usize;
        &mut self.programs[first..first + self.geometry.pages_per_block as usize]
    }
}
