//! Damage on the disk: `check` finds it, names the file, and ends with 1; other commands refuse to guess.

use crate::running::Place;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

fn place() -> Place {
    let place = Place::new();
    let text: String = (0..20_000).map(|index| format!("{index:08}\tvalue {index}\n")).collect();
    place.feed(&["load", "ships.db", "--compression", "none"], text.as_bytes()).ends(0);
    place
}

fn flip(path: PathBuf, offset: u64, len: usize) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("open a file to damage");
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset).expect("read what to damage");
    for byte in &mut bytes {
        *byte ^= 0xa5;
    }
    file.write_all_at(&bytes, offset).expect("damage a file");
}

fn file_named(place: &Place, part: &str) -> String {
    let entries = std::fs::read_dir(place.path("ships.db")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names.into_iter().find(|name| name.contains(part)).unwrap_or_else(|| panic!("no file {part}"))
}

#[test]
fn damaged_leaves_are_all_listed() {
    let place = place();
    let data = file_named(&place, "data");
    flip(place.path("ships.db").join(&data), 3 * 4096 + 100, 8);
    flip(place.path("ships.db").join(&data), 9 * 4096 + 100, 8);
    let said = place.run(&["check", "ships.db"]).ends(1).tells(&data).tells("Restore");
    let listed = said.err.lines().filter(|line| line.contains(&data)).count();
    assert!(listed >= 2, "{said:?}");
    assert!(!said.err.contains("Run `sapwood check`"), "check was run: {said:?}");
    assert_eq!(said.out, "");
    // Whoever reads the damage is told, too, and that is no "not found".
    place.run(&["dump", "ships.db"]).ends(3).tells(&data).tells("sapwood check");
}

#[test]
fn what_keeps_a_database_from_opening_is_damage_too() {
    for part in ["CURRENT", "manifest"] {
        let place = place();
        let name = file_named(&place, part);
        flip(place.path("ships.db").join(&name), 9, 4);
        place.run(&["check", "ships.db"]).ends(1).tells(&name);
        place.run(&["get", "ships.db", "00000001"]).ends(3).tells(&name).tells("sapwood check");
        place.run(&["put", "ships.db", "a", "b"]).ends(3).tells(&name);
    }
}

#[test]
fn every_file_is_missed() {
    for part in ["manifest", "wal", "data"] {
        let place = place();
        let name = file_named(&place, part);
        std::fs::remove_file(place.path("ships.db").join(&name)).unwrap();
        let said = place.run(&["check", "ships.db"]).ends(1).tells(&name).tells("missing");
        assert!(!said.err.contains("sapwood dump"), "nothing can be dumped: {said:?}");
        place.run(&["dump", "ships.db"]).ends(3).tells(&name);
        place.run(&["put", "ships.db", "a", "b"]).ends(3).tells(&name);
    }
}

#[test]
fn files_that_are_missing_or_cut_off_are_damage() {
    let place = place();
    let data = place.path("ships.db").join(file_named(&place, "data"));
    std::fs::OpenOptions::new().write(true).open(&data).unwrap().set_len(8192).unwrap();
    place.run(&["check", "ships.db"]).ends(1).tells("data");
    std::fs::remove_file(&data).unwrap();
    place.run(&["check", "ships.db"]).ends(1).tells("the data file is missing");
    assert!(!data.exists());
}

/// It said "0 records" and "0 log records" of records that are in the log.
#[test]
fn what_is_in_the_log_alone_is_checked_too() {
    let place = Place::new();
    for key in ["fram", "vega", "gjoa"] {
        place.run(&["put", "ships.db", key, "1872"]).ends(0);
    }
    let said = place.run(&["check", "ships.db"]).ends(0).out;
    assert!(said.contains("3 changes that are not in the trees yet"), "{said}");
    assert!(!said.contains("; 0 log records"), "{said}");
}

#[test]
fn a_repair_saves_what_can_be_read_and_lists_the_rest() {
    let place = place();
    place.run(&["repair", "ships.db", "whole.db"]).ends(0);
    let data = file_named(&place, "data");
    flip(place.path("ships.db").join(&data), 3 * 4096 + 100, 8);
    place.run(&["check", "ships.db"]).ends(1).tells("sapwood repair");
    let said = place.run(&["repair", "ships.db", "repaired.db"]).ends(1).tells("listed");
    assert!(
        said.out.contains("may be missing: from \"0") && said.out.contains("a leaf is damaged"),
        "{said:?}"
    );
    place.run(&["check", "repaired.db"]).ends(0);
    let count =
        |db: &str| place.run(&["scan", db, "--count"]).ends(0).out.trim().parse::<u64>().expect("a number");
    assert_eq!(count("whole.db"), 20_000);
    assert!((19_500..20_000).contains(&count("repaired.db")));
    let said = place.run(&["repair", "ships.db", "again.db", "--json"]).ends(1);
    let json: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(
        (&json["has_losses"], &json["keyspaces"][0]["lost"][0]["loss"]),
        (&true.into(), &"missing".into())
    );
    // Where something is already, and where there is nothing.
    place.run(&["repair", "ships.db", "repaired.db"]).ends(3).tells("not empty");
    place.run(&["repair", "ships.db", "ships.db"]).ends(3);
    place.run(&["repair", "nowhere.db", "new.db"]).ends(3).tells("nowhere.db");
    std::fs::remove_file(place.path("ships.db").join("CURRENT")).unwrap();
    place.run(&["repair", "ships.db", "without.db"]).ends(1).tells("listed");
}

/// It said that all was well, and the space was never given back.
#[test]
fn a_dropped_keyspace_whose_space_cannot_be_given_back_is_told() {
    let place = place();
    place.run(&["put", "ships.db", "rotterdam", "51.9", "--keyspace", "harbours"]).ends(0);
    let data = place.path("ships.db").join(file_named(&place, "data"));
    // Whichever node it is.
    for offset in (0..std::fs::metadata(&data).unwrap().len() - 1024).step_by(1024) {
        flip(data.clone(), offset + 100, 8);
    }
    let said = place.run(&["drop", "ships.db", "default"]).ends(3);
    said.tells("is dropped, durably, but its space is not all given back").tells("data");
    place.run(&["drop", "ships.db", "default"]).ends(1);
    place.run(&["compact", "ships.db"]).ends(3).tells("data");
    assert_eq!(place.run(&["get", "ships.db", "rotterdam", "--keyspace", "harbours"]).ends(0).out, "51.9\n");
}
