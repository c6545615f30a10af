//! What a check has found: damage, and what could not be read beside it, which hides no damage.

use super::{Error, Result};

/// See the module.
#[derive(Debug)]
pub(crate) struct Findings {
    damage: Vec<Error>,
    /// Errors of the device, and others of reading.
    unreadable: Vec<Error>,
    /// How long each of the two lists may be (count).
    most: usize,
    /// What came when they were full (count).
    left_out: u64,
    /// Nothing can be read any more.
    is_over: bool,
}

impl Findings {
    /// At most so many errors are listed of each kind.
    pub fn new(most: usize) -> Self {
        Self { damage: Vec::new(), unreadable: Vec::new(), most, left_out: 0, is_over: false }
    }

    /// Takes so many more, of the next part that is checked.
    pub fn make_room(&mut self, more: usize) {
        self.most = self.damage.len().max(self.unreadable.len()) + more;
    }

    /// Takes an error, or those in it; nothing behind one after which nothing can be read.
    pub fn note(&mut self, error: Error) {
        if self.is_over {
            return;
        }
        if error.ends_reading() {
            self.is_over = true;
            return self.unreadable.push(error);
        }
        if let Error::Damaged { damage, left_out } = error {
            self.left_out += left_out;
            return damage.into_iter().for_each(|error| self.note(error));
        }
        let list = if error.is_damage() { &mut self.damage } else { &mut self.unreadable };
        if list.len() < self.most {
            list.push(error);
        } else {
            self.left_out += 1;
        }
    }

    /// How many errors there are so far.
    pub fn count(&self) -> u64 {
        (self.damage.len() + self.unreadable.len()) as u64 + self.left_out
    }

    /// Whether nothing can be read any more.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether all could be read so far.
    pub fn is_read(&self) -> bool {
        self.unreadable.is_empty()
    }

    /// [`Error::Damaged`] with all of it, if there is damage; otherwise the first error of reading.
    pub fn into_result(self) -> Result<()> {
        let Self { mut damage, mut unreadable, left_out, .. } = self;
        if !damage.is_empty() {
            damage.append(&mut unreadable);
            return Err(Error::Damaged { damage, left_out });
        }
        unreadable.into_iter().next().map_or(Ok(()), Err)
    }
}
