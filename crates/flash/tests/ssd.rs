//! The simulated drive keeps the contract of psync's devices: the same operations give the same answers and the same bytes
//! as psync's own simulated volume, and power loss leaves what the drive promises.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use flash::ftl::garbage_collection::Victims;
use flash::{Faults, FtlOptions, Geometry, Profile, RequestKind, Ssd};
use psync::{Access, Device, Error, FileId, Read, Simulated, Volume, Write};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

const NAMES: [&str; 4] = ["a", "b", "c", "long-name"];

fn small(blocks_per_plane: u32) -> Profile {
    let geometry = Geometry {
        channels: 2,
        dies_per_channel: 2,
        planes: 1,
        blocks_per_plane,
        pages_per_block: 16,
        page_bytes: 512,
        spare_bytes: 16,
    };
    Profile { geometry, ..Profile::ssdsim() }
}

fn options() -> FtlOptions {
    FtlOptions { over_provision: 0.28, victims: Victims::Greedy, ..FtlOptions::default() }
}

fn access() -> Access {
    Access { write: true, create: true, ..Access::default() }
}

/// What two volumes must agree on about an answer: the error's kind, not its words.
fn kind<T: PartialEq + std::fmt::Debug>(
    answer: Result<T, Error>,
) -> Result<T, std::mem::Discriminant<Error>> {
    answer.map_err(|error| std::mem::discriminant(&error))
}

fn read_all(volume: &dyn Volume, file: FileId, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
    let mut buffer = vec![0xee; len];
    volume.read(&mut [Read { file, offset, buffer: &mut buffer }])?;
    Ok(buffer)
}

fn whole(volume: &dyn Volume, name: &str) -> Vec<u8> {
    let file = volume.open(name, Access::default()).unwrap();
    let len = volume.len(file).unwrap() as usize;
    let bytes = if len == 0 { Vec::new() } else { read_all(volume, file, 0, len).unwrap() };
    volume.close(file).unwrap();
    bytes
}

#[test]
fn it_answers_as_psyncs_simulated_volume_does() {
    for seed in 0..40 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (drive, model) = (Ssd::new(small(40), options(), seed).unwrap(), Simulated::new(seed));
        // Open files of both, side by side.
        let mut open: Vec<(FileId, FileId)> = Vec::new();
        for step in 0..600 {
            let story = format!("seed {seed}, step {step}");
            let name = NAMES[rng.random_range(0..NAMES.len())];
            let other = NAMES[rng.random_range(0..NAMES.len())];
            let offset = rng.random_range(0..12_000);
            let len = rng.random_range(0..3000);
            if open.is_empty() || rng.random_range(0..10) == 0 {
                let access = Access { create: rng.random(), create_new: rng.random_bool(0.2), ..access() };
                match (drive.open(name, access), model.open(name, access)) {
                    (Ok(one), Ok(two)) => open.push((one, two)),
                    (one, two) => assert_eq!(kind(one.map(|_| ())), kind(two.map(|_| ())), "{story}"),
                }
                continue;
            }
            let at = rng.random_range(0..open.len());
            let (one, two) = open[at];
            match rng.random_range(0..14) {
                0..5 => {
                    let data: Vec<u8> = (0..2 * len).map(|_| rng.random()).collect();
                    let gap = rng.random_range(0..len as u64 + 10);
                    let set = |file| {
                        let second = offset + gap;
                        [
                            Write { file, offset, data: &data[..len] },
                            Write { file, offset: second, data: &data[len..] },
                        ]
                    };
                    assert_eq!(kind(drive.write(&set(one))), kind(model.write(&set(two))), "write: {story}");
                }
                5..8 => {
                    let answers = (read_all(&drive, one, offset, len), read_all(&model, two, offset, len));
                    assert_eq!(kind(answers.0), kind(answers.1), "read: {story}");
                }
                8 => assert_eq!(kind(drive.resize(one, offset)), kind(model.resize(two, offset)), "{story}"),
                9 => {
                    let range = offset..offset + len as u64;
                    let answers = (drive.release(one, range.clone()), model.release(two, range));
                    assert_eq!(kind(answers.0), kind(answers.1), "release: {story}");
                }
                10 => assert_eq!(kind(drive.remove(name)), kind(model.remove(name)), "remove: {story}"),
                11 => {
                    let answers = (drive.rename(name, other), model.rename(name, other));
                    assert_eq!(kind(answers.0), kind(answers.1), "rename: {story}");
                }
                12 => {
                    open.swap_remove(at);
                    assert_eq!(kind(drive.close(one)), kind(model.close(two)), "close: {story}");
                    assert_eq!(kind(drive.len(one)), kind(model.len(two)), "closed: {story}");
                }
                _ => assert_eq!(kind(drive.sync(one)), kind(model.sync(two)), "sync: {story}"),
            }
            assert_eq!(drive.list().unwrap(), model.list().unwrap(), "{story}");
        }
        for entry in model.list().unwrap() {
            assert_eq!(whole(&drive, &entry.name), whole(&model, &entry.name), "seed {seed}, {}", entry.name);
        }
        assert_eq!(drive.counters(), model.counters(), "seed {seed}");
    }
}

/// What is known of the files of a drive that may lose power.
#[derive(Clone, Default)]
struct Known {
    durable: BTreeMap<&'static str, Vec<u8>>,
    seen: BTreeMap<&'static str, Vec<u8>>,
}

/// Writes whole files under new names, renames them over old ones, syncs: what stores do. At any crash a file that was
/// renamed into place is there whole, the newest that was synced or a newer one.
#[test]
fn what_was_synced_is_there_after_power_loss() {
    let (mut losses, mut files) = (0, 0);
    for seed in 0..50 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut drive = Ssd::new(small(8), options(), seed).unwrap();
        let mut known = Known::default();
        for loss in 0..20 {
            let story = format!("seed {seed}, loss {loss}");
            drive.cut_power_at(rng.random_range(1..300));
            let result = (0..).try_for_each(|_| step(&drive, &mut rng, &mut known));
            assert!(matches!(result, Err(Error::Io { .. })), "{story}: {result:?}");
            assert!(drive.is_off() && drive.list().is_err(), "{story}");
            drive = drive.power_loss(rng.random()).unwrap_or_else(|error| panic!("{story}: {error}"));
            losses += 1;
            let mut found = BTreeMap::new();
            for name in NAMES {
                let there = drive.list().unwrap().iter().any(|entry| entry.name == name);
                if there {
                    found.insert(name, whole(&drive, name));
                }
            }
            // One journal: what is found is the state at the last sync, or at the one that was under way.
            assert!(found == known.durable || found == known.seen, "{story}: {:?}", drive.list());
            files += found.len();
            known = Known { durable: found.clone(), seen: found };
        }
    }
    assert!(losses == 1000 && files > 1000, "{files} files after {losses} losses");
}

fn step(drive: &Ssd, rng: &mut SmallRng, known: &mut Known) -> Result<(), Error> {
    let name = NAMES[rng.random_range(0..NAMES.len())];
    match rng.random_range(0..6) {
        0 => {
            if known.seen.remove(name).is_some() {
                drive.remove(name)?;
            }
        }
        1 | 2 => {
            drive.sync_directory()?;
            known.durable = known.seen.clone();
        }
        _ => {
            let len = rng.random_range(1..18_000);
            let data: Vec<u8> = (0..len).map(|_| rng.random()).collect();
            let file = drive.open("new", access())?;
            drive.resize(file, 0)?;
            let half = len / 2;
            if half > 0 {
                drive.write(&[Write { file, offset: 0, data: &data[..half] }])?;
            }
            drive.write(&[Write { file, offset: half as u64, data: &data[half..] }])?;
            drive.close(file)?;
            known.seen.insert(name, data);
            drive.rename("new", name)?;
        }
    }
    Ok(())
}

#[test]
fn overwrites_are_durable_without_a_sync() {
    let drive = Ssd::new(small(12), options(), 1).unwrap();
    let file = drive.open("a", access()).unwrap();
    drive.write(&[Write { file, offset: 0, data: &[1; 4096] }]).unwrap();
    drive.sync(file).unwrap();
    drive.write(&[Write { file, offset: 512, data: &[2; 1024] }]).unwrap();
    drive.write(&[Write { file, offset: 4096, data: &[3; 512] }]).unwrap();
    for seed in 0..20 {
        let found = whole(&drive.power_loss(seed).unwrap(), "a");
        assert_eq!(found, [vec![1; 512], vec![2; 1024], vec![1; 2560]].concat());
    }
    // What was lost behind the end does not come back when the file grows.
    let found = drive.power_loss(0).unwrap();
    let file = found.open("a", access()).unwrap();
    found.resize(file, 6000).unwrap();
    assert_eq!(whole(&found, "a")[4096..], [0; 1904]);
}

#[test]
fn bytes_behind_the_durable_end_are_zeros_when_the_file_grows() {
    let drive = Ssd::new(small(12), options(), 1).unwrap();
    let file = drive.open("a", access()).unwrap();
    drive.write(&[Write { file, offset: 0, data: &[1; 100] }]).unwrap();
    drive.sync(file).unwrap();
    drive.write(&[Write { file, offset: 100, data: &[2; 100] }]).unwrap();
    let found = drive.power_loss(0).unwrap();
    let file = found.open("a", access()).unwrap();
    assert_eq!(found.len(file).unwrap(), 100);
    found.write(&[Write { file, offset: 150, data: &[3; 10] }]).unwrap();
    assert_eq!(whole(&found, "a"), [vec![1; 100], vec![0; 50], vec![3; 10]].concat());
}

#[test]
fn what_a_file_was_cut_from_is_used_again_only_after_a_commit() {
    let drive = Ssd::new(small(12), options(), 1).unwrap();
    let file = drive.open("a", access()).unwrap();
    drive.write(&[Write { file, offset: 0, data: &[1; 700] }]).unwrap();
    drive.sync(file).unwrap();
    drive.resize(file, 600).unwrap();
    let other = drive.open("b", access()).unwrap();
    // All that is free: the first file has two pages, and the cut one has a third.
    for page in 0..drive.capacity() / 512 - 3 {
        drive.write(&[Write { file: other, offset: page * 512, data: &[2; 512] }]).unwrap();
    }
    assert_eq!(whole(&drive.power_loss(0).unwrap(), "a"), [1; 700]);
    drive.sync(file).unwrap();
    assert_eq!(whole(&drive.power_loss(0).unwrap(), "a"), [1; 600]);
}

#[test]
fn a_full_drive_says_so_and_space_comes_back() {
    let drive = Ssd::new(small(12), options(), 1).unwrap();
    let file = drive.open("a", access()).unwrap();
    let pages = drive.capacity() / 512;
    for page in 0..pages {
        drive.write(&[Write { file, offset: page * 512, data: &[page as u8; 512] }]).unwrap();
    }
    let more = drive.write(&[Write { file, offset: pages * 512, data: &[1; 512] }]);
    assert!(more.unwrap_err().is_full());
    drive.write(&[Write { file, offset: 0, data: &[9; 512] }]).unwrap();
    drive.release(file, 1024..512 * pages).unwrap();
    let other = drive.open("b", access()).unwrap();
    for page in 0..pages - 2 {
        drive.write(&[Write { file: other, offset: page * 512, data: &[7; 512] }]).unwrap();
    }
    let found = drive.power_loss(3).unwrap();
    assert_eq!(whole(&found, "a")[..1536], [[9; 512], [1; 512], [0; 512]].concat());
}

/// The space of a file that was removed while it was open comes back when it is closed, although no change waits for a commit then.
#[test]
fn a_full_drive_takes_back_what_was_removed_before_it_was_closed() {
    for trim in [true, false] {
        let drive = Ssd::new(Profile { trim, ..small(12) }, options(), 1).unwrap();
        let (file, other) = (drive.open("a", access()).unwrap(), drive.open("b", access()).unwrap());
        let pages = drive.capacity() / 512;
        for page in 0..pages {
            drive.write(&[Write { file, offset: page * 512, data: &[7; 512] }]).unwrap();
        }
        drive.remove("a").unwrap();
        drive.sync_directory().unwrap();
        drive.close(file).unwrap();
        for page in 0..pages {
            drive.write(&[Write { file: other, offset: page * 512, data: &[page as u8; 512] }]).unwrap();
        }
        drive.sync(other).unwrap();
        assert_eq!(whole(&drive.power_loss(3).unwrap(), "b")[512..1024], [1; 512]);
    }
}

/// A trim follows the removal when the file is closed, with the next sync: nothing else has to change for that.
#[test]
fn a_sync_trims_what_was_removed_before_it_was_closed() {
    let drive = Ssd::new(small(32), options(), 1).unwrap();
    let live = || drive.blocks().iter().filter_map(|block| block.live).sum::<u32>();
    let file = drive.open("a", access()).unwrap();
    drive.write(&[Write { file, offset: 0, data: &[1; 64 * 512] }]).unwrap();
    drive.remove("a").unwrap();
    drive.sync_directory().unwrap();
    let before = live();
    drive.close(file).unwrap();
    drive.sync_directory().unwrap();
    assert!(live() + 64 <= before, "{} of {before}", live());
}

/// What a write has put behind the file's end before the drive was full is not there when the file grows: neither on the same
/// drive nor after power loss, when a commit in the midst of the write has made a part of it durable.
#[test]
fn bytes_of_a_write_that_failed_are_zeros_when_the_file_grows() {
    for (begin, freed) in [512, 100].into_iter().flat_map(|begin| [(begin, 0), (begin, 1)]) {
        let story = format!("from {begin} on, {freed} pages come back with a commit");
        let drive = Ssd::new(small(12), options(), 1).unwrap();
        let (file, other) = (drive.open("a", access()).unwrap(), drive.open("b", access()).unwrap());
        drive.write(&[Write { file, offset: 0, data: &[1; 512][..begin] }]).unwrap();
        let pages = drive.capacity() / 512;
        for page in 0..pages - 3 {
            drive.write(&[Write { file: other, offset: page * 512, data: &[7; 512] }]).unwrap();
        }
        drive.sync(file).unwrap();
        if freed > 0 {
            drive.release(other, 0..freed * 512).unwrap();
        }
        let more = drive.write(&[Write { file, offset: begin as u64, data: &[9; 6 * 512] }]);
        assert!(more.unwrap_err().is_full(), "{story}");
        assert_eq!(drive.len(file).unwrap(), begin as u64, "{story}");
        for drive in [drive.power_loss(0).unwrap(), drive] {
            let file = drive.open("a", access()).unwrap();
            drive.resize(file, 7 * 512).unwrap();
            let found = whole(&drive, "a");
            assert_eq!(found[..begin], [1; 512][..begin], "{story}");
            assert!(found[begin..].iter().all(|byte| *byte == 0), "{story}");
        }
    }
}

/// A write that flash fails leaves holes as they were, and cutting a file that fails leaves its last page.
#[test]
fn a_file_keeps_what_it_had_where_flash_fails_a_write() {
    let drive = Ssd::new(Profile { trim: false, ..small(24) }, options(), 1).unwrap();
    let (gone, file) = (drive.open("gone", access()).unwrap(), drive.open("a", access()).unwrap());
    for page in 0..drive.capacity() / 512 - 1 {
        drive.write(&[Write { file: gone, offset: page * 512, data: &[7; 512] }]).unwrap();
    }
    drive.write(&[Write { file, offset: 8 * 512, data: &[1; 512] }]).unwrap();
    drive.resize(gone, 0).unwrap();
    drive.sync(file).unwrap();
    drive.set_faults(Faults { program: 1.0, ..Faults::default() });
    drive.write(&[Write { file, offset: 0, data: &[9; 6 * 512] }]).unwrap_err();
    drive.resize(file, 8 * 512 + 100).unwrap_err();
    drive.set_faults(Faults::default());
    assert_eq!(whole(&drive, "a"), [vec![0; 8 * 512], vec![1; 512]].concat());
}

/// A write in the midst of which the journal is committed stays a write: its other pages are no command's.
#[test]
fn a_write_is_timed_as_one_when_the_journal_is_committed_in_its_midst() {
    let drive = Ssd::new(small(12), options(), 1).unwrap();
    let (file, other) = (drive.open("a", access()).unwrap(), drive.open("b", access()).unwrap());
    let pages = drive.capacity() / 512;
    for page in 0..pages - 2 {
        drive.write(&[Write { file, offset: page * 512, data: &[7; 512] }]).unwrap();
    }
    drive.sync(file).unwrap();
    drive.release(file, 0..8 * 512).unwrap();
    drive.reset_latencies();
    drive.write(&[Write { file: other, offset: 0, data: &[9; 6 * 512] }]).unwrap();
    let (write, command) = (drive.latency(RequestKind::Write), drive.latency(RequestKind::Command));
    assert!(command.max < small(12).timing.program, "a command programs nothing: {command:?}");
    assert_eq!(write.count, 3, "what was written before the commit, the journal, what was written after it");
}

#[test]
fn a_drive_of_tags_refuses_to_lose_power() {
    let profile = small(12);
    let rules = flash::Rules { content: flash::Content::Tags, ..profile.rules };
    let drive = Ssd::new(Profile { rules, ..profile }, options(), 1).unwrap();
    assert!(matches!(drive.power_loss(0), Err(Error::Invalid(_))));
}

/// Writes that the cache takes are answered before they are programmed; a sync waits for that, and nobody can ask what the power
/// would have taken.
#[test]
fn a_write_cache_answers_at_once_and_a_sync_empties_it() {
    let mut profile = small(32);
    profile.timing.write_cache_bytes = 64 << 10;
    let cached = Ssd::new(profile, options(), 1).unwrap();
    let plain = Ssd::new(small(32), options(), 1).unwrap();
    let times = [&cached, &plain].map(|drive| {
        let file = drive.open("a", access()).unwrap();
        let began = drive.now();
        for page in 0..16 {
            drive.write(&[Write { file, offset: page * 512, data: &[page as u8; 512] }]).unwrap();
        }
        let written = drive.now() - began;
        assert_eq!(read_all(drive, file, 15 * 512, 512).unwrap(), [15; 512]);
        drive.sync(file).unwrap();
        let synced = drive.now();
        drive.drain();
        assert_eq!(drive.now(), synced, "nothing was left after the sync");
        (written, synced - began)
    });
    let [(cached_written, cached_synced), (plain_written, _)] = times;
    assert!(cached_written * 10 < plain_written, "{times:?}");
    assert!(cached_synced > plain_written / 8, "four units programmed the pages: {times:?}");
    assert!(matches!(cached.power_loss(0), Err(Error::Invalid(_))));
}

#[test]
fn a_drive_without_trim_keeps_what_files_have_given_up() {
    let live = |trim| {
        let drive = Ssd::new(Profile { trim, ..small(32) }, options(), 1).unwrap();
        let file = drive.open("a", access()).unwrap();
        drive.write(&[Write { file, offset: 0, data: &[1; 64 * 512] }]).unwrap();
        drive.close(file).unwrap();
        drive.remove("a").unwrap();
        drive.sync_directory().unwrap();
        drive.blocks().iter().filter_map(|block| block.live).sum::<u32>()
    };
    assert!(live(false) >= live(true) + 60, "{} and {}", live(false), live(true));
}

#[test]
fn the_same_calls_take_the_same_time() {
    let run = |seed| {
        let drive = Ssd::new(small(12), options(), seed).unwrap();
        let mut rng = SmallRng::seed_from_u64(5);
        let file = drive.open("a", access()).unwrap();
        for _ in 0..300 {
            let offset = rng.random_range(0..60_000);
            let data = vec![rng.random(); rng.random_range(1..4000)];
            drive.write(&[Write { file, offset, data: &data }]).unwrap();
        }
        drive.sync(file).unwrap();
        (drive.now(), drive.flash_counters(), drive.wear())
    };
    assert_eq!(run(1), run(1));
    assert_eq!(run(1), run(2), "without faults or power loss, chance decides nothing");
}
