//! The common crash suite (experiment E39), [`trees::crash_matrix`], with a panic where anything is found that is not right.

use psync::{Fault, Filter, Repeat, Simulated, Volume};
use std::ops::Range;
use std::sync::Arc;
use trees::Index;
use trees::crash_matrix::Found;
use trees::crash_matrix::volume::{self, Cuts};
pub use trees::crash_matrix::{Step, workload};

fn at_every<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    seed: u64,
    steps: &[Step],
    cuts: &Cuts,
) -> u64 {
    let mut count = 0;
    let recover = |volume: Arc<dyn Volume>| T::recover(volume, options);
    volume::at_every::<T>(options, &recover, seed, steps, cuts, &mut |found| {
        assert_eq!(found.complaint(), None);
        count += 1;
    })
    .expect("created");
    count
}

/// Cuts the power at every device operation of a workload, `images` images each; every tenth image goes on after the
/// recovery, and loses power once more. Returns how many images there were.
pub fn at_every_operation<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    seed: u64,
    steps: &[Step],
    images: u64,
) -> u64 {
    at_every::<T>(options, seed, steps, &Cuts::all(images))
}

/// As [`at_every_operation`], but for reads: those leave nothing behind that the next change does not.
pub fn at_every_change<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    seed: u64,
    steps: &[Step],
    images: u64,
) -> u64 {
    at_every::<T>(options, seed, steps, &Cuts::changes(images))
}

/// The seed that was asked for, or all.
pub fn asked(seeds: Range<u64>) -> Range<u64> {
    let only = std::env::var("CRASH_SEED").ok().map(|text| text.parse::<u64>().expect("a number"));
    only.map_or(seeds, |seed| seed..seed + 1)
}

/// Cuts the power at ten operations of each of many workloads.
pub fn at_random_points<T: Index<Ground = Arc<dyn Volume>>>(
    options: &T::Options,
    seeds: Range<u64>,
    length: usize,
    keys: u64,
) -> u64 {
    let mut count = 0;
    let recover = |volume: Arc<dyn Volume>| T::recover(volume, options);
    volume::at_random_points::<T>(options, &recover, asked(seeds), (length, keys), &mut |found: Found| {
        assert_eq!(found.complaint(), None);
        count += 1;
    })
    .expect("created");
    count
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
