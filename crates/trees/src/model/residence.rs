//! Which share of each level the buffer holds, by what it evicts first.
//!
//! - [`Eviction::LowestLevel`]: from the root down, level after level, until there is no more room, which is what the paper's model
//!   assumes (VLDB 2011, appendix).
//! - [`Eviction::Lru`], which is what the paper measures: a page is held if it was used within the last so many accesses as
//!   bring as many different pages as there are frames. (Che, Tung and Wang, "Hierarchical Web Caching Systems", IEEE JSAC
//!   20(7), 2002: that time is nearly the same for all pages. Here a page's chance to be used in a search is one by the
//!   nodes of its level.) Batch updates pass many nodes at once, so the time is found by going back over searches, then a
//!   batch, then the searches before it, and so on.
//!
//! Keys are uniform.

use crate::buffer::frames::Eviction;

/// A level as the buffer sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Population {
    pub nodes: f64,
    /// Pages of a node.
    pub pages: f64,
}

/// Batch updates among the searches.
#[derive(Clone, Debug)]
pub(crate) struct Rhythm {
    /// Searches between two batches.
    pub searches: f64,
    /// Nodes of each level that a batch passes, from the root down.
    pub passed: Vec<f64>,
    /// Most nodes that it reads at once.
    pub pio_max: f64,
}

/// Shares of the accesses to each level that find their node in the buffer, from the root down.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Residence {
    pub of_search: Vec<f64>,
    pub of_batch: Vec<f64>,
}

/// Points of a cycle at which searches are looked at.
const POINTS: u32 = 16;
/// Cycles that are looked back over at most: older ones have no part in it, or everything is held.
const CYCLES: u32 = 200;

/// Goes back in time, until as many pages were met as there are frames.
struct Window<'a> {
    levels: &'a [Population],
    /// Frames that no page has been found for.
    left: f64,
    /// Share of each level that was not met.
    unmet: Vec<f64>,
    /// Share that was met and is held: of the leaves, a batch invalidates those that it writes.
    held: Vec<f64>,
    /// Share of the leaves that no batch since has written.
    unwritten: f64,
}

impl<'a> Window<'a> {
    fn new(levels: &'a [Population], frames: f64) -> Self {
        let (unmet, held) = (vec![1.0; levels.len()], vec![0.0; levels.len()]);
        Self { levels, left: frames.max(0.0), unmet, held, unwritten: 1.0 }
    }

    /// Back over accesses that meet a share of each level.
    fn meet(&mut self, met: impl Fn(usize) -> f64) {
        for (level, unmet) in self.unmet.iter_mut().enumerate() {
            let new = *unmet * met(level);
            let is_leaf = level + 1 == self.levels.len();
            self.held[level] += new * if is_leaf { self.unwritten } else { 1.0 };
            *unmet -= new;
        }
    }

    /// Pages that such accesses would bring.
    fn brought(&self, met: impl Fn(usize) -> f64) -> f64 {
        let levels = self.levels.iter().zip(&self.unmet).enumerate();
        levels
            .map(|(level, (population, unmet))| population.nodes * population.pages * unmet * met(level))
            .sum()
    }

    /// Back over so many searches, or as many as there are frames for.
    fn searches(&mut self, count: f64) {
        let levels = self.levels;
        // There is no half of a root: whoever searches has met it.
        let met = |count: f64, level: usize| match levels[level].nodes {
            nodes if nodes <= 1.0 => count.min(1.0),
            nodes => -f64::exp_m1(count * (-1.0 / nodes).ln_1p()),
        };
        let all = self.brought(|level| met(count, level));
        if all <= self.left {
            self.left -= all;
            self.meet(|level| met(count, level));
            return;
        }
        // A search brings at most a node a level, so this many fit.
        let (mut low, mut high) = (0.0, count.min(1e12));
        for _ in 0..80 {
            let middle = (low + high) / 2.0;
            let fits = self.brought(|level| met(middle, level)) <= self.left;
            *(if fits { &mut low } else { &mut high }) = middle;
        }
        self.meet(|level| met(low, level));
        self.left = 0.0;
    }

    /// Back over a batch: its inner nodes enter, its leaves go. Returns which share of it there were frames for: it is the
    /// last keys.
    fn batch(&mut self, passed: &[f64]) -> f64 {
        let levels = self.levels;
        let leaf = levels.len() - 1;
        let share = |level: usize| if level == leaf { 0.0 } else { passed[level] / levels[level].nodes };
        let all = self.brought(share);
        let part = if all > self.left { self.left / all } else { 1.0 };
        self.left = (self.left - all).max(0.0);
        self.meet(|level| part * share(level));
        self.unwritten *= 1.0 - passed[leaf] / levels[leaf].nodes;
        part
    }

    fn cycles(&mut self, rhythm: &Rhythm) {
        for _ in 0..CYCLES {
            self.batch(&rhythm.passed);
            self.searches(rhythm.searches);
            if self.left <= 0.0 {
                break;
            }
        }
    }
}

/// What a buffer of `frames` pages holds of `levels`, from the root down.
pub(crate) fn residence(
    eviction: Eviction,
    levels: &[Population],
    frames: f64,
    rhythm: &Rhythm,
) -> Residence {
    match eviction {
        Eviction::Lru => lru(levels, frames, rhythm),
        Eviction::LowestLevel => {
            let mut held = from_the_root(levels, frames);
            // A leaf that was written has to be read again.
            let unlimited = lru(levels, f64::INFINITY, rhythm);
            if let (Some(leaves), Some(read)) = (held.last_mut(), unlimited.of_search.last()) {
                *leaves = leaves.min(*read);
            }
            Residence { of_search: held.clone(), of_batch: held }
        }
    }
}

fn from_the_root(levels: &[Population], frames: f64) -> Vec<f64> {
    let mut left = frames.max(0.0);
    let share = |level: &Population| {
        let pages = level.nodes * level.pages;
        let held = (left / pages).min(1.0);
        left -= held * pages;
        held
    };
    levels.iter().map(share).collect()
}

/// What searches alone, as many as there may be, find in an LRU pool.
pub(crate) fn searches_alone(eviction: Eviction, levels: &[Population], frames: f64) -> Vec<f64> {
    match eviction {
        Eviction::LowestLevel => from_the_root(levels, frames),
        Eviction::Lru => {
            let mut window = Window::new(levels, frames);
            window.searches(f64::INFINITY);
            window.held
        }
    }
}

fn lru(levels: &[Population], frames: f64, rhythm: &Rhythm) -> Residence {
    let mut of_search = vec![0.0; levels.len()];
    for point in 0..POINTS {
        let mut window = Window::new(levels, frames);
        window.searches(rhythm.searches * (f64::from(point) + 0.5) / f64::from(POINTS));
        window.cycles(rhythm);
        of_search.iter_mut().zip(window.held).for_each(|(sum, held)| *sum += held / f64::from(POINTS));
    }
    let of_batch = rhythm.passed.iter().enumerate().map(|(level, passed)| {
        let mut found = 0.0;
        for group in 0..(passed / rhythm.pio_max).ceil().max(1.0) as u64 {
            // What the groups before it have brought has taken frames.
            let before = group as f64 * rhythm.pio_max;
            if before >= frames {
                break;
            }
            // Which part of the batch it is.
            let (from, to) = (before / passed, ((before + rhythm.pio_max) / passed).min(1.0));
            let mut window = Window::new(levels, frames - before);
            window.searches(rhythm.searches);
            let (by_searches, unmet) = (window.held[level], window.unmet[level]);
            let part = window.batch(&rhythm.passed);
            if part < 1.0 {
                // The last keys of the batch before are held; how many of this group's are among them?
                let overlap = (to - from.max(1.0 - part)).max(0.0);
                let is_leaf = level + 1 == levels.len();
                let share = if is_leaf { 0.0 } else { passed / levels[level].nodes };
                found += by_searches * (to - from) + unmet * share * overlap;
            } else {
                window.searches(rhythm.searches);
                window.cycles(rhythm);
                found += window.held[level] * (to - from);
            }
        }
        found.min(1.0)
    });
    let of_batch = of_batch.collect();
    Residence { of_search, of_batch }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::frames::Frames;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    const LEVELS: [Population; 3] = [
        Population { nodes: 1.0, pages: 1.0 },
        Population { nodes: 70.0, pages: 1.0 },
        Population { nodes: 3000.0, pages: 4.0 },
    ];

    fn rhythm(searches: f64, batch: f64) -> Rhythm {
        let passed = |level: &Population| level.nodes * -f64::exp_m1(-batch / level.nodes);
        Rhythm { searches, passed: LEVELS.iter().map(passed).collect(), pio_max: 64.0 }
    }

    /// Plays searches and batches on real frames, and counts.
    fn played(eviction: Eviction, frames: usize, searches: usize, batch: usize) -> Residence {
        let mut rng = StdRng::seed_from_u64(1);
        let mut pool: Frames<(usize, u64), ()> = Frames::new(eviction, frames);
        let (mut of_search, mut of_batch) = ([(0, 0); 3], [(0, 0); 3]);
        let bring = |pool: &mut Frames<(usize, u64), ()>, level: usize, node: u64, is_batch: bool| {
            let (height, pages) = (2 - level as u8, LEVELS[level].pages as usize);
            if !is_batch || pool.admits(height, pages) {
                pool.put((level, node), height, pages, ());
            }
            while let Some((victim, _)) = pool.excess() {
                pool.pop(&victim);
            }
        };
        let node = |key: f64, level: usize| (key * LEVELS[level].nodes) as u64;
        for cycle in 0..400 {
            for _ in 0..searches {
                let key = rng.random::<f64>();
                for (level, of_search) in of_search.iter_mut().enumerate() {
                    let node = node(key, level);
                    let hit = pool.get(&(level, node)).is_some();
                    if cycle > 20 {
                        of_search.0 += u64::from(hit);
                        of_search.1 += 1;
                    }
                    if !hit {
                        bring(&mut pool, level, node, false);
                    }
                }
            }
            let mut keys: Vec<f64> = (0..batch).map(|_| rng.random()).collect();
            keys.sort_by(f64::total_cmp);
            for (level, of_batch) in of_batch.iter_mut().enumerate().take(2) {
                let mut nodes: Vec<u64> = keys.iter().map(|key| node(*key, level)).collect();
                nodes.dedup();
                for group in nodes.chunks(64) {
                    let found: Vec<bool> =
                        group.iter().map(|node| pool.get(&(level, *node)).is_some()).collect();
                    for (node, hit) in group.iter().zip(found) {
                        if cycle > 20 {
                            of_batch.0 += u64::from(hit);
                            of_batch.1 += 1;
                        }
                        if !hit {
                            bring(&mut pool, level, *node, group.len() > 1);
                        }
                    }
                }
            }
            for key in keys {
                pool.pop(&(2, node(key, 2)));
            }
        }
        let share = |counts: [(u64, u64); 3]| {
            counts.iter().map(|(hits, all)| *hits as f64 / (*all).max(1) as f64).collect()
        };
        Residence { of_search: share(of_search), of_batch: share(of_batch) }
    }

    /// What the model says is what pools do, within 4 points of a hundred.
    #[test]
    fn shares_are_those_of_real_pools() {
        for eviction in [Eviction::Lru, Eviction::LowestLevel] {
            for frames in [8, 23, 60, 200] {
                for (searches, batch) in [(2000, 240), (240, 240), (27, 240), (900, 20)] {
                    let found = played(eviction, frames, searches, batch);
                    let told =
                        residence(eviction, &LEVELS, frames as f64, &rhythm(searches as f64, batch as f64));
                    let story =
                        format!("{eviction:?}, {frames} frames, {searches} searches, batches of {batch}");
                    for level in 0..3 {
                        let (found, told) = (found.of_search[level], told.of_search[level]);
                        // The first searches after a batch miss a root that LRU let go: one in a cycle.
                        assert!(
                            (found - told).abs() < 0.04,
                            "{story}, search, level {level}: {found} not {told}"
                        );
                    }
                    let (found, told) = (found.of_batch[1], told.of_batch[1]);
                    assert!((found - told).abs() < 0.06, "{story}, batch: {found} not {told}");
                }
            }
        }
    }

    #[test]
    fn a_pool_that_holds_everything_misses_nothing_but_written_leaves() {
        let told = residence(Eviction::Lru, &LEVELS, 1e6, &rhythm(1000.0, 240.0));
        assert!(told.of_search[1] > 0.99 && told.of_search[2] < 0.9, "{told:?}");
        let alone = searches_alone(Eviction::Lru, &LEVELS, 1e6);
        assert!(alone.iter().all(|held| *held > 0.999), "{alone:?}");
    }
}
