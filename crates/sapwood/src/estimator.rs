//! What is expected next, from what was seen: the one smoothing rule of the store.
//!
//! ```text
//! see(x, w)    mean ← (mean × v + x × w) / (v + w)      v: the weight of what was seen before, at most REMEMBERED − w
//! ```
//! The newest observation counts in full, and older ones only as far as they fit into `REMEMBERED` beside it. So the mean
//! follows a workload that changes, and a single strange observation moves it by a part. With a weight of 1 each, and two
//! remembered, it goes half of the way to each observation.
//!
//! These have other rules, because they are no means of observations: the slack of the write throttle and the partition of
//! the cache (controllers, which move by a step until the effect is right), what a flush left undone (a debt, which the next
//! one pays), the windowed minimum and the cleansing cursor's bounds (extremes of two spans: a mean would promise too much), a flush's speed, and how much
//! of its queue came to the trees (the newest flush alone, over all of which each is a mean),
//! the lengths of scans (a distribution, whose counts are halved), read cost (accounts, which are charged and discharged), and
//! the intervals between looks (a backoff).
//!
//! Invariant: the mean lies between the least and the greatest observation.

/// An estimate from observations that weigh at most `REMEMBERED` together with the newest. See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimator<const REMEMBERED: u32> {
    mean: f64,
    /// The weight of what was seen; zero if nothing was.
    weight: f64,
}

impl<const REMEMBERED: u32> Estimator<REMEMBERED> {
    /// Begins with an assumption, which counts as one observation.
    pub fn assuming(value: u64) -> Self {
        Self { mean: value as f64, weight: 1.0 }
    }

    /// Sees a value.
    pub fn see(&mut self, value: u64) {
        self.see_mean(value as f64, 1);
    }

    /// Sees the mean of `weight` values.
    pub fn see_mean(&mut self, mean: f64, weight: u64) {
        if weight == 0 {
            return;
        }
        let weight = weight as f64;
        let before = self.weight.min((f64::from(REMEMBERED) - weight).max(0.0));
        self.weight = before + weight;
        // Written so that rounding cannot carry the mean beyond either.
        self.mean += (mean - self.mean) * (weight / self.weight);
    }

    /// Takes no more than this to be possible.
    pub fn limit(&mut self, most: u64) {
        self.mean = self.mean.min(most as f64);
    }

    /// The estimate. `None` if what was seen weighs less than `enough`, or nothing was seen.
    pub fn get(&self, enough: u32) -> Option<u64> {
        (self.weight > 0.0 && self.weight >= f64::from(enough)).then_some(self.mean.round() as u64)
    }

    /// The estimate, or zero if nothing was seen.
    pub fn or_zero(&self) -> u64 {
        self.get(0).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen<const REMEMBERED: u32>(values: &[u64]) -> u64 {
        let mut estimator = Estimator::<REMEMBERED>::default();
        values.iter().for_each(|value| estimator.see(*value));
        estimator.or_zero()
    }

    #[test]
    fn the_newest_counts_in_full_and_the_others_beside_it() {
        assert_eq!(seen::<2>(&[]), 0);
        assert_eq!(seen::<2>(&[100]), 100, "nothing was known before");
        assert_eq!(seen::<2>(&[100, 200]), 150);
        assert_eq!(seen::<2>(&[100, 200, 50]), 100);
        assert_eq!(seen::<1>(&[100, 200, 50]), 50);
        assert_eq!(seen::<4>(&[100, 200, 300, 400]), 250);
        assert_eq!(seen::<4>(&[100, 200, 300, 400, 650]), 350, "three of the mean before, and the newest");
        let mut assumed = Estimator::<2>::assuming(0);
        assumed.see(100);
        assert_eq!(assumed.or_zero(), 50);
    }

    #[test]
    fn heavy_observations_leave_no_room_for_older_ones() {
        let mut estimator = Estimator::<16>::default();
        estimator.see_mean(100.0, 2);
        assert_eq!((estimator.get(4), estimator.get(2)), (None, Some(100)), "two are not enough");
        estimator.see_mean(0.0, 2);
        assert_eq!(estimator.get(4), Some(50));
        estimator.see_mean(10.0, 40);
        assert_eq!(estimator.get(4), Some(10));
        estimator.see_mean(90.0, 4);
        assert_eq!(estimator.get(4), Some(30), "twelve of before");
        estimator.see_mean(7.0, 0);
        assert_eq!(estimator.get(4), Some(30));
        estimator.limit(20);
        assert_eq!(estimator.get(4), Some(20));
    }

    proptest! {
        #[test]
        fn it_lies_between_the_least_and_the_greatest(values in prop::collection::vec((0u64..1 << 50, 1u64..100), 1..50)) {
            let mut estimator = Estimator::<16>::default();
            values.iter().for_each(|(value, weight)| estimator.see_mean(*value as f64, *weight));
            let all = values.iter().map(|(value, _)| *value);
            let now = estimator.or_zero();
            prop_assert!(all.clone().min() <= Some(now) && Some(now) <= all.max(), "{now} of {values:?}");
        }
    }
}
