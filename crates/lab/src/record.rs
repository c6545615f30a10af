//! The record of an experiment on a device: everything that a reader, or a later report, needs to judge it again.
//!
//! Invariants:
//! 1. A record is one JSON file, its rows also one CSV file, its picture one SVG file, all of the same name.
//! 2. A file is written whole under another name first, so that an interrupted run leaves the older record.

use crate::chart::Chart;
use crate::experiment::{Device, Experiment, Measured, Parameter, Scale};
use crate::failure::{Failure, Result};
use crate::judgement::{Judgement, Verdict};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// The form that this version writes.
const FORMAT: u32 = 1;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of this form.
    pub format: u32,
    /// Such as E12.
    pub experiment: String,
    /// What it ran on.
    pub device: Device,
    /// How much of the published size.
    pub scale: Scale,
    /// When it began, as 2026-01-31T12:00:00Z.
    pub date: String,
    /// How to run it again.
    pub command: String,
    /// Version of this program.
    pub version: String,
    /// SHA-256 of the program's file: versions stay the same while it changes. Older records do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// How long it took, by the wall clock, in seconds.
    pub seconds: f64,
    /// Settings, as published and as used.
    pub parameters: Vec<Parameter>,
    /// What is peculiar about the device.
    pub notes: Vec<String>,
    /// What was measured.
    pub measured: Measured,
    /// What the predicate said when it was measured. Reports ask it again.
    pub judgement: Judgement,
}

/// Where it ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Operating system and version.
    pub system: String,
    /// Processors.
    pub processors: usize,
    /// File system of the directory, for a disk.
    pub file_system: Option<String>,
}

impl Machine {
    /// This one; `dir` is where the disk's files are.
    pub(crate) fn this(dir: Option<&Path>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { system: system(), processors, file_system: dir.and_then(file_system) }
    }
}

/// Under what conditions on this machine the wall clock runs: who else is at work, and whether we come first.
#[cfg(target_os = "linux")]
pub(crate) fn conditions() -> Vec<String> {
    let mut notes = Vec::new();
    if let Ok(info) = nix::sys::sysinfo::sysinfo() {
        let (load, ..) = info.load_average();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        if load > 0.25 * processors as f64 {
            notes.push(format!("{BUSY}: load {load:.1} on {processors} processors at the beginning"));
        }
    }
    if std::fs::read_to_string("/proc/self/stat").is_ok_and(|stat| is_real_time(&stat)) {
        notes.push(format!("{REAL_TIME}, so that others' work waits for this"));
    }
    notes
}

/// The conditions as they are noted so many minutes after they were looked at: what others do may have changed, our own priority has not.
pub(crate) fn of_minutes_before(conditions: &[String], minutes: u64) -> Vec<String> {
    let noted = |note: &String| match minutes > 0 && note.starts_with(BUSY) {
        true => format!("{note} of the program, {minutes} minutes before"),
        false => note.clone(),
    };
    conditions.iter().map(noted).collect()
}

/// Whether the line of /proc/PID/stat says so: its 41st field is the policy, 1 or 2.
#[cfg(target_os = "linux")]
fn is_real_time(stat: &str) -> bool {
    // The second field is the program's name in parentheses, which may hold anything.
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    matches!(behind_name.split_whitespace().nth(41 - 3), Some("1" | "2"))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn conditions() -> Vec<String> {
    Vec::new()
}

/// How a note of our own priority begins.
const REAL_TIME: &str = "run with real-time priority";
/// How a note of others at work begins.
const BUSY: &str = "the machine was not idle";

#[cfg(unix)]
fn system() -> String {
    let Ok(name) = nix::sys::utsname::uname() else { return std::env::consts::OS.to_owned() };
    let release = name.release().to_string_lossy();
    // The first two numbers say what the system can do; the rest is a matter of who built it.
    let version: Vec<&str> = release.split(['.', '-']).take(2).collect();
    format!("{} {} on {}", name.sysname().to_string_lossy(), version.join("."), std::env::consts::ARCH)
}

#[cfg(not(unix))]
fn system() -> String {
    format!("{} on {}", std::env::consts::OS, std::env::consts::ARCH)
}

#[cfg(target_os = "linux")]
fn file_system(dir: &Path) -> Option<String> {
    use nix::sys::statfs;
    let kind = statfs::statfs(dir).ok()?.filesystem_type();
    let names = [
        (statfs::EXT4_SUPER_MAGIC, "ext2, ext3 or ext4"),
        (statfs::XFS_SUPER_MAGIC, "XFS"),
        (statfs::BTRFS_SUPER_MAGIC, "Btrfs"),
        (statfs::TMPFS_MAGIC, "tmpfs"),
        (statfs::OVERLAYFS_SUPER_MAGIC, "overlayfs"),
        (statfs::NFS_SUPER_MAGIC, "NFS"),
    ];
    let name = names.into_iter().find(|(magic, _)| *magic == kind).map(|(_, name)| name.to_owned());
    Some(name.unwrap_or_else(|| format!("a file system of type {:#x}", kind.0)))
}

#[cfg(not(target_os = "linux"))]
fn file_system(_: &Path) -> Option<String> {
    None
}

impl Record {
    /// A record of what was measured from `date` on.
    pub(crate) fn new(
        experiment: &dyn Experiment,
        device: Device,
        scale: Scale,
        measured: Measured,
        machine: Machine,
    ) -> Result<Self> {
        let judgement = experiment.judge(&measured, device, scale)?;
        let id = experiment.card().id();
        Ok(Self {
            format: FORMAT,
            command: format!("sapwood-lab run {id} --device {device} --scale {scale}"),
            experiment: id,
            device,
            scale,
            date: String::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program: None,
            machine,
            seconds: 0.0,
            parameters: experiment.parameters(scale, device),
            notes: Vec::new(),
            measured,
            judgement,
        })
    }

    /// The experiment that this is a record of.
    ///
    /// # Errors
    /// [`Failure::CannotRun`] if this program does not know it.
    pub fn of(&self) -> Result<&'static dyn Experiment> {
        let unknown = |_| {
            let name = &self.experiment;
            Failure::CannotRun(format!(
                "a record of {name}, which this program does not know; was it made by a newer one?"
            ))
        };
        crate::experiment::find(&self.experiment).map_err(unknown)
    }

    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        self.judgement.verdict()
    }

    /// Why the check `key` of this record does not hold, as far as is known.
    pub fn cause(&self, key: &str) -> Option<Cow<'static, str>> {
        let known = self.known_cause(key);
        let has = |beginning| self.notes.iter().any(|note| note.starts_with(beginning));
        let busy = if has(REAL_TIME) {
            "not known; but others were at work on the machine, which no figure of the wall clock survives unharmed: the disk and \
             the caches they share, whatever the priority. Run it again when it is idle"
        } else {
            "not known; but others were at work on the machine, which no figure of the wall clock survives unharmed. Run it \
             again when it is idle, or with real-time priority (chrt -r 10 on Linux)"
        };
        known.or(has(BUSY).then_some(busy.into()))
    }

    /// The same, whatever was at work. On a disk it is that of the disk where the laboratory was written, which others need not share.
    pub fn known_cause(&self, key: &str) -> Option<Cow<'static, str>> {
        let text = self.of().ok()?.card().cause(self.device, self.scale, key)?;
        Some(match self.device {
            Device::Disk => format!("of the virtual disk of docs/reproduction: {text}").into(),
            _ => text.into(),
        })
    }

    /// Asks the predicate again, and what was published.
    ///
    /// # Errors
    /// [`Failure::CannotRun`] if the record is not complete.
    pub fn judge_again(&mut self) -> Result<()> {
        let experiment = self.of()?;
        self.judgement = experiment.judge(&self.measured, self.device, self.scale)?;
        // What the paper says is not a matter of when it was read.
        let known = experiment.parameters(self.scale, self.device);
        for parameter in &mut self.parameters {
            if let Some(now) = known.iter().find(|now| now.name == parameter.name) {
                parameter.published.clone_from(&now.published);
            }
        }
        Ok(())
    }

    /// The picture.
    ///
    /// # Errors
    /// [`Failure::CannotRun`] if the record is not complete.
    pub fn chart(&self) -> Result<Chart> {
        Ok(self.of()?.draw(&self.measured, self.device)?)
    }

    /// The picture as SVG.
    ///
    /// # Errors
    /// [`Failure::CannotRun`] if the record is not complete.
    pub fn picture(&self) -> Result<String> {
        self.chart()?.to_svg().map_err(Failure::CannotRun)
    }

    /// What its files are called, without ending: E12-disk, or E12-disk-std at another scale than ci, so that a long run
    /// does not replace the short one that is repeated often.
    pub fn name(&self) -> String {
        Self::name_of(&self.experiment, self.device, self.scale)
    }

    /// The same of a record that may be made.
    pub fn name_of(experiment: &str, device: Device, scale: Scale) -> String {
        if scale == Scale::Ci {
            format!("{experiment}-{device}")
        } else {
            format!("{experiment}-{device}-{scale}")
        }
    }

    /// Where it ran, in words: "disk", or "disk at scale std".
    pub fn place(&self) -> String {
        let Self { device, scale, .. } = self;
        if *scale == Scale::Ci { device.to_string() } else { format!("{device} at scale {scale}") }
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        let mut json = serde_json::to_string_pretty(self).expect("strings, finite numbers and lists");
        json.push('\n');
        json
    }

    /// From JSON.
    ///
    /// # Errors
    /// [`Failure::CannotRun`] says what is wrong.
    pub fn from_json(json: &str) -> Result<Self> {
        let wrong = |error| Failure::CannotRun(format!("no record of this program: {error}"));
        let record: Self = serde_json::from_str(json).map_err(wrong)?;
        if record.format != FORMAT {
            let found = record.format;
            return Err(Failure::CannotRun(format!(
                "a record of format {found}, expected {FORMAT}; run it again"
            )));
        }
        Ok(record)
    }

    /// Writes record, rows and picture into the directory.
    pub(crate) fn save(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(|error| Failure::at("create", dir, error))?;
        let path = |ending: &str| dir.join(format!("{}.{ending}", self.name()));
        write_whole(&path("csv"), &self.measured.to_csv())?;
        write_whole(&path("svg"), &self.picture()?)?;
        write_whole(&path("json"), &self.to_json())
    }

    /// All records in a directory, judged again, by number, device and scale.
    pub(crate) fn load_all(dir: &Path) -> Result<Vec<Self>> {
        let at = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => Failure::Io(format!(
                "{} is not there: `sapwood-lab run all` makes records, or name their place with --results",
                dir.display()
            )),
            _ => Failure::at("read", dir, error),
        };
        let mut paths: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(at)? {
            let path = entry.map_err(at)?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if name.starts_with('E') && name.ends_with(".json") {
                paths.push(path);
            }
        }
        let mut records = Vec::new();
        for path in paths {
            let json = std::fs::read_to_string(&path).map_err(|error| Failure::at("read", &path, error))?;
            let load = || {
                let mut record = Self::from_json(&json)?;
                record.judge_again()?;
                Ok(record)
            };
            records.push(
                load().map_err(|failure: Failure| {
                    Failure::CannotRun(format!("{}: {failure}", path.display()))
                })?,
            );
        }
        let number = |record: &Self| record.of().map_or(u32::MAX, |experiment| experiment.card().number);
        records.sort_by_key(|record| (number(record), record.device, record.scale));
        Ok(records)
    }
}

/// Writes a file under another name and renames it.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    written.map_err(|error| Failure::at("write", path, error))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::quantity::Wall;
    use crate::row::Rows;
    use crate::row::tests::row;

    /// A record of E2 on a disk whose requests overlap up to `channels`.
    pub(crate) fn record(channels: f64) -> Record {
        let depths = [1.0, 32.0, 64.0];
        let rows = ["read", "write"].into_iter().flat_map(|series| {
            depths.map(|depth| row::<Wall>(series, depth, 0, 80.0 / f64::min(depth, channels)))
        });
        let experiment = crate::experiment::find("E2").unwrap();
        let machine = Machine::this(Some(Path::new(".")));
        Record::new(experiment, Device::Disk, Scale::Ci, Measured::Wall(Rows(rows.collect())), machine)
            .unwrap()
    }

    #[test]
    fn a_record_reads_back_as_it_was_and_is_judged_again() {
        let record = record(64.0);
        assert_eq!(record.verdict(), Verdict::Holds);
        assert_eq!(record.command, "sapwood-lab run E2 --device disk --scale ci");
        let mut back = Record::from_json(&record.to_json()).unwrap();
        assert_eq!(back, record);
        back.judgement = Judgement::default();
        back.judge_again().unwrap();
        assert_eq!(back, record);
    }

    #[test]
    fn records_are_saved_and_found_with_their_rows_and_picture() {
        let dir = tempfile::tempdir().unwrap();
        let results = dir.path().join("results");
        assert!(Record::load_all(&results).unwrap_err().to_string().contains("run all"));
        let long = Record { scale: Scale::Std, ..record(2.0) };
        long.save(&results).unwrap();
        record(64.0).save(&results).unwrap();
        std::fs::write(results.join("notes.json"), "mine").unwrap();
        let found = Record::load_all(&results).unwrap();
        assert_eq!(found, [record(64.0), long]);
        assert_eq!(found.iter().map(Record::name).collect::<Vec<_>>(), ["E2-disk", "E2-disk-std"]);
        let csv = std::fs::read_to_string(results.join("E2-disk.csv")).unwrap();
        assert_eq!(Rows::from_csv(&csv).map(Measured::Wall).unwrap(), record(64.0).measured);
        assert!(std::fs::read_to_string(results.join("E2-disk.svg")).unwrap().contains("requests at a time"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn real_time_priority_is_seen() {
        // (name) is field 2; 38 fields stand between it and the policy.
        let stat = |name: &str, policy: &str| format!("1 ({name}) S {}{policy} 0 0", "7 ".repeat(37));
        assert!(is_real_time(&stat("lab", "2")));
        assert!(!is_real_time(&stat("lab) S 2 (", "0")));
        assert!(!is_real_time(""));
        assert!(!conditions().iter().any(|note| note.contains("real-time")), "tests have no such priority");
    }

    /// A note of our own priority ended with "of the program, 12 minutes before".
    #[test]
    fn conditions_are_noted_as_of_when_they_were_looked_at() {
        let busy = format!("{BUSY}: load 9.0 on 2 processors at the beginning");
        let conditions = [busy.clone(), format!("{REAL_TIME}, so that others' work waits for this")];
        assert_eq!(of_minutes_before(&conditions, 0), conditions);
        let later = of_minutes_before(&conditions, 12);
        assert_eq!(later, [format!("{busy} of the program, 12 minutes before"), conditions[1].clone()]);
    }

    #[test]
    fn a_busy_machine_is_named_where_no_cause_is_known() {
        let mut record = record(2.0);
        record.experiment = "E1".into();
        assert_eq!(record.cause("read-8k"), None);
        record.notes.push(format!("{BUSY}: load 9.0 on 2 processors at the beginning"));
        assert!(record.cause("read-8k").unwrap().contains("chrt"));
        let mut first = record.clone();
        first.notes.push(format!("{REAL_TIME}, so that others' work waits for this"));
        let told = first.cause("read-8k").unwrap();
        assert!(told.contains("others were at work") && !told.contains("chrt"), "it was run so: {told}");
        record.experiment = "E4".into();
        assert!(!record.cause("real-stays").unwrap().contains("chrt"), "a known cause comes first");
    }

    #[test]
    fn strange_records_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let told = |text: &str| {
            std::fs::write(dir.path().join("E2-disk.json"), text).unwrap();
            Record::load_all(dir.path()).unwrap_err().to_string()
        };
        assert!(told("{}").contains("E2-disk.json: no record of this program"));
        let record = record(64.0);
        assert!(told(&Record { format: 9, ..record.clone() }.to_json()).contains("format 9, expected 1"));
        assert!(told(&Record { experiment: "E999".into(), ..record.clone() }.to_json()).contains("E999"));
        let empty = Measured::Wall(Rows(Vec::new()));
        assert!(told(&Record { measured: empty, ..record }.to_json()).contains("nothing was recorded"));
    }
}
