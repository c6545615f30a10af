//! Power loss, tried out (experiment E39): a workload runs until the power fails at a device operation; what was not synced is
//! lost, torn and reordered by seed; and what the tree recovers is compared with what its contract promises: the state after
//! some operation, no earlier than the last that was promised to last.
//!
//! Only with the feature `crash-matrix`: for this crate's tests, and for the laboratory.
//!
//! Invariants:
//! 1. A workload, its cuts and their images follow from the seed.
//! 2. A finding names its image, so that it can be had again.

use crate::{Contract, Index, Result};
use psync::{Fault, Filter, Repeat, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::Arc;

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
pub type Recover<'a, T> = &'a dyn Fn(Arc<dyn Volume>) -> Result<T>;

/// Where the power is cut.
#[derive(Clone, Debug)]
pub struct Cuts {
    /// Device operations that count.
    pub filter: Filter,
    /// Of them, each how many-th is tried, 1 or more.
    pub stride: u64,
    /// Images of each.
    pub images: u64,
    /// Each how many-th image goes on after its recovery, and loses power once more; 0 for none.
    pub go_on: u64,
}

impl Cuts {
    /// At every device operation.
    pub fn all(images: u64) -> Self {
        Self { filter: Filter::any(), stride: 1, images, go_on: 10 }
    }

    /// But for reads: those leave nothing behind that the next change does not.
    pub fn changes(images: u64) -> Self {
        Self { filter: Filter::changes(), ..Self::all(images) }
    }
}

/// How far a workload came before the power failed.
struct Ran {
    volume: Simulated,
    /// Steps that returned.
    done: usize,
    /// Steps that were promised to last.
    promised: usize,
    failed: bool,
}

/// Sums that tell the states of a workload apart.
struct States {
    hasher: RandomState,
    /// After so many steps: the sum and how many records there are.
    sums: Vec<(u64, usize)>,
}

impl States {
    fn of(steps: &[Step]) -> Self {
        let (hasher, mut map, mut sum) = (RandomState::new(), BTreeMap::new(), 0);
        let mut sums = vec![(0, 0)];
        for step in steps {
            let (key, old, new) = match *step {
                Step::Insert(key, value) => (key, map.insert(key, value), Some(value)),
                Step::Delete(key) => (key, map.remove(&key), None),
                Step::Flush => (0, None, None),
            };
            for value in [old, new].into_iter().flatten() {
                sum ^= hasher.hash_one((key, value));
            }
            sums.push((sum, map.len()));
        }
        Self { hasher, sums }
    }

    /// Whether these records are the state after some number of steps.
    fn has(&self, records: &[(u64, u64)], after: std::ops::RangeInclusive<usize>) -> bool {
        let sum = records.iter().fold(0, |sum, record| sum ^ self.hasher.hash_one(*record));
        self.sums[after].contains(&(sum, records.len()))
    }
}

/// Runs the workload; the power fails at the `nth` device operation that `filter` matches after the tree was created (0:
/// never).
fn run<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    seed: u64,
    filter: &Filter,
    nth: u64,
    steps: &[Step],
) -> Result<(Ran, Option<T>)> {
    let volume = Simulated::new(seed).with_alignment(128);
    let mut tree = T::create(Arc::new(volume.clone()), options)?;
    if nth > 0 {
        volume.fail_nth(filter.clone(), nth, Fault::PowerOff, Repeat::Once);
    }
    let (mut done, mut promised) = (0, 0);
    for step in steps {
        if step.apply(&mut tree).is_err() {
            return Ok((Ran { volume, done, promised, failed: true }, None));
        }
        done += 1;
        if matches!(step, Step::Flush) || tree.contract() == Contract::EachOperation {
            promised = done;
        }
    }
    Ok((Ran { volume, done, promised, failed: false }, Some(tree)))
}

/// Recovers from an image and compares. Gives the tree, if it is sound.
fn verify<T: Index<Ground = Arc<dyn Volume>>>(
    recover: Recover<'_, T>,
    image: &Simulated,
    ran: &Ran,
    states: &States,
    story: &str,
) -> (Found, Option<T>) {
    let volume: Arc<dyn Volume> = Arc::new(image.clone());
    let sound = recover(volume).and_then(|tree| {
        // Before anything is read: leaves of a broken tree may be chained to a ring.
        tree.check()?;
        let records = tree.range(0..u64::MAX)?;
        Ok((tree, records))
    });
    let (tree, records) = match sound {
        Ok(sound) => sound,
        Err(error) => return (Found::Broken(format!("{story}: {error}")), None),
    };
    // The step that failed may be there too.
    let attempted = (ran.done + usize::from(ran.failed)).min(states.sums.len() - 1);
    if states.has(&records, ran.promised..=attempted) {
        return (Found::Right, Some(tree));
    }
    let how = format!(
        "{story}: {} records are there, which is no state between step {} and step {attempted}",
        records.len(),
        ran.promised
    );
    (Found::Wrong(how), Some(tree))
}

/// A recovered tree can be used, and survives a second power loss; recovering twice finds the same.
fn go_on<T: Index<Ground = Arc<dyn Volume>>>(
    tree: &mut T,
    recover: Recover<'_, T>,
    image: &Simulated,
    story: &str,
) -> Found {
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
        let again = recover(Arc::new(image.power_loss(round))).and_then(|tree| tree.range(0..u64::MAX));
        match again {
            Ok(found) if found == expected => {}
            Ok(_) => return Found::Wrong(format!("{story}, second recovery: other records")),
            Err(error) => return Found::Broken(format!("{story}, second recovery: {error}")),
        }
    }
    Found::Right
}

/// Cuts the power where `cuts` says, in a workload that runs anew for each cut, and shows what is found in each image.
///
/// # Errors
/// A tree that cannot even be created.
pub fn at_every<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    recover: Recover<'_, T>,
    seed: u64,
    steps: &[Step],
    cuts: &Cuts,
    see: &mut dyn FnMut(Found),
) -> Result<()> {
    let states = States::of(steps);
    let mut count = 0;
    for nth in (1..).step_by(cuts.stride.max(1) as usize) {
        let (ran, _) = run::<T>(options, seed, &cuts.filter, nth, steps)?;
        for image_seed in 0..cuts.images {
            let story = format!("workload {seed}, power off at operation {nth}, image {image_seed}");
            let image = ran.volume.power_loss(nth * cuts.images + image_seed);
            let (mut found, tree) = verify(recover, &image, &ran, &states, &story);
            count += 1;
            if let Some(mut tree) = tree
                && found == Found::Right
                && cuts.go_on > 0
                && count % cuts.go_on == 0
            {
                found = go_on(&mut tree, recover, &image, &story);
            }
            see(found);
        }
        if !ran.failed {
            break;
        }
    }
    Ok(())
}

/// Cuts the power at ten operations that chance picks in each of many workloads. Every tenth image goes on.
///
/// # Errors
/// A tree that cannot even be created.
pub fn at_random_points<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    recover: Recover<'_, T>,
    seeds: Range<u64>,
    (length, keys): (usize, u64),
    see: &mut dyn FnMut(Found),
) -> Result<()> {
    let mut count = 0;
    for seed in seeds {
        let steps = workload(seed, length, keys);
        let states = States::of(&steps);
        let (whole, tree) = run::<T>(options, seed, &Filter::any(), 0, &steps)?;
        drop(tree);
        let operations = whole.volume.operations();
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..10 {
            let nth = rng.random_range(1..=operations);
            let (ran, _) = run::<T>(options, seed, &Filter::any(), nth, &steps)?;
            let story = format!("CRASH_SEED={seed}, power off at operation {nth}");
            let image = ran.volume.power_loss(rng.random());
            let (mut found, tree) = verify(recover, &image, &ran, &states, &story);
            count += 1;
            if let Some(mut tree) = tree
                && found == Found::Right
                && count % 10 == 0
            {
                found = go_on(&mut tree, recover, &image, &story);
            }
            see(found);
        }
    }
    Ok(())
}
