//! Power loss: what was in flight, and what is found of it afterwards.
//!
//! Each unit works through its operations in order. When the power goes, a unit has done some of those in flight, is in
//! the midst of one, and has not begun the others; how far each unit is, the seed says.

use super::{Nand, UNREADABLE};
use crate::{BlockId, Error, PageId, Result};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The oldest operations in flight are settled beyond this many.
const IN_FLIGHT_MAX: usize = 8192;

/// Done, but perhaps not yet when the power goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum InFlight {
    Program {
        page: PageId,
        /// Whether the page was free before.
        first: bool,
        next_before: u16,
        /// Whether the power went in the midst of it.
        cut: bool,
    },
    Erase {
        block: BlockId,
        cut: bool,
    },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Power {
    in_flight: Vec<InFlight>,
    /// Operations until the power goes, counting the one that it goes in.
    cut_in: Option<u64>,
    /// Whether only programs and erases count for that.
    changes_only: bool,
    off: bool,
}

impl Power {
    /// Counts an operation. Whether the power goes during it; an error if it went before.
    pub(super) fn count(&mut self, change: bool) -> Result<bool> {
        if self.off {
            return Err(Error::PowerOff);
        }
        if self.changes_only && !change {
            return Ok(false);
        }
        if let Some(left) = &mut self.cut_in {
            *left -= 1;
            if *left == 0 {
                self.off = true;
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn fly(&mut self, operation: InFlight) {
        if self.in_flight.len() == IN_FLIGHT_MAX {
            self.in_flight.drain(..IN_FLIGHT_MAX / 2);
        }
        self.in_flight.push(operation);
    }
}

impl Nand {
    /// All operations so far have ended: power loss finds them done.
    pub fn settle(&mut self) {
        self.power.in_flight.clear();
    }

    /// The power goes in the midst of the `n`-th operation from now, counted from 1. From then on everything fails
    /// with [`Error::PowerOff`], until [`Nand::power_loss`].
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn cut_power_at(&mut self, n: u64) {
        assert!(n > 0, "operations are counted from 1");
        (self.power.cut_in, self.power.changes_only) = (Some(n), false);
    }

    /// As [`Nand::cut_power_at`], but reads do not count: in the midst of the `n`-th program or erase from now.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn cut_power_at_change(&mut self, n: u64) {
        self.cut_power_at(n);
        self.power.changes_only = true;
    }

    /// Whether the power has gone.
    pub fn is_off(&self) -> bool {
        self.power.off
    }

    /// The power goes, if it has not gone yet, and comes back. What was in flight is found as `seed` says.
    pub fn power_loss(&mut self, seed: u64) {
        let mut chance = SmallRng::seed_from_u64(seed);
        let in_flight = std::mem::take(&mut self.power).in_flight;
        let units = self.geometry.units();
        for unit in 0..units {
            let of_unit = |operation: &&InFlight| self.unit_of(operation) == unit;
            let operations: Vec<InFlight> = in_flight.iter().filter(of_unit).copied().collect();
            if operations.is_empty() {
                continue;
            }
            let cut = operations.iter().position(|operation| match operation {
                InFlight::Program { cut, .. } | InFlight::Erase { cut, .. } => *cut,
            });
            // Those before `done` have ended, that one was under way, and those behind it had not begun.
            let done = chance.random_range(0..=cut.unwrap_or(operations.len()));
            for (number, operation) in operations.iter().enumerate().skip(done).rev() {
                let begun = number == done && (cut == Some(number) || chance.random());
                self.take_back(*operation, begun, &mut chance);
            }
        }
    }

    fn unit_of(&self, operation: &InFlight) -> u32 {
        self.geometry.unit_of(match operation {
            InFlight::Program { page, .. } => self.geometry.block_of(*page),
            InFlight::Erase { block, .. } => *block,
        })
    }

    fn take_back(&mut self, operation: InFlight, begun: bool, chance: &mut SmallRng) {
        match operation {
            InFlight::Program { page, first, next_before, .. } => {
                // Of a page programmed in parts nobody kept what it was before.
                let torn = begun || !first;
                self.programs[page.0 as usize] = if torn { UNREADABLE } else { 0 };
                if !torn {
                    let block = self.geometry.block_of(page);
                    self.blocks[block.0 as usize].next = next_before;
                }
            }
            InFlight::Erase { block, cut } => {
                self.blocks[block.0 as usize].half_erased = true;
                let erased = chance.random_range(0.0..=1.0);
                let spoilt = chance.random_range(0.0..=1.0);
                for programs in self.programs_of(block) {
                    if chance.random_bool(spoilt) {
                        *programs = UNREADABLE;
                    } else if !cut || chance.random_bool(erased) {
                        *programs = 0;
                    }
                }
            }
        }
    }
}
