//! `sapwood backup` and `sapwood backups`: copy a database, and look after the copies.

use crate::arguments::{Backup, Backups};
use crate::command::Opening;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::output::{answered, failed, print, tell};
use crate::progress::{Progress, human_bytes};
use sapwood::Error;
use sapwood::backup::{self, BackupInfo, Directory, StreamWriter, Target};
use std::io::{ErrorKind, IsTerminal, Write, stdout};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells how far a backup, a restore, a verification or a repair is, and ends it after Ctrl-C.
pub(super) struct Watch {
    what: &'static str,
    bar: Option<Progress>,
}

impl Watch {
    pub fn new(what: &'static str) -> Self {
        Self { what, bar: None }
    }

    pub fn see(&mut self, progress: &backup::Progress) -> ControlFlow<()> {
        let total = (progress.total > 0).then_some(progress.total);
        let bar = self.bar.get_or_insert_with(|| Progress::bytes(self.what, total));
        bar.at(progress.done, &human_bytes(progress.done));
        if interrupt::pressed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish();
        }
    }
}

/// An existing directory of backups. What cannot be looked at may be one.
pub(super) fn existing(path: &Path) -> Result<Directory> {
    let what = match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => return Ok(Directory::open(path)?),
        Ok(_) => "it is no directory",
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            "there is none"
        }
        Err(error) => return Err(Failure::Other(format!("{}: {error}", path.display()))),
    };
    Err(Failure::NotFound(format!("{} is no directory of backups: {what}", path.display())))
}

/// A time as people and programs read it. A clock that was wrong may have had later ones than the form has.
pub(super) fn rfc3339(time: SystemTime) -> String {
    /// The year 10000, in seconds since 1970: years of RFC 3339 have four digits.
    const END: u64 = 253_402_300_800;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    if since.as_secs() >= END {
        return format!("{} ms after 1970", since.as_millis());
    }
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

/// The same of a time from which on something holds: the next whole second, since that text is taken at its word.
fn rfc3339_from(time: SystemTime) -> String {
    rfc3339(time.checked_add(Duration::from_nanos(999_999_999)).unwrap_or(time))
}

pub(crate) fn run(options: &Backup, opening: Opening) -> Result<()> {
    if options.stream && stdout().is_terminal() {
        return Err(Failure::Usage(
            "a stream is not for a terminal: pipe it, or redirect it into a file".to_owned(),
        ));
    }
    let db = opening.to_read(&options.db).map_err(|failure| match failure {
        Failure::Other(why) if why.contains("is in use by") => {
            Failure::Other(format!("{why}; or let that process take the backup (`Database::backup`)"))
        }
        other => other,
    })?;
    interrupt::watch();
    let mut watch = Watch::new("copying");
    let mut backup = db.backup().on_progress(|progress| watch.see(progress));
    if let Some(rate) = options.rate {
        backup = backup.rate(rate);
    }
    let Some(path) = &options.target else {
        let taken = backup.run(&StreamWriter::new(stdout()));
        watch.finish();
        let taken = taken?;
        tell(format_args!("{}: a stream of {}", options.db.display(), human_bytes(taken.bytes)));
        return Ok(());
    };
    let target = Directory::open(path)?;
    if options.archive_log {
        backup = backup.archive_log();
    }
    let taken = backup.run(&target);
    watch.finish();
    let taken = taken.map_err(|error| match error {
        Error::Stopped => Failure::Interrupted("interrupted: run it again, and it goes on".to_owned()),
        error => error.into(),
    })?;
    let told = print(format_args!(
        "{}: backup {} of {}, {}, {} copied",
        path.display(),
        taken.number,
        rfc3339(taken.time),
        human_bytes(taken.bytes),
        human_bytes(taken.copied)
    ));
    let rotated = options.keep.map_or(Ok(()), |keep| rotate(&target, &taken, keep));
    if let Some(archive) = taken.archive {
        // Some may have gone with the backups that were removed, or begin with one that cannot be read.
        let now = listed(&target, taken.number).and_then(|listed| listed.archive).unwrap_or(archive);
        let since = rfc3339_from(now.since);
        _ = print(format_args!("{}: each moment since {since} can be restored", path.display()));
        if let Some(gap) = now.gap {
            tell(format_args!("{}: not all between the backup before and this one: {gap}", path.display()));
        }
    }
    rotated.and(told)
}

/// What is told of a backup now, if it can be read.
fn listed(target: &Directory, number: u64) -> Option<BackupInfo> {
    let mut listed = backup::list_each(target).ok()?.into_iter();
    listed.find(|(found, _)| *found == number).and_then(|(_, info)| info.ok())
}

/// Leaves so many backups of the database that `taken` is of.
fn rotate(target: &Directory, taken: &BackupInfo, keep: u64) -> Result<()> {
    let mut ours = Vec::new();
    for (number, info) in backup::list_each(target)? {
        match info {
            Ok(info) if info.database == taken.database => ours.push(number),
            Ok(_) => {}
            Err(error) => {
                let why = format!(
                    "backup {} was taken, but no older one was removed, since another cannot be read: {error}",
                    taken.number
                );
                return Err(match error {
                    Error::BackupDamaged { .. } => Failure::Damage(format!(
                        "{why}; remove that one with `sapwood backups {} --remove {number}`",
                        target.describe()
                    )),
                    // It may be as sound as any, or be of a newer Sapwood.
                    _ => Failure::Other(why),
                });
            }
        }
    }
    let old = ours.len().saturating_sub(usize::try_from(keep).unwrap_or(usize::MAX));
    remove(target, &ours[..old])
}

/// Removes these, also if some are not there: a removal that was cut off is repeated as it was.
fn remove(target: &Directory, numbers: &[u64]) -> Result<()> {
    let (mut told, mut missing) = (Ok(()), Vec::new());
    for number in numbers {
        let removed = match backup::remove(target, *number) {
            Err(Error::NoBackup { wanted, existing, .. }) => {
                missing.push((wanted, existing));
                continue;
            }
            removed => removed?,
        };
        let place = target.describe();
        told = told.and(print(format_args!(
            "{place}: backup {number} removed, {} given back",
            human_bytes(removed.bytes)
        )));
    }
    // Which there are is told as of now.
    let now = backup::list_each(target).ok().map(|backups| {
        let numbers: Vec<_> = backups.iter().map(|(number, _)| number.to_string()).collect();
        if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") }
    });
    let refused = missing.into_iter().map(|(wanted, existing)| {
        format!("{} has no {wanted}; it has: {}", target.describe(), now.as_ref().unwrap_or(&existing))
    });
    let refused: Vec<_> = refused.collect();
    let answer = if refused.is_empty() { Ok(()) } else { Err(Failure::NotFound(refused.join("\n"))) };
    answered(told, answer)
}

pub(crate) fn list(options: &Backups) -> Result<()> {
    let target = existing(&options.target)?;
    if !options.remove.is_empty() {
        return remove(&target, &options.remove);
    }
    let (mut backups, mut damaged, mut not_read) = (Vec::new(), Vec::new(), Vec::new());
    for (_, info) in backup::list_each(&target)? {
        match info {
            Ok(info) => backups.push(info),
            Err(error @ Error::BackupDamaged { .. }) => damaged.push(error.to_string()),
            Err(error) => not_read.push(error.to_string()),
        }
    }
    let told = show(options, &backups, damaged.is_empty() && not_read.is_empty());
    let answer = if !damaged.is_empty() {
        Err(Failure::Damage([damaged, not_read].concat().join("\n")))
    } else if !not_read.is_empty() {
        Err(Failure::Other(not_read.join("\n")))
    } else {
        Ok(())
    };
    answered(told, answer)
}

fn show(options: &Backups, backups: &[BackupInfo], are_all: bool) -> Result<()> {
    let mut out = stdout().lock();
    if options.json {
        let rows: Vec<_> = backups.iter().map(json).collect();
        let text = serde_json::to_string_pretty(&rows).map_err(|error| Failure::Other(error.to_string()))?;
        return writeln!(out, "{text}").map_err(failed);
    }
    if backups.is_empty() {
        if !are_all {
            return Ok(());
        }
        tell(format_args!("{}: no backups", options.target.display()));
        return Ok(());
    }
    let line = |cells: [&str; 7]| {
        let [number, time, bytes, copied, sequence, since, database] = cells;
        format!("{number:>6}  {time:20}  {bytes:>11}  {copied:>11}  {sequence:>12}  {since:20}  {database}")
    };
    let head = ["NUMBER", "TIME", "SIZE", "COPIED", "CHANGES", "MOMENTS SINCE", "DATABASE"];
    writeln!(out, "{}", line(head)).map_err(failed)?;
    for info in backups {
        let (number, sequence) = (info.number.to_string(), info.sequence.to_string());
        let (bytes, copied) = (human_bytes(info.bytes), human_bytes(info.copied));
        let since = info.archive.map_or("-".to_owned(), |archive| rfc3339_from(archive.since));
        let row = line([&number, &rfc3339(info.time), &bytes, &copied, &sequence, &since, &info.database]);
        writeln!(out, "{row}").map_err(failed)?;
    }
    Ok(())
}

fn json(info: &BackupInfo) -> serde_json::Value {
    serde_json::json!({
        "number": info.number,
        "time": rfc3339(info.time),
        "bytes": info.bytes,
        "copied": info.copied,
        "blobs": info.blobs,
        "sequence": info.sequence,
        "database": info.database,
        "moments_since": info.archive.map(|archive| rfc3339_from(archive.since)),
        "archive_bytes": info.archive.map(|archive| archive.bytes),
        "gap": info.archive.and_then(|archive| archive.gap).map(|gap| gap.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_time_is_told() {
        let told = |millis| rfc3339(UNIX_EPOCH + Duration::from_millis(millis));
        assert_eq!(told(0), "1970-01-01T00:00:00Z");
        assert_eq!(told(253_402_300_799_999), "9999-12-31T23:59:59Z");
        assert_eq!(told(253_402_300_800_000), "253402300800000 ms after 1970");
        assert_eq!(told(u64::MAX), format!("{} ms after 1970", u64::MAX));
        let from = |millis| rfc3339_from(UNIX_EPOCH + Duration::from_millis(millis));
        assert_eq!(from(1000), "1970-01-01T00:00:01Z");
        assert_eq!(from(1001), "1970-01-01T00:00:02Z");
        assert_eq!(from(1999), "1970-01-01T00:00:02Z");
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00Z");
    }
}
