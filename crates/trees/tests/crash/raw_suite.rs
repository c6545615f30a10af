//! The crash suite for trees on raw flash: the power fails in the midst of a flash operation, pages in flight are torn, blocks
//! are half erased, and what the tree recovers must be what its contract promises.

use crate::raw_states::{Ran, Step, apply, go_on_over, verify, workload};
use flash::{PowerCut, RawFlash};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use trees::{Contract, Index};

/// Makes flash; all that chance decides in it follows from the seed.
pub type Fresh<'a> = &'a dyn Fn(u64) -> RawFlash;

/// Runs a workload on new flash, once, and shows what power loss would have left at each program and erase of it: the image,
/// how far the workload was, and the number of the change.
fn cuts<T: Index<Ground = Arc<RawFlash>>>(
    fresh: Fresh<'_>,
    options: &T::Options,
    seed: u64,
    steps: &[Step],
    show: &mut dyn FnMut(PowerCut, &Ran, u64),
) {
    let flash = Arc::new(fresh(seed));
    let mut tree = T::create(Arc::clone(&flash), options).expect("created");
    flash.keep_power_cuts();
    let mut ran = Ran { done: 0, promised: 0, failed: true };
    let mut nth = 0;
    for step in steps {
        apply(&mut tree, *step).expect("done");
        for cut in flash.take_power_cuts() {
            nth += 1;
            show(cut, &ran, nth);
        }
        ran.done += 1;
        if matches!(step, Step::Flush) || tree.contract() == Contract::EachOperation {
            ran.promised = ran.done;
        }
    }
}

/// Recovers what `image_seed` leaves of the flash, and now and then goes on with it.
fn recover<T: Index<Ground = Arc<RawFlash>>>(
    options: &T::Options,
    (flash, ran): (&RawFlash, &Ran),
    image_seed: u64,
    steps: &[Step],
    (goes_on, story): (bool, &str),
) {
    let image = Arc::new(flash.power_loss(image_seed));
    let mut tree = verify::<T>(options, Arc::clone(&image), ran, steps, story);
    if goes_on {
        go_on_over(&mut tree, options, &|seed| Arc::new(image.power_loss(seed)), story);
    }
}

/// Cuts the power at every program and erase of a workload, and right before every fourth (reads leave nothing behind); every
/// tenth image goes on after the recovery, and loses power once more. While the recovery of every tenth other is under way, the
/// power goes again. Returns how many images there were.
pub fn at_every_change<T: Index<Ground = Arc<RawFlash>>>(
    fresh: Fresh<'_>,
    options: &T::Options,
    seed: u64,
    steps: &[Step],
) -> u64 {
    let mut count = 0;
    cuts::<T>(fresh, options, seed, steps, &mut |cut, ran, nth| {
        let story = format!("workload {seed}, power off at change {nth}");
        recover::<T>(options, (&cut.within, ran), nth, steps, (nth % 10 == 0, &story));
        count += 1;
        if nth % 4 == 0 {
            let story = format!("workload {seed}, power off before change {nth}");
            recover::<T>(options, (&cut.before, ran), nth, steps, (false, &story));
            count += 1;
        }
        if nth % 10 == 5 {
            count += recover_interrupted::<T>(options, (&cut.within, ran), nth, steps, &story);
        }
    });
    count
}

/// Lets the power go at some operation of the recovery, and recovers again: three times with other seeds.
fn recover_interrupted<T: Index<Ground = Arc<RawFlash>>>(
    options: &T::Options,
    (flash, ran): (&RawFlash, &Ran),
    seed: u64,
    steps: &[Step],
    story: &str,
) -> u64 {
    let mut rng = StdRng::seed_from_u64(seed);
    for round in 0..3 {
        let image = Arc::new(flash.power_loss(rng.random()));
        // Most recoveries change nothing, or little: then the power goes after them.
        image.cut_power_at_change(rng.random_range(1..20));
        drop(T::recover(Arc::clone(&image), options));
        let story = format!("{story}, recovery {round} cut");
        recover::<T>(options, (&image, ran), rng.random(), steps, (false, &story));
    }
    3
}

/// Cuts the power at programs and erases that chance picks, or right before them: about `points` in each of the workloads
/// `seeds`.
pub fn at_random_points<T: Index<Ground = Arc<RawFlash>>>(
    fresh: Fresh<'_>,
    options: &T::Options,
    seeds: std::ops::Range<u64>,
    (length, keys): (usize, u64),
    points: usize,
) -> u64 {
    let only = std::env::var("CRASH_SEED").ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = only.map_or(seeds, |seed| seed..seed + 1);
    let mut count = 0;
    for seed in seeds {
        let steps = workload(seed, length, keys);
        let mut rng = StdRng::seed_from_u64(seed);
        // About as many changes as steps: chosen as they come, so that images need not be kept.
        let mut changes = 0;
        cuts::<T>(fresh, options, seed, &steps, &mut |_, _, nth| changes = nth);
        let mut left = points;
        cuts::<T>(fresh, options, seed, &steps, &mut |cut, ran, nth| {
            let behind = changes - nth + 1;
            while left > 0 && rng.random_range(0..behind) < left as u64 {
                left -= 1;
                let image = if rng.random() { &cut.within } else { &cut.before };
                let story = format!("CRASH_SEED={seed}, power off at change {nth}");
                count += 1;
                recover::<T>(options, (image, ran), rng.random(), &steps, (count % 10 == 0, &story));
                if rng.random_bool(0.8) {
                    break;
                }
            }
        });
    }
    count
}

/// A bulk load that loses power is found whole, or is refused, or found empty; never in part. Returns how many were not found
/// whole.
pub fn bulk_loads_are_whole_or_nothing<T: Index<Ground = Arc<RawFlash>>>(
    fresh: Fresh<'_>,
    options: &T::Options,
    count: u64,
) -> u64 {
    let records: Vec<_> = (0..count).map(|key| (3 * key, key)).collect();
    let mut nothing = 0;
    for nth in 1.. {
        let flash = Arc::new(fresh(nth));
        flash.cut_power_at_change(nth);
        let loaded = T::bulk_load(Arc::clone(&flash), options, 0.7, &mut records.iter().copied()).is_ok();
        let story = format!("power off at change {nth} of a bulk load");
        match T::recover(Arc::new(flash.power_loss(nth)), options) {
            Ok(tree) => {
                tree.check().unwrap_or_else(|error| panic!("{story}: {error}"));
                let found = tree.range(0..u64::MAX).expect("scanned");
                assert!(
                    found == records || (found.is_empty() && !loaded),
                    "{story}: {} records",
                    found.len()
                );
                nothing += u64::from(found.is_empty());
            }
            Err(error) => {
                assert!(!loaded, "{story}: {error}");
                nothing += 1;
            }
        }
        if loaded {
            break;
        }
    }
    nothing
}
