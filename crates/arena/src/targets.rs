//! Which record comes next: uniformly, by Zipf, or of the latest.
//!
//! Invariant: a record that was chosen is in the store, unless a removal took it. Inserts of several threads end in another
//! order than they began, so only those are chosen before which none is under way.

use crate::permutation::Permutation;
use rand::Rng;
use rand_distr::{Distribution, Zipf};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How the records that are used are spread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    Uniform,
    /// Some are used much more often than others, which ones has nothing to do with their keys.
    Zipfian(Zipf<f64>),
    /// As Zipfian, and those inserted last are used most.
    Latest(Zipf<f64>),
}

/// YCSB's constant (Cooper et al., SoCC 2010).
const THETA: f64 = 0.99;

impl Choice {
    pub fn zipfian(count: u64) -> Self {
        Choice::Zipfian(zipf(count))
    }

    pub fn latest(count: u64) -> Self {
        Choice::Latest(zipf(count))
    }
}

fn zipf(count: u64) -> Zipf<f64> {
    Zipf::new(count.max(1) as f64, THETA).expect("at least one record, and a constant exponent")
}

/// What the store holds: the records loaded, and those that workloads inserted since.
#[derive(Debug)]
pub struct Held {
    loaded: u64,
    order: Permutation,
    popularity: Permutation,
    begun: AtomicU64,
    /// All inserts before this one have returned.
    settled: AtomicU64,
    /// Those after it that have.
    ahead: Mutex<BTreeSet<u64>>,
    inserted: AtomicU64,
    removed: AtomicU64,
    version: AtomicU64,
}

impl Held {
    /// `loaded` records, and `inserted` that workloads of an earlier process inserted.
    pub fn new(loaded: u64, inserted: u64) -> Self {
        Self {
            loaded,
            order: Permutation::new(loaded, 0x6f72_6465),
            popularity: Permutation::new(loaded, 0x706f_7075),
            begun: AtomicU64::new(inserted),
            settled: AtomicU64::new(inserted),
            ahead: Mutex::default(),
            inserted: AtomicU64::new(inserted),
            removed: AtomicU64::new(0),
            version: AtomicU64::new(1),
        }
    }

    /// The number of the record that is loaded at place `place` of a random order.
    pub fn at_random(&self, place: u64) -> u64 {
        2 * self.order.at(place)
    }

    /// Records that are in the store.
    pub fn count(&self) -> u64 {
        self.loaded + self.inserted.load(Ordering::Acquire) - self.removed.load(Ordering::Acquire)
    }

    /// Records that were inserted, beside those that were loaded.
    pub fn inserted(&self) -> u64 {
        self.inserted.load(Ordering::Acquire)
    }

    /// So many loaded records were removed.
    pub(crate) fn removed(&self, count: u64) {
        self.removed.fetch_add(count, Ordering::Release);
    }

    /// A ticket for a record to insert; none when as many were inserted as were loaded.
    pub(crate) fn insert(&self) -> Option<u64> {
        let ticket = self.begun.fetch_add(1, Ordering::Relaxed);
        (ticket < self.loaded).then_some(ticket)
    }

    /// The number of the record with that ticket: at a random place among the others.
    pub(crate) fn inserted_number(&self, ticket: u64) -> u64 {
        2 * self.order.at(ticket) + 1
    }

    /// The write of that record has returned.
    pub(crate) fn insert_done(&self, ticket: u64) {
        self.inserted.fetch_add(1, Ordering::Release);
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.insert(ticket);
        let mut settled = self.settled.load(Ordering::Acquire);
        while ahead.remove(&settled) {
            settled += 1;
        }
        self.settled.store(settled, Ordering::Release);
    }

    /// Every value that is written has a version of its own.
    pub(crate) fn next_version(&self) -> u64 {
        self.version.fetch_add(1, Ordering::Relaxed)
    }

    /// The next record to use.
    pub(crate) fn choose(&self, choice: &Choice, random: &mut impl Rng) -> u64 {
        match choice {
            Choice::Uniform => 2 * random.random_range(0..self.loaded),
            Choice::Zipfian(zipf) => 2 * self.popularity.at(rank(zipf, self.loaded, random)),
            Choice::Latest(zipf) => {
                let settled = self.settled.load(Ordering::Acquire);
                let age = rank(zipf, self.loaded, random);
                match settled.checked_sub(age + 1) {
                    Some(ticket) => self.inserted_number(ticket),
                    None => 2 * self.order.at((self.loaded - 1).saturating_sub(age - settled)),
                }
            }
        }
    }
}

fn rank(zipf: &Zipf<f64>, count: u64, random: &mut impl Rng) -> u64 {
    (zipf.sample(random) as u64).clamp(1, count) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::SmallRng};
    use std::collections::BTreeMap;

    fn counts(held: &Held, choice: &Choice, draws: u64) -> BTreeMap<u64, u64> {
        let mut random = SmallRng::seed_from_u64(1);
        let mut counts = BTreeMap::new();
        for _ in 0..draws {
            *counts.entry(held.choose(choice, &mut random)).or_default() += 1;
        }
        counts
    }

    #[test]
    fn a_zipfian_choice_has_favourites_and_a_uniform_one_none() {
        let held = Held::new(1000, 0);
        let most = |choice: &Choice| *counts(&held, choice, 100_000).values().max().unwrap();
        // The first of 1000 has 1 / (sum of k^-0.99) = 13.2 %.
        assert!((12_000..14_500).contains(&most(&Choice::zipfian(1000))));
        assert!(most(&Choice::Uniform) < 200);
        assert!(counts(&held, &Choice::zipfian(1000), 50_000).keys().all(|number| number % 2 == 0));
    }

    #[test]
    fn the_latest_are_preferred_and_only_what_is_there_is_chosen() {
        let held = Held::new(1000, 0);
        let before = counts(&held, &Choice::latest(1000), 10_000);
        assert!(before.keys().all(|number| number % 2 == 0), "nothing was inserted yet");
        let mut there: Vec<u64> = Vec::new();
        for _ in 0..100 {
            let ticket = held.insert().unwrap();
            there.push(held.inserted_number(ticket));
            if ticket != 96 {
                held.insert_done(ticket);
            }
        }
        assert_eq!(held.count(), 1099, "one of them is under way");
        let after = counts(&held, &Choice::latest(1000), 10_000);
        assert!(after.keys().all(|number| number % 2 == 0 || there[..96].contains(number)));
        let newest = after.iter().max_by_key(|(_, count)| **count).unwrap();
        assert_eq!(*newest.0, there[95]);
        held.insert_done(96);
        assert_eq!(
            *counts(&held, &Choice::latest(1000), 10_000).iter().max_by_key(|one| one.1).unwrap().0,
            there[99]
        );
    }

    #[test]
    fn no_more_is_inserted_than_was_loaded() {
        let held = Held::new(10, 3);
        assert_eq!(std::iter::from_fn(|| held.insert()).count(), 7);
    }
}
