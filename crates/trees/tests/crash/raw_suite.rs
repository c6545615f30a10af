//! The crash suite for trees on raw flash: the power fails in the midst of a flash operation, pages in flight are torn, blocks
//! are half erased, and what the tree recovers must be what its contract promises.

use crate::suite::{Ran, Step, go_on_over, play, verify, workload};
use flash::RawFlash;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use trees::Index;

/// Makes flash; all that chance decides in it follows from the seed.
pub type Fresh<'a> = &'a dyn Fn(u64) -> RawFlash;

/// When the power goes.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Never,
    /// In the midst of the nth read, program or erase after the tree was created.
    Operation(u64),
    /// In the midst of the nth program or erase.
    Change(u64),
}

/// Runs a workload on new flash.
fn run<T: Index<Ground = Arc<RawFlash>>>(
    fresh: Fresh<'_>,
    options: &T::Options,
    seed: u64,
    cut: Cut,
    steps: &[Step],
) -> (Arc<RawFlash>, Ran) {
    let flash = Arc::new(fresh(seed));
    let mut tree = T::create(Arc::clone(&flash), options).expect("created");
    match cut {
        Cut::Never => {}
        Cut::Operation(nth) => flash.cut_power_at(nth),
        Cut::Change(nth) => flash.cut_power_at_change(nth),
    }
    let ran = play(&mut tree, steps);
    (flash, ran)
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

/// Cuts the power at every program and erase of a workload; every tenth image goes on after the recovery, and loses power once
/// more. While the recovery of every tenth other is under way, the power goes again. Reads leave nothing behind: they are left
/// to [`at_random_points`]. Returns how many images there were.
pub fn at_every_change<T: Index<Ground = Arc<RawFlash>>>(
    fresh: Fresh<'_>,
    options: &T::Options,
    seed: u64,
    steps: &[Step],
) -> u64 {
    let mut count = 0;
    for nth in 1.. {
        let (flash, ran) = run::<T>(fresh, options, seed, Cut::Change(nth), steps);
        let story = format!("workload {seed}, power off at change {nth}");
        recover::<T>(options, (&flash, &ran), nth, steps, (nth % 10 == 0, &story));
        count += 1;
        if nth % 10 == 5 {
            count += recover_interrupted::<T>(options, (&flash, &ran), nth, steps, &story);
        }
        if !ran.failed {
            return count;
        }
    }
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

/// Cuts the power at operations that chance picks, reads included, `points` in each of the workloads `seeds`.
pub fn at_random_points<T: Index<Ground = Arc<RawFlash>>>(
    fresh: Fresh<'_>,
    options: &T::Options,
    seeds: std::ops::Range<u64>,
    (length, keys): (usize, u64),
    points: u64,
) -> u64 {
    let only = std::env::var("CRASH_SEED").ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = only.map_or(seeds, |seed| seed..seed + 1);
    let mut count = 0;
    for seed in seeds {
        let steps = workload(seed, length, keys);
        let operations = |flash: &RawFlash| {
            let done = flash.counters();
            done.reads + done.programs + done.erases
        };
        let created = Arc::new(fresh(seed));
        drop(T::create(Arc::clone(&created), options).expect("created"));
        let (whole, _) = run::<T>(fresh, options, seed, Cut::Never, &steps);
        let during = operations(&whole) - operations(&created);
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..points {
            let nth = rng.random_range(1..=during);
            let (flash, ran) = run::<T>(fresh, options, seed, Cut::Operation(nth), &steps);
            let story = format!("CRASH_SEED={seed}, power off at operation {nth}");
            count += 1;
            recover::<T>(options, (&flash, &ran), rng.random(), &steps, (count % 10 == 0, &story));
        }
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
