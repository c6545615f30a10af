//! Numbers by Zipf's law.

use rand::Rng;
use rand::rngs::StdRng;

/// Ranks by Zipf's law with the exponent 0.99 (Gray et al., SIGMOD 1994, as in YCSB), spread over all records.
#[derive(Clone, Copy)]
pub struct Zipfian {
    records: u64,
    zeta: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Zipfian {
    pub fn new(records: u64) -> Self {
        let zeta: f64 = (1..=records).map(|rank| (rank as f64).powf(-THETA)).sum();
        let eta =
            (1.0 - (2.0 / records as f64).powf(1.0 - THETA)) / (1.0 - (1.0 + 0.5f64.powf(THETA)) / zeta);
        Self { records, zeta, eta }
    }

    /// Over how many.
    pub fn records(&self) -> u64 {
        self.records
    }

    pub fn number(&self, rng: &mut StdRng) -> u64 {
        let (at, n) = (rng.random::<f64>(), self.records as f64);
        let rank = match at * self.zeta {
            first if first < 1.0 => 0,
            second if second < 1.0 + 0.5f64.powf(THETA) => 1,
            _ => (n * (self.eta * at - self.eta + 1.0).powf(1.0 / (1.0 - THETA))) as u64,
        };
        // The same rank is always the same record.
        let spread = (rank + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (spread ^ (spread >> 32)) % self.records
    }
}
