//! Which parts of the map have nothing but tombstones, so that readers pass over a million of them in a few steps.
//!
//! ```text
//! inner node   live: 1 of 3 children
//!               │       │        │
//! leaf         live: 0  live: 0  live: 2 values that nothing in the leaf removes
//!              dead: since the operation that removed its last value
//! ```
//! A reader that came later than this operation finds no value in the node. An insertion costs a store to the leaf,
//! whose head is written anyway; what is above changes only if a leaf dies or comes to life again.
//!
//! Invariants:
//! 1. A node is dead if and only if none of its entries counts as live. An entry may count as live although a later one
//!    removes it (in another leaf, for instance), but not the other way round.
//! 2. `dead` is one more than the distance from the map's first sequence number to one at which the node had no value,
//!    and has had none since.
//! 3. A node is alive, and all above it, before a value in it becomes visible to readers that may look for it.

use super::Map;
use super::entry::{Entry, Key};
use super::grow::Step;
use super::memory::MemoryRef;
use super::node::{Liveness, Node, Slot, Word};
use super::search::Goal;
use crate::operation::SeqNo;
use std::sync::atomic::Ordering::Relaxed;

/// A version that no leaf can have: dead, but it is unknown since when.
const UNKNOWN: u32 = u32::MAX;

/// How far a reader may go without meeting a value.
#[derive(Clone, Copy)]
pub(crate) enum Passed<'a> {
    /// Nowhere: there may be a value right here.
    Nothing,
    /// To this entry; downwards, all from this entry on is passed over.
    To(Entry<'a>),
    /// To the end, or downwards to the beginning.
    All,
}

/// One descent.
enum Descent<'a> {
    /// It leads to a leaf that is not dead.
    Alive,
    To(Entry<'a>),
    All,
}

impl Node {
    /// Whether a reader at `seq` finds no value in it.
    #[inline]
    fn is_dead(&self, map: &Map, seq: SeqNo) -> bool {
        match self.life().dead {
            0 | UNKNOWN => false,
            since => seq >= map.base.load(Relaxed) + u64::from(since - 1),
        }
    }
}

impl Map {
    fn dead_since(&self, seq: SeqNo) -> u32 {
        let since = seq.saturating_sub(self.base.load(Relaxed)).saturating_add(1);
        u32::try_from(since).unwrap_or(UNKNOWN)
    }

    pub(super) fn life_at(&self, node: MemoryRef) -> Liveness {
        Node::at(&self.table, node).life()
    }

    /// Of a leaf with one entry.
    pub(super) fn life_of_one(&self, entry: MemoryRef) -> Liveness {
        let entry = self.entry(entry);
        match entry.value() {
            Some(_) => Liveness { live: 1, dead: 0 },
            None => Liveness { live: 0, dead: self.dead_since(entry.key().2) },
        }
    }

    /// Of a leaf with these entries, which are in order.
    pub(super) fn life_of_leaf(&self, slots: &[Slot]) -> Liveness {
        slots.iter().for_each(|slot| self.entry(slot.place()).prefetch());
        let (mut live, mut removed_at) = (0, SeqNo::MIN);
        let mut removed: Option<Key<'_>> = None;
        for slot in slots {
            let entry = self.entry(slot.place());
            let key = entry.key();
            // The newest version comes first.
            match entry.value() {
                Some(_) if removed.is_some_and(|removed| (removed.0, removed.1) == (key.0, key.1)) => {}
                Some(_) => live += 1,
                None => (removed, removed_at) = (Some(key), removed_at.max(key.2)),
            }
        }
        let dead = if live == 0 { self.dead_since(removed_at) } else { 0 };
        Liveness { live, dead }
    }

    /// Of an inner node with these children.
    pub(super) fn life_of_inner(&self, slots: impl Iterator<Item = Slot>) -> Liveness {
        let (mut live, mut dead) = (0, 0);
        for slot in slots {
            let child = self.life_at(slot.place());
            live += usize::from(child.dead == 0);
            dead = child.dead.max(dead);
        }
        Liveness { live, dead: if live == 0 { dead } else { 0 } }
    }

    /// Notes what an entry that was added to a leaf makes of it.
    #[inline]
    pub(super) fn note_life(&self, leaf: &Node, entry: MemoryRef, rank: u32) {
        let before @ Liveness { live, dead } = leaf.life();
        let entry = self.entry(entry);
        let after = match entry.value() {
            Some(_) => Liveness { live: live + 1, dead: 0 },
            None if dead != 0 => return,
            None => {
                let live = live.saturating_sub(self.removed_by(leaf, entry, rank));
                Liveness { live, dead: if live == 0 { self.dead_since(entry.key().2) } else { 0 } }
            }
        };
        leaf.set_life(after);
        if (before.dead == 0) != (after.dead == 0) {
            let way = self.way(entry.key());
            self.rise(&way.steps[..way.len], before, after);
        }
    }

    /// How many values that count as live a removal hides, which was added to the leaf last.
    fn removed_by(&self, leaf: &Node, removal: Entry<'_>, rank: u32) -> usize {
        let (count, (keyspace, key, seq)) = (leaf.word().count(), removal.key());
        let sorted = leaf.sorted().min(count);
        let mut values = 0;
        // Counts the slot's entry; false if it is the removal before this one.
        let mut look = |index: usize| {
            let slot = leaf.slot(index);
            if slot.rank() != rank {
                return true;
            }
            let version = self.entry(slot.place());
            let found = version.key();
            let is_older = (found.0, found.1) == (keyspace, key) && found.2 < seq;
            values += usize::from(is_older && version.value().is_some());
            !is_older || version.value().is_some()
        };
        // From new to old. Two plain loops: they go through a whole leaf for each removal.
        if (sorted..count.saturating_sub(1)).rev().all(&mut look) {
            (0..sorted).all(look);
        }
        values
    }

    /// A child of the last of these nodes, the path from the root on, has become this from that.
    pub(super) fn rise(&self, steps: &[Step], mut before: Liveness, mut after: Liveness) {
        for step in steps.iter().rev() {
            if (before.dead == 0) == (after.dead == 0) {
                return;
            }
            let node = Node::at(&self.table, step.node);
            before = node.life();
            let live = if after.dead == 0 { before.live + 1 } else { before.live.saturating_sub(1) };
            after = match live {
                0 => self.life_of_inner((0..node.word().count()).map(|index| node.slot(index))),
                live => Liveness { live, dead: 0 },
            };
            node.set_life(after);
        }
    }

    /// How far a reader at `seq` may go upwards from a position without meeting a value.
    pub fn past_tombstones(&self, from: Key<'_>, seq: SeqNo) -> Passed<'_> {
        let mut passed = Passed::Nothing;
        loop {
            let goal = match passed {
                Passed::To(entry) => Goal::At(entry.key()),
                _ => Goal::At(from),
            };
            match self.descend_past(goal, seq, true) {
                Some(Descent::Alive) => return passed,
                Some(Descent::To(entry)) => passed = Passed::To(entry),
                Some(Descent::All) => return Passed::All,
                None => std::hint::spin_loop(),
            }
        }
    }

    /// The same downwards, from before a position, or from the end.
    pub fn past_tombstones_back(&self, before: Option<Key<'_>>, seq: SeqNo) -> Passed<'_> {
        let mut passed = Passed::Nothing;
        loop {
            let goal = match passed {
                Passed::To(entry) => Goal::Before(entry.key()),
                _ => before.map_or(Goal::Last, Goal::Before),
            };
            match self.descend_past(goal, seq, false) {
                Some(Descent::Alive) => return passed,
                Some(Descent::To(entry)) => passed = Passed::To(entry),
                Some(Descent::All) => return Passed::All,
                None => std::hint::spin_loop(),
            }
        }
    }

    /// Descends towards the goal until it meets dead nodes, and goes along these. `None` if what was read is no longer
    /// valid (`search.rs`).
    fn descend_past(&self, goal: Goal<'_>, seq: SeqNo, upwards: bool) -> Option<Descent<'_>> {
        let Some(root @ (place, height)) = self.root() else { return Some(Descent::All) };
        let mut node = Node::at(&self.table, place);
        let mut word = node.word();
        if self.root() != Some(root) {
            return None;
        }
        if node.is_dead(self, seq) {
            return self.is_as_it_was(node, word, height).then_some(Descent::All);
        }
        let mut upper = MemoryRef::NOWHERE;
        for _ in 0..height {
            let (index, count) = (node.child(self, word, goal).0, word.count());
            let child = |at: usize| Some(Node::at(&self.table, self.sound(node.slot(at).place())?));
            let (mut at, mut dead) = (index, 0);
            while at < count && child(at)?.is_dead(self, seq) {
                dead += 1;
                at = if upwards { at + 1 } else { at.checked_sub(1).unwrap_or(count) };
            }
            let (end, below) = match (upwards, at < count) {
                (true, true) if dead > 0 => (child(at)?.low(), MemoryRef::NOWHERE),
                (true, true) if index + 1 < count => (MemoryRef::NOWHERE, child(index + 1)?.low()),
                (true, _) => (upper, upper),
                (false, true) if dead > 0 => (child(at + 1)?.low(), MemoryRef::NOWHERE),
                (false, _) => (node.low(), MemoryRef::NOWHERE),
            };
            let next = child(index)?;
            let next_word = next.word();
            if node.word() != word {
                return None;
            }
            if dead > 0 {
                return Some(if end.is_somewhere() { Descent::To(self.entry(end)) } else { Descent::All });
            }
            (node, word, upper) = (next, next_word, below);
        }
        Some(Descent::Alive)
    }

    fn is_as_it_was(&self, node: &Node, word: Word, height: usize) -> bool {
        if height == 0 { node.word().is_as(word) } else { node.word() == word }
    }
}
