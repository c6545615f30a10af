//! Traces from the command line: made, looked at, replayed.

use crate::running::{lab, scratch};
use lab::{Measured, Record, Rows, Simulated};
use sha2::{Digest, Sha256};
use std::path::Path;

/// The SHA-256 of a file's lines that are no comments.
fn hash(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n"));
    let digest = lines.fold(Sha256::new(), |hash, line| hash.chain_update(line)).finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_made_trace_says_what_it_is_and_is_known_by_its_hash() {
    let dir = scratch();
    let make = |seed: &str, out: &str| {
        let arguments = [
            "trace",
            "make",
            "tpcc",
            "--warehouses",
            "1",
            "--operations",
            "2000",
            "--seed",
            seed,
            "--out",
            out,
        ];
        lab(dir.path(), &arguments).expect(0)
    };
    let made = make("7", "one.txt");
    let text = std::fs::read_to_string(dir.path().join("one.txt")).unwrap();
    assert!(
        text.starts_with("# synthetic TPC-C index trace: 1 warehouses, 100 clients, 2000 operations"),
        "{text:.200}"
    );
    assert!(text.contains("# index 5: orders and orders by customer\n"));
    assert!(
        text.contains("# mix: search 71.50 % (target 71.5 %), insert 23.80 % (target 23.8 %)"),
        "{}",
        made.errors
    );
    let own = hash(&dir.path().join("one.txt"));
    assert!(text.ends_with(&format!("without comments: {own}\n")) && made.errors.contains(&own));
    let shown = lab(dir.path(), &["trace", "show", "one.txt"]).expect(0).output;
    assert!(shown.contains(&format!("SHA-256 {own}")), "{shown}");
    assert!(
        shown.contains("2000 operations: search 71.50 %, insert 23.80 %, delete 1.00 %, range 3.70 %"),
        "{shown}"
    );
    make("7", "two.txt");
    make("8", "three.txt");
    assert_eq!(hash(&dir.path().join("two.txt")), own);
    assert_ne!(hash(&dir.path().join("three.txt")), own);

    let block = ["trace", "make", "block", "--like", "tpce", "--divisor", "1000", "--out", "-"];
    let made = lab(dir.path(), &block).expect(0);
    assert!(
        made.output.starts_with("# synthetic, like TPC-E block trace: 124 writes and 1314 reads (1/1000"),
        "{}",
        made.output
    );
    assert_eq!(made.output.lines().filter(|line| line.starts_with("insert ")).count(), 124);
}

#[test]
fn any_trace_is_replayed_on_any_tree() {
    let dir = scratch();
    let plain: String = (0..3000).map(|key| format!("put {}\nget {key}\n", key * 7 % 3000)).collect();
    let plain = format!("load 1 5 @1\nload 9 5 @1\n{plain}scan 0 10 @1\ndelete 1 @1\n");
    std::fs::write(dir.path().join("plain"), plain).unwrap();
    let msr: String = (0..500)
        .map(|at| format!("{at},usr,{},{},{},4096,1\n", at % 2, ["Read", "Write"][at % 3 % 2], at * 512))
        .collect();
    std::fs::write(dir.path().join("usr.csv"), msr).unwrap();
    let run = ["trace", "run", "plain", "--tree", "all", "--memory", "4", "--csv", "all.csv"];
    let answer = lab(dir.path(), &run).expect(0);
    assert!(
        answer.output.starts_with(
            "6002 operations: search 49.98 %, insert 49.98 %, delete 0.02 %, range 0.02 %; SHA-256 "
        ),
        "{}",
        answer.output
    );
    let rows =
        Rows::<Simulated>::from_csv(&std::fs::read_to_string(dir.path().join("all.csv")).unwrap()).unwrap();
    let totals: Vec<_> = rows.0.iter().filter(|row| row.series.ends_with(", total")).collect();
    assert_eq!(totals.len(), 11, "every tree");
    for row in totals {
        // Half of the keys that are looked up have been put before; the range finds both that were loaded.
        let found = (row.requests, row.count("found"));
        assert_eq!(found, (6002, totals_found()), "{}", row.series);
        assert!(row.count("writes") > 0.0 && row.elapsed_us > lab::Lapse::micros(0.0), "{row:?}");
    }
    let answer = lab(dir.path(), &["trace", "run", "usr.csv", "--device", "disk", "--tree", "cb"]).expect(0);
    assert!(
        answer.output.contains("500 operations: ") && answer.output.contains("wall time on disk"),
        "{}",
        answer.output
    );
}

/// What the lookups and the range of the plain trace find.
fn totals_found() -> f64 {
    let mut there = std::collections::HashSet::new();
    let looked_up = (0..3000).filter(|key| {
        there.insert(key * 7 % 3000);
        there.contains(key)
    });
    (looked_up.count() + 2) as f64
}

#[test]
fn what_is_wrong_with_a_trace_is_told_with_its_line() {
    let dir = scratch();
    std::fs::write(dir.path().join("wrong"), "search 1\nsaerch 2\n").unwrap();
    for command in ["show", "run"] {
        let told = lab(dir.path(), &["trace", command, "wrong"]).expect(1).errors;
        assert!(
            told.contains("wrong: line 2: there is no operation \"saerch\"; write load, search"),
            "{told}"
        );
    }
    let told = lab(dir.path(), &["trace", "show", "wrong", "--format", "msr"]).expect(1).errors;
    assert!(told.contains("line 1: 1 fields; a line is `Timestamp,Hostname"), "{told}");
    let told = lab(dir.path(), &["trace", "run", "nowhere"]).expect(3).errors;
    assert!(told.contains("nowhere"), "{told}");
    let told = lab(dir.path(), &["trace", "run", "-"]).expect(2).errors;
    assert!(told.contains("name one --tree"), "{told}");
    let told = lab(dir.path(), &["trace", "run", "wrong", "--device", "nand"]).expect(2).errors;
    assert!(told.contains("ssdsim or disk"), "{told}");
    let make = ["trace", "make", "block", "--like", "msr", "--sequential", "2", "--out", "x"];
    let told = lab(dir.path(), &make).expect(2).errors;
    assert!(told.contains("a share of 2 in runs: 0 to 1"), "{told}");
    let told =
        lab(dir.path(), &["trace", "make", "tpcc", "--warehouses", "0", "--out", "x"]).expect(2).errors;
    assert!(told.contains("0 warehouses: 1 to 2048"), "{told}");
    assert!(!dir.path().join("x").exists());
}

#[test]
fn experiments_on_traces_run_and_publish_them() {
    let dir = scratch();
    let run = |arguments: &[&str]| -> Vec<Record> {
        let arguments: Vec<&str> =
            arguments.iter().copied().chain(["--scale", "trial", "--json", "-"]).collect();
        serde_json::from_str(&lab(dir.path(), &arguments).expect(0).output).unwrap()
    };
    let records =
        [run(&["run", "E16", "--device", "disk"]), run(&["run", "E30", "--device", "ssdsim"])].concat();
    for record in &records {
        let note = record.notes.iter().find(|note| note.contains("SHA-256")).unwrap();
        assert!(note.starts_with("synthetic"), "{note}");
    }
    let Measured::Simulated(rows) = &records[1].measured else {
        panic!("a simulated drive has its own clock")
    };
    // Four traces, six trees, three runs, two drives; and what is asked of its cause: three trees by five buffers, five trees by five shares
    // of reads that go back.
    assert_eq!(rows.0.len(), 4 * 6 * 3 * 2 + 3 * 5 + 5 * 5);
}
