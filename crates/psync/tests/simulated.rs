//! The simulated volume keeps its own promises: what may be found after power loss, when faults fire, who may lock.

use psync::{
    Access, AlignedBuffer, Device, Error, Fault, FileId, Filter, LockKind, OperationKind, Read, ReadInto,
    Repeat, Simulated, Volume, Write,
};

const WRITE: Access = Access { write: true, create: true, create_new: false, direct: false };

fn create(volume: &Simulated, name: &str) -> FileId {
    volume.open(name, WRITE).expect("a new file")
}

fn write(volume: &Simulated, file: FileId, offset: u64, data: &[u8]) -> psync::Result<()> {
    volume.write(&[Write { file, offset, data }])
}

fn read(volume: &Simulated, file: FileId, offset: u64, len: usize) -> psync::Result<Vec<u8>> {
    let mut buffer = vec![0; len];
    volume.read(&mut [Read { file, offset, buffer: &mut buffer }]).map(|()| buffer)
}

/// A file `a` whose name is durable, with `len` durable bytes of `fill`.
fn durable(volume: &Simulated, len: usize, fill: u8) -> FileId {
    let file = create(volume, "a");
    volume.sync_directory().expect("no fault is planned");
    write(volume, file, 0, &vec![fill; len]).expect("no fault is planned");
    volume.sync(file).expect("no fault is planned");
    file
}

#[test]
fn what_was_written_is_read_and_a_short_file_is_told() {
    let volume = Simulated::new(1);
    let file = create(&volume, "a");
    write(&volume, file, 5000, b"hello").unwrap();
    assert_eq!(volume.len(file).unwrap(), 5005);
    assert_eq!(read(&volume, file, 4998, 7).unwrap(), b"\0\0hello");
    let short = read(&volume, file, 5003, 10).unwrap_err();
    assert!(matches!(short, Error::Short { found: 2, expected: 10, offset: 5003, .. }), "{short}");
    volume.release(file, 5000..5002).unwrap();
    volume.resize(file, 5004).unwrap();
    volume.resize(file, 5006).unwrap();
    assert_eq!(read(&volume, file, 5000, 6).unwrap(), b"\0\0ll\0\0");
}

#[test]
fn requests_that_a_disk_refuses_are_refused_and_not_counted() {
    let volume = Simulated::new(1).with_pio_max(2);
    let direct = volume.open("a", Access { direct: true, ..WRITE }).unwrap();
    let buffer = AlignedBuffer::new(8192);
    write(&volume, direct, 512, &buffer[..1024]).unwrap();
    let before = volume.operations();
    for (offset, data) in [(100, &buffer[..512]), (512, &buffer[..100]), (512, &buffer[1..513]), (0, &[][..])]
    {
        let refused = write(&volume, direct, offset, data).unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    }
    let overlapping = [0, 512].map(|offset| Write { file: direct, offset, data: &buffer[..1024] });
    assert!(matches!(volume.write(&overlapping), Err(Error::Invalid(_))));
    let beyond = write(&volume, direct, u64::MAX - 511, &buffer[..512]);
    assert!(matches!(beyond, Err(Error::Invalid(_))));
    let reader = volume.open("a", Access::default()).unwrap();
    assert!(matches!(write(&volume, reader, 0, &buffer[..512]), Err(Error::Invalid(_))));
    volume.close(reader).unwrap();
    assert!(matches!(read(&volume, reader, 0, 512), Err(Error::Invalid(_))));
    assert_eq!(volume.operations(), before + 1, "only the second open");

    let set: Vec<Write> =
        (0..5).map(|index| Write { file: direct, offset: index * 512, data: &buffer[..512] }).collect();
    let earlier = volume.counters();
    volume.write(&set).unwrap();
    let done = volume.counters() - earlier;
    assert_eq!((done.write_sets, done.writes, done.bytes_written), (3, 5, 2560), "cut to PioMax");
}

#[test]
fn names_are_kept_in_order_and_follow_open_files() {
    let volume = Simulated::new(1);
    let b = create(&volume, "b");
    create(&volume, "a");
    write(&volume, b, 0, b"of b").unwrap();
    volume.rename("b", "a").unwrap();
    let names: Vec<_> = volume.list().unwrap().into_iter().map(|entry| (entry.name, entry.len)).collect();
    assert_eq!(names, [("a".to_owned(), 4)]);
    volume.remove("a").unwrap();
    assert_eq!(read(&volume, b, 0, 4).unwrap(), b"of b", "an open file outlives its name");
    assert!(matches!(volume.remove("a"), Err(Error::NotFound { .. })));
    assert!(matches!(volume.open("a", Access::default()), Err(Error::NotFound { .. })));
    create(&volume, "a");
    let again = volume.open("a", Access { create_new: true, ..WRITE });
    assert!(matches!(again, Err(Error::Exists { .. })));
    assert!(matches!(volume.open("x/y", WRITE), Err(Error::Invalid(_))));
}

/// Random changes; then for many losses every byte is judged by what it can have been since the last sync.
#[test]
fn after_power_loss_there_is_nothing_that_was_not_written() {
    use rand::{Rng, SeedableRng, rngs::StdRng};
    const LEN: usize = 16 * 1024;
    let (mut torn, mut lost, mut kept_all, mut reordered, mut shortened) = (0, 0, 0, 0, 0);
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        let volume = Simulated::new(seed);
        let file = durable(&volume, LEN / 2, 1);
        // What each byte may be, and how long the file may be.
        let mut possible: Vec<Vec<u8>> = (0..LEN).map(|at| vec![u8::from(at < LEN / 2)]).collect();
        let (mut shortest, mut longest) = (LEN / 2, LEN / 2);
        let mut now = vec![0; LEN];
        now[..LEN / 2].fill(1);
        // Unsynced writes of whole sectors: where, length, byte.
        let mut unsynced: Vec<(usize, usize, u8)> = Vec::new();
        for step in 2..40_u8 {
            if random.random_range(0..12) == 0 {
                volume.sync(file).unwrap();
                shortest = longest;
                possible = now.iter().map(|byte| vec![*byte]).collect();
                unsynced.clear();
                continue;
            }
            let len = 512 * random.random_range(1..=6);
            let at = 512 * random.random_range(0..(LEN - len) / 512);
            write(&volume, file, at as u64, &vec![step; len]).unwrap();
            now[at..at + len].fill(step);
            possible[at..at + len].iter_mut().for_each(|bytes| bytes.push(step));
            longest = longest.max(at + len);
            unsynced.push((at, len, step));
        }
        assert_eq!(volume.crash().read_file("a").unwrap(), now[..longest], "a crash loses no write");
        for loss in 0..40 {
            let image = volume.power_loss(loss);
            let found = image.read_file("a").unwrap();
            assert!((shortest..=longest).contains(&found.len()), "{} bytes", found.len());
            for (at, byte) in found.iter().enumerate() {
                assert!(possible[at].contains(byte), "seed {seed} loss {loss}: byte {at} is {byte}");
            }
            assert!(found.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
            assert_eq!(
                found,
                volume.power_loss(loss).read_file("a").unwrap(),
                "the same seed, the same loss"
            );
            assert_eq!(found, image.power_loss(loss + 1).read_file("a").unwrap(), "what is found is durable");
            // How much of each write is visible that no later one covers.
            let shares: Vec<(usize, usize)> = unsynced
                .iter()
                .map(|&(at, len, byte)| {
                    let there = |at: &usize| found.get(*at) == Some(&byte);
                    let seen = |at: &usize| now[*at] == byte;
                    ((at..at + len).filter(there).count(), (at..at + len).filter(seen).count())
                })
                .collect();
            kept_all += usize::from(found == now[..longest]);
            lost += usize::from(!unsynced.is_empty() && shares.iter().all(|(there, _)| *there == 0));
            torn += usize::from(shares.iter().any(|(there, seen)| 0 < *there && there < seen));
            let first_lost = shares.iter().position(|(there, seen)| *there == 0 && *seen > 0);
            let last_kept = shares.iter().rposition(|(there, _)| *there > 0);
            reordered += usize::from(first_lost.is_some() && first_lost < last_kept);
            shortened += usize::from(found.len() < longest);
        }
        assert_eq!(volume.read_file("a").unwrap(), now[..longest], "the volume itself goes on as it was");
    }
    for (what, count) in [
        ("torn", torn),
        ("lost", lost),
        ("kept", kept_all),
        ("reordered", reordered),
        ("shortened", shortened),
    ] {
        assert!(count > 50, "only {count} of 2400 losses were {what}");
    }
}

#[test]
fn unaligned_appends_reach_the_device_as_whole_sectors() {
    // Bytes 0..100 and 100..200 share a sector: the second cannot be there without the first.
    let volume = Simulated::new(3);
    let file = durable(&volume, 1, 0);
    write(&volume, file, 0, &[1; 100]).unwrap();
    write(&volume, file, 100, &[2; 100]).unwrap();
    let mut both = 0;
    for loss in 0..200 {
        let found = volume.power_loss(loss).read_file("a").unwrap();
        if found.get(150) == Some(&2) {
            both += 1;
            assert_eq!(found[..100], [1; 100]);
        }
    }
    assert!(both > 20);
}

#[test]
fn a_lost_truncation_shows_the_old_bytes_and_a_kept_one_never_does() {
    let volume = Simulated::new(4);
    let file = durable(&volume, 4096, 7);
    volume.resize(file, 0).unwrap();
    volume.resize(file, 8192).unwrap();
    let mut lens = std::collections::BTreeSet::new();
    for loss in 0..300 {
        let found = volume.power_loss(loss).read_file("a").unwrap();
        lens.insert(found.len());
        let expected = if found.len() == 4096 { 7 } else { 0 };
        assert!(found.iter().all(|byte| *byte == expected), "loss {loss}");
    }
    assert_eq!(lens.into_iter().collect::<Vec<_>>(), [0, 4096, 8192]);
}

#[test]
fn names_are_durable_only_after_the_directory_is() {
    let volume = Simulated::new(5);
    let kept = create(&volume, "kept");
    volume.sync_directory().unwrap();
    let new = create(&volume, "new");
    for file in [kept, new] {
        write(&volume, file, 0, b"content").unwrap();
        volume.sync(file).unwrap();
    }
    volume.rename("new", "renamed").unwrap();
    volume.rename("kept", "elsewhere").unwrap();
    create(&volume, "gone");
    volume.remove("gone").unwrap();
    let mut outcomes = std::collections::BTreeSet::new();
    for loss in 0..400 {
        let image = volume.power_loss(loss);
        let names: Vec<String> = image.list().unwrap().into_iter().map(|entry| entry.name).collect();
        let is = |name: &str| names.iter().any(|other| other == name);
        assert!(is("kept") != is("elsewhere"), "a rename is done or not, never half: {names:?}");
        assert!(!(is("new") && is("renamed")), "{names:?}");
        for name in ["kept", "elsewhere", "new", "renamed"].into_iter().filter(|name| is(name)) {
            assert_eq!(image.read_file(name).unwrap(), b"content", "synced content comes with the name");
        }
        outcomes.insert(names);
    }
    assert_eq!(outcomes.len(), 12, "kept or elsewhere; new, renamed or neither; gone or not: {outcomes:?}");
    volume.sync_directory().unwrap();
    for loss in 0..50 {
        let names: Vec<String> =
            volume.power_loss(loss).list().unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["elsewhere", "renamed"]);
    }
    assert_eq!(volume.crash().list().unwrap(), volume.list().unwrap());
}

#[test]
fn after_a_failed_sync_of_the_directory_no_later_one_makes_up_for_it() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let volume = Simulated::new(seed);
        create(&volume, "old");
        volume.sync_directory().unwrap();
        create(&volume, "new");
        volume.remove("old").unwrap();
        volume.fail_nth(OperationKind::SyncDirectory, 1, Fault::Error, Repeat::Once);
        volume.sync_directory().unwrap_err();
        create(&volume, "later");
        // Another thread is told too, and not only the first one.
        volume.sync_directory().unwrap_err();
        let _lock = volume.lock(LockKind::Exclusive, "who opens it anew").unwrap();
        volume.sync_directory().unwrap();
        let names = |volume: &Simulated| {
            volume.list().unwrap().into_iter().map(|entry| entry.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&volume), ["later", "new"]);
        assert_eq!(names(&volume.crash()), ["later", "new"], "a kill loses nothing");
        let durable = names(&volume.power_loss(0));
        assert!(durable.iter().any(|name| name == "later"));
        assert!((1..20).all(|loss| names(&volume.power_loss(loss)) == durable), "nothing is pending");
        outcomes.insert(durable);
        let found = volume.crash();
        found.sync_directory().unwrap();
        assert!(
            (0..20).all(|loss| names(&found.power_loss(loss)) == ["later", "new"]),
            "whoever finds it writes it anew"
        );
    }
    assert_eq!(outcomes.len(), 4, "new or not, old or not: {outcomes:?}");
}

#[test]
fn faults_fire_exactly_at_the_nth_operation() {
    type Attempt = fn(&Simulated, FileId) -> psync::Result<()>;
    let attempts: [(OperationKind, Attempt); 12] = [
        (OperationKind::Read, |v, file| read(v, file, 0, 10).map(drop)),
        (OperationKind::Write, |v, file| write(v, file, 0, b"0123456789")),
        (OperationKind::Sync, |v, file| v.sync(file)),
        (OperationKind::Len, |v, file| v.len(file).map(drop)),
        (OperationKind::Resize, |v, file| v.resize(file, 20)),
        (OperationKind::Release, |v, file| v.release(file, 0..10)),
        (OperationKind::Open, |v, _| v.open("a", WRITE).map(drop)),
        (OperationKind::Remove, |v, _| v.write_file("x", b"").and_then(|()| v.remove("x"))),
        (OperationKind::Rename, |v, _| v.write_file("x", b"").and_then(|()| v.rename("x", "y"))),
        (OperationKind::List, |v, _| v.list().map(drop)),
        (OperationKind::SyncDirectory, |v, _| v.sync_directory()),
        (OperationKind::Lock, |v, _| v.lock(LockKind::Exclusive, "me").map(drop)),
    ];
    for (kind, attempt) in attempts {
        for fault in [Fault::Error, Fault::Short, Fault::NoSpace, Fault::PowerOff] {
            for repeat in [Repeat::Once, Repeat::Sticky] {
                let volume = Simulated::new(6);
                let file = durable(&volume, 20, 1);
                volume.fail_nth(kind, 3, fault, repeat);
                let before = volume.operations();
                let answers: Vec<_> = (0..5).map(|_| attempt(&volume, file)).collect();
                let failed: Vec<bool> = answers.iter().map(Result::is_err).collect();
                let of_directory = kind == OperationKind::SyncDirectory;
                let stays = repeat == Repeat::Sticky || fault == Fault::PowerOff || of_directory;
                assert_eq!(failed, [false, false, true, stays, stays], "{kind:?} {fault:?} {repeat:?}");
                let moves = matches!(kind, OperationKind::Read | OperationKind::Write);
                match answers.into_iter().nth(2).unwrap().unwrap_err() {
                    Error::Short { found, expected, .. } => {
                        assert!(fault == Fault::Short && moves && found < expected);
                    }
                    Error::Full { .. } => assert_eq!(fault, Fault::NoSpace),
                    Error::Io { .. } => assert!(fault != Fault::NoSpace && (fault != Fault::Short || !moves)),
                    other => panic!("{other}"),
                }
                let fired = if repeat == Repeat::Sticky && fault != Fault::PowerOff { 3 } else { 1 };
                assert_eq!(volume.fired(), fired);
                assert_eq!(volume.is_off(), fault == Fault::PowerOff);
                assert_eq!(volume.operations() - before, if volume.is_off() { 3 } else { 5 });
                if fault != Fault::PowerOff {
                    volume.clear_faults();
                    let _lock = of_directory.then(|| volume.lock(LockKind::Exclusive, "anew").unwrap());
                    attempt(&volume, file).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_filter_counts_members_of_sets_and_names_files() {
    let volume = Simulated::new(7);
    let (a, b) = (create(&volume, "log.1"), create(&volume, "data.1"));
    volume.fail_nth(Filter::kinds([OperationKind::Write]).file("log."), 3, Fault::Error, Repeat::Once);
    let set = |from: u64| {
        [(a, from), (b, from), (a, from + 8), (b, from + 8)].map(|(file, offset)| Write {
            file,
            offset,
            data: b"12345678",
        })
    };
    volume.write(&set(0)).unwrap();
    assert_eq!(volume.fired(), 0);
    let error = volume.write(&set(16)).unwrap_err();
    assert!(matches!(&error, Error::Io { file, offset: Some(16), .. } if file == "log.1"), "{error}");
    volume.write(&set(32)).unwrap();
    assert_eq!(volume.fired(), 1);
    assert_eq!(volume.operations(), 2 + 12);
}

#[test]
fn of_a_failed_write_set_any_part_reaches_the_file() {
    for fault in [Fault::Error, Fault::NoSpace, Fault::PowerOff] {
        let mut outcomes = std::collections::BTreeSet::new();
        for seed in 0..64 {
            let volume = Simulated::new(seed);
            let file = durable(&volume, 2048, 1);
            volume.fail_nth(OperationKind::Write, 2, fault, Repeat::Once);
            let set = [0, 1024].map(|offset| Write { file, offset, data: &[2; 1024] });
            volume.write(&set).unwrap_err();
            let found = volume.read_file("a").unwrap();
            assert!(found.iter().all(|byte| [1, 2].contains(byte)));
            outcomes.insert([0, 512, 1024, 1536].map(|at| found[at]));
        }
        assert!(outcomes.len() >= 8, "{fault:?}: {outcomes:?}");
    }
}

#[test]
fn nothing_works_without_power_and_images_are_found_with_it() {
    let volume = Simulated::new(8);
    let file = durable(&volume, 10, 1);
    let _lock = volume.lock(LockKind::Exclusive, "me").unwrap();
    volume.fail_nth(Filter::any(), 1, Fault::PowerOff, Repeat::Once);
    assert!(matches!(volume.sync(file), Err(Error::Io { .. })));
    let count = volume.operations();
    assert!(matches!(volume.list(), Err(Error::Io { .. })));
    assert!(matches!(volume.open("a", WRITE), Err(Error::Io { .. })));
    assert!(matches!(volume.lock(LockKind::Shared, "you"), Err(Error::Io { .. })));
    assert_eq!(volume.operations(), count);
    for image in [volume.power_loss(1), volume.crash()] {
        assert!(!image.is_off() && image.operations() == 0);
        let _free = image.lock(LockKind::Exclusive, "you").unwrap();
        assert_eq!(image.read_file("a").unwrap(), [1; 10]);
        assert!(matches!(image.len(file), Err(Error::Invalid(_))), "nothing is open");
    }
}

#[test]
fn after_a_failed_sync_a_later_one_saves_nothing_of_what_was_before() {
    let mut pages_lost = 0;
    for seed in 0..50 {
        let volume = Simulated::new(seed);
        let file = durable(&volume, 4 * 4096, 1);
        write(&volume, file, 0, &[2; 4 * 4096]).unwrap();
        volume.fail_nth(OperationKind::Sync, 1, Fault::Error, Repeat::Once);
        assert!(matches!(volume.sync(file), Err(Error::Io { .. })));
        volume.sync(file).unwrap();
        assert_eq!(read(&volume, file, 0, 4 * 4096).unwrap(), [2; 4 * 4096], "reads still see it");
        let found = volume.power_loss(seed).read_file("a").unwrap();
        for page in found.chunks(4096) {
            assert!(page == [1; 4096] || page == [2; 4096]);
            pages_lost += usize::from(page[0] == 1);
        }
    }
    assert!((50..150).contains(&pages_lost), "{pages_lost} of 200 pages");
}

/// As ext4 does it where the failed write-back has left an unwritten extent: the page cache takes what is written there
/// again, each sync succeeds, and the device never gets it.
#[test]
fn what_is_written_again_in_place_after_a_failed_sync_is_not_durable() {
    type Remedy = fn(&Simulated, FileId) -> FileId;
    let cut = |volume: &Simulated, file| {
        volume.resize(file, 0).unwrap();
        file
    };
    let hole = |volume: &Simulated, file| {
        volume.release(file, 0..4 * 4096).unwrap();
        file
    };
    let other = |volume: &Simulated, _| {
        volume.remove("a").unwrap();
        let file = create(volume, "a");
        volume.sync_directory().unwrap();
        file
    };
    let direct = |volume: &Simulated, _| volume.open("a", Access { direct: true, ..WRITE }).unwrap();
    let a_part = |volume: &Simulated, file| {
        volume.resize(file, 100).unwrap();
        file
    };
    let remedies: [(&str, Remedy, bool); 6] = [
        ("in place", |_, file| file, false),
        ("a part of the page is cut off", a_part, false),
        ("cut off", cut, true),
        ("a hole", hole, true),
        ("another file", other, true),
        ("direct I/O", direct, true),
    ];
    let mut again = AlignedBuffer::new(4 * 4096);
    again.fill(3);
    for (story, remedy, helps) in remedies {
        let mut lost = 0;
        for seed in 0..50 {
            let volume = Simulated::new(seed);
            let file = durable(&volume, 4 * 4096, 1);
            write(&volume, file, 0, &[2; 4 * 4096]).unwrap();
            volume.fail_nth(OperationKind::Sync, 1, Fault::Error, Repeat::Once);
            volume.sync(file).unwrap_err();
            // Another process meets the same page cache.
            let volume = volume.crash();
            let file = volume.open("a", WRITE).unwrap();
            let file = remedy(&volume, file);
            write(&volume, file, 0, &again).unwrap();
            volume.sync(file).unwrap();
            assert_eq!(volume.read_file("a").unwrap(), [3; 4 * 4096], "{story}: reads see it");
            let found = volume.power_loss(seed).read_file("a").unwrap();
            assert_eq!(found.len(), 4 * 4096, "{story}");
            lost += found.chunks(4096).filter(|page| page[0] != 3).count();
        }
        assert_eq!(lost == 0, helps, "{story}: {lost} of 200 pages are lost");
    }
}

/// The page cache shows what was lost; direct I/O shows what the device has.
#[test]
fn direct_reads_see_what_a_failed_sync_has_lost() {
    let mut lost = 0;
    for seed in 0..50 {
        let volume = Simulated::new(seed);
        let file = durable(&volume, 4 * 4096, 1);
        write(&volume, file, 0, &[2; 4 * 4096 - 100]).unwrap();
        volume.fail_nth(OperationKind::Sync, 1, Fault::Error, Repeat::Once);
        volume.sync(file).unwrap_err();
        let volume = volume.crash();
        let mut found = AlignedBuffer::new(4 * 4096);
        let file = volume.open("a", Access { direct: true, ..Access::default() }).unwrap();
        volume.read(&mut [Read { file, offset: 0, buffer: &mut found }]).unwrap();
        assert_eq!(found[..], volume.power_loss(seed).read_file("a").unwrap()[..]);
        lost += usize::from(found[..] != volume.read_file("a").unwrap()[..]);
    }
    assert!(lost > 30, "{lost}");
}

#[test]
fn a_full_volume_says_so_and_takes_writes_again_when_there_is_room() {
    let volume = Simulated::new(9).with_capacity(3 * 4096);
    let (a, b) = (create(&volume, "a"), create(&volume, "b"));
    write(&volume, a, 1 << 30, &[1; 8192]).unwrap();
    assert_eq!(volume.used(), 8192, "a hole takes no room");
    write(&volume, b, 0, &[1; 4096]).unwrap();
    let full = write(&volume, b, 4096, &[1]).unwrap_err();
    assert!(full.is_full(), "{full}");
    assert_eq!(volume.len(b).unwrap(), 4096);
    write(&volume, a, 1 << 30, &[2; 8192]).unwrap();
    volume.release(a, (1 << 30)..(1 << 30) + 4096).unwrap();
    write(&volume, b, 4096, &[1]).unwrap();
    volume.set_capacity(4 * 4096);
    write(&volume, b, 8192, &[1]).unwrap();
    volume.remove("b").unwrap();
    assert_eq!(volume.used(), 4 * 4096, "it is open still");
    volume.close(b).unwrap();
    assert_eq!(volume.used(), 4096);
    assert_eq!(volume.crash().used(), 4096);
}

#[test]
fn locks_exclude_and_name_their_holders() {
    let volume = Simulated::new(10);
    let other = volume.clone();
    let shared = (volume.lock(LockKind::Shared, "a").unwrap(), other.lock(LockKind::Shared, "b").unwrap());
    match other.lock(LockKind::Exclusive, "c").unwrap_err() {
        Error::Locked { holder, .. } => assert_eq!(holder, "a, b"),
        error => panic!("{error}"),
    }
    drop(shared);
    let exclusive = volume.lock(LockKind::Exclusive, "c").unwrap();
    for kind in [LockKind::Shared, LockKind::Exclusive] {
        assert!(matches!(other.lock(kind, "d"), Err(Error::Locked { holder, .. }) if holder == "c"));
    }
    drop(exclusive);
    other.lock(LockKind::Exclusive, "d").unwrap();
}

#[test]
fn damage_is_silent_and_outlives_power_loss() {
    let volume = Simulated::new(11);
    volume.write_file("a", &[0; 1000]).unwrap();
    volume.flip_bit("a", 999, 3).unwrap();
    assert!(matches!(volume.flip_bit("a", 1000, 3), Err(Error::Invalid(_))));
    volume.copy_file("a", "b").unwrap();
    volume.truncate_file("a", 10).unwrap();
    volume.rename_file("a", "c").unwrap();
    volume.write_file("d", b"d").unwrap();
    volume.remove_file("d").unwrap();
    for image in [volume.power_loss(1), volume.power_loss(2), volume.crash()] {
        assert_eq!(image.list().unwrap().len(), 2);
        assert_eq!(image.read_file("c").unwrap(), [0; 10]);
        let b = image.read_file("b").unwrap();
        assert_eq!((&b[..999], b[999]), (&[0; 999][..], 8));
    }
}

#[test]
fn a_lying_device_says_nothing() {
    let volume = Simulated::new(12);
    let file = durable(&volume, 3 * 512, 0);
    volume.misdirect_nth_write(Filter::any(), 2, 512);
    volume.lose_nth_write(Filter::any().file("a"), 3);
    for fill in 1..=3 {
        write(&volume, file, 0, &[fill; 512]).unwrap();
    }
    let mut expected = vec![1; 1024];
    expected[512..].fill(2);
    assert_eq!(volume.read_file("a").unwrap()[..1024], expected);
    assert_eq!(volume.fired(), 2);
    for seed in 0..50 {
        let volume = Simulated::new(seed);
        let file = durable(&volume, 64, 0);
        volume.corrupt_nth_read(OperationKind::Read, 2);
        assert_eq!(read(&volume, file, 0, 64).unwrap(), [0; 64]);
        assert_ne!(read(&volume, file, 0, 64).unwrap(), [0; 64]);
        assert_eq!(read(&volume, file, 0, 64).unwrap(), [0; 64]);
    }
}

#[test]
fn the_same_seeds_give_the_same_volume() {
    let run = |seed| {
        let volume = Simulated::new(seed);
        let file = durable(&volume, 8192, 1);
        volume.fail_nth(OperationKind::Write, 2, Fault::Error, Repeat::Sticky);
        for fill in 2..20_u8 {
            let _ = write(&volume, file, u64::from(fill) * 300, &[fill; 2000]);
        }
        (volume.read_file("a").unwrap(), volume.power_loss(1).read_file("a").unwrap())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// Faults, counters and results of a set that is begun are those of one that is read, and there before anybody waits.
#[test]
fn what_is_begun_is_carried_out_at_once() {
    let volume = Simulated::new(1);
    let file = durable(&volume, 3 * 4096, 7);
    let set = || {
        let read = |block: u64| ReadInto { file, offset: block * 4096, buffer: AlignedBuffer::new(4096) };
        (0..3).map(read).collect::<Vec<_>>()
    };
    let begun = volume.begin(set());
    assert_eq!(volume.counters().reads, 3);
    let found = begun.wait().expect("nothing fails");
    assert!(found.len() == 3 && found.iter().all(|block| block.iter().all(|byte| *byte == 7)));
    volume.fail_nth(OperationKind::Read, 2, Fault::Error, Repeat::Once);
    let begun = volume.begin(set());
    assert_eq!(volume.fired(), 1);
    let error = begun.wait().expect_err("the second member failed");
    assert!(matches!(error, Error::Io { operation: "read", offset: Some(4096), .. }), "{error:?}");
}

#[test]
fn allocated_space_is_as_good_as_written() {
    let volume = Simulated::new(9).with_capacity(8 * 4096);
    let file = durable(&volume, 4096, 7);
    volume.allocate(file, 0..5 * 4096).expect("there is space");
    assert_eq!((volume.used(), volume.len(file).expect("open")), (5 * 4096, 5 * 4096));
    let refused = volume.allocate(file, 0..9 * 4096);
    assert!(refused.is_err_and(|error| error.is_full()) && volume.used() == 5 * 4096, "all or nothing");
    let other = create(&volume, "b");
    write(&volume, other, 0, &[1; 3 * 4096]).expect("there is space");
    write(&volume, file, 4096, &[8; 4 * 4096]).expect("it has the space");
    assert!(write(&volume, other, 3 * 4096, &[1]).is_err_and(|error| error.is_full()));
    // What is not durable may be lost, and what was durable is not.
    for seed in 0..50 {
        let found = volume.power_loss(seed).read_file("a").expect("its name is durable");
        assert!(found[..4096].iter().all(|byte| *byte == 7) && found.len() <= 5 * 4096);
        assert!(found[4096..].iter().all(|byte| [0, 8].contains(byte)));
    }
    volume.resize(file, 0).expect("cuts");
    assert_eq!(volume.used(), 3 * 4096);
    volume.fail_nth(Filter::kinds([OperationKind::Allocate]), 1, Fault::Error, Repeat::Once);
    assert!(volume.allocate(file, 0..4096).is_err() && volume.used() == 3 * 4096);
}
