//! The drives that are fitted to what papers measured of theirs, beside these figures (docs/flash.md says how they are fitted).
//!
//! `cargo run --release -p flash --example fitted`

use flash::{Content, FtlOptions, Profile, Request, Ssd, X25_E_OVER_PROVISION};
use psync::{Access, Device as _, FileId, Read, Volume as _, Write};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::HashSet;

const MIB: u64 = 1 << 20;

#[derive(Clone, Copy)]
struct Workload {
    name: &'static str,
    random: bool,
    writes: bool,
    bytes: u64,
    depth: usize,
    /// MB/s, in the paper.
    published: f64,
}

/// Sends requests one part after the other, each with a full queue: MB/s.
fn measure(ssd: &Ssd, (file, len): (FileId, u64), work: Workload, requests: u64) -> psync::Result<f64> {
    ssd.drain();
    let mut rng = StdRng::seed_from_u64(5);
    let slots = len / work.bytes;
    let part = (1024 * MIB / 16 / work.bytes).min(slots / 4).min(requests);
    let mut buffers = vec![vec![1_u8; work.bytes as usize]; part as usize];
    let (mut next, began) = (rng.random_range(0..slots), ssd.now());
    for _ in 0..requests / part {
        let mut taken = HashSet::new();
        let mut stream = Vec::new();
        for buffer in &mut buffers {
            let place = loop {
                next = if work.random { rng.random_range(0..slots) } else { (next + 1) % slots };
                if taken.insert(next) {
                    break next * work.bytes;
                }
            };
            stream.push(match work.writes {
                false => Request::Read(Read { file, offset: place, buffer }),
                true => Request::Write(Write { file, offset: place, data: buffer }),
            });
        }
        ssd.stream(&mut stream, work.depth)?;
    }
    let bytes = (requests / part * part * work.bytes) as f64;
    Ok(bytes / (ssd.now() - began).as_secs_f64() / 1e6)
}

/// A drive with a file of `len` bytes, written in sequence once, and then again at random places so many times over.
fn drive(
    mut profile: Profile,
    options: FtlOptions,
    share: f64,
    over: u64,
) -> psync::Result<(Ssd, FileId, u64)> {
    profile.rules.content = Content::Tags;
    let ssd = Ssd::new(profile, options, 1).expect("profiles are sound").with_pio_max(256);
    let file = ssd.open("file", Access { write: true, create: true, ..Access::default() })?;
    let len = (ssd.capacity() as f64 * share) as u64 / MIB * MIB;
    let chunk = vec![1; MIB as usize];
    for offset in (0..len).step_by(MIB as usize) {
        ssd.write(&[Write { file, offset, data: &chunk }])?;
    }
    let work = Workload { name: "", random: true, writes: true, bytes: 4096, depth: 32, published: 0.0 };
    if over > 0 {
        measure(&ssd, (file, len), work, over * len / 4096)?;
    }
    Ok((ssd, file, len))
}

fn told(drive: &str, work: Workload, found: f64) {
    let Workload { name, bytes, published, .. } = work;
    let off = (found / published - 1.0) * 100.0;
    println!(
        "{drive:8} {name:17} {:5} KiB: {published:6.1} MB/s published, {found:6.1} here, {off:+4.0} %",
        bytes >> 10
    );
}

fn main() -> psync::Result<()> {
    let spare: f64 =
        std::env::args().nth(1).and_then(|spare| spare.parse().ok()).unwrap_or(X25_E_OVER_PROVISION);
    let options = FtlOptions { over_provision: spare, ..FtlOptions::default() };
    let (ssd, file, len) = drive(Profile::x25_e(), options, 1.0, 0)?;
    for (name, random, writes, published) in [
        ("sequential read", false, false, [193.0, 206.0, 206.0, 206.0]),
        ("random read", true, false, [149.0, 192.0, 227.0, 256.0]),
        ("sequential write", false, true, [158.0, 188.0, 186.0, 175.0]),
        ("random write", true, true, [21.0, 22.0, 32.0, 40.0]),
    ] {
        for (size, published) in [4096, 8192, 16_384, 32_768].into_iter().zip(published) {
            let work = Workload { name, random, writes, bytes: size, depth: 32, published };
            let requests = if writes && !random { len / size } else { 40_000 };
            if writes && random && size == 4096 {
                // Written again at random places until its collector does the same all the time.
                measure(&ssd, (file, len), work, 3 * len / size)?;
            }
            told("X25-E", work, measure(&ssd, (file, len), work, requests)?);
        }
    }
    let (ssd, file, len) = drive(Profile::s470(), FtlOptions::default(), 0.25, 0)?;
    for (name, random, writes, bytes, published) in [
        ("sequential read", false, false, MIB, 225.0),
        ("sequential write", false, true, MIB, 66.5),
        ("random read", true, false, 4096, 16.5),
        ("random write", true, true, 4096, 20.0),
    ] {
        let work = Workload { name, random, writes, bytes, depth: 1, published };
        told("S470", work, measure(&ssd, (file, len), work, if random { 20_000 } else { 500 })?);
    }
    Ok(())
}
