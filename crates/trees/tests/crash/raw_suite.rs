//! The crash suite for trees on raw flash, [`trees::crash_matrix::raw_flash`], with a panic where anything is found that is not
//! right.

use crate::suite::asked;
use flash::RawFlash;
use std::ops::Range;
use std::sync::Arc;
use trees::Index;
use trees::crash_matrix::raw_flash::{self, Fresh};
use trees::crash_matrix::{Found, Step};

/// Cuts the power at every program and erase of a workload, and does what [`raw_flash::at_every`] does there. Returns how many
/// images there were.
pub fn at_every_change<T: Index<Ground = Arc<RawFlash>>>(
    fresh: Fresh<'_>,
    options: &T::Options,
    seed: u64,
    steps: &[Step],
) -> u64 {
    let mut count = 0;
    let recover = |flash: Arc<RawFlash>| T::recover(flash, options);
    raw_flash::at_every::<T>((fresh, options), &recover, seed, steps, 1, &mut |found: Found| {
        assert_eq!(found.complaint(), None);
        count += 1;
    })
    .expect("nothing fails before the power does");
    count
}

/// Cuts the power at programs and erases that chance picks, or right before them: `points` in each of the workloads `seeds`.
pub fn at_random_points<T: Index<Ground = Arc<RawFlash>>>(
    fresh: Fresh<'_>,
    options: &T::Options,
    seeds: Range<u64>,
    (length, keys): (usize, u64),
    points: usize,
) -> u64 {
    let mut count = 0;
    let recover = |flash: Arc<RawFlash>| T::recover(flash, options);
    let each = (length, keys, points);
    raw_flash::at_random_points::<T>((fresh, options), &recover, asked(seeds), each, &mut |found: Found| {
        assert_eq!(found.complaint(), None);
        count += 1;
    })
    .expect("nothing fails before the power does");
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
