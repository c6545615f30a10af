//! `sapwood-lab run`: measures, judges, saves, and says the verdict.
//!
//! Invariant: what fails does not keep the other experiments from running; the exit code tells of the worst.

use crate::arguments::Run;
use crate::experiment::{Device, Experiment, all, find};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::judgement::{Judgement, Kind, Outcome};
use crate::laboratory::{Laboratory, through};
use crate::progress::{print, tell};
use crate::record::{Machine, Record, of_minutes_before, write_whole};
use crate::stage::Stage as _;
use crate::trace::account::hex;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::time::{Instant, SystemTime};

pub(super) fn run(arguments: &Run) -> Result<()> {
    let experiments = chosen(&arguments.experiments)?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::Io(format!("the path of this program is unknown: {error}")))?;
    // Where that is not known, no record is known to be of this program.
    let hash = std::fs::read(&program).ok().map(|bytes| hex(&Sha256::digest(bytes)));
    interrupt::watch();
    let laboratory = Laboratory::new(&arguments.dir, arguments.backend, &program, arguments.scale);
    // Whoever wants JSON there wants nothing else there.
    let json_is_output = arguments.json.as_deref() == Some(Path::new("-"));
    let say = |text: &dyn std::fmt::Display| {
        if json_is_output {
            tell(text);
            Ok(())
        } else {
            print(text)
        }
    };
    let (conditions, looked) = (crate::record::conditions(), Instant::now());
    let devices = if arguments.device.is_empty() { &Device::ALL[..] } else { &arguments.device };
    let asked = !arguments.device.is_empty();
    let mut records = Vec::new();
    let mut worst: Option<Failure> = None;
    for experiment in experiments {
        for &device in devices {
            let id = experiment.card().id();
            if let Some(why) = experiment.card().absence(device) {
                if asked {
                    say(&format_args!("{id}: not applicable ({device}: {why})"))?;
                }
                continue;
            }
            if arguments.missing && is_there(experiment, device, arguments, &laboratory, hash.as_deref()) {
                say(&format_args!("{id} {device}: a record is there"))?;
                continue;
            }
            let conditions = of_minutes_before(&conditions, looked.elapsed().as_secs() / 60);
            match one(experiment, device, arguments, &laboratory, &conditions, hash.clone()) {
                Ok(record) => {
                    say(&verdict(experiment, &record))?;
                    records.push(record);
                }
                Err(failure @ (Failure::Interrupted | Failure::Closed)) => return Err(failure),
                Err(failure) => {
                    tell(format_args!("{id} {device}: could not run: {failure}"));
                    if worst.as_ref().is_none_or(|worst| worst.code() < failure.code()) {
                        worst = Some(failure);
                    }
                }
            }
        }
    }
    if let Some(path) = &arguments.json {
        write_json(path, &records)?;
    }
    if !records.is_empty() {
        tell(format_args!(
            "records are in {}; `sapwood-lab report{}` makes a page of them",
            arguments.results.display(),
            if arguments.results == Path::new("lab-results") {
                String::new()
            } else {
                format!(" --results {}", arguments.results.display())
            }
        ));
    }
    match worst {
        // What it was is told above, each where it happened.
        Some(Failure::Io(_)) => Err(Failure::Io("not everything could be run: see above".into())),
        Some(_) => Err(Failure::CannotRun("not everything could be run: see above".into())),
        None => Ok(()),
    }
}

fn chosen(names: &[String]) -> Result<Vec<&'static dyn Experiment>> {
    if names.iter().any(|name| name == "all") {
        return Ok(all().to_vec());
    }
    let mut experiments: Vec<&'static dyn Experiment> = Vec::new();
    for name in names {
        let found = find(name)?;
        if experiments.iter().all(|known| known.card().number != found.card().number) {
            experiments.push(found);
        }
    }
    Ok(experiments)
}

/// Whether a record by this program, which has this hash, on this machine and with these settings is there.
fn is_there(
    experiment: &dyn Experiment,
    device: Device,
    arguments: &Run,
    laboratory: &Laboratory,
    hash: Option<&str>,
) -> bool {
    let name = Record::name_of(&experiment.card().id(), device, arguments.scale);
    let json = std::fs::read_to_string(arguments.results.join(format!("{name}.json")));
    let dir = (device == Device::Disk).then_some(arguments.dir.as_path());
    // The one that would be used now: which that is without a choice, only the disk knows.
    let is_backend = |notes: &[String]| {
        laboratory.disk().is_ok_and(|disk| notes.contains(&through(disk.volume().backend())))
    };
    let is_it = |record: Record| {
        hash.is_some()
            && record.program.as_deref() == hash
            && record.machine == Machine::this(dir)
            && record.parameters == experiment.parameters(arguments.scale, device)
            && (dir.is_none() || is_backend(&record.notes))
    };
    json.is_ok_and(|json| Record::from_json(&json).is_ok_and(is_it))
}

fn one(
    experiment: &dyn Experiment,
    device: Device,
    arguments: &Run,
    laboratory: &Laboratory,
    conditions: &[String],
    hash: Option<String>,
) -> Result<Record> {
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let began = Instant::now();
    // What an experiment that failed has left.
    laboratory.take_notes();
    laboratory.begin(&format!("{} {device}", experiment.card().id()));
    let measured = experiment.measure(laboratory, device);
    laboratory.end();
    let dir = (device == Device::Disk).then_some(arguments.dir.as_path());
    let mut record = Record::new(experiment, device, arguments.scale, measured?, Machine::this(dir))?;
    record.date = date;
    record.program = hash;
    record.seconds = began.elapsed().as_secs_f64();
    if device == Device::Disk {
        record.notes = laboratory.disk_notes();
        record.notes.extend_from_slice(conditions);
    }
    record.notes.extend(laboratory.take_notes());
    record.save(&arguments.results)?;
    Ok(record)
}

/// All that people are told of a record; the last line is the verdict.
fn verdict(experiment: &dyn Experiment, record: &Record) -> String {
    let card = experiment.card();
    let (id, device) = (card.id(), record.device);
    let mut lines = vec![format!("{id} {}, {device}: {}", card.title, card.source)];
    lines.extend(record.notes.iter().map(|note| format!("  note: {note}")));
    lines.push(checks(&record.judgement));
    let mut causes = Vec::new();
    for check in &record.judgement.checks {
        if let Some(cause) = record.cause(&check.key)
            && (check.needs_a_cause() || check.outcome == Outcome::NotApplicable)
            && !causes.contains(&cause)
        {
            causes.push(cause);
        }
    }
    lines.extend(causes.iter().map(|cause| format!("  cause: {cause}")));
    let claims = || record.judgement.checks.iter().filter(|check| check.kind == Kind::Claim);
    let of = |outcome| claims().filter(|check| check.outcome == outcome).count();
    let (hold, fail) = (of(Outcome::Holds), of(Outcome::Fails));
    let claims = match hold + fail {
        0 => "no claim is judged here".to_owned(),
        claims => format!("{hold} of {claims} claims hold"),
    };
    lines.push(format!("{id}: {} ({device}; {claims})\n", record.verdict()));
    lines.join("\n")
}

/// The checks, a line or two each.
fn checks(judgement: &Judgement) -> String {
    let line = |check: &crate::judgement::Check| {
        let (label, claim) = (check.label(), &check.claim);
        format!("  {label}: {claim}\n            paper: {}; here: {}", check.paper, check.ours)
    };
    judgement.checks.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn write_json(path: &Path, records: &[Record]) -> Result<()> {
    let json = serde_json::to_string_pretty(records).map_err(|error| Failure::at("write", path, error))?;
    if path == Path::new("-") { print(json) } else { write_whole(path, &json) }
}
