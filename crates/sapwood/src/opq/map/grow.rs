//! Insertion of entries into the tree, by one thread at a time.
//!
//! ```text
//! leaf with room:   a slot more
//! full leaf L:      P [ … L … ]      two halves L1, L2, and P again with both in it, are made beside what is there;
//!                   │    └ L         then one store exchanges P in its parent. L and P are idle, and written anew with the next split
//!                   P'[ … L1 L2 … ]
//! ```
//! If P is full, it is split as well, and so on.
//!
//! The paths of several entries of a batch are searched together, so that their leaves come into the cache at
//! the same time, like the pages of a psync call. (Walking down the list for each entry in turns was also
//! faster than one by one; here there is only one line to wait for.)
//!
//! Invariants:
//! 1. Nothing is replaced before everything that the replacement leads to is written, and nothing is idle
//!    before it was replaced.

use super::entry;
use super::entry::{Key, compare, rank, shared};
use super::memory::MemoryRef;
use super::node::{CommonPrefix, Liveness, Node, SLOTS, Side, Slot};
use super::search::Goal;
use super::{Map, NewEntry, Writer};
use crate::operation::SeqNo;

/// Entries whose paths are searched together (count): with fewer there would be nothing to overlap.
const TOGETHER: usize = 16;
/// Bytes that the ranks of the first two of a series of ascending keys have in common: those that follow must begin
/// alike, too.
const EARLIER: usize = 2;
/// Levels above the leaves: with 14 children each, more than places can address.
const HEIGHT_MAX: usize = 12;

/// Levels of nodes (leaves, or inner ones), by which free nodes are kept apart.
pub(super) const LEAF: usize = 0;
const INNER: usize = 1;

/// An inner node on the path to a leaf, the index of the child on the path, and where the node's range ends.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub node: MemoryRef,
    index: usize,
    high: MemoryRef,
}

/// The path to a leaf, from the root on.
pub(super) struct LeafPath {
    pub steps: [Step; HEIGHT_MAX],
    pub len: usize,
    leaf: MemoryRef,
    high: MemoryRef,
}

/// The content of a node to be made.
struct Plan<'s> {
    kind: usize,
    /// In order. Their ranks belong to `stem`, if there is one.
    slots: &'s [Slot],
    stem: Option<CommonPrefix>,
    low: MemoryRef,
    high: MemoryRef,
    known: KnownLife,
}

/// What is known of the entries or children in slots.
#[derive(Clone, Copy)]
enum KnownLife {
    Nothing,
    AllLive,
    /// None is live. A part of such a node has been dead as long, or longer.
    DeadSince(u32),
}

impl KnownLife {
    /// Of the slots of a leaf with this life.
    fn of_leaf(Liveness { live, dead }: Liveness, slots: &[Slot]) -> Self {
        match dead {
            0 if live == slots.len() => Self::AllLive,
            0 => Self::Nothing,
            since => Self::DeadSince(since),
        }
    }
}

impl Map {
    /// Inserts the round into the tree.
    pub(super) fn insert_round(&self, writer: &mut Writer) {
        let round = std::mem::take(&mut writer.round);
        for some in round.chunks(TOGETHER) {
            let mut leaves = [MemoryRef::NOWHERE; TOGETHER];
            // If the first entry goes to the end, the others mostly do too.
            if some.len() > 1 && !self.is_behind(writer, self.entry(some[0].entry).key()) {
                for (leaf, fresh) in leaves.iter_mut().zip(some) {
                    *leaf = self.leaf(self.entry(fresh.entry).key());
                    Node::prefetch(&self.table, *leaf);
                }
            }
            let changes = writer.changes;
            for (leaf, NewEntry { entry }) in leaves.into_iter().zip(some) {
                self.insert(
                    writer,
                    *entry,
                    if writer.changes == changes { leaf } else { MemoryRef::NOWHERE },
                );
            }
        }
        writer.count += round.len();
        writer.round = round;
    }

    #[inline]
    fn is_behind(&self, writer: &Writer, key: Key<'_>) -> bool {
        !writer.last.is_somewhere() || compare(self.entry(writer.last).key(), key).is_lt()
    }

    /// The leaf that a key belongs to. Only for the writer, beside which nothing is changed.
    fn leaf(&self, key: Key<'_>) -> MemoryRef {
        let Some((mut place, height)) = self.root() else { return MemoryRef::NOWHERE };
        for _ in 0..height {
            let node = Node::at(&self.table, place);
            place = node.slot(node.child(self, node.word(), Goal::At(key)).0).place();
        }
        place
    }

    /// Inserts an entry, into this leaf if it is known.
    fn insert(&self, writer: &mut Writer, entry: MemoryRef, mut leaf: MemoryRef) {
        let key = self.entry(entry).key();
        let is_behind = self.is_behind(writer, key);
        if is_behind {
            leaf = writer.last_leaf;
        }
        loop {
            if !leaf.is_somewhere() {
                leaf = self.leaf(key);
            }
            if !leaf.is_somewhere() {
                leaf = self.fresh(writer, LEAF);
                let stem = CommonPrefix { skip: 0, stem: MemoryRef::NOWHERE };
                let slots = [Slot::new(rank(key, 0), entry)];
                Node::at(&self.table, leaf).write(MemoryRef::NOWHERE, stem, &slots, self.life_of_one(entry));
                self.set_root(leaf, 0);
                writer.last_leaf = leaf;
                break;
            }
            let node = Node::at(&self.table, leaf);
            let count = node.word().count();
            let side = node.side(&self.table, key);
            if let Side::At(rank) = side
                && count < SLOTS
            {
                node.add(Slot::new(rank, entry));
                self.note_life(node, entry, rank);
                break;
            }
            let way = self.way(key);
            if is_behind && count == SLOTS {
                // The leaf stays as it is, full. Later keys are expected to differ from these a little earlier
                // than these two do.
                let right = self.fresh(writer, LEAF);
                let last = self.entry(writer.last).key();
                let skip = shared(last, key).saturating_sub(EARLIER);
                let is_other = (last.0, last.1) != (key.0, key.1);
                let low = if is_other { self.separator(writer, key) } else { entry };
                let (stem, slots) = (CommonPrefix { skip, stem: entry }, [Slot::new(rank(key, skip), entry)]);
                Node::at(&self.table, right).write(low, stem, &slots, self.life_of_one(entry));
                self.replace(writer, way, leaf, Some(right));
                writer.last_leaf = right;
                break;
            }
            self.part(writer, way, key);
            leaf = MemoryRef::NOWHERE;
        }
        if is_behind {
            writer.last = entry;
        }
    }

    /// The path to the leaf that a key belongs to.
    pub(super) fn way(&self, key: Key<'_>) -> LeafPath {
        let nowhere = Step { node: MemoryRef::NOWHERE, index: 0, high: MemoryRef::NOWHERE };
        let mut way = LeafPath {
            steps: [nowhere; HEIGHT_MAX],
            len: 0,
            leaf: MemoryRef::NOWHERE,
            high: MemoryRef::NOWHERE,
        };
        let Some((root, height)) = self.root() else { return way };
        way.leaf = root;
        for _ in 0..height {
            let node = Node::at(&self.table, way.leaf);
            let (index, _) = node.child(self, node.word(), Goal::At(key));
            way.steps[way.len] = Step { node: way.leaf, index, high: way.high };
            way.len += 1;
            way.leaf = node.slot(index).place();
            if index + 1 < node.word().count() {
                way.high = Node::at(&self.table, node.slot(index + 1).place()).low();
            }
        }
        way
    }

    /// Splits a full leaf in two. Replaces a leaf that has no rank for a key by one that has.
    fn part(&self, writer: &mut Writer, way: LeafPath, key: Key<'_>) {
        let (leaf, high) = (way.leaf, way.high);
        let node = Node::at(&self.table, leaf);
        let mut all = [Slot::EMPTY; SLOTS];
        let slots = &mut all[..node.word().count()];
        slots.iter_mut().enumerate().for_each(|(index, slot)| *slot = node.slot(index));
        self.sort(slots);
        let (low, stem, known) = (node.low(), Some(node.stem()), KnownLife::of_leaf(node.life(), slots));
        let last = if slots.len() < SLOTS {
            let one = self.make(writer, Plan { kind: LEAF, slots, stem, low, high, known }, Some(key));
            self.replace(writer, way, one, None);
            one
        } else {
            let middle = self.middle(slots);
            let is_of_one = self.is_of_one(slots[middle - 1], slots[middle]);
            let (left, right) = slots.split_at(middle);
            let place = right[0].place();
            let middle = if is_of_one { place } else { self.separator(writer, self.entry(place).key()) };
            let one =
                self.make(writer, Plan { kind: LEAF, slots: left, stem, low, high: middle, known }, None);
            // What removes a value on the right may be on the left.
            let known = if is_of_one { KnownLife::Nothing } else { known };
            let two =
                self.make(writer, Plan { kind: LEAF, slots: right, stem, low: middle, high, known }, None);
            self.replace(writer, way, one, Some(two));
            two
        };
        if !high.is_somewhere() {
            writer.last_leaf = last;
        }
        self.retire(writer, LEAF, leaf);
    }

    /// Whether two entries, one behind the other, are versions of one key.
    fn is_of_one(&self, a: Slot, b: Slot) -> bool {
        let [a, b] = [a, b].map(|slot| self.entry(slot.place()).key());
        (a.0, a.1) == (b.0, b.1)
    }

    /// Where to split a full leaf: near the middle, and not between the versions of a key if it can be.
    fn middle(&self, slots: &[Slot]) -> usize {
        let (middle, further) = (SLOTS / 2, SLOTS / 4);
        let near = (0..further).flat_map(|by| [middle - by, middle + by]);
        let is_between = |at: &usize| !self.is_of_one(slots[at - 1], slots[*at]);
        near.into_iter().find(is_between).unwrap_or(middle)
    }

    /// What a range begins with that is to have all versions of this key, those to come too. It is in no slot.
    fn separator(&self, writer: &mut Writer, (keyspace, key, _): Key<'_>) -> MemoryRef {
        let place = (keyspace, key, SeqNo::MAX);
        entry::write(&mut writer.memory, &self.table, &self.memory, place, None)
    }

    /// Replaces the node that the path leads to by one or two nodes, of which the first begins where that one
    /// does.
    fn replace(
        &self,
        writer: &mut Writer,
        mut way: LeafPath,
        mut one: MemoryRef,
        mut two: Option<MemoryRef>,
    ) {
        let len = way.len;
        let mut retired = len;
        loop {
            let Some(above) = way.len.checked_sub(1) else {
                let height = self.root().map_or(0, |(_, height)| height);
                match two {
                    None => {
                        // Readers rely on this (`Map::descend`): the first leaf has no stem, so it has a rank
                        // for each key, and when it is full it is replaced by two leaves.
                        debug_assert!(height > 0, "a leaf that is the root is not replaced by a single one");
                        self.set_root(one, height);
                    }
                    Some(two) => {
                        let slots = [Slot::new(0, one), Slot::new(0, two)];
                        let nowhere = MemoryRef::NOWHERE;
                        let (low, high, known) = (nowhere, nowhere, KnownLife::Nothing);
                        let plan = Plan { kind: INNER, slots: &slots, stem: None, low, high, known };
                        let root = self.make(writer, plan, None);
                        self.set_root(root, height + 1);
                    }
                }
                break;
            };
            way.len = above;
            let Step { node: place, index, high } = way.steps[above];
            let node = Node::at(&self.table, place);
            let Some(second) = two else {
                let before = self.life_at(node.slot(index).place());
                node.exchange(index, Slot::new(node.slot(index).rank(), one));
                self.rise(&way.steps[..=above], before, self.life_at(one));
                break;
            };
            retired = above;
            let count = node.word().count();
            let mut slots = [Slot::EMPTY; SLOTS + 1];
            for (at, slot) in slots[..=count].iter_mut().enumerate() {
                *slot = node.slot(if at <= index { at } else { at - 1 });
            }
            slots[index] = Slot::new(slots[index].rank(), one);
            let begins = self.entry(Node::at(&self.table, second).low()).key();
            let (rank, stem) = match node.side(&self.table, begins) {
                Side::At(rank) => (rank, Some(node.stem())),
                _ => (0, None),
            };
            slots[index + 1] = Slot::new(rank, second);
            let (slots, low) = (&slots[..=count], node.low());
            let are_live =
                node.life().live == count && [one, second].map(|new| self.life_at(new).dead) == [0; 2];
            let known = if are_live { KnownLife::AllLive } else { KnownLife::Nothing };
            if count < SLOTS {
                one = self.make(writer, Plan { kind: INNER, slots, stem, low, high, known }, None);
                two = None;
            } else {
                let (left, right) = slots.split_at(slots.len() / 2);
                let middle = Node::at(&self.table, right[0].place()).low();
                let left = Plan { kind: INNER, slots: left, stem, low, high: middle, known };
                one = self.make(writer, left, None);
                let right = Plan { kind: INNER, slots: right, stem, low: middle, high, known };
                two = Some(self.make(writer, right, None));
            }
        }
        writer.changes += 1;
        for step in &way.steps[retired..len] {
            self.retire(writer, INNER, step.node);
        }
    }

    /// The key of a slot. An inner node's first child may have none.
    fn key_of(&self, kind: usize, slot: Slot) -> Option<(MemoryRef, Key<'_>)> {
        let place = if kind == LEAF { slot.place() } else { Node::at(&self.table, slot.place()).low() };
        place.is_somewhere().then(|| (place, self.entry(place).key()))
    }

    /// Makes a node. If `with` is given, the node also has a rank for that key.
    fn make(&self, writer: &mut Writer, plan: Plan<'_>, with: Option<Key<'_>>) -> MemoryRef {
        let Plan { kind, slots, stem: old, low, high, known } = plan;
        let life = match (known, kind) {
            (KnownLife::AllLive, _) => Liveness { live: slots.len(), dead: 0 },
            (KnownLife::DeadSince(dead), _) => Liveness { live: 0, dead },
            (KnownLife::Nothing, LEAF) => self.life_of_leaf(slots),
            (KnownLife::Nothing, _) => self.life_of_inner(slots.iter().copied()),
        };
        let is_fenced = low.is_somewhere() && high.is_somewhere();
        let is_told_apart =
            8 * slots.windows(2).filter(|two| two[0].rank() == two[1].rank()).count() <= slots.len();
        let place = self.fresh(writer, kind);
        let node = Node::at(&self.table, place);
        if let Some(old) = old
            && is_fenced
            && is_told_apart
            && !old.stem.is_somewhere()
        {
            node.write(low, old, slots, life);
            return place;
        }
        let (mut limit, mut stem) = (0, MemoryRef::NOWHERE);
        if is_fenced {
            limit = shared(self.entry(low).key(), self.entry(high).key());
        } else {
            let first = slots.iter().find_map(|slot| self.key_of(kind, *slot));
            let last = slots.last().and_then(|slot| self.key_of(kind, *slot));
            if let (Some((first, first_key)), Some((_, last_key))) = (first, last) {
                limit = shared(first_key, last_key);
                limit = with.map_or(limit, |key| limit.min(shared(first_key, key)));
                stem = first;
            }
        }
        let mut made = [Slot::EMPTY; SLOTS];
        let made = &mut made[..slots.len()];
        made.copy_from_slice(slots);
        let kept = old.filter(|old| old.skip == limit || (old.skip < limit && is_told_apart));
        let skip = kept.map_or(limit, |old| old.skip);
        if kept.is_none() {
            if kind == LEAF {
                slots.iter().for_each(|slot| self.entry(slot.place()).prefetch());
            }
            for slot in &mut *made {
                let rank = self.key_of(kind, *slot).map_or(0, |(_, key)| rank(key, skip));
                *slot = Slot::new(rank, slot.place());
            }
        }
        node.write(low, CommonPrefix { skip, stem }, made, life);
        place
    }

    /// A node that is not reachable.
    fn fresh(&self, writer: &mut Writer, kind: usize) -> MemoryRef {
        loop {
            match writer.idle[kind].pop() {
                Some(place) => return place,
                None => writer.idle[kind].extend(Node::blank(&mut writer.memory, &self.table, &self.memory)),
            }
        }
    }

    /// Retires a node: it is no longer reachable, except for readers that are already there.
    fn retire(&self, writer: &mut Writer, kind: usize, place: MemoryRef) {
        Node::at(&self.table, place).renew();
        writer.idle[kind].push(place);
    }
}
