//! What the drives come to: parallelism, the measured disk, interference. All of it in virtual time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use flash::{Content, FtlOptions, Profile, Request, RequestKind, Rules, Ssd};
use psync::{Access, Device, FileId, Read, Volume, Write};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::time::Duration;

/// A drive with one file of so many bytes, written once.
fn filled(profile: Profile, bytes: u64) -> (Ssd, FileId) {
    let rules = Rules { content: Content::Tags, ..profile.rules };
    let geometry = flash::Geometry { spare_bytes: 32, ..profile.geometry };
    let drive = Ssd::new(Profile { rules, geometry, ..profile }, FtlOptions::default(), 1).unwrap();
    let file = drive.open("data", Access { write: true, create: true, ..Access::default() }).unwrap();
    let chunk = vec![0; 1 << 20];
    for offset in (0..bytes).step_by(chunk.len()) {
        drive.write(&[Write { file, offset, data: &chunk }]).unwrap();
    }
    drive.sync(file).unwrap();
    drive.drain();
    (drive, file)
}

const SPACE: u64 = 256 << 20;

/// Different places for requests of one size.
fn places(rng: &mut SmallRng, count: usize, bytes: u64) -> Vec<u64> {
    rand::seq::index::sample(rng, (SPACE / bytes) as usize, count)
        .iter()
        .map(|at| at as u64 * bytes)
        .collect()
}

/// Requests a second of one psync set after the other.
fn rate(drive: &Ssd, file: FileId, depth: usize, bytes: usize, writes: bool) -> f64 {
    let mut rng = SmallRng::seed_from_u64(depth as u64);
    let sets = (4096 / depth).max(40);
    let mut buffers = vec![vec![0; bytes]; depth];
    let drive = drive.clone().with_pio_max(depth.max(64));
    drive.drain();
    let began = drive.now();
    for _ in 0..sets {
        let places = places(&mut rng, depth, bytes as u64);
        let set = buffers.iter_mut().zip(places);
        if writes {
            let set: Vec<_> = set.map(|(data, offset)| Write { file, offset, data }).collect();
            drive.write(&set).unwrap();
        } else {
            let mut set: Vec<_> = set.map(|(buffer, offset)| Read { file, offset, buffer }).collect();
            drive.read(&mut set).unwrap();
        }
    }
    (sets * depth) as f64 / (drive.now() - began).as_secs_f64()
}

/// Reads and writes of one caller, a request after the other; each `third` one writes.
fn work(drive: &Ssd, file: FileId, seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut buffer = vec![0; 4096];
    for (index, offset) in places(&mut rng, 300, 4096).into_iter().enumerate() {
        if index % 3 == 0 {
            drive.write(&[Write { file, offset, data: &buffer }]).unwrap();
        } else {
            drive.read(&mut [Read { file, offset, buffer: &mut buffer }]).unwrap();
        }
    }
}

#[test]
fn a_caller_alone_takes_as_long_as_ever_and_many_share_the_drive() {
    let took = |callers: u64| {
        let (drive, file) = filled(Profile::ssdsim(), SPACE);
        let began = drive.now();
        let mut todo: Vec<_> = (0..callers)
            .map(|seed| {
                let ((), batches) = drive.deferring(|| work(&drive, file, seed));
                assert_eq!((batches.len(), drive.now()), (300, began), "no time passes");
                batches.into_iter()
            })
            .collect();
        let mut waiting = std::collections::HashMap::new();
        for (caller, todo) in todo.iter_mut().enumerate() {
            waiting.insert(drive.submit(todo.next().unwrap()), caller);
        }
        while let Some(ticket) = drive.next_answered() {
            let caller = waiting.remove(&ticket).unwrap();
            if let Some(batch) = todo[caller].next() {
                waiting.insert(drive.submit(batch), caller);
            }
        }
        assert!(waiting.is_empty() && todo.iter().all(|todo| todo.len() == 0));
        drive.now() - began
    };
    let (drive, file) = filled(Profile::ssdsim(), SPACE);
    let began = drive.now();
    work(&drive, file, 0);
    assert_eq!(took(1), drive.now() - began);
    let gain = 16.0 * took(1).as_secs_f64() / took(16).as_secs_f64();
    assert!(
        (6.0..16.0).contains(&gain),
        "16 callers at once are {gain} times as fast as one after the other"
    );
}

#[test]
fn the_default_drive_gains_ten_times_from_depth_64() {
    let (drive, file) = filled(Profile::ssdsim(), SPACE);
    for writes in [false, true] {
        let rates = [1, 2, 4, 8, 16, 32, 64, 128].map(|depth| rate(&drive, file, depth, 4096, writes));
        println!("writes {writes}: {}", rates.map(|rate| format!("{:.0}", rate)).join(" "));
        assert!(rates[6] / rates[0] >= 10.0, "gain {:.1}", rates[6] / rates[0]);
        assert!(rates.windows(2).all(|pair| pair[1] >= 0.95 * pair[0]), "{rates:?}");
        assert!(writes || rates[5] >= 0.8 * rates[6], "depth 32 gives most of it: {rates:?}");
    }
    let latency = |bytes| 1e6 / rate(&drive, file, 1, bytes, false);
    let by_size = [512, 4096, 8192, 16_384, 32_768, 65_536, 262_144].map(latency);
    println!("us by size: {}", by_size.map(|us| format!("{us:.0}")).join(" "));
    assert!(by_size[2] < 2.0 * by_size[1] && by_size[3] <= 3.0 * by_size[1]);
}

#[test]
fn the_host_profile_has_the_measured_rates() {
    let (drive, file) = filled(Profile::host(), SPACE);
    let reads = [(1, 18e3), (4, 46e3), (16, 76e3), (32, 84e3), (64, 88e3), (128, 90e3)];
    let writes = [(1, 15e3), (8, 51e3), (32, 68e3), (64, 76e3)];
    for (depth, measured) in reads {
        let found = rate(&drive, file, depth, 4096, false);
        println!("reads at {depth}: {found:.0} for {measured}");
        assert!((found / measured - 1.0).abs() < 0.15, "reads at {depth}: {found} for {measured}");
    }
    for (depth, measured) in writes {
        let found = rate(&drive, file, depth, 4096, true);
        println!("writes at {depth}: {found:.0} for {measured}");
        assert!((found / measured - 1.0).abs() < 0.15, "writes at {depth}: {found} for {measured}");
    }
}

/// Reads and writes, `depth` of them outstanding: `run` reads, then as many writes, and so on.
fn mixed(drive: &Ssd, file: FileId, depth: usize, run: usize) -> Duration {
    let mut rng = SmallRng::seed_from_u64(depth as u64);
    let total = 4096;
    let places = places(&mut rng, total, 4096);
    let mut buffers = vec![[0; 4096]; total];
    let mut requests: Vec<_> = buffers
        .iter_mut()
        .zip(&places)
        .enumerate()
        .map(|(number, (buffer, offset))| match number / run % 2 {
            0 => Request::Read(Read { file, offset: *offset, buffer }),
            _ => Request::Write(Write { file, offset: *offset, data: buffer }),
        })
        .collect();
    drive.drain();
    let began = drive.now();
    drive.stream(&mut requests, depth).unwrap();
    drive.now() - began
}

#[test]
fn reads_and_writes_in_groups_are_faster_than_alternating() {
    let (drive, file) = filled(Profile::ssdsim(), SPACE);
    let ratios = [8, 16, 32, 64].map(|depth| {
        mixed(&drive, file, depth, 1).as_secs_f64() / mixed(&drive, file, depth, depth).as_secs_f64()
    });
    println!("grouped over alternating at 8, 16, 32, 64: {}", ratios.map(|r| format!("{r:.3}")).join(" "));
    assert!(ratios[3] >= 1.1 && ratios.windows(2).all(|pair| pair[1] >= 0.99 * pair[0]), "{ratios:?}");
}

#[test]
fn the_openssd_board_has_its_measured_bandwidths() {
    let (drive, file) = filled(Profile::open_ssd(), SPACE);
    let mut buffer = vec![0; 32_768];
    let began = drive.now();
    for offset in (0..64 << 20).step_by(buffer.len()) {
        drive.read(&mut [Read { file, offset, buffer: &mut buffer }]).unwrap();
    }
    let between = drive.now();
    for offset in (0..64 << 20).step_by(buffer.len()) {
        drive.write(&[Write { file, offset, data: &buffer }]).unwrap();
    }
    let sequential = |time: Duration| f64::from(64 << 20) / 1e6 / time.as_secs_f64();
    let random = |writes| rate(&drive, file, 1, 4096, writes) * 4096.0 / 1e6;
    let found = [sequential(between - began), sequential(drive.now() - between), random(false), random(true)];
    println!("MB/s sequential read, write, random read, write: {found:.1?}");
    for (found, measured) in found.into_iter().zip([66.5, 22.0, 10.5, 2.5]) {
        assert!((found / measured - 1.0).abs() < 0.25, "{found} for {measured} MB/s");
    }
}

#[test]
fn every_profile_makes_a_drive() {
    for profile in [
        Profile::ssdsim(),
        Profile::slc_2007(),
        Profile::mlc_2010(),
        Profile::open_ssd(),
        Profile::tlc_2020(),
        Profile::host(),
    ] {
        let name = profile.name.clone();
        let (drive, file) = filled(profile, SPACE);
        drive.reset_latencies();
        let found = rate(&drive, file, 16, 4096, false);
        let latency = drive.latency(RequestKind::Read);
        println!("{name}: {found:.0} reads a second at depth 16, {latency:?}");
        assert!(latency.p50 <= latency.p99 && latency.p99 <= latency.max && latency.count == 256 * 16);
    }
}
