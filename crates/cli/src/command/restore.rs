//! `sapwood restore` and `sapwood verify`: read a backup, from a directory or a stream.

use crate::arguments::{Restore as Options, Verify};
use crate::command::Opening;
use crate::command::backup::{Watch, existing, rfc3339};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::output::print;
use crate::progress::human_bytes;
use sapwood::backup::{self, BackupInfo, Directory, Point, Restore};
use std::fs::File;
use std::io::{Read, stdin};
use std::path::Path;

/// Where a backup is read.
enum Source {
    Directory(Directory),
    Stream(Box<dyn Read>),
}

impl Source {
    /// A directory; a stream in a file, a pipe, or whatever else there is; or standard input.
    fn open(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stream(Box::new(stdin())));
        }
        if std::fs::metadata(path).is_ok_and(|found| !found.is_dir()) {
            let file = File::open(path);
            let file = file.map_err(|error| Failure::Other(format!("{}: {error}", path.display())))?;
            return Ok(Self::Stream(Box::new(file)));
        }
        Ok(Self::Directory(existing(path)?))
    }

    fn restore(&mut self, number: Option<u64>, opening: &Opening) -> Result<Restore<'_>> {
        let restore = match (self, number) {
            (Self::Directory(target), Some(number)) => Restore::from(target).number(number),
            (Self::Directory(target), None) => Restore::from(target),
            (Self::Stream(stream), None) => Restore::from_stream(stream),
            (Self::Stream(_), Some(_)) => {
                return Err(Failure::Usage("a stream has one backup: leave --number out".to_owned()));
            }
        };
        Ok(match &opening.key {
            Some(key) => restore.encryption_key(key.clone()),
            None => restore,
        })
    }
}

/// Runs `work` and tells how far it is.
fn watched(
    restore: Restore<'_>,
    what: &'static str,
    work: impl FnOnce(Restore<'_>) -> sapwood::Result<BackupInfo>,
) -> Result<BackupInfo> {
    let mut watch = Watch::new(what);
    let done = work(restore.on_progress(|progress| watch.see(progress)));
    watch.finish();
    Ok(done?)
}

pub(crate) fn run(options: &Options, opening: Opening) -> Result<()> {
    interrupt::watch_leaving("there is no database yet: run it again, and it begins anew");
    let mut source = Source::open(&options.from.target)?;
    let restore = source.restore(options.from.number, &opening)?;
    let point = options.to.map(Point::Time).or(options.to_sequence.map(Point::Sequence));
    let restore = point.into_iter().fold(restore, Restore::to);
    let info = watched(restore, "restoring", |restore| restore.into_directory(&options.db))?;
    let (place, time) = (options.db.display(), rfc3339(info.time));
    match point {
        Some(_) => print(format_args!(
            "{place}: restored from backup {} and the log behind it, up to operation {}; the log's last time there is {time}",
            info.number, info.sequence
        )),
        None => print(format_args!(
            "{place}: restored from backup {} of {time}, {}",
            info.number,
            human_bytes(info.bytes)
        )),
    }
}

pub(crate) fn verify(options: &Verify, opening: &Opening) -> Result<()> {
    interrupt::watch_leaving("nothing was changed");
    let mut source = Source::open(&options.from.target)?;
    let numbers = match &source {
        Source::Directory(target) if options.all => {
            let backups = backup::list_each(target)?;
            if backups.is_empty() {
                let place = options.from.target.display();
                return Err(Failure::NotFound(format!("{place}: no backups, so none was verified")));
            }
            backups.iter().map(|(number, _)| Some(*number)).collect()
        }
        Source::Stream(_) if options.all => {
            return Err(Failure::Usage("a stream has one backup: leave --all out".to_owned()));
        }
        _ => vec![options.from.number],
    };
    let (mut damaged, mut not_read, mut told) = (Vec::new(), Vec::new(), Ok(()));
    for number in numbers {
        match watched(source.restore(number, opening)?, "verifying", |restore| restore.verify()) {
            Ok(info) => {
                let (place, number) = (options.from.target.display(), info.number);
                let line = format_args!("{place}: backup {number} is whole, {}", human_bytes(info.bytes));
                // The exit code is an answer too, for whoever has read enough.
                told = told.and(print(line));
            }
            Err(Failure::Damage(why)) => damaged.push(match number {
                Some(number) if options.all => format!("backup {number} is damaged: {why}"),
                _ => why,
            }),
            Err(stopped @ Failure::Interrupted(_)) => return Err(stopped),
            // Asked for one, it says what of that one.
            Err(other) if !options.all => return Err(other),
            Err(other) => not_read.push(match number {
                Some(number) => format!("backup {number} was not verified: {other}"),
                None => other.to_string(),
            }),
        }
    }
    if !damaged.is_empty() {
        return Err(Failure::Damage([damaged, not_read].concat().join("\n")));
    }
    if not_read.is_empty() { told } else { Err(Failure::Other(not_read.join("\n"))) }
}
