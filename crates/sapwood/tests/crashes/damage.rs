//! What a disk gets wrong without saying so: flipped bits, cut files, lost files, writes that went elsewhere or nowhere.
//! All of it is named, or does no harm; wrong data is never given out.

use crate::scenario::{self, Contents, Workload, open};
use psync::{Filter, OperationKind, Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Error};
use std::sync::Arc;
use std::time::Duration;

/// A database with a bit of everything on disk, closed properly.
fn built(seed: u64) -> (Simulated, Contents) {
    let volume = Simulated::new(seed);
    let mut workload = Workload::new(seed);
    for _ in 0..3 {
        let db = open(&volume).expect("opens");
        workload.run(&db, 60).expect("nothing fails");
        db.close().expect("closes");
    }
    let contents = workload.contents(workload.acknowledged);
    (volume, contents)
}

fn names(volume: &Simulated) -> Vec<String> {
    volume.list().expect("a list").into_iter().map(|entry| entry.name).collect()
}

fn edit_file(volume: &Simulated, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = volume.read_file(name).unwrap_or_default();
    edit(&mut bytes);
    volume.write_file(name, &bytes).expect("written");
}

/// Reads everything, in all ways. `Ok` only if all of it is right.
fn read_all(db: &Database, expected: &Contents) -> Result<(), Error> {
    let keyspace = db.keyspace("main")?;
    for item in keyspace.iter() {
        let (key, value) = item?;
        assert_eq!(expected.get(&key[..]).map(Vec::as_slice), Some(&value[..]), "wrong data was given out");
    }
    for (key, value) in expected {
        assert_eq!(
            keyspace.get(key)?.as_deref(),
            Some(&value[..]),
            "a record is missing, and nobody said so"
        );
    }
    Ok(())
}

/// Opens, reads and checks. Returns the damage that was told, if any.
fn told(volume: &Simulated, expected: &Contents) -> Option<Error> {
    let db = match open(volume) {
        Ok(db) => db,
        Err(error) => return Some(error),
    };
    let read = read_all(&db, expected).err();
    let checked = db.check().err();
    assert!(read.is_none() || checked.is_some(), "a check finds what a read finds: {read:?}");
    checked
}

/// Holds nothing: whatever happens to it, all is well.
const RESERVE: &str = "reserve";

fn is_about(error: &Error, file: &str) -> bool {
    match error {
        Error::Corrupt { file: named, .. } => named == file,
        Error::Damaged { damage, .. } => damage.iter().all(|error| is_about(error, file)),
        _ => false,
    }
}

/// Whether nothing is lost with a file of this name.
fn is_dispensable(name: &str) -> bool {
    [RESERVE, "DURABLE"].contains(&name)
}

#[test]
fn every_flipped_bit_is_named_or_harmless() {
    for seed in 0..6 {
        let (volume, contents) = built(seed);
        let mut rng = StdRng::seed_from_u64(seed);
        for name in names(&volume) {
            let len = volume.read_file(&name).expect("is there").len();
            let mut named = 0;
            // Of some data files a tenth is alive.
            let flips = if name == "data" { 150 } else { 60 };
            for _ in 0..if len == 0 { 0 } else { flips } {
                let image = volume.crash();
                let bit = rng.random_range(0..len * 8);
                edit_file(&image, &name, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
                match told(&image, &contents) {
                    Some(error) => {
                        assert!(is_about(&error, &name), "bit {bit} of {name}: {error:?}");
                        named += 1;
                    }
                    // Dead nodes and padding.
                    None => assert!(
                        name == "data" || is_dispensable(&name),
                        "bit {bit} of {name} went unnoticed (seed {seed})"
                    ),
                }
            }
            assert_eq!(len == 0 || is_dispensable(&name), named == 0, "flips noticed in {name}");
        }
    }
}

#[test]
fn every_cut_is_named_or_harmless() {
    // What lies at the end of the data may be dead, and nobody misses that.
    let (mut cuts, mut harmless) = (0, 0);
    for seed in 0..6 {
        let (volume, contents) = built(seed);
        let mut rng = StdRng::seed_from_u64(seed);
        for name in names(&volume) {
            let len = volume.read_file(&name).expect("is there").len();
            for _ in 0..if len == 0 { 0 } else { 40 } {
                let image = volume.crash();
                let cut = rng.random_range(0..len);
                edit_file(&image, &name, |bytes| bytes.truncate(cut));
                cuts += u32::from(name == "data");
                let Some(error) = told(&image, &contents) else {
                    assert!(name == "data" || is_dispensable(&name), "{name} cut to {cut} of {len} bytes");
                    harmless += u32::from(name == "data");
                    continue;
                };
                // A cut manifest may show first in a log that it does not know of.
                assert!(
                    is_about(&error, &name) || (name.starts_with("manifest") && error.is_damage()),
                    "{name} cut to {cut} of {len} bytes: {error:?}"
                );
            }
        }
    }
    assert!(cuts > 200 && harmless * 10 < cuts, "{harmless} of {cuts} cuts of the data were not noticed");
}

/// A session that was killed does not make what the one before it had durably look like the torn end of its own.
#[test]
fn a_manifest_shorter_than_at_the_last_proper_close_is_damage_after_a_kill_too() {
    for seed in 0..6 {
        let (volume, _) = built(seed);
        let manifest = names(&volume).into_iter().find(|name| name.starts_with("manifest-")).expect("one");
        let len = volume.read_file(&manifest).expect("is there").len();
        let db = open(&volume).expect("opens");
        db.keyspace("main").expect("a keyspace").insert("new", "1").expect("commits");
        let killed = volume.crash();
        assert!(
            killed.read_file(&manifest).expect("is there").len() > len,
            "the session has begun with an edit"
        );
        for cut in [len - 1, len * 3 / 4] {
            let image = killed.crash();
            edit_file(&image, &manifest, |bytes| bytes.truncate(cut));
            let opened = open(&image).map(drop);
            assert!(
                matches!(&opened, Err(error) if error.is_damage()),
                "seed {seed}, {cut} of {len}: {opened:?}"
            );
        }
    }
}

#[test]
fn every_lost_file_is_named() {
    let (volume, contents) = built(3);
    for name in names(&volume) {
        let image = volume.crash();
        image.remove_file(&name).expect("removed");
        let told = told(&image, &contents);
        if is_dispensable(&name) {
            assert!(told.is_none(), "{told:?}");
            continue;
        }
        let error = told.unwrap_or_else(|| panic!("nobody misses {name}"));
        assert!(is_about(&error, &name), "{name}: {error:?}");
    }
}

/// Nodes that a device wrote elsewhere, or not at all, while it said that all was well.
#[test]
fn lying_writes_are_found_out() {
    let mut found = 0;
    for nth in 1..60 {
        for misdirected_by in [0, 512, 65536, -512] {
            let volume = Simulated::new(nth);
            let filter = Filter::any().file("data");
            match misdirected_by {
                0 => volume.lose_nth_write(filter, nth),
                by => volume.misdirect_nth_write(filter, nth, by),
            }
            let mut workload = Workload::new(5);
            let db = open(&volume).expect("opens");
            if let Err(error) = workload.run(&db, 150) {
                assert!(matches!(error, Error::Poisoned { .. } | Error::Corrupt { .. }), "{error}");
            }
            drop(db);
            let reopened = open(&volume);
            found += match &reopened {
                Ok(db) => u32::from(db.check().is_err()),
                Err(_) => 1,
            };
            if let Ok(db) = reopened {
                // Whatever is given out is right or an error.
                let keyspace = db.keyspace("main").expect("is there");
                let newest = workload.contents(workload.acknowledged);
                for (key, value) in &newest {
                    if let Ok(found) = keyspace.get(key) {
                        let possible =
                            found.as_deref() == Some(&value[..]) || workload.acknowledged < workload.issued();
                        assert!(possible, "write {nth}, misdirected by {misdirected_by}: wrong data");
                    }
                }
            }
        }
    }
    assert!(found > 10, "lies were found: {found}");
}

/// One bit flipped on the way from the device, at every read.
#[test]
fn reads_that_lie_are_found_out() {
    let (volume, contents) = built(2);
    let mut told_of = 0;
    for nth in 1..2000 {
        let image = volume.crash();
        image.corrupt_nth_read(Filter::kinds([OperationKind::Read]), nth);
        let error = match open(&image) {
            Ok(db) => read_all(&db, &contents).err(),
            Err(error) => Some(error),
        };
        told_of += u32::from(error.is_some());
        if image.fired() == 0 {
            assert!(error.is_none());
            assert!(told_of > 5, "{told_of}");
            return;
        }
        assert!(error.as_ref().is_none_or(Error::is_damage), "{error:?}");
    }
    panic!("reading never ends");
}

/// It was said to be none of ours.
#[test]
fn a_current_with_a_damaged_magic_is_damage() {
    let (volume, _) = built(1);
    for beside in [None, Some("data"), Some("manifest")] {
        let image = volume.crash();
        edit_file(&image, "CURRENT", |bytes| bytes.fill(0));
        if let Some(kind) = beside {
            let others =
                names(&image).into_iter().filter(|name| name != "CURRENT" && !name.starts_with(kind));
            others.for_each(|name| image.remove(&name).expect("removed"));
        }
        let error = open(&image).expect_err("refused");
        assert!(is_about(&error, "CURRENT"), "{error:?}");
    }
}

#[test]
fn other_peoples_directories_are_left_alone() {
    let volume = Simulated::new(1);
    edit_file(&volume, "thesis.tex", |bytes| bytes.extend(b"\\documentclass{article}"));
    let refused = open(&volume).expect_err("refused");
    assert!(
        matches!(&refused, Error::NotADatabase { reason, .. } if reason.contains("thesis.tex")),
        "{refused}"
    );
    assert!(names(&volume).iter().all(|name| name == "thesis.tex"), "{:?}", names(&volume));
    edit_file(&volume, "CURRENT", |bytes| bytes.extend(b"MANIFEST-000005\n"));
    assert!(matches!(open(&volume), Err(Error::NotADatabase { .. })));
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("thesis.tex"), "\\documentclass{article}").expect("writes");
    assert!(matches!(Database::open(directory.path()), Err(Error::NotADatabase { .. })));
    assert_eq!(std::fs::read_dir(directory.path()).expect("lists").count(), 1, "no LOCK either");
    std::fs::write(directory.path().join("CURRENT"), "MANIFEST-000005\n").expect("writes");
    std::fs::write(directory.path().join("LOCK"), "of somebody else").expect("writes");
    assert!(matches!(Database::open(directory.path()), Err(Error::NotADatabase { .. })));
    let lock = std::fs::read(directory.path().join("LOCK")).expect("is there");
    assert_eq!(lock, b"of somebody else", "nor is theirs taken");
}

#[test]
fn a_database_without_current_is_damaged_for_writers_and_readers() {
    let (volume, _) = built(4);
    volume.remove_file("CURRENT").expect("is there");
    let writable = open(&volume).expect_err("no CURRENT");
    let read_only = Database::builder()
        .read_only(true)
        .open_on(Arc::new(volume.clone()) as Arc<dyn psync::Volume>)
        .expect_err("no CURRENT");
    // One that held a single record, in a log of hardly more than its header.
    let small = Simulated::new(1);
    open(&small).expect("opens").keyspace("main").expect("a keyspace").insert("k", "v").expect("inserts");
    small.remove_file("CURRENT").expect("is there");
    for error in [writable, read_only, open(&small).expect_err("no CURRENT")] {
        assert!(matches!(&error, Error::Corrupt { file, .. } if file == "CURRENT"), "{error}");
    }
}

#[test]
fn another_format_is_told_from_damage() {
    let (volume, _) = built(4);
    let give_format = |format: u8| {
        edit_file(&volume, "CURRENT", |bytes| {
            bytes[8] = format;
            let crc = crc32c::crc32c(&bytes[..52]);
            bytes[52..56].copy_from_slice(&crc.to_le_bytes());
        });
        open(&volume)
    };
    assert!(matches!(give_format(15), Err(Error::NewerFormat { found: 15, supported: 14, .. })));
    assert!(matches!(give_format(5), Err(Error::OlderFormat { found: 5, supported: 14, .. })));
}

#[test]
fn one_writer_or_many_readers() {
    let (volume, contents) = built(6);
    let volume: Arc<dyn psync::Volume> = Arc::new(volume);
    let writer = Database::builder().holder("the shipyard").open_on(Arc::clone(&volume)).expect("opens");
    let refused = Database::builder().open_on(Arc::clone(&volume)).expect_err("locked");
    assert!(matches!(&refused, Error::Locked { holder, .. } if holder == "the shipyard"), "{refused}");
    let reader = || Database::builder().read_only(true).open_on(Arc::clone(&volume));
    assert!(matches!(reader(), Err(Error::Locked { .. })));
    drop(writer);
    let (first, second) = (reader().expect("opens"), reader().expect("opens too"));
    read_all(&first, &contents).expect("sound");
    read_all(&second, &contents).expect("sound");
    assert!(matches!(first.keyspace("main").expect("is there").insert("a", "b"), Err(Error::ReadOnly)));
    assert!(matches!(first.flush(), Err(Error::ReadOnly)));
    assert!(matches!(first.keyspace("other"), Err(Error::NoKeyspace { .. })));
    assert!(first.check().is_ok());
    // A writer that waits gets it when the last reader has gone, and no sooner.
    let waiting = Database::builder().wait_for_lock(Duration::from_secs(60));
    let waiter = {
        let volume = Arc::clone(&volume);
        std::thread::spawn(move || waiting.open_on(volume))
    };
    drop(first);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiter.is_finished());
    let impatient = Database::builder().wait_for_lock(Duration::from_millis(50));
    assert!(matches!(impatient.open_on(Arc::clone(&volume)), Err(Error::Locked { .. })));
    drop(second);
    waiter.join().expect("no panic").expect("opens");
}

/// A database of which `count` records are in the log alone.
fn only_logged(count: u64) -> Simulated {
    let volume = Simulated::new(8);
    let db = open(&volume).expect("opens");
    let keyspace = db.keyspace("main").expect("is made");
    for number in 0..count {
        keyspace.insert(number.to_be_bytes(), [7; 20]).expect("inserted");
    }
    drop(keyspace);
    db.close().expect("closes");
    volume
}

fn open_to_read(volume: &Simulated) -> Database {
    Database::builder().read_only(true).open_on(Arc::new(volume.clone())).expect("opens")
}

/// It said that all was sound, and had not looked.
#[test]
fn a_check_of_a_database_that_is_open_read_only_looks_at_all_files() {
    let volume = only_logged(100);
    let reader = open_to_read(&volume).check();
    let writer = open(&volume).expect("opens").check();
    for checked in [reader.expect("sound"), writer.expect("sound")] {
        assert_eq!((checked.records, checked.log_changes), (0, 100), "{checked}");
        assert!(checked.log_records > 0, "{checked}");
    }
    // What is flushed is not counted twice.
    let db = open(&volume).expect("opens");
    db.flush().expect("flushes");
    db.close().expect("closes");
    let checked = open_to_read(&volume).check().expect("sound");
    assert_eq!((checked.records, checked.log_changes), (100, 0), "{checked}");
    // Damage that came after it was opened.
    for part in ["CURRENT", "manifest", "wal"] {
        for is_gone in [false, true] {
            let volume = only_logged(100);
            let db = open_to_read(&volume);
            let name = names(&volume).into_iter().find(|name| name.starts_with(part)).expect("a file");
            if is_gone {
                volume.remove(&name).expect("removed");
            } else {
                edit_file(&volume, &name, |bytes| {
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 1;
                });
            }
            let told = db.check().expect_err("damage");
            assert!(told.is_damage() && told.to_string().contains(&name), "{name}: {told}");
        }
    }
}

/// There was nothing to read in an empty one, and so it was sound.
#[test]
fn a_closed_database_is_not_checked() {
    for count in [0, 100] {
        let volume = only_logged(count);
        for read_only in [true, false] {
            let db = Database::builder().read_only(read_only).open_on(Arc::new(volume.clone()));
            let db = db.expect("opens");
            let other = db.clone();
            db.close().expect("closes");
            assert!(matches!(other.check(), Err(Error::Closed)), "read_only {read_only}");
        }
    }
}

#[test]
fn impossible_keys_values_and_options_are_refused() {
    let volume: Arc<dyn psync::Volume> = Arc::new(Simulated::new(1));
    assert!(matches!(
        Database::builder().memory(1).open_on(Arc::clone(&volume)),
        Err(Error::BadOption { .. })
    ));
    assert!(matches!(
        Database::builder().io_timeout(std::time::Duration::ZERO).open_on(Arc::clone(&volume)),
        Err(Error::BadOption { option: "io_timeout", .. })
    ));
    assert!(matches!(
        Database::builder().create(false).open_on(Arc::clone(&volume)),
        Err(Error::Missing { .. })
    ));
    let db = Database::builder().open_on(volume).expect("opens");
    let keyspace = db.keyspace("main").expect("is made");
    assert!(matches!(keyspace.insert("", "x"), Err(Error::KeyEmpty)));
    assert!(matches!(keyspace.get(""), Err(Error::KeyEmpty)));
    assert!(matches!(
        keyspace.insert(vec![0; 65537], "x"),
        Err(Error::KeyTooLong { len: 65537, max: 65536 })
    ));
    assert!(matches!(keyspace.insert("x", vec![0; 17 << 20]), Err(Error::ValueTooLong { .. })));
    keyspace.insert(vec![7; 65536], "longest").expect("a key of the greatest length");
    assert!(matches!(db.keyspace(""), Err(Error::BadName { .. })));
    let mut batch = db.batch();
    for key in 0..70u32 {
        batch.insert(&keyspace, key.to_be_bytes(), vec![0; 1 << 20]);
    }
    assert!(matches!(batch.commit(), Err(Error::BatchTooLarge { .. })));
    assert!(keyspace.get(0u32.to_be_bytes()).expect("sound").is_none(), "nothing of it happened");
    db.flush().expect("flushes");
    db.check().expect("sound");
}

/// A disk that fills up refuses writes, goes on reading, and is well again when there is space.
#[test]
fn a_full_disk_comes_back() {
    for (seed, background_threads) in (0..12).zip([0, 1].into_iter().cycle()) {
        let volume = Simulated::new(seed);
        let shared: Arc<dyn psync::Volume> = Arc::new(volume.clone());
        let db =
            scenario::plain_options().background_threads(background_threads).open_on(shared).expect("opens");
        let keyspace = db.keyspace("main").expect("is made");
        volume.set_capacity((2 + seed % 4) << 20);
        let mut expected = Contents::new();
        let mut rng = StdRng::seed_from_u64(seed);
        let mut full = None;
        for number in 0..20_000u32 {
            let (key, value) = (number.to_be_bytes().to_vec(), vec![rng.random(); 400]);
            let mut batch = db.batch();
            batch.insert(&keyspace, &key, &value);
            match batch.durability(sapwood::Durability::Buffered).commit() {
                Ok(()) => drop(expected.insert(key, value)),
                Err(error) => {
                    full = Some(error);
                    break;
                }
            }
        }
        let full = full.expect("the disk is small");
        assert!(full.is_disk_full(), "{full}");
        read_all(&db, &expected).expect("reads go on");
        volume.set_capacity(u64::MAX);
        // The flush may still be waiting to try again; then the first write tells, and a later one succeeds.
        let began = std::time::Instant::now();
        while let Err(error) = keyspace.insert("after", "wards") {
            assert!(error.is_disk_full() && began.elapsed().as_secs() < 20, "{error}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        expected.insert(b"after".to_vec(), b"wards".to_vec());
        db.flush().expect("flushes");
        read_all(&db, &expected).expect("all is there");
        db.check().expect("sound");
        drop((keyspace, db));
        let db = open(&volume).expect("opens again");
        read_all(&db, &expected).expect("all is still there");
    }
}
