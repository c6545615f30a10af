//! Learns how long range searches are, counted in leaves, from those that have ended, and computes how many
//! leaves are worth reading at once. A round trip to the device costs as much as many leaves behind the
//! first, so a search should ask for what such searches have needed, not find out step by step how long it
//! is.
//! ```text
//! 100 searches that need a fifth leaf    70 end with it, 26 with the sixth, 4 with the twentieth
//! to ask for 1, 2 or 16 more costs       30 rounds; 70 leaves for nothing and 4 rounds; 1414 leaves: 2 it is
//! ```
//! Searches with a far bound and searches without one are of different kinds, and so are those of different
//! keyspaces.
//!
//! Invariants:
//! 1. Old searches are forgotten: at least half of all that are counted are among the last `REMEMBERED`.
//! 2. Without enough searches the answer is `None`.

use crate::operation::KeyspaceId;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Bytes that a device moves in long requests during one round trip (75 microseconds and 1 GB/s where we
/// measured, see docs/benchmarks.md), less the cost of checking and copying them.
pub(crate) const BYTES_A_ROUND: u64 = 64 << 10;

/// All counts are halved after this many searches, so that a change of the workload shows within some hundred.
const REMEMBERED: u32 = 256;

/// Fewer searches are not enough for an answer.
const ENOUGH: u64 = 8;

/// Lengths up to this have a class of their own; above it each octave has [`STEPS`] classes.
const EXACT: usize = 16;
const STEPS: usize = 16;
const OCTAVES: usize = 6;
const CLASSES: usize = EXACT + STEPS * OCTAVES + 1;

/// Number of counters: keyspaces whose ids are equal in their lowest bits share one, so that any number of keyspaces
/// takes the same memory.
const KEYSPACES: usize = 8;

/// The class of a length.
fn class(leaves: usize) -> usize {
    if leaves <= EXACT {
        return leaves.saturating_sub(1);
    }
    let octave = (leaves - 1).ilog2() as usize;
    let step = ((leaves - 1 - (1 << octave)) * STEPS) >> octave;
    (EXACT + (octave - EXACT.ilog2() as usize) * STEPS + step).min(CLASSES - 1)
}

/// The greatest length of a class, which must not be the last class: that is unbounded.
fn longest(class: usize) -> usize {
    if class < EXACT {
        return class + 1;
    }
    let (octave, step) = ((class - EXACT) / STEPS, (class - EXACT) % STEPS);
    (EXACT << octave) + (step + 1) * ((EXACT << octave) / STEPS)
}

const _: () =
    assert!(EXACT.is_power_of_two() && EXACT.is_multiple_of(STEPS), "classes are whole numbers of leaves");

/// Number of searches of each class, and of all.
#[derive(Debug)]
struct Counts {
    classes: [AtomicU32; CLASSES],
    total: AtomicU32,
}

/// The kind of a search; only searches of one kind are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(usize);

impl Kind {
    /// Searches of a keyspace, with or without a bound at their far end.
    pub fn new(keyspace: KeyspaceId, is_bounded: bool) -> Self {
        Self(keyspace.0 as usize % KEYSPACES * 2 + usize::from(is_bounded))
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ScanLengths {
    kinds: [Counts; KEYSPACES * 2],
}

impl Default for ScanLengths {
    fn default() -> Self {
        let counts =
            |_| Counts { classes: std::array::from_fn(|_| AtomicU32::new(0)), total: AtomicU32::new(0) };
        Self { kinds: std::array::from_fn(counts) }
    }
}

impl ScanLengths {
    /// Notes that a search ended after so many leaves.
    pub fn note(&self, kind: Kind, leaves: usize) {
        let Counts { classes, total } = &self.kinds[kind.0];
        classes[class(leaves)].fetch_add(1, Relaxed);
        if total.fetch_add(1, Relaxed) >= REMEMBERED {
            // Concurrent counts may be lost.
            let (mut left, mut odd) = (0, 0);
            for count in classes {
                // An odd remainder moves on to the next class: rare lengths would otherwise all be forgotten.
                let count_now = count.load(Relaxed) + odd;
                count.store(count_now / 2, Relaxed);
                odd = count_now % 2;
                left += count_now / 2;
            }
            total.store(left, Relaxed);
        }
    }

    /// How many leaves of `leaf_len` bytes are worth having been requested in all, for a search that has
    /// reached, or needs, its leaf number `at` (from 1), and has requested `asked` already. Requesting any
    /// more costs `toll` bytes in addition. `None` if that is unknown.
    pub fn worth(&self, kind: Kind, at: usize, asked: usize, leaf_len: u64, toll: u64) -> Option<usize> {
        let counts: [u64; CLASSES] =
            std::array::from_fn(|class| self.kinds[kind.0].classes[class].load(Relaxed).into());
        let first = class(at);
        let alike: u64 = counts[first..].iter().sum();
        // The length of searches in the last class is unknown.
        if alike < ENOUGH || 2 * counts[CLASSES - 1] > alike {
            return None;
        }
        let is_free_to_wait = at <= asked;
        let (mut best, mut least) = (asked, u64::MAX);
        // `waste`: the cost of unneeded leaves for searches that end earlier. `longer`: searches that go on.
        let (mut chosen, mut waste, mut longer) = (asked, 0, alike);
        for (class, count) in counts.iter().enumerate().take(CLASSES - 1).skip(first) {
            let more = longest(class).saturating_sub(chosen) as u64;
            if more > 0 {
                if chosen == asked {
                    if is_free_to_wait {
                        least = longer * BYTES_A_ROUND;
                    }
                    waste = (alike - longer) * toll;
                }
                waste += (alike - longer) * more * leaf_len;
                chosen = longest(class);
            }
            longer -= count;
            let cost = waste + longer * BYTES_A_ROUND;
            if chosen > asked && cost < least {
                (best, least) = (chosen, cost);
            }
        }
        Some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: u64 = 4096;

    fn noted(lengths: impl IntoIterator<Item = usize>) -> (ScanLengths, Kind) {
        let (noted, kind) = (ScanLengths::default(), Kind::new(KeyspaceId(9), false));
        lengths.into_iter().for_each(|length| noted.note(kind, length));
        (noted, kind)
    }

    #[test]
    fn classes_follow_one_another_and_are_at_most_a_sixteenth_wide() {
        for leaves in 2..5000 {
            let (before, class) = (class(leaves - 1), class(leaves));
            assert!(class == before || class == before + 1, "{leaves}");
            if class < CLASSES - 1 {
                assert!(
                    (leaves..=leaves + leaves / STEPS).contains(&longest(class)),
                    "{leaves}: {}",
                    longest(class)
                );
            }
            assert!(class == before || longest(before) == leaves - 1);
        }
        assert_eq!((class(0), class(1), class(1024), class(1025)), (0, 0, CLASSES - 2, CLASSES - 1));
    }

    #[test]
    fn searches_ask_for_what_most_of_their_kind_have_needed() {
        let (all_alike, kind) = noted(std::iter::repeat_n(4, 100));
        assert_eq!(all_alike.worth(kind, 1, 0, LEAF, 0), Some(4));
        assert_eq!(all_alike.worth(kind, 2, 1, LEAF, 0), Some(4), "after one that was cached");
        assert_eq!(all_alike.worth(kind, 4, 4, LEAF, 0), Some(4), "nothing ahead");
        assert_eq!(all_alike.worth(kind, 5, 4, LEAF, 0), None, "none was longer");
        assert_eq!(all_alike.worth(Kind::new(KeyspaceId(9), true), 1, 0, LEAF, 0), None);
        assert_eq!(all_alike.worth(Kind::new(KeyspaceId(8), false), 1, 0, LEAF, 0), None);
        // The figure in the module's head.
        let (mixed, kind) = noted([5; 70].into_iter().chain([6; 26]).chain([20; 4]));
        assert_eq!(mixed.worth(kind, 5, 4, LEAF, 0), Some(6));
        assert_eq!(mixed.worth(kind, 5, 4, LEAF, BYTES_A_ROUND), Some(6), "it has to ask, whatever the toll");
        assert_eq!(mixed.worth(kind, 4, 4, LEAF, 0), Some(6), "all come to the fifth");
        let (mixed, kind) = noted([4; 60].into_iter().chain([5; 40]));
        assert_eq!(mixed.worth(kind, 4, 4, LEAF, 0), Some(5));
        assert_eq!(mixed.worth(kind, 4, 4, LEAF, BYTES_A_ROUND), Some(4), "more pay the toll for nothing");
    }

    #[test]
    fn long_ones_among_short_ones_are_read_when_they_show() {
        let (mixed, kind) = noted([1; 90].into_iter().chain([40; 10]));
        assert_eq!(mixed.worth(kind, 1, 0, LEAF, 0), Some(1));
        assert_eq!(mixed.worth(kind, 2, 1, LEAF, 0), Some(40));
        let (endless, kind) = noted([3000; 50]);
        assert_eq!(endless.worth(kind, 1, 0, LEAF, 0), None);
    }

    #[test]
    fn a_few_searches_tell_nothing() {
        let (few, kind) = noted([4; ENOUGH as usize - 1]);
        assert_eq!(few.worth(kind, 1, 0, LEAF, 0), None);
        few.note(kind, 4);
        assert_eq!(few.worth(kind, 1, 0, LEAF, 0), Some(4));
    }

    /// One in ten has another length each time.
    #[test]
    fn what_is_rare_is_not_forgotten_before_what_is_common() {
        let long = |number: u32| 17 + (number / 10 * 131 % 384) as usize;
        let (lengths, kind) =
            noted((0..5000_u32).map(|number| if number % 10 == 0 { long(number) } else { 2 }));
        let rare: u32 = lengths.kinds[kind.0].classes[EXACT..].iter().map(|count| count.load(Relaxed)).sum();
        assert!((12..=40).contains(&rare), "{rare}, of {REMEMBERED}");
    }

    #[test]
    fn what_was_is_forgotten() {
        let (lengths, kind) = noted(std::iter::repeat_n(60, 5000));
        assert_eq!(lengths.worth(kind, 1, 0, LEAF, 0), Some(60));
        (0..8 * REMEMBERED).for_each(|_| lengths.note(kind, 2));
        assert_eq!(lengths.worth(kind, 1, 0, LEAF, 0), Some(2));
        let sum: u32 = lengths.kinds[kind.0].classes.iter().map(|count| count.load(Relaxed)).sum();
        assert!(sum <= REMEMBERED);
    }
}
