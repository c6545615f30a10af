//! Where the nodes of a batch go: the search for many keys at once. A walk down a list in memory waits at nearly every node for
//! a cache line, as a descent in a tree on an SSD waits at every node for a page; and as the drive, the memory serves many
//! requests in the time of one. So this is MPSearch (`tree/search.rs`) one storey higher: the walks of up to
//! [`LANES`] keys go on in turns, one node each, and the node that a walk needs next is on its way into the cache meanwhile.
//! (In turns and without lock step: Kocberber, Falsafi, Grot, "Asynchronous Memory Access Chaining", PVLDB 9(4), 2015.)
//!
//! ```text
//! levels that have about as many nodes as the batch, and those above: one walk along them, from key to key
//!          │ where the walk stands when it comes to the key
//!          ▼
//! levels below: key 1, key 2, …, key LANES in turns; whoever is through makes room for the next key
//! ```
//!
//! Invariants:
//! 1. Nothing is linked in while the round is sought: every search sees the same list.
//! 2. The nodes of a round come in ascending order, so the walk along the upper levels never goes back.

use super::{Entry, Fresh, HEIGHT_MAX, Key, Relaxed, SkipList, Writer, address, compare, load};
use crate::operation::KeyspaceId;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Walks at a time: as many as a core can wait for. (Measured: 8 take a sixth longer than 16, 32 as long as 24.)
const LANES: usize = 24;

/// From here on walks in turns are faster. (Measured: two in turns take 950 ns an entry, one by one 730; four 740 and 860.)
const FEW: usize = 4;

/// Brings nodes into the order of the list. Most are told apart by eight bytes, which follow what all keys have in common.
pub(super) fn sort(round: &mut [Fresh]) {
    let [first, rest @ ..] = &*round else { return };
    if rest.is_empty() {
        return;
    }
    let (keyspace, key, _) = first.key();
    let mut common = Some(key.len());
    for fresh in rest {
        let other = fresh.key();
        common = common.filter(|_| other.0 == keyspace).map(|common| shared(&key[..common], other.1));
    }
    for fresh in &mut *round {
        let (KeyspaceId(keyspace), key, _) = fresh.key();
        fresh.rank = match common {
            Some(common) => word(&key[common..]),
            None => u64::from(keyspace) << 32 | word(key) >> 32,
        };
    }
    round.sort_unstable_by_key(|fresh| fresh.rank);
    for alike in round.chunk_by_mut(|a, b| a.rank == b.rank) {
        if alike.len() > 1 {
            alike.sort_unstable_by(|a, b| compare(a.key(), b.key()));
        }
    }
}

/// How many bytes two keys have in common.
fn shared(a: &[u8], b: &[u8]) -> usize {
    // By words first, since keys may be long.
    let words = 8 * a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(a, b)| a == b).count();
    words + a[words..].iter().zip(&b[words..]).take_while(|(a, b)| a == b).count()
}

/// The first eight bytes, or all and zeros, in their order.
fn word(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => bytes.iter().rev().fold(0, |word, byte| word >> 8 | u64::from(*byte) << 56),
    }
}

impl Fresh {
    fn key(&self) -> Key<'_> {
        Entry { node: self.node, list: PhantomData }.key()
    }
}

/// A walk from a node down to where a key belongs.
#[derive(Clone, Copy)]
struct Lane<'a> {
    new: Entry<'a>,
    key: Key<'a>,
    height: usize,
    level: usize,
    at: Option<Entry<'a>>,
    /// What follows on this level; on its way into the cache.
    next: Option<Entry<'a>>,
    /// Known not to be before the key.
    behind: Option<Entry<'a>>,
}

impl<'a> Lane<'a> {
    /// Looks at the next node. Returns false when the place is found.
    #[inline]
    fn step(&mut self, list: &'a SkipList) -> bool {
        match self.next {
            Some(next) if compare(next.key(), self.key).is_lt() => self.at = Some(next),
            next => self.behind = next,
        }
        self.look(list)
    }

    /// Asks for the next node that is worth a look, on the highest level that has one.
    #[inline]
    fn look(&mut self, list: &'a SkipList) -> bool {
        loop {
            self.next = load(list.link_of(self.at, self.level));
            if self.next != self.behind
                && let Some(next) = self.next
            {
                prefetch(next, self.level);
                return true;
            }
            if self.level < self.height {
                self.new.link(self.level).store(address(self.at), Relaxed);
            }
            if self.level == 0 {
                return false;
            }
            self.level -= 1;
        }
    }
}

/// The walk along the levels from `low` up.
struct Finger<'a> {
    low: usize,
    height: usize,
    at: [Option<Entry<'a>>; HEIGHT_MAX],
}

impl<'a> Finger<'a> {
    /// Goes on to the last nodes before `key`. Returns what follows on the lowest of these levels.
    fn advance(&mut self, list: &'a SkipList, key: Key<'_>) -> Option<Entry<'a>> {
        let next_before = |at: Option<Entry<'a>>, level: usize| {
            load(list.link_of(at, level)).filter(|next| compare(next.key(), key).is_lt())
        };
        // Up as far as there is something to pass over, and down again.
        let mut top =
            if self.low < self.height && self.at[self.low].is_some() { self.low } else { self.height };
        while top < self.height && next_before(self.at[top], top).is_some() {
            top += 1;
        }
        for level in (self.low..top).rev() {
            let mut at = self.at[if level + 1 < top { level + 1 } else { level }];
            while let Some(next) = next_before(at, level) {
                at = Some(next);
            }
            self.at[level] = at;
        }
        if self.low >= self.height { None } else { load(list.link_of(self.at[self.low], self.low)) }
    }
}

impl SkipList {
    /// Keys that come alone or nearly so have nothing to wait beside, and are walked to without turns.
    fn seek_one(&self, fresh: &Fresh, writer: &Writer) {
        let new = fresh.entry(self);
        let (key, levels) = (new.key(), new.height());
        let last = NonNull::new(writer.last[0]).map(|node| Entry { node, list: PhantomData });
        if last.is_none_or(|last| compare(last.key(), key).is_lt()) {
            (0..levels).for_each(|level| new.link(level).store(writer.last[level], Relaxed));
            return;
        }
        self.descend(
            |other| compare(other, key).is_lt(),
            |level, at| {
                if level < levels {
                    new.link(level).store(address(at), Relaxed);
                }
            },
        );
    }

    /// Finds where the nodes of the round belong: their links then hold what they are to stand behind.
    pub(super) fn seek(&self, writer: &Writer) {
        if writer.round.len() < FEW {
            return writer.round.iter().for_each(|fresh| self.seek_one(fresh, writer));
        }
        let height = self.height.load(Relaxed);
        let last = NonNull::new(writer.last[0]).map(|node| Entry { node, list: PhantomData });
        let round = writer.round.len();
        // Levels with fewer nodes than the round are walked along once, at less cost than down through them for each key.
        let few = |level: &usize| writer.count >> (2 * level) <= round;
        let low = (0..height).find(few).unwrap_or(height);
        let mut finger = Finger { low, height, at: [None; HEIGHT_MAX] };
        let mut rest = writer.round.iter();
        let mut start = || -> Option<Lane<'_>> {
            for fresh in rest.by_ref() {
                let new = fresh.entry(self);
                let (key, levels) = (new.key(), new.height());
                if last.is_none_or(|last| compare(last.key(), key).is_lt()) {
                    (0..levels).for_each(|level| new.link(level).store(writer.last[level], Relaxed));
                    continue;
                }
                let behind = finger.advance(self, key);
                for level in low..levels.min(height) {
                    new.link(level).store(address(finger.at[level]), Relaxed);
                }
                if low == 0 {
                    continue;
                }
                let at = if low < height { finger.at[low] } else { None };
                let mut lane = Lane { new, key, height: levels, level: low - 1, at, next: None, behind };
                if lane.look(self) {
                    return Some(lane);
                }
            }
            None
        };
        let Some(first) = start() else { return };
        let mut lanes = [first; LANES];
        let mut used = 1;
        while let Some(lane) = (used < LANES).then(&mut start).flatten() {
            lanes[used] = lane;
            used += 1;
        }
        while used > 0 {
            let mut turn = 0;
            while turn < used {
                if lanes[turn].step(self) {
                    turn += 1;
                } else if let Some(next) = start() {
                    lanes[turn] = next;
                    turn += 1;
                } else {
                    used -= 1;
                    lanes[turn] = lanes[used];
                }
            }
        }
    }
}

/// Has a node brought into the cache: from its link on `level` to the end of a short key.
#[inline]
pub(super) fn prefetch(entry: Entry<'_>, level: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let node = entry.node.as_ptr().cast::<i8>();
        // SAFETY: a prefetch reads nothing as far as the program can tell, and asks no more of an address than to be a number.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(node.wrapping_sub(super::LINK * (level + 1)));
            _mm_prefetch::<_MM_HINT_T0>(node.wrapping_add(super::HEAD + 15));
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (entry, level);
}
