//! The log area of a flash block, as it is known in memory: where the next unit goes, and which unit speaks of which nodes.
//!
//! ```text
//! dynamic (d-IPL)   | node | node | ghost's and others' log units … | free            |
//! fixed (IPL)       | node | node | free, lost once the log begins  | units … | free  |
//! ```
//!
//! Invariants:
//! 1. Units are written upwards without gaps, from the first page of the area to the last of the block; a page takes as many
//!    units as it is divided into.
//! 2. What stands in `units` and `links` is what stands on flash, in that order.

use crate::page::log_unit::Record;
use std::collections::{BTreeMap, BTreeSet};

/// One unit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UnitAt {
    /// Page of the block times units a page, plus which unit of the page.
    at: u32,
    slots: Vec<u8>,
}

/// A node that came out of another, or went into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Split { from: u8, new: u8, unit: usize },
    Merge { into: u8, taken: u8, unit: usize },
}

/// Which nodes have to be replayed for those that are wanted, and up to which unit.
pub(crate) type Needed = BTreeMap<u8, usize>;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogArea {
    parts: u32,
    first: u32,
    next: u32,
    end: u32,
    units: Vec<UnitAt>,
    links: Vec<Link>,
}

impl LogArea {
    /// An empty area from page `first` to before page `end`, pages divided into `parts` units.
    pub fn new(first: u32, end: u32, parts: u32) -> Self {
        Self {
            parts,
            first: first * parts,
            next: first * parts,
            end: end * parts,
            units: Vec::new(),
            links: Vec::new(),
        }
    }

    /// Units that can still be written.
    pub fn room(&self) -> usize {
        (self.end - self.next) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Where the area begins: a page of the block.
    pub fn first_page(&self) -> u32 {
        self.first / self.parts
    }

    /// Pages that hold a unit.
    pub fn pages_written(&self) -> u64 {
        let pages: BTreeSet<u32> = self.units.iter().map(|unit| unit.at / self.parts).collect();
        pages.len() as u64
    }

    /// Where the next unit goes: a page of the block, and which part of it.
    pub fn next(&self) -> (u32, u32) {
        (self.next / self.parts, self.next % self.parts)
    }

    /// A unit with these records has been written to [`Self::next`].
    pub fn wrote(&mut self, records: &[Record]) {
        let unit = self.units.len();
        let mut slots = Vec::new();
        for record in records {
            let (slot, other) = record.slots();
            for slot in [Some(slot), other].into_iter().flatten() {
                if !slots.contains(&slot) {
                    slots.push(slot);
                }
            }
            match *record {
                Record::Split { slot, new, .. } => self.links.push(Link::Split { from: slot, new, unit }),
                Record::Merge { slot, taken, .. } => self.links.push(Link::Merge { into: slot, taken, unit }),
                _ => {}
            }
        }
        self.units.push(UnitAt { at: self.next, slots });
        self.next += 1;
    }

    /// The next unit was found in this page, not before.
    pub fn reach(&mut self, page: u32) {
        self.next = self.next.max(page * self.parts).min(self.end);
    }

    /// Whether the same stands in both.
    pub fn says_the_same(&self, other: &Self) -> bool {
        (self.first, &self.units, &self.links) == (other.first, &other.units, &other.links)
    }

    /// What is left of a page that units were written to is not used: what was promised to last must not be in a page that is
    /// programmed again.
    pub fn close_page(&mut self) {
        self.next = self.next.next_multiple_of(self.parts).min(self.end);
    }

    /// Which nodes must be replayed for `slots`: sources of ghosts, and what was merged in, each as far as it went in.
    pub fn needed(&self, slots: &[u8]) -> Needed {
        let mut needed = Needed::new();
        for slot in slots {
            self.need(*slot, self.units.len(), &mut needed);
        }
        needed
    }

    fn need(&self, slot: u8, until: usize, needed: &mut Needed) {
        if needed.get(&slot).is_some_and(|known| *known >= until) {
            return;
        }
        needed.insert(slot, until);
        for link in &self.links {
            match *link {
                Link::Split { from, new, unit } if new == slot => self.need(from, unit, needed),
                Link::Merge { into, taken, unit } if into == slot && unit <= until => {
                    self.need(taken, unit, needed);
                }
                _ => {}
            }
        }
    }

    /// The ghosts among the nodes, and what each was split from.
    pub fn sources(&self) -> impl Iterator<Item = (u8, u8)> {
        self.links.iter().filter_map(|link| match *link {
            Link::Split { from, new, .. } => Some((new, from)),
            Link::Merge { .. } => None,
        })
    }

    /// The units that speak of these nodes, or all: their numbers.
    pub fn relevant(&self, needed: Option<&Needed>) -> Vec<usize> {
        let speaks = |number: &usize| {
            let slots = &self.units[*number].slots;
            needed.is_none_or(|needed| {
                slots.iter().any(|slot| needed.get(slot).is_some_and(|until| *number <= *until))
            })
        };
        (0..self.units.len()).filter(speaks).collect()
    }

    /// All units that lie with one of `units` in the same group of `pages` flash pages of the block.
    pub fn beside(&self, units: &[usize], pages: u32) -> Vec<usize> {
        let group = |unit: usize| self.place(unit).0 / pages.max(1);
        let groups: Vec<u32> = units.iter().map(|unit| group(*unit)).collect();
        (0..self.units.len()).filter(|unit| groups.contains(&group(*unit))).collect()
    }

    /// Where a unit is: a page of the block, and which part of it.
    pub fn place(&self, unit: usize) -> (u32, u32) {
        let at = self.units[unit].at;
        (at / self.parts, at % self.parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::NodeId;

    #[test]
    fn a_ghosts_units_are_its_own_and_its_sources_until_it_was_split_off() {
        let mut area = LogArea::new(4, 8, 2);
        let put = |slot| [Record::Put { slot, key: 1, word: 1 }];
        area.wrote(&put(0));
        area.wrote(&put(1));
        area.wrote(&[Record::Split { slot: 0, key: 5, id: NodeId(9), new: 2 }]);
        area.wrote(&put(0));
        area.wrote(&put(2));
        assert_eq!(area.next(), (6, 1));
        area.close_page();
        assert_eq!((area.next(), area.room()), ((7, 0), 2));
        let needed = area.needed(&[2]);
        assert_eq!(needed, Needed::from([(0, 2), (2, 5)]));
        assert_eq!(area.relevant(Some(&needed)), [0, 2, 4]);
        area.wrote(&[Record::Merge { slot: 1, fence: 5, taken: 2 }]);
        let needed = area.needed(&[1]);
        assert_eq!(area.relevant(Some(&needed)), [0, 1, 2, 4, 5]);
        assert_eq!(area.relevant(None), [0, 1, 2, 3, 4, 5]);
        assert_eq!(area.place(5), (7, 0));
        // Pages 4 and 5 are a log page, 6 and 7 the next.
        assert_eq!(area.beside(&[0], 2), [0, 1, 2, 3]);
        assert_eq!(area.beside(&[5], 2), [4, 5]);
        assert!(area.beside(&[], 2).is_empty());
    }
}
