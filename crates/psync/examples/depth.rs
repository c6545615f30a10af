//! Random reads a second by backend, request size, alignment and depth, on a scratch file in the directory given.
//!
//! `cargo run --release -p psync --example depth -- DIR`

use psync::{Access, AlignedBuffer, Backend, Device, Disk, DiskOptions, Read, Volume, Write};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::time::{Duration, Instant};

const LEN: u64 = 1 << 30;

fn main() -> psync::Result<()> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let dir = tempfile::tempdir_in(dir).expect("a scratch directory");
    let disk = Disk::open(dir.path(), DiskOptions::default())?;
    let file =
        disk.open("scratch", Access { write: true, create: true, direct: true, ..Access::default() })?;
    let mut buffer = AlignedBuffer::new(4 << 20);
    StdRng::seed_from_u64(8).fill(&mut buffer[..]);
    for index in 0..LEN / (4 << 20) {
        disk.write(&[Write { file, offset: index * (4 << 20), data: &buffer }])?;
    }
    disk.sync(file)?;
    println!("{:?}", disk.limits());
    for backend in [Backend::Uring, Backend::Libaio, Backend::Threads] {
        let disk = match Disk::open(dir.path(), DiskOptions { backend, ..DiskOptions::default() }) {
            Ok(disk) => disk,
            Err(error) => {
                println!("{backend}: {error}");
                continue;
            }
        };
        let file = disk.open("scratch", Access { direct: true, ..Access::default() })?;
        for (len, step) in [(4096, 4096), (4608, 512), (8192, 4096), (8192, 512), (8704, 512), (16384, 4096)]
        {
            print!("{backend:<9} {len:>6} bytes at multiples of {step:>4}:");
            for depth in [1, 4, 8, 16, 64] {
                print!("  {depth:>2}: {:>7.0}/s", rate(&disk, file, depth, len, step)?);
            }
            println!();
        }
    }
    Ok(())
}

fn rate(disk: &Disk, file: psync::FileId, depth: usize, len: usize, step: u64) -> psync::Result<f64> {
    let mut rng = StdRng::seed_from_u64(9);
    let mut buffers: Vec<_> = (0..depth).map(|_| AlignedBuffer::new(len)).collect();
    let began = Instant::now();
    let mut done = 0;
    while began.elapsed() < Duration::from_millis(300) {
        let mut set: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| Read {
                file,
                offset: rng.random_range(0..(LEN - len as u64) / step) * step,
                buffer,
            })
            .collect();
        disk.read(&mut set)?;
        done += depth;
    }
    Ok(done as f64 / began.elapsed().as_secs_f64())
}
