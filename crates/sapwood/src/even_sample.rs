//! A sample of what passes by: every n-th item, where n doubles whenever the sample is full.
//!
//! Invariant: at most `SIZE` items, spread evenly over all that were seen. Until `SIZE` were seen it has them all.

/// See the module.
#[derive(Debug)]
pub(crate) struct EvenSample<T, const SIZE: usize> {
    /// Every so many items one is kept: a power of two.
    every: u64,
    seen: u64,
    kept: Vec<T>,
}

impl<T, const SIZE: usize> Default for EvenSample<T, SIZE> {
    fn default() -> Self {
        Self { every: 1, seen: 0, kept: Vec::new() }
    }
}

impl<T, const SIZE: usize> EvenSample<T, SIZE> {
    /// Sees an item, and may keep it.
    #[inline]
    pub fn see(&mut self, item: impl FnOnce() -> T) {
        self.seen += 1;
        if self.seen & (self.every - 1) == 0 {
            self.keep(item);
        }
    }

    fn keep(&mut self, item: impl FnOnce() -> T) {
        if self.kept.len() == SIZE {
            let mut number = 0;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            self.every *= 2;
            if self.seen & (self.every - 1) != 0 {
                return;
            }
        }
        self.kept.push(item());
    }

    /// The kept items, in the order in which they were seen.
    pub fn kept(&self) -> &[T] {
        &self.kept
    }

    /// How many seen items each kept one stands for.
    pub fn weight(&self) -> f64 {
        self.seen as f64 / self.kept.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_spread_over_all_that_was_seen_and_stays_small() {
        const SIZE: usize = 64;
        for count in [1u64, 15, 16, 64, 65, 127, 128, 129, 1000, 100_000] {
            let mut sample = EvenSample::<_, SIZE>::default();
            (0..count).for_each(|number| sample.see(|| number));
            let (kept, every) = (sample.kept(), sample.every);
            assert!(kept.windows(2).all(|pair| pair[1] - pair[0] == every), "{count}: {kept:?}");
            assert!(kept[0] == every - 1 && kept[kept.len() - 1] + every >= count, "{count}: {kept:?}");
            assert!(
                (SIZE / 2..=SIZE).contains(&kept.len()) || kept.len() as u64 == count,
                "{count}: {kept:?}"
            );
            assert!((sample.weight() * kept.len() as f64 - count as f64).abs() < 1e-6);
        }
    }
}
