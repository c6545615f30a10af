//! The command line.

pub(crate) mod trace;

use crate::arena::parse_bytes;
use crate::every_system::System;
use crate::experiment::{Device, Scale};
use crate::flash_map::Overwrites;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

const FIRST_SESSION: &str = "\
A first session:
  sapwood-lab list                      what there is
  sapwood-lab run depth                 what do many requests at a time gain on this disk?
  sapwood-lab run all --scale ci        everything, in a few minutes
  sapwood-lab report                    one page with all pictures: lab-results/report.html

Each experiment comes from a paper, and ends in a line such as
  E2: holds (disk; 4 of 4 claims hold)
or `does not hold` or `not applicable`, with the figures on which that rests. Results go to
standard output, progress to standard error. Simulated times and wall-clock times are never
compared with each other.

Exit codes: 0 fine (whatever the verdict), 1 an experiment could not run, 2 usage, 3 I/O,
130 interrupted.";

const RUN: &str = "\
Examples:
  sapwood-lab run E2
  sapwood-lab run io-size depth --device disk --dir /mnt/fast-disk
  sapwood-lab run all --scale ci
  sapwood-lab run depth --device disk --backend libaio
  sapwood-lab run E2 --json - | jq .[0].judgement

Records go to --results: for each experiment and device a .json (all of it), a .csv (the rows)
and a .svg (the picture). Points are measured as often as the experiment's settings say, mostly 5
times on a disk and 3 times on a simulated drive, with different seeds; the median counts, least
and most are shown, and each record says of how many runs.
A disk is measured through a scratch directory in --dir, which is removed afterwards; --scale ci
takes 2 GiB of space, the others 8 GiB. Other work on the machine spoils a disk's figures; where
it cannot be stopped, run with real-time priority (as root on Linux: chrt -r 10 sapwood-lab run …).";

const ARENA: &str = "\
Examples:
  sapwood-lab arena --build
  sapwood-lab arena --engines sapwood,rocksdb,lmdb --workloads get-1,get-16,update --dir /mnt/fast-disk
  sapwood-lab arena --workloads transactions --engines sapwood,fjall,redb --records 1000000
  sapwood-lab arena --memory 64M --records 200000 --steady 2s --cap 20s --repeat 1 --json -

The stores are in a worker program of their own, which --build builds (crates/peers; minutes, and more
with RocksDB). Each store runs in a process whose memory, page cache included, is limited by a control
group; that takes root, or systemd's delegation, and without it the race says so. A store that takes
longer than --cap is stopped, and its rate is marked with a tilde. What the workloads are and how each
store is set up: docs/benchmarks.md.

Other work on the machine spoils the figures: run it alone.";

const FLASH_MAP: &str = "\
Examples:
  sapwood-lab flash-map
  sapwood-lab flash-map --overwrites hot --over-provision 0.28
  sapwood-lab flash-map --tree b-tree
  sapwood-lab flash-map --tree mu --operations 50000 --svg mu.svg --html mu.html

Open the page (flash-map.html) in any browser; the picture (flash-map.svg) is its end.

Without --tree a full drive is shown, block by block: live, dead and free pages, and wear. It has
8 channels of 4 dies with 32 blocks each; it is filled in sequence, then overwritten.

With --tree the flash under a tree is shown, page by page: 64 MiB, 4 channels of 2 dies with 32
blocks each. The tree is loaded, then random keys are updated. Pages are coloured by level (root,
inner nodes, leaves, log, dead, erased …), and by age (how many updates ago they were written).
Trees that manage raw flash themselves have it; the others stand on a drive that maps pages.
Good to compare:
  b-tree      overwrites its pages; the drive puts each new version somewhere else
  pio         gathers updates, and writes far fewer pages
  as          writes at the end of files; old versions stay until a whole file is removed
  wandering   writes the path up to the root with every update
  dipl        logs changes right behind the nodes of a block";

/// Runs the published experiments on flash again, and says which of their claims hold here.
#[derive(Debug, Parser)]
#[command(name = "sapwood-lab", version, after_help = FIRST_SESSION, propagate_version = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the experiments: number, name, paper, devices
    List,
    /// Run experiments, and judge them
    #[command(after_help = RUN)]
    Run(Run),
    /// Make one page of all records, and the same as Markdown
    #[command(
        after_help = "Examples:\n  sapwood-lab report\n  sapwood-lab report --results docs/reproduction --markdown docs/reproduction.md --html docs/reproduction.html\n\nPredicates are asked again: the verdicts are those of this version of the program."
    )]
    Report(Report),
    /// Make, look at and replay traces of operations on indexes
    #[command(subcommand)]
    Trace(trace::Trace),
    /// Draw a simulated drive, or the flash under a tree, and a page that plays it step by step
    #[command(after_help = FLASH_MAP)]
    FlashMap(FlashMap),
    /// Race Sapwood against other stores, all under the same memory limit
    #[command(after_help = ARENA)]
    Arena(Arena),
    /// What a worker process of an experiment runs
    #[command(hide = true)]
    Worker,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Experiments, by number (E2) or name (depth), or all
    #[arg(required = true, value_name = "EXPERIMENT|all")]
    pub experiments: Vec<String>,
    /// How much of the published size to run
    #[arg(long, value_enum, default_value_t = Scale::Std)]
    pub scale: Scale,
    /// Devices to run on; all on which an experiment can be asked, unless told
    #[arg(long, value_enum)]
    pub device: Vec<Device>,
    /// Directory on the disk to measure
    #[arg(long, value_name = "D", default_value = ".")]
    pub dir: PathBuf,
    /// How psync reaches the disk: auto, io_uring, libaio or threads
    #[arg(long, default_value = "auto")]
    pub backend: psync::Backend,
    /// Directory for the records
    #[arg(long, value_name = "D", default_value = "lab-results")]
    pub results: PathBuf,
    /// Leave out what has a record there already, by this very program, on this machine, with the same settings: to go on
    /// with a run that was broken off. Give the same --dir: records do not tell two disks with the same file system apart
    #[arg(long)]
    pub missing: bool,
    /// Also write the records of this run into one file, as a JSON list; - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// Directory of the records
    #[arg(long, value_name = "D", default_value = "lab-results")]
    pub results: PathBuf,
    /// The page to write; report.html beside the records, unless told
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// The Markdown to write; reproduction.md beside the records, unless told
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct FlashMap {
    /// Show the flash under this tree, page by page, instead of a full drive
    #[arg(long, value_enum, conflicts_with_all = ["overwrites", "over_provision", "rounds"])]
    pub tree: Option<System>,
    /// Records that the tree is loaded with
    #[arg(long, value_name = "N", default_value_t = 300_000, requires = "tree", value_parser = clap::value_parser!(u64).range(1000..=2_000_000))]
    pub records: u64,
    /// Updates of random keys after that
    #[arg(long, value_name = "N", default_value_t = 20_000, requires = "tree", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub operations: u64,
    /// Where the full drive is overwritten
    #[arg(long, value_enum, default_value_t = Overwrites::Random)]
    pub overwrites: Overwrites,
    /// Flash beyond what the host sees, as a share of that, 0.03 to 0.28
    #[arg(long, value_name = "SHARE", default_value_t = 0.15)]
    pub over_provision: f64,
    /// How often the drive's size is overwritten
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=50))]
    pub rounds: u32,
    /// Steps of the play
    #[arg(long, value_name = "N", default_value_t = 160, value_parser = clap::value_parser!(u32).range(2..=2000))]
    pub frames: u32,
    /// The picture of the end
    #[arg(long, value_name = "FILE", default_value = "flash-map.svg")]
    pub svg: PathBuf,
    /// The page that plays it
    #[arg(long, value_name = "FILE", default_value = "flash-map.html")]
    pub html: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Arena {
    /// Stores to race, separated by commas; all that the worker was built with, unless told
    #[arg(long, value_name = "STORE,…", value_delimiter = ',')]
    pub engines: Vec<String>,
    /// Workloads, separated by commas; `transactions` means all of those. All but these, unless told
    #[arg(long, value_name = "WORKLOAD,…", value_delimiter = ',')]
    pub workloads: Vec<String>,
    /// Memory of each store's process, page cache included
    #[arg(long, value_name = "BYTES", default_value = "512M", value_parser = parse_bytes)]
    pub memory: u64,
    /// Records to load; as many as make eight times the memory, unless told
    #[arg(long, value_name = "N")]
    pub records: Option<u64>,
    /// Bytes of a key, 16 to 1024
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    pub key_len: usize,
    /// Bytes of a value, 8 to 1048576
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    pub value_len: usize,
    /// What values are like
    #[arg(long, value_enum, default_value_t = Values::Incompressible)]
    pub values: Values,
    /// A file whose parts the values are, in place of those (the first 4 MiB of it)
    #[arg(long, value_name = "FILE", conflicts_with = "values")]
    pub text: Option<PathBuf>,
    /// How stores compress, if values are worth it
    #[arg(long, value_enum, default_value_t = Codec::Lz4)]
    pub codec: Codec,
    /// Which of its ways to the disk each peer takes
    #[arg(long, value_enum, default_value_t = Disk::Best)]
    pub disk: Disk,
    /// Time of each workload that has no end of its own
    #[arg(long, value_name = "TIME", default_value = "15s")]
    pub steady: humantime::Duration,
    /// Time before each of these that does not count
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub warm_up: humantime::Duration,
    /// The most time for each workload that has an end of its own
    #[arg(long, value_name = "TIME", default_value = "5m")]
    pub cap: humantime::Duration,
    /// The most time to wait after a workload for what a store still writes
    #[arg(long, value_name = "TIME", default_value = "20s")]
    pub settle: humantime::Duration,
    /// Repetitions, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: u32,
    /// Directory on the disk to race on
    #[arg(long, value_name = "D", default_value = ".")]
    pub dir: PathBuf,
    /// Build the worker program first
    #[arg(long, conflicts_with = "worker")]
    pub build: bool,
    /// The worker program; the one that --build builds, unless told
    #[arg(long, value_name = "FILE")]
    pub worker: Option<PathBuf>,
    /// Directory for arena.json, arena.svg and arena.html
    #[arg(long, value_name = "D", default_value = "lab-results")]
    pub results: PathBuf,
    /// Also write the JSON here; - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Which way to the disk a peer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Disk {
    /// The one with which it does best
    Best,
    /// Another one: through the page cache or past it, with or without a writable map (docs/benchmarks.md)
    Second,
}

impl From<Disk> for arena::Disk {
    fn from(disk: Disk) -> Self {
        match disk {
            Disk::Best => arena::Disk::Best,
            Disk::Second => arena::Disk::Second,
        }
    }
}

/// What values are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Values {
    /// Random bytes
    Incompressible,
    /// Half random, half of one byte
    Half,
    /// Events as JSON: 200 bytes do for a value
    Events,
}

/// How stores compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Codec {
    /// LZ4
    Lz4,
    /// Zstandard, level 3; fjall has LZ4 only
    Zstd,
    /// The same with a trained dictionary
    ZstdDictionary,
}

impl From<Codec> for arena::Codec {
    fn from(codec: Codec) -> Self {
        match codec {
            Codec::Lz4 => arena::Codec::Lz4,
            Codec::Zstd => arena::Codec::Zstd,
            Codec::ZstdDictionary => arena::Codec::Dictionary,
        }
    }
}

impl From<Values> for arena::Kind {
    fn from(values: Values) -> Self {
        match values {
            Values::Incompressible => arena::Kind::Incompressible,
            Values::Half => arena::Kind::Half,
            Values::Events => arena::Kind::Events,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
