//! Power loss, tried out (experiment E39): a workload runs until the power fails at a device operation; what was not synced is
//! lost, torn and reordered by seed; and what the tree recovers is compared with what its contract promises: the state after
//! some operation, no earlier than the last that was promised to last, or, where each key stands for itself, one of the values
//! that each key had since then. On a psync volume: [`volume`]; on raw flash: [`raw_flash`].
//!
//! Only with the feature `crash-matrix`: for this crate's tests, and for the laboratory.
//!
//! Invariants:
//! 1. A workload, its cuts and their images follow from the seed.
//! 2. A finding names its image, so that it can be had again.

pub mod raw_flash;
pub mod volume;

use crate::{Contract, Index, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::RangeInclusive;

/// One operation of a workload.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Sets the value of a key.
    Insert(u64, u64),
    /// Removes a key.
    Delete(u64),
    /// [`Index::flush`].
    Flush,
}

impl Step {
    /// Does it.
    ///
    /// # Errors
    /// The tree's.
    pub fn apply<T: Index>(self, tree: &mut T) -> Result<()> {
        match self {
            Step::Insert(key, value) => tree.insert(key, value),
            Step::Delete(key) => tree.delete(key),
            Step::Flush => tree.flush(),
        }
    }
}

/// A workload of `count` operations over keys `0..keys`: runs of ascending keys, random ones, deletions, and now and then a
/// flush.
pub fn workload(seed: u64, count: usize, keys: u64) -> Vec<Step> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut ascending = 0;
    (0..count)
        .map(|index| match rng.random_range(0..100) {
            0..2 => Step::Flush,
            2..30 if index % 512 > 256 => Step::Delete(rng.random_range(0..keys)),
            30..50 => {
                ascending = (ascending + 1) % keys;
                Step::Insert(ascending, rng.random())
            }
            _ => Step::Insert(rng.random_range(0..keys), rng.random()),
        })
        .collect()
}

/// What was found after a power loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A state that the contract allows.
    Right,
    /// The tree does not open, or not all of it can be read, or its invariants do not hold: how.
    Broken(String),
    /// A sound tree with records that no allowed state has: how.
    Wrong(String),
}

impl Found {
    /// How it is not right.
    pub fn complaint(&self) -> Option<&str> {
        match self {
            Found::Right => None,
            Found::Broken(how) | Found::Wrong(how) => Some(how),
        }
    }
}

/// Opens a tree after a power loss.
pub type Recover<'a, T> = &'a dyn Fn(<T as Index>::Ground) -> Result<T>;

/// How far a workload came before the power failed.
#[derive(Clone, Copy, Debug, Default)]
struct Ran {
    /// Steps that returned.
    done: usize,
    /// Steps that were promised to last.
    promised: usize,
    /// Whether the step after those was begun.
    failed: bool,
}

impl Ran {
    fn returned(&mut self, step: Step, contract: Contract) {
        self.done += 1;
        if matches!(step, Step::Flush) || contract == Contract::EachOperation {
            self.promised = self.done;
        }
    }

    /// Steps after which the tree may be as it is found: the one that failed may be there too.
    fn allowed(&self) -> RangeInclusive<usize> {
        self.promised..=self.done + usize::from(self.failed)
    }
}

/// The states of a workload.
struct States {
    hasher: RandomState,
    /// After so many steps: a sum that tells it apart, and how many records there are.
    sums: Vec<(u64, usize)>,
    /// By key: after so many steps it was given a value, or removed; ascending.
    histories: BTreeMap<u64, Vec<(usize, Option<u64>)>>,
}

impl States {
    fn of(steps: &[Step]) -> Self {
        let (hasher, mut map, mut sum) = (RandomState::new(), BTreeMap::new(), 0);
        let mut sums = vec![(0, 0)];
        let mut histories = BTreeMap::<_, Vec<_>>::new();
        for (before, step) in steps.iter().enumerate() {
            let (key, old, new) = match *step {
                Step::Insert(key, value) => (key, map.insert(key, value), Some(value)),
                Step::Delete(key) => (key, map.remove(&key), None),
                Step::Flush => {
                    sums.push((sum, map.len()));
                    continue;
                }
            };
            for value in [old, new].into_iter().flatten() {
                sum ^= hasher.hash_one((key, value));
            }
            sums.push((sum, map.len()));
            histories.entry(key).or_default().push((before + 1, new));
        }
        Self { hasher, sums, histories }
    }

    /// How these records break the contract, if they do.
    fn complaint(&self, records: &[(u64, u64)], contract: Contract, ran: &Ran) -> Option<String> {
        let allowed = ran.allowed();
        if contract == Contract::EachKey {
            return self.key_complaint(records, &allowed);
        }
        let sum = records.iter().fold(0, |sum, record| sum ^ self.hasher.hash_one(*record));
        let first = *allowed.start();
        let last = (*allowed.end()).min(self.sums.len() - 1);
        (!self.sums[first..=last].contains(&(sum, records.len()))).then(|| {
            format!(
                "{} records are there, which is no state between step {first} and step {last}",
                records.len()
            )
        })
    }

    /// Every key has the value that it was promised to have, or one that it was given since.
    fn key_complaint(&self, records: &[(u64, u64)], allowed: &RangeInclusive<usize>) -> Option<String> {
        let found: BTreeMap<u64, u64> = records.iter().copied().collect();
        if let Some((key, value)) = records.iter().find(|(key, _)| !self.histories.contains_key(key)) {
            return Some(format!("key {key} has {value}, which it was never given"));
        }
        self.histories.iter().find_map(|(key, history)| {
            let promised = history.iter().rev().find(|(step, _)| step <= allowed.start());
            let since = history.iter().filter(|(step, _)| step > allowed.start() && step <= allowed.end());
            let mut values = vec![promised.and_then(|(_, value)| *value)];
            values.extend(since.map(|(_, value)| *value));
            let there = found.get(key).copied();
            (!values.contains(&there)).then(|| {
                format!(
                    "key {key} has {there:?}, which is none of {values:?}, its values since step {}",
                    allowed.start()
                )
            })
        })
    }
}

/// Recovers from an image and compares. Gives the tree, if it is sound.
fn verify<T: Index>(
    recover: Recover<'_, T>,
    image: T::Ground,
    ran: &Ran,
    states: &States,
    story: &str,
) -> (Found, Option<T>) {
    let sound = recover(image).and_then(|tree| {
        // Before anything is read: leaves of a broken tree may be chained to a ring.
        tree.check()?;
        let records = tree.range(0..u64::MAX)?;
        Ok((tree, records))
    });
    let (tree, records) = match sound {
        Ok(sound) => sound,
        Err(error) => return (Found::Broken(format!("{story}: {error}")), None),
    };
    let found = match states.complaint(&records, tree.contract(), ran) {
        Some(how) => Found::Wrong(format!("{story}: {how}")),
        None => Found::Right,
    };
    (found, Some(tree))
}

/// As [`verify`]; if all is right, the tree must be usable, and survive a second power loss; recovering twice finds the same.
/// `lose_power` makes an image of the image.
fn verify_and_go_on<T: Index>(
    recover: Recover<'_, T>,
    (image, lose_power): (T::Ground, &dyn Fn(u64) -> T::Ground),
    ran: &Ran,
    states: &States,
    story: &str,
) -> Found {
    let mut tree = match verify(recover, image, ran, states, story) {
        (Found::Right, Some(tree)) => tree,
        (found, _) => return found,
    };
    let used = (|| {
        for index in 0..40 {
            tree.insert(index * 7, index)?;
        }
        tree.flush()?;
        tree.range(0..u64::MAX)
    })();
    let expected = match used {
        Ok(expected) => expected,
        Err(error) => return Found::Broken(format!("{story}, going on: {error}")),
    };
    for round in 0..2 {
        let again = recover(lose_power(round)).and_then(|tree| tree.range(0..u64::MAX));
        match again {
            Ok(found) if found == expected => {}
            Ok(_) => return Found::Wrong(format!("{story}, second recovery: other records")),
            Err(error) => return Found::Broken(format!("{story}, second recovery: {error}")),
        }
    }
    Found::Right
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [Step; 6] = [
        Step::Insert(1, 10),
        Step::Insert(2, 20),
        Step::Flush,
        Step::Insert(1, 11),
        Step::Delete(2),
        Step::Insert(3, 30),
    ];

    #[test]
    fn a_state_counts_from_the_promise_to_the_step_that_failed() {
        let states = States::of(&STEPS);
        let complains = |records: &[(u64, u64)], ran: Ran| states.complaint(records, Contract::Flush, &ran);
        let ran = Ran { done: 4, promised: 3, failed: true };
        for right in [&[(1, 10), (2, 20)][..], &[(1, 11), (2, 20)], &[(1, 11)]] {
            assert_eq!(complains(right, ran), None, "{right:?}");
        }
        for wrong in [&[][..], &[(1, 10)], &[(1, 11), (3, 30)], &[(1, 11), (2, 21)]] {
            assert!(complains(wrong, ran).is_some(), "{wrong:?}");
        }
        assert!(complains(&[(1, 11)], Ran { failed: false, ..ran }).is_some());
        assert_eq!(complains(&[(1, 11), (3, 30)], Ran { done: 6, promised: 6, failed: true }), None);
    }

    #[test]
    fn key_by_key_each_stands_for_itself() {
        let states = States::of(&STEPS);
        let complains = |records: &[(u64, u64)], ran: Ran| states.complaint(records, Contract::EachKey, &ran);
        let ran = Ran { done: 4, promised: 3, failed: true };
        // The removal without the insertion before it is no state of the whole.
        for right in [&[(1, 10), (2, 20)][..], &[(1, 11), (2, 20)], &[(1, 10)], &[(1, 11)]] {
            assert_eq!(complains(right, ran), None, "{right:?}");
        }
        for wrong in [&[][..], &[(2, 20)], &[(1, 11), (3, 30)], &[(1, 11), (2, 21)], &[(1, 11), (9, 9)]] {
            assert!(complains(wrong, ran).is_some(), "{wrong:?}");
        }
        assert!(complains(&[(1, 10)], Ran { done: 6, promised: 6, failed: false }).is_some());
    }
}
