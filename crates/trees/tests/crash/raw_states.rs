//! What the crash suite for raw flash shares among its tests: workloads, how far they came, and what a recovery may find.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
pub use trees::crash_matrix::{Step, workload};
use trees::{Contract, Index};

/// How far a workload came before the power failed.
pub struct Ran {
    /// Steps that returned.
    pub done: usize,
    /// Steps that were promised to last.
    pub promised: usize,
    pub failed: bool,
}

pub fn apply<T: Index>(tree: &mut T, step: Step) -> trees::Result<()> {
    match step {
        Step::Insert(key, value) => tree.insert(key, value),
        Step::Delete(key) => tree.delete(key),
        Step::Flush => tree.flush(),
    }
}

/// A sum that tells states apart, and can be brought forward by one operation.
struct State {
    map: BTreeMap<u64, u64>,
    sum: u64,
    hasher: RandomState,
}

impl State {
    fn change(&mut self, key: u64, value: Option<u64>) {
        let old = match value {
            Some(value) => self.map.insert(key, value),
            None => self.map.remove(&key),
        };
        for value in [old, value].into_iter().flatten() {
            self.sum ^= self.hasher.hash_one((key, value));
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Insert(key, value) => self.change(key, Some(value)),
            Step::Delete(key) => self.change(key, None),
            Step::Flush => {}
        }
    }
}

/// Recovers from an image and verifies what is there. Returns the recovered tree.
pub fn verify<T: Index>(options: &T::Options, image: T::Ground, ran: &Ran, steps: &[Step], story: &str) -> T {
    let tree = T::recover(image, options).unwrap_or_else(|error| panic!("{story}: {error}"));
    let found = tree.range(0..u64::MAX).unwrap_or_else(|error| panic!("{story}: {error}"));
    tree.check().unwrap_or_else(|error| panic!("{story}: {error}"));
    // The step that failed may be there too.
    let attempted = (ran.done + usize::from(ran.failed)).min(steps.len());
    if tree.contract() == Contract::EachKey {
        verify_each_key(&found, &steps[..ran.promised], &steps[ran.promised..attempted], story);
        return tree;
    }
    let mut state = State { map: BTreeMap::new(), sum: 0, hasher: RandomState::new() };
    let sum = found.iter().fold(0, |sum, record| sum ^ state.hasher.hash_one(*record));
    let mut matched = false;
    for (at, step) in steps[..attempted].iter().map(Some).chain([None]).enumerate() {
        matched |= at >= ran.promised && sum == state.sum && found.len() == state.map.len();
        step.into_iter().for_each(|step| state.step(*step));
    }
    assert!(
        matched,
        "{story}: {} records are there, which is no state between step {} and step {attempted}",
        found.len(),
        ran.promised
    );
    tree
}

/// Every key has the value that it was promised to have, or one that it was given since.
fn verify_each_key(found: &[(u64, u64)], promised: &[Step], since: &[Step], story: &str) {
    let mut state = State { map: BTreeMap::new(), sum: 0, hasher: RandomState::new() };
    promised.iter().for_each(|step| state.step(*step));
    let mut allowed: BTreeMap<u64, Vec<Option<u64>>> =
        state.map.iter().map(|(key, value)| (*key, vec![Some(*value)])).collect();
    for step in since {
        let (key, value) = match *step {
            Step::Insert(key, value) => (key, Some(value)),
            Step::Delete(key) => (key, None),
            Step::Flush => continue,
        };
        allowed.entry(key).or_insert_with(|| vec![None]).push(value);
    }
    let found: BTreeMap<u64, u64> = found.iter().copied().collect();
    for (key, value) in &found {
        let allowed = allowed.get(key).map_or(&[][..], Vec::as_slice);
        assert!(allowed.contains(&Some(*value)), "{story}: key {key} has {value}, not one of {allowed:?}");
    }
    for (key, allowed) in &allowed {
        let there = found.contains_key(key) || allowed.contains(&None);
        assert!(there, "{story}: key {key} is gone, which had one of {allowed:?}");
    }
}

/// A recovered tree can be used, and survives a second power loss; recovering twice finds the same. `lose_power` makes an image of what the tree stands on.
pub fn go_on_over<T: Index>(
    tree: &mut T,
    options: &T::Options,
    lose_power: &dyn Fn(u64) -> T::Ground,
    story: &str,
) {
    for index in 0..40 {
        tree.insert(index * 7, index).unwrap_or_else(|error| panic!("{story}, going on: {error}"));
    }
    tree.flush().unwrap_or_else(|error| panic!("{story}, going on: {error}"));
    let expected = tree.range(0..u64::MAX).expect("scanned");
    for round in 0..2 {
        let recovered = T::recover(lose_power(round), options)
            .unwrap_or_else(|error| panic!("{story}, second recovery: {error}"));
        assert_eq!(recovered.range(0..u64::MAX).expect("scanned"), expected, "{story}, second recovery");
    }
}
