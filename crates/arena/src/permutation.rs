//! A random order of 0..n that takes no memory: a Feistel network over the next even number of bits, walked until it is back
//! within n (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, section 4).
//!
//! Invariant: `at` is a bijection of 0..n.

use crate::records::mix;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    count: u64,
    half: u32,
    seed: u64,
}

impl Permutation {
    /// Of 0..`count`; each seed gives another.
    pub fn new(count: u64, seed: u64) -> Self {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        Self { count, half: bits.div_ceil(2).max(1), seed }
    }

    /// The number at place `place`, which must be below the count.
    ///
    /// # Panics
    /// If it is not.
    pub fn at(&self, place: u64) -> u64 {
        assert!(place < self.count, "place {place} of {}", self.count);
        let mask = (1u64 << self.half) - 1;
        let mut number = place;
        loop {
            let (mut left, mut right) = (number >> self.half, number & mask);
            for round in 0..4 {
                let next = left ^ (mix(right ^ self.seed.wrapping_add(round << 56)) & mask);
                (left, right) = (right, next);
            }
            number = left << self.half | right;
            if number < self.count {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once_and_not_in_order() {
        for count in [1, 2, 3, 100, 1024, 5000] {
            let permutation = Permutation::new(count, 7);
            let numbers: Vec<u64> = (0..count).map(|place| permutation.at(place)).collect();
            let mut sorted = numbers.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..count).collect::<Vec<_>>(), "{count}");
            if count >= 100 {
                let rising = numbers.windows(2).filter(|pair| pair[1] > pair[0]).count() as f64;
                assert!((0.4..0.6).contains(&(rising / count as f64)), "{count}: {rising}");
            }
        }
    }
}
