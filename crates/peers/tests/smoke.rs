//! The whole arena, as people start it, with two stores and very little to do.

use std::path::Path;
use std::process::Command;

/// What a race said, and its scores.
fn race(dir: &Path, options: &[&str]) -> (String, serde_json::Value) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", "lab", "--manifest-path"])
        .arg(root.join("Cargo.toml"))
        .args([
            "--",
            "arena",
            "--worker",
            env!("CARGO_BIN_EXE_sapwood-peers"),
            "--memory",
            "64M",
            "--records",
            "20000",
        ])
        .args(["--steady", "200ms", "--warm-up", "50ms", "--cap", "20s", "--settle", "1s", "--repeat", "1"])
        .args(["--json", "scores.json"])
        .args(options)
        .current_dir(dir)
        .output()
        .expect("cargo runs");
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{told}");
    let score = std::fs::read_to_string(dir.join("scores.json")).expect("scores");
    (said.into_owned(), serde_json::from_str(&score).expect("JSON"))
}

fn assert_ran(runs: &[serde_json::Value]) {
    for run in runs {
        let rate = run["fate"]["ran"]["outcome"]["operations"].as_u64();
        assert!(rate.is_some_and(|operations| operations > 0), "{run}");
    }
}

#[test]
fn two_stores_race_and_leave_nothing_but_results() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let (said, score) = race(dir.path(), &["--engines", &format!("sapwood,{}", peers::names()[1])]);
    let runs = score["runs"].as_array().expect("runs");
    let workloads: Vec<_> =
        arena::Workload::ALL.iter().filter(|workload| !workload.is_transactional()).collect();
    assert_eq!(runs.len(), 2 * workloads.len());
    assert_ran(runs);
    for workload in workloads {
        assert!(said.contains(workload.name()), "{workload} in {said}");
    }
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect(name);
    assert!(
        read("lab-results/arena.html").contains("<svg") && read("lab-results/arena.svg").contains("<circle")
    );
    let mut left: Vec<_> =
        std::fs::read_dir(dir.path()).expect("list").map(|entry| entry.expect("entry").file_name()).collect();
    left.sort();
    assert_eq!(left, ["lab-results", "scores.json"]);
}

#[test]
fn every_store_that_has_transactions_runs_them_and_the_others_say_so() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let (said, score) = race(dir.path(), &["--workloads", "transactions"]);
    let runs = score["runs"].as_array().expect("runs");
    let (without, with): (Vec<_>, Vec<_>) = runs.iter().cloned().partition(|run| run["engine"] == "bf-tree");
    assert_eq!(with.len(), 12 * peers::names().iter().filter(|name| **name != "bf-tree").count());
    assert_ran(&with);
    assert!(without.iter().all(|run| run["fate"]["missing"].is_string()), "{without:?}");
    assert!(said.contains("durable-tx-zipf-16") && said.contains("run again"), "{said}");
}
