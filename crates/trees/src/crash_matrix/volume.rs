//! Power loss on a psync volume: it comes in the midst of an operation, and what is not synced then is lost, torn and reordered.
//! The workload runs once; the volume keeps an image of each operation that is cut.
//!
//! Invariants:
//! 1. What is lost follows from the seed of the image.

mod forks;

use super::{Found, Ran, Recover, States, Step, verify, verify_and_go_on, workload};
use crate::{Index, Result};
use forks::{Forks, Wanted};
use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use std::sync::Arc;

/// Where the power is cut.
#[derive(Clone, Copy, Debug)]
pub struct Cuts {
    /// Whether reads count too: those leave nothing behind that the next change does not.
    pub reads: bool,
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
        Self { reads: true, stride: 1, images, go_on: 10 }
    }

    /// At every one but for reads.
    pub fn changes(images: u64) -> Self {
        Self { reads: false, ..Self::all(images) }
    }
}

/// Runs a workload on a new volume, once, and shows what power loss would have left at each operation that is wanted: the
/// image, how far the workload was, and the number of the operation since the tree was created; last what the whole workload
/// leaves. Returns how many operations counted.
fn each_cut<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    seed: u64,
    steps: &[Step],
    wanted: Wanted,
    show: &mut dyn FnMut(Simulated, &Ran, u64),
) -> Result<u64> {
    let volume = Simulated::new(seed).with_alignment(128);
    let forks = Arc::new(Forks::new(volume.clone()));
    let mut tree = T::create(Arc::<Forks>::clone(&forks), options)?;
    forks.cut(wanted);
    let mut ran = Ran { failed: true, ..Ran::default() };
    for step in steps {
        let done = step.apply(&mut tree);
        for (nth, image) in forks.take() {
            show(image, &ran, nth);
        }
        done?;
        ran.returned(*step, tree.contract());
    }
    let count = forks.count();
    ran.failed = false;
    show(volume.crash(), &ran, count + 1);
    Ok(count)
}

/// Recovers an image, and goes on with it if asked to.
fn find<T: Index<Ground = Arc<dyn Volume>>>(
    recover: Recover<'_, T>,
    (image, ran): (&Simulated, &Ran),
    states: &States,
    (goes_on, story): (bool, &str),
) -> Found {
    let ground: Arc<dyn Volume> = Arc::new(image.clone());
    if !goes_on {
        return verify(recover, ground, ran, states, story).0;
    }
    let lose_power = |round| -> Arc<dyn Volume> { Arc::new(image.power_loss(round)) };
    verify_and_go_on(recover, (ground, &lose_power), ran, states, story)
}

/// Cuts the power where `cuts` says, and shows what is found in each image.
///
/// # Errors
/// A tree that cannot be created, or that fails before the power does.
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
    let Cuts { reads, stride, images, go_on } = *cuts;
    let wanted = Wanted { reads, nth: Box::new(move |nth| nth % stride.max(1) == 0) };
    each_cut::<T>(options, seed, steps, wanted, &mut |left, ran, nth| {
        for image_seed in 0..images {
            let story = format!("workload {seed}, power off at operation {nth}, image {image_seed}");
            let image = left.power_loss(nth * images + image_seed);
            count += 1;
            let goes_on = go_on > 0 && count % go_on == 0;
            see(find(recover, (&image, ran), &states, (goes_on, &story)));
        }
    })
    .map(|_| ())
}

/// Cuts the power at ten operations that chance picks in each of many workloads. Every tenth image goes on.
///
/// # Errors
/// A tree that cannot be created, or that fails before the power does.
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
        let none = Wanted { reads: true, nth: Box::new(|_| false) };
        let operations = each_cut::<T>(options, seed, &steps, none, &mut |_, _, _| ())?;
        let mut rng = StdRng::seed_from_u64(seed);
        let mut points: Vec<u64> = (0..10).map(|_| rng.random_range(1..=operations)).collect();
        points.sort_unstable();
        let cut = points.clone();
        let wanted = Wanted { reads: true, nth: Box::new(move |nth| cut.contains(&nth)) };
        each_cut::<T>(options, seed, &steps, wanted, &mut |left, ran, nth| {
            for _ in points.iter().filter(|point| **point == nth) {
                let story = format!("CRASH_SEED={seed}, power off at operation {nth}");
                let image = left.power_loss(rng.random());
                count += 1;
                see(find(recover, (&image, ran), &states, (count % 10 == 0, &story)));
            }
        })?;
    }
    Ok(())
}
