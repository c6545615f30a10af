//! Power loss on raw flash: it comes in the midst of a program or an erase, pages in flight are torn, blocks are half erased. The
//! workload runs once; the flash keeps an image of each of its changes.
//!
//! Invariants:
//! 1. Only programs and erases are cut: reads leave nothing behind.

use super::{Found, Ran, Recover, States, Step, verify, verify_and_go_on, workload};
use crate::{Index, Result};
use flash::{PowerCut, RawFlash};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use std::sync::Arc;

/// Makes flash; all that chance decides in it follows from the seed.
pub type Fresh<'a> = &'a dyn Fn(u64) -> RawFlash;

/// Runs a workload on new flash, once, and shows what power loss would have left at each program and erase of it: the image,
/// how far the workload was, and the number of the change.
fn each_cut<T: Index<Ground = Arc<RawFlash>>>(
    fresh: Fresh<'_>,
    options: &T::Options,
    seed: u64,
    steps: &[Step],
    show: &mut dyn FnMut(PowerCut, &Ran, u64),
) -> Result<()> {
    let flash = Arc::new(fresh(seed));
    let mut tree = T::create(Arc::clone(&flash), options)?;
    flash.keep_power_cuts();
    let mut ran = Ran { failed: true, ..Ran::default() };
    let mut nth = 0;
    for step in steps {
        step.apply(&mut tree)?;
        for cut in flash.take_power_cuts() {
            nth += 1;
            show(cut, &ran, nth);
        }
        ran.returned(*step, tree.contract());
    }
    Ok(())
}

/// How many changes of the flash a workload takes.
fn changes<T: Index<Ground = Arc<RawFlash>>>(
    fresh: Fresh<'_>,
    options: &T::Options,
    seed: u64,
    steps: &[Step],
) -> Result<u64> {
    let flash = Arc::new(fresh(seed));
    let mut tree = T::create(Arc::clone(&flash), options)?;
    let before = flash.counters();
    steps.iter().try_for_each(|step| step.apply(&mut tree))?;
    let after = flash.counters();
    Ok(after.programs - before.programs + after.erases - before.erases)
}

/// Recovers what `image_seed` leaves of the flash, and goes on with it if asked to.
fn find<T: Index<Ground = Arc<RawFlash>>>(
    recover: Recover<'_, T>,
    (flash, ran): (&RawFlash, &Ran),
    image_seed: u64,
    states: &States,
    (goes_on, story): (bool, &str),
) -> Found {
    let image = Arc::new(flash.power_loss(image_seed));
    if !goes_on {
        return verify(recover, image, ran, states, story).0;
    }
    let lose_power = |round| Arc::new(image.power_loss(round));
    verify_and_go_on(recover, (Arc::clone(&image), &lose_power), ran, states, story)
}

/// Cuts the power at every `stride`-th program and erase of a workload, and shows what is found; of the cuts, at every fourth
/// also right before the change; every tenth goes on after the recovery, and loses power once more; while the recovery of every
/// tenth other is under way, the power goes again, three times with other seeds.
///
/// # Errors
/// A tree that cannot be created, or that fails before the power does.
///
/// # Panics
/// If `stride` is 0.
pub fn at_every<T: Index<Ground = Arc<RawFlash>>>(
    (fresh, options): (Fresh<'_>, &T::Options),
    recover: Recover<'_, T>,
    seed: u64,
    steps: &[Step],
    stride: u64,
    see: &mut dyn FnMut(Found),
) -> Result<()> {
    let states = States::of(steps);
    let mut count = 0;
    each_cut::<T>(fresh, options, seed, steps, &mut |cut, ran, nth| {
        if nth % stride != 0 {
            return;
        }
        count += 1;
        let story = format!("workload {seed}, power off at change {nth}");
        see(find(recover, (&cut.within, ran), nth, &states, (count % 10 == 0, &story)));
        if count % 4 == 0 {
            let story = format!("workload {seed}, power off before change {nth}");
            see(find(recover, (&cut.before, ran), nth, &states, (false, &story)));
        }
        if count % 10 == 5 {
            interrupt(recover, (&cut.within, ran), nth, &states, &story, see);
        }
    })
}

/// Lets the power go at some operation of the recovery, and recovers again: three times with other seeds.
fn interrupt<T: Index<Ground = Arc<RawFlash>>>(
    recover: Recover<'_, T>,
    (flash, ran): (&RawFlash, &Ran),
    seed: u64,
    states: &States,
    story: &str,
    see: &mut dyn FnMut(Found),
) {
    let mut rng = StdRng::seed_from_u64(seed);
    for round in 0..3 {
        let image = Arc::new(flash.power_loss(rng.random()));
        // Most recoveries change nothing, or little: then the power goes after them.
        image.cut_power_at_change(rng.random_range(1..20));
        drop(recover(Arc::clone(&image)));
        let story = format!("{story}, recovery {round} cut");
        see(find(recover, (&image, ran), rng.random(), states, (false, &story)));
    }
}

/// Cuts the power at programs and erases that chance picks, or right before them: `points` in each of the workloads `seeds`, each
/// of `length` operations on keys below `keys`. Every tenth image goes on.
///
/// # Errors
/// A tree that cannot be created, or that fails before the power does.
pub fn at_random_points<T: Index<Ground = Arc<RawFlash>>>(
    (fresh, options): (Fresh<'_>, &T::Options),
    recover: Recover<'_, T>,
    seeds: Range<u64>,
    (length, keys, points): (usize, u64, usize),
    see: &mut dyn FnMut(Found),
) -> Result<()> {
    let mut count = 0;
    for seed in seeds {
        let steps = workload(seed, length, keys);
        let states = States::of(&steps);
        let mut rng = StdRng::seed_from_u64(seed);
        // Chosen as they come, so that images need not be kept.
        let changes = changes::<T>(fresh, options, seed, &steps)?;
        let mut left = points;
        each_cut::<T>(fresh, options, seed, &steps, &mut |cut, ran, nth| {
            let behind = changes.saturating_sub(nth) + 1;
            while left > 0 && rng.random_range(0..behind) < left as u64 {
                left -= 1;
                let image = if rng.random() { &cut.within } else { &cut.before };
                let story = format!("CRASH_SEED={seed}, power off at change {nth}");
                count += 1;
                see(find(recover, (image, ran), rng.random(), &states, (count % 10 == 0, &story)));
                if rng.random_bool(0.8) {
                    break;
                }
            }
        })?;
    }
    Ok(())
}
