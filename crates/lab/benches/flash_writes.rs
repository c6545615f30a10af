//! Counts what flash is programmed for each byte that a user writes: by the engine, by a B+-tree that is updated in place, and by an
//! LSM-tree, each on a simulated drive with a page map, under updates of several kinds.
//!
//! `cargo bench -p lab --bench flash_writes -- --help`

use clap::Parser;
use flash::{FlashCounters, FtlOptions, Geometry, Profile, Ssd};
use psync::{Access, Device, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};
use sapwood::{Compression, Database, Durability};
use std::sync::Arc;
use trees::{BTree, BTreeOptions, Index, LsmTree, LsmTreeOptions, PageUse};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What is programmed for each byte that a user writes
///
/// Records of 116 bytes (keys of 16). The load is not counted, nor is the first third of the updates. All systems have the same memory.
/// The tree keeps as many keys in a node of 4 KiB as such records would allow, logs nothing, and writes a node when it leaves the
/// buffer: what is counted of it is the least that a tree in place can write. The LSM-tree (levels ten times as large as the one above,
/// filters of 10 bits a key) has half of the memory for its memtable, logs nothing either, tells the drive what it has left, and merges whole
/// levels, so it needs room for a second copy of the last one: "no room" where there is none. The engine logs, checkpoints and collects.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p lab --bench flash_writes --")]
struct Options {
    /// Records
    #[arg(long, default_value_t = 300_000)]
    records: u64,
    /// Updates, as a multiple of the records
    #[arg(long, default_value_t = 6)]
    rounds: u64,
    /// Memory in MiB
    #[arg(long, default_value_t = 4)]
    memory_mib: u64,
    /// How full the drive is with records, in percent
    #[arg(long, default_value_t = 65)]
    full: u64,
    /// What cargo passes.
    #[arg(long, hide = true)]
    bench: bool,
}

const KEY: usize = 16;
const VALUE: usize = 100;
/// Nodes of the tree in place.
const PAGE: usize = 4096;

#[derive(Clone, Copy, Debug)]
enum Pattern {
    Uniform,
    Zipfian,
    /// Nine of ten go to a tenth of the records.
    HotAndCold,
    /// Half of them go round in key order.
    HalfSequential,
}

/// The records to update, one after the other.
struct Numbers {
    pattern: Pattern,
    records: u64,
    rng: StdRng,
    zipf: Zipf<f64>,
    next: u64,
}

impl Numbers {
    fn new(pattern: Pattern, records: u64) -> Outcome<Self> {
        let zipf = Zipf::new(records as f64, 0.99)?;
        Ok(Self { pattern, records, rng: StdRng::seed_from_u64(7), zipf, next: 0 })
    }

    /// The same number for the same rank, anywhere among the records.
    fn spread(&self, rank: u64) -> u64 {
        let spread = (rank + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (spread ^ (spread >> 32)) % self.records
    }

    fn next(&mut self) -> u64 {
        match self.pattern {
            Pattern::Uniform => self.rng.random_range(0..self.records),
            Pattern::Zipfian => {
                let rank = self.zipf.sample(&mut self.rng) as u64;
                self.spread(rank)
            }
            Pattern::HotAndCold => {
                let is_hot = self.rng.random_bool(0.9);
                let rank = self.rng.random_range(0..self.records / if is_hot { 10 } else { 1 });
                self.spread(rank)
            }
            Pattern::HalfSequential if self.rng.random_bool(0.5) => {
                self.next = (self.next + 1) % self.records;
                self.next
            }
            Pattern::HalfSequential => self.rng.random_range(0..self.records),
        }
    }
}

/// A drive with this share of spare flash, of which the records take the share that is asked for.
fn drive(options: &Options, spare: f64) -> Outcome<Ssd> {
    let profile = Profile::ssdsim();
    // Few open blocks beside the spare ones, as on a drive of a common size.
    let geometry = Geometry { channels: 2, dies_per_channel: 2, planes: 1, ..profile.geometry };
    let block = u64::from(geometry.pages_per_block * geometry.page_bytes) * 4;
    let bytes = options.records * (KEY + VALUE) as u64 * 100 / options.full;
    let blocks = (bytes as f64 * (1.0 + spare) / block as f64).ceil() as u32;
    let profile = Profile { geometry: Geometry { blocks_per_plane: blocks, ..geometry }, ..profile };
    Ok(Ssd::new(profile, FtlOptions { over_provision: spare, ..FtlOptions::default() }, 1)?)
}

/// Programs of the host, of the drive, and the bytes of the updates that they were for.
fn told(name: &str, pattern: Pattern, spare: f64, counters: FlashCounters, user: u64) {
    let page = 4096.0;
    let of_user = |programs: u64| programs as f64 * page / user as f64;
    println!(
        "{name:28} {:16} {:>5.0} %  {:>7.2} {:>7.2}  {:>6.3}",
        format!("{pattern:?}"),
        spare * 100.0,
        of_user(counters.host_programs),
        of_user(counters.host_programs + counters.internal_programs),
        counters.write_amplification()
    );
}

/// Updates, with what is done for one, given the record's number and whether it is the last; tells what flash the last two thirds of them took.
fn count(
    options: &Options,
    name: &str,
    (drive, pattern, spare): (&Ssd, Pattern, f64),
    mut update: impl FnMut(u64, bool) -> Outcome,
) -> Outcome {
    let mut numbers = Numbers::new(pattern, options.records)?;
    let updates = options.records * options.rounds;
    let mut before = drive.flash_counters();
    for at in 0..updates {
        if at == updates / 3 {
            before = drive.flash_counters();
        }
        match update(numbers.next(), at + 1 == updates) {
            Err(error) if is_full(&*error) => {
                println!("{name:28} {:16} {:>5.0} %  no room", format!("{pattern:?}"), spare * 100.0);
                return Ok(());
            }
            done => done?,
        }
    }
    let counters = drive.flash_counters() - before;
    told(name, pattern, spare, counters, (updates - updates / 3) * (KEY + VALUE) as u64);
    Ok(())
}

fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(trees::Error::Device(error)) if error.is_full())
}

fn key(number: u64) -> [u8; KEY] {
    let mut key = [b'k'; KEY];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

fn engine(options: &Options, pattern: Pattern, spare: f64, compression: Compression) -> Outcome {
    let drive = drive(options, spare)?;
    let builder = Database::builder()
        .memory(options.memory_mib << 20)
        .background_threads(0)
        .compression(compression)
        .durability(Durability::Buffered);
    let db = builder.open_on(Arc::new(drive.clone()))?;
    let records = db.keyspace("records")?;
    let mut rng = StdRng::seed_from_u64(1);
    // Half of it is random.
    let mut value = |number: u64| {
        let mut value = [number as u8; VALUE];
        rng.fill(&mut value[..VALUE / 2]);
        value
    };
    records.ingest((0..options.records).map(|number| (key(number), value(number))))?;
    let mut batch = db.batch();
    let name = if compression == Compression::None { "Sapwood" } else { "Sapwood, LZ4" };
    count(options, name, (&drive, pattern, spare), |number, is_last| {
        batch.insert(&records, key(number), value(number));
        if batch.len() == 100 || is_last {
            batch.commit()?;
        }
        Ok(())
    })
}

fn in_place(options: &Options, pattern: Pattern, spare: f64) -> Outcome {
    let drive = drive(options, spare)?;
    let frames = (options.memory_mib << 20) as usize / PAGE;
    let keys_max = Some(PAGE / (KEY + VALUE));
    let layout = BTreeOptions { page_len: PAGE, frames, keys_max, ..BTreeOptions::default() };
    let mut tree = BTree::bulk_load(
        Arc::new(drive.clone()),
        &layout,
        0.69,
        &mut (0..options.records).map(|number| (number, number)),
    )?;
    count(options, "a B+-tree in place", (&drive, pattern, spare), |number, _| Ok(tree.update(number, 1)?))
}

/// Half of the memory is the memtable's; the rest stands for filters.
fn merged(options: &Options, pattern: Pattern, spare: f64) -> Outcome {
    let drive = drive(options, spare)?;
    let layout = LsmTreeOptions {
        page_len: PAGE,
        memtable_pages: (options.memory_mib << 20) as usize / 2 / PAGE,
        entries_max: Some(PAGE / (KEY + VALUE)),
        ..LsmTreeOptions::default()
    };
    let mut records = (0..options.records).map(|number| (number, number));
    let (mut file, mut flushes) = (None, 0);
    let mut tree = LsmTree::bulk_load(Arc::new(drive.clone()), &layout, 1.0, &mut records)?;
    count(options, "an LSM-tree", (&drive, pattern, spare), |number, _| {
        tree.update(number, 1)?;
        // The drive is told what merges have left, as of files that are removed.
        let done = tree.stats().flushes;
        if std::mem::replace(&mut flushes, done) == done {
            return Ok(());
        }
        let PageUse::Unused(pages) = tree.page_use() else { unreachable!("it knows what it does not use") };
        for (name, offset) in pages {
            let file = match file {
                Some(file) => file,
                None => *file.insert(drive.open(&name, Access { write: true, ..Access::default() })?),
            };
            drive.release(file, offset..offset + PAGE as u64)?;
        }
        Ok(())
    })
}

fn main() -> Outcome {
    let options = Options::parse();
    println!(
        "bytes of flash programmed for each byte of the user: by the host, and in all; and the drive's own factor"
    );
    println!("{:28} {:16} {:>7}  {:>7} {:>7}  {:>6}", "system", "updates", "spare", "host", "flash", "drive");
    for spare in [0.07, 0.28] {
        for pattern in [Pattern::Uniform, Pattern::Zipfian, Pattern::HotAndCold, Pattern::HalfSequential] {
            engine(&options, pattern, spare, Compression::None)?;
            engine(&options, pattern, spare, Compression::Lz4)?;
            in_place(&options, pattern, spare)?;
            merged(&options, pattern, spare)?;
        }
    }
    Ok(())
}
