//! Raw flash for trees that manage it themselves: read, program and erase by block and page, an array of operations at a
//! time, in virtual time.
//!
//! Invariants:
//! 1. the members of an array begin at one virtual time and the call returns when the last has ended; those of one unit
//!    go on in the order of the array, those of different units side by side;
//! 2. a member that fails fails the call, after all others were carried out (except where the power went);
//! 3. what an array did is settled when the call returns: power loss does not undo it;
//! 4. the rules of [`Nand`](crate::Nand) hold for every member, in the order of the array.

use crate::{
    BlockId, Clock, Done, Error, Faults, Flash, Geometry, NandCounters, Origin, PageId, Profile, RequestKind,
    Result, Rules, Wear,
};
use parking_lot::Mutex;
use std::time::Duration;

/// Fill `buffer` from byte `offset` of a page on.
#[derive(Debug)]
pub struct PageRead<'a> {
    /// Where to read.
    pub page: PageId,
    /// First byte.
    pub offset: usize,
    /// Filled completely.
    pub buffer: &'a mut [u8],
    /// Filled from the beginning of the spare area; may be empty.
    pub spare: &'a mut [u8],
}

/// Program a page, or a part of it.
#[derive(Clone, Copy, Debug)]
pub struct PageProgram<'a> {
    /// Which one.
    pub page: PageId,
    /// First byte; 0 for whole pages.
    pub offset: usize,
    /// A whole page, or a part where the rules permit it.
    pub data: &'a [u8],
    /// Put at `spare_offset` of the spare area; may be empty.
    pub spare: &'a [u8],
    /// First byte of the spare area; 0 for whole pages.
    pub spare_offset: usize,
}

/// A chip, or many, without a translation layer. See the module.
///
/// ```
/// use flash::{BlockId, PageProgram, PageRead, Profile, RawFlash};
///
/// let flash = RawFlash::new(Profile::slc_2007(), 1)?;
/// let page = flash.geometry().page(BlockId(3), 0);
/// flash.program(&[PageProgram { page, offset: 0, data: &[7; 2048], spare: b"mine", spare_offset: 0 }])?;
/// let (mut data, mut spare) = ([0; 2048], [0; 4]);
/// flash.read(&mut [PageRead { page, offset: 0, buffer: &mut data, spare: &mut spare }])?;
/// assert_eq!((data, &spare), ([7; 2048], b"mine"));
/// let other = flash.geometry().page(BlockId(3), 5);
/// flash.program(&[PageProgram { page: other, offset: 0, data: &[7; 2048], spare: &[], spare_offset: 0 }])?;
/// let between = flash.geometry().page(BlockId(3), 2);
/// let late = flash.program(&[PageProgram { page: between, offset: 0, data: &[7; 2048], spare: &[], spare_offset: 0 }]);
/// assert!(late.is_err(), "pages of a block are programmed upwards");
/// flash.erase(&[BlockId(3)])?;
/// # Ok::<(), flash::Error>(())
/// ```
#[derive(Debug)]
pub struct RawFlash {
    state: Mutex<State>,
    cuts: Mutex<Option<Vec<PowerCut>>>,
}

/// What power loss would have left at some operation of a [`RawFlash`] that went on.
#[derive(Debug)]
pub struct PowerCut {
    /// If the power had gone right before the program or erase.
    pub before: RawFlash,
    /// If it had gone in the midst of it.
    pub within: RawFlash,
}

#[derive(Clone, Debug)]
struct State {
    flash: Flash,
    clock: Clock,
}

impl RawFlash {
    /// Erased flash. All that chance decides in it follows from `seed`.
    ///
    /// # Errors
    /// [`Error::Geometry`].
    pub fn new(profile: Profile, seed: u64) -> Result<Self> {
        let flash = Flash::new(profile.geometry, profile.rules, seed)?;
        let clock = Clock::new(profile.geometry, &profile.timing)?;
        Ok(Self::of(State { flash, clock }))
    }

    fn of(state: State) -> Self {
        Self { state: Mutex::new(state), cuts: Mutex::new(None) }
    }

    /// From now on keeps an image of every program and erase, as if the power had gone there: for tests that would have to
    /// repeat all that came before for each. [`RawFlash::power_loss`] of an image is what is found then.
    pub fn keep_power_cuts(&self) {
        *self.cuts.lock() = Some(Vec::new());
    }

    /// The images kept since this was asked last.
    pub fn take_power_cuts(&self) -> Vec<PowerCut> {
        self.cuts.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What it is made of.
    pub fn geometry(&self) -> Geometry {
        self.state.lock().flash.geometry()
    }

    /// What it demands.
    pub fn rules(&self) -> Rules {
        *self.state.lock().flash.nand().rules()
    }

    /// Virtual time since it was made.
    pub fn now(&self) -> Duration {
        self.state.lock().clock.now()
    }

    /// Operations so far.
    pub fn counters(&self) -> NandCounters {
        self.state.lock().flash.nand().counters()
    }

    /// How evenly blocks have been erased.
    pub fn wear(&self) -> Wear {
        self.state.lock().flash.nand().wear()
    }

    /// How often each block was erased, by number.
    pub fn erases(&self) -> Vec<u32> {
        let state = self.state.lock();
        let blocks = state.flash.geometry().blocks();
        (0..blocks).map(|block| state.flash.nand().erases(BlockId(block))).collect()
    }

    /// Whether a block is bad.
    pub fn is_bad(&self, block: BlockId) -> bool {
        self.state.lock().flash.nand().is_bad(block)
    }

    /// From now on operations fail as often as `faults` says.
    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().flash.nand_mut().set_faults(faults);
    }

    /// The power goes in the midst of the `n`-th operation from now, counted from 1; see [`Nand::cut_power_at`](crate::Nand::cut_power_at).
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn cut_power_at(&self, n: u64) {
        self.state.lock().flash.nand_mut().cut_power_at(n);
    }

    /// As [`RawFlash::cut_power_at`], but reads do not count: in the midst of the `n`-th program or erase from now.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn cut_power_at_change(&self, n: u64) {
        self.state.lock().flash.nand_mut().cut_power_at_change(n);
    }

    /// The flash as it is found after power loss: an image of its own. What of an array under way was done, `seed` says.
    #[must_use]
    pub fn power_loss(&self, seed: u64) -> Self {
        let mut state = self.state.lock().clone();
        state.flash.nand_mut().power_loss(seed);
        state.flash.settle();
        state.clock.restart();
        Self::of(state)
    }

    /// Reads pages.
    ///
    /// # Errors
    /// As [`Nand::read`](crate::Nand::read), of the first member that failed.
    pub fn read(&self, set: &mut [PageRead<'_>]) -> Result<()> {
        self.state.lock().each(set, RequestKind::Read, |flash, member| {
            flash
                .read_with_spare(Origin::Host, member.page, member.offset, member.buffer, member.spare)
                .map(|_| ())
        })
    }

    /// What a page holds, without a read: no time passes and nothing is counted. See [`Nand::peek`](crate::Nand::peek).
    ///
    /// # Errors
    /// As [`Nand::peek`](crate::Nand::peek).
    pub fn peek(&self, page: PageId, buffer: &mut [u8], spare: &mut [u8]) -> Result<u8> {
        self.state.lock().flash.nand().peek(page, buffer, spare)
    }

    /// Programs pages.
    ///
    /// # Errors
    /// As [`Nand::program`](crate::Nand::program), of the first member that failed.
    pub fn program(&self, set: &[PageProgram<'_>]) -> Result<()> {
        let mut set: Vec<_> = set.to_vec();
        self.change(&mut set, RequestKind::Write, |flash, member| {
            let PageProgram { page, offset, data, spare, spare_offset } = *member;
            let whole =
                offset == 0 && spare_offset == 0 && data.len() == flash.geometry().page_bytes as usize;
            if whole {
                flash.program(Origin::Host, page, data, spare, Done::NOTHING).map(|_| ())
            } else {
                flash.program_part(Origin::Host, page, (offset, data), (spare_offset, spare)).map(|_| ())
            }
        })
    }

    /// Erases blocks.
    ///
    /// # Errors
    /// As [`Nand::erase`](crate::Nand::erase), of the first member that failed.
    pub fn erase(&self, blocks: &[BlockId]) -> Result<()> {
        let mut blocks: Vec<_> = blocks.to_vec();
        self.change(&mut blocks, RequestKind::Command, |flash, block| flash.erase(*block).map(|_| ()))
    }

    /// Does a set of programs or erases; keeps images, if asked to.
    fn change<T>(
        &self,
        set: &mut [T],
        kind: RequestKind,
        mut one: impl FnMut(&mut Flash, &mut T) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let mut cuts = self.cuts.lock();
        let Some(cuts) = cuts.as_mut() else { return state.each(set, kind, one) };
        let clock = state.clock.clone();
        state.each(set, kind, |flash, member| {
            let image = || State { flash: flash.clone(), clock: clock.clone() };
            let (before, mut within) = (image(), image());
            within.flash.nand_mut().cut_power_at(1);
            // A change that is refused leaves nothing behind.
            if one(&mut within.flash, member) == Err(Error::PowerOff) {
                cuts.push(PowerCut { before: Self::of(before), within: Self::of(within) });
            }
            one(flash, member)
        })
    }
}

impl State {
    /// Does all members as one set, and lets their time pass.
    fn each<T>(
        &mut self,
        set: &mut [T],
        kind: RequestKind,
        mut one: impl FnMut(&mut Flash, &mut T) -> Result<()>,
    ) -> Result<()> {
        let mut outcome = Ok(());
        for member in set {
            self.flash.begin_request(kind, 0);
            let done = one(&mut self.flash, member);
            let off = done == Err(Error::PowerOff);
            outcome = outcome.and(done);
            if off {
                break;
            }
        }
        self.clock.run(self.flash.batch(), |_, _| {});
        if !self.flash.nand().is_off() {
            self.flash.settle();
        }
        outcome
    }
}
