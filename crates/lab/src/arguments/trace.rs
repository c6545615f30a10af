//! The command line of `sapwood-lab trace`.

use crate::experiment::Device;
use crate::trace::block_synthesis::Like;
use crate::trace::source::Format;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum Trace {
    /// Make a synthetic trace
    #[command(subcommand)]
    Make(Make),
    /// Say what a trace consists of: mix, indexes, hash
    #[command(
        after_help = "Examples:\n  sapwood-lab trace show trace.txt\n  zcat usr_0.csv.gz | sapwood-lab trace show - --format msr"
    )]
    Show(Show),
    /// Replay a trace on trees, and say what each kind of operation took
    #[command(after_help = RUN)]
    Run(Replay),
}

const RUN: &str = "\
Examples:
  sapwood-lab trace run trace.txt
  sapwood-lab trace run trace.txt --tree pio --tree btree --memory 32
  sapwood-lab trace run usr_0.csv --tree all --csv usr_0-results.csv
  zcat usr_0.csv.gz | sapwood-lab trace run - --format msr --tree cb
  sapwood-lab trace run trace.txt --device disk --dir /mnt/fast-disk

Each index of the trace gets a tree of its own. Records that the trace loads are there before the
clock runs. What waits in memory at the end is brought to the device: `flush`.";

#[derive(Debug, Subcommand)]
pub(crate) enum Make {
    /// Operations on the indexes of TPC-C, in the mix that the PIO B-tree's authors recorded
    Tpcc(MakeTpcc),
    /// Writes and reads of pages, as many as in the traces that the CB-tree's authors replayed
    Block(MakeBlock),
}

#[derive(Debug, Args)]
pub(crate) struct MakeTpcc {
    /// W: warehouses; each has about 530,000 records on the eight indexes
    #[arg(long, value_name = "W", default_value_t = 10)]
    pub warehouses: u32,
    /// Operations besides the records that are loaded
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub operations: u64,
    /// Clients whose transactions mix
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub clients: u32,
    /// Seed of all that is drawn
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// File to write; - for standard output
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct MakeBlock {
    /// Which published trace it stands for
    #[arg(long, value_enum)]
    pub like: Like,
    /// s: share of the writes that come in ascending runs, 0 to 1; by the trace, unless told
    #[arg(long, value_name = "S")]
    pub sequential: Option<f64>,
    /// Divide the published numbers of writes and reads by this
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub divisor: u64,
    /// Seed of all that is drawn
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// File to write; - for standard output
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The trace; - for standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How it is written down; by the name (.csv: msr), unless told
    #[arg(long, value_enum)]
    pub format: Option<Format>,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The trace; - for standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How it is written down; by the name (.csv: msr), unless told
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Trees to replay it on
    #[arg(long, value_enum, default_values_t = [Tree::Pio, Tree::Btree])]
    pub tree: Vec<Tree>,
    /// Memory of each index, in pages of 4 KiB
    #[arg(long, value_name = "PAGES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    pub memory: u32,
    /// Device to run on: ssdsim or disk
    #[arg(long, value_enum, default_value_t = Device::Ssdsim)]
    pub device: Device,
    /// Directory on the disk
    #[arg(long, value_name = "D", default_value = ".")]
    pub dir: PathBuf,
    /// Also write the figures as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// A tree that a trace can be replayed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tree {
    /// All of them, one after the other
    All,
    /// B+-tree, all memory as buffer
    Btree,
    /// B-link tree, all memory as buffer
    Blink,
    /// PIO B-tree, an eighth of the memory as operation queue
    Pio,
    /// AS B-tree, half of the memory as write buffer, half as cache
    As,
    /// AS-tree of the CB-tree's paper, the memory as buffer of records
    AsRecords,
    /// CB-tree in place; takes one node a level
    Cb,
    /// FD-tree, the memory as head tree
    Fd,
    /// BFTL, the memory as reservation buffer
    Bftl,
    /// IBSF, the memory as buffer of updates
    Ibsf,
    /// LA-tree, the memory as buffer
    La,
    /// Lazy-update tree, the memory as buffer of updates
    Lu,
}
