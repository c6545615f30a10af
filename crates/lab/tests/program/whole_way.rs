//! Experiments from the command line to the page, on a small file.

use crate::running::{lab, scratch};
use lab::{Device, Measured, Record, Rows, Wall};

#[test]
fn an_experiment_runs_is_saved_and_reported() {
    let dir = scratch();
    let answer = lab(
        dir.path(),
        &["run", "E3", "depth", "--device", "disk", "--scale", "trial", "--json", "all.json"],
    );
    let answer = answer.expect(0);
    let last = |id: &str| answer.output.lines().rfind(|line| line.starts_with(&format!("{id}: "))).unwrap();
    // Not applicable where grouping makes no difference; beside other programs it may seem to make one.
    let words =
        ["not applicable", "not judged"].map(|word| format!("E3: {word} (disk; no claim is judged here)"));
    assert!(words.iter().any(|words| words == last("E3")), "{}", last("E3"));
    let found = last("E2");
    assert!(
        found.starts_with("E2: holds (disk; 4 of 4") || found.starts_with("E2: does not hold (disk; "),
        "{found}"
    );
    assert!(answer.output.contains("64 reads at a time give more than 10 times"), "{}", answer.output);

    let json = std::fs::read_to_string(dir.path().join("all.json")).unwrap();
    let records: Vec<Record> = serde_json::from_str(&json).unwrap();
    assert_eq!(records.iter().map(Record::name).collect::<Vec<_>>(), ["E3-disk-trial", "E2-disk-trial"]);
    let depth = &records[1];
    assert_eq!((depth.device, depth.seconds > 0.0), (Device::Disk, true));
    let Measured::Wall(rows) = &depth.measured else { panic!("a disk is timed by the wall clock") };
    // Two lines, nine depths, five runs.
    assert_eq!(rows.0.len(), 2 * 9 * 5);
    assert!(rows.0.iter().all(|row| row.requests >= 64 && row.bytes == 4096 * row.requests));

    let results = dir.path().join("lab-results");
    let saved =
        Record::from_json(&std::fs::read_to_string(results.join("E2-disk-trial.json")).unwrap()).unwrap();
    assert!(&saved == depth, "the saved record differs");
    let csv = std::fs::read_to_string(results.join("E2-disk-trial.csv")).unwrap();
    assert!(&Rows::<Wall>::from_csv(&csv).unwrap() == rows, "the saved rows differ");
    assert!(!dir.path().join("sapwood-lab.scratch").exists(), "the scratch directory is gone");

    let answer = lab(dir.path(), &["report", "--markdown", "reproduction.md"]).expect(0);
    assert_eq!(answer.output, "lab-results/report.html\nreproduction.md\n");
    let page = std::fs::read_to_string(results.join("report.html")).unwrap();
    assert!(page.contains("id=\"E2\"") && page.matches("<svg").count() == 2);
    let markdown = std::fs::read_to_string(dir.path().join("reproduction.md")).unwrap();
    assert!(markdown.contains("](lab-results/E2-disk-trial.svg)"), "{markdown}");
    assert!(results.join("E2-disk-trial.svg").exists());
}

/// A record counts as there only if this program made it, with these settings.
#[test]
fn what_has_a_record_is_left_out_unless_it_is_of_another_program_or_other_settings() {
    let dir = scratch();
    let path = dir.path().join("lab-results/E2-disk-trial.json");
    let run = |more: &[&str]| {
        let arguments = ["run", "E2", "--device", "disk", "--scale", "trial", "--missing"];
        let answer = lab(dir.path(), &[&arguments[..], more].concat()).expect(0);
        !answer.output.contains("a record is there")
    };
    let notes = || Record::from_json(&std::fs::read_to_string(&path).unwrap()).unwrap().notes;
    assert!(run(&[]), "none is there");
    assert!(!run(&[]));
    // The best there is here, which is threads where there is nothing else.
    let best = notes()[0].clone();
    let is_threads = run(&["--backend", "threads"]);
    assert_eq!(is_threads, best != notes()[0], "{best}");
    assert!(!run(&["--backend", "threads"]));
    assert_eq!(run(&[]), is_threads, "a record of threads is none of {best}");
    for change in [
        |record: &mut Record| record.program = Some("another".to_owned()),
        |record: &mut Record| record.program = None,
        |record: &mut Record| record.parameters[0].used = "otherwise".to_owned(),
        |record: &mut Record| record.machine.processors += 1,
    ] {
        let mut record = Record::from_json(&std::fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut record);
        std::fs::write(&path, serde_json::to_string(&record).unwrap()).unwrap();
        assert!(run(&[]), "measured again");
        assert!(!run(&[]));
    }
}

#[cfg(unix)]
#[test]
fn workers_run_as_threads_and_as_processes() {
    let dir = scratch();
    let arguments = ["run", "E4", "E5", "E6", "E7", "--device", "disk", "--scale", "trial", "--json", "-"];
    let answer = lab(dir.path(), &arguments).expect(0);
    let records: Vec<Record> = serde_json::from_str(&answer.output).unwrap();
    assert!(answer.errors.contains("E7: "), "verdicts are told all the same: {}", answer.errors);
    let series = |record: &Record| match &record.measured {
        Measured::Wall(rows) => rows.series().into_iter().map(str::to_owned).collect::<Vec<_>>(),
        Measured::Simulated(_) => panic!("a disk is timed by the wall clock"),
    };
    assert_eq!(series(&records[0]), ["psync", "threads", "threads, POSIX order"]);
    assert!(series(&records[1]).contains(&"two psync callers".to_owned()));
    assert!(series(&records[3]).contains(&"ordered, processes".to_owned()));
    let Measured::Wall(rows) = &records[3].measured else { unreachable!() };
    let processes: Vec<_> = rows.0.iter().filter(|row| row.series == "reads, processes").collect();
    assert!(!processes.is_empty());
    assert!(processes.iter().map(|row| row.count("context_switches")).all(|count| count > 0.0));
}
