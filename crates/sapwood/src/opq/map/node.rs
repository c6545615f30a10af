//! A node of the map's tree: four cache lines.
//!
//! ```text
//! offset  size
//!     0      8  word: version │ 8 bits: slots in use
//!     8      4  low: the place of an entry that its range begins with, which may be in no slot; 0: it has no beginning
//!    12      4  stem: the place of an entry whose first `skip` bytes are those of all in it; 0: of all that its range can hold
//!    16      4  shape: 17 bits: skip │ 5 bits: sorted, slots of a leaf that were in order when it was written; those behind
//!               them came later, one after the other │ 5 bits: live, see `tombstones.rs`
//!    20      4  dead: since when the node has nothing but tombstones; 0: it has more
//!    24  29×8  slots: rank of a key, 4 bytes │ place of an entry (leaf), or of the node whose range begins with the key
//! ```
//! A *rank* is the four bytes of a key after the first `skip`. It distinguishes most keys of a node without
//! looking at them.
//!
//! Invariants:
//! 1. While a node is reachable, its slots in use do not change, except that an inner node's child may be
//!    replaced by one with the same content or a first part of it. `low`, `stem`, `skip` and `sorted` never
//!    change (`live` and `dead` do). A leaf's slots are in any order, and slots may be added. An inner node's slots ascend, and none
//!    is added.
//! 2. An unreachable node may be rewritten, as one of its kind, leaf or inner node. Its version is incremented
//!    before that. The version of an inner node is also incremented after a child was replaced, before that
//!    child is rewritten. So a reader that has read the same version before and after has read a valid state.
//!    This requires that the reader has read the node's first word, and then made sure that the node had been
//!    reachable at that time (`search.rs`): an idle node already has the version that it will have when it is
//!    rewritten.
//! 3. In any version, a leaf's slots in use lead to entries, those of an inner node to nodes, and `low` and
//!    `stem` to entries or nowhere. (All are stored with `Release` after their targets were written, and loaded
//!    with `Acquire`.)

use super::entry::{Entry, Key, begins_alike, compare, prefetch, rank};
use super::memory::{Memory, MemoryRef, Table};
use std::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Slots of a node: with its header they fit four cache lines.
pub(super) const SLOTS: usize = 29;
/// Nodes whose memory is allocated together (count): their chunk costs one allocation.
pub(super) const TOGETHER: usize = 16;

#[repr(C, align(64))]
pub(super) struct Node {
    word: AtomicU64,
    low: AtomicU32,
    stem: AtomicU32,
    shape: AtomicU32,
    dead: AtomicU32,
    slots: [AtomicU64; SLOTS],
}

const _: () = assert!(size_of::<Node>() == 256);

/// A rank, and the place it leads to; ordered by rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot(pub u64);

impl Slot {
    pub const EMPTY: Self = Self(0);

    pub fn new(rank: u32, MemoryRef(place): MemoryRef) -> Self {
        Self(u64::from(rank) << 32 | u64::from(place))
    }

    #[inline]
    pub fn rank(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    pub fn place(self) -> MemoryRef {
        MemoryRef(self.0 as u32)
    }
}

/// The version, and the number of slots in use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(u64);

impl Word {
    /// The bits of the number of slots in use: slots fit a byte.
    const COUNT: u64 = 0xff;

    #[inline]
    pub fn count(self) -> usize {
        ((self.0 & Self::COUNT) as usize).min(SLOTS)
    }

    /// Whether both are of the same version, regardless of slots added meanwhile.
    #[inline]
    pub fn is_as(self, other: Self) -> bool {
        (self.0 ^ other.0) & !Self::COUNT == 0
    }
}

/// The position of a key relative to the keys of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Below,
    At(u32),
    Above,
}

/// The bits of the shape: so many as the longest key and the number of slots need.
const SKIP_BITS: u32 = 17;
const SLOT_BITS: u32 = 5;
const _: () = assert!(crate::KEY_LEN_MAX + size_of::<crate::operation::KeyspaceId>() < 1 << SKIP_BITS);
const _: () = assert!(SLOTS < 1 << SLOT_BITS && SKIP_BITS + 2 * SLOT_BITS <= u32::BITS);

/// Whether a node has anything but tombstones (`tombstones.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Liveness {
    /// Values of a leaf that no later entry of it removes, at most; children of an inner node that are not dead.
    pub live: usize,
    /// 0 if `live` is not.
    pub dead: u32,
}

/// What the keys of a node have in common.
#[derive(Clone, Copy)]
pub(super) struct CommonPrefix {
    pub skip: usize,
    pub stem: MemoryRef,
}

impl Node {
    /// The node at a place that holds one.
    #[inline]
    pub fn at(table: &Table, place: MemoryRef) -> &Self {
        // SAFETY: places of nodes are those that `blank` has made, whose memory is aligned, was given out for nodes alone, was zeroed
        // there, which makes it nodes, and is only accessed as the atomics that a node consists of from then on, as long as the table lives.
        unsafe { table.at(place).cast::<Self>().as_ref() }
    }

    /// Allocates zeroed nodes; returns the last one first.
    pub fn blank(
        memory: &mut Memory,
        table: &Table,
        total: &AtomicUsize,
    ) -> impl Iterator<Item = MemoryRef> + use<> {
        let len = size_of::<Self>() * TOGETHER;
        let place @ MemoryRef(first) = memory.take(len, align_of::<Self>(), table, total);
        // SAFETY: `take` gave us so many bytes, not used otherwise, and no other thread knows the place yet. What another map has left there may
        // even be no bytes at all, the padding of an entry.
        unsafe { table.at(place).write_bytes(0, len) };
        (0..TOGETHER as u32)
            .rev()
            .map(move |number| MemoryRef(first + number * (size_of::<Self>() / 8) as u32))
    }

    #[inline]
    pub fn word(&self) -> Word {
        Word(self.word.load(Acquire))
    }

    #[inline]
    pub fn slot(&self, index: usize) -> Slot {
        Slot(self.slots[index].load(Acquire))
    }

    #[inline]
    pub fn low(&self) -> MemoryRef {
        MemoryRef(self.low.load(Acquire))
    }

    /// Number of slots that were there from the beginning, in order.
    #[inline]
    pub fn sorted(&self) -> usize {
        (self.shape.load(Acquire) >> SKIP_BITS & ((1 << SLOT_BITS) - 1)) as usize
    }

    #[inline]
    pub fn stem(&self) -> CommonPrefix {
        let skip = (self.shape.load(Acquire) & ((1 << SKIP_BITS) - 1)) as usize;
        CommonPrefix { skip, stem: MemoryRef(self.stem.load(Acquire)) }
    }

    #[inline]
    pub fn life(&self) -> Liveness {
        let live = (self.shape.load(Acquire) >> (SKIP_BITS + SLOT_BITS)) as usize;
        Liveness { live, dead: self.dead.load(Acquire) }
    }

    /// Only for the writer.
    #[inline]
    pub fn set_life(&self, Liveness { live, dead }: Liveness) {
        let rest = self.shape.load(Relaxed) & ((1 << (SKIP_BITS + SLOT_BITS)) - 1);
        self.shape.store((live as u32) << (SKIP_BITS + SLOT_BITS) | rest, Release);
        self.dead.store(dead, Release);
    }

    /// The position of a key that is in the node's range.
    #[inline]
    pub fn side(&self, table: &Table, key: Key<'_>) -> Side {
        let CommonPrefix { skip, stem } = self.stem();
        if stem.is_somewhere() {
            let stem = Entry::at(table, stem).key();
            if !begins_alike(stem, key, skip) {
                return if compare(key, stem).is_lt() { Side::Below } else { Side::Above };
            }
        }
        Side::At(rank(key, skip))
    }

    /// Writes a node that is not reachable.
    pub fn write(&self, low: MemoryRef, stem: CommonPrefix, slots: &[Slot], life: Liveness) {
        self.low.store(low.0, Release);
        self.stem.store(stem.stem.0, Release);
        self.shape.store((slots.len() as u32) << SKIP_BITS | stem.skip as u32, Release);
        self.set_life(life);
        for (at, slot) in self.slots.iter().zip(slots) {
            at.store(slot.0, Release);
        }
        let version = self.word.load(Relaxed) & !Word::COUNT;
        self.word.store(version | slots.len() as u64, Release);
    }

    /// Adds a slot to a leaf that is not full.
    #[inline]
    pub fn add(&self, slot: Slot) {
        let word = self.word.load(Relaxed);
        self.slots[Word(word).count()].store(slot.0, Release);
        self.word.store(word + 1, Release);
    }

    /// Replaces an inner node's child.
    pub fn exchange(&self, index: usize, slot: Slot) {
        self.slots[index].store(slot.0, Release);
        self.renew();
    }

    /// Increments the version, so that readers notice that the node may have changed.
    pub fn renew(&self) {
        self.word.store(self.word.load(Relaxed).wrapping_add(Word::COUNT + 1), Release);
    }

    /// Prefetches the node into the cache.
    #[inline]
    pub fn prefetch(table: &Table, place: MemoryRef) {
        let start = table.at(place).as_ptr();
        (0..4).for_each(|line| prefetch(start.wrapping_add(64 * line)));
    }
}
