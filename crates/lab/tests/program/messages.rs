//! Exit codes, and what people are told.

use crate::running::{lab, scratch};
#[cfg(unix)]
use std::process::{Command, Stdio};
#[cfg(unix)]
use std::time::{Duration, Instant};

/// How long anything may take that is to come, however busy the machine and slow the disk is.
#[cfg(unix)]
const SOON: Duration = Duration::from_secs(600);

/// Waits until a program heeds requests to terminate: before, they end it.
#[cfg(target_os = "linux")]
fn until_it_heeds(process: u32) {
    // The bits of SIGINT and SIGTERM.
    const BOTH: u64 = 1 << 1 | 1 << 14;
    let began = Instant::now();
    loop {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        if u64::from_str_radix(caught.trim(), 16).unwrap() & BOTH == BOTH {
            return;
        }
        assert!(began.elapsed() < SOON, "it heeds nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The same where the system does not tell: by then it does.
#[cfg(all(unix, not(target_os = "linux")))]
fn until_it_heeds(_: u32) {
    std::thread::sleep(Duration::from_secs(2));
}

#[test]
fn help_teaches() {
    let dir = scratch();
    let help = lab(dir.path(), &["--help"]).expect(0).output;
    for text in ["A first session:", "sapwood-lab run all --scale ci", "Exit codes: 0 fine", "does not hold"]
    {
        assert!(help.contains(text), "{text} is not in\n{help}");
    }
    assert!(!help.contains("worker"), "workers are not for people:\n{help}");
    let help = lab(dir.path(), &["run", "--help"]).expect(0).output;
    assert!(help.contains("--device disk --dir /mnt/fast-disk"), "{help}");
}

#[test]
fn the_list_has_every_experiment_with_its_paper() {
    let list = lab(scratch().path(), &["list"]).expect(0).output;
    for text in ["E1 ", "depth", "figure 3 (c)", "file-per-thread", "on disk"] {
        assert!(list.contains(text), "{text} is not in\n{list}");
    }
}

#[test]
fn what_is_not_there_is_a_usage_error_with_a_hint() {
    let dir = scratch();
    let answer = lab(dir.path(), &["run", "dpeth"]).expect(2);
    assert!(answer.errors.contains("did you mean E2 (depth)?"), "{}", answer.errors);
    lab(dir.path(), &["run"]).expect(2);
    lab(dir.path(), &["run", "E2", "--device", "tape"]).expect(2);
    lab(dir.path(), &["run", "E2", "--scale", "huge"]).expect(2);
    let answer = lab(dir.path(), &["run", "E2", "--backend", "tape"]).expect(2);
    assert!(answer.errors.contains("auto, io_uring, libaio, threads"), "{}", answer.errors);
    lab(dir.path(), &["walk"]).expect(2);
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "nothing was made");
}

#[test]
fn a_directory_that_is_not_there_is_an_io_error() {
    let dir = scratch();
    let answer =
        lab(dir.path(), &["run", "E2", "--device", "disk", "--dir", "nowhere", "--scale", "trial"]).expect(3);
    assert!(answer.errors.contains("nowhere is not a directory"), "{}", answer.errors);
    let answer = lab(dir.path(), &["report"]).expect(3);
    assert!(answer.errors.contains("sapwood-lab run all"), "{}", answer.errors);
}

#[test]
fn what_cannot_be_asked_on_a_device_says_why_and_is_fine() {
    let answer = lab(scratch().path(), &["run", "E6", "--device", "nand"]).expect(0);
    assert!(answer.output.starts_with("E6: not applicable (nand: "), "{}", answer.output);
}

#[test]
fn a_report_without_records_cannot_be_made() {
    let dir = scratch();
    let answer = lab(dir.path(), &["report", "--results", "."]).expect(1);
    assert!(answer.errors.contains("no record"), "{}", answer.errors);
    std::fs::write(dir.path().join("E2-disk.json"), "{\"format\": 1}").unwrap();
    let answer = lab(dir.path(), &["report", "--results", "."]).expect(1);
    assert!(answer.errors.contains("E2-disk.json"), "{}", answer.errors);
}

#[test]
fn a_directory_in_use_names_the_user() {
    use psync::{Disk, DiskOptions, LockKind, Volume};
    let dir = scratch();
    let path = dir.path().join("sapwood-lab.scratch");
    let disk = Disk::open(&path, DiskOptions::default()).unwrap();
    let lock = disk.lock(LockKind::Exclusive, "another one").unwrap();
    let arguments = ["run", "E1", "--device", "disk", "--scale", "trial"];
    let answer = lab(dir.path(), &arguments).expect(3);
    assert!(answer.errors.contains("another one"), "{}", answer.errors);
    drop(lock);
    drop(disk);
    std::fs::write(path.join("data-0-77"), "left by a run that was killed").unwrap();
    lab(dir.path(), &arguments).expect(0);
    assert!(!path.exists(), "what was left is gone");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_in_order_and_leaves_nothing() {
    let dir = scratch();
    let mut child = Command::new(env!("CARGO_BIN_EXE_sapwood-lab"))
        .current_dir(dir.path())
        .args(["run", "E6", "--device", "disk", "--scale", "ci"])
        // In seconds: on a slow disk it may be long before it looks.
        .env("INTERRUPT_ENDS_WITHIN", "300")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let path = dir.path().join("sapwood-lab.scratch");
    let began = Instant::now();
    while !path.exists() {
        assert!(began.elapsed() < SOON, "it never began to measure");
        std::thread::sleep(Duration::from_millis(5));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!path.exists(), "the scratch directory is gone");
    assert!(!dir.path().join("lab-results").exists(), "nothing is recorded of a run that did not end");
}

#[test]
fn a_drive_is_drawn_and_played() {
    let dir = scratch();
    let answer =
        lab(dir.path(), &["flash-map", "--overwrites", "hot", "--rounds", "1", "--frames", "10"]).expect(0);
    assert!(answer.output.ends_with("flash-map.svg\nflash-map.html\n"), "{}", answer.output);
    assert!(std::fs::read_to_string(dir.path().join("flash-map.svg")).unwrap().contains("nine of ten"));
    assert!(std::fs::read_to_string(dir.path().join("flash-map.html")).unwrap().contains("const data = {"));
    lab(dir.path(), &["flash-map", "--over-provision", "0.9"]).expect(2);
}

#[test]
fn the_flash_under_a_tree_is_drawn_and_played() {
    let dir = scratch();
    let few = ["--records", "5000", "--operations", "200", "--frames", "5"];
    let mut arguments = vec!["flash-map", "--tree", "lsb"];
    arguments.extend(few);
    let answer = lab(dir.path(), &arguments).expect(0);
    assert!(answer.output.contains("log node: ") && answer.output.contains("dead"), "{}", answer.output);
    assert!(answer.output.ends_with("flash-map.svg\nflash-map.html\n"), "{}", answer.output);
    let page = std::fs::read_to_string(dir.path().join("flash-map.html")).unwrap();
    assert!(page.contains("Colour by") && page.contains("max=\"5\""), "one step for each frame");
    assert!(std::fs::read_to_string(dir.path().join("flash-map.svg")).unwrap().contains("log node"));
    let answer = lab(dir.path(), &["flash-map", "--tree", "oak"]).expect(2);
    assert!(answer.errors.contains("wandering") && answer.errors.contains("cb-flash"), "{}", answer.errors);
    let answer = lab(dir.path(), &["flash-map", "--tree", "as", "--rounds", "2"]).expect(2);
    assert!(answer.errors.contains("--rounds"), "{}", answer.errors);
}

/// Nobody reads what it writes, so it comes to no point where it would look at a request to terminate.
#[cfg(unix)]
#[test]
fn it_ends_in_time_even_if_it_is_stuck() {
    let dir = scratch();
    let mut child = Command::new(env!("CARGO_BIN_EXE_sapwood-lab"))
        .current_dir(dir.path())
        .args(["trace", "make", "block", "--like", "tpce", "--out", "-"])
        .env("INTERRUPT_ENDS_WITHIN", "4")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until_it_heeds(child.id());
    // It writes by then, and soon the pipe is full.
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(child.try_wait().unwrap().is_none(), "it waits");
    let began = Instant::now();
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    while child.try_wait().unwrap().is_none() {
        // It gives itself 4 s: see the crate `interrupt`.
        if began.elapsed() > SOON {
            let _ = child.kill();
            panic!("it did not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(child.wait().unwrap().code(), Some(130));
}
