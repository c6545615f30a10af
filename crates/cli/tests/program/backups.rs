//! Backups by the program: taken, listed, verified, restored, removed, through pipes, and damaged.

use crate::running::{PROGRAM, Place, Said};
use std::fs::{read_dir, write};

fn place() -> Place {
    let place = Place::new();
    let text: String = (0..20_000).map(|index| format!("{index:08}\tvalue {index}\n")).collect();
    place.ships(&text);
    place
}

fn dump(place: &Place, db: &str) -> String {
    place.run(&["dump", db]).ends(0).out
}

#[test]
fn a_moment_between_backups_is_restored() {
    let place = place();
    place.run(&["backup", "ships.db", "backups", "--archive-log"]).ends(2).tells("changes --keep");
    place.run(&["changes", "ships.db", "--keep", "64M"]).ends(0);
    let said = place.run(&["backup", "ships.db", "backups", "--archive-log"]).ends(0);
    assert!(said.out.contains("each moment since 20"), "{said:?}");
    let sequence = |number: usize| {
        let listed = place.run(&["backups", "backups", "--json"]).ends(0).out;
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        listed[number - 1]["sequence"].as_u64().expect("a number")
    };
    let first = sequence(1);
    place.run(&["put", "ships.db", "vega", "1872"]).ends(0);
    place.run(&["drop", "ships.db", "default"]).ends(0);
    place.run(&["backup", "ships.db", "backups", "--archive-log"]).ends(0);
    assert_eq!(sequence(2), first + 1);
    let listed = place.run(&["backups", "backups"]).ends(0).out;
    assert!(listed.contains("MOMENTS SINCE"), "{listed}");
    let number = (first + 1).to_string();
    let said = place.run(&["restore", "backups", "before.db", "--to-sequence", &number]).ends(0);
    assert!(said.out.contains("restored from backup 1 and the log behind it"), "{said:?}");
    assert_eq!(place.run(&["get", "before.db", "vega"]).ends(0).out, "1872\n");
    // Of those that are left: it told of moments that went with the backups that it then removed.
    let said = place.run(&["backup", "ships.db", "backups", "--archive-log", "--keep", "1"]).ends(0);
    let at = |text: &str| said.out.find(text).unwrap_or_else(|| panic!("{text}: {said:?}"));
    assert!(at("backup 2 removed") < at("each moment since 20"), "{said:?}");
    let early = ["restore", "backups", "other.db", "--to", "2h ago"];
    place.run(&early).ends(1).tells("cannot bring back").tells("it can bring back: 20");
    place.run(&["restore", "backups", "other.db", "--to", "yesterday"]).ends(2).tells("20min ago");
}

#[test]
fn a_backup_is_taken_listed_verified_and_restored() {
    let place = place();
    let said = place.run(&["backup", "ships.db", "backups"]).ends(0);
    assert!(said.out.starts_with("backups: backup 1 of 20") && said.out.contains("copied"), "{said:?}");
    let first = dump(&place, "ships.db");
    place.run(&["put", "ships.db", "fram", "1892"]).ends(0);
    place.run(&["backup", "ships.db", "backups", "--rate", "100M"]).ends(0);
    let listed = place.run(&["backups", "backups"]).ends(0).out;
    assert_eq!(listed.lines().count(), 3, "{listed}");
    let listed = place.run(&["backups", "backups", "--json"]).ends(0).out;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((&listed[0]["number"], &listed[1]["sequence"]), (&1.into(), &20_001.into()));
    let said = place.run(&["verify", "backups", "--all"]).ends(0);
    assert!(said.out.contains("backup 1 is whole") && said.out.contains("backup 2 is whole"), "{said:?}");
    place.run(&["restore", "backups", "new.db"]).ends(0);
    place.run(&["check", "new.db"]).ends(0);
    assert_eq!(dump(&place, "new.db"), dump(&place, "ships.db"));
    place.run(&["restore", "backups", "old.db", "--number", "1"]).ends(0);
    assert_eq!(dump(&place, "old.db"), first);
    place.run(&["restore", "backups", "old.db"]).ends(3).tells("is not empty").tells("new directory");
    place.run(&["restore", "backups", "other.db", "--number", "9"]).ends(1).tells("it has: 1, 2");
}

#[test]
fn old_backups_are_removed() {
    let place = place();
    for _ in 0..3 {
        place.run(&["backup", "ships.db", "backups"]).ends(0);
    }
    place.run(&["backup", "ships.db", "backups", "--keep", "2"]).ends(0);
    let said = place.run(&["backups", "backups", "--remove", "4"]).ends(0);
    assert!(said.out.contains("backup 4 removed"), "{said:?}");
    let listed = place.run(&["backups", "backups"]).ends(0).out;
    assert!(listed.lines().count() == 2 && listed.contains("     3  "), "{listed}");
    place.run(&["backups", "backups", "--remove", "4"]).ends(1).tells("it has: 3");
    place.run(&["verify", "backups"]).ends(0);
}

/// Killed behind the first one and repeated as it was, it came to no other.
#[test]
fn a_removal_of_several_is_repeated_as_it_was() {
    let place = place();
    for _ in 0..3 {
        place.run(&["backup", "ships.db", "backups"]).ends(0);
    }
    place.run(&["backups", "backups", "--remove", "1"]).ends(0);
    let said = place.run(&["backups", "backups", "--remove", "1", "--remove", "2"]).ends(1);
    assert!(said.out.contains("backup 2 removed") && !said.out.contains("backup 1"), "{said:?}");
    said.tells("backup 1").tells("it has: 3");
    place.run(&["verify", "backups", "--all"]).ends(0);
}

/// A target may have backups of several databases.
#[test]
fn backups_of_other_databases_are_kept() {
    let place = place();
    place.run(&["put", "other.db", "key", "value"]).ends(0);
    place.run(&["backup", "other.db", "backups"]).ends(0);
    for _ in 0..2 {
        place.run(&["backup", "ships.db", "backups", "--keep", "1"]).ends(0);
    }
    assert_eq!(place.run(&["backups", "backups"]).ends(0).out.lines().count(), 3);
    place.run(&["restore", "backups", "copy.db", "--number", "1"]).ends(0);
    assert_eq!(place.run(&["get", "copy.db", "key"]).ends(0).out, "value\n");
}

#[test]
fn a_place_without_backups_is_not_verified() {
    let place = place();
    std::fs::create_dir(place.path("empty")).unwrap();
    place.run(&["verify", "empty", "--all"]).ends(1).tells("no backups");
}

#[test]
fn a_stream_goes_through_a_pipe() {
    let place = place();
    let output = place.command(&["backup", "ships.db", "--stream"]).output().unwrap();
    assert!(output.status.success() && output.stdout.starts_with(b"SapBLOB\n"));
    place.feed(&["restore", "-", "copy.db"], &output.stdout).ends(0);
    assert_eq!(dump(&place, "copy.db"), dump(&place, "ships.db"));
    write(place.path("ships.backup"), &output.stdout).unwrap();
    place.run(&["verify", "ships.backup"]).ends(0);
    place.run(&["restore", "ships.backup", "second.db"]).ends(0);
    place.run(&["verify", "ships.backup", "--number", "1"]).ends(2);
    place.feed(&["verify", "-"], &output.stdout[..output.stdout.len() / 2]).ends(1).tells("cut off");
    // The second one would be left out.
    write(place.path("two.backup"), [&output.stdout[..], &output.stdout].concat()).unwrap();
    for arguments in [&["verify", "two.backup"][..], &["restore", "two.backup", "third.db"]] {
        place.run(arguments).ends(1).tells("what follows the manifest");
    }
    place.run(&["get", "third.db", "00000001"]).ends(3);
}

#[test]
fn damage_of_a_backup_is_told_and_nothing_is_restored() {
    let place = place();
    place.run(&["backup", "ships.db", "backups"]).ends(0);
    let names = read_dir(place.path("backups")).unwrap().map(|entry| entry.unwrap().path());
    let blob = names.into_iter().find(|path| path.to_string_lossy().contains("segment-")).expect("a segment");
    let mut bytes = std::fs::read(&blob).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    write(&blob, bytes).unwrap();
    place.run(&["verify", "backups"]).ends(1).tells("segment-").tells("checksum");
    place.run(&["restore", "backups", "copy.db"]).ends(1).tells("segment-");
    place.run(&["get", "copy.db", "00000001"]).ends(3).tells("a restore or a repair into it");
    place.run(&["verify", "nowhere"]).ends(1).tells("nowhere");
    place.run(&["backup", "ships.db"]).ends(2);
}

/// It concerns its own backup, and no other one.
#[test]
fn a_damaged_manifest_hides_no_other_backup_and_removes_none() {
    let place = place();
    for _ in 0..3 {
        place.run(&["backup", "ships.db", "backups"]).ends(0);
    }
    let names = || {
        let entries = read_dir(place.path("backups")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names
    };
    let manifest =
        names().into_iter().find(|path| path.to_string_lossy().ends_with("backup-000002")).unwrap();
    let bytes = std::fs::read(&manifest).unwrap();
    write(&manifest, &bytes[..bytes.len() / 2]).unwrap();
    let before = names();
    let said = place.run(&["verify", "backups", "--all"]).ends(1).tells("backup-000002");
    assert!(said.out.contains("backup 1 is whole") && said.out.contains("backup 3 is whole"), "{said:?}");
    let said = place.run(&["backups", "backups"]).ends(1).tells("backup-000002");
    assert_eq!(said.out.lines().count(), 3, "{said:?}");
    place.run(&["backups", "backups", "--remove", "1"]).ends(1).tells("backup-000002");
    assert_eq!(names(), before);
    let said = place.run(&["backup", "ships.db", "backups", "--keep", "1"]).ends(1);
    said.tells("backup 4 was taken").tells("--remove 2");
    place.run(&["backups", "backups", "--remove", "2"]).ends(0);
    place.run(&["backup", "ships.db", "backups", "--keep", "1"]).ends(0);
    assert_eq!(place.run(&["backups", "backups"]).ends(0).out.lines().count(), 2);
    place.run(&["verify", "backups", "--all"]).ends(0);
}

/// It may be as sound as any: nobody is told to remove it.
#[cfg(unix)]
#[test]
fn a_manifest_that_cannot_be_read_is_not_called_damaged() {
    let place = place();
    for _ in 0..3 {
        place.run(&["backup", "ships.db", "backups"]).ends(0);
    }
    let (manifest, away) = (place.path("backups/backup-000002"), place.path("away"));
    std::fs::rename(&manifest, &away).unwrap();
    // No file is opened through a link.
    std::os::unix::fs::symlink(&away, &manifest).unwrap();
    let said = place.run(&["backups", "backups"]).ends(3).tells("backup-000002");
    assert_eq!(said.out.lines().count(), 3, "{said:?}");
    let said = place.run(&["backup", "ships.db", "backups", "--keep", "1"]).ends(3).tells("backup-000002");
    assert!(said.err.contains("backup 4 was taken, but no older one was removed"), "{said:?}");
    assert!(!said.err.contains("--remove"), "{said:?}");
    std::fs::rename(&away, &manifest).unwrap();
    place.run(&["backup", "ships.db", "backups", "--keep", "1"]).ends(0);
    assert_eq!(place.run(&["backups", "backups"]).ends(0).out.lines().count(), 2);
}

/// Each of them kept the other.
#[test]
fn two_damaged_backups_are_removed_together() {
    let place = place();
    for _ in 0..3 {
        place.run(&["backup", "ships.db", "backups"]).ends(0);
    }
    for number in 1..3 {
        let manifest = place.path(&format!("backups/backup-{number:06}"));
        let bytes = std::fs::read(&manifest).unwrap();
        write(&manifest, &bytes[..bytes.len() / 2]).unwrap();
    }
    place.run(&["backups", "backups", "--remove", "1", "--remove", "2"]).ends(0);
    place.run(&["backup", "ships.db", "backups", "--keep", "1"]).ends(0);
    assert_eq!(place.run(&["backups", "backups"]).ends(0).out.lines().count(), 2);
    place.run(&["verify", "backups", "--all"]).ends(0);
}

#[test]
fn a_backup_that_is_not_there_is_not_found_by_verify_either() {
    let place = place();
    place.run(&["backup", "ships.db", "backups"]).ends(0);
    place.run(&["verify", "backups", "--number", "7"]).ends(1).tells("backup 7");
    place.run(&["restore", "backups", "copy.db", "--number", "7"]).ends(1).tells("backup 7");
}

/// It was said that there is none, with the code of damage.
#[cfg(unix)]
#[test]
fn what_cannot_be_looked_at_is_not_said_to_be_missing() {
    let place = place();
    std::os::unix::fs::symlink("loop", place.path("loop")).unwrap();
    let long = "x".repeat(300);
    for target in ["loop", &long] {
        place.run(&["verify", target]).ends(3).tells(target);
        place.run(&["backups", target]).ends(3).tells(target);
        place.run(&["restore", target, "copy.db"]).ends(3).tells(target);
    }
    place.file("file", "");
    for missing in ["nowhere", "file/below"] {
        place.run(&["verify", missing]).ends(1).tells("there is none");
    }
    place.run(&["backups", "file"]).ends(1).tells("it is no directory");
}

/// They were taken for directories.
#[cfg(unix)]
#[test]
fn a_stream_comes_from_whatever_is_no_directory() {
    let place = place();
    let script = "mkfifo pipe; $0 backup ships.db --stream >pipe & $0 restore pipe copy.db && $0 backup ships.db --stream | \
                  $0 verify /dev/stdin";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, PROGRAM]).current_dir(place.path(""));
    let said = Said::from(shell.output().unwrap()).ends(0);
    assert!(said.out.contains("is whole"), "{said:?}");
    assert_eq!(dump(&place, "copy.db"), dump(&place, "ships.db"));
}
