//! What a kind of flash demands, and how often it fails.

use super::Content;
use crate::{Error, Result};

/// In which order the pages of a block are programmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// One after the other, none left out: what data sheets of multi-level flash demand.
    #[default]
    Consecutive,
    /// Upwards; pages that are left out are lost until the erase.
    Ascending,
    /// As one likes: small blocks of old single-level flash.
    Any,
}

/// What the flash demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// In which order the pages of a block are programmed.
    pub order: Order,
    /// Programs of a page between erases, each of a part (data sheets: NOP), 1 to 100.
    pub programs_max: u8,
    /// Erases after which a block is worn out; `None` for never.
    pub endurance: Option<u32>,
    /// How much of what is written is kept.
    pub content: Content,
}

impl Default for Rules {
    fn default() -> Self {
        Self { order: Order::default(), programs_max: 1, endurance: None, content: Content::default() }
    }
}

impl Rules {
    pub(super) fn check(&self) -> Result<()> {
        if (1..=100).contains(&self.programs_max) {
            return Ok(());
        }
        Err(Error::Geometry(format!("{} programs of a page between erases; 1 to 100", self.programs_max)))
    }
}

/// How often operations fail: probabilities, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Of a program, that it fails. The page is then unreadable.
    pub program: f64,
    /// Of an erase, that it fails. The block is then bad.
    pub erase: f64,
    /// Of a read, that some bits of what it gives are wrong, beyond what the drive's code corrects or notices.
    pub bits: f64,
}

impl Faults {
    /// Refuses what is no probability.
    ///
    /// # Errors
    /// [`Error::Geometry`].
    pub fn check(&self) -> Result<()> {
        let all = [("program", self.program), ("erase", self.erase), ("bits", self.bits)];
        for (what, share) in all {
            if !(0.0..=1.0).contains(&share) {
                return Err(Error::Geometry(format!("a {what} failure probability of {share}; 0 to 1")));
            }
        }
        Ok(())
    }
}
