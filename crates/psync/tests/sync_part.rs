//! The sync of a part of a file: on a real directory, where the device is to get no more than that, and on the simulated volume, where no
//! more than that survives.

mod disks;
mod mounted;

use disks::{BLOCK, NEW, NEW_DIRECT, noise, with_each};
#[cfg(target_os = "linux")]
use mounted::Mounted;
use psync::{
    Access, Device, Error, Fault, FileId, Filter, OperationKind, Read, Repeat, Simulated, Volume, Write,
};
#[cfg(target_os = "linux")]
use psync::{Disk, DiskOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

fn sync_part(volume: &dyn Volume, file: FileId, offset: u64, data: &[u8]) -> psync::Result<()> {
    volume.sync_part(Write { file, offset, data })
}

fn write(volume: &dyn Volume, file: FileId, offset: u64, data: &[u8]) {
    volume.write(&[Write { file, offset, data }]).expect("no fault is planned");
}

#[test]
fn it_changes_nothing_and_is_refused_where_a_write_is() {
    with_each(8, |disk, _| {
        for access in [NEW, NEW_DIRECT] {
            let file = disk.open("a", access).unwrap();
            let data = noise(1, 4 * BLOCK);
            write(disk, file, 0, &data);
            let before = disk.counters();
            sync_part(disk, file, BLOCK as u64, &data[BLOCK..3 * BLOCK]).unwrap();
            let done = disk.counters() - before;
            assert_eq!((done.write_sets, done.writes, done.bytes_written, done.syncs), (0, 0, 0, 1));
            let mut found = noise(3, data.len());
            disk.read(&mut [Read { file, offset: 0, buffer: &mut found }]).unwrap();
            assert!(found[..] == data[..] && disk.len(file).unwrap() == data.len() as u64);
        }
        let reader = disk.open("a", Access::default()).unwrap();
        assert!(matches!(sync_part(disk, reader, 0, b"no"), Err(Error::Invalid(_))));
        let file = disk.open("a", NEW).unwrap();
        assert!(matches!(sync_part(disk, file, 0, b""), Err(Error::Invalid(_))));
        assert!(matches!(sync_part(disk, file, u64::MAX, b"no"), Err(Error::Invalid(_))));
        disk.close(file).unwrap();
        assert!(matches!(sync_part(disk, file, 0, b"no"), Err(Error::Invalid(_))));
    });
}

/// Bytes that the device has taken which this directory is on.
#[cfg(target_os = "linux")]
fn taken(dir: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let number = std::fs::metadata(dir).expect("it is there").dev();
    let (major, minor) = (libc::major(number), libc::minor(number));
    let stat =
        std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).expect("a device's counts");
    stat.split_whitespace().nth(6).and_then(|sectors| sectors.parse::<u64>().ok()).expect("a number") * 512
}

/// A new file with a header and much behind it, all of it in the page cache: the device gets the header and some metadata. The kernel may
/// write the rest whenever it likes, and does where the pages of others wait for a slow disk: what another file's come to says whether a try
/// counts.
#[test]
#[cfg(target_os = "linux")]
fn the_device_gets_no_more_than_that() {
    const BEHIND: u64 = 4 << 20;
    /// Metadata may come to so many bytes.
    const MUCH: u64 = 512 << 10;
    const COUNTED: usize = 10;
    /// Then nothing is found out here.
    const GIVEN_UP: Duration = Duration::from_secs(60);
    for options in ["data=ordered", "data=writeback"] {
        let Some(mounted) = Mounted::ext4(options) else { return };
        let disk = Disk::open(mounted.path(), DiskOptions::default()).unwrap();
        let attempt = || {
            let file = disk.open("log", Access { create_new: true, ..NEW }).unwrap();
            disk.sync_directory().unwrap();
            let header = [7; 80];
            write(&disk, file, 0, &header);
            write(&disk, file, 80, &noise(1, BEHIND as usize));
            let before = taken(mounted.path());
            sync_part(&disk, file, 0, &header).unwrap();
            disk.sync_directory().unwrap();
            let part = taken(mounted.path());
            disk.sync(file).unwrap();
            let whole = taken(mounted.path());
            disk.close(file).unwrap();
            disk.remove("log").unwrap();
            (part - before, whole - part)
        };
        let is_right = |(part, rest): &(u64, u64)| (1024..MUCH).contains(part) && *rest >= BEHIND;
        // As long as nobody syncs it.
        let kernel_writes_in = |time| {
            let before = taken(mounted.path());
            let file = disk.open("other", Access { create_new: true, ..NEW }).unwrap();
            write(&disk, file, 0, &noise(2, BEHIND as usize));
            std::thread::sleep(time);
            let written = taken(mounted.path()) - before;
            disk.sync(file).unwrap();
            disk.close(file).unwrap();
            disk.remove("other").unwrap();
            written > MUCH
        };
        let (began, mut tries) = (Instant::now(), Vec::new());
        loop {
            let begun = Instant::now();
            let found = attempt();
            if is_right(&found) {
                break;
            }
            if !kernel_writes_in(begun.elapsed()) {
                tries.push(found);
                assert!(tries.len() < COUNTED, "{options}: {tries:?}");
            } else if began.elapsed() > GIVEN_UP {
                eprintln!("SKIPPED: the kernel writes at once here, for all the machine's dirty pages");
                break;
            } else {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

/// Where it cannot be had, all of the file is synced, which files that the kernel makes up cannot be.
#[test]
#[cfg(target_os = "linux")]
fn elsewhere_the_file_is_synced() {
    let options = DiskOptions { create: false, direct: false, ..DiskOptions::default() };
    let disk = Disk::open("/proc/self", options).unwrap();
    let file = disk.open("oom_score_adj", Access { write: true, ..Access::default() }).unwrap();
    let before = disk.counters();
    let refused = sync_part(&disk, file, 0, b"not even a number").unwrap_err();
    assert!(matches!(refused, Error::Io { operation: "sync", offset: None, .. }), "{refused}");
    assert_eq!((disk.counters() - before).syncs, 1);
    let Some(mounted) = Mounted::in_memory("ramfs") else { return };
    let disk = Disk::open(mounted.path(), DiskOptions::default()).unwrap();
    let file = disk.open("a", NEW).unwrap();
    write(&disk, file, 0, b"in memory");
    sync_part(&disk, file, 0, b"in memory").unwrap();
}

/// On a full disk it is done as on others.
#[test]
#[cfg(target_os = "linux")]
fn it_needs_no_space() {
    let mounted = [Mounted::ext4("defaults"), Mounted::in_memory("tmpfs")];
    for mounted in mounted.into_iter().flatten() {
        let disk = Disk::open(mounted.path(), DiskOptions::default()).unwrap();
        let [log, other] = ["log", "other"].map(|name| disk.open(name, NEW).unwrap());
        write(&disk, log, 0, &[7; 80]);
        let chunk = noise(1, 64 << 10);
        let mut at = 0;
        for len in [chunk.len(), 4096, 512] {
            while disk.write(&[Write { file: other, offset: at, data: &chunk[..len] }]).is_ok() {
                at += len as u64;
            }
        }
        sync_part(&disk, log, 0, &[7; 80]).unwrap();
        disk.sync(log).unwrap();
    }
}

const LEN: usize = 12 * 1024;

/// A file of random changes, and what must be found of it.
struct Changed {
    volume: Simulated,
    file: FileId,
    now: Vec<u8>,
    /// Bytes that are durable and were not touched since.
    promised: Vec<bool>,
}

impl Changed {
    fn new(seed: u64) -> Self {
        let volume = Simulated::new(seed);
        let file = volume.open("a", NEW).expect("no fault is planned");
        volume.sync_directory().expect("no fault is planned");
        Self { volume, file, now: Vec::new(), promised: vec![false; LEN] }
    }

    fn change(&mut self, step: u8, rng: &mut StdRng) {
        let (volume, file) = (&self.volume, self.file);
        let offset = rng.random_range(0..LEN - 1);
        let end = rng.random_range(offset + 1..=(offset + 3000).min(LEN));
        match rng.random_range(0..12) {
            kind @ 0..8 => {
                let data = vec![step; end - offset];
                write(volume, file, offset as u64, &data);
                if kind < 4 {
                    sync_part(volume, file, offset as u64, &data).expect("no fault is planned");
                }
                self.promised[offset..end].fill(kind < 4);
                self.now.resize(self.now.len().max(end), 0);
                self.now[offset..end].copy_from_slice(&data);
            }
            8 | 9 => {
                volume.resize(file, offset as u64).expect("no fault is planned");
                self.now.resize(offset, 0);
                self.promised[offset..].fill(false);
            }
            _ => {
                volume.release(file, offset as u64..end as u64).expect("no fault is planned");
                let end = end.min(self.now.len());
                if offset < end {
                    self.now[offset..end].fill(0);
                    self.promised[offset..end].fill(false);
                }
            }
        }
    }
}

/// Whatever else was done to the file before and after.
#[test]
fn the_part_is_there_after_power_loss_and_the_rest_may_be_gone() {
    let (mut gone, mut whole) = (0, 0);
    for seed in 0..300 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut changed = Changed::new(seed);
        for step in 1..30_u8 {
            changed.change(step, &mut rng);
            for loss in 0..6 {
                let found = changed.volume.power_loss(loss).read_file("a").unwrap();
                let story = format!("seed {seed}, step {step}, loss {loss}");
                for (at, _) in changed.promised.iter().enumerate().filter(|(_, promised)| **promised) {
                    assert_eq!(found.get(at), changed.now.get(at), "{story}, byte {at}");
                }
                whole += u32::from(found == changed.now);
                gone += u32::from(found.len() < changed.now.len());
            }
        }
        // What was not durable is listed still.
        changed.volume.sync(changed.file).unwrap();
        for loss in 0..6 {
            assert!(changed.volume.power_loss(loss).read_file("a").unwrap() == changed.now, "seed {seed}");
        }
        assert!(changed.volume.read_file("a").unwrap() == changed.now, "seed {seed}");
    }
    assert!(gone > 1000 && whole > 1000, "{gone} {whole}");
}

/// The header of a log, say, with records in the same page and behind it.
#[test]
fn no_more_than_that_is_sure() {
    let (mut longer, mut exact, mut torn) = (0, 0, 0);
    for loss in 0..200 {
        let volume = Simulated::new(loss);
        let file = volume.open("a", NEW).unwrap();
        volume.sync_directory().unwrap();
        write(&volume, file, 0, &[1; 80]);
        write(&volume, file, 80, &[2; 5000]);
        write(&volume, file, 5080, &[2; 5000]);
        sync_part(&volume, file, 0, &[1; 80]).unwrap();
        let found = volume.power_loss(loss).read_file("a").unwrap();
        assert!(found.starts_with(&[1; 80]) && found[80..].iter().all(|byte| [0, 2].contains(byte)));
        exact += u32::from(found.len() == 80);
        longer += u32::from(found.len() > 80);
        torn += u32::from(found[80..].contains(&0));
    }
    assert!(exact > 20 && longer > 50 && torn > 20, "{exact} {longer} {torn}");
}

#[test]
fn its_faults_are_those_of_a_sync() {
    for fault in [Fault::Error, Fault::NoSpace, Fault::PowerOff] {
        let volume = Simulated::new(1);
        let file = volume.open("a", NEW).unwrap();
        volume.fail_nth(Filter::kinds([OperationKind::Sync]).file("a"), 2, fault, Repeat::Once);
        write(&volume, file, 0, b"header");
        let before = (volume.operations(), volume.counters());
        sync_part(&volume, file, 0, b"header").unwrap();
        let done = volume.counters() - before.1;
        assert_eq!((volume.operations() - before.0, done.syncs, done.writes), (1, 1, 0));
        let failed = sync_part(&volume, file, 0, b"header").unwrap_err();
        assert_eq!(failed.is_full(), fault == Fault::NoSpace, "{failed}");
        assert_eq!(volume.is_off(), fault == Fault::PowerOff);
        assert_eq!(sync_part(&volume, file, 0, b"header").is_err(), volume.is_off());
    }
}

/// The pages that it was to write are clean then, and no later sync writes them; others are as dirty as before.
#[test]
fn after_a_failure_a_later_sync_saves_nothing_of_its_pages() {
    let mut lost = 0;
    for seed in 0..60 {
        let volume = Simulated::new(seed);
        let file = volume.open("a", NEW).unwrap();
        volume.sync_directory().unwrap();
        write(&volume, file, 0, &[1; 8192]);
        volume.sync(file).unwrap();
        write(&volume, file, 0, &[2; 8192]);
        volume.fail_nth(OperationKind::Sync, 1, Fault::Error, Repeat::Once);
        sync_part(&volume, file, 0, &[2; 80]).unwrap_err();
        volume.sync(file).unwrap();
        let found = volume.power_loss(seed).read_file("a").unwrap();
        assert!(found[4096..].iter().all(|byte| *byte == 2));
        assert!(found[..4096] == [2; 4096] || found[..4096] == [1; 4096]);
        lost += u32::from(found[0] == 1);
    }
    assert!((15..45).contains(&lost), "{lost} of 60");
}
