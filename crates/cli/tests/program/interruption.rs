//! Ctrl-C in the middle of a load: what was read is in, durably, and the program says how to go on.

use crate::running::{Place, is_open, until, wait};
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn interrupt(child: &Child) {
    // Twice, as `timeout` does it: that is one Ctrl-C.
    let pid = child.id().to_string();
    let sent = Command::new("sh").args(["-c", &format!("kill -INT {pid}; kill -INT {pid}")]).status();
    assert!(sent.expect("run sh").success());
}

/// The pipe stays open and says nothing more: the program must not wait for it.
fn interrupted_on_a_silent_pipe(
    format: &str,
    head: &str,
    line: impl Fn(usize) -> String,
    db: &str,
) -> String {
    let place = Place::new();
    let mut child =
        place.command(&["load", db, "-", "--format", format]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(head.as_bytes()).unwrap();
    for index in 0..2345 {
        stdin.write_all(line(index).as_bytes()).unwrap();
    }
    stdin.flush().unwrap();
    until("the database is open", || is_open(&place.path(db)));
    std::thread::sleep(Duration::from_millis(700));
    interrupt(&child);
    let said = wait(child).ends(130).tells("2345 records are in the database");
    drop(stdin);
    assert_eq!(place.run(&["scan", db, "--count"]).ends(0).out, "2345\n");
    assert!(place.run(&["check", db]).ends(0).out.contains("sound"));
    said.err
}

#[test]
fn on_a_silent_pipe_what_came_is_kept() {
    let tsv = interrupted_on_a_silent_pipe("tsv", "", |index| format!("key{index}\t{index}\n"), "tsv.db");
    assert!(tsv.contains("up to line 2345 of standard input"), "{tsv}");
    assert!(tsv.contains("tail -n +2346"), "{tsv}");
    let csv =
        interrupted_on_a_silent_pipe("csv", "name,n\n", |index| format!("key{index},{index}\n"), "csv.db");
    assert!(csv.contains("run the same command again"), "{csv}");
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
    until("the database is open", || is_open(&place.path("x.db")));
    std::thread::sleep(Duration::from_millis(300));
    interrupt(&child);
    let said = wait(child).ends(130);
    feeder.join().unwrap();
    let words: Vec<_> = said.err.split_whitespace().collect();
    let told: u64 = words.windows(2).find(|pair| pair[1] == "records").unwrap()[0].parse().unwrap();
    assert!(told > 0, "{said:?}");
    assert_eq!(place.run(&["scan", "x.db", "--count"]).ends(0).out, format!("{told}\n"));
    let last = place.run(&["scan", "x.db", "--reverse", "--limit", "1"]).ends(0).out;
    assert_eq!(last, format!("{:012}\t{}\n", told - 1, told - 1));
}
