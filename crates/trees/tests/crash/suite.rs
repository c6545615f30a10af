//! The common crash suite (experiment E39): the power fails at a device operation, what was not synced is lost, torn and
//! reordered by seed, and what the tree recovers must be what its contract promises: the state after some operation, no
//! earlier than the last that was promised to last.

use psync::{Fault, Filter, Repeat, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use trees::{Contract, Index};

/// One operation of a workload.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Insert(u64, u64),
    Delete(u64),
    Flush,
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

/// How far a workload came before the power failed.
pub struct Ran {
    /// Steps that returned.
    pub done: usize,
    /// Steps that were promised to last.
    pub promised: usize,
    pub failed: bool,
}

/// Does step after step until one fails.
pub fn play<T: Index>(tree: &mut T, steps: &[Step]) -> Ran {
    let (mut done, mut promised) = (0, 0);
    for step in steps {
        if apply(tree, *step).is_err() {
            return Ran { done, promised, failed: true };
        }
        done += 1;
        if matches!(step, Step::Flush) || tree.contract() == Contract::EachOperation {
            promised = done;
        }
    }
    Ran { done, promised, failed: false }
}

pub fn apply<T: Index>(tree: &mut T, step: Step) -> trees::Result<()> {
    match step {
        Step::Insert(key, value) => tree.insert(key, value),
        Step::Delete(key) => tree.delete(key),
        Step::Flush => tree.flush(),
    }
}

fn start<T: Index<Ground = Arc<dyn Volume>>>(options: &T::Options, seed: u64) -> (Simulated, T) {
    let volume = Simulated::new(seed).with_alignment(128);
    let tree = T::create(Arc::new(volume.clone()), options).expect("created");
    (volume, tree)
}

/// Runs the workload; the power fails at the `nth` device operation after the tree was created (0: never).
fn run<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    seed: u64,
    nth: u64,
    steps: &[Step],
) -> (Simulated, Ran) {
    run_until::<T>(options, seed, Filter::any(), nth, steps)
}

/// As [`run`]; only operations that `filter` matches count.
fn run_until<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    seed: u64,
    filter: Filter,
    nth: u64,
    steps: &[Step],
) -> (Simulated, Ran) {
    let (volume, mut tree) = start::<T>(options, seed);
    if nth > 0 {
        volume.fail_nth(filter, nth, Fault::PowerOff, Repeat::Once);
    }
    (volume, play(&mut tree, steps))
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

/// Cuts the power at every device operation of a workload, `images` images each; every tenth image goes on after the
/// recovery, and loses power once more. Returns how many images there were.
pub fn at_every_operation<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    seed: u64,
    steps: &[Step],
    images: u64,
) -> u64 {
    at_every::<T>(options, seed, &Filter::any(), steps, images)
}

/// As [`at_every_operation`], but for reads: those leave nothing behind that the next change does not.
pub fn at_every_change<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    seed: u64,
    steps: &[Step],
    images: u64,
) -> u64 {
    at_every::<T>(options, seed, &Filter::changes(), steps, images)
}

fn at_every<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    seed: u64,
    filter: &Filter,
    steps: &[Step],
    images: u64,
) -> u64 {
    let mut count = 0;
    for nth in 1.. {
        let (volume, ran) = run_until::<T>(options, seed, filter.clone(), nth, steps);
        for image_seed in 0..images {
            let story = format!("workload {seed}, power off at operation {nth}, image {image_seed}");
            let image = volume.power_loss(nth * images + image_seed);
            let mut tree = verify::<T>(options, Arc::new(image.clone()), &ran, steps, &story);
            count += 1;
            if count % 10 == 0 {
                go_on(&mut tree, options, &image, &story);
            }
        }
        if !ran.failed {
            return count;
        }
    }
    count
}

/// Cuts the power at `points` operations that chance picks, each in a workload of its own.
pub fn at_random_points<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    seeds: std::ops::Range<u64>,
    length: usize,
    keys: u64,
) -> u64 {
    let only = std::env::var("CRASH_SEED").ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = only.map_or(seeds, |seed| seed..seed + 1);
    let mut count = 0;
    for seed in seeds {
        let steps = workload(seed, length, keys);
        let (whole, _) = run::<T>(options, seed, 0, &steps);
        let operations = whole.operations();
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..10 {
            let nth = rng.random_range(1..=operations);
            let (volume, ran) = run::<T>(options, seed, nth, &steps);
            let story = format!("CRASH_SEED={seed}, power off at operation {nth}");
            let image = volume.power_loss(rng.random());
            let mut tree = verify::<T>(options, Arc::new(image.clone()), &ran, &steps, &story);
            count += 1;
            if count % 10 == 0 {
                go_on(&mut tree, options, &image, &story);
            }
        }
    }
    count
}

/// A recovered tree can be used, and survives a second power loss; recovering twice finds the same.
fn go_on<T: Index<Ground = Arc<dyn Volume>>>(
    tree: &mut T,
    options: &T::Options,
    image: &Simulated,
    story: &str,
) {
    go_on_over(tree, options, &|seed| Arc::new(image.power_loss(seed)), story);
}

/// The same; `lose_power` makes an image of what the tree stands on.
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

/// A bulk load that loses power is found whole, or is refused; never in part. Returns how many were refused.
pub fn bulk_loads_are_whole_or_refused<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    count: u64,
) -> u64 {
    let records: Vec<_> = (0..count).map(|key| (3 * key, key)).collect();
    let mut refused = 0;
    for nth in 1.. {
        let volume = Simulated::new(nth).with_alignment(128);
        volume.fail_nth(Filter::changes(), nth, Fault::PowerOff, Repeat::Once);
        let loaded =
            T::bulk_load(Arc::new(volume.clone()), options, 0.7, &mut records.iter().copied()).is_ok();
        let story = format!("power off at operation {nth} of a bulk load");
        match T::recover(Arc::new(volume.power_loss(nth)), options) {
            Ok(tree) => {
                tree.check().unwrap_or_else(|error| panic!("{story}: {error}"));
                assert_eq!(tree.range(0..u64::MAX).expect("scanned"), records, "{story}");
            }
            Err(error) => {
                assert!(!loaded, "{story}: {error}");
                refused += 1;
            }
        }
        if loaded {
            break;
        }
    }
    refused
}
