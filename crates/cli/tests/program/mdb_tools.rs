//! LMDB's own tools (`lmdb-utils`) write what we load, and load what we write.

use crate::running::{Place, Said, noise};
use std::process::Command;

fn tools() -> bool {
    let there = Command::new("mdb_dump").arg("-V").output().is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("SKIPPED: mdb_dump and mdb_load are not installed (package lmdb-utils)");
    }
    there
}

fn tool(place: &Place, name: &str, arguments: &[&str]) -> Said {
    let output = Command::new(name).args(arguments).current_dir(place.path("")).output().expect(name);
    let said = Said::from(output);
    assert_eq!(said.code, Some(0), "{name} {arguments:?}: {said:?}");
    said
}

/// Records as LMDB can hold them: keys of at most 511 bytes.
fn records(seed: u64, count: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let record = |index| {
        let key = noise(seed + index, 1 + (index as usize * 7) % 511);
        (key, noise(seed * 31 + index, (index as usize * 13) % 3000))
    };
    let mut records: Vec<_> = (1..=count).map(record).collect();
    records.sort();
    records.dedup_by(|a, b| a.0 == b.0);
    records
}

fn tsv(records: &[(Vec<u8>, Vec<u8>)]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    records.iter().map(|(key, value)| format!("{}\t{}\n", hex(key), hex(value))).collect()
}

#[test]
fn through_lmdb_and_back_in_both_forms() {
    if !tools() {
        return;
    }
    for form in [&["-n", "ships.lmdb"][..], &["-p", "-n", "ships.lmdb"]] {
        let place = Place::new();
        let mut records = records(1, 700);
        if form.contains(&"-p") {
            // `mdb_dump -p` of LMDB 0.9.24 and before writes a backslash as it is, which `mdb_load` refuses, too.
            for (key, value) in &mut records {
                key.iter_mut().chain(value).filter(|byte| **byte == b'\\').for_each(|byte| *byte = b'/');
            }
            records.sort();
        }
        place.ships(&tsv(&records));
        let ours = place.run(&["dump", "ships.db", "--format", "mdb"]).ends(0).out;
        place.file("ours.mdb", &ours);
        tool(&place, "mdb_load", &["-n", "-f", "ours.mdb", "ships.lmdb"]);
        let theirs = tool(&place, "mdb_dump", form).out;
        place.file("theirs.mdb", theirs);
        place.run(&["load", "back.db", "theirs.mdb"]).ends(0).tells("700 records");
        let back = place.run(&["dump", "back.db", "--format", "mdb"]).ends(0).out;
        let data = |text: &str| text.split_once("HEADER=END\n").map(|(_, data)| data.to_owned());
        assert_eq!(data(&back), data(&ours));
    }
}

#[test]
fn keyspaces_are_databases_and_databases_keyspaces() {
    if !tools() {
        return;
    }
    let place = Place::new();
    for (keyspace, seed) in [("ships", 2), ("harbours", 3)] {
        let text = tsv(&records(seed, 50));
        place.feed(&["load", "all.db", "--keyspace", keyspace], text.as_bytes()).ends(0);
    }
    let ours = place.run(&["dump", "all.db", "--format", "mdb"]).ends(0).out;
    place.file("ours.mdb", &ours);
    tool(&place, "mdb_load", &["-n", "-f", "ours.mdb", "all.lmdb"]);
    place.file("theirs.mdb", tool(&place, "mdb_dump", &["-a", "-n", "all.lmdb"]).out);
    place.run(&["load", "back.db", "theirs.mdb"]).ends(0).tells("100 records");
    for keyspace in ["ships", "harbours"] {
        let of = |db| place.run(&["dump", db, "--keyspace", keyspace]).ends(0).out;
        assert_eq!(of("back.db"), of("all.db"));
    }
    place
        .run(&["load", "one.db", "theirs.mdb", "--keyspace", "both"])
        .ends(3)
        .tells("a second database has begun");
}

/// The map's size in a dump is what `mdb_load` makes the map of: records that still wait in the log count too.
#[test]
fn the_map_is_large_enough_for_records_that_only_the_log_holds() {
    if !tools() {
        return;
    }
    let place = Place::new();
    let db = sapwood::Database::open(place.path("log.db")).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let mut batch = db.batch();
    for index in 0..5000u64 {
        batch.insert(&keyspace, noise(index + 1, 16), noise(index + 9999, 2100));
    }
    batch.commit().unwrap();
    drop(keyspace);
    db.close().unwrap();
    place.file("log.mdb", place.run(&["dump", "log.db", "--format", "mdb"]).ends(0).out);
    tool(&place, "mdb_load", &["-n", "-f", "log.mdb", "log.lmdb"]);
    assert!(tool(&place, "mdb_stat", &["-n", "log.lmdb"]).out.contains("Entries: 5000"));
}

#[test]
fn several_values_for_a_key_are_refused() {
    if !tools() {
        return;
    }
    let place = Place::new();
    let text = "VERSION=3\nformat=print\ntype=btree\nduplicates=1\ndupsort=1\nHEADER=END\n a\n 1\n a\n 2\nDATA=END\n";
    place.file("dup.mdb", text);
    tool(&place, "mdb_load", &["-n", "-f", "dup.mdb", "dup.lmdb"]);
    place.file("theirs.mdb", tool(&place, "mdb_dump", &["-n", "dup.lmdb"]).out);
    place.run(&["load", "x.db", "theirs.mdb"]).ends(3).tells("several values for a key");
}
