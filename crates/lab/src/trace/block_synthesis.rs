//! **Synthetic** block traces, which stand for the four that the CB-tree's authors replayed (table 5 of their paper), where the
//! originals are not at hand. Writes become insertions, reads searches; keys are pages of a 32-bit space.
//!
//! - Exactly as many writes and reads as published, divided by a scale, in random order.
//! - A share *s* of the writes comes in ascending runs of geometric length, mean 64. A run begins at the beginning of an extent
//!   of 1024 pages; extents are drawn by Zipf's law, exponent 0.9. The other writes are single pages, by Zipf's law, exponent
//!   0.99. The ranks of both are scattered over the space.
//! - A read goes, with probability 0.7, to one of the last 65,536 pages written, the latest most often (Zipf, exponent 0.99,
//!   over how long ago); else to any page.
//!
//! *s* decides which tree wins and is not published, so whoever uses these shows the whole sweep of it.
//!
//! Invariant: memory is bounded by what reads go back to.

use super::{Op, Step};
use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};

/// Which published trace a synthetic one stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Like {
    /// MSR Cambridge: 1,877,535 writes, 1,625,346 reads, s = 0.85
    Msr,
    /// Exchange: 3,921,312 writes, 1,789,471 reads, s = 0.6
    Exchange,
    /// TPC-C: 1,263,387 writes, 1,836,124 reads, s = 0.85
    Tpcc,
    /// TPC-E: 123,562 writes, 1,313,596 reads, s = 0.3
    Tpce,
}

impl Like {
    /// All of them, in the order of the table.
    pub const ALL: [Like; 4] = [Like::Msr, Like::Exchange, Like::Tpcc, Like::Tpce];

    /// As it is named everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Like::Msr => "synthetic, like MSR Cambridge",
            Like::Exchange => "synthetic, like Exchange",
            Like::Tpcc => "synthetic, like TPC-C",
            Like::Tpce => "synthetic, like TPC-E",
        }
    }

    /// Writes and reads as published.
    pub fn requests(self) -> (u64, u64) {
        match self {
            Like::Msr => (1_877_535, 1_625_346),
            Like::Exchange => (3_921_312, 1_789_471),
            Like::Tpcc => (1_263_387, 1_836_124),
            Like::Tpce => (123_562, 1_313_596),
        }
    }

    /// s, where nothing else is asked for: the paper says that the first and the third are sequential, and that the last is more
    /// random.
    pub fn sequential(self) -> f64 {
        match self {
            Like::Msr | Like::Tpcc => 0.85,
            Like::Exchange => 0.6,
            Like::Tpce => 0.3,
        }
    }
}

/// What a synthetic block trace is made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockOptions {
    /// Which published one it stands for.
    pub like: Like,
    /// s: the share of writes in runs, 0 to 1.
    pub sequential: f64,
    /// The published numbers are divided by this, 1 or more.
    pub divisor: u64,
    /// Whatever is drawn is drawn from this.
    pub seed: u64,
    /// The share of reads that go back to pages written lately, 0 to 1: [`REUSED`] unless the question is what it decides.
    pub reused: f64,
}

const RUN_MEAN: f64 = 64.0;
const EXTENT: u32 = 1024;
const EXTENTS: u32 = u32::MAX / EXTENT + 1;
const EXTENT_ZIPF: f64 = 0.9;
const PAGE_ZIPF: f64 = 0.99;
/// The share of reads that go back to pages written lately: no paper tells it, so it is chosen.
pub const REUSED: f64 = 0.7;
const BACK: usize = 1 << 16;
const BACK_ZIPF: f64 = 0.99;

/// See the module.
#[derive(Clone, Debug)]
pub struct BlockTrace {
    rng: StdRng,
    sequential: f64,
    reused: f64,
    writes: u64,
    reads: u64,
    value: u64,
    /// The next page of the run, and how many are left of it.
    run: (u32, u64),
    extents: Zipf<f64>,
    pages: Zipf<f64>,
    back: Zipf<f64>,
    /// The last pages written, in a ring.
    written: Vec<u32>,
    newest: usize,
}

/// Ranks, scattered over all pages: one to one.
fn scatter(rank: u32) -> u32 {
    let mut page = rank;
    page = (page ^ page >> 16).wrapping_mul(0x85eb_ca6b);
    page = (page ^ page >> 13).wrapping_mul(0xc2b2_ae35);
    page ^ page >> 16
}

impl BlockOptions {
    /// Writes and reads of the trace.
    pub fn requests(&self) -> (u64, u64) {
        let (writes, reads) = self.like.requests();
        let scaled = |count: u64| (count + self.divisor / 2) / self.divisor.max(1);
        (scaled(writes), scaled(reads))
    }

    /// What to say of it wherever it is named.
    pub fn describe(&self) -> String {
        let Self { like, sequential, divisor, seed, reused } = *self;
        let (writes, reads) = self.requests();
        let told = format!(
            "{} block trace: {writes} writes and {reads} reads (1/{divisor} of the published), s = {sequential}, seed {seed}",
            like.name()
        );
        if reused == REUSED { told } else { format!("{told}, {reused} of the reads go back to late writes") }
    }

    /// The operations.
    ///
    /// # Errors
    /// A sentence for people, if an option is out of range.
    pub fn steps(&self) -> Result<BlockTrace, String> {
        if !(0.0..=1.0).contains(&self.sequential) {
            return Err(format!("a share of {} in runs: 0 to 1", self.sequential));
        }
        if !(0.0..=1.0).contains(&self.reused) {
            return Err(format!("a share of {} of the reads that go back: 0 to 1", self.reused));
        }
        if self.divisor == 0 {
            return Err("published numbers divided by 0: by 1 or more".into());
        }
        let zipf = |count: f64, exponent: f64| {
            Zipf::new(count, exponent).map_err(|error| format!("Zipf's law over {count}: {error}"))
        };
        let (writes, reads) = self.requests();
        Ok(BlockTrace {
            rng: StdRng::seed_from_u64(self.seed),
            sequential: self.sequential,
            reused: self.reused,
            writes,
            reads,
            value: 0,
            run: (0, 0),
            extents: zipf(f64::from(EXTENTS), EXTENT_ZIPF)?,
            pages: zipf(f64::from(u32::MAX), PAGE_ZIPF)?,
            back: zipf(BACK as f64, BACK_ZIPF)?,
            written: Vec::new(),
            newest: 0,
        })
    }
}

impl BlockTrace {
    fn page_to_write(&mut self) -> u32 {
        let (next, left) = self.run;
        if left > 0 {
            self.run = (next.wrapping_add(1), left - 1);
            return next;
        }
        // Of this many beginnings a run is one, so that the share of writes in runs is s.
        let of_runs = self.sequential / RUN_MEAN;
        if self.rng.random_bool(of_runs / (of_runs + 1.0 - self.sequential)) {
            let extent = scatter(self.extents.sample(&mut self.rng) as u32 - 1) / EXTENT;
            let first = extent * EXTENT;
            let length = (1.0 - self.rng.random::<f64>()).ln() / (1.0 - 1.0 / RUN_MEAN).ln();
            self.run = (first.wrapping_add(1), length as u64);
            return first;
        }
        scatter(self.pages.sample(&mut self.rng) as u32 - 1)
    }

    fn write(&mut self) -> Step {
        let page = self.page_to_write();
        if self.written.len() < BACK {
            self.newest = self.written.len();
            self.written.push(page);
        } else {
            self.newest = (self.newest + 1) % BACK;
            self.written[self.newest] = page;
        }
        self.value += 1;
        Step::new(0, Op::Insert, u64::from(page), self.value)
    }

    fn read(&mut self) -> Step {
        let page = if !self.written.is_empty() && self.rng.random_bool(self.reused) {
            let back = (self.back.sample(&mut self.rng) as usize - 1) % self.written.len();
            self.written[(self.newest + self.written.len() - back) % self.written.len()]
        } else {
            self.rng.random()
        };
        Step::new(0, Op::Search, u64::from(page), 0)
    }
}

impl Iterator for BlockTrace {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let left = self.writes + self.reads;
        if left == 0 {
            return None;
        }
        // Any order of so many writes and reads is as likely as any other.
        if self.rng.random_range(0..left) < self.writes {
            self.writes -= 1;
            Some(self.write())
        } else {
            self.reads -= 1;
            Some(self.read())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn made(like: Like, sequential: f64, divisor: u64) -> Vec<Step> {
        BlockOptions { like, sequential, divisor, seed: 4, reused: REUSED }.steps().unwrap().collect()
    }

    #[test]
    fn writes_and_reads_are_exactly_as_many_as_published() {
        for like in Like::ALL {
            let steps = made(like, 0.5, 20);
            let writes = steps.iter().filter(|step| step.op == Op::Insert).count() as u64;
            let reads = steps.iter().filter(|step| step.op == Op::Search).count() as u64;
            let (published_writes, published_reads) = like.requests();
            assert_eq!((writes, reads), ((published_writes + 10) / 20, (published_reads + 10) / 20));
        }
    }

    /// The share of writes that are the page after the one written before.
    fn followers(sequential: f64) -> f64 {
        let steps = made(Like::Msr, sequential, 20);
        let keys: Vec<u64> = steps.iter().filter(|step| step.op == Op::Insert).map(|step| step.key).collect();
        keys.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count() as f64 / keys.len() as f64
    }

    #[test]
    fn the_share_in_runs_is_s() {
        for s in [0.0, 0.3, 0.85, 1.0] {
            // All of a run but its first.
            let expected = s * 63.0 / 64.0;
            assert!((followers(s) - expected).abs() < 0.02, "{s}: {} for {expected}", followers(s));
        }
    }

    #[test]
    fn reads_come_back_to_what_was_written() {
        for reused in [0.0, 0.35, 0.7] {
            let mut written = HashSet::new();
            let (mut reads, mut known) = (0, 0);
            let options = BlockOptions { like: Like::Tpcc, sequential: 0.85, divisor: 20, seed: 4, reused };
            for step in options.steps().unwrap() {
                if step.op == Op::Insert {
                    written.insert(step.key);
                } else {
                    reads += 1;
                    known += u64::from(written.contains(&step.key));
                }
            }
            let share = known as f64 / reads as f64;
            assert!((share - reused).abs() < 0.02, "{share} for {reused}");
        }
    }

    #[test]
    fn hot_pages_and_extents_are_scattered_and_hot() {
        let keys: Vec<u64> = made(Like::Msr, 0.0, 20)
            .iter()
            .filter(|step| step.op == Op::Insert)
            .map(|step| step.key)
            .collect();
        let distinct: HashSet<_> = keys.iter().collect();
        // Zipf's law over 2^32 with exponent 0.99: the first rank has about 4 %.
        let hottest = keys.iter().filter(|key| **key == u64::from(scatter(0))).count() as f64;
        assert!((0.03..0.05).contains(&(hottest / keys.len() as f64)), "{hottest} of {}", keys.len());
        assert!(distinct.len() * 3 < keys.len() * 2 && distinct.len() * 4 > keys.len(), "{}", distinct.len());
        let scattered: HashSet<u32> = (0..100_000).map(scatter).collect();
        assert_eq!(scattered.len(), 100_000);
    }

    #[test]
    fn options_out_of_range_are_refused() {
        let options = BlockOptions { like: Like::Msr, sequential: 1.5, divisor: 1, seed: 0, reused: REUSED };
        assert!(options.steps().unwrap_err().contains("1.5 in runs: 0 to 1"));
        assert!(BlockOptions { sequential: f64::NAN, ..options }.steps().is_err());
        assert!(BlockOptions { sequential: 0.5, divisor: 0, ..options }.steps().is_err());
        assert!(BlockOptions { sequential: 0.5, reused: 1.5, ..options }.steps().is_err());
    }
}
