//! Where output goes: ranges of a scan, pipes that close early, disks that are full.

use crate::running::{Place, Said, wait};
use std::io::Read;
use std::process::Stdio;

#[test]
fn scan_takes_ranges_from_both_ends() {
    let place = Place::new();
    place.ships("a\t1\nb\t2\nba\t3\nc\t4\nd\t5\n");
    for (options, keys) in [
        (&[][..], "a b ba c d"),
        (&["--from", "b", "--to", "d"], "b ba c"),
        (&["--from", "b", "--to", "d", "--reverse"], "c ba b"),
        (&["--prefix", "b"], "b ba"),
        (&["--prefix", "b", "--reverse", "--limit", "1"], "ba"),
        (&["--limit", "2"], "a b"),
        (&["--limit", "0"], ""),
        (&["--from", "d", "--to", "b"], ""),
        (&["--from", "b", "--to", "b"], ""),
        (&["--from", "", "--to", "b"], "a"),
        (&["--to", ""], ""),
        (&["--prefix", ""], "a b ba c d"),
        (&["--prefix", "\\xff\\xff"], ""),
        (&["--from", "\\x62a"], "ba c d"),
    ] {
        let arguments = [&["scan", "ships.db"][..], options].concat();
        let out = place.run(&arguments).ends(0).out;
        let found: Vec<_> = out.lines().map(|line| line.split('\t').next().unwrap()).collect();
        assert_eq!(found.join(" "), keys, "{options:?}");
        let counted = place.run(&[&arguments[..], &["--count"]].concat()).ends(0).out;
        assert_eq!(counted.trim(), found.len().to_string(), "{options:?}");
    }
}

fn large() -> Place {
    let place = Place::new();
    let text: String = (0..40_000).map(|index| format!("{index:08}\tvalue {index} \"of\" many\n")).collect();
    place.ships(&text);
    place
}

#[test]
fn a_reader_that_has_had_enough_ends_the_program_quietly() {
    let place = large();
    for arguments in [
        &["dump", "ships.db"][..],
        &["dump", "ships.db", "--format", "csv"],
        &["dump", "ships.db", "--format", "jsonl"],
        &["dump", "ships.db", "--format", "mdb"],
        &["scan", "ships.db"],
        &["scan", "ships.db", "--reverse"],
    ] {
        let mut child = place.command(arguments).spawn().unwrap();
        let mut first = [0; 100];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let said = wait(child).ends(0);
        assert_eq!(said.err, "", "{arguments:?}");
    }
    for arguments in [
        &["get", "ships.db", "00000001"][..],
        &["scan", "ships.db", "--count"],
        &["stats", "ships.db"],
        &["stats", "ships.db", "--json"],
        &["check", "ships.db"],
    ] {
        let mut child = place.command(arguments).spawn().unwrap();
        drop(child.stdout.take());
        let said = wait(child).ends(0);
        assert_eq!(said.err, "", "{arguments:?}");
    }
}

/// The exit code is an answer too.
#[test]
fn a_reader_that_has_had_enough_hides_no_answer() {
    let place = large();
    for _ in 0..2 {
        place.run(&["backup", "ships.db", "backups"]).ends(0);
    }
    place.file("backups/backup-000001", "damaged");
    for (arguments, what) in [
        (&["get", "ships.db", "00000001", "none"][..], "not found: none"),
        (&["get", "ships.db", "none", "--json"], "not found: none"),
        (&["explain", "ships.db", "none"], "not found: none"),
        (&["backups", "backups"], "backup-000001"),
    ] {
        let mut child = place.command(arguments).spawn().unwrap();
        drop(child.stdout.take());
        wait(child).ends(1).tells(what);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_stream_that_cannot_be_written_is_not_said_to_go_on() {
    let place = large();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = place.command(&["backup", "ships.db", "--stream"]).stdout(full).output().unwrap();
    let said = Said::from(output).ends(3).tells("No space left").tells("repeat it");
    assert!(!said.err.contains("goes on from there"), "{said:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_an_error() {
    let place = large();
    for arguments in [
        &["dump", "ships.db"][..],
        &["dump", "ships.db", "--format", "csv"],
        &["dump", "ships.db", "--format", "mdb"],
        &["get", "ships.db", "00000001"],
        &["scan", "ships.db", "--count"],
        &["stats", "ships.db"],
        &["check", "ships.db"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = place.command(arguments).stdout(full).output().unwrap();
        Said::from(output).ends(3).tells("standard output").tells("No space left");
    }
}

/// Messages that nobody reads harm nothing.
#[test]
fn closed_standard_error_does_not_stop_a_load() {
    let place = Place::new();
    place.file("ships.tsv", "a\t1\nbad\nb\t2\n");
    let mut child = place
        .command(&["load", "ships.db", "ships.tsv", "--skip-bad"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    wait(child).ends(0);
    assert_eq!(place.run(&["dump", "ships.db"]).ends(0).out, "a\t1\nb\t2\n");
}

#[test]
fn hex_and_json_name_all_bytes() {
    let place = Place::new();
    place.ships("a\\x00\t\\xff\\x01\n");
    assert_eq!(place.run(&["get", "ships.db", "a\\x00", "--hex"]).ends(0).out, "ff01\n");
    let json = place.run(&["get", "ships.db", "a\\x00", "--json"]).ends(0).out;
    assert_eq!(json, "{\"key\":\"a\\u0000\",\"value_base64\":\"/wE=\"}\n");
    assert_eq!(place.run(&["get", "ships.db", "a\\x00"]).ends(0).out, "\\xff\\x01\n");
}

#[test]
fn each_flush_has_a_line_where_one_asks_for_it() {
    let place = Place::new();
    let text: String = (0..40_000).map(|index| format!("{index:08}\tvalue {index}\n")).collect();
    std::fs::write(place.path("many.tsv"), text).unwrap();
    let load =
        |name, log: &[&str]| place.run(&[&["load", name, "many.tsv", "--memory", "4MiB"], log].concat());
    assert!(!load("quiet.db", &[]).ends(0).err.contains("flushed"));
    load("told.db", &["--log", "debug"]).ends(0).tells("sapwood::flush: flushed changes=").tells(" took_ms=");
    load("none.db", &["--log", "loud"]).ends(2).tells("'loud' for '--log <LEVEL>'");
}

/// Threads of the store panicked on a line that they could not write: the database was poisoned, and the program ended with 101 or 134.
#[test]
fn log_lines_that_nobody_can_read_harm_nothing() {
    let place = Place::new();
    let text: String = (0..40_000).map(|index| format!("{index:08}\tvalue {index}\n")).collect();
    place.file("many.tsv", text);
    for arguments in [
        &["put", "x.db", "a", "b"][..],
        &["load", "x.db", "many.tsv", "--memory", "4MiB"],
        &["get", "x.db", "a"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = place.command(&[arguments, &["--log", "debug"]].concat());
        Said::from(command.stderr(writer).output().unwrap()).ends(0);
    }
    assert_eq!(place.run(&["scan", "x.db", "--count"]).ends(0).out, "40001\n");
}
