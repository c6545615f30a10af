//! Backups of a newer Sapwood, which are no damage.

use super::*;
use crate::backup::output::put;
use crate::backup::{Directory, Target};
use crate::encryption::Encryption;
use crate::{Builder, Database};
use psync::Simulated;

fn builder() -> Builder {
    Database::builder().memory(4 << 20).background_threads(0).keep_changes(1 << 20)
}

/// A database, a target with a backup of it, and the names of the backup's blobs as a stream has them.
fn backed_up() -> (Database, Simulated, Vec<String>) {
    let (db, volume) = (builder().open_on(Arc::new(Simulated::new(1))).unwrap(), Simulated::new(2));
    db.keyspace("ships").and_then(|ships| ships.insert("fram", "1892")).and_then(|()| db.flush()).unwrap();
    let target = Directory::on(Arc::new(volume.clone()));
    db.backup().archive_log().run(&target).unwrap();
    let (manifest, _) = read_manifest(&target, 1).unwrap();
    let names = needed(&manifest).map(|(name, _)| name).chain([BlobName::Manifest(1)]);
    (db, volume, names.map(|name| name.to_string()).collect())
}

fn is_newer<T: std::fmt::Debug>(found: &Result<T>, path: &str) {
    let is_it = matches!(found, Err(Error::NewerFormat { path: found, .. }) if found.starts_with(path));
    assert!(is_it, "{found:?}");
}

fn stream(volume: &Simulated, names: &[String]) -> Vec<u8> {
    names.iter().flat_map(|name| volume.read_file(name).unwrap()).collect()
}

/// It was told to be damaged before the format was looked at: what a newer Sapwood has written cannot be read.
#[test]
fn a_backup_of_a_newer_database_is_no_damage() {
    let (_db, volume, names) = backed_up();
    let target = Directory::on(Arc::new(volume.clone()));
    let (mut manifest, _) = read_manifest(&target, 1).unwrap();
    let header = BlobInput::new(&target, BlobName::Version(1)).open(Kind::Version, 1).unwrap().header;
    let none = &Encryption::NONE;
    // An edit with a section that is not known.
    let edit =
        [&8u32.to_le_bytes()[..], &(1u64 << 28).to_le_bytes(), &3u32.to_le_bytes(), &[250; 3]].concat();
    let version = put(&target, BlobName::Version(1), (&header, none), &mut |blob| Ok(blob.put(&edit)?));
    manifest.version = version.unwrap();
    let write = |manifest: &BackupManifest| {
        let header = (&manifest.header(), none);
        put(&target, BlobName::Manifest(1), header, &mut |blob| Ok(blob.put(&manifest.encode())?)).unwrap();
        target.sync().unwrap();
    };
    write(&manifest);
    assert!(
        Restore::from(&target).verify().is_err_and(|error| error.is_damage()),
        "of this format it is damage"
    );
    manifest.database_format += 1;
    write(&manifest);
    let path = "backup 1 in ";
    is_newer(&Restore::from(&target).verify(), path);
    is_newer(&Restore::from(&target).onto(Arc::new(Simulated::new(3))), path);
    is_newer(&Restore::from(&target).to(Point::Sequence(1)).verify(), path);
    is_newer(&Restore::from_stream(&stream(&volume, &names)[..]).verify(), "backup 1 in stream");
}

fn make_newer(volume: &Simulated, names: &[String]) {
    for name in names {
        let mut bytes = volume.read_file(name).unwrap();
        bytes[8..12].copy_from_slice(&99u32.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        volume.write_file(name, &bytes).unwrap();
    }
}

/// The same of blobs in a format that is not known. A backup passes over them, and removes nothing then.
#[test]
fn blobs_of_a_newer_format_are_no_damage() {
    let (db, volume, names) = backed_up();
    make_newer(&volume, &names);
    let target = Directory::on(Arc::new(volume.clone()));
    is_newer(&Restore::from(&target).verify(), "backup-000001 in ");
    is_newer(&Restore::from(&target).to(Point::Sequence(1)).verify(), "backup-000001 in ");
    is_newer(&Restore::from_stream(&stream(&volume, &names)[..]).verify(), "stream");
    assert!(db.backup().archive_log().run(&target).unwrap().copied > 0);
    let left = target.list().unwrap();
    assert!(names.iter().all(|name| left.iter().any(|(found, _)| found == name)), "{left:?}");
    Restore::from(&target).verify().unwrap();
}

/// An older program took it for garbage.
#[test]
fn what_a_newer_sapwood_goes_on_with_stays() {
    let (db, volume, mut names) = backed_up();
    volume.remove_file(&names.pop().unwrap()).unwrap();
    make_newer(&volume, &names);
    let target = Directory::on(Arc::new(volume.clone()));
    for number in 2..4 {
        assert_eq!(db.backup().run(&target).unwrap().number, number);
    }
    crate::backup::remove(&target, 2).unwrap();
    let left = target.list().unwrap();
    let of_attempt = names.iter().filter(|name| !name.starts_with("log-"));
    assert!(of_attempt.clone().count() > 1);
    of_attempt.for_each(|name| assert!(left.iter().any(|(found, _)| found == name), "{name} of {left:?}"));
}
