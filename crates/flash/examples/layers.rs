//! What each translation layer makes of the same writes: `cargo run --release -p flash --example layers`.
//!
//! One drive (4 dies of 128 blocks of 64 pages of 4 KiB, of which tags are kept where the layer needs no more), full, and twice as
//! many writes of single pages as it shows pages, one after the other. Zipf: exponent 0.99, hot pages scattered.

use flash::ftl::block_map::BlockMap;
use flash::ftl::dftl::{CACHED, Dftl};
use flash::ftl::fast::{Fast, LOG_BLOCKS};
use flash::ftl::fmax::Fmax;
use flash::ftl::page_map::PageMap;
use flash::{
    Clock, Content, Flash, Ftl, FtlOptions, Geometry, LogicalPage, Profile, RequestKind, Result, Rules,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;

const GEOMETRY: Geometry = Geometry {
    channels: 2,
    dies_per_channel: 2,
    planes: 1,
    blocks_per_plane: 128,
    pages_per_block: 64,
    page_bytes: 4096,
    spare_bytes: 128,
};

const LAYERS: [&str; 7] = ["page_map", "block_map", "fmax r=1", "fmax r=2", "fast 3%", "fast 6%", "dftl 5%"];

fn make(layer: &str, flash: &Flash) -> Result<Box<dyn Ftl>> {
    let options = FtlOptions { over_provision: 0.12, ..FtlOptions::default() };
    Ok(match layer {
        "page_map" => Box::new(PageMap::new(flash, options)?),
        "block_map" => Box::new(BlockMap::new(flash, options)?),
        "fmax r=1" => Box::new(Fmax::new(flash, options, 1)?),
        "fmax r=2" => Box::new(Fmax::new(flash, options, 2)?),
        "fast 3%" => Box::new(Fast::new(flash, options, LOG_BLOCKS)?),
        "fast 6%" => Box::new(Fast::new(flash, options, 2.0 * LOG_BLOCKS)?),
        _ => Box::new(Dftl::new(flash, options, CACHED)?),
    })
}

/// Numbers 0 to `n` - 1, the `k`-th with a chance in proportion to `1 / k^0.99`, then mixed.
struct Zipf {
    sums: Vec<f64>,
    place: Vec<u32>,
}

impl Zipf {
    fn new(n: u32, rng: &mut SmallRng) -> Self {
        let mut sum = 0.0;
        let weights = (1..=n).map(|k| {
            sum += f64::from(k).powf(-0.99);
            sum
        });
        let sums = weights.collect();
        let mut place: Vec<u32> = (0..n).collect();
        for last in (1..place.len()).rev() {
            place.swap(last, rng.random_range(0..=last));
        }
        Self { sums, place }
    }

    fn next(&self, rng: &mut SmallRng) -> u32 {
        let total = self.sums.last().copied().unwrap_or(0.0);
        let wanted = rng.random_range(0.0..total);
        let rank = self.sums.partition_point(|sum| *sum <= wanted);
        self.place[rank.min(self.place.len() - 1)]
    }
}

fn write(layer: &mut dyn Ftl, flash: &mut Flash, clock: &mut Clock, page: u32) -> Result<Duration> {
    flash.begin_request(RequestKind::Write, GEOMETRY.page_bytes);
    layer.write(flash, LogicalPage(page), &[1; 4096])?;
    let mut response = Duration::ZERO;
    clock.run(flash.batch(), |_, time| response = time);
    flash.settle();
    Ok(response)
}

fn main() -> Result<()> {
    println!(
        "{:10} {:10} {:>8} {:>12} {:>8} {:>10}",
        "layer", "writes", "WA", "erases/1000", "us each", "memory"
    );
    for name in LAYERS {
        for workload in ["sequential", "uniform", "zipf"] {
            let content = if name.starts_with("dftl") { Content::Full } else { Content::Tags };
            let mut flash = Flash::new(GEOMETRY, Rules { content, ..Rules::default() }, 1)?;
            let mut clock = Clock::new(GEOMETRY, &Profile::ssdsim().timing)?;
            let mut layer = make(name, &flash)?;
            let pages = layer.logical_pages();
            for page in 0..pages {
                write(&mut *layer, &mut flash, &mut clock, page)?;
            }
            let mut rng = SmallRng::seed_from_u64(1);
            let zipf = Zipf::new(pages, &mut rng);
            let (before, since) = (flash.counters(), clock.now());
            let writes = 2 * pages;
            for number in 0..writes {
                let page = match workload {
                    "sequential" => number % pages,
                    "uniform" => rng.random_range(0..pages),
                    _ => zipf.next(&mut rng),
                };
                write(&mut *layer, &mut flash, &mut clock, page)?;
            }
            clock.drain();
            let done = flash.counters() - before;
            println!(
                "{name:10} {workload:10} {:8.2} {:12.1} {:8.0} {:8} KB",
                done.write_amplification(),
                done.erases as f64 * 1000.0 / f64::from(writes),
                (clock.now() - since).as_micros() as f64 / f64::from(writes),
                layer.mapping_bytes() / 1000,
            );
        }
    }
    Ok(())
}
