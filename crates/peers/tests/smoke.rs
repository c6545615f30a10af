//! The whole arena, as people start it, with two stores and very little to do.

use std::path::Path;
use std::process::Command;

#[test]
fn two_stores_race_and_leave_nothing_but_results() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let peer = peers::names()[1];
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", "lab", "--manifest-path"])
        .arg(root.join("Cargo.toml"))
        .args(["--", "arena", "--engines", &format!("sapwood,{peer}")])
        .args(["--worker", env!("CARGO_BIN_EXE_sapwood-peers"), "--memory", "64M", "--records", "20000"])
        .args(["--steady", "200ms", "--warm-up", "50ms", "--cap", "20s", "--settle", "1s", "--repeat", "1"])
        .args(["--json", "scores.json"])
        .current_dir(dir.path())
        .output()
        .expect("cargo runs");
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{told}");
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect(name);
    let score: serde_json::Value = serde_json::from_str(&read("scores.json")).expect("JSON");
    let runs = score["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2 * arena::Workload::ALL.len());
    for run in runs {
        let rate = run["fate"]["ran"]["outcome"]["operations"].as_u64();
        assert!(rate.is_some_and(|operations| operations > 0), "{run}");
    }
    for workload in arena::Workload::ALL {
        assert!(said.contains(workload.name()), "{workload} in {said}");
    }
    assert!(
        read("lab-results/arena.html").contains("<svg") && read("lab-results/arena.svg").contains("<circle")
    );
    let mut left: Vec<_> =
        std::fs::read_dir(dir.path()).expect("list").map(|entry| entry.expect("entry").file_name()).collect();
    left.sort();
    assert_eq!(left, ["lab-results", "scores.json"]);
}
