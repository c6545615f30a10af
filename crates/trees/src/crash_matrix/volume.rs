//! Power loss on a psync volume: the workload runs anew for each cut, up to the operation of the volume at which the power fails.
//!
//! Invariants:
//! 1. What is not synced then is lost, torn and reordered by the seed of the image.

use super::{Found, Ran, Recover, States, Step, verify, verify_and_go_on, workload};
use crate::{Index, Result};
use psync::{Fault, Filter, Repeat, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use std::sync::Arc;

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

/// Runs the workload; the power fails at the `nth` device operation that `filter` matches after the tree was created (0:
/// never).
fn run<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    seed: u64,
    (filter, nth): (&Filter, u64),
    steps: &[Step],
) -> Result<(Simulated, Ran)> {
    let volume = Simulated::new(seed).with_alignment(128);
    let mut tree = T::create(Arc::new(volume.clone()), options)?;
    if nth > 0 {
        volume.fail_nth(filter.clone(), nth, Fault::PowerOff, Repeat::Once);
    }
    let mut ran = Ran::default();
    for step in steps {
        if step.apply(&mut tree).is_err() {
            ran.failed = true;
            break;
        }
        ran.returned(*step, tree.contract());
    }
    Ok((volume, ran))
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
        let (volume, ran) = run::<T>(options, seed, (&cuts.filter, nth), steps)?;
        for image_seed in 0..cuts.images {
            let story = format!("workload {seed}, power off at operation {nth}, image {image_seed}");
            let image = volume.power_loss(nth * cuts.images + image_seed);
            count += 1;
            let goes_on = cuts.go_on > 0 && count % cuts.go_on == 0;
            see(find(recover, (&image, &ran), &states, (goes_on, &story)));
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
    let any = Filter::any();
    let mut count = 0;
    for seed in seeds {
        let steps = workload(seed, length, keys);
        let states = States::of(&steps);
        let operations = run::<T>(options, seed, (&any, 0), &steps)?.0.operations();
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..10 {
            let nth = rng.random_range(1..=operations);
            let (volume, ran) = run::<T>(options, seed, (&any, nth), &steps)?;
            let story = format!("CRASH_SEED={seed}, power off at operation {nth}");
            let image = volume.power_loss(rng.random());
            count += 1;
            see(find(recover, (&image, &ran), &states, (count % 10 == 0, &story)));
        }
    }
    Ok(())
}
