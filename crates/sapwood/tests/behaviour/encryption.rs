//! Encryption at rest: nothing of keys, values and names is readable in any file, what was changed or exchanged is noticed, and all that a
//! database can do works with it.

#![allow(clippy::unwrap_used, reason = "a failed test is what it is for")]

use psync::{Simulated, Volume};
use sapwood::backup::{Directory, Restore, StreamWriter, Target};
use sapwood::merge::Append;
use sapwood::repair::Repair;
use sapwood::{Builder, Change, Compression, Database, EncryptionKey, Error, KeyProblem, KeyspaceOptions};
use std::sync::Arc;

const SECRET: &[u8] = b"a secret that is in keys, values and names";

fn key(byte: u8) -> EncryptionKey {
    EncryptionKey::from_bytes([byte; 32])
}

fn builder() -> Builder {
    let builder = Database::builder().memory(4 << 20).leaf_len(512).segment_span(1 << 20);
    builder.background_threads(0)
}

fn open_with(volume: &Simulated, key: EncryptionKey) -> sapwood::Result<Database> {
    builder().encryption_key(key).open_on(Arc::new(volume.clone()))
}

fn secret(number: u32) -> Vec<u8> {
    [&number.to_be_bytes()[..], SECRET].concat()
}

const NAMES: [&str; 4] = ["plain", "compressed", "trained", "merged"];

/// Writes to keyspaces of all kinds, in trees, queue and log.
fn fill(db: &Database, numbers: std::ops::Range<u32>) {
    let name = |name: &str| format!("{name} {}", String::from_utf8_lossy(SECRET));
    for kind in NAMES {
        let options = match kind {
            "compressed" => KeyspaceOptions::new().compression(Compression::Lz4),
            "trained" => KeyspaceOptions::new().compression(Compression::ZstdDictionary { level: 3 }),
            "merged" => KeyspaceOptions::new().merge(Append),
            _ => KeyspaceOptions::new(),
        };
        let keyspace = db.keyspace_with(&name(kind), options).unwrap();
        keyspace.set_metadata(SECRET).unwrap();
        for number in numbers.clone() {
            match kind {
                "merged" => keyspace.merge(secret(number), SECRET).unwrap(),
                _ => keyspace.insert(secret(number), secret(number)).unwrap(),
            }
        }
    }
    let large = db.large_values(&name("large")).unwrap();
    for number in numbers.filter(|number| number % 100 == 0) {
        large.insert_from(secret(number), &SECRET.repeat(7000)[..]).unwrap();
    }
}

/// Returns how many records there are, and checks all.
fn count(db: &Database) -> usize {
    let mut count = 0;
    for name in db.keyspaces().into_iter().filter(|name| !name.starts_with("large")) {
        let keyspace = db.keyspace(&name).unwrap();
        assert_eq!(keyspace.metadata().unwrap(), SECRET);
        for item in keyspace.iter() {
            let (key, value) = item.unwrap();
            assert!(
                &key[4..] == SECRET
                    && (key == value || value.chunks(SECRET.len()).all(|chunk| chunk == SECRET))
            );
            count += 1;
        }
    }
    let name = db.keyspaces().into_iter().find(|name| name.starts_with("large"));
    let large = db.large_values(&name.unwrap()).unwrap();
    for item in large.range(..) {
        let (key, _) = item.unwrap();
        let mut value = Vec::new();
        std::io::Read::read_to_end(&mut large.get_reader(&key).unwrap().unwrap(), &mut value).unwrap();
        assert!(value == SECRET.repeat(7000));
        count += 1;
    }
    count
}

fn names(volume: &Simulated) -> Vec<String> {
    volume.list().unwrap().into_iter().map(|entry| entry.name).collect()
}

/// Fails if a file of the volume has any eight bytes of the secret.
fn has_no_secret(volume: &Simulated) {
    for name in names(volume) {
        let bytes = volume.read_file(&name).unwrap();
        for part in SECRET.windows(8) {
            assert!(
                !bytes.windows(8).any(|window| window == part),
                "{name} has {:?}",
                String::from_utf8_lossy(part)
            );
        }
    }
}

fn problem<T>(result: sapwood::Result<T>) -> Option<KeyProblem> {
    match result {
        Err(Error::EncryptionKey { problem, .. }) => Some(problem),
        _ => None,
    }
}

#[test]
fn nothing_is_readable_and_everything_works() {
    let volume = Simulated::new(1);
    let db = open_with(&volume, key(1)).unwrap();
    fill(&db, 0..600);
    db.flush().unwrap();
    fill(&db, 500..700);
    has_no_secret(&volume);
    db.check().unwrap();
    assert_eq!(count(&db), 4 * 700 + 7);
    db.compact().unwrap();
    fill(&db, 700..710);
    drop(db);
    has_no_secret(&volume);
    // Without a key, with another one, and with one for what has none.
    assert_eq!(problem(builder().open_on(Arc::new(volume.clone()))), Some(KeyProblem::Needed));
    assert_eq!(problem(open_with(&volume, key(2))), Some(KeyProblem::Wrong));
    let plain = Simulated::new(2);
    drop(builder().open_on(Arc::new(plain.clone())).unwrap());
    assert_eq!(problem(open_with(&plain, key(1))), Some(KeyProblem::Needless));

    let db = builder().encryption_key(key(1)).read_only(true).open_on(Arc::new(volume.clone())).unwrap();
    assert_eq!(count(&db), 4 * 710 + 8);
    db.check().unwrap();
}

#[test]
fn the_key_is_changed_at_once_and_old_data_with_a_compaction() {
    let volume = Simulated::new(1);
    let db = open_with(&volume, key(1)).unwrap();
    fill(&db, 0..300);
    db.flush().unwrap();
    fill(&db, 300..310);
    let keys_before = volume.read_file("KEYS").unwrap();
    db.change_encryption_key(&key(2)).unwrap();
    fill(&db, 310..320);
    drop(db);
    assert_eq!(problem(open_with(&volume, key(1))), Some(KeyProblem::Wrong));
    let db = open_with(&volume, key(2)).unwrap();
    assert_eq!(count(&db), 4 * 320 + 4);
    // What lies in nodes that count, and was encrypted with the first data key.
    let of_old_key = || {
        let data = volume.read_file("data").unwrap();
        let is_old =
            |(at, len): &(usize, usize)| data.get(at + len - 44..at + len - 40) == Some(&[1, 0, 0, 0]);
        nodes(&data).iter().filter(|node| is_old(node)).count()
    };
    assert!(of_old_key() > 20);
    db.compact().unwrap();
    assert_eq!(count(&db), 4 * 320 + 4);
    db.check().unwrap();
    let written = db.stats();
    db.compact().unwrap();
    assert_eq!(db.stats().space, written.space, "once is enough");
    drop(db);
    let db = open_with(&volume, key(2)).unwrap();
    assert_eq!(count(&db), 4 * 320 + 4);
    drop(db);
    // The old key and the old file open nothing of it now.
    volume.write_file("KEYS", &keys_before).unwrap();
    let error = open_with(&volume, key(1)).expect_err("the manifest is not encrypted with this");
    assert!(error.is_damage(), "{error}");
    let plain = builder().open_on(Arc::new(Simulated::new(2))).unwrap();
    assert_eq!(problem(plain.change_encryption_key(&key(1))), Some(KeyProblem::Needless));
}

/// Writes part of a file's bytes.
fn put(volume: &Simulated, name: &str, at: usize, data: &[u8]) {
    let mut bytes = volume.read_file(name).unwrap();
    bytes[at..at + data.len()].copy_from_slice(data);
    volume.write_file(name, &bytes).unwrap();
}

/// Where nodes begin in the data file, and how long they are.
fn nodes(bytes: &[u8]) -> Vec<(usize, usize)> {
    let starts = (0..bytes.len().saturating_sub(40)).filter(|at| bytes[*at..].starts_with(b"SapN"));
    starts.map(|at| (at, u32::from_le_bytes(bytes[at + 28..at + 32].try_into().unwrap()) as usize)).collect()
}

/// The checksum of a node, as its header has it.
fn crc(node: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&node[..36]), &node[40..])
}

/// Changes a node so that its checksum stays the same: who does so on purpose can.
fn forged(node: &[u8], at: usize) -> Vec<u8> {
    let (wanted, mut forged) = (crc(node), node.to_vec());
    forged[at] ^= 0x20;
    // The checksum is linear: 32 bits elsewhere make up for it. Found by elimination.
    let place = if at < 80 { 100 } else { 60 };
    let base = crc(&forged);
    let mut rows: Vec<(u32, u32)> = (0..32)
        .map(|bit| {
            let mut flipped = forged.clone();
            flipped[place + bit / 8] ^= 1 << (bit % 8);
            (crc(&flipped) ^ base, 1 << bit)
        })
        .collect();
    let (mut left, mut solution) = (wanted ^ base, 0u32);
    for bit in (0..32).rev() {
        let Some(index) = rows.iter().position(|(row, _)| row >> bit == 1) else { continue };
        let (row, mask) = rows.swap_remove(index);
        for (other, others) in &mut rows {
            if *other >> bit & 1 == 1 {
                (*other, *others) = (*other ^ row, *others ^ mask);
            }
        }
        if left >> bit & 1 == 1 {
            (left, solution) = (left ^ row, solution ^ mask);
        }
    }
    for bit in 0..32 {
        forged[place + bit / 8] ^= u8::from(solution >> bit & 1 == 1) << (bit % 8);
    }
    assert_eq!(crc(&forged), wanted);
    forged
}

#[test]
fn nodes_that_were_forged_or_exchanged_are_damage() {
    let volume = Simulated::new(1);
    let db = open_with(&volume, key(1)).unwrap();
    fill(&db, 0..300);
    db.compact().unwrap();
    drop(db);
    let data = volume.read_file("data").unwrap();
    let nodes: Vec<_> = nodes(&data).into_iter().filter(|(_, len)| *len > 160 && *len < 4000).collect();
    assert!(nodes.len() > 50, "{}", nodes.len());
    let checked = || open_with(&volume, key(1)).and_then(|db| db.check());
    checked().unwrap();
    let mut found = 0;
    for (index, (at, len)) in nodes.iter().enumerate().step_by(7) {
        let node = &data[*at..at + len];
        for byte in [45, len / 2, len - 45, len - 10] {
            put(&volume, "data", *at, &forged(node, byte));
            // It may be a version of a node that nothing refers to any more.
            if let Err(error) = checked() {
                assert!(error.is_damage(), "{error}");
                found += 1;
            }
            put(&volume, "data", *at, node);
        }
        if let Some((other, _)) = nodes[index + 1..].iter().find(|(_, other)| other == len) {
            put(&volume, "data", *at, &data[*other..other + len]);
            found += usize::from(checked().is_err_and(|error| error.is_damage()));
            put(&volume, "data", *at, node);
        }
    }
    assert!(found > 20, "{found}");
    checked().unwrap();
}

/// A trailer does not make a leaf reach into another page.
#[test]
fn a_get_reads_as_much_as_without_encryption() {
    let read = |key: Option<EncryptionKey>| {
        let volume = Simulated::new(1).with_alignment(4096);
        let open = || {
            let builder = Database::builder().memory(4 << 20).background_threads(0);
            let builder = key.clone().into_iter().fold(builder, |builder, key| builder.encryption_key(key));
            builder.open_on(Arc::new(volume.clone())).unwrap()
        };
        let db = open();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.ingest((0..40_000u32).map(|number| (number.to_be_bytes(), [7; 100]))).unwrap();
        drop((keyspace, db));
        let db = open();
        let keyspace = db.keyspace("main").unwrap();
        keyspace.get(0u32.to_be_bytes()).unwrap();
        let before = db.stats().reads.bytes;
        (0..40_000u32)
            .step_by(97)
            .for_each(|number| assert!(keyspace.contains(number.to_be_bytes()).unwrap()));
        db.stats().reads.bytes - before
    };
    let (plain, encrypted) = (read(None), read(Some(key(1))));
    assert!(encrypted <= plain / 20 * 21, "{encrypted} bytes, {plain} without");
}

/// Each file of one database in the place of the other's, both with the same key, and of an earlier time of the same one.
#[test]
fn files_that_were_exchanged_are_noticed() {
    let (volume, other) = (Simulated::new(1), Simulated::new(2));
    let build = |volume: &Simulated, key: EncryptionKey| {
        let db = open_with(volume, key).unwrap();
        fill(&db, 0..40);
        db.flush().unwrap();
        fill(&db, 40..50);
    };
    build(&volume, key(1));
    build(&other, key(1));
    for name in names(&volume).into_iter().filter(|name| !["LOCK", "DURABLE", "reserve"].contains(&&**name)) {
        let own = volume.read_file(&name).unwrap();
        let Ok(others) = other.read_file(&name) else { continue };
        assert_ne!(own, others, "{name}");
        volume.write_file(&name, &others).unwrap();
        let read_only = builder().encryption_key(key(1)).read_only(true);
        let checked = read_only.open_on(Arc::new(volume.clone())).and_then(|db| db.check());
        assert!(checked.is_err_and(|error| error.is_damage()), "{name}");
        volume.write_file(&name, &own).unwrap();
    }
    assert_eq!(count(&open_with(&volume, key(1)).unwrap()), 4 * 50 + 1);
}

/// What is left when `KEYS` is lost is said, not taken for a database without encryption.
#[test]
fn lost_keys_are_named() {
    let volume = Simulated::new(1);
    drop(open_with(&volume, key(1)).unwrap());
    volume.remove("KEYS").unwrap();
    for opened in [open_with(&volume, key(1)), builder().open_on(Arc::new(volume.clone()))] {
        let error = opened.expect_err("no keys");
        assert!(error.is_damage() && error.to_string().contains("KEYS"), "{error}");
    }
    for repair in [repair(&volume), repair(&volume).encryption_key(key(1))] {
        let error = repair.onto(Arc::new(Simulated::new(2))).expect_err("no keys");
        assert!(error.is_damage() && error.to_string().contains("KEYS"), "{error}");
    }
}

fn repair(volume: &Simulated) -> Repair<'static> {
    Repair::of_volume(Arc::new(volume.clone()))
}

#[test]
fn what_is_repaired_is_encrypted_as_it_was() {
    let volume = Simulated::new(1);
    let db = open_with(&volume, key(1)).unwrap();
    fill(&db, 0..300);
    db.flush().unwrap();
    db.change_encryption_key(&key(2)).unwrap();
    fill(&db, 300..310);
    drop(db);
    assert_eq!(problem(repair(&volume).onto(Arc::new(Simulated::new(2)))), Some(KeyProblem::Needed));
    let wrong = repair(&volume).encryption_key(key(1)).onto(Arc::new(Simulated::new(2)));
    assert_eq!(problem(wrong), Some(KeyProblem::Wrong));
    // Whole, and made of what the data file has.
    for is_searched in [false, true] {
        if is_searched {
            let manifest = names(&volume).into_iter().find(|name| name.starts_with("manifest")).unwrap();
            volume.remove_file(&manifest).unwrap();
        }
        let new = Simulated::new(2);
        let report = repair(&volume).encryption_key(key(2)).onto(Arc::new(new.clone())).unwrap();
        assert_eq!(report.has_losses(), is_searched, "{report:?}");
        has_no_secret(&new);
        let db = open_with(&new, key(2)).unwrap();
        db.check().unwrap();
        if !is_searched {
            assert_eq!(count(&db), 4 * 310 + 4);
        }
    }
}

#[test]
fn followers_and_the_change_feed_read_what_is_encrypted() {
    let volume = Simulated::new(1).with_windows();
    let writer =
        builder().encryption_key(key(1)).keep_changes(1 << 30).open_on(Arc::new(volume.clone())).unwrap();
    let (_, position) = writer.snapshot_for_changes().unwrap();
    fill(&writer, 0..100);
    let follower = builder().encryption_key(key(1)).follow(true).open_on(Arc::new(volume.clone())).unwrap();
    assert_eq!(count(&follower), 4 * 100 + 1);
    fill(&writer, 100..150);
    writer.flush().unwrap();
    fill(&writer, 150..160);
    follower.refresh().unwrap();
    assert_eq!(count(&follower), 4 * 160 + 2);
    let commits = writer.changes(&position).unwrap().filter(|change| matches!(change, Ok(Change::Commit(_))));
    assert!(commits.count() >= 4 * 160);
    // A change of the key ends what followers can read.
    writer.change_encryption_key(&key(2)).unwrap();
    fill(&writer, 160..170);
    assert!(follower.refresh().is_err());
    let wrong = builder().encryption_key(key(1)).follow(true).open_on(Arc::new(volume.clone()));
    assert_eq!(problem(wrong), Some(KeyProblem::Wrong));
    let follower = builder().encryption_key(key(2)).follow(true).open_on(Arc::new(volume.clone())).unwrap();
    assert_eq!(count(&follower), 4 * 170 + 2);
}

#[test]
fn backups_are_encrypted_and_restored_with_the_key_of_their_time() {
    let (volume, target) = (Simulated::new(1), Simulated::new(2));
    let db = open_with(&volume, key(1)).unwrap();
    let directory = || Directory::on(Arc::new(target.clone()));
    fill(&db, 0..300);
    db.flush().unwrap();
    fill(&db, 300..310);
    db.backup().run(&directory()).unwrap();
    db.change_encryption_key(&key(2)).unwrap();
    fill(&db, 310..320);
    let second = db.backup().run(&directory()).unwrap();
    has_no_secret(&target);
    let stream = StreamWriter::new(Vec::new());
    db.backup().run(&stream).unwrap();
    let stream = stream.into_inner();
    for part in SECRET.windows(8) {
        assert!(!stream.windows(8).any(|window| window == part));
    }

    let blobs = directory();
    let first = || Restore::from(&blobs).number(1);
    assert_eq!(problem(first().verify()), Some(KeyProblem::Needed));
    assert_eq!(problem(first().encryption_key(key(2)).verify()), Some(KeyProblem::Wrong));
    first().encryption_key(key(1)).verify().unwrap();
    let restored = Simulated::new(3);
    first().encryption_key(key(1)).onto(Arc::new(restored.clone())).unwrap();
    has_no_secret(&restored);
    let copy = open_with(&restored, key(1)).unwrap();
    assert_eq!(count(&copy), 4 * 310 + 4);
    fill(&copy, 310..400);
    copy.check().unwrap();
    for (restore, number) in
        [(Restore::from(&directory()), second.number), (Restore::from_stream(&stream[..]), 1)]
    {
        let restored = Simulated::new(4);
        let info = restore.encryption_key(key(2)).onto(Arc::new(restored.clone())).unwrap();
        assert_eq!(info.number, number);
        let copy = open_with(&restored, key(2)).unwrap();
        assert_eq!(count(&copy), 4 * 320 + 4);
        copy.check().unwrap();
    }
    // One that is not encrypted needs no key.
    let plain = builder().open_on(Arc::new(Simulated::new(5))).unwrap();
    let stream = StreamWriter::new(Vec::new());
    plain.backup().run(&stream).unwrap();
    let restored = Restore::from_stream(&stream.into_inner()[..]).encryption_key(key(1)).verify();
    assert_eq!(problem(restored), Some(KeyProblem::Needless));
}

/// A log of one backup in the place of another's of the same length and numbers.
#[test]
fn blobs_of_backups_that_were_exchanged_are_noticed() {
    let (volume, target) = (Simulated::new(1), Simulated::new(2));
    let directory = Directory::on(Arc::new(target.clone()));
    let db = open_with(&volume, key(1)).unwrap();
    fill(&db, 0..20);
    db.backup().run(&directory).unwrap();
    db.backup().run(&directory).unwrap();
    for (first, second) in [("log-000001", "log-000002"), ("version-000001", "version-000002")] {
        let (mut forged, own) = (target.read_file(first).unwrap(), target.read_file(second).unwrap());
        assert_eq!(forged.len(), own.len());
        // The number of the backup, and the header's checksum. The others are as they would be: they are no proof.
        forged[32..40].copy_from_slice(&own[32..40]);
        let crc = crc32c::crc32c(&forged[..60]);
        forged[60..64].copy_from_slice(&crc.to_le_bytes());
        put(&target, second, 0, &forged);
        let found = Restore::from(&directory).number(2).encryption_key(key(1)).verify();
        assert!(found.is_err(), "{second}");
        put(&target, second, 0, &own);
    }
    Restore::from(&directory).number(2).encryption_key(key(1)).verify().unwrap();
    assert!(directory.list().unwrap().iter().any(|(name, _)| name == "keys-000002"));
}

#[test]
fn key_files_are_what_was_saved_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (file, path) = (dir.path().join("ships.key"), dir.path().join("ships.db"));
    EncryptionKey::generate().unwrap().save(&file).unwrap();
    let open = |file: &std::path::Path| {
        EncryptionKey::from_file(file).and_then(|key| Database::builder().encryption_key(key).open(&path))
    };
    drop(open(&file).unwrap());
    drop(open(&file).unwrap());
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
    let text = std::fs::read_to_string(&file).unwrap();
    for (name, text, is_key) in [
        ("upper", format!(" {}\r\n", text.trim().to_uppercase()), true),
        ("short", text[1..].to_owned(), false),
        ("long", format!("0{text}"), false),
        ("other", text.replacen(|_: char| true, "g", 1), false),
        ("empty", String::new(), false),
    ] {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        let opened = open(&file);
        assert_eq!(opened.is_ok(), is_key, "{name}");
        assert_eq!(problem(opened), (!is_key).then_some(KeyProblem::NoKeyFile), "{name}");
    }
    let missing = open(&dir.path().join("none")).expect_err("no file");
    assert!(missing.to_string().contains("none"), "{missing}");
    let shown = format!("{:?} {missing}", EncryptionKey::from_file(&file).unwrap());
    assert!(!shown.contains(&text[..8]), "{shown}");
}

/// Nothing reads the keys before the next opening: a backup copied them as they were, and so no restore was possible.
#[test]
fn damage_of_the_keys_is_told_while_the_database_is_open() {
    let volume = Simulated::new(1);
    let db = open_with(&volume, key(1)).unwrap();
    db.keyspace("ships").unwrap().insert("fram", "1892").unwrap();
    let target = Directory::on(Arc::new(Simulated::new(2)));
    let is_told = |what: &str| {
        for error in [db.check().unwrap_err(), db.backup().run(&target).unwrap_err()] {
            assert!(error.is_damage() && error.to_string().contains("KEYS"), "{what}: {error}");
        }
    };
    let sound = volume.read_file("KEYS").unwrap();
    for byte in 0..sound.len() {
        volume.flip_bit("KEYS", byte as u64, byte as u32 % 8).unwrap();
        is_told(&format!("byte {byte}"));
        volume.write_file("KEYS", &sound).unwrap();
    }
    db.check().unwrap();
    let other = Simulated::new(3);
    drop(open_with(&other, key(1)).unwrap());
    volume.write_file("KEYS", &other.read_file("KEYS").unwrap()).unwrap();
    is_told("another database's");
    volume.write_file("KEYS", &sound).unwrap();
    db.change_encryption_key(&key(2)).unwrap();
    let changed = volume.read_file("KEYS").unwrap();
    db.check().unwrap();
    volume.write_file("KEYS", &sound).unwrap();
    is_told("an older one");
    volume.remove_file("KEYS").unwrap();
    is_told("none");
    volume.write_file("KEYS", &changed).unwrap();
    db.check().unwrap();
    db.backup().run(&target).unwrap();
    let copy = Simulated::new(4);
    Restore::from(&target).encryption_key(key(2)).onto(Arc::new(copy.clone())).unwrap();
    let copy = open_with(&copy, key(2)).unwrap();
    assert_eq!(copy.keyspace("ships").unwrap().get("fram").unwrap().as_deref(), Some(&b"1892"[..]));
}
