//! Ctrl-C in the middle of a load: what was read is in, durably, and the program says how to go on.

use crate::running::{PROGRAM, Place, Said, until, wait};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// What the program gives itself after Ctrl-C, in seconds, where it is stuck: it is let come so far.
const STUCK: (&str, &str) = ("INTERRUPT_ENDS_WITHIN", "4");
/// How long the program may take to note a signal that has reached it.
const NOTED: Duration = Duration::from_millis(1500);

/// Waits until Ctrl-C would not kill the program, where the system tells.
fn until_it_heeds(child: &Child) {
    if !cfg!(target_os = "linux") {
        std::thread::sleep(Duration::from_millis(1500));
        return;
    }
    let status = format!("/proc/{}/status", child.id());
    until("it has a handler", || {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        // SIGINT and SIGTERM.
        [2, 15].iter().all(|signal| caught >> (signal - 1) & 1 == 1)
    });
}

fn interrupt(child: &Child) {
    until_it_heeds(child);
    press(child);
}

fn press(child: &Child) {
    // Twice, as `timeout` does it: that is one Ctrl-C.
    let pid = child.id().to_string();
    let sent = Command::new("sh").args(["-c", &format!("kill -INT {pid}; kill -INT {pid}")]).status();
    assert!(sent.expect("run sh").success());
}

/// Bytes in the log: once batches are there, the program reads, and heeds Ctrl-C.
fn logged(place: &Place, db: &str) -> u64 {
    let Ok(entries) = std::fs::read_dir(place.path(db)) else { return 0 };
    let logs = entries
        .filter_map(|entry| entry.ok())
        .filter(|entry| entry.file_name().as_bytes().starts_with(b"wal"));
    logs.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// Waits until the program has a thread whose name begins so, where the system tells.
fn until_there_is_a_thread(child: &Child, name: &str) {
    if !cfg!(target_os = "linux") {
        std::thread::sleep(Duration::from_millis(500));
        return;
    }
    let threads = format!("/proc/{}/task", child.id());
    until(&format!("it has a thread {name}"), || {
        let threads = std::fs::read_dir(&threads).into_iter().flatten().flatten();
        let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        names.into_iter().any(|found| found.starts_with(name))
    });
}

/// Waits until another process sees that the database has this keyspace. That may lock it while the program is about to open it, which has to wait then.
fn until_there_is_a_keyspace(place: &Place, db: &str, name: &str) {
    until(&format!("there is a keyspace {name}"), || {
        let said = place.run(&["scan", db, "-k", "no such keyspace"]);
        said.err.split_once("there are: ").is_some_and(|(_, names)| names.contains(name))
    });
}

/// The number of records that the message tells.
fn told(said: &Said) -> u64 {
    let words: Vec<_> = said.err.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "records").expect("a number of records");
    words[at - 1].parse().expect("a number")
}

/// The pipe stays open and says nothing more: the program must not wait for it. Gives how many records it told, and all
/// that it said.
fn interrupted_on_a_silent_pipe(format: &str, head: &str, line: impl Fn(usize) -> String) -> (u64, String) {
    let place = Place::new();
    let mut child =
        place.command(&["load", "x.db", "-", "--format", format]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let text: String = std::iter::once(head.to_owned()).chain((0..2345).map(line)).collect();
    stdin.write_all(text.as_bytes()).unwrap();
    stdin.flush().unwrap();
    until("two batches are in the log", || logged(&place, "x.db") > 20_000);
    std::thread::sleep(Duration::from_millis(200));
    interrupt(&child);
    let said = wait(child).ends(130).tells("records are in the database");
    drop(stdin);
    let told = told(&said);
    // Of the last batch, too, which was not full.
    assert!((2000..=2345).contains(&told), "{said:?}");
    assert_eq!(place.run(&["scan", "x.db", "--count"]).ends(0).out, format!("{told}\n"));
    assert!(place.run(&["check", "x.db"]).ends(0).out.contains("sound"));
    (told, said.err)
}

#[test]
fn on_a_silent_pipe_what_came_is_kept() {
    let (told, tsv) = interrupted_on_a_silent_pipe("tsv", "", |index| format!("key{index}\t{index}\n"));
    assert!(tsv.contains(&format!("up to line {told} of standard input")), "{tsv}");
    assert!(tsv.contains(&format!("tail -n +{} | sapwood load x.db - --format tsv", told + 1)), "{tsv}");
    let (told, csv) =
        interrupted_on_a_silent_pipe("csv", "name,n\n", |index| format!("key{index},{index}\n"));
    assert!(csv.contains(&format!("up to line {} of standard input", told + 1)), "{csv}");
    assert!(csv.contains("run the same command again"), "{csv}");
}

/// Ctrl-C ends the writer as well, within a record: what came of that is no record.
#[test]
fn half_a_record_of_a_writer_that_is_interrupted_too_is_not_kept() {
    for (format, head, whole, half) in [
        ("tsv", "", "a\t1\n", "b\t23"),
        ("csv", "key,value\n", "a,1\n", "b,23"),
        ("jsonl", "", "{\"key\":\"a\",\"value\":\"1\"}\n", "{\"key\":\"b\""),
    ] {
        let place = Place::new();
        let mut child = place
            .command(&["load", "x.db", "-", "--format", format, "--skip-bad"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(format!("{head}{whole}{half}").as_bytes()).unwrap();
        stdin.flush().unwrap();
        until("the database is there", || logged(&place, "x.db") > 0);
        until_it_heeds(&child);
        std::thread::sleep(Duration::from_millis(200));
        interrupt(&child);
        drop(stdin);
        let said = wait(child).ends(130).tells("1 records are in the database");
        assert!(!said.err.contains("skipped"), "{said:?}");
        assert_eq!(place.run(&["scan", "x.db"]).ends(0).out, "a\t1\n");
        if format == "tsv" {
            assert!(said.err.contains("tail -n +2 |"), "{said:?}");
        }
    }
}

/// A writer that never pauses: the load ends soon after the signal, not at the end of the input.
#[test]
fn in_the_middle_of_a_stream_the_load_ends_in_order() {
    let place = Place::new();
    let mut child = place.command(&["load", "x.db"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || {
        let mut sent = 0u64;
        while stdin.write_all(format!("{sent:012}\t{sent}\n").as_bytes()).is_ok() {
            sent += 1;
        }
        sent
    });
    until("a batch is in the log", || logged(&place, "x.db") > 20_000);
    interrupt(&child);
    let said = wait(child).ends(130);
    let sent = feeder.join().unwrap();
    let told = told(&said);
    assert!(told > 0 && told <= sent, "{sent} sent: {said:?}");
    assert_eq!(place.run(&["scan", "x.db", "--count"]).ends(0).out, format!("{told}\n"));
    let last = place.run(&["scan", "x.db", "--reverse", "--limit", "1"]).ends(0).out;
    assert_eq!(last, format!("{:012}\t{}\n", told - 1, told - 1));
}

/// Loading what was left out, as the message says, gives all of it.
#[test]
fn going_on_as_told_completes_the_load() {
    let place = Place::new();
    let text: String = (0..400_000).map(|index| format!("{index:07}\tvalue {index} of many\n")).collect();
    place.file("ships.tsv", &text);
    let child = place.command(&["load", "x.db", "ships.tsv", "--batch", "10"]).spawn().unwrap();
    until("a batch is in the log", || logged(&place, "x.db") > 20_000);
    interrupt(&child);
    let said = wait(child).ends(130);
    let command = said.err.split_once("to go on with the rest: ").expect("a command").1.trim();
    let command = command.replace("sapwood", PROGRAM);
    let done = Command::new("sh").args(["-c", &command]).current_dir(place.path("")).output().unwrap();
    let rest = Said::from(done).ends(0);
    assert_eq!(told(&said) + told(&rest), 400_000);
    assert_eq!(place.run(&["dump", "x.db"]).ends(0).out, text);
}

/// Nobody reads what the program says, so it waits for a pipe that is full, and comes to no point where it would look.
#[test]
fn it_ends_in_time_even_if_it_is_stuck() {
    let place = Place::new();
    let (unread, mut errors) = std::io::pipe().unwrap();
    errors.write_all(&vec![b'x'; 1 << 16]).unwrap();
    let mut child = place
        .command(&["load", "x.db", "-", "--skip-bad"])
        .env(STUCK.0, STUCK.1)
        .stdin(Stdio::piped())
        .stderr(errors)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"fram\t1892\nthis line is bad\n").unwrap();
    until_it_heeds(&child);
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "it waits");
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(wait(child).code, Some(130));
    drop((stdin, unread));
    place.run(&["check", "x.db"]).ends(0);
}

/// Commands that have nothing to end in order end at once.
#[test]
fn a_command_that_waits_for_the_lock_ends_at_once() {
    let place = Place::new();
    place.ships("fram\t1892\n");
    let db = sapwood::Database::open(place.path("ships.db")).unwrap();
    for command in ["flush", "compact", "check"] {
        let mut child = place.command(&[command, "ships.db", "--wait", "600"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(child.try_wait().unwrap().is_none(), "{command} waits");
        assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
        // By the signal, which it does not note.
        assert_eq!(child.wait().unwrap().signal(), Some(15), "{command}");
    }
    drop(db);
}

/// A backup ends between two chunks, and the next one goes on where it was.
#[test]
fn an_interrupted_backup_goes_on() {
    let place = Place::new();
    let text: String = (0..40_000).map(|index| format!("key {index:06}\tvalue {index:0>90}\n")).collect();
    place.feed(&["load", "ships.db", "--compression", "none"], text.as_bytes()).ends(0);
    place.run(&["flush", "ships.db"]).ends(0);
    let blobs = || {
        let Ok(entries) = std::fs::read_dir(place.path("backups")) else { return 0 };
        entries.flatten().filter(|entry| entry.file_name().as_bytes().starts_with(b"segment-")).count()
    };
    let child = place.command(&["backup", "ships.db", "backups", "--rate", "500K"]).spawn().unwrap();
    until("two segments are copied", || blobs() >= 2);
    interrupt(&child);
    wait(child).ends(130).tells("run it again");
    let before = blobs();
    assert_eq!(place.run(&["backups", "backups"]).ends(0).out, "", "it is no backup");
    let listed = |text: &str| text.split(", ").nth(2).map(str::to_owned);
    let said = place.run(&["backup", "ships.db", "backups"]).ends(0);
    let whole = place.run(&["backup", "ships.db", "other"]).ends(0);
    assert_ne!(listed(&said.out), listed(&whole.out), "it copies less than all: {said:?}");
    assert!(blobs() > before);
    place.run(&["verify", "backups"]).ends(0);
}

/// A value is whole or not there, and the program says so.
#[test]
fn a_large_value_whose_pipe_is_silent_is_given_up() {
    let place = Place::new();
    place.run(&["put", "x.db", "before", "1"]).ends(0);
    let mut child = place
        .command(&["put", "x.db", "k", "--from", "-", "-k", "photos", "--wait", "600"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&[7; 300 << 10]).unwrap();
    stdin.flush().unwrap();
    until_there_is_a_keyspace(&place, "x.db", "photos");
    interrupt(&child);
    wait(child).ends(130).tells("nothing was changed");
    drop(stdin);
    place.run(&["scan", "x.db", "-k", "photos", "--count"]).ends(1).tells("there are: default");
}

/// A keyspace of large values stayed, and kept all records out; and so did the database of a pipe that said nothing.
#[test]
fn what_was_made_for_a_large_value_that_is_given_up_keeps_no_records_out() {
    let place = Place::new();
    let put = || {
        let mut command = place.command(&["put", "x.db", "k", "--from", "-", "--wait", "600"]);
        command.stdin(Stdio::piped()).spawn().unwrap()
    };
    let mut silent = put();
    // It waits for the first bytes, and what it would make before that it has made.
    until_there_is_a_thread(&silent, "sapwood-input");
    std::thread::sleep(Duration::from_millis(200));
    assert!(silent.try_wait().unwrap().is_none(), "it waits");
    press(&silent);
    assert!(!silent.wait().unwrap().success());
    assert!(!place.path("x.db").exists());
    let mut child = put();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&[7; 300 << 10]).unwrap();
    stdin.flush().unwrap();
    until_there_is_a_keyspace(&place, "x.db", "default");
    interrupt(&child);
    wait(child).ends(130).tells("nothing was changed; x.db has no keyspaces");
    drop(stdin);
    place.feed(&["load", "x.db"], b"fram\t1892\n").ends(0);
    place.run(&["check", "x.db"]).ends(0);
}

/// A stream and a verification that were interrupted were said to go on.
#[test]
fn what_begins_anew_is_said_to() {
    let place = Place::new();
    let text: String = (0..40_000).map(|index| format!("key {index:06}\tvalue {index:0>90}\n")).collect();
    place.feed(&["load", "ships.db", "--compression", "none"], text.as_bytes()).ends(0);
    let stream = place.command(&["backup", "ships.db", "--stream"]).output().unwrap().stdout;

    let mut child = place.command(&["backup", "ships.db", "--stream"]).spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 8]).unwrap();
    interrupt(&child);
    std::thread::sleep(NOTED);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stderr).contains("it begins anew"), "{output:?}");

    let mut child = place.command(&["verify", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let (half, rest) = stream.split_at(stream.len() / 2);
    stdin.write_all(half).unwrap();
    interrupt(&child);
    std::thread::sleep(NOTED);
    // It may end before it has read this.
    let _ = stdin.write_all(rest);
    drop(stdin);
    wait(child).ends(130).tells("it begins anew");
}

/// It said that what was committed is in the database, of which it writes nothing.
#[cfg(target_os = "linux")]
#[test]
fn a_get_that_is_stuck_tells_what_it_may_leave() {
    let place = Place::new();
    place.ships("fram\t1892\n");
    assert!(Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    // Nobody reads the pipe.
    let mut command = place.command(&["get", "ships.db", "fram", "--to", "pipe"]);
    let child = command.env(STUCK.0, STUCK.1).spawn().unwrap();
    until_it_heeds(&child);
    std::thread::sleep(Duration::from_millis(300));
    interrupt(&child);
    wait(child).ends(130).tells(".part may be left");
}

/// A list that was cut off is not taken for a whole one.
#[test]
fn changes_that_were_not_all_told_end_as_interrupted() {
    let place = Place::new();
    place.run(&["put", "x.db", "before", "1"]).ends(0);
    place.run(&["changes", "x.db", "--keep", "64M"]).ends(0);
    let text: String = (0..20_000).map(|index| format!("{index:07}\tvalue {index} of many\n")).collect();
    place.file("ships.tsv", &text);
    place.run(&["load", "x.db", "ships.tsv"]).ends(0);
    // Its output is not read before it has heard of it.
    let child = place.command(&["changes", "x.db"]).spawn().unwrap();
    until_it_heeds(&child);
    std::thread::sleep(Duration::from_millis(300));
    interrupt(&child);
    std::thread::sleep(NOTED);
    let said = Said::from(child.wait_with_output().unwrap()).ends(130).tells("--since");
    let whole = place.run(&["changes", "x.db"]).ends(0);
    assert!(said.out.len() < whole.out.len() && whole.out.starts_with(&said.out));
}

/// What `nohup` has ignored, and the shell of a script for its jobs in the background, stays so.
#[test]
fn what_is_ignored_from_the_beginning_stays_ignored() {
    for signal in ["HUP", "INT"] {
        let place = Place::new();
        let script = format!("trap '' {signal}; exec {PROGRAM} load x.db");
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .current_dir(place.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let text: String = (0..2000).map(|index| format!("key{index}\t{index}\n")).collect();
        stdin.write_all(text.as_bytes()).unwrap();
        until("a batch is in the log", || logged(&place, "x.db") > 10_000);
        let sent = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        std::thread::sleep(Duration::from_millis(300));
        stdin.write_all(b"last\t1\n").unwrap();
        drop(stdin);
        wait(child).ends(0).tells("2001 records");
    }
}

/// They left 1 GiB and 2 GiB for good.
#[test]
fn probe_and_tour_leave_nothing() {
    for arguments in [&["probe", "disk"][..], &["tour", "--dir", "disk"]] {
        let place = Place::new();
        let disk = place.path("disk");
        std::fs::create_dir(&disk).unwrap();
        let child = place.command(arguments).spawn().unwrap();
        // What probe makes, and the directory in which tour has it made.
        let files = |dir: &std::path::Path| std::fs::read_dir(dir).unwrap().count();
        until("it writes", || files(&disk) > 0);
        interrupt(&child);
        wait(child).ends(130).tells("nothing is left");
        assert_eq!(files(&disk), 0, "{arguments:?}");
    }
}
