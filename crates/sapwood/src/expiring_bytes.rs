//! How many bytes of records expire by when, for the records that were written to a segment: a histogram of few steps.
//!
//! ```text
//! exact      1 1 2 . . . 5 . . 9        bytes, by the time at which they expire
//! kept       . . 4 . . . . . .14        the earlier ones count as expiring later, where that says least wrong
//! ```
//! Invariants:
//! 1. Times ascend; there are at most [`STEPS`].
//! 2. Nothing counts as expired before it is.

use std::sync::Arc;

/// Steps of a histogram (count): enough that one whose times are spread evenly is wrong by an eighth, and few bytes in the
/// manifest.
pub(crate) const STEPS: usize = 8;

/// See the module. A clone shares the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpiringBytes {
    /// Times in milliseconds since 1970, and bytes.
    steps: Option<Arc<[(u64, u64)]>>,
}

impl ExpiringBytes {
    /// What the manifest has of it; `None` if that is none.
    pub fn of_steps(steps: &[(u64, u64)]) -> Option<Self> {
        let is_sound = steps.len() <= STEPS && steps.is_sorted_by(|a, b| a.0 < b.0);
        is_sound.then(|| Self { steps: (!steps.is_empty()).then(|| steps.into()) })
    }

    pub fn steps(&self) -> &[(u64, u64)] {
        self.steps.as_deref().unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_none()
    }

    /// Bytes that have expired by then.
    pub fn expired(&self, now: u64) -> u64 {
        self.steps()
            .iter()
            .take_while(|(time, _)| *time <= now)
            .fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Without what has expired by then.
    pub fn without_expired(&self, now: u64) -> Self {
        let left = self.steps().partition_point(|(time, _)| *time <= now);
        Self::of_steps(&self.steps()[left..]).unwrap_or_default()
    }

    /// With more bytes, by the times at which they expire.
    pub fn with(&self, more: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut steps = self.steps().to_vec();
        for (time, bytes) in more {
            match steps.binary_search_by_key(&time, |(time, _)| *time) {
                Ok(at) => steps[at].1 = steps[at].1.saturating_add(bytes),
                Err(at) => steps.insert(at, (time, bytes)),
            }
            if steps.len() > STEPS {
                join_nearest(&mut steps);
            }
        }
        Self::of_steps(&steps).unwrap_or_default()
    }
}

/// Joins two steps that are next to each other: those whose bytes have to wait least in all.
fn join_nearest(steps: &mut Vec<(u64, u64)>) {
    let wait = |pair: &[(u64, u64)]| u128::from(pair[0].1) * u128::from(pair[1].0 - pair[0].0);
    let least = steps.windows(2).enumerate().min_by_key(|(_, pair)| wait(pair));
    if let Some((at, _)) = least {
        let (_, bytes) = steps.remove(at);
        steps[at].1 = steps[at].1.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_counts_too_early_and_all_counts_in_the_end(
            added in prop::collection::vec((1u64..1000, 1u64..100), 0..200),
        ) {
            let kept = ExpiringBytes::default().with(added.iter().copied());
            prop_assert!(kept.steps().len() <= STEPS);
            prop_assert_eq!(ExpiringBytes::of_steps(kept.steps()), Some(kept.clone()));
            for now in (0..1100).step_by(7) {
                let exact: u64 = added.iter().filter(|(time, _)| *time <= now).map(|(_, bytes)| bytes).sum();
                prop_assert!(kept.expired(now) <= exact);
                prop_assert_eq!(kept.without_expired(now).expired(u64::MAX), kept.expired(u64::MAX) - kept.expired(now));
            }
            let all: u64 = added.iter().map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(kept.expired(1000), all);
        }

        #[test]
        fn it_is_near_where_times_are_spread_evenly(step in 1u64..50, seed in 0u64..100) {
            // In any order.
            let times = (0..1000u64).map(|number| (number * 7919 + seed) % 1000 * step + 1);
            let kept = ExpiringBytes::default().with(times.map(|time| (time, 10)));
            for part in 1..=4 {
                let expired = kept.expired(1000 * step * part / 4);
                let exact = 10_000 * part / 4;
                prop_assert!(expired <= exact && expired + 2500 >= exact, "{expired} of {exact}");
            }
        }
    }

    #[test]
    fn one_that_lives_long_does_not_hide_the_others() {
        let short = (0..1000u64).map(|number| (1000 + number, 10));
        let kept = ExpiringBytes::default().with(short.chain([(1 << 40, 10)]));
        assert_eq!(kept.expired(2000), 10_000);
        assert_eq!(kept.without_expired(2000).steps(), [(1 << 40, 10)]);
    }

    #[test]
    fn what_is_not_in_order_is_refused() {
        assert_eq!(ExpiringBytes::of_steps(&[(2, 1), (2, 1)]), None);
        assert_eq!(ExpiringBytes::of_steps(&[(1, 1); STEPS + 1]), None);
        assert!(ExpiringBytes::of_steps(&[]).is_some_and(|none| none.is_empty()));
    }
}
