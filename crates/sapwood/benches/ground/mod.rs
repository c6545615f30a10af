//! What every benchmark is told: the disk, how many records, how much memory.
//!
//! All of them work with any number of records that this accepts: enough for the longest scan, in whole commits.

use crate::records::BATCH;
use clap::Args;
use std::path::PathBuf;
use tempfile::TempDir;

/// Fewer records are less than one long scan.
const LEAST: u64 = 20_000;

/// Options with defaults of each benchmark's own.
#[derive(Args)]
pub struct Ground<const RECORDS: u64, const MIB: u64> {
    /// Directory on the disk to measure; what is written there goes at the end
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    pub dir: PathBuf,
    /// Records to load: whole thousands, at least 20000
    #[arg(long, value_name = "N", default_value_t = RECORDS, value_parser = whole_commits)]
    pub records: u64,
    /// Memory budget of the database, in MiB
    #[arg(long, value_name = "MIB", default_value_t = MIB, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub memory_mib: u64,
    /// What `cargo bench` passes.
    #[arg(long, hide = true)]
    bench: bool,
}

impl<const RECORDS: u64, const MIB: u64> Ground<RECORDS, MIB> {
    /// The budget in bytes.
    pub fn memory(&self) -> u64 {
        self.memory_mib << 20
    }

    /// A directory of its own on that disk, removed when dropped.
    pub fn scratch(&self) -> std::io::Result<TempDir> {
        tempfile::Builder::new().prefix("sapwood-bench").tempdir_in(&self.dir)
    }
}

fn whole_commits(text: &str) -> Result<u64, String> {
    let records: u64 = text.parse().map_err(|error| format!("{error}"))?;
    match records.is_multiple_of(BATCH) && records >= LEAST {
        true => Ok(records),
        false => Err(format!("a multiple of {BATCH}, {LEAST} or more")),
    }
}
