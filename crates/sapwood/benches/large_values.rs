//! Measures streams of large values in and out, and ranges of them, against what the device gives to one file.
//!
//! `cargo bench -p sapwood --bench large_values -- --help`

mod alone;

use alone::{REQUEST, read_alone};
use clap::Parser;
use psync::{Access, AlignedBuffer, Device, Disk, DiskOptions, Volume, Write};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use sapwood::Database;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What streams of large values give of the device
///
/// Values of random bytes, as many of each length as have so many bytes together as is asked for. The device alone: a file that is written and read
/// with requests of 1 MiB, two at a time, past the page cache.
#[derive(Parser)]
#[command(bin_name = "cargo bench -p sapwood --bench large_values --", after_help = EXAMPLES)]
struct Options {
    /// Directory on the disk to measure
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// MiB of values of each length
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Memory in MiB
    #[arg(long, default_value_t = 64)]
    memory_mib: u64,
    /// What cargo passes.
    #[arg(long, hide = true)]
    bench: bool,
}

const EXAMPLES: &str = "\
Examples:
  cargo bench -p sapwood --bench large_values -- --dir /mnt/disk
  cargo bench -p sapwood --bench large_values -- --mib 8192        8 GiB";

/// Random bytes, the same ones again and again.
struct Source {
    block: Vec<u8>,
    left: u64,
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = buffer.len().min(self.block.len()).min(usize::try_from(self.left).unwrap_or(usize::MAX));
        buffer[..len].copy_from_slice(&self.block[..len]);
        self.left -= len as u64;
        Ok(len)
    }
}

/// Writes a file and reads it. Returns the bytes a second of each.
fn device_alone(dir: &Path, len: u64) -> Outcome<[f64; 2]> {
    let disk = Disk::open(dir, DiskOptions::default())?;
    let access = Access { write: true, create: true, direct: true, ..Access::default() };
    let file = disk.open("alone", access)?;
    let buffer = AlignedBuffer::new(REQUEST);
    let began = Instant::now();
    for offset in (0..len).step_by(2 * REQUEST) {
        let set = [0, REQUEST].map(|by| Write { file, offset: offset + by as u64, data: &buffer });
        disk.write(&set)?;
    }
    disk.sync(file)?;
    let written = len as f64 / began.elapsed().as_secs_f64();
    disk.close(file)?;
    let read = read_alone(dir, "alone")?;
    disk.remove("alone")?;
    Ok([written, read])
}

fn main() -> Outcome {
    let options = Options::parse();
    let dir = tempfile::tempdir_in(&options.dir)?;
    let all = options.mib << 20;
    let [device_in, device_out] = device_alone(dir.path(), all)?;
    let mib = |rate: f64| rate / f64::from(1 << 20);
    println!(
        "the device alone      in {:>6.0} MiB/s        out {:>6.0} MiB/s",
        mib(device_in),
        mib(device_out)
    );
    let mut block = vec![0; 1 << 20];
    StdRng::seed_from_u64(1).fill_bytes(&mut block);
    let db = Database::builder().memory(options.memory_mib << 20).open(dir.path().join("db"))?;
    let values = db.large_values("values")?;
    for (len, name) in [(128 << 10, "128 KiB"), (1 << 20, "1 MiB"), (16 << 20, "16 MiB"), (all, "all in one")]
    {
        let count = all / len;
        let began = Instant::now();
        for number in 0..count {
            values.insert_from(number.to_be_bytes(), Source { block: block.clone(), left: len })?;
        }
        let rate_in = all as f64 / began.elapsed().as_secs_f64();
        let began = Instant::now();
        for number in 0..count {
            let mut reader = values.get_reader(number.to_be_bytes())?.ok_or("it is there")?;
            std::io::copy(&mut reader, &mut std::io::sink())?;
        }
        let rate_out = all as f64 / began.elapsed().as_secs_f64();
        println!(
            "values of {name:10}  in {:>6.0} MiB/s ({:.2})  out {:>6.0} MiB/s ({:.2})",
            mib(rate_in),
            rate_in / device_in,
            mib(rate_out),
            rate_out / device_out
        );
    }
    let mut rng = StdRng::seed_from_u64(2);
    let began = Instant::now();
    for _ in 0..2000 {
        let from = rng.random_range(0..all - 4096);
        values.get_range(0u64.to_be_bytes(), from..from + 4096)?;
    }
    println!("ranges of 4 KiB: {:.0} a second", 2000.0 / began.elapsed().as_secs_f64());
    Ok(())
}
